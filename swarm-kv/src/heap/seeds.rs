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
use swarm_core::fabric::{Board, Fabric};
use swarm_core::layout::SEED_RECORDS;
use swarm_core::quorum::Group;
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
        board: &impl Board,
    ) -> Result<(), Error> {
        let (epoch, noted) = (board.epoch(), self.seeds_noted.take());
        match noted {
            Some((since, seeds)) if since + GRACE <= epoch => {
                let record = self.quiet_record(group).await?;
                // The epoch may have moved on meanwhile, and who began in the new one may have come across
                // a seed before the cell was quiet.
                self.retire_seeds(seeds, record, board.latest());
            }
            Some(early) => *self.seeds_noted.borrow_mut() = Some(early),
            None if self.wanted.get().is_none_or(|(kind, _)| kind != self.records()) => {}
            None => {
                let used = self.used_seeds();
                if !used.is_empty() {
                    *self.seeds_noted.borrow_mut() = Some((board.latest(), used));
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

    /// A record is kept for the next claim. Whoever had it in hand when seeds were noted was at work then, and
    /// so is over, or has kept it, before noted ones are retired.
    pub(super) fn notes_not(&self, record: Pointer) {
        if let Some((_, seeds)) = &mut *self.seeds_noted.borrow_mut() {
            seeds.retain(|seed| *seed != record);
        }
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::node::NodeSet;

    use super::super::Need;
    use super::super::tests::{Says, alone, raise};
    use super::*;
    use crate::blocking::block_on;

    /// While a client waits for the map's cell to be quiet, the epoch moves on, and in the new one somebody
    /// READs a word that names a seed: that one holds the seed as long as who begins in that epoch.
    #[test]
    fn seeds_are_retired_in_the_epoch_in_which_the_map_was_quiet() {
        let (group, heap) = alone();
        block_on(heap.allocate(&group, heap.plain(16), Need::More)).expect("memory");
        heap.seeds.set(Some(raise(&group, heap.geometry.seed_counter(0), SEED_RECORDS)));
        heap.wanted.set(Some((heap.records(), Need::Instead)));
        // Each time that somebody looks, it is another epoch.
        let epoch = Cell::new(5);
        let board = Says(|| epoch.replace(epoch.get() + 1));
        block_on(heap.recall_seeds(&group, &board)).expect("noted in epoch 6");
        epoch.set(8);
        block_on(heap.recall_seeds(&group, &board)).expect("a quiet map");
        assert_eq!(heap.due_seeds(10), None, "somebody who began in epoch 9 is at work");
        assert!(heap.due_seeds(11).is_some_and(|seeds| seeds.len() as u64 == SEED_RECORDS - 1));
    }

    /// Two operations of one client at a time. One is about to change the map, with a seed in hand, when the
    /// other, which looks for memory, notes the seeds that are in use. The change is lost, and the seed is kept
    /// for the next one.
    #[test]
    fn a_seed_that_was_kept_meanwhile_is_not_taken_from_who_uses_it() {
        let (group, heap) = alone();
        block_on(heap.allocate(&group, heap.plain(16), Need::More)).expect("memory");
        heap.seeds.set(Some(raise(&group, heap.geometry.seed_counter(0), SEED_RECORDS)));
        heap.wanted.set(Some((heap.records(), Need::Instead)));
        let epoch = Cell::new(5);
        let board = Says(|| epoch.get());
        // Seeds come back, as there was no record for the map.
        block_on(heap.recall_seeds(&group, &board)).expect("noted in epoch 5");
        epoch.set(7);
        block_on(heap.recall_seeds(&group, &board)).expect("retired in epoch 7");
        epoch.set(9);
        block_on(heap.reset_due(&group, (9, 9, NodeSet::EMPTY), |_| {})).expect("one node");
        while heap.seeds_back.borrow().len() > 1 {
            let change = heap.change_map(&group, Need::Instead, |_| true, |_| Ok(()));
            assert_eq!(block_on(change), Ok(true));
        }
        // While the first operation has a seed in hand, the second one looks for memory.
        let full = |_: &mut [u32]| {
            block_on(heap.recall_seeds(&group, &board)).expect("noted in epoch 9");
            Err(heap.full(heap.plain(16), Need::More))
        };
        let change = block_on(heap.change_map(&group, Need::Instead, |_| true, full));
        assert!(matches!(change, Err(Error::Full(_))), "{change:?}: the record is kept");
        let kept = heap.spare.get().expect("kept");
        // Two epochs later.
        epoch.set(11);
        block_on(heap.recall_seeds(&group, &board)).expect("retired in epoch 11");
        let change = heap.change_map(&group, Need::Instead, |_| true, |_| Ok(()));
        assert_eq!(block_on(change), Ok(true));
        assert_eq!(block_on(heap.quiet_record(&group)), Ok(kept));
        let due = heap.due_seeds(13).unwrap_or_default();
        assert!(!due.contains(&kept), "{due:?}: {kept:?} is the map's");
    }
}
