//! A client is one process's. A child that this forks has a copy of it, under the same identity: with one heap
//! and one series of write numbers in two processes, each would write over what the other wrote.
//!
//! The invariant: *whatever a child does with its copy, nothing that clients share changes by it*. An operation
//! asks its fabric where it is once when it begins, and where it waits for something each time that it is polled;
//! between two polls alone can a child come by it. Dropping an operation takes its mark off the board, and dropping
//! a client gives back memory, its slot and its connections, in the client's own process alone.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use swarm_core::clock::Clock;
use swarm_core::counting::Counting;
use swarm_core::fabric::Fabric;

use crate::client::Client;
use crate::error::Error;

pin_project! {
    /// An operation that ends in [`Error::Forked`] where it is polled in a child.
    #[must_use = "futures do nothing unless they are polled"]
    pub(crate) struct InOwnProcess<'c, F, T> {
        #[pin]
        operation: T,
        fabric: &'c Counting<F>,
    }
}

impl<F: Fabric, V, T: Future<Output = Result<V, Error>>> Future for InOwnProcess<'_, F, T> {
    type Output = T::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = self.project();
        if this.fabric.is_forked() {
            return Poll::Ready(Err(Error::Forked));
        }
        this.operation.poll(cx)
    }
}

impl<F: Fabric, C: Clock, P> Client<F, C, P> {
    /// Whether this is a child's copy of the client.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.group.fabric().is_forked()
    }

    /// `operation`, which a child does not go on with.
    #[inline]
    pub(crate) fn in_own_process<T>(&self, operation: T) -> InOwnProcess<'_, F, T> {
        InOwnProcess { operation, fabric: self.group.fabric() }
    }
}
