//! One at a time: a lock among the operations of one client, which run in turn on one thread.
//!
//! Who is inside may be an operation that nobody polls any more: a future that lost a `select!` and was kept. So whoever
//! waits does so only as long as what it waits for goes on.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use swarm_core::clock::Clock;

use crate::error::Error;
use crate::stall::LONGEST_LOOK;

/// Lets one operation in at a time.
#[derive(Default)]
pub(crate) struct Gate {
    is_taken: Cell<bool>,
    /// Steps of those who were inside.
    steps: Cell<u64>,
}

/// Inside; dropping it lets the next one in.
pub(crate) struct Inside<'a>(&'a Gate);

impl Gate {
    /// Waits until no one is inside.
    pub(crate) async fn enter(&self) -> Inside<'_> {
        poll_fn(|cx| {
            self.try_enter().map_or_else(
                || {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                },
                Poll::Ready,
            )
        })
        .await
    }

    /// The same, while who is inside takes no longer than so many nanoseconds for a [step](Self::goes_on).
    ///
    /// # Errors
    /// [`Error::Unfinished`] if it does.
    pub(crate) async fn enter_within(
        &self,
        clock: &impl Clock,
        longest: u64,
    ) -> Result<Inside<'_>, Error> {
        wait_while_it_goes_on((clock, longest), || self.try_enter(), || self.steps.get()).await
    }

    /// Enters if no one is inside.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        if self.is_taken.replace(true) {
            return None;
        }
        self.goes_on();
        Some(Inside(self))
    }

    /// Whoever is inside has done a step.
    pub(crate) fn goes_on(&self) {
        self.steps.set(self.steps.get() + 1);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.is_taken.set(false);
    }
}

/// Waits until `ready` yields something. What is waited for may stay as `progress` says it is for so many nanoseconds,
/// of which those do not count for which this client had no processor: see [`stall`](crate::stall).
///
/// # Errors
/// [`Error::Unfinished`] if it stays so for longer.
pub(crate) async fn wait_while_it_goes_on<T, S: PartialEq>(
    (clock, longest): (&impl Clock, u64),
    ready: impl Fn() -> Option<T>,
    progress: impl Fn() -> S,
) -> Result<T, Error> {
    // What was seen last, for how long it may stay so, and when it was looked at.
    let mut seen: Option<(S, u64, u64)> = None;
    poll_fn(|cx| {
        if let Some(ready) = ready() {
            return Poll::Ready(Ok(ready));
        }
        let (progress, now) = (progress(), clock.now());
        match &mut seen {
            Some((before, left, looked)) if *before == progress => {
                *left = left.saturating_sub(now.saturating_sub(*looked).min(LONGEST_LOOK));
                *looked = now;
                if *left == 0 {
                    return Poll::Ready(Err(Error::Unfinished));
                }
            }
            _ => seen = Some((progress, longest, now)),
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}
