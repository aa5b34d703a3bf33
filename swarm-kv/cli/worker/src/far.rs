//! Pools on memory nodes behind RDMA cards, as the commands use them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use swarm_core::layout::Geometry;
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_kv::rdma::control::admin::Status;
use swarm_kv::rdma::control::{Error as PlaneError, Evicted, Holder, NodeEntry, label};
use swarm_kv::rdma::{self, DeviceChoice, Fault, NodeStatus, PoolAddress, PoolWishes};
use swarm_kv::{Error, Options, Usage};

use crate::Failure;
use crate::pool::{Numa, Wishes};
use crate::store::Task;

/// The device that this process uses, as its command line has it.
static DEVICE: OnceLock<DeviceChoice> = OnceLock::new();

/// Uses this device from now on.
pub fn choose(device: DeviceChoice) {
    // The command line is read once.
    let _ = DEVICE.set(device);
}

/// The device that was chosen.
pub fn device() -> DeviceChoice {
    DEVICE.get().cloned().unwrap_or_default()
}

/// A pool on memory nodes.
pub struct FarPool {
    pool: rdma::Pool,
    path: PathBuf,
}

impl FarPool {
    /// Makes one.
    pub fn create(name: &str, wishes: Wishes<'_>) -> Result<Self, Failure> {
        let Wishes { nodes, capacity, max_clients, slots, pointer_bits, numa, .. } = wishes;
        let Wishes { node_paths, rights, any_file_system, .. } = wishes;
        if pointer_bits.is_some() {
            return Err(Failure::Usage(format!("{name}: its pointers have the bits they need")));
        }
        if !node_paths.is_empty() {
            return Err(Failure::Usage(format!(
                "{name}: its memory nodes say themselves where their memory lies (`swarm memnode \
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
        let wishes = PoolWishes { nodes, capacity, max_clients, slots };
        let pool = rdma::Pool::create(&address(name)?, &wishes, device())?;
        Ok(Self { pool, path: name.into() })
    }

    /// Opens one.
    pub fn open(name: &str) -> Result<Self, Failure> {
        Ok(Self { pool: rdma::Pool::open(&address(name)?, device())?, path: name.into() })
    }

    /// Removes one.
    pub fn destroy(name: &str, force: bool) -> Result<(), Failure> {
        Ok(rdma::Pool::destroy(&address(name)?, force)?)
    }

    /// What the command line calls it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What lies where in its nodes.
    pub fn geometry(&self) -> Geometry {
        self.pool.geometry()
    }

    /// Who holds a client slot.
    pub fn clients(&self) -> Result<Vec<Holder>, Failure> {
        Ok(self.pool.clients()?)
    }

    /// What it holds.
    pub fn usage(&self) -> Result<Result<Usage, Error>, Failure> {
        Ok(rdma::usage(&self.pool)?)
    }

    /// Ends a client.
    pub fn evict(&self, slot: usize) -> Result<Evicted, Failure> {
        Ok(self.pool.evict(slot)?)
    }

    /// Evicts the clients of a process of this host that is known to be dead.
    pub fn bury(&self, process: u32) -> Result<(), Failure> {
        let dead = label(process);
        for client in self.clients()?.into_iter().filter(|client| client.label == dead) {
            self.evict(client.slot)?;
        }
        Ok(())
    }

    /// How each node is, or what is wrong with it.
    pub fn nodes(&self) -> Vec<(NodeEntry, Result<Status, PlaneError>)> {
        self.pool.record().nodes.iter().cloned().zip(self.pool.statuses()).collect()
    }

    /// The process of each node, where that runs on this host.
    pub fn node_processes(&self) -> Vec<Option<u32>> {
        let local =
            |process: rdma::control::admin::Process| process.is_local().then_some(process.id);
        self.pool
            .statuses()
            .into_iter()
            .map(|status| status.ok().and_then(|status| local(status.process)))
            .collect()
    }

    /// Opens a client that keeps registers by `P`, and does `task` with it.
    pub(crate) fn with<P: Protocol, T: Task>(
        &self,
        options: Options,
        task: T,
    ) -> Result<T::Output, Failure> {
        let client = rdma::open_plain::<P>(&self.pool, options)?;
        let session = client.seat().session();
        task.run(&*client).map_err(|failure| self.explain(failure, session, client.nodes()))
    }

    /// Too few nodes answer `session`: says why.
    fn explain(&self, failure: Failure, session: Session, nodes: Vec<NodeStatus>) -> Failure {
        let Failure::Store { error: Error::Replication(_), line } = failure else { return failure };
        let faults: Vec<Fault> = nodes.into_iter().filter_map(|node| node.fault).collect();
        if faults.is_empty() {
            return failure;
        }
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        let why = if self.has_evicted(session, &faults) {
            "this client was evicted; nothing that it did since takes effect".to_owned()
        } else {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            format!("too few memory nodes answer: {}", faults.join("; "))
        };
        Failure::Failed(format!("{line}{}: {why}", self.path.display()))
    }

    /// Whether `session` was evicted, as its nodes say. Those that have not been asked again since the
    /// connection was lost say nothing; then it was if it holds no slot any more.
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
