//! The explorer finds all outcomes, and describes how they came about.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use swarm_core::fabric::{Fabric, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_core::sim::explore::{Bounds, Race, StepSize, explore};
use swarm_core::sim::{Setup, Sim, SimFabric};

const NODE: NodeId = NodeId(0);
const AT: Address = Address(3);
const ALL: Bounds = Bounds {
    grain: StepSize::Verb,
    surprises: None,
    node_crashes: 0,
    client_crashes: 0,
    schedules: u64::MAX,
};

async fn value(fabric: &SimFabric) -> u64 {
    let read = Verb::Read { at: AT, words: 1 };
    fabric.post(NODE, &[read]).await.expect("up")[0]
}

/// Adds one: with a CAS until it succeeds, or with a WRITE that loses concurrent additions.
async fn add(fabric: SimFabric, swap: bool) {
    for _ in 0..10 {
        let expect = value(&fabric).await;
        let new = expect + 1;
        if !swap {
            let write = Verb::Write { at: AT, head: &[new], tail: &[] };
            fabric.post(NODE, &[write]).await.expect("up");
            return;
        }
        let swap = Verb::Cas { at: AT, expect, new };
        if fabric.post(NODE, &[swap]).await.expect("up")[0] == expect {
            return;
        }
    }
    panic!("more tries than others there are");
}

fn adders(count: usize, swap: bool) -> Race {
    let mut sim = Sim::new(&Setup::new(1, 1, count));
    for client in 0..count {
        sim.spawn(client, add(sim.fabric(client), swap));
    }
    let check = move |sim: &mut Sim| match sim.word(NODE, AT) {
        sum if sum == count as u64 => Ok(()),
        sum => Err(format!("{count} added one each, and the sum is {sum}")),
    };
    Race { sim, racers: count, digest: Box::new(|| 0), check: Box::new(check) }
}

#[test]
fn a_lost_update_is_found_and_its_steps_are_shown() {
    let failure = explore(ALL, || adders(2, false)).expect_err("a write forgets the other");
    println!("{failure}");
    assert!(failure.story.contains("the sum is 1"));
    assert!(failure.story.contains("client 1 at node 0: WRITE [3] := 0x1"));
    assert!(failure.story.lines().count() < 12, "a story of four accesses");
    // One after the other they succeed.
    let explored = explore(Bounds { surprises: Some(0), ..ALL }, || adders(2, false));
    assert_eq!(explored.expect("no surprise").ended, 1);
}

#[test]
fn what_is_right_is_right_under_all_schedules() {
    for count in 2..=3 {
        let explored = explore(ALL, || adders(count, true)).expect("they swap");
        println!("{count}: {explored:?}");
        assert!(explored.all && explored.ended > 0);
    }
}

/// Returns what a reader saw of a pair of words with two writers, word by word in order.
fn pairs(bounds: Bounds) -> BTreeSet<[u64; 2]> {
    let outcomes = Rc::new(RefCell::new(BTreeSet::new()));
    let explored = explore(bounds, || {
        let mut sim = Sim::new(&Setup::new(1, 1, 3));
        for client in 0..2 {
            let (fabric, value) = (sim.fabric(client), client as u64 + 1);
            sim.spawn(client, async move {
                let write = Verb::Write { at: AT, head: &[value; 2], tail: &[] };
                fabric.post(NODE, &[write]).await.expect("up");
            });
        }
        let (fabric, seen) = (sim.fabric(2), Rc::new(RefCell::new([0; 2])));
        let sink = Rc::clone(&seen);
        sim.spawn(2, async move {
            let read = Verb::Read { at: AT, words: 2 };
            let reply = fabric.post(NODE, &[read]).await.expect("up");
            sink.borrow_mut().copy_from_slice(&reply);
        });
        let (digested, outcomes) = (Rc::clone(&seen), Rc::clone(&outcomes));
        let digest = move || digested.borrow()[0] * 8 + digested.borrow()[1];
        let check = move |_: &mut Sim| {
            outcomes.borrow_mut().insert(*seen.borrow());
            Ok(())
        };
        Race { sim, racers: 3, digest: Box::new(digest), check: Box::new(check) }
    });
    assert!(explored.expect("nothing is wrong").all);
    outcomes.take()
}

/// Known states are not explored twice, and nothing is missed because of that.
#[test]
fn every_outcome_is_met() {
    let torn = pairs(Bounds { grain: StepSize::Word, ..ALL });
    assert_eq!(torn, (0..3).flat_map(|one| (0..3).map(move |two| [one, two])).collect());
    let whole = pairs(ALL);
    assert_eq!(whole, [[0, 0], [1, 1], [2, 2]].into());
}

/// A client or a node dies, at any point.
#[test]
fn crashes_are_found_too() {
    let crash = |node_crashes, client_crashes| {
        let bounds = Bounds { node_crashes, client_crashes, ..ALL };
        explore(bounds, || adders(2, true))
    };
    let failure = crash(0, 1).expect_err("one died and did not add");
    assert!(failure.story.contains("dies"), "{failure}");
    let panicked = std::panic::catch_unwind(|| crash(1, 0));
    assert!(panicked.is_err(), "its tasks expect the node to be up");
}

/// Of two that only let time pass, one waited for the other, which never got its turn.
#[test]
fn those_that_let_time_pass_take_turns() {
    async fn pauses() {
        let mut has_paused = false;
        poll_fn(|_| match std::mem::replace(&mut has_paused, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
    let explored = explore(Bounds { surprises: Some(0), ..ALL }, || {
        let mut sim = Sim::new(&Setup::new(1, 1, 2));
        let (adds, waits) = (sim.fabric(0), sim.fabric(1));
        sim.spawn(0, async move {
            for _ in 0..3 {
                add(adds.clone(), true).await;
                pauses().await;
            }
        });
        sim.spawn(1, async move {
            while value(&waits).await < 3 {
                pauses().await;
            }
        });
        Race { sim, racers: 2, digest: Box::new(|| 0), check: Box::new(|_| Ok(())) }
    });
    assert_eq!(explored.expect("both come to their ends").ended, 1);
}
