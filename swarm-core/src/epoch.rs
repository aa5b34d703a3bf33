//! Epoch-based reclamation: when unreachable memory may be reused.
//!
//! An operation that begins after an object was *retired* cannot reach it. Operations in progress
//! may still hold a pointer to it, and so may chains that they posted. **Invariant (E2):** the
//! epoch advances only when every operation in progress began in it. So once it has advanced twice
//! after an object was retired, every operation and every chain that could hold the object is over.
//!
//! Clients share an [`EpochDomain`], on which each marks the epoch in which its oldest operation
//! began. An idle client is unpinned there and blocks no other.
//!
//! What clients remember from one operation to the next belongs to no operation. Remembered
//! locations of registers also need a new *generation*: clients see it when an operation begins,
//! and discard them. A bucket's record depends on the epoch alone: an operation may use one that
//! was seen in the epoch that it reads *after* its mark on the epoch table. That epoch has not
//! advanced twice since, and does not while the mark is there. An epoch that was read before the
//! mark may be long over by then.

use core::cell::Cell;

use crate::fabric::{EpochDomain, Fabric};

/// Number of epochs that must begin after an object was retired before it is reused.
pub const GRACE: u64 = 2;

/// Operations that began in one epoch, or in several consecutive ones.
#[derive(Default, Debug)]
struct PinGroup {
    /// The earliest of those epochs; 0 if there are no such operations.
    epoch: Cell<u64>,
    /// Number of operations in progress.
    count: Cell<u32>,
    /// Their chains are among those that were posted before this one.
    before: Cell<u64>,
}

/// One client's operations in progress.
///
/// Two groups suffice. The epoch table shows the oldest group's epoch. Operations that begin in
/// later epochs are kept together, under the first of those epochs, until they are the oldest.
#[derive(Debug)]
pub struct Participant<B: ?Sized> {
    groups: [PinGroup; 2],
    /// Whether the second group is the oldest one.
    swapped: Cell<bool>,
    domain: B,
}

/// An operation in progress, for [`Participant::unpin`].
#[derive(Debug)]
#[must_use = "an operation that never ends holds up every epoch"]
pub struct Pinned(bool);

impl<B> Participant<B> {
    /// Makes a client without operations.
    pub fn new(domain: B) -> Self {
        Self { groups: Default::default(), swapped: Cell::new(false), domain }
    }
}

impl<B: EpochDomain + ?Sized> Participant<B> {
    /// Returns the epoch table.
    pub fn domain(&self) -> &B {
        &self.domain
    }

    #[inline(always)]
    fn group(&self, second: bool) -> &PinGroup {
        &self.groups[usize::from(second)]
    }

    /// Begins an operation.
    #[inline(always)]
    pub fn pin(&self) -> Pinned {
        let which = self.swapped.get();
        let group = self.group(which);
        if group.epoch.get() != 0 {
            return self.pin_beside();
        }
        group.epoch.set(self.domain.pin());
        group.count.set(1);
        Pinned(which)
    }

    /// Begins an operation while others are in progress.
    #[inline(never)]
    fn pin_beside(&self) -> Pinned {
        let (oldest, epoch) = (self.swapped.get(), self.domain.epoch());
        let which = if epoch == self.group(oldest).epoch.get() { oldest } else { !oldest };
        let group = self.group(which);
        // The group's first epoch stands for all of it: an earlier epoch only waits longer (E2).
        if group.epoch.get() == 0 {
            group.epoch.set(self.domain.pin_beside());
        }
        group.count.set(group.count.get() + 1);
        Pinned(which)
    }

    /// Ends an operation that is over or was dropped. Its chains may still be pending in `fabric`.
    #[inline]
    pub fn unpin<F: Fabric>(&self, Pinned(which): Pinned, fabric: &F) {
        let group = self.group(which);
        group.count.set(group.count.get() - 1);
        if !fabric.is_near() {
            group.before.set(fabric.posted());
        }
        self.unpin_completed(fabric);
    }

    /// Unpins the oldest operations, if they and their chains are over.
    #[inline]
    pub fn unpin_completed<F: Fabric>(&self, fabric: &F) {
        let oldest = self.swapped.get();
        if !is_over(self.group(oldest), fabric) {
            return;
        }
        self.group(oldest).epoch.set(0);
        let next = self.group(!oldest);
        if next.epoch.get() == 0 {
            self.domain.unpin();
        } else {
            self.go_on(next, fabric);
        }
    }

    /// Makes those that began later the oldest.
    #[cold]
    fn go_on<F: Fabric>(&self, next: &PinGroup, fabric: &F) {
        self.swapped.set(!self.swapped.get());
        if is_over(next, fabric) {
            next.epoch.set(0);
            self.domain.unpin();
        } else {
            self.domain.repin(next.epoch.get());
        }
    }
}

/// Returns whether there are such operations, and they and their chains are over (E2).
#[inline(always)]
fn is_over<F: Fabric>(group: &PinGroup, fabric: &F) -> bool {
    group.epoch.get() != 0
        && group.count.get() == 0
        && (fabric.is_near() || fabric.oldest_under_way() >= group.before.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{NoEpochs, NodeDown, Verb};
    use crate::node::{Address, NodeId};
    use core::future::{Ready, ready};
    use std::vec::Vec;

    /// One client of an epoch table that no other client uses.
    #[derive(Default)]
    struct Alone {
        epoch: Cell<u64>,
        since: Cell<u64>,
    }

    impl EpochDomain for Alone {
        fn pin(&self) -> u64 {
            self.since.set(self.epoch());
            self.epoch()
        }
        fn repin(&self, epoch: u64) {
            self.since.set(epoch);
        }
        fn unpin(&self) {
            self.since.set(0);
        }
        fn epoch(&self) -> u64 {
            self.epoch.get() + 1
        }
        fn generation(&self) -> u64 {
            0
        }
        fn new_generation(&self) {}
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn try_advance(&self) -> u64 {
            if [0, self.epoch()].contains(&self.since.get()) {
                self.epoch.set(self.epoch());
            }
            self.epoch()
        }
    }

    /// An asynchronous fabric of which only the numbers of chains matter.
    #[derive(Default)]
    struct Far {
        posted: Cell<u64>,
        over: Cell<u64>,
    }

    impl Fabric for Far {
        type EpochDomain = NoEpochs;
        type Reply<'f> = Vec<u64>;
        type Completion<'f> = Ready<Result<Vec<u64>, NodeDown>>;

        fn nodes(&self) -> usize {
            1
        }
        fn post<'f>(&'f self, _: NodeId, _: &[Verb<'_>]) -> Self::Completion<'f> {
            self.posted.set(self.posted.get() + 1);
            ready(Err(NodeDown))
        }
        fn posted(&self) -> u64 {
            self.posted.get()
        }
        fn oldest_under_way(&self) -> u64 {
            self.over.get()
        }
    }

    fn post(far: &Far) {
        drop(far.post(NodeId(0), &[Verb::Read { at: Address(0), words: 1 }]));
    }

    #[test]
    fn the_epoch_waits_for_the_operation_under_way_and_no_longer() {
        let (presence, far) = (Participant::new(Alone::default()), Far::default());
        let visit = presence.pin();
        assert_eq!(presence.domain().try_advance(), 2, "it began in this epoch");
        assert_eq!(presence.domain().try_advance(), 2, "it began in the one before");
        presence.unpin(visit, &far);
        assert_eq!(presence.domain().try_advance(), 3);
        assert_eq!(presence.domain().try_advance(), 4, "nobody is there");
    }

    #[test]
    fn operations_that_overlap_do_not_hold_each_other_up_for_ever() {
        let (presence, far) = (Participant::new(Alone::default()), Far::default());
        let mut last = presence.pin();
        for _ in 0..10 {
            let before = presence.domain().try_advance();
            let next = presence.pin();
            presence.unpin(last, &far);
            assert_eq!(presence.domain().try_advance(), before + 1);
            last = next;
        }
        presence.unpin(last, &far);
        assert_eq!(presence.domain().since.get(), 0);
    }

    #[test]
    fn chains_count_until_they_are_over_even_if_nobody_waits_for_them() {
        let (presence, far) = (Participant::new(Alone::default()), Far::default());
        let visit = presence.pin();
        post(&far);
        presence.unpin(visit, &far);
        presence.domain().try_advance();
        assert_eq!(presence.domain().try_advance(), 2, "its chain may still take effect");
        far.over.set(1);
        presence.unpin_completed(&far);
        assert_eq!(presence.domain().try_advance(), 3);
    }

    #[test]
    fn a_later_operation_whose_chains_are_over_leaves_with_the_first() {
        let (presence, far) = (Participant::new(Alone::default()), Far::default());
        let first = presence.pin();
        presence.domain().try_advance();
        let second = presence.pin();
        presence.unpin(second, &far);
        assert_eq!(presence.domain().since.get(), 1);
        presence.unpin(first, &far);
        assert_eq!(presence.domain().since.get(), 0);
    }
}
