//! Ties a client to the process that opened it. A forked child has a copy of the client, under the
//! same identity. If both used it, with one heap and one series of write numbers, each would
//! overwrite what the other wrote.
//!
//! **Invariant:** a child's copy of a client changes nothing that clients share (S7). An operation
//! checks its fabric when it begins, and, where it waits, in each poll: a child can get a copy only
//! between two polls. Dropping an operation unpins it, and dropping a client gives back memory, its
//! client slot and its connections, in the client's own process alone.
//!
//! The same check cuts off a client whose pool is [lost](swarm_core::fabric::EpochDomain::lost)
//! (S8), so that it costs common operations nothing. On such a pool, an operation that begins
//! observes another generation and drops all cached locations. So it leaves the fast path, and ends
//! here, whatever its outcome.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use swarm_core::clock::Clock;
use swarm_core::fabric::counting::Counting;
use swarm_core::fabric::{Fabric, Lost};

use crate::client::handle::Client;
use crate::error::Error;

pin_project! {
    /// An operation that ends in [`Error::Forked`] if it is polled in a child, and in
    /// [`Error::Destroyed`], [`Error::Gone`] or [`Error::CutShort`] if the client's pool is lost.
    #[must_use = "futures do nothing unless they are polled"]
    pub(crate) struct InOwnProcess<'c, F, T> {
        #[pin]
        operation: T,
        fabric: &'c Counting<F>,
        lost: &'c Cell<Option<Lost>>,
    }
}

impl<F: Fabric, V, T: Future<Output = Result<V, Error>>> Future for InOwnProcess<'_, F, T> {
    type Output = T::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = self.project();
        // S7: in a child, nothing is polled.
        if this.fabric.is_cut_off() {
            return Poll::Ready(Err(cut_off(this.lost.get())));
        }
        let polled = this.operation.poll(cx);
        // S8: the operation observed the loss. What it did after that is lost, and must not be
        // acknowledged.
        if this.fabric.is_cut_off() {
            return Poll::Ready(Err(cut_off(this.lost.get())));
        }
        polled
    }
}

/// Returns why a client is cut off, by what became of its pool.
#[cold]
pub(crate) fn cut_off(lost: Option<Lost>) -> Error {
    match lost {
        None => Error::Forked,
        Some(Lost::Destroyed) => Error::Destroyed,
        Some(Lost::Removed) => Error::Gone,
        Some(Lost::CutShort) => Error::CutShort,
    }
}

impl<F: Fabric, C: Clock, P> Client<F, C, P> {
    /// Whether this is a child's copy of the client, or its pool is lost.
    #[inline(always)]
    pub(crate) fn is_cut_off(&self) -> bool {
        self.group.fabric().is_cut_off()
    }

    /// Returns why it is cut off.
    #[cold]
    pub(crate) fn why_cut_off(&self) -> Error {
        cut_off(self.lost.get())
    }

    /// Wraps `operation` so that it makes no progress once the client is cut off.
    #[inline]
    pub(crate) fn in_own_process<T>(&self, operation: T) -> InOwnProcess<'_, F, T> {
        InOwnProcess { operation, fabric: self.group.fabric(), lost: &self.lost }
    }
}
