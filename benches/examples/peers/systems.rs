//! What is compared.

use std::path::Path;

use crate::servers::Server;
use crate::work::Role;
use crate::{Result, mutexes, ours, seqlock, wire};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    Ours { nodes: usize },
    Lmdb,
    Mutexes,
    Seqlock,
    Redis,
    Memcached,
}

impl System {
    pub(crate) const ALL: [Self; 7] = [
        Self::Ours { nodes: 1 },
        Self::Ours { nodes: 3 },
        Self::Lmdb,
        Self::Mutexes,
        Self::Seqlock,
        Self::Redis,
        Self::Memcached,
    ];

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|system| system.name() == name)
    }

    /// For processes and files.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Ours { nodes } => format!("ours-{nodes}"),
            Self::Lmdb => "lmdb".into(),
            Self::Mutexes => "mutexes".into(),
            Self::Seqlock => "seqlock".into(),
            Self::Redis => "redis".into(),
            Self::Memcached => "memcached".into(),
        }
    }

    /// For people.
    pub(crate) fn label(self) -> String {
        match self {
            Self::Ours { nodes: 1 } => "SWARM, 1 node".into(),
            Self::Ours { nodes } => format!("SWARM, {nodes} nodes: replicated"),
            Self::Lmdb => "LMDB, never synced".into(),
            Self::Mutexes => "table, 4,096 robust mutexes".into(),
            Self::Seqlock => "table of seqlocks".into(),
            Self::Redis => "redis, unix socket".into(),
            Self::Memcached => "memcached, unix socket".into(),
        }
    }

    /// Makes one at `place`, with room for so many keys, and starts what serves it. Or why it cannot be had here.
    pub(crate) fn create(
        self,
        place: &Path,
        keys: u64,
    ) -> Result<std::result::Result<Option<Server>, &'static str>> {
        match self {
            Self::Ours { nodes } => ours::create(place, nodes, keys)?,
            #[cfg(feature = "lmdb")]
            Self::Lmdb => std::fs::create_dir(place)?,
            #[cfg(not(feature = "lmdb"))]
            Self::Lmdb => return Ok(Err("it is there with --features lmdb")),
            Self::Mutexes => mutexes::create(place, keys)?,
            Self::Seqlock => seqlock::create(place, keys)?,
            Self::Redis => {
                return Ok(Server::redis(place)?.ok_or("no redis-server in PATH").map(Some));
            }
            Self::Memcached => {
                return Ok(Server::memcached(place, keys)?.ok_or("no memcached in PATH").map(Some));
            }
        }
        Ok(Ok(None))
    }

    /// Opens the one at `place`, and plays a role there.
    pub(crate) fn run(self, place: &Path, keys: u64, role: Role) -> Result<()> {
        match self {
            Self::Ours { .. } => role.play(&mut ours::Ours::open(place, keys)?, keys),
            #[cfg(feature = "lmdb")]
            Self::Lmdb => role.play(&mut crate::lmdb::Lmdb::open(place, keys)?, keys),
            #[cfg(not(feature = "lmdb"))]
            Self::Lmdb => Err("built without LMDB".into()),
            Self::Mutexes => role.play(&mut mutexes::Mutexes::open(place, keys)?, keys),
            Self::Seqlock => role.play(&mut seqlock::Seqlocks::open(place, keys)?, keys),
            Self::Redis => role.play(&mut wire::Redis::connect(place)?, keys),
            Self::Memcached => role.play(&mut wire::Memcached::connect(place)?, keys),
        }
    }
}
