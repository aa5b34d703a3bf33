//! A fabric whose nodes can fail.
//!
//! A node that is *down* refuses chains at once, like one whose connection is gone. A *paused* node
//! ([`Frozen`](SwitchState::Frozen)) swallows them: they take no effect and never complete, as at a
//! node that is cut off or stopped. Chains that a paused node swallowed are lost for good even when
//! it resumes, as if the connection had been torn down and made again in between.
//!
//! Only the state at the post counts: a chain that a node took before it was paused is done.

use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::interface::{Fabric, NodeDown, Store, Swap, Verb};
use crate::node::{Address, MAX_NODES, NodeId};

/// Whether a node takes chains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SwitchState {
    /// It does.
    #[default]
    Up,
    /// It swallows them.
    Frozen,
    /// It refuses them.
    Down,
}

/// Determines for each node whether it takes chains.
pub trait Switches {
    /// Returns the state of `node`.
    fn state(&self, node: NodeId) -> SwitchState;

    /// Returns whether there are any switches: otherwise all nodes are up, for good.
    #[inline]
    fn are_any(&self) -> bool {
        true
    }
}

impl<S: Switches + ?Sized> Switches for &S {
    #[inline]
    fn state(&self, node: NodeId) -> SwitchState {
        (**self).state(node)
    }

    #[inline]
    fn are_any(&self) -> bool {
        (**self).are_any()
    }
}

/// Switches that one thread sets.
#[derive(Debug, Default)]
pub struct HandSwitches([Cell<SwitchState>; MAX_NODES]);

impl HandSwitches {
    /// Returns switches with all nodes up.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the state of `node`.
    pub fn set(&self, node: NodeId, state: SwitchState) {
        self.0[node.index()].set(state);
    }
}

impl Switches for HandSwitches {
    #[inline]
    fn state(&self, node: NodeId) -> SwitchState {
        self.0[node.index()].get()
    }
}

/// A fabric whose nodes are down or paused as `S` determines.
#[derive(Clone, Debug)]
pub struct Faulty<F, S> {
    inner: F,
    switches: S,
}

impl<F, S> Faulty<F, S> {
    /// Wraps `inner`, with its nodes under `switches`.
    pub fn new(inner: F, switches: S) -> Self {
        Self { inner, switches }
    }

    /// Returns the fabric behind this one.
    pub fn inner(&self) -> &F {
        &self.inner
    }

    /// Returns the switches.
    pub fn switches(&self) -> &S {
        &self.switches
    }
}

/// A chain that was posted, swallowed or refused.
#[derive(Debug)]
pub enum FaultyCompletion<T> {
    /// The node took it.
    Posted(T),
    /// The node was paused.
    Swallowed,
    /// The node was down.
    Refused,
}

impl<R, T: Future<Output = Result<R, NodeDown>> + Unpin> Future for FaultyCompletion<T> {
    type Output = Result<R, NodeDown>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Posted(chain) => Pin::new(chain).poll(cx),
            Self::Swallowed => Poll::Pending,
            Self::Refused => Poll::Ready(Err(NodeDown)),
        }
    }
}

impl<F: Fabric, S: Switches> Fabric for Faulty<F, S> {
    type EpochDomain = F::EpochDomain;
    type Reply<'f>
        = F::Reply<'f>
    where
        Self: 'f;
    type Completion<'f>
        = FaultyCompletion<F::Completion<'f>>
    where
        Self: 'f;

    /// Not synchronous with switches, as the common chains of synchronous fabrics do not check
    /// them.
    #[inline(always)]
    fn is_near(&self) -> bool {
        !self.switches.are_any() && self.inner.is_near()
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
        match self.switches.state(node) {
            SwitchState::Up => FaultyCompletion::Posted(self.inner.post(node, chain)),
            SwitchState::Frozen => FaultyCompletion::Swallowed,
            SwitchState::Down => FaultyCompletion::Refused,
        }
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
        if self.switches.state(node) == SwitchState::Up {
            self.inner.post_deferred(node, chain);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::loopback::Loopback;
    use core::task::Waker;

    #[test]
    fn chains_to_a_node_that_is_away_take_no_effect() {
        let near = Loopback::new(3, 8);
        let switches = HandSwitches::new();
        let fabric = Faulty::new(near.clone(), &switches);
        let mut cx = Context::from_waker(Waker::noop());
        let mut add = |node, state| {
            switches.set(node, state);
            let mut posted = fabric.post(node, &[Verb::Cas { at: Address(0), expect: 0, new: 1 }]);
            let polled = Pin::new(&mut posted).poll(&mut cx);
            (polled, near.word(node, Address(0)))
        };
        assert_eq!(add(NodeId(0), SwitchState::Down), (Poll::Ready(Err(NodeDown)), 0));
        assert_eq!(add(NodeId(0), SwitchState::Frozen), (Poll::Pending, 0));
        assert_eq!(add(NodeId(0), SwitchState::Up), (Poll::Ready(Ok(std::vec![0])), 1));
    }
}
