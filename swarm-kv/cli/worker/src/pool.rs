//! A pool as a command line names it: *near*, a directory whose files this host's processes map; or
//! *far*, on memory nodes behind RDMA cards. Far pools are there only if this program was built
//! with the feature `rdma`.

use std::path::{Path, PathBuf};

use swarm_core::layout::Geometry;
pub use swarm_kv::shm::Pool as NearPool;
use swarm_kv::shm::{self, CreateOptions, DirectoryLeft, OpenOptions};
pub use swarm_kv::shm::{Numa, Rights};
use swarm_kv::{Error, Estimate, Holding};

use crate::Failure;
#[cfg(feature = "rdma")]
use crate::far;

/// What is said where far pools are not to be had.
#[cfg(not(feature = "rdma"))]
pub const NO_RDMA: &str = "this swarm was built without RDMA; build it with `cargo build \
    --release --features rdma` (needs the packages libibverbs-dev, librdmacm-dev, libclang-dev and \
    protobuf-compiler)";

/// What a new pool is to be like.
#[derive(Clone, Copy, Debug)]
pub struct Wishes<'a> {
    /// Memory nodes: 1, 3, 5 or 7.
    pub nodes: usize,
    /// Bytes of each.
    pub capacity: u64,
    /// Client slots.
    pub max_clients: usize,
    /// Stamp slots of a register.
    pub slots: usize,
    /// For tests: bits of a pointer, if not as many as it needs.
    pub pointer_bits: Option<u32>,
    /// Where a near pool's nodes lie, if not in its directory.
    pub node_paths: &'a [PathBuf],
    /// On which NUMA nodes of this host a near pool's memory lies.
    pub numa: Numa,
    /// Whom a near pool is for, besides this user.
    pub rights: Option<&'a Rights>,
    /// Also on a file system whose mapped files are copies.
    pub any_file_system: bool,
    /// Asked whether the creation of a near pool is to end.
    pub stop: Option<fn() -> bool>,
}

/// A pool.
pub enum Pool {
    /// A directory whose files this host's processes map.
    Near(NearPool),
    /// Memory nodes behind RDMA cards.
    #[cfg(feature = "rdma")]
    Far(far::FarPool),
}

/// Whether a path is meant to name a far pool; if so it is text.
fn far_name(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.starts_with("rdma:"))
}

impl Pool {
    /// Makes one.
    pub fn create(path: &Path, wishes: Wishes<'_>) -> Result<Self, Failure> {
        if let Some(name) = far_name(path) {
            #[cfg(feature = "rdma")]
            return Ok(Self::Far(far::FarPool::create(name, wishes)?));
            #[cfg(not(feature = "rdma"))]
            return Err(without(name));
        }
        let Wishes { nodes, capacity, max_clients, slots, pointer_bits, numa, .. } = wishes;
        let Wishes { node_paths, rights, any_file_system, stop, .. } = wishes;
        let node_paths = (!node_paths.is_empty()).then(|| node_paths.to_vec());
        let options = CreateOptions {
            nodes,
            capacity,
            max_clients,
            slots,
            pointer_bits,
            node_paths,
            numa,
            rights: rights.cloned(),
            any_file_system,
            stop,
            ..CreateOptions::default()
        };
        Ok(Self::Near(NearPool::create(path, &options)?))
    }

    /// Opens one; `degraded` goes on without a minority of a near one's nodes, whatever is wrong with their files.
    pub fn open(path: &Path, degraded: bool) -> Result<Self, Failure> {
        if let Some(name) = far_name(path) {
            #[cfg(feature = "rdma")]
            return Ok(Self::Far(far::FarPool::open(name)?));
            #[cfg(not(feature = "rdma"))]
            return Err(without(name));
        }
        Ok(Self::Near(NearPool::open(path, OpenOptions { degraded, ..OpenOptions::default() })?))
    }

    /// Removes one; `force` does so under live clients. Yields the directory of a near one if it stays.
    pub fn destroy(path: &Path, force: bool) -> Result<Option<DirectoryLeft>, Failure> {
        if let Some(name) = far_name(path) {
            #[cfg(feature = "rdma")]
            return far::FarPool::destroy(name, force).map(|()| None);
            #[cfg(not(feature = "rdma"))]
            return Err(without(name));
        }
        Ok(NearPool::destroy(path, force)?)
    }

    /// What the command line calls it.
    pub fn path(&self) -> &Path {
        match self {
            Self::Near(pool) => pool.path(),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.path(),
        }
    }

    /// What lies where in its nodes.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Near(pool) => pool.geometry(),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.geometry(),
        }
    }

    /// Whether operations take as long as a network does.
    pub fn is_far(&self) -> bool {
        !matches!(self, Self::Near(_))
    }

    /// Enters a near pool's memory into this process's page tables.
    pub fn populate(&self) {
        match self {
            Self::Near(pool) => pool.populate(),
            #[cfg(feature = "rdma")]
            Self::Far(_) => {}
        }
    }

    /// How many clients there are.
    pub fn clients(&self) -> Result<usize, Failure> {
        match self {
            Self::Near(pool) => Ok(pool.live_clients().len()),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => Ok(pool.clients()?.len()),
        }
    }

    /// What it holds, and of a near pool what each client slot does, by a part of its index, as long as `goes_on` says
    /// so: it is told of how much of that. Takes no client slot: what is wrong with a pool is asked when all slots are
    /// taken, too. A far pool is counted as a whole.
    pub fn accounts_while(
        &self,
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Estimate, Option<Vec<Holding>>), Failure> {
        let accounts: Result<_, Error> = match self {
            Self::Near(pool) => {
                shm::accounts_while(pool, goes_on).map(|(estimate, held)| (estimate, Some(held)))
            }
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.usage()?.map(|usage| (usage.into(), None)),
        };
        accounts.map_err(|error| Failure::from(error).in_pool(self.path()))
    }

    /// Bytes of each node in chunks that have an owner, and of these in objects that were set aside.
    /// Of a far pool, the former twice.
    pub fn in_use(&self) -> Result<(u64, u64), Failure> {
        match self {
            Self::Near(pool) => {
                let held = shm::holdings(pool)
                    .map_err(|error| Failure::from(error).in_pool(self.path()))?;
                let sum = |bytes: fn(&Holding) -> u64| held.iter().map(bytes).sum();
                Ok((sum(|holding| holding.held_bytes), sum(|holding| holding.aside_bytes)))
            }
            #[cfg(feature = "rdma")]
            Self::Far(_) => {
                let (Estimate { usage, .. }, _) = self.accounts_while(&mut |_, _| true)?;
                Ok((usage.used_bytes, usage.used_bytes))
            }
        }
    }

    /// A client with this process number on this host is known to be dead: its slot is free from now
    /// on. The kernel lets go of near ones by itself.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "near slots free themselves")
    )]
    pub fn bury(&self, process: u32) -> Result<(), Failure> {
        match self {
            Self::Near(_) => Ok(()),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.bury(process),
        }
    }
}

impl From<shm::Error> for Failure {
    fn from(error: shm::Error) -> Self {
        let told = error.to_string();
        match error {
            // What no pool can have, or no memory of that kind.
            shm::Error::Geometry(_) | shm::Error::CapacityUnit { .. } | shm::Error::Mode { .. } => {
                Self::Usage(told)
            }
            _ => Self::Failed(told),
        }
    }
}

#[cfg(not(feature = "rdma"))]
fn without(name: &str) -> Failure {
    Failure::Failed(format!("{name}: {NO_RDMA}"))
}
