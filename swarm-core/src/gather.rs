//! Gathering votes: a round that ends when enough nodes have voted.
//!
//! Posts to a preferred majority, and to all nodes once one of those is late, down or without a
//! vote.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, MAX_NODES, NodeId};
use crate::group::Group;
use crate::node_set::NodeSet;
use crate::round::{Event, Round};

/// What a round does next at a node.
pub enum Next<Completion> {
    /// Waits for another chain.
    Post(Completion),
    /// Counts the node's vote.
    Vote,
    /// Goes on without the node.
    NoVote,
    /// Likewise, but the caller can give the node its vote if it is needed.
    Missing,
}

/// Tells each step: called with `None` to begin at a node and with each reply, it posts (again), votes, or says that
/// the node has no vote. By reference, so that a round is built once for all who gather votes.
type Steps<'s, 'f, F> = dyn FnMut(NodeId, Option<Reply<'f, F>>) -> Next<Completion<'f, F>> + 's;
type Reply<'f, F> = <F as Fabric>::Reply<'f>;
type Completion<'f, F> = <F as Fabric>::Completion<'f>;

/// A round that gathers votes, whose steps a function tells.
pub struct Gathering<'f, F: Fabric + 'f, C> {
    group: &'f Group<F, C>,
    round: Round<'f, F, C>,
    /// The nodes that may vote.
    among: NodeSet,
    /// Whether another way is left, long as it is, where those are late.
    another_way: bool,
    need: usize,
    begun: NodeSet,
    votes: NodeSet,
    without: NodeSet,
    missing: NodeSet,
}

impl<'f, F: Fabric, C: Clock> Gathering<'f, F, C> {
    /// Nothing posted yet; `need` nodes of `among` have to vote.
    #[inline(always)]
    pub fn new(group: &'f Group<F, C>, among: NodeSet, need: usize) -> Self {
        Self {
            group,
            round: Round::new(group),
            among,
            another_way: false,
            need,
            begun: NodeSet::EMPTY,
            votes: NodeSet::EMPTY,
            without: NodeSet::EMPTY,
            missing: NodeSet::EMPTY,
        }
    }

    /// Gives up on nodes that are late time and again: the caller has another way that does without them.
    #[inline(always)]
    pub(crate) fn or_else(self, another_way: bool) -> Self {
        Self { another_way, ..self }
    }

    /// Gathers the votes, from `first` where those will do.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub(crate) async fn settle(
        mut self,
        first: NodeSet,
        step: &mut Steps<'_, 'f, F>,
    ) -> Result<NodeSet, Error> {
        match self.at_once(first, step) {
            Some(votes) => Ok(votes),
            None => self.wait(step).await,
        }
    }

    /// Posts to `first`, if those may vote and are enough, or else to all who may vote, and takes what is
    /// there, without waiting. The voters, if they are enough.
    fn at_once(&mut self, first: NodeSet, step: &mut Steps<'_, 'f, F>) -> Option<NodeSet> {
        let mut near = [const { None }; MAX_NODES];
        let fitting = first.intersection(self.among);
        let first = if fitting.len() < self.need { self.among } else { fitting };
        self.begun = first;
        self.group.fabric().together(|| {
            let mut cx = Context::from_waker(Waker::noop());
            for node in first {
                match step(node, None) {
                    Next::Post(mut chain) => match Pin::new(&mut chain).poll(&mut cx) {
                        Poll::Ready(Ok(reply)) => near[node.index()] = Some(reply),
                        Poll::Ready(Err(_)) => self.down(node),
                        Poll::Pending => self.round.add(node, chain),
                    },
                    next => self.take(node, next),
                }
            }
        });
        for node in first {
            if let Some(reply) = near[node.index()].take() {
                self.take(node, step(node, Some(reply)));
            }
        }
        let suspected = self.group.suspects().intersection(first);
        (self.votes.len() >= self.need && suspected.is_empty()).then_some(self.votes)
    }

    /// Waits for votes. Yields who voted; nodes that have not answered by then go on by themselves.
    ///
    /// # Errors
    /// [`Error::NoMajority`] once too few can still vote, or at the deadline; sooner, when all that did
    /// not vote are late and another way is left, as where a node is [missing](Next::Missing).
    async fn wait(mut self, step: &mut Steps<'_, 'f, F>) -> Result<NodeSet, Error> {
        let everyone = self.among;
        let mut late = NodeSet::EMPTY;
        let mut lateness = 0;
        let mut widen = !self.without.is_empty();
        self.round.heard = !self.votes.is_empty();
        loop {
            if widen {
                self.begin(everyone, step);
            }
            if self.votes.len() >= self.need {
                self.round.hear_out().await;
                return Ok(self.votes);
            }
            let waited_for = self.round.pending().minus(late);
            let given_up = self.begun == everyone && waited_for.is_empty();
            if given_up && (self.another_way || !self.missing.is_empty()) {
                return Err(self.too_few());
            }
            match self.round.next().await {
                Event::Reply(node, reply) => {
                    self.take(node, step(node, Some(reply)));
                    widen |= self.without.contains(node);
                }
                Event::Down(_) => widen = true,
                Event::Late => {
                    widen = true;
                    lateness += 1;
                    let patient = self.another_way && lateness < LATE_TIMES;
                    if self.begun != everyone || patient {
                        self.round.watch_again();
                    }
                    if !patient {
                        late = self.round.pending();
                    }
                }
                Event::Idle if self.begun != everyone => widen = true,
                Event::Idle | Event::Expired => return Err(self.too_few()),
            }
        }
    }

    /// A node refused its chain.
    #[cold]
    fn down(&mut self, node: NodeId) {
        self.group.suspect(node);
        self.without.insert(node);
    }

    fn begin(&mut self, wanted: NodeSet, step: &mut Steps<'_, 'f, F>) {
        let fresh = wanted.minus(self.begun);
        self.begun = self.begun.union(wanted);
        for node in fresh {
            self.take(node, step(node, None));
        }
    }

    #[inline(always)]
    fn take(&mut self, node: NodeId, next: Next<F::Completion<'f>>) {
        match next {
            Next::Post(chain) => self.round.add(node, chain),
            Next::Vote => self.votes.insert(node),
            Next::NoVote => self.without.insert(node),
            Next::Missing => {
                self.without.insert(node);
                self.missing.insert(node);
            }
        }
    }

    fn too_few(&self) -> Error {
        Error::NoMajority { answered: self.votes.len(), needed: self.need }
    }
}

/// Times that a node has to be late before an operation looks for the way that does without it, where that
/// one is long.
const LATE_TIMES: u32 = 4;

/// Nanoseconds for which a chain to every node may be late: this client, or a node, may have to wait
/// for a processor.
const LONG_LATE: u64 = 20_000_000;

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Posts a chain to every node and hears all of them. One roundtrip.
    ///
    /// # Errors
    /// [`Error::NoMajority`] as soon as a node is down, or has been late for long, though far within
    /// the deadline: this is for what can be done another time.
    pub async fn everywhere<'f>(
        &'f self,
        post: impl FnMut(NodeId) -> F::Completion<'f>,
        hear: impl FnMut(NodeId, F::Reply<'f>),
    ) -> Result<(), Error> {
        self.at_all_of(NodeSet::all(self.nodes()), post, hear).await
    }

    /// The same for these nodes.
    ///
    /// # Errors
    /// As [`everywhere`](Self::everywhere).
    pub async fn at_all_of<'f>(
        &'f self,
        nodes: NodeSet,
        mut post: impl FnMut(NodeId) -> F::Completion<'f>,
        mut hear: impl FnMut(NodeId, F::Reply<'f>),
    ) -> Result<(), Error> {
        let mut round = Round::new(self);
        for node in nodes {
            round.add(node, post(node));
        }
        let patient_until = self.clock().now() + LONG_LATE;
        let mut answered = 0;
        while answered < nodes.len() {
            match round.next().await {
                Event::Reply(node, reply) => {
                    hear(node, reply);
                    answered += 1;
                }
                Event::Late if self.clock().now() < patient_until => round.watch_again(),
                _ => return Err(Error::NoMajority { answered, needed: nodes.len() }),
            }
        }
        Ok(())
    }

    /// Gathers `need` votes, from `first` where those will do.
    ///
    /// # Errors
    /// [`Error::NoMajority`] once too few can still vote, or at the deadline.
    pub async fn settle<'f>(
        &'f self,
        first: NodeSet,
        need: usize,
        mut step: impl FnMut(NodeId, Option<F::Reply<'f>>) -> Next<F::Completion<'f>>,
    ) -> Result<NodeSet, Error> {
        Gathering::new(self, NodeSet::all(self.nodes()), need).settle(first, &mut step).await
    }
}
