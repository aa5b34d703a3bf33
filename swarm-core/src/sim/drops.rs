//! Operations that are dropped before they end.

use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::Poll;

/// Returns what `operation` returns, or `None` if it is dropped without an answer after `polls`
/// polls.
pub async fn dropped_after<T>(polls: Option<u32>, operation: impl Future<Output = T>) -> Option<T> {
    let (mut operation, mut polled) = (pin!(operation), 0);
    poll_fn(|cx| {
        polled += 1;
        if polls.is_some_and(|polls| polled > polls) {
            return Poll::Ready(None);
        }
        operation.as_mut().poll(cx).map(Some)
    })
    .await
}
