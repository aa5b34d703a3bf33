//! RDMA pools, as the commands use them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use swarm_core::layout::Geometry;
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_kv::rdma::control::protocol::Status;
use swarm_kv::rdma::control::{Error as PlaneError, Evicted, Holder, NodeEntry, label};
use swarm_kv::rdma::{self, DeviceChoice, Fault, NodeStatus, PoolAddress, PoolSpec};
use swarm_kv::shm::Numa;
use swarm_kv::{Error, Options, Usage, Verdict};

use crate::Failure;
use crate::pool_options::PoolOptions;
use crate::task::Task;

/// The device that this process uses, from its command line.
static DEVICE: OnceLock<DeviceChoice> = OnceLock::new();

/// For how long a node may be silent, from the command line.
static NODE_TIMEOUT: OnceLock<Duration> = OnceLock::new();

/// Sets the device for this process, and for how long nodes may be silent.
pub fn choose(device: DeviceChoice, node_timeout: Option<Duration>) {
    // The command line is parsed once.
    let _ = DEVICE.set(device);
    if let Some(time) = node_timeout {
        let _ = NODE_TIMEOUT.set(time);
    }
}

fn patient(pool: rdma::Pool) -> rdma::Pool {
    match NODE_TIMEOUT.get() {
        Some(&time) => pool.node_timeout(time),
        None => pool,
    }
}

/// Returns the chosen device.
pub fn device() -> DeviceChoice {
    DEVICE.get().cloned().unwrap_or_default()
}

/// An RDMA pool.
pub struct FarPool {
    pool: rdma::Pool,
    path: PathBuf,
}

impl FarPool {
    /// Creates a pool.
    pub fn create(name: &str, wishes: PoolOptions<'_>) -> Result<Self, Failure> {
        let PoolOptions { nodes, capacity, max_clients, slots, pointer_bits, numa, .. } = wishes;
        let PoolOptions { node_paths, rights, any_file_system, .. } = wishes;
        if pointer_bits.is_some() {
            return Err(Failure::Usage(format!("{name}: its pointers have the bits they need")));
        }
        if !node_paths.is_empty() {
            return Err(Failure::Usage(format!(
                "{name}: its memory nodes choose where their memory lies (`swarm memnode \
                 --memory`)"
            )));
        }
        if numa != Numa::Default {
            return Err(Failure::Usage(format!(
                "{name}: its memory lies on its memory nodes; start them under `numactl`"
            )));
        }
        if rights.is_some() || any_file_system {
            return Err(Failure::Usage(format!(
                "{name}: it has no files, and so no mode, group or file system"
            )));
        }
        let wishes = PoolSpec { nodes, capacity, max_clients, slots };
        let pool = patient(rdma::Pool::create(&address(name)?, &wishes, device())?);
        Ok(Self { pool, path: name.into() })
    }

    /// Opens a pool.
    pub fn open(name: &str) -> Result<Self, Failure> {
        let pool = patient(rdma::Pool::open(&address(name)?, device())?);
        Ok(Self { pool, path: name.into() })
    }

    /// Removes a pool.
    pub fn destroy(name: &str, force: bool) -> Result<(), Failure> {
        Ok(rdma::Pool::destroy(&address(name)?, force)?)
    }

    /// Returns the pool's name on the command line.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the layout of its nodes' memory.
    pub fn geometry(&self) -> Geometry {
        self.pool.geometry()
    }

    /// Returns the clients that hold a client slot.
    pub fn clients(&self) -> Result<Vec<Holder>, Failure> {
        Ok(self.pool.clients()?)
    }

    /// Returns the pool's usage.
    pub fn usage(&self) -> Result<Result<Usage, Error>, Failure> {
        Ok(rdma::usage(&self.pool)?)
    }

    /// Whether all of it is whole.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Result<Verdict, Error>, Failure> {
        Ok(rdma::verify(&self.pool, progress)?)
    }

    /// Evicts a client.
    pub fn evict(&self, slot: usize) -> Result<Evicted, Failure> {
        Ok(self.pool.evict(slot)?)
    }

    /// Evicts the clients of a process of this host that is known to be dead.
    pub fn evict_dead(&self, process: u32) -> Result<(), Failure> {
        let dead = label(process);
        for client in self.clients()?.into_iter().filter(|client| client.label == dead) {
            self.evict(client.slot)?;
        }
        Ok(())
    }

    /// Returns the status of each node, or why it has none.
    pub fn nodes(&self) -> Vec<(NodeEntry, Result<Status, PlaneError>)> {
        self.pool.record().nodes.iter().cloned().zip(self.pool.statuses()).collect()
    }

    /// Returns the process of each node that runs on this host.
    pub fn node_processes(&self) -> Vec<Option<u32>> {
        let local =
            |process: rdma::control::protocol::Process| process.is_local().then_some(process.id);
        self.pool
            .statuses()
            .into_iter()
            .map(|status| status.ok().and_then(|status| local(status.process)))
            .collect()
    }

    /// Opens a client with register protocol `P`, and runs `task` with it.
    pub(crate) fn with<P: Protocol, T: Task>(
        &self,
        options: Options,
        task: T,
    ) -> Result<T::Output, Failure> {
        let client = rdma::open_plain::<P>(&self.pool, options)?;
        let session = client.client_slot().session();
        task.run(&*client).map_err(|failure| self.explain(failure, session, client.nodes()))
    }

    /// Explains why too few nodes answer `session`.
    fn explain(&self, failure: Failure, session: Session, nodes: Vec<NodeStatus>) -> Failure {
        let Failure::Store { error: Error::Replication(_), at } = failure else { return failure };
        let faults: Vec<Fault> = nodes.into_iter().filter_map(|node| node.fault).collect();
        if faults.is_empty() {
            return failure;
        }
        let line = at.map(|at| format!("line {}: ", at.line)).unwrap_or_default();
        let why = if self.has_evicted(session, &faults) {
            "this client was evicted; nothing that it did since takes effect".to_owned()
        } else {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            format!("too few memory nodes answer: {}", faults.join("; "))
        };
        Failure::Failed(format!("{line}{}: {why}", self.path.display()))
    }

    /// Returns whether `session` was evicted. A node to which the client has not reconnected
    /// reports nothing. If all are such, the client was evicted if it holds no client slot any
    /// more.
    fn has_evicted(&self, session: Session, faults: &[Fault]) -> bool {
        let ours = |client: &Holder| client.incarnation == session.incarnation.0;
        let fenced = |fault: &Fault| matches!(fault, Fault::Fenced { .. });
        let lost = |fault: &Fault| matches!(fault, Fault::Lost { .. });
        faults.iter().any(fenced)
            || faults.iter().all(lost)
                && self.clients().is_ok_and(|clients| !clients.iter().any(ours))
    }
}

impl From<rdma::Error> for Failure {
    fn from(error: rdma::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<rdma::control::Error> for Failure {
    fn from(error: rdma::control::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

fn address(name: &str) -> Result<PoolAddress, Failure> {
    name.parse().map_err(|error: rdma::control::Error| Failure::Usage(error.to_string()))
}
