//! What a client's writes and proposals supersede is retired.
//!
//! A client that has written a register again, and knows that the later write is complete,
//! *retires* the buffer of its earlier write. No operation that begins afterwards can reach that
//! buffer, because every majority shows the later stamp (E1). Once the epoch has advanced a [few
//! times](crate::heap::reclaim::free_list), no operation can reach it at all, and it is reused.
//!
//! **Invariant:** an object is retired at most once for each time that it is handed out (E3). The
//! [object table](crate::heap::reclaim::object_table) ensures that: until a buffer is retired, its
//! state names the register and the timestamp of its write. A late stamp, from a former use of the
//! buffer, does not match.
//!
//! The same holds for a first buffer once the bucket's record that was created together with it is
//! reclaimed. Until then, a client that adopts that record may copy the buffer (E4b).

use swarm_core::register::Register;
use swarm_core::words::{Pointer, Stamp, Timestamp};

use crate::heap::reclaim::object_table::{ObjectIndex, ObjectState, ObjectTables};
use crate::heap::reclaim::reclaimer::{Reclaimer, Taken};

impl Reclaimer {
    /// Records that a record of this client is committed in the bucket at `cell`, unless a cycle
    /// found it to be garbage before its proposer learned that.
    pub(in crate::heap) fn committed(&self, cell: Pointer, record: Pointer) {
        self.put(record, ObjectState::is_in(cell));
    }

    /// The same for the first record of the bucket at `cell`, which was created by a split.
    pub(in crate::heap) fn created(&self, cell: Pointer, record: Pointer) {
        self.put(record, ObjectState::is_created_in(cell));
    }

    /// Records what an object is in use for, if that is not known yet.
    fn put(&self, object: Pointer, to: ObjectState) {
        if let Some(entry) = self.tables.borrow_mut().find(object)
            && entry.is_out()
        {
            *entry = to;
        }
    }

    /// Records that no node lacks that record any more. Does nothing if it was reclaimed meanwhile:
    /// then it is something else by now.
    pub(in crate::heap) fn reached_all(&self, cell: Pointer, record: Pointer) {
        if let Some(entry) = self.tables.borrow_mut().find(record)
            && entry.was_created_in(cell)
        {
            *entry = ObjectState::is_in(cell);
        }
    }

    /// Whether a record is this client's, was committed in the bucket at `cell`, and was not
    /// retired since.
    pub(in crate::heap) fn is_in(&self, record: Pointer, cell: Pointer) -> bool {
        let mut tables = self.tables.borrow_mut();
        let entry = tables.find(record).map(|entry| *entry);
        entry.is_some_and(|entry| entry.cell() == Some(cell) || entry.was_created_in(cell))
    }

    /// Retires a record that was replaced in the bucket at `cell`, if it is still known to be in
    /// there, and if no node lacks the split that created it (E3, E4a). Returns whether it did.
    pub(in crate::heap) fn replaced(&self, record: Pointer, cell: Pointer, epoch: u64) -> bool {
        let mut tables = self.tables.borrow_mut();
        let Some((entry, kind)) = tables.look_up(record) else { return false };
        if entry.cell() != Some(cell) {
            return false;
        }
        *entry = ObjectState::IDLE;
        self.free_list(kind, |free_list| free_list.sweep(epoch, record));
        true
    }

    /// Returns where the state is of the buffer that `stamp` names, if it is this client's. Passes
    /// the state to `expect`.
    #[inline(always)]
    pub(crate) fn object_index(
        &self,
        stamp: Stamp,
        expect: impl FnOnce(&ObjectState),
    ) -> Option<ObjectIndex> {
        let tables = self.tables.borrow();
        let object_index = tables.buffer(self.geometry.format.pointer(stamp))?.object_index;
        tables.get(object_index).map(expect);
        Some(object_index)
    }

    /// Records that a write of `buffer` to `register` is complete, with the stamp `after`. Retires
    /// the buffers of the earlier stamps in `before` that this client owns. Callers may pass where
    /// the states are, of the buffer and of the one that the first stamp in `before` names. Returns
    /// `false` if `after` is not the buffer's stamp: then nothing is recorded.
    #[inline(always)]
    pub(in crate::heap) fn wrote(
        &self,
        register: &Register,
        (buffer, after, object_index): (Pointer, Stamp, Option<ObjectIndex>),
        (before, index_before): ([Stamp; 2], Option<ObjectIndex>),
        epoch: impl Fn() -> u64,
    ) -> bool {
        let format = self.geometry.format;
        // Another client's stamp in the client's own stamp slot does not show how late this write
        // is. Taking it for this write's would retire nothing too early, as the write is complete.
        // But the object table would name a timestamp that the buffer never held, and leave the
        // buffer to a GC cycle.
        if format.pointer(after) != buffer {
            return false;
        }
        let mut tables = self.tables.borrow_mut();
        let own = register.place.pointer.0;
        let entry = |stamp| (format.timestamp(stamp).0 << format.pointer_bits) | own;
        if let Some((object, _)) = tables.at_or_of(object_index, buffer) {
            *object = ObjectState::holds(entry(after));
        }
        let [latest, largest] = before;
        let after = (after, buffer);
        self.supersede(&mut tables, (latest, index_before), after, entry(latest), &epoch);
        if largest.0 != latest.0 {
            self.supersede(&mut tables, (largest, None), after, entry(largest), &epoch);
        }
        true
    }

    /// The same for a buffer that was just [taken](Self::take_now); marks it as handed out at the
    /// latest.
    #[inline(always)]
    pub(crate) fn wrote_now(
        &self,
        register: &Register,
        taken: &Taken,
        before: ([Stamp; 2], Option<ObjectIndex>),
        epoch: impl Fn() -> u64,
    ) {
        let after = (taken.buffer, register.own_stamp(), taken.object_index());
        if !self.wrote(register, after, before, epoch) {
            self.handed_out(taken.buffer);
        }
    }

    /// Returns the register to which the buffer that `stamp` names holds a write of that timestamp,
    /// if it is this client's.
    pub(in crate::heap) fn held_at(&self, stamp: Stamp) -> Option<Pointer> {
        let format = self.geometry.format;
        let write = self.tables.borrow_mut().find(format.pointer(stamp))?.held()?;
        let register = Pointer(write & ((1 << format.pointer_bits) - 1));
        (write >> format.pointer_bits == format.timestamp(stamp).0).then_some(register)
    }

    /// Takes in that a majority of the register's replicas have reached the verified stamp
    /// `settled`. Retires the buffer of the write of `stamp` if that is superseded, and if the
    /// buffer still [holds](Self::held_at) it (E4c).
    pub(in crate::heap) fn followed(
        &self,
        register: Pointer,
        (stamp, settled): (Stamp, Stamp),
        epoch: u64,
    ) {
        let buffer = self.geometry.format.pointer(stamp);
        let past = settled > stamp.verified() && self.geometry.format.pointer(settled) != buffer;
        if !past || self.held_at(stamp) != Some(register) {
            return;
        }
        if let Some((object, kind)) = self.tables.borrow_mut().look_up(buffer) {
            *object = ObjectState::IDLE;
            self.free_list(kind, |free_list| free_list.retired.push_back((epoch, buffer)));
        }
    }

    /// Records that `buffer` has the first value of a register that was created together with a
    /// record of this client.
    pub(in crate::heap) fn first(&self, register: Pointer, buffer: Pointer) {
        self.put(buffer, ObjectState::is_created_in(register));
    }

    /// Records that no client copies that buffer to any node any more: it holds a write like any
    /// other (E4b).
    pub(in crate::heap) fn first_is_everywhere(&self, register: Pointer, buffer: Pointer) {
        if let Some(entry) = self.tables.borrow_mut().find(buffer)
            && entry.was_created_in(register)
        {
            let written = (Timestamp::FIRST.0 << self.geometry.format.pointer_bits) | register.0;
            *entry = ObjectState::holds(written);
        }
    }

    /// Retires the buffer that `stamp` names, if it is this client's and still holds that write, which that
    /// of `buffer` has superseded.
    #[inline(always)]
    fn supersede(
        &self,
        tables: &mut ObjectTables,
        (stamp, object_index): (Stamp, Option<ObjectIndex>),
        (after, buffer): (Stamp, Pointer),
        entry: u64,
        epoch: impl Fn() -> u64,
    ) {
        let format = self.geometry.format;
        let old = format.pointer(stamp);
        if old.is_null() || old == buffer || stamp >= after {
            return;
        }
        let Some((object, kind)) = tables.at_or_of(object_index, old) else { return };
        let Some(held) = object.held() else { return };
        // E3: the same register, and no earlier than what the buffer holds. A later timestamp is
        // the second stamp of the same write.
        let same = (held ^ entry) & ((1 << format.pointer_bits) - 1) == 0;
        if same && held <= entry {
            *object = ObjectState::IDLE;
            self.free_list(kind, |free_list| free_list.retired.push_back((epoch(), old)));
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::{ChunkClass, Geometry, Identity, Location, Shape};
    use swarm_core::node::NodeId;
    use swarm_core::words::StampFlags;

    use super::*;
    use crate::heap::ObjectKind;

    struct Bench {
        reclaimer: Reclaimer,
        kind: ObjectKind,
        chunk: usize,
    }

    impl Bench {
        fn new() -> Self {
            let geometry = Geometry::new(3, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.plain_class(16))
        }

        /// For buffers that one node has no copy of; their states are found by position.
        fn all_but_one() -> Self {
            let geometry = Geometry::new(3, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.buffer_class(64, true))
        }

        /// For buffers of the only node; their states are found by position, too.
        fn alone() -> Self {
            let geometry = Geometry::new(1, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.buffer_class(64, true))
        }

        fn of(geometry: Geometry, class: ChunkClass) -> Self {
            let kind = ObjectKind { class, home: NodeId(0), chunks: 1 };
            let (reclaimer, chunk) = (Reclaimer::new(geometry), geometry.first_chunk());
            reclaimer.open(chunk, kind, 0);
            Self { reclaimer, kind, chunk }
        }

        fn buffer(&self, index: u64) -> Pointer {
            self.reclaimer.geometry.object(self.chunk, self.kind.class, NodeId(0), index)
        }

        fn stamp(&self, timestamp: u64, index: u64) -> Stamp {
            let format = self.reclaimer.geometry.format;
            format.stamp(Timestamp(timestamp), self.buffer(index), StampFlags::empty())
        }

        fn wrote(&self, register: &Register, before: Stamp, after: Stamp) {
            let buffer = self.reclaimer.geometry.format.pointer(after);
            let object_indices =
                [after, before].map(|stamp| self.reclaimer.object_index(stamp, |_| {}));
            let alone = self.reclaimer.geometry.nodes == 1;
            assert_eq!(
                object_indices[0].is_some(),
                alone || matches!(self.kind.class, ChunkClass::AllButOne(_))
            );
            let (after, before) =
                ((buffer, after, object_indices[0]), ([before, before], object_indices[1]));
            self.reclaimer.wrote(register, after, before, || 5);
        }

        /// Records that an object was replaced in a cell. Returns how many wait to be zeroed.
        fn replaced(&self, cell: u64, index: u64) -> usize {
            self.reclaimer.replaced(self.buffer(index), Pointer(cell), 5);
            self.reclaimer.free_lists.borrow()[0].swept.len()
        }

        /// Returns how many buffers are retired.
        fn retired(&self) -> usize {
            self.reclaimer.free_lists.borrow()[0].retired.len()
        }
    }

    fn register(pointer: u64) -> Register {
        let shape = Shape { key_length: 3, capacity: 1 };
        let place = Location::everywhere(Pointer(pointer), NodeId(0));
        Register::new(place, Identity::default(), shape)
    }

    #[test]
    fn what_a_later_write_superseded_is_reclaimed_after_two_epochs() {
        for bench in [Bench::new(), Bench::all_but_one(), Bench::alone()] {
            let (first, second) = (bench.stamp(10, 0), bench.stamp(20, 1));
            bench.wrote(&register(7), Stamp::EMPTY, first);
            assert_eq!(bench.retired(), 0);
            bench.wrote(&register(7), first, second);
            assert_eq!(bench.reclaimer.reclaim(bench.kind, 6, 1, |_| {}), 0);
            assert_eq!(bench.reclaimer.reclaim(bench.kind, 7, 1, |_| {}), 1);
            assert_eq!(bench.reclaimer.take(bench.kind), Some(bench.buffer(0)));
            assert_eq!(bench.reclaimer.take(bench.kind), None);
        }
    }

    #[test]
    fn a_second_stamp_of_the_same_write_is_known_as_such() {
        let bench = Bench::new();
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(10, 0));
        bench.wrote(&register(7), bench.stamp(15, 0).verified(), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
    }

    /// Stamps stay behind at nodes that lag, and in other clients' stamp slots. Taking one for that
    /// of the buffer's present write would free a value that every client reads.
    #[test]
    fn a_stamp_of_a_former_life_retires_nothing() {
        let bench = Bench::new();
        let (old, new) = (bench.stamp(10, 0), bench.stamp(30, 0));
        bench.wrote(&register(7), Stamp::EMPTY, old);
        bench.wrote(&register(7), old, bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
        // Met again before the buffer is reused.
        bench.wrote(&register(7), old, bench.stamp(25, 2));
        assert_eq!(bench.retired(), 1);
        // Reused for the same register, and for another one under the very same timestamp.
        bench.wrote(&register(7), Stamp::EMPTY, new);
        bench.wrote(&register(7), old, bench.stamp(40, 3));
        assert_eq!(bench.retired(), 1);
        bench.wrote(&register(8), Stamp::EMPTY, old);
        bench.wrote(&register(7), old, bench.stamp(50, 4));
        assert_eq!(bench.retired(), 1);
    }

    /// A record that was replaced is to be zeroed, once. A late hint may be about another cell.
    #[test]
    fn a_record_comes_back_once_for_each_time_that_it_is_committed() {
        let bench = Bench::new();
        let record = bench.buffer(0);
        for life in 0..2 {
            bench.reclaimer.handed_out(record);
            assert_eq!(bench.replaced(7, 0), life, "what is used for something else");
            bench.reclaimer.committed(Pointer(7), record);
            assert_eq!(bench.replaced(6, 0), life, "in another cell");
            assert_eq!(bench.replaced(7, 0), life + 1);
            assert_eq!(bench.replaced(7, 0), life + 1, "reported twice");
            // Its proposer continues only now.
            bench.reclaimer.committed(Pointer(7), record);
            assert_eq!(bench.replaced(7, 0), life + 1, "retired before that");
        }
        assert_eq!(bench.reclaimer.due(6, 9, |_| true), None);
        assert_eq!(bench.reclaimer.due(7, 9, |_| true), Some((bench.kind, vec![record, record])));
    }

    /// A split is known to be at all nodes after a GC cycle found a child's first record.
    #[test]
    fn what_came_back_is_no_childs_first_record_any_more() {
        let bench = Bench::new();
        let (cell, record) = (Pointer(7), bench.buffer(0));
        bench.reclaimer.handed_out(record);
        bench.reclaimer.created(cell, record);
        assert_eq!(bench.replaced(7, 0), 0, "some node may lack it");
        bench.reclaimer.begin();
        let garbage = bench.reclaimer.all_unreachable(bench.chunk);
        let garbage = garbage.iter().find(|object| object.pointer == record).expect("unmarked");
        assert!(bench.reclaimer.retire(garbage, 5));
        bench.reclaimer.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 1, "it was retired before");
        bench.reclaimer.handed_out(record);
        bench.reclaimer.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 1, "it is something else");
        bench.reclaimer.created(cell, record);
        bench.reclaimer.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 2);
    }

    #[test]
    fn a_later_stamp_is_not_superseded() {
        let bench = Bench::new();
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(30, 0));
        bench.wrote(&register(7), bench.stamp(30, 0), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 0);
    }

    /// A GC cycle found a buffer unreachable. Before the cycle ended, the client wrote its register
    /// again, and the buffer was retired that way. Retiring it twice would reuse it twice.
    #[test]
    fn what_came_back_while_a_collection_was_under_way_is_no_garbage() {
        let bench = Bench::new();
        bench.reclaimer.handed_out(bench.buffer(0));
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(10, 0));
        bench.reclaimer.begin();
        let [unreachable] = bench.reclaimer.all_unreachable(bench.chunk)[..] else {
            panic!("one buffer")
        };
        bench.wrote(&register(7), bench.stamp(10, 0), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
        assert!(!bench.reclaimer.retire(&unreachable, 6));
        assert_eq!(bench.retired(), 1);
    }

    #[test]
    fn pointers_that_are_not_this_clients_buffers_are_let_alone() {
        let bench = Bench::new();
        let geometry = bench.reclaimer.geometry;
        let last = (1 << geometry.format.pointer_bits) - 1;
        for pointer in [1, last / 2, last] {
            let stamp = geometry.format.stamp(Timestamp(3), Pointer(pointer), StampFlags::empty());
            bench.wrote(&register(7), stamp, bench.stamp(20, 1));
        }
        assert_eq!(bench.retired(), 0);
    }

    /// Another client reports that its write superseded this client's. It may mean a former use of the
    /// buffer, or be wrong.
    #[test]
    fn a_write_that_another_followed_comes_back_once_a_majority_is_past_it() {
        let bench = Bench::new();
        let (own, later) = (bench.stamp(10, 0), bench.stamp(20, 1).verified());
        bench.wrote(&register(7), Stamp::EMPTY, own);
        let followed = |register, stamp, settled| {
            bench.reclaimer.followed(Pointer(register), (stamp, settled), 5);
            bench.retired()
        };
        assert_eq!(followed(8, own, later), 0, "another register");
        assert_eq!(followed(7, bench.stamp(9, 0), later), 0, "an earlier write");
        assert_eq!(followed(7, own, own.verified()), 0, "it is the last");
        assert_eq!(followed(7, own, bench.stamp(15, 0).verified()), 0, "so is its second stamp");
        assert_eq!(followed(7, own, bench.stamp(9, 1).verified()), 0, "what came before");
        assert_eq!(followed(7, own, later), 1);
        assert_eq!(followed(7, own, later), 1, "it is reported twice");
    }

    /// A delete came first. A client that met the write before the delete may be about to copy it
    /// to another node.
    #[test]
    fn a_write_that_was_refused_is_reclaimed_when_no_client_can_reach_it() {
        let bench = Bench::new();
        bench.reclaimer.handed_out(bench.buffer(0));
        bench.reclaimer.refused(bench.buffer(0), 5);
        bench.reclaimer.refused(bench.buffer(0), 5);
        assert_eq!(bench.retired(), 1, "once for each time that it is handed out");
        let taken = |epoch| {
            bench.reclaimer.reclaim(bench.kind, epoch, 1, |_| {});
            bench.reclaimer.take(bench.kind)
        };
        assert_eq!(taken(6), None);
        assert_eq!(taken(7), Some(bench.buffer(0)));
    }

    /// As long as a client may write a first buffer again as it was at first, it is not reused.
    #[test]
    fn a_first_buffer_is_reclaimed_after_the_record_that_it_was_created_with() {
        let bench = Bench::new();
        let first = |index| bench.stamp(Timestamp::FIRST.0, index).verified();
        for index in [0, 1] {
            bench.reclaimer.handed_out(bench.buffer(index));
            bench.reclaimer.first(Pointer(7), bench.buffer(index));
        }
        bench.wrote(&register(7), first(0), bench.stamp(10, 2));
        assert_eq!(bench.retired(), 0, "nodes may lack the record");
        bench.reclaimer.first_is_everywhere(Pointer(8), bench.buffer(1));
        bench.wrote(&register(7), first(1), bench.stamp(20, 3));
        assert_eq!(bench.retired(), 0, "that was another register's");
        bench.reclaimer.first_is_everywhere(Pointer(7), bench.buffer(1));
        bench.wrote(&register(7), first(1), bench.stamp(30, 4));
        assert_eq!(bench.retired(), 1);
    }
}
