//! The scheduler: which step is next.
//!
//! Actors are the clients' tasks, the queues of chains (one for each client and node) and the
//! deliveries of completions (likewise). A task waits by asking to be polled again, so a task
//! without news is polled only now and then. If nothing else can happen, time passes.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Waker};
use std::boxed::Box;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use fastrand::Rng;

use super::chaos::FaultRates;
use super::fabric::{SimClock, SimFabric};
use super::script::{Decision, Following, ReplayRules, Script};
use super::trace::Trace;
use super::world::{NodeState, World};
use crate::node::{Address, NodeId};

/// How the scheduler chooses.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Policy {
    /// Each actor has a weight from 1/1000 to 1, uniform on a logarithmic scale, so some are far
    /// behind. Weights are redrawn with probability `redraw` at each step.
    Weighted {
        /// How often weights change.
        redraw: f64,
    },
    /// The actor with the highest priority goes on as long as it can. At `changes` points within
    /// the first `horizon` steps, the current one becomes the last.
    Priorities {
        /// Number of changes.
        changes: usize,
        /// Number of steps within which they happen.
        horizon: u64,
    },
}

/// The parameters of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Setup {
    /// Determines everything else.
    pub seed: u64,
    /// Memory nodes: 1, 3, 5 or 7.
    pub nodes: usize,
    /// Clients.
    pub clients: usize,
    /// Words of each node's memory.
    pub words: u64,
    /// Probability that a verb of several words accesses them in several steps.
    pub tear: f64,
    /// Probability that a chain takes effect and completes when it is posted.
    pub prompt: f64,
    /// Probability that a queue pair is starved, in both directions, each time weights are drawn:
    /// it moves only when nothing else can happen.
    pub starve: f64,
    /// Probability that a queue pair is starved when its verb has one word left, so that others may
    /// see all words but that one. Until weights are redrawn, it moves only when nothing else can
    /// happen.
    pub stall: f64,
    /// Nanoseconds that each step takes.
    pub step_time: u64,
    /// How the scheduler chooses.
    pub policy: Policy,
    /// The fault rates.
    pub chaos: FaultRates,
}

impl Setup {
    /// Returns a run without faults in which every verb tears.
    pub fn new(seed: u64, nodes: usize, clients: usize) -> Self {
        Self {
            seed,
            nodes,
            clients,
            words: 1 << 20,
            tear: 1.0,
            prompt: 0.0,
            starve: 0.0,
            stall: 0.0,
            step_time: 10,
            policy: Policy::Weighted { redraw: 0.005 },
            chaos: FaultRates::NONE,
        }
    }

    /// Returns the same run with verbs that stall never, rarely or often, depending on the seed.
    /// Nothing else that is drawn from the seed depends on it.
    #[must_use]
    pub fn stalling(self) -> Self {
        let mut rng = Rng::with_seed(self.seed ^ 0x57a11);
        Self { stall: [0.0, 0.02, 0.2][rng.usize(..3)], ..self }
    }
}

/// The outcome of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All tasks of live clients are done.
    Done,
    /// Tasks wait for something that never happens.
    Stuck,
    /// Tasks were not done within the limit of steps.
    Limit,
}

pub(super) struct Task {
    pub(super) client: usize,
    future: Pin<Box<dyn Future<Output = ()>>>,
    /// The client's news when last polled.
    pub(super) seen: u64,
    weight: f32,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Actor {
    Task(usize),
    Queue(usize),
    Delivery(usize),
}

/// Factor on the weight of a task without news.
const IDLE_POLL: f32 = 0.02;
/// Factor on the weights of a starved queue pair.
const STARVED: f32 = 1e-9;
/// Time that passes when nothing else can happen: it doubles each time, from the first to the
/// second.
const FIRST_PAUSE: u64 = 64;
const LONGEST_PAUSE: u64 = 1 << 24;
/// Number of consecutive pauses after which nothing will happen any more.
const PAUSES: u32 = 300;

/// A simulated pool with its clients.
pub struct Sim {
    world: Rc<RefCell<World>>,
    pub(super) tasks: Vec<Task>,
    queue_weights: Vec<f32>,
    delivery_weights: Vec<f32>,
    enabled: Vec<(Actor, f32)>,
    clients: usize,
    nodes: usize,
    pub(super) step_time: u64,
    starve: f64,
    stall: f64,
    policy: Policy,
    changes: Vec<u64>,
    pub(super) pauses: u32,
    steps: u64,
    pub(super) following: Option<Following>,
    tape: Option<Rc<RefCell<Script>>>,
    traced: Option<Rc<RefCell<Trace>>>,
    pub(super) chaos: FaultRates,
    pub(super) rng: Rng,
}

impl Sim {
    /// Makes nodes with zeroed memory, and clients without tasks.
    pub fn new(setup: &Setup) -> Self {
        let mut rng = Rng::with_seed(setup.seed);
        let Setup { nodes, clients, .. } = *setup;
        let world = World::new(setup, rng.u64(..));
        let mut changes = Vec::new();
        if let Policy::Priorities { changes: count, horizon } = setup.policy {
            changes.extend((0..count).map(|_| rng.u64(..horizon.max(1))));
        }
        let mut sim = Self {
            world: Rc::new(RefCell::new(world)),
            tasks: Vec::new(),
            queue_weights: std::vec![0.0; clients * nodes],
            delivery_weights: std::vec![0.0; clients * nodes],
            enabled: Vec::new(),
            clients,
            nodes,
            step_time: setup.step_time,
            starve: setup.starve,
            stall: setup.stall,
            policy: setup.policy,
            changes,
            pauses: 0,
            steps: 0,
            following: None,
            tape: None,
            traced: None,
            chaos: setup.chaos,
            rng,
        };
        sim.redraw();
        sim
    }

    /// Returns a client's connections.
    pub fn fabric(&self, client: usize) -> SimFabric {
        SimFabric { world: Rc::clone(&self.world), client, near: false }
    }

    /// Returns a client's connections as a synchronous fabric, for a client whose processor
    /// accesses the nodes' memory itself.
    pub fn near(&self, client: usize) -> SimFabric {
        SimFabric { near: true, ..self.fabric(client) }
    }

    /// Lets no other client do anything in the middle of a step of a synchronous one. By default chance
    /// decides, which an exploration of all schedules cannot repeat.
    pub fn keep_calm(&self) {
        self.world.borrow_mut().calm = true;
    }

    /// Returns a client's clock.
    pub fn clock(&self, client: usize) -> SimClock {
        SimClock { world: Rc::clone(&self.world), client }
    }

    /// Sets a client's clock `skew` nanoseconds ahead, with a drift of `drift` microseconds a
    /// second.
    pub fn set_clock(&self, client: usize, skew: i64, drift: i64) {
        self.world.borrow_mut().set_clock(client, skew, drift);
    }

    /// Makes a client's clock stand still for `every` nanoseconds, and set back by `back`, in turn.
    pub fn set_clock_fits(&self, client: usize, every: u64, back: u64) {
        self.world.borrow_mut().set_clock_fits(client, every, back);
    }

    /// Gives a client a task. Ignored if it is dead.
    pub fn spawn(&mut self, client: usize, task: impl Future<Output = ()> + 'static) {
        if self.is_dead(client) {
            return;
        }
        let weight = draw(&mut self.rng);
        self.tasks.push(Task { client, future: Box::pin(task), seen: u64::MAX, weight });
    }

    /// Runs by the rules of `conduct` from now on.
    pub fn follow(&mut self, conduct: &ReplayRules) {
        self.following = conduct.script.clone().map(|script| Following { script, at: 0, on: 0 });
        self.world().calm = conduct.calm;
        self.tape.clone_from(&conduct.tape);
        self.traced.clone_from(&conduct.trace);
        if self.traced.is_some() {
            self.start_trace();
        }
    }

    /// Records what happens from now on.
    pub fn start_trace(&self) {
        self.world.borrow_mut().trace = Some(Trace::default());
    }

    /// Returns what happened since [`start_trace`](Self::start_trace).
    pub fn take_trace(&self) -> Trace {
        self.world.borrow_mut().trace.take().unwrap_or_default()
    }

    /// Returns the word at `at` of `node`.
    pub fn word(&self, node: NodeId, at: Address) -> u64 {
        self.world.borrow().word(node, at)
    }

    /// Sets the word at `at` of `node`, as if it had always had this value.
    pub fn set_word(&self, node: NodeId, at: Address, value: u64) {
        self.world.borrow_mut().set_word(node, at, value);
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the number of clients, alive or dead.
    pub fn clients(&self) -> usize {
        self.clients
    }

    /// Returns whether a client has died.
    pub fn is_dead(&self, client: usize) -> bool {
        self.world.borrow().is_dead(client)
    }

    /// Returns whether a node is crashed or paused.
    pub fn is_away(&self, node: NodeId) -> bool {
        self.node_state(node) != NodeState::Up
    }

    /// Returns how many tasks a client has.
    pub fn tasks(&self, client: usize) -> usize {
        self.tasks.iter().filter(|task| task.client == client).count()
    }

    /// Returns how often a client's tasks were polled so far.
    pub fn polls(&self, client: usize) -> u64 {
        self.world.borrow().polls(client)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Runs until all tasks are done, nothing happens any more, or `limit` steps were taken.
    pub fn run(&mut self, limit: u64) -> Outcome {
        for _ in 0..limit {
            if self.tasks.is_empty() {
                return Outcome::Done;
            }
            if self.chaos != FaultRates::NONE && self.following.is_none() {
                self.disturb();
            }
            if !self.step() {
                return Outcome::Stuck;
            }
        }
        if self.tasks.is_empty() { Outcome::Done } else { Outcome::Limit }
    }

    /// Takes up to `most` steps for clients that the caller polls. Returns how many: 0 if nothing
    /// can happen until they post again.
    pub fn drive(&mut self, most: u64) -> u64 {
        for taken in 0..most {
            self.find_enabled();
            if self.enabled.is_empty() {
                return taken;
            }
            self.step();
        }
        most
    }

    /// Lets every chain that can take effect do so; delivers nothing and polls no task.
    pub fn drain(&mut self) {
        let mut world = self.world.borrow_mut();
        for queue in 0..self.clients * self.nodes {
            while world.can_step(queue) {
                world.step(queue, None);
            }
        }
    }

    /// Takes one step; returns `false` if nothing will happen any more.
    fn step(&mut self) -> bool {
        self.steps += 1;
        if self.following.is_some() {
            return self.follow_step();
        }
        if let Policy::Weighted { redraw, .. } = self.policy
            && self.rng.f64() < redraw
        {
            self.redraw();
        }
        self.find_enabled();
        let Some(actor) = self.choose() else { return self.pause() };
        self.pauses = 0;
        let mut world = self.world.borrow_mut();
        world.time += self.step_time;
        let decision = match actor {
            Actor::Queue(queue) => {
                let word = world.step(queue, None);
                if self.stall > 0.0 && world.has_one_word_left(queue) && self.rng.f64() < self.stall
                {
                    self.queue_weights[queue] *= STARVED;
                }
                Decision::Queue { queue, word }
            }
            Actor::Delivery(queue) => Decision::Deliver { queue, index: world.deliver_any(queue) },
            Actor::Task(index) => {
                drop(world);
                let client = self.tasks[index].client;
                let before = self.tasks[..index].iter().filter(|task| task.client == client);
                let task = before.count();
                self.note(Decision::Poll { client, task });
                self.poll(index);
                return true;
            }
        };
        drop(world);
        self.note(decision);
        true
    }

    /// Records a decision.
    pub(super) fn note(&mut self, decision: Decision) {
        if let Some(tape) = &self.tape {
            tape.borrow_mut().0.push(decision);
        }
    }

    fn find_enabled(&mut self) {
        self.enabled.clear();
        let world = self.world.borrow();
        for queue in 0..self.queue_weights.len() {
            if world.can_step(queue) {
                self.enabled.push((Actor::Queue(queue), self.queue_weights[queue]));
            }
            if world.can_deliver(queue) {
                self.enabled.push((Actor::Delivery(queue), self.delivery_weights[queue]));
            }
        }
        let new = |task: &Task| world.news(task.client) != task.seen;
        let idle = match self.policy {
            Policy::Weighted { .. } => {
                let news = self.tasks.iter().any(new);
                if self.enabled.is_empty() && !news { 0.0 } else { IDLE_POLL }
            }
            Policy::Priorities { .. } => 0.0,
        };
        for (index, task) in self.tasks.iter().enumerate() {
            let weight = if new(task) { task.weight } else { task.weight * idle };
            if weight > 0.0 {
                self.enabled.push((Actor::Task(index), weight));
            }
        }
    }

    fn choose(&mut self) -> Option<Actor> {
        if let Policy::Priorities { .. } = self.policy {
            let first = self.enabled.iter().max_by(|one, two| one.1.total_cmp(&two.1))?.0;
            if self.changes.contains(&self.steps) {
                *self.weight(first) /= 1e6;
            }
            return Some(first);
        }
        let total: f32 = self.enabled.iter().map(|&(_, weight)| weight).sum();
        let mut draw = self.rng.f32() * total;
        for &(actor, weight) in &self.enabled {
            draw -= weight;
            if draw < 0.0 {
                return Some(actor);
            }
        }
        self.enabled.last().map(|&(actor, _)| actor)
    }

    fn weight(&mut self, actor: Actor) -> &mut f32 {
        match actor {
            Actor::Task(task) => &mut self.tasks[task].weight,
            Actor::Queue(queue) => &mut self.queue_weights[queue],
            Actor::Delivery(queue) => &mut self.delivery_weights[queue],
        }
    }

    /// Lets time pass and polls a client, which may look at the clock.
    pub(super) fn pause(&mut self) -> bool {
        self.let_time_pass();
        let clients: Vec<usize> = self.tasks.iter().map(|task| task.client).collect();
        if !clients.is_empty() {
            let client = match self.following {
                Some(_) => clients[self.pauses as usize % clients.len()],
                None => clients[self.rng.usize(..clients.len())],
            };
            self.note(Decision::Pause { client });
            self.poll_client(client);
        }
        self.pauses < PAUSES
    }

    pub(super) fn let_time_pass(&mut self) {
        let pause = (FIRST_PAUSE << self.pauses.min(30)).min(LONGEST_PAUSE);
        self.pauses += 1;
        self.world.borrow_mut().time += pause;
    }

    /// Polls a task, and removes it if it is done.
    pub(super) fn poll(&mut self, index: usize) -> bool {
        let task = &mut self.tasks[index];
        let client = task.client;
        {
            let mut world = self.world.borrow_mut();
            task.seen = world.news(client);
            world.polled(client);
        }
        let done = task.future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        if done {
            drop(self.tasks.remove(index));
            // Other tasks of this client may wait for it.
            self.world.borrow_mut().wake(client);
        }
        done
    }

    /// Polls each task of a client once.
    pub(super) fn poll_client(&mut self, client: usize) {
        let mut index = 0;
        while index < self.tasks.len() {
            let done = self.tasks[index].client == client && self.poll(index);
            if !done {
                index += 1;
            }
        }
    }

    /// Drops a client's tasks wherever they are. What it has posted is on its way still.
    pub fn drop_tasks(&mut self, client: usize) {
        // Dropping a future drops its completions, which borrow the world: it must not be borrowed
        // here.
        self.tasks.retain(|task| task.client != client);
    }

    pub(super) fn world(&self) -> core::cell::RefMut<'_, World> {
        self.world.borrow_mut()
    }

    pub(super) fn node_state(&self, node: NodeId) -> NodeState {
        self.world.borrow().node_state(node)
    }

    /// Ends starvation and stalls.
    pub(super) fn feed_all(&mut self) {
        (self.starve, self.stall) = (0.0, 0.0);
        self.redraw();
    }

    fn redraw(&mut self) {
        let rng = &mut self.rng;
        self.queue_weights.iter_mut().for_each(|weight| *weight = draw(rng));
        self.delivery_weights.iter_mut().for_each(|weight| *weight = draw(rng));
        for queue in 0..self.queue_weights.len() {
            if self.starve > 0.0 && rng.f64() < self.starve {
                self.queue_weights[queue] *= STARVED;
                self.delivery_weights[queue] *= STARVED;
            }
        }
        self.tasks.iter_mut().for_each(|task| task.weight = draw(rng));
    }
}

impl Drop for Sim {
    /// Passes the trace on, also if the run panicked.
    fn drop(&mut self) {
        if let Some(traced) = &self.traced {
            *traced.borrow_mut() = self.take_trace();
        }
    }
}

fn draw(rng: &mut Rng) -> f32 {
    10f32.powf(rng.f32() * -3.0)
}
