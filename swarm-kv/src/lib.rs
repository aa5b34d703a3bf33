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
//! The layers, top to bottom. A module uses only modules in rows below its own;
//! the module `layers` of swarm-kv's test `correctness` checks that.
//!
//! | layer | concept |
//! | --- | --- |
//! | `store` | a handle for all threads and tasks of a process, which lends each operation a client |
//! | `reader` | reading a pool that this process may not write |
//! | `pools` | opening a store on shared-memory files and on RDMA memory nodes |
//! | `objects` | locks: objects of one cell, which processes coordinate by |
//! | `ops` | get, put, update, insert, delete, read-modify-write, scan; locating keys, write locks per key, relocating keys |
//! | `gc` | mark and sweep, assist, evacuation, direct reclaim |
//! | `client` | a client's state: location cache, pins, counters, the process that may use it |
//! | `heap` | memory in chunks that client slots own: allocation, reclamation, chunks that change owner |
//! | `index` | extendible hashing over cells: buckets, lookup, objects created together with a record |
//! | `read_only` | a fabric that posts READs alone |
//! | `runtime` | running futures: blocking, waiting, a mutex among the operations of one client |
//! | `error_kind` | what a program can do about an error |
//! | `error` | what an operation failed for |
// The handle has some, with its argument: `store::whole`, `store::slot`.
#![deny(unsafe_code)]

// What tests beside the crate have in common with some within it names it so.
#[cfg(test)]
extern crate self as swarm_kv;

mod client;
mod error;
mod error_kind;
mod gc;
mod heap;
mod index;
pub mod objects;
mod ops;
mod pools;
mod read_only;
mod reader;
mod runtime;
pub mod store;

pub use client::counters::{Counters, KindCounters, ROUNDTRIPS};
pub use client::handle::{Client, Options, Value};
pub use error::{Error, Shortage};
pub use error_kind::ErrorKind;
pub use gc::full::{Gc, GcStage};
pub use heap::{ClientUsage, writing_clients};
pub use ops::blocking::Blocking;
pub use ops::cursor::Cursor;
pub use ops::expiry::{MAX_EXPIRING, TimeToLive};
pub use ops::fill::Filled;
pub use ops::modify::CompareAndSwap;
pub use ops::replace::{Membership, ReplaceError, ReplaceStep};
pub use ops::scan::{Estimate, Usage};
pub use ops::verify::{Fault, FaultKind, Verdict};
pub use ops::version::Version;
pub use ops::watch::{BlockingWatch, Watch};
#[cfg(feature = "rdma")]
pub use pools::rdma;
pub use pools::shm;
pub use reader::Reader;
pub use runtime::block_on::block_on;
pub use store::{Store, StoreOptions};
pub use swarm_core::error::Error as ReplicationError;
pub use swarm_core::fabric::counting::OpCost;
pub use swarm_core::fabric::{Laggard, LaggardState};
pub use swarm_core::layout::Geometry;
pub use swarm_core::node::{Configuration, NodeId, NodeState};
pub use swarm_core::quorum::{SlowPathCounts, Timeouts};
