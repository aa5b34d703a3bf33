//! Scripted schedules of the store, each a scenario.

mod chunks;
mod collect;
mod delayed;
mod epochs;
mod held;
mod locks;
mod moves;
mod play;
mod worn;

use play::{ASTRAY, CREATOR, ENOUGH, LAST, NEXT, NODES, Play, WARM, all_but};
use swarm_core::fabric::MAX_VERBS;
use swarm_core::history::{Answer, BUDGET, Call, check};
use swarm_core::node::NodeId;
use swarm_core::sim::explore::LoneClock;
use swarm_core::sim::seeds::until_over;
use swarm_kv_long::{domain, store_sim_common};

/// Keys that only fill the bucket have numbers from here on.
const FILLERS: u64 = 100;

/// A client inserts a key into a bucket with `others` other keys. After `fails` roundtrips its
/// chain to another node than `only` is lost, so that its fast round becomes a classic one; if it
/// `suspects` that node, it begins with a classic one. After `rounds` roundtrips, its chains reach
/// `only` alone. Another client, which reaches that node and a second one, inserts a key too; the
/// first client continues, or has died; then the one node dies.
///
/// What was acknowledged is at the two remaining nodes, and what is listed there can be read.
/// Returns false if the insert was over before its chains went astray.
fn lands_at_one_node_only(
    others: u64,
    suspects: bool,
    (fails, rounds): (usize, usize),
    only: NodeId,
    dies: bool,
) -> bool {
    let away = all_but(only);
    let mut play = Play::new();
    let creator = play.client(CREATOR, LoneClock::new(10_000), 1 << 40);
    let fill = (0..others).map(|n| (FILLERS + n, Call::Insert(900 + n)));
    play.all(&creator, fill.collect(), &NODES);
    let astray = play.client(ASTRAY, LoneClock::new(10_000), 1 << 40);
    // It has memory, and has read the bucket.
    let warm = vec![(WARM, Call::Insert(801)), (WARM, Call::Delete), (WARM, Call::Insert(805))];
    play.all(&astray, warm, &NODES);
    for key in (FILLERS..FILLERS + others).filter(|_| suspects) {
        play.begin(&astray, vec![(key, Call::Get)]);
        play.sim.poll_once(ASTRAY);
        play.sim.disconnect(ASTRAY, away[1], false);
        assert!(play.sim.finish(ASTRAY, &NODES), "it does not end");
    }
    play.begin(&astray, vec![(0, Call::Insert(1))]);
    play.sim.poll_once(ASTRAY);
    for round in 0..rounds {
        if round == fails {
            play.sim.disconnect(ASTRAY, away[1], false);
        }
        play.sim.roundtrip(ASTRAY, &NODES);
    }
    if play.sim.tasks(ASTRAY) == 0 {
        return false;
    }
    for &node in &away {
        play.sim.disconnect(ASTRAY, node, false);
    }
    play.sim.take_all(ASTRAY, only);
    if dies {
        play.sim.crash_client(ASTRAY);
    }
    let next = play.client(NEXT, play.sim.clock(NEXT), 100);
    play.all(&next, vec![(1, Call::Insert(5))], &[only, away[0]]);
    if !dies {
        assert!(play.sim.finish(ASTRAY, &NODES), "it does not end");
    }
    play.sim.crash_node(only, false);
    let last = play.client(LAST, play.sim.clock(LAST), 100);
    let keys = [0, 1, WARM].into_iter().chain((0..others).map(|n| FILLERS + n));
    play.all(&last, keys.map(|key| (key, Call::Get)).collect(), &away);
    if let Err(wrong) = check(&play.recorder.operations(), |_| None, BUDGET) {
        panic!(
            "{others} others, a loss {}after {fails} rounds, after {rounds} only {only}, it {}: {wrong}",
            if suspects { "before and " } else { "" },
            if dies { "dies" } else { "goes on" },
        );
    }
    true
}

/// The objects that an insert and a split create come along when their record is adopted.
#[test]
fn what_is_created_at_one_node_outlives_it() {
    // With the last number, the bucket splits.
    for others in [1, 5] {
        for only in NODES {
            for (dies, suspects) in [(false, false), (false, true), (true, false), (true, true)] {
                let lands =
                    |fails, n| lands_at_one_node_only(others, suspects, (fails, n), only, dies);
                let over = until_over(0..ENOUGH, |fails| {
                    let over = until_over(fails..ENOUGH, |rounds| !lands(fails, rounds));
                    over.expect("it ends") == fails
                });
                assert!(over.expect("it ends") > 0, "it takes some roundtrips");
            }
        }
    }
}

/// A reader takes a writer's second stamp as proof that its first write is complete. A client that
/// runs two writes of a key concurrently must not begin the second before the first is over: the
/// first may still find that its guess was stale, and take effect again.
#[test]
fn a_client_writes_a_key_once_at_a_time() {
    const READER: usize = NEXT;
    const RIVAL: usize = LAST;
    let mut play = Play::new();
    let writer = play.client(0, LoneClock::new(10_000), 1 << 40);
    let reader = play.client(READER, LoneClock::new(10_000), 1 << 40);
    // Its clock is ahead of the writer's, and so are its guesses.
    let rival = play.client(RIVAL, LoneClock::new(1_000_000), 1 << 40);
    play.all(&writer, vec![(0, Call::Insert(801)), (0, Call::Update(805))], &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.all(
        &rival,
        vec![(WARM, Call::Insert(809)), (WARM, Call::Update(813)), (0, Call::Get)],
        &NODES,
    );
    for id in [0, READER, RIVAL] {
        NODES.into_iter().for_each(|node| play.sim.take_all(id, node));
    }
    play.begin(&writer, vec![(0, Call::Update(1))]);
    play.begin(&writer, vec![(0, Call::Update(5))]);
    play.sim.poll_once(0);
    let posted = NODES.into_iter().filter(|&node| play.sim.on_their_way(0, node) > 0);
    let [one, other] = posted.collect::<Vec<_>>()[..] else { panic!("a majority") };
    // The first write is at one node. The reader finds it there, and READs a second time; meanwhile
    // the writer may continue as far as that node's answer lets it.
    play.sim.take_chains(0, one, 1);
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(READER);
    for _ in 0..ENOUGH {
        play.sim.roundtrip(READER, &[one, other]);
        play.sim.roundtrip(0, &[one]);
    }
    assert_eq!(play.sim.tasks(READER), 0, "the reader has its answer");
    play.all(&rival, vec![(0, Call::Update(9))], &[one, other]);
    play.all(&reader, vec![(0, Call::Get)], &[one, other]);
    // Now the first write learns that its guess is not the largest; the reader READs again and
    // again.
    for _ in 0..ENOUGH {
        play.sim.roundtrip(0, &NODES);
        play.all(&reader, vec![(0, Call::Get)], &NODES);
    }
    assert_eq!(play.sim.tasks(0), 0, "the writes end");
    if let Err(wrong) = check(&play.recorder.operations(), |_| None, BUDGET) {
        panic!("{wrong}");
    }
}

/// A client has a key's location cached. Others delete the key and insert it again. The cached
/// register is dead, which proves nothing: a get must find the key's new register, an update must
/// write there, a delete must delete that one.
#[test]
fn a_place_that_is_remembered_proves_nothing() {
    for (call, outcome, then) in [
        (Call::Get, Answer::Value(Some(5)), Some(5)),
        (Call::Update(9), Answer::Done, Some(9)),
        (Call::Put(9), Answer::Done, Some(9)),
        (Call::Insert(9), Answer::Refused, Some(5)),
        (Call::Delete, Answer::Done, None),
    ] {
        let mut play = Play::new();
        let client = play.patient(NEXT);
        let other = play.patient(CREATOR);
        play.all(&client, vec![(WARM, Call::Insert(801)), (0, Call::Insert(1))], &NODES);
        play.all(&client, vec![(0, Call::Get)], &NODES);
        play.all(&other, vec![(0, Call::Delete), (0, Call::Insert(5))], &NODES);
        play.all(&client, vec![(0, call)], &NODES);
        assert_eq!(play.last(), Some(outcome), "{call:?}");
        play.all(&other, vec![(0, Call::Get)], &NODES);
        assert_eq!(play.last(), Some(Answer::Value(then)), "after {call:?}");
    }
}

/// While a client deletes a key, another one finds it deleted and inserts it again. The delete has
/// taken effect: it must not continue to the new register.
#[test]
fn a_delete_has_one_effect() {
    for rounds in 0..ENOUGH {
        let mut play = Play::new();
        let client = play.patient(NEXT);
        let other = play.patient(CREATOR);
        play.all(&other, vec![(0, Call::Insert(1))], &NODES);
        play.all(&client, vec![(WARM, Call::Insert(801)), (0, Call::Get)], &NODES);
        play.begin(&client, vec![(0, Call::Delete)]);
        play.sim.poll_once(NEXT);
        for _ in 0..rounds {
            play.sim.roundtrip(NEXT, &NODES);
        }
        let over = play.sim.tasks(NEXT) == 0;
        play.all(&other, vec![(0, Call::Insert(5))], &NODES);
        assert!(play.sim.finish(NEXT, &NODES), "the delete ends");
        play.all(&other, vec![(0, Call::Get)], &NODES);
        play.is_linearizable();
        if over {
            assert!(rounds > 0, "it takes some roundtrips");
            return;
        }
    }
    panic!("the delete does not end");
}

/// An existing key is not inserted; and a bucket that is full splits, and keeps its keys.
#[test]
fn a_key_is_inserted_once_and_kept() {
    let mut play = Play::new();
    let client = play.patient(NEXT);
    for key in 0..20 {
        play.all(&client, vec![(key, Call::Insert(4 * key + 1))], &NODES);
        assert_eq!(play.last(), Some(Answer::Done));
        play.all(&client, vec![(key, Call::Insert(999))], &NODES);
        assert_eq!(play.last(), Some(Answer::Refused));
    }
    let other = play.patient(LAST);
    for key in 0..20 {
        play.all(&other, vec![(key, Call::Get)], &NODES);
        assert_eq!(play.last(), Some(Answer::Value(Some(4 * key + 1))));
    }
}

/// The chains that a client's insert posts in one round execute at all nodes, but one connection
/// breaks before it gets the answer. Another client inserts a key into the same bucket meanwhile.
/// The first one learns that its record was chosen, and was built upon: the bucket that it proposed
/// is not the latest, and its next proposal must not omit the other's key. Returns false if the
/// insert took fewer rounds.
fn is_built_upon(rounds: usize, away: NodeId) -> bool {
    let mut play = Play::new();
    let (client, other) = (play.patient(NEXT), play.patient(CREATOR));
    play.all(&client, vec![(WARM, Call::Insert(801))], &NODES);
    play.all(&other, vec![(WARM + 1, Call::Insert(809))], &NODES);
    play.all(&client, vec![(WARM, Call::Delete), (WARM, Call::Insert(805))], &NODES);
    play.begin(&client, vec![(0, Call::Insert(1))]);
    play.sim.poll_once(NEXT);
    (0..rounds).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    if play.sim.tasks(NEXT) == 0 {
        return false;
    }
    play.sim.disconnect(NEXT, away, true);
    play.sim.drain();
    play.all(&other, vec![(1, Call::Insert(5))], &NODES);
    assert!(play.sim.finish(NEXT, &NODES), "the insert ends");
    play.all(&client, vec![(2, Call::Insert(9))], &NODES);
    let last = play.patient(LAST);
    play.all(&last, (0..3).map(|key| (key, Call::Get)).collect(), &NODES);
    play.is_linearizable();
    true
}

#[test]
fn a_bucket_that_was_built_upon_is_not_the_latest() {
    for away in NODES {
        let over = (0..ENOUGH).find(|&rounds| !is_built_upon(rounds, away));
        assert!(over > Some(0), "it takes some roundtrips");
    }
}

/// A key is inserted, by a client whose chains to node `late` are delayed from a round on; or by
/// one that died when its chains of round `dies` had reached one other node, so that this client
/// adopts its record. An update is acknowledged at the late node and another one, which then dies.
/// The late chains erase nothing of it. Returns false if all was over before those rounds.
fn a_created_part_comes_late(late: NodeId, from: usize, dies: Option<usize>) -> bool {
    /// The client that has the slot in which registers are created.
    const UPDATES: usize = 0;
    const DIES: usize = 4;
    let others = all_but(late);
    let [first, last] = others[..] else { panic!("three nodes") };
    let mut play = Play::new();
    let (dying, inserter, updater) = (play.patient(DIES), play.hasty(NEXT), play.hasty(UPDATES));
    let warm = |key| vec![(key, Call::Insert(801)), (key, Call::Delete)];
    play.all(&updater, warm(WARM), &NODES);
    play.all(&dying, warm(WARM + 1), &NODES);
    play.all(&inserter, warm(WARM + 2), &NODES);
    if let Some(rounds) = dies {
        play.begin(&dying, vec![(0, Call::Insert(1))]);
        play.sim.poll_once(DIES);
        (0..rounds).for_each(|_| play.sim.roundtrip(DIES, &NODES));
        if play.sim.tasks(DIES) == 0 {
            return false;
        }
        play.sim.take_all(DIES, first);
        NODES.into_iter().for_each(|node| play.sim.lose_chains(DIES, node));
        play.sim.crash_client(DIES);
    }
    let call = if dies.is_some() { (1, Call::Insert(9)) } else { (0, Call::Insert(5)) };
    play.begin(&inserter, vec![call]);
    play.sim.poll_once(NEXT);
    (0..from).for_each(|_| play.sim.roundtrip(NEXT, &NODES));
    if play.sim.tasks(NEXT) == 0 {
        return false;
    }
    assert!(play.sim.finish(NEXT, &others), "it ends");
    if dies.is_some() {
        // The key may not exist yet; it does now.
        let other = play.hasty(CREATOR);
        play.all(&other, vec![(0, Call::Put(5))], &others);
    }
    play.all(&updater, vec![(0, Call::Update(13))], &[first, late]);
    assert_eq!(play.last(), Some(Answer::Done));
    play.sim.take_all(NEXT, late);
    play.sim.crash_node(first, false);
    let reader = play.hasty(LAST);
    play.all(&reader, vec![(0, Call::Get)], &[last, late]);
    assert_eq!(
        play.last(),
        Some(Answer::Value(Some(13))),
        "{late} is late from {from} on, {dies:?}"
    );
    play.is_linearizable();
    true
}

#[test]
fn a_late_created_part_erases_no_acknowledged_write() {
    for late in NODES {
        let rounds = |dies| (0..ENOUGH).find(|&from| !a_created_part_comes_late(late, from, dies));
        assert!(rounds(None) > Some(0), "it takes some roundtrips");
        let over = (0..ENOUGH).find(|&dies| rounds(Some(dies)) == Some(0));
        assert!(over > Some(0), "it takes some roundtrips");
    }
}

/// A client inserts a key and dies, after `rounds` roundtrips, when its chains have executed
/// `verbs` verbs more at each node; if it `misses` one, that node receives nothing from then on, so
/// that the insert takes a classic round. The next client can read the key or not, but it is
/// intact, and can be inserted. Returns false if the insert ended before.
fn dies_within_a_chain(rounds: usize, verbs: usize, misses: Option<NodeId>) -> bool {
    let mut play = Play::new();
    let creator = play.patient(CREATOR);
    play.all(&creator, vec![(FILLERS, Call::Insert(900))], &NODES);
    let astray = play.patient(ASTRAY);
    let warm = vec![(WARM, Call::Insert(801)), (WARM, Call::Delete), (WARM, Call::Insert(805))];
    play.all(&astray, warm, &NODES);
    play.begin(&astray, vec![(0, Call::Insert(1))]);
    play.sim.poll_once(ASTRAY);
    if let Some(node) = misses {
        play.sim.disconnect(ASTRAY, node, false);
    }
    let known: Vec<_> = NODES.into_iter().filter(|&node| Some(node) != misses).collect();
    for _ in 0..rounds {
        play.sim.roundtrip(ASTRAY, &NODES);
    }
    if play.sim.tasks(ASTRAY) == 0 {
        return false;
    }
    for &node in &known {
        for _ in 0..verbs {
            if play.sim.on_their_way(ASTRAY, node) > 0 {
                play.sim.take_verbs(ASTRAY, node, 1);
            }
        }
    }
    NODES.into_iter().for_each(|node| play.sim.lose_chains(ASTRAY, node));
    play.sim.crash_client(ASTRAY);
    let next = play.hasty(NEXT);
    let calls = vec![(0, Call::Get), (0, Call::Insert(5)), (0, Call::Get), (FILLERS, Call::Get)];
    play.all(&next, calls, &NODES);
    play.is_linearizable();
    true
}

/// Wherever a bucket's word names a register, the register is there: created objects come first.
#[test]
fn what_a_word_names_is_there() {
    for misses in [None, Some(NODES[0]), Some(NODES[2])] {
        for verbs in 1..MAX_VERBS {
            let over = (0..ENOUGH).find(|&rounds| !dies_within_a_chain(rounds, verbs, misses));
            assert!(over.expect("it ends") > 0, "it takes some roundtrips");
        }
    }
}
