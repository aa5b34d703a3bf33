//! What the heap map says: whose each chunk is, and what for.
//!
//! 32 bits a chunk, `[ taken | slot 15 | class 16 ]`, 0 = free. What goes by the map as a whole is a
//! *unit*: a chunk, or a run of chunks that hold one object. A unit that is *taken* was another
//! slot's: it is not used before that one's client has heard of it (see [`takeover`](super::takeover)).
//! A unit of the slot [`SHARED`] is all clients': each takes a few of its objects at a time (see [`range`](super::range)).
//! Chunk 0 is the pool's own: its entry counts how often units that are shared were taken over.

use std::ops::Range;

use swarm_core::layout::Class;

use super::Kind;

/// Set where a unit was taken over and is not in use yet.
const TAKEN: u32 = 1 << 31;
/// What stands for a slot where all clients share a unit. No pool is made for so many clients.
pub(super) const SHARED: usize = 0x7f00;

/// A chunk that has an owner, or the chunks of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    /// Its first chunk.
    pub(super) first: usize,
    /// How many chunks it takes.
    pub(super) chunks: usize,
    /// The slot that it belongs to, or [`SHARED`].
    pub(super) owner: usize,
    pub(super) class: Class,
    /// Whether it was taken over and is not in use yet.
    pub(super) taken: bool,
}

impl Unit {
    fn range(&self) -> Range<usize> {
        self.first..self.first + self.chunks
    }

    /// Whether it is for objects of this kind.
    pub(super) fn is_for(&self, kind: Kind) -> bool {
        (self.class, self.chunks) == (kind.class, kind.chunks)
    }

    /// Writes the unit into a map.
    pub(super) fn enter_into(&self, map: &mut [u32]) {
        map[self.range()].fill(self.entry(Class::RunTail));
        map[self.first] = self.entry(self.class);
    }

    /// Leaves the unit's chunks to whoever claims them.
    pub(super) fn take_out_of(&self, map: &mut [u32]) {
        map[self.range()].fill(0);
    }

    fn entry(&self, class: Class) -> u32 {
        let taken = if self.taken { TAKEN } else { 0 };
        taken | ((self.owner as u32) << 16) | u32::from(class.encode())
    }
}

/// The units that have an owner, in their order.
pub(super) fn units(map: &[u32]) -> impl Iterator<Item = Unit> {
    (1..map.len()).filter_map(|first| {
        let (owner, class, taken) = decode(map[first])?;
        let tail = Some((owner, Class::RunTail, taken));
        let chunks = match class {
            Class::RunTail => return None,
            Class::Run => 1 + map[first + 1..].iter().take_while(|e| decode(**e) == tail).count(),
            Class::Plain(_) | Class::Lean(_) | Class::Wide(_) | Class::Homed { .. } => 1,
        };
        Some(Unit { first, chunks, owner, class, taken })
    })
}

/// How often shared units were taken over.
pub(super) fn ends_of_shares(map: &[u32]) -> u32 {
    map.first().copied().unwrap_or(0)
}

/// Some are taken over.
pub(super) fn ends_shares(map: &mut [u32]) {
    map[0] = map[0].wrapping_add(1);
}

/// Whether a map makes sense in a pool for so many clients.
pub(super) fn is_sound(map: &[u32], slots: usize) -> bool {
    map.iter().skip(1).all(|&entry| is_sound_entry(entry, slots))
}

/// Whether a map's entry makes sense in a pool for so many clients.
fn is_sound_entry(entry: u32, slots: usize) -> bool {
    let is_owner = |owner, class| match class {
        Class::Run | Class::RunTail => owner < slots,
        _ => owner < slots || owner == SHARED,
    };
    entry == 0 || decode(entry).is_some_and(|(owner, class, _)| is_owner(owner, class))
}

/// The slot that a map's entry says a chunk belongs to, or [`SHARED`].
pub(super) fn owner(entry: u32) -> Option<usize> {
    decode(entry).map(|(owner, ..)| owner)
}

/// Owner, class, and whether it is taken.
fn decode(entry: u32) -> Option<(usize, Class, bool)> {
    if entry == 0 {
        return None;
    }
    let class = Class::decode(entry as u16)?;
    Some(((entry >> 16) as usize & 0x7fff, class, entry & TAKEN != 0))
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::Size;

    use super::*;

    #[test]
    fn what_is_entered_is_read_again() {
        let unit = |first, chunks, class, taken| Unit { first, chunks, owner: 1023, class, taken };
        let plain = Class::Plain(Size::for_granules(4));
        let homed = Class::Homed { small: 1, full: Size::for_granules(4) };
        let all = [
            unit(1, 3, Class::Run, false),
            unit(4, 1, plain, true),
            unit(5, 2, Class::Run, true),
            unit(7, 1, Class::Run, true),
            unit(9, 1, homed, false),
            Unit { owner: SHARED, ..unit(10, 1, plain, false) },
        ];
        let mut map = vec![0; 12];
        all.iter().for_each(|unit| unit.enter_into(&mut map));
        assert_eq!(units(&map).collect::<Vec<_>>(), all);
        assert!(is_sound(&map, 1024) && !is_sound(&map, 1023));
        // A run is somebody's.
        let mut shared = vec![0];
        Unit { owner: SHARED, ..unit(0, 1, Class::Run, false) }.enter_into(&mut shared);
        assert!(!is_sound_entry(shared[0], 1024));
        all.iter().for_each(|unit| unit.take_out_of(&mut map));
        assert_eq!(map, [0; 12]);
    }
}
