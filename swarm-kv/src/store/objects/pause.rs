//! The time between two looks of a waiter.

use std::future::{Ready, poll_fn, ready};
use std::task::Poll;
use std::time::{Duration, Instant};

use swarm_shm::WaitWords;

use crate::client::waiting::Prepared;

/// The time between two looks at a key that is waited for.
///
/// It may be over sooner than a change: a waiter looks again. It may last longer than it says, and then what is waited for is noticed
/// so much later.
#[derive(Debug)]
#[must_use = "nothing waits before it is let pass"]
pub struct Pause {
    words: Option<WaitWords>,
    prepared: Prepared,
    longest: Duration,
}

impl Pause {
    pub(super) fn new(words: Option<WaitWords>, prepared: Prepared, longest: Duration) -> Self {
        Self { words, prepared, longest }
    }

    /// How long it is to last at most, if nothing changes: between 20 us and 5 ms for an object, up to a second for a key that is
    /// watched.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// The same, for at most so long.
    pub fn at_most(mut self, limit: Duration) -> Self {
        self.longest = self.longest.min(limit);
        self
    }

    /// Blocks this thread until the key changes, a signal comes, or it is over. What it returns is ready: so
    /// `block_on(lock.acquire_paced(None, Pause::blocks))` acquires a lock with the thread asleep.
    pub fn blocks(self) -> Ready<()> {
        self.prepared.wait(self.words.as_ref(), self.longest);
        ready(())
    }

    /// Lets it pass while another thread sleeps; one that is shorter than a millisecond is polled.
    pub fn yields(self) -> impl Future<Output = ()> + Send {
        passes(self)
    }
}

async fn passes(pause: Pause) {
    let Pause { words, prepared, longest } = pause;
    if !prepared.sleeps(words.as_ref(), longest).await {
        let until = Instant::now() + longest;
        poll_fn(|cx| {
            if Instant::now() >= until {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}
