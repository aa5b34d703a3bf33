//! A slot's seeds, used again.
//!
//! Each slot has a few heap-map records of its own, for the time before it owns a chunk for them.
//! Their counter only grows. Once all are used up, a client takes back those that the map's record
//! is not among, as it takes back any garbage: when nobody comes across them any more.

use swarm_core::epoch::GRACE;
use swarm_core::geometry::SEED_RECORDS;
use swarm_core::words::Pointer;

use super::Heap;

impl Heap {
    /// Seeds that were used and are not at hand; all of them are then known not to be proposed by
    /// this client.
    pub(crate) fn used_seeds(&self) -> Vec<Pointer> {
        let spare = self.spare.get();
        let back = self.seeds_back.borrow();
        if self.seeds.get() != Some(SEED_RECORDS) || self.seeds_retired.borrow().is_some() {
            return Vec::new();
        }
        let seeds = (0..SEED_RECORDS).map(|index| self.geometry.seed(self.slot, index));
        seeds.filter(|seed| !back.contains(seed) && spare != Some(*seed)).collect()
    }

    /// Retires seeds that were used when a collection began and that no map names since. Yields how
    /// many there are.
    pub(crate) fn retire_seeds(
        &self,
        mut seeds: Vec<Pointer>,
        record: Pointer,
        epoch: u64,
    ) -> usize {
        seeds.retain(|seed| *seed != record);
        let retired = seeds.len();
        if retired > 0 {
            *self.seeds_retired.borrow_mut() = Some((epoch, seeds));
        }
        retired
    }

    /// Retired seeds that nobody holds any more.
    pub(super) fn due_seeds(&self, epoch: u64) -> Option<Vec<Pointer>> {
        let retired = &mut *self.seeds_retired.borrow_mut();
        retired.take_if(|(since, _)| *since + GRACE <= epoch).map(|(_, seeds)| seeds)
    }
}
