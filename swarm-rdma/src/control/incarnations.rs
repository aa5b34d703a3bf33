//! Draws incarnations in advance: when a client's write numbers are used up, it continues under the
//! next incarnation.
//!
//! A thread draws a [`BLOCK`] at a time, once the client has used half of its first incarnation's
//! numbers, and whenever few are left. So the client can write for hours while neither etcd nor the
//! daemons grant any. Most clients draw none.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use swarm_core::words::Incarnation;

use super::error::Error;

/// Incarnations drawn at a time. A client that writes 100,000 times a second uses one up in ten
/// minutes.
pub(super) const BLOCK: u64 = 64;
/// Tries of a draw that other clients' changes fail, before it returns an error.
pub(super) const DRAW_TRIES: u64 = 8;
/// The pause after a failed draw.
const PAUSE: Duration = Duration::from_millis(500);

/// Draws a block of incarnations that no client had.
pub(super) type IncarnationSource = Box<dyn Fn() -> Result<Range<u64>, Error> + Send>;

/// The drawn incarnations that are left.
#[derive(Default)]
pub(super) struct Numbers {
    left: Mutex<VecDeque<u64>>,
    /// Whether few are left.
    wanted: AtomicBool,
    /// The thread that draws.
    thread: OnceLock<Thread>,
}

impl Numbers {
    fn left(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next incarnation. It never blocks: the thread that draws holds the lock for a few
    /// instructions, and the client asks again soon.
    pub(super) fn take(&self) -> Option<Incarnation> {
        let mut left = self.left.try_lock().ok()?;
        let next = left.pop_front().map(Incarnation);
        // Wakes the thread once: after a failure it pauses, however often this is called.
        if (left.len() as u64) < BLOCK / 2 && !self.wanted.swap(true, Ordering::AcqRel) {
            self.thread.get().map(Thread::unpark);
        }
        next
    }

    /// Draws incarnations on demand, until `stopping` is set and the thread is unparked.
    pub(super) fn keep(&self, source: &IncarnationSource, stopping: &AtomicBool) {
        self.thread.get_or_init(thread::current);
        while !stopping.load(Ordering::Relaxed) {
            if !self.wanted.load(Ordering::Acquire) {
                thread::park();
            } else if let Ok(drawn) = source() {
                self.left().extend(drawn);
                // A request that arrived meanwhile is served, too.
                self.wanted.store(false, Ordering::Release);
            } else {
                thread::park_timeout(PAUSE);
            }
        }
    }
}
