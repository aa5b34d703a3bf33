//! A fabric that counts what operations cost.
//!
//! Roundtrips are the length of an operation's causal chain. A chain posted when the operation has
//! consumed completions of depth d has depth d + 1. An operation's roundtrips are the largest depth
//! that it consumed. Chains that it posts and drops cost verbs and bytes but no roundtrip.
//!
//! A client's operations are polled one at a time, so the operation that is being polled is
//! charged: [`Counting::track`] installs its cost around each poll.

use core::cell::Cell;
use core::future::Future;
use core::ops::{Add, AddAssign};
use core::pin::Pin;
use core::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::interface::{Fabric, Store, Swap, Verb};
use crate::node::{Address, NodeId};

/// The cost of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpCost {
    /// Length of the causal chain.
    pub roundtrips: u32,
    /// Verbs posted.
    pub verbs: u64,
    /// Payload bytes moved, as [`Verb::bytes`] counts them.
    pub bytes: u64,
}

impl Add for OpCost {
    type Output = Self;

    /// Returns the cost of both, one after the other.
    #[inline]
    fn add(self, other: Self) -> Self {
        Self {
            roundtrips: self.roundtrips + other.roundtrips,
            verbs: self.verbs + other.verbs,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl AddAssign for OpCost {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// The cost that was charged before an operation [began](Counting::begin).
#[must_use = "goes back with `Counting::pause`"]
#[derive(Debug)]
pub struct Others(OpCost);

/// A fabric that counts roundtrips, verbs and bytes.
#[derive(Debug)]
pub struct Counting<F> {
    inner: F,
    current: Cell<OpCost>,
    /// The depth of the replies on which chains that are posted together depend.
    base: Cell<Option<u32>>,
}

impl<F> Counting<F> {
    /// Wraps `inner`.
    pub fn new(inner: F) -> Self {
        Self { inner, current: Cell::default(), base: Cell::default() }
    }

    /// Returns the fabric behind this one.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// Runs `operation` and returns what it cost. Tracked operations may be interleaved, and a
    /// tracked operation may track a part of itself, which is then charged to that part alone.
    ///
    /// # Cancel safety
    /// That of `operation`.
    #[inline]
    pub fn track<T: Future>(&self, operation: T) -> Tracked<'_, F, T> {
        self.track_on(OpCost::default(), operation)
    }

    /// [`track`](Self::track) for the rest of an operation whose start cost `begun`.
    #[inline]
    pub fn track_on<T: Future>(&self, begun: OpCost, operation: T) -> Tracked<'_, F, T> {
        Tracked { operation, counting: self, own: begun }
    }

    /// Charges what follows to an operation that begins here, until [`pause`](Self::pause). Its
    /// rest is for [`track_on`](Self::track_on). Nothing must be awaited in between.
    #[inline(always)]
    pub fn begin(&self) -> Others {
        Others(self.current.replace(OpCost::default()))
    }

    /// Returns what was posted and consumed since `begin`, and charges the others again.
    #[inline(always)]
    pub fn pause(&self, Others(others): Others) -> OpCost {
        self.current.replace(others)
    }

    /// Makes `part` a branch of the operation that is being tracked. The branch's causal chain
    /// starts here and lengthens the operation's only if it is the longer one. Branches that are
    /// polled together cost what they cost concurrently, even if completions are immediate.
    ///
    /// # Cancel safety
    /// That of `part`.
    #[inline]
    pub fn branch<T: Future>(&self, part: T) -> impl Future<Output = T::Output> {
        let begin = self.current.get().roundtrips;
        let own = OpCost { roundtrips: begin, ..OpCost::default() };
        let tracked = self.track_on(own, part);
        async move {
            let (output, own) = tracked.await;
            self.consumed(own.roundtrips);
            let sum = self.current.get();
            let (verbs, bytes) = (sum.verbs + own.verbs, sum.bytes + own.bytes);
            self.current.set(OpCost { verbs, bytes, ..sum });
            output
        }
    }

    /// Returns the cost of what was done outside of every tracked operation, as if it were one.
    pub fn untracked(&self) -> OpCost {
        self.current.get()
    }

    #[inline(always)]
    fn posted(&self, chain: &[Verb<'_>]) -> u32 {
        let mut tally = self.current.get();
        tally.verbs += chain.len() as u64;
        for verb in chain {
            tally.bytes += verb.bytes() as u64;
        }
        self.current.set(tally);
        self.base.get().unwrap_or(tally.roundtrips) + 1
    }

    #[inline(always)]
    fn consumed(&self, depth: u32) {
        let mut tally = self.current.get();
        tally.roundtrips = tally.roundtrips.max(depth);
        self.current.set(tally);
    }
}

pin_project! {
    /// An operation that is being counted: see [`Counting::track`].
    #[must_use = "futures do nothing unless they are polled"]
    pub struct Tracked<'f, F, T> {
        #[pin]
        operation: T,
        counting: &'f Counting<F>,
        own: OpCost,
    }
}

impl<F, T: Future> Future for Tracked<'_, F, T> {
    type Output = (T::Output, OpCost);

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let others = this.counting.current.replace(*this.own);
        let polled = this.operation.poll(cx);
        *this.own = this.counting.current.replace(others);
        polled.map(|output| (output, *this.own))
    }
}

/// A pending chain, and its depth in its operation's causal chain.
#[derive(Debug)]
pub struct CountedCompletion<'f, F, T> {
    inner: T,
    counting: &'f Counting<F>,
    depth: u32,
}

impl<F, T: Future + Unpin> Future for CountedCompletion<'_, F, T> {
    type Output = T::Output;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.inner).poll(cx);
        if polled.is_ready() {
            this.counting.consumed(this.depth);
        }
        polled
    }
}

impl<F: Fabric> Fabric for Counting<F> {
    type EpochDomain = F::EpochDomain;
    type Reply<'f>
        = F::Reply<'f>
    where
        Self: 'f;
    type Completion<'f>
        = CountedCompletion<'f, F, F::Completion<'f>>
    where
        Self: 'f;

    #[inline(always)]
    fn is_near(&self) -> bool {
        self.inner.is_near()
    }

    #[inline(always)]
    fn is_cut_off(&self) -> bool {
        self.inner.is_cut_off()
    }

    fn cut_off(&self) {
        self.inner.cut_off();
    }

    fn reconfigure(&self) {
        self.inner.reconfigure();
    }

    #[inline]
    fn nodes(&self) -> usize {
        self.inner.nodes()
    }

    #[inline(always)]
    fn posted(&self) -> u64 {
        self.inner.posted()
    }

    #[inline(always)]
    fn oldest_under_way(&self) -> u64 {
        self.inner.oldest_under_way()
    }

    #[inline(always)]
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        let depth = self.posted(chain);
        CountedCompletion { inner: self.inner.post(node, chain), counting: self, depth }
    }

    fn drain(&self) {
        self.inner.drain();
    }

    #[inline(always)]
    fn post_deferred(&self, node: NodeId, chain: &[Verb<'_>]) {
        self.posted(chain);
        self.inner.post_deferred(node, chain);
    }

    #[inline(always)]
    fn expect(&self, node: NodeId, at: Address, words: usize) {
        self.inner.expect(node, at, words);
    }

    #[inline(always)]
    fn expect_change(&self, node: NodeId, at: Address, words: usize) {
        self.inner.expect_change(node, at, words);
    }

    #[inline(always)]
    fn prefetch_local<T>(&self, local: &T) {
        self.inner.prefetch_local(local);
    }

    #[inline(always)]
    fn load<const N: usize>(&self, node: NodeId, at: Address) -> Option<[u64; N]> {
        self.inner.load(node, at)
    }

    #[inline(always)]
    fn fetch(&self, node: NodeId, at: Address, words: usize) -> Option<F::Reply<'_>> {
        self.inner.fetch(node, at, words)
    }

    #[inline(always)]
    fn write_cas_load<const N: usize>(
        &self,
        node: NodeId,
        store: Store<'_>,
        swap: Swap,
        at: Address,
    ) -> Option<(u64, [u64; N])> {
        self.inner.write_cas_load(node, store, swap, at)
    }

    #[inline(always)]
    fn write_cas_cas(&self, node: NodeId, store: Store<'_>, swaps: [Swap; 2]) -> Option<u64> {
        self.inner.write_cas_cas(node, store, swaps)
    }

    #[inline(always)]
    fn write_cas(&self, node: NodeId, store: Option<Store<'_>>, swap: Swap) {
        self.inner.write_cas(node, store, swap);
    }

    #[inline(always)]
    fn clear<const N: usize>(&self, node: NodeId, at: &[Address]) -> Option<()> {
        self.inner.clear::<N>(node, at)
    }

    #[inline(always)]
    fn charge(&self, verbs: usize, bytes: usize) {
        let (verbs, bytes) = (verbs as u64, bytes as u64);
        self.current.set(self.current.get() + OpCost { roundtrips: 1, verbs, bytes });
    }

    #[inline(always)]
    fn together<T>(&self, post: impl FnOnce() -> T) -> T {
        self.base.set(Some(self.current.get().roundtrips));
        let posted = post();
        self.base.set(None);
        posted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::loopback::Loopback;
    use core::future::poll_fn;
    use core::pin::pin;
    use core::task::Waker;

    const READ: [Verb<'static>; 1] = [Verb::Read { at: Address(0), words: 2 }];

    fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Lets others run once.
    async fn turn() {
        let mut first = true;
        poll_fn(|_| if core::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) })
            .await;
    }

    #[test]
    fn rounds_in_parallel_are_one_roundtrip_and_dropped_chains_none() {
        let fabric = Counting::new(Loopback::new(3, 8));
        let operation = fabric.track(async {
            let (one, two) = (fabric.post(NodeId(0), &READ), fabric.post(NodeId(1), &READ));
            one.await.expect("node 0 is up");
            two.await.expect("node 1 is up");
            drop(fabric.post(NodeId(2), &READ));
            let tail = [1; 5];
            let write = Verb::Write { at: Address(0), head: &[1, 2], tail: &tail };
            fabric.post(NodeId(0), &[write, READ[0]]).await.expect("node 0 is up");
        });
        let Poll::Ready(((), tally)) = poll(pin!(operation)) else { panic!("nothing waits") };
        assert_eq!(tally, OpCost { roundtrips: 2, verbs: 5, bytes: 4 * 16 + 21 });
        assert_eq!(fabric.untracked(), OpCost::default());
    }

    /// Without costs of their own, each would be charged for both.
    #[test]
    fn operations_that_take_turns_are_charged_apart() {
        let fabric = Counting::new(Loopback::new(1, 8));
        let posts = &fabric;
        let run = |rounds: u32| {
            fabric.track(async move {
                for _ in 0..rounds {
                    let chain = posts.post(NodeId(0), &READ);
                    turn().await;
                    chain.await.expect("node 0 is up");
                    turn().await;
                }
            })
        };
        let (mut two, mut five) = (pin!(run(2)), pin!(run(5)));
        let (mut tally_two, mut tally_five) = (None, None);
        for _ in 0..20 {
            if tally_two.is_none()
                && let Poll::Ready(((), tally)) = poll(two.as_mut())
            {
                tally_two = Some(tally);
            }
            if tally_five.is_none()
                && let Poll::Ready(((), tally)) = poll(five.as_mut())
            {
                tally_five = Some(tally);
            }
        }
        let of = |rounds: u32| OpCost {
            roundtrips: rounds,
            verbs: u64::from(rounds),
            bytes: 16 * u64::from(rounds),
        };
        assert_eq!((tally_two, tally_five), (Some(of(2)), Some(of(5))));
    }
}
