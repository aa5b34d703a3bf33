//! What holds between processes: slots, words and time.

#![cfg(not(loom))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::io::{Read, Write, stdin};

use common::{Running, pool, post, role, say};
use swarm_core::clock::Clock;
use swarm_core::epoch::Board;
use swarm_core::fabric::{Address, NodeId, Verb};
use swarm_shm::{Error, OpenOptions, Pool, SwitchState};

const COUNTER: Address = Address(1024);
const INCREMENTS: u64 = 50_000;

/// Not a test by itself: what the children of the tests below do.
#[test]
fn child() {
    let Some((role, pool)) = role() else { return };
    let pool = Pool::open(&pool, OpenOptions::default()).expect("the parent's pool");
    match role.as_str() {
        "hold" => {
            let client = pool.attach().expect("a free slot");
            say(client.session().client);
            wait_for_parent();
        }
        "operate" => {
            let client = pool.attach().expect("a free slot");
            say(client.board().enter());
            wait_for_parent();
            client.board().leave();
            say("left");
            wait_for_parent();
        }
        "increment" => {
            say("ready");
            wait_for_parent();
            increment(&pool);
            say("done");
        }
        "clock" => {
            let clock = pool.clock();
            say("ready");
            for _ in 0..20 {
                wait_for_parent();
                say(clock.now());
            }
        }
        other => panic!("no such role: {other}"),
    }
}

/// Waits for a byte from the parent; if the parent is gone, so is the child.
fn wait_for_parent() {
    if !matches!(stdin().read(&mut [0]), Ok(1)) {
        std::process::exit(1);
    }
}

fn nudge(child: &mut Running) {
    let input = child.process.stdin.as_mut().expect("the child's input");
    input.write_all(b".").expect("the child listens");
}

/// Adds one to a word, many times, against whoever does so too.
fn increment(pool: &Pool) {
    let fabric = pool.fabric();
    let mut seen = 0;
    for _ in 0..INCREMENTS {
        loop {
            let chain = [
                Verb::Cas { at: COUNTER, expect: seen, new: seen + 1 },
                Verb::Read { at: COUNTER, words: 1 },
            ];
            let reply = post(&fabric, NodeId(0), &chain).expect("the node is up");
            let won = reply[0] == seen;
            assert!(reply[1] > reply[0] || (!won && reply[1] == reply[0]), "READ behind a CAS");
            seen = reply[1];
            if won {
                break;
            }
        }
    }
}

#[test]
fn processes_racing_for_a_word_lose_no_increment() {
    let (_dir, pool) = pool();
    let mut children: Vec<_> = (0..2).map(|_| Running::start("increment", pool.path())).collect();
    for child in &mut children {
        assert_eq!(child.hear(), "ready");
    }
    for child in &mut children {
        nudge(child);
    }
    increment(&pool);
    for mut child in children {
        assert_eq!(child.hear(), "done");
        assert!(child.process.wait().expect("the child").success());
    }
    let total = post(&pool.fabric(), NodeId(0), &[Verb::Read { at: COUNTER, words: 1 }]);
    assert_eq!(total, Ok(vec![3 * INCREMENTS]));
}

#[test]
fn a_killed_holders_slot_is_free_at_once() {
    let (_dir, pool) = pool();
    let first = pool.attach().expect("a free slot");
    assert_eq!(first.session().client, 0);
    let mut child = Running::start("hold", pool.path());
    assert_eq!(child.hear(), "1");
    assert_eq!(pool.live_clients(), [0, 1]);
    assert_eq!(pool.client_process(1), Some(child.process.id()));
    assert_eq!(pool.attach().expect("a free slot").session().client, 2, "slot 1 is held");

    child.process.kill().expect("SIGKILL");
    child.process.wait().expect("the child");
    assert_eq!(pool.live_clients(), [0]);
    let next = pool.attach().expect("a free slot");
    assert_eq!(next.session().client, 1);
    assert!(next.session().incarnation > first.session().incarnation);
}

#[test]
fn slots_exclude_each_other_within_a_process_too() {
    let (_dir, pool) = pool();
    let mut held: Vec<_> = (0..8).map(|_| pool.attach().expect("a free slot")).collect();
    let slots: Vec<_> = held.iter().map(|client| client.session().client).collect();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5, 6, 7]);
    let error = pool.attach().expect_err("all slots are held");
    assert!(matches!(error, Error::Slots { limit: 8, .. }), "{error}");
    assert!(error.to_string().contains("every client slot of 8"), "{error}");
    let mut incarnations: Vec<_> = held.iter().map(|c| c.session().incarnation).collect();
    incarnations.dedup();
    assert_eq!(incarnations.len(), 8);
    assert!(incarnations.is_sorted());

    drop(held.remove(3));
    assert_eq!(pool.live_clients(), [0, 1, 2, 4, 5, 6, 7]);
    let again = pool.attach().expect("a free slot");
    assert_eq!(again.session().client, 3);
    assert!(again.session().incarnation > incarnations[7]);
}

#[test]
fn the_clock_is_the_same_in_all_processes() {
    let (_dir, pool) = pool();
    let clock = pool.clock();
    let mut child = Running::start("clock", pool.path());
    assert_eq!(child.hear(), "ready");
    for _ in 0..20 {
        let before = clock.now();
        nudge(&mut child);
        let there: u64 = child.hear().parse().expect("a time");
        let after = clock.now();
        assert!((before..=after).contains(&there), "{before} {there} {after}");
    }
    assert!(child.process.wait().expect("the child").success());
}

#[test]
fn a_switch_is_seen_by_other_openings() {
    let (_dir, pool) = pool();
    let other = Pool::open(pool.path(), OpenOptions::default()).expect("the pool is there");
    let (here, there) = (pool.switch(NodeId(1)), other.switch(NodeId(1)));
    assert_eq!(there.get(), SwitchState::Up);
    for state in [SwitchState::Frozen, SwitchState::Down, SwitchState::Up] {
        here.set(state);
        assert_eq!(there.get(), state);
        assert_eq!(other.switch(NodeId(0)).get(), SwitchState::Up);
    }
}

#[test]
fn handles_go_where_they_are_needed() {
    fn shared<T: Send + Sync + Clone + 'static>(_: &T) {}
    fn moved<T: Send + 'static>(_: &T) {}
    let (_dir, pool) = pool();
    shared(&pool);
    shared(&pool.switch(NodeId(0)));
    moved(&pool.fabric());
    moved(&pool.clock());
    moved(&pool.attach().expect("a free slot"));
}

/// An operation under way holds up the epoch after the next one, for as long as its process lives
/// and does not end it: stopped is not dead.
#[test]
fn the_epoch_waits_for_operations_of_the_living() {
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    let board = mine.board();
    assert_eq!((board.advance(), board.advance()), (2, 3), "nobody does anything");
    let mut child = Running::start("operate", pool.path());
    assert_eq!(child.hear(), "3");
    for _ in 0..10 {
        assert_eq!(board.advance(), 4);
    }
    nudge(&mut child);
    assert_eq!(child.hear(), "left");
    assert_eq!((board.advance(), board.advance()), (5, 6));

    let mut other = Running::start("operate", pool.path());
    assert_eq!(other.hear(), "6");
    assert_eq!((board.advance(), board.advance()), (7, 7));
    other.process.kill().expect("SIGKILL");
    other.process.wait().expect("the child");
    assert_eq!((board.advance(), board.advance()), (8, 9), "the dead do nothing");
    // Who takes a dead holder's slot has nothing under way yet.
    let next = pool.attach().expect("a free slot");
    assert_eq!(next.session().client, 2, "slot 1 is still held");
    assert_eq!(next.board().epoch(), 9);
    assert_eq!((board.advance(), board.advance()), (10, 11));
}
