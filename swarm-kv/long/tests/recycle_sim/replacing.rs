//! Nodes of a simulated pool that are lost and replaced while its clients work.
//!
//! Each life of a node is a node of the simulator. A client sees the pool's nodes: by the
//! configuration that it took up last, each is one of the simulator's, or down.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fastrand::Rng;
use swarm_core::error::Error as CoreError;
use swarm_core::node::{Configuration, NodeId, NodeState};
use swarm_core::sim::{Sim, SimFabric};
use swarm_kv::{Error, Membership};
use swarm_kv_long::domain::Lives;
use swarm_kv_long::store_sim_common::{Line, Members};

/// Nodes of the simulator that take lost ones' places.
pub(crate) const SPARES: usize = 6;
/// Clients that fill, one after the other or two at a time.
pub(crate) const FILLERS: usize = 6;

/// The pool's configuration, which all clients share.
#[derive(Debug)]
pub(crate) struct Pool {
    nodes: usize,
    configuration: Cell<Configuration>,
    /// A node, its life, and the simulator's node that it is then.
    lives: RefCell<Vec<(NodeId, u32, NodeId)>>,
    /// The simulator's nodes that are known to be lost.
    lost: RefCell<Vec<NodeId>>,
}

impl Pool {
    pub(crate) fn new(nodes: usize) -> Rc<Self> {
        let first = (0..nodes as u8).map(|node| (NodeId(node), 0, NodeId(node)));
        Rc::new(Self {
            nodes,
            configuration: Cell::new(Configuration::first(nodes)),
            lives: RefCell::new(first.collect()),
            lost: RefCell::default(),
        })
    }

    fn physical(&self, node: NodeId, life: u32) -> Option<NodeId> {
        let lives = self.lives.borrow();
        lives.iter().find(|it| (it.0, it.1) == (node, life)).map(|it| it.2)
    }

    /// Returns the simulator's nodes that vote.
    fn voters(&self) -> Vec<NodeId> {
        let now = self.configuration.get();
        let physical = |node| self.physical(node, now.life(node)).expect("it was filled");
        now.voters().map(physical).collect()
    }

    /// Returns a client's view.
    pub(crate) fn view(self: &Rc<Self>) -> Rc<dyn Members> {
        Rc::new(View { pool: Rc::clone(self), seen: Cell::new(self.configuration.get()) })
    }

    /// Returns what an epoch table has to know of lives.
    pub(crate) fn lives(self: &Rc<Self>) -> (usize, Lives) {
        let pool = Rc::clone(self);
        let lives = move |node| {
            let lives = pool.lives.borrow();
            lives.iter().filter(|it| it.0 == node).map(|it| it.2).collect()
        };
        (self.nodes, Rc::new(lives))
    }
}

/// The pool's nodes, by the configuration that a client took up last.
#[derive(Debug)]
struct View {
    pool: Rc<Pool>,
    seen: Cell<Configuration>,
}

impl Members for View {
    fn nodes(&self) -> usize {
        self.pool.nodes
    }

    fn reconfigure(&self) {
        self.seen.set(self.pool.configuration.get());
    }

    fn physical(&self, node: NodeId) -> Option<NodeId> {
        let seen = self.seen.get();
        let votes = seen.state(node) == NodeState::Votes;
        votes.then(|| self.pool.physical(node, seen.life(node)).expect("it was filled"))
    }

    fn is_lost(&self) -> bool {
        false
    }
}

/// The new memory of a node.
#[derive(Debug)]
struct Joining {
    pool: Rc<Pool>,
    physical: NodeId,
}

impl Members for Joining {
    fn nodes(&self) -> usize {
        self.pool.nodes
    }

    fn reconfigure(&self) {}

    fn physical(&self, _: NodeId) -> Option<NodeId> {
        Some(self.physical)
    }

    fn is_lost(&self) -> bool {
        self.pool.lost.borrow().contains(&self.physical)
    }
}

/// What a client that fills has of the simulator.
pub(crate) struct Filler {
    pub(crate) pool: Rc<Pool>,
    pub(crate) line: Line,
    pub(crate) turns: SimFabric,
}

impl Membership for Filler {
    type Joining = Line;

    fn configuration(&self) -> Configuration {
        self.pool.configuration.get()
    }

    async fn decide(&self, next: &Configuration) -> Result<bool, Error> {
        self.turns.turn().await;
        let follows = next.follows(&self.pool.configuration.get());
        if follows {
            self.turns.note(format_args!("decides {next:?}"));
            self.pool.configuration.set(*next);
        }
        self.turns.turn().await;
        Ok(follows)
    }

    async fn join(&self, node: NodeId, life: u32) -> Result<Line, Error> {
        self.turns.turn().await;
        let spare = self.pool.lives.borrow().len();
        if spare == self.pool.nodes + SPARES {
            return Err(Error::Replication(CoreError::NO_ANSWER));
        }
        let physical = NodeId(spare as u8);
        let mut lives = self.pool.lives.borrow_mut();
        let former = lives.iter().rfind(|it| it.0 == node).expect("its first life").2;
        self.turns.succeed(former, physical);
        lives.push((node, life, physical));
        let joining = Joining { pool: Rc::clone(&self.pool), physical };
        Ok(Line { members: Some(Rc::new(joining)), ..self.line.clone() })
    }
}

/// Which node is being replaced, and when the next one is.
#[derive(Debug)]
pub(crate) struct Replacing {
    pub(crate) pool: Rc<Pool>,
    /// Steps between two looks that are left before the next node is lost.
    wait: u32,
    /// How many nodes are to be lost.
    left: usize,
    now: Option<NodeId>,
    /// The simulator's node that it was.
    lost: Option<NodeId>,
    /// The life in which it was lost.
    former: u32,
    /// Clients that fill, or have.
    fillers: Vec<usize>,
    /// How many nodes were replaced, and how many clients that fill died.
    pub(crate) replaced: u64,
    pub(crate) died: u64,
    /// How often another node was paused meanwhile.
    pub(crate) paused: u64,
    /// How likely a client that fills dies, at each look.
    deaths: f64,
    /// Whether nodes are paused while another is filling, so that too few are left, or none to spare.
    pauses: bool,
    /// One that is paused, and for how many looks.
    now_paused: Option<(NodeId, u32)>,
}

impl Replacing {
    pub(crate) fn new(nodes: usize, rng: &mut Rng) -> Self {
        Self {
            pool: Pool::new(nodes),
            wait: rng.u32(..60),
            left: [1, 2, 2, 4][rng.usize(..4)],
            now: None,
            lost: None,
            former: 0,
            fillers: Vec::new(),
            replaced: 0,
            died: 0,
            paused: 0,
            deaths: [0.0, 0.0, 0.02][rng.usize(..3)],
            pauses: false,
            now_paused: None,
        }
    }

    /// The same, where other nodes are paused while one is filling, if there are no faults but
    /// these.
    pub(crate) fn with_pauses(self, is_calm: bool) -> Self {
        Self { pauses: is_calm, ..self }
    }

    /// Pauses a node for a while, or lets it go on.
    fn pause(&mut self, sim: &mut Sim, rng: &mut Rng, is_filling: bool) {
        match &mut self.now_paused {
            Some((_, looks)) if is_filling && *looks > 0 => *looks -= 1,
            Some((node, _)) => {
                sim.thaw_node(*node);
                self.now_paused = None;
            }
            None if self.pauses && is_filling && rng.u8(..8) == 0 => {
                let voters = self.pool.voters();
                let node = voters[rng.usize(..voters.len())];
                // What is lost may be gone at any moment, and its connections end.
                let is_lost = self.lost.is_some_and(|lost| lost == node);
                if !sim.is_away(node) && !is_lost {
                    sim.freeze_node(node);
                    self.now_paused = Some((node, rng.u32(1..20)));
                    self.paused += 1;
                }
            }
            None => {}
        }
    }

    /// The same, where one node is lost, whichever clients die.
    pub(crate) fn one(self) -> Self {
        Self { left: 1, deaths: 0.0, ..self }
    }

    /// Nothing happens any more: connections to nodes that were paused for good end, and the next
    /// node is lost at once.
    pub(crate) fn hurries(&mut self, sim: &mut Sim) {
        self.wait = 0;
        if let Some((node, _)) = self.now_paused.take() {
            sim.thaw_node(node);
        }
        let all = (0..sim.nodes()).map(|node| NodeId(node as u8));
        let away: Vec<_> = all.filter(|node| sim.is_away(*node)).collect();
        away.into_iter().for_each(|node| sim.crash_node(node, true));
    }

    /// Whether no node is being replaced, nor will be.
    pub(crate) fn is_over(&self) -> bool {
        self.left == 0 && self.now.is_none()
    }

    /// Returns how many of the simulator's nodes may be away so that a majority is there, though
    /// one that is about to be lost is not.
    pub(crate) fn may_be_away(&self, sim: &Sim) -> usize {
        let mut voters = self.pool.voters();
        if let Some(node) = self.now {
            let now = self.pool.configuration.get();
            voters.retain(|voter| self.pool.physical(node, now.life(node)) != Some(*voter));
        }
        let all = (0..sim.nodes()).map(|node| NodeId(node as u8));
        let others = all.filter(|node| sim.is_away(*node) && !voters.contains(node)).count();
        let majority = self.pool.nodes / 2 + 1;
        others + voters.len().saturating_sub(majority)
    }

    /// Returns a node that may be lost, and loses it, or not.
    fn victim(&mut self, sim: &mut Sim, rng: &mut Rng) -> Option<NodeId> {
        let voters = self.pool.voters();
        let away: Vec<_> = voters.iter().filter(|it| sim.is_away(**it)).copied().collect();
        let may_lose_another = away.len() < self.pool.nodes / 2;
        let any = if may_lose_another { &voters } else { &away };
        let physical = any[rng.usize(..any.len())];
        // What was paused does not go on: its connections end.
        if sim.is_away(physical) || rng.bool() {
            sim.crash_node(physical, rng.bool());
        }
        self.lost = Some(physical);
        let lives = self.pool.lives.borrow();
        lives.iter().find(|it| it.2 == physical).map(|it| it.0)
    }

    /// Crashes as many nodes as the pool stands, or fewer.
    pub(crate) fn lose_more(&self, sim: &mut Sim, rng: &mut Rng) {
        let voters = self.pool.voters();
        for _ in 0..self.pool.nodes / 2 {
            let away = voters.iter().filter(|it| sim.is_away(**it)).count();
            let node = voters[rng.usize(..voters.len())];
            if !sim.is_away(node) && voters.len() - away > self.pool.nodes / 2 + 1 {
                sim.crash_node(node, rng.bool());
            }
        }
    }

    /// Goes on after some steps. Returns a node that is to be filled, by how many clients.
    pub(crate) fn goes_on(&mut self, sim: &mut Sim, rng: &mut Rng) -> Option<(NodeId, usize)> {
        let all = (0..sim.nodes()).map(|node| NodeId(node as u8));
        let away: Vec<_> = all.filter(|node| sim.is_away(*node)).collect();
        // Connections to what is no node of the pool's any more, or not yet, end if it is away.
        let voters = self.pool.voters();
        away.iter().filter(|it| !voters.contains(it)).for_each(|it| sim.crash_node(*it, true));
        *self.pool.lost.borrow_mut() = away;
        let active: Vec<_> =
            self.fillers.iter().filter(|&&id| sim.tasks(id) > 0).copied().collect();
        self.pause(sim, rng, self.now.is_some() && !active.is_empty());
        let Some(node) = self.now else {
            self.wait = self.wait.saturating_sub(1);
            if self.wait > 0 || self.left == 0 {
                return None;
            }
            self.left -= 1;
            self.now = self.victim(sim, rng);
            self.former = self.pool.configuration.get().life(self.now?);
            return Some((self.now?, if rng.u8(..4) == 0 { 2 } else { 1 }));
        };
        if !active.is_empty() {
            if rng.f64() < self.deaths {
                sim.crash_client(active[rng.usize(..active.len())]);
                self.died += 1;
            }
            return None;
        }
        let now = self.pool.configuration.get();
        if now.state(node) == NodeState::Votes && now.life(node) != self.former {
            self.replaced += 1;
            self.now = None;
            self.wait = [0, rng.u32(..60)][rng.usize(..2)];
            if rng.bool() {
                self.lose_more(sim, rng);
            }
            return None;
        }
        Some((node, 1))
    }

    /// A client fills.
    pub(crate) fn fills(&mut self, client: usize) {
        self.fillers.push(client);
    }

    /// There is no client left that could fill: the node stays gone.
    pub(crate) fn is_given_up(&mut self) {
        self.left = 0;
        self.now = None;
    }
}
