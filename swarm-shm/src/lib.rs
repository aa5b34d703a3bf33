//! Memory nodes as files mapped into the processes of one host.
//!
//! A *pool* is a directory: a control file, and for each memory node a file that every client maps
//! into its process. A roundtrip is a few loads and stores.
//!
//! ```no_run
//! use swarm_core::fabric::{Fabric, Verb};
//! use swarm_core::node::{Address, NodeId};
//! use swarm_shm::{CreateOptions, Pool};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = Pool::create("/dev/shm/example", &CreateOptions::default())?;
//! let client = pool.attach()?;
//! let fabric = pool.fabric();
//! let read = Verb::Read { at: Address(1024), words: 8 };
//! let reply = fabric.post(NodeId(0), &[read]).await?;
//! println!("client {} read {:?}", client.session().client, &reply[..]);
//! # Ok(())
//! # }
//! ```
//!
//! The layers, top to bottom. A module uses only modules in rows below its own; the module `layers`
//! of swarm-kv's test `correctness` checks that.
//!
//! | layer | concept |
//! | --- | --- |
//! | `lifecycle` | creating, repairing and destroying a pool, replacing a node, within what the host grants |
//! | `fabric` | chains on mapped words |
//! | `clients` | client slots and their epochs; eviction; sleeping until a key changes; whether the pool still exists |
//! | `pool` | an open pool: how to open it, nodes that are absent |
//! | `processes` | the processes behind client slots: which hold one, which were stopped |
//! | `clock`, `held`, `members`, `exchange` | the clock that all processes share; which client slots an opening holds; which files are its nodes', and how threads share them |
//! | `fork` | what a forked child must not share with its parent |
//! | `files` | control file, node files, headers; backing, mappings, pages, NUMA, locks of byte ranges |
//! | `events`, `sigbus` | whether a node's file is the current one; what a process does when mapped memory is gone |
//! | `words`, `error`, `cgroup`, `huge` | chains and epochs on shared words; errors; control groups; an allocator on huge pages, for programs |

// Loom explores chains over its own words; files and mappings are left out.
#[cfg(not(loom))]
mod cgroup;
#[cfg(not(loom))]
mod clients;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
mod events;
#[cfg(not(loom))]
mod fabric;
#[cfg(not(loom))]
mod files;
#[cfg(not(loom))]
mod lifecycle;
mod words;

#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod exchange;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod held;
#[cfg(not(loom))]
mod huge;
#[cfg(not(loom))]
mod members;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod processes;
#[cfg(not(loom))]
mod sigbus;

#[cfg(not(loom))]
pub use self::{
    cgroup::{MemoryLimit, memory_limit},
    clients::epoch_domain::ShmEpochs,
    clients::list::ClientInfo,
    clients::slot::ClientSlot,
    clients::wait::WaitWords,
    clock::{ClockSource, PoolClock},
    error::Error,
    fabric::reply::Reply,
    fabric::shm_fabric::{ReadFabric, ShmFabric},
    files::numa::Numa,
    files::pages::Pages,
    files::switch::{NodeSwitch, SwitchState},
    fork::Origin,
    lifecycle::create::CreateOptions,
    lifecycle::destroy::DirectoryLeft,
    lifecycle::file_system::FileSystem,
    lifecycle::repair::Repaired,
    lifecycle::replace::{ReplaceOptions, Replacement},
    lifecycle::rights::Rights,
    members::AbsentNode,
    pool::{OpenOptions, Pool},
    processes::freezer::{Frozen, frozen},
    processes::left_alone::{LeftAlone, WhyLeftAlone},
    processes::state::ClientState,
    processes::stopped::{EvictStopped, HaltWatch, StoppedClient},
};
#[cfg(loom)]
pub use self::{
    events::{Standing, raise, standing},
    words::chain::{FIRST_WORD, clear, fetch, load, run, write_cas, write_cas_cas, write_cas_load},
    words::epochs::{advance, epoch, generation, pin, pin_beside, remain, renew, unpin},
    words::sync::Word,
    words::waits::{any_wait, prepare, release},
};
#[cfg(not(loom))]
pub use huge::HugePages;
