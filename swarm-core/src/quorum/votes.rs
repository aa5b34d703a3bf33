//! Collecting votes: a round that ends when enough nodes have voted.
//!
//! Posts to a preferred majority, and to all nodes once one of those is late, down or without a
//! vote.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use super::group::Group;
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::Fabric;
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::round::{Event, Round};

/// What a round does next at a node.
pub enum Next<Completion> {
    /// Waits for another chain.
    Post(Completion),
    /// Counts the node's vote.
    Vote,
    /// Goes on without the node.
    NoVote,
    /// Like `NoVote`, but the caller can give the node its vote if it is needed.
    Missing,
}

/// Decides each step. Called with `None` to start at a node, and with each reply, it posts (again),
/// votes, or declares that the node has no vote. By reference, so that the collector's code is
/// compiled once for all callers.
type Steps<'s, 'f, F> = dyn FnMut(NodeId, Option<Reply<'f, F>>) -> Next<Completion<'f, F>> + 's;
type Reply<'f, F> = <F as Fabric>::Reply<'f>;
type Completion<'f, F> = <F as Fabric>::Completion<'f>;

/// A round that collects votes, with the steps that a function decides.
pub struct VoteCollector<'f, F: Fabric + 'f, C> {
    group: &'f Group<F, C>,
    round: Round<'f, F, C>,
    /// The nodes that may vote.
    among: NodeSet,
    /// Whether the caller has a way, though a long one, that does without late nodes.
    another_way: bool,
    need: usize,
    begun: NodeSet,
    votes: NodeSet,
    without: NodeSet,
    missing: NodeSet,
}

impl<'f, F: Fabric, C: Clock> VoteCollector<'f, F, C> {
    /// Makes a collector with nothing posted yet; `need` nodes of `among` must vote.
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

    /// Gives up on nodes that are late repeatedly: the caller has a way that does without them.
    #[inline(always)]
    pub(crate) fn or_else(self, another_way: bool) -> Self {
        Self { another_way, ..self }
    }

    /// Collects the votes, from `first` if those suffice.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub(crate) async fn collect_votes(
        mut self,
        first: NodeSet,
        step: &mut Steps<'_, 'f, F>,
    ) -> Result<NodeSet, Error> {
        match self.at_once(first, step) {
            Some(votes) => Ok(votes),
            None => self.wait(step).await,
        }
    }

    /// Posts to `first` if those may vote and suffice, otherwise to all that may vote, and takes
    /// the replies that have arrived, without waiting. Returns the voters if they suffice.
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

    /// Waits for votes. Returns the voters; chains at nodes that have not answered by then run on.
    ///
    /// # Errors
    /// [`Error::NoMajority`] once too few nodes can still vote, or at the deadline. Sooner if all
    /// nodes that did not vote are late and another way is left, as where a node is
    /// [missing](Next::Missing).
    async fn wait(mut self, step: &mut Steps<'_, 'f, F>) -> Result<NodeSet, Error> {
        let everyone = self.among;
        let mut late = NodeSet::EMPTY;
        let mut lateness = 0;
        let mut widen = !self.without.is_empty();
        self.round.received = !self.votes.is_empty();
        loop {
            if widen {
                self.begin(everyone, step);
            }
            if self.votes.len() >= self.need {
                self.round.collect_late().await;
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

    /// Records that a node refused its chain.
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

/// How often a node must be late before an operation takes a long way that does without it.
const LATE_TIMES: u32 = 4;

/// Nanoseconds of the client's own time for which a chain to every node may be late: a node may
/// have to wait for a processor.
const LONG_LATE: u64 = 20_000_000;

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Posts a chain to every node and waits for all replies. One roundtrip.
    ///
    /// # Errors
    /// [`Error::NoMajority`] as soon as a node is down, or has been late for long, though well
    /// within the deadline. This is for work that can be done another time.
    pub async fn everywhere<'f>(
        &'f self,
        post: impl FnMut(NodeId) -> F::Completion<'f>,
        collect: impl FnMut(NodeId, F::Reply<'f>),
    ) -> Result<(), Error> {
        self.at_all_of(NodeSet::all(self.nodes()), post, collect).await
    }

    /// The same for these nodes.
    ///
    /// # Errors
    /// As [`everywhere`](Self::everywhere).
    pub async fn at_all_of<'f>(
        &'f self,
        nodes: NodeSet,
        mut post: impl FnMut(NodeId) -> F::Completion<'f>,
        mut collect: impl FnMut(NodeId, F::Reply<'f>),
    ) -> Result<(), Error> {
        // Long, unless roundtrips are longer.
        let longest = LONG_LATE.max(self.late_after()).min(self.timeouts().deadline);
        let mut round = Round::new(self).within(longest);
        for node in nodes {
            round.add(node, post(node));
        }
        let mut answered = 0;
        while answered < nodes.len() {
            match round.next().await {
                Event::Reply(node, reply) => {
                    collect(node, reply);
                    answered += 1;
                }
                Event::Late => {}
                _ => return Err(Error::NoMajority { answered, needed: nodes.len() }),
            }
        }
        Ok(())
    }

    /// Collects `need` votes, from `first` if those suffice.
    ///
    /// # Errors
    /// [`Error::NoMajority`] once too few nodes can still vote, or at the deadline.
    pub async fn collect_votes<'f>(
        &'f self,
        first: NodeSet,
        need: usize,
        mut step: impl FnMut(NodeId, Option<F::Reply<'f>>) -> Next<F::Completion<'f>>,
    ) -> Result<NodeSet, Error> {
        VoteCollector::new(self, NodeSet::all(self.nodes()), need)
            .collect_votes(first, &mut step)
            .await
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::pin::pin;

    use super::*;
    use crate::fabric::Verb;
    use crate::fabric::faults::{Faulty, HandSwitches, SwitchState};
    use crate::fabric::latency::Delayed;
    use crate::fabric::loopback::Loopback;
    use crate::node::Address;
    use crate::quorum::group::{Session, Timeouts};
    use crate::words::{Incarnation, WordFormat};

    const HOUR: u64 = 3_600_000_000_000;
    const LOOK: u64 = 100;
    const ROUNDTRIP: u64 = 2_000;

    /// Advances with each look; by an hour when its client has no processor.
    struct Held {
        now: Cell<u64>,
        looks: Cell<u64>,
        /// The first look after which it has none, and the period after that.
        up: (u64, u64),
    }

    impl Held {
        fn up(behind: u64, every: u64) -> Self {
            Self { now: Cell::new(0), looks: Cell::new(0), up: (behind, every) }
        }
    }

    impl Clock for Held {
        fn now(&self) -> u64 {
            let (look, (behind, every)) = (self.looks.get(), self.up);
            let is_held = look >= behind && (look - behind).is_multiple_of(every);
            self.looks.set(look + 1);
            self.now.set(self.now.get() + if is_held { HOUR } else { LOOK });
            self.now.get()
        }
    }

    type Client<'c> = Group<Delayed<Faulty<Loopback, HandSwitches>, &'c Held>, &'c Held>;

    /// Returns a client of three nodes, of which these do not answer.
    fn client<'c>(clock: &'c Held, silent: &[u8]) -> Client<'c> {
        let nodes = Faulty::new(Loopback::new(3, 8), HandSwitches::new());
        silent.iter().for_each(|&node| nodes.switches().set(NodeId(node), SwitchState::Frozen));
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let format = WordFormat { pointer_bits: 22, tick_shift: 6 };
        Group::new(Delayed::new(nodes, clock, ROUNDTRIP), clock, format, session)
    }

    const READ: [Verb<'_>; 1] = [Verb::Read { at: Address(0), words: 1 }];

    fn polled<T>(operation: impl Future<Output = T>) -> T {
        let (mut operation, mut cx) = (pin!(operation), Context::from_waker(Waker::noop()));
        (0..100_000)
            .find_map(|_| match operation.as_mut().poll(&mut cx) {
                Poll::Ready(outcome) => Some(outcome),
                Poll::Pending => None,
            })
            .expect("an end")
    }

    fn majority(client: &Client<'_>) -> Result<NodeSet, Error> {
        polled(client.collect_votes(NodeSet::ring(NodeId(0), 2, 3), 2, |node, reply| match reply {
            None => Next::Post(client.fabric().post(node, &READ)),
            Some(_) => Next::Vote,
        }))
    }

    /// Wherever it is stopped, for however long: nodes that answer are taken for neither silent nor
    /// late.
    #[test]
    fn a_client_without_a_processor_takes_no_node_for_silent() {
        for behind in 0..100 {
            for silent in [&[][..], &[1], &[2]] {
                let clock = Held::up(behind, u64::MAX);
                let client = client(&clock, silent);
                let voters = majority(&client);
                assert!(voters.is_ok(), "{silent:?}, held up behind look {behind}: {voters:?}");
                let wrong = client.suspects().holding(|node| !silent.contains(&node.0));
                assert!(wrong.is_empty(), "{silent:?}, behind look {behind}: {wrong:?}");
                let widened = client.events().widened;
                assert!(widened == 0 || !silent.is_empty(), "held up behind look {behind}");
            }
            let clock = Held::up(behind, u64::MAX);
            let client = client(&clock, &[]);
            let post = |node| client.fabric().post(node, &READ);
            let all = polled(client.everywhere(post, |_, _| {}));
            assert_eq!(all, Ok(()), "held up behind look {behind}");
            assert_eq!(client.events().widened, 0, "held up behind look {behind}");
        }
    }

    /// A client that is stopped repeatedly has its answer when it looks, or ends.
    #[test]
    fn a_client_that_is_held_up_time_and_again_is_done_when_it_looks() {
        for every in 2..40 {
            for behind in 0..every {
                let clock = Held::up(behind, every);
                let voters = majority(&client(&clock, &[1]));
                assert!(voters.is_ok(), "every {every} from {behind}: {voters:?}");
                let clock = Held::up(behind, every);
                let voters = majority(&client(&clock, &[1, 2]));
                let gone = Error::NoMajority { answered: 1, needed: 2 };
                assert_eq!(voters, Err(gone), "every {every} from {behind}");
            }
        }
    }

    /// For a client that looks all the time, the deadline is exact.
    #[test]
    fn nodes_that_are_gone_are_given_up_at_the_deadline() {
        let clock = Held::up(u64::MAX, 1);
        let client = client(&clock, &[1, 2]);
        let timeouts = Timeouts { deadline: 1_000_000, ..Timeouts::default() };
        client.set_timeouts(timeouts);
        assert_eq!(majority(&client), Err(Error::NoMajority { answered: 1, needed: 2 }));
        let took = clock.now.get();
        let longest = timeouts.deadline + timeouts.deadline / 5;
        assert!((timeouts.deadline..longest).contains(&took), "{took} ns");
    }
}
