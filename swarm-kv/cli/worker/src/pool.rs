//! A pool as named on a command line: a *shared-memory* pool (`Near`), a directory whose files this
//! host's processes map; or an *RDMA* pool (`Far`), on memory nodes behind RDMA cards. RDMA pools
//! need the feature `rdma`.

use std::io::ErrorKind;
use std::path::Path;

use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_kv::Reader;
pub use swarm_kv::shm::Pool as NearPool;
use swarm_kv::shm::{self, CreateOptions, DirectoryLeft, NotReplaced, OpenOptions};
pub use swarm_kv::shm::{Numa, Repaired, ReplaceOptions, Rights};
use swarm_kv::{ClientUsage, Error, Estimate, Options, ReplaceError, ReplaceStep, Verdict};

use crate::Failure;
#[cfg(feature = "rdma")]
use crate::far;
pub use crate::pool_options::PoolOptions;
use crate::system::{Chosen, choose};
use crate::workload::System;

/// The error of a program without RDMA pools.
#[cfg(not(feature = "rdma"))]
pub const NO_RDMA: &str = "this swarm was built without RDMA; build it with `cargo build \
    --release --features rdma` (needs the packages libibverbs-dev, librdmacm-dev, libclang-dev and \
    protobuf-compiler)";

/// A pool.
pub enum Pool {
    /// A directory whose files this host's processes map.
    Near(NearPool),
    /// Memory nodes behind RDMA cards.
    #[cfg(feature = "rdma")]
    Far(far::FarPool),
}

/// Returns the path as text if it names an RDMA pool.
fn far_name(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| text.starts_with("rdma:"))
}

impl Pool {
    /// Creates a pool.
    pub fn create(path: &Path, wishes: PoolOptions<'_>) -> Result<Self, Failure> {
        if let Some(name) = far_name(path) {
            #[cfg(feature = "rdma")]
            return Ok(Self::Far(far::FarPool::create(name, wishes)?));
            #[cfg(not(feature = "rdma"))]
            return Err(without(name));
        }
        let PoolOptions { nodes, capacity, max_clients, slots, pointer_bits, numa, .. } = wishes;
        let PoolOptions { node_paths, rights, any_file_system, stop, .. } = wishes;
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

    /// Opens a pool. `degraded` continues without a minority of a shared-memory pool's nodes,
    /// whatever is wrong with their files.
    pub fn open(path: &Path, degraded: bool) -> Result<Self, Failure> {
        if let Some(name) = far_name(path) {
            #[cfg(feature = "rdma")]
            return Ok(Self::Far(far::FarPool::open(name)?));
            #[cfg(not(feature = "rdma"))]
            return Err(without(name));
        }
        Ok(Self::Near(NearPool::open(path, OpenOptions { degraded, ..OpenOptions::default() })?))
    }

    /// Opens one for a command that changes nothing: a near one to [read alone](Self::reader) where this user may not write it, or if
    /// `read_only`.
    pub fn open_to_read(path: &Path, degraded: bool, read_only: bool) -> Result<Self, Failure> {
        if far_name(path).is_some() {
            if read_only {
                return Err(Failure::Usage(
                    "--read-only is for pools in shared memory: a process that uses memory nodes takes a client slot".to_owned(),
                ));
            }
            return Self::open(path, degraded);
        }
        let options = OpenOptions { degraded, read_only, ..OpenOptions::default() };
        match NearPool::open(path, options) {
            Err(refused) if may_not_write(&refused) => {
                Ok(Self::Near(NearPool::open(path, OpenOptions { read_only: true, ..options })?))
            }
            opened => Ok(Self::Near(opened?)),
        }
    }

    /// Removes a pool, with `force` also under live clients. Returns the directory of a
    /// shared-memory pool if it stays.
    pub fn destroy(path: &Path, force: bool) -> Result<Option<DirectoryLeft>, Failure> {
        if let Some(name) = far_name(path) {
            #[cfg(feature = "rdma")]
            return far::FarPool::destroy(name, force).map(|()| None);
            #[cfg(not(feature = "rdma"))]
            return Err(without(name));
        }
        Ok(NearPool::destroy(path, force)?)
    }

    /// Makes a pool's control file anew if it is lost or damaged, with `force` also if it is whole.
    pub fn repair(path: &Path, force: bool) -> Result<Repaired, Failure> {
        if let Some(name) = far_name(path) {
            return Err(Failure::Usage(format!(
                "{name}: a pool on memory nodes has no control file to repair"
            )));
        }
        Ok(NearPool::repair(path, force)?)
    }

    /// Puts a new file into the place of a shared-memory pool's node, filled from the others, while
    /// clients work. `goes_on` gets how far it is, once the node is gone for all clients, and may see
    /// the filling begin again; if it returns `false`, the node stays gone until it is replaced.
    /// Returns whether the node votes.
    pub fn replace(
        path: &Path,
        node: u8,
        options: &ReplaceOptions,
        goes_on: &mut dyn FnMut(ReplaceStep) -> bool,
    ) -> Result<bool, Failure> {
        if let Some(name) = far_name(path) {
            return Err(Failure::Usage(format!(
                "{name}: only nodes of pools in shared memory are replaced so far"
            )));
        }
        let pool = NearPool::open(path, OpenOptions { degraded: true, ..OpenOptions::default() })?;
        // Of the kind that all other commands have, so that no other one is generated.
        choose(System::Swarm);
        let mut open = || shm::open_unhindered::<Chosen>(&pool, Options::default());
        let replaced = shm::replace_node(&pool, NodeId(node), options, &mut open, goes_on);
        replaced.map_err(|error| match error {
            NotReplaced::Files(error) => error.into(),
            NotReplaced::Steps(ReplaceError::Failed(error)) => error.into(),
            other => Failure::Failed(other.to_string()),
        })
    }

    /// What reads it, where it was opened to read alone.
    pub fn reader(&self) -> Option<Reader> {
        match self {
            Self::Near(pool) => pool.is_read_only().then(|| Reader::new(pool)),
            #[cfg(feature = "rdma")]
            Self::Far(_) => None,
        }
    }

    /// Returns the pool's name on the command line.
    pub fn path(&self) -> &Path {
        match self {
            Self::Near(pool) => pool.path(),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.path(),
        }
    }

    /// Returns the layout of its nodes' memory.
    pub fn geometry(&self) -> Geometry {
        match self {
            Self::Near(pool) => pool.geometry(),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.geometry(),
        }
    }

    /// Returns whether the pool is behind a network.
    pub fn is_far(&self) -> bool {
        !matches!(self, Self::Near(_))
    }

    /// Maps a shared-memory pool's memory into this process's page tables.
    pub fn populate(&self) {
        match self {
            Self::Near(pool) => pool.populate(),
            #[cfg(feature = "rdma")]
            Self::Far(_) => {}
        }
    }

    /// Returns the number of clients.
    pub fn clients(&self) -> Result<usize, Failure> {
        match self {
            Self::Near(pool) => Ok(pool.live_clients().len()),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => Ok(pool.clients()?.len()),
        }
    }

    /// Returns the pool's usage and, for a shared-memory pool, that of each client slot. It samples
    /// a part of the index, as long as `goes_on` returns true, which gets that part's size. It
    /// takes no client slot, so that a pool can also be examined while all slots are taken. An RDMA
    /// pool is counted as a whole.
    pub fn accounts_while(
        &self,
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<(Estimate, Option<Vec<ClientUsage>>), Failure> {
        let accounts: Result<_, Error> = match self {
            Self::Near(pool) => {
                shm::accounts_while(pool, goes_on).map(|(estimate, held)| (estimate, Some(held)))
            }
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.usage()?.map(|usage| (usage.into(), None)),
        };
        accounts.map_err(|error| Failure::from(error).in_pool(self.path()))
    }

    /// Whether all of it is whole: each bucket and key at every node. Takes no client slot and changes nothing; `progress`
    /// gets how much of the index was gone over, and of how much.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Verdict, Failure> {
        let verdict = match self {
            Self::Near(pool) => shm::verify(pool, progress),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.verify(progress)?,
        };
        verdict.map_err(|error| Failure::from(error).in_pool(self.path()))
    }

    /// Returns bytes of each node in chunks that have an owner, and of these in allocated objects.
    /// For an RDMA pool, both are the former.
    pub fn in_use(&self) -> Result<(u64, u64), Failure> {
        match self {
            Self::Near(pool) => {
                let held = shm::client_usage(pool)
                    .map_err(|error| Failure::from(error).in_pool(self.path()))?;
                let sum = |bytes: fn(&ClientUsage) -> u64| held.iter().map(bytes).sum();
                Ok((sum(|holding| holding.owned_bytes), sum(|holding| holding.allocated_bytes)))
            }
            #[cfg(feature = "rdma")]
            Self::Far(_) => {
                let (Estimate { usage, .. }, _) = self.accounts_while(&mut |_, _| true)?;
                Ok((usage.used_bytes, usage.used_bytes))
            }
        }
    }

    /// Frees the client slots of a dead process of this host. In a shared-memory pool the kernel
    /// does that.
    #[cfg_attr(
        not(feature = "rdma"),
        expect(unused_variables, reason = "near slots free themselves")
    )]
    pub fn evict_dead(&self, process: u32) -> Result<(), Failure> {
        match self {
            Self::Near(_) => Ok(()),
            #[cfg(feature = "rdma")]
            Self::Far(pool) => pool.evict_dead(process),
        }
    }
}

/// Whether a pool was not opened because this user may not write its files, or nobody may, as they lie on a mount that is read-only.
fn may_not_write(refused: &shm::Error) -> bool {
    match refused {
        shm::Error::Permission { .. } => true,
        shm::Error::Io { source, .. } => source.kind() == ErrorKind::ReadOnlyFilesystem,
        _ => false,
    }
}

impl From<shm::Error> for Failure {
    fn from(error: shm::Error) -> Self {
        let outcome = error.to_string();
        match error {
            // Parameters that no pool, or no memory of that kind, can have.
            shm::Error::Geometry(_) | shm::Error::CapacityUnit { .. } | shm::Error::Mode { .. } => {
                Self::Usage(outcome)
            }
            _ => Self::Failed(outcome),
        }
    }
}

#[cfg(not(feature = "rdma"))]
fn without(name: &str) -> Failure {
    Failure::Failed(format!("{name}: {NO_RDMA}"))
}
