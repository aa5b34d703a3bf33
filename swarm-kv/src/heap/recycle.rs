//! Buffers that come back.
//!
//! A client that has written a register again, and knows that the later write is complete, retires
//! the buffer of its earlier one: no operation that begins afterwards can come across it, because
//! every majority shows the later stamp. Once the epoch has moved on [`GRACE`] times nobody holds it
//! any more either, and it is used again. It all rests on this: *a buffer is retired at most once for
//! each time that it is handed out*, which the ledger sees to: it says of every buffer of this
//! client's chunks which register it was written for, and under which timestamp, until it is
//! retired. A stamp that is met late, of a former life of its buffer, does not agree with that.
//!
//! First buffers, that a bucket's record names as born with it, are never in the ledger: whoever
//! adopts the record may still copy them. Nor are buffers of writes whose outcome is unknown.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use swarm_core::epoch::GRACE;
use swarm_core::geometry::{Class, Geometry};
use swarm_core::register::Register;
use swarm_core::words::{Pointer, Stamp};

use super::Kind;

/// Retired buffers for which there is room without another allocation.
const ROOM: usize = 16 << 10;

/// The buffers of this client's writes.
pub(super) struct Recycler {
    geometry: Geometry,
    /// Granules in a chunk are 2 to this power.
    chunk_bits: u32,
    /// By chunk; of this client's chunks for buffers only.
    ledgers: RefCell<Vec<Option<Ledger>>>,
    shelves: RefCell<Vec<Shelf>>,
    reclaimed: Cell<u64>,
}

/// What the buffers of one chunk hold.
struct Ledger {
    /// Which shelf they come back to.
    shelf: usize,
    /// The distance from one buffer to the next, in granules; the first lies one behind the chunk's
    /// first granule.
    granules: u32,
    /// Of each: the timestamp and the register of the complete write that it is for, or 0.
    holds: Box<[u64]>,
}

/// Buffers of one kind that came back.
struct Shelf {
    kind: Kind,
    /// Retired, and in which epoch; the earliest first.
    retired: VecDeque<(u64, Pointer)>,
    /// Nobody holds these any more.
    ready: Vec<Pointer>,
}

impl Recycler {
    pub(super) fn new(geometry: Geometry) -> Self {
        let ledgers = (0..geometry.chunks()).map(|_| None).collect();
        let chunk_bits = geometry.chunk_granules().trailing_zeros();
        let (shelves, reclaimed) = Default::default();
        Self { geometry, chunk_bits, ledgers: RefCell::new(ledgers), shelves, reclaimed }
    }

    /// From now on objects of this chunk are handed out.
    pub(super) fn open(&self, chunk: usize, kind: Kind) {
        let granules = match kind.class {
            Class::Plain(size) => size.granules(),
            Class::Run => self.geometry.chunk_granules(),
            Class::Homed { .. } | Class::RunTail => return,
        };
        let mut shelves = self.shelves.borrow_mut();
        let shelf = shelves.iter().position(|shelf| shelf.kind == kind).unwrap_or(shelves.len());
        if shelf == shelves.len() {
            let (retired, ready) = (VecDeque::with_capacity(ROOM), Vec::with_capacity(ROOM));
            shelves.push(Shelf { kind, retired, ready });
        }
        let holds = vec![0; self.geometry.objects(kind.class) as usize].into_boxed_slice();
        if let Some(ledger) = self.ledgers.borrow_mut().get_mut(chunk) {
            *ledger = Some(Ledger { shelf, granules: granules as u32, holds });
        }
    }

    /// A buffer that came back.
    #[inline]
    pub(super) fn take(&self, kind: Kind) -> Option<Pointer> {
        let mut shelves = self.shelves.borrow_mut();
        shelves.iter_mut().find(|shelf| shelf.kind == kind)?.ready.pop()
    }

    /// Takes back a buffer that no chain has named.
    pub(super) fn take_back(&self, kind: Kind, buffer: Pointer) {
        let mut shelves = self.shelves.borrow_mut();
        if let Some(shelf) = shelves.iter_mut().find(|shelf| shelf.kind == kind) {
            shelf.ready.push(buffer);
        }
    }

    /// A write of `buffer` to `register` is complete, whose stamp is `after`. Retires the buffers
    /// that the stamps in `before`, met there earlier, name, if they are this client's own.
    #[inline]
    pub(super) fn wrote(
        &self,
        register: &Register,
        buffer: Pointer,
        after: Stamp,
        before: [Stamp; 2],
        epoch: impl Fn() -> u64,
    ) {
        let format = self.geometry.format;
        // A stamp of another's in the client's own slot says nothing of how late this write is.
        if format.pointer(after) != buffer {
            return;
        }
        let mut ledgers = self.ledgers.borrow_mut();
        let own = register.place.pointer.0;
        let entry = |stamp| (format.timestamp(stamp).0 << format.pointer_bits) | own;
        if let Some((_, holds)) = self.find(&mut ledgers, buffer) {
            *holds = entry(after);
        }
        let [latest, largest] = before;
        self.supersede(&mut ledgers, latest, after, entry(latest), &epoch);
        if largest.0 != latest.0 {
            self.supersede(&mut ledgers, largest, after, entry(largest), &epoch);
        }
    }

    /// Retires the buffer that `stamp` names, if it is this client's and still holds that write.
    #[inline(always)]
    fn supersede(
        &self,
        ledgers: &mut [Option<Ledger>],
        stamp: Stamp,
        after: Stamp,
        entry: u64,
        epoch: impl Fn() -> u64,
    ) {
        let format = self.geometry.format;
        let old = format.pointer(stamp);
        if old.is_null() || old == format.pointer(after) || stamp >= after {
            return;
        }
        let Some((shelf, holds)) = self.find(ledgers, old) else { return };
        // The same register, and no earlier than what the buffer holds. A later timestamp is that of
        // the same write's second stamp.
        let same = (*holds ^ entry) & ((1 << format.pointer_bits) - 1) == 0;
        if *holds != 0 && same && *holds <= entry {
            *holds = 0;
            if let Some(shelf) = self.shelves.borrow_mut().get_mut(shelf) {
                shelf.retired.push_back((epoch(), old));
            }
        }
    }

    /// Takes in what was retired [`GRACE`] epochs before `epoch`, if those are at least so many, and
    /// calls `each` with it. Yields how many there were.
    pub(super) fn reclaim(
        &self,
        kind: Kind,
        epoch: u64,
        least: usize,
        each: impl Fn(Pointer),
    ) -> usize {
        let mut shelves = self.shelves.borrow_mut();
        let Some(shelf) = shelves.iter_mut().find(|shelf| shelf.kind == kind) else { return 0 };
        let over = shelf.retired.partition_point(|&(retired, _)| retired + GRACE <= epoch);
        if over < least {
            return 0;
        }
        self.reclaimed.set(self.reclaimed.get() + over as u64);
        for (_, buffer) in shelf.retired.drain(..over) {
            each(buffer);
            shelf.ready.push(buffer);
        }
        over
    }

    /// How many buffers were taken in again so far.
    pub(super) fn reclaimed(&self) -> u64 {
        self.reclaimed.get()
    }

    /// Whether buffers of this kind wait for the epoch to move on.
    pub(super) fn waits(&self, kind: Kind) -> bool {
        let shelves = self.shelves.borrow();
        shelves.iter().any(|shelf| shelf.kind == kind && !shelf.retired.is_empty())
    }

    /// What is known of `buffer`, if it is this client's, and the shelf that it comes back to.
    #[inline(always)]
    fn find<'l>(
        &self,
        ledgers: &'l mut [Option<Ledger>],
        buffer: Pointer,
    ) -> Option<(usize, &'l mut u64)> {
        let chunk = (buffer.0 >> self.chunk_bits) as usize;
        let ledger = ledgers.get_mut(chunk)?.as_mut()?;
        let within = buffer.0 as u32 & ((1 << self.chunk_bits) - 1);
        let index = within.checked_sub(1)? / ledger.granules;
        Some((ledger.shelf, ledger.holds.get_mut(index as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::NodeId;
    use swarm_core::layout::{Identity, Place, Shape};
    use swarm_core::words::{StampFlags, Timestamp};

    use super::*;

    struct Bench {
        recycler: Recycler,
        kind: Kind,
        chunk: usize,
    }

    impl Bench {
        fn new() -> Self {
            let geometry = Geometry::new(3, 8 << 20, 4, 1).expect("geometry");
            let class = geometry.plain_class(16);
            let kind = Kind { class, home: NodeId(0), chunks: 1 };
            let (recycler, chunk) = (Recycler::new(geometry), geometry.first_chunk());
            recycler.open(chunk, kind);
            Self { recycler, kind, chunk }
        }

        fn buffer(&self, index: u64) -> Pointer {
            self.recycler.geometry.object(self.chunk, self.kind.class, NodeId(0), index)
        }

        fn stamp(&self, timestamp: u64, index: u64) -> Stamp {
            let format = self.recycler.geometry.format;
            format.stamp(Timestamp(timestamp), self.buffer(index), StampFlags::empty())
        }

        fn wrote(&self, register: &Register, before: Stamp, after: Stamp) {
            let buffer = self.recycler.geometry.format.pointer(after);
            self.recycler.wrote(register, buffer, after, [before, before], || 5);
        }

        /// How many buffers are retired.
        fn retired(&self) -> usize {
            self.recycler.shelves.borrow()[0].retired.len()
        }
    }

    fn register(pointer: u64) -> Register {
        let shape = Shape { key_length: 3, capacity: 1, predecessor: Pointer::NULL };
        let place = Place::everywhere(Pointer(pointer), NodeId(0));
        Register::new(place, Identity::default(), shape)
    }

    #[test]
    fn what_a_later_write_took_the_place_of_comes_back_after_two_epochs() {
        let bench = Bench::new();
        let (first, second) = (bench.stamp(10, 0), bench.stamp(20, 1));
        bench.wrote(&register(7), Stamp::EMPTY, first);
        assert_eq!(bench.retired(), 0);
        bench.wrote(&register(7), first, second);
        assert_eq!(bench.recycler.reclaim(bench.kind, 6, 1, |_| {}), 0);
        assert_eq!(bench.recycler.reclaim(bench.kind, 7, 1, |_| {}), 1);
        assert_eq!(bench.recycler.take(bench.kind), Some(bench.buffer(0)));
        assert_eq!(bench.recycler.take(bench.kind), None);
    }

    #[test]
    fn a_second_stamp_of_the_same_write_is_known_as_such() {
        let bench = Bench::new();
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(10, 0));
        bench.wrote(&register(7), bench.stamp(15, 0).verified(), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
    }

    /// Stamps stay behind at nodes that lag, and in other clients' slots. To take one for that of the
    /// buffer's present write would give away a value that everyone reads.
    #[test]
    fn a_stamp_of_a_former_life_retires_nothing() {
        let bench = Bench::new();
        let (old, new) = (bench.stamp(10, 0), bench.stamp(30, 0));
        bench.wrote(&register(7), Stamp::EMPTY, old);
        bench.wrote(&register(7), old, bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
        // Met again before the buffer is used again.
        bench.wrote(&register(7), old, bench.stamp(25, 2));
        assert_eq!(bench.retired(), 1);
        // Used again for the same register, and for another one under the very same timestamp.
        bench.wrote(&register(7), Stamp::EMPTY, new);
        bench.wrote(&register(7), old, bench.stamp(40, 3));
        assert_eq!(bench.retired(), 1);
        bench.wrote(&register(8), Stamp::EMPTY, old);
        bench.wrote(&register(7), old, bench.stamp(50, 4));
        assert_eq!(bench.retired(), 1);
    }

    #[test]
    fn a_later_stamp_is_not_superseded() {
        let bench = Bench::new();
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(30, 0));
        bench.wrote(&register(7), bench.stamp(30, 0), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 0);
    }

    #[test]
    fn pointers_that_are_not_this_clients_buffers_are_let_alone() {
        let bench = Bench::new();
        let geometry = bench.recycler.geometry;
        let last = (1 << geometry.format.pointer_bits) - 1;
        for pointer in [1, last / 2, last] {
            let stamp = geometry.format.stamp(Timestamp(3), Pointer(pointer), StampFlags::empty());
            bench.wrote(&register(7), stamp, bench.stamp(20, 1));
        }
        assert_eq!(bench.retired(), 0);
    }
}
