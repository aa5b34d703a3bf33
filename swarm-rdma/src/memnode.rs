//! The memory node: registers memory, accepts connections, fences clients, and runs nothing for an
//! operation.

use std::net::SocketAddr;
use std::path::PathBuf;

use swarm_core::fabric::NodeId;

use crate::device::DeviceChoice;
use crate::error::Error;
use crate::greeting::{ClientId, Life, PoolId};

/// Where a node's memory comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemorySource {
    /// The process allocates it, in huge pages where there are any.
    Allocated,
    /// A file or a DAX device, which must be as large as the capacity or larger. What it held is lost.
    File(PathBuf),
}

/// How a memory node is to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Where to listen: an address of the device's network interface. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Bytes of memory.
    pub capacity: u64,
    /// Where it comes from.
    pub memory: MemorySource,
    /// The device.
    pub device: DeviceChoice,
}

impl ServeOptions {
    /// Serves `capacity` bytes of allocated memory at `listen`.
    pub fn new(listen: SocketAddr, capacity: u64) -> Self {
        Self { listen, capacity, memory: MemorySource::Allocated, device: DeviceChoice::default() }
    }
}

/// What a memory node has to report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeReport {
    /// Connections that there are.
    pub connections: usize,
    /// Connections that there have been, those included.
    pub accepted: u64,
    /// Requests for connections that were refused.
    pub refused: u64,
    /// Connections whose client was fenced.
    pub fenced: u64,
    /// Memory registrations.
    pub registrations: u64,
    /// Whether the memory lies in huge pages.
    pub huge_pages: bool,
}

/// A memory node that serves until this is dropped.
#[derive(Debug)]
pub struct MemoryNode {
    address: SocketAddr,
    life: Life,
}

impl MemoryNode {
    /// Registers memory and listens. The node belongs to no pool, and refuses clients until
    /// [`enlist`](Self::enlist) tells it to which.
    ///
    /// # Errors
    /// The device, the memory or the address cannot be had.
    pub fn serve(_options: &ServeOptions) -> Result<Self, Error> {
        Err(Error::NoDevice { why: "not looked for".to_owned() })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Which life of the node this is.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The node belongs to `pool` now, as `node`: it takes connections of its clients.
    pub fn enlist(&self, _pool: PoolId, _node: NodeId) {}

    /// The node belongs to no pool any more: all connections end, and its memory is zeroed.
    pub fn release(&self) {}

    /// Takes the access flags off the queue pairs of client slot `slot` in all its lives up to
    /// `incarnation`, ends them, and refuses these lives from now on. When this returns, nothing
    /// that they have posted takes effect here any more. Says how many connections that were.
    pub fn fence(&self, client: ClientId) -> usize {
        let _ = client;
        0
    }

    /// What there is to report.
    pub fn report(&self) -> NodeReport {
        NodeReport::default()
    }
}
