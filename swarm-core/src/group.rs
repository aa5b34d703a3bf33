//! A replica group as one client sees it, and rounds over its nodes.
//!
//! A round posts chains to a few nodes and hands out what comes back. A dead or slow node is a
//! missing vote: operations turn to a preferred majority first and widen to all nodes when one of
//! those is late. Which nodes are late is remembered, so that it costs a moment once, not at every
//! operation.

use core::cell::Cell;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, MAX_NODES, NodeId};
use crate::layout::SLOTS;
use crate::node_set::NodeSet;
use crate::words::{Incarnation, WordFormat, WriteNumber};

/// How long to wait for nodes, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A node is never called late sooner than this.
    pub late_floor: u64,
    /// A node is late after this many roundtrips.
    pub late_roundtrips: u64,
    /// A round without enough answers ends in an error after this.
    pub deadline: u64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { late_floor: 50_000, late_roundtrips: 8, deadline: 1_000_000_000 }
    }
}

/// Who a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its slot in the pool. No other live client has it.
    pub client: usize,
    /// Its life: given out once.
    pub incarnation: Incarnation,
}

/// A replica group as one client sees it.
pub struct Group<F, C> {
    fabric: F,
    clock: C,
    format: WordFormat,
    session: Session,
    patience: Cell<Patience>,
    counter: Cell<u64>,
    suspects: Cell<NodeSet>,
    avoided: Cell<u32>,
    roundtrip: Cell<u64>,
    skew: Cell<u64>,
    events: Cell<Events>,
}

/// What happened beside the common case, since the group was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Events {
    /// CASes that were lost, and rounds that were begun again.
    pub retries: u64,
    /// Reads and writes that left the one-roundtrip path.
    pub slow: u64,
    /// Rounds that widened because a node was late.
    pub widened: u64,
}

/// Of so many operations that avoid a suspect, one posts to it as well, to learn whether it is back.
const PROBE_EVERY: u32 = 256;

impl<F: Fabric, C: Clock> Group<F, C> {
    /// The group behind `fabric`, used by `session`.
    pub fn new(fabric: F, clock: C, format: WordFormat, session: Session) -> Self {
        assert!(matches!(fabric.nodes(), 1 | 3 | 5 | 7), "a group has 1, 3, 5 or 7 nodes");
        Self {
            fabric,
            clock,
            format,
            session,
            patience: Cell::new(Patience::default()),
            counter: Cell::new(0),
            suspects: Cell::new(NodeSet::EMPTY),
            avoided: Cell::new(0),
            roundtrip: Cell::new(0),
            skew: Cell::new(0),
            events: Cell::default(),
        }
    }

    /// What happened beside the common case.
    pub fn events(&self) -> Events {
        self.events.get()
    }

    /// Counts a lost CAS, or a round that is begun again.
    pub(crate) fn count_retry(&self) {
        let events = self.events.get();
        self.events.set(Events { retries: events.retries + 1, ..events });
    }

    /// Counts an operation that left the one-roundtrip path.
    pub(crate) fn count_slow(&self) {
        let events = self.events.get();
        self.events.set(Events { slow: events.slow + 1, ..events });
    }

    /// The fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// The clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    /// How words are split.
    pub fn format(&self) -> WordFormat {
        self.format
    }

    /// Who this client is.
    pub fn session(&self) -> Session {
        self.session
    }

    /// The stamp slot that this client writes to.
    pub fn slot(&self) -> usize {
        self.session.client % SLOTS
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.fabric.nodes()
    }

    /// How many nodes are a majority.
    pub fn majority(&self) -> usize {
        self.nodes() / 2 + 1
    }

    /// How long rounds wait.
    pub fn patience(&self) -> Patience {
        self.patience.get()
    }

    /// Changes how long rounds wait.
    pub fn set_patience(&self, patience: Patience) {
        self.patience.set(patience);
    }

    /// Nodes that were late or down when last heard of.
    pub fn suspects(&self) -> NodeSet {
        self.suspects.get()
    }

    /// A fresh write number; `None` when this incarnation has used up its numbers.
    pub fn number(&self) -> Option<WriteNumber> {
        let counter = self.counter.get() + 1;
        if counter > WriteNumber::LAST_COUNTER {
            return None;
        }
        self.counter.set(counter);
        Some(WriteNumber::new(self.session.incarnation, counter))
    }

    /// A write begins. Unless it is told to be complete, this client goes on as another writer:
    /// its next write must not prove an abandoned one complete.
    pub(crate) fn begin_write(&self) -> Unfinished<'_> {
        Unfinished(&self.counter)
    }

    /// Wall-clock nanoseconds since the pool's creation, moved forward when guesses proved stale.
    pub fn now(&self) -> u64 {
        self.clock.now() + self.skew.get()
    }

    /// Moves the clock forward by `behind` nanoseconds: a guess proved stale by that much.
    pub fn advance(&self, behind: u64) {
        self.skew.set(self.skew.get() + behind);
    }

    /// The majority that an operation on an object with this `home` turns to first.
    ///
    /// Goes round from the home node, past suspects where enough others are left. Now and then a
    /// suspect is in the set on top of a majority: it is not waited for, but its answer shows
    /// that it is back.
    pub fn preferred(&self, home: NodeId) -> NodeSet {
        let (n, need) = (self.nodes(), self.majority());
        let ring = NodeSet::ring(home, need, n);
        let suspects = self.suspects.get();
        if suspects.intersection(ring).is_empty() {
            return ring;
        }
        self.around_suspects(home, suspects)
    }

    #[cold]
    fn around_suspects(&self, home: NodeId, suspects: NodeSet) -> NodeSet {
        let (n, need) = (self.nodes(), self.majority());
        let healthy = NodeSet::all(n).minus(suspects);
        if healthy.len() < need {
            return NodeSet::all(n);
        }
        let mut chosen = NodeSet::EMPTY;
        for step in 0..n {
            let node = NodeId(((home.index() + step) % n) as u8);
            if chosen.len() < need && healthy.contains(node) {
                chosen.insert(node);
            }
        }
        let avoided = self.avoided.get().wrapping_add(1);
        self.avoided.set(avoided);
        if avoided.is_multiple_of(PROBE_EVERY) {
            chosen = chosen.union(suspects);
        }
        chosen
    }

    /// An empty round.
    pub fn round(&self) -> Round<'_, F, C> {
        Round {
            group: self,
            chains: [const { None }; MAX_NODES],
            pending: NodeSet::EMPTY,
            since: None,
            late: false,
            told: false,
        }
    }

    /// Posts to `first`, and to all nodes once one of those is late, down or without a vote, until
    /// `need` nodes have voted. `step` is called with `None` to begin at a node and with each
    /// reply; it posts (again), votes, or says that the node has no vote.
    ///
    /// Yields who voted. Nodes that have not answered by then go on by themselves.
    ///
    /// # Errors
    /// [`Error::NoMajority`] once too few can still vote, or at the deadline; sooner, when a node
    /// is [missing](Next::Missing) and all others that did not vote are late.
    pub async fn settle<'f>(
        &'f self,
        first: NodeSet,
        need: usize,
        mut step: impl FnMut(NodeId, Option<F::Reply<'f>>) -> Next<F::Completion<'f>>,
    ) -> Result<NodeSet, Error> {
        let mut round = self.round();
        let mut votes = NodeSet::EMPTY;
        let mut begun = NodeSet::EMPTY;
        let mut wanted = first;
        let mut late = NodeSet::EMPTY;
        let mut abstained = false;
        loop {
            for node in wanted.minus(begun) {
                begun.insert(node);
                round.take(node, step(node, None), &mut votes);
            }
            if votes.len() >= need {
                round.hear_out().await;
                return Ok(votes);
            }
            if abstained && begun.len() == self.nodes() && round.pending().minus(late).is_empty() {
                return Err(Error::NoMajority { answered: votes.len(), needed: need });
            }
            match round.next().await {
                Event::Reply(node, reply) => {
                    let next = step(node, Some(reply));
                    let again = matches!(next, Next::Post(_));
                    let missing = matches!(next, Next::Missing);
                    round.take(node, next, &mut votes);
                    if !again && !votes.contains(node) {
                        abstained |= missing;
                        wanted = NodeSet::all(self.nodes());
                    }
                }
                Event::Down(_) => wanted = NodeSet::all(self.nodes()),
                Event::Late => {
                    late = round.pending();
                    wanted = NodeSet::all(self.nodes());
                    if begun != wanted {
                        round.watch_again();
                    }
                }
                Event::Idle if begun.len() < self.nodes() => {
                    wanted = NodeSet::all(self.nodes());
                }
                Event::Idle | Event::Expired => {
                    return Err(Error::NoMajority { answered: votes.len(), needed: need });
                }
            }
        }
    }
}

/// A write that is under way.
pub struct Unfinished<'a>(&'a Cell<u64>);

impl Unfinished<'_> {
    /// The write took effect and is complete.
    pub(crate) fn complete(self) {
        core::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.set(WriteNumber::next_writer(self.0.get()));
    }
}

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

/// What a round brought.
pub enum Event<Reply> {
    /// A node answered.
    Reply(NodeId, Reply),
    /// A node is known not to answer.
    Down(NodeId),
    /// Nodes that were posted to are late. Told once a round.
    Late,
    /// The deadline has passed.
    Expired,
    /// Nothing is on its way.
    Idle,
}

/// Chains on their way, at most one for each node.
pub struct Round<'f, F: Fabric + 'f, C> {
    group: &'f Group<F, C>,
    chains: [Option<F::Completion<'f>>; MAX_NODES],
    pending: NodeSet,
    since: Option<u64>,
    late: bool,
    told: bool,
}

impl<'f, F: Fabric, C: Clock> Round<'f, F, C> {
    /// Waits for this chain, posted to `node`, which has none on its way.
    pub fn add(&mut self, node: NodeId, chain: F::Completion<'f>) {
        debug_assert!(!self.pending.contains(node));
        self.chains[node.index()] = Some(chain);
        self.pending.insert(node);
    }

    /// The nodes that have not answered.
    pub fn pending(&self) -> NodeSet {
        self.pending
    }

    /// What comes next.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Event<F::Reply<'f>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Tells once more when nodes are late: some are posted to only now.
    fn watch_again(&mut self) {
        self.told = false;
        self.since = None;
    }

    fn take(&mut self, node: NodeId, next: Next<F::Completion<'f>>, votes: &mut NodeSet) {
        match next {
            Next::Post(chain) => self.add(node, chain),
            Next::Vote => votes.insert(node),
            Next::NoVote | Next::Missing => {}
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event<F::Reply<'f>>> {
        // Completions before the clock: a client that was itself held up finds no one late.
        for node in self.pending {
            let chain = self.chains[node.index()].as_mut().expect("pending nodes have chains");
            if let Poll::Ready(result) = Pin::new(chain).poll(cx) {
                return Poll::Ready(self.answered(node, result));
            }
        }
        if self.pending.is_empty() {
            return Poll::Ready(Event::Idle);
        }
        self.wait(cx)
    }

    fn answered(
        &mut self,
        node: NodeId,
        result: Result<F::Reply<'f>, crate::fabric::NodeDown>,
    ) -> Event<F::Reply<'f>> {
        self.chains[node.index()] = None;
        self.pending.remove(node);
        let mut suspects = self.group.suspects.get();
        match result {
            Ok(reply) => {
                if let Some(since) = self.since
                    && !self.late
                {
                    self.group.measured(since);
                }
                if suspects.contains(node) {
                    suspects.remove(node);
                    self.group.suspects.set(suspects);
                }
                Event::Reply(node, reply)
            }
            Err(_) => {
                suspects.insert(node);
                self.group.suspects.set(suspects);
                Event::Down(node)
            }
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<Event<F::Reply<'f>>> {
        let group = self.group;
        let now = group.clock.now();
        let waited = now.saturating_sub(*self.since.get_or_insert(now));
        let patience = group.patience.get();
        if waited >= patience.deadline {
            return Poll::Ready(Event::Expired);
        }
        let late = patience.late_floor.max(patience.late_roundtrips * group.roundtrip.get());
        if !self.told && waited >= late {
            self.told = true;
            if !core::mem::replace(&mut self.late, true) {
                let events = group.events.get();
                group.events.set(Events { widened: events.widened + 1, ..events });
            }
            group.suspects.set(group.suspects.get().union(self.pending));
            return Poll::Ready(Event::Late);
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Clears of suspicion those that answer now, though their votes are not needed. Gives them
    /// half a roundtrip, since a probe may have been posted last.
    async fn hear_out(&mut self) {
        let group = self.group;
        let suspects = group.suspects.get();
        if self.pending.intersection(suspects).is_empty() {
            return;
        }
        let until = group.clock.now() + group.roundtrip.get() / 2;
        poll_fn(|cx| {
            for node in self.pending.intersection(suspects) {
                let chain = self.chains[node.index()].as_mut().expect("pending nodes have chains");
                if let Poll::Ready(result) = Pin::new(chain).poll(cx) {
                    self.answered(node, result);
                }
            }
            let heard = self.pending.intersection(suspects).is_empty();
            if heard || group.clock.now() >= until {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Lets time pass: how duelling proposers get out of each other's way.
    pub async fn pause(&self, nanoseconds: u64) {
        let until = self.clock.now() + nanoseconds;
        poll_fn(|cx| {
            if self.clock.now() >= until {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Takes in a roundtrip that began at `since`: a mean that follows slowly.
    fn measured(&self, since: u64) {
        let sample = self.clock.now().saturating_sub(since);
        let mean = self.roundtrip.get();
        self.roundtrip.set(if mean == 0 { sample } else { mean - mean / 8 + sample / 8 });
    }
}
