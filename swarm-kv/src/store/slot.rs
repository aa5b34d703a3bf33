//! A place for one client, which any thread may take out of it and put into it, without a lock.
#![expect(unsafe_code, reason = "a box that is swapped as a pointer")]

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A place for one `T`. Apart from others by two lines, which processors fetch in pairs.
#[repr(align(128))]
pub(super) struct Slot<T> {
    /// A box's pointer, which is the slot's own, or null.
    pointer: AtomicPtr<T>,
    /// It drops a `T`, and hands one from thread to thread.
    owned: PhantomData<T>,
}

// SAFETY: a `T` is handed from the thread that puts it in to the one that takes it out, by a swap that acquires and releases; no two
// threads have it at the same time, and none has a reference to one in its slot. That is to send it.
unsafe impl<T: Send> Sync for Slot<T> {}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { pointer: AtomicPtr::default(), owned: PhantomData }
    }
}

impl<T> Slot<T> {
    /// What is in it.
    #[inline]
    pub(super) fn take(&self) -> Option<Box<T>> {
        // Where nothing is in it, nothing is written, so that its line stays where it is. Sequentially consistent: see `clients`.
        if self.pointer.load(Ordering::SeqCst).is_null() {
            return None;
        }
        let pointer = self.pointer.swap(ptr::null_mut(), Ordering::SeqCst);
        // SAFETY: what is not null came out of a box in `put`, and the thread that swaps it out has it alone.
        (!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) })
    }

    /// Puts `content` into it, which is empty.
    #[inline]
    pub(super) fn put(&self, content: Box<T>) {
        let before = self.pointer.swap(Box::into_raw(content), Ordering::SeqCst);
        debug_assert!(before.is_null(), "a slot has one client");
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
