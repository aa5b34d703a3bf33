//! A fabric whose nodes are further away.
//!
//! A chain takes effect when it is posted, and its completion is returned one roundtrip later. The
//! caller polls meanwhile: nothing here sleeps, since a roundtrip is shorter than any sleep.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::interface::{Fabric, Store, Swap, Verb};
use crate::clock::Clock;
use crate::node::{Address, NodeId};

/// A fabric that returns each completion a roundtrip after its chain was posted.
#[derive(Clone, Debug)]
pub struct Delayed<F, C> {
    inner: F,
    clock: C,
    roundtrip: u64,
    /// Whether it adds no delay, so that it is synchronous if the fabric behind it is.
    absent: bool,
}

impl<F, C> Delayed<F, C> {
    /// Wraps `inner`, with completions `roundtrip` nanoseconds after the post. With 0, nothing
    /// waits.
    pub fn new(inner: F, clock: C, roundtrip: u64) -> Self {
        Self { inner, clock, roundtrip, absent: false }
    }

    /// Wraps `inner` unchanged and as synchronous as it is, for programs that use both and compile
    /// their code once.
    pub fn absent(inner: F, clock: C) -> Self {
        Self { absent: true, ..Self::new(inner, clock, 0) }
    }

    /// Returns the fabric behind this one.
    pub fn inner(&self) -> &F {
        &self.inner
    }
}

/// A pending chain that does not complete before its time.
#[derive(Debug)]
pub struct DelayedCompletion<'f, C, T> {
    inner: T,
    clock: &'f C,
    due: Option<u64>,
}

impl<C: Clock, T: Future + Unpin> Future for DelayedCompletion<'_, C, T> {
    type Output = T::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        let this = self.get_mut();
        if let Some(due) = this.due {
            if this.clock.now() < due {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            this.due = None;
        }
        Pin::new(&mut this.inner).poll(cx)
    }
}

impl<F: Fabric, C: Clock> Fabric for Delayed<F, C> {
    type EpochDomain = F::EpochDomain;
    type Reply<'f>
        = F::Reply<'f>
    where
        Self: 'f;
    type Completion<'f>
        = DelayedCompletion<'f, C, F::Completion<'f>>
    where
        Self: 'f;

    #[inline(always)]
    fn is_near(&self) -> bool {
        self.absent && self.inner.is_near()
    }

    #[inline]
    fn nodes(&self) -> usize {
        self.inner.nodes()
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
    fn posted(&self) -> u64 {
        self.inner.posted()
    }

    #[inline(always)]
    fn oldest_under_way(&self) -> u64 {
        self.inner.oldest_under_way()
    }

    #[inline]
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        // Reads the clock first, so that the roundtrip includes the time that the fabric behind it
        // needs to post.
        let due = (self.roundtrip > 0).then(|| self.clock.now() + self.roundtrip);
        DelayedCompletion { inner: self.inner.post(node, chain), clock: &self.clock, due }
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

    fn drain(&self) {
        self.inner.drain();
    }

    #[inline]
    fn post_deferred(&self, node: NodeId, chain: &[Verb<'_>]) {
        self.inner.post_deferred(node, chain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::loopback::Loopback;
    use core::cell::Cell;
    use core::task::Waker;

    struct Hand(Cell<u64>);

    impl Clock for Hand {
        fn now(&self) -> u64 {
            self.0.get()
        }
    }

    #[test]
    fn takes_effect_at_once_and_completes_a_roundtrip_later() {
        let clock = Hand(Cell::new(5));
        let near = Loopback::new(1, 8);
        let far = Delayed::new(near.clone(), &clock, 100);
        let mut cx = Context::from_waker(Waker::noop());
        let mut posted = far.post(NodeId(0), &[Verb::Cas { at: Address(2), expect: 0, new: 7 }]);
        assert_eq!(near.word(NodeId(0), Address(2)), 7);
        clock.0.set(104);
        assert!(Pin::new(&mut posted).poll(&mut cx).is_pending());
        clock.0.set(105);
        assert_eq!(Pin::new(&mut posted).poll(&mut cx), Poll::Ready(Ok(std::vec![0])));
    }
}
