//! How long an operation that lacks memory waits for others, which hold it back.
//!
//! A client that is stopped in the middle of an operation is not waited for. But one that only has no processor
//! looks the same, and by the clock alone, on a busy machine, it looks so for seconds. So what counts is
//! *how long this client itself went on while nothing was seen of the others*: between two looks no more than
//! [`LONGEST_LOOK`], and from the beginning whenever the epoch has moved on, as then whoever held it up went on.

/// So much of the time between two looks counts, at most: more than a look takes, and less than who gets a
/// processor leaves to the others. Nanoseconds.
pub(crate) const LONGEST_LOOK: u64 = 1_000_000;

/// So many times its patience a wait takes at most: others' progress alone is no promise of memory.
const MOST: u64 = 8;

/// A wait for other clients' operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    /// Nanoseconds for which the others may do nothing.
    patience: u64,
    /// What is left of that.
    left: u64,
    /// What is left of the wait as a whole.
    whole: u64,
    /// The last look: when it was, and the epoch then.
    looked: u64,
    epoch: u64,
}

impl Stall {
    /// Waits from `now` on, `patience` nanoseconds for others that do nothing.
    pub(crate) fn new(patience: u64, now: u64, epoch: u64) -> Self {
        let whole = patience.saturating_mul(MOST);
        Self { patience, left: patience, whole, looked: now, epoch }
    }

    /// Whether to wait any longer, as seen now.
    pub(crate) fn goes_on(&mut self, now: u64, epoch: u64) -> bool {
        let since = now.saturating_sub(self.looked).min(LONGEST_LOOK);
        self.left =
            if epoch == self.epoch { self.left.saturating_sub(since) } else { self.patience };
        self.whole = self.whole.saturating_sub(since);
        (self.looked, self.epoch) = (now, epoch);
        !self.is_over()
    }

    /// Whether it has taken too long.
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0 || self.whole == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: u64 = 5 * LONGEST_LOOK;

    #[test]
    fn who_had_no_processor_is_not_held_to_be_stopped() {
        const HOUR: u64 = 3_600_000_000_000;
        let mut stall = Stall::new(PATIENCE, 0, 7);
        // This client had none either.
        assert!((1..5).all(|look| stall.goes_on(look * HOUR, 7)));
        assert!(!stall.goes_on(5 * HOUR, 7));
        assert!(stall.is_over());
    }

    #[test]
    fn who_went_on_is_waited_for_anew_but_not_for_ever() {
        let mut stall = Stall::new(PATIENCE, 0, 7);
        let went_on =
            (1..).take_while(|&look| stall.goes_on(look * LONGEST_LOOK, look / 4)).count();
        assert_eq!(went_on as u64, MOST * 5 - 1);
    }
}
