//! Looking on: a fabric that never changes anything.
//!
//! Reading is not always only reading: who meets a change under way completes it, and who meets a
//! guess locks it, which takes writes and a client slot. An onlooker posts READs alone. What it
//! would write it keeps to itself and lays over what it READs, so that the protocols run as they
//! are, to an end that is theirs alone. It all rests on this: *no verb but READ leaves this fabric*,
//! so that it needs no identity and disturbs no one.
//!
//! What it sees is what it would have brought about. Where others bring about something else at the
//! same time, it is wrong about that: good enough to count, not to decide by.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::node::{Address, NodeId};
use zerocopy::IntoBytes;

/// A fabric whose changes nobody sees but who makes them.
pub(crate) struct Onlooker<F> {
    inner: F,
    /// Words as this onlooker would have them.
    changed: RefCell<HashMap<(NodeId, u64), u64>>,
}

/// A verb without what it borrows.
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

    /// The READ that takes its place.
    fn look(&self) -> Verb<'static> {
        match *self {
            Self::Read { at, words } => Verb::Read { at, words },
            // A WRITE needs none, but is to learn whether the node answers.
            Self::Write { at, .. } | Self::Cas { at, .. } => Verb::Read { at, words: 1 },
        }
    }
}

impl<F: Fabric> Onlooker<F> {
    /// Looks on at what others do to `inner`.
    pub(crate) fn new(inner: F) -> Self {
        Self { inner, changed: RefCell::default() }
    }

    /// What a chain yields where its READs showed `seen`.
    fn run(&self, node: NodeId, chain: &[Kept], mut seen: &[u64]) -> Vec<u64> {
        let mut changed = self.changed.borrow_mut();
        let mut reply = Vec::new();
        for verb in chain {
            let Verb::Read { at: Address(at), words } = verb.look() else { continue };
            let (here, rest) = seen.split_at(words);
            seen = rest;
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

/// A chain of an onlooker's.
pub(crate) struct Looking<'f, F: Fabric + 'f> {
    of: &'f Onlooker<F>,
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

impl<F: Fabric> Fabric for Onlooker<F> {
    type Board = F::Board;
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

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Looking<'f, F> {
        let chain: Vec<Kept> = chain.iter().map(Kept::new).collect();
        let looks: Vec<Verb<'_>> = chain.iter().map(Kept::look).collect();
        let inner = self.inner.post(node, &looks);
        let mut looking = Looking { of: self, node, chain, inner, done: None };
        // Near memory has answered, and then the chain is done now, awaited or not. Of far memory a
        // chain that is not awaited is lost, as on a node that froze.
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
    use crate::blocking::block_on;
    use crate::client::{Client, Options};
    use crate::error::Error;
    use crate::heap::tests::Still;

    #[test]
    fn changes_are_seen_by_their_maker_alone() {
        let (node, at) = (NodeId(0), Address(4));
        let nodes = Loopback::new(1, 16);
        let read = [Verb::Read { at, words: 3 }];
        block_on(nodes.post(node, &[Verb::Write { at, head: &[1, 2, 3], tail: &[] }])).expect("up");
        let onlooker = Onlooker::new(nodes);
        let write = Verb::Write { at, head: &[7], tail: &[8; 3] };
        let swap = |expect| Verb::Cas { at: at.plus(2), expect, new: 9 };
        let chain = [read[0], write, swap(4), swap(3), swap(3), read[0]];
        let reply = block_on(onlooker.post(node, &chain)).expect("up");
        assert_eq!(reply, [1, 2, 3, 3, 3, 9, 7, 0x08_08_08, 9]);
        drop(onlooker.post(node, &[Verb::Write { at, head: &[6], tail: &[] }]));
        assert_eq!(block_on(onlooker.post(node, &read)).expect("up"), [6, 0x08_08_08, 9]);
        assert_eq!(*block_on(onlooker.inner.post(node, &read)).expect("up"), [1, 2, 3]);
    }

    /// Memory nodes of the process that forked this one.
    struct Elsewhere(Loopback);

    impl Fabric for Elsewhere {
        type Board = <Loopback as Fabric>::Board;
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
        let fabric = Onlooker::new(Elsewhere(Loopback::new(1, 4 << 17)));
        let session = Session { client: 0, incarnation: Incarnation(0) };
        let client: Client<_, _> =
            Client::new(fabric, Still, geometry, session, Options::default());
        assert_eq!(block_on(client.usage()), Err(Error::Forked));
    }
}
