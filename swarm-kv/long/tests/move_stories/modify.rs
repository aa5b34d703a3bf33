//! Read-modify-writes, which move their key: beside other operations, beside each other, and left
//! half-way.

use swarm_core::history::{Answer, Call};
use swarm_core::node::NodeId;

use super::store_sim_common::COUNTERS;
use super::{
    Deed, MOVE, MOVES_AGAIN, NODES, Play, READER, RIVAL, STUCK, dies, ends, is_stuck, rounds,
    stuck_behind, until_over,
};

const SWAP: Deed = (RIVAL, 0, Call::Swap(Some(9)));
const TAKE: Deed = (RIVAL, 0, Call::Swap(None));
/// The number of key 0's first value.
const FIRST: Option<u64> = Some(805);
const COUNTER: u64 = COUNTERS.start;

/// Stuck at every roundtrip of every kind of read-modify-write, with its chains executed at some
/// nodes.
fn stuck_in_a_change(deeds: &[Deed]) {
    let rival: &[Deed] = &[(RIVAL, 0, Call::Update(13))];
    for call in [
        Call::Swap(Some(1)),
        Call::CompareAndSwap { expected: FIRST, new: Some(1) },
        Call::CompareAndSwap { expected: FIRST, new: None },
    ] {
        for first in [&[], rival] {
            for lands in [&[], &NODES[1..2], &NODES[..2], &NODES] {
                until_over(|turn| !is_stuck(call, turn, lands, first, deeds));
            }
        }
    }
}

/// An operation that is stuck anywhere, and then goes on, beside a change of the same key.
fn stuck_beside_a_change(deeds: &[Deed]) {
    for call in [Call::Update(1), Call::Delete, Call::Insert(1), Call::Get] {
        for lands in [&[], &NODES[1..2], &NODES[..2], &NODES] {
            until_over(|turn| !is_stuck(call, turn, lands, &[], deeds));
        }
    }
}

/// A write that is under way is in what the change was made of, or is written again.
#[test]
fn a_write_under_way_comes_before_a_change_or_after_it() {
    stuck_beside_a_change(&[SWAP]);
    stuck_beside_a_change(&[(READER, 0, Call::Get), TAKE]);
    stuck_behind(&[SWAP]);
}

/// A writer slept over a change, a delete and an insert.
#[test]
fn a_writer_finds_out_over_change_delete_and_insert() {
    let deeds = [SWAP, (RIVAL, 0, Call::Delete), (RIVAL, 0, Call::Insert(29)), SWAP];
    stuck_beside_a_change(&deeds);
    stuck_behind(&[TAKE, (RIVAL, 0, Call::Insert(29))]);
}

/// What others write, move, delete and insert while a change is half done is not lost, and the
/// change is not made twice.
#[test]
fn a_change_is_made_of_what_came_before_it() {
    stuck_in_a_change(&[(RIVAL, 0, Call::Update(9))]);
    stuck_in_a_change(&[MOVE, (READER, 0, Call::Get)]);
    stuck_in_a_change(&[(RIVAL, 0, Call::Delete), (RIVAL, 0, Call::Insert(29))]);
}

#[test]
fn of_two_changes_at_a_time_one_comes_first() {
    stuck_in_a_change(&[SWAP, (READER, 0, Call::Get)]);
    stuck_in_a_change(&[TAKE]);
}

/// A client that adds to a number is stuck after `turn` roundtrips, with its chains executed at
/// `lands`; it may die there. Others add, and it goes on. Returns false if it was over before.
fn is_counted_once(turn: usize, lands: &[NodeId], is_dead: bool) -> bool {
    let mut play = Play::new();
    play.all(&[(RIVAL, COUNTER, Call::Increment(1)), (STUCK, COUNTER, Call::Get)], &NODES);
    play.begin((STUCK, COUNTER, Call::Increment(1000)));
    rounds(&mut play, STUCK, turn, &NODES);
    if play.sim.tasks(STUCK) == 0 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
    if is_dead {
        dies(&mut play, STUCK);
    }
    play.all(&[(RIVAL, COUNTER, Call::Increment(10)), (READER, COUNTER, Call::Get)], &NODES);
    play.all(&[(MOVES_AGAIN, COUNTER, Call::Increment(100))], &NODES);
    if !is_dead {
        ends(&mut play, STUCK, &NODES);
    }
    play.all(&[(READER, COUNTER, Call::Get)], &NODES);
    let Some(Answer::Value(Some(sum))) = play.last() else { panic!("no number") };
    assert!(sum == 1111 || is_dead && sum == 111, "{sum}: {turn}, {lands:?}");
    play.is_linearizable((turn, lands, is_dead));
    true
}

#[test]
fn an_increment_counts_once_whoever_finishes_it() {
    for lands in [&[], &NODES[..1], &NODES[1..2], &NODES[..2], &NODES] {
        for is_dead in [false, true] {
            until_over(|turn| !is_counted_once(turn, lands, is_dead));
        }
    }
}

/// The register that the client remembers was deleted, and the key is there again.
#[test]
fn a_place_that_is_remembered_proves_no_absence() {
    let mut play = Play::new();
    let insert = (RIVAL, 0, Call::Insert(29));
    play.all(&[(READER, 0, Call::Get), (RIVAL, 0, Call::Delete), insert], &NODES);
    let expected = |expected| Call::CompareAndSwap { expected, new: Some(33) };
    play.all(&[(READER, 0, expected(FIRST))], &NODES);
    assert_eq!(play.last(), Some(Answer::Value(Some(29))));
    play.all(&[(READER, 0, expected(Some(29))), (RIVAL, 0, Call::Get)], &NODES);
    assert_eq!(play.last(), Some(Answer::Value(Some(33))));
    play.is_linearizable("all");
}

#[test]
fn what_a_change_costs() {
    let mut play = Play::new();
    let cost = |play: &Play| play.stories[STUCK].client.last().roundtrips;
    // The first one may have to raise high-water marks.
    play.all(&[9, 13].map(|id| (STUCK, 0, Call::Swap(Some(id)))), &NODES);
    assert_eq!(cost(&play), 7, "read, bucket, two for the freeze, value, bucket, change");
    let lost = Call::CompareAndSwap { expected: Some(1), new: Some(2) };
    play.all(&[(STUCK, 0, lost)], &NODES);
    assert_eq!(cost(&play), 1, "read");
    play.all(&[(STUCK, COUNTER, Call::Swap(None))], &NODES);
    assert_eq!(cost(&play), 1, "bucket");
    play.all(&[1, 1, 1].map(|by| (STUCK, COUNTER, Call::Increment(by))), &NODES);
    assert_eq!(cost(&play), 7);
}
