//! Scenarios of a client that is held in the middle of an operation, as by SIGSTOP or a paused
//! machine, until others have done ten thousand.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::history::Call;

use crate::play::{ASTRAY, LAST, NEXT, NODES, Play};

/// Keys that come and go while the client is held: two operations each time.
const TIMES: u64 = 5000;
/// A key that exists throughout.
const STAYS: u64 = 7;

/// Holds the client after `rounds` roundtrips of an insert. Returns whether it was in the middle of
/// it.
fn is_held(rounds: usize) -> bool {
    let mut play = Play::new();
    let [held, busy, last] = [ASTRAY, NEXT, LAST].map(|id| play.patient(id));
    // It has memory, and has read the bucket.
    play.all(&held, vec![(STAYS, Call::Insert(7))], &NODES);
    let outcome = Rc::new(Cell::new(None));
    let (its, story) = (Rc::clone(&outcome), Rc::clone(&held));
    play.sim.spawn(ASTRAY, async move {
        its.set(Some(story.call(0, Call::Insert(1), None).await));
    });
    play.sim.poll_once(ASTRAY);
    for _ in 0..rounds {
        play.sim.roundtrip(ASTRAY, &NODES);
    }
    if play.sim.tasks(ASTRAY) == 0 {
        return false;
    }
    // Each time another register, and another record in the bucket.
    for time in 0..TIMES {
        play.all(&busy, vec![(1, Call::Insert(1000 + time)), (1, Call::Delete)], &NODES);
    }
    assert!(play.sim.finish(ASTRAY, &NODES), "it does not end");
    // Others may have been quicker all the time. But nothing is damaged.
    match outcome.get().expect("it has ended") {
        Ok(()) => {}
        Err(gave_up) if gave_up.is_late() => {}
        Err(gave_up) => panic!("held after {rounds} roundtrips: {gave_up:?}"),
    }
    play.all(&last, [STAYS, 0, 1].map(|key| (key, Call::Get)).to_vec(), &NODES);
    play.is_linearizable();
    true
}

/// A bucket that had changed four thousand times meanwhile was reported as damaged.
#[test]
fn a_client_held_for_ten_thousand_operations_of_others_sees_no_damage() {
    let rounds = (0..).find(|&rounds| !is_held(rounds)).expect("it ends");
    assert!(rounds > 0, "an insert takes some roundtrips");
}
