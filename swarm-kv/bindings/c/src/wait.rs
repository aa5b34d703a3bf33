//! Waiting, with the thread asleep.

use std::future::Future;
use std::time::Duration;

use crate::SWARM_FOREVER;

/// For how long to wait at most.
pub(crate) fn limit(timeout_ms: u64) -> Option<Duration> {
    (timeout_ms != SWARM_FOREVER).then(|| Duration::from_millis(timeout_ms))
}

/// Runs an operation to its end, which lets its pauses pass by [`Pause::blocks`](swarm_kv::store::Pause::blocks). The thread
/// sleeps while it waits for a client.
pub(crate) fn wait<T>(operation: impl Future<Output = T>) -> T {
    pollster::block_on(operation)
}
