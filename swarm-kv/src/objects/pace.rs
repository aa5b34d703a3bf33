//! How often who waits looks: soon at first, and at most [`LONGEST`] apart.

use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::waiting::Prepared;
use crate::objects::error::ObjectError;

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

/// Returns a time in nanoseconds.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Looks at the object of this name until there is something, for so long at most. `sleep` lets the time between two
    /// looks pass.
    pub(crate) async fn looks_until<T>(
        &self,
        name: &[u8],
        limit: Option<Duration>,
        sleep: impl AsyncFn(Prepared, Duration),
        look: impl AsyncFn() -> Result<Option<T>, ObjectError>,
    ) -> Result<Option<T>, ObjectError> {
        let (clock, mut pace) = (self.group.clock(), Pace::new());
        let until = limit.map(|limit| clock.now().saturating_add(nanoseconds(limit)));
        let hash = self.check(name, &[])?;
        // What is found at once asks nothing of the kernel: neither of this client's change of the object nor of
        // others'. Where nobody wakes it there is nothing to prepare.
        let mut prepared = self.wait_words.is_none().then(|| self.prepare_wait(hash));
        loop {
            let found = look().await?;
            let left = until.map(|until| Duration::from_nanos(until.saturating_sub(clock.now())));
            if found.is_some() || left == Some(Duration::ZERO) {
                return Ok(found);
            }
            // Between two looks nothing is under way.
            if let Some(prepared) = prepared {
                sleep(prepared, pace.next(left)).await;
            }
            // N1: before the next look.
            prepared = Some(self.prepare_wait(hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::handle::Options;
    use crate::pools::shm::{self, CreateOptions, Pool};

    #[test]
    fn looks_are_at_most_five_milliseconds_apart() {
        let mut pace = Pace::new();
        let pauses: Vec<_> = (0..20).map(|_| pace.next(None)).collect();
        assert_eq!((pauses[0], pauses[1], pauses[19]), (FIRST, 2 * FIRST, LONGEST));
        assert!(pauses.is_sorted());
        assert_eq!(pace.next(Some(FIRST)), FIRST, "what is left of the wait");
    }

    /// Each wake is a system call, and counted in the wait word.
    #[test]
    fn what_nobody_waits_for_wakes_nobody() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let client = shm::open(&pool, Options::default()).expect("a slot");
        let (lock, hash) = (client.blocking().lock(b"lock"), client.check(b"lock", &[]));
        let (words, hash) = (pool.wait_words().expect("they are there"), hash.expect("a key"));
        let pairs = || {
            let before = words.prepare(hash);
            (0..10).for_each(|_| lock.acquire().expect("free").release().expect("held"));
            let wakes = words.prepare(hash).wrapping_sub(before) >> 1;
            assert_eq!(wakes, 1, "of whoever has prepared");
        };
        pairs();
        pairs();
    }
}
