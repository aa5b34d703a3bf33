//! A replicated, linearizable key-value store in memory that many clients share and no server
//! guards.
//!
//! Keys live in replicated registers ([`swarm_core`]), found through a replicated index; all memory
//! comes from a heap that clients own in chunks. Gets and updates take one roundtrip; a dead
//! minority of memory nodes costs a moment, a dead client nothing.
//!
//! ```
//! use swarm_kv::shm::{self, CreateOptions, Pool};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("pool");
//! let options = CreateOptions { nodes: 3, capacity: 16 << 20, ..CreateOptions::default() };
//! Pool::create(&path, &options)?;
//!
//! // In this process or in any other one, as often as there are slots:
//! let client = shm::open_path(&path)?;
//! let store = client.blocking();
//! store.put(b"color", b"green")?;
//! assert_eq!(store.get(b"color")?.as_deref(), Some(&b"green"[..]));
//! store.delete(b"color")?;
//! assert!(store.get(b"color")?.is_none());
//! # Ok(())
//! # }
//! ```
//!
//! | file | concept |
//! | --- | --- |
//! | `gate` | one at a time, among the operations of one client |
//! | `cache` | what a client remembers |
//! | `heap` | memory in chunks that belong to client slots; `claim`: whose they are; `counter`: how much of them is used |
//! | `bucket`, `newborn` | what the index's records say, what is born with them |
//! | `index` | extendible hashing over cells |
//! | `client` | a client and its operations |
//! | `forked` | whose a client is |
//! | `turn`, `locate` | one write of a key at a time; where a key is |
//! | `buffer` | a buffer for a write |
//! | `get`, `update`, `delete`, `insert`, `scan` | how the operations run |
//! | `onlooker` | a fabric that never changes anything, for those who only count |
//! | `rdma` | all this on memory nodes behind RDMA cards; with the feature of that name |
//! | `shm` | all this on a pool of shared-memory files |
#![forbid(unsafe_code)]

mod aside;
mod blocking;
mod bucket;
mod buffer;
mod cache;
mod client;
mod collect;
mod counters;
mod delete;
mod error;
mod evacuate;
mod forked;
mod gate;
mod get;
mod heap;
mod index;
mod insert;
mod locate;
mod many;
mod memory;
mod moved;
mod newborn;
mod onlooker;
mod put;
#[cfg(feature = "rdma")]
pub mod rdma;
mod scan;
pub mod shm;
mod stall;
mod tour;
mod turn;
mod update;

pub use blocking::{Blocking, block_on};
pub use client::{Client, Options, Value};
pub use counters::{Counters, KindCounters, ROUNDTRIPS};
pub use error::{Error, Shortage};
pub use heap::{Holding, writing_clients};
pub use scan::{Estimate, Usage};
pub use swarm_core::error::Error as ReplicationError;
pub use swarm_core::fabric::Laggard;
pub use swarm_core::fabric::counting::Tally;
pub use swarm_core::layout::Geometry;
pub use swarm_core::quorum::{Events, Patience};
