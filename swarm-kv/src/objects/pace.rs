//! How often a client that waits looks: soon at first, and at most [`LONGEST`] apart.

use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::location_cache::hash_key;
use crate::client::looks::{Pauses, looks_until};
use crate::client::waiting::Prepared;
use crate::objects::error::ObjectError;

/// The pause before the second look. Each pause is twice as long as the one before.
const FIRST: Duration = Duration::from_micros(20);
/// The longest pause: so soon a waiter notices that it is its turn, or that a holder is dead.
pub(crate) const LONGEST: Duration = Duration::from_millis(5);

/// The first pause of a wait, and the longest.
pub(crate) const PAUSES: [Duration; 2] = [FIRST, LONGEST];

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
        let clock = self.group.clock();
        let until = limit.map(|limit| clock.now().saturating_add(nanoseconds(limit)));
        let left = || until.map(|until| Duration::from_nanos(until.saturating_sub(clock.now())));
        let prepare = || self.prepare_wait(hash_key(name, self.geometry.hash_seed));
        // What is found at once asks nothing of the kernel: neither of this client's change of the object nor of
        // others'. Where nobody wakes it there is nothing to prepare.
        let prepared = self.wait_words.is_none().then(prepare);
        let (sleep, look) = (&sleep, &look);
        let sleep = move |prepared, pause| sleep(prepared, pause);
        looks_until((prepared, prepare), (Pauses::new(PAUSES), left), sleep, move || look()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::handle::Options;
    use crate::pools::shm::{self, CreateOptions, Pool};

    #[test]
    fn looks_are_at_most_five_milliseconds_apart() {
        let mut pace = Pauses::new(PAUSES);
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
            assert_eq!(wakes, 1, "of the one that has prepared");
        };
        pairs();
        pairs();
    }
}
