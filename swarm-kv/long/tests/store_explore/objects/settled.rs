//! A holder that dies in the middle of a write of what the lock guards: the write took effect before the next holder has
//! settled the key, or it never does (O7).

use swarm_core::history::{BUDGET, Call, Operation, check};
use swarm_core::node::NodeId;
use swarm_core::sim::dropped_after;
use swarm_core::sim::explore::{Bounds, LoneClock, Race, StepSize, explore};
use swarm_core::sim::seeds::is_deep;
use swarm_kv_long::lock_history::{LockDeed, check_lock};

use crate::objects::locks::{LOCK, enters};
use crate::objects::{Actor, Stage, TWO_CRASHES, explore_objects};
use crate::store_sim_common::key;
use crate::{Depth, NODES, NOW, WARM, depth, explore_deep, explore_each};

/// The clients: the holder, the one that waits, and one that reads, or waits as well.
const HOLDER: usize = 0;
const NEXT: usize = 1;
const LAST: usize = 2;
const CREATOR: usize = 3;

/// Whether a client that takes over settles the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Settles {
    Never,
    Always,
    /// The next one drops its future after so many polls, and releases the lock without having read the key.
    DropsIt(u32),
}

/// What a race begins with.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// What the holder writes.
    call: Call,
    settles: Settles,
    /// If the holder is dead already: the only node that what it wrote has reached. Then two others come for the lock, which do
    /// not reach that node; else one waits for it, and the other one reads.
    half: Option<NodeId>,
}

/// Holds the lock when the race begins, writes under it, and releases it.
async fn writes(actor: Actor<LockDeed>, call: Call) {
    let lock = actor.story.client.lock(LOCK);
    actor.note(LockDeed::Comes);
    let guard = lock.acquire().await.expect("a majority is up");
    actor.note(LockDeed::Enters(guard.token()));
    actor.begins().await;
    actor.story.call(0, call, None).await.expect("a majority is up");
    actor.note(LockDeed::Leaves);
    guard.release().await.expect("a majority is up, and it holds the lock");
}

/// Waits for the lock, settles the key if it has to, and reads it.
async fn takes_over(actor: Actor<LockDeed>, settles: Settles) {
    let lock = actor.story.client.lock(LOCK);
    let mut guard = enters(&actor, &lock).await;
    let polls = match settles {
        Settles::DropsIt(polls) if actor.story.id == NEXT => Some(polls),
        _ => None,
    };
    if guard.is_unsettled() && settles != Settles::Never {
        let keys = [key(0)];
        let settled = dropped_after(polls, guard.settle(&keys)).await;
        settled.unwrap_or(Ok(())).expect("a majority is up, and it holds the lock");
    }
    if polls.is_none() {
        actor.story.call(0, Call::Get, None).await.expect("a majority is up");
    }
    actor.note(LockDeed::Leaves);
    guard.release().await.expect("a majority is up, and it holds the lock");
}

/// Reads the key.
async fn reads(actor: Actor<LockDeed>, times: usize) {
    actor.begins().await;
    for _ in 0..times {
        actor.story.call(0, Call::Get, None).await.expect("a majority is up");
    }
}

impl Plan {
    fn begin(self) -> Race {
        let mut stage = Stage::<LockDeed>::new(3, self.half.map(|node| (&[NEXT, LAST][..], node)));
        let creator = stage.story(CREATOR, LoneClock::new(NOW), 1 << 56);
        // The writer has memory of its own.
        const WARMS: [(u64, Call); 5] = [
            (WARM, Call::Insert(801)),
            (WARM, Call::Delete),
            (WARM, Call::Insert(805)),
            (WARM, Call::Update(809)),
            (WARM, Call::Update(813)),
        ];
        let swap = |id| (0, Call::Swap(Some(id)));
        let (creates, warms) = match self.call {
            Call::Insert(_) => (vec![], WARMS.to_vec()),
            // The key is a cell.
            Call::Swap(_) => {
                let creates = vec![(0, Call::Insert(800)), swap(804), swap(808)];
                (creates, [&WARMS[..], &[swap(812), swap(808), swap(812)]].concat())
            }
            _ => (vec![(0, Call::Insert(800))], WARMS.to_vec()),
        };
        let holder = stage.stories[HOLDER].clone();
        let looks = stage.stories.iter().map(|story| (story.clone(), vec![(0, Call::Get)]));
        let looks = looks.collect::<Vec<_>>();
        for (story, calls) in [(creator, creates), (holder.clone(), warms)].into_iter().chain(looks)
        {
            stage.spawn(&story, async move |actor| {
                for (key, call) in calls {
                    actor.story.call(key, call, None).await.expect("a majority is up");
                }
            });
            stage.all(story.id);
        }
        stage.spawn(&holder, |actor| writes(actor, self.call));
        stage.until(HOLDER, |stage| {
            matches!(stage.history.last_of(HOLDER), Some(LockDeed::Enters(_)))
        });
        if let Some(node) = self.half {
            stage.has_begun.set(true);
            stage.sim.poll_once(HOLDER);
            assert!(stage.sim.on_their_way(HOLDER, node) > 0, "{self:?}");
            stage.sim.take_all(HOLDER, node);
            NODES.into_iter().for_each(|node| stage.sim.lose_chains(HOLDER, node));
            stage.sim.crash_client(HOLDER);
        }
        for id in [NEXT, LAST] {
            let story = stage.stories[id].clone();
            if id == NEXT || self.half.is_some() {
                stage.spawn(&story, |actor| takes_over(actor, self.settles));
            } else {
                stage.spawn(&story, |actor| reads(actor, 2));
            }
        }
        if self.half.is_none() {
            let waits = |stage: &Stage<_>| stage.history.last_of(NEXT) == Some(LockDeed::Waits);
            stage.until(NEXT, waits);
        }
        let before = stage.recorder.operations().len();
        stage.race(move |stage| {
            for away in 0..NODES.len() {
                stage.at_the_end(away, |actor| reads(actor, 1))?;
            }
            check_lock(&stage.history.all())?;
            let history = stage.recorder.operations();
            check(&history, |_| None, BUDGET).map_err(|wrong| wrong.to_string())?;
            self.nothing_surfaces(&history[before..])
        })
    }

    /// What a holder has read under the lock is read by all from then on.
    fn nothing_surfaces(self, race: &[Operation]) -> Result<(), String> {
        let is_get = |it: &&Operation| it.key == 0 && it.call == Call::Get;
        let is_holder = |client| client == NEXT || client == LAST && self.half.is_some();
        for first in race.iter().filter(is_get).filter(|it| is_holder(it.client)) {
            let Some((at, found)) = first.answered else { continue };
            for later in race.iter().filter(is_get).filter(|it| it.called > at) {
                if later.answered.is_some_and(|(_, other)| other != found) {
                    return Err(format!("{first} under the lock, and then {later}"));
                }
            }
        }
        Ok(())
    }
}

/// A write, and one of the nodes that it goes to first.
const HALVES: [(Call, NodeId); 4] = [
    (Call::Update(1), NODES[1]),
    (Call::Update(1), NODES[2]),
    (Call::Swap(Some(1)), NODES[1]),
    (Call::Insert(1), NODES[1]),
];

/// Others are explored where it is their turn to be explored deep.
fn is_register(call: Call) -> bool {
    matches!(call, Call::Update(_))
}

/// A client dies, or there is a surprise. To a client that is cut off from a node, another node that crashes is one too
/// many.
const OF_ONE_CLIENT: &[Depth] = &[depth(0, 0, 1), depth(1, 0, 0)];
/// An update that is at one node.
const HALF: Plan = Plan { call: Call::Update(1), settles: Settles::Always, half: Some(NODES[1]) };
/// To settle a key takes fewer.
const MOST_POLLS: u32 = 24;

#[test]
fn what_a_holder_writes_that_dies_is_settled() {
    for call in [Call::Update(1), Call::Swap(Some(1)), Call::Insert(1)] {
        let plan = Plan { call, settles: Settles::Always, half: None };
        let name = format!("takeover of a holder, and {call:?}");
        if is_register(call) || is_deep(&name) {
            explore_objects(&name, TWO_CRASHES, || plan.begin());
        }
    }
}

/// Of those that take over, one dies as well, in the middle of settling perhaps: the next one finds it unsettled.
#[test]
fn what_is_half_done_is_settled_by_one_that_lives() {
    for (call, node) in HALVES {
        let plan = Plan { call, settles: Settles::Always, half: Some(node) };
        let name = format!("takeover of half of {call:?} at {node}");
        if is_register(call) || is_deep(&name) {
            explore_each(&name, OF_ONE_CLIENT, || plan.begin());
        }
        explore_deep(&name, &[depth(0, 0, 2)], || plan.begin());
    }
}

/// A client drops the future that settles a key, wherever that is, and releases the lock: the next one still
/// finds it unsettled.
#[test]
fn what_is_settled_by_halves_stays_unsettled() {
    for polls in 1..MOST_POLLS {
        let plan = Plan { settles: Settles::DropsIt(polls), ..HALF };
        let name = format!("takeover behind one that settles for {polls} polls");
        explore_each(&name, &[depth(0, 0, 0)], || plan.begin());
        explore_deep(&name, &[depth(1, 0, 0)], || plan.begin());
    }
}

/// What is not settled surfaces, and that is noticed.
#[test]
fn what_is_not_settled_surfaces() {
    let bounds = Bounds {
        grain: StepSize::Chain,
        surprises: Some(0),
        node_crashes: 0,
        client_crashes: 0,
        schedules: 1,
    };
    let surfaces = |&(call, node): &_| {
        let plan = Plan { call, settles: Settles::Never, half: Some(node) };
        let explored = explore(bounds, || plan.begin());
        explored.is_err_and(|failure| failure.story.contains("under the lock"))
    };
    let surfaced: Vec<_> = HALVES.iter().filter(|half| surfaces(half)).collect();
    // A read of a cell, a bucket's too, ends what it finds half done.
    assert_eq!(surfaced, [&HALVES[0], &HALVES[1]]);
}
