//! Wait-freedom: how many roundtrips a read, a write and a timestamp lock take at most, whatever
//! others do meanwhile, also when a node and a client die, and the largest that adversaries got out
//! of them.
//!
//! `SWARM_ADVERSARIES` says how many random adversaries to try.

#[expect(dead_code, reason = "nothing is deleted here")]
mod register_common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fastrand::Rng;
use register_common::{Client, FIRST_VALUE, Polls, give_birth, place};
use swarm_core::counting::Tally;
use swarm_core::fabric::{Address, Fabric, NodeId};
use swarm_core::history::{BUDGET, Recorder, check_key};
use swarm_core::layout::{SLOTS, buffer};
use swarm_core::safe_guess::SafeGuess;
use swarm_core::sim::seeds::at_least_one;
use swarm_core::sim::{Chaos, Outcome, Policy, Setup, Sim, SimFabric, Step, Trace, WordStep};
use swarm_core::words::{LockMode, LockWord, WriteNumber};

const ALL: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// The nodes that everybody turns to first.
const FIRST: [NodeId; 2] = [NodeId(0), NodeId(1)];
/// Nanoseconds after which a node is late: never; or some time, where one may be dead.
const NEVER: u64 = u64::MAX / 4;
const SOON: u64 = 3000;
/// A round that waited for a node that died is made good by another node: one roundtrip more.
const WITH_A_DEATH: u32 = 2;
/// Where the clients' buffers begin, and how far they are apart; words.
const BUFFERS_AT: u64 = 64 * 8;
const BUFFER_WORDS: u64 = 16;

/// Roundtrips of a look, a fetch (and again, for a value longer than thought), a write-back (and
/// again, where the own slot was not as thought). Clients have slots of their own here.
const READ_OF_M: u32 = 1 + 2 + 2;
/// Roundtrips of a lock: its word is empty, or held by an earlier write of the buffer.
const LOCK: u32 = 2;

/// A read's loop reads M at most 2·writers + 1 times: after each it has seen one more writer, or
/// one twice; and a lock that is lost leads to a larger stamp.
fn read_bound(writers: u32) -> u32 {
    (2 * writers + 1) * (READ_OF_M + LOCK)
}

/// A write writes its guess, reads M, locks, and writes again; each of its writes again where its
/// slot was not as thought. No writer has a part in that.
const WRITE_BOUND: u32 = 2 + READ_OF_M + LOCK + 2;

fn born(setup: &Setup) -> Sim {
    let mut sim = Sim::new(setup);
    let creator = setup.clients - 1;
    let fabric = sim.fabric(creator);
    for node in ALL {
        drop(give_birth(&place(0), node, 3, |chain| fabric.post(node, chain)));
        sim.take_all(creator, node);
    }
    sim
}

/// Each client has a slot of its own, if the reader has the one that the register was born in.
fn client(
    sim: &Sim,
    (id, slot): (usize, usize),
    late: u64,
    recorder: &Recorder,
) -> Client<SimFabric> {
    Client::new((sim.fabric(id), sim.clock(id)), (id, slot), place(0), (late, NEVER), recorder)
}

/// The largest that was seen.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    read: Tally,
    write: Tally,
    /// CASes of one lock at one node.
    lock: u32,
}

fn larger(one: &mut Tally, other: Tally) {
    one.roundtrips = one.roundtrips.max(other.roundtrips);
    one.verbs = one.verbs.max(other.verbs);
    one.bytes = one.bytes.max(other.bytes);
}

/// `writers` clients with clocks that disagree write all the time, one reads; the scheduler holds up
/// whom it likes, and some queue pairs for as long as anybody else can move. If so, a node dies,
/// and a client.
fn play(seed: u64, writers: usize, deaths: bool, largest: &Rc<RefCell<Largest>>) {
    let mut rng = Rng::with_seed(seed ^ 0xb0);
    let rate = if deaths { 1.0 / rng.u32(50..1000) as f64 } else { 0.0 };
    let chaos = Chaos {
        node_crash: rate,
        client_crash: rate,
        nodes_away: 1,
        clients_lost: 1,
        ..Chaos::NONE
    };
    let (late, times) = if deaths { (SOON, WITH_A_DEATH) } else { (NEVER, 1) };
    let policy = match rng.u8(..3) {
        0 => Policy::Priorities { changes: rng.usize(1..20), horizon: 600 * writers as u64 },
        _ => Policy::Weighted { redraw: [0.05, 0.01, 0.002][rng.usize(..3)] },
    };
    let setup = Setup {
        words: 1 << 13,
        tear: [0.0, 0.1][rng.usize(..2)],
        starve: [0.0, 0.2, 0.5][rng.usize(..3)],
        policy,
        ..Setup::new(seed, 3, writers + 2)
    };
    let mut sim = born(&setup);
    sim.set_chaos(chaos);
    sim.start_trace();
    let recorder = Recorder::new();
    let skew = [100, 2000, 50_000][rng.usize(..3)];
    for id in 0..=writers {
        sim.set_clock(id, rng.i64(-skew..=skew), rng.i64(-500_000..=500_000));
        let slot = if id == writers { 0 } else { id + 1 };
        let (mut client, fabric) = (client(&sim, (id, slot), late, &recorder), sim.fabric(id));
        let largest = Rc::clone(largest);
        let mut rng = Rng::with_seed(rng.u64(..));
        sim.spawn(id, async move {
            for round in 0..rng.u64(1..=4) {
                fabric.note(round);
                if id == writers {
                    let tally = client.read::<SafeGuess>(Polls::ALL).await.expect("it is read");
                    let bound = times * read_bound(writers as u32);
                    assert!(tally.roundtrips <= bound, "a read: {tally:?}");
                    larger(&mut largest.borrow_mut().read, tally);
                } else {
                    let value = id as u64 * 100 + round + 1;
                    let tally = client.write::<SafeGuess>(value, Polls::ALL).await;
                    let tally = tally.expect("it is written");
                    assert!(tally.roundtrips <= times * WRITE_BOUND, "a write: {tally:?}");
                    larger(&mut largest.borrow_mut().write, tally);
                }
            }
        });
    }
    assert_eq!(sim.run(2_000_000), Outcome::Done, "seed {seed}");
    if let Err(wrong) = check_key(&recorder.operations(), Some(FIRST_VALUE), BUDGET) {
        panic!("seed {seed}: {wrong}");
    }
    let tries = lock_tries(&sim.take_trace());
    assert!(tries <= LOCK, "seed {seed}: a lock took {tries} CASes at one node");
    let mut largest = largest.borrow_mut();
    largest.lock = largest.lock.max(tries);
}

/// The most CASes that one lock took at one node, by what happened so far.
fn lock_tries(trace: &Trace) -> u32 {
    let mut tries = BTreeMap::<_, u32>::new();
    let (mut operation, mut most) = (BTreeMap::<usize, u32>::new(), 0);
    for step in &trace.0 {
        match *step {
            Step::Note(client, _) => *operation.entry(client).or_default() += 1,
            Step::Word(client, node, WordStep::Cas { at, new, .. })
                if at.0 >= BUFFERS_AT
                    && (at.0 - BUFFERS_AT) % BUFFER_WORDS == buffer::LOCK as u64 =>
            {
                let number = LockWord(new).number();
                let operation = operation.get(&client).copied();
                let tried = tries.entry((client, operation, node, at, number.0)).or_default();
                *tried += 1;
                most = most.max(*tried);
            }
            _ => {}
        }
    }
    most
}

#[test]
fn random_adversaries() {
    let schedules = at_least_one("SWARM_ADVERSARIES", 500);
    for (writers, deaths) in (1..SLOTS).flat_map(|writers| [(writers, false), (writers, true)]) {
        let largest = Rc::<RefCell<Largest>>::default();
        for seed in 0..schedules {
            play(seed, writers, deaths, &largest);
        }
        let Largest { read, write, lock } = *largest.borrow();
        let (with, times) = if deaths { (" with deaths", WITH_A_DEATH) } else { ("", 1) };
        println!(
            "{writers} writers, {schedules} adversaries{with}: a read took {} roundtrips of {} and \
             {} verbs at most, a write {} of {} and {}, a lock {lock} of {LOCK} CASes",
            read.roundtrips,
            times * read_bound(writers as u32),
            read.verbs,
            write.roundtrips,
            times * WRITE_BOUND,
            write.verbs,
        );
    }
}

/// One that knows the protocol. Writers are each ahead of the one before. The reader meets the first
/// one's guess twice and goes to lock it; now the next one's guess arrives, the first writer sees
/// it, makes it stable and takes its own guess back, so that the reader's lock is lost; and it meets
/// the next guess, twice, and so on. No writer gets any further. What a reader pays for each
/// writer is a look, a fetch, another look, and a lock.
#[test]
fn a_climbing_adversary() {
    for writers in 1..SLOTS {
        let roundtrips = climb(writers, false);
        println!("{writers} writers climb: a read takes {roundtrips} roundtrips");
        assert_eq!(roundtrips as usize, 4 * writers);
        assert!(roundtrips <= read_bound(writers as u32));
    }
}

/// As before, but the writers' buffers served earlier writes, whose numbers the lock words hold: each
/// lock takes a CAS more, and the rival comes in between the two.
#[test]
fn a_climbing_adversary_in_buffers_that_are_used_again() {
    for writers in 1..SLOTS {
        let roundtrips = climb(writers, true);
        assert_eq!(roundtrips as usize, 5 * writers);
        assert!(roundtrips <= read_bound(writers as u32));
    }
}

/// Roundtrips of a read while so many writers climb.
fn climb(writers: usize, used: bool) -> u32 {
    let reader = writers;
    let mut sim = born(&Setup { words: 1 << 13, ..Setup::new(1, 3, writers + 2) });
    sim.start_trace();
    let (recorder, cost) = (Recorder::new(), Rc::new(RefCell::new(None)));
    let old = LockWord::new(WriteNumber(1), LockMode::Write).0 * u64::from(used);
    for id in 0..writers {
        ALL.iter().for_each(|&node| sim.set_word(node, lock_of(id), old));
        sim.set_clock(id, id as i64 * 100_000, 0);
        let mut client = client(&sim, (id, id + 1), NEVER, &recorder);
        sim.spawn(id, async move {
            let written = client.write::<SafeGuess>(4 * (id as u64 + 1), Polls::ALL).await;
            written.expect("nodes are up");
        });
        sim.poll_once(id);
    }
    // A guess lands, but for the READ behind it.
    let guess = |sim: &mut Sim, id| FIRST.iter().for_each(|&node| sim.take_verbs(id, node, 2));
    guess(&mut sim, 0);
    let (mut client, sink) = (client(&sim, (reader, 0), NEVER, &recorder), Rc::clone(&cost));
    sim.spawn(reader, async move {
        *sink.borrow_mut() = Some(client.read::<SafeGuess>(Polls::ALL).await);
    });
    sim.poll_once(reader);
    for id in 0..writers {
        // The rest of a lock that was lost; a look, a fetch, a look; the first CAS of two.
        for _ in 0..usize::from(id > 0) + 3 + usize::from(used) {
            sim.roundtrip(reader, &FIRST);
        }
        if id + 1 < writers {
            guess(&mut sim, id + 1);
            let locked = |sim: &Sim| FIRST.iter().all(|&node| sim.word(node, lock_of(id)) != old);
            for _ in 0..4 + usize::from(used) {
                if !locked(&sim) {
                    sim.roundtrip(id, &FIRST);
                }
            }
            assert!(locked(&sim), "writer {id} takes its guess back");
        }
    }
    assert!(sim.finish(reader, &FIRST));
    (0..writers).for_each(|id| assert!(sim.finish(id, &FIRST)));
    assert!(check_key(&recorder.operations(), Some(FIRST_VALUE), BUDGET).is_ok());
    let trace = sim.take_trace();
    let tries = lock_tries(&trace);
    assert_eq!(tries, 1 + u32::from(used));
    cost.take().expect("it ended").expect("nodes are up").roundtrips
}

/// The lock word of a writer's first buffer.
fn lock_of(id: usize) -> Address {
    Address(BUFFERS_AT + id as u64 * 64 * 8).plus(buffer::LOCK)
}
