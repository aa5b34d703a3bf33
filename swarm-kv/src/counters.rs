//! What a client's operations cost, exactly.

use std::ops::Sub;

use swarm_core::fabric::counting::Tally;
use swarm_core::quorum::Events;

/// Operations of more roundtrips than this are counted together.
pub const ROUNDTRIPS: usize = 32;

/// What the operations of one kind cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KindCounters {
    /// How many there were.
    pub operations: u64,
    /// How many took so many roundtrips, one after the other; the last entry is for all that took
    /// as many or more.
    pub roundtrips: [u64; ROUNDTRIPS],
    /// Verbs posted, those in the background included.
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
    /// What happened beside the common case.
    pub events: Events,
    /// Buffers that came back and were taken in, to be used again.
    pub reclaimed: u64,
    /// Keys that this client moved to a fresh register.
    pub moved: u64,
    /// Those of them that it moved so that the chunks that they lay in came to be empty.
    pub evacuated: u64,
}

impl KindCounters {
    #[inline]
    pub(crate) fn add(&mut self, tally: Tally) {
        self.operations += 1;
        self.roundtrips[(tally.roundtrips as usize).min(ROUNDTRIPS - 1)] += 1;
        self.verbs += tally.verbs;
        self.bytes += tally.bytes;
    }
}

impl Sub for KindCounters {
    type Output = Self;

    /// What came since `earlier`.
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

    /// What came since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            get: self.get - earlier.get,
            put: self.put - earlier.put,
            insert: self.insert - earlier.insert,
            update: self.update - earlier.update,
            delete: self.delete - earlier.delete,
            events: Events {
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
