//! Looking at a key again and again until there is something, and sleeping in between.

use std::future::Future;
use std::time::Duration;

use crate::client::waiting::Prepared;

/// The pauses between the looks of one wait: each is twice as long as the one before, up to a longest one.
pub(crate) struct Pauses {
    next: Duration,
    longest: Duration,
}

impl Pauses {
    /// Those that begin with the first, and end with the longest.
    pub(crate) fn new([first, longest]: [Duration; 2]) -> Self {
        Self { next: first, longest }
    }

    /// Returns how long to pause before the next look, within what is left of the wait.
    pub(crate) fn next(&mut self, left: Option<Duration>) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(self.longest);
        left.map_or(pause, |left| pause.min(left))
    }
}

/// Looks until there is something, or nothing is `left` of the wait. `sleep` lets the time between two looks
/// pass: a change behind what was `prepared` ends it. Without that the first two looks follow each other.
pub(crate) async fn looks_until<T, E, S, L>(
    (mut prepared, prepare): (Option<Prepared>, impl Fn() -> Prepared),
    (mut pauses, left): (Pauses, impl Fn() -> Option<Duration>),
    sleep: impl Fn(Prepared, Duration) -> S,
    look: impl Fn() -> L,
) -> Result<Option<T>, E>
where
    S: Future<Output = ()>,
    L: Future<Output = Result<Option<T>, E>>,
{
    loop {
        let found = look().await?;
        let left = left();
        if found.is_some() || left == Some(Duration::ZERO) {
            return Ok(found);
        }
        if let Some(prepared) = prepared {
            // N2: for so long at most, as the client that was to wake it may be dead.
            sleep(prepared, pauses.next(left)).await;
        }
        // N1: before the next look.
        prepared = Some(prepare());
    }
}
