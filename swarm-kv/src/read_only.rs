//! A fabric that never changes anything.
//!
//! Reads can write: a reader completes pending changes and locks guesses, which takes writes and a
//! client slot. This fabric posts READs only. It keeps what it would write in a local overlay on
//! what it READs, so the protocols run unchanged, to an end that only this client sees.
//! **Invariant:** no verb but READ leaves this fabric. So it needs no identity and disturbs no
//! client.
//! This client sees the effects of its own changes. If other clients change the same words
//! differently meanwhile, its view is wrong there: good enough to count, not to decide by.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::layout::Location;
use swarm_core::node::{Address, NodeId, NodeSet};
use zerocopy::IntoBytes;

/// A fabric whose changes only its own client sees.
pub(crate) struct ReadOnlyFabric<F> {
    inner: F,
    /// Words that this fabric would have changed.
    changed: RefCell<HashMap<(NodeId, u64), u64>>,
    /// What its READs have shown, one after the other, where that is kept.
    shown: Option<RefCell<Vec<Shown>>>,
    /// Nodes that it does without, as if they did not answer.
    left_out: NodeSet,
}

/// What a READ showed.
struct Shown {
    node: NodeId,
    at: Address,
    words: Vec<u64>,
}

/// A verb that owns its words.
enum Kept {
    Read { at: Address, words: usize },
    Write { at: Address, words: Vec<u64> },
    Cas { at: Address, expect: u64, new: u64 },
}

impl Kept {
    fn new(verb: &Verb<'_>) -> Self {
        match *verb {
            Verb::Read { at, words } => Self::Read { at, words },
            Verb::Write { at, head, tail } => {
                let first = head.len();
                let mut words = head.to_vec();
                words.resize(first + tail.len().div_ceil(8), 0);
                words[first..].as_mut_bytes()[..tail.len()].copy_from_slice(tail);
                Self::Write { at, words }
            }
            Verb::Cas { at, expect, new } => Self::Cas { at, expect, new },
        }
    }

    /// Returns the READ that is posted instead.
    fn look(&self) -> Verb<'static> {
        match *self {
            Self::Read { at, words } => Verb::Read { at, words },
            // A WRITE needs no reply, but must learn whether the node answers.
            Self::Write { at, .. } | Self::Cas { at, .. } => Verb::Read { at, words: 1 },
        }
    }
}

impl<F: Fabric> ReadOnlyFabric<F> {
    /// Makes a read-only view of `inner`.
    pub(crate) fn new(inner: F) -> Self {
        Self { inner, changed: RefCell::default(), shown: None, left_out: NodeSet::EMPTY }
    }

    /// The same, for a caller that wants to know whether it was right: see [`saw_what_was`](Self::saw_what_was).
    pub(crate) fn witness(inner: F) -> Self {
        Self { shown: Some(RefCell::default()), ..Self::new(inner) }
    }

    /// The same, for a client that goes without these nodes.
    pub(crate) fn without(self, left_out: NodeSet) -> Self {
        Self { left_out, ..self }
    }

    /// How many nodes answer a READ of what they all have at `place`, now, those that are left out
    /// among them.
    pub(crate) async fn answering(&self, place: &Location) -> usize {
        let mut answering = 0;
        for node in NodeSet::all(self.nodes()) {
            let read = [Verb::Read { at: place.at(node, self.nodes()), words: 1 }];
            answering += usize::from(self.inner.post(node, &read).await.is_ok());
        }
        answering
    }

    /// Whether all that was done through it rests on READs alone, and these were all true at one moment, which lies behind the last of them: none of its
    /// protocols has changed anything, not even for itself, and each READ shows once more what it showed. Not, if that was not kept.
    ///
    /// A word that shows the same twice has been the same all the while, as far as it matters here. The first words that a protocol reads are those of a
    /// bucket's cell. That is never used for anything else, and its word only grows. As long as it names a record, that stays, and so does what
    /// the record lists. So what a READ went by is not used for anything else between the two. While a register is the same one, its slots only grow, and what they name agrees
    /// with them or not (I5).
    pub(crate) async fn saw_what_was(&self) -> bool {
        let Some(shown) = self.shown.as_ref().filter(|_| self.changed.borrow().is_empty()) else {
            return false;
        };
        let shown = shown.take();
        for Shown { node, at, words } in &shown {
            let again = self.inner.post(*node, &[Verb::Read { at: *at, words: words.len() }]);
            if !again.await.is_ok_and(|again| again[..] == words[..]) {
                return false;
            }
        }
        true
    }

    /// Takes back all that it would have changed: what it READs next is what is there.
    pub(crate) fn forget(&self) {
        self.changed.borrow_mut().clear();
    }

    /// Returns the reply of a chain whose READs showed `seen`.
    fn run(&self, node: NodeId, chain: &[Kept], mut seen: &[u64]) -> Vec<u64> {
        let mut changed = self.changed.borrow_mut();
        let mut reply = Vec::new();
        for verb in chain {
            let Verb::Read { at: Address(at), words } = verb.look() else { continue };
            let (here, rest) = seen.split_at(words);
            seen = rest;
            if let Some(shown) = &self.shown {
                shown.borrow_mut().push(Shown { node, at: Address(at), words: here.to_vec() });
            }
            let now =
                here.iter().zip(at..).map(|(word, at)| *changed.get(&(node, at)).unwrap_or(word));
            match verb {
                Kept::Read { .. } => reply.extend(now),
                Kept::Write { words, .. } => {
                    changed.extend(words.iter().zip(at..).map(|(word, at)| ((node, at), *word)));
                }
                Kept::Cas { expect, new, .. } => {
                    let was: Vec<u64> = now.collect();
                    if was == [*expect] {
                        changed.insert((node, at), *new);
                    }
                    reply.extend(was);
                }
            }
        }
        reply
    }
}

/// A chain of a read-only fabric.
pub(crate) struct Looking<'f, F: Fabric + 'f> {
    of: &'f ReadOnlyFabric<F>,
    node: NodeId,
    chain: Vec<Kept>,
    inner: F::Completion<'f>,
    done: Option<Result<Vec<u64>, NodeDown>>,
}

impl<F: Fabric> Looking<'_, F> {
    fn look(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.done.is_none() {
            let Poll::Ready(seen) = Pin::new(&mut self.inner).poll(cx) else {
                return Poll::Pending;
            };
            self.done = Some(seen.map(|seen| self.of.run(self.node, &self.chain, &seen)));
        }
        Poll::Ready(())
    }
}

impl<F: Fabric> Future for Looking<'_, F> {
    type Output = Result<Vec<u64>, NodeDown>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.look(cx).is_pending() {
            return Poll::Pending;
        }
        this.done.take().map_or(Poll::Pending, Poll::Ready)
    }
}

impl<F: Fabric> Fabric for ReadOnlyFabric<F> {
    type EpochDomain = F::EpochDomain;
    type Reply<'f>
        = Vec<u64>
    where
        Self: 'f;
    type Completion<'f>
        = Looking<'f, F>
    where
        Self: 'f;

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

    fn post_deferred(&self, node: NodeId, chain: &[Verb<'_>]) {
        // No answer rests on a deferred chain: on a read it only repairs an in-place copy. A witness leaves it out, as
        // it shows whether an answer needed a store.
        if self.shown.is_none() {
            drop(self.post(node, chain));
        }
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Looking<'f, F> {
        let chain: Vec<Kept> = chain.iter().map(Kept::new).collect();
        let looks: Vec<Verb<'_>> = chain.iter().map(Kept::look).collect();
        let inner = self.inner.post(node, &looks);
        let done = self.left_out.contains(node).then_some(Err(NodeDown));
        let mut looking = Looking { of: self, node, chain, inner, done };
        // Synchronous memory has answered, and then the chain is done now, awaited or not. On an
        // asynchronous fabric a chain that is not awaited is lost, as on a node that froze.
        let _ = looking.look(&mut Context::from_waker(Waker::noop()));
        looking
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::{Client, Options};
    use crate::error::Error;
    use crate::heap::tests::still;
    use crate::runtime::block_on::block_on;

    #[test]
    fn changes_are_seen_by_their_maker_alone() {
        let (node, at) = (NodeId(0), Address(4));
        let nodes = Loopback::new(1, 16);
        let read = [Verb::Read { at, words: 3 }];
        block_on(nodes.post(node, &[Verb::Write { at, head: &[1, 2, 3], tail: &[] }])).expect("up");
        let read_only = ReadOnlyFabric::new(nodes);
        let write = Verb::Write { at, head: &[7], tail: &[8; 3] };
        let swap = |expect| Verb::Cas { at: at.plus(2), expect, new: 9 };
        let chain = [read[0], write, swap(4), swap(3), swap(3), read[0]];
        let reply = block_on(read_only.post(node, &chain)).expect("up");
        assert_eq!(reply, [1, 2, 3, 3, 3, 9, 7, 0x08_08_08, 9]);
        drop(read_only.post(node, &[Verb::Write { at, head: &[6], tail: &[] }]));
        assert_eq!(block_on(read_only.post(node, &read)).expect("up"), [6, 0x08_08_08, 9]);
        assert_eq!(*block_on(read_only.inner.post(node, &read)).expect("up"), [1, 2, 3]);
    }

    /// What it saw counts if it is there still, and if the read-only fabric put nothing in its place.
    #[test]
    fn a_witness_saw_what_is_there_and_nothing_of_its_own() {
        let (node, at) = (NodeId(0), Address(4));
        let nodes = Loopback::new(1, 16);
        let read = [Verb::Read { at, words: 3 }];
        let swap = |expect, new| [Verb::Cas { at: at.plus(2), expect, new }];
        let saw = |chain: &[Verb<'_>], others: &[Verb<'_>]| {
            let witness = ReadOnlyFabric::witness(nodes.clone());
            block_on(witness.post(node, &read)).expect("up");
            block_on(witness.post(node, chain)).expect("up");
            block_on(nodes.post(node, others)).expect("up");
            block_on(witness.saw_what_was())
        };
        assert!(saw(&read, &read));
        assert!(saw(&swap(5, 6), &read), "one that fails is a look");
        assert!(!saw(&swap(0, 6), &read), "it saw what it had stored itself");
        assert!(!saw(&[Verb::Write { at, head: &[0], tail: &[] }], &read));
        assert!(!saw(&read, &swap(0, 7)), "another one changed it");
        assert!(saw(&read, &swap(0, 8)), "that changed nothing");
        assert!(!block_on(ReadOnlyFabric::new(nodes).saw_what_was()), "it kept nothing");
    }

    /// Memory nodes of the process that forked this one.
    struct Elsewhere(Loopback);

    impl Fabric for Elsewhere {
        type EpochDomain = <Loopback as Fabric>::EpochDomain;
        type Reply<'f> = <Loopback as Fabric>::Reply<'f>;
        type Completion<'f> = <Loopback as Fabric>::Completion<'f>;

        fn is_cut_off(&self) -> bool {
            true
        }

        fn nodes(&self) -> usize {
            self.0.nodes()
        }

        fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
            self.0.post(node, chain)
        }
    }

    #[test]
    fn a_child_does_not_go_on_looking_on() {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let fabric = ReadOnlyFabric::new(Elsewhere(Loopback::new(1, 4 << 17)));
        let session = Session { client: 0, incarnation: Incarnation(0) };
        let client: Client<_, _> =
            Client::new(fabric, still(), geometry, session, Options::default());
        assert_eq!(block_on(client.usage()), Err(Error::Forked));
    }
}
