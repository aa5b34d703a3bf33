//! Memory reclamation under random schedules: a few clients write a few keys so often that their
//! buffers are reclaimed many times. Meanwhile nodes crash and freeze, connections break, clients
//! die or drop operations half-way, and clocks disagree. An access to a buffer after its time would
//! read, or destroy, another write. A client that died may have an heir: another client in its
//! slot, once none of its chains is in flight any more. So may one that leaves, which returns what
//! it did not hand out. Rarely a client is held between two operations until the others have
//! overwritten the pool.
//!
//! `SWARM_SCHEDULES` says how many schedules to run, `SWARM_FIRST` which is the first, and
//! `SWARM_SEED` runs a single one. A failing schedule is shrunk and printed.

mod replacing;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::iter::StepBy;
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

use fastrand::Rng;
use replacing::{FILLERS, Filler, Pool, Replacing, SPARES};
use swarm_core::error::Error as CoreError;
use swarm_core::history::{BUDGET, Call, Operation, Recorder, check};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_core::sim::seeds::{Playing, again, is_deep, seeds, these_or_one};
use swarm_core::sim::shrink::story;
use swarm_core::sim::{
    FaultRates, Outcome, Policy, ReplayRules, Setup, Sim, SimFabric, dropped_after,
};
use swarm_core::words::WordFormat;
use swarm_kv::{Error, ReplaceError};
use swarm_kv_long::domain::{Notes, SimParticipant, Works};
use swarm_kv_long::store_sim_common::{
    COUNTERS, GaveUp, Line, Lives, Polls, Story, about_life, format, modification, of_few_chunks,
    of_six_keys, options,
};

/// Maximum steps of one schedule. When five clients move one key with short timestamps and find
/// nodes late after 50 steps, it may take ten million (seed 51009117).
const STEPS: u64 = 50_000_000;
/// Bytes of each node's memory. The simulator stores only what is accessed.
const CAPACITY: u64 = 8 << 20;
/// Operations are numbered by client, task and round; there are fewer than this of each.
const CLIENTS: usize = 5;
const TASKS: usize = 2;
const ROUNDS: usize = 50;
/// Maximum number of clients that enter the slots of dead ones; they have the last numbers.
const SUCCESSORS: usize = 2;
/// Clients that put a key or two before the others attach, and leave, each with chunks of its own.
const CROWD: usize = 6;
/// How often a client dies in schedules with heirs, for each step.
const DEATHS: f64 = 0.0005;
/// Steps between two checks for clients that died or left.
const WATCH: u64 = 500;
/// Clients and keys in schedules that are about evacuation: each of the clients has left some of them.
const LARGE_CROWD: Range<usize> = 6..12;
const MANY_KEYS: Range<u64> = 18..30;
/// Schedules in which a client that evacuates dies at its awaits in turn; at one of so many, unless explored deep.
const DYING_EVACUATORS: u64 = 3;
const BETWEEN_DEATHS: usize = 7;
/// Schedules in which a client that fills dies at each of its awaits, and the most of these.
const DYING: u64 = 2;
const MOST_POLLS: u64 = 100_000;
/// Steps between two looks at how far a replacement is.
const LOOK: u64 = 100;
/// One in this many schedules has a client that is held until the others have done `HELD_FOR`
/// operations.
const HELD_IN: u64 = 512;
const HELD_FOR: u64 = 1000;

/// How nodes are replaced.
#[derive(Clone, Copy, Debug)]
struct Replaces {
    /// After how many operations the last client is held until that is over, if it is.
    held: Option<u64>,
    /// The first client that fills dies after so many polls, if it does, and nobody else.
    dies_after: Option<u64>,
}

/// The clients' work in one schedule, and its faults.
#[derive(Clone, Copy, Debug)]
struct Plan {
    setup: Setup,
    geometry: Geometry,
    late: u64,
    /// How many keys there are, and how many exist from the beginning.
    keys: u64,
    first_keys: u64,
    /// Concurrent operations of a client.
    at_once: usize,
    rounds: u64,
    /// The operations of the first client, and of the others: gets, puts, inserts, updates,
    /// deletes.
    mixes: [[u32; 5]; 2],
    /// How many of them are read-modify-writes instead.
    modify: f64,
    /// Which values expire.
    expires: Option<Lives>,
    /// How many are about the lives of values instead.
    live: f64,
    /// How many operations are dropped half-way.
    drops: f64,
    /// How many operations a GC cycle precedes.
    collections: f64,
    /// How many operations an evacuation precedes, and whether the first client does nothing else and
    /// dies after so many polls.
    evacuations: f64,
    evacuator_dies: Option<u64>,
    /// Maximum difference between clocks; nanoseconds.
    skew: i64,
    /// How likely a client's processor loads and stores the nodes' memory itself.
    near: f64,
    /// Whether clients learn of epochs one after the other.
    delayed: bool,
    /// How many buckets' records are checked at once.
    reclaimed_at_once: usize,
    /// How many clients that die or leave have an heir.
    successors: usize,
    /// Whether clients leave when they are done.
    leave: bool,
    /// How long a clock stands still at a time, and how far it steps back, if it does; nanoseconds.
    fits: Option<(u64, u64)>,
    /// Whether other clients take steps between two calls of the epoch table.
    between: bool,
    /// After how many operations the last client is held, if it is.
    held: Option<u64>,
    /// How many clients have left before the others attach.
    crowd: usize,
    /// How nodes are replaced, if they are.
    replaces: Option<Replaces>,
}

impl Plan {
    fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x7ec1);
        let mut rare = Rng::with_seed(seed ^ 0x7a40);
        let nodes = [3, 3, 3, 3, 5][rng.usize(..5)];
        let nodes = if rare.u8(..32) == 0 { [1, 7][rare.usize(..2)] } else { nodes };
        let clients = rng.usize(2..=4);
        let policy = match rng.u8(..4) {
            0 => Policy::Priorities { changes: rng.usize(1..8), horizon: 6000 * clients as u64 },
            _ => Policy::Weighted { redraw: [0.02, 0.005, 0.001][rng.usize(..3)] },
        };
        let mut setup = Setup {
            words: CAPACITY / 8,
            tear: [0.02, 0.2, 1.0][rng.usize(..3)],
            prompt: [0.0, 0.2, 0.8, 0.8][rng.usize(..4)],
            starve: [0.0, 0.0, 0.1, 0.4][rng.usize(..4)],
            step_time: [1, 10, 60][rng.usize(..3)],
            policy,
            // The last client only prepares the store.
            ..Setup::new(seed, nodes, clients + 1).stalling()
        };
        let geometry = Geometry::new(nodes, CAPACITY, 16, rng.u64(..)).expect("a small geometry");
        let usual = geometry.format;
        let format = format(geometry.format, &mut setup);
        let (short, step) = (format != geometry.format, setup.step_time);
        let mut other = Rng::with_seed(seed ^ 0x5ca2ce);
        let scarce = [None, Some(other.usize(6..18))][other.usize(..2)];
        let any = [[1, 0, 0, 6, 0], [2, 2, 0, 6, 0], [2, 2, 4, 6, 4]][rng.usize(..3)];
        // A client that does little and slowly finds what clients that do much have left.
        let mixes = [[any, any], [[0, 0, 0, 1, 0], [8, 1, 0, 1, 0]]][rng.usize(..2)];
        let few = [1, 1, 2, 3][rng.usize(..4)];
        // Enough that buckets split.
        let mut other = Rng::with_seed(seed ^ 0x5b117);
        let keys = if other.u8(..4) == 0 { other.u64(7..14) } else { few };
        let slots = [6, 6, 6, 1][Rng::with_seed(seed ^ 0x5107).usize(..4)];
        let slots = if rare.u8(..8) == 0 { rare.usize(2..=5) } else { slots };
        let keyed_cells = Rng::with_seed(seed ^ 0x0ce11).u8(..8) > 0;
        let live = [0.0, 0.0, 0.0, 0.5][Rng::with_seed(seed ^ 0x71fe).usize(..4)];
        let live = if keyed_cells { live } else { 0.0 };
        let geometry = of_six_keys(geometry).with_keyed_cells(keyed_cells);
        let geometry = Geometry { bucket_bits: 0, slots, format, ..geometry };
        let plan = Self {
            expires: Lives::random(seed, &geometry).filter(|_| live == 0.0),
            setup,
            geometry: scarce.map_or(geometry, |chunks| shortage(geometry, chunks)),
            // A client that keeps finding all nodes late makes no progress.
            late: [300, 3000, 30_000][rng.usize(..3)].max(if short { 20 * step } else { 0 }),
            keys,
            first_keys: if keys > few { other.u64(few..=keys) } else { few },
            at_once: [1, 1, 2][rng.usize(..3)],
            rounds: rng.u64(16..ROUNDS as u64) / if scarce.is_some() { 2 } else { 1 },
            mixes,
            modify: [0.0, 0.0, 0.5, 0.5][Rng::with_seed(seed ^ 0x30d1f1).usize(..4)],
            live,
            drops: [0.0, 0.05][rng.usize(..2)],
            collections: [0.0, 0.1, 0.3][rng.usize(..3)],
            evacuations: 0.0,
            evacuator_dies: None,
            skew: [1, 300, 3000][rng.usize(..3)],
            near: [0.0, 0.5, 1.0][rng.usize(..3)],
            delayed: Rng::with_seed(seed ^ 0x4ea25a1).u8(..3) == 0,
            reclaimed_at_once: [1, 4, 16][Rng::with_seed(seed ^ 0xa7_09ce).usize(..3)],
            successors: 0,
            leave: rare.u8(..8) == 0,
            fits: fits(&mut rare),
            between: rare.u8(..4) == 0,
            held: None,
            crowd: 0,
            replaces: None,
        };
        let mut rng = Rng::with_seed(seed ^ 0xc20d);
        let plan = if rng.u8(..6) == 0 { plan.behind_a_crowd(&mut rng) } else { plan };
        if seed % HELD_IN == HELD_IN / 8 {
            return plan.held_up(usual, &mut rare);
        }
        plan.with_successors(&mut Rng::with_seed(seed ^ 0x4e125))
    }

    /// The same, or a plan in which clients die soon and some have heirs. If clients leave, every
    /// other plan has an heir.
    fn with_successors(self, rng: &mut Rng) -> Self {
        let successors = if rng.u8(..6) == 0 { rng.usize(1..=SUCCESSORS) } else { 0 };
        let successors = if self.leave && successors == 0 { rng.usize(..2) } else { successors };
        let setup = Setup { clients: self.setup.clients + successors, ..self.setup };
        Self { setup, successors, ..self }
    }

    /// The same, where most chunks of a small pool hold a key or two of clients that left, so that
    /// only evacuation yields memory.
    fn behind_a_crowd(self, rng: &mut Rng) -> Self {
        let crowd = rng.usize(4..=CROWD);
        let chunks = 3 * crowd + rng.usize(2..8);
        let keys = rng.u64(8..14);
        let geometry = of_few_chunks(self.geometry, CLIENTS + 1 + CROWD, chunks);
        Self { geometry, crowd, keys, first_keys: keys, ..self }
    }

    /// A plan in which clients evacuate again and again, beside each other and beside clients that
    /// write, delete, move and collect the same keys: many slots, small chunks, and a crowd that has
    /// left a few keys in chunks of each.
    fn evacuating(seed: u64) -> Self {
        let plans = (0..).map(|salt| Self::random(seed ^ (salt << 40) ^ salt));
        let mut plans = plans.filter(|plan| plan.held.is_none() && plan.crowd == 0);
        let plan = plans.next().expect("most are");
        let mut rng = Rng::with_seed(seed ^ 0xe7ac);
        let crowd = rng.usize(LARGE_CROWD);
        let keys = rng.u64(MANY_KEYS);
        // Each of the crowd has chunks for registers, records, and two sizes of buffers.
        let chunks = 5 * crowd + rng.usize(2..16);
        let geometry = of_few_chunks(plan.geometry, CLIENTS + 1 + crowd, chunks);
        let any = [[1, 4, 0, 2, 2], [2, 2, 2, 2, 4], [1, 6, 0, 1, 0]][rng.usize(..3)];
        Self {
            geometry,
            crowd,
            keys,
            first_keys: keys,
            mixes: [any, any],
            rounds: plan.rounds.min(16),
            evacuations: [0.1, 0.3][rng.usize(..2)],
            ..plan
        }
    }

    /// The same, where the first client evacuates, dies after so many polls, and has an heir.
    fn evacuator_dies(seed: u64, polls: u64) -> Self {
        let plan = Self::evacuating(seed);
        let setup = Setup { clients: plan.setup.clients - plan.successors + 1, ..plan.setup };
        Self {
            setup,
            successors: 1,
            at_once: 1,
            rounds: 6,
            drops: 0.0,
            leave: false,
            evacuator_dies: Some(polls),
            ..plan
        }
    }

    /// The same, where the last client is held between two operations while others overwrite a
    /// small pool, with enough write numbers for that.
    fn held_up(self, format: WordFormat, rng: &mut Rng) -> Self {
        let any = [1, 1, 1, 6, 1];
        let geometry = Geometry { format, ..self.geometry };
        Self {
            geometry: shortage(geometry, rng.usize(6..9)),
            keys: 3,
            first_keys: 3,
            at_once: 1,
            rounds: 12,
            mixes: [any, any],
            drops: 0.0,
            modify: 0.0,
            expires: None,
            live: 0.0,
            leave: false,
            crowd: 0,
            held: Some(rng.u64(1..6)),
            ..self
        }
    }

    /// A plan in which nodes are lost and replaced.
    fn replacing(seed: u64) -> Self {
        let plans = (0..).map(|salt| Self::random(seed ^ (salt << 40) ^ salt));
        let fits = |plan: &Self| {
            plan.geometry.nodes > 1 && plan.held.is_none() && plan.crowd + plan.successors == 0
        };
        let mut plans = plans.filter(fits);
        let plan = plans.next().expect("most are");
        let mut rng = Rng::with_seed(seed ^ 0x4e91ace);
        let nodes = plan.geometry.nodes.min(5);
        let geometry = Geometry { nodes, ..plan.geometry };
        let chunks = geometry.chunks() - geometry.first_chunk();
        let slots = CLIENTS + 1 + FILLERS;
        let geometry = match geometry.max_clients {
            slots_now if slots_now < slots => of_few_chunks(geometry, slots, chunks),
            _ => geometry,
        };
        // A client that looks again and again would keep one of lower priority from going on.
        let policy = match plan.setup.policy {
            Policy::Priorities { .. } => Policy::Weighted { redraw: 0.005 },
            weighted @ Policy::Weighted { .. } => weighted,
        };
        let setup = Setup {
            nodes: nodes + SPARES,
            clients: plan.setup.clients + FILLERS,
            policy,
            ..plan.setup
        };
        let held = (rng.u8(..4) == 0).then(|| rng.u64(1..6));
        let at_once = if held.is_some() { 1 } else { plan.at_once };
        let replaces = Some(Replaces { held, dies_after: None });
        Self { setup, geometry, at_once, successors: FILLERS, replaces, ..plan }
    }

    /// A plan in which one node is lost, and the first client that fills it dies after so many polls.
    fn filler_dies(seed: u64, polls: u64) -> Self {
        let plan = Self::replacing(seed);
        let replaces = Some(Replaces { held: None, dies_after: Some(polls) });
        let keys = plan.keys.min(3);
        let first_keys = keys;
        Self { keys, first_keys, at_once: 1, rounds: 8, collections: 0.1, replaces, ..plan }
    }

    /// Returns how many operations a task of this client does.
    fn rounds(&self, client: usize) -> u64 {
        let others = self.workers() as u64 - 1;
        let is_other = self.held.is_some() && client < self.workers() - 1;
        if is_other { HELD_FOR.div_ceil(others) } else { self.rounds }
    }

    /// Returns a number above the operations of any task.
    fn most_rounds(&self) -> usize {
        if self.held.is_some() { HELD_FOR as usize + 1 } else { ROUNDS }
    }

    /// Returns the clients that work from the beginning. After them comes the one that prepares the
    /// store.
    fn workers(&self) -> usize {
        self.setup.clients - 1 - self.successors
    }

    /// Returns the fault rates once the store is prepared, and the random source for all that
    /// follows.
    fn chaos(&self) -> (Rng, FaultRates) {
        let mut rng = Rng::with_seed(self.setup.seed);
        let chaos = match rng.u8(..5) {
            0 | 1 => FaultRates::NONE,
            _ => FaultRates::random(&mut rng, self.geometry.nodes, self.workers(), 6000.0),
        };
        let chaos = if self.near > 0.0 { chaos.beside_near() } else { chaos };
        // Memory is reclaimed continuously only if all nodes answer.
        let one_dies = self.dies_after().or(self.evacuator_dies).is_some();
        let is_calm = self.held.is_some() || one_dies;
        let chaos = if is_calm { FaultRates::NONE } else { chaos };
        let deaths = FaultRates {
            client_crash: chaos.client_crash.max(DEATHS),
            clients_lost: self.workers() - 1,
            ..chaos
        };
        let dies = self.successors > 0 && !self.leave && !one_dies && self.replaces.is_none();
        (rng, if dies { deaths } else { chaos })
    }

    /// Returns after how many polls the first client that fills dies, if nobody else does.
    fn dies_after(&self) -> Option<u64> {
        self.replaces?.dies_after
    }

    /// Makes the epoch table of all clients.
    fn domain(&self) -> Rc<Notes> {
        let seed = self.setup.seed;
        let notes = match self.delayed {
            true => Notes::with_delays(Rng::with_seed(seed ^ 0x4ea2)),
            false => Notes::default(),
        };
        let notes = match self.between {
            true => notes.with_steps_between(Rng::with_seed(seed ^ 0xbe73)),
            false => notes,
        };
        let mut late = Rng::with_seed(seed ^ 0x1a7e);
        let is_late = late.bool() || self.held.is_some();
        Rc::new(if is_late { notes.with_late_ones(late) } else { notes })
    }

    fn operation(&self, rng: &mut Rng, (slot, id): (usize, u64), story: &Story) -> (u64, Call) {
        let mix = self.mixes[slot.min(1)];
        let mut draw = rng.u32(..mix.iter().sum::<u32>());
        let mut kind = 0;
        while draw >= mix[kind] {
            draw -= mix[kind];
            kind += 1;
        }
        let call = [Call::Get, Call::Put(id), Call::Insert(id), Call::Update(id), Call::Delete];
        let key = rng.u64(..self.keys);
        if self.live > 0.0 && rng.f64() < self.live {
            return (key, about_life(rng, id));
        }
        if self.modify > 0.0 && rng.f64() < self.modify {
            return modification(rng, (key, id), |key| story.last_seen(key));
        }
        (key, call[kind])
    }
}

/// The same with so few chunks that clients have to take them from each other.
fn shortage(geometry: Geometry, chunks: usize) -> Geometry {
    of_few_chunks(geometry, CLIENTS + 1, chunks)
}

/// Returns how a clock stands still and steps back, if it does.
fn fits(rng: &mut Rng) -> Option<(u64, u64)> {
    let every = [1000, 30_000, 1_000_000][rng.usize(..3)];
    let back = rng.u64(..2 * every);
    (rng.u8(..8) == 0).then_some((every, back))
}

/// What one schedule showed.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    steps: u64,
    operations: u64,
    /// Buffers that were reclaimed.
    reclaimed: u64,
    /// Keys that moved.
    moves: u64,
    /// Keys that moved out of sparse chunks.
    evacuated: u64,
    /// Chunks that other clients used afterwards.
    passed_on: u64,
    /// Heirs, and answers that they got.
    successors: u64,
    inherited: u64,
    /// Clients that left while others went on.
    left: u64,
    held: u64,
    /// Nodes that were replaced, clients that died as they filled or evacuated, other nodes that were paused
    /// meanwhile, and operations without an answer.
    replaced: u64,
    died: u64,
    paused: u64,
    unanswered: u64,
}

/// A schedule that is being run.
struct Stage {
    plan: Plan,
    sim: Sim,
    recorder: Recorder,
    notes: Rc<Notes>,
    reclaimed: Rc<Cell<u64>>,
    moves: Rc<Cell<u64>>,
    evacuated: Rc<Cell<u64>>,
    hung_up: Rc<Cell<bool>>,
    /// Clients that are kept until all is over, so that a death runs no destructor.
    kept: Vec<Box<dyn Any>>,
    incarnations: Cell<u64>,
    /// Slots whose owners have left.
    left: Rc<RefCell<Vec<usize>>>,
    /// Clients that died as they evacuated.
    died: u64,
    /// Slots whose owners died or left and have an heir.
    inherited: Vec<usize>,
    /// Operations of the clients that are not held.
    done: Rc<Cell<u64>>,
    breaks: bool,
    conduct: ReplayRules,
    replacing: Option<Replacing>,
    chaos: FaultRates,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.hung_up.set(true);
    }
}

impl Stage {
    fn story(&self, id: usize, slot: usize, inner: SimFabric) -> Story {
        let incarnation = self.incarnations.replace(self.incarnations.get() + 1);
        let pool = self.replacing.as_ref().map(|replacing| &replacing.pool);
        let members = pool.map(Pool::view);
        let line = Line { inner, hung_up: Rc::clone(&self.hung_up), members };
        let connection = (line, Rc::new(self.sim.clock(id)) as _);
        let deadline = if self.breaks { 50_000_000 } else { u64::MAX / 4 };
        let (late, geometry) = (self.plan.late, self.plan.geometry);
        let identity = (id, slot, incarnation);
        let options = options((late, deadline)).reclaimed_at_once(self.plan.reclaimed_at_once);
        let story = Story::new(connection, geometry, identity, options, &self.recorder);
        let story = story.with_lives(self.plan.expires);
        let mut participant = SimParticipant::in_slot(slot, &self.notes, self.sim.fabric(id), id);
        participant.lives = pool.map(Pool::lives);
        Story { client: story.client.with_epochs(Box::new(participant)), ..story }
    }

    fn run(&mut self, what: &str) -> Result<(), String> {
        match self.sim.run(STEPS) {
            Outcome::Done => Ok(()),
            outcome => Err(format!("{outcome:?}: {what} did not end")),
        }
    }

    /// Runs all operations of the clients, until the one that evacuates dies, if it is to die.
    fn run_to_death_of_evacuator(&mut self) -> Result<(), String> {
        let Some(polls) = self.plan.evacuator_dies else { return Ok(()) };
        for _ in 0..STEPS {
            if self.sim.polls(0) >= polls {
                self.sim.crash_client(0);
                self.died += 1;
                return Ok(());
            }
            match self.sim.run(1) {
                Outcome::Limit => {}
                Outcome::Done => return Ok(()),
                outcome => return Err(format!("{outcome:?}: the play did not end")),
            }
        }
        Err("the play did not end".to_owned())
    }

    /// Runs all operations of the clients, and the heirs of those that die.
    fn run_with_successors(&mut self, rng: &mut Rng) -> Result<(), String> {
        self.run_to_death_of_evacuator()?;
        // A client that takes the slot of one that left need not wait.
        let watch = if self.plan.leave { WATCH / 10 } else { WATCH };
        for _ in 0..STEPS / watch {
            match self.sim.run(if self.plan.successors > 0 { watch } else { STEPS }) {
                Outcome::Limit if self.plan.successors > 0 => self.inherit(rng),
                Outcome::Done => return Ok(()),
                outcome => return Err(format!("{outcome:?}: the play did not end")),
            }
        }
        Err("the play did not end".to_owned())
    }

    /// Runs all operations of the clients, while nodes are lost and replaced.
    fn run_replacing(&mut self, rng: &mut Rng) -> Result<(), String> {
        let mut stuck = 0;
        for _ in 0..STEPS / LOOK {
            let outcome = self.run_to_death();
            stuck = if outcome == Outcome::Stuck { stuck + 1 } else { 0 };
            let is_over = self.replacing.as_ref().is_none_or(Replacing::is_over);
            if is_over {
                // A client that is held is let go on.
                self.done.set(HELD_FOR);
            }
            match outcome {
                Outcome::Done if is_over => return Ok(()),
                // Only one that is held is left, until a node is lost, replaced, and voting.
                Outcome::Stuck if stuck > 3000 => {
                    return Err(format!("Stuck: the play did not end, of {:?}", self.replacing));
                }
                _ => self.replace(rng, outcome != Outcome::Limit),
            }
        }
        Err("the play did not end".to_owned())
    }

    /// Runs for some steps. If the first client that fills is to die, it dies.
    fn run_to_death(&mut self) -> Outcome {
        let first = self.plan.workers() + 1;
        let Some(polls) = self.plan.dies_after().filter(|_| self.sim.tasks(first) > 0) else {
            return self.sim.run(LOOK);
        };
        for _ in 0..LOOK {
            if self.sim.polls(first) >= polls {
                self.sim.crash_client(first);
                self.replacing.as_mut().expect("it fills").died += 1;
                break;
            }
            match self.sim.run(1) {
                Outcome::Limit => {}
                outcome => return outcome,
            }
        }
        Outcome::Limit
    }

    /// Goes on with replacements: a node is lost, clients fill it.
    fn replace(&mut self, rng: &mut Rng, at_once: bool) {
        let Some(mut replacing) = self.replacing.take() else { return };
        if at_once {
            replacing.hurries(&mut self.sim);
        }
        let to_fill = replacing.goes_on(&mut self.sim, rng);
        let nodes_away = replacing.may_be_away(&self.sim);
        self.sim.set_chaos(FaultRates { nodes_away, ..self.chaos });
        self.replacing = Some(replacing);
        let Some((node, fillers)) = to_fill else { return };
        for _ in 0..fillers {
            let first = self.plan.workers() + 1;
            let mut clients = first..first + FILLERS;
            let used = self.inherited.clone();
            let client = clients.find(|id| !used.contains(id) && !self.sim.is_dead(*id));
            match client {
                Some(id) => self.fill(id, node, rng),
                None => self.replacing.as_mut().expect("there is one").is_given_up(),
            }
        }
    }

    /// A client fills a node, in a slot of its own.
    fn fill(&mut self, id: usize, node: NodeId, rng: &mut Rng) {
        self.inherited.push(id);
        let near = rng.f64() < self.plan.near;
        let fabric = if near { self.sim.near(id) } else { self.sim.fabric(id) };
        let story = Rc::new(self.story(id, id + 1, fabric.clone()));
        let replacing = self.replacing.as_mut().expect("a node is lost");
        replacing.fills(id);
        let line = Line { inner: fabric, hung_up: Rc::clone(&self.hung_up), members: None };
        let filler = Filler { pool: Rc::clone(&replacing.pool), line, turns: self.sim.fabric(id) };
        // If this client dies, its destructor does not run.
        let kept = Rc::new(RefCell::new(Some(Rc::clone(&story))));
        self.kept.push(Box::new(Rc::clone(&kept)));
        let (works, notes) = (Works::new(&self.notes, id), Rc::clone(&self.notes));
        let late = rng.u32(..20);
        self.sim.spawn(id, async move {
            let _works = works;
            for _ in 0..late {
                filler.turns.turn().await;
            }
            filler.turns.note(format_args!("replaces {node}"));
            let ended = story.client.replace_node(&filler, node, &mut |_| true).await;
            filler.turns.note(format_args!("{ended:?}"));
            match ended {
                Ok(votes) => assert!(votes, "nobody gave it up"),
                Err(ReplaceError::Refused(_)) => {}
                Err(ReplaceError::Failed(error)) => {
                    let gave_up = GaveUp::Failed(error);
                    assert!(gave_up.is_late() || gave_up.shortage().is_some(), "{error:?}");
                }
                Err(other) => panic!("{other}"),
            }
            drop((story, kept.take()));
            notes.leaves(id);
        });
    }

    /// Gives an heir to each client that died and has no chain in flight, as far as there are any.
    /// By then its connections are fenced off, or its process has left nothing that could continue.
    /// A client that left has an heir at once.
    fn inherit(&mut self, rng: &mut Rng) {
        for slot in 0..self.plan.workers() {
            let is_heirless = !self.inherited.contains(&slot);
            if is_heirless
                && self.inherited.len() < self.plan.successors
                && (self.sim.fabric(slot).is_gone(slot) || self.left.borrow().contains(&slot))
            {
                let id = self.plan.workers() + 1 + self.inherited.len();
                self.inherited.push(slot);
                self.sim.fabric(id).inherit(slot);
                self.enter(id, slot, rng);
            }
        }
    }

    /// Inserts the keys: one client does, or many that have left by the end.
    fn prepare(&mut self) -> Result<(), String> {
        let id = self.plan.workers();
        if self.plan.crowd == 0 {
            return self.put_in(id, (0..self.plan.first_keys).step_by(1));
        }
        for (member, first) in (CLIENTS + 1..).zip(0..self.plan.crowd as u64) {
            self.put_in(member, (first..self.plan.first_keys).step_by(self.plan.crowd))?;
            self.notes.leaves(id);
        }
        Ok(())
    }

    /// A client in this slot inserts these keys.
    fn put_in(&mut self, slot: usize, keys: StepBy<Range<u64>>) -> Result<(), String> {
        let id = self.plan.workers();
        let story = self.story(id, slot, self.sim.fabric(id));
        let works = Works::new(&self.notes, id);
        self.sim.spawn(id, async move {
            let _works = works;
            // One word each, so that most later values do not fit in place.
            for number in keys {
                match story.call(number, Call::Put(952 + 4 * number), None).await {
                    // A few small chunks do not suffice for every kind of object that so many keys
                    // take.
                    Err(gave_up) if gave_up.shortage().is_some() => break,
                    put => put.expect("put"),
                }
            }
        });
        self.run("preparation")
    }

    /// A working client, in this slot.
    fn enter(&mut self, id: usize, slot: usize, rng: &mut Rng) {
        let plan = self.plan;
        let may_fail = self.breaks;
        self.sim.set_clock(id, rng.i64(-plan.skew..=plan.skew), 0);
        if let Some((every, back)) = plan.fits.filter(|_| id.is_multiple_of(2)) {
            self.sim.set_clock_fits(id, every, back);
        }
        let near = rng.f64() < plan.near;
        let fabric = if near { self.sim.near(id) } else { self.sim.fabric(id) };
        let story = Rc::new(self.story(id, slot, fabric));
        // A client that dies does not leave: only what the stage keeps is left of it.
        let kept = Rc::new(RefCell::new(Some(Rc::clone(&story))));
        self.kept.push(Box::new(Rc::clone(&kept)));
        let at_work = Rc::new(Cell::new(plan.at_once));
        for task in 0..plan.at_once {
            let (turns, mut rng) = (self.sim.fabric(id), Rng::with_seed(rng.u64(..)));
            let (story, conduct) = (Rc::clone(&story), self.conduct.clone());
            let (reclaimed, moves) = (Rc::clone(&self.reclaimed), Rc::clone(&self.moves));
            let evacuated = Rc::clone(&self.evacuated);
            let (kept, at_work) = (Rc::clone(&kept), Rc::clone(&at_work));
            let (left, done) = (Rc::clone(&self.left), Rc::clone(&self.done));
            let notes = Rc::clone(&self.notes);
            let works = Works::new(&self.notes, id);
            self.sim.spawn(id, async move {
                let _works = works;
                let how = (plan, &conduct, &*done);
                operate(&story, &turns, &mut rng, how, (slot, task, may_fail)).await;
                if task == 0 {
                    reclaimed.set(reclaimed.get() + story.client.counters().reclaimed);
                    moves.set(moves.get() + story.client.counters().moved);
                    evacuated.set(evacuated.get() + story.client.counters().evacuated);
                }
                at_work.set(at_work.get() - 1);
                if plan.leave && at_work.get() == 0 {
                    turns.note("leaves");
                    drop((story, kept.take()));
                    notes.leaves(id);
                    left.borrow_mut().push(slot);
                }
            });
        }
    }

    /// At the end, a live client reads every key.
    fn last_look(&mut self, rng: &mut Rng) -> Result<(), String> {
        // The slot after the last one that was used.
        let clients = self.plan.workers() + 1;
        let alive: Vec<usize> = (0..clients).filter(|&id| !self.sim.is_dead(id)).collect();
        let id = alive[rng.usize(..alive.len())];
        self.sim.set_chaos(FaultRates::NONE);
        let story = self.story(id, clients, self.sim.fabric(id));
        let keys = self.plan.keys;
        let works = Works::new(&self.notes, id);
        self.sim.spawn(id, async move {
            let _works = works;
            for number in (0..keys).chain(COUNTERS) {
                match story.call(number, Call::Get, None).await {
                    // A key whose relocation is blocked.
                    Err(gave_up) if gave_up.shortage().is_some() => {}
                    got => got.expect("the last look"),
                }
            }
        });
        self.run("the last look")
    }
}

/// More than a client takes until its chains are over, if they end while others work: with 3,000 *replace-one-epoch*
/// goes unnoticed.
const MANY_TURNS: u32 = 100_000;

/// The operations of one task of a client.
async fn operate(
    story: &Story,
    turns: &SimFabric,
    rng: &mut Rng,
    (plan, conduct, done): (Plan, &ReplayRules, &Cell<u64>),
    (slot, task, may_fail): (usize, usize, bool),
) {
    let may_be_held = story.id == plan.workers() - 1;
    let rounds = plan.rounds(story.id);
    for round in 0..rounds {
        // An operation that searches for memory is dropped somewhere in the search.
        let most = if plan.crowd > 0 { 4000 } else { 40 };
        let polls: Polls = (rng.f64() < plan.drops).then(|| rng.u32(1..most));
        let many = if plan.held.is_some() { 1_000_000 } else { 1000 };
        let value = many * (story.id as u64 + 1) + 100 * task as u64 + round;
        let (key, call) = plan.operation(rng, (slot, value), story);
        if !may_be_held {
            done.set(done.get() + 1);
        } else if plan.held.or(plan.replaces.and_then(|it| it.held)) == Some(round) {
            let is_still = || plan.replaces.is_none() || turns.is_still(story.id);
            for _ in 0..MANY_TURNS {
                if is_still() {
                    break;
                }
                turns.turn().await;
            }
            // What it has on its way to a node that is lost without a word ends once nothing else goes on.
            poll_fn(|_| if is_still() { Poll::Ready(()) } else { Poll::Pending }).await;
            // A replacement waits for a client that does not rest.
            story.client.rest();
            // Held, not waiting: nothing wakes it before.
            let is_over = || done.get() >= HELD_FOR;
            poll_fn(|_| if is_over() { Poll::Ready(()) } else { Poll::Pending }).await;
        }
        if conduct.leaves_out((story.id * TASKS + task) * plan.most_rounds() + round as usize) {
            continue;
        }
        turns.turn().await;
        let evacuates = plan.evacuator_dies.is_some() && story.id == 0;
        if evacuates || rng.f64() < plan.evacuations {
            turns.note("an evacuation");
            let polls = polls.map(|polls| 10 * polls);
            let found = dropped_after(polls, story.client.gc(&mut |_| {})).await;
            let damaged = Error::Replication(CoreError::Damaged);
            assert!(found != Some(Err(damaged)), "an evacuation found damage where there is none");
            turns.note(format_args!("found {found:?}"));
        }
        if rng.f64() < plan.collections {
            turns.note("a collection");
            // If a node does not answer, nothing is found.
            let found = dropped_after(polls.map(|polls| 10 * polls), story.client.collect()).await;
            let damaged = Error::Replication(CoreError::Damaged);
            assert!(found != Some(Err(damaged)), "a collection found damage where there is none");
            turns.note(format_args!("found {found:?}"));
        }
        turns.note(format_args!("{call:?} of key {key}"));
        match story.call(key, call, polls).await {
            Ok(()) | Err(GaveUp::Dropped) => {}
            Err(gave_up) if may_fail && gave_up.is_late() => {}
            Err(gave_up) if gave_up.shortage().is_some() => {}
            // If timestamps are short, so are numbers, and searches for memory use them up.
            Err(GaveUp::Failed(Error::NumbersExhausted | Error::UnsettledNumbersExhausted)) => {
                done.set(done.get() + rounds - round);
                return;
            }
            Err(gave_up) => panic!("client {}: {call:?} of key {key}: {gave_up:?}", story.id),
        }
        turns.note("answered");
    }
}

/// Runs one schedule. The error says what went wrong.
fn play(plan: &Plan, conduct: &ReplayRules) -> Result<Shown, String> {
    let (mut rng, chaos) = plan.chaos();
    let mut stage = Stage {
        plan: *plan,
        sim: Sim::new(&plan.setup),
        recorder: Recorder::new(),
        notes: plan.domain(),
        reclaimed: Rc::default(),
        moves: Rc::default(),
        evacuated: Rc::default(),
        hung_up: Rc::default(),
        kept: Vec::new(),
        incarnations: Cell::new(1),
        left: Rc::default(),
        died: 0,
        inherited: Vec::new(),
        done: Rc::default(),
        // A node that is lost as another one begins to vote leaves those without a majority that
        // began before.
        breaks: chaos.disconnect > 0.0 || plan.replaces.is_some(),
        conduct: conduct.clone(),
        replacing: plan.replaces.map(|how| {
            let replacing = Replacing::new(plan.geometry.nodes, &mut rng);
            let is_calm = chaos == FaultRates::NONE && plan.near == 0.0;
            let replacing = replacing.with_pauses(is_calm && how.dies_after.is_none());
            if how.dies_after.is_some() { replacing.one() } else { replacing }
        }),
        chaos,
    };
    let mut result = stage.prepare();
    stage.sim.follow(conduct);
    stage.sim.set_chaos(chaos);
    (0..plan.workers()).for_each(|id| stage.enter(id, id, &mut rng));
    result = result.and_then(|()| match plan.replaces {
        Some(_) => stage.run_replacing(&mut rng),
        None => stage.run_with_successors(&mut rng),
    });
    if let Some(replacing) = &stage.replacing {
        replacing.lose_more(&mut stage.sim, &mut rng);
    }
    result = result.and_then(|()| stage.last_look(&mut rng));
    let history = stage.recorder.operations();
    let of_successor = |op: &&Operation| op.client > plan.workers() && op.answered.is_some();
    let shown = Shown {
        steps: stage.sim.steps(),
        operations: history.len() as u64,
        reclaimed: stage.reclaimed.get(),
        moves: stage.moves.get(),
        evacuated: stage.evacuated.get(),
        passed_on: stage.notes.passed_on(),
        successors: stage.inherited.len() as u64,
        inherited: history.iter().filter(of_successor).count() as u64,
        left: stage.left.borrow().len() as u64,
        held: u64::from(plan.held.is_some()),
        replaced: stage.replacing.as_ref().map_or(0, |it| it.replaced),
        died: stage.died + stage.replacing.as_ref().map_or(0, |it| it.died),
        paused: stage.replacing.as_ref().map_or(0, |it| it.paused),
        unanswered: history.iter().filter(|op| op.answered.is_none()).count() as u64,
    };
    result
        .and_then(|()| check(&history, |_| None, BUDGET).map_err(|error| error.to_string()))
        .map(|()| shown)
        .map_err(|error| {
            let history: Vec<_> =
                history.iter().map(|op| format!("key {}: {op}\n", op.key)).collect();
            format!("{error}\n{}", history.concat())
        })
}

/// Plays many schedules; prints the story of the first that fails.
fn explore(seeds: impl Iterator<Item = u64>, plan: impl Fn(u64) -> Plan) -> Shown {
    let mut total = Shown::default();
    for seed in seeds {
        let plan = plan(seed);
        // Panics in the store name no seed: they are caught to add it.
        let Ok(Ok(shown)) = std::panic::catch_unwind(|| play(&plan, &ReplayRules::free())) else {
            let operations = (CLIENTS + SUCCESSORS) * TASKS * plan.most_rounds();
            let story = story(operations, |conduct| play(&plan, conduct).map(drop));
            let again = again(&format!("SWARM_SEED={seed}"));
            panic!("seed {seed} (played alone by `{again}`): {story}\n{plan:?}");
        };
        total.steps += shown.steps;
        total.operations += shown.operations;
        total.reclaimed += shown.reclaimed;
        total.moves += shown.moves;
        total.evacuated += shown.evacuated;
        total.passed_on += shown.passed_on;
        total.successors += shown.successors;
        total.inherited += shown.inherited;
        total.left += shown.left;
        total.held += shown.held;
        total.replaced += shown.replaced;
        total.died += shown.died;
        total.paused += shown.paused;
        total.unanswered += shown.unanswered;
    }
    total
}

#[test]
fn no_client_reaches_a_buffer_after_its_time() {
    let seeds = seeds(150);
    let total = explore(seeds.clone(), Plan::random);
    println!("{} schedules: {total:?}", seeds.clone().count());
    // Otherwise nothing was tested.
    let seldom = seeds.count() as u64;
    let tested = total.reclaimed > 2 * seldom && total.moves > seldom / 2;
    assert!(seldom < 100 || tested, "{total:?}");
    assert!(seldom < 100 || total.evacuated > seldom / 10, "{total:?}");
    assert!(seldom < 100 || total.passed_on > seldom, "{total:?}");
    assert!(seldom < 100 || total.inherited > seldom / 10, "{total:?}");
    assert!(seldom < 100 || total.left > seldom / 10, "{total:?}");
}

/// Clients evacuate sparse chunks while others do the same, die, or write, delete, move and collect
/// what is in them.
#[test]
fn clients_evacuate_while_others_work() {
    let seeds = seeds(100);
    let total = explore(seeds.clone(), Plan::evacuating);
    println!("{} schedules: {total:?}", seeds.clone().count());
    // Otherwise nothing was tested.
    let seldom = seeds.count() as u64;
    assert!(seldom < 100 || total.evacuated > 5 * seldom, "{total:?}");
    assert!(seldom < 100 || total.passed_on > 5 * seldom, "{total:?}");
}

/// A client that evacuates dies at every seventh of its awaits in turn, explored deep at each, others write
/// the same keys, and another one has its slot afterwards.
#[test]
fn a_client_that_evacuates_may_die_anywhere() {
    let (mut deaths, mut evacuated) = (0, 0);
    let between = if is_deep("a client that evacuates") { 1 } else { BETWEEN_DEATHS };
    let seeds = these_or_one(DYING_EVACUATORS);
    let schedules = seeds.end - seeds.start;
    for seed in seeds {
        let _playing = Playing::seed_at_each_point(seed);
        let first = 1 + seed % between as u64;
        for polls in (first..MOST_POLLS).step_by(between) {
            let plan = Plan::evacuator_dies(seed, polls);
            let shown = play(&plan, &ReplayRules::free());
            let shown = shown.unwrap_or_else(|error| panic!("seed {seed}, {polls} polls: {error}"));
            deaths += shown.died;
            evacuated += shown.evacuated;
            if shown.died == 0 {
                break;
            }
        }
    }
    println!("{deaths} deaths under {schedules} schedules, {evacuated} keys");
    assert!(deaths > 50 * schedules, "{deaths} deaths");
}

/// Clients go on while nodes are lost and replaced, one after the other. Clients that fill die or get
/// into each other's way, a client sleeps over all of it, and other nodes are lost afterwards.
#[test]
fn nodes_are_replaced_while_clients_work() {
    let seeds = seeds(100);
    let total = explore(seeds.clone(), Plan::replacing);
    println!("{} schedules: {total:?}", seeds.clone().count());
    // Otherwise nothing was tested.
    let seldom = seeds.count() as u64;
    assert!(seldom < 100 || total.replaced > seldom, "{total:?}");
    assert!(seldom < 100 || total.died > seldom / 20, "{total:?}");
    assert!(seldom < 100 || total.paused > seldom / 20, "{total:?}");
    assert!(seldom < 100 || total.reclaimed > seldom, "{total:?}");
}

/// A client that fills dies at each of its awaits in turn, and another one takes the replacement up.
#[test]
fn a_client_that_fills_may_die_anywhere() {
    let mut deaths = 0;
    let seeds = these_or_one(DYING);
    let schedules = seeds.end - seeds.start;
    for seed in seeds {
        let _playing = Playing::seed(seed);
        for polls in 1..MOST_POLLS {
            let plan = Plan::filler_dies(seed, polls);
            let shown = play(&plan, &ReplayRules::free());
            let shown = shown.unwrap_or_else(|error| panic!("seed {seed}, {polls} polls: {error}"));
            assert_eq!(shown.replaced, 1, "seed {seed}, {polls} polls: the node is not replaced");
            deaths += shown.died;
            if shown.died == 0 {
                break;
            }
            assert!(polls + 1 < MOST_POLLS, "seed {seed}: it takes more polls");
        }
    }
    println!("{deaths} deaths under {schedules} schedules");
    assert!(deaths > 50 * schedules, "{deaths} deaths");
}
