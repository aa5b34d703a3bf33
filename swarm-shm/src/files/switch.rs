//! Switches: how tests and demonstrations take memory nodes away from a running pool.
//!
//! A switch is a word in the control file, so that it works across processes. The fabric itself
//! never reads it; decorators do.

use std::sync::Arc;

use swarm_core::node::NodeId;

use crate::files::control::Control;
use crate::files::mapping::Mapping;
use crate::words::sync::{Ordering, Word};

/// How a memory node is to behave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SwitchState {
    /// It works.
    #[default]
    Up = 0,
    /// It does not answer, for now.
    Frozen = 1,
    /// It is known not to answer.
    Down = 2,
}

/// One memory node's switch.
#[derive(Clone, Debug)]
pub struct NodeSwitch {
    control: Arc<Mapping>,
    node: NodeId,
}

impl NodeSwitch {
    pub(crate) fn new(control: &Control, node: NodeId) -> Self {
        Control::switch(control.mapping(), node);
        Self { control: Arc::clone(control.mapping()), node }
    }

    /// Returns the node that it switches.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Returns how the node is to behave.
    #[inline]
    pub fn get(&self) -> SwitchState {
        // Relaxed: a switch publishes no other data.
        match self.word().load(Ordering::Relaxed) {
            1 => SwitchState::Frozen,
            2 => SwitchState::Down,
            _ => SwitchState::Up,
        }
    }

    /// Sets how the node is to behave, for all processes.
    pub fn set(&self, state: SwitchState) {
        self.word().store(state as u64, Ordering::Relaxed);
    }

    #[inline]
    fn word(&self) -> &Word {
        Control::switch(&self.control, self.node)
    }
}
