//! Wait-freedom: bounds on the roundtrips of a read, a write and a timestamp lock, whatever others
//! do meanwhile. They hold also when a node and a client die, slots are shared, buffers served
//! earlier writes, and the register is deleted. The tests print the largest numbers that
//! adversaries achieved.
//!
//! `SWARM_ADVERSARIES` is the number of random adversaries to try.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{
    Client, FIRST_VALUE, FORMAT, GaveUp, Held, Polls, create_replica, place, value,
};
use fastrand::Rng;
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::OpCost;
use swarm_core::history::{BUDGET, Recorder, check_key};
use swarm_core::layout::{MAX_CLIENTS, SLOTS, buffer, register};
use swarm_core::node::{Address, NodeId};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{Protocol, Write, Written};
use swarm_core::sim::seeds::{Playing, at_least_one, these_or_one};
use swarm_core::sim::{FaultRates, Outcome, Policy, Setup, Sim, SimFabric, Step, Trace, WordStep};
use swarm_core::words::{LockMode, LockWord, Pointer, Stamp, StampFlags, Timestamp, WriteNumber};

const ALL: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// The nodes that all operations use first.
const FIRST: [NodeId; 2] = [NodeId(0), NodeId(1)];
/// Nanoseconds after which a node is late: never, or soon if a node may be dead.
const NEVER: u64 = u64::MAX / 4;
const SOON: u64 = 3000;
/// Another node replaces a node that died while a round waited for it: one more roundtrip.
const WITH_A_DEATH: u32 = 2;
/// Each client has a slot of its own, and all nodes hold buffers.
const OWN_SLOTS: (usize, Held) = (SLOTS, Held::Everywhere);
/// Where the clients' buffers begin, in words.
const BUFFERS_AT: u64 = 64 * 8;

/// Roundtrips of a lock: its word is empty, or held by an earlier write of the buffer.
const LOCK: u32 = 2;

/// Roundtrips of a write to M, and of a retry if the client's slot was not as expected. A write
/// that shares its slot with others retries each time that one of them was first, up to a bound.
/// Then it gives way, and the register must be relocated.
fn write_of_m(slots: usize) -> u32 {
    if slots == SLOTS { 2 } else { 2 * MAX_CLIENTS.div_ceil(slots) as u32 + 4 }
}

/// Roundtrips of a weak read, a fetch (and another, for a value longer than expected), a
/// write-back.
fn read_of_m(slots: usize) -> u32 {
    1 + 2 + write_of_m(slots)
}

/// A read's loop reads M at most 2·writers + 1 times: after each it has seen one more writer, or
/// one twice; and a lost lock leads to a larger stamp.
fn read_bound(writers: u32, slots: usize) -> u32 {
    (2 * writers + 1) * (read_of_m(slots) + LOCK)
}

/// A write writes its guess, reads M, locks, and writes again. Writers that do not share its slot
/// do not matter.
fn write_bound(slots: usize) -> u32 {
    write_of_m(slots) + read_of_m(slots) + LOCK + write_of_m(slots)
}

fn created(setup: &Setup, held: Held) -> Sim {
    let mut sim = Sim::new(setup);
    let creator = setup.clients - 1;
    let fabric = sim.fabric(creator);
    for node in ALL {
        let place = (&place(0), held);
        drop(create_replica(place, node, 3, |chain| fabric.post(node, chain)));
        sim.take_all(creator, node);
    }
    sim
}

/// If all slots are used, each client has one of its own, provided that the reader has the one in
/// which the register was created.
fn client(
    sim: &Sim,
    (id, slot): (usize, usize),
    (slots, held): (usize, Held),
    late: u64,
    recorder: &Recorder,
) -> Client<SimFabric> {
    let connection = (sim.fabric(id), sim.clock(id));
    Client::new(connection, (id, slot), place(0), (late, NEVER), recorder).of(slots, held)
}

/// What the adversary may use besides the schedule.
#[derive(Clone, Copy, Debug)]
struct Arms {
    /// A node dies, and a client.
    deaths: bool,
    /// Number of stamp slots in use: the clients share them, or have one each.
    slots: usize,
    /// Buffers served earlier writes, whose numbers their lock words hold.
    used: bool,
    /// The first writer deletes the register in the end.
    deletes: bool,
    /// Which nodes hold buffers.
    held: Held,
}

impl Arms {
    const NONE: Self =
        Self { deaths: false, slots: SLOTS, used: false, deletes: false, held: Held::Everywhere };

    /// Returns a random subset.
    fn random(rng: &mut Rng) -> Self {
        Self {
            deaths: rng.bool(),
            slots: [1, 2, SLOTS][rng.usize(..3)],
            used: rng.bool(),
            deletes: rng.bool(),
            held: [Held::Everywhere, Held::AllButOne][rng.usize(..2)],
        }
    }

    /// Returns whether an operation may find that the key must be relocated: it gave way at a slot,
    /// or a write is incomplete at a dead node that should hold its buffer.
    fn moves(self) -> bool {
        self.slots < SLOTS || self.deaths && self.held == Held::AllButOne
    }

    /// Returns the factor by which a death increases bounds.
    fn times(self) -> u32 {
        if self.deaths { WITH_A_DEATH } else { 1 }
    }
}

/// The largest values that were seen.
#[derive(Clone, Copy, Debug, Default)]
struct Largest {
    read: OpCost,
    write: OpCost,
    delete: OpCost,
    /// Operations that gave way to others at a slot that they share.
    gave_way: u32,
    /// CASes of one lock at one node.
    lock: u32,
}

fn larger(one: &mut OpCost, other: OpCost) {
    one.roundtrips = one.roundtrips.max(other.roundtrips);
    one.verbs = one.verbs.max(other.verbs);
    one.bytes = one.bytes.max(other.bytes);
}

/// `writers` clients with different clocks write all the time, and one reads. The scheduler delays
/// any of them, and starves some queue pairs.
fn play(seed: u64, writers: usize, arms: Arms, largest: &Rc<RefCell<Largest>>) {
    let _playing = Playing::seed(seed);
    let mut rng = Rng::with_seed(seed ^ 0xb0);
    let rate = if arms.deaths { 1.0 / rng.u32(50..1000) as f64 } else { 0.0 };
    let chaos = FaultRates {
        node_crash: rate,
        client_crash: rate,
        nodes_away: 1,
        clients_lost: 1,
        ..FaultRates::NONE
    };
    let late = if arms.deaths { SOON } else { NEVER };
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
    let mut sim = created(&setup, arms.held);
    sim.set_chaos(chaos);
    sim.start_trace();
    let recorder = Recorder::new();
    let skew = [100, 2000, 50_000][rng.usize(..3)];
    for id in 0..=writers {
        sim.set_clock(id, rng.i64(-skew..=skew), rng.i64(-500_000..=500_000));
        let slot = if id == writers { 0 } else { id + 1 };
        let mut client = client(&sim, (id, slot), (arms.slots, arms.held), late, &recorder);
        if arms.used {
            have_served(&sim, &client, &mut rng);
        }
        let largest = Rc::clone(largest);
        let mut rng = Rng::with_seed(rng.u64(..));
        sim.spawn(id, async move {
            let rounds = rng.u64(1..=4);
            for round in 0..rounds {
                let value = id as u64 * 100 + round + 1;
                let last = round + 1 == rounds;
                let done = if id == writers {
                    client.read::<SafeGuess>(Polls::ALL).await
                } else if id == 0 && last && arms.deletes {
                    client.delete::<SafeGuess>(Polls::ALL).await
                } else {
                    client.write::<SafeGuess>(value, Polls::ALL).await
                };
                let mut largest = largest.borrow_mut();
                let tally = match done {
                    Err(GaveUp::Failed(Error::Moved)) if arms.moves() => {
                        largest.gave_way += 1;
                        return;
                    }
                    done => done.expect("it ends"),
                };
                let (seen, bound) = if id == writers {
                    (&mut largest.read, read_bound(writers as u32, arms.slots))
                } else if id == 0 && last && arms.deletes {
                    (&mut largest.delete, write_of_m(arms.slots))
                } else {
                    (&mut largest.write, write_bound(arms.slots))
                };
                assert!(tally.roundtrips <= arms.times() * bound, "{tally:?} of {bound}, {arms:?}");
                larger(seen, tally);
            }
        });
    }
    assert_eq!(sim.run(2_000_000), Outcome::Done, "seed {seed}, {arms:?}");
    last_read(&mut sim, arms, &recorder);
    if let Err(wrong) = check_key(&recorder.operations(), Some(FIRST_VALUE), BUDGET) {
        panic!("seed {seed}, {arms:?}: {wrong}");
    }
    let tries = lock_tries(&sim.take_trace());
    let most = if arms.used { LOCK } else { 1 };
    assert!(tries <= most, "seed {seed}, {arms:?}: a lock took {tries} CASes at one node");
    let mut largest = largest.borrow_mut();
    largest.lock = largest.lock.max(tries);
}

/// At the end, a live client reads what was acknowledged.
fn last_read(sim: &mut Sim, arms: Arms, recorder: &Recorder) {
    sim.set_chaos(FaultRates::NONE);
    let id = (0..sim.clients()).find(|&id| !sim.is_dead(id)).expect("one lives");
    let mut client = client(sim, (id, 0), (arms.slots, arms.held), SOON, recorder);
    sim.spawn(id, async move {
        client.read_or_freeze::<SafeGuess>().await;
    });
    assert_eq!(sim.run(2_000_000), Outcome::Done, "the last read, {arms:?}");
}

/// The client's buffers served earlier writes, in which not all nodes took part.
fn have_served(sim: &Sim, client: &Client<SimFabric>, rng: &mut Rng) {
    for index in 0..4 {
        let site = client.group.placement().site(client.buffer(index));
        for node in ALL.into_iter().filter(|&node| site.holders.contains(node)) {
            let number = WriteNumber(rng.u64(0..3));
            let mode = if rng.bool() { LockMode::Read } else { LockMode::Write };
            if number.0 > 0 {
                let lock = site.place.at(node, ALL.len()).plus(buffer::LOCK);
                sim.set_word(node, lock, LockWord::new(number, mode).0);
            }
        }
    }
}

/// Returns the maximum number of CASes of one lock at one node, from the trace: after the register,
/// nothing else is changed by CAS. A lock's first CAS expects an empty word. Chains to a node take
/// effect there in order, but perhaps late, when their lock is over.
fn lock_tries(trace: &Trace) -> u32 {
    let (mut tries, mut most) = (BTreeMap::<_, u32>::new(), 0);
    for step in &trace.0 {
        if let Step::Word(client, node, WordStep::Cas { at, expect, new, .. }) = *step
            && at.0 >= BUFFERS_AT
        {
            let tried = tries.entry((client, node, at, LockWord(new).number().0)).or_default();
            *tried = if expect == 0 { 1 } else { *tried + 1 };
            most = most.max(*tried);
        }
    }
    most
}

#[test]
fn random_adversaries() {
    let schedules = at_least_one("SWARM_ADVERSARIES", 500);
    for (writers, deaths) in (1..SLOTS).flat_map(|writers| [(writers, false), (writers, true)]) {
        let largest = Rc::<RefCell<Largest>>::default();
        let arms = Arms { deaths, ..Arms::NONE };
        for seed in these_or_one(schedules) {
            play(seed, writers, arms, &largest);
        }
        let Largest { read, write, lock, .. } = *largest.borrow();
        let with = if deaths { " with deaths" } else { "" };
        println!(
            "{writers} writers, {schedules} adversaries{with}: a read took {} roundtrips of {} and \
             {} verbs at most, a write {} of {} and {}, a lock {lock} of 1 CAS",
            read.roundtrips,
            arms.times() * read_bound(writers as u32, arms.slots),
            read.verbs,
            write.roundtrips,
            arms.times() * write_bound(arms.slots),
            write.verbs,
        );
    }
}

/// Shared slots, buffers with a history, a delete, deaths: all of these, or some.
#[test]
fn random_adversaries_with_everything() {
    let schedules = at_least_one("SWARM_ADVERSARIES", 500);
    for (writers, slots) in (1..SLOTS).flat_map(|writers| [1, 2, SLOTS].map(|s| (writers, s))) {
        let largest = Rc::<RefCell<Largest>>::default();
        for seed in these_or_one(schedules.div_ceil(2)) {
            let arms = Arms { slots, ..Arms::random(&mut Rng::with_seed(seed)) };
            play(seed, writers, arms, &largest);
        }
        let Largest { read, write, delete, lock, gave_way } = *largest.borrow();
        println!(
            "{writers} writers of {slots} slots, with everything: a read took {} roundtrips of {}, a \
             write {} of {}, a delete {} of {}, a lock {lock} of {LOCK} CASes; {gave_way} gave way",
            read.roundtrips,
            WITH_A_DEATH * read_bound(writers as u32, slots),
            write.roundtrips,
            WITH_A_DEATH * write_bound(slots),
            delete.roundtrips,
            WITH_A_DEATH * write_of_m(slots),
        );
    }
}

/// A writer that shares the slot, and whose clock is far behind, is first each time: it writes
/// below the stamp that is to go there. A write does not retry for ever; the key gets a register of
/// its own.
#[test]
fn an_adversary_in_the_same_slot() {
    let mut sim = created(&Setup { words: 1 << 13, ..Setup::new(1, 3, 2) }, Held::Everywhere);
    sim.set_clock(0, 1_000_000_000, 0);
    let recorder = Recorder::new();
    let mut client = client(&sim, (0, 0), (1, Held::Everywhere), NEVER, &recorder);
    let cost = Rc::new(RefCell::new(None));
    let sink = Rc::clone(&cost);
    sim.spawn(0, async move {
        let number = client.group.number().expect("numbers last");
        let write = Write { number, buffer: client.fresh(), value: &value(100) };
        let group = &client.group;
        let written = SafeGuess::write(group, &mut client.register, write);
        *sink.borrow_mut() = Some(group.fabric().track(written).await);
    });
    sim.poll_once(0);
    for stamp in 2..3000 {
        let behind = FORMAT.stamp(Timestamp(stamp), Pointer(2000), StampFlags::VERIFIED);
        FIRST.iter().for_each(|&node| sim.set_word(node, slot(node), behind.0));
        sim.roundtrip(0, &FIRST);
    }
    let (written, tally) = cost.take().expect("it ended");
    let written = written.expect("nodes are up");
    assert!(matches!(written, Written::Moved(_)), "{written:?}");
    println!("in the same slot, a write gives way after {} roundtrips", tally.roundtrips);
    assert!(tally.roundtrips <= write_of_m(1));
    assert!(Stamp(sim.word(FIRST[0], slot(FIRST[0]))).is_verified(), "it is the other's");
}

/// Returns the address of the register's first slot.
fn slot(node: NodeId) -> Address {
    place(0).at(node, 3).plus(register::SLOTS_AT)
}

/// An adversary that knows the protocol. Each writer is ahead of the one before. The reader sees
/// the first one's guess twice and starts to lock it. Then the next one's guess arrives; the first
/// writer sees it, makes it stable and takes its own guess back, so that the reader loses the lock.
/// The reader sees the next guess, twice, and so on. No writer gets any further. For each writer
/// the reader pays a weak read, a fetch, another weak read, and a lock.
#[test]
fn a_climbing_adversary() {
    for writers in 1..SLOTS {
        let roundtrips = climb(writers, false);
        println!("{writers} writers climb: a read takes {roundtrips} roundtrips");
        assert_eq!(roundtrips as usize, 4 * writers);
        assert!(roundtrips <= read_bound(writers as u32, SLOTS));
    }
}

/// As before, but the writers' buffers served earlier writes, whose numbers the lock words hold.
/// Each lock takes one more CAS, and the rival's comes between the two.
#[test]
fn a_climbing_adversary_in_buffers_that_are_used_again() {
    for writers in 1..SLOTS {
        let roundtrips = climb(writers, true);
        assert_eq!(roundtrips as usize, 5 * writers);
        assert!(roundtrips <= read_bound(writers as u32, SLOTS));
    }
}

/// Returns the roundtrips of a read while `writers` writers climb.
fn climb(writers: usize, used: bool) -> u32 {
    let reader = writers;
    let setup = Setup { words: 1 << 13, ..Setup::new(1, 3, writers + 2) };
    let mut sim = created(&setup, Held::Everywhere);
    sim.start_trace();
    let (recorder, cost) = (Recorder::new(), Rc::new(RefCell::new(None)));
    let old = LockWord::new(WriteNumber(1), LockMode::Write).0 * u64::from(used);
    for id in 0..writers {
        ALL.iter().for_each(|&node| sim.set_word(node, lock_of(id), old));
        sim.set_clock(id, id as i64 * 100_000, 0);
        let mut client = client(&sim, (id, id + 1), OWN_SLOTS, NEVER, &recorder);
        sim.spawn(id, async move {
            let written = client.write::<SafeGuess>(4 * (id as u64 + 1), Polls::ALL).await;
            written.expect("nodes are up");
        });
        sim.poll_once(id);
    }
    // A guess takes effect, except for the READ after it.
    let guess = |sim: &mut Sim, id| FIRST.iter().for_each(|&node| sim.take_verbs(id, node, 2));
    guess(&mut sim, 0);
    let (mut client, sink) =
        (client(&sim, (reader, 0), OWN_SLOTS, NEVER, &recorder), Rc::clone(&cost));
    sim.spawn(reader, async move {
        *sink.borrow_mut() = Some(client.read::<SafeGuess>(Polls::ALL).await);
    });
    sim.poll_once(reader);
    for id in 0..writers {
        // The rest of a lock that was lost; a weak read, a fetch, a weak read; the first CAS of
        // two.
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

/// Returns the address of the lock word of a writer's first buffer.
fn lock_of(id: usize) -> Address {
    Address(BUFFERS_AT + id as u64 * 64 * 8).plus(buffer::LOCK)
}
