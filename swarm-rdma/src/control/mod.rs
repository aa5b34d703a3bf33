//! The control plane: which memory nodes form a pool, and which clients may act in it. This state
//! is kept in etcd, or by the nodes' daemons alone.
//!
//! The data path does not depend on it: a client that has its [`ClientSlot`] reads and writes
//! through its queue pairs, whatever happens to etcd and the daemons. The *fence* at the memory
//! nodes, which takes the access flags off a client's queue pairs, guards the pool against a client
//! that was given up. That client's own clock never does. A client that could not renew its lease
//! goes on until it is fenced; from then on nothing that it posts takes effect at a majority.
//!
//! | file | concept |
//! | --- | --- |
//! | `error` | errors |
//! | `descriptor` | the descriptor of a pool and its nodes |
//! | `address` | pool addresses on the command line |
//! | `daemon/membership` | a daemon's state: its pool, and the clients that hold client slots |
//! | `daemon/protocol` | requests and replies, and their connections |
//! | `daemon/server` | the daemon's server |
//! | `daemon/quorum` | requests to all daemons of a pool |
//! | `daemon/epochs` | when the epoch advances: the daemons' state, and the clients' rule |
//! | `daemon/ended` | which clients have ended, by the daemons' replies |
//! | `static_pool` | the control plane without etcd |
//! | `etcd/plane`, `etcd/lease` | the control plane in etcd; keys under a lease |
//! | `client_slot` | a client slot held by this client |
//! | `epoch_domain` | a client's epochs, and its reports to the daemons |
//! | `incarnations` | incarnations drawn for when a client's write numbers are used up |
//! | `clock` | the hosts' wall clocks |

mod address;
mod client_slot;
mod clock;
mod daemon;
mod descriptor;
mod epoch_domain;
mod error;
mod etcd;
mod incarnations;
mod static_pool;

use std::net::SocketAddr;

use epoch_domain::Reaper;
use incarnations::IncarnationSource;

pub use address::{PoolAddress, parse_members, parse_name};
pub use client_slot::ClientSlot;
pub use clock::WallClock;
pub use daemon::epochs::{ClientEpoch, EpochReply, EpochReport};
pub use daemon::membership::{FenceAgent, Holder, Membership, Refusal};
pub use daemon::protocol;
pub use daemon::quorum::Evicted;
pub use daemon::server::Server;
pub use descriptor::{Id, NodeEntry, PoolDescriptor};
pub use epoch_domain::RdmaEpochs;
pub use error::Error;
pub use etcd::plane::{Etcd, Registration};
pub use static_pool::StaticPool;

/// The parameters of a new pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolSpec {
    /// Memory nodes: 1, 3, 5 or 7.
    pub nodes: usize,
    /// Bytes of each node's memory.
    pub capacity: u64,
    /// The maximum number of concurrent clients.
    pub max_clients: usize,
    /// [Stamp slots in use](swarm_core::layout::Geometry::slots): 6, or fewer.
    pub slots: usize,
}

/// Where a pool's control state is kept.
pub enum Plane {
    /// etcd, under this name.
    Etcd(Box<Etcd>, String),
    /// The daemons that a file lists.
    StaticPool(StaticPool),
}

impl Plane {
    /// Opens the control plane of the pool at `address`.
    ///
    /// # Errors
    /// etcd does not answer, or the file cannot be used.
    pub fn open(address: &PoolAddress) -> Result<Self, Error> {
        match address {
            PoolAddress::Etcd { members, pool } => {
                Ok(Self::Etcd(Box::new(Etcd::connect(members)?), pool.clone()))
            }
            PoolAddress::Static(file) => Ok(Self::StaticPool(StaticPool::read(file)?)),
        }
    }

    /// Returns the pool's address as given on a command line.
    pub fn address(&self) -> String {
        match self {
            Self::Etcd(etcd, pool) => etcd.address(pool),
            Self::StaticPool(fixed) => fixed.address(),
        }
    }

    /// Returns the pool's descriptor.
    ///
    /// # Errors
    /// There is no such pool, or etcd or a majority of the daemons does not answer.
    pub fn record(&self) -> Result<PoolDescriptor, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.record(pool),
            Self::StaticPool(fixed) => fixed.record(),
        }
    }

    /// Creates the pool on memory nodes that belong to none.
    ///
    /// # Errors
    /// The pool exists, too few nodes are free, or the parameters contradict each other.
    pub fn create(&self, wishes: &PoolSpec) -> Result<PoolDescriptor, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.create(pool, wishes),
            Self::StaticPool(fixed) => fixed.create(wishes),
        }
    }

    /// Removes the pool: its nodes erase their memory and leave it. `force` does so under live
    /// clients. With etcd, `force` also removes the pool from etcd if too few nodes answer, which
    /// is still an error.
    ///
    /// # Errors
    /// There is no such pool, clients use it, or a daemon that must leave does not answer. Without
    /// etcd, each of its nodes must; those that answer have left the pool all the same
    /// ([`Error::Unreached`]).
    pub fn destroy(&self, force: bool) -> Result<(), Error> {
        if !force {
            let clients = self.clients(&self.record()?)?.len();
            if clients > 0 {
                return Err(Error::InUse { address: self.address(), clients });
            }
        }
        match self {
            Self::Etcd(etcd, pool) => etcd.destroy(pool, force),
            Self::StaticPool(fixed) => fixed.destroy(),
        }
    }

    /// Takes the lowest free client slot.
    ///
    /// # Errors
    /// All are taken, or etcd or a majority of the daemons does not answer.
    pub fn attach(&self, record: &PoolDescriptor) -> Result<ClientSlot, Error> {
        type Parts = (ClientSlot, Option<Reaper>, IncarnationSource);
        let (mut client_slot, reaper, source): Parts = match self {
            Self::Etcd(etcd, pool) => (
                etcd.attach(pool, record)?,
                Some(etcd.reaper(pool.clone(), record.clone())),
                etcd.incarnation_source(pool.clone()),
            ),
            // Without leases, a dead client cannot be told from a silent one.
            Self::StaticPool(fixed) => (
                ClientSlot::new(fixed.claim(record)?, record.clone(), None),
                None,
                fixed.incarnation_source(record.clone()),
            ),
        };
        client_slot.start_reports(reaper, source)?;
        Ok(client_slot)
    }

    /// Returns the status of each of the pool's daemons, in order, or why it does not answer or is
    /// not the pool's any more.
    pub fn statuses(
        &self,
        record: &PoolDescriptor,
    ) -> Vec<Result<daemon::protocol::Status, Error>> {
        daemon::quorum::Daemons::of(record).statuses()
    }

    /// Returns the clients that hold a client slot.
    ///
    /// # Errors
    /// etcd or a majority of the daemons does not answer.
    pub fn clients(&self, record: &PoolDescriptor) -> Result<Vec<Holder>, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.clients(pool),
            Self::StaticPool(fixed) => fixed.clients(record),
        }
    }

    /// Evicts the client in `slot`: fences it at all memory nodes that answer, then frees its slot.
    ///
    /// # Errors
    /// There is no such client, or fewer than a majority of the nodes answered.
    pub fn evict(&self, record: &PoolDescriptor, slot: usize) -> Result<Evicted, Error> {
        match self {
            Self::Etcd(etcd, pool) => etcd.evict(pool, record, slot),
            Self::StaticPool(fixed) => fixed.evict(record, slot),
        }
    }
}

/// Returns the addresses of a pool's memory nodes, in order.
pub fn addresses(record: &PoolDescriptor) -> Vec<SocketAddr> {
    record.nodes.iter().map(|node| node.address).collect()
}

/// Names a process of this host for a reader: `host:pid`.
pub fn label(process: u32) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "host" } else { host.trim() };
    format!("{host}:{process}")
}
