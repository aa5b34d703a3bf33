//! Faults: nodes that crash or are paused, connections that break, clients that die.

use fastrand::Rng;

use super::scheduler::Sim;
use super::script::{Decision, Fault};
use super::world::NodeState;
use crate::node::NodeId;

/// Probability of each fault at each step.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct FaultRates {
    /// A node crashes, for good.
    pub node_crash: f64,
    /// A node is paused.
    pub node_freeze: f64,
    /// A paused node resumes.
    pub node_thaw: f64,
    /// A client's connection to a node breaks; posting again makes a new one.
    pub disconnect: f64,
    /// A client dies.
    pub client_crash: f64,
    /// Maximum number of nodes that are crashed or paused at a time.
    pub nodes_away: usize,
    /// Maximum number of clients that die.
    pub clients_lost: usize,
}

impl FaultRates {
    /// No faults.
    pub const NONE: Self = Self {
        node_crash: 0.0,
        node_freeze: 0.0,
        node_thaw: 0.0,
        disconnect: 0.0,
        client_crash: 0.0,
        nodes_away: 0,
        clients_lost: 0,
    };

    /// Returns rates for all faults, each about once in `steps` steps or never, for a minority of
    /// `nodes` and all but one of `clients`.
    pub fn random(rng: &mut Rng, nodes: usize, clients: usize, steps: f64) -> Self {
        let mut rate = |often: f64| {
            if rng.f64() < often { 10f64.powf(rng.f64() * -1.5) / steps } else { 0.0 }
        };
        Self {
            node_crash: rate(0.4),
            node_freeze: rate(0.3),
            node_thaw: 4.0 / steps,
            disconnect: rate(0.3),
            client_crash: rate(0.4),
            nodes_away: nodes / 2,
            clients_lost: clients - 1,
        }
    }

    /// Returns the same rates, but paused nodes never resume. A chain to a paused node on a
    /// synchronous fabric is lost without notice: its operation could lose a second node if the
    /// first one resumed.
    pub fn beside_near(self) -> Self {
        Self { node_thaw: 0.0, ..self }
    }
}

/// Returns how a clock [stands still and steps back](Sim::set_clock_fits), for one clock in eight.
/// The numbers are the nanoseconds for which it stands still at a time, and by which it is then set
/// back.
pub fn clock_fits(rng: &mut Rng) -> Option<(u64, u64)> {
    let every = [1000, 30_000, 1_000_000][rng.usize(..3)];
    let back = rng.u64(..2 * every);
    (rng.u8(..8) == 0).then_some((every, back))
}

impl Sim {
    /// Changes the fault rates from now on.
    pub fn set_chaos(&mut self, chaos: FaultRates) {
        self.chaos = chaos;
    }

    /// Ends all faults, except those for good: paused nodes resume, and no queue pair is starved.
    pub fn lift_faults(&mut self) {
        self.chaos = FaultRates::NONE;
        for node in (0..self.nodes()).map(|node| NodeId(node as u8)) {
            if self.node_state(node) == NodeState::Frozen {
                self.thaw_node(node);
            }
        }
        self.feed_all();
    }

    /// Draws a fault for this step, or none.
    pub(super) fn disturb(&mut self) {
        let chaos = self.chaos;
        let mut draw = self.rng.f64();
        let mut hits = |rate: f64| {
            draw -= rate;
            draw < 0.0
        };
        let fault = if hits(chaos.node_crash) {
            let silent = self.rng.bool();
            self.victim(chaos.nodes_away).map(|node| Fault::Crash { node, silent })
        } else if hits(chaos.node_freeze) {
            self.victim(chaos.nodes_away).map(Fault::Freeze)
        } else if hits(chaos.node_thaw) {
            let node = self.any_node();
            (self.node_state(node) == NodeState::Frozen).then_some(Fault::Thaw(node))
        } else if hits(chaos.disconnect) {
            let (client, node) = (self.rng.usize(..self.clients()), self.any_node());
            let late = self.rng.bool();
            let on = !self.is_dead(client) && self.node_state(node) == NodeState::Up;
            on.then_some(Fault::Disconnect { client, node, late })
        } else if hits(chaos.client_crash) {
            let client = self.rng.usize(..self.clients());
            let dead = (0..self.clients()).filter(|&client| self.is_dead(client)).count();
            let may = dead < chaos.clients_lost && !self.is_dead(client);
            may.then_some(Fault::Die(client))
        } else {
            None
        };
        if let Some(fault) = fault {
            self.note(Decision::Fault(fault));
            self.suffer(fault);
        }
    }

    /// Injects a fault.
    pub(super) fn suffer(&mut self, fault: Fault) {
        match fault {
            Fault::Crash { node, silent } => self.crash_node(node, silent),
            Fault::Freeze(node) => self.freeze_node(node),
            Fault::Thaw(node) => self.thaw_node(node),
            Fault::Disconnect { client, node, late } => self.disconnect(client, node, late),
            Fault::Die(client) => self.crash_client(client),
        }
    }

    fn any_node(&mut self) -> NodeId {
        NodeId(self.rng.usize(..self.nodes()) as u8)
    }

    /// Returns a node that is up, if one more may fail.
    fn victim(&mut self, most: usize) -> Option<NodeId> {
        let up = |node: &NodeId| self.node_state(*node) == NodeState::Up;
        let all = (0..self.nodes()).map(|node| NodeId(node as u8));
        let away = self.nodes() - all.filter(up).count();
        if away >= most {
            return None;
        }
        let node = self.any_node();
        (self.node_state(node) == NodeState::Up).then_some(node)
    }
}
