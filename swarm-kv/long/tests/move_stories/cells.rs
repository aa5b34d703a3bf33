//! Keys that are cells: operations that are stuck half-way beside changes, beside a value that has no room in the cell, and
//! beside a delete and an insert; and those that a client that dies leaves half done.

use swarm_core::history::Call;
use swarm_core::node::NodeId;

use super::modify::add_at_a_time;
use super::{
    ARE_CELLS, Action, MOVES_AGAIN, NODES, Play, READER, RIVAL, STUCK, dies, ends, rounds,
    until_over,
};

/// The number of the value of key 0 when it is a cell.
const CELL: u64 = 809;
const CHANGE: Action = (RIVAL, 0, Call::Swap(Some(9)));
/// A value of eleven words and more has no room in the cell: the key goes on in a register.
const OUTGROWS: Action = (RIVAL, 0, Call::Update(3));
const DELETE: Action = (RIVAL, 0, Call::Delete);
const INSERT: Action = (RIVAL, 0, Call::Insert(29));
/// What an operation that is stuck meets when it goes on.
const MEETS: &[&[Action]] = &[
    &[CHANGE],
    &[OUTGROWS],
    &[OUTGROWS, CHANGE],
    &[DELETE, INSERT],
    &[OUTGROWS, DELETE, INSERT, CHANGE],
];

/// Operations on a key that is a cell; the second update has no room in it.
const CALLS: [Call; 9] = [
    Call::Get,
    Call::Update(1),
    Call::Update(7),
    Call::Put(1),
    Call::Delete,
    Call::Insert(1),
    Call::Swap(Some(1)),
    Call::Swap(None),
    Call::CompareAndSwap { expected: Some(CELL), new: Some(1) },
];

/// Key 0 is a cell, and all clients except the last two know it.
fn of_a_cell() -> Play {
    ARE_CELLS.set(true);
    let mut play = Play::new();
    let makes = [(RIVAL, 0, Call::Swap(Some(801))), (RIVAL, 0, Call::Swap(Some(CELL)))];
    play.all(&makes, &NODES);
    play.all(&[STUCK, READER].map(|id| (id, 0, Call::Get)), &NODES);
    play
}

/// A value that outgrows its cell ends that: the key's number of moves shows it.
#[test]
fn a_long_value_is_too_long_for_the_cell() {
    let mut play = of_a_cell();
    let before = play.moves();
    play.all(&[CHANGE], &NODES);
    assert_eq!(play.moves(), before);
    play.all(&[OUTGROWS], &NODES);
    assert_eq!(play.moves(), before + 1);
}

/// A client is stuck in an operation, with its chains executed at some nodes, while others do theirs. Then it goes on, and
/// changes the key once more by what it remembers. Returns false if it was over before.
fn is_stuck(call: Call, turn: usize, lands: &[NodeId], deeds: &[Action]) -> bool {
    let mut play = of_a_cell();
    play.begin((STUCK, 0, call));
    rounds(&mut play, STUCK, turn, &NODES);
    if play.sim.tasks(STUCK) == 0 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
    play.all(deeds, &NODES);
    ends(&mut play, STUCK, &NODES);
    play.all(&[(STUCK, 0, Call::Swap(Some(33))), (READER, 0, Call::Get)], &NODES);
    play.all(&[(MOVES_AGAIN, 0, Call::Get)], &NODES);
    play.is_linearizable((call, turn, lands, deeds));
    true
}

/// An operation that is stuck at any of its roundtrips took effect before what others did meanwhile, or finds out; and
/// what it remembers then is what is there.
#[test]
fn what_is_stuck_at_a_cell_comes_before_others_or_after_them() {
    for deeds in MEETS {
        for call in CALLS {
            for lands in [&[], &NODES[1..2], &NODES[..2], &NODES] {
                until_over(|turn| !is_stuck(call, turn, lands, deeds));
            }
        }
    }
}

/// A client dies at any roundtrip of any operation, with its chains executed at some nodes. Returns false if that was
/// over before.
fn dies_in(call: Call, turn: usize, lands: &[NodeId], deeds: &[Action]) -> bool {
    let mut play = of_a_cell();
    play.begin((STUCK, 0, call));
    rounds(&mut play, STUCK, turn, &NODES);
    if play.sim.tasks(STUCK) == 0 {
        return false;
    }
    lands.iter().for_each(|&node| play.sim.take_all(STUCK, node));
    dies(&mut play, STUCK);
    play.all(&[(READER, 0, Call::Get)], &NODES);
    play.all(deeds, &NODES);
    play.all(&[(READER, 0, Call::Get), (MOVES_AGAIN, 0, Call::Get)], &NODES);
    play.is_linearizable((call, turn, lands, deeds));
    true
}

/// What it left half done, a forwarded cell among that, is done by others, or never.
#[test]
fn what_a_dead_client_left_of_a_cell_is_done_once_or_never() {
    for deeds in [&[CHANGE][..], &[DELETE, INSERT], &[OUTGROWS]] {
        for call in CALLS {
            for lands in [&[], &NODES[..1], &NODES[1..2], &NODES[..2], &NODES] {
                until_over(|turn| !dies_in(call, turn, lands, deeds));
            }
        }
    }
}

/// Two that change one cell at a time: a mean of at most four roundtrips a change, and none that loses more than 64
/// rounds in a row. Each of those takes a look at what is there and a proposal, two roundtrips.
#[test]
fn what_changes_of_one_cell_at_a_time_cost() {
    ARE_CELLS.set(true);
    let (mut changes, mut all, mut most) = (0, 0, 0);
    for seed in 0..20 {
        let costs = add_at_a_time((seed, 1.0), 2, 100);
        (changes, all, most) = (changes + costs.0, all + costs.1, most.max(costs.2));
    }
    let mean = all as f64 / changes as f64;
    println!("{changes} changes by two clients: mean {mean:.2} roundtrips, most {most}");
    assert!(mean <= 4.0 && most <= 2 * 64, "mean {mean:.2}, most {most}");
}
