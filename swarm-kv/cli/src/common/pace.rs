//! No more than so many keys a second: for those that go over a pool while others work.

use std::thread;
use std::time::{Duration, Instant};

/// What was not done for so long is not made up for: it would be a burst.
const SLACK: Duration = Duration::from_millis(100);

/// How fast keys are gone over.
pub(crate) struct Pace {
    /// Keys a second; `None`: as fast as it goes.
    rate: Option<u64>,
    begun: Instant,
    /// When the next key may come, since then.
    next: Duration,
}

impl Pace {
    /// From now on.
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self { rate, begun: Instant::now(), next: Duration::ZERO }
    }

    /// How many keys may come one right behind the other, `most` at most: a tenth of a second's.
    pub(crate) fn together(&self, most: usize) -> usize {
        self.rate.map_or(most, |rate| most.min((rate / 10) as usize)).max(1)
    }

    /// So many keys came just now: waits until the next may, and does `before` if it has to wait.
    pub(crate) fn keep(&mut self, keys: u64, before: impl FnOnce()) {
        let wait = self.wait(keys, self.begun.elapsed());
        if !wait.is_zero() {
            before();
            thread::sleep(wait);
        }
    }

    /// How long to wait behind so many keys that came at `now`.
    fn wait(&mut self, keys: u64, now: Duration) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let takes = u128::from(keys) * 1_000_000_000 / u128::from(rate);
        let takes = Duration::from_nanos(u64::try_from(takes).unwrap_or(u64::MAX));
        self.next = self.next.max(now.saturating_sub(SLACK)).saturating_add(takes);
        self.next.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn so_many_keys_take_a_second() {
        let mut pace = Pace::new(Some(1000));
        let mut now = Duration::ZERO;
        for _ in 0..10 {
            now += pace.wait(100, now);
        }
        assert_eq!(now, 1000 * MS);
        // It was late, and does not catch up by more than the slack.
        now += 5000 * MS;
        assert_eq!(pace.wait(100, now), Duration::ZERO);
        assert_eq!(pace.wait(100, now), 100 * MS);
        assert_eq!((pace.together(500), pace.together(50)), (100, 50));
    }

    #[test]
    fn without_a_rate_nobody_waits() {
        let mut pace = Pace::new(None);
        assert_eq!(pace.wait(u64::MAX, Duration::ZERO), Duration::ZERO);
        assert_eq!(pace.together(500), 500);
        let mut slowest = Pace::new(Some(1));
        assert_eq!((slowest.together(500), slowest.wait(3, Duration::ZERO)), (1, 3000 * MS));
        assert!(slowest.wait(u64::MAX, Duration::ZERO) > Duration::from_secs(1 << 33));
    }
}
