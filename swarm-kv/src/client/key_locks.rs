//! The writes of one client that are under way, by key: one at a time to a register.
//!
//! How a write waits for its turn is in [`ops::key_lock`](crate::ops::key_lock).

use std::cell::{Cell, RefCell};

/// The writes of a client that are under way.
pub(crate) struct KeyLocks {
    /// For each write, its key's hash and its turn.
    turns: RefCell<Vec<(u64, u64)>>,
    /// Turns that were given out.
    given: Cell<u64>,
}

impl Default for KeyLocks {
    /// Allocates room for more writes than are usually under way.
    fn default() -> Self {
        Self { turns: RefCell::new(Vec::with_capacity(64)), given: Cell::new(0) }
    }
}

impl KeyLocks {
    /// Returns the turn of the write of this key that is under way.
    pub(crate) fn holder_of(&self, hash: u64) -> Option<u64> {
        let turns = self.turns.borrow();
        turns.iter().find(|(other, _)| *other == hash).map(|&(_, turn)| turn)
    }

    /// Whether no write of this key is under way.
    #[inline(always)]
    pub(crate) fn is_free(&self, hash: u64) -> bool {
        let turns = self.turns.borrow();
        turns.is_empty() || turns.iter().all(|(other, _)| *other != hash)
    }

    /// A write of this key begins, if no other is under way.
    #[inline]
    pub(crate) fn try_lock(&self, hash: u64) -> Option<KeyLock<'_>> {
        let mut turns = self.turns.borrow_mut();
        if turns.iter().any(|(other, _)| *other == hash) {
            return None;
        }
        let turn = self.given.get();
        self.given.set(turn + 1);
        turns.push((hash, turn));
        Some(KeyLock { locks: self, hash })
    }
}

/// A write of a key that is under way.
pub(crate) struct KeyLock<'a> {
    locks: &'a KeyLocks,
    hash: u64,
}

impl Drop for KeyLock<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut turns = self.locks.turns.borrow_mut();
        if let Some(at) = turns.iter().position(|(hash, _)| *hash == self.hash) {
            turns.swap_remove(at);
        }
    }
}
