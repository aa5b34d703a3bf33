//! Whose a client is. A child that a process forks has a copy of all that its clients have in memory, and shares
//! with it what the kernel has of them: queue pairs, connections, locked memory.
//!
//! The invariant: *a client is used, and let go of, by the process alone that opened it*. The threads that connect,
//! renew a lease and speak to the daemons are in that process alone: a child that waited for them to end would wait
//! for ever, and one that told the daemons that the client has left would say so of its parent's. `_Fork` and a bare
//! `clone` run no fork handler, and their children must let their copies be.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many forks lie between this process and the first of its ancestors that had a client.
static FORKS: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process in which something was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin(u64);

impl Origin {
    /// This process.
    pub(crate) fn here() -> Self {
        static WATCHED: AtomicBool = AtomicBool::new(false);
        // Two threads at the same time may register the handler twice: then a fork counts for two.
        if !WATCHED.load(Ordering::Acquire) {
            // SAFETY: the handler is a safe function that does no more than add to an atomic word, which may be
            // done in a child that has one of several threads.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            assert_eq!(refused, 0, "no memory for a fork handler");
            WATCHED.store(true, Ordering::Release);
        }
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is another one: a copy of that.
    #[inline]
    pub(crate) fn is_elsewhere(self) -> bool {
        // Relaxed: it changes before there is anybody in the child to see it.
        FORKS.load(Ordering::Relaxed) != self.0
    }
}
