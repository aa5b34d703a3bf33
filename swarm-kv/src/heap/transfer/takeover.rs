//! Takeover: chunks change their owner, from one client slot to another.
//!
//! A chunk belongs to its slot, whichever client has the slot, until another client *takes it
//! over*: because the slot has no client, or because that client has more than it needs. The former
//! owner need not agree, since an idle client cannot.
//!
//! **Invariant:** no client uses a chunk by a map that it read in an earlier generation (E9). A
//! client that takes a chunk over marks it in the map, begins a new generation, and uses the chunk
//! two epochs later. By then every operation that began in an earlier generation has ended, and any
//! that begins later reads the map before it hands anything out.
//!
//! The new owner knows nothing of what a chunk holds: a GC cycle finds out.

use std::collections::BTreeMap;

use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{EpochDomain, Fabric};
use swarm_core::quorum::Group;
use swarm_core::words::Pointer;

use crate::error::Error;
use crate::heap::chunk_map::{Extent, SHARED, ends_shares, extents};
use crate::heap::gc_pacer::worth_a_cycle;
use crate::heap::{Heap, Purpose};

impl Heap {
    /// Takes over all units of slots without a client. Returns whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_vacant<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
    ) -> Result<bool, Error> {
        self.take_over(group, |extents| self.vacant(extents, domain)).await
    }

    /// Takes over half of them, if that is worth a GC cycle: other live clients may want some as
    /// well. Returns whether it did.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_half_of_vacant<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
    ) -> Result<bool, Error> {
        let least = worth_a_cycle(self.count_own());
        let half = |extents: &[Extent]| {
            let mut vacant = self.vacant(extents, domain);
            vacant.truncate(vacant.len().div_ceil(2));
            let chunks: usize = vacant.iter().map(|extent| extent.chunks).sum();
            if chunks < least { Vec::new() } else { vacant }
        };
        self.take_over(group, half).await
    }

    /// Returns the units of slots without a client.
    fn vacant(&self, extents: &[Extent], domain: &impl EpochDomain) -> Vec<Extent> {
        let mut attached = BTreeMap::new();
        let mut is_attached =
            |slot| *attached.entry(slot).or_insert_with(|| domain.is_attached(slot));
        // Shared chunks have no owner that could be missing.
        let others = extents.iter().filter(|extent| ![self.slot, SHARED].contains(&extent.owner));
        others.filter(|extent| !is_attached(extent.owner)).copied().collect()
    }

    /// Takes over the units that `choose` chooses. Returns whether there are any. If the map as
    /// last read shows none, it is not read again: a client that found no chunk has just read it.
    pub(in crate::heap) async fn take_over<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        choose: impl Fn(&[Extent]) -> Vec<Extent>,
    ) -> Result<bool, Error> {
        self.alone(group, self.take_over_alone(group, choose)).await
    }

    async fn take_over_alone<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        choose: impl Fn(&[Extent]) -> Vec<Extent>,
    ) -> Result<bool, Error> {
        let chosen = |map: &[u32]| choose(&extents(map).collect::<Vec<_>>());
        if chosen(&self.map.borrow()).is_empty() {
            return Ok(false);
        }
        let take = |map: &mut [u32]| {
            let chosen = chosen(map);
            if chosen.iter().any(|extent| extent.owner == SHARED) {
                ends_shares(map);
            }
            for extent in chosen {
                Extent { owner: self.slot, taken: true, ..extent }.enter_into(map);
            }
            Ok(())
        };
        self.change_map(group, Purpose::Replace, |map| !chosen(map).is_empty(), take).await
    }

    /// Begins a new generation if the map shows units as taken over by this slot that were not
    /// announced (E9). The slot's previous client may have died before it did so. E2: the epoch
    /// that counts is read after that.
    pub(crate) fn announce(&self, domain: &impl EpochDomain) {
        let map = self.map.borrow();
        let taken: Vec<usize> = self.taken_extents(&map).map(|extent| extent.first).collect();
        let mut known = self.taken.borrow_mut();
        if taken.iter().any(|first| !known.1.contains(first)) {
            domain.new_generation();
            *known = (domain.epoch_bound(), taken);
        }
    }

    /// Whether units were taken over and are not in use yet.
    pub(crate) fn is_taking(&self) -> bool {
        !self.taken.borrow().1.is_empty()
    }

    /// Whether such units wait for the epoch to advance beyond `epoch`.
    pub(in crate::heap) fn taking_waits(&self, epoch: u64) -> bool {
        let taken = self.taken.borrow();
        !taken.1.is_empty() && taken.0 + GRACE > epoch
    }

    /// Makes units that were taken over this slot's own, two epochs after they were announced (E9).
    /// Returns whether there were any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record. The units stay taken over.
    pub(crate) async fn make_own<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
    ) -> Result<bool, Error> {
        if !self.is_taking() || self.taking_waits(domain.epoch()) {
            return Ok(false);
        }
        self.alone(group, self.make_own_alone(group, domain)).await
    }

    async fn make_own_alone<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
    ) -> Result<bool, Error> {
        let due = |map: &[u32]| -> Vec<Extent> {
            let taken = self.taken.borrow();
            self.taken_extents(map).filter(|extent| taken.1.contains(&extent.first)).collect()
        };
        let settle = |map: &mut [u32]| {
            for extent in due(map) {
                self.pass_on(domain, &extent);
                Extent { taken: false, ..extent }.enter_into(map);
            }
            Ok(())
        };
        self.change_map(group, Purpose::Replace, |map| !due(map).is_empty(), settle).await
    }

    /// Returns the units that this slot has taken over and may not use yet.
    pub(in crate::heap) fn taken_extents<'m>(
        &self,
        map: &'m [u32],
    ) -> impl Iterator<Item = Extent> + use<'m> {
        let slot = self.slot;
        extents(map).filter(move |extent| extent.owner == slot && extent.taken)
    }

    pub(in crate::heap) fn pass_on(&self, domain: &impl EpochDomain, extent: &Extent) {
        let granules = self.geometry.chunk_granules();
        let first = Pointer(extent.first as u64 * granules);
        domain.passed_on(first, extent.chunks as u64 * granules);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::heap::tests::{Says, alone};
    use crate::runtime::block_on::block_on;

    /// A client has taken a chunk over, and not announced it yet, when another operation of its own
    /// makes announced units its own.
    #[test]
    fn what_was_not_announced_is_not_used() {
        let (group, heap) = alone();
        let other = Heap::new(heap.geometry, 1);
        let [outcome, unannounced] = [16, 100].map(|words| heap.plain(words));
        for kind in [outcome, unannounced] {
            block_on(other.allocate(&group, kind, Purpose::Insert)).expect("memory");
        }
        block_on(heap.used(&group)).expect("a node");
        let take = |kind| {
            let of_that = |extents: &[Extent]| {
                extents.iter().filter(|extent| extent.is_for(kind)).copied().collect::<Vec<_>>()
            };
            block_on(heap.take_over(&group, of_that))
        };
        let epoch = Cell::new(5);
        let domain = Says(|| epoch.get());
        assert_eq!(take(outcome), Ok(true));
        heap.announce(&domain);
        epoch.set(7);
        assert_eq!(take(unannounced), Ok(true));
        assert_eq!(block_on(heap.make_own(&group, &domain)), Ok(true));
        let is_own = |kind| heap.own(&heap.map.borrow()).any(|extent| extent.is_for(kind));
        assert!(is_own(outcome));
        assert!(!is_own(unannounced), "its former owner may be at work in it");
    }

    /// An epoch domain whose epoch advances while a client begins a new generation.
    struct Moves(Cell<u64>);

    impl EpochDomain for Moves {
        fn epoch(&self) -> u64 {
            self.0.get()
        }
        fn pin(&self) -> u64 {
            self.epoch()
        }
        fn repin(&self, _: u64) {}
        fn unpin(&self) {}
        fn generation(&self) -> u64 {
            0
        }
        fn new_generation(&self) {
            self.0.set(self.0.get() + 1);
        }
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn try_advance(&self) -> u64 {
            self.epoch()
        }
    }

    /// An operation that began in between has not observed the generation, and is waited for.
    #[test]
    fn what_was_taken_over_waits_from_when_a_new_generation_began() {
        let (group, heap) = alone();
        let other = Heap::new(heap.geometry, 1);
        block_on(other.allocate(&group, other.plain(16), Purpose::Insert)).expect("memory");
        block_on(heap.used(&group)).expect("a node");
        assert_eq!(block_on(heap.take_over(&group, <[Extent]>::to_vec)), Ok(true));
        let domain = Moves(Cell::new(5));
        heap.announce(&domain);
        assert_eq!(domain.epoch(), 6, "it is announced to everybody");
        assert!(heap.taking_waits(7));
        assert!(!heap.taking_waits(8));
    }
}
