//! Chunks that all clients share.
//!
//! A client that needs a few objects of a kind takes no chunk for them, as no other client could
//! use the rest. It takes a *range* of a chunk that all clients share: a few objects at first,
//! twice as many each time, until it has had as many as a chunk holds. From then on it claims
//! chunks of its own. No memory node records the owner of a range. Each client knows its own
//! ranges, and collects the garbage in them. What a client leaves behind is found when the chunk is
//! [taken over](crate::heap::transfer::takeover), like any other: from then on no client uses its
//! ranges.
//!
//! **Invariant:** a range has one winner (E8b), and every majority shows a high-water mark above
//! it. The winner of the range from a to b has a majority of nodes at which its CAS moved the mark
//! from a or less to b. Two clients that both had an object of the range would share such a node,
//! where the mark passed that object twice. The mark falls only when a client that leaves lowers
//! it, from the very word that this client wrote, which names its writer, and not below what it
//! handed out. Nor is one chunk's mark ever taken for another's: if shared chunks were taken over
//! since a client read the map, it drops all its ranges, as such a chunk may be shared anew by now.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::ChunkClass;
use swarm_core::node::{Address, MAX_NODES};
use swarm_core::quorum::Group;

use crate::error::Error;
use crate::heap::alloc::active_chunk::{ActiveChunk, FIRST_BATCH};
use crate::heap::alloc::high_water::{HighWater, homes, read_counters, take_range};
use crate::heap::chunk_map::{SHARED, extents};
use crate::heap::{CLAIM_TRIES, Heap, ObjectKind};

/// Bytes of objects that a client takes at first, in addition to those that it reserves for
/// replacements.
const FIRST_BYTES: u64 = 1024;
/// The longest time of a try, in nanoseconds, that counts for the pause after it.
const LONGEST_TRY: u64 = 100_000;

/// How many objects of a kind a client has had from shared chunks.
pub(in crate::heap) struct RangeProgress {
    kind: ObjectKind,
    objects: u64,
}

/// The outcome of a try.
enum Tried {
    Taken,
    /// Another client was first.
    Lost,
    /// The chunks that were looked at have no room.
    NoRoom,
}

impl Heap {
    /// Whether objects of this kind are to come from shared chunks.
    pub(in crate::heap) fn shares(&self, kind: ObjectKind) -> bool {
        let in_a_chunk = self.geometry.objects(kind.class);
        let all = in_a_chunk * homes(&self.geometry, kind.class).len() as u64;
        let had = self.had.borrow();
        let had = had.iter().filter(|had| had.kind.class == kind.class).map(|had| had.objects);
        kind.class != ChunkClass::Large
            && kind.class != self.records().class
            && 2 * self.first_range(kind) <= in_a_chunk
            && had.sum::<u64>() < all
            && !self.own(&self.map.borrow()).any(|extent| extent.is_for(kind))
    }

    /// Returns how many objects a client takes first. Inserts leave some of them.
    fn first_range(&self, kind: ObjectKind) -> u64 {
        let at_once = FIRST_BYTES / self.object_bytes(kind.class).max(1);
        self.few(kind) as u64 + at_once.clamp(1, FIRST_BATCH)
    }

    /// Returns the chunks in `map` that are shared for this kind and may have room.
    pub(in crate::heap) fn shared_in(&self, map: &[u32], kind: ObjectKind) -> Vec<usize> {
        let known = self.known.borrow();
        extents(map)
            .filter(|extent| extent.owner == SHARED && !extent.taken && extent.is_for(kind))
            .map(|extent| extent.first)
            .filter(|&chunk| !known.contains(chunk, kind.home))
            .collect()
    }

    /// Makes a range of a shared chunk active for this kind, or for another home if `elsewhere`.
    /// Returns false if the map as last read shows no chunk with room. Costs two roundtrips, more
    /// under contention.
    pub(in crate::heap) async fn take_shared<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        elsewhere: bool,
    ) -> Result<bool, Error> {
        for kind in self.homes_for(kind).take(if elsewhere { MAX_NODES } else { 1 }) {
            if self.take_shared_there(group, kind).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn take_shared_there<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
    ) -> Result<bool, Error> {
        for attempt in 0..CLAIM_TRIES as u64 {
            let mut chunks = self.shared_in(&self.map.borrow(), kind);
            chunks.truncate(MAX_VERBS);
            if chunks.is_empty() {
                return Ok(false);
            }
            let begun = group.clock().now();
            match self.try_shared(group, kind, &chunks).await? {
                Tried::Taken => return Ok(true),
                Tried::NoRoom => {}
                Tried::Lost => {
                    let took = group.clock().now().saturating_sub(begun).clamp(1, LONGEST_TRY);
                    group.pause(group.dice(attempt) % (took << attempt.min(6))).await;
                }
            }
        }
        Err(Error::Contended)
    }

    /// Takes a range of the first of these chunks that has room.
    async fn try_shared<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        chunks: &[usize],
    ) -> Result<Tried, Error> {
        let at = |chunk| self.geometry.counter(chunk, kind.home);
        let counters: Vec<Address> = chunks.iter().map(|&chunk| at(chunk)).collect();
        let limit = self.geometry.objects(kind.class);
        for (&chunk, &from) in chunks.iter().zip(&read_counters(group, &counters).await?) {
            let room = limit.checked_sub(from.objects()).ok_or(Error::DAMAGED)?;
            if room == 0 || !from.can_change() {
                self.known.borrow_mut().insert(chunk, kind.home);
                continue;
            }
            let to = from.objects() + room.min(self.next_range(kind));
            let Some(taken) = take_range(group, at(chunk), (from, to)).await? else {
                return Ok(Tried::Lost);
            };
            self.open_range(chunk, kind, (from, taken));
            return Ok(Tried::Taken);
        }
        Ok(Tried::NoRoom)
    }

    /// Returns how many objects a client takes next: as many as it has had.
    fn next_range(&self, kind: ObjectKind) -> u64 {
        let had = self.had.borrow();
        let had = had.iter().find(|had| had.kind == kind).map_or(0, |had| had.objects);
        had.max(self.first_range(kind))
    }

    /// Makes a range of `chunk` active that this client has won.
    fn open_range(&self, chunk: usize, kind: ObjectKind, (from, taken): (HighWater, HighWater)) {
        let range = from.objects()..taken.objects();
        let objects = range.end - range.start;
        {
            let mut had = self.had.borrow_mut();
            match had.iter_mut().find(|had| had.kind == kind) {
                Some(had) => had.objects += objects,
                None => had.push(RangeProgress { kind, objects }),
            }
        }
        self.replace_active(ActiveChunk::of_range(kind, chunk, range.start, taken));
        self.reclaimer.open_range(chunk, kind, range);
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::SizeClass;
    use swarm_core::node::NodeId;
    use swarm_core::words::Pointer;

    use super::*;
    use crate::heap::Purpose;
    use crate::heap::chunk_map::Extent;
    use swarm_core::sim::explore::LoneClock;

    use crate::heap::tests::{Says, alone};
    use crate::runtime::block_on::block_on;

    impl Heap {
        /// Makes this client one that has used up its part of shared chunks: it claims chunks of
        /// its own.
        pub(crate) fn has_had(&self, kind: ObjectKind) {
            self.had.borrow_mut().push(RangeProgress { kind, objects: 1 << 40 });
        }

        /// The same for all kinds.
        pub(crate) fn has_had_all(&self) {
            for size in (1..self.geometry.chunk_granules()).map(SizeClass::for_granules) {
                let plain = [
                    ChunkClass::Uniform(size),
                    ChunkClass::AllButOne(size),
                    ChunkClass::AllNodes(size),
                ];
                let homed = (1..8).map(|small| ChunkClass::Homed { small, full: size });
                let classes = plain.into_iter().chain(homed);
                classes.for_each(|class| self.has_had(self.homed(class, NodeId(0))));
            }
        }
    }

    /// Many clients need one object each.
    #[test]
    fn clients_that_need_little_share_a_chunk() {
        let (group, first) = alone();
        let kind = first.plain(16);
        let mut taken = Vec::new();
        for client in 0..20 {
            let heap = Heap::new(first.geometry, client);
            taken.push(block_on(heap.allocate(&group, kind, Purpose::Insert)).expect("memory"));
        }
        let chunks: Vec<usize> = taken.iter().map(|&it| first.geometry.chunk_of(it)).collect();
        assert!(chunks.iter().all(|chunk| *chunk == chunks[0]), "{chunks:?}");
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 20);
    }

    /// What a leaving client did not hand out goes to the next client; what it handed out does not.
    #[test]
    fn a_client_that_leaves_takes_back_the_rest_of_its_range() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let first = block_on(heap.allocate(&group, kind, Purpose::Insert)).expect("memory");
        heap.detach(&group);
        let next = Heap::new(heap.geometry, 1);
        let next = block_on(next.allocate(&group, kind, Purpose::Insert)).expect("memory");
        let chunk = heap.geometry.chunk_of(first);
        let object = |index| heap.geometry.object(chunk, kind.class, kind.home, index);
        assert_eq!([first, next], [object(0), object(1)]);
    }

    /// A client that needs many objects claims chunks of its own once it has had as many as a chunk
    /// holds. Ranges double, so that takes few changes of the mark.
    #[test]
    fn a_client_that_needs_many_has_its_own() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let in_a_chunk = heap.geometry.objects(kind.class);
        let allocate = || block_on(heap.allocate(&group, kind, Purpose::Replace)).expect("memory");
        let all: Vec<Pointer> = (0..3 * in_a_chunk).map(|_| allocate()).collect();
        let map = heap.map.borrow();
        let is_shared = |chunk| {
            let mut extents = extents(&map);
            extents.any(|extent| extent.first == chunk && extent.owner == SHARED)
        };
        let shared = all.iter().filter(|&&object| is_shared(heap.geometry.chunk_of(object)));
        let shared = shared.count() as u64;
        assert!((in_a_chunk..2 * in_a_chunk).contains(&shared), "{shared} of {in_a_chunk}");
    }

    /// A client finds the garbage of its own range, and no object of another client's range.
    #[test]
    fn a_collection_goes_over_the_own_part_of_a_shared_chunk() {
        let (group, heap) = alone();
        let (kind, other) = (heap.plain(16), Heap::new(heap.geometry, 1));
        let allocate = |heap: &Heap| block_on(heap.allocate(&group, kind, Purpose::Insert));
        let theirs = allocate(&other).expect("memory");
        let [kept, garbage] = [(); 2].map(|()| allocate(&heap).expect("memory"));
        let chunk = heap.geometry.chunk_of(kept);
        let stock = block_on(heap.take_stock(&group)).expect("a node").expect("there is little");
        assert_eq!(stock, [chunk]);
        heap.reclaimer.begin();
        [theirs, kept].into_iter().for_each(|object| heap.reclaimer.mark(object));
        heap.reclaimer.all_marked();
        let unreachable = heap.reclaimer.all_unreachable(chunk);
        let found: Vec<Pointer> = unreachable.iter().map(|object| object.pointer).collect();
        assert_eq!(found, [garbage]);
        // A client that takes the chunk over goes by how many objects are in use, and by how many
        // others have.
        assert_eq!(heap.reclaimer.reachable(chunk), Some(1));
        let others = heap.geometry.objects(kind.class) - heap.first_range(kind);
        assert_eq!(heap.reclaimer.parts(chunk), Some((others, 2)));
    }

    /// A client takes a shared chunk over. A client with a range of it hands out nothing of it once
    /// it has observed the new generation.
    #[test]
    fn a_range_ends_when_its_chunk_is_taken_over() {
        let (group, heap) = alone();
        let (kind, other, domain) = (heap.plain(16), Heap::new(heap.geometry, 1), Says(|| 9));
        let allocate = |heap: &Heap| block_on(heap.allocate(&group, kind, Purpose::Insert));
        let first = allocate(&heap).expect("memory");
        block_on(other.used(&group)).expect("a node");
        let shared = |extents: &[Extent]| -> Vec<Extent> {
            extents.iter().filter(|extent| extent.owner == SHARED).copied().collect()
        };
        assert_eq!(block_on(other.take_over(&group, shared)), Ok(true));
        heap.renew(2);
        let next = allocate(&heap).expect("memory");
        assert_ne!(heap.geometry.chunk_of(next), heap.geometry.chunk_of(first));
        assert!(!block_on(other.take_half_of_vacant(&group, &domain)).expect("a node"));
    }

    /// Another client takes this chunk over, empties it and releases it, and all share it from then
    /// on, for objects of this kind.
    fn shares_anew(
        group: &Group<Loopback, LoneClock>,
        other: &Heap,
        chunk: usize,
        ObjectKind { class, .. }: ObjectKind,
    ) {
        block_on(other.used(group)).expect("a node");
        let it = |extents: &[Extent]| -> Vec<Extent> {
            extents.iter().filter(|extent| extent.first == chunk).copied().collect()
        };
        assert_eq!(block_on(other.take_over(group, it)), Ok(true));
        let extent = other.taken_extents(&other.map.borrow()).next().expect("it is taken");
        block_on(other.clear(group, &extent)).expect("a node");
        let share = |map: &mut [u32]| {
            Extent { owner: SHARED, taken: false, class, ..extent }.enter_into(map);
            Ok(())
        };
        assert_eq!(block_on(other.change_map(group, Purpose::Insert, |_| true, share)), Ok(true));
    }

    /// A client has been idle for long. Meanwhile another client has taken the chunk over, emptied
    /// it and released it, and it is shared again, for the same objects: the map looks like the one
    /// that the idle client knows.
    #[test]
    fn a_range_is_not_gone_on_with_when_its_chunk_is_shared_anew() {
        let (group, heap) = alone();
        let (kind, other) = (heap.plain(16), Heap::new(heap.geometry, 1));
        let allocate = |heap: &Heap| block_on(heap.allocate(&group, kind, Purpose::Insert));
        let first = allocate(&heap).expect("memory");
        shares_anew(&group, &other, heap.geometry.chunk_of(first), kind);
        let theirs: Vec<Pointer> =
            (0..heap.first_range(kind)).map_while(|_| allocate(&other).ok()).collect();
        assert_eq!(theirs[0], first, "it is the same chunk");
        heap.renew(2);
        let next = allocate(&heap).expect("memory");
        assert!(!theirs.contains(&next), "{next:?} is somebody else's");
    }

    /// The same of a chunk that was the idle client's own. No shared chunk was taken over, and the
    /// map that it reads next says that the chunk is shared, for the same objects or for others.
    #[test]
    fn a_chunk_of_its_own_that_all_share_by_now_is_not_gone_on_with() {
        for size in [16, 4, 100] {
            let (group, heap) = alone();
            let (own, other) = (heap.plain(16), Heap::new(heap.geometry, 1));
            heap.has_had(own);
            let allocate = |heap: &Heap, kind| {
                block_on(heap.allocate(&group, kind, Purpose::Insert)).expect("memory")
            };
            let chunk = heap.geometry.chunk_of(allocate(&heap, own));
            let kind = heap.plain(size);
            shares_anew(&group, &other, chunk, kind);
            let range = heap.first_range(kind);
            let theirs: Vec<Pointer> = (0..range).map(|_| allocate(&other, kind)).collect();
            assert_eq!(heap.geometry.chunk_of(theirs[0]), chunk);
            heap.renew(2);
            let next = allocate(&heap, own);
            assert!(size == 16 || heap.geometry.chunk_of(next) != chunk, "{next:?}: {size} words");
            assert!(!theirs.contains(&next), "{next:?} is somebody else's");
            assert!(!theirs.contains(&allocate(&heap, kind)), "{size} words");
        }
    }

    /// Where no chunk is free, a range is used, however many objects the client has had.
    #[test]
    fn a_range_does_where_there_is_no_chunk() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let chunk = {
            let other = Heap::new(heap.geometry, 1);
            let first = block_on(other.allocate(&group, kind, Purpose::Insert)).expect("memory");
            heap.geometry.chunk_of(first)
        };
        heap.has_had(kind);
        let large = heap.plain(500);
        heap.has_had(large);
        while block_on(heap.allocate(&group, large, Purpose::Relocate)).is_ok() {}
        let object =
            block_on(heap.allocate(&group, kind, Purpose::Relocate)).expect("there is room");
        assert_eq!(heap.geometry.chunk_of(object), chunk);
        // Down to the last object.
        while block_on(heap.allocate(&group, kind, Purpose::Relocate)).is_ok() {}
        let at = heap.geometry.counter(chunk, kind.home);
        let counter = block_on(read_counters(&group, &[at])).expect("a node")[0];
        assert_eq!(counter.objects(), heap.geometry.objects(kind.class));
    }
}
