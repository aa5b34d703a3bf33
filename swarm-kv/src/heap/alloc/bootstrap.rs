//! Bootstrap records: reclamation of the records that each slot has for its first claims.
//!
//! Each slot has a few chunk-map records of its own, for the time before it owns a chunk for them.
//! Their high-water mark only grows. Once all are used, a client reclaims those that are not the
//! map's record. The rules are those of a [GC cycle](crate::gc::mark_sweep) (E5, E6), without a
//! walk over the index: only the map's cell names these records. They are *noted* first. Two epochs
//! later, no proposal of them is on its way. Once the cell has converged, only the record that
//! every node shows can be proposed again. Two epochs after that, no operation can reach the
//! others.

use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{EpochDomain, Fabric};
use swarm_core::layout::SEED_RECORDS;
use swarm_core::quorum::Group;
use swarm_core::words::Pointer;

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::alloc::high_water::HighWater;

impl Heap {
    /// Continues to reclaim bootstrap records, if the last allocation that failed was for a
    /// chunk-map record, and all are used.
    ///
    /// # Errors
    /// If not all nodes answer, or other clients go on changing the map; reclamation starts over.
    pub(crate) async fn recall_seeds<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl EpochDomain,
    ) -> Result<(), Error> {
        let (epoch, noted) = (board.epoch(), self.seeds_noted.take());
        match noted {
            Some((since, seeds)) if since + GRACE <= epoch => {
                let record = self.quiet_record(group).await?;
                // E8: the epoch after convergence counts. It may have advanced meanwhile, and an
                // operation that began in the new one may have reached such a record before the
                // cell converged.
                self.retire_seeds(seeds, record, board.epoch_bound());
            }
            Some(early) => *self.seeds_noted.borrow_mut() = Some(early),
            None if self.wanted.get().is_none_or(|(kind, _)| kind != self.records()) => {}
            None => {
                let used = self.used_seeds();
                if !used.is_empty() {
                    *self.seeds_noted.borrow_mut() = Some((board.epoch_bound(), used));
                }
            }
        }
        Ok(())
    }

    /// Returns the bootstrap records that were used and are not free, if none is left and none is
    /// being reclaimed.
    fn used_seeds(&self) -> Vec<Pointer> {
        let spare = self.spare.get();
        let back = self.seeds_back.borrow();
        if self.seeds.get().map(HighWater::objects) != Some(SEED_RECORDS)
            || self.seeds_retired.borrow().is_some()
        {
            return Vec::new();
        }
        let seeds = (0..SEED_RECORDS).map(|index| self.geometry.seed(self.slot, index));
        seeds.filter(|seed| !back.contains(seed) && spare != Some(*seed)).collect()
    }

    /// Removes a record that is kept for the next claim from the noted ones. An operation that held
    /// it when they were noted was pinned then, so before they are retired it has ended, or has
    /// kept the record.
    pub(in crate::heap) fn notes_not(&self, record: Pointer) {
        if let Some((_, seeds)) = &mut *self.seeds_noted.borrow_mut() {
            seeds.retain(|seed| *seed != record);
        }
    }

    /// Retires the noted records, except the map's record.
    fn retire_seeds(&self, mut seeds: Vec<Pointer>, record: Pointer, epoch: u64) {
        seeds.retain(|seed| *seed != record);
        if !seeds.is_empty() {
            *self.seeds_retired.borrow_mut() = Some((epoch, seeds));
        }
    }

    /// Takes the retired records that no operation can reach.
    pub(in crate::heap) fn due_seeds(&self, epoch: u64) -> Option<Vec<Pointer>> {
        let retired = &mut *self.seeds_retired.borrow_mut();
        retired.take_if(|(since, _)| *since + GRACE <= epoch).map(|(_, seeds)| seeds)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::node::NodeSet;

    use super::*;
    use crate::heap::Purpose;
    use crate::heap::tests::{Says, alone, raise};
    use crate::runtime::block_on::block_on;

    /// While a client waits for the map's cell to converge, the epoch advances. In the new one
    /// another client READs a word that names a bootstrap record, and can reach it as long as
    /// operations of that epoch run.
    #[test]
    fn seeds_are_retired_in_the_epoch_in_which_the_map_was_quiet() {
        let (group, heap) = alone();
        block_on(heap.allocate(&group, heap.plain(16), Purpose::Insert)).expect("memory");
        heap.seeds.set(Some(raise(&group, heap.geometry.seed_counter(0), SEED_RECORDS)));
        heap.wanted.set(Some((heap.records(), Purpose::Replace)));
        // Each read of the epoch advances it.
        let epoch = Cell::new(5);
        let board = Says(|| epoch.replace(epoch.get() + 1));
        block_on(heap.recall_seeds(&group, &board)).expect("noted in epoch 6");
        epoch.set(8);
        block_on(heap.recall_seeds(&group, &board)).expect("a quiet map");
        assert_eq!(heap.due_seeds(10), None, "somebody who began in epoch 9 is at work");
        assert!(heap.due_seeds(11).is_some_and(|seeds| seeds.len() as u64 == SEED_RECORDS - 1));
    }

    /// A client runs two operations at a time. One is about to change the map, with a bootstrap
    /// record in hand. The other one, out of memory, notes the records in use. The change is lost,
    /// and its record is kept for the next one.
    #[test]
    fn a_seed_that_was_kept_meanwhile_is_not_taken_from_who_uses_it() {
        let (group, heap) = alone();
        block_on(heap.allocate(&group, heap.plain(16), Purpose::Insert)).expect("memory");
        heap.seeds.set(Some(raise(&group, heap.geometry.seed_counter(0), SEED_RECORDS)));
        heap.wanted.set(Some((heap.records(), Purpose::Replace)));
        let epoch = Cell::new(5);
        let board = Says(|| epoch.get());
        // Bootstrap records are reclaimed, as a record for the map was missing.
        block_on(heap.recall_seeds(&group, &board)).expect("noted in epoch 5");
        epoch.set(7);
        block_on(heap.recall_seeds(&group, &board)).expect("retired in epoch 7");
        epoch.set(9);
        block_on(heap.reset_due(&group, (9, 9, NodeSet::EMPTY), |_| {})).expect("one node");
        while heap.seeds_back.borrow().len() > 1 {
            let change = heap.change_map(&group, Purpose::Replace, |_| true, |_| Ok(()));
            assert_eq!(block_on(change), Ok(true));
        }
        // While the first operation has a record in hand, the second one reclaims.
        let full = |_: &mut [u32]| {
            block_on(heap.recall_seeds(&group, &board)).expect("noted in epoch 9");
            Err(heap.full(heap.plain(16), Purpose::Insert))
        };
        let change = block_on(heap.change_map(&group, Purpose::Replace, |_| true, full));
        assert!(matches!(change, Err(Error::Full(_))), "{change:?}: the record is kept");
        let kept = heap.spare.get().expect("kept");
        // Two epochs later.
        epoch.set(11);
        block_on(heap.recall_seeds(&group, &board)).expect("retired in epoch 11");
        let change = heap.change_map(&group, Purpose::Replace, |_| true, |_| Ok(()));
        assert_eq!(block_on(change), Ok(true));
        assert_eq!(block_on(heap.quiet_record(&group)), Ok(kept));
        let due = heap.due_seeds(13).unwrap_or_default();
        assert!(!due.contains(&kept), "{due:?}: {kept:?} is the map's");
    }
}
