//! A round: chains posted to a few nodes, and their replies.
//!
//! A dead or slow node is a missing vote, not an error. A round reports when nodes are late, and
//! ends only at the deadline. It reports either only after a look that found nothing, and the
//! deadline is in the client's own time. So a client without a processor takes no node for late or
//! silent because of that.

use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};

use super::group::{Group, SlowPathCounts};
use crate::clock::{Clock, Wait};
use crate::fabric::{Fabric, NodeDown};
use crate::node::{MAX_NODES, NodeId, NodeSet};

/// An event of a round.
pub enum Event<Reply> {
    /// A node answered.
    Reply(NodeId, Reply),
    /// A node is known not to answer.
    Down(NodeId),
    /// Nodes that were posted to are late. Reported once a round.
    Late,
    /// The deadline has passed.
    Expired,
    /// No chain is pending.
    Idle,
}

/// What has expired when a look found nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    /// The time after which nodes are late.
    Late,
    /// The deadline.
    Deadline,
}

/// Pending chains, at most one for each node.
pub struct Round<'f, F: Fabric + 'f, C> {
    group: &'f Group<F, C>,
    chains: [Option<F::Completion<'f>>; MAX_NODES],
    pending: NodeSet,
    /// When the pending chains were first looked at.
    since: Option<u64>,
    /// How long that has been, in this client's own time.
    wait: Option<Wait>,
    /// How long it may be.
    deadline: u64,
    late: bool,
    reported: bool,
    /// Whether any node has answered.
    pub(crate) received: bool,
    /// Nodes that were late before any had answered.
    overdue: NodeSet,
}

impl<'f, F: Fabric, C: Clock> Round<'f, F, C> {
    /// Returns an empty round.
    #[inline(always)]
    pub fn new(group: &'f Group<F, C>) -> Self {
        Self {
            group,
            chains: [const { None }; MAX_NODES],
            pending: NodeSet::EMPTY,
            since: None,
            wait: None,
            deadline: group.timeouts().deadline,
            late: false,
            reported: false,
            received: false,
            overdue: NodeSet::EMPTY,
        }
    }

    /// Sets another deadline, in nanoseconds.
    pub(crate) fn within(self, deadline: u64) -> Self {
        Self { deadline, ..self }
    }

    /// Adds this chain, posted to `node`, which has none pending.
    #[inline]
    pub fn add(&mut self, node: NodeId, chain: F::Completion<'f>) {
        debug_assert!(!self.pending.contains(node));
        self.chains[node.index()] = Some(chain);
        self.pending.insert(node);
    }

    /// Returns the nodes that have not answered.
    #[inline]
    pub fn pending(&self) -> NodeSet {
        self.pending
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Event<F::Reply<'f>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Makes the round report lateness once more, for nodes that were posted to only now.
    pub(crate) fn watch_again(&mut self) {
        self.reported = false;
        (self.since, self.wait) = (None, None);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event<F::Reply<'f>>> {
        if let Some(event) = self.look(cx) {
            return Poll::Ready(event);
        }
        if self.pending.is_empty() {
            return Poll::Ready(Event::Idle);
        }
        let Some(over) = self.wait() else {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        // Looks once more after the clock. This client may have been stopped between look and clock
        // for that long, and a node whose answer has arrived meanwhile is not late.
        let answer = self.look(cx);
        Poll::Ready(answer.unwrap_or_else(|| self.report(over)))
    }

    /// Returns an answer that has arrived.
    #[inline]
    fn look(&mut self, cx: &mut Context<'_>) -> Option<Event<F::Reply<'f>>> {
        for node in self.pending {
            let chain = self.chains[node.index()].as_mut().expect("pending nodes have chains");
            if let Poll::Ready(result) = Pin::new(chain).poll(cx) {
                return Some(self.answered(node, result));
            }
        }
        None
    }

    fn answered(
        &mut self,
        node: NodeId,
        result: Result<F::Reply<'f>, NodeDown>,
    ) -> Event<F::Reply<'f>> {
        self.chains[node.index()] = None;
        self.pending.remove(node);
        match result {
            Ok(reply) => {
                if let Some(since) = self.since
                    && !self.late
                    && !self.group.measured(since)
                {
                    // This client was stopped. A chain that is posted only now has all its time.
                    self.since = None;
                }
                if self.group.suspects().contains(node) {
                    if !self.received && self.overdue.contains(node) {
                        self.group.was_impatient();
                    }
                    self.group.trust(node);
                }
                self.received = true;
                Event::Reply(node, reply)
            }
            Err(_) => {
                self.group.suspect(node);
                Event::Down(node)
            }
        }
    }

    /// Returns what has expired by the clock, after a look that found nothing.
    fn wait(&mut self) -> Option<Over> {
        let now = self.group.clock().now();
        let waited = now.saturating_sub(*self.since.get_or_insert(now));
        if self.wait.get_or_insert(Wait::new(now)).is_over(self.deadline, now) {
            return Some(Over::Deadline);
        }
        (!self.reported && waited >= self.group.late_after()).then_some(Over::Late)
    }

    fn report(&mut self, over: Over) -> Event<F::Reply<'f>> {
        if over == Over::Deadline {
            return Event::Expired;
        }
        let group = self.group;
        self.reported = true;
        if !core::mem::replace(&mut self.late, true) {
            let events = group.events.get();
            group.events.set(SlowPathCounts { widened: events.widened + 1, ..events });
            self.overdue = self.pending;
        }
        group.suspects.set(group.suspects.get().union(self.pending));
        Event::Late
    }

    /// Clears the suspicion of nodes that answer now, although their votes are not needed. Waits
    /// half a roundtrip for them, since a probe may have been posted last.
    pub(crate) async fn collect_late(&mut self) {
        let group = self.group;
        let suspects = group.suspects.get();
        if self.pending.intersection(suspects).is_empty() {
            return;
        }
        let until = group.clock().now().saturating_add(group.roundtrip.get() / 2);
        poll_fn(|cx| {
            for node in self.pending.intersection(suspects) {
                let chain = self.chains[node.index()].as_mut().expect("pending nodes have chains");
                if let Poll::Ready(result) = Pin::new(chain).poll(cx) {
                    self.answered(node, result);
                }
            }
            let received = self.pending.intersection(suspects).is_empty();
            if received || group.clock().now() >= until {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::pin::pin;
    use core::task::Waker;

    use super::*;
    use crate::fabric::Verb;
    use crate::fabric::latency::Delayed;
    use crate::fabric::loopback::Loopback;
    use crate::node::Address;
    use crate::quorum::group::{Session, Timeouts};
    use crate::words::{Incarnation, WordFormat};

    /// Advances with each look.
    struct Steps(Cell<u64>);

    impl Clock for Steps {
        fn now(&self) -> u64 {
            self.0.replace(self.0.get() + 100)
        }
    }

    /// Returns the node that answered first, if one did before it was late.
    fn first<C: Clock>(group: &Group<Delayed<Loopback, &C>, &C>) -> Option<NodeId> {
        let mut round = Round::new(group);
        for node in NodeSet::all(group.nodes()) {
            round.add(node, group.fabric().post(node, &[Verb::Read { at: Address(0), words: 1 }]));
        }
        let mut next = || {
            let mut cx = Context::from_waker(Waker::noop());
            (0..1_000_000).find_map(|_| match pin!(round.next()).poll(&mut cx) {
                Poll::Ready(event) => Some(event),
                Poll::Pending => None,
            })
        };
        match next() {
            Some(Event::Reply(node, _)) => Some(node),
            Some(Event::Late) => {
                assert!(matches!(next(), Some(Event::Reply(..))), "one answers in the end");
                None
            }
            _ => panic!("the nodes are there"),
        }
    }

    /// Otherwise a client that was stopped for seconds would wait that long for a dead node, and so
    /// until its deadline.
    #[test]
    fn a_client_that_stood_still_is_no_more_patient_for_it() {
        let clock = Steps(Cell::new(0));
        let nodes = Delayed::new(Loopback::new(3, 8), &clock, 1_000);
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let format = WordFormat { pointer_bits: 22, tick_shift: 6 };
        let group = Group::new(nodes, &clock, format, session);
        for _ in 0..4 {
            let before = group.late_after();
            let mut round = Round::new(&group);
            let chain = group.fabric().post(NodeId(0), &[Verb::Read { at: Address(0), words: 1 }]);
            round.add(NodeId(0), chain);
            let mut cx = Context::from_waker(Waker::noop());
            assert!(pin!(round.next()).poll(&mut cx).is_pending());
            clock.0.set(clock.0.get() + 10_000_000_000);
            let reported = pin!(round.next()).poll(&mut cx);
            assert!(
                matches!(reported, Poll::Ready(Event::Reply(..))),
                "its answer was there in time"
            );
            assert!(group.late_after() <= 2 * before, "{} ns", group.late_after());
        }
    }

    /// Otherwise nodes that are further away than a client assumes at first would be late each
    /// time. Its operations would go to all of them, and give up early on nodes that they should
    /// wait for.
    #[test]
    fn a_client_learns_how_long_a_roundtrip_takes() {
        for roundtrip in [1_000, 60_000, 1_000_000, 20_000_000] {
            let clock = Steps(Cell::new(0));
            let nodes = Delayed::new(Loopback::new(3, 8), &clock, roundtrip);
            let session = Session { client: 0, incarnation: Incarnation(1) };
            let format = WordFormat { pointer_bits: 22, tick_shift: 6 };
            let group = Group::new(nodes, &clock, format, session);
            group.set_timeouts(Timeouts { deadline: 1 << 40, ..Timeouts::default() });
            let late = (0..100).take_while(|_| first(&group).is_none()).count();
            assert!(late <= 12, "{roundtrip} ns: late {late} times");
            assert!((0..20).all(|_| first(&group).is_some()), "{roundtrip} ns: late again");
        }
    }
}
