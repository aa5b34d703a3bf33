//! A lock whose holder, and clients that wait for it, die at any point, or release it.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;
use swarm_core::sim::explore::Race;
use swarm_kv::objects::{Guard, Lock};
use swarm_kv_long::lock_history::{LockDeed, check_lock};

use crate::objects::{Actor, Stage, TWO_CRASHES, explore_objects};
use crate::{NODES, depth};

pub(super) const LOCK: &[u8] = b"lock";

/// Where the clients of a race stand when it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begin {
    /// The lock is free, and was used before.
    Free,
    /// One holds it, the others come.
    Held,
    /// One holds it, the others wait in the queue.
    Queued,
}

/// Acquires the lock, and notes that it comes, waits, and is inside.
pub(super) async fn enters<'l, F: Fabric, C: Clock, P: Protocol>(
    actor: &Actor<LockDeed>,
    lock: &'l Lock<'_, F, C, P>,
) -> Guard<'l, F, C, P> {
    actor.note(LockDeed::Comes);
    let sleep = async |_| {
        if actor.history.last_of(actor.story.id) == Some(LockDeed::Comes) {
            actor.note(LockDeed::Waits);
        }
        actor.sleeps().await;
    };
    let guard = lock.acquire_paced(None, sleep).await.expect("a majority is up");
    let guard = guard.expect("it has no limit");
    actor.note(LockDeed::Enters(guard.token()));
    guard
}

/// Acquires the lock, and releases it once the race has begun, which was so before it came if it `comes_late`.
async fn enters_and_leaves(actor: Actor<LockDeed>, comes_late: bool) {
    if comes_late {
        actor.begins().await;
    }
    let lock = actor.story.client.lock(LOCK);
    let guard = enters(&actor, &lock).await;
    actor.begins().await;
    actor.note(LockDeed::Leaves);
    guard.release().await.expect("a majority is up, and it holds the lock");
}

/// Three clients, of which the first one holds the lock, if any does.
fn begin(how: Begin) -> Race {
    let mut stage = Stage::<LockDeed>::new(3, None);
    stage.has_begun.set(true);
    for racer in [2, 1, 0] {
        let story = stage.stories[racer].clone();
        stage.spawn(&story, |actor| enters_and_leaves(actor, false));
        stage.all(racer);
    }
    stage.has_begun.set(false);
    for racer in 0..3 {
        let is_there = how == Begin::Queued || how == Begin::Held && racer == 0;
        let story = stage.stories[racer].clone();
        stage.spawn(&story, |actor| enters_and_leaves(actor, !is_there));
        let so_far = |deed: Option<LockDeed>| match deed {
            Some(LockDeed::Enters(_)) => racer == 0,
            Some(LockDeed::Waits) => racer > 0,
            _ => false,
        };
        if is_there {
            stage.until(racer, |stage| so_far(stage.history.last_of(racer)));
        }
    }
    stage.sim.drain();
    stage.race(|stage| {
        // The lock is wedged for nobody.
        for away in 0..NODES.len() {
            stage.at_the_end(away, |actor| enters_and_leaves(actor, false))?;
        }
        check_lock(&stage.history.all()).map(drop)
    })
}

fn play(name: &str, how: Begin) {
    let more = [TWO_CRASHES, &[depth(1, 0, 1), depth(2, 0, 0)]].concat();
    explore_objects(name, &more, || begin(how));
}

#[test]
fn three_that_come() {
    play("a lock, and three that come", Begin::Free);
}

#[test]
fn a_holder_and_two_that_come() {
    play("a lock that is held, and two that come", Begin::Held);
}

#[test]
fn a_holder_and_two_that_wait() {
    play("a lock that is held, and two that wait", Begin::Queued);
}
