//! Incarnations that a client sets aside while it lives: when its write numbers are used up it goes on
//! under the next.
//!
//! They are drawn a [`BLOCK`] at a time, by a thread, long before they are needed: a client writes on for
//! hours where nobody gives any out. Most clients do not live long enough to draw any.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use swarm_core::words::Incarnation;

use super::error::Error;

/// So many incarnations are drawn at a time: a client that writes a hundred thousand times a second uses
/// one up in ten minutes.
pub(super) const BLOCK: u64 = 64;
/// A client that lives for so long draws its first, and looks so often whether there are enough.
const NOW_AND_THEN: Duration = Duration::from_secs(2);

/// Draws a block of incarnations that nobody had.
pub(super) type Drawer = Box<dyn Fn() -> Result<Range<u64>, Error> + Send>;

/// What was drawn and is left.
#[derive(Default)]
pub(super) struct Numbers(Mutex<VecDeque<u64>>);

impl Numbers {
    fn left(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next one. Never waits: the thread that draws holds the lock for a few instructions, and the client
    /// asks again soon.
    pub(super) fn take(&self) -> Option<Incarnation> {
        let mut left = self.0.try_lock().ok()?;
        left.pop_front().map(Incarnation)
    }

    /// Sees to it that there are enough, until it is told to stop.
    pub(super) fn keep(&self, drawer: &Drawer, stopping: &AtomicBool) {
        loop {
            thread::park_timeout(NOW_AND_THEN);
            if stopping.load(Ordering::Relaxed) {
                return;
            }
            let few = (self.left().len() as u64) < BLOCK / 2;
            // What fails is tried again.
            if few && let Ok(drawn) = drawer() {
                self.left().extend(drawn);
            }
        }
    }
}
