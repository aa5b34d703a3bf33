//! A mutex of the standard library whose hand-over the thread sanitizer sees.
//!
//! The standard library is compiled without the sanitizer, and a thread that had to wait for the
//! mutex acquires it inside of that. So each holder also stores to an atomic word before it unlocks,
//! and loads it after it has locked. Other libraries' locks are seen, but have a table for the whole
//! process, which a child that is forked at the wrong moment finds locked for ever.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value that one thread has at a time.
#[derive(Debug, Default)]
pub(super) struct Lock<T> {
    mutex: Mutex<T>,
    /// How often it was unlocked.
    turns: AtomicUsize,
}

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self { mutex: Mutex::new(value), turns: AtomicUsize::new(0) }
    }

    pub(super) fn lock(&self) -> Locked<'_, T> {
        // Nothing that is done under a lock leaves anything half done where it panics.
        let value = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = self.turns.load(Ordering::Acquire);
        Locked { value, turns: &self.turns, turn }
    }
}

/// A locked value, until this is dropped.
pub(super) struct Locked<'a, T> {
    value: MutexGuard<'a, T>,
    turns: &'a AtomicUsize,
    turn: usize,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // Before the mutex is unlocked, as fields are dropped after this.
        self.turns.store(self.turn.wrapping_add(1), Ordering::Release);
    }
}
