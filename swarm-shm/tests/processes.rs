//! What holds between processes: slots, words and time.

#![cfg(not(loom))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::io::{Read, Write, stdin};

use common::{Running, child_command, not_permitted, pool, post, role, say};
use rustix::process::{Pid, Signal, kill_process};
use swarm_core::clock::Clock;
use swarm_core::fabric::{Board, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_shm::{Condition, Error, OpenOptions, Pool, SwitchState};

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
        "evict" => {
            let slot = wait_for_parent();
            say(pool
                .evict(slot.into())
                .map_or_else(|error| error.to_string(), |ids| format!("{ids:?}")));
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
fn wait_for_parent() -> u8 {
    let mut byte = [0];
    if !matches!(stdin().read(&mut byte), Ok(1)) {
        std::process::exit(1);
    }
    byte[0]
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
    // A child that another test starts shares the lock of slot 2 until it calls `exec`.
    until(|| pool.live_clients() == [0]);
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

fn stop(child: &Running) {
    kill_process(Pid::from_child(&child.process), Signal::STOP).expect("it is this test's child");
    let stat = format!("/proc/{}/stat", child.process.id());
    while !std::fs::read_to_string(&stat).expect("it lives").contains(") T ") {
        std::thread::yield_now();
    }
}

/// A stopped process pins memory for as long as it lives, which may be for ever: nobody could tell who
/// it was, or do anything about it.
#[test]
fn a_stopped_client_is_shown_and_can_be_ended() {
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    let board = mine.board();
    let mut child = Running::start("operate", pool.path());
    assert_eq!(child.hear(), "1");
    stop(&child);
    assert_eq!((board.advance(), board.advance(), board.advance()), (2, 2, 2), "it is pinned");
    let tenants = pool.census();
    assert_eq!(tenants.len(), 2, "{tenants:?}");
    let (me, it) = (tenants[0], tenants[1]);
    assert_eq!((me.process, me.condition, me.since), (std::process::id(), Condition::Alive, None));
    assert_eq!((it.slot, it.process, it.elsewhere), (1, child.process.id(), false));
    assert_eq!((it.condition, it.since, pool.epoch()), (Condition::Stopped, Some(1), 2));
    let laggard = board.laggard().expect("it holds the epoch up");
    assert_eq!((laggard.slot, laggard.process), (1, Some(child.process.id())));
    assert_eq!((laggard.is_stopped, laggard.is_own, laggard.since), (true, false, 1));
    assert!(laggard.nanoseconds.is_some() && laggard.nanoseconds <= pool.epoch_age());

    assert_eq!(pool.evict(1).expect("it is this user's"), [child.process.id()]);
    assert_eq!(pool.live_clients(), [0]);
    let it = pool.census()[1];
    assert_eq!((it.slot, it.condition, it.since), (1, Condition::Dead, None));
    assert_eq!((board.advance(), board.advance()), (3, 4), "nothing is pinned any more");
    assert_eq!(board.laggard(), None);
    board.enter();
    board.advance();
    let laggard = board.laggard().expect("it holds the epoch up itself");
    assert!(laggard.is_own && !laggard.is_stopped && laggard.since == 4, "{laggard:?}");
    board.leave();
    let next = pool.attach().expect("a free slot");
    assert_eq!(next.session().client, 1);
    child.process.wait().expect("the child");
}

/// Waits for what comes soon. What has not come after two minutes never will, however busy the machine is.
fn until(is_so: impl Fn() -> bool) {
    let since = std::time::Instant::now();
    while !is_so() {
        assert!(since.elapsed().as_secs() < 120, "it does not come");
        std::thread::yield_now();
    }
}

#[test]
fn who_is_not_there_or_is_oneself_is_not_ended() {
    let (_dir, pool) = pool();
    let mine = pool.attach().expect("a free slot");
    assert!(matches!(pool.evict(0), Err(Error::OwnClient { slot: 0, .. })));
    for slot in [1, 7, 8, usize::MAX] {
        let error = pool.evict(slot).expect_err("nobody is there");
        assert!(matches!(error, Error::NoClient { limit: 8, .. }), "{error}");
    }
    drop(mine);
    // A child that another test starts shares the lock until it calls `exec`.
    until(|| pool.live_clients().is_empty());
    assert!(matches!(pool.evict(0), Err(Error::NoClient { .. })));
    assert_eq!(pool.census(), [], "who left is not there");
    // A dead holder's process id may be another process's by now: this one's, say.
    let mut child = Running::start("hold", pool.path());
    assert_eq!(child.hear(), "0");
    child.process.kill().expect("SIGKILL");
    child.process.wait().expect("the child");
    assert!(matches!(pool.evict(0), Err(Error::NoClient { .. })));
}

/// Starts a child in a pid namespace of its own; none where that is not allowed.
fn start_inside(role: &str, pool: &Pool, flags: &[&str]) -> Option<Running> {
    let allowed = std::process::Command::new("unshare").args(["--pid", "--fork", "true"]).status();
    if !allowed.is_ok_and(|status| status.success()) {
        let why = "cannot make a pid namespace here, which takes root's rights and util-linux";
        not_permitted("containers", why);
        return None;
    }
    let child = child_command(role, pool.path());
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child"]).args(flags).arg(child.get_program());
    command.args(child.get_args());
    let variables = child.get_envs().filter_map(|(name, value)| Some((name, value?)));
    Some(Running::of(command.envs(variables)))
}

/// Containers have process ids of their own: the number in the slot's word means another process
/// outside, or none.
#[test]
fn a_client_in_a_container_is_found_from_outside() {
    let (_dir, pool) = pool();
    let Some(mut inside) = start_inside("operate", &pool, &["--mount-proc"]) else { return };
    assert_eq!(inside.hear(), "1");
    assert_eq!(pool.client_process(0), Some(1), "so it calls itself");
    let it = pool.census()[0];
    assert!((!it.elsewhere && it.process > 1) && it.condition == Condition::Alive, "{it:?}");
    assert_eq!(pool.evict(0).expect("it is seen from here"), [it.process]);
    assert_eq!(pool.live_clients(), [] as [usize; 0]);
    inside.process.wait().expect("the child");
}

/// Not even where a process in there has the holder's id, or the host's `/proc` is seen in there.
#[test]
fn a_client_outside_of_a_container_is_not_ended_from_within() {
    let (_dir, pool) = pool();
    let _mine = pool.attach().expect("a free slot");
    for flags in [&["--mount-proc"][..], &[]] {
        let Some(mut inside) = start_inside("evict", &pool, flags) else { return };
        inside.process.stdin.as_mut().expect("its input").write_all(&[0]).expect("it listens");
        let said = inside.hear();
        assert!(said.contains("of pid namespace") && said.contains("on the host"), "{said}");
        inside.process.wait().expect("the child");
    }
    assert_eq!(pool.live_clients(), [0]);
}
