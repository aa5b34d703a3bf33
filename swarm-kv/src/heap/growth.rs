//! When it is time to look for garbage, before memory runs out.
//!
//! A collection goes over the whole index, whatever comes of it, so it is put off as long as most of
//! the pool is free, and then until a part of what the client has came to it since the last one, or is to be
//! had from clients that are gone. Where all that is free is kept back, it is time when most of what the last one
//! brought is used up, or, some time after the last one, when an operation found no chunk.

use std::cell::Cell;
use std::ops::RangeInclusive;

use super::Heap;

/// Chunks that a client claims at least from one collection to the next, and the part of those that it
/// had before.
const LEAST: usize = 4;
const PART: usize = 8;
/// Memory is scarce when less than one chunk in so many is free.
const SCARCE: usize = 4;
/// Once in so many writes a client looks whether it runs short, at each kind of object that it has.
const WRITES: u32 = 16;
/// So many writes go by after a look for what clients that are gone held that failed; behind each further one that fails
/// twice as many, until it has doubled so often.
const LOOK_REST: u32 = 16;
const DOUBLED: u32 = 8;
/// So many times as long as a collection took the next one is put off, where it promises little.
const REST: u64 = 20;
/// Nanoseconds that it counts as at least, and at most: it may have stood still because nobody wrote.
const TOOK: RangeInclusive<u64> = 2_000_000..=500_000_000;

/// How much a client's memory grew.
#[derive(Default)]
pub(super) struct Growth {
    /// Chunks that it had when its garbage was collected last. None at first: what is in those that whoever had the slot
    /// before left behind only a collection tells.
    before: Cell<usize>,
    /// Whether a collection is due, or under way.
    due: Cell<bool>,
    /// Whether it came to more since it looked for what clients that are gone held.
    looks: Cell<bool>,
    /// Writes that are to go by before the next such look, and how many of those failed one after the other.
    look_rests: Cell<(u32, u32)>,
    /// Whether it has found all there is, which is to be reset.
    swept: Cell<bool>,
    /// When the collection under way began.
    began: Cell<Option<u64>>,
    /// Since when, and for how many nanoseconds, the next one promises little.
    rests: Cell<(u64, u64)>,
    /// Whether the last one was given up.
    failed: Cell<bool>,
    /// Whether no chunk was to be had since.
    refused: Cell<bool>,
    /// Writes that were over while all that is free is kept back.
    writes: Cell<u32>,
}

impl Growth {
    /// Whether no collection is due, and some writes were over since this was asked.
    fn is_time_to_look(&self) -> bool {
        self.writes.set(self.writes.get().wrapping_add(1));
        self.writes.get().is_multiple_of(WRITES) && !self.due.get()
    }

    /// The client has so many chunks now, and so many of so many are nobody's.
    pub(super) fn goes_on(&self, chunks: usize, (free, all): (usize, usize)) {
        if free >= all / SCARCE {
            return;
        }
        self.looks.set(true);
        let before = self.before.get();
        if chunks >= before + worth_a_collection(before) {
            self.due.set(true);
        }
    }
}

/// So many chunks are, for a client that has so many.
pub(super) fn worth_a_collection(own: usize) -> usize {
    LEAST.max(own / PART)
}

impl Heap {
    /// Whether garbage, or what others left behind, is worth a look.
    #[inline]
    pub(crate) fn has_grown(&self, now: impl Fn() -> u64) -> bool {
        if self.is_tight() && self.growth.is_time_to_look() && self.runs_short(now()) {
            self.growth.due.set(true);
            self.growth.looks.set(true);
        }
        self.growth.due.get() || self.growth.looks.get()
    }

    /// Whether it is time to look for more before nothing is left.
    #[cold]
    fn runs_short(&self, now: u64) -> bool {
        let Growth { rests, failed, refused, .. } = &self.growth;
        let (since, rest) = rests.get();
        // A clock that was set back has done so.
        let rested = now.wrapping_sub(since) >= rest;
        rested && refused.get()
            || (rested || !failed.get()) && self.recycler.is_used_up(|kind| self.unused(kind))
    }

    /// No chunk is to be had.
    pub(super) fn is_refused(&self) {
        self.growth.refused.set(true);
    }

    /// Whether garbage is.
    pub(crate) fn is_collection_due(&self) -> bool {
        self.growth.due.get()
    }

    /// Whether it is time to look for what others left behind.
    pub(crate) fn looks_for_vacant(&self) -> bool {
        self.growth.looks.get()
    }

    /// It has looked, or could not: not again before it has come to more.
    pub(crate) fn has_looked(&self) {
        self.growth.looks.set(false);
    }

    /// Whether some more writes are to go by before it looks again: a look that failed took its time, and the next one
    /// would fail as well. An operation that finds no memory looks for itself, whatever is said here.
    pub(crate) fn rests_from_looks(&self) -> bool {
        let (left, failed) = self.growth.look_rests.get();
        self.growth.look_rests.set((left.saturating_sub(1), failed));
        left > 0
    }

    /// A look came to its end, or failed.
    pub(crate) fn look_is_over(&self, in_vain: bool) {
        let (_, failed) = self.growth.look_rests.get();
        let rest = (LOOK_REST << failed, (failed + 1).min(DOUBLED));
        self.growth.look_rests.set(if in_vain { rest } else { (0, 0) });
    }

    /// It takes such over, of which only a collection tells what is in use.
    pub(crate) fn takes_vacant(&self) {
        self.growth.due.set(true);
    }

    /// Whether its garbage was found, and is to be reset.
    pub(crate) fn is_swept(&self) -> bool {
        self.growth.swept.get()
    }

    /// Its garbage was found.
    pub(crate) fn sweep_is_over(&self) {
        self.growth.swept.set(true);
    }

    /// A collection begins.
    pub(crate) fn begins_to_collect(&self, now: u64) {
        self.growth.began.set(Some(now));
        self.recycler.begin();
    }

    /// Its garbage was collected.
    pub(crate) fn is_collected(&self, now: u64) {
        self.judge_closed();
        self.recycler.is_collected(|kind| self.unused(kind));
        self.growth.swept.set(false);
        self.growth.refused.set(false);
        self.is_over(now, false);
    }

    /// A step of that came to nothing: some node is silent, or others were quicker too often. What was found already is
    /// reset along with what the next one finds.
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
