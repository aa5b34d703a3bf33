//! A barrier of which a member dies at any point, while others arrive, join or leave (O6).

use swarm_core::sim::explore::Race;
use swarm_kv_long::barrier_history::{BarrierDeed, check_barrier};

use crate::objects::{Actor, Stage, TWO_CRASHES};
use crate::{NODES, OF_MANY_STEPS, explore_deep, explore_each};

/// Joins that the barrier waits for before it opens at all.
const PARTIES: usize = 2;

/// What a client does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    /// Whether it joins before the race begins.
    is_member: bool,
    /// How often it waits.
    waits: usize,
}

/// A member that meets the others twice.
const MEMBER: Part = Part { is_member: true, waits: 2 };

/// Joins, waits so often, and leaves.
async fn meets(actor: Actor<BarrierDeed>, part: Part) {
    let barrier = actor.story.client.barrier(b"barrier", PARTIES as u32);
    if !part.is_member {
        actor.begins().await;
    }
    actor.note(BarrierDeed::Joins);
    let mut member = barrier.join().await.expect("a majority is up");
    actor.note(BarrierDeed::Joined);
    actor.begins().await;
    for _ in 0..part.waits {
        actor.note(BarrierDeed::Arrives);
        let met = member.wait_paced(None, async |_| actor.sleeps().await).await;
        let met = met.expect("a majority is up, and nobody evicts it").expect("it has no limit");
        let members = met.members.iter().map(|seat| seat.slot).collect();
        actor.note(BarrierDeed::Passes { generation: met.generation, members });
    }
    actor.note(BarrierDeed::Leaves);
    member.leave().await.expect("a majority is up, and it is a member");
    actor.note(BarrierDeed::Left);
}

fn begin(parts: [Part; 3]) -> Race {
    let mut stage = Stage::<BarrierDeed>::new(parts.len(), None);
    for (racer, part) in parts.into_iter().enumerate() {
        let story = stage.stories[racer].clone();
        stage.spawn(&story, |actor| meets(actor, part));
        if part.is_member {
            stage.until(racer, |stage| stage.history.last_of(racer) == Some(BarrierDeed::Joined));
        }
    }
    stage.sim.drain();
    stage.race(|stage| {
        // All have left or have ended: one that comes meets itself.
        for away in 0..NODES.len() {
            stage.at_the_end(away, |actor| meets(actor, MEMBER))?;
        }
        check_barrier(&stage.history.all(), PARTIES).map(drop)
    })
}

/// Explores the race up to one thing that goes wrong. Where it is its turn to be explored deep, also up to two crashes, where
/// the first two members meet once: of more steps there would be too many places for two.
fn play(name: &str, third: Part) {
    explore_each(name, OF_MANY_STEPS, || begin([MEMBER, MEMBER, third]));
    let once = Part { waits: 1, ..MEMBER };
    let third = Part { waits: third.waits.min(1), ..third };
    explore_deep(&format!("{name} once"), TWO_CRASHES, || begin([once, once, third]));
}

#[test]
fn three_that_meet() {
    play("a barrier of three that meet", MEMBER);
}

#[test]
fn one_that_leaves() {
    play("a barrier that one leaves", Part { waits: 0, ..MEMBER });
}

#[test]
fn one_that_joins() {
    play("a barrier that one joins", Part { is_member: false, waits: 1 });
}
