//! Writes of one key by one client, behind each other.
//!
//! A reader takes a writer's second stamp as proof that its first write is complete, so that a
//! client has one write at a time under way to a register.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::Client;

/// A write of a key that is under way.
pub(crate) struct Turn<'a> {
    writing: &'a RefCell<Vec<u64>>,
    hash: u64,
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut writing = self.writing.borrow_mut();
        if let Some(at) = writing.iter().position(|hash| *hash == self.hash) {
            writing.swap_remove(at);
        }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Waits until no other write of this client to the key is under way: a reader takes a
    /// writer's second stamp as proof that its first write is complete.
    pub(crate) async fn turn(&self, hash: u64) -> Turn<'_> {
        poll_fn(|cx| {
            self.turn_now(hash).map_or_else(
                || {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                },
                Poll::Ready,
            )
        })
        .await
    }

    /// The same, if no such write is under way.
    #[inline]
    pub(crate) fn turn_now(&self, hash: u64) -> Option<Turn<'_>> {
        let mut writing = self.writing.borrow_mut();
        if writing.contains(&hash) {
            return None;
        }
        writing.push(hash);
        Some(Turn { writing: &self.writing, hash })
    }
}
