//! Futures of posted chains, and their replies.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use swarm_core::fabric::NodeDown;

use crate::fabric::RdmaFabric;
use crate::fabric::replies::Extent;
use crate::verbs::Slot;

/// Where the words of a reply lie.
pub(crate) enum Words<'f> {
    Lent { fabric: &'f RdmaFabric, slot: Option<Slot>, extent: Extent },
    Moved(Box<[u64]>),
    None,
}

/// The results of a chain's verbs. Dropping it returns the slot to the fabric.
pub struct Reply<'f>(pub(crate) Words<'f>);

impl Deref for Reply<'_> {
    type Target = [u64];

    #[inline]
    fn deref(&self) -> &[u64] {
        match &self.0 {
            Words::Lent { fabric, slot: Some(slot), extent } => fabric.words(slot, *extent),
            Words::Moved(words) => words,
            Words::Lent { slot: None, .. } | Words::None => &[],
        }
    }
}

impl Drop for Reply<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Words::Lent { fabric, slot, .. } = &mut self.0
            && let Some(slot) = slot.take()
        {
            fabric.give(slot);
        }
    }
}

impl std::fmt::Debug for Reply<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// A posted chain. Dropping it detaches the chain, which still runs.
pub struct Completion<'f>(pub(crate) State<'f>);

/// The state of a posted chain.
pub(crate) enum State<'f> {
    Pending { fabric: &'f RdmaFabric, ticket: u32 },
    Empty,
    Over,
}

impl<'f> Future for Completion<'f> {
    type Output = Result<Reply<'f>, NodeDown>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let State::Pending { fabric, ticket } = self.0 else {
            return Poll::Ready(match std::mem::replace(&mut self.0, State::Over) {
                State::Empty => Ok(Reply(Words::None)),
                _ => Err(NodeDown),
            });
        };
        let mut redeemed = fabric.redeem(ticket);
        if redeemed.is_none() && fabric.progress() {
            redeemed = fabric.redeem(ticket);
            fabric.busy();
        }
        if let Some(reply) = redeemed {
            self.0 = State::Over;
            return Poll::Ready(reply);
        }
        fabric.idle();
        // No thread wakes tasks: a task that waits for a completion polls.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for Completion<'_> {
    #[inline]
    fn drop(&mut self) {
        if let State::Pending { fabric, ticket } = self.0 {
            fabric.detach(ticket);
        }
    }
}

impl std::fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Completion")
    }
}
