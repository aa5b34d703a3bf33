//! Stories of epochs: what was retired, and who may still be on the way to it.
//!
//! Whoever touches memory that came back, before it is used again, fails a story.

use std::rc::Rc;

use swarm_core::history::{Answer, Call};
use swarm_core::sim::explore::LoneClock;

use crate::board::Works;
use crate::play::{CAPACITY, CREATOR, ENOUGH, LAST, NEXT, NODES, Play, WARM, all_but};
use crate::store_sim_common::Story;

/// The other key of the client whose memory comes back.
const OTHER: u64 = 1;
/// So often it writes at most, and looks for memory then or before.
const WRITES: u64 = 24;

/// A reader finds a guess and goes for its buffer; meanwhile the writer writes again and retires that
/// buffer. It writes so many times more, until it looks for memory and the epoch moves on, as the reader
/// began in the one that it was. What comes back after one epoch is met. Yields how often it moved on.
fn reads_what_was_retired(before: u64, writes: u64) -> u64 {
    let mut play = Play::recycling(CAPACITY, 6);
    let notes = play.notes.clone().expect("memory comes back");
    let (writer, reader) = (play.patient(NEXT), play.patient(LAST));
    let calls = [(0, 800), (OTHER, 804), (WARM, 808)].map(|(key, id)| (key, Call::Insert(id)));
    let grown = (0..4 + before).map(|n| (n % 2, Call::Update(823 + 4 * n)));
    play.all(&writer, calls.into_iter().chain(grown).collect(), &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.settle(&[NEXT, LAST]);
    // A guess, whose value lies in its buffer alone.
    play.all(&writer, vec![(0, Call::Update(815))], &NODES);
    NODES.into_iter().for_each(|node| play.sim.lose_chains(NEXT, node));
    let began = notes.epoch();
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(LAST);
    play.sim.roundtrip(LAST, &NODES);
    assert!(NODES.into_iter().any(|node| play.sim.on_their_way(LAST, node) > 0), "to the buffer");
    play.all(&writer, vec![(0, Call::Update(819))], &NODES);
    for n in 0..writes {
        play.all(&writer, vec![(OTHER, Call::Update(903 + 4 * n))], &NODES);
        play.settle(&[NEXT]);
    }
    let moved = notes.epoch() - began;
    assert!(play.sim.finish(LAST, &NODES), "the reader ends");
    play.is_linearizable();
    moved
}

#[test]
fn one_epoch_is_not_enough_for_who_began_in_the_same() {
    // Memory runs out at other times, the more the writer wrote before.
    let moves = |before| (0..WRITES).map(|n| reads_what_was_retired(before, n)).collect::<Vec<_>>();
    let moves: Vec<Vec<u64>> = (0..4).map(moves).collect();
    assert!(moves.iter().flatten().all(|&moved| moved <= 1), "the reader is under way: {moves:?}");
    let behind = |moves: &Vec<u64>| moves[0] == 0 && moves.contains(&1);
    assert!(moves.iter().any(behind), "once, behind what was retired: {moves:?}");
}

/// Keys of the client whose write is refused: so many that each node is some's home, as what is written for those
/// leaves out another node each.
const OTHERS: std::ops::Range<u64> = 10..14;
/// Another reader than `LAST`.
const READS_LATER: usize = 4;

/// A writer's guess is at its key's home. A reader has met it there; after `rounds` roundtrips, when it may be about
/// to bring it to the second node that is to hold it, the key is deleted, and the write refused. The writer writes other
/// keys. Then the reader goes on, and the home dies: what was written since is at the second node. False if the
/// reader was done before.
fn brings_what_was_refused(rounds: usize) -> bool {
    let mut play = Play::recycling(CAPACITY, 6);
    let (writer, reader) = (play.patient(NEXT), play.patient(LAST));
    let deleter = play.patient(CREATOR);
    // All values are as long.
    let inserts = OTHERS.map(|key| (key, Call::Insert(803 + 12 * key)));
    play.all(&writer, inserts.chain([(0, Call::Insert(803))]).collect(), &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.all(&deleter, vec![(WARM, Call::Insert(803)), (0, Call::Get)], &NODES);
    play.settle(&[NEXT, LAST, CREATOR]);
    play.begin(&writer, vec![(0, Call::Update(815))]);
    play.sim.poll_once(NEXT);
    let posted = |play: &Play, node| play.sim.on_their_way(NEXT, node) > 0;
    let next = |node: usize| NODES[(node + 1) % NODES.len()];
    let home = (0..NODES.len()).find(|&it| posted(&play, NODES[it]) && posted(&play, next(it)));
    let home = home.expect("it goes to its home, and to the next node");
    play.sim.take_all(NEXT, NODES[home]);
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(LAST);
    (0..rounds).for_each(|_| play.sim.roundtrip(LAST, &NODES));
    if play.sim.tasks(LAST) == 0 {
        return false;
    }
    play.all(&deleter, vec![(0, Call::Delete)], &NODES);
    assert!(play.sim.finish(NEXT, &NODES), "the update ends");
    play.all(&writer, OTHERS.map(|key| (key, Call::Update(839 + 12 * key))).collect(), &NODES);
    play.settle(&[NEXT]);
    assert!(play.sim.finish(LAST, &NODES), "the get ends");
    play.settle(&[LAST]);
    play.sim.crash_node(NODES[home], false);
    let last = play.hasty(READS_LATER);
    for key in OTHERS {
        play.all(&last, vec![(key, Call::Get)], &all_but(NODES[home]));
        assert_eq!(play.last(), Some(Answer::Value(Some(839 + 12 * key))), "{rounds} rounds");
    }
    play.is_linearizable();
    true
}

#[test]
fn what_a_delete_refused_waits_for_who_brings_it_to_others() {
    let over = (0..ENOUGH).find(|&rounds| !brings_what_was_refused(rounds));
    assert!(over > Some(2), "it takes some roundtrips");
}

/// Nanoseconds that pass when the clock of a client is looked at that waits for epochs: so many that it
/// does not wait for long.
const LOOK: u64 = 10_000;

/// A client collects so often.
fn collects(play: &mut Play, story: &Rc<Story>, times: usize) {
    let works = play.notes.as_ref().map(|notes| Works::new(notes, story.id));
    let story = Rc::clone(story);
    play.sim.spawn(story.id, async move {
        let _works = works;
        for _ in 0..times {
            let found = story.client.collect().await;
            found.expect("all nodes answer");
        }
    });
}

/// A reader remembers where a key is, which is deleted, and whose register is found to be garbage. After
/// `pause` roundtrips of those who find it, the reader comes, and is slow: it was told to forget the
/// place, or the place waits for it. False if all was over by then.
fn comes_while_a_register_is_retired(pause: usize) -> bool {
    let mut play = Play::recycling(CAPACITY, 6);
    let clock = LoneClock::new(10_000).with_look(LOOK);
    let (client, reader) = (play.client(NEXT, clock, 1 << 40), play.patient(LAST));
    play.all(&client, vec![(0, Call::Insert(800))], &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.all(&client, vec![(0, Call::Delete)], &NODES);
    play.settle(&[NEXT, LAST]);
    collects(&mut play, &client, 3);
    (0..pause).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    let over = play.sim.tasks(NEXT) == 0;
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(LAST);
    (0..ENOUGH).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    assert!(play.sim.finish(LAST, &NODES), "the reader ends");
    assert_eq!(play.last(), Some(Answer::Value(None)));
    play.settle(&[LAST]);
    assert!(play.sim.finish(NEXT, &NODES), "the collections end");
    play.is_linearizable();
    !over
}

/// Who announces an epoch and forgets only then goes to what was retired in between: a client forgets
/// what it is told to behind its mark, and in front of its first look.
#[test]
fn what_is_remembered_of_a_place_is_forgotten_or_waited_for() {
    let over = (0..2 * ENOUGH).find(|&pause| !comes_while_a_register_is_retired(pause));
    assert!(over > Some(2), "it takes some roundtrips: {over:?}");
}

/// Keys that fill the only bucket.
const FULL: u64 = 6;
/// A key that goes to another child than that one.
const ELSEWHERE: u64 = 10;

/// A client splits a bucket; one node is not heard for `rounds` roundtrips. Longer than the split takes:
/// then it is not known to be everywhere. Another client replaces the children's first records, and
/// they are collected as garbage. Only then is the split known to be everywhere; that the records were
/// replaced is heard after that, before any of them is taken again.
fn hears_late_of_a_childs_first_record(rounds: usize) {
    let mut play = Play::recycling(CAPACITY, 6);
    let (client, other) = (play.hasty(NEXT), play.patient(LAST));
    play.all(&client, (0..FULL - 1).map(|n| (n, Call::Insert(800 + 4 * n))).collect(), &NODES);
    play.all(&other, vec![(WARM, Call::Insert(880))], &NODES);
    play.settle(&[NEXT, LAST]);
    play.begin(&client, vec![(FULL, Call::Insert(884))]);
    play.sim.poll_once(NEXT);
    (0..rounds).for_each(|_| play.sim.roundtrip(NEXT, &NODES[..2]));
    assert!(play.sim.finish(NEXT, &NODES), "the insert ends");
    let more = ELSEWHERE..ELSEWHERE + 4;
    play.all(&other, more.map(|n| (n, Call::Insert(800 + 4 * n))).collect(), &NODES);
    play.settle(&[NEXT, LAST]);
    collects(&mut play, &client, 1);
    assert!(play.sim.finish(NEXT, &NODES), "the collection ends");
    for n in 0..4 {
        // Who writes behind another looks at those that were replaced, and takes none.
        play.all(&other, vec![(0, Call::Update(1204 + 8 * n))], &NODES);
        play.all(&client, vec![(0, Call::Update(1208 + 8 * n))], &NODES);
        play.settle(&[NEXT, LAST]);
    }
    // While somebody is under way nothing comes back, so that all that has is used: by both children in turn, as
    // a record that is in use for both is not what one of them last was.
    play.begin(&other, vec![(0, Call::Get)]);
    play.sim.poll_once(LAST);
    for n in 0..8 {
        // Each takes a record, and then looks at those that were replaced.
        let key = if n % 2 == 0 { FULL } else { ELSEWHERE };
        let again = vec![(key, Call::Delete), (key, Call::Insert(1004 + 4 * n))];
        play.all(&client, again, &NODES);
        play.settle(&[NEXT]);
        for away in NODES {
            // What is in place is at one node; without that the record itself is read.
            let reader = play.hasty(CREATOR);
            let keys = (0..FULL - 1).chain([WARM, FULL, ELSEWHERE]);
            play.all(&reader, keys.map(|key| (key, Call::Get)).collect(), &all_but(away));
            play.settle(&[CREATOR]);
        }
    }
    assert!(play.sim.finish(LAST, &NODES), "the get ends");
    play.is_linearizable();
}

/// What is heard late of a child's first record says nothing of what came back since.
#[test]
fn what_came_back_is_not_taken_for_a_childs_first_record() {
    (0..=80).step_by(8).for_each(hears_late_of_a_childs_first_record);
}
