//! Parameters of a new pool, in shared memory or on memory nodes.

use std::path::PathBuf;

use swarm_kv::shm::{Numa, Rights};

/// Parameters of a new pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolOptions<'a> {
    /// Memory nodes: 1, 3, 5 or 7.
    pub nodes: usize,
    /// Bytes of each node.
    pub capacity: u64,
    /// Client slots.
    pub max_clients: usize,
    /// Stamp slots of a register.
    pub slots: usize,
    /// For tests: bits of a pointer, if not the required number.
    pub pointer_bits: Option<u32>,
    /// Where a shared-memory pool's nodes lie, if not in its directory.
    pub node_paths: &'a [PathBuf],
    /// The NUMA nodes of a shared-memory pool's memory.
    pub numa: Numa,
    /// Who may use a shared-memory pool, besides this user.
    pub rights: Option<&'a Rights>,
    /// Whether to allow a file system whose mapped files are copies.
    pub any_file_system: bool,
    /// Returns whether to abort the creation of a shared-memory pool.
    pub stop: Option<fn() -> bool>,
}
