//! The chunk map: owner and class of every chunk.
//!
//! An entry has 32 bits, `[ taken | slot 15 | class 16 ]`; 0 is a free chunk. The map is made of
//! *units* (extents): a unit is one chunk, or one run of chunks that hold one object. A unit is
//! *taken* from when it is taken over until its former owner's client can no longer use it (see
//! [`takeover`](crate::heap::transfer::takeover)). A unit of the slot [`SHARED`] is shared by all
//! clients: each takes a few of its objects at a time (see
//! [`shared_range`](crate::heap::alloc::shared_range)). Chunk 0 is the pool's own: its entry counts
//! how often shared units were taken over.

use std::ops::Range;

use swarm_core::layout::ChunkClass;

use super::ObjectKind;

/// Set where a unit was taken over and is not in use yet.
const TAKEN: u32 = 1 << 31;
/// Stands for the slot where all clients share a unit. No pool has as many clients.
pub(super) const SHARED: usize = 0x7f00;

/// A chunk that has an owner, or the chunks of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// Its first chunk.
    pub(super) first: usize,
    /// How many chunks it takes.
    pub(super) chunks: usize,
    /// The client slot that owns it, or [`SHARED`].
    pub(super) owner: usize,
    pub(super) class: ChunkClass,
    /// Whether it was taken over and is not in use yet.
    pub(super) taken: bool,
}

impl Extent {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.chunks
    }

    /// Whether it is for objects of this kind.
    pub(super) fn is_for(&self, kind: ObjectKind) -> bool {
        (self.class, self.chunks) == (kind.class, kind.chunks)
    }

    /// Writes the unit into a map.
    pub(super) fn enter_into(&self, map: &mut [u32]) {
        map[self.range()].fill(self.entry(ChunkClass::LargeTail));
        map[self.first] = self.entry(self.class);
    }

    /// Removes the unit from a map: any client may claim its chunks.
    pub(super) fn take_out_of(&self, map: &mut [u32]) {
        map[self.range()].fill(0);
    }

    fn entry(&self, class: ChunkClass) -> u32 {
        let taken = if self.taken { TAKEN } else { 0 };
        taken | ((self.owner as u32) << 16) | u32::from(class.encode())
    }
}

/// Returns the units that have an owner, in order.
pub(super) fn extents(map: &[u32]) -> impl Iterator<Item = Extent> {
    (1..map.len()).filter_map(|first| {
        let (owner, class, taken) = decode(map[first])?;
        let tail = Some((owner, ChunkClass::LargeTail, taken));
        let chunks = match class {
            ChunkClass::LargeTail => return None,
            ChunkClass::Large => {
                1 + map[first + 1..].iter().take_while(|e| decode(**e) == tail).count()
            }
            ChunkClass::Uniform(_)
            | ChunkClass::AllButOne(_)
            | ChunkClass::AllNodes(_)
            | ChunkClass::Homed { .. } => 1,
        };
        Some(Extent { first, chunks, owner, class, taken })
    })
}

/// Returns how often shared units were taken over.
pub(super) fn ends_of_shares(map: &[u32]) -> u32 {
    map.first().copied().unwrap_or(0)
}

/// Counts a takeover of shared units (E8b).
pub(super) fn ends_shares(map: &mut [u32]) {
    map[0] = map[0].wrapping_add(1);
}

/// Whether a map can occur in a pool for this many clients.
pub(super) fn is_sound(map: &[u32], slots: usize) -> bool {
    map.iter().skip(1).all(|&entry| is_sound_entry(entry, slots))
}

/// Whether a map's entry can occur in a pool for this many clients.
fn is_sound_entry(entry: u32, slots: usize) -> bool {
    let is_owner = |owner, class| match class {
        ChunkClass::Large | ChunkClass::LargeTail => owner < slots,
        _ => owner < slots || owner == SHARED,
    };
    entry == 0 || decode(entry).is_some_and(|(owner, class, _)| is_owner(owner, class))
}

/// Returns the client slot that owns a chunk by its entry, or [`SHARED`].
pub(super) fn owner(entry: u32) -> Option<usize> {
    decode(entry).map(|(owner, ..)| owner)
}

/// Returns owner, class, and whether the unit is taken.
fn decode(entry: u32) -> Option<(usize, ChunkClass, bool)> {
    if entry == 0 {
        return None;
    }
    let class = ChunkClass::decode(entry as u16)?;
    Some(((entry >> 16) as usize & 0x7fff, class, entry & TAKEN != 0))
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::SizeClass;

    use super::*;

    #[test]
    fn what_is_entered_is_read_again() {
        let extent =
            |first, chunks, class, taken| Extent { first, chunks, owner: 1023, class, taken };
        let plain = ChunkClass::Uniform(SizeClass::for_granules(4));
        let homed = ChunkClass::Homed { small: 1, full: SizeClass::for_granules(4) };
        let all = [
            extent(1, 3, ChunkClass::Large, false),
            extent(4, 1, plain, true),
            extent(5, 2, ChunkClass::Large, true),
            extent(7, 1, ChunkClass::Large, true),
            extent(9, 1, homed, false),
            Extent { owner: SHARED, ..extent(10, 1, plain, false) },
        ];
        let mut map = vec![0; 12];
        all.iter().for_each(|extent| extent.enter_into(&mut map));
        assert_eq!(extents(&map).collect::<Vec<_>>(), all);
        assert!(is_sound(&map, 1024) && !is_sound(&map, 1023));
        // A run is never shared.
        let mut shared = vec![0];
        Extent { owner: SHARED, ..extent(0, 1, ChunkClass::Large, false) }.enter_into(&mut shared);
        assert!(!is_sound_entry(shared[0], 1024));
        all.iter().for_each(|extent| extent.take_out_of(&mut map));
        assert_eq!(map, [0; 12]);
    }
}
