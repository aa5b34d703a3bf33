//! When a client looks whether its pool is there.
//!
//! Who removes a pool's files by hand (`rm -rf`) tells nobody: clients keep what they have mapped, and would go on to
//! acknowledge writes that nobody can find. Only the kernel knows, and to ask it each time would cost more than
//! an operation. So a client counts its operations, reads the clock once in [`OPERATIONS`] of them (each time, if
//! these took long), and asks the kernel once in [`EVERY`] nanoseconds.
//!
//! **Invariant:** of the operations that begin more than [`EVERY`] after the client asked last, [`OPERATIONS`] at most
//! go by before it asks again.

use std::cell::Cell;

/// Operations from one look at the clock to the next.
const OPERATIONS: u32 = 64;
/// Nanoseconds in which a client that has much to do does so many. Whoever takes longer reads the clock each
/// time: it has time for that.
const BRISK: u64 = 1_000_000;
/// Nanoseconds from one question to the next: half of what a client may go on at most.
const EVERY: u64 = 500_000_000;

/// One client's count.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Operations until the next look at the clock.
    left: Cell<u32>,
    /// When the clock was read last.
    read: Cell<u64>,
    /// When the kernel was asked last.
    asked: Cell<u64>,
}

impl Watch {
    /// Of a client that has just looked.
    pub(crate) fn new(now: u64) -> Self {
        Self { left: Cell::new(OPERATIONS), read: Cell::new(now), asked: Cell::new(now) }
    }

    /// An operation begins. Whether the clock is to be read.
    #[inline(always)]
    pub(crate) fn comes_up(&self) -> bool {
        let left = self.left.get().wrapping_sub(1);
        self.left.set(left);
        left == 0
    }

    /// The clock was read. Whether the kernel is to be asked.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let took = now.wrapping_sub(self.read.replace(now));
        self.left.set(if took < BRISK { OPERATIONS } else { 1 });
        // A clock that was set back is far ahead of itself: it is due.
        let due = now.wrapping_sub(self.asked.get()) >= EVERY;
        if due {
            self.asked.set(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many operations, one each `pace` nanoseconds from `since` on, begin until the kernel is asked, and when.
    fn asked(watch: &Watch, since: u64, pace: u64) -> (u64, u64) {
        (1..)
            .map(|operations| (operations, since + operations * pace))
            .find(|&(_, now)| watch.comes_up() && watch.is_due(now))
            .expect("it asks in the end")
    }

    #[test]
    fn it_asks_within_a_second_at_any_pace() {
        for pace in [100, 10_000, BRISK, 40_000_000, EVERY] {
            let watch = Watch::new(0);
            let mut since = 0;
            for round in 0..3 {
                let (operations, now) = asked(&watch, since, pace);
                let late = if round == 0 { u64::from(OPERATIONS) } else { 1 };
                let brisk = u64::from(OPERATIONS) * pace < BRISK;
                let bound = if brisk { EVERY + BRISK } else { EVERY + late * pace };
                assert!(now - since <= bound, "{pace}: {} after {operations}", now - since);
                assert!(now - since >= EVERY || round == 0, "{pace}: no more often than that");
                since = now;
            }
        }
    }

    /// It had much to do, and then little: what it does less of than it did is counted still.
    #[test]
    fn who_does_less_asks_after_so_many_operations() {
        let watch = Watch::new(0);
        for _ in 0..10 {
            assert!(!(watch.comes_up() && watch.is_due(100)));
        }
        let (operations, _) = asked(&watch, 100, 10 * EVERY);
        assert!(operations <= u64::from(OPERATIONS), "{operations}");
        assert_eq!(asked(&watch, 1 << 40, 10 * EVERY).0, 1);
    }

    #[test]
    fn a_clock_that_was_set_back_is_asked_about_at_once() {
        let watch = Watch::new(1 << 50);
        assert!(watch.is_due(5));
        assert!(!watch.is_due(6));
    }
}
