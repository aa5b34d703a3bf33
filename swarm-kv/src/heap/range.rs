//! Chunks that all clients share.
//!
//! Who needs a few objects of a kind does not take a chunk for them, as what it does not use nobody does. It takes a
//! *range* of a chunk that is all clients', a few objects at first and each time twice as many, until it has had as many
//! as a chunk holds: what it needs then comes from chunks of its own. Which range of a chunk is whose stands nowhere. Each
//! client knows its own, and collects what becomes garbage there. What one leaves behind comes to light when
//! somebody [takes the chunk over](super::takeover), like any other, since nobody uses a range of a chunk that is shared no more.
//!
//! It all rests on this: *a range has one winner*, and every majority shows a counter past it. Whoever takes the range
//! from a to b has a majority of nodes at which its CAS moved the counter from a or less to b. Two who both had an object
//! of it would have such a node in common, where the counter went past that object twice. It comes down only by what a
//! client takes back on leaving, from the very word that this client put there, which says whose it is, and not below
//! what it handed out. Nor is a chunk's counter ever that of another chunk: where shared chunks were taken over since a client read the
//! map, it forgets all its ranges, as one of those chunks may be shared anew by now.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::Class;
use swarm_core::node::{Address, MAX_NODES};
use swarm_core::quorum::Group;

use super::arena::{Arena, FIRST_BATCH};
use super::counter::{Counter, homes, read_counters, take_range};
use super::map::{SHARED, units};
use super::{CLAIM_TRIES, DAMAGED, Heap, Kind};
use crate::error::Error;

/// Bytes of objects that a client takes at first, beside those that it keeps for values that take others' place.
const FIRST_BYTES: u64 = 1024;
/// Nanoseconds of a try at most that the pause after it goes by.
const LONGEST_TRY: u64 = 100_000;

/// How many objects of a kind a client has had of shared chunks.
pub(super) struct Had {
    kind: Kind,
    objects: u64,
}

/// What came of a try.
enum Tried {
    Taken,
    /// Somebody else was first.
    Lost,
    /// There is no room in the chunks that were looked at.
    NoRoom,
}

impl Heap {
    /// Whether objects of this kind are to come from shared chunks.
    pub(super) fn shares(&self, kind: Kind) -> bool {
        let in_a_chunk = self.geometry.objects(kind.class);
        let all = in_a_chunk * homes(&self.geometry, kind.class).len() as u64;
        let had = self.had.borrow();
        let had = had.iter().filter(|had| had.kind.class == kind.class).map(|had| had.objects);
        kind.class != Class::Run
            && kind.class != self.records().class
            && 2 * self.first_range(kind) <= in_a_chunk
            && had.sum::<u64>() < all
            && !self.own(&self.map.borrow()).any(|unit| unit.is_for(kind))
    }

    /// How many objects a client takes first. Inserts leave some of them.
    fn first_range(&self, kind: Kind) -> u64 {
        let at_once = FIRST_BYTES / self.object_bytes(kind.class).max(1);
        self.few(kind) as u64 + at_once.clamp(1, FIRST_BATCH)
    }

    /// Chunks in `map` that are shared for this kind, and may have room for it.
    pub(super) fn shared_in(&self, map: &[u32], kind: Kind) -> Vec<usize> {
        let known = self.known.borrow();
        units(map)
            .filter(|unit| unit.owner == SHARED && !unit.taken && unit.is_for(kind))
            .map(|unit| unit.first)
            .filter(|&chunk| !known.contains(&(chunk, kind.home)))
            .collect()
    }

    /// Makes a range of a shared chunk the one that such objects come from next, or objects with another home if
    /// those will do. False if the map at hand shows none with room. Two roundtrips, more where others take some too.
    pub(super) async fn take_shared<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
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
        kind: Kind,
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
        kind: Kind,
        chunks: &[usize],
    ) -> Result<Tried, Error> {
        let at = |chunk| self.geometry.counter(chunk, kind.home);
        let counters: Vec<Address> = chunks.iter().map(|&chunk| at(chunk)).collect();
        let limit = self.geometry.objects(kind.class);
        for (&chunk, &from) in chunks.iter().zip(&read_counters(group, &counters).await?) {
            let room = limit.checked_sub(from.objects()).ok_or(DAMAGED)?;
            if room == 0 || !from.can_change() {
                self.known.borrow_mut().insert((chunk, kind.home));
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

    /// How many objects a client takes next: as many as it has had.
    fn next_range(&self, kind: Kind) -> u64 {
        let had = self.had.borrow();
        let had = had.iter().find(|had| had.kind == kind).map_or(0, |had| had.objects);
        had.max(self.first_range(kind))
    }

    /// Goes on in a range of `chunk`, which the chunk's counter was moved past.
    fn open_range(&self, chunk: usize, kind: Kind, (from, taken): (Counter, Counter)) {
        let range = from.objects()..taken.objects();
        let objects = range.end - range.start;
        {
            let mut had = self.had.borrow_mut();
            match had.iter_mut().find(|had| had.kind == kind) {
                Some(had) => had.objects += objects,
                None => had.push(Had { kind, objects }),
            }
        }
        self.replace_arena(Arena::of_range(kind, chunk, range.start, taken));
        self.recycler.open_range(chunk, kind, range);
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::Size;
    use swarm_core::node::NodeId;
    use swarm_core::words::Pointer;

    use super::super::Need;
    use super::super::map::Unit;
    use super::super::tests::{Says, alone};
    use super::*;
    use crate::blocking::block_on;

    impl Heap {
        /// As one that has had its part of shared chunks: what it needs comes from chunks of its own.
        pub(crate) fn has_had(&self, kind: Kind) {
            self.had.borrow_mut().push(Had { kind, objects: 1 << 40 });
        }

        /// The same of all kinds.
        pub(crate) fn has_had_all(&self) {
            for size in (1..self.geometry.chunk_granules()).map(Size::for_granules) {
                let plain = [Class::Plain(size), Class::Lean(size), Class::Wide(size)];
                let homed = (1..8).map(|small| Class::Homed { small, full: size });
                let classes = plain.into_iter().chain(homed);
                classes.for_each(|class| self.has_had(self.homed(class, NodeId(0))));
            }
        }
    }

    /// A crowd of clients that need an object each.
    #[test]
    fn clients_that_need_little_share_a_chunk() {
        let (group, first) = alone();
        let kind = first.plain(16);
        let mut taken = Vec::new();
        for client in 0..20 {
            let heap = Heap::new(first.geometry, client);
            taken.push(block_on(heap.allocate(&group, kind, Need::More)).expect("memory"));
        }
        let chunks: Vec<usize> = taken.iter().map(|&it| first.geometry.chunk_of(it)).collect();
        assert!(chunks.iter().all(|chunk| *chunk == chunks[0]), "{chunks:?}");
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 20);
    }

    /// What one that leaves did not give out is the next one's, and what it gave out is not.
    #[test]
    fn who_leaves_takes_back_the_rest_of_its_range() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let first = block_on(heap.allocate(&group, kind, Need::More)).expect("memory");
        heap.detach(&group);
        let next = Heap::new(heap.geometry, 1);
        let next = block_on(next.allocate(&group, kind, Need::More)).expect("memory");
        let chunk = heap.geometry.chunk_of(first);
        let object = |index| heap.geometry.object(chunk, kind.class, kind.home, index);
        assert_eq!([first, next], [object(0), object(1)]);
    }

    /// One that needs many takes chunks of its own once it has had as many as a chunk holds. Twice as many at a time: that
    /// takes few turns.
    #[test]
    fn who_needs_many_has_its_own() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let in_a_chunk = heap.geometry.objects(kind.class);
        let allocate = || block_on(heap.allocate(&group, kind, Need::Instead)).expect("memory");
        let all: Vec<Pointer> = (0..3 * in_a_chunk).map(|_| allocate()).collect();
        let map = heap.map.borrow();
        let is_shared = |chunk| {
            let mut units = units(&map);
            units.any(|unit| unit.first == chunk && unit.owner == SHARED)
        };
        let shared = all.iter().filter(|&&object| is_shared(heap.geometry.chunk_of(object)));
        let shared = shared.count() as u64;
        assert!((in_a_chunk..2 * in_a_chunk).contains(&shared), "{shared} of {in_a_chunk}");
    }

    /// Garbage in a range is its client's to find, and nobody else's objects are.
    #[test]
    fn a_collection_goes_over_the_own_part_of_a_shared_chunk() {
        let (group, heap) = alone();
        let (kind, other) = (heap.plain(16), Heap::new(heap.geometry, 1));
        let allocate = |heap: &Heap| block_on(heap.allocate(&group, kind, Need::More));
        let theirs = allocate(&other).expect("memory");
        let [kept, garbage] = [(); 2].map(|()| allocate(&heap).expect("memory"));
        let chunk = heap.geometry.chunk_of(kept);
        let stock = block_on(heap.take_stock(&group)).expect("a node").expect("there is little");
        assert_eq!(stock, [chunk]);
        heap.recycler.begin();
        [theirs, kept].into_iter().for_each(|object| heap.recycler.mark(object));
        heap.recycler.all_marked();
        let unnamed = heap.recycler.unnamed(chunk);
        let found: Vec<Pointer> = unnamed.iter().map(|object| object.pointer).collect();
        assert_eq!(found, [garbage]);
        // Whoever takes the chunk over goes by how many are in use, and by how many are to be had of others.
        assert_eq!(heap.recycler.named(chunk), Some(1));
        let others = heap.geometry.objects(kind.class) - heap.first_range(kind);
        assert_eq!(heap.recycler.parts(chunk), Some((others, 2)));
    }

    /// Somebody takes a shared chunk over. Who has a range of it hands nothing out of that any more once it has heard.
    #[test]
    fn a_range_ends_when_its_chunk_is_taken_over() {
        let (group, heap) = alone();
        let (kind, other, board) = (heap.plain(16), Heap::new(heap.geometry, 1), Says(|| 9));
        let allocate = |heap: &Heap| block_on(heap.allocate(&group, kind, Need::More));
        let first = allocate(&heap).expect("memory");
        block_on(other.used(&group)).expect("a node");
        let shared = |units: &[Unit]| -> Vec<Unit> {
            units.iter().filter(|unit| unit.owner == SHARED).copied().collect()
        };
        assert_eq!(block_on(other.take_over(&group, shared)), Ok(true));
        heap.renew(2);
        let next = allocate(&heap).expect("memory");
        assert_ne!(heap.geometry.chunk_of(next), heap.geometry.chunk_of(first));
        assert!(!block_on(other.take_half_of_vacant(&group, &board)).expect("a node"));
    }

    /// A client has done nothing for long. Meanwhile somebody has taken the chunk over, emptied it and left it, and it is shared
    /// again, for the same objects: the map looks like the one that the client knows.
    #[test]
    fn a_range_is_not_gone_on_with_when_its_chunk_is_shared_anew() {
        let (group, heap) = alone();
        let (kind, other) = (heap.plain(16), Heap::new(heap.geometry, 1));
        let allocate = |heap: &Heap| block_on(heap.allocate(&group, kind, Need::More));
        let first = allocate(&heap).expect("memory");
        block_on(other.used(&group)).expect("a node");
        let shared = |units: &[Unit]| -> Vec<Unit> {
            units.iter().filter(|unit| unit.owner == SHARED).copied().collect()
        };
        assert_eq!(block_on(other.take_over(&group, shared)), Ok(true));
        let unit = other.taken_units(&other.map.borrow()).next().expect("it is taken");
        block_on(other.clear(&group, &unit)).expect("a node");
        let share = |map: &mut [u32]| {
            Unit { owner: SHARED, taken: false, ..unit }.enter_into(map);
            Ok(())
        };
        assert_eq!(block_on(other.change_map(&group, Need::More, |_| true, share)), Ok(true));
        let theirs: Vec<Pointer> =
            (0..heap.first_range(kind)).map_while(|_| allocate(&other).ok()).collect();
        assert_eq!(theirs[0], first, "it is the same chunk");
        heap.renew(2);
        let next = allocate(&heap).expect("memory");
        assert!(!theirs.contains(&next), "{next:?} is somebody else's");
    }

    /// However much of it a client has had: where no chunk is to be had, there may be a range.
    #[test]
    fn a_range_does_where_there_is_no_chunk() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let chunk = {
            let other = Heap::new(heap.geometry, 1);
            let first = block_on(other.allocate(&group, kind, Need::More)).expect("memory");
            heap.geometry.chunk_of(first)
        };
        heap.has_had(kind);
        let large = heap.plain(500);
        heap.has_had(large);
        while block_on(heap.allocate(&group, large, Need::Move)).is_ok() {}
        let object = block_on(heap.allocate(&group, kind, Need::Move)).expect("there is room");
        assert_eq!(heap.geometry.chunk_of(object), chunk);
        // To the last one.
        while block_on(heap.allocate(&group, kind, Need::Move)).is_ok() {}
        let at = heap.geometry.counter(chunk, kind.home);
        let counter = block_on(read_counters(&group, &[at])).expect("a node")[0];
        assert_eq!(counter.objects(), heap.geometry.objects(kind.class));
    }
}
