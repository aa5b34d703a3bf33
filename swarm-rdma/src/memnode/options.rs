//! Options and event counts of a memory node.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::device::DeviceChoice;

/// Where a node's memory comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemorySource {
    /// The process allocates it, in huge pages if available.
    Allocated,
    /// A file or a DAX device of at least the capacity. Its content is erased.
    File(PathBuf),
}

/// Options of a memory node.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The address to listen at: one of the device's network interface. Port 0 takes a free port.
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

/// Event counts of a memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeReport {
    /// Current connections.
    pub connections: usize,
    /// Connections accepted so far, including current ones.
    pub accepted: u64,
    /// Requests for connections that were rejected.
    pub refused: u64,
    /// Connections ended because their client was fenced.
    pub fenced: u64,
    /// Memory registrations.
    pub registrations: u64,
    /// Whether the memory lies in preallocated huge pages.
    pub huge_pages: bool,
}
