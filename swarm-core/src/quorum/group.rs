//! A replica group as one client sees it.
//!
//! Operations use a preferred majority first, and all nodes once one of those is late. The client
//! remembers which nodes are late, so a late node delays it once, not at every operation.

use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::clock::{Clock, Ticking, Wait};
use crate::fabric::Fabric;
use crate::layout::{Placement, SLOTS};
use crate::node::{NodeId, NodeSet};
use crate::words::{Incarnation, WordFormat, WriteNumber};

/// How long to wait for nodes, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    /// A node is never late sooner than this.
    pub late_floor: u64,
    /// A node is late after this many roundtrips.
    pub late_roundtrips: u64,
    /// A round without enough answers fails after this much of the client's own time. Time in which
    /// it gets no processor counts only up to an eighth of the deadline between two looks.
    pub deadline: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { late_floor: 50_000, late_roundtrips: 8, deadline: 1_000_000_000 }
    }
}

/// The identity of a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its client slot. No other live client has it. Clients write to the stamp slot of this number
    /// modulo [`SLOTS`], and those that share one may have to retry.
    pub client: usize,
    /// Its incarnation: given out once, as write numbers begin with it. A client with an earlier
    /// one's would number its writes as that one did.
    pub incarnation: Incarnation,
}

/// A replica group as one client sees it.
pub struct Group<F, C> {
    fabric: F,
    clock: Ticking<C>,
    format: WordFormat,
    session: Session,
    /// Number of stamp slots that the pool's writers use.
    slots: usize,
    /// The stamp slot that this client writes to.
    slot: usize,
    /// Which nodes hold which buffers.
    buffers: Placement,
    timeouts: Cell<Timeouts>,
    /// The incarnation of its write numbers, and the next one.
    incarnation: Cell<Incarnation>,
    keep_next_incarnation: Cell<Option<Incarnation>>,
    counter: Cell<u64>,
    pub(crate) suspects: Cell<NodeSet>,
    avoided: Cell<u32>,
    pub(crate) roundtrip: Cell<u64>,
    /// The last time at which a roundtrip was found to have taken longer than this client would
    /// wait.
    stood: Cell<u64>,
    skew: Cell<u64>,
    pub(crate) events: Cell<SlowPathCounts>,
}

/// Events outside the common case, since the group was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlowPathCounts {
    /// CASes that were lost, and rounds that were restarted.
    pub retries: u64,
    /// Reads and writes that left the one-roundtrip path.
    pub slow: u64,
    /// Rounds that widened because a node was late.
    pub widened: u64,
}

/// One in this many operations that avoid a suspect also posts to it, to learn whether it is back.
const PROBE_EVERY: u32 = 256;

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Makes the group behind `fabric`, used by `session`. `format` is the same for all clients.
    ///
    /// # Panics
    /// If the fabric has another number of nodes than 1, 3, 5 or 7.
    pub fn new(fabric: F, clock: C, format: WordFormat, session: Session) -> Self {
        assert!(matches!(fabric.nodes(), 1 | 3 | 5 | 7), "a group has 1, 3, 5 or 7 nodes");
        let buffers = Placement::everywhere(fabric.nodes());
        Self {
            fabric,
            clock: Ticking::new(clock),
            format,
            session,
            slots: SLOTS,
            slot: session.client % SLOTS,
            buffers,
            timeouts: Cell::new(Timeouts::default()),
            incarnation: Cell::new(session.incarnation),
            keep_next_incarnation: Cell::new(None),
            counter: Cell::new(0),
            suspects: Cell::new(NodeSet::EMPTY),
            avoided: Cell::new(0),
            roundtrip: Cell::new(0),
            stood: Cell::new(0),
            skew: Cell::new(0),
            events: Cell::default(),
        }
    }

    /// Sets how many [stamp slots](crate::layout::Geometry::slots) the pool's writers use.
    ///
    /// All clients of a pool must use the same number.
    #[must_use]
    pub fn with_slots(self, slots: usize) -> Self {
        assert!((1..=SLOTS).contains(&slots), "a register has {SLOTS} slots");
        Self { slots, slot: self.session.client % slots, ..self }
    }

    /// Sets which nodes [hold](crate::layout::Geometry::placement) which buffers.
    ///
    /// All clients of a pool must use the same placement.
    #[must_use]
    pub fn with_placement(self, buffers: Placement) -> Self {
        Self { buffers, ..self }
    }

    /// Returns which nodes hold which buffers.
    #[inline]
    pub fn placement(&self) -> &Placement {
        &self.buffers
    }

    /// Returns the counts of events outside the common case.
    pub fn events(&self) -> SlowPathCounts {
        self.events.get()
    }

    /// Counts a lost CAS, or a round that is restarted.
    pub(crate) fn count_retry(&self) {
        let events = self.events.get();
        self.events.set(SlowPathCounts { retries: events.retries + 1, ..events });
    }

    /// Counts an operation that left the one-roundtrip path.
    pub(crate) fn count_slow(&self) {
        let events = self.events.get();
        self.events.set(SlowPathCounts { slow: events.slow + 1, ..events });
    }

    /// Returns the fabric.
    pub fn fabric(&self) -> &F {
        &self.fabric
    }

    /// Returns the time for waits, which never stands still. Not a time for stamps: that is
    /// [`now`](Self::now).
    pub fn clock(&self) -> &Ticking<C> {
        &self.clock
    }

    /// Returns how words are split.
    pub fn format(&self) -> WordFormat {
        self.format
    }

    /// Returns the identity of this client.
    pub fn session(&self) -> Session {
        self.session
    }

    /// Returns the stamp slot that this client writes to.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Returns how many stamp slots the pool's writers use.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.fabric.nodes()
    }

    /// Returns how many nodes are a majority.
    pub fn majority(&self) -> usize {
        self.nodes() / 2 + 1
    }

    /// Returns how long rounds wait.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts.get()
    }

    /// Changes how long rounds wait.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.timeouts.set(timeouts);
    }

    /// Returns the nodes that were late or down when last used.
    pub fn suspects(&self) -> NodeSet {
        self.suspects.get()
    }

    /// Remembers that `node` does not answer.
    pub(crate) fn suspect(&self, node: NodeId) {
        let mut suspects = self.suspects.get();
        suspects.insert(node);
        self.suspects.set(suspects);
    }

    /// Remembers that `node` answers.
    pub(crate) fn trust(&self, node: NodeId) {
        let mut suspects = self.suspects.get();
        suspects.remove(node);
        self.suspects.set(suspects);
    }

    /// Returns a new write number; `None` if they are used up and no next incarnation is
    /// [kept](Self::keep_next_incarnation).
    #[inline]
    pub fn number(&self) -> Option<WriteNumber> {
        let counter = self.counter.get() + 1;
        if counter > WriteNumber::LAST_COUNTER {
            return self.number_of_those_allocated();
        }
        self.counter.set(counter);
        Some(WriteNumber::new(self.incarnation.get(), counter))
    }

    /// Continues under the incarnation that was kept (G4). Writes in progress keep their numbers;
    /// no later number is of the same writer, so nothing proves them complete.
    #[cold]
    fn number_of_those_allocated(&self) -> Option<WriteNumber> {
        let incarnation = self.keep_next_incarnation.take()?;
        self.incarnation.set(incarnation);
        self.counter.set(1);
        Some(WriteNumber::new(incarnation, 1))
    }

    /// Returns whether most numbers are used up and no next incarnation is kept.
    #[inline]
    pub fn lacks_numbers(&self) -> bool {
        self.counter.get() > WriteNumber::LAST_COUNTER / 2
            && self.keep_next_incarnation.get().is_none()
    }

    /// Returns whether there is another number, under this incarnation or the next.
    #[inline]
    pub fn has_numbers(&self) -> bool {
        self.counter.get() < WriteNumber::LAST_COUNTER || self.keep_next_incarnation.get().is_some()
    }

    /// Keeps `incarnation`, which no client had, for when this client's numbers are used up.
    /// Numbers must grow, so one that is not larger than the present one is ignored (G4).
    pub fn keep_next_incarnation(&self, incarnation: Incarnation) {
        if incarnation > self.incarnation.get() {
            self.keep_next_incarnation.set(Some(incarnation));
        }
    }

    /// Begins a write. G4: unless it is declared complete, this client continues as another writer:
    /// its next write must not prove an abandoned one complete.
    #[inline]
    pub fn begin_write(&self) -> Unfinished<'_> {
        Unfinished(&self.counter)
    }

    /// Returns the wall-clock nanoseconds since the pool's creation, advanced when guesses proved
    /// stale.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.clock_time() + self.skew.get()
    }

    /// Advances the clock by `behind` nanoseconds: a guess proved stale by that much.
    pub fn advance(&self, behind: u64) {
        self.skew.set(self.skew.get() + behind);
    }

    /// Returns the majority that an operation on an object with this `home` uses first.
    ///
    /// It starts at the home node and skips suspects if enough other nodes are left. Now and then
    /// it also contains a suspect, on top of a majority: the suspect is not waited for, but its
    /// answer shows that it is back.
    #[inline]
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

    /// Returns the node that a write to an object with this home leaves out (M3): the one that
    /// operations use last. `None` if nodes are suspect, as it is unknown which ones will be next.
    #[inline]
    pub fn left_out(&self, home: NodeId) -> Option<NodeId> {
        let before = home.0.checked_sub(1).unwrap_or(self.nodes() as u8 - 1);
        self.suspects().is_empty().then_some(NodeId(before))
    }
}

/// A write in progress.
pub struct Unfinished<'a>(&'a Cell<u64>);

impl Unfinished<'_> {
    /// Declares that the write took effect and is complete, or that no client can reach it any
    /// more.
    pub fn complete(self) {
        core::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // G4: not complete, so this client's next write is another writer's.
        self.0.set(WriteNumber::next_writer(self.0.get()));
    }
}

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Returns a random number for this attempt, by which colliding clients separate.
    pub fn dice(&self, attempt: u64) -> u64 {
        let seed = [self.session.client as u64, self.session.incarnation.0, self.clock.now()];
        xxh3_64_with_seed(seed.as_bytes(), attempt)
    }

    /// Lets time pass, so that duelling proposers separate. If the clock stands still, it ends
    /// after as many looks as it has nanoseconds.
    pub async fn pause(&self, nanoseconds: u64) {
        let until = self.clock.now().saturating_add(nanoseconds);
        poll_fn(|cx| {
            if self.clock.now() >= until {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Lets that much of this client's own time pass: the bound on its work on something. A client
    /// without a processor has not worked.
    pub async fn own_time(&self, nanoseconds: u64) {
        let mut wait = Wait::new(self.clock.now());
        poll_fn(|cx| {
            if wait.is_over(nanoseconds, self.clock.now()) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Adds a roundtrip that began at `since` to a slow-moving mean, and returns whether it did. A
    /// sample that counts as late is not added: this client did not look meanwhile, so it was
    /// stopped. The same holds for all roundtrips that began before it noticed that: their replies
    /// were ready together.
    pub(crate) fn measured(&self, since: u64) -> bool {
        if since < self.stood.get() {
            return false;
        }
        let now = self.clock.now();
        let sample = now.saturating_sub(since);
        if sample >= self.late_after() {
            self.stood.set(now);
            self.was_impatient();
            return false;
        }
        let mean = self.roundtrip.get();
        self.roundtrip.set(if mean == 0 { sample } else { mean - mean / 8 + sample / 8 });
        true
    }

    /// Returns the nanoseconds after which a node is late.
    pub(crate) fn late_after(&self) -> u64 {
        let Timeouts { late_floor, late_roundtrips, .. } = self.timeouts.get();
        late_floor.max(late_roundtrips.saturating_mul(self.roundtrip.get()))
    }

    /// Doubles the mean roundtrip, as long as it is too short: all nodes that were asked were late,
    /// and one of them answered first. It at most doubles for each operation in progress, as the
    /// nodes, or this client, may have stopped for a moment.
    #[cold]
    pub(crate) fn was_impatient(&self) {
        let Timeouts { late_floor, late_roundtrips: times, deadline } = self.timeouts.get();
        // A node must become late before the deadline.
        if let (Some(least), Some(most)) =
            (late_floor.checked_div(times), deadline.checked_div(times))
        {
            let mean = self.roundtrip.get();
            self.roundtrip.set(mean.max((2 * mean.max(least).max(1)).min(most / 2)));
        }
    }
}

#[cfg(test)]
mod tests {
    use core::pin::pin;
    use core::task::{Context, Waker};

    use heapless::Vec;

    use super::*;
    use crate::fabric::Verb;
    use crate::fabric::latency::Delayed;
    use crate::fabric::loopback::Loopback;
    use crate::node::Address;
    use crate::quorum::round::{Event, Round};

    const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };

    fn group<F: Fabric, C: Clock>(nodes: F, clock: C) -> Group<F, C> {
        let session = Session { client: 0, incarnation: Incarnation(1) };
        Group::new(nodes, clock, FORMAT, session)
    }

    struct Stands;

    impl Clock for Stands {
        fn now(&self) -> u64 {
            77
        }
    }

    #[test]
    fn a_pause_ends_though_the_clock_stands() {
        let group = group(Loopback::new(3, 8), Stands);
        let mut cx = Context::from_waker(Waker::noop());
        for nanoseconds in [0, 1, 1_000, 100_000] {
            let mut pause = pin!(group.pause(nanoseconds));
            let looks = (0..=nanoseconds).take_while(|_| pause.as_mut().poll(&mut cx).is_pending());
            assert!(looks.count() as u64 <= nanoseconds, "{nanoseconds} ns");
        }
    }

    /// Nodes that do not answer are late, and then given up, although the clock stands still.
    #[test]
    fn a_round_ends_though_the_clock_stands() {
        // This clock determines when replies are due.
        let never = Cell::new(0_u64);
        struct Never<'a>(&'a Cell<u64>);
        impl Clock for Never<'_> {
            fn now(&self) -> u64 {
                self.0.get()
            }
        }
        let group = group(Delayed::new(Loopback::new(3, 8), Never(&never), 1), Stands);
        let timeouts = Timeouts { late_floor: 1_000, late_roundtrips: 8, deadline: 100_000 };
        group.set_timeouts(timeouts);
        let mut round = Round::new(&group);
        round.add(
            NodeId(1),
            group.fabric().post(NodeId(1), &[Verb::Read { at: Address(0), words: 1 }]),
        );
        let mut cx = Context::from_waker(Waker::noop());
        let mut outcome = Vec::<&str, 2>::new();
        for _ in 0..=2 * timeouts.deadline {
            match pin!(round.next()).poll(&mut cx) {
                Poll::Pending => {}
                Poll::Ready(Event::Late) => outcome.push("late").expect("once"),
                Poll::Ready(Event::Expired) => {
                    outcome.push("expired").expect("once");
                    break;
                }
                Poll::Ready(_) => panic!("nobody answers"),
            }
        }
        assert_eq!(outcome, ["late", "expired"]);
    }

    struct Hand(Cell<u64>);

    impl Clock for Hand {
        fn now(&self) -> u64 {
            self.0.replace(self.0.get() + 100)
        }
    }

    /// A client that was stopped while replies were on their way, of one operation or of several,
    /// at most doubles its timeout.
    #[test]
    fn replies_that_lie_ready_after_a_pause_count_once() {
        let clock = Hand(Cell::new(0));
        let group = group(Delayed::new(Loopback::new(3, 8), &clock, 1_000), &clock);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..4 {
            let before = group.late_after();
            let mut rounds = [(); 4].map(|()| Round::new(&group));
            for round in &mut rounds {
                for node in NodeSet::all(3) {
                    let chain = [Verb::Read { at: Address(0), words: 1 }];
                    round.add(node, group.fabric().post(node, &chain));
                }
                assert!(pin!(round.next()).poll(&mut cx).is_pending());
            }
            clock.0.set(clock.0.get() + 10_000_000_000);
            for round in &mut rounds {
                for _ in 0..3 {
                    let outcome = pin!(round.next()).poll(&mut cx);
                    assert!(
                        matches!(outcome, Poll::Ready(Event::Reply(..))),
                        "all are there in time"
                    );
                }
            }
            assert!(group.late_after() <= 2 * before, "{before}, then {}", group.late_after());
        }
    }
}
