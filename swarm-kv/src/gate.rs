//! One at a time: a lock among the operations of one client, which run in turn on one thread.
//!
//! Who is inside may be an operation that nobody polls any more: a future that lost a `select!` and was kept. So whoever
//! waits does so only as long as what it waits for goes on.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
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
    /// Waits until no one is inside, while who is takes no longer than so many nanoseconds for a
    /// [step](Self::goes_on).
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

    /// What `inside` comes to, with no one else inside: each poll of it is a step, since what it waits for itself has an
    /// end. Whoever waits gives up on one that is not polled, and on no other.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if who is inside is not polled for so many nanoseconds; then nothing of `inside` is done.
    pub(crate) async fn pass<T>(
        &self,
        clock: &impl Clock,
        longest: u64,
        inside: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let _inside = self.enter_within(clock, longest).await?;
        let mut inside = pin!(inside);
        poll_fn(|cx| {
            self.goes_on();
            inside.as_mut().poll(cx)
        })
        .await
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

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use super::*;

    struct Hand(Cell<u64>);

    impl Clock for Hand {
        fn now(&self) -> u64 {
            self.0.get()
        }
    }

    type Operation<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;

    fn poll(operation: &mut Operation<'_>) -> Poll<Result<(), Error>> {
        operation.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// However long it takes.
    #[test]
    fn who_is_polled_is_waited_for_and_who_is_kept_is_not() {
        let (gate, clock) = (Gate::default(), Hand(Cell::new(0)));
        let inside = |ends: bool| -> Operation<'_> {
            Box::pin(gate.pass(
                &clock,
                100,
                async move { if ends { Ok(()) } else { pending().await } },
            ))
        };
        let (mut first, mut second) = (inside(false), inside(true));
        for _ in 0..10 {
            clock.0.set(clock.0.get() + 99);
            assert!(poll(&mut first).is_pending());
            assert!(poll(&mut second).is_pending(), "the first one goes on");
        }
        clock.0.set(clock.0.get() + 99);
        assert!(poll(&mut second).is_pending());
        clock.0.set(clock.0.get() + 1);
        assert_eq!(poll(&mut second), Poll::Ready(Err(Error::Unfinished)));
        drop(first);
        assert_eq!(poll(&mut inside(true)), Poll::Ready(Ok(())));
    }
}
