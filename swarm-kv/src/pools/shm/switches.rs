//! The switches in a pool's control file, as fault injection reads them.

use swarm_core::fabric::faults::{SwitchState, Switches};
use swarm_core::node::NodeId;
use swarm_shm::{NodeSwitch, Pool};

/// The switches of all of a pool's nodes.
pub struct PoolSwitches(Vec<NodeSwitch>);

impl PoolSwitches {
    /// Returns the switches of `pool`.
    pub fn new(pool: &Pool) -> Self {
        let nodes = pool.geometry().nodes as u8;
        Self((0..nodes).map(|node| pool.switch(NodeId(node))).collect())
    }
}

impl PoolSwitches {
    /// Returns no switches: all nodes are up.
    pub fn none() -> Self {
        Self(Vec::new())
    }
}

impl Switches for PoolSwitches {
    #[inline]
    fn are_any(&self) -> bool {
        !self.0.is_empty()
    }

    #[inline]
    fn state(&self, node: NodeId) -> SwitchState {
        match self.0.get(node.index()).map(NodeSwitch::get) {
            None | Some(swarm_shm::SwitchState::Up) => SwitchState::Up,
            Some(swarm_shm::SwitchState::Frozen) => SwitchState::Frozen,
            Some(swarm_shm::SwitchState::Down) => SwitchState::Down,
        }
    }
}
