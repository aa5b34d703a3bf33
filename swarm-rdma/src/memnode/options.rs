//! How a memory node is to serve, and what it has to report.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::device::DeviceChoice;

/// Where a node's memory comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemorySource {
    /// The process allocates it, in huge pages where there are any.
    Allocated,
    /// A file or a DAX device of at least the capacity. What it held is lost.
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
    /// Connections that were ended because their client was fenced.
    pub fenced: u64,
    /// Memory registrations.
    pub registrations: u64,
    /// Whether the memory lies in huge pages that were set aside.
    pub huge_pages: bool,
}
