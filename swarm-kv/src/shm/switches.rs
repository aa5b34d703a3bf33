//! The switches in a pool's control file, as fault injection reads them.

use swarm_core::fabric::NodeId;
use swarm_core::faults::{SwitchState, Switches};
use swarm_shm::{NodeSwitch, Pool};

/// The switches of all of a pool's nodes.
pub struct PoolSwitches(Vec<NodeSwitch>);

impl PoolSwitches {
    /// The switches of `pool`.
    pub fn new(pool: &Pool) -> Self {
        let nodes = pool.geometry().nodes as u8;
        Self((0..nodes).map(|node| pool.switch(NodeId(node))).collect())
    }
}

impl Switches for PoolSwitches {
    #[inline]
    fn state(&self, node: NodeId) -> SwitchState {
        match self.0[node.index()].get() {
            swarm_shm::SwitchState::Up => SwitchState::Up,
            swarm_shm::SwitchState::Frozen => SwitchState::Frozen,
            swarm_shm::SwitchState::Down => SwitchState::Down,
        }
    }
}
