//! Epochs: when memory that nobody can come across any more may be used again.
//!
//! What was *retired* cannot be met by an operation that begins afterwards; operations that were
//! under way may still hold a pointer to it, and so may chains that they posted. Everything rests on
//! this: *the epoch moves on only when every operation that is under way began in it*. So when it
//! has moved on twice after something was retired, every operation and every chain that could hold
//! it is over.
//!
//! Clients say on a [`Board`], which they share, in which epoch the oldest of their operations
//! began. Being idle is visible there too: who does nothing holds up nobody.
//!
//! What clients remember from one operation to the next is no operation's. Of registers' places it takes a
//! new *generation* besides, which they meet when an operation begins, and then forget. A bucket's record
//! goes by the epoch alone: an operation may use one that was seen in the epoch that it is *behind* the
//! operation's mark on the board. That one has not moved on twice since, and does not as long as the mark is
//! there. An epoch that was read in front of the mark may be long over by then.

use core::cell::Cell;

use crate::fabric::{Board, Fabric};

/// Epochs that must begin after something was retired before it is used again.
pub const GRACE: u64 = 2;

/// Operations that began in one epoch, or in a few that follow each other.
#[derive(Default, Debug)]
struct Visits {
    /// The earliest of those epochs; 0 if there are no such operations.
    epoch: Cell<u64>,
    /// How many are under way.
    count: Cell<u32>,
    /// Their chains are among those that were posted before this one.
    before: Cell<u64>,
}

/// One client's operations under way.
///
/// Two groups do: the oldest one's epoch is on the board; those that begin in later epochs are
/// together, under the first of theirs, until it is their turn.
#[derive(Debug)]
pub struct Presence<B: ?Sized> {
    groups: [Visits; 2],
    /// Whether the second group is the oldest one.
    swapped: Cell<bool>,
    board: B,
}

/// An operation under way, for [`Presence::leave`].
#[derive(Debug)]
#[must_use = "an operation that never ends holds up every epoch"]
pub struct Visit(bool);

impl<B> Presence<B> {
    /// A client that does nothing yet.
    pub fn new(board: B) -> Self {
        Self { groups: Default::default(), swapped: Cell::new(false), board }
    }
}

impl<B: Board + ?Sized> Presence<B> {
    /// The board.
    pub fn board(&self) -> &B {
        &self.board
    }

    #[inline(always)]
    fn group(&self, second: bool) -> &Visits {
        &self.groups[usize::from(second)]
    }

    /// An operation begins.
    #[inline]
    pub fn enter(&self) -> Visit {
        let which = self.swapped.get();
        let group = self.group(which);
        if group.epoch.get() != 0 {
            return self.enter_beside();
        }
        group.epoch.set(self.board.enter());
        group.count.set(1);
        Visit(which)
    }

    /// The same while something is under way already.
    fn enter_beside(&self) -> Visit {
        let (oldest, epoch) = (self.swapped.get(), self.board.epoch());
        let which = if epoch == self.group(oldest).epoch.get() { oldest } else { !oldest };
        let group = self.group(which);
        // The group's first epoch stands for it: an earlier one only waits for longer.
        if group.epoch.get() == 0 {
            group.epoch.set(self.board.enter_beside());
        }
        group.count.set(group.count.get() + 1);
        Visit(which)
    }

    /// An operation is over, or was dropped. Its chains may still be on their way in `fabric`.
    #[inline]
    pub fn leave<F: Fabric>(&self, Visit(which): Visit, fabric: &F) {
        let group = self.group(which);
        group.count.set(group.count.get() - 1);
        if !fabric.is_near() {
            group.before.set(fabric.posted());
        }
        self.settle(fabric);
    }

    /// Looks whether the oldest operations' chains are over, if the operations are.
    #[inline]
    pub fn settle<F: Fabric>(&self, fabric: &F) {
        let oldest = self.swapped.get();
        if !is_over(self.group(oldest), fabric) {
            return;
        }
        self.group(oldest).epoch.set(0);
        let next = self.group(!oldest);
        if next.epoch.get() == 0 {
            self.board.leave();
        } else {
            self.go_on(next, fabric);
        }
    }

    /// Those that began later are the oldest now.
    #[cold]
    fn go_on<F: Fabric>(&self, next: &Visits, fabric: &F) {
        self.swapped.set(!self.swapped.get());
        if is_over(next, fabric) {
            next.epoch.set(0);
            self.board.leave();
        } else {
            self.board.remain(next.epoch.get());
        }
    }
}

/// Whether there are such operations, and they and their chains are over.
#[inline(always)]
fn is_over<F: Fabric>(group: &Visits, fabric: &F) -> bool {
    group.epoch.get() != 0
        && group.count.get() == 0
        && (fabric.is_near() || fabric.oldest_under_way() >= group.before.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::{NoBoard, NodeDown, Verb};
    use crate::node::{Address, NodeId};
    use core::future::{Ready, ready};
    use std::vec::Vec;

    /// One client's place on a board that nobody else is on.
    #[derive(Default)]
    struct Alone {
        epoch: Cell<u64>,
        since: Cell<u64>,
    }

    impl Board for Alone {
        fn enter(&self) -> u64 {
            self.since.set(self.epoch());
            self.epoch()
        }
        fn remain(&self, epoch: u64) {
            self.since.set(epoch);
        }
        fn leave(&self) {
            self.since.set(0);
        }
        fn epoch(&self) -> u64 {
            self.epoch.get() + 1
        }
        fn generation(&self) -> u64 {
            0
        }
        fn renew(&self) {}
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn advance(&self) -> u64 {
            if [0, self.epoch()].contains(&self.since.get()) {
                self.epoch.set(self.epoch());
            }
            self.epoch()
        }
    }

    /// A far fabric of which only the numbers of chains matter.
    #[derive(Default)]
    struct Far {
        posted: Cell<u64>,
        over: Cell<u64>,
    }

    impl Fabric for Far {
        type Board = NoBoard;
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
        let (presence, far) = (Presence::new(Alone::default()), Far::default());
        let visit = presence.enter();
        assert_eq!(presence.board().advance(), 2, "it began in this epoch");
        assert_eq!(presence.board().advance(), 2, "it began in the one before");
        presence.leave(visit, &far);
        assert_eq!(presence.board().advance(), 3);
        assert_eq!(presence.board().advance(), 4, "nobody is there");
    }

    #[test]
    fn operations_that_overlap_do_not_hold_each_other_up_for_ever() {
        let (presence, far) = (Presence::new(Alone::default()), Far::default());
        let mut last = presence.enter();
        for _ in 0..10 {
            let before = presence.board().advance();
            let next = presence.enter();
            presence.leave(last, &far);
            assert_eq!(presence.board().advance(), before + 1);
            last = next;
        }
        presence.leave(last, &far);
        assert_eq!(presence.board().since.get(), 0);
    }

    #[test]
    fn chains_count_until_they_are_over_even_if_nobody_waits_for_them() {
        let (presence, far) = (Presence::new(Alone::default()), Far::default());
        let visit = presence.enter();
        post(&far);
        presence.leave(visit, &far);
        presence.board().advance();
        assert_eq!(presence.board().advance(), 2, "its chain may still take effect");
        far.over.set(1);
        presence.settle(&far);
        assert_eq!(presence.board().advance(), 3);
    }

    #[test]
    fn a_later_operation_whose_chains_are_over_leaves_with_the_first() {
        let (presence, far) = (Presence::new(Alone::default()), Far::default());
        let first = presence.enter();
        presence.board().advance();
        let second = presence.enter();
        presence.leave(second, &far);
        assert_eq!(presence.board().since.get(), 1);
        presence.leave(first, &far);
        assert_eq!(presence.board().since.get(), 0);
    }
}
