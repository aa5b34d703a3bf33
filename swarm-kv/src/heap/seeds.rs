//! A slot's seeds, used again.
//!
//! Each slot has a few heap-map records of its own, for the time before it owns a chunk for them.
//! Their counter only grows. Once all are used up, a client takes back those that the map's record
//! is not among, as a [collection](crate::collect) does with other records, but without going over the
//! index: only the map's cell names them. They are *noted* first. Two epochs later nothing is on its
//! way of whoever proposed them; once the cell is quiet, no record but the one that every node shows can be
//! proposed again; and two epochs after that nobody comes across the others any more.

use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::Fabric;
use swarm_core::geometry::SEED_RECORDS;
use swarm_core::group::Group;
use swarm_core::words::Pointer;

use super::Heap;
use super::counter::Counter;
use crate::error::Error;

impl Heap {
    /// Goes on with taking seeds back, if a record for the map was missing last, and all are used up.
    ///
    /// # Errors
    /// Not all nodes answer, or others go on changing the map: it begins anew.
    pub(crate) async fn recall_seeds<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        epoch: u64,
    ) -> Result<(), Error> {
        let noted = self.seeds_noted.take();
        match noted {
            Some((since, seeds)) if since + GRACE <= epoch => {
                let record = self.quiet_record(group).await?;
                self.retire_seeds(seeds, record, epoch);
            }
            Some(early) => *self.seeds_noted.borrow_mut() = Some(early),
            None if self.wanted.get() != Some(self.records()) => {}
            None => {
                let used = self.used_seeds();
                if !used.is_empty() {
                    *self.seeds_noted.borrow_mut() = Some((epoch, used));
                }
            }
        }
        Ok(())
    }

    /// Seeds that were used and are not at hand, if none is left and none is on its way back.
    fn used_seeds(&self) -> Vec<Pointer> {
        let spare = self.spare.get();
        let back = self.seeds_back.borrow();
        if self.seeds.get().map(Counter::objects) != Some(SEED_RECORDS)
            || self.seeds_retired.borrow().is_some()
        {
            return Vec::new();
        }
        let seeds = (0..SEED_RECORDS).map(|index| self.geometry.seed(self.slot, index));
        seeds.filter(|seed| !back.contains(seed) && spare != Some(*seed)).collect()
    }

    /// Retires noted seeds but for the map's record.
    fn retire_seeds(&self, mut seeds: Vec<Pointer>, record: Pointer, epoch: u64) {
        seeds.retain(|seed| *seed != record);
        if !seeds.is_empty() {
            *self.seeds_retired.borrow_mut() = Some((epoch, seeds));
        }
    }

    /// Retired seeds that nobody holds any more.
    pub(super) fn due_seeds(&self, epoch: u64) -> Option<Vec<Pointer>> {
        let retired = &mut *self.seeds_retired.borrow_mut();
        retired.take_if(|(since, _)| *since + GRACE <= epoch).map(|(_, seeds)| seeds)
    }
}
