//! A few futures side by side.
//!
//! For a bucket's entries and the like: each is polled whenever one of them may go on. For many, `futures_util` knows
//! which one that is, and takes ten times the code for each kind of future.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A future, or what it came to.
enum Branch<W, T> {
    GoesOn(Pin<Box<W>>),
    Ended(T),
}

/// What `futures` come to, in their order; they begin in it, too, at the first poll.
///
/// # Errors
/// The first error of any of them. The others are dropped.
///
/// # Cancel safety
/// As for each of them.
pub(crate) async fn try_join_all<T, E, W: Future<Output = Result<T, E>>>(
    futures: impl IntoIterator<Item = W>,
) -> Result<Vec<T>, E> {
    let mut branches: Vec<Branch<W, T>> = Vec::new();
    for future in futures {
        branches.push(Branch::GoesOn(Box::pin(future)));
    }
    poll_fn(|cx| {
        let mut outcome = Poll::Ready(Ok(()));
        for branch in &mut branches {
            let Branch::GoesOn(future) = branch else { continue };
            match future.as_mut().poll(cx) {
                Poll::Pending => outcome = Poll::Pending,
                Poll::Ready(Ok(value)) => *branch = Branch::Ended(value),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            }
        }
        outcome
    })
    .await?;
    let mut values = Vec::with_capacity(branches.len());
    for branch in branches {
        if let Branch::Ended(value) = branch {
            values.push(value);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::future::ready;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    /// Ends at its `polls`th poll; each is noted.
    async fn after(polls: u32, number: u32, met: &RefCell<Vec<u32>>) -> Result<u32, u32> {
        let mut left = polls;
        poll_fn(|_| {
            met.borrow_mut().push(number);
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if number < 10 { Ok(number) } else { Err(number) }
    }

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn all_go_on_at_the_same_time_and_return_in_order() {
        let met = RefCell::default();
        let mut all = pin!(try_join_all([after(3, 1, &met), after(1, 2, &met), after(2, 3, &met)]));
        assert!(poll(all.as_mut()).is_pending());
        assert_eq!(met.take(), [1, 2, 3], "each has begun");
        assert!(poll(all.as_mut()).is_pending());
        assert_eq!(met.take(), [1, 3], "one that has ended is not polled");
        assert_eq!(poll(all.as_mut()), Poll::Ready(Ok(vec![1, 2, 3])));
        assert_eq!(met.take(), [1]);
    }

    #[test]
    fn the_first_error_ends_all() {
        let met = RefCell::default();
        let mut all =
            pin!(try_join_all([after(9, 1, &met), after(2, 10, &met), after(9, 3, &met)]));
        assert!(poll(all.as_mut()).is_pending());
        assert_eq!(poll(all.as_mut()), Poll::Ready(Err(10)));
        assert_eq!(met.take(), [1, 10, 3, 1, 10]);
    }

    #[test]
    fn none_are_over_at_once() {
        let all = pin!(try_join_all([(); 0].map(|()| ready(Ok::<(), ()>(())))));
        assert_eq!(poll(all), Poll::Ready(Ok(vec![])));
    }
}
