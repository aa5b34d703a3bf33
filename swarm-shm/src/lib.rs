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
//! | file                  | concept                                                          |
//! | --------------------- | ---------------------------------------------------------------- |
//! | `sync`                | words and fences, the processor's or loom's                      |
//! | `chain`               | what verbs do to shared words, and the order they keep           |
//! | `reply`               | buffers that replies are lent in                                 |
//! | `error`               | what can be wrong with a pool                                    |
//! | `kind`                | regular files, hugetlbfs and DAX devices                         |
//! | `mapping`             | files as shared words                                            |
//! | `pages`, `numa`       | how large the pages of a pool's memory are, and on which nodes   |
//! | `header`              | what a file says about itself                                    |
//! | `lock`                | locks that the kernel releases when their holder dies            |
//! | `fork`                | what a child must not share with the process that forked it      |
//! | `control`             | the control file                                                 |
//! | `node`                | a memory node's file                                             |
//! | `clock`               | the clock that all processes share                               |
//! | `switch`              | taking nodes away, for tests                                     |
//! | `create`, `destroy`   | a pool's beginning and end                                       |
//! | `cgroup`              | what control groups leave for a new pool                         |
//! | `file_system`, `rights` | what a new pool lies on, and who may use it                    |
//! | `board`, `mailbox`    | who has operations under way, and what clients tell each other   |
//! | `epochs`              | the board's words: the order in which they are touched           |
//! | `watch`               | when a client looks whether its pool is there                    |
//! | `pool`, `attachment`  | an open pool and its clients                                     |
//! | `holder`, `census`, `evict` | the processes behind clients: who is there, ending them    |
//! | `fabric`              | the fabric over all this                                         |
//! | `huge`                | an allocator for programs that want huge pages                   |

// Loom explores chains over words of its own; files and mappings have no place there.
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
mod chain;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
mod epochs;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "public for loom's tests alone"))]
mod sync;

#[cfg(not(loom))]
mod attachment;
#[cfg(not(loom))]
mod board;
#[cfg(not(loom))]
mod census;
#[cfg(not(loom))]
mod cgroup;
#[cfg(not(loom))]
mod clock;
#[cfg(not(loom))]
mod control;
#[cfg(not(loom))]
mod create;
#[cfg(not(loom))]
mod destroy;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod evict;
#[cfg(not(loom))]
mod fabric;
#[cfg(not(loom))]
mod file_system;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod header;
#[cfg(not(loom))]
mod holder;
#[cfg(not(loom))]
mod huge;
#[cfg(not(loom))]
mod kind;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod mailbox;
#[cfg(not(loom))]
mod mapping;
#[cfg(not(loom))]
mod node;
#[cfg(not(loom))]
mod numa;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod pool;
#[cfg(not(loom))]
mod reply;
#[cfg(not(loom))]
mod rights;
#[cfg(not(loom))]
mod switch;
#[cfg(not(loom))]
mod watch;

#[cfg(not(loom))]
pub use self::{
    attachment::Attachment,
    board::PoolBoard,
    census::{Condition, Tenant},
    cgroup::{MemoryLimit, memory_limit},
    clock::{ClockSource, PoolClock},
    destroy::DirectoryLeft,
    error::Error,
    fabric::ShmFabric,
    file_system::FileSystem,
    numa::Numa,
    pages::Pages,
    pool::{AbsentNode, CreateOptions, OpenOptions, Pool},
    reply::Reply,
    rights::Rights,
    switch::{NodeSwitch, SwitchState},
};
#[cfg(loom)]
pub use self::{
    chain::{FIRST_WORD, fetch, load, run, write_cas, write_cas_load},
    epochs::{advance, enter, enter_beside, epoch, generation, leave, remain, renew},
    sync::Word,
};
#[cfg(not(loom))]
pub use huge::HugePages;
