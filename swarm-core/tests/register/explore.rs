//! Every schedule of a small race for a register, up to a number of surprises. Two writers and a
//! reader race, a delete among them, with guesses fresh and stale, while a node crashes and a
//! client dies.
//!
//! `SWARM_SURPRISES` and `SWARM_EXPLORED` override the bounds: see [`explore_or_panic`].

use std::cell::Cell;
use std::rc::Rc;

use crate::common::{Client, FIRST_VALUE, GaveUp, Held, Polls, create_replica, place};
use swarm_core::error::Error;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::history::{BUDGET, Recorder, check_key};
use swarm_core::layout::SLOTS;
use swarm_core::node::{Address, NodeId};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::sim::deaths::die_everywhere;
use swarm_core::sim::explore::{
    Bounds, LoneClock, Race, StepSize, chosen, digest, explore_or_panic,
};
use swarm_core::sim::{Setup, Sim, SimFabric};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
const HOME: u8 = 0;

/// What one racer does, operation by operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Read,
    Write,
    Delete,
}

use Act::{Delete, Read, Write};

/// A racer: how far its clock is ahead, and what it does.
type Racer = (u64, &'static [Act]);

fn client<C: swarm_core::clock::Clock>(
    (fabric, id): (SimFabric, usize),
    clock: C,
    late: u64,
    recorder: &Recorder,
) -> Client<SimFabric, C> {
    Client::new((fabric, clock), (id, id), place(HOME), (late, 1 << 50), recorder)
}

/// The register at the start of a race.
#[derive(Clone, Copy, Debug)]
struct CreatedPart {
    /// Number of nodes that have it.
    holders: usize,
    /// Number of stamp slots that the pool uses.
    slots: usize,
    held: Held,
    /// The racers to which the memory is near: a bit for each.
    near: u8,
}

/// Returns the race at its start.
fn begin(racers: &'static [Racer], created: CreatedPart, seed: u64) -> Race {
    let count = racers.len();
    let mut sim = Sim::new(&Setup { words: 1 << 13, ..Setup::new(seed, 3, count + 4) });
    let creator = count + 3;
    let fabric = sim.fabric(creator);
    for node in NODES.into_iter().take(created.holders) {
        let place = (&place(HOME), created.held);
        drop(create_replica(place, node, 3, |chain| fabric.post(node, chain)));
        sim.take_all(creator, node);
    }
    let recorder = Recorder::new();
    for (id, &(ahead, acts)) in racers.iter().enumerate() {
        // No node is late: a node that does not answer reports that it is down.
        let is_near = created.near >> id & 1 == 1;
        let fabric = if is_near { sim.near(id) } else { sim.fabric(id) };
        let moment = sim.fabric(id);
        let client = client((fabric, id), LoneClock::new(10_000 + ahead), 1 << 40, &recorder);
        let mut client = client.of(created.slots, created.held);
        sim.spawn(id, async move {
            for (index, act) in acts.iter().enumerate() {
                if is_near {
                    // What it does next is done at once, when the reply to this READ is there.
                    let read = [Verb::Read { at: Address(0), words: 1 }];
                    let _ = moment.post(NodeId(HOME), &read).await;
                }
                let value = 100 * (id as u64 + 1) + index as u64;
                let done = match act {
                    Read => client.read::<SafeGuess>(Polls::ALL).await,
                    Write => client.write::<SafeGuess>(value, Polls::ALL).await,
                    Delete => client.delete::<SafeGuess>(Polls::ALL).await,
                };
                // A write that is incomplete at a holder that is gone has the key relocated.
                let moved = client.is_at_all_but_one() && done == Err(GaveUp::Failed(Error::Moved));
                assert!(done.is_ok() || moved, "{done:?}");
            }
        });
    }
    sim.keep_calm();
    let recorded = recorder.clone();
    let check = move |sim: &mut Sim| check(sim, count, created, &recorder);
    let digest = move || digest(&recorded.operations());
    Race { sim, racers: count, digest: Box::new(digest), check: Box::new(check) }
}

/// At the end a client reads at each live majority, with any of them first. If the key must be
/// relocated, that read is the last.
fn check(
    sim: &mut Sim,
    racers: usize,
    created: CreatedPart,
    recorder: &Recorder,
) -> Result<(), String> {
    let (first, frozen) = (sim.steps() as usize % 3, Rc::<Cell<bool>>::default());
    for away in NODES.into_iter().cycle().skip(first).take(3) {
        if frozen.get() {
            break;
        }
        let up = |&n: &NodeId| n != away && !sim.is_away(n);
        let nodes: Vec<_> = NODES.into_iter().filter(up).collect();
        if nodes.len() < 2 {
            continue;
        }
        let id = racers + away.index();
        let client = client((sim.fabric(id), id), sim.clock(id), 100, recorder);
        let mut client = client.of(created.slots, created.held);
        let froze = Rc::clone(&frozen);
        sim.spawn(id, async move {
            froze.set(client.read_or_freeze::<SafeGuess>().await);
        });
        if !sim.finish(id, &nodes) {
            return Err("a later read does not end".into());
        }
    }
    let history = recorder.operations();
    check_key(&history, Some(FIRST_VALUE), BUDGET).map_err(|wrong| {
        let lines: Vec<_> = history.iter().map(|operation| format!("{operation}\n")).collect();
        format!("{wrong}\n{}", lines.concat())
    })
}

const fn bounds(grain: StepSize, surprises: usize, crashes: usize) -> Bounds {
    let (node_crashes, client_crashes) = (crashes, crashes);
    Bounds { grain, surprises: Some(surprises), node_crashes, client_crashes, schedules: MOST }
}

/// A register is at all nodes, or at the first two, with all-but-one buffers or not.
const CREATIONS: [(usize, Held); 3] =
    [(3, Held::AllButOne), (2, Held::AllButOne), (2, Held::Everywhere)];
/// Maximum number of schedules of one race.
const MOST: u64 = 1_000_000;

/// What is explored of each race: a node crash and a client's death anywhere, with one surprise
/// chain by chain, or without one verb by verb. Also two surprises, verb by verb.
const DEPTHS: [Bounds; 3] =
    [bounds(StepSize::Chain, 1, 1), bounds(StepSize::Verb, 0, 1), bounds(StepSize::Verb, 2, 0)];

fn play(name: &str, racers: &'static [Racer], depths: &[Bounds]) {
    play_with(name, racers, SLOTS, depths);
}

fn play_with(name: &str, racers: &'static [Racer], slots: usize, depths: &[Bounds]) {
    play_near(name, racers, (slots, 0), depths);
}

fn play_near(name: &str, racers: &'static [Racer], (slots, near): (usize, u8), depths: &[Bounds]) {
    for (holders, held) in CREATIONS {
        let name = format!("{name}, born at {holders}, held {held:?}");
        for bounds in chosen(&name, depths) {
            explore_or_panic(&name, *bounds, || {
                begin(racers, CreatedPart { holders, slots, held, near }, 1)
            });
        }
    }
}

/// The second writer's guess is stale wherever the first one's comes first.
#[test]
fn two_writers_and_a_reader() {
    let racers: &[Racer] = &[(50_000, &[Write]), (0, &[Write]), (0, &[Read])];
    play("two writers and a reader", racers, &DEPTHS);
}

#[test]
fn two_writers_and_two_reads() {
    let racers: &[Racer] = &[(0, &[Write]), (50_000, &[Write]), (0, &[Read, Read])];
    play("two writers and two reads", racers, &DEPTHS);
}

/// With one slot for all, the CAS of a write that knows the slot's value is its READ as well: each
/// racer's second operation is, or follows, such a write.
#[test]
fn two_writers_of_one_slot() {
    const DEPTHS: [Bounds; 2] = [bounds(StepSize::Chain, 1, 1), bounds(StepSize::Verb, 2, 0)];
    let racers: &[Racer] = &[(0, &[Read, Write]), (50_000, &[Write]), (0, &[Read])];
    play_with("two writers of one slot", racers, 1, &DEPTHS);
    let racers: &[Racer] = &[(0, &[Write, Write]), (50_000, &[Read, Write])];
    play_with("two writers of one slot, twice", racers, 1, &DEPTHS[..1]);
}

/// A writer's second write is taken as proof that its first is complete.
#[test]
fn two_writes_of_one_writer() {
    let racers: &[Racer] = &[(0, &[Write, Write]), (50_000, &[Write]), (0, &[Read])];
    play("two writes of one writer", racers, &DEPTHS);
}

#[test]
fn a_write_a_delete_and_a_reader() {
    let racers: &[Racer] = &[(0, &[Write]), (0, &[Delete]), (0, &[Read, Read])];
    play("a write, a delete and a reader", racers, &DEPTHS);
}

/// Straight-line reads and writes of clients to which the memory is near, at each moment of what others do
/// behind a network, and of each other's.
#[test]
fn near_clients_beside_others() {
    const OF_TWO: [Bounds; 2] = [bounds(StepSize::Verb, 4, 0), bounds(StepSize::Word, 0, 1)];
    const OF_THREE: [Bounds; 2] = [bounds(StepSize::Verb, 3, 0), bounds(StepSize::Chain, 1, 1)];
    let writer_and_reader: &[Racer] = &[(50_000, &[Write]), (0, &[Read, Read])];
    play_near("a writer and a near reader", writer_and_reader, (SLOTS, 0b10), &OF_TWO);
    let two_writers: &[Racer] = &[(0, &[Read, Write]), (50_000, &[Write]), (0, &[Read])];
    play_near("a near writer and another", two_writers, (SLOTS, 0b001), &OF_THREE);
    play_near("a writer and near ones", two_writers, (SLOTS, 0b101), &OF_THREE);
    let a_delete: &[Racer] = &[(0, &[Delete]), (0, &[Write, Read])];
    play_near("a delete and a near client", a_delete, (SLOTS, 0b10), &OF_TWO);
}

/// Torn accesses: a value in place and its buffer, read while they are written.
#[test]
fn a_writer_and_a_reader_word_by_word() {
    let racers: &[Racer] = &[(0, &[Write]), (0, &[Read])];
    play(
        "a writer and a reader, word by word",
        racers,
        &[bounds(StepSize::Word, 0, 1), bounds(StepSize::Word, 2, 0)],
    );
}

/// Together with a writer ahead of it and a reader, a client dies at each await of each operation:
/// a guess that is fresh or stale, a read that finds guesses, a delete.
#[test]
fn a_client_may_die_anywhere() {
    const OTHERS: [Racer; 2] = [(50_000, &[Write, Write]), (0, &[Read, Read])];
    let victims: [(&str, &'static [Racer]); 4] = [
        ("a fresh write", &[(90_000, &[Write, Read]), OTHERS[0], OTHERS[1]]),
        ("a stale write", &[(0, &[Write, Write]), OTHERS[0], OTHERS[1]]),
        ("a read", &[(0, &[Read, Read]), OTHERS[0], OTHERS[1]]),
        ("a delete", &[(0, &[Delete]), OTHERS[0], OTHERS[1]]),
    ];
    for (name, racers) in victims {
        for (holders, held) in CREATIONS {
            let created = CreatedPart { holders, slots: SLOTS, held, near: 0 };
            die_everywhere(name, 0, 25, |seed| begin(racers, created, seed));
        }
    }
}
