//! Scenarios of epochs: retired objects, and operations that may still reach them.
//!
//! An access to reclaimed memory, before it is reused, fails a scenario.

use std::rc::Rc;

use swarm_core::history::{Answer, Call};
use swarm_core::sim::explore::LoneClock;

use crate::domain::Works;
use crate::play::{CAPACITY, CREATOR, ENOUGH, LAST, NEXT, NODES, Play, WARM, all_but};
use crate::store_sim_common::Story;

/// The other key of the client whose memory is reclaimed.
const OTHER: u64 = 1;
/// How often it writes at most; it searches for memory then or before.
const WRITES: u64 = 24;

/// A reader finds a guess and is about to fetch its buffer; meanwhile the writer writes again and
/// retires that buffer. It writes `writes` times more, until it searches for memory and the epoch
/// advances, as the reader began in the current one. Memory that is reclaimed after one epoch would
/// be accessed. Returns how often it advanced.
fn reads_what_was_retired(before: u64, writes: u64) -> u64 {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let notes = play.notes.clone().expect("memory comes back");
    let (writer, reader) = (play.patient(NEXT), play.patient(LAST));
    let calls = [(0, 800), (OTHER, 804), (WARM, 808)].map(|(key, id)| (key, Call::Insert(id)));
    let grown = (0..4 + before).map(|n| (n % 2, Call::Update(823 + 4 * n)));
    play.all(&writer, calls.into_iter().chain(grown).collect(), &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.settle(&[NEXT, LAST]);
    // A guess, whose value is in its buffer only.
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
fn one_epoch_is_not_enough_for_an_operation_that_began_in_the_same() {
    // The point at which memory runs out depends on how much the writer wrote before.
    let moves = |before| (0..WRITES).map(|n| reads_what_was_retired(before, n)).collect::<Vec<_>>();
    let moves: Vec<Vec<u64>> = (0..4).map(moves).collect();
    assert!(moves.iter().flatten().all(|&moved| moved <= 1), "the reader is under way: {moves:?}");
    let behind = |moves: &Vec<u64>| moves[0] == 0 && moves.contains(&1);
    assert!(moves.iter().any(behind), "once, behind what was retired: {moves:?}");
}

/// Keys of the client whose write is refused: so many that each node is the home of one, since each
/// leaves out another node in what is written for it.
const OTHERS: std::ops::Range<u64> = 10..14;
/// Another reader than `LAST`.
const READS_LATER: usize = 4;

/// A writer's guess is at its key's home. A reader has found it there. After `rounds` roundtrips,
/// when it may be about to write it back to the second node that should hold it, the key is
/// deleted, and the write refused. The writer writes other keys. Then the reader continues, and the
/// home dies: what was written since is at the second node. Returns false if the reader was done
/// before.
fn brings_what_was_refused(rounds: usize) -> bool {
    let mut play = Play::with_epochs(CAPACITY, 6);
    let (writer, reader) = (play.patient(NEXT), play.patient(LAST));
    let deleter = play.patient(CREATOR);
    // All values have the same length.
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
fn what_a_delete_refused_waits_for_a_client_that_brings_it_to_others() {
    let over = (0..ENOUGH).find(|&rounds| !brings_what_was_refused(rounds));
    assert!(over > Some(2), "it takes some roundtrips");
}

/// Nanoseconds that pass at each reading of the clock of a client that waits for epochs: enough
/// that it does not wait for long.
const LOOK: u64 = 10_000;

/// A client runs `times` GC cycles.
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

/// A reader has a key's location cached; the key is deleted, and its register is found to be
/// garbage. After `pause` roundtrips of the clients that find it, the reader pins, and is slow:
/// either its cached location was invalidated, or the register waits for it. Returns false if all
/// was over by then.
fn comes_while_a_register_is_retired(pause: usize) -> bool {
    let mut play = Play::with_epochs(CAPACITY, 6);
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

/// A client that invalidated its cached locations only after it announced an epoch would access
/// what was retired in between. So it does that after its pin, and before its first READ.
#[test]
fn what_is_remembered_of_a_place_is_forgotten_or_waited_for() {
    let over = (0..2 * ENOUGH).find(|&pause| !comes_while_a_register_is_retired(pause));
    assert!(over > Some(2), "it takes some roundtrips: {over:?}");
}

/// Keys that fill the only bucket.
const FULL: u64 = 6;
/// A key that goes to another child than that one.
const ELSEWHERE: u64 = 10;

/// A client splits a bucket; no answer comes from one node for `rounds` roundtrips, longer than the
/// split takes. So the split is not known to be everywhere. Another client replaces the children's
/// first records, and they are collected as garbage. Only then is the split known to be everywhere.
/// The hints that the records were replaced arrive after that, before any of them is reused.
fn is_late_informed_of_a_childs_first_record(rounds: usize) {
    let mut play = Play::with_epochs(CAPACITY, 6);
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
        // A client that writes after another checks those that were replaced, and takes none.
        play.all(&other, vec![(0, Call::Update(1204 + 8 * n))], &NODES);
        play.all(&client, vec![(0, Call::Update(1208 + 8 * n))], &NODES);
        play.settle(&[NEXT, LAST]);
    }
    // While a client is pinned nothing is reclaimed, so that all that it has is used: by both
    // children in turn, as a record that is in use for both is not what one of them last was.
    play.begin(&other, vec![(0, Call::Get)]);
    play.sim.poll_once(LAST);
    for n in 0..8 {
        // Each takes a record, and then checks those that were replaced.
        let key = if n % 2 == 0 { FULL } else { ELSEWHERE };
        let again = vec![(key, Call::Delete), (key, Call::Insert(1004 + 4 * n))];
        play.all(&client, again, &NODES);
        play.settle(&[NEXT]);
        for away in NODES {
            // The in-place copy is at one node; without it the record itself is read.
            let reader = play.hasty(CREATOR);
            let keys = (0..FULL - 1).chain([WARM, FULL, ELSEWHERE]);
            play.all(&reader, keys.map(|key| (key, Call::Get)).collect(), &all_but(away));
            play.settle(&[CREATOR]);
        }
    }
    assert!(play.sim.finish(LAST, &NODES), "the get ends");
    play.is_linearizable();
}

/// A late hint about a child's first record says nothing about memory that was reclaimed since.
#[test]
fn what_came_back_is_not_taken_for_a_childs_first_record() {
    (0..=80).step_by(8).for_each(is_late_informed_of_a_childs_first_record);
}
