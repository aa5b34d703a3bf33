//! Memory that comes back.
//!
//! A client that has written a register again, and knows that the later write is complete, *retires*
//! the buffer of its earlier one: no operation that begins afterwards can come across it, because
//! every majority shows the later stamp. Once the epoch has moved on a [few times](super::shelf) nobody holds it
//! any more either, and it is used again. It all rests on this: *an object is retired at most once
//! for each time that it is handed out*, which the [ledger](super::ledger) sees to: it says of every
//! buffer which register it was written for, and under which timestamp, until it is retired. A
//! stamp that is met late, of a former life of its buffer, does not agree with that.
//!
//! The same goes for first buffers once the bucket's record that names them as born with it has come back.
//! Until then whoever adopts that one may copy them.
//!
//! All else comes back through a [collection](crate::collect): such first buffers; buffers of
//! writes whose outcome is unknown, or that others' writes took the place of; records; registers.
//! Where the control words of such an object matter, they are reset at every node before it is used
//! again.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use swarm_core::layout::{Geometry, Site};
use swarm_core::node::{MAX_NODES, NodeId};
use swarm_core::register::Register;
use swarm_core::words::{Pointer, Stamp, Timestamp};

use super::Kind;
use super::ledger::{Entry, Ledgers, Spot, Unnamed};
use super::shelf::Shelf;

/// A buffer that was taken for a write, where it lies, and where its entry is if that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) buffer: Pointer,
    pub(crate) site: Site,
    spot: Option<Spot>,
}

/// A client's objects, and those of them that came back.
pub(crate) struct Recycler {
    geometry: Geometry,
    ledgers: RefCell<Ledgers>,
    shelves: RefCell<Vec<Shelf>>,
    /// For each home, which shelf was asked for last.
    last: [Cell<usize>; MAX_NODES],
    reclaimed: Cell<u64>,
    /// Chunks of which nothing is handed out, as they are [emptied](super::sparse): what comes back there stays idle, and
    /// is on no shelf.
    closed: RefCell<BTreeSet<usize>>,
    /// Those of them that were closed when the last collection began.
    judged: RefCell<BTreeSet<usize>>,
}

impl Recycler {
    pub(super) fn new(geometry: Geometry) -> Self {
        let (shelves, last, reclaimed, closed, judged) = Default::default();
        let ledgers = RefCell::new(Ledgers::new(geometry));
        Self { geometry, ledgers, shelves, last, reclaimed, closed, judged }
    }

    /// From now on objects of this kind in `chunk` are this client's; `used` were handed out before.
    pub(super) fn open(&self, chunk: usize, kind: Kind, used: u64) {
        self.ledgers.borrow_mut().open(chunk, kind, used);
        self.expect(kind, self.geometry.objects(kind.class).saturating_sub(used) as usize);
    }

    /// From now on a range of the objects of this kind in `chunk` is this client's, which nobody was ever handed out.
    pub(super) fn open_range(&self, chunk: usize, kind: Kind, range: Range<u64>) {
        let more = (range.end - range.start) as usize;
        self.ledgers.borrow_mut().open_range(chunk, kind, range);
        self.expect(kind, more);
    }

    /// Chunks of which others have objects too.
    pub(super) fn shared(&self) -> Vec<usize> {
        self.ledgers.borrow().shared().collect()
    }

    /// There is a chunk, or a range of one, with so many objects of this kind.
    fn expect(&self, kind: Kind, more: usize) {
        if self.shelf(kind, |shelf| shelf.comes_to(more)).is_none() {
            let mut shelf = Shelf::new(kind);
            shelf.comes_to(more);
            self.shelves.borrow_mut().push(shelf);
        }
    }

    /// Whether the objects of this home in `chunk` are known.
    pub(super) fn is_open(&self, chunk: usize, home: NodeId) -> bool {
        self.ledgers.borrow().is_open(chunk, home)
    }

    /// An object was handed out that is as good as new.
    #[inline]
    pub(crate) fn handed_out(&self, object: Pointer) {
        self.set(object, Entry::OUT);
    }

    #[inline(always)]
    fn set(&self, object: Pointer, to: Entry) {
        if let Some(entry) = self.ledgers.borrow_mut().find(object) {
            *entry = to;
        }
    }

    /// A buffer that came back.
    #[inline]
    pub(super) fn take(&self, kind: Kind) -> Option<Pointer> {
        let buffer = self.shelf(kind, |shelf| shelf.ready.pop())??;
        self.set(buffer, Entry::OUT);
        Some(buffer)
    }

    /// A buffer that came back, for a write that is over, or notes it as [handed out](Self::handed_out), before
    /// anything else happens: until then its entry says that it is at hand. `expect` is told where the next one and its
    /// entry lie.
    #[inline(always)]
    pub(super) fn take_now(
        &self,
        kind: Kind,
        expect: impl FnOnce(&Site, Option<&Entry>),
    ) -> Option<Taken> {
        let ledgers = self.ledgers.borrow();
        let mut shelves = self.shelves.borrow_mut();
        let shelf = self.shelf_of(&mut shelves, kind)?;
        let found = shelf.take_found(&ledgers, |next| {
            expect(&ledgers.site(next), ledgers.get(next.spot));
        })?;
        Some(Taken { buffer: found.buffer, site: ledgers.site(&found), spot: Some(found.spot) })
    }

    /// A buffer that was taken in another way.
    pub(super) fn taken(&self, buffer: Pointer) -> Taken {
        let ledgers = self.ledgers.borrow();
        match ledgers.buffer(buffer) {
            Some(found) => Taken { buffer, site: ledgers.site(&found), spot: Some(found.spot) },
            None => Taken { buffer, site: self.geometry.buffers().site(buffer), spot: None },
        }
    }

    /// An object that came back and is as good as one that was never used.
    #[inline]
    pub(super) fn take_fresh(&self, kind: Kind) -> Option<Pointer> {
        let object = self.shelf(kind, Shelf::take_fresh)??;
        self.set(object, Entry::OUT);
        Some(object)
    }

    /// Takes back a buffer that no chain has named.
    pub(super) fn take_back(&self, buffer: Pointer) {
        if let Some((entry, kind)) = self.ledgers.borrow_mut().look_up(buffer) {
            *entry = Entry::IDLE;
            if !self.is_closed(buffer) {
                self.shelf(kind, |shelf| shelf.ready.push(buffer));
            }
        }
    }

    /// A write of `buffer` was refused by a delete, which every majority shows from now on. Nobody who begins
    /// later comes across the buffer.
    pub(super) fn refused(&self, buffer: Pointer, epoch: u64) {
        if let Some((entry, kind)) = self.ledgers.borrow_mut().look_up(buffer)
            && entry.is_out()
        {
            *entry = Entry::IDLE;
            self.shelf(kind, |shelf| shelf.retired.push_back((epoch, buffer)));
        }
    }

    /// Takes back an object that is as good as new still.
    pub(super) fn take_back_unused(&self, object: Pointer) {
        if let Some((entry, kind)) = self.ledgers.borrow_mut().look_up(object) {
            *entry = Entry::IDLE;
            if !self.is_closed(object) {
                self.shelf(kind, |shelf| shelf.renewed([object].into_iter()));
            }
        }
    }

    /// Hands out nothing more of this chunk, whatever comes back there.
    pub(super) fn close(&self, chunk: usize) {
        self.closed.borrow_mut().insert(chunk);
        let is_kept = |object| self.geometry.chunk_of(object) != chunk;
        self.shelves.borrow_mut().iter_mut().for_each(|shelf| shelf.keep_at_hand(is_kept));
    }

    /// Whether an object lies in a chunk that is closed.
    #[inline]
    pub(crate) fn is_closed(&self, object: Pointer) -> bool {
        let closed = self.closed.borrow();
        !closed.is_empty() && closed.contains(&self.geometry.chunk_of(object))
    }

    /// Chunks that are closed.
    pub(super) fn closed(&self) -> BTreeSet<usize> {
        self.closed.borrow().clone()
    }

    /// Those of them that were so when the last collection began, which are not judged any more.
    pub(super) fn take_judged(&self) -> BTreeSet<usize> {
        self.judged.take()
    }

    /// How many objects of this chunk are in use, where all are known.
    pub(super) fn in_use(&self, chunk: usize) -> Option<u64> {
        self.ledgers.borrow().in_use(chunk)
    }

    /// Whether an object is in a chunk that is this client's.
    fn is_own(&self, object: Pointer) -> bool {
        self.ledgers.borrow_mut().find(object).is_some_and(|entry| entry.is_own())
    }

    /// Forgets the objects of all chunks but those that are still this client's.
    pub(super) fn keep(&self, is_own: impl Fn(usize) -> bool) {
        self.ledgers.borrow_mut().keep(&is_own);
        self.closed.borrow_mut().retain(|&chunk| is_own(chunk));
        self.judged.borrow_mut().retain(|&chunk| is_own(chunk));
        let is_own = |object| is_own(self.geometry.chunk_of(object));
        self.shelves.borrow_mut().iter_mut().for_each(|shelf| shelf.keep(is_own));
    }

    /// Chunks with objects that were retired and that somebody may still hold in `epoch`.
    pub(super) fn held(&self, epoch: u64) -> HashSet<usize> {
        let shelves = self.shelves.borrow();
        let held = shelves.iter().flat_map(|shelf| shelf.held(epoch));
        held.map(|object| self.geometry.chunk_of(object)).collect()
    }

    /// Whether every object of this chunk is at hand, or was retired so long ago that nobody holds it any more: the
    /// chunk is none of those that are [held](Self::held). Buffers of a size that this client writes no more stay
    /// retired.
    pub(super) fn is_empty(&self, chunk: usize, held: &HashSet<usize>) -> bool {
        self.ledgers.borrow().is_idle(chunk) && !held.contains(&chunk)
    }

    /// How many objects of this kind are to be reset.
    pub(super) fn to_reset(&self, kind: Kind) -> usize {
        self.shelf(kind, |shelf| shelf.to_reset()).unwrap_or(0)
    }

    /// How many buffers of this kind came back.
    pub(super) fn at_hand(&self, kind: Kind) -> usize {
        self.shelf(kind, |shelf| shelf.at_hand()).unwrap_or(0)
    }

    /// How many objects of this kind came back and are as good as ones that were never used.
    pub(super) fn fresh(&self, kind: Kind) -> usize {
        self.shelf(kind, |shelf| shelf.fresh()).unwrap_or(0)
    }

    /// Garbage was collected; of each kind the chunk at hand has so many `unused`.
    pub(super) fn is_collected(&self, unused: impl Fn(Kind) -> usize) {
        self.shelves.borrow_mut().iter_mut().for_each(|it| it.is_collected(unused(it.kind)));
    }

    /// Whether most of what a collection left of any kind, and of what came in chunks since, is used up.
    pub(super) fn is_used_up(&self, unused: impl Fn(Kind) -> usize) -> bool {
        self.shelves.borrow().iter().any(|shelf| shelf.is_used_up(&unused))
    }

    /// An object that was handed out is at hand again, and as good as new.
    pub(super) fn untouched(&self, object: Pointer) {
        self.set(object, Entry::IDLE);
    }

    /// A record of this client's is committed in the bucket at `cell`, unless it was found to be garbage
    /// before its proposer heard of that.
    pub(super) fn committed(&self, cell: Pointer, record: Pointer) {
        self.put(record, Entry::is_in(cell));
    }

    /// Likewise one that is the first of the bucket at `cell`, which came of a split.
    pub(super) fn born(&self, cell: Pointer, record: Pointer) {
        self.put(record, Entry::is_born_in(cell));
    }

    /// Says what an object is in use for that nothing is known of yet.
    fn put(&self, object: Pointer, to: Entry) {
        if let Some(entry) = self.ledgers.borrow_mut().find(object)
            && entry.is_out()
        {
            *entry = to;
        }
    }

    /// No node lacks that record any more. If it came back meanwhile, it is something else by now.
    pub(super) fn reached_all(&self, cell: Pointer, record: Pointer) {
        if let Some(entry) = self.ledgers.borrow_mut().find(record)
            && entry.was_born_in(cell)
        {
            *entry = Entry::is_in(cell);
        }
    }

    /// Whether a record is this client's, and was committed in the bucket at `cell`, and not retired since.
    pub(super) fn is_in(&self, record: Pointer, cell: Pointer) -> bool {
        let mut ledgers = self.ledgers.borrow_mut();
        let entry = ledgers.find(record).map(|entry| *entry);
        entry.is_some_and(|entry| entry.cell() == Some(cell) || entry.was_born_in(cell))
    }

    /// Retires a record that was replaced in the bucket at `cell`, if it is still known to be in there,
    /// and no node lacks the split that it was born with. Yields whether it is.
    pub(super) fn replaced(&self, record: Pointer, cell: Pointer, epoch: u64) -> bool {
        let mut ledgers = self.ledgers.borrow_mut();
        let Some((entry, kind)) = ledgers.look_up(record) else { return false };
        if entry.cell() != Some(cell) {
            return false;
        }
        *entry = Entry::IDLE;
        self.shelf(kind, |shelf| shelf.sweep(epoch, record));
        true
    }

    /// Where the entry is of the buffer that `stamp` names, which is given to `expect`, if it is this client's.
    #[inline(always)]
    pub(crate) fn spot(&self, stamp: Stamp, expect: impl FnOnce(&Entry)) -> Option<Spot> {
        let ledgers = self.ledgers.borrow();
        let spot = ledgers.buffer(self.geometry.format.pointer(stamp))?.spot;
        ledgers.get(spot).map(expect);
        Some(spot)
    }

    /// A write of `buffer` to `register` is complete, whose stamp is `after`. Retires the buffers
    /// that the stamps in `before`, met there earlier, name, if they are this client's own. Where entries are need not
    /// be known: that of the buffer, and of the one that the first stamp before names.
    #[inline(always)]
    pub(super) fn wrote(
        &self,
        register: &Register,
        (buffer, after, spot): (Pointer, Stamp, Option<Spot>),
        (before, spot_before): ([Stamp; 2], Option<Spot>),
        epoch: impl Fn() -> u64,
    ) {
        let format = self.geometry.format;
        // A stamp of another's in the client's own slot says nothing of how late this write is. To take it for this one's
        // would retire nothing too early, as the write is complete; but the ledger would say a timestamp that the buffer
        // never held, and leave it to a collection.
        if format.pointer(after) != buffer {
            return;
        }
        let mut ledgers = self.ledgers.borrow_mut();
        let own = register.place.pointer.0;
        let entry = |stamp| (format.timestamp(stamp).0 << format.pointer_bits) | own;
        if let Some((object, _)) = ledgers.at_or_of(spot, buffer) {
            *object = Entry::holds(entry(after));
        }
        let [latest, largest] = before;
        self.supersede(&mut ledgers, (latest, spot_before), after, entry(latest), &epoch);
        if largest.0 != latest.0 {
            self.supersede(&mut ledgers, (largest, None), after, entry(largest), &epoch);
        }
    }

    /// The same behind a write for which the buffer was just [taken](Self::take_now), and is noted as handed out by that
    /// at the latest.
    #[inline(always)]
    pub(crate) fn wrote_now(
        &self,
        register: &Register,
        taken: &Taken,
        before: ([Stamp; 2], Option<Spot>),
        epoch: impl Fn() -> u64,
    ) {
        let after = register.own_stamp();
        if self.geometry.format.pointer(after) != taken.buffer {
            return self.handed_out(taken.buffer);
        }
        self.wrote(register, (taken.buffer, after, taken.spot), before, epoch);
    }

    /// The register to which the buffer that `stamp` names holds a write of that timestamp, if it is this
    /// client's.
    pub(super) fn held_at(&self, stamp: Stamp) -> Option<Pointer> {
        let format = self.geometry.format;
        let write = self.ledgers.borrow_mut().find(format.pointer(stamp))?.held()?;
        let register = Pointer(write & ((1 << format.pointer_bits) - 1));
        (write >> format.pointer_bits == format.timestamp(stamp).0).then_some(register)
    }

    /// A majority of the register's replicas are no less than the verified stamp `settled`. Retires the
    /// buffer of the write of `stamp` to it if that is past it, and the buffer still [holds](Self::held_at) it.
    pub(super) fn followed(&self, register: Pointer, (stamp, settled): (Stamp, Stamp), epoch: u64) {
        let buffer = self.geometry.format.pointer(stamp);
        let past = settled > stamp.verified() && self.geometry.format.pointer(settled) != buffer;
        if !past || self.held_at(stamp) != Some(register) {
            return;
        }
        if let Some((object, kind)) = self.ledgers.borrow_mut().look_up(buffer) {
            *object = Entry::IDLE;
            self.shelf(kind, |shelf| shelf.retired.push_back((epoch, buffer)));
        }
    }

    /// The first value of a register that was born with a record of this client's is in `buffer`.
    pub(super) fn first(&self, register: Pointer, buffer: Pointer) {
        self.put(buffer, Entry::is_born_in(register));
    }

    /// Nobody brings it to any node any more: it holds a write like any other.
    pub(super) fn first_is_everywhere(&self, register: Pointer, buffer: Pointer) {
        if let Some(entry) = self.ledgers.borrow_mut().find(buffer)
            && entry.was_born_in(register)
        {
            let written = (Timestamp::FIRST.0 << self.geometry.format.pointer_bits) | register.0;
            *entry = Entry::holds(written);
        }
    }

    /// Retires the buffer that `stamp` names, if it is this client's and still holds that write.
    #[inline(always)]
    fn supersede(
        &self,
        ledgers: &mut Ledgers,
        (stamp, spot): (Stamp, Option<Spot>),
        after: Stamp,
        entry: u64,
        epoch: impl Fn() -> u64,
    ) {
        let format = self.geometry.format;
        let old = format.pointer(stamp);
        if old.is_null() || old == format.pointer(after) || stamp >= after {
            return;
        }
        let Some((object, kind)) = ledgers.at_or_of(spot, old) else { return };
        let Some(held) = object.held() else { return };
        // The same register, and no earlier than what the buffer holds. A later timestamp is that of
        // the same write's second stamp.
        let same = (held ^ entry) & ((1 << format.pointer_bits) - 1) == 0;
        if same && held <= entry {
            *object = Entry::IDLE;
            self.shelf(kind, |shelf| shelf.retired.push_back((epoch(), old)));
        }
    }

    #[inline(always)]
    fn shelf<T>(&self, kind: Kind, work: impl FnOnce(&mut Shelf) -> T) -> Option<T> {
        self.shelf_of(&mut self.shelves.borrow_mut(), kind).map(work)
    }

    #[inline(always)]
    fn shelf_of<'s>(&self, shelves: &'s mut [Shelf], kind: Kind) -> Option<&'s mut Shelf> {
        let last = &self.last[kind.home.index() % MAX_NODES];
        if shelves.get(last.get()).is_none_or(|shelf| shelf.kind != kind) {
            last.set(Self::search(shelves, kind)?);
        }
        shelves.get_mut(last.get())
    }

    #[cold]
    fn search(shelves: &[Shelf], kind: Kind) -> Option<usize> {
        shelves.iter().position(|shelf| shelf.kind == kind)
    }

    /// Takes in buffers that nobody holds any more in `epoch`, if those are at least so many, and calls
    /// `each` with each. Yields how many there were.
    pub(super) fn reclaim(
        &self,
        kind: Kind,
        epoch: u64,
        least: usize,
        each: impl Fn(Pointer),
    ) -> usize {
        let over = self.shelf(kind, |shelf| shelf.reclaim(epoch, least, each)).unwrap_or(0);
        if over > 0 && !self.closed.borrow().is_empty() {
            self.shelf(kind, |shelf| shelf.keep_at_hand(|buffer| !self.is_closed(buffer)));
        }
        self.reclaimed.set(self.reclaimed.get() + over as u64);
        over
    }

    /// How many objects were taken in again so far.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.get()
    }

    /// How many objects are in use for what is not known.
    #[cfg(test)]
    pub(crate) fn count_out(&self) -> usize {
        self.ledgers.borrow().count_out()
    }

    /// Whether objects wait for the epoch to move on from `epoch`, of those that are to be reset only such
    /// as can be.
    pub(super) fn waits(&self, epoch: u64, is_reset: impl Fn(Kind) -> bool) -> bool {
        self.shelves.borrow().iter().any(|shelf| shelf.waits(epoch, is_reset(shelf.kind)))
    }

    /// Whether garbage was found that is to be reset.
    pub(crate) fn is_to_reset(&self) -> bool {
        self.shelves.borrow().iter().any(|shelf| !shelf.swept.is_empty())
    }

    /// A collection begins.
    pub(crate) fn begin(&self) {
        self.ledgers.borrow_mut().begin();
        self.judged.replace(self.closed());
    }

    /// Something may still name this object.
    pub(crate) fn mark(&self, object: Pointer) {
        self.ledgers.borrow_mut().mark(object);
    }

    /// The collection has met all that is named.
    pub(crate) fn all_marked(&self) {
        self.ledgers.borrow_mut().all_marked();
    }

    /// How many objects of `chunk` that are other clients' are named, as far as a collection has seen.
    pub(super) fn named(&self, chunk: usize) -> Option<u64> {
        self.ledgers.borrow().named(chunk)
    }

    /// Of a shared chunk that this client has a part of: how many objects are others', and how many of its own are in use.
    pub(super) fn parts(&self, chunk: usize) -> Option<(u64, u64)> {
        self.ledgers.borrow().parts(chunk)
    }

    /// What a collection has found nothing to name in `chunk`.
    pub(crate) fn unnamed(&self, chunk: usize) -> Vec<Unnamed> {
        self.ledgers.borrow().unnamed(chunk)
    }

    /// Retires an object that a collection found to be garbage. It is reset before it comes back,
    /// unless it holds a complete write of this client's: its next write has a larger number. False
    /// if it was put to another use since.
    pub(crate) fn retire(&self, garbage: &Unnamed, epoch: u64) -> bool {
        let mut ledgers = self.ledgers.borrow_mut();
        if !ledgers.is_unnamed(garbage.pointer) {
            return false;
        }
        if let Some(entry) = ledgers.find(garbage.pointer) {
            *entry = Entry::IDLE;
        }
        self.shelf(garbage.kind, |shelf| match garbage.held {
            true => shelf.retired.push_back((epoch, garbage.pointer)),
            false => shelf.sweep(epoch, garbage.pointer),
        });
        true
    }

    /// Whether an object is as the collection under way found it, and unmarked.
    pub(crate) fn is_unnamed(&self, object: Pointer) -> bool {
        self.ledgers.borrow_mut().is_unnamed(object)
    }

    /// Objects that are to be reset, and can be, and that nobody holds any more, all of one kind, at most `most`.
    pub(super) fn due(
        &self,
        epoch: u64,
        most: usize,
        is_reset: impl Fn(Kind) -> bool,
    ) -> Option<(Kind, Vec<Pointer>)> {
        let mut shelves = self.shelves.borrow_mut();
        shelves.iter_mut().filter(|shelf| is_reset(shelf.kind)).find_map(|shelf| {
            let due = shelf.due(epoch, most);
            (!due.is_empty()).then_some((shelf.kind, due))
        })
    }

    /// Objects that were due go back: they could not be reset.
    pub(super) fn put_off(&self, kind: Kind, objects: &[Pointer], epoch: u64) {
        let own = objects.iter().filter(|&&object| self.is_own(object));
        self.shelf(kind, |shelf| own.for_each(|&object| shelf.sweep(epoch, object)));
    }

    /// Objects were reset. Those whose chunks went to somebody else meanwhile are not for this client.
    pub(super) fn renewed(&self, kind: Kind, objects: &[Pointer]) {
        self.reclaimed.set(self.reclaimed.get() + objects.len() as u64);
        let is_at_hand = |&&object: &&Pointer| self.is_own(object) && !self.is_closed(object);
        let own = objects.iter().filter(is_at_hand);
        self.shelf(kind, |shelf| shelf.renewed(own.copied()));
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::{Class, Identity, Place, Shape};
    use swarm_core::words::StampFlags;

    use super::*;

    struct Bench {
        recycler: Recycler,
        kind: Kind,
        chunk: usize,
    }

    impl Bench {
        fn new() -> Self {
            let geometry = Geometry::new(3, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.plain_class(16))
        }

        /// Of buffers that some node does without, whose entries are known by where they are.
        fn lean() -> Self {
            let geometry = Geometry::new(3, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.buffer_class(64, true))
        }

        /// Of buffers of the only node, whose entries are known by where they are, too.
        fn alone() -> Self {
            let geometry = Geometry::new(1, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.buffer_class(64, true))
        }

        fn of(geometry: Geometry, class: Class) -> Self {
            let kind = Kind { class, home: NodeId(0), chunks: 1 };
            let (recycler, chunk) = (Recycler::new(geometry), geometry.first_chunk());
            recycler.open(chunk, kind, 0);
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
            let spots = [after, before].map(|stamp| self.recycler.spot(stamp, |_| {}));
            let alone = self.recycler.geometry.nodes == 1;
            assert_eq!(spots[0].is_some(), alone || matches!(self.kind.class, Class::Lean(_)));
            let (after, before) = ((buffer, after, spots[0]), ([before, before], spots[1]));
            self.recycler.wrote(register, after, before, || 5);
        }

        /// An object was replaced in a cell. Yields how many wait to be reset.
        fn replaced(&self, cell: u64, index: u64) -> usize {
            self.recycler.replaced(self.buffer(index), Pointer(cell), 5);
            self.recycler.shelves.borrow()[0].swept.len()
        }

        /// How many buffers are retired.
        fn retired(&self) -> usize {
            self.recycler.shelves.borrow()[0].retired.len()
        }
    }

    fn register(pointer: u64) -> Register {
        let shape = Shape { key_length: 3, capacity: 1 };
        let place = Place::everywhere(Pointer(pointer), NodeId(0));
        Register::new(place, Identity::default(), shape)
    }

    #[test]
    fn what_a_later_write_took_the_place_of_comes_back_after_two_epochs() {
        for bench in [Bench::new(), Bench::lean(), Bench::alone()] {
            let (first, second) = (bench.stamp(10, 0), bench.stamp(20, 1));
            bench.wrote(&register(7), Stamp::EMPTY, first);
            assert_eq!(bench.retired(), 0);
            bench.wrote(&register(7), first, second);
            assert_eq!(bench.recycler.reclaim(bench.kind, 6, 1, |_| {}), 0);
            assert_eq!(bench.recycler.reclaim(bench.kind, 7, 1, |_| {}), 1);
            assert_eq!(bench.recycler.take(bench.kind), Some(bench.buffer(0)));
            assert_eq!(bench.recycler.take(bench.kind), None);
        }
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

    /// A record that was replaced is to be reset, once. What is heard of it late may be of another cell.
    #[test]
    fn a_record_comes_back_once_for_each_time_that_it_is_committed() {
        let bench = Bench::new();
        let record = bench.buffer(0);
        for life in 0..2 {
            bench.recycler.handed_out(record);
            assert_eq!(bench.replaced(7, 0), life, "what is used for something else");
            bench.recycler.committed(Pointer(7), record);
            assert_eq!(bench.replaced(6, 0), life, "in another cell");
            assert_eq!(bench.replaced(7, 0), life + 1);
            assert_eq!(bench.replaced(7, 0), life + 1, "heard of twice");
            // Its proposer goes on only now.
            bench.recycler.committed(Pointer(7), record);
            assert_eq!(bench.replaced(7, 0), life + 1, "retired before that");
        }
        assert_eq!(bench.recycler.due(6, 9, |_| true), None);
        assert_eq!(bench.recycler.due(7, 9, |_| true), Some((bench.kind, vec![record, record])));
    }

    /// A split is known to be at all nodes after a collection found a child's first record.
    #[test]
    fn what_came_back_is_no_childs_first_record_any_more() {
        let bench = Bench::new();
        let (cell, record) = (Pointer(7), bench.buffer(0));
        bench.recycler.handed_out(record);
        bench.recycler.born(cell, record);
        assert_eq!(bench.replaced(7, 0), 0, "some node may lack it");
        bench.recycler.begin();
        let garbage = bench.recycler.unnamed(bench.chunk);
        let garbage = garbage.iter().find(|object| object.pointer == record).expect("unmarked");
        assert!(bench.recycler.retire(garbage, 5));
        bench.recycler.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 1, "it was retired before");
        bench.recycler.handed_out(record);
        bench.recycler.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 1, "it is something else");
        bench.recycler.born(cell, record);
        bench.recycler.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 2);
    }

    #[test]
    fn a_later_stamp_is_not_superseded() {
        let bench = Bench::new();
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(30, 0));
        bench.wrote(&register(7), bench.stamp(30, 0), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 0);
    }

    /// A collection found that nothing names it any more; before it was through, the client wrote its
    /// register again, and the buffer came back that way. To retire it twice is to use it twice.
    #[test]
    fn what_came_back_while_a_collection_was_under_way_is_no_garbage() {
        let bench = Bench::new();
        bench.recycler.handed_out(bench.buffer(0));
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(10, 0));
        bench.recycler.begin();
        let [unnamed] = bench.recycler.unnamed(bench.chunk)[..] else { panic!("one buffer") };
        bench.wrote(&register(7), bench.stamp(10, 0), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
        assert!(!bench.recycler.retire(&unnamed, 6));
        assert_eq!(bench.retired(), 1);
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

    /// Somebody says that he wrote behind this client. He may mean a former life of the buffer, or be
    /// wrong.
    #[test]
    fn a_write_that_another_followed_comes_back_once_a_majority_is_past_it() {
        let bench = Bench::new();
        let (own, later) = (bench.stamp(10, 0), bench.stamp(20, 1).verified());
        bench.wrote(&register(7), Stamp::EMPTY, own);
        let followed = |register, stamp, settled| {
            bench.recycler.followed(Pointer(register), (stamp, settled), 5);
            bench.retired()
        };
        assert_eq!(followed(8, own, later), 0, "another register");
        assert_eq!(followed(7, bench.stamp(9, 0), later), 0, "an earlier write");
        assert_eq!(followed(7, own, own.verified()), 0, "it is the last");
        assert_eq!(followed(7, own, bench.stamp(15, 0).verified()), 0, "so is its second stamp");
        assert_eq!(followed(7, own, bench.stamp(9, 1).verified()), 0, "what came before");
        assert_eq!(followed(7, own, later), 1);
        assert_eq!(followed(7, own, later), 1, "it is told twice");
    }

    /// A delete came first. Who met the write before that may be about to bring it to another node.
    #[test]
    fn a_write_that_was_refused_comes_back_when_nobody_holds_it() {
        let bench = Bench::new();
        bench.recycler.handed_out(bench.buffer(0));
        bench.recycler.refused(bench.buffer(0), 5);
        bench.recycler.refused(bench.buffer(0), 5);
        assert_eq!(bench.retired(), 1, "once for each time that it is handed out");
        let taken = |epoch| {
            bench.recycler.reclaim(bench.kind, epoch, 1, |_| {});
            bench.recycler.take(bench.kind)
        };
        assert_eq!(taken(6), None);
        assert_eq!(taken(7), Some(bench.buffer(0)));
    }

    /// As long as somebody may write a first buffer as it was at first, it is not used for something else.
    #[test]
    fn a_first_buffer_comes_back_behind_the_record_that_it_was_born_with() {
        let bench = Bench::new();
        let first = |index| bench.stamp(Timestamp::FIRST.0, index).verified();
        for index in [0, 1] {
            bench.recycler.handed_out(bench.buffer(index));
            bench.recycler.first(Pointer(7), bench.buffer(index));
        }
        bench.wrote(&register(7), first(0), bench.stamp(10, 2));
        assert_eq!(bench.retired(), 0, "nodes may lack the record");
        bench.recycler.first_is_everywhere(Pointer(8), bench.buffer(1));
        bench.wrote(&register(7), first(1), bench.stamp(20, 3));
        assert_eq!(bench.retired(), 0, "that was another register's");
        bench.recycler.first_is_everywhere(Pointer(7), bench.buffer(1));
        bench.wrote(&register(7), first(1), bench.stamp(30, 4));
        assert_eq!(bench.retired(), 1);
    }
}
