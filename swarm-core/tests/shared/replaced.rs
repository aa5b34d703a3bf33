//! A group in which a node is lost and another one takes its place: as its clients see it, and the
//! steps of the replacement.
//!
//! The new node is one node more of the simulator, with zeroed memory. Each client's fabric sees
//! the group's nodes: in the lost one's place it sees the old node, nothing, or the new one.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use fastrand::Rng;
use swarm_core::fabric::{EpochDomain, Fabric, NodeDown, Verb};
use swarm_core::node::NodeId;
use swarm_core::sim::seeds::{again, seeds};
use swarm_core::sim::shrink::story;
use swarm_core::sim::{FaultRates, Outcome, ReplayRules, Sim, SimCompletion, SimFabric};

/// Clients that fill. Any of them may die.
pub(crate) const FILLERS: usize = 2;
/// When a client gives up, in nanoseconds: a round that learned that the lost node is down waits in
/// vain if the next one is lost silently.
pub(crate) const DEADLINE: u64 = 50_000_000;

/// What stands in the lost node's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The old node.
    Old,
    /// Nothing: the node is down for everybody.
    Gone,
    /// The new node.
    New,
}

/// The group's configuration, which all clients share.
#[derive(Debug)]
pub(crate) struct Configuration {
    pub(crate) lost: NodeId,
    /// The simulator's number of the new node.
    pub(crate) new: NodeId,
    pub(crate) stage: Cell<Stage>,
}

/// The group's nodes as one client sees them.
#[derive(Clone, Debug)]
pub(crate) struct Replaced {
    pub(crate) inner: SimFabric,
    pub(crate) configuration: Rc<Configuration>,
    /// Whether it sees the new node from the beginning: for what a filler posts there.
    pub(crate) fills: bool,
}

/// A chain to a node, or to none.
pub(crate) enum Completion<'f> {
    Posted(SimCompletion<'f>),
    Down,
}

impl Future for Completion<'_> {
    type Output = Result<Vec<u64>, NodeDown>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Posted(posted) => Pin::new(posted).poll(cx),
            Self::Down => Poll::Ready(Err(NodeDown)),
        }
    }
}

impl Fabric for Replaced {
    type EpochDomain = Box<dyn EpochDomain>;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Completion<'f>;

    fn is_near(&self) -> bool {
        self.inner.is_near()
    }

    fn nodes(&self) -> usize {
        self.inner.nodes() - 1
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Completion<'f> {
        let Configuration { lost, new, stage, .. } = &*self.configuration;
        let node = match stage.get() {
            _ if node != *lost => node,
            _ if self.fills => *new,
            Stage::Old => node,
            Stage::Gone => return Completion::Down,
            Stage::New => *new,
        };
        Completion::Posted(self.inner.post(node, chain))
    }
}

/// How far a client's operations are.
#[derive(Clone, Default)]
pub(crate) struct Progress {
    begun: Rc<Cell<u64>>,
    ended: Rc<Cell<u64>>,
}

impl Progress {
    /// An operation begins.
    pub(crate) fn begin(&self) {
        self.begun.set(self.begun.get() + 1);
    }

    /// All that have begun are over.
    pub(crate) fn end(&self) {
        self.ended.set(self.begun.get());
    }
}

/// What a filler waits for, of one client: all that began before the lost node was gone.
struct Earlier {
    fabric: SimFabric,
    id: usize,
    progress: Progress,
    operations: u64,
}

impl Earlier {
    fn is_over(&self) -> bool {
        self.progress.ended.get() >= self.operations || self.fabric.is_gone(self.id)
    }
}

/// What schedules showed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    steps: u64,
    operations: u64,
    replaced: u64,
    lost_again: u64,
}

/// A schedule in which a node is replaced.
pub(crate) struct Replacement {
    pub(crate) sim: Sim,
    pub(crate) rng: Rng,
    pub(crate) configuration: Rc<Configuration>,
    shown: Shown,
    /// Of the clients, then of the fillers.
    pub(crate) progress: Vec<Progress>,
    /// Steps after which it counts as one that never ends.
    limit: u64,
}

impl Replacement {
    /// In `sim`, whose last node is the new one and whose last clients are the fillers.
    pub(crate) fn new(sim: Sim, rng: Rng, lost: NodeId, limit: u64) -> Self {
        let new = NodeId((sim.nodes() - 1) as u8);
        let configuration = Rc::new(Configuration { lost, new, stage: Cell::new(Stage::Old) });
        let progress = (0..sim.clients()).map(|_| Progress::default()).collect();
        Self { sim, rng, configuration, shown: Shown::default(), progress, limit }
    }

    /// Returns the number of the group's nodes.
    pub(crate) fn nodes(&self) -> usize {
        self.sim.nodes() - 1
    }

    /// Returns the number of clients that do not fill.
    pub(crate) fn clients(&self) -> usize {
        self.progress.len() - FILLERS
    }

    /// Returns what it showed, with so many operations.
    pub(crate) fn shown(&self, operations: usize) -> Shown {
        Shown { steps: self.sim.steps(), operations: operations as u64, ..self.shown }
    }

    /// Returns the simulator's number of what stands for one of the group's nodes in the end.
    pub(crate) fn physical(&self, node: NodeId) -> NodeId {
        if node == self.configuration.lost { self.configuration.new } else { node }
    }

    /// Runs everything: a node is lost, or declared so; clients with the task that `fill` makes fill
    /// the new one; it votes; and then as many others are lost as the group stands.
    pub(crate) fn play<T: Future<Output = ()> + 'static>(
        &mut self,
        mut fill: impl FnMut(&mut Self, usize) -> T,
    ) -> Result<(), String> {
        let early = self.rng.u64(..800);
        self.run(early)?;
        if self.rng.bool() {
            self.sim.crash_node(self.configuration.lost, self.rng.bool());
            let unnoticed = self.rng.u64(..300);
            self.run(unnoticed)?;
        }
        self.configuration.stage.set(Stage::Gone);
        for id in self.clients()..self.progress.len() {
            let task = fill(self, id);
            self.begin_to_fill(id, task);
        }
        let mut taken = 0;
        while self.configuration.stage.get() != Stage::New && self.run(20)? {
            taken += 20;
            if taken > self.limit {
                return Err("the node is not replaced".to_owned());
            }
        }
        if self.configuration.stage.get() == Stage::New {
            self.shown.replaced = 1;
            let later = self.rng.u64(..300);
            let is_busy = self.run(later)?;
            self.lose_more();
            self.shown.lost_again = u64::from(is_busy);
        }
        self.finish("not every operation ended")
    }

    /// Gives a client the task to fill the new node once all is over that began before, and to let
    /// it vote once nobody fills it any more.
    fn begin_to_fill(&mut self, id: usize, fill: impl Future<Output = ()> + 'static) {
        let (earlier, turns, wait) = (self.earlier(), self.sim.fabric(id), self.rng.u32(..20));
        let fillers = self.clients()..self.progress.len();
        let fillers: Vec<_> = fillers.map(|id| (id, self.progress[id].clone())).collect();
        let (own, configuration) = (self.progress[id].clone(), self.configuration.clone());
        self.sim.spawn(id, async move {
            for _ in 0..wait {
                turns.turn().await;
            }
            while !earlier.iter().all(Earlier::is_over) {
                turns.turn().await;
            }
            own.begin();
            fill.await;
            own.end();
            // This one has filled it.
            let has_ended = |of: &Progress| of.ended.get() > 0;
            while !fillers.iter().all(|(id, of)| has_ended(of) || turns.is_gone(*id)) {
                turns.turn().await;
            }
            configuration.stage.set(Stage::New);
        });
    }

    fn earlier(&self) -> Vec<Earlier> {
        let of = |id: usize| {
            let (fabric, progress) = (self.sim.fabric(id), self.progress[id].clone());
            Earlier { fabric, id, operations: progress.begun.get(), progress }
        };
        (0..self.clients()).map(of).collect()
    }

    /// Runs for some steps. Returns whether tasks are left.
    fn run(&mut self, steps: u64) -> Result<bool, String> {
        match self.sim.run(steps) {
            Outcome::Done => Ok(false),
            Outcome::Limit => Ok(true),
            Outcome::Stuck => Err("not every operation ended".to_owned()),
        }
    }

    /// Runs until all tasks are done; else it is this that went wrong.
    fn finish(&mut self, wrong: &str) -> Result<(), String> {
        if self.run(self.limit)? { Err(wrong.to_owned()) } else { Ok(()) }
    }

    /// Loses nodes of the group, the new one among them perhaps: as many as it stands.
    fn lose_more(&mut self) {
        let nodes = self.nodes();
        for _ in 0..nodes / 2 {
            let node = NodeId(self.rng.u8(..nodes as u8));
            let node = self.physical(node);
            if !self.sim.is_away(node) {
                self.sim.crash_node(node, self.rng.bool());
            }
        }
    }

    /// At the end, a live client does this, without faults.
    pub(crate) fn at_last<T: Future<Output = ()> + 'static>(
        &mut self,
        read: impl FnOnce(&mut Self, usize) -> T,
    ) -> Result<(), String> {
        self.sim.set_chaos(FaultRates::NONE);
        let live = (0..self.progress.len()).rfind(|&id| !self.sim.is_dead(id));
        let id = live.expect("one client does not die");
        let read = read(self, id);
        self.sim.spawn(id, read);
        self.finish("the last read did not end")
    }
}

/// Plays many schedules, each with up to so many operations; prints the story of the first that
/// fails. In most a node is replaced.
pub(crate) fn explore(
    operations: impl Fn(u64) -> usize,
    play: impl Fn(u64, &ReplayRules) -> Result<Shown, String> + std::panic::RefUnwindSafe,
) {
    let seeds = seeds(2000);
    let mut total = Shown::default();
    for seed in seeds.clone() {
        let played = std::panic::catch_unwind(|| play(seed, &ReplayRules::free()));
        let Ok(Ok(shown)) = played else {
            let story = story(operations(seed), |conduct| play(seed, conduct).map(drop));
            let again = again(&format!("SWARM_SEED={seed}"));
            panic!("seed {seed} (played alone by `{again}`): {story}");
        };
        total.steps += shown.steps;
        total.operations += shown.operations;
        total.replaced += shown.replaced;
        total.lost_again += shown.lost_again;
    }
    let schedules = seeds.count() as u64;
    println!("{schedules} schedules: {total:?}");
    assert!(schedules < 100 || 2 * total.replaced > schedules, "{total:?}");
}
