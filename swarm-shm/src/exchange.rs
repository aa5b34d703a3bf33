//! A value that threads share and exchange, and that a forked child can go on with.

use std::cell::UnsafeCell;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::yield_now;

use crate::fork::Origin;

/// An `Arc` that threads of a process get, and exchange for another one.
///
/// A lock of the standard library that another thread held during a `fork` is held for ever in the
/// child. This one says which process holds it: a child that finds its parent's number there takes
/// the lock over. **Invariant:** it is held while a count is raised or a pointer is exchanged, and
/// for nothing else; so what a child finds behind it is the value before or after, and at worst a
/// count that is too large.
#[derive(Debug)]
pub(crate) struct Exchange<T> {
    /// 0, or the number of the process of which a thread holds the lock.
    holder: AtomicU64,
    current: UnsafeCell<Arc<T>>,
}

// SAFETY: one thread at a time accesses `current`, and hands clones of an `Arc` to others.
unsafe impl<T: Send + Sync> Sync for Exchange<T> {}

impl<T> Exchange<T> {
    pub(crate) fn new(first: T) -> Self {
        Self { holder: AtomicU64::new(0), current: UnsafeCell::new(Arc::new(first)) }
    }

    /// Returns the present value.
    pub(crate) fn get(&self) -> Arc<T> {
        self.locked(|current| Arc::clone(current))
    }

    /// Puts `next` in the place of `former`, if that is the present value. Returns whether it was.
    pub(crate) fn exchange(&self, former: &Arc<T>, next: Arc<T>) -> bool {
        let replaced = self.locked(|current| {
            if Arc::ptr_eq(current, former) { Ok(mem::replace(current, next)) } else { Err(next) }
        });
        // What is dropped is dropped without the lock.
        replaced.is_ok()
    }

    fn locked<R>(&self, act: impl FnOnce(&mut Arc<T>) -> R) -> R {
        let own = Origin::current().number();
        loop {
            let holder = self.holder.load(Ordering::Relaxed);
            // Another thread of this process ends within a few instructions. No thread of this
            // process ever holds it under another number: such a holder is a copy of a parent's.
            let take = |from| {
                self.holder.compare_exchange(from, own, Ordering::Acquire, Ordering::Relaxed)
            };
            if holder != own && take(holder).is_ok() {
                break;
            }
            yield_now();
        }
        // SAFETY: this thread holds the lock, until it stores 0 there. Acquire and release order
        // what the holders do.
        let done = act(unsafe { &mut *self.current.get() });
        self.holder.store(0, Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_those_that_exchange_the_same_value_does() {
        let shared = Exchange::new(0);
        let first = shared.get();
        assert!(shared.exchange(&first, Arc::new(1)));
        assert!(!shared.exchange(&first, Arc::new(2)));
        assert_eq!(*shared.get(), 1);
        let count = 1000;
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..count {
                        loop {
                            let now = shared.get();
                            if shared.exchange(&now, Arc::new(*now + 1)) {
                                break;
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(*shared.get(), 1 + 4 * count);
    }

    /// Another thread of the parent held the lock when it was copied.
    #[test]
    fn a_child_finds_the_value_behind_its_parents_lock() {
        let shared = Exchange::new(7);
        shared.holder.store(Origin::current().number() + 1000, Ordering::Relaxed);
        assert_eq!(*shared.get(), 7);
        assert_eq!(shared.holder.load(Ordering::Relaxed), 0);
    }
}
