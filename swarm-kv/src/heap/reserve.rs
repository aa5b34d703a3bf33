//! What a full pool keeps back, and for what.
//!
//! A pool that is full for inserts still serves updates in place and keys that have to move. Each takes memory
//! before it gives some back, at every client that writes. So inserts leave some chunks, the *reserve*. Small
//! objects that take others' place may have half of it; values with chunks of their own a quarter more, or as much
//! more as the longest takes; and keys that move all of it. Nobody uses up what is left for those behind him.
//!
//! Small objects share chunks, and one that was taken from the reserve seldom comes back to it. But what is
//! given back is of use to the next object of its size, whichever client has it (see [`share`](super::share)).
//! It all rests on this: *of every size that is in use a few buffers are kept from inserts*, by each client that
//! makes some. Values with chunks of their own give those back as a whole: they count as free, and inserts have
//! them only where the reserve is whole without them.

use swarm_core::layout::{Class, Geometry, Size};
use swarm_core::words::Pointer;

use super::map::{Unit, units};
use super::{Heap, Kind, Need};

/// Of so many chunks one is kept back.
const PART: usize = 32;
/// So many are kept back at least where that is no more than one in [`SMALL_PART`]: each client that writes
/// takes a few, however small the pool is.
const LEAST: usize = 16;
const SMALL_PART: usize = 16;
/// Buffers of each kind that a client keeps at most for values that take others' place.
const FEW_BUFFERS: usize = 4;

/// Bytes that one client takes at most to put a key with a value of up to a hundred bytes: some objects each of registers,
/// buffers, buckets' records, and what is lost to others who take some at the same moment.
const OF_A_WRITER: u64 = 24 << 10;
/// Chunks that are begun for the first of them: for those three kinds, and for the heap map's records of whoever claims
/// them.
const OF_THE_FIRST: usize = 6;

/// For how many clients that write a pool of this geometry has memory, of those that it is made for: so many can each
/// put a key with a value of up to a hundred bytes into a new pool, all at once, and none has to look for memory. Each
/// takes 24 KiB at most for that, and some more for each further size of values.
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
    /// Of a pool whose longest value takes so many chunks.
    fn of(geometry: &Geometry, longest: usize) -> Self {
        let all = geometry.chunks() - geometry.first_chunk();
        let reserve = (all / PART).max(LEAST.min(all / SMALL_PART)).max(1);
        let (small, moves) = (reserve / 2, (reserve / 2).div_ceil(2));
        let long = reserve.saturating_sub(small + moves).max(longest);
        Self { small, long, moves }
    }
}

impl Heap {
    /// Chunks that stay free in `map` behind a claim of such an object for this.
    pub(super) fn kept_from(&self, map: &[u32], kind: Kind, need: Need) -> usize {
        let runs = units(map).filter(|unit| unit.class == Class::Run).map(|run| run.chunks);
        let longest = runs.fold(kind.chunks, usize::max);
        let Parts { small, long, moves } = Parts::of(&self.geometry, longest);
        match need {
            Need::More => small + long + moves,
            Need::Instead if kind.class == Class::Run => moves,
            Need::Instead => long + moves,
            Need::Move => 0,
            Need::Room => map.len(),
        }
    }

    /// Whether units of this class, which come to be free, may be for such an object: not at the cost of
    /// what they come back to.
    pub(super) fn may_pass(&self, unit: &Unit, (kind, need): (Kind, Need)) -> bool {
        let [from_run, to_run] = [unit.class, kind.class].map(|class| class == Class::Run);
        match need {
            Need::More => !from_run && !to_run,
            Need::Instead => !from_run || to_run,
            Need::Move => true,
            Need::Room => false,
        }
    }

    /// The map as it stands: lets go of what is not this slot's any more by it, and says whether all that is free is
    /// kept back. That goes over all chunks and all that the client has of them, so not for a map that is the same as
    /// the last one: what came to this client since came from its own chunks by that, and none of them was somebody
    /// else's in between, as only this slot makes a chunk its own.
    pub(super) fn see(&self, map: Vec<u32>) {
        if *self.map.borrow() == map {
            return;
        }
        self.keep_own(&map);
        let any = self.records();
        self.tight.set(self.count_free(&map) <= self.kept_from(&map, any, Need::More));
        *self.map.borrow_mut() = map;
    }

    /// Whether all that is free is kept back, by the map as last seen.
    #[inline]
    pub(crate) fn is_tight(&self) -> bool {
        self.tight.get()
    }

    /// What a value needs that takes the place of the one in `buffer`. Where all that is free is kept back, a longer one
    /// takes more of the pool: a few of those would leave nothing to others.
    #[inline]
    pub(crate) fn need_instead_of(&self, buffer: Pointer, kind: Kind) -> Need {
        // Of those with chunks of their own one is much already.
        let is_asked = self.is_tight() || kind.class == Class::Run;
        if is_asked && !buffer.is_null() && self.grows(buffer, kind) {
            Need::More
        } else {
            Need::Instead
        }
    }

    /// Whether such an object is larger than the one at `buffer`, by the map as last seen.
    #[cold]
    fn grows(&self, buffer: Pointer, kind: Kind) -> bool {
        let chunk = self.geometry.chunk_of(buffer);
        let before = units(&self.map.borrow()).find(|unit| unit.first == chunk);
        let of = |class, chunks| match class {
            // Of the same value, where all nodes have it.
            Class::Lean(size) => Size::for_granules(size.granules().next_multiple_of(2)).granules(),
            Class::Plain(size) | Class::Wide(size) => size.granules(),
            _ => chunks as u64 * self.geometry.chunk_granules(),
        };
        before.is_none_or(|unit| of(kind.class, kind.chunks) > of(unit.class, unit.chunks))
    }

    /// Whether what is at hand is kept for something else.
    #[inline]
    pub(super) fn keeps(&self, kind: Kind, need: Need) -> bool {
        need == Need::More && self.is_scarce(kind)
    }

    fn is_scarce(&self, kind: Kind) -> bool {
        let few = self.few(kind);
        match kind.class {
            Class::Run => self.lacks_reserve(kind),
            _ => few > 0 && self.unused(kind) + self.recycler.at_hand(kind) <= few,
        }
    }

    /// So many buffers of a kind are kept for values that take others' place; not all that a chunk has.
    pub(super) fn few(&self, kind: Kind) -> usize {
        let in_a_chunk = self.geometry.objects(kind.class) as usize;
        match kind.class {
            Class::Plain(_) | Class::Lean(_) | Class::Wide(_) => {
                FEW_BUFFERS.min(in_a_chunk.div_ceil(4)).min(in_a_chunk.saturating_sub(1))
            }
            Class::Homed { .. } | Class::Run | Class::RunTail => 0,
        }
    }

    /// Whether the reserve lacks some, by the map as last seen, even with the runs of this kind that are at
    /// hand.
    fn lacks_reserve(&self, run: Kind) -> bool {
        let map = self.map.borrow();
        let at_hand = self.unused(run) + self.recycler.at_hand(run);
        let free = self.count_free(&map) + at_hand * run.chunks;
        free < run.chunks + self.kept_from(&map, run, Need::More)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::alone;
    use super::*;
    use crate::blocking::block_on;

    /// Whatever is there is used up by those in front, and still there is something for who comes behind.
    #[test]
    fn nobody_uses_up_what_is_for_those_behind() {
        let (group, heap) = alone();
        let (small, long) = (heap.plain(16), heap.plain(8000));
        let allocate = |kind, need| block_on(heap.allocate(&group, kind, need)).is_ok();
        for (kind, need) in [
            (small, Need::More),
            (small, Need::Instead),
            (long, Need::Instead),
            (heap.plain(100), Need::Move),
        ] {
            assert!(allocate(kind, need), "{kind:?}, {need:?}");
            while allocate(kind, need) {}
        }
    }

    /// Inserts would have the last buffer of a size otherwise, and no value of it could be replaced any more.
    #[test]
    fn inserts_leave_the_last_buffers_of_a_size() {
        let (group, heap) = alone();
        let (kind, other) = (heap.plain(16), heap.plain(100));
        let allocate = |kind, need| block_on(heap.allocate(&group, kind, need)).is_ok();
        assert!(allocate(kind, Need::More));
        while allocate(other, Need::Move) {}
        while allocate(kind, Need::More) {}
        let left = (0..).take_while(|_| allocate(kind, Need::Instead)).count();
        assert_eq!((heap.few(kind), left), (4, 4));
    }

    #[test]
    fn where_room_is_tight_a_longer_value_takes_more() {
        let (group, heap) = alone();
        let (kind, longer) = (heap.plain(16), heap.plain(100));
        let (run, longer_run) = (heap.plain(8000), heap.plain(16_000));
        let allocate = |kind, need| block_on(heap.allocate(&group, kind, need));
        let value = allocate(kind, Need::More).expect("memory");
        let long = allocate(run, Need::More).expect("memory");
        assert_eq!(heap.need_instead_of(value, longer), Need::Instead, "there is room");
        assert_eq!(heap.need_instead_of(long, run), Need::Instead);
        assert_eq!(heap.need_instead_of(long, longer_run), Need::More, "chunks of their own");
        while allocate(longer, Need::Move).is_ok() {}
        assert!(heap.is_tight());
        assert_eq!(heap.need_instead_of(value, kind), Need::Instead);
        assert_eq!(heap.need_instead_of(value, longer), Need::More);
        assert_eq!(heap.need_instead_of(Pointer::NULL, longer), Need::Instead, "nothing is there");
    }
}
