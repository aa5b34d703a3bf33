//! When it is time to look for garbage, before memory runs out.
//!
//! A collection goes over the whole index, whatever comes of it, so it is put off as long as most of
//! the pool is free, and then until a part of what the client has came to it since the last one, or is to be
//! had from clients that are gone.

use std::cell::Cell;

use super::Heap;

/// Chunks that a client claims at least from one collection to the next, and the part of those that it
/// had before.
const LEAST: usize = 4;
const PART: usize = 8;
/// Memory is scarce when less than one chunk in so many is free.
const SCARCE: usize = 4;

/// How much a client's memory grew.
#[derive(Default)]
pub(super) struct Growth {
    /// Chunks that it had when its garbage was collected last, or when it claimed its first.
    before: Cell<Option<usize>>,
    /// Whether a collection is due, or under way.
    due: Cell<bool>,
    /// Whether it came to more since it looked for what clients that are gone held.
    looks: Cell<bool>,
    /// Whether it has found all there is, which is to be reset.
    swept: Cell<bool>,
}

impl Growth {
    /// Somebody claims memory.
    pub(super) fn begins(&self, chunks: impl Fn() -> usize) {
        if self.before.get().is_none() {
            self.before.set(Some(chunks()));
        }
    }

    /// The client has so many chunks now, and so many of so many are nobody's.
    pub(super) fn goes_on(&self, chunks: usize, (free, all): (usize, usize)) {
        if free >= all / SCARCE {
            return;
        }
        self.looks.set(true);
        let before = self.before.get().unwrap_or(chunks);
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
    pub(crate) fn has_grown(&self) -> bool {
        self.growth.due.get() || self.growth.looks.get()
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

    /// Its garbage was collected.
    pub(crate) fn is_collected(&self) {
        self.growth.before.set(Some(self.count_own()));
        self.growth.due.set(false);
        self.growth.swept.set(false);
    }
}
