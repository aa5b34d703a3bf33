//! The whole store under random schedules: a few clients get, put, insert, update and delete a few
//! keys of one bucket, which fills up and splits. Meanwhile nodes crash and freeze, connections
//! break, clients die or drop operations half-way, and clocks disagree, stand still and step back.
//! In half of the schedules they compare and swap, swap and increment as well. Seven pools in eight make
//! cells of such keys; in a fifth of the schedules, values have lives, which end by these clocks.
//! Rarely a client is held in the middle of an operation until others have done a thousand;
//! sometimes memory is short. At the end there are no more faults, and every remaining client's
//! operations succeed, within a bound of steps. A client that got the error that the
//! pool is full got it with reason.
//!
//! `SWARM_SCHEDULES` says how many schedules to run, `SWARM_FIRST` which is the first, and
//! `SWARM_SEED` runs a single one. A failing schedule is shrunk and printed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use fastrand::Rng;
use swarm_core::history::{Answer, BUDGET, Call, Operation, Recorder, check};
use swarm_core::layout::{BOOTSTRAP_RECORDS, Geometry};
use swarm_core::node::NodeId;
use swarm_core::sim::seeds::{again, seeds};
use swarm_core::sim::shrink::story;
use swarm_core::sim::{
    FaultRates, Outcome, Policy, ReplayRules, Setup, Sim, SimFabric, clock_fits,
};
use swarm_kv_long::store_sim_common::{
    COUNTERS, GaveUp, Line, Lives, Polls, Story, about_life, format, modification, of_few_chunks,
    of_six_keys, options,
};

/// Maximum steps of one schedule.
const STEPS: u64 = 50_000_000;
/// Once there are no more faults, the remaining clients and a new one take fewer steps for all
/// their operations.
const LIVE_STEPS: u64 = 1_000_000;
/// One in this many schedules has a client that is held until the others have done `HELD_FOR`
/// operations.
const HELD_IN: u64 = 512;
const HELD_FOR: u64 = 1000;
/// It counts as held if they did at least this many meanwhile.
const HELD_LEAST: u64 = 100;
/// Bytes of each node's memory. The simulator stores only what is accessed.
const CAPACITY: u64 = 8 << 20;
/// One in nine schedules has a pool of so few chunks that some operations are refused memory.
const FEWEST_CHUNKS: usize = 20;
const MOST_CHUNKS: usize = 36;
/// Operations are numbered by client, task and round; there are fewer than this of each.
const CLIENTS: usize = 5;
const TASKS: usize = 2;
const ROUNDS: usize = 8;
/// Keys that only fill the bucket have numbers from here on.
const FILLERS: u64 = 100;

/// The clients' work in one schedule, and its faults.
#[derive(Clone, Copy, Debug)]
struct Plan {
    setup: Setup,
    geometry: Geometry,
    late: u64,
    keys: u64,
    /// Keys that fill the bucket from the beginning, and how many of them are deleted again.
    fillers: u64,
    dead: u64,
    /// Whether the keys exist from the beginning, and every client has their locations cached.
    known: bool,
    /// Concurrent operations of a client.
    at_once: usize,
    /// How often a task leaves the store and returns as another client in its slot.
    lives: usize,
    /// The operations: gets, puts, inserts, updates, deletes; inserts of further keys.
    mix: [u32; 6],
    /// How many of them are read-modify-writes instead.
    modify: f64,
    /// How many are about the lives of values instead.
    live: f64,
    /// How many operations are dropped half-way.
    drops: f64,
    /// Maximum difference between clocks; nanoseconds.
    skew: i64,
    /// Maximum difference between their speeds; microseconds a second.
    drift: i64,
    /// How likely a client's processor loads and stores the nodes' memory itself.
    near: f64,
    /// How long a clock stands still at a time, and how far it steps back, if it does; nanoseconds.
    fits: Option<(u64, u64)>,
    /// After how many polls of its first operation the first client is held, if it is.
    held: Option<u32>,
    /// Which values expire.
    expires: Option<Lives>,
}

impl Plan {
    fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5703e);
        let mut rare = Rng::with_seed(seed ^ 0x7a2e);
        let nodes = [3, 3, 3, 3, 5][rng.usize(..5)];
        let nodes = if rare.u8(..32) == 0 { [1, 7][rare.usize(..2)] } else { nodes };
        let clients = rng.usize(2..=4);
        let policy = match rng.u8(..4) {
            0 => Policy::Priorities { changes: rng.usize(1..8), horizon: 2000 * clients as u64 },
            _ => Policy::Weighted { redraw: [0.02, 0.005, 0.001][rng.usize(..3)] },
        };
        let mut setup = Setup {
            words: CAPACITY / 8,
            tear: [0.02, 0.2, 1.0][rng.usize(..3)],
            prompt: [0.0, 0.0, 0.2, 0.8][rng.usize(..4)],
            starve: [0.0, 0.0, 0.1, 0.4][rng.usize(..4)],
            step_time: [1, 10, 60][rng.usize(..3)],
            policy,
            // The last client only prepares the store.
            ..Setup::new(seed, nodes, clients + 1).stalling()
        };
        let seed = rng.u64(..);
        let geometry = Geometry::new(nodes, CAPACITY, 16, seed).expect("a small geometry");
        let format = format(geometry.format, &mut setup);
        let (short, step) = (format != geometry.format, setup.step_time);
        let fillers = [0, 0, rng.u64(0..=6), 6][rng.usize(..4)];
        let at_once = [1, 1, 2][rng.usize(..3)];
        let mix = [
            [4, 4, 4, 4, 4, 1],
            [2, 0, 6, 2, 4, 1],
            [3, 0, 3, 6, 3, 0],
            [1, 4, 0, 0, 4, 0],
            [2, 1, 1, 1, 1, 8],
        ][rng.usize(..5)];
        let plan = Self {
            setup,
            geometry: Geometry {
                bucket_bits: [0, 0, 1][rng.usize(..3)],
                format,
                ..of_six_keys(geometry)
            },
            // A client that keeps finding all nodes late makes no progress.
            late: [300, 3000, 30_000][rng.usize(..3)].max(if short { 20 * step } else { 0 }),
            keys: [1, 1, 2, 4][rng.usize(..4)],
            fillers,
            dead: rng.u64(0..=fillers),
            known: rng.bool(),
            at_once,
            lives: if at_once == 1 { [1, 1, 2][rng.usize(..3)] } else { 1 },
            mix,
            modify: [0.0, 0.0, 0.6, 0.6][Rng::with_seed(seed ^ 0x30d1f1).usize(..4)],
            live: [0.0, 0.0, 0.0, 0.6][Rng::with_seed(seed ^ 0x71fe).usize(..4)],
            drops: [0.0, 0.1][rng.usize(..2)],
            skew: [1, 300, 3000][rng.usize(..3)],
            drift: [0, 1000, 900_000][rng.usize(..3)],
            near: [0.0, 0.0, 0.5, 1.0][rng.usize(..4)],
            fits: clock_fits(&mut rare),
            held: None,
            expires: None,
        };
        let slots = [6, 6, 6, 1][rng.usize(..4)];
        let slots = if rare.u8(..8) == 0 { rare.usize(2..=5) } else { slots };
        let keyed_cells = Rng::with_seed(seed ^ 0x0ce11).u8(..8) > 0;
        let geometry = Geometry { slots, keyed_cells, ..plan.geometry };
        let live = if keyed_cells { plan.live } else { 0.0 };
        let geometry = match Rng::with_seed(seed ^ 0x5ca2ce).usize(..4 * MOST_CHUNKS) {
            chunks @ FEWEST_CHUNKS..MOST_CHUNKS => of_few_chunks(geometry, CLIENTS + 1, chunks),
            _ => geometry,
        };
        let expires = Lives::random(seed, &geometry).filter(|_| live == 0.0);
        let plan = Self { geometry, live, expires, ..plan };
        let is_held = plan.setup.seed % HELD_IN == HELD_IN / 8;
        if is_held { plan.held_up(&mut rare) } else { plan }
    }

    /// The same with a client that is held in the middle of its first operation.
    fn held_up(self, rng: &mut Rng) -> Self {
        // A held client has not died, and its operation was not dropped.
        Self {
            held: Some(rng.u32(1..12)),
            at_once: 1,
            lives: 1,
            drops: 0.0,
            modify: 0.0,
            live: 0.0,
            ..self
        }
    }

    /// Returns the fault rates once the store is prepared.
    fn chaos(&self, rng: &mut Rng) -> FaultRates {
        let clients = self.setup.clients - 1;
        let chaos = match rng.u8(..5) {
            0 | 1 => FaultRates::NONE,
            _ => FaultRates::random(rng, self.setup.nodes, clients, 1500.0),
        };
        let chaos =
            if self.held.is_some() { FaultRates { client_crash: 0.0, ..chaos } } else { chaos };
        if self.near > 0.0 { chaos.beside_near() } else { chaos }
    }

    /// Returns how many operations a task of a client does, if others do `usual`.
    fn rounds(&self, client: usize, usual: u64) -> u64 {
        let others = self.setup.clients as u64 - 2;
        if self.held.is_some() && client > 0 { HELD_FOR.div_ceil(others) } else { usual }
    }

    /// Returns a number above the operations of any task.
    fn most_rounds(&self) -> usize {
        if self.held.is_some() { HELD_FOR as usize + 1 } else { ROUNDS }
    }

    /// Operations are numbered below this; those at the end come after.
    fn operations(&self) -> usize {
        CLIENTS * TASKS * self.most_rounds()
    }

    fn timeouts(&self, breaks: bool) -> (u64, u64) {
        (self.late, if breaks { 50_000_000 } else { u64::MAX / 4 })
    }

    fn operation(&self, rng: &mut Rng, id: u64, story: &Story) -> (u64, Call) {
        let mut draw = rng.u32(..self.mix.iter().sum::<u32>());
        let kind = self.mix.iter().position(|&share| {
            let hit = draw < share;
            draw = draw.wrapping_sub(if hit { 0 } else { share });
            hit
        });
        let call = match kind {
            Some(0) => Call::Get,
            Some(1) => Call::Put(id),
            Some(2 | 5) => Call::Insert(id),
            Some(3) => Call::Update(id),
            _ => Call::Delete,
        };
        let further = if kind == Some(5) { 10 + rng.u64(..8) } else { rng.u64(..self.keys) };
        if self.live > 0.0 && rng.f64() < self.live {
            return (further, about_life(rng, id));
        }
        if self.modify > 0.0 && rng.f64() < self.modify {
            return modification(rng, (further, id), |key| story.last_seen(key));
        }
        (further, call)
    }
}

/// What one schedule showed.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    steps: u64,
    /// The steps of the remaining clients at the end, total and maximum.
    live_steps: u64,
    most_live_steps: u64,
    /// Clients that got the error that the pool is full, or that they cannot claim; refusals at
    /// the end.
    full: u64,
    cannot_claim: u64,
    refused: u64,
    /// How many were to be held, and how many were while the others went on.
    to_be_held: u64,
    held: u64,
    operations: u64,
    unanswered: u64,
    moves: u64,
    /// Read-modify-writes that succeeded.
    modified: u64,
    /// Values whose deadline a clock showed.
    may_expire: u64,
}

/// What is done while a client is held.
#[derive(Default)]
struct Done {
    /// Operations that other clients have begun.
    begun: Cell<u64>,
    /// How many of those while it was held.
    beside_held: Cell<u64>,
    /// The slots of clients that got the error that there is no memory, and whether it was that
    /// they cannot claim any.
    short: RefCell<BTreeSet<(usize, bool)>>,
}

impl Done {
    /// Returns whether that client gave up for lack of memory: to be judged at the end.
    fn lacked(&self, slot: usize, gave_up: GaveUp) -> bool {
        let shortage = gave_up.shortage();
        self.short.borrow_mut().extend(shortage.map(|shortage| (slot, shortage.cannot_claim)));
        shortage.is_some()
    }
}

/// A schedule that is being run.
struct Stage {
    plan: Plan,
    sim: Sim,
    recorder: Recorder,
    hung_up: Rc<Cell<bool>>,
    /// Clients that are kept until all is over, so that a death runs no destructor.
    kept: Vec<Rc<Story>>,
    done: Rc<Done>,
    /// Writes that were refused when there were no more faults.
    refused: Rc<Cell<u64>>,
    incarnations: Rc<Cell<u64>>,
    moves: Rc<Cell<u64>>,
    breaks: bool,
    conduct: ReplayRules,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.hung_up.set(true);
    }
}

impl Stage {
    fn story(&self, id: usize, slot: usize, inner: SimFabric) -> Story {
        let incarnation = self.incarnations.replace(self.incarnations.get() + 1);
        let line = Line { inner, hung_up: Rc::clone(&self.hung_up), members: None };
        let connection = (line, Rc::new(self.sim.clock(id)) as _);
        let timeouts = self.plan.timeouts(self.breaks);
        let plan = &self.plan;
        let identity = (id, slot, incarnation);
        let story =
            Story::new(connection, plan.geometry, identity, options(timeouts), &self.recorder);
        story.with_lives(plan.expires)
    }

    fn run(&mut self, steps: u64, what: &str) -> Result<(), String> {
        match self.sim.run(steps) {
            Outcome::Done => Ok(()),
            outcome => Err(format!("{outcome:?}: {what} did not end")),
        }
    }

    /// Fills the bucket, and inserts the keys that exist from the beginning.
    fn prepare(&mut self) -> Result<(), String> {
        let id = self.plan.setup.clients - 1;
        let story = self.story(id, id, self.sim.fabric(id));
        let Plan { fillers, dead, known, keys, .. } = self.plan;
        self.sim.spawn(id, async move {
            for number in 0..fillers {
                story.call(FILLERS + number, Call::Insert(900 + number), None).await.expect("fill");
            }
            for number in 0..dead {
                story.call(FILLERS + number, Call::Delete, None).await.expect("delete");
            }
            for number in 0..if known { keys } else { 0 } {
                story.call(number, Call::Put(950 + number), None).await.expect("put");
            }
        });
        self.run(STEPS, "preparation")
    }

    /// A working client: `at_once` tasks of one, or one that returns.
    fn enter(&mut self, id: usize, fabric: SimFabric, rng: &mut Rng) {
        let plan = self.plan;
        let may_fail = self.breaks;
        if plan.lives > 1 {
            let lives: Vec<Story> =
                (0..plan.lives).map(|_| self.story(id, id, fabric.clone())).collect();
            let (turns, mut rng) = (self.sim.fabric(id), Rng::with_seed(rng.u64(..)));
            let (conduct, moves) = (self.conduct.clone(), Rc::clone(&self.moves));
            let done = Rc::clone(&self.done);
            self.sim.spawn(id, async move {
                for (life, story) in lives.into_iter().enumerate() {
                    let how = (plan, &conduct, &*done);
                    operate(&story, &turns, &mut rng, how, (life, may_fail)).await;
                    moves.set(moves.get() + story.client.counters().moved);
                }
            });
            return;
        }
        let story = Rc::new(self.story(id, id, fabric));
        self.kept.push(Rc::clone(&story));
        for task in 0..plan.at_once {
            let (turns, mut rng) = (self.sim.fabric(id), Rng::with_seed(rng.u64(..)));
            let (story, conduct) = (Rc::clone(&story), self.conduct.clone());
            let (moves, done) = (Rc::clone(&self.moves), Rc::clone(&self.done));
            self.sim.spawn(id, async move {
                let before = story.client.counters().moved;
                let how = (plan, &conduct, &*done);
                operate(&story, &turns, &mut rng, how, (task, may_fail)).await;
                moves.set(moves.get() + story.client.counters().moved - before);
            });
        }
    }

    /// No more faults. One of the remaining clients, or each of them, with all that it has cached
    /// and suspects, does every kind of operation, and a new client reads every key: all succeed.
    fn live(&mut self, rng: &mut Rng) -> Result<(), String> {
        self.sim.lift_faults();
        let is_left = |story: &&Rc<Story>| !self.sim.is_dead(story.id);
        let mut left: Vec<_> = self.kept.iter().filter(is_left).cloned().collect();
        // All of them are expensive.
        if rng.u8(..8) > 0 {
            rng.shuffle(&mut left);
            left.truncate(1);
        }
        for story in left {
            let (key, refused) = (rng.u64(..self.plan.keys), Rc::clone(&self.refused));
            let (done, modifies) = (Rc::clone(&self.done), self.plan.modify > 0.0);
            if self.conduct.leaves_out(self.plan.operations() + story.id) {
                continue;
            }
            self.sim.spawn(story.id, async move {
                let first = 1000 * (story.id as u64 + 1) + 800;
                let [put, update, insert] = [first, first + 1, first + 2];
                use Call::{Delete, Get, Increment, Insert, Put, Swap, Update};
                let calls = [Get, Put(put), Update(update), Delete, Insert(insert), Get];
                let calls = calls.map(|call| (key, call));
                let (counter, add) = (COUNTERS.start, Increment(1));
                let modify = [(key, Swap(Some(first + 3))), (counter, add), (counter, Swap(None))];
                let modify = modify.into_iter().filter(|_| modifies);
                for (key, call) in calls.into_iter().chain(modify) {
                    match story.call(key, call, None).await {
                        Ok(()) => {}
                        // A get, too, if the key is being moved.
                        Err(gave_up) => {
                            let is_short = done.lacked(story.id, gave_up);
                            assert!(is_short, "{call:?} of key {key} in the end: {gave_up:?}");
                            refused.set(refused.get() + 1);
                        }
                    }
                }
            });
        }
        self.run(LIVE_STEPS, "what those that are left do in the end")?;
        self.last_look(rng)?;
        self.judge_refusals()
    }

    /// Each client that got the error that the pool is full, or that it can claim no more, got it
    /// with reason, whatever the faults. No memory is reclaimed here: what is free now was free
    /// then. A full pool has less than an eighth free, as a sixteenth is reserved. A client that
    /// can claim none has lost claims until its slot had no record left.
    fn judge_refusals(&mut self) -> Result<(), String> {
        let short = self.done.short.borrow().clone();
        let (full, cannot_claim): (Vec<_>, Vec<_>) = short.into_iter().partition(|short| !short.1);
        for (slot, _) in cannot_claim {
            if !self.has_used_its_bootstrap_records(slot) {
                return Err(format!(
                    "client {slot} has records, and reported that it cannot claim"
                ));
            }
        }
        if full.is_empty() {
            return Ok(());
        }
        let clients = self.plan.setup.clients;
        let mut lives = (0..clients).filter(|&id| !self.sim.is_dead(id));
        let id = lives.next().expect("the one that prepared the store");
        let story = self.story(id, clients, self.sim.fabric(id));
        let capacity = self.plan.geometry.capacity;
        self.sim.spawn(id, async move {
            let used = story.client.usage().await.expect("a majority answers").used_bytes;
            let is_full = capacity - used < capacity / 8;
            assert!(is_full, "{full:?}, where {used} of {capacity} B are used");
        });
        self.run(LIVE_STEPS, "a look at what is free")
    }

    /// Returns whether a slot has used all of its bootstrap records.
    fn has_used_its_bootstrap_records(&self, slot: usize) -> bool {
        let counter = self.plan.geometry.bootstrap_counter(slot);
        let mut nodes = (0..self.plan.geometry.nodes).map(|node| NodeId(node as u8));
        nodes.any(|node| u64::from(self.sim.word(node, counter) as u32) == BOOTSTRAP_RECORDS)
    }

    /// At the end, a live client reads every key.
    fn last_look(&mut self, rng: &mut Rng) -> Result<(), String> {
        let clients = self.plan.setup.clients;
        let alive: Vec<usize> = (0..clients).filter(|&id| !self.sim.is_dead(id)).collect();
        let id = alive[rng.usize(..alive.len())];
        let story = self.story(id, clients, self.sim.fabric(id));
        let done = Rc::clone(&self.done);
        self.sim.spawn(id, async move {
            let numbers = (0..4).chain(10..18).chain(COUNTERS).chain(FILLERS..FILLERS + 7);
            for number in numbers {
                let got = story.call(number, Call::Get, None).await;
                if !got.is_err_and(|gave_up| done.lacked(clients, gave_up)) {
                    got.expect("the last look");
                }
            }
        });
        self.run(LIVE_STEPS, "the last look")
    }
}

/// Runs `operation`, with its client held from poll number `polls` on until others have begun
/// enough. An operation of theirs does not count if this one has ended by that poll, or they were
/// done.
async fn held<T>(polls: u32, done: &Done, operation: impl Future<Output = T>) -> T {
    let (mut operation, mut polled) = (pin!(operation), 0);
    let mut since = None;
    let outcome = poll_fn(|cx| {
        let begun = done.begun.get();
        if polled == polls && begun < HELD_FOR {
            since.get_or_insert(begun);
            return Poll::Pending;
        }
        polled += 1;
        operation.as_mut().poll(cx)
    })
    .await;
    done.beside_held.set(since.map_or(0, |since| done.begun.get() - since));
    outcome
}

/// The operations of one task of a client.
async fn operate(
    story: &Story,
    turns: &SimFabric,
    rng: &mut Rng,
    (plan, conduct, done): (Plan, &ReplayRules, &Done),
    (task, may_fail): (usize, bool),
) {
    let rounds = rng.u64(2..=6);
    for round in 0..plan.rounds(story.id, rounds) {
        let polls: Polls = (rng.f64() < plan.drops).then(|| rng.u32(1..40));
        let many = if plan.held.is_some() { 1_000_000 } else { 1000 };
        let value = many * (story.id as u64 + 1) + 100 * task as u64 + round;
        let (key, call) = plan.operation(rng, value, story);
        if plan.held.is_none() || story.id > 0 {
            done.begun.set(done.begun.get() + 1);
        }
        if conduct.leaves_out((story.id * TASKS + task) * plan.most_rounds() + round as usize) {
            continue;
        }
        turns.turn().await;
        turns.note(format_args!("{call:?} of key {key}"));
        let called = story.call(key, call, polls);
        let outcome = match plan.held.filter(|_| (story.id, round) == (0, 0)) {
            Some(polls) => held(polls, done, called).await,
            None => called.await,
        };
        match outcome {
            Ok(()) | Err(GaveUp::Dropped) => {}
            Err(gave_up) if may_fail && gave_up.is_late() => {}
            Err(gave_up) if done.lacked(story.id, gave_up) => {}
            Err(gave_up) => panic!("client {}: {call:?} of key {key}: {gave_up:?}", story.id),
        }
        turns.note("answered");
    }
}

/// Whether an operation was a read-modify-write, and changed something.
fn has_modified(op: &Operation) -> bool {
    let is_lost = matches!(
        (op.call, op.answered),
        (Call::CompareAndSwap { .. }, Some((_, Answer::Value(_))))
    );
    op.call.is_read_modify_write() && op.answered.is_some() && !is_lost
}

/// Runs one schedule. The error says what went wrong.
fn play(plan: &Plan, conduct: &ReplayRules) -> Result<Shown, String> {
    let mut rng = Rng::with_seed(plan.setup.seed);
    let chaos = plan.chaos(&mut rng);
    let mut stage = Stage {
        plan: *plan,
        sim: Sim::new(&plan.setup),
        recorder: Recorder::new(),
        hung_up: Rc::default(),
        kept: Vec::new(),
        done: Rc::default(),
        refused: Rc::default(),
        incarnations: Rc::new(Cell::new(1)),
        moves: Rc::default(),
        breaks: chaos.disconnect > 0.0,
        conduct: conduct.clone(),
    };
    let mut result = stage.prepare();
    stage.sim.follow(conduct);
    stage.sim.set_chaos(chaos);
    for id in 0..plan.setup.clients - 1 {
        stage.sim.set_clock(id, rng.i64(-plan.skew..=plan.skew), rng.i64(-plan.drift..=plan.drift));
        if let Some((every, back)) = plan.fits.filter(|_| id.is_multiple_of(2)) {
            stage.sim.set_clock_fits(id, every, back);
        }
        // Synchronous memory answers within one poll: no client could be held in between.
        let near = rng.f64() < plan.near && (plan.held.is_none() || id > 0);
        let fabric = if near { stage.sim.near(id) } else { stage.sim.fabric(id) };
        stage.enter(id, fabric, &mut rng);
    }
    result = result.and_then(|()| stage.run(STEPS, "the play"));
    let before = stage.sim.steps();
    result = result.and_then(|()| stage.live(&mut rng));
    let live_steps = stage.sim.steps() - before;
    let history = stage.recorder.operations();
    let short = stage.done.short.borrow().clone();
    let shown = Shown {
        steps: stage.sim.steps(),
        live_steps,
        most_live_steps: live_steps,
        full: short.iter().filter(|short| !short.1).count() as u64,
        cannot_claim: short.iter().filter(|short| short.1).count() as u64,
        refused: stage.refused.get(),
        to_be_held: u64::from(plan.held.is_some()),
        held: u64::from(stage.done.beside_held.get() >= HELD_LEAST),
        operations: history.len() as u64,
        unanswered: history.iter().filter(|op| op.answered.is_none()).count() as u64,
        moves: stage.moves.get(),
        modified: history.iter().filter(|op| has_modified(op)).count() as u64,
        may_expire: history.iter().filter(|op| matches!(op.call, Call::Expire(_))).count() as u64,
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

#[test]
fn the_store_is_linearizable_and_its_operations_end() {
    let seeds = seeds(400);
    let mut total = Shown::default();
    for seed in seeds.clone() {
        let plan = Plan::random(seed);
        // Panics in the store name no seed: they are caught to add it.
        let Ok(Ok(shown)) = std::panic::catch_unwind(|| play(&plan, &ReplayRules::free())) else {
            let operations = plan.operations() + CLIENTS;
            let story = story(operations, |conduct| play(&plan, conduct).map(drop));
            let again = again(&format!("SWARM_SEED={seed}"));
            panic!("seed {seed} (played alone by `{again}`): {story}\n{plan:?}");
        };
        total.steps += shown.steps;
        total.live_steps += shown.live_steps;
        total.most_live_steps = total.most_live_steps.max(shown.most_live_steps);
        total.full += shown.full;
        total.cannot_claim += shown.cannot_claim;
        total.refused += shown.refused;
        total.to_be_held += shown.to_be_held;
        total.held += shown.held;
        total.operations += shown.operations;
        total.unanswered += shown.unanswered;
        total.moves += shown.moves;
        total.modified += shown.modified;
        total.may_expire += shown.may_expire;
    }
    // More than half of the clients that are to be held are held.
    assert!(total.to_be_held < 16 || total.held > 0, "nobody was held: {total:?}");
    // Otherwise nothing was tested.
    let count = seeds.count();
    assert!(count < 1000 || total.full > 0, "nobody was refused memory: {total:?}");
    assert!(count < 100 || total.modified > count as u64 / 4, "hardly any change: {total:?}");
    assert!(count < 100 || total.may_expire > count as u64 / 8, "hardly any life: {total:?}");
    println!("{count} schedules: {total:?}");
}
