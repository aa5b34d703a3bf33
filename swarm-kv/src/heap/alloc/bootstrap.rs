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
use swarm_core::layout::BOOTSTRAP_RECORDS;
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
    pub(crate) async fn recall_bootstrap_records<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
    ) -> Result<(), Error> {
        let (epoch, noted) = (domain.epoch(), self.bootstrap_noted.take());
        match noted {
            Some((since, bootstrap_records)) if since + GRACE <= epoch => {
                let record = self.quiet_record(group).await?;
                // E8: the epoch after convergence counts. It may have advanced meanwhile, and an
                // operation that began in the new one may have reached such a record before the
                // cell converged.
                self.retire_bootstrap_records(bootstrap_records, record, domain.epoch_bound());
            }
            Some(early) => *self.bootstrap_noted.borrow_mut() = Some(early),
            None if self.wanted.get().is_none_or(|(kind, _)| kind != self.records()) => {}
            None => {
                let used = self.used_bootstrap_records();
                if !used.is_empty() {
                    *self.bootstrap_noted.borrow_mut() = Some((domain.epoch_bound(), used));
                }
            }
        }
        Ok(())
    }

    /// Returns the bootstrap records that were used and are not free, if none is left and none is
    /// being reclaimed.
    fn used_bootstrap_records(&self) -> Vec<Pointer> {
        let spare = self.spare.get();
        let back = self.bootstrap_free.borrow();
        if self.bootstrap_records.get().map(HighWater::objects) != Some(BOOTSTRAP_RECORDS)
            || self.bootstrap_retired.borrow().is_some()
        {
            return Vec::new();
        }
        let bootstrap_records =
            (0..BOOTSTRAP_RECORDS).map(|index| self.geometry.bootstrap_record(self.slot, index));
        bootstrap_records
            .filter(|bootstrap_record| {
                !back.contains(bootstrap_record) && spare != Some(*bootstrap_record)
            })
            .collect()
    }

    /// Removes a record that is kept for the next claim from the noted ones. An operation that held
    /// it when they were noted was pinned then, so before they are retired it has ended, or has
    /// kept the record.
    pub(in crate::heap) fn notes_not(&self, record: Pointer) {
        if let Some((_, bootstrap_records)) = &mut *self.bootstrap_noted.borrow_mut() {
            bootstrap_records.retain(|bootstrap_record| *bootstrap_record != record);
        }
    }

    /// Retires the noted records, except the map's record.
    fn retire_bootstrap_records(
        &self,
        mut bootstrap_records: Vec<Pointer>,
        record: Pointer,
        epoch: u64,
    ) {
        bootstrap_records.retain(|bootstrap_record| *bootstrap_record != record);
        if !bootstrap_records.is_empty() {
            *self.bootstrap_retired.borrow_mut() = Some((epoch, bootstrap_records));
        }
    }

    /// Takes the retired records that no operation can reach.
    pub(in crate::heap) fn due_bootstrap_records(&self, epoch: u64) -> Option<Vec<Pointer>> {
        let retired = &mut *self.bootstrap_retired.borrow_mut();
        retired
            .take_if(|(since, _)| *since + GRACE <= epoch)
            .map(|(_, bootstrap_records)| bootstrap_records)
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
    fn bootstrap_records_are_retired_in_the_epoch_in_which_the_map_had_converged() {
        let (group, heap) = alone();
        block_on(heap.allocate(&group, heap.plain(16), Purpose::Insert)).expect("memory");
        heap.bootstrap_records.set(Some(raise(
            &group,
            heap.geometry.bootstrap_counter(0),
            BOOTSTRAP_RECORDS,
        )));
        heap.wanted.set(Some((heap.records(), Purpose::Replace)));
        // Each read of the epoch advances it.
        let epoch = Cell::new(5);
        let domain = Says(|| epoch.replace(epoch.get() + 1));
        block_on(heap.recall_bootstrap_records(&group, &domain)).expect("noted in epoch 6");
        epoch.set(8);
        block_on(heap.recall_bootstrap_records(&group, &domain)).expect("a quiet map");
        assert_eq!(
            heap.due_bootstrap_records(10),
            None,
            "a client that began in epoch 9 is at work"
        );
        assert!(heap.due_bootstrap_records(11).is_some_and(|bootstrap_records| {
            bootstrap_records.len() as u64 == BOOTSTRAP_RECORDS - 1
        }));
    }

    /// A client runs two operations at a time. One is about to change the map, with a bootstrap
    /// record in hand. The other one, out of memory, notes the records in use. The change is lost,
    /// and its record is kept for the next one.
    #[test]
    fn a_bootstrap_record_that_was_kept_meanwhile_is_not_taken_from_its_user() {
        let (group, heap) = alone();
        block_on(heap.allocate(&group, heap.plain(16), Purpose::Insert)).expect("memory");
        heap.bootstrap_records.set(Some(raise(
            &group,
            heap.geometry.bootstrap_counter(0),
            BOOTSTRAP_RECORDS,
        )));
        heap.wanted.set(Some((heap.records(), Purpose::Replace)));
        let epoch = Cell::new(5);
        let domain = Says(|| epoch.get());
        // Bootstrap records are reclaimed, as a record for the map was missing.
        block_on(heap.recall_bootstrap_records(&group, &domain)).expect("noted in epoch 5");
        epoch.set(7);
        block_on(heap.recall_bootstrap_records(&group, &domain)).expect("retired in epoch 7");
        epoch.set(9);
        block_on(heap.reset_due(&group, (9, 9, NodeSet::EMPTY), |_| {})).expect("one node");
        while heap.bootstrap_free.borrow().len() > 1 {
            let change = heap.change_map(&group, Purpose::Replace, |_| true, |_| Ok(()));
            assert_eq!(block_on(change), Ok(true));
        }
        // While the first operation has a record in hand, the second one reclaims.
        let full = |_: &mut [u32]| {
            block_on(heap.recall_bootstrap_records(&group, &domain)).expect("noted in epoch 9");
            Err(heap.full(heap.plain(16), Purpose::Insert))
        };
        let change = block_on(heap.change_map(&group, Purpose::Replace, |_| true, full));
        assert!(matches!(change, Err(Error::Full(_))), "{change:?}: the record is kept");
        let kept = heap.spare.get().expect("kept");
        // Two epochs later.
        epoch.set(11);
        block_on(heap.recall_bootstrap_records(&group, &domain)).expect("retired in epoch 11");
        let change = heap.change_map(&group, Purpose::Replace, |_| true, |_| Ok(()));
        assert_eq!(block_on(change), Ok(true));
        assert_eq!(block_on(heap.quiet_record(&group)), Ok(kept));
        let due = heap.due_bootstrap_records(13).unwrap_or_default();
        assert!(!due.contains(&kept), "{due:?}: {kept:?} is the map's");
    }
}
