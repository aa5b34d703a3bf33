//! Scenarios of a bucket whose cell has nearly exhausted its ballots.

use std::rc::Rc;

use swarm_core::history::{Answer, Call};
use swarm_core::layout::cell;
use swarm_core::sim::explore::LoneClock;
use swarm_core::words::{Ballot, CellFlags, CellWord};

use crate::play::{ASTRAY, CREATOR, LAST, NEXT, NODES, Play};
use crate::store_sim_common::Story;

/// Keys that exist throughout.
const OTHERS: [u64; 3] = [1, 2, 3];
/// Clocks past the last timestamp of a register that was created when the others' clocks began, or
/// by the one before.
const LATER: [(usize, u64); 2] = [(CREATOR, 1 << 53), (ASTRAY, 1 << 55)];
/// One in this many ballots is for reads only; as many before are for the last changes.
const RESERVE: u64 = 8;

/// Makes a pool whose one bucket, which has some keys, takes `left` more changes until ballots are
/// short, or, if it `is_ending`, until there are none.
fn play(left: u64, is_ending: bool) -> (Play, Rc<Story>) {
    let mut play = Play::new();
    let client = play.patient(NEXT);
    for key in OTHERS {
        play.all(&client, vec![(key, Call::Insert(key))], &NODES);
    }
    play.sim.drain();
    let (format, place) = (play.geometry.format, play.geometry.bucket_cell(0));
    let last = format.last_ballot().0;
    let end = last - last / RESERVE * if is_ending { 1 } else { 2 };
    for node in NODES {
        let at = place.at(node, NODES.len()).plus(cell::WORD);
        let record = format.record(CellWord(play.sim.word(node, at)));
        // Fast ballots are even.
        let ballot = Ballot((end & !1) - 2 * left);
        let word = format.cell(ballot, record, CellFlags::CONFIRMED | CellFlags::ACCEPTED);
        play.sim.set_word(node, at, word.0);
    }
    // Its cached bucket has another ballot.
    let client = play.patient(LAST);
    (play, client)
}

/// All keys that exist throughout are there.
fn are_there(play: &mut Play, client: &Rc<Story>) {
    for key in OTHERS {
        play.all(client, vec![(key, Call::Get)], &NODES);
        assert_eq!(play.last(), Some(Answer::Value(Some(key))), "key {key}");
    }
}

/// A key comes and goes, and each time its bucket changes. When ballots are short its keys go on in
/// other cells, even if that was not possible at once.
#[test]
fn a_bucket_goes_on_when_its_cell_is_nearly_exhausted() {
    for left in 0..6 {
        for is_ending in [false, true] {
            let (mut play, client) = play(left, is_ending);
            for time in 0..10 {
                let calls = vec![(0, Call::Insert(100 + time)), (0, Call::Get), (0, Call::Delete)];
                play.all(&client, calls, &NODES);
                assert_eq!(play.last(), Some(Answer::Done), "{time}");
            }
            are_there(&mut play, &client);
            let next = play.patient(CREATOR);
            are_there(&mut play, &next);
            play.is_linearizable();
        }
    }
}

/// A key of such a bucket moves: it finds a place for itself before it is frozen.
#[test]
fn a_key_moves_out_of_a_cell_that_is_nearly_exhausted() {
    for left in 0..3 {
        for is_ending in [false, true] {
            let (mut play, client) = play(left, is_ending);
            are_there(&mut play, &client);
            let [key, ..] = OTHERS;
            for (id, later) in LATER {
                let mover = play.client(id, LoneClock::new(later), 1 << 40);
                play.all(&mover, vec![(key, Call::Update(9)), (key, Call::Get)], &NODES);
                assert_eq!(play.last(), Some(Answer::Value(Some(9))));
                assert_eq!(mover.client.counters().moved, 1);
            }
            play.all(&client, vec![(key, Call::Update(key))], &NODES);
            are_there(&mut play, &client);
            play.is_linearizable();
        }
    }
}
