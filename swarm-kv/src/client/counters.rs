//! Counts what a client's operations cost, exactly.

use std::ops::Sub;

use swarm_core::fabric::counting::OpCost;
use swarm_core::quorum::SlowPathCounts;

/// Operations with more roundtrips than this are counted together.
pub const ROUNDTRIPS: usize = 32;

/// What the operations of one kind cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KindCounters {
    /// How many operations there were.
    pub operations: u64,
    /// How many operations took each number of consecutive roundtrips; the last entry counts those
    /// that took that many or more.
    pub roundtrips: [u64; ROUNDTRIPS],
    /// Verbs posted, including those in the background.
    pub verbs: u64,
    /// Payload bytes of those verbs.
    pub bytes: u64,
}

/// What a client's operations cost since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Gets.
    pub get: KindCounters,
    /// Puts.
    pub put: KindCounters,
    /// Inserts.
    pub insert: KindCounters,
    /// Updates.
    pub update: KindCounters,
    /// Deletes.
    pub delete: KindCounters,
    /// Read-modify-writes: compare-and-swaps, increments, swaps and the like.
    pub modify: KindCounters,
    /// How often operations left the common case.
    pub events: SlowPathCounts,
    /// Buffers that were reclaimed, to be reused.
    pub reclaimed: u64,
    /// Keys that this client moved to a fresh register.
    pub moved: u64,
    /// How many of those it moved to empty the chunks that they lay in.
    pub evacuated: u64,
}

impl KindCounters {
    #[inline]
    pub(crate) fn add(&mut self, tally: OpCost) {
        self.operations += 1;
        self.roundtrips[(tally.roundtrips as usize).min(ROUNDTRIPS - 1)] += 1;
        self.verbs += tally.verbs;
        self.bytes += tally.bytes;
    }
}

impl Sub for KindCounters {
    type Output = Self;

    /// Returns what came since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            operations: self.operations - earlier.operations,
            roundtrips: std::array::from_fn(|i| self.roundtrips[i] - earlier.roundtrips[i]),
            verbs: self.verbs - earlier.verbs,
            bytes: self.bytes - earlier.bytes,
        }
    }
}

impl Sub for Counters {
    type Output = Self;

    /// Returns what came since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            get: self.get - earlier.get,
            put: self.put - earlier.put,
            insert: self.insert - earlier.insert,
            update: self.update - earlier.update,
            delete: self.delete - earlier.delete,
            modify: self.modify - earlier.modify,
            events: SlowPathCounts {
                retries: self.events.retries - earlier.events.retries,
                slow: self.events.slow - earlier.events.slow,
                widened: self.events.widened - earlier.events.widened,
            },
            reclaimed: self.reclaimed - earlier.reclaimed,
            moved: self.moved - earlier.moved,
            evacuated: self.evacuated - earlier.evacuated,
        }
    }
}
