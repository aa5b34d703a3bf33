//! Memory nodes that can be taken away: near ones by a switch in the pool's control file, far ones by
//! signals to their daemons, where these run on this host.
//!
//! A daemon that is stopped goes on serving, as its card does all the work; so freezing a far node
//! shows that nobody notices. One that is killed is gone for good, with its memory.

#[cfg(feature = "rdma")]
use std::sync::Arc;
#[cfg(feature = "rdma")]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "rdma")]
use rustix::process::{Pid, Signal, kill_process};
use swarm_core::node::NodeId;
use swarm_shm::NodeSwitch;
use swarm_shm::SwitchState;
use swarm_worker::pool::Pool;

use crate::common::exit::Failure;

/// What takes a node away.
#[derive(Clone)]
pub(crate) enum Switch {
    Near(NodeSwitch),
    #[cfg(feature = "rdma")]
    Process {
        process: Pid,
        /// Nobody else's process is to get a signal that was meant for this one.
        killed: Arc<AtomicBool>,
    },
}

impl Switch {
    /// Takes the node away or gives it back. A process that was killed does not come back.
    pub(crate) fn set(&self, state: SwitchState) {
        match self {
            Self::Near(switch) => switch.set(state),
            #[cfg(feature = "rdma")]
            Self::Process { process, killed } => {
                let signal = match state {
                    SwitchState::Up => Signal::CONT,
                    SwitchState::Frozen => Signal::STOP,
                    SwitchState::Down => Signal::KILL,
                };
                // Relaxed: one thread at a time turns switches.
                if !killed.load(Ordering::Relaxed) {
                    // One that ended by itself is as gone as it is meant to be.
                    let _ = kill_process(*process, signal);
                }
                if state == SwitchState::Down {
                    killed.store(true, Ordering::Relaxed);
                }
            }
        }
    }
}

/// The switches of a pool's nodes.
pub(crate) fn switches(pool: &Pool) -> Result<Vec<Switch>, Failure> {
    match pool {
        Pool::Near(near) => {
            let nodes = near.geometry().nodes as u8;
            Ok((0..nodes).map(|node| Switch::Near(near.switch(NodeId(node)))).collect())
        }
        #[cfg(feature = "rdma")]
        Pool::Far(far) => {
            let elsewhere = || {
                Failure::Usage(format!(
                    "not all memory nodes of {} run on this host; only those that do can be killed \
                     or stopped from here",
                    pool.path().display()
                ))
            };
            let process = |id: Option<u32>| {
                let process = Pid::from_raw(id? as i32)?;
                Some(Switch::Process { process, killed: Arc::default() })
            };
            let found = far.node_processes().into_iter();
            found.map(|id| process(id).ok_or_else(elsewhere)).collect()
        }
    }
}
