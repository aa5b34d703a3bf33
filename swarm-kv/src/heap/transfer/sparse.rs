//! Sparse chunks, and how they are closed to be emptied (E10a).
//!
//! A chunk keeps a live object or two where many clients have come and gone, or where most keys
//! were deleted. As long as it has any, it serves no other size. So a client *closes* its sparsest
//! chunks of a class if the objects in use there fit in its other chunks of that class. It then
//! [moves those objects](crate::gc::evacuate) and [releases](crate::heap::transfer::release) the
//! empty chunks.
//!
//! **Invariant:** nothing of a closed chunk is handed out. It is no [active
//! chunk](crate::heap::alloc::active_chunk), and objects that are freed there are on no free list.
//!
//! A chunk that is not empty after the next GC cycle is opened again, as if this client had just
//! got it: its object table is dropped, and all its objects count as in use, not known for what,
//! until another cycle. It is closed again only when fewer are in use, or if another one that was
//! closed with it is empty. So each chunk is tried at most as often as it has objects and as chunks
//! are gained, however often memory is searched for.

use std::collections::{BTreeMap, BTreeSet};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::ChunkClass;
use swarm_core::quorum::Group;

use crate::error::Error;
use crate::heap::alloc::high_water::homes;
use crate::heap::chunk_map::Extent;
use crate::heap::{Heap, ObjectKind};

/// Objects of registers, of buffers and of records that one evacuation moves at most.
const MOST: u64 = 2048;
/// A chunk is sparse if no more than one object in this many is in use.
const SPARSE: u64 = 2;
/// More room than is needed: one object in this many.
const SLACK: u64 = 8;
/// Records that stay free besides those that are moved: each key that moves takes one before the
/// one that it replaces is reclaimed.
const SPARE_RECORDS: u64 = 64;

/// A unit, and how many of its objects are in use.
type Used = (u64, Extent);

impl Heap {
    /// Closes chunks in which little is in use, none that is for objects of the kind `wanted`. Yields whether any are
    /// closed: those that a search before has closed may be left as they were.
    ///
    /// # Errors
    /// Too few nodes that answer.
    pub(crate) async fn close_sparse<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        wanted: ObjectKind,
    ) -> Result<bool, Error> {
        // E10a: a closed chunk's high-water mark is not raised meanwhile.
        let close = async {
            self.read_current(group).await?;
            self.sparse(wanted).iter().for_each(|extent| self.close(extent));
            Ok(!self.reclaimer.closed().is_empty())
        };
        self.alone(group, close).await
    }

    fn close(&self, extent: &Extent) {
        let mut known = self.known.borrow_mut();
        homes(&self.geometry, extent.class).for_each(|home| known.insert(extent.first, home));
        self.active_chunks.borrow_mut().retain(|active| active.chunk != extent.first);
        self.reclaimer.close(extent.first);
    }

    /// Opens the chunks for this kind of object again, as an allocation of it failed.
    pub(crate) fn open_for(&self, kind: ObjectKind) {
        let closed = self.reclaimer.closed();
        let is_one = |extent: &Extent| extent.is_for(kind) && closed.contains(&extent.first);
        let firsts: BTreeSet<usize> =
            self.own(&self.map.borrow()).filter(is_one).map(|extent| extent.first).collect();
        self.open_again(&firsts);
    }

    /// Ends a GC cycle: opens those chunks again that were closed when it began and are not empty
    /// now.
    pub(in crate::heap) fn end_evacuation(&self) {
        let closed_before = self.reclaimer.take_closed_before().into_iter();
        let used = closed_before.filter_map(|first| Some((first, self.reclaimer.in_use(first)?)));
        let (in_use, empty): (BTreeMap<usize, u64>, BTreeMap<_, _>) =
            used.partition(|&(_, used)| used > 0);
        self.open_again(&in_use.keys().copied().collect());
        // What lacked registers finds those of the keys that have moved.
        if empty.is_empty() {
            self.stuck.borrow_mut().extend(in_use);
        }
    }

    /// Drops the object tables of these chunks, as of any that were another client's. E3: objects
    /// on a free list would otherwise be found a second time, as garbage.
    fn open_again(&self, firsts: &BTreeSet<usize>) {
        if !firsts.is_empty() {
            self.keep_chunks(|chunk| !firsts.contains(&chunk));
        }
    }

    /// Returns the units that are worth closing: of each class the sparsest, as far as their
    /// objects in use fit elsewhere.
    fn sparse(&self, wanted: ObjectKind) -> Vec<Extent> {
        let mut registers = Vec::new();
        let mut buffers = Vec::new();
        let mut records = Vec::new();
        for class in self.by_class(wanted) {
            match class[0].1.class {
                ChunkClass::Homed { .. } => registers.push(class),
                of if of == self.entries_records().class => records.push(class),
                _ => buffers.push(class),
            }
        }
        // A key that moves takes a register and a buffer with it, wherever they are.
        let in_sparse = |classes: &[Vec<Used>]| {
            let all = classes.iter().flatten();
            all.filter(|it| self.is_sparse(it)).map(|(used, _)| used).sum::<u64>()
        };
        let chosen_buffers = self.choose_sparse(&buffers, in_sparse(&registers));
        let moved = |extents: &[Used]| extents.iter().map(|(used, _)| used).sum::<u64>();
        let chosen_registers = self.choose_sparse(&registers, moved(&chosen_buffers));
        let keys = moved(&chosen_buffers) + moved(&chosen_registers);
        let chosen_records = self.choose_sparse(&records, keys.min(SPARE_RECORDS));
        let all = [chosen_registers, chosen_buffers, chosen_records].into_iter().flatten();
        all.map(|(_, extent)| extent).collect()
    }

    /// Whether `more` objects of the class of `extent` fit in this client's units.
    pub(in crate::heap) fn finds_room(&self, more: u64, extent: &Extent) -> bool {
        let map = self.map.borrow();
        let own = self.own(&map).filter(|own| own.class == extent.class);
        let known =
            own.filter_map(|own| Some((self.objects(&own), self.reclaimer.in_use(own.first)?)));
        let idle: u64 = known.map(|(objects, used)| objects.saturating_sub(used)).sum();
        more + more.div_ceil(SLACK) <= idle
    }

    /// Returns this client's units whose objects can move, by class, the sparsest first.
    fn by_class(&self, wanted: ObjectKind) -> Vec<Vec<Used>> {
        let closed = self.reclaimer.closed();
        let mut classes = BTreeMap::<u16, Vec<Used>>::new();
        for extent in self.own(&self.map.borrow()) {
            if !self.can_move(extent.class)
                || extent.is_for(wanted)
                || closed.contains(&extent.first)
            {
                continue;
            }
            if let Some(used) = self.reclaimer.in_use(extent.first) {
                classes.entry(extent.class.encode()).or_default().push((used, extent));
            }
        }
        let mut classes: Vec<Vec<Used>> = classes.into_values().collect();
        classes.iter_mut().for_each(|extents| extents.sort_by_key(|&(used, _)| used));
        classes
    }

    /// Whether objects of this class can move. Cells that splits created stay for ever, the map's
    /// records are in use as long as the map is as it is, and runs free whole chunks by themselves.
    pub(in crate::heap) fn can_move(&self, class: ChunkClass) -> bool {
        let stay = [self.geometry.bucket_class(), self.records().class];
        !stay.contains(&class) && !matches!(class, ChunkClass::Large | ChunkClass::LargeTail)
    }

    /// Whether a value of this length takes chunks of its own: moving it would take as many more.
    pub(crate) fn takes_chunks(&self, length: usize) -> bool {
        self.geometry.buffer_class(length, true) == ChunkClass::Large
    }

    fn is_sparse(&self, (used, extent): &Used) -> bool {
        let was_stuck = self.stuck.borrow().get(&extent.first).is_some_and(|then| used >= then);
        self.is_little(*used, extent) && !was_stuck
    }

    /// Whether a chunk with this many objects in use is sparse.
    pub(in crate::heap) fn is_little(&self, used: u64, extent: &Extent) -> bool {
        used * SPARSE <= self.objects(extent)
    }

    /// Chooses the sparsest units of each of these classes, as far as all that is in use there fits
    /// in the others, together with up to `more` objects that are in use in those. Chooses none of
    /// a class from which nothing is gained.
    fn choose_sparse(&self, classes: &[Vec<Used>], more: u64) -> Vec<Used> {
        let mut left = MOST;
        let mut chosen = Vec::new();
        for extents in classes {
            let objects = self.objects(&extents[0].1);
            let all: u64 = extents.iter().map(|(used, _)| used).sum();
            let (mut used, mut stay) = (0, extents.len() as u64);
            let mut of_class = Vec::new();
            for extent in extents.iter().filter(|extent| self.is_sparse(extent)) {
                used += extent.0;
                stay -= 1;
                let in_others = all - used;
                let idle = stay * objects - in_others;
                let needed = used + more.min(in_others);
                if needed + needed.div_ceil(SLACK) > idle || used > left {
                    used -= extent.0;
                    break;
                }
                of_class.push(*extent);
            }
            // An empty chunk is released without being closed.
            if used > 0 {
                left -= used;
                chosen.extend(of_class);
            }
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::words::Pointer;

    use super::*;
    use crate::heap::Purpose;
    use swarm_core::sim::explore::LoneClock;

    use crate::heap::tests::{Says, alone};
    use crate::runtime::block_on::block_on;

    impl Heap {
        /// Closes all chunks of this client's whose objects can move, or those for one kind.
        /// Returns how many it has closed.
        pub(crate) fn close_all(&self, kind: Option<ObjectKind>) -> usize {
            let is_one = |extent: &Extent| {
                self.can_move(extent.class) && kind.is_none_or(|kind| extent.is_for(kind))
            };
            let map = self.map.borrow().clone();
            let closed = self.own(&map).filter(is_one).inspect(|extent| self.close(extent));
            closed.count()
        }
    }

    /// The heap of the only client, with chunks of `kind` that are all handed out.
    struct Bench {
        group: Group<Loopback, LoneClock>,
        heap: Heap,
        kind: ObjectKind,
        chunks: Vec<Vec<Pointer>>,
    }

    impl Bench {
        fn new(chunks: usize) -> Self {
            let (group, heap) = alone();
            let kind = heap.plain(100);
            heap.has_had(kind);
            let mut bench = Self { group, heap, kind, chunks: Vec::new() };
            for _ in 0..chunks {
                let objects = bench.heap.geometry.objects(kind.class);
                bench.chunks.push((0..objects).map(|_| bench.allocate()).collect());
            }
            bench
        }

        fn allocate(&self) -> Pointer {
            let object = self.heap.allocate(&self.group, self.kind, Purpose::Replace);
            block_on(object).expect("memory")
        }

        fn chunk(&self, number: usize) -> usize {
            self.heap.geometry.chunk_of(self.chunks[number][0])
        }

        /// Frees all but `left` of a chunk's objects.
        fn leave(&self, number: usize, left: usize) {
            self.chunks[number][left..].iter().for_each(|&it| self.heap.take_back_unused(it));
        }

        fn sparse(&self) -> Vec<usize> {
            let other = self.heap.plain(200);
            self.heap.sparse(other).iter().map(|extent| extent.first).collect()
        }

        fn close(&self, number: usize) {
            let first = self.chunk(number);
            let map = self.heap.map.borrow().clone();
            let extent = self.heap.own(&map).find(|extent| extent.first == first).expect("its own");
            self.heap.close(&extent);
        }

        /// Returns the objects that can be allocated without another chunk; none may be handed out
        /// twice.
        fn to_be_had(&self) -> Vec<Pointer> {
            let take = || {
                let buffer = self.heap.take_buffer(self.kind, Purpose::Replace);
                let new =
                    || block_on(self.heap.allocate(&self.group, self.kind, Purpose::Evacuate)).ok();
                buffer.or_else(new)
            };
            let all: Vec<Pointer> = std::iter::from_fn(take).collect();
            let each: BTreeSet<u64> = all.iter().map(|object| object.0).collect();
            assert_eq!(each.len(), all.len(), "handed out twice");
            all
        }
    }

    #[test]
    fn chunks_are_closed_where_one_is_gained() {
        let bench = Bench::new(3);
        assert!(bench.sparse().is_empty(), "all is in use");
        bench.leave(0, 5);
        assert!(bench.sparse().is_empty(), "it has nowhere to go");
        bench.leave(1, 7);
        assert_eq!(bench.sparse(), [bench.chunk(0)], "there is room in the other");
        bench.leave(2, 0);
        assert_eq!(bench.sparse(), [bench.chunk(2), bench.chunk(0)], "not in what is empty");
        let half = bench.chunks[0].len() / 2 + 1;
        let bench = Bench::new(2);
        bench.leave(0, half);
        bench.leave(1, half);
        assert!(bench.sparse().is_empty(), "too much is in use");
        let bench = Bench::new(2);
        bench.leave(0, 1);
        bench.leave(1, 1);
        let wanted = bench.heap.sparse(bench.kind);
        assert_eq!(wanted, [], "somebody wants such objects");
    }

    /// The chunk would never be empty otherwise.
    #[test]
    fn what_comes_back_of_a_closed_chunk_is_not_handed_out() {
        let bench = Bench::new(2);
        let [again, unused, refused, reset, before, ..] = bench.chunks[0][..] else {
            panic!("objects")
        };
        bench.heap.take_back(before);
        bench.close(0);
        bench.heap.take_back(again);
        bench.heap.take_back_unused(unused);
        bench.heap.refused(refused, 5);
        bench.heap.reclaim(bench.kind, 9, 1, |_| {});
        bench.heap.reclaimer.untouched(reset);
        bench.heap.reclaimer.renewed(bench.kind, &[reset]);
        let all = bench.chunks[0].len() as u64;
        assert_eq!(bench.heap.reclaimer.in_use(bench.chunk(0)), Some(all - 5));
        assert_eq!(bench.to_be_had(), []);
        bench.heap.take_back(bench.chunks[1][3]);
        assert_eq!(bench.to_be_had(), [bench.chunks[1][3]], "of others it is");
    }

    /// The mark of the chunk is above what was handed out.
    #[test]
    fn a_closed_chunk_is_not_gone_on_with() {
        let bench = Bench::new(1);
        let object = bench.allocate();
        let map = bench.heap.map.borrow().clone();
        let chunk = bench.heap.geometry.chunk_of(object);
        let extent = bench.heap.own(&map).find(|extent| extent.first == chunk).expect("its own");
        bench.heap.close(&extent);
        assert_eq!(bench.to_be_had(), []);
        assert_ne!(bench.heap.geometry.chunk_of(bench.allocate()), chunk);
    }

    /// Some of the chunk's objects were free, some retired, some in use and unreachable: none is
    /// lost, and none is found twice.
    #[test]
    fn a_chunk_that_could_not_be_emptied_is_opened_again() {
        let bench = Bench::new(2);
        let reclaimer = &bench.heap.reclaimer;
        let [reachable, ready, retired, ..] = bench.chunks[0][..] else { panic!("objects") };
        bench.leave(0, 3);
        bench.close(0);
        bench.heap.take_back(ready);
        bench.heap.refused(retired, 9);
        bench.heap.begins_to_collect(0);
        bench.heap.is_collected(0);
        assert!(!reclaimer.is_closed(reachable));
        // The next GC cycle finds that the rest of it is unreachable.
        assert_eq!(
            block_on(bench.heap.take_stock(&bench.group)).map(|all| all.is_some()),
            Ok(true)
        );
        bench.heap.begins_to_collect(0);
        bench.chunks[1].iter().chain([&reachable]).for_each(|&object| reclaimer.mark(object));
        for unreachable in reclaimer.all_unreachable(bench.chunk(0)) {
            assert!(reclaimer.retire(&unreachable, 9));
        }
        bench.heap.is_collected(0);
        bench.leave(1, 7);
        assert_eq!(reclaimer.in_use(bench.chunk(0)), Some(1), "as much as before");
        assert_eq!(bench.sparse(), [bench.chunk(1)], "it is not tried again");
        let each = |_: &_| {};
        let all = (11, usize::MAX, swarm_core::node::NodeSet::EMPTY);
        block_on(bench.heap.reset_due(&bench.group, all, each)).expect("a node");
        bench.heap.reclaim(bench.kind, 11, 1, |_| {});
        let back = bench.chunks[0].len() - 1 + bench.chunks[1].len() - 7;
        assert_eq!(bench.to_be_had().len(), back);
    }

    /// Keys that were to move lacked registers, and the next collection brings back those of the
    /// keys that have moved. The rest stayed in its chunks for ever otherwise, though each time that
    /// it is tried again a chunk is gained.
    #[test]
    fn what_was_left_is_tried_again_where_a_chunk_was_gained() {
        for moved in [3, 2] {
            let bench = Bench::new(3);
            for (number, left) in [(0, 3), (1, 3), (2, 7)] {
                bench.leave(number, left);
            }
            bench.close(0);
            bench.close(1);
            bench.heap.begins_to_collect(0);
            bench.chunks[0][..moved].iter().for_each(|&moved| bench.heap.take_back(moved));
            bench.heap.is_collected(0);
            let stuck = bench.heap.stuck.borrow();
            let none_is_empty = moved < 3;
            assert_eq!(stuck.contains_key(&bench.chunk(1)), none_is_empty, "{stuck:?}");
        }
    }

    /// What has moved out of it by the time it ends was named when it began.
    #[test]
    fn a_chunk_is_judged_by_a_collection_that_began_when_it_was_closed() {
        let bench = Bench::new(2);
        bench.heap.begins_to_collect(0);
        bench.close(0);
        bench.heap.is_collected(0);
        assert!(bench.heap.reclaimer.is_closed(bench.chunks[0][0]), "not by this one");
        bench.heap.begins_to_collect(0);
        bench.heap.is_collected(0);
        assert!(!bench.heap.reclaimer.is_closed(bench.chunks[0][0]));
    }

    /// Otherwise operations that want such objects would be refused.
    #[test]
    fn a_closed_chunk_is_opened_for_a_client_that_lacks_its_objects() {
        let bench = Bench::new(1);
        bench.close(0);
        bench.heap.open_for(bench.heap.plain(200));
        assert!(bench.heap.reclaimer.is_closed(bench.chunks[0][0]));
        bench.heap.open_for(bench.kind);
        assert!(!bench.heap.reclaimer.is_closed(bench.chunks[0][0]));
    }

    /// It is released when it is empty and not before (E10), whatever is reserved of its size: none
    /// of that can be allocated from it.
    #[test]
    fn a_closed_chunk_is_left_when_it_is_empty() {
        let bench = Bench::new(2);
        bench.close(0);
        bench.leave(0, 1);
        let wanted = (bench.heap.plain(200), Purpose::Insert);
        let leave = || block_on(bench.heap.release_empty(&bench.group, &Says(|| 9), wanted));
        assert_eq!(leave(), Ok(false), "an object of it is in use");
        bench.heap.take_back(bench.chunks[0][0]);
        assert_eq!(leave(), Ok(true));
        let map = bench.heap.map.borrow();
        let own: Vec<(usize, ChunkClass)> =
            bench.heap.own(&map).map(|extent| (extent.first, extent.class)).collect();
        assert!(!own.contains(&(bench.chunk(0), bench.kind.class)));
        assert!(own.contains(&(bench.chunk(1), bench.kind.class)));
    }
}
