//! A client is one process's. A child that this forks has a copy of it, under the same identity: with one heap
//! and one series of write numbers in two processes, each would write over what the other wrote.
//!
//! The invariant: *whatever a child does with its copy, nothing that clients share changes by it*. An operation
//! asks its fabric where it is once when it begins, and where it waits for something each time that it is polled;
//! between two polls alone can a child come by it. Dropping an operation takes its mark off the board, and dropping
//! a client gives back memory, its slot and its connections, in the client's own process alone.
//!
//! A client whose pool is [lost](swarm_core::fabric::Board::lost) is cut off by the same question, so that it costs the
//! common operations nothing: an operation that begins meets another generation, forgets what was remembered of
//! places, so that it is no common one any more, and ends here, whatever it came to.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use swarm_core::clock::Clock;
use swarm_core::fabric::counting::Counting;
use swarm_core::fabric::{Fabric, Lost};

use crate::client::Client;
use crate::error::Error;

pin_project! {
    /// An operation that ends in [`Error::Forked`] where it is polled in a child, and in [`Error::Destroyed`] or
    /// [`Error::Gone`] where the client's pool is lost.
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
        if this.fabric.is_cut_off() {
            return Poll::Ready(Err(cut_off(this.lost.get())));
        }
        let polled = this.operation.poll(cx);
        // It met that on its way: what it did after that, nobody finds.
        if this.fabric.is_cut_off() {
            return Poll::Ready(Err(cut_off(this.lost.get())));
        }
        polled
    }
}

/// Why a client is cut off whose pool is so.
#[cold]
fn cut_off(lost: Option<Lost>) -> Error {
    match lost {
        None => Error::Forked,
        Some(Lost::Destroyed) => Error::Destroyed,
        Some(Lost::Removed) => Error::Gone,
    }
}

impl<F: Fabric, C: Clock, P> Client<F, C, P> {
    /// Whether this is a child's copy of the client, or its pool is lost.
    #[inline(always)]
    pub(crate) fn is_cut_off(&self) -> bool {
        self.group.fabric().is_cut_off()
    }

    /// Why it is cut off.
    #[cold]
    pub(crate) fn why_cut_off(&self) -> Error {
        cut_off(self.lost.get())
    }

    /// `operation`, which a client that is cut off does not go on with.
    #[inline]
    pub(crate) fn in_own_process<T>(&self, operation: T) -> InOwnProcess<'_, F, T> {
        InOwnProcess { operation, fabric: self.group.fabric(), lost: &self.lost }
    }
}
