//! Clients of a cell in turn, on the simplest fabric: what they find, and in how many roundtrips.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::common::{
    FORMAT, append, cell, confirmed, is_created, list, number, object, plant, plant_object, record,
    word,
};
use swarm_core::cell::{CellRef, Proposed, View, committed};
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::counting::Counting;
use swarm_core::fabric::faults::{Faulty, HandSwitches, SwitchState};
use swarm_core::fabric::loopback::Loopback;
use swarm_core::node::{Address, MAX_NODES, NodeId};
use swarm_core::quorum::{Group, Session};
use swarm_core::words::{CellWord, Incarnation, Pointer};

/// Advances by a microsecond with each look.
struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> u64 {
        self.0.set(self.0.get() + 1000);
        self.0.get()
    }
}

type TestGroup<'s> = Group<Counting<Faulty<Loopback, &'s HandSwitches>>, Ticking>;

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..10_000_000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
    panic!("does not end");
}

fn client<'s>(nodes: &Loopback, switches: &'s HandSwitches, id: usize) -> TestGroup<'s> {
    let session = Session { client: id, incarnation: Incarnation(id as u64 + 1) };
    let fabric = Counting::new(Faulty::new(nodes.clone(), switches));
    Group::new(fabric, Ticking(Cell::new(0)), FORMAT, session)
}

fn get(group: &TestGroup<'_>, at: &CellRef) -> (Vec<u64>, View, u32) {
    let (found, tally) = block_on(group.fabric().track(list(group, at)));
    let (tokens, view) = found.expect("a majority is up");
    (tokens, view, tally.roundtrips)
}

/// Appends the last of `tokens`, as the record of its number.
fn put(group: &TestGroup<'_>, at: &CellRef, on: &View, tokens: &[u64]) -> (Option<View>, u32) {
    let token = tokens[tokens.len() - 1];
    let change = number(group.session().client, token);
    let proposal = append(group, at, on, token, change, tokens);
    let (proposed, tally) = block_on(group.fabric().track(proposal));
    match proposed.expect("a majority is up") {
        Proposed::Committed(view) => (Some(view), tally.roundtrips),
        Proposed::Lost { .. } => (None, tally.roundtrips),
    }
}

#[test]
fn alone_everything_is_one_roundtrip() {
    for n in [1, 3, 5, 7] {
        let (nodes, switches) = (Loopback::new(n, 1 << 15), HandSwitches::new());
        let group = client(&nodes, &switches, 0);
        let at = cell((n - 1) as u8);
        let (tokens, view, cost) = get(&group, &at);
        assert_eq!((tokens.len(), view.record(), cost), (0, Pointer::NULL, 1));
        let (view, cost) = put(&group, &at, &view, &[1]);
        let view = view.expect("nobody else is there");
        assert_eq!((view.record(), cost), (record(1), 1));
        let (view, cost) = put(&group, &at, &view, &[1, 2]);
        assert_eq!((view.expect("nobody else is there").record(), cost), (record(2), 1));
        let other = client(&nodes, &switches, 1);
        let (tokens, view, cost) = get(&other, &at);
        assert_eq!((tokens, view.record(), cost), (vec![1, 2], record(2), 1));
        // A view of a majority's words suffices for a fast round at all nodes.
        assert_eq!(put(&other, &at, &view, &[1, 2, 3]).1, 1);
        assert_eq!(get(&group, &at).0, [1, 2, 3]);
        for token in 1..4 {
            for node in (0..n).map(|node| NodeId(node as u8)) {
                assert!(is_created(token, node, n, |at| nodes.word(node, at)));
                // What only the home node has.
                let beyond = nodes.word(node, object(token).at(node, n).plus(3));
                assert_eq!(beyond == token, node == object(token).home);
            }
        }
    }
}

#[test]
fn a_stale_view_loses_and_leaves_no_trace() {
    let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
    let (group, other, at) = (client(&nodes, &switches, 0), client(&nodes, &switches, 1), cell(0));
    let (_, stale, _) = get(&group, &at);
    let (view, _) = put(&other, &at, &stale, &[1]);
    let (lost, cost) = put(&group, &at, &stale, &[2]);
    // One roundtrip to learn which change was first: a record that all nodes refused is not
    // searched for in later records.
    assert!(lost.is_none() && cost == 1);
    let (view, cost) = put(&other, &at, &view.expect("was first"), &[1, 3]);
    assert!(view.is_some() && cost == 1);
    assert_eq!(get(&group, &at).0, [1, 3]);
}

#[test]
fn without_a_node_a_change_takes_two_roundtrips() {
    for state in [SwitchState::Down, SwitchState::Frozen] {
        let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
        let (group, at) = (client(&nodes, &switches, 0), cell(0));
        let (view, _) = put(&group, &at, &get(&group, &at).1, &[1]);
        switches.set(NodeId(1), state);
        // The fast round that detects it, then promise, raise, swap. (Here one node is at its swap
        // before the other's raise is processed, which makes the causal chain one longer.)
        let (view, cost) = put(&group, &at, &view.expect("alone"), &[1, 2]);
        assert_eq!(cost, 5);
        let (view, cost) = put(&group, &at, &view.expect("alone"), &[1, 2, 3]);
        assert_eq!(cost, 2);
        let (view, cost) = put(&group, &at, &view.expect("alone"), &[1, 2, 3, 4]);
        assert_eq!(cost, 2);
        let (tokens, _, cost) = get(&group, &at);
        assert_eq!((tokens, cost), (vec![1, 2, 3, 4], 1));
        // It is back: the next change updates it, and then it takes part in fast rounds.
        switches.set(NodeId(1), SwitchState::Up);
        let (view, cost) = put(&group, &at, &view.expect("alone"), &[1, 2, 3, 4, 5]);
        assert!(cost <= 3, "{cost}");
        let (view, cost) = put(&group, &at, &view.expect("alone"), &[1, 2, 3, 4, 5, 6]);
        assert_eq!(cost, 1);
        switches.set(NodeId(0), SwitchState::Down);
        assert_eq!(get(&group, &at).0, [1, 2, 3, 4, 5, 6]);
        let (_, cost) = put(&group, &at, &view.expect("alone"), &[1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(cost, 2);
    }
}

#[test]
fn a_damaged_copy_in_place_costs_a_roundtrip_and_is_repaired() {
    let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
    let (group, at) = (client(&nodes, &switches, 0), cell(2));
    put(&group, &at, &View::VACANT, &[1]);
    let home = at.place.at(NodeId(2), 3);
    for word in 1..6 {
        nodes.set_word(NodeId(2), home.plus(word), 77);
        let (tokens, _, cost) = get(&group, &at);
        assert_eq!((tokens, cost), (vec![1], if word < 5 { 2 } else { 1 }));
        assert_eq!(get(&group, &at).2, 1);
    }
}

#[test]
fn a_record_that_is_damaged_at_one_node_is_taken_from_another() {
    let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
    let (group, at) = (client(&nodes, &switches, 0), cell(0));
    put(&group, &at, &View::VACANT, &[1]);
    nodes.set_word(NodeId(0), at.place.at(NodeId(0), 3).plus(1), 0);
    nodes.set_word(NodeId(0), Address(record(1).0 * 8 + 5), 9);
    let (tokens, _, cost) = get(&group, &at);
    assert_eq!((tokens, cost), (vec![1], 3));
}

#[test]
fn a_majority_gone_is_an_error_that_says_so() {
    let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
    let (group, at) = (client(&nodes, &switches, 0), cell(0));
    let (view, _) = put(&group, &at, &View::VACANT, &[1]);
    switches.set(NodeId(0), SwitchState::Frozen);
    switches.set(NodeId(1), SwitchState::Down);
    let gone = Error::NoMajority { answered: 1, needed: 2 };
    assert_eq!(block_on(list(&group, &at)).expect_err("no majority"), gone);
    let proposal = append(&group, &at, view.as_ref().expect("alone"), 2, number(0, 2), &[1, 2]);
    assert!(matches!(block_on(proposal), Err(Error::NoMajority { needed: 2, .. })));
    // It may be committed, and is not lost: that is decided once the nodes are back.
    switches.set(NodeId(0), SwitchState::Up);
    let (tokens, ..) = get(&group, &at);
    assert!(tokens == [1] || tokens == [1, 2]);
}

#[test]
fn a_cell_at_the_end_of_its_ballots_can_be_read() {
    let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
    let (group, at) = (client(&nodes, &switches, 0), cell(0));
    put(&group, &at, &View::VACANT, &[1]);
    let near = word(FORMAT.last_ballot().0 - 500, record(1), confirmed());
    for node in (0..2).map(NodeId) {
        nodes.set_word(node, at.place.at(node, 3), near.0);
    }
    // Half promised to a client that died: a read must start a ballot.
    let promised = word(FORMAT.last_ballot().0 - 400, record(1), confirmed() - accepted());
    nodes.set_word(NodeId(0), at.place.at(NodeId(0), 3), promised.0);
    let (tokens, view, _) = get(&group, &at);
    assert_eq!(tokens, [1]);
    let proposal = append(&group, &at, &view, 2, number(0, 2), &[1, 2]);
    assert!(matches!(block_on(proposal), Err(Error::Exhausted)));
    assert_eq!(get(&group, &at).0, [1]);
}

fn accepted() -> swarm_core::words::CellFlags {
    swarm_core::words::CellFlags::ACCEPTED
}

#[test]
fn words_of_another_operations_round_make_a_view() {
    let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
    let (group, at) = (client(&nodes, &switches, 0), cell(0));
    put(&group, &at, &View::VACANT, &[1]);
    let mut words = [None; MAX_NODES];
    for node in (0..3).map(NodeId) {
        words[node.index()] = Some(CellWord(nodes.word(node, at.place.at(node, 3))));
    }
    assert_eq!(committed(FORMAT, 3, &words).map(|(pointer, _)| pointer), Some(record(1)));
    let view = View::of(FORMAT, 3, &words).expect("they agree");
    assert_eq!(put(&group, &at, &view, &[1, 2]).1, 1);
    words[1] = None;
    let view = View::of(FORMAT, 3, &words).expect("they agree");
    assert!(put(&group, &at, &view, &[1, 3]).0.is_none());
}

/// A split's children were created at two nodes when its proposer died.
#[test]
fn a_just_created_cell_is_brought_to_the_node_that_lacks_it() {
    let (nodes, switches) = (Loopback::new(3, 1 << 15), HandSwitches::new());
    let (group, at) = (client(&nodes, &switches, 0), cell(0));
    let created = word(2, record(1), confirmed());
    for node in [NodeId(0), NodeId(2)] {
        plant_object(1, node, 3, |at, value| nodes.set_word(node, at, value));
        plant(1, Pointer::NULL, 2, &[1], |at, value| nodes.set_word(node, at, value));
        nodes.set_word(node, at.place.at(node, 3), created.0);
    }
    let (tokens, view, cost) = get(&group, &at);
    // All three words, then the record: nothing is in place yet.
    assert_eq!((tokens, cost), (vec![1], 3));
    let (_, cost) = put(&group, &at, &view, &[1, 2]);
    assert_eq!(cost, 2);
    assert!(is_created(2, NodeId(1), 3, |at| nodes.word(NodeId(1), at)));
    let (_, cost) = put(&group, &at, &get(&group, &at).1, &[1, 2, 3]);
    assert_eq!(cost, 1);
    let (_, cost) = put(&group, &at, &View::created(FORMAT, 3, created), &[1, 4]);
    assert_eq!(cost, 1);
    assert_eq!(get(&group, &at).0, [1, 2, 3]);
}
