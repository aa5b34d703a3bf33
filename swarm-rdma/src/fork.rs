//! Detects that this process is a forked child of the one that opened a client. The child has a
//! copy of the client's memory and shares its kernel objects with the parent: queue pairs,
//! connections, locked memory.
//!
//! **Invariant:** only the process that opened a client uses it and releases it (S7). The threads
//! that connect, renew a lease and talk to the daemons run in that process only. A child that
//! joined them would wait for ever. A child that reported to the daemons that the client left would
//! end its parent's client. `_Fork` and a bare `clone` run no fork handler: their children must not
//! touch their copies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Counts the forks between this process and its first ancestor that had a client.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which an object was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u64);

impl Origin {
    /// Returns this process.
    pub(crate) fn current() -> Self {
        static WATCHED: AtomicBool = AtomicBool::new(false);
        // Two threads may register the handler twice at the same time: a fork then counts as two.
        if !WATCHED.load(Ordering::Acquire) {
            // SAFETY: the handler is a safe function that only adds to an atomic word, which is
            // allowed in the forked child of a multi-threaded process.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            assert_eq!(refused, 0, "no memory for a fork handler");
            WATCHED.store(true, Ordering::Release);
        }
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns whether this process is another one: a forked copy of the origin (S7).
    #[inline]
    pub(crate) fn is_elsewhere(self) -> bool {
        // Relaxed: the fork handler changes it before any other code runs in the child.
        FORKS.load(Ordering::Relaxed) != self.0
    }
}
