//! The register under random schedules. A few clients read, write and delete it while nodes crash
//! and are paused, connections break, clients die or drop operations, and clocks disagree, stand
//! still and step back.
//!
//! `SWARM_SCHEDULES` is the number of schedules to run, `SWARM_FIRST` the first one; `SWARM_SEED`
//! runs one alone. A schedule that fails is shrunk and printed.

#[path = "register/common.rs"]
mod common;
#[path = "shared/replaced.rs"]
mod replaced;
#[path = "register/replacement.rs"]
mod replacement;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Client, FIRST_VALUE, GaveUp, Held, Polls, create_replica, place};
use fastrand::Rng;
use swarm_core::baselines::DmAbd;
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::history::{BUDGET, Operation, Recorder, check_key};
use swarm_core::layout::SLOTS;
use swarm_core::node::NodeId;
use swarm_core::register::Protocol;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::sim::seeds::{again, seeds};
use swarm_core::sim::shrink::story;
use swarm_core::sim::{
    FaultRates, Outcome, Policy, ReplayRules, Setup, Sim, SimClock, SimFabric, clock_fits,
};

/// Maximum number of steps of one schedule.
const STEPS: u64 = 400_000;
/// A client numbers its operations below this.
const ROUNDS: usize = 8;

/// Maximum number of roundtrips of an operation, with `writers` of the register. A read's loop runs
/// at most 2·writers + 1 times, each time with a weak read, a fetch, a write-back (and another, if
/// a slot was not as expected) and a lock (likewise). A write does all that once.
fn bound(writers: usize) -> u32 {
    7 * (2 * writers as u32 + 1)
}

/// What the clients of one schedule do, and with which register.
#[derive(Clone, Copy, Debug)]
struct Plan {
    setup: Setup,
    home: u8,
    late: u64,
    /// The share of operations that are deletes, and the share that are dropped.
    deletes: f64,
    drops: f64,
    /// Maximum difference between clocks, in nanoseconds.
    skew: i64,
    /// Maximum drift of clocks, in microseconds a second.
    drift: i64,
    /// How long every other clock stands still at a time, and how far it then steps back, if it
    /// does, in nanoseconds.
    fits: Option<(u64, u64)>,
    /// Whether the clients share one stamp slot of several.
    shared: bool,
    /// Number of stamp slots that the pool uses.
    slots: usize,
    /// Probability that a client's fabric is synchronous.
    near: f64,
    held: Held,
}

impl Plan {
    fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let mut rare = Rng::with_seed(seed ^ 0x7a2e);
        let nodes = [3, 3, 3, 5][rng.usize(..4)];
        let nodes = if rare.u8(..32) == 0 { [1, 7][rare.usize(..2)] } else { nodes };
        let clients = rng.usize(2..=4);
        let redraw = [0.02, 0.005, 0.001][rng.usize(..3)];
        let changes = rng.usize(1..6);
        let policy = match rng.u8(..4) {
            0 => Policy::Priorities { changes, horizon: 300 * clients as u64 },
            _ => Policy::Weighted { redraw },
        };
        let chaos = match rng.bool() {
            true => FaultRates::NONE,
            false => FaultRates::random(&mut rng, nodes, clients, 300.0),
        };
        let setup = Setup {
            words: 1 << 13,
            tear: [0.05, 1.0][rng.usize(..2)],
            prompt: [0.0, 0.0, 0.2, 0.8][rng.usize(..4)],
            starve: [0.0, 0.0, 0.1, 0.4][rng.usize(..4)],
            step_time: [1, 10, 60][rng.usize(..3)],
            policy,
            chaos,
            // The last client only creates the register.
            ..Setup::new(seed, nodes, clients + 1).stalling()
        };
        let mut plan = Self {
            setup,
            home: rng.u8(..nodes as u8),
            late: [300, 3000, 30_000][rng.usize(..3)],
            deletes: [0.0, 0.1][rng.usize(..2)],
            drops: [0.0, 0.1][rng.usize(..2)],
            skew: [1, 300, 3000][rng.usize(..3)],
            drift: [0, 1000, 900_000][rng.usize(..3)],
            fits: clock_fits(&mut rare),
            shared: rng.u8(..6) == 0,
            near: [0.0, 0.0, 0.5, 1.0][rng.usize(..4)],
            slots: [SLOTS, SLOTS, SLOTS, 2, 1, 1][rng.usize(..6)],
            held: [Held::Everywhere, Held::AllButOne][rng.usize(..2)],
        };
        if plan.near > 0.0 {
            plan.setup.chaos = plan.setup.chaos.beside_near();
        }
        plan
    }
}

impl Plan {
    /// Returns client number `id` with these connections and this clock.
    fn client(
        &self,
        id: usize,
        connection: (SimFabric, SimClock),
        recorder: &Recorder,
    ) -> Client<SimFabric> {
        let slot = if self.shared { id * self.slots } else { id };
        let client =
            Client::new(connection, (id, slot), place(self.home), self.timeouts(), recorder);
        client.of(self.slots, self.held)
    }

    /// Returns when nodes are late, and when a client gives up: never, unless connections break,
    /// when a round may lose its majority for good.
    fn timeouts(&self) -> (u64, u64) {
        let breaks = self.setup.chaos.disconnect > 0.0;
        (self.late, if breaks { 50_000_000 } else { u64::MAX / 4 })
    }
}

/// What one schedule showed.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    steps: u64,
    operations: u64,
    unanswered: u64,
    roundtrips: u32,
    moved: u64,
}

/// Runs one schedule. The error describes what went wrong.
fn play<P: Protocol + 'static>(plan: &Plan, conduct: &ReplayRules) -> Result<Shown, String> {
    let clients = plan.setup.clients - 1;
    let mut rng = Rng::with_seed(plan.setup.seed);
    let mut sim = Sim::new(&plan.setup);
    sim.follow(conduct);
    create_register(&mut sim, plan, &mut rng);
    let recorder = Recorder::new();
    let shown = Rc::new(RefCell::new(Shown::default()));
    for id in 0..clients {
        sim.set_clock(id, rng.i64(-plan.skew..=plan.skew), rng.i64(-plan.drift..=plan.drift));
        if let Some((every, back)) = plan.fits.filter(|_| id.is_multiple_of(2)) {
            sim.set_clock_fits(id, every, back);
        }
        let near = rng.f64() < plan.near;
        let (clock, turns) = (sim.clock(id), sim.fabric(id));
        let with = (Rng::with_seed(rng.u64(..)), (*plan, conduct.clone()), shown.clone());
        let fabric = if near { sim.near(id) } else { sim.fabric(id) };
        let client = plan.client(id, (fabric, clock), &recorder);
        sim.spawn(id, operate::<P>(client, turns, with));
    }
    let mut result = match sim.run(STEPS) {
        Outcome::Done => Ok(()),
        outcome => Err(format!("{outcome:?}: not every operation ended")),
    };
    if result.is_ok() {
        result = last_read::<P>(&mut sim, plan, &recorder, &mut rng);
    }
    let history = recorder.operations();
    let mut shown = shown.take();
    shown.steps = sim.steps();
    shown.operations = history.len() as u64;
    shown.unanswered = history.iter().filter(|op| op.answered.is_none()).count() as u64;
    check_history(result, &history).map(|()| shown)
}

/// Whether a schedule went well: it ended, and its history is linearizable.
fn check_history(result: Result<(), String>, history: &[Operation]) -> Result<(), String> {
    let linearizable = || check_key(history, Some(FIRST_VALUE), BUDGET);
    result.and_then(|()| linearizable().map_err(|error| error.to_string())).map_err(|error| {
        let history: Vec<_> = history.iter().map(|op| format!("{op}\n")).collect();
        format!("{error}\n{}", history.concat())
    })
}

/// Creates the register at a majority, and at the others late or never.
fn create_register(sim: &mut Sim, plan: &Plan, rng: &mut Rng) {
    let (nodes, creator) = (plan.setup.nodes, plan.setup.clients - 1);
    let fabric = sim.fabric(creator);
    let all = rng.u8(..3) > 0;
    let first = rng.usize(..nodes);
    let place = place(plan.home);
    for step in 0..nodes {
        let node = NodeId(((first + step) % nodes) as u8);
        drop(create_replica((&place, plan.held), node, nodes, |chain| fabric.post(node, chain)));
        if all || step <= nodes / 2 {
            sim.take_all(creator, node);
        } else if rng.bool() {
            sim.lose_chains(creator, node);
        }
    }
}

/// Runs one client's operations.
async fn operate<P: Protocol>(
    mut client: Client<SimFabric>,
    turns: SimFabric,
    (mut rng, (plan, conduct), shown): (Rng, (Plan, ReplayRules), Rc<RefCell<Shown>>),
) {
    let id = client.id as u64;
    for round in 0..rng.u64(2..=5) {
        let polls = Polls((rng.f64() < plan.drops).then(|| rng.u32(1..12)));
        let (deletes, reads) = (rng.f64() < plan.deletes, rng.bool());
        if conduct.leaves_out(client.id * ROUNDS + round as usize) {
            continue;
        }
        turns.turn().await;
        let result = if deletes {
            client.delete::<P>(polls).await
        } else if reads {
            client.read::<P>(polls).await
        } else {
            client.write::<P>(id * 100 + round + 1, polls).await
        };
        match result {
            Ok(tally) => {
                assert!(tally.roundtrips <= bound(plan.setup.clients - 1), "{tally:?}");
                let mut shown = shown.borrow_mut();
                shown.roundtrips = shown.roundtrips.max(tally.roundtrips);
            }
            Err(GaveUp::Dropped) => {}
            // A write is incomplete at a holder that is silent.
            Err(GaveUp::Failed(Error::Moved)) if plan.held == Held::AllButOne => {
                shown.borrow_mut().moved += 1
            }
            // Two connections broke in one round.
            Err(GaveUp::Failed(Error::NoMajority { .. })) if plan.setup.chaos.disconnect > 0.0 => {}
            Err(GaveUp::Failed(error)) => panic!("client {id}: {error}"),
        }
    }
}

/// At the end, a live client reads what was acknowledged.
fn last_read<P: Protocol>(
    sim: &mut Sim,
    plan: &Plan,
    recorder: &Recorder,
    rng: &mut Rng,
) -> Result<(), String> {
    let alive: Vec<usize> = (0..plan.setup.clients).filter(|&id| !sim.is_dead(id)).collect();
    let id = alive[rng.usize(..alive.len())];
    sim.set_chaos(FaultRates::NONE);
    let mut client = plan.client(id, (sim.fabric(id), sim.clock(id)), recorder);
    sim.spawn(id, async move {
        client.read_or_freeze::<P>().await;
    });
    match sim.run(STEPS) {
        Outcome::Done => Ok(()),
        outcome => Err(format!("{outcome:?}: the last read did not end")),
    }
}

/// Whether a schedule failed: then the other protocol's are no longer of interest.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Runs many schedules; prints the story of the first that fails.
fn explore<P: Protocol + 'static>(default: u64) {
    let seeds = seeds(default);
    let mut total = Shown::default();
    for seed in seeds.clone() {
        if FAILED.load(Ordering::Relaxed) {
            break;
        }
        let plan = Plan::random(seed);
        // Panics inside of the protocol name no seed: they are caught to report it.
        let played = std::panic::catch_unwind(|| play::<P>(&plan, &ReplayRules::free()));
        let Ok(Ok(shown)) = played else {
            FAILED.store(true, Ordering::Relaxed);
            let operations = plan.setup.clients * ROUNDS;
            let story = story(operations, |conduct| play::<P>(&plan, conduct).map(drop));
            let again = again(&format!("SWARM_SEED={seed}"));
            panic!("{}, seed {seed} (played alone by `{again}`): {story}", P::NAME);
        };
        total.steps += shown.steps;
        total.operations += shown.operations;
        total.unanswered += shown.unanswered;
        total.roundtrips = total.roundtrips.max(shown.roundtrips);
        total.moved += shown.moved;
    }
    println!("{}: {} schedules: {total:?}", P::NAME, seeds.count());
}

#[test]
fn safe_guess_is_linearizable_and_ends() {
    explore::<SafeGuess>(4000);
}

#[test]
fn the_baseline_abd_is_linearizable_and_ends() {
    explore::<DmAbd>(1000);
}
