//! How often who waits looks: soon at first, and at most [`LONGEST`] apart.

use std::time::Duration;

/// The pause before the second look. Each pause is twice as long as the one before.
const FIRST: Duration = Duration::from_micros(20);
/// The longest pause: so soon a waiter notices that it is its turn, or that a holder is dead.
pub(crate) const LONGEST: Duration = Duration::from_millis(5);

/// The pauses of one wait.
pub(crate) struct Pace(Duration);

impl Pace {
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    /// Returns how long to pause before the next look, within what is left of the wait.
    pub(crate) fn next(&mut self, left: Option<Duration>) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        left.map_or(pause, |left| pause.min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_at_most_five_milliseconds_apart() {
        let mut pace = Pace::new();
        let pauses: Vec<_> = (0..20).map(|_| pace.next(None)).collect();
        assert_eq!((pauses[0], pauses[1], pauses[19]), (FIRST, 2 * FIRST, LONGEST));
        assert!(pauses.is_sorted());
        assert_eq!(pace.next(Some(FIRST)), FIRST, "what is left of the wait");
    }
}
