//! Chunks that go from one slot to another.
//!
//! A chunk stays its slot's, whoever holds the slot, until another client *takes it over*: because the
//! slot has no holder, or because that one has more than it needs. Nobody has to agree, since one that
//! does nothing cannot. It all rests on this: *nobody uses a chunk that is not its own by a map that it
//! read in the generation it is in*. Whoever takes a chunk over says so in the map, begins another
//! generation, and uses the chunk only two epochs later: by then every operation that began in an
//! earlier generation is over, and whoever begins one reads the map before it hands anything out.
//!
//! Of what a chunk holds its new owner knows nothing: a collection finds out.

use std::collections::BTreeMap;

use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{Board, Fabric};
use swarm_core::quorum::Group;
use swarm_core::words::Pointer;

use super::growth::worth_a_collection;
use super::map::{SHARED, Unit, ends_shares, units};
use super::{Heap, Need};
use crate::error::Error;

impl Heap {
    /// Takes all units over whose slots have no holder. Yields whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_vacant<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
    ) -> Result<bool, Error> {
        self.take_over(group, |units| self.vacant(units, board)).await
    }

    /// Takes half of them over, if that is worth a collection: others who are there may want some as well. Yields
    /// whether it did.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_half_of_vacant<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
    ) -> Result<bool, Error> {
        let least = worth_a_collection(self.count_own());
        let half = |units: &[Unit]| {
            let mut vacant = self.vacant(units, board);
            vacant.truncate(vacant.len().div_ceil(2));
            let chunks: usize = vacant.iter().map(|unit| unit.chunks).sum();
            if chunks < least { Vec::new() } else { vacant }
        };
        self.take_over(group, half).await
    }

    /// Units whose slots have no holder.
    fn vacant(&self, units: &[Unit], board: &impl Board) -> Vec<Unit> {
        let mut attached = BTreeMap::new();
        let mut is_attached =
            |slot| *attached.entry(slot).or_insert_with(|| board.is_attached(slot));
        // What is shared has no holder to miss.
        let others = units.iter().filter(|unit| ![self.slot, SHARED].contains(&unit.owner));
        others.filter(|unit| !is_attached(unit.owner)).copied().collect()
    }

    /// Takes the units over that this chooses of all. Yields whether there are any; if the map at hand shows none,
    /// nobody is asked for it. Who found no chunk has just read it.
    pub(super) async fn take_over<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        choose: impl Fn(&[Unit]) -> Vec<Unit>,
    ) -> Result<bool, Error> {
        self.alone(group, self.take_over_alone(group, choose)).await
    }

    async fn take_over_alone<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        choose: impl Fn(&[Unit]) -> Vec<Unit>,
    ) -> Result<bool, Error> {
        let chosen = |map: &[u32]| choose(&units(map).collect::<Vec<_>>());
        if chosen(&self.map.borrow()).is_empty() {
            return Ok(false);
        }
        let take = |map: &mut [u32]| {
            let chosen = chosen(map);
            if chosen.iter().any(|unit| unit.owner == SHARED) {
                ends_shares(map);
            }
            for unit in chosen {
                Unit { owner: self.slot, taken: true, ..unit }.enter_into(map);
            }
            Ok(())
        };
        self.change_map(group, Need::Instead, |map| !chosen(map).is_empty(), take).await
    }

    /// Tells everyone of what the map at hand shows as taken over by this slot. Whoever held the slot
    /// before may have died in front of that.
    pub(crate) fn announce(&self, board: &impl Board) {
        let map = self.map.borrow();
        let taken: Vec<usize> = self.taken_units(&map).map(|unit| unit.first).collect();
        let mut known = self.taken.borrow_mut();
        if taken.iter().any(|first| !known.1.contains(first)) {
            board.renew();
            *known = (board.latest(), taken);
        }
    }

    /// Whether units were taken over and are not in use yet.
    pub(crate) fn is_taking(&self) -> bool {
        !self.taken.borrow().1.is_empty()
    }

    /// Whether what was taken over waits for the epoch to move on from `epoch`.
    pub(super) fn taking_waits(&self, epoch: u64) -> bool {
        let taken = self.taken.borrow();
        !taken.1.is_empty() && taken.0 + GRACE > epoch
    }

    /// Makes what was taken over this slot's, once everyone has heard of it. Yields whether anything
    /// was.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record. What was taken over stays so.
    pub(crate) async fn make_own<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
    ) -> Result<bool, Error> {
        if !self.is_taking() || self.taking_waits(board.epoch()) {
            return Ok(false);
        }
        self.alone(group, self.make_own_alone(group, board)).await
    }

    async fn make_own_alone<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
    ) -> Result<bool, Error> {
        let due = |map: &[u32]| -> Vec<Unit> {
            let taken = self.taken.borrow();
            self.taken_units(map).filter(|unit| taken.1.contains(&unit.first)).collect()
        };
        let settle = |map: &mut [u32]| {
            for unit in due(map) {
                self.pass_on(board, &unit);
                Unit { taken: false, ..unit }.enter_into(map);
            }
            Ok(())
        };
        self.change_map(group, Need::Instead, |map| !due(map).is_empty(), settle).await
    }

    /// Units that this slot has taken over and may not use yet.
    pub(super) fn taken_units<'m>(&self, map: &'m [u32]) -> impl Iterator<Item = Unit> + use<'m> {
        let slot = self.slot;
        units(map).filter(move |unit| unit.owner == slot && unit.taken)
    }

    pub(super) fn pass_on(&self, board: &impl Board, unit: &Unit) {
        let granules = self.geometry.chunk_granules();
        let first = Pointer(unit.first as u64 * granules);
        board.passed_on(first, unit.chunks as u64 * granules);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::tests::{Says, alone};
    use super::*;
    use crate::blocking::block_on;

    /// A client has taken a chunk over, and not told anybody of it yet, when another operation of its makes its own
    /// what everybody has heard of.
    #[test]
    fn what_nobody_was_told_of_is_not_used() {
        let (group, heap) = alone();
        let other = Heap::new(heap.geometry, 1);
        let [told, untold] = [16, 100].map(|words| heap.plain(words));
        for kind in [told, untold] {
            block_on(other.allocate(&group, kind, Need::More)).expect("memory");
        }
        block_on(heap.used(&group)).expect("a node");
        let take = |kind| {
            let of_that = |units: &[Unit]| {
                units.iter().filter(|unit| unit.is_for(kind)).copied().collect::<Vec<_>>()
            };
            block_on(heap.take_over(&group, of_that))
        };
        let epoch = Cell::new(5);
        let board = Says(|| epoch.get());
        assert_eq!(take(told), Ok(true));
        heap.announce(&board);
        epoch.set(7);
        assert_eq!(take(untold), Ok(true));
        assert_eq!(block_on(heap.make_own(&group, &board)), Ok(true));
        let is_own = |kind| heap.own(&heap.map.borrow()).any(|unit| unit.is_for(kind));
        assert!(is_own(told));
        assert!(!is_own(untold), "its former owner may be at work in it");
    }

    /// A board on which the epoch moves on while a client begins another generation.
    struct Moves(Cell<u64>);

    impl Board for Moves {
        fn epoch(&self) -> u64 {
            self.0.get()
        }
        fn enter(&self) -> u64 {
            self.epoch()
        }
        fn remain(&self, _: u64) {}
        fn leave(&self) {}
        fn generation(&self) -> u64 {
            0
        }
        fn renew(&self) {
            self.0.set(self.0.get() + 1);
        }
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn advance(&self) -> u64 {
            self.epoch()
        }
    }

    /// Who began in between did not meet the generation, and is waited for.
    #[test]
    fn what_was_taken_over_waits_from_when_everybody_was_told() {
        let (group, heap) = alone();
        let other = Heap::new(heap.geometry, 1);
        block_on(other.allocate(&group, other.plain(16), Need::More)).expect("memory");
        block_on(heap.used(&group)).expect("a node");
        assert_eq!(block_on(heap.take_over(&group, <[Unit]>::to_vec)), Ok(true));
        let board = Moves(Cell::new(5));
        heap.announce(&board);
        assert_eq!(board.epoch(), 6, "everybody is told");
        assert!(heap.taking_waits(7));
        assert!(!heap.taking_waits(8));
    }
}
