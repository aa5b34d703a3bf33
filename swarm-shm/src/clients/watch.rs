//! When a client checks whether its pool still exists.
//!
//! A person who removes a pool's files by hand (`rm -rf`) notifies no client: clients keep their
//! mappings, and would go on to acknowledge writes that no other process can find (S8). Only the
//! kernel knows, and asking it each time would cost more than an operation. So a client counts its
//! operations, reads the clock once in 64 of a kind (each time, if these took long), and asks the
//! kernel once in [`EVERY`] nanoseconds.
//!
//! **Invariant:** of the operations of a kind that begin more than [`EVERY`] after the client last
//! asked, 64 at most begin before it asks again.

use std::cell::Cell;

/// Nanoseconds within which a busy client does 64 operations. A client that takes longer reads the
/// clock each time: it can afford to.
const BRISK: u64 = 1_000_000;
/// Nanoseconds from one question to the next: half of the time that a client may go on after its
/// pool is gone.
const EVERY: u64 = 500_000_000;

/// When one client last checked.
#[derive(Debug)]
pub(crate) struct Watch {
    /// When the clock was last read.
    read: Cell<u64>,
    /// When the kernel was last asked.
    asked: Cell<u64>,
}

impl Watch {
    /// Returns the state of a client that has just checked.
    pub(crate) fn new(now: u64) -> Self {
        Self { read: Cell::new(now), asked: Cell::new(now) }
    }

    /// Records a reading of the clock, after one operation or 64. Returns whether to ask the
    /// kernel, and whether 64 operations may pass before the next reading.
    pub(crate) fn look(&self, now: u64) -> (bool, bool) {
        let took = now.wrapping_sub(self.read.replace(now));
        // A clock that was set back yields a large difference: it is due.
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

    /// Operations of a busy client between two readings.
    const OPERATIONS: u64 = 64;

    /// Returns how many operations, one each `pace` nanoseconds from `since` on, begin until the
    /// kernel is asked, and when.
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
