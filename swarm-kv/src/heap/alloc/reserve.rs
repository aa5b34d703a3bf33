//! The reserve: what a full pool keeps free, and for what (E11).
//!
//! A pool that is full for inserts still serves updates of the same size, and keys that have to move. Each
//! takes memory before it frees some, at every client that writes. So inserts leave some chunks,
//! the *reserve*. Small objects that replace others may have half of it; values with chunks of
//! their own a quarter more, or as much more as the longest one takes; keys that move all of it.
//! None of them uses up what is reserved for those after it.
//!
//! Small objects share chunks, and a chunk that was taken from the reserve seldom returns to it.
//! But what is freed is of use to the next object of its size, whichever client has it (see
//! [`steal`](crate::heap::transfer::steal)). **Invariant:** of every size in use, each client that
//! allocates buffers of it keeps a few from inserts. Values with chunks of their own free these as
//! a whole. They count as free, and inserts have them only where the reserve is whole without them.

use swarm_core::layout::{ChunkClass, Geometry, SizeClass};
use swarm_core::words::Pointer;

use crate::heap::chunk_map::{Extent, extents};
use crate::heap::{Heap, ObjectKind, Purpose};

/// One chunk of this many is reserved.
const PART: usize = 32;
/// At least this many chunks are reserved, where that is no more than one in [`SMALL_PART`]: each
/// client that writes takes a few, however small the pool is.
const LEAST: usize = 16;
const SMALL_PART: usize = 16;
/// Buffers of each kind that a client reserves for replacements, at most.
const FEW_BUFFERS: usize = 4;

/// Bytes that one client takes at most to put a key with a value of up to a hundred bytes: some
/// objects each for registers, buffers and buckets' records, and what is lost to clients that take
/// some at the same moment.
const OF_A_WRITER: u64 = 24 << 10;
/// Chunks that the first clients open: for those three kinds, and for each claimant's chunk-map
/// records.
const OF_THE_FIRST: usize = 6;

/// Returns how many of the clients that a pool of this geometry is made for it has memory for. That
/// many can each put a key with a value of up to a hundred bytes into a new pool, all at once,
/// without any reclamation. Each takes 24 KiB at most for that, and some more for each further size
/// of values.
pub fn writing_clients(geometry: &Geometry) -> usize {
    let Parts { small, long, moves } = Parts::of(geometry, 1);
    let free = geometry.chunks() - geometry.first_chunk();
    let free = free.saturating_sub(small + long + moves + OF_THE_FIRST) as u64;
    let writing = free.saturating_mul(geometry.chunk_bytes) / OF_A_WRITER;
    usize::try_from(writing).map_or(geometry.max_clients, |all| all.min(geometry.max_clients))
}

/// Chunks of the reserve, by what may have them.
struct Parts {
    small: usize,
    long: usize,
    moves: usize,
}

impl Parts {
    /// For a pool whose longest value takes `longest` chunks.
    fn of(geometry: &Geometry, longest: usize) -> Self {
        let all = geometry.chunks() - geometry.first_chunk();
        let reserve = (all / PART).max(LEAST.min(all / SMALL_PART)).max(1);
        let (small, moves) = (reserve / 2, (reserve / 2).div_ceil(2));
        let long = reserve.saturating_sub(small + moves).max(longest);
        Self { small, long, moves }
    }
}

impl Heap {
    /// Returns how many chunks must stay free in `map` after a claim for such an object.
    pub(in crate::heap) fn kept_from(&self, map: &[u32], kind: ObjectKind, need: Purpose) -> usize {
        let runs =
            extents(map).filter(|extent| extent.class == ChunkClass::Large).map(|run| run.chunks);
        let longest = runs.fold(kind.chunks, usize::max);
        let Parts { small, long, moves } = Parts::of(&self.geometry, longest);
        match need {
            Purpose::Insert => small + long + moves,
            Purpose::Replace if kind.class == ChunkClass::Large => moves,
            Purpose::Replace => long + moves,
            Purpose::Relocate => 0,
            Purpose::Evacuate => map.len(),
        }
    }

    /// Whether units of this class, once released, may serve such an allocation: not if the reserve
    /// for their own class would pay for it.
    pub(in crate::heap) fn may_pass(
        &self,
        extent: &Extent,
        (kind, need): (ObjectKind, Purpose),
    ) -> bool {
        let [from_run, to_run] = [extent.class, kind.class].map(|class| class == ChunkClass::Large);
        match need {
            Purpose::Insert => !from_run && !to_run,
            Purpose::Replace => !from_run || to_run,
            Purpose::Relocate => true,
            Purpose::Evacuate => false,
        }
    }

    /// Takes in the map as read: drops what, by it, is not this slot's any more, and notes whether
    /// all free chunks are reserved. That takes time in the number of chunks and of the client's
    /// objects, so a map that equals the last one is skipped. All that this client got since came
    /// from chunks that it owned by that map, and no other client had one of them in between, as
    /// only this slot makes a chunk its own (E9).
    pub(in crate::heap) fn see(&self, map: Vec<u32>) {
        if *self.map.borrow() == map {
            return;
        }
        self.keep_own(&map);
        let any = self.records();
        self.tight.set(self.count_free(&map) <= self.kept_from(&map, any, Purpose::Insert));
        *self.map.borrow_mut() = map;
    }

    /// Whether all free chunks are reserved, by the map as last read.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.tight.get()
    }

    /// Returns the purpose of a value that replaces the one in `buffer`. Where all free chunks are
    /// reserved, a longer value counts as an insert: a few of those would leave nothing to others.
    #[inline]
    pub(crate) fn need_instead_of(&self, buffer: Pointer, kind: ObjectKind) -> Purpose {
        // Of values with chunks of their own, a single one takes much.
        let is_asked = self.is_tight() || kind.class == ChunkClass::Large;
        if is_asked && !buffer.is_null() && self.grows(buffer, kind) {
            Purpose::Insert
        } else {
            Purpose::Replace
        }
    }

    /// Whether such an object is larger than the one at `buffer`, by the map as last read.
    #[cold]
    fn grows(&self, buffer: Pointer, kind: ObjectKind) -> bool {
        let chunk = self.geometry.chunk_of(buffer);
        let before = extents(&self.map.borrow()).find(|extent| extent.first == chunk);
        let of = |class, chunks| match class {
            // The size for the same value where all nodes have a copy.
            ChunkClass::AllButOne(size) => {
                SizeClass::for_granules(size.granules().next_multiple_of(2)).granules()
            }
            ChunkClass::Uniform(size) | ChunkClass::AllNodes(size) => size.granules(),
            _ => chunks as u64 * self.geometry.chunk_granules(),
        };
        before.is_none_or(|extent| of(kind.class, kind.chunks) > of(extent.class, extent.chunks))
    }

    /// Whether the free objects of this kind are reserved for another purpose.
    #[inline]
    pub(in crate::heap) fn keeps(&self, kind: ObjectKind, need: Purpose) -> bool {
        need == Purpose::Insert && self.is_scarce(kind)
    }

    fn is_scarce(&self, kind: ObjectKind) -> bool {
        let few = self.few(kind);
        match kind.class {
            ChunkClass::Large => self.lacks_reserve(kind),
            _ => few > 0 && self.unused(kind) + self.reclaimer.free_count(kind) <= few,
        }
    }

    /// Returns how many buffers of a kind are reserved for replacements; never all that a chunk
    /// has.
    pub(in crate::heap) fn few(&self, kind: ObjectKind) -> usize {
        let in_a_chunk = self.geometry.objects(kind.class) as usize;
        match kind.class {
            ChunkClass::Uniform(_) | ChunkClass::AllButOne(_) | ChunkClass::AllNodes(_) => {
                FEW_BUFFERS.min(in_a_chunk.div_ceil(4)).min(in_a_chunk.saturating_sub(1))
            }
            ChunkClass::Homed { .. } | ChunkClass::Large | ChunkClass::LargeTail => 0,
        }
    }

    /// Whether the reserve is incomplete, by the map as last read, even with the free runs of this
    /// kind.
    fn lacks_reserve(&self, run: ObjectKind) -> bool {
        let map = self.map.borrow();
        let at_hand = self.unused(run) + self.reclaimer.free_count(run);
        let free = self.count_free(&map) + at_hand * run.chunks;
        free < run.chunks + self.kept_from(&map, run, Purpose::Insert)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::tests::alone;
    use crate::runtime::block_on::block_on;

    /// Earlier purposes use up all that they may have, and still some is left for the later ones.
    #[test]
    fn nobody_uses_up_what_is_for_those_behind() {
        let (group, heap) = alone();
        let (small, long) = (heap.plain(16), heap.plain(8000));
        let allocate = |kind, need| block_on(heap.allocate(&group, kind, need)).is_ok();
        for (kind, need) in [
            (small, Purpose::Insert),
            (small, Purpose::Replace),
            (long, Purpose::Replace),
            (heap.plain(100), Purpose::Relocate),
        ] {
            assert!(allocate(kind, need), "{kind:?}, {need:?}");
            while allocate(kind, need) {}
        }
    }

    /// Otherwise inserts would take the last buffer of a size, and no value of it could be replaced
    /// any more.
    #[test]
    fn inserts_leave_the_last_buffers_of_a_size() {
        let (group, heap) = alone();
        let (kind, other) = (heap.plain(16), heap.plain(100));
        let allocate = |kind, need| block_on(heap.allocate(&group, kind, need)).is_ok();
        assert!(allocate(kind, Purpose::Insert));
        while allocate(other, Purpose::Relocate) {}
        while allocate(kind, Purpose::Insert) {}
        let left = (0..).take_while(|_| allocate(kind, Purpose::Replace)).count();
        assert_eq!((heap.few(kind), left), (4, 4));
    }

    #[test]
    fn where_room_is_tight_a_longer_value_takes_more() {
        let (group, heap) = alone();
        let (kind, longer) = (heap.plain(16), heap.plain(100));
        let (run, longer_run) = (heap.plain(8000), heap.plain(16_000));
        let allocate = |kind, need| block_on(heap.allocate(&group, kind, need));
        let value = allocate(kind, Purpose::Insert).expect("memory");
        let long = allocate(run, Purpose::Insert).expect("memory");
        assert_eq!(heap.need_instead_of(value, longer), Purpose::Replace, "there is room");
        assert_eq!(heap.need_instead_of(long, run), Purpose::Replace);
        assert_eq!(heap.need_instead_of(long, longer_run), Purpose::Insert, "chunks of their own");
        while allocate(longer, Purpose::Relocate).is_ok() {}
        assert!(heap.is_tight());
        assert_eq!(heap.need_instead_of(value, kind), Purpose::Replace);
        assert_eq!(heap.need_instead_of(value, longer), Purpose::Insert);
        assert_eq!(
            heap.need_instead_of(Pointer::NULL, longer),
            Purpose::Replace,
            "nothing is there"
        );
    }
}
