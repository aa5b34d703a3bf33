//! A replica group as one client sees it.
//!
//! Operations turn to a preferred majority first and widen to all nodes when one of those is late.
//! Which nodes are late is remembered, so that it costs a moment once, not at every operation.

use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::clock::{Clock, Ticking, Wait};
use crate::fabric::Fabric;
use crate::layout::{Buffers, SLOTS};
use crate::node::{NodeId, NodeSet};
use crate::words::{Incarnation, WordFormat, WriteNumber};

/// How long to wait for nodes, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// A node is never called late sooner than this.
    pub late_floor: u64,
    /// A node is late after this many roundtrips.
    pub late_roundtrips: u64,
    /// A round without enough answers ends in an error after this, of this client's own time: what passes while it gets
    /// no processor does not count, but for an eighth at a time.
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
    clock: Ticking<C>,
    format: WordFormat,
    session: Session,
    /// Stamp slots that the pool's writers use.
    slots: usize,
    /// The one that this client writes to.
    slot: usize,
    /// Which nodes hold which buffers.
    buffers: Buffers,
    patience: Cell<Patience>,
    /// Under which incarnation it takes numbers, and under which next.
    incarnation: Cell<Incarnation>,
    set_aside: Cell<Option<Incarnation>>,
    counter: Cell<u64>,
    pub(crate) suspects: Cell<NodeSet>,
    avoided: Cell<u32>,
    pub(crate) roundtrip: Cell<u64>,
    /// When a roundtrip was last found to take longer than anybody would have waited.
    stood: Cell<u64>,
    skew: Cell<u64>,
    pub(crate) events: Cell<Events>,
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
        let buffers = Buffers::everywhere(fabric.nodes());
        Self {
            fabric,
            clock: Ticking::new(clock),
            format,
            session,
            slots: SLOTS,
            slot: session.client % SLOTS,
            buffers,
            patience: Cell::new(Patience::default()),
            incarnation: Cell::new(session.incarnation),
            set_aside: Cell::new(None),
            counter: Cell::new(0),
            suspects: Cell::new(NodeSet::EMPTY),
            avoided: Cell::new(0),
            roundtrip: Cell::new(0),
            stood: Cell::new(0),
            skew: Cell::new(0),
            events: Cell::default(),
        }
    }

    /// The same in a pool whose writers use so many [stamp slots](crate::layout::Geometry::slots).
    ///
    /// All clients of a pool have to agree on it.
    #[must_use]
    pub fn with_slots(self, slots: usize) -> Self {
        assert!((1..=SLOTS).contains(&slots), "a register has {SLOTS} slots");
        Self { slots, slot: self.session.client % slots, ..self }
    }

    /// The same in a pool whose nodes hold [so many](crate::layout::Geometry::buffers) of the buffers.
    ///
    /// All clients of a pool have to agree on it.
    #[must_use]
    pub fn with_buffers(self, buffers: Buffers) -> Self {
        Self { buffers, ..self }
    }

    /// Which nodes hold which buffers.
    #[inline]
    pub fn buffers(&self) -> &Buffers {
        &self.buffers
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

    /// The time that waits go by, which never stands. It is no time to take stamps from: that is [`now`](Self::now).
    pub fn clock(&self) -> &Ticking<C> {
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
        self.slot
    }

    /// How many stamp slots the pool's writers use.
    pub fn slots(&self) -> usize {
        self.slots
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

    /// A fresh write number; `None` when they are used up, and none are [set aside](Self::set_aside).
    #[inline]
    pub fn number(&self) -> Option<WriteNumber> {
        let counter = self.counter.get() + 1;
        if counter > WriteNumber::LAST_COUNTER {
            return self.number_of_those_set_aside();
        }
        self.counter.set(counter);
        Some(WriteNumber::new(self.incarnation.get(), counter))
    }

    /// Goes on under the incarnation that was set aside. Whoever has a write under way keeps its number; as
    /// no later one is of the same writer, nothing proves it complete.
    #[cold]
    fn number_of_those_set_aside(&self) -> Option<WriteNumber> {
        let incarnation = self.set_aside.take()?;
        self.incarnation.set(incarnation);
        self.counter.set(1);
        Some(WriteNumber::new(incarnation, 1))
    }

    /// Whether most numbers are used up, and none are set aside.
    #[inline]
    pub fn lacks_numbers(&self) -> bool {
        self.counter.get() > WriteNumber::LAST_COUNTER / 2 && self.set_aside.get().is_none()
    }

    /// Whether there is another number, of those set aside or not.
    #[inline]
    pub fn has_numbers(&self) -> bool {
        self.counter.get() < WriteNumber::LAST_COUNTER || self.set_aside.get().is_some()
    }

    /// Has this client go on under `incarnation` when its numbers are used up: one that nobody had. As numbers have
    /// to grow, it is none that is not larger than the present one.
    pub fn set_aside(&self, incarnation: Incarnation) {
        if incarnation > self.incarnation.get() {
            self.set_aside.set(Some(incarnation));
        }
    }

    /// A write begins. Unless it is told to be complete, this client goes on as another writer:
    /// its next write must not prove an abandoned one complete.
    #[inline]
    pub fn begin_write(&self) -> Unfinished<'_> {
        Unfinished(&self.counter)
    }

    /// Wall-clock nanoseconds since the pool's creation, moved forward when guesses proved stale.
    #[inline]
    pub fn now(&self) -> u64 {
        self.clock.said() + self.skew.get()
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

    /// The node that a write to an object with this home leaves out: the one that operations turn to last.
    /// None if some are silent: who knows which ones will be.
    #[inline]
    pub fn left_out(&self, home: NodeId) -> Option<NodeId> {
        let before = home.0.checked_sub(1).unwrap_or(self.nodes() as u8 - 1);
        self.suspects().is_empty().then_some(NodeId(before))
    }
}

/// A write that is under way.
pub struct Unfinished<'a>(&'a Cell<u64>);

impl Unfinished<'_> {
    /// The write took effect and is complete, or nobody can come across it any more.
    pub fn complete(self) {
        core::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.set(WriteNumber::next_writer(self.0.get()));
    }
}

impl<F: Fabric, C: Clock> Group<F, C> {
    /// A number by chance, for this attempt: those who met go apart by it.
    pub fn dice(&self, attempt: u64) -> u64 {
        let seed = [self.session.client as u64, self.session.incarnation.0, self.clock.now()];
        xxh3_64_with_seed(seed.as_bytes(), attempt)
    }

    /// Lets time pass: how duelling proposers get out of each other's way. Where the clock stands, it ends after as
    /// many looks as it has nanoseconds.
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

    /// Lets so many nanoseconds of this client's own time pass: how long it works on something at most. A client that gets
    /// no processor has not worked.
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

    /// Takes in a roundtrip that began at `since`: a mean that follows slowly. What would have been late if anybody had
    /// looked meanwhile is not measured: this client stood still. Once it has found that out, it knows it of all
    /// roundtrips that began before: their replies lay ready together. Whether it was measured.
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

    /// Nanoseconds after which a node is late.
    pub(crate) fn late_after(&self) -> u64 {
        let Patience { late_floor, late_roundtrips, .. } = self.patience.get();
        late_floor.max(late_roundtrips.saturating_mul(self.roundtrip.get()))
    }

    /// All nodes that were asked were late, and one of them was the first to answer: roundtrips take longer than
    /// the mean says, which doubles, as long as that is so. No more at once for each operation under way: the nodes, or
    /// this client, may have stood still for a moment.
    #[cold]
    pub(crate) fn was_impatient(&self) {
        let Patience { late_floor, late_roundtrips: times, deadline } = self.patience.get();
        // Nobody is to be late only when it is too late.
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

    /// Nodes that do not answer are late, and then given up, though the clock stands.
    #[test]
    fn a_round_ends_though_the_clock_stands() {
        // It says when replies are due.
        let never = Cell::new(0_u64);
        struct Never<'a>(&'a Cell<u64>);
        impl Clock for Never<'_> {
            fn now(&self) -> u64 {
                self.0.get()
            }
        }
        let group = group(Delayed::new(Loopback::new(3, 8), Never(&never), 1), Stands);
        let patience = Patience { late_floor: 1_000, late_roundtrips: 8, deadline: 100_000 };
        group.set_patience(patience);
        let mut round = Round::new(&group);
        round.add(
            NodeId(1),
            group.fabric().post(NodeId(1), &[Verb::Read { at: Address(0), words: 1 }]),
        );
        let mut cx = Context::from_waker(Waker::noop());
        let mut told = Vec::<&str, 2>::new();
        for _ in 0..=2 * patience.deadline {
            match pin!(round.next()).poll(&mut cx) {
                Poll::Pending => {}
                Poll::Ready(Event::Late) => told.push("late").expect("once"),
                Poll::Ready(Event::Expired) => {
                    told.push("expired").expect("once");
                    break;
                }
                Poll::Ready(_) => panic!("nobody answers"),
            }
        }
        assert_eq!(told, ["late", "expired"]);
    }

    struct Hand(Cell<u64>);

    impl Clock for Hand {
        fn now(&self) -> u64 {
            self.0.replace(self.0.get() + 100)
        }
    }

    /// A client that was stopped while replies were under way, of one operation or of several, waits twice as long
    /// for it and no longer.
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
                    let told = pin!(round.next()).poll(&mut cx);
                    assert!(matches!(told, Poll::Ready(Event::Reply(..))), "all are there in time");
                }
            }
            assert!(group.late_after() <= 2 * before, "{before}, then {}", group.late_after());
        }
    }
}
