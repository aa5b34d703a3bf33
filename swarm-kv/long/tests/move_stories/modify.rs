//! Read-modify-writes, which move their key: beside other operations, beside each other, and left
//! half-way.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::history::{Answer, BUDGET, Call, Recorder, check};
use swarm_core::node::NodeId;
use swarm_core::sim::{Outcome, Policy, Setup, Sim};
use swarm_kv::Error;

use super::store_sim_common::{COUNTERS, GaveUp, Line, Story, options};
use super::{
    ARE_CELLS, Action, CAPACITY, MOVE, MOVES_AGAIN, NODES, Play, READER, RIVAL, STUCK, dies, ends,
    geometry, is_stuck, rounds, stuck_behind, until_over, with_and_without_cells,
};

const SWAP: Action = (RIVAL, 0, Call::Swap(Some(9)));
const SWAP_AGAIN: Action = (RIVAL, 0, Call::Swap(Some(17)));
/// A value of twelve words, for which the cells of these stories have no room.
const OUTGROWS: u64 = 7;
const TAKE: Action = (RIVAL, 0, Call::Swap(None));
/// The number of key 0's first value.
const FIRST: Option<u64> = Some(805);
const COUNTER: u64 = COUNTERS.start;
/// How often weights of turns change, if no other number is given.
const OFTEN: f64 = 0.005;

/// Stuck at every roundtrip of every kind of read-modify-write, with its chains executed at some
/// nodes.
fn stuck_in_a_change(deeds: &[Action]) {
    let rival: &[Action] = &[(RIVAL, 0, Call::Update(13))];
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
fn stuck_beside_a_change(deeds: &[Action]) {
    for call in [Call::Update(1), Call::Delete, Call::Insert(1), Call::Get] {
        for lands in [&[], &NODES[1..2], &NODES[..2], &NODES] {
            until_over(|turn| !is_stuck(call, turn, lands, &[], deeds));
        }
    }
}

/// A write that is under way is in what the change was made of, or is written again.
#[test]
fn a_write_under_way_comes_before_a_change_or_after_it() {
    with_and_without_cells(|| {
        stuck_beside_a_change(&[SWAP]);
        stuck_beside_a_change(&[(READER, 0, Call::Get), TAKE]);
        stuck_behind(&[SWAP]);
    });
}

/// A writer slept over a change, a delete and an insert.
#[test]
fn a_writer_finds_out_over_change_delete_and_insert() {
    with_and_without_cells(|| {
        let deeds = [SWAP, (RIVAL, 0, Call::Delete), (RIVAL, 0, Call::Insert(29)), SWAP];
        stuck_beside_a_change(&deeds);
        stuck_behind(&[TAKE, (RIVAL, 0, Call::Insert(29))]);
    });
}

/// A writer slept while the key became a cell, and while the cell was forwarded: the register, two links
/// away, shows what became of its write.
#[test]
fn a_writer_finds_out_over_a_cell_that_was_forwarded() {
    ARE_CELLS.set(true);
    let forward: Action = (RIVAL, 0, Call::Update(OUTGROWS));
    stuck_beside_a_change(&[SWAP, forward]);
    stuck_beside_a_change(&[SWAP, forward, (READER, 0, Call::Get), (RIVAL, 0, Call::Update(13))]);
    stuck_beside_a_change(&[SWAP, forward, SWAP_AGAIN]);
    stuck_behind(&[SWAP, forward]);
}

/// What others write, move, delete and insert while a change is half done is not lost, and the
/// change is not made twice.
#[test]
fn a_change_is_made_of_what_came_before_it() {
    with_and_without_cells(|| {
        stuck_in_a_change(&[(RIVAL, 0, Call::Update(9))]);
        // So long that it has no room in a cell for what was read.
        stuck_in_a_change(&[(RIVAL, 0, Call::Update(OUTGROWS))]);
        stuck_in_a_change(&[MOVE, (READER, 0, Call::Get)]);
        stuck_in_a_change(&[(RIVAL, 0, Call::Delete), (RIVAL, 0, Call::Insert(29))]);
    });
}

#[test]
fn of_two_changes_at_a_time_one_comes_first() {
    with_and_without_cells(|| {
        stuck_in_a_change(&[SWAP, (READER, 0, Call::Get)]);
        stuck_in_a_change(&[TAKE]);
    });
}

/// A client that adds to a number is stuck after `turn` roundtrips, with its chains executed at
/// `lands`; it, or a node, may crash there. Others add, and it goes on and adds again. Returns false
/// if it was over before.
fn is_counted_once(turn: usize, lands: &[NodeId], crashes: Crashes, is_cell: bool) -> bool {
    let mut play = Play::new();
    let add = (RIVAL, COUNTER, Call::Increment(1));
    // The second time a key that may be one becomes a cell.
    let first = &[add, add][..1 + usize::from(is_cell)];
    play.all(first, &NODES);
    play.all(&[(STUCK, COUNTER, Call::Get)], &NODES);
    play.begin((STUCK, COUNTER, Call::Increment(1000)));
    rounds(&mut play, STUCK, turn, &NODES);
    if play.sim.tasks(STUCK) == 0 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
    match crashes {
        Crashes::Nobody => {}
        Crashes::Node(node) => play.sim.crash_node(node, false),
        Crashes::Client => dies(&mut play, STUCK),
    }
    play.all(&[(READER, COUNTER, Call::Get), (RIVAL, COUNTER, Call::Increment(10))], &NODES);
    play.all(&[(MOVES_AGAIN, COUNTER, Call::Increment(100))], &NODES);
    let (others, is_dead) = (first.len() as u64 + 110, crashes == Crashes::Client);
    if !is_dead {
        ends(&mut play, STUCK, &NODES);
        // It goes by what it remembers of the first.
        play.all(&[(STUCK, COUNTER, Call::Increment(10_000))], &NODES);
    }
    play.all(&[(READER, COUNTER, Call::Get)], &NODES);
    let Some(Answer::Value(Some(sum))) = play.last() else { panic!("no number") };
    let right = if is_dead { &[others, others + 1000][..] } else { &[others + 11_000] };
    assert!(right.contains(&sum), "{sum}: {turn}, {lands:?}, {crashes:?}, {is_cell}");
    play.is_linearizable((turn, lands, crashes, is_cell));
    true
}

/// What crashes while a client is stuck.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Crashes {
    Nobody,
    Node(NodeId),
    Client,
}

#[test]
fn an_increment_counts_once_whichever_client_finishes_it() {
    with_and_without_cells(|| {
        for lands in [&[], &NODES[..1], &NODES[1..2], &NODES[..2], &NODES] {
            let nodes = [NODES[0], NODES[2]].map(Crashes::Node);
            for crashes in [Crashes::Nobody, Crashes::Client, nodes[0], nodes[1]] {
                for is_cell in [false, true] {
                    until_over(|turn| !is_counted_once(turn, lands, crashes, is_cell));
                }
            }
        }
    });
}

/// Two clients find no number, and both insert what they add: one of them finds the other's.
#[test]
fn two_that_find_no_value_add_to_each_other() {
    let is_counted = |turn: usize, lands: &[NodeId]| {
        let mut play = Play::new();
        play.begin((STUCK, COUNTER, Call::Increment(1000)));
        rounds(&mut play, STUCK, turn, &NODES);
        if play.sim.tasks(STUCK) == 0 {
            return false;
        }
        lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
        play.all(&[(RIVAL, COUNTER, Call::Increment(10))], &NODES);
        ends(&mut play, STUCK, &NODES);
        play.all(&[(READER, COUNTER, Call::Get)], &NODES);
        assert_eq!(play.last(), Some(Answer::Value(Some(1010))), "{turn}, {lands:?}");
        play.is_linearizable((turn, lands));
        true
    };
    for lands in [&[], &NODES[..1], &NODES[1..2], &NODES[..2], &NODES] {
        until_over(|turn| !is_counted(turn, lands));
    }
}

/// While a client adds to a number another one puts the largest there is. Its sum would be none: it stays as it is, also
/// if it was met in the frozen register.
#[test]
fn what_nothing_can_be_made_of_stays_as_it_is() {
    const LARGEST: u64 = i64::MAX as u64;
    let mut overflowed = 0;
    let mut stays = |turn: usize, lands: &[NodeId]| {
        let mut play = Play::new();
        // As long as the largest: that fits into the same register.
        let first = (RIVAL, COUNTER, Call::Put(1_000_000_000_000_000_000));
        play.all(&[first, (STUCK, COUNTER, Call::Get)], &NODES);
        let (story, outcome) = (Rc::clone(&play.stories[STUCK]), Rc::<Cell<_>>::default());
        let result = Rc::clone(&outcome);
        play.sim.spawn(STUCK, async move {
            result.set(Some(story.call(COUNTER, Call::Increment(1), None).await));
        });
        play.sim.poll_once(STUCK);
        // It is under way when the other one's is done: the register is frozen with the new value.
        play.begin((RIVAL, COUNTER, Call::Put(LARGEST)));
        rounds(&mut play, STUCK, turn, &NODES);
        if play.sim.tasks(STUCK) == 0 {
            return false;
        }
        lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
        ends(&mut play, RIVAL, &NODES);
        ends(&mut play, STUCK, &NODES);
        overflowed += u32::from(outcome.get() == Some(Err(GaveUp::Failed(Error::Overflow))));
        play.all(&[(READER, COUNTER, Call::Get)], &NODES);
        assert_eq!(play.last(), Some(Answer::Value(Some(LARGEST))), "{turn}, {lands:?}");
        play.is_linearizable((turn, lands));
        true
    };
    for lands in [&[], &NODES[..1], &NODES[1..2], &NODES[..2], &NODES] {
        until_over(|turn| !stays(turn, lands));
    }
    assert!(overflowed > 0);
}

/// Clients that add to one number at a time, whose turns a die decides, by weights that change as often as `redraw` says:
/// each change comes to its end. Returns how many there were, their roundtrips, and the most of one.
pub(crate) fn add_at_a_time(
    (seed, redraw): (u64, f64),
    clients: usize,
    each: u64,
) -> (u64, u64, u32) {
    let setup = Setup::new(seed, 3, clients);
    let policy = Policy::Weighted { redraw };
    let mut sim = Sim::new(&Setup { words: CAPACITY / 8, policy, ..setup });
    let (recorder, hung_up) = (Recorder::new(), Rc::<Cell<bool>>::default());
    let costs = Rc::<Cell<(u64, u64, u32)>>::default();
    let stories = (0..clients).map(|id| {
        let line = Line { inner: sim.fabric(id), hung_up: Rc::clone(&hung_up), members: None };
        let connection = (line, Rc::new(sim.clock(id)) as _);
        let identity = (id, id, id as u64 + 1);
        Rc::new(Story::new(connection, geometry(), identity, options((30_000, 1 << 60)), &recorder))
    });
    let stories: Vec<_> = stories.collect();
    for (id, story) in stories.iter().enumerate() {
        let (story, costs) = (Rc::clone(story), Rc::clone(&costs));
        sim.spawn(id, async move {
            for _ in 0..each {
                story.call(COUNTER, Call::Increment(1), None).await.expect("it comes to its end");
                let (changes, all, most) = costs.get();
                let one = story.client.last().roundtrips;
                costs.set((changes + 1, all + u64::from(one), most.max(one)));
            }
        });
    }
    assert_eq!(sim.run(20_000_000), Outcome::Done);
    hung_up.set(true);
    check(&recorder.operations(), |_| None, BUDGET).unwrap_or_else(|wrong| panic!("{wrong}"));
    costs.get()
}

#[test]
fn changes_of_one_key_at_a_time_come_to_their_ends() {
    for clients in [1, 2, 3] {
        let (mut changes, mut all, mut most) = (0, 0, 0);
        for seed in 0..10 {
            let costs = add_at_a_time((seed, OFTEN), clients, 30);
            (changes, all, most) = (changes + costs.0, all + costs.1, most.max(costs.2));
        }
        let mean = all as f64 / changes as f64;
        println!("{clients} clients, {changes} changes: mean {mean:.2} roundtrips, most {most}");
        assert_eq!(changes, 10 * 30 * clients as u64);
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

fn cost(play: &Play) -> u32 {
    play.stories[STUCK].client.last().roundtrips
}

#[test]
fn what_a_change_costs() {
    let mut play = Play::new();
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

/// What is done to a key that is a cell, by a client that was there and by one that was not.
#[test]
fn what_a_change_of_a_cell_costs() {
    ARE_CELLS.set(true);
    let mut play = Play::new();
    // The first ones may have to raise high-water marks.
    (0..20).for_each(|_| play.all(&[9, 13].map(|id| (STUCK, 0, Call::Swap(Some(id)))), &NODES));
    assert_eq!(cost(&play), 1, "change");
    let mut costs = |identity: usize, calls: &[Call]| -> Vec<u32> {
        let cost = |call: &Call| {
            play.all(&[(identity, 0, *call)], &NODES);
            play.stories[identity].client.last().roundtrips
        };
        calls.iter().map(cost).collect()
    };
    let compare = |expected, new| Call::CompareAndSwap { expected, new: Some(new) };
    let calls = [
        Call::Get,
        Call::Update(21),
        compare(Some(1), 9),
        compare(Some(21), 13),
        Call::Insert(17),
        Call::Delete,
    ];
    assert_eq!(costs(STUCK, &calls), [1; 6]);
    costs(STUCK, &[Call::Insert(29), Call::Swap(Some(33))]);
    // It remembers the register that the key was first: that, bucket, cell.
    let calls = [Call::Get, Call::Get, Call::Swap(Some(37)), Call::Swap(Some(41))];
    let outcome = costs(READER, &calls);
    assert_eq!(
        (outcome[1], outcome[3]),
        (1, 1),
        "{outcome:?}: once it knows the cell, and has memory"
    );
    assert!(outcome[0] <= 5, "{outcome:?}");
    // Others have changed it: a change that is lost, a read, a change.
    let [lost] = costs(STUCK, &[Call::Swap(Some(45))])[..] else { panic!("one") };
    assert!((2..=5).contains(&lost), "{lost}");
    play.is_linearizable("all");
}
