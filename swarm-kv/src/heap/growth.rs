//! When it is time to look for garbage, before memory runs out.
//!
//! A collection goes over the whole index, whatever comes of it, so it is put off as long as most of
//! the pool is free, and then until a part of what the client has came to it since the last one.

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
        let before = self.before.get().unwrap_or(chunks);
        if free < all / SCARCE && chunks >= before + LEAST.max(before / PART) {
            self.due.set(true);
        }
    }
}

impl Heap {
    /// Whether garbage is worth a look.
    #[inline]
    pub(crate) fn has_grown(&self) -> bool {
        self.growth.due.get()
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
