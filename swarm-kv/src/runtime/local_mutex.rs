//! An async mutex among the operations of one client, which run on one thread.
//!
//! The holder may be an operation whose future is never polled again: it lost a `select!` and was
//! kept. So an operation waits only as long as the holder makes progress.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use swarm_core::clock::Clock;

use crate::error::Error;
use crate::runtime::wait_budget::LONGEST_LOOK;

/// Admits one operation at a time.
#[derive(Default)]
pub(crate) struct LocalMutex {
    is_taken: Cell<bool>,
    /// Steps of all holders.
    steps: Cell<u64>,
}

/// Holds the mutex until it is dropped.
pub(crate) struct LocalMutexGuard<'a>(&'a LocalMutex);

impl LocalMutex {
    /// Waits for the mutex, as long as its holder takes at most `longest` nanoseconds for each
    /// [step](Self::goes_on).
    ///
    /// # Errors
    /// [`Error::Unfinished`] if the holder takes longer.
    pub(crate) async fn enter_within(
        &self,
        clock: &impl Clock,
        longest: u64,
    ) -> Result<LocalMutexGuard<'_>, Error> {
        wait_while_it_goes_on((clock, longest), || self.try_enter(), || self.steps.get()).await
    }

    /// Runs `inside` while holding the mutex. Each poll of it counts as a step, as all that it
    /// waits for has an end. So an operation gives up only on a holder that is not polled.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if the holder is not polled for `longest` nanoseconds; then nothing of
    /// `inside` is done.
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

    /// Takes the mutex if it is free.
    pub(crate) fn try_enter(&self) -> Option<LocalMutexGuard<'_>> {
        if self.is_taken.replace(true) {
            return None;
        }
        self.goes_on();
        Some(LocalMutexGuard(self))
    }

    /// Counts a step of the holder.
    pub(crate) fn goes_on(&self) {
        self.steps.set(self.steps.get() + 1);
    }
}

impl Drop for LocalMutexGuard<'_> {
    fn drop(&mut self) {
        self.0.is_taken.set(false);
    }
}

/// Waits until `ready` returns something. `progress` may stay the same for `longest` nanoseconds,
/// not counting time in which this client had no processor: see
/// [`wait_budget`](crate::runtime::wait_budget).
///
/// # Errors
/// [`Error::Unfinished`] if it stays the same for longer.
pub(crate) async fn wait_while_it_goes_on<T, S: PartialEq>(
    (clock, longest): (&impl Clock, u64),
    ready: impl Fn() -> Option<T>,
    progress: impl Fn() -> S,
) -> Result<T, Error> {
    // What `progress` returned last, for how long it may stay so, and when it was read.
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

    /// A holder that is polled is waited for, however long it takes.
    #[test]
    fn a_polled_operation_is_waited_for_and_a_kept_one_is_not() {
        let (gate, clock) = (LocalMutex::default(), Hand(Cell::new(0)));
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
