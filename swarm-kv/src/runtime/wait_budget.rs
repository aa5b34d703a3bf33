//! Bounds the time for which an operation without memory waits for clients that block reclamation.
//!
//! A client that is stopped while pinned is not waited for. But a client that only lacks a
//! processor looks the same; by the clock alone, on a busy machine, it does so for seconds. So what
//! counts is *how long this client itself ran while the others made no progress*. Between two looks
//! at most [`LONGEST_LOOK`] counts, and the count starts over when the epoch has advanced, as then
//! the client that blocked it has run.

/// How much of the time between two looks counts, in nanoseconds, at most: more than a look takes,
/// and less than a client with a processor leaves to the others.
pub(crate) const LONGEST_LOOK: u64 = 1_000_000;

/// A wait takes at most this many times its patience: other clients' progress alone is no promise
/// of memory.
const MOST: u64 = 8;

/// A wait for other clients' operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitBudget {
    /// Nanoseconds for which the others may make no progress.
    patience: u64,
    /// What is left of that.
    left: u64,
    /// What is left of the wait as a whole.
    whole: u64,
    /// When the last look was, and the epoch then.
    looked: u64,
    epoch: u64,
}

impl WaitBudget {
    /// Starts a wait at `now`, with `patience` nanoseconds for others that make no progress.
    pub(crate) fn new(patience: u64, now: u64, epoch: u64) -> Self {
        let whole = patience.saturating_mul(MOST);
        Self { patience, left: patience, whole, looked: now, epoch }
    }

    /// Whether to wait any longer, as of now.
    pub(crate) fn goes_on(&mut self, now: u64, epoch: u64) -> bool {
        let since = now.saturating_sub(self.looked).min(LONGEST_LOOK);
        self.left =
            if epoch == self.epoch { self.left.saturating_sub(since) } else { self.patience };
        self.whole = self.whole.saturating_sub(since);
        (self.looked, self.epoch) = (now, epoch);
        !self.is_over()
    }

    /// Whether the others have made no progress for too long: otherwise the wait as a whole was too
    /// long, or is not over.
    pub(crate) fn is_in_vain(&self) -> bool {
        self.left == 0
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
    fn a_client_without_a_processor_is_not_held_to_be_stopped() {
        const HOUR: u64 = 3_600_000_000_000;
        let mut stall = WaitBudget::new(PATIENCE, 0, 7);
        // This client had no processor either.
        assert!((1..5).all(|look| stall.goes_on(look * HOUR, 7)));
        assert!(!stall.goes_on(5 * HOUR, 7));
        assert!(stall.is_over() && stall.is_in_vain());
    }

    #[test]
    fn a_client_that_went_on_is_waited_for_anew_but_not_for_ever() {
        let mut stall = WaitBudget::new(PATIENCE, 0, 7);
        let went_on =
            (1..).take_while(|&look| stall.goes_on(look * LONGEST_LOOK, look / 4)).count();
        assert_eq!(went_on as u64, MOST * 5 - 1);
        assert!(stall.is_over() && !stall.is_in_vain());
    }
}
