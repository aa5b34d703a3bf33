//! One at a time: a lock among the operations of one client, which run in turn on one thread.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

/// Lets one operation in at a time.
#[derive(Default)]
pub(crate) struct Gate(Cell<bool>);

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

    /// Enters if no one is inside.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        (!self.0.replace(true)).then(|| Inside(self))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.set(false);
    }
}
