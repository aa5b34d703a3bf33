//! Scripted scenarios that random schedules seldom reach, each played step by step against one
//! rule.
//!
//! Three nodes. `x` is the list `[0]`, committed at the start; `r` and `y` are rivals that are
//! built on it, `[0, 1]` and `[0, 2]`.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use crate::common::{
    FORMAT, append, cell, confirmed, is_created, list, number, object, plant, plant_object, record,
    word,
};
use swarm_core::cell::{CellRef, Proposed, View};
use swarm_core::error::Error;
use swarm_core::node::{Address, MAX_NODES, NodeId};
use swarm_core::quorum::{Group, Session, Timeouts};
use swarm_core::sim::{Setup, Sim, SimClock, SimFabric};
use swarm_core::words::{CellFlags, CellWord, Incarnation, Pointer};

const N0: NodeId = NodeId(0);
const N1: NodeId = NodeId(1);
const N2: NodeId = NodeId(2);
const ALL: [NodeId; 3] = [N0, N1, N2];
const X: u64 = 0;
const R: u64 = 1;
const Y: u64 = 2;

/// Timeouts in nanoseconds: no node becomes late, or nodes that do not answer soon do.
const LONG: u64 = 1_000_000;
const SHORT: u64 = 100;
/// More roundtrips than any operation here takes.
const ENOUGH: usize = 200;

/// The result of a client's operation, once it has ended.
type Outcome<T> = Rc<RefCell<Option<Result<T, Error>>>>;

struct Story {
    sim: Sim,
    clients: usize,
}

impl Story {
    /// Returns a scenario with `x` at every node, accepted at ballot 2.
    fn new() -> Self {
        let story = Self { sim: Sim::new(&Setup::new(1, 3, 12)), clients: 0 };
        for node in ALL {
            story.has(node, X, Pointer::NULL, 2);
            story.shows(node, 2, X, confirmed());
        }
        story
    }

    /// Lets `node` have record `index`, and what was created with it, since long ago.
    fn has(&self, node: NodeId, index: u64, predecessor: Pointer, accepted: u64) {
        let set = |at, value| self.sim.set_word(node, at, value);
        let tokens: &[u64] = if index == X { &[X] } else { &[X, index] };
        plant_object(index, node, 3, set);
        plant(index, predecessor, accepted, tokens, set);
    }

    fn shows(&self, node: NodeId, ballot: u64, index: u64, flags: CellFlags) {
        let at = cell(0).place.at(node, 3);
        self.sim.set_word(node, at, word(ballot, record(index), flags).0);
    }

    fn shown(&self, node: NodeId) -> CellWord {
        CellWord(self.sim.word(node, cell(0).place.at(node, 3)))
    }

    fn is_accepted(&self, node: NodeId, index: u64) -> bool {
        let word = self.shown(node);
        word.is_accepted() && FORMAT.record(word) == record(index)
    }

    fn is_promised(&self, node: NodeId, ballot: u64) -> bool {
        !self.shown(node).is_accepted() && FORMAT.ballot(self.shown(node)).0 == ballot
    }

    fn accepted(&self, node: NodeId, index: u64) -> u64 {
        self.sim.word(node, Address(record(index).0 * 8))
    }

    fn is_created(&self, token: u64, node: NodeId) -> bool {
        is_created(token, node, 3, |at| self.sim.word(node, at))
    }

    /// Lets a new client, which finds nodes late only after `timeouts` nanoseconds, start
    /// `operation`.
    fn begin<T, O>(
        &mut self,
        timeouts: u64,
        operation: impl FnOnce(Group<SimFabric, SimClock>) -> O + 'static,
    ) -> (usize, Outcome<T>)
    where
        T: 'static,
        O: Future<Output = Result<T, Error>> + 'static,
    {
        let client = self.clients;
        self.clients += 1;
        let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
        let group = Group::new(self.sim.fabric(client), self.sim.clock(client), FORMAT, session);
        let late = Timeouts { late_floor: timeouts, late_roundtrips: 1, ..Timeouts::default() };
        group.set_timeouts(late);
        let outcome = Outcome::default();
        let result = Rc::clone(&outcome);
        let operation = operation(group);
        self.sim.spawn(client, async move {
            *result.borrow_mut() = Some(operation.await);
        });
        self.sim.poll_once(client);
        (client, outcome)
    }

    /// Lets a client read, starting at `home`.
    fn read(&mut self, home: NodeId, timeouts: u64) -> (usize, Outcome<Vec<u64>>) {
        let at = cell(home.0);
        self.begin(timeouts, move |group| async move {
            list(&group, &at).await.map(|(tokens, _)| tokens)
        })
    }

    /// Lets a client propose `[0, token]` on `x`, with or without a fast round.
    fn propose(&mut self, token: u64, fast: bool, timeouts: u64) -> (usize, Outcome<Proposed>) {
        let mut words = [Some(word(2, record(X), confirmed())); MAX_NODES];
        if !fast {
            words[2] = Some(word(1, record(X), confirmed()));
        }
        let view = View::of(FORMAT, 3, &words).expect("x is committed");
        let at: CellRef = cell(0);
        self.begin(timeouts, move |group| async move {
            let change = number(group.session().client, token);
            append(&group, &at, &view, token, change, &[X, token]).await
        })
    }

    /// Runs the client's operation at `nodes`, one roundtrip after the other, until `done`.
    fn until(&mut self, client: usize, nodes: &[NodeId], done: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            if done(self) {
                return;
            }
            self.sim.roundtrip(client, nodes);
        }
        panic!("what the story waits for does not come");
    }

    /// Waits until the client has a chain to `node` pending.
    fn posts(&mut self, client: usize, node: NodeId) {
        for _ in 0..2000 {
            if self.sim.on_their_way(client, node) > 0 {
                return;
            }
            self.sim.poll_once(client);
        }
        panic!("client {client} posts nothing to {node}");
    }

    fn finish(&mut self, client: usize, nodes: &[NodeId]) {
        assert!(self.sim.finish(client, nodes), "client {client} does not come to an end");
    }

    /// Checks that a reader that starts at `home` and uses `nodes` alone gets this list.
    fn ends_with(&mut self, home: NodeId, nodes: &[NodeId], tokens: &[u64]) {
        let (client, outcome) = self.read(home, SHORT);
        self.finish(client, nodes);
        assert_eq!(outcome.take().expect("it is done").expect("a majority is up"), tokens);
    }
}

fn promise() -> CellFlags {
    CellFlags::CONFIRMED
}

/// `r` was adopted at one node and merely promised at another, where a dead proposer had left it:
/// the same record under the same ballot. Without the accepted bit that looks like a majority.
#[test]
fn what_a_promise_keeps_is_not_a_vote() {
    let mut story = Story::new();
    story.has(N0, R, record(X), 3);
    story.shows(N0, 3, R, confirmed());
    story.shows(N1, 5, X, promise());
    story.has(N2, Y, record(X), 5);
    story.shows(N2, 5, Y, confirmed());
    let (dead, _) = story.read(N0, SHORT);
    up_to_the_raise(&mut story, dead, 7);
    story.until(dead, &[N1], |story| story.is_accepted(N1, R));
    let (reader, outcome) = story.read(N0, LONG);
    story.sim.roundtrip(reader, &[N0, N1]);
    assert!(outcome.borrow().is_none(), "r is not committed, and can still lose");
    // It does: a ballot at the other majority finds r under 3 and y under 5.
    story.ends_with(N2, &[N0, N2], &[X, Y]);
    story.finish(reader, &ALL);
    assert_eq!(outcome.take().expect("it is done").expect("all are up"), [X, Y]);
}

/// Two nodes show `r` under one promised ballot. They had it from different rounds, and the
/// ballot's proposer, which got answers from one of them and the node with `y`, is about to choose
/// `y`.
#[test]
fn two_promises_are_not_two_votes() {
    let mut story = Story::new();
    for (node, index, accepted) in [(N0, R, 3), (N1, R, 9), (N2, Y, 7)] {
        story.has(node, index, record(X), accepted);
        story.shows(node, 11, index, promise());
    }
    let (reader, outcome) = story.read(N0, LONG);
    story.sim.roundtrip(reader, &[N0, N1]);
    assert!(outcome.borrow().is_none(), "r is not committed, and can still lose");
    story.ends_with(N2, &[N0, N2], &[X, Y]);
    story.finish(reader, &ALL);
    assert_eq!(outcome.take().expect("it is done").expect("all are up"), [X, Y]);
}

/// A slow reader finds `r` at each of three nodes, each time under another ballot, while `y` comes
/// and goes: at all n, but never at once.
#[test]
fn the_same_record_everywhere_under_different_ballots_is_not_committed() {
    let mut story = Story::new();
    story.has(N0, R, record(X), 3);
    story.shows(N0, 3, R, confirmed());
    let (reader, outcome) = story.read(N0, LONG);
    story.sim.take_all(reader, N0);
    story.has(N1, R, record(X), 7);
    story.shows(N1, 7, R, confirmed());
    story.sim.roundtrip(reader, &[N0, N1]);
    // y is adopted at node 0 under 9, then r at node 2 under 11.
    story.has(N0, Y, record(X), 9);
    story.shows(N0, 9, Y, confirmed());
    story.has(N2, Y, record(X), 5);
    story.has(N2, R, record(X), 11);
    story.shows(N2, 11, R, confirmed());
    story.shows(N1, 11, R, promise());
    story.posts(reader, N2);
    story.sim.roundtrip(reader, &[N2]);
    assert!(outcome.borrow().is_none(), "r is not committed, and can still lose");
    story.ends_with(N0, &[N0, N1], &[X, Y]);
    story.finish(reader, &ALL);
    assert_eq!(outcome.take().expect("it is done").expect("all are up"), [X, Y]);
}

/// A proposer dies when its record and what was created with it are at one node. The next proposer
/// brings them to a majority before it continues; otherwise that node's death would lose
/// acknowledged data.
#[test]
fn an_adopted_record_brings_what_was_created_with_it() {
    let mut story = Story::new();
    let (first, _) = story.propose(R, false, LONG);
    story.until(first, &[N0, N1], |story| story.is_promised(N1, 3));
    story.posts(first, N0);
    story.until(first, &[N0], |story| story.is_accepted(N0, R));
    for node in ALL {
        story.sim.lose_chains(first, node);
    }
    assert!(story.is_created(R, N0) && !story.is_created(R, N2));
    let (second, outcome) = story.propose(Y, false, SHORT);
    story.finish(second, &[N0, N2]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Lost { .. }))));
    assert!(story.is_created(R, N2) && story.is_accepted(N2, R));
    story.sim.crash_node(N0, false);
    story.ends_with(N1, &[N1, N2], &[X, R]);
}

/// A client that reads a half-done change has completed it when it returns it: a proposal that
/// starts there starts from a committed record.
#[test]
fn what_a_read_returns_is_committed() {
    let mut story = Story::new();
    story.has(N0, R, record(X), 3);
    story.shows(N0, 3, R, confirmed());
    story.shows(N1, 3, X, promise());
    story.ends_with(N0, &[N0, N1], &[X, R]);
    assert!(story.is_accepted(N0, R) && story.is_accepted(N1, R) && story.is_created(R, N1));
    story.sim.crash_node(N0, true);
    story.ends_with(N1, &[N1, N2], &[X, R]);
}

/// A proposer's last chain is late. Meanwhile others completed its change, and the register that
/// was created with it was written at that node. The late chain erases nothing.
#[test]
fn a_late_creation_does_not_erase_what_came_after() {
    let mut story = Story::new();
    let (first, outcome) = story.propose(R, true, LONG);
    story.sim.take_all(first, N0);
    story.sim.take_all(first, N1);
    story.ends_with(N0, &[N0, N1], &[X, R]);
    let control = object(R).at(N2, 3);
    story.sim.set_word(N2, control, 50);
    story.sim.take_all(first, N2);
    assert_eq!(story.sim.word(N2, control), 50);
    story.finish(first, &ALL);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
}

/// Verb by verb, in a fast round and in a classic one: where a word names a record, what was
/// created with it is there.
#[test]
fn what_a_word_names_is_there() {
    for fast in [true, false] {
        let mut story = Story::new();
        let (client, outcome) = story.propose(R, fast, LONG);
        for _ in 0..ENOUGH {
            for node in ALL {
                while story.sim.on_their_way(client, node) > 0 {
                    story.sim.take_verbs(client, node, 1);
                    let named = FORMAT.record(story.shown(node)) == record(R);
                    assert!(!named || story.is_created(R, node), "fast: {fast}");
                }
            }
            story.sim.roundtrip(client, &ALL);
        }
        assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
    }
}

/// As before, but the late chain is that of a client that adopted the record.
#[test]
fn a_late_copy_of_a_creation_does_not_erase_what_came_after() {
    let mut story = Story::new();
    let (first, _) = story.propose(R, false, LONG);
    story.until(first, &[N0, N1], |story| story.is_promised(N1, 3));
    story.posts(first, N0);
    story.until(first, &[N0], |story| story.is_accepted(N0, R));
    ALL.into_iter().for_each(|node| story.sim.lose_chains(first, node));
    let (second, outcome) = story.propose(Y, false, LONG);
    // All three promise, and are about to get what they lack.
    story.until(second, &ALL, |story| ALL.iter().all(|&node| !story.shown(node).is_accepted()));
    story.until(second, &[N0, N1], |story| story.sim.on_their_way(second, N2) > 0);
    story.finish(second, &[N0, N1]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Lost { .. }))));
    assert!(!story.is_created(R, N2), "its chain is on its way");
    let control = object(R).at(N2, 3);
    story.sim.set_word(N2, control, 50);
    story.sim.take_all(second, N2);
    assert_eq!(story.sim.word(N2, control), 50);
    assert_eq!(story.sim.word(N2, control.plus(1)), 3 * R, "it has landed");
}

/// A change is adopted and built upon before its proposer, whose answers no longer prove anything,
/// reads again. It is committed, and must not be proposed a second time.
#[test]
fn a_change_that_others_completed_and_built_upon_is_known_as_applied() {
    let mut story = Story::new();
    let (first, outcome) = story.propose(R, true, SHORT);
    story.sim.take_all(first, N0);
    story.sim.take_all(first, N1);
    story.sim.lose_chains(first, N2);
    let at = cell(0);
    let (second, _) = story.begin(SHORT, move |group| async move {
        let (mut tokens, view) = list(&group, &at).await?;
        tokens.push(3);
        append(&group, &at, &view, 3, number(9, 3), &tokens).await
    });
    story.finish(second, &[N0, N1]);
    story.ends_with(N0, &[N0, N1], &[X, R, 3]);
    story.finish(first, &ALL);
    let Some(Ok(Proposed::Committed(view))) = outcome.take() else { panic!("it was applied") };
    assert_eq!(view.record(), record(3));
}

/// A node that missed a record still holds, at the same address, a record of an earlier use,
/// complete and with a valid checksum. Its accepted ballot was reset when the memory was reclaimed.
#[test]
fn a_record_of_a_former_life_is_not_taken_for_this_ones() {
    let mut story = Story::new();
    plant(R, record(X), 0, &[9], |at, value| story.sim.set_word(N2, at, value));
    let (first, outcome) = story.begin(SHORT, |group| async move {
        let view = View::created(FORMAT, 3, word(2, record(X), confirmed()));
        append(&group, &cell(2), &view, R, number(0, 1), &[X, R]).await
    });
    story.sim.take_all(first, N0);
    story.sim.take_all(first, N1);
    story.sim.lose_chains(first, N2);
    let (second, _) = story.begin(SHORT, |group| async move {
        let (mut tokens, view) = list(&group, &cell(0)).await?;
        tokens.push(3);
        append(&group, &cell(0), &view, 3, number(9, 3), &tokens).await
    });
    story.finish(second, &[N0, N1]);
    // Its fast round failed; node 2, its home, is the first to answer when it asks again.
    story.sim.roundtrip(first, &[N0, N1]);
    story.posts(first, N2);
    story.sim.roundtrip(first, &[N2]);
    story.finish(first, &ALL);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))), "r is below the last one");
}

/// Two proposers adopt `r` at node 0, one after the other, while `y` is accepted at node 2 under a
/// ballot between theirs. The slow one's raise of `r`'s accepted ballot takes effect after the fast
/// one's promise. So the fast one's raise fails, and its word must still wait until the ballot is
/// raised.
#[test]
fn a_word_waits_for_its_records_accepted_ballot() {
    raised_twice(true);
}

/// As before, but the slow one's raise takes effect last: the accepted ballot must not fall.
#[test]
fn an_accepted_ballot_never_falls() {
    raised_twice(false);
}

fn raised_twice(slow_first: bool) {
    let mut story = Story::new();
    story.has(N0, R, record(X), 3);
    story.shows(N0, 3, R, confirmed());
    story.shows(N1, 3, X, promise());
    let (slow, _) = story.read(N0, SHORT);
    up_to_the_raise(&mut story, slow, 5);
    story.has(N2, Y, record(X), 7);
    story.shows(N2, 7, Y, confirmed());
    story.shows(N1, 7, X, promise());
    let (quick, outcome) = story.read(N0, SHORT);
    if slow_first {
        up_to_the_raise(&mut story, quick, 9);
        story.sim.take_chains(slow, N0, 1);
        assert_eq!(story.accepted(N0, R), 5);
    }
    story.finish(quick, &[N0, N1]);
    assert_eq!(outcome.take().expect("it is done").expect("a majority is up"), [X, R]);
    if !slow_first {
        story.sim.take_chains(slow, N0, 1);
    }
    story.ends_with(N2, &[N0, N2], &[X, R]);
}

/// Runs a read at nodes 0 and 1 until it has fetched `r` and is about to raise it at node 0.
fn up_to_the_raise(story: &mut Story, client: usize, ballot: u64) {
    story.until(client, &[N0, N1], |story| story.is_promised(N1, ballot));
    story.posts(client, N0);
    // The record, then what was created with it.
    for _ in 0..2 {
        story.sim.roundtrip(client, &[N0]);
        story.posts(client, N0);
    }
    assert_eq!(story.sim.on_their_way(client, N1), 1, "it is about to bring the record");
}

/// Two of three promised, then one of them died without notice. The third, which is late, is asked
/// to accept as well.
#[test]
fn a_node_that_promises_late_joins() {
    let mut story = Story::new();
    let (client, outcome) = story.propose(R, false, LONG);
    story.until(client, &[N0, N1], |story| story.is_promised(N1, 3));
    story.sim.crash_node(N1, true);
    story.finish(client, &[N0, N2]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
    assert!(story.is_accepted(N0, R) && story.is_accepted(N2, R));
}

/// `r` is committed, and at nodes 0 and 1 with what was created with it; their words do not show
/// that. A client that adopts it has the promises of both, and is about to raise it there. It has
/// no answer yet from node 2, which has neither `r` nor what was created with it.
fn before_the_late_promise<T>(
    begin: impl FnOnce(&mut Story) -> (usize, Outcome<T>),
) -> (Story, usize, Outcome<T>) {
    let mut story = Story::new();
    for node in [N0, N1] {
        story.has(node, R, record(X), 3);
    }
    story.shows(N0, 3, R, confirmed());
    story.shows(N1, 5, R, promise());
    let (client, outcome) = begin(&mut story);
    let is_promised = |story: &Story, node| story.is_promised(node, 7);
    story.until(client, &[N0, N1], |story| is_promised(story, N0) && is_promised(story, N1));
    // The promises arrive, and it fetches the record, but not what was created with it.
    story.posts(client, N0);
    assert_eq!(story.sim.on_their_way(client, N1), 0);
    story.sim.roundtrip(client, &[N0]);
    story.posts(client, N1);
    assert!(story.sim.on_their_way(client, N0) == 1 && story.sim.on_their_way(client, N2) > 0);
    assert!(FORMAT.record(story.shown(N2)) == record(X) && !story.is_created(R, N2));
    (story, client, outcome)
}

/// Lets the client's chains to node 2 take effect, and arrive, until none is pending.
fn promises_late(story: &mut Story, client: usize) {
    while story.sim.on_their_way(client, N2) > 0 {
        while story.sim.on_their_way(client, N2) > 0 {
            story.sim.take_verbs(client, N2, 1);
            let names = FORMAT.record(story.shown(N2)) == record(R);
            assert!(!names || story.is_created(R, N2), "what was born with r is there before r");
        }
        story.sim.deliver(client, N2);
        story.sim.poll_once(client);
    }
}

/// All nodes that answered show `r`, so what was created with it is not READ. Node 2 promises late
/// and lacks it. It must not get `r` alone, or the next node's death would lose acknowledged data.
#[test]
fn a_node_that_promises_late_gets_no_record_without_its_created_parts() {
    let read = |gone| {
        let (mut story, client, outcome) = before_the_late_promise(|story| story.read(N0, SHORT));
        promises_late(&mut story, client);
        story.finish(client, &ALL);
        assert_eq!(outcome.take().expect("it is done").expect("all are up"), [X, R]);
        (story, gone)
    };
    // As before, but no node is late yet: the round need not be restarted.
    let lose = |gone| {
        let (mut story, client, outcome) =
            before_the_late_promise(|story| story.propose(Y, false, LONG));
        promises_late(&mut story, client);
        assert!(story.is_promised(N2, 7));
        story.finish(client, &[N0, N1]);
        assert!(matches!(outcome.take(), Some(Ok(Proposed::Lost { .. }))));
        assert!(story.is_accepted(N0, R) && story.is_accepted(N1, R) && !story.is_created(R, N2));
        (story, gone)
    };
    for (mut story, gone) in [read(N0), read(N1), lose(N0), lose(N1)] {
        story.sim.crash_node(gone, false);
        let left = if gone == N0 { N1 } else { N0 };
        story.ends_with(N2, &[left, N2], &[X, R]);
        assert!(story.is_created(R, left) && story.is_created(R, N2), "{gone} is gone");
        assert!(story.is_accepted(left, R) && story.is_accepted(N2, R), "{gone} is gone");
    }
}

/// As before, but one of the first two dies before it accepts. With the other one and node 2, which
/// answer, another ballot ends.
#[test]
fn a_late_promise_without_created_parts_leaves_it_to_another_ballot() {
    for (gone, left) in [(N0, N1), (N1, N0)] {
        for (silent, dies_first) in [(false, false), (false, true), (true, false), (true, true)] {
            let (mut story, client, outcome) =
                before_the_late_promise(|story| story.read(N0, SHORT));
            let die = |story: &mut Story| {
                story.sim.crash_node(gone, silent);
                story.sim.deliver(client, gone);
                story.sim.poll_once(client);
            };
            if dies_first {
                die(&mut story);
            }
            promises_late(&mut story, client);
            if !dies_first {
                die(&mut story);
            }
            story.finish(client, &ALL);
            let case = format!("{gone} is gone, silent: {silent}, first: {dies_first}");
            assert_eq!(outcome.take().expect("it is done").expect(&case), [X, R], "{case}");
            assert!(story.is_accepted(left, R) && story.is_accepted(N2, R), "{case}");
            assert!(story.is_created(R, N2), "{case}");
        }
    }
}

/// A fast round's record under a high ballot was dropped at the one node that had it when another
/// was committed under a lower one.
#[test]
fn a_failed_fast_round_does_not_win_by_its_ballot() {
    let mut story = Story::new();
    // A classic round's y is committed under 3 at nodes 1 and 2; a fast round from y's word reached
    // node 0, under 4.
    for node in ALL {
        story.has(node, Y, record(X), 3);
        story.shows(node, 3, Y, confirmed());
    }
    let (first, _) = story.begin(LONG, |group| async move {
        let word = word(3, record(Y), confirmed());
        let view = View::created(FORMAT, 3, word);
        append(&group, &cell(0), &view, R, number(0, 1), &[X, Y, R]).await
    });
    story.sim.take_all(first, N0);
    // It gets no further, and another change is committed by the others.
    let at = cell(1);
    let (second, outcome) = story.begin(SHORT, move |group| async move {
        let (mut tokens, view) = list(&group, &at).await?;
        tokens.push(4);
        append(&group, &at, &view, 4, number(9, 4), &tokens).await
    });
    story.finish(second, &[N1, N2]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
    story.ends_with(N0, &[N0, N1], &[X, Y, 4]);
    story.finish(first, &ALL);
    story.ends_with(N0, &ALL, &[X, Y, 4]);
}

/// A dead proposer left a fast round's `r` at one node, and that node's memory is damaged: `r`
/// builds on nothing that has an address. Its promise is no basis for a choice.
#[test]
fn a_damaged_promise_does_not_count() {
    let damaged = || {
        let story = Story::new();
        story.has(N2, R, record(X), 4);
        story.sim.set_word(N2, Address(record(R).0 * 8 + 1), u64::MAX);
        story.shows(N2, 4, R, CellFlags::empty());
        story.shows(N0, 5, X, promise());
        story
    };
    damaged().ends_with(N2, &ALL, &[X]);
    let mut story = damaged();
    story.sim.crash_node(N0, false);
    let (reader, outcome) = story.read(N1, SHORT);
    story.finish(reader, &ALL);
    assert!(matches!(outcome.take(), Some(Err(Error::NoMajority { .. }))));
}

/// Two fast rounds from one word have one ballot. `r` has two of three nodes and `y` the third. A
/// majority is not enough, since a client that reads nodes 0 and 2 cannot distinguish the two.
#[test]
fn a_majority_is_not_enough_for_a_fast_round() {
    let mut story = Story::new();
    let (first, outcome) = story.propose(R, true, LONG);
    let (second, other) = story.propose(Y, true, LONG);
    story.sim.take_all(first, N0);
    story.sim.take_all(first, N1);
    story.sim.take_all(second, N2);
    story.sim.take_all(first, N2);
    for node in ALL {
        story.sim.deliver(first, node);
        story.sim.lose_chains(second, node);
    }
    story.sim.poll_once(first);
    assert!(outcome.borrow().is_none(), "neither is committed");
    story.ends_with(N0, &[N0, N2], &[X]);
    story.finish(first, &ALL);
    let committed = matches!(outcome.take(), Some(Ok(Proposed::Committed(_))));
    story.ends_with(N0, &ALL, if committed { &[X, R] } else { &[X] });
    assert!(other.borrow().is_none());
}

/// A fast round's record is committed: all three nodes have it, not confirmed. One of them has promised
/// a ballot since, or has a confirmed word, or has accepted it anew; its word differs. The record is
/// the same, and must not be dropped.
#[test]
fn the_same_record_at_all_is_committed_whatever_their_words() {
    let accepted = CellFlags::ACCEPTED;
    for (ballot, flags, raised) in
        [(5, CellFlags::empty(), 4), (4, confirmed(), 4), (7, confirmed(), 7), (4, accepted, 4)]
    {
        for (odd, gone) in [(N0, N1), (N0, N2), (N1, N2), (N2, N0)] {
            let mut story = Story::new();
            for node in ALL {
                story.has(node, R, record(X), if node == odd { raised } else { 4 });
                story.shows(node, 4, R, accepted);
            }
            story.shows(odd, ballot, R, flags);
            story.sim.crash_node(gone, true);
            let up: Vec<NodeId> = ALL.into_iter().filter(|&node| node != gone).collect();
            // A proposer that does not know it is behind.
            let (late, outcome) = story.propose(Y, false, SHORT);
            story.finish(late, &up);
            assert!(
                matches!(outcome.take(), Some(Ok(Proposed::Lost { .. }))),
                "{ballot} {odd} {gone}"
            );
            story.ends_with(up[0], &up, &[X, R]);
        }
    }
}

/// A fast round's `r` won at all three nodes, so `x` counts as replaced, and its memory was reused
/// for another cell. Node 1 never learned that `r` is confirmed, nor of the change after it. It votes
/// for `x`, by the word on which `r` was built; by what is in the memory of `x`, it would win.
#[test]
fn what_came_back_for_other_uses_does_not_vote() {
    let mut story = Story::new();
    let (first, outcome) = story.propose(R, true, LONG);
    story.sim.roundtrip(first, &ALL);
    let won = outcome.take();
    assert!(matches!(won, Some(Ok(Proposed::Committed(_)))));
    story.sim.take_all(first, N0);
    story.sim.take_all(first, N2);
    story.sim.crash_client(first);
    let at = cell(0);
    let (second, outcome) = story.begin(SHORT, move |group| async move {
        let (mut tokens, view) = list(&group, &at).await?;
        tokens.push(3);
        append(&group, &at, &view, 3, number(9, 3), &tokens).await
    });
    story.finish(second, &[N0, N2]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
    story.sim.crash_client(second);
    for node in ALL {
        let set = |at, value| story.sim.set_word(node, at, value);
        plant(X, Pointer::NULL, 100, &[77], set);
    }
    assert!(!story.shown(N1).is_confirmed(), "nobody confirmed it at node 1");
    story.ends_with(N1, &[N1, N2], &[X, R, 3]);
}

/// All nodes have promised a ballot to a rival when a fast round from their words arrives at node
/// 2. There it would count for the record below as if that were accepted under the rival's ballot,
/// just like the record that the rival is about to have accepted by the others.
#[test]
fn a_fast_round_starts_from_an_accepted_word() {
    const BELOW: u64 = 9;
    let mut story = Story::new();
    for (node, ballot) in [(N0, 3), (N1, 3), (N2, 1)] {
        story.has(node, BELOW, record(X), ballot);
        story.shows(node, ballot, BELOW, confirmed());
    }
    let mut words = [Some(word(3, record(BELOW), confirmed())); MAX_NODES];
    words[2] = Some(word(1, record(BELOW), confirmed()));
    let view = View::of(FORMAT, 3, &words).expect("it is committed");
    let (rival, outcome) = story.begin(LONG, move |group| async move {
        append(&group, &cell(0), &view, Y, number(0, 1), &[X, BELOW, Y]).await
    });
    ALL.iter().for_each(|&node| story.sim.take_all(rival, node));
    assert!(ALL.iter().all(|&node| story.is_promised(node, 5)));
    let (first, _) = story.begin(LONG, |group| async move {
        let view = View::created(FORMAT, 3, word(5, record(BELOW), promise()));
        append(&group, &cell(0), &view, R, number(1, 1), &[X, BELOW, R]).await
    });
    story.sim.take_all(first, N2);
    story.sim.crash_client(first);
    story.finish(rival, &[N0, N1]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
    story.ends_with(N0, &[N0, N2], &[X, BELOW, Y]);
}

/// A proposer finds `r`, which is at one node and not committed, and starts to complete it; a rival
/// is committed instead. The committed records, back to its base, determine whether its own change
/// is committed; nothing was ever built on `r`.
#[test]
fn what_was_met_and_not_committed_is_nothing_to_build_on() {
    let mut story = Story::new();
    story.has(N0, R, record(X), 3);
    story.shows(N0, 3, R, confirmed());
    let (first, outcome) = story.propose(Y, false, SHORT);
    story.until(first, &[N0, N1], |story| story.is_promised(N1, 5) || story.is_promised(N1, 3));
    let at = cell(1);
    let (second, other) = story.begin(SHORT, move |group| async move {
        let (mut tokens, view) = list(&group, &at).await?;
        tokens.push(3);
        append(&group, &at, &view, 3, number(9, 3), &tokens).await
    });
    story.finish(second, &[N1, N2]);
    assert!(matches!(other.take(), Some(Ok(Proposed::Committed(_)))));
    story.finish(first, &[N0, N1]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Lost { .. }))));
    for nodes in [[N0, N1], [N1, N2], [N2, N0]] {
        story.ends_with(nodes[0], &nodes, &[X, 3]);
    }
}

/// A client dies at each await of a change in turn. The next client finds the change done or
/// undone, and all that was created with it if it is done.
#[test]
fn a_proposer_may_die_anywhere() {
    for fast in [true, false] {
        for order in [ALL, [N2, N0, N1], [N1, N2, N0]] {
            for chains in 0..12 {
                let mut story = Story::new();
                let (client, _) = story.propose(R, fast, LONG);
                let mut left = chains;
                while left > 0 && story.sim.tasks(client) > 0 {
                    for node in order {
                        if left > 0 && story.sim.on_their_way(client, node) > 0 {
                            story.sim.take_chains(client, node, 1);
                            story.sim.deliver(client, node);
                            left -= 1;
                        }
                    }
                    story.sim.poll_once(client);
                }
                let done = story.sim.tasks(client) == 0;
                story.sim.crash_client(client);
                for nodes in [[N0, N1], [N1, N2], [N2, N0]] {
                    let (reader, outcome) = story.read(nodes[0], SHORT);
                    story.finish(reader, &nodes);
                    let tokens = outcome.take().expect("it is done").expect("a majority is up");
                    assert!(tokens == [X, R] || tokens == [X] && !done, "{tokens:?}");
                    let there = ALL.into_iter().filter(|&node| story.is_created(R, node)).count();
                    assert!(tokens == [X] || there >= 2);
                }
            }
        }
    }
}

/// A proposer is fenced at two nodes, after its record has reached one of them, and lives. At the third
/// node, where it is not fenced yet, its record arrives behind another client's change.
#[test]
fn what_a_fenced_client_still_brings_to_one_node_is_not_committed() {
    let mut story = Story::new();
    let (fenced, _) = story.propose(R, true, LONG);
    story.sim.lose_chains(fenced, N0);
    story.sim.take_all(fenced, N1);
    let (client, outcome) = story.propose(Y, true, SHORT);
    story.finish(client, &[N0, N2]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
    story.sim.take_all(fenced, N2);
    assert_eq!(FORMAT.record(story.shown(N1)), record(R), "it is at a minority");
    story.ends_with(N1, &[N1, N2], &[X, Y]);
}

/// A proposer was promised a high ballot at one node before it was fenced there and at another one, and is
/// promised it at the third one behind another client's change. That client had no answer from the first:
/// when it had only committed `x` again, under a smaller ballot, the proposer went on to accept its record.
#[test]
fn a_ballot_that_was_promised_before_the_fence_commits_nothing_behind_a_change() {
    let mut story = Story::new();
    let mut words = [Some(word(2, record(X), confirmed())); MAX_NODES];
    words[2] = Some(word(8, record(X), confirmed()));
    let view = View::of(FORMAT, 3, &words).expect("x is committed");
    let (fenced, _) = story.begin(LONG, async move |group| {
        append(&group, &cell(0), &view, R, number(0, R), &[X, R]).await
    });
    story.sim.take_all(fenced, N0);
    story.sim.deliver(fenced, N0);
    assert!(story.is_promised(N0, 9));
    story.sim.lose_chains(fenced, N1);
    let (client, outcome) = story.propose(Y, false, SHORT);
    story.finish(client, &[N1, N2]);
    assert!(matches!(outcome.take(), Some(Ok(Proposed::Committed(_)))));
    for _ in 0..20 {
        story.sim.roundtrip(fenced, &[N2]);
    }
    assert!(!story.is_accepted(N2, R), "it is built on x");
    story.ends_with(N1, &[N1, N2], &[X, Y]);
}
