//! Decides when a GC cycle is due, before memory runs out.
//!
//! A cycle walks the whole index, whatever it finds. So there is none while most of the pool is
//! free. Then one is due once the client has gained a fraction of its chunks since the last one, or
//! can have chunks of dead clients. Where all free chunks are reserved, one is due when most of
//! what the last one freed is used up, or, some time after the last one, when an operation found no
//! chunk.

use std::cell::Cell;
use std::ops::RangeInclusive;

use super::Heap;

/// Chunks that a client claims at least between two cycles, and the fraction of those that it had
/// before.
const LEAST: usize = 4;
const PART: usize = 8;
/// Memory is scarce when less than one chunk in this many is free.
const SCARCE: usize = 4;
/// Every this many writes, a client checks whether any kind of object that it has runs short.
const WRITES: u32 = 16;
/// Writes between a look for orphaned chunks that failed and the next look. The number doubles with
/// each further failure, up to `DOUBLED` times.
const LOOK_REST: u32 = 16;
const DOUBLED: u32 = 8;
/// Writes of a client before its writes assist. A process that comes for a single write would start what it never ends, and so
/// would the next one.
const FIRST_WRITES: u32 = 4;
/// A cycle that promises little is put off for this many times the length of the last one.
const REST: u64 = 20;
/// Bounds of that length in nanoseconds: a cycle may have stood still for want of writes.
const TOOK: RangeInclusive<u64> = 2_000_000..=500_000_000;

/// How much a client's memory grew, and what is due.
#[derive(Default)]
pub(super) struct GcPacer {
    /// Chunks that it had at the end of its last cycle; none at first, as only a cycle shows what
    /// the slot's previous client left in its chunks.
    before: Cell<usize>,
    /// Whether a cycle is due, or under way.
    due: Cell<bool>,
    /// Whether it has gained chunks since it last looked for orphaned ones.
    looks: Cell<bool>,
    /// Writes to skip before the next such look, and how many looks failed in a row.
    look_rests: Cell<(u32, u32)>,
    /// Whether the cycle has found all garbage, which is now being zeroed.
    swept: Cell<bool>,
    /// When the cycle under way began.
    began: Cell<Option<u64>>,
    /// Since when, and for how many nanoseconds, another cycle promises little.
    rests: Cell<(u64, u64)>,
    /// Whether the last cycle was given up.
    failed: Cell<bool>,
    /// Whether an allocation has failed since.
    refused: Cell<bool>,
    /// Writes that ended while all free chunks are reserved.
    writes: Cell<u32>,
    /// Writes that were over while something was to be looked for, of the first ones.
    first: Cell<u32>,
}

impl GcPacer {
    /// Whether it is time to check for shortage: no cycle is due, and enough writes ended since the
    /// last check.
    fn is_time_to_look(&self) -> bool {
        self.writes.set(self.writes.get().wrapping_add(1));
        self.writes.get().is_multiple_of(WRITES) && !self.due.get()
    }

    /// Whether the client has written a few times already. Called after each write, where an assist is due otherwise.
    #[cold]
    fn has_written_enough(&self) -> bool {
        let first = self.first.get();
        self.first.set((first + 1).min(FIRST_WRITES));
        first == FIRST_WRITES
    }

    /// Records that the client has this many chunks now, and that `free` chunks of `all` have no
    /// owner.
    pub(super) fn goes_on(&self, chunks: usize, (free, all): (usize, usize)) {
        if free >= all / SCARCE {
            return;
        }
        self.looks.set(true);
        let before = self.before.get();
        if chunks >= before + worth_a_cycle(before) {
            self.due.set(true);
        }
    }
}

/// Returns how many new chunks make a cycle worth while, for a client with this many.
pub(super) fn worth_a_cycle(own: usize) -> usize {
    LEAST.max(own / PART)
}

impl Heap {
    /// Whether a step of a cycle, or a look for orphaned chunks, is due.
    #[inline]
    pub(crate) fn is_gc_due(&self, now: impl Fn() -> u64) -> bool {
        if self.is_tight() && self.growth.is_time_to_look() && self.runs_short(now()) {
            self.growth.due.set(true);
            self.growth.looks.set(true);
        }
        (self.growth.due.get() || self.growth.looks.get()) && self.growth.has_written_enough()
    }

    /// Whether free memory runs short, so that a cycle should start before none is left.
    #[cold]
    fn runs_short(&self, now: u64) -> bool {
        let GcPacer { rests, failed, refused, .. } = &self.growth;
        let (since, rest) = rests.get();
        // A clock that was set back counts as rested.
        let rested = now.wrapping_sub(since) >= rest;
        rested && refused.get()
            || (rested || !failed.get()) && self.reclaimer.is_used_up(|kind| self.unused(kind))
    }

    /// Records that an allocation failed.
    pub(super) fn is_refused(&self) {
        self.growth.refused.set(true);
    }

    /// Whether a cycle is due, or under way.
    pub(crate) fn is_collection_due(&self) -> bool {
        self.growth.due.get()
    }

    /// Whether a look for orphaned chunks is due.
    pub(crate) fn looks_for_vacant(&self) -> bool {
        self.growth.looks.get()
    }

    /// Records that it has looked, or could not: the next look is due once the client has gained
    /// chunks.
    pub(crate) fn has_looked(&self) {
        self.growth.looks.set(false);
    }

    /// Whether to skip this look: the last one failed and took time, and the next one would fail as
    /// well. Counts one write. An operation that finds no memory looks anyway.
    pub(crate) fn rests_from_looks(&self) -> bool {
        let (left, failed) = self.growth.look_rests.get();
        self.growth.look_rests.set((left.saturating_sub(1), failed));
        left > 0
    }

    /// Records that a look succeeded, or failed.
    pub(crate) fn look_is_over(&self, in_vain: bool) {
        let (_, failed) = self.growth.look_rests.get();
        let rest = (LOOK_REST << failed, (failed + 1).min(DOUBLED));
        self.growth.look_rests.set(if in_vain { rest } else { (0, 0) });
    }

    /// Records that it takes over orphaned chunks: only a cycle shows what is in use in them.
    pub(crate) fn takes_vacant(&self) {
        self.growth.due.set(true);
    }

    /// Whether the cycle has found its garbage, which is being zeroed.
    pub(crate) fn is_swept(&self) -> bool {
        self.growth.swept.get()
    }

    /// Records that the cycle has found its garbage.
    pub(crate) fn sweep_is_over(&self) {
        self.growth.swept.set(true);
    }

    /// Starts a cycle.
    pub(crate) fn begins_to_collect(&self, now: u64) {
        self.growth.began.set(Some(now));
        self.reclaimer.begin();
    }

    /// Ends a cycle.
    pub(crate) fn is_collected(&self, now: u64) {
        self.end_evacuation();
        self.reclaimer.is_collected(|kind| self.unused(kind));
        self.growth.swept.set(false);
        self.growth.refused.set(false);
        self.is_over(now, false);
    }

    /// Gives a cycle up: a node is silent, or other clients were first too often. What it found
    /// already is zeroed along with what the next one finds.
    pub(crate) fn gives_up(&self, now: u64) {
        self.growth.swept.set(false);
        self.is_over(now, true);
    }

    fn is_over(&self, now: u64, failed: bool) {
        let began = self.growth.began.take().unwrap_or(now);
        let took = if failed { 0 } else { now.saturating_sub(began) };
        let rest = took.clamp(*TOOK.start(), *TOOK.end()) * REST;
        self.growth.rests.set((now, rest));
        self.growth.failed.set(failed);
        self.growth.before.set(self.count_own());
        self.growth.due.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::FIRST_WRITES;
    use crate::heap::tests::alone;

    /// A process that comes for one write would begin what it does not end, and so would the next one.
    #[test]
    fn a_client_of_few_writes_begins_no_collection() {
        let (_group, heap) = alone();
        heap.takes_vacant();
        for number in 0..FIRST_WRITES {
            assert!(!heap.is_gc_due(|| 0), "behind {number} other writes");
        }
        assert!(heap.is_gc_due(|| 0));
    }
}
