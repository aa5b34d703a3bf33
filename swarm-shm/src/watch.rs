//! When a client looks whether its pool is there.
//!
//! Who removes a pool's files by hand (`rm -rf`) tells nobody: clients keep what they have mapped, and would go on to
//! acknowledge writes that nobody can find. Only the kernel knows, and to ask it each time would cost more than
//! an operation. So a client counts its operations, reads the clock once in 64 of a kind (each time, if
//! these took long), and asks the kernel once in [`EVERY`] nanoseconds.
//!
//! **Invariant:** of the operations of a kind that begin more than [`EVERY`] after the client asked last, 64 at most
//! go by before it asks again.

use std::cell::Cell;

/// Nanoseconds in which a client that has much to do does 64 operations. Whoever takes longer reads the clock each
/// time: it has time for that.
const BRISK: u64 = 1_000_000;
/// Nanoseconds from one question to the next: half of what a client may go on at most.
const EVERY: u64 = 500_000_000;

/// When one client has looked.
#[derive(Debug)]
pub(crate) struct Watch {
    /// When the clock was read last.
    read: Cell<u64>,
    /// When the kernel was asked last.
    asked: Cell<u64>,
}

impl Watch {
    /// Of a client that has just looked.
    pub(crate) fn new(now: u64) -> Self {
        Self { read: Cell::new(now), asked: Cell::new(now) }
    }

    /// The clock was read, after one operation or 64. Whether the kernel is to be asked, and whether 64 may pass before the
    /// next look.
    pub(crate) fn look(&self, now: u64) -> (bool, bool) {
        let took = now.wrapping_sub(self.read.replace(now));
        // A clock that was set back is far ahead of itself: it is due.
        let is_due = now.wrapping_sub(self.asked.get()) >= EVERY;
        if is_due {
            self.asked.set(now);
        }
        (is_due, took < BRISK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations between two looks of who has much to do.
    const OPERATIONS: u64 = 64;

    /// How many operations, one each `pace` nanoseconds from `since` on, begin until the kernel is asked, and when.
    fn asked(watch: &Watch, since: u64, pace: u64) -> (u64, u64) {
        let mut next = OPERATIONS;
        for operations in 1.. {
            let now = since + operations * pace;
            if operations < next {
                continue;
            }
            let (is_due, is_brisk) = watch.look(now);
            if is_due {
                return (operations, now);
            }
            next = operations + if is_brisk { OPERATIONS } else { 1 };
        }
        unreachable!("it asks in the end")
    }

    #[test]
    fn it_asks_within_a_second_at_any_pace() {
        for pace in [100, 10_000, BRISK, 7_000_000] {
            let watch = Watch::new(0);
            let mut since = 0;
            for _ in 0..3 {
                let (operations, now) = asked(&watch, since, pace);
                let bound = EVERY + (OPERATIONS * pace).max(BRISK);
                assert!(now - since <= bound, "{pace}: {} after {operations}", now - since);
                assert!(now - since >= EVERY, "{pace}: no more often than that");
                since = now;
            }
        }
    }

    #[test]
    fn a_clock_that_was_set_back_is_asked_about_at_once() {
        let watch = Watch::new(1 << 50);
        assert!(watch.look(5).0);
        assert!(!watch.look(6).0);
    }
}
