//! The fabric: what the protocols need of memory nodes.
//!
//! A memory node offers words and runs no code. A *verb* reads, writes or compares-and-swaps words
//! of one node. A *chain* is a few verbs for one node that take effect in order and cost one
//! roundtrip together. **Invariant:** only a single word is atomic: a READ or WRITE of several
//! words may tear against other verbs and may access its words in any order. All layers above
//! depend on that and on nothing more.
//!
//! Bytes lie in words in little-endian order.

use core::fmt;
use core::future::Future;
use core::ops::Deref;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use heapless::Vec;

use crate::fabric::epochs::EpochDomain;
use crate::node::{Address, NodeId};

/// Maximum number of verbs in a chain.
pub const MAX_VERBS: usize = 12;

#[cfg(target_endian = "big")]
compile_error!("words are little-endian; big-endian hosts are not supported");

/// One access to a node's memory.
#[derive(Clone, Copy, Debug)]
pub enum Verb<'a> {
    /// Returns the `words` words from `at` on.
    Read {
        /// First word.
        at: Address,
        /// Number of words.
        words: usize,
    },
    /// Stores `head`, then the bytes of `tail` (the last word filled up with zero bytes), from `at`
    /// on. Two parts, so that a header and a value need not be copied together first. Returns
    /// nothing.
    Write {
        /// First word.
        at: Address,
        /// Words that come first.
        head: &'a [u64],
        /// Bytes after them.
        tail: &'a [u8],
    },
    /// Compares-and-swaps the word at `at`. Returns one word: its value before. It took effect if
    /// that is `expect`.
    Cas {
        /// The word.
        at: Address,
        /// Swap only if the word is this.
        expect: u64,
        /// The word's new value.
        new: u64,
    },
}

impl Verb<'_> {
    /// Returns the number of this verb's words in the reply.
    pub fn yields(&self) -> usize {
        match *self {
            Verb::Read { words, .. } => words,
            Verb::Write { .. } => 0,
            Verb::Cas { .. } => 1,
        }
    }

    /// Returns the number of payload bytes that this verb moves.
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
    /// Bytes after them.
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
    /// Swap only if the word is this.
    pub expect: u64,
    /// The word's new value.
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
    /// What its clients share to agree on epochs; [`NoEpochs`](crate::fabric::epochs::NoEpochs) if
    /// there is no such thing, and memory is not reclaimed.
    type EpochDomain: EpochDomain;

    /// What the verbs of a chain returned, one after the other. The words lie in memory that the
    /// fabric owns; dropping the reply frees it.
    type Reply<'f>: Deref<Target = [u64]>
    where
        Self: 'f;

    /// A posted chain. Dropping it detaches the chain, which still runs.
    type Completion<'f>: Future<Output = Result<Self::Reply<'f>, NodeDown>> + Unpin
    where
        Self: 'f;

    /// Returns whether the fabric is synchronous: a chain is done, and its completion ready, when
    /// `post` returns. That is so for all of a fabric's life, or never.
    #[inline(always)]
    fn is_near(&self) -> bool {
        false
    }

    /// Returns whether its client may not post any more: this process is a `fork` of the one in
    /// which the fabric was made, or the client was [cut off](Self::cut_off).
    #[inline(always)]
    fn is_cut_off(&self) -> bool {
        false
    }

    /// Cuts the client off, as the pool is [lost](crate::fabric::EpochDomain::lost): it posts
    /// nothing any more. For fabrics whose epoch domains may report that.
    fn cut_off(&self) {}

    /// Takes up the pool's [configuration](crate::node::Configuration): from here on, chains to a
    /// node go to the memory of its present life, and a node that is filling is down. What was posted
    /// before has reached a former life or never takes effect. Called when an operation begins in
    /// another [generation](crate::fabric::EpochDomain::generation), before it posts anything, while
    /// others may be under way. For fabrics whose nodes may be replaced while clients work.
    fn reconfigure(&self) {}

    /// Returns the number of nodes: 1, 3, 5 or 7.
    fn nodes(&self) -> usize;

    /// Posts a chain of at most [`MAX_VERBS`] verbs, at once: it will take effect, awaited or not.
    /// What the chain refers to is copied before this returns.
    ///
    /// A verb that reaches outside of the node's memory has no effect, nor do those after it, and the
    /// chain completes with [`NodeDown`]. So does one that returns more words than the fabric's
    /// replies can hold, if they are bounded; whether its verbs take effect is then unknown.
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f>;

    /// Posts a chain of at most [`MAX_VERBS`] verbs whose reply is not needed. It keeps its place
    /// among the chains posted to the node, but an asynchronous fabric may delay it until the next
    /// of them, to send both together.
    #[inline(always)]
    fn post_deferred(&self, node: NodeId, chain: &[Verb<'_>]) {
        drop(self.post(node, chain));
    }

    /// Posts deferred chains, and waits until none is pending, for a limited time. Does nothing on
    /// synchronous fabrics.
    fn drain(&self) {}

    /// Prefetches words of `node` that will be READ soon, on synchronous fabrics. Affects only
    /// time.
    #[inline(always)]
    fn expect(&self, _node: NodeId, _at: Address, _words: usize) {}

    /// Prefetches words of `node` that will be changed soon, on synchronous fabrics. Affects only
    /// time.
    #[inline(always)]
    fn expect_change(&self, node: NodeId, at: Address, words: usize) {
        self.expect(node, at, words);
    }

    /// Prefetches `local` memory of this process that will be used soon. Affects only time.
    #[inline(always)]
    fn prefetch_local<T>(&self, _local: &T) {}

    /// Posts a chain of one READ of `N` words on a synchronous fabric. Returns the words, or `None`
    /// if the node does not answer.
    ///
    /// This and the next five are the chains of the common operations. Each takes effect as with
    /// [`post`](Self::post), which it calls unless a fabric has a shorter way. Their cost is
    /// reported by [`charge`](Self::charge).
    #[inline]
    fn load<const N: usize>(&self, node: NodeId, at: Address) -> Option<[u64; N]> {
        done::<Self>(self.post(node, &[Verb::Read { at, words: N }]))?.first_chunk().copied()
    }

    /// The same for any number of words, in a reply.
    #[inline]
    fn fetch(&self, node: NodeId, at: Address, words: usize) -> Option<Self::Reply<'_>> {
        done::<Self>(self.post(node, &[Verb::Read { at, words }]))
    }

    /// Posts a chain of WRITE, CAS and READ of `N` words on a synchronous fabric. Returns what the
    /// CAS found, and the words; `None` if the node does not answer, perhaps after the WRITE.
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

    /// Posts a chain of WRITE, CAS and CAS on a synchronous fabric. Returns what the second CAS found;
    /// `None` if the node does not answer, perhaps after some of it took effect.
    #[inline]
    fn write_cas_cas(&self, node: NodeId, store: Store<'_>, swaps: [Swap; 2]) -> Option<u64> {
        let [first, second] = swaps;
        let reply = done::<Self>(self.post(node, &[store.into(), first.into(), second.into()]))?;
        reply.get(1).copied()
    }

    /// Posts a chain of a WRITE, if there is one, and a CAS, deferred, on a synchronous fabric.
    #[inline]
    fn write_cas(&self, node: NodeId, store: Option<Store<'_>>, swap: Swap) {
        match store {
            Some(store) => self.post_deferred(node, &[store.into(), swap.into()]),
            None => self.post_deferred(node, &[swap.into()]),
        }
    }

    /// Posts a chain of WRITEs of `N` zeros each, at most [`MAX_VERBS`] of them, on a synchronous fabric. `None` if
    /// the node does not answer, perhaps after some of them.
    #[inline]
    fn clear<const N: usize>(&self, node: NodeId, at: &[Address]) -> Option<()> {
        done::<Self>(self.post(node, &writes(at, &[0; N]))).map(drop)
    }

    /// Reports what one roundtrip of [`load`](Self::load) and the like cost, if operations are
    /// counted.
    #[inline(always)]
    fn charge(&self, _verbs: usize, _bytes: usize) {}

    /// Declares that the chains posted by `post` do not depend on one another's replies, even if
    /// those are immediate. Matters only to fabrics that count.
    #[inline(always)]
    fn together<T>(&self, post: impl FnOnce() -> T) -> T {
        post()
    }

    /// Returns how many chains were posted so far. On a synchronous fabric each is over when `post`
    /// returns, and none need be counted.
    #[inline(always)]
    fn posted(&self) -> u64 {
        0
    }

    /// Returns the number of the oldest chain, awaited or not, that may still take effect, or
    /// [`posted`](Self::posted) if there is none. Chains count from 0.
    #[inline(always)]
    fn oldest_under_way(&self) -> u64 {
        self.posted()
    }
}

/// Returns the chain that WRITEs these words at each of these.
fn writes<'a>(at: &[Address], head: &'a [u64]) -> Vec<Verb<'a>, MAX_VERBS> {
    at.iter().map(|&at| Verb::Write { at, head, tail: &[] }).collect()
}

/// Returns the reply of a chain on a synchronous fabric.
#[inline(always)]
fn done<'f, F: Fabric + ?Sized + 'f>(mut chain: F::Completion<'f>) -> Option<F::Reply<'f>> {
    match Pin::new(&mut chain).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(reply)) => Some(reply),
        _ => None,
    }
}
