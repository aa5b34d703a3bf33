//! What a scheduler decided, so that all or part of it can be replayed.
//!
//! A [`Script`] is a list of decisions. A simulator that follows one carries out each decision that
//! is possible and skips the others. After the script it continues with the simplest schedule: the
//! current client goes on as long as it can, whole verbs, no faults. So any part of a script is a
//! script, and a shorter script means a simpler run.

use core::fmt;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use super::scheduler::{Sim, Task};
use super::trace::Trace;
use super::world::NodeState;
use crate::node::NodeId;

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Crash { node: NodeId, silent: bool },
    Freeze(NodeId),
    Thaw(NodeId),
    Disconnect { client: usize, node: NodeId, late: bool },
    Die(usize),
}

/// One decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// A chain of this queue accesses this word of the current verb, or all of them.
    Queue { queue: usize, word: Option<u32> },
    /// The completion at this position among those of this queue is delivered.
    Deliver { queue: usize, index: usize },
    /// This task of a client, counted among that client's, is polled.
    Poll { client: usize, task: usize },
    /// Time passes, and the client's tasks are polled.
    Pause { client: usize },
    /// A fault happens.
    Fault(Fault),
}

/// What a scheduler decided, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script(pub(super) Vec<Decision>);

impl Script {
    /// Returns the number of decisions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How a run is to be played: freely, as most are; or by a script, without some of its operations,
/// and recorded. See [`story`](super::shrink::story).
#[derive(Clone, Default)]
pub struct ReplayRules {
    pub(super) script: Option<Rc<Script>>,
    pub(super) left_out: Vec<usize>,
    /// Whether chains on synchronous fabrics run without others in between.
    pub(super) calm: bool,
    pub(super) tape: Option<Rc<RefCell<Script>>>,
    pub(super) trace: Option<Rc<RefCell<Trace>>>,
}

impl ReplayRules {
    /// Returns rules by which the scheduler decides freely.
    pub fn free() -> Self {
        Self::default()
    }

    /// Returns whether this operation, numbered by the test, is to be left out.
    pub fn leaves_out(&self, operation: usize) -> bool {
        self.left_out.contains(&operation)
    }
}

impl fmt::Debug for ReplayRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conduct").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}

/// A simulator's position in its script.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) script: Rc<Script>,
    pub(super) at: usize,
    /// The current client, once the script has ended.
    pub(super) on: usize,
}

impl Sim {
    /// Takes a step of the script, or the simplest step once it has ended.
    pub(super) fn follow_step(&mut self) -> bool {
        while let Some(following) = &mut self.following
            && let Some(&decision) = following.script.0.get(following.at)
        {
            following.at += 1;
            if self.does(decision) {
                return true;
            }
        }
        let on = self.following.as_ref().map_or(0, |following| following.on);
        for step in 0..self.clients() {
            let client = (on + step) % self.clients();
            let queues = client * self.nodes()..(client + 1) * self.nodes();
            let done = queues.clone().any(|queue| self.does(Decision::Queue { queue, word: None }))
                || queues.clone().any(|queue| self.does(Decision::Deliver { queue, index: 0 }))
                || self.poll_news(client);
            if done {
                if let Some(following) = &mut self.following {
                    following.on = client;
                }
                return true;
            }
        }
        self.pause()
    }

    /// Polls a task of a client that has news.
    fn poll_news(&mut self, client: usize) -> bool {
        let news = self.world().news(client);
        let new = |task: &Task| task.client == client && task.seen != news;
        let Some(index) = self.tasks.iter().position(new) else { return false };
        self.pauses = 0;
        self.world().time += self.step_time;
        self.poll(index);
        true
    }

    /// Carries out a decision, if it is possible.
    fn does(&mut self, decision: Decision) -> bool {
        if !self.can(decision) {
            return false;
        }
        if !matches!(decision, Decision::Fault(_) | Decision::Pause { .. }) {
            self.pauses = 0;
            let time = self.step_time;
            self.world().time += time;
        }
        match decision {
            Decision::Queue { queue, word } => self.world().step_again(queue, word),
            Decision::Deliver { queue, index } => self.world().deliver(queue, index),
            Decision::Poll { client, task } => {
                let own = |&index: &usize| self.tasks[index].client == client;
                if let Some(index) = (0..self.tasks.len()).filter(own).nth(task) {
                    self.poll(index);
                }
            }
            Decision::Pause { client } => {
                self.let_time_pass();
                self.poll_client(client);
            }
            Decision::Fault(fault) => self.suffer(fault),
        }
        true
    }

    fn can(&self, decision: Decision) -> bool {
        let world = self.world();
        match decision {
            Decision::Queue { queue, .. } => world.can_step(queue),
            Decision::Deliver { queue, .. } => world.can_deliver(queue),
            Decision::Poll { client, task } => self.tasks(client) > task,
            Decision::Pause { client } => self.tasks(client) > 0,
            Decision::Fault(Fault::Crash { node, .. } | Fault::Freeze(node)) => {
                world.node_state(node) == NodeState::Up
            }
            Decision::Fault(Fault::Thaw(node)) => world.node_state(node) == NodeState::Frozen,
            Decision::Fault(Fault::Disconnect { client, node, .. }) => {
                !world.is_dead(client) && world.node_state(node) == NodeState::Up
            }
            Decision::Fault(Fault::Die(client)) => !world.is_dead(client),
        }
    }
}
