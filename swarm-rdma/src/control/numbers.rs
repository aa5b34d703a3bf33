//! Incarnations that a client sets aside while it lives: when its write numbers are used up it goes on
//! under the next.
//!
//! They are drawn a [`BLOCK`] at a time, by a thread, once a client has used half of its first one's numbers, and
//! whenever few are left: so it writes on for hours where nobody gives any out. Most clients draw none.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use swarm_core::words::Incarnation;

use super::error::Error;

/// So many incarnations are drawn at a time: a client that writes a hundred thousand times a second uses
/// one up in ten minutes.
pub(super) const BLOCK: u64 = 64;
/// How often a drawer tries what others thwart, before it is asked again.
pub(super) const DRAW_TRIES: u64 = 8;
/// After a failure the next try waits for so long.
const PAUSE: Duration = Duration::from_millis(500);

/// Draws a block of incarnations that nobody had.
pub(super) type Drawer = Box<dyn Fn() -> Result<Range<u64>, Error> + Send>;

/// What was drawn and is left.
#[derive(Default)]
pub(super) struct Numbers {
    left: Mutex<VecDeque<u64>>,
    /// Whether there are few.
    wanted: AtomicBool,
    /// Who draws.
    thread: OnceLock<Thread>,
}

impl Numbers {
    fn left(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one. Never waits: the thread that draws holds the lock for a few instructions, and the client
    /// asks again soon.
    pub(super) fn take(&self) -> Option<Incarnation> {
        let mut left = self.left.try_lock().ok()?;
        let next = left.pop_front().map(Incarnation);
        // Woken once: after a failure it waits, however often it is asked.
        if (left.len() as u64) < BLOCK / 2 && !self.wanted.swap(true, Ordering::AcqRel) {
            self.thread.get().map(Thread::unpark);
        }
        next
    }

    /// Draws as they are wanted, until it is told to stop and unparked.
    pub(super) fn keep(&self, drawer: &Drawer, stopping: &AtomicBool) {
        self.thread.get_or_init(thread::current);
        while !stopping.load(Ordering::Relaxed) {
            if !self.wanted.load(Ordering::Acquire) {
                thread::park();
            } else if let Ok(drawn) = drawer() {
                self.left().extend(drawn);
                // What was asked for meanwhile is there now.
                self.wanted.store(false, Ordering::Release);
            } else {
                thread::park_timeout(PAUSE);
            }
        }
    }
}
