//! The clock of a pool whose clients are on several hosts: each host's wall clock.
//!
//! Hosts should synchronize their clocks (NTP, better PTP). Where clocks differ by more than a
//! roundtrip, the client with the slower clock guesses stale timestamps and takes more roundtrips.
//! The protocols learn the difference and correct their guesses. Only speed depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

use swarm_core::clock::Clock;

/// Wall-clock nanoseconds since a pool's creation.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    created: u64,
}

impl WallClock {
    /// Returns the clock of a pool that was created at `created`, in wall-clock nanoseconds since
    /// 1970.
    pub fn since(created: u64) -> Self {
        Self { created }
    }
}

impl Clock for WallClock {
    #[inline]
    fn now(&self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (now.as_nanos() as u64).saturating_sub(self.created)
    }
}
