//! The fabric: what the protocols ask of memory nodes.
//!
//! A memory node offers words and runs no code. A *verb* reads, writes or compares-and-swaps words
//! of one node; a *chain* is a few verbs for one node that take effect in order and cost one
//! roundtrip together. Only a single word is atomic: a READ or WRITE of several words may tear
//! against other verbs and may meet its words in any order. Everything above rests on that and on
//! nothing more.
//!
//! Bytes lie in words in little-endian order.

use core::fmt;
use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use super::board::Board;
use crate::node::{Address, NodeId};

/// The most verbs that a chain may hold.
pub const MAX_VERBS: usize = 12;

#[cfg(target_endian = "big")]
compile_error!("words are little-endian; big-endian hosts are not supported");

/// One access to a node's memory.
#[derive(Clone, Copy, Debug)]
pub enum Verb<'a> {
    /// Yields the `words` words from `at` on.
    Read {
        /// First word.
        at: Address,
        /// How many words.
        words: usize,
    },
    /// Stores `head`, then the bytes of `tail` (the last word filled up with zero bytes), from
    /// `at` on. Two parts so that a header and a value need not be copied together first. Yields
    /// nothing.
    Write {
        /// First word.
        at: Address,
        /// Words that come first.
        head: &'a [u64],
        /// Bytes behind them.
        tail: &'a [u8],
    },
    /// Compares-and-swaps the word at `at`. Yields one word: what was there before. It took
    /// effect if that is `expect`.
    Cas {
        /// The word.
        at: Address,
        /// Swap only if this is there.
        expect: u64,
        /// What to put there.
        new: u64,
    },
}

impl Verb<'_> {
    /// How many words of the reply are this verb's.
    pub fn yields(&self) -> usize {
        match *self {
            Verb::Read { words, .. } => words,
            Verb::Write { .. } => 0,
            Verb::Cas { .. } => 1,
        }
    }

    /// How many payload bytes this verb moves.
    pub fn bytes(&self) -> usize {
        match *self {
            Verb::Read { words, .. } => words * 8,
            Verb::Write { head, tail, .. } => head.len() * 8 + tail.len(),
            Verb::Cas { .. } => 8,
        }
    }
}

/// What a WRITE stores: see [`Verb::Write`].
#[derive(Clone, Copy, Debug)]
pub struct Store<'a> {
    /// First word.
    pub at: Address,
    /// Words that come first.
    pub head: &'a [u64],
    /// Bytes behind them.
    pub tail: &'a [u8],
}

impl<'a> From<Store<'a>> for Verb<'a> {
    fn from(Store { at, head, tail }: Store<'a>) -> Self {
        Verb::Write { at, head, tail }
    }
}

/// What a CAS compares and swaps: see [`Verb::Cas`].
#[derive(Clone, Copy, Debug)]
pub struct Swap {
    /// The word.
    pub at: Address,
    /// Swap only if this is there.
    pub expect: u64,
    /// What to put there.
    pub new: u64,
}

impl From<Swap> for Verb<'_> {
    fn from(Swap { at, expect, new }: Swap) -> Self {
        Verb::Cas { at, expect, new }
    }
}

/// The node is known not to answer. It is a missing vote, not a failure of the operation; whether
/// the chain took effect is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeDown;

impl fmt::Display for NodeDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory node does not answer")
    }
}

impl core::error::Error for NodeDown {}

/// Access to the memory nodes of one replica group, for one client.
///
/// A fabric is used by one thread at a time. All chains that one fabric posts to one node take
/// effect in the order in which they were posted.
pub trait Fabric {
    /// Where its clients see each other's operations; [`NoBoard`](crate::fabric::board::NoBoard) where they
    /// cannot, and memory does not come back.
    type Board: Board;

    /// What the verbs of a chain yielded, one after the other. The words lie in memory that the
    /// fabric owns; dropping the reply gives it back.
    type Reply<'f>: Deref<Target = [u64]>
    where
        Self: 'f;

    /// A posted chain. Dropping it detaches the chain, which still runs.
    type Completion<'f>: Future<Output = Result<Self::Reply<'f>, NodeDown>> + Unpin
    where
        Self: 'f;

    /// Whether memory is near: a chain is done, and its completion ready, when `post` returns. It is so
    /// for all of a fabric's life, or never.
    #[inline(always)]
    fn is_near(&self) -> bool {
        false
    }

    /// Whether its client may post nothing any more: this process is a copy that a `fork` made of the one in
    /// which the fabric was made, or the client was [cut off](Self::cut_off).
    #[inline(always)]
    fn is_cut_off(&self) -> bool {
        false
    }

    /// The pool is [lost](crate::fabric::Board::lost): its client posts nothing any more. For fabrics whose
    /// boards may say so.
    fn cut_off(&self) {}

    /// How many nodes there are: 1, 3, 5 or 7.
    fn nodes(&self) -> usize;

    /// Posts a chain of at most [`MAX_VERBS`] verbs, at once: it will take effect, awaited or not.
    /// What the chain refers to is copied before this returns.
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f>;

    /// Posts a chain of at most [`MAX_VERBS`] verbs whose reply nobody wants: a step in the
    /// background. It keeps its place among the chains posted to the node, but where memory is far
    /// it may wait for the next of them, to go out together with it.
    #[inline(always)]
    fn post_aside(&self, node: NodeId, chain: &[Verb<'_>]) {
        drop(self.post(node, chain));
    }

    /// Posts what waits for a next chain, and waits until nothing is under way, though not for ever.
    /// Where memory is near there is nothing to do.
    fn drain(&self) {}

    /// Says that words of `node` will be READ soon, where memory is near. Has no effect but time.
    #[inline(always)]
    fn expect(&self, _node: NodeId, _at: Address, _words: usize) {}

    /// Says that words of `node` will be changed soon, where memory is near. Has no effect but time.
    #[inline(always)]
    fn expect_change(&self, node: NodeId, at: Address, words: usize) {
        self.expect(node, at, words);
    }

    /// Says that `local` memory, which is this process's own, will be looked at soon. Has no effect but time.
    #[inline(always)]
    fn bring<T>(&self, _local: &T) {}

    /// A chain of one READ of `N` words, where memory is near: what it yields, or `None` where the node does not
    /// answer.
    ///
    /// This and the next three are the chains of the common operations. Each takes effect as [`post`](Self::post)
    /// would have it, which is what it does unless a fabric knows a shorter way; what they cost is for
    /// [`charge`](Self::charge) to say.
    #[inline]
    fn load<const N: usize>(&self, node: NodeId, at: Address) -> Option<[u64; N]> {
        done::<Self>(self.post(node, &[Verb::Read { at, words: N }]))?.first_chunk().copied()
    }

    /// The same of any number of words, in a reply.
    #[inline]
    fn fetch(&self, node: NodeId, at: Address, words: usize) -> Option<Self::Reply<'_>> {
        done::<Self>(self.post(node, &[Verb::Read { at, words }]))
    }

    /// A chain of WRITE, CAS and READ of `N` words, where memory is near: what the CAS found, and the words. `None`
    /// where the node does not answer, perhaps behind the WRITE.
    #[inline]
    fn write_cas_load<const N: usize>(
        &self,
        node: NodeId,
        store: Store<'_>,
        swap: Swap,
        at: Address,
    ) -> Option<(u64, [u64; N])> {
        let chain = [store.into(), swap.into(), Verb::Read { at, words: N }];
        let reply = done::<Self>(self.post(node, &chain))?;
        let (&found, words) = reply.split_first()?;
        Some((found, *words.first_chunk()?))
    }

    /// A chain of a WRITE, if there is one, and a CAS, as a step in the background, where memory is near.
    #[inline]
    fn write_cas(&self, node: NodeId, store: Option<Store<'_>>, swap: Swap) {
        match store {
            Some(store) => self.post_aside(node, &[store.into(), swap.into()]),
            None => self.post_aside(node, &[swap.into()]),
        }
    }

    /// Says what one roundtrip of [`load`](Self::load) and its like cost, where operations are counted.
    #[inline(always)]
    fn charge(&self, _verbs: usize, _bytes: usize) {}

    /// Says that the chains posted by `post` do not depend on one another's replies, even where
    /// those are there at once. Only fabrics that count mind.
    #[inline(always)]
    fn together<T>(&self, post: impl FnOnce() -> T) -> T {
        post()
    }

    /// How many chains were posted so far. Where memory is near, each is over when `post` returns,
    /// and none need be counted.
    #[inline(always)]
    fn posted(&self) -> u64 {
        0
    }

    /// The number of the oldest chain, awaited or not, that may still take effect, or
    /// [`posted`](Self::posted) if there is none. Chains count from 0.
    #[inline(always)]
    fn oldest_under_way(&self) -> u64 {
        self.posted()
    }
}

/// The reply of a chain to near memory.
#[inline(always)]
fn done<'f, F: Fabric + ?Sized + 'f>(mut chain: F::Completion<'f>) -> Option<F::Reply<'f>> {
    match Pin::new(&mut chain).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(reply)) => Some(reply),
        _ => None,
    }
}
