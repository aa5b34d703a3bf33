//! A proposer that is stopped (by SIGSTOP, or because its virtual machine is paused) while others
//! change its cell thousands of times. It learns what happened to its change as far as that can be
//! known, and reports damaged memory only where memory is damaged.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use swarm_core::cell::{CellRef, Proposal, Proposed, View, propose, read};
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::fabric::{Fabric, NoEpochs, NodeDown, Verb};
use swarm_core::layout::{Location, RecordHeader, cell, record};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::{Group, Session, Timeouts};
use swarm_core::words::{Ballot, CellFlags, Incarnation, Pointer, WordFormat, WriteNumber};

const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
/// More than any table of changes in a proposer could hold.
pub(crate) const CHANGES: u64 = 4200;
/// Records lie where their number says, a granule each: accepted ballot, header, two words.
const RECORDS_AT: u64 = 8;
/// The record of the stopped client. There is room for another behind it.
pub(crate) const OWN: u64 = CHANGES + 10;
pub(crate) const N2: NodeId = NodeId(2);

/// Advances with each look.
pub(crate) struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> u64 {
        self.0.replace(self.0.get() + 100)
    }
}

/// Nodes of which one may be away, and a client that is stopped before one of its chains.
#[derive(Clone)]
pub(crate) struct Nodes {
    inner: Loopback,
    near: bool,
    pub(crate) away: Rc<Cell<Option<NodeId>>>,
    /// Before its first chain to this node.
    stop: Rc<RefCell<Option<Stop>>>,
}

type Stop = (NodeId, Box<dyn FnOnce()>);

pub(crate) struct Done(Option<Vec<u64>>);

impl Future for Done {
    type Output = Result<Vec<u64>, NodeDown>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.0.take().ok_or(NodeDown))
    }
}

impl Fabric for Nodes {
    type EpochDomain = NoEpochs;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Done;

    fn is_near(&self) -> bool {
        self.near
    }

    fn nodes(&self) -> usize {
        3
    }

    fn post(&self, node: NodeId, chain: &[Verb<'_>]) -> Done {
        let here = self.stop.borrow_mut().take_if(|(at, _)| *at == node);
        if let Some((_, meanwhile)) = here {
            meanwhile();
        }
        if self.away.get() == Some(node) {
            return Done(None);
        }
        let mut posted = self.inner.post(node, chain);
        match Pin::new(&mut posted).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(reply)) => Done(Some(reply)),
            _ => Done(None),
        }
    }
}

pub(crate) type Client = Group<Nodes, Ticking>;

pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

pub(crate) fn at() -> CellRef {
    CellRef::new(Location::everywhere(Pointer(1), NodeId(0)), 2)
}

fn record_at(nth: u64) -> Pointer {
    Pointer(RECORDS_AT + nth)
}

fn change(client: &Client, on: &View, nth: u64) -> Result<Proposed, Error> {
    change_to(client, on, nth, nth)
}

/// Changes the cell to `value`, as change `nth` of the client.
pub(crate) fn change_to(
    client: &Client,
    on: &View,
    nth: u64,
    value: u64,
) -> Result<Proposed, Error> {
    let change = WriteNumber::new(client.session().incarnation, nth + 1);
    let (record, payload) = (record_at(nth), &[value, nth]);
    let proposal = Proposal { change, record, payload, initial_writes: &[], sparing: false };
    block_on(propose(client, &at(), on, &proposal, &()))
}

fn view(client: &Client) -> View {
    block_on(read(client, &at(), &())).expect("a majority is there").view
}

/// Changes the cell once for each number.
fn change_often(client: &Client, numbers: impl Iterator<Item = u64>) {
    let mut on = view(client);
    for nth in numbers {
        match change(client, &on, nth) {
            Ok(Proposed::Committed(next)) => on = next,
            outcome => panic!("nobody else is there: {outcome:?}"),
        }
    }
}

pub(crate) struct Story {
    nodes: Nodes,
    pub(crate) stopped: Client,
    pub(crate) busy: Rc<Client>,
    /// The view of the stopped client, in which the value is 0.
    pub(crate) stale: View,
}

impl Story {
    /// One of each kind of memory.
    pub(crate) fn far_and_near() -> [Self; 2] {
        [false, true].map(Self::new)
    }

    fn new(near: bool) -> Self {
        let inner = Loopback::new(3, (RECORDS_AT + OWN + 2) as usize * 8);
        let away = Rc::new(Cell::new(None));
        let client = |client: usize, stop: &Rc<RefCell<_>>| {
            let nodes =
                Nodes { inner: inner.clone(), near, away: Rc::clone(&away), stop: Rc::clone(stop) };
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            Group::new(nodes, Ticking(Cell::new(0)), FORMAT, session)
        };
        let stop = Rc::default();
        let (stopped, busy) = (client(0, &stop), Rc::new(client(1, &Rc::default())));
        change_often(&busy, 0..1);
        let stale = view(&stopped);
        let nodes = Nodes { inner, near, away, stop };
        Self { nodes, stopped, busy, stale }
    }

    /// The client proposes, and is stopped before its first chain to node 2: the other two have its
    /// record.
    fn stopped_half_way(
        &self,
        meanwhile: impl FnOnce(&Nodes, &Client) + 'static,
    ) -> Result<Proposed, Error> {
        self.stop_at(N2, meanwhile);
        let outcome = change(&self.stopped, &self.stale, OWN);
        assert!(self.nodes.stop.borrow().is_none(), "it was stopped");
        outcome
    }

    /// The client is stopped before its next chain to this node, for as long as `meanwhile` takes.
    pub(crate) fn stop_at(&self, node: NodeId, meanwhile: impl FnOnce(&Nodes, &Client) + 'static) {
        let (busy, nodes) = (Rc::clone(&self.busy), self.nodes.clone());
        *self.nodes.stop.borrow_mut() = Some((node, Box::new(move || meanwhile(&nodes, &busy))));
    }
}

#[test]
fn a_client_that_was_stopped_before_it_proposed_has_lost() {
    for story in Story::far_and_near() {
        change_often(&story.busy, 1..CHANGES);
        let outcome = change(&story.stopped, &story.stale, OWN);
        assert!(matches!(outcome, Ok(Proposed::Lost { .. })), "{outcome:?}");
    }
}

/// Two nodes took its record, and a ballot may have chosen it: only the later records show that
/// none did.
#[test]
fn a_client_that_was_stopped_half_way_finds_out_that_it_has_lost() {
    for story in Story::far_and_near() {
        let outcome = story.stopped_half_way(|_, busy| change_often(busy, 1..CHANGES));
        assert!(matches!(outcome, Ok(Proposed::Lost { .. })), "{outcome:?}");
    }
}

/// Others completed its change, and built on it.
#[test]
fn a_client_that_was_stopped_half_way_finds_out_that_it_has_won() {
    for story in Story::far_and_near() {
        let outcome = story.stopped_half_way(|nodes, busy| {
            nodes.away.set(Some(N2));
            let on = block_on(read(busy, &at(), &())).expect("two are there").view;
            assert_eq!(on.record(), record_at(OWN), "both others have it");
            nodes.away.set(None);
            change_often(busy, 1..CHANGES);
        });
        assert!(matches!(outcome, Ok(Proposed::Committed(_))), "{outcome:?}");
    }
}

/// Following the predecessors takes longer than an operation may: the outcome stays unknown.
#[test]
fn a_client_that_cannot_find_out_in_time_gets_an_open_outcome() {
    for story in Story::far_and_near() {
        story.stopped.set_timeouts(Timeouts { deadline: 50 * CHANGES, ..Timeouts::default() });
        let outcome = story.stopped_half_way(|_, busy| change_often(busy, 1..CHANGES));
        assert!(matches!(outcome, Err(Error::Contended)), "{outcome:?}");
    }
}

/// A client that knows a record of the cell does not take it for one that others changed.
#[test]
fn a_cell_that_lost_all_its_words_is_damaged() {
    for story in Story::far_and_near() {
        for node in (0..3).map(NodeId) {
            let word = at().place.at(node, 3).plus(cell::WORD);
            assert_ne!(story.nodes.inner.word(node, word), 0);
            story.nodes.inner.set_word(node, word, 0);
        }
        let outcome = change(&story.stopped, &story.stale, OWN);
        assert!(matches!(outcome, Err(Error::Damaged)), "{outcome:?}");
    }
}

/// A record's memory is damaged, so that its checksum is valid and it names a later record. There
/// are fewer ballots than records on that path, however much time there is.
#[test]
fn records_that_lead_round_in_a_circle_are_damaged() {
    for story in Story::far_and_near() {
        story.stopped.set_timeouts(Timeouts { deadline: u64::MAX, ..Timeouts::default() });
        let outcome = story.stopped_half_way(|nodes, busy| {
            change_often(busy, 1..100);
            let later = FORMAT.cell(Ballot(1000), record_at(90), CellFlags::all());
            let writer = WriteNumber::new(Incarnation(2), 51);
            let header = RecordHeader::new(record_at(50), later, writer, &[50, 50]).encode();
            for node in (0..3).map(NodeId) {
                let body = Address(record_at(50).0 * 8).plus(record::BODY);
                (0..)
                    .zip(&header)
                    .for_each(|(i, word)| nodes.inner.set_word(node, body.plus(i), *word));
            }
        });
        assert!(matches!(outcome, Err(Error::Damaged)), "{outcome:?}");
    }
}

/// A node does not answer. The others have its record, which a fast round at all but one does not commit.
#[test]
fn a_change_that_a_silent_node_lacks_takes_another_round() {
    for story in Story::far_and_near() {
        let outcome = story.stopped_half_way(|nodes, _| nodes.away.set(Some(N2)));
        assert!(matches!(outcome, Ok(Proposed::Committed(_))), "{outcome:?}");
        // Of the two that took it, one is left, and it is not lost.
        story.nodes.away.set(Some(NodeId(1)));
        assert_eq!(view(&story.busy).record(), record_at(OWN));
    }
}
