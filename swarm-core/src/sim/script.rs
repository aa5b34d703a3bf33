//! What a scheduler decided, so that it can be played again, in part as well.
//!
//! A [`Script`] is a list of decisions. A simulator that follows one does what it says where that is
//! possible and passes over the rest; when the script is over it goes on by the plainest schedule
//! there is: who is on goes on as long as it can, whole verbs, nothing goes wrong. So any part of a
//! script is a script, and the shorter it is the plainer is what happens.

use core::fmt;
use std::cell::RefCell;
use std::rc::Rc;
use std::vec::Vec;

use super::scheduler::{Sim, Task};
use super::trace::Trace;
use super::world::NodeState;
use crate::node::NodeId;

/// Something that goes wrong.
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
    /// A chain of this queue touches this word of the verb under way, or all of them.
    Queue { queue: usize, word: Option<u32> },
    /// The completion at this place among those of this queue is delivered.
    Deliver { queue: usize, index: usize },
    /// This task of a client, counted among that client's, is polled.
    Poll { client: usize, task: usize },
    /// Time passes, and the client's tasks are polled.
    Pause { client: usize },
    /// Something goes wrong.
    Fault(Fault),
}

/// What a scheduler decided, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Script(pub(super) Vec<Decision>);

impl Script {
    /// How many decisions there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How a run is to be played: freely, as most are; or after a script, without some of its
/// operations, and taken down. See [`story`](super::shrink::story).
#[derive(Clone, Default)]
pub struct Conduct {
    pub(super) script: Option<Rc<Script>>,
    pub(super) left_out: Vec<usize>,
    /// Whether near memory is near without anything in between.
    pub(super) calm: bool,
    pub(super) tape: Option<Rc<RefCell<Script>>>,
    pub(super) trace: Option<Rc<RefCell<Trace>>>,
}

impl Conduct {
    /// Freely: the scheduler decides.
    pub fn free() -> Self {
        Self::default()
    }

    /// Whether this operation, numbered as the test likes, is to be left out.
    pub fn leaves_out(&self, operation: usize) -> bool {
        self.left_out.contains(&operation)
    }
}

impl fmt::Debug for Conduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conduct").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}

/// Where a simulator is in its script.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) script: Rc<Script>,
    pub(super) at: usize,
    /// The client that is on, once the script is over.
    pub(super) on: usize,
}

impl Sim {
    /// A step of the script, or, when it is over, the plainest there is.
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

    /// Polls a task of a client for which there is something new.
    fn poll_news(&mut self, client: usize) -> bool {
        let news = self.world().news(client);
        let new = |task: &Task| task.client == client && task.seen != news;
        let Some(index) = self.tasks.iter().position(new) else { return false };
        self.pauses = 0;
        self.world().time += self.step_time;
        self.poll(index);
        true
    }

    /// Does what was decided, if it can be done.
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
