//! Memory nodes behind RDMA cards: the fabric over verbs.
//!
//! A memory node is a process that registers memory with its card and accepts connections. After
//! that, each client reads, writes and compares-and-swaps the node's words through one reliable
//! queue pair. The node's processor runs no code for an operation.
//!
//! The layers, top to bottom. A module uses only modules in rows below its own. The module `layers`
//! of swarm-kv's test `correctness` checks this.
//!
//! | layer | concept |
//! | --- | --- |
//! | `fabric` | the fabric: peers, posted chains, deferred chains, completions, replies |
//! | `control`, `connector`, `memnode` | clients and epochs; the thread that connects; a memory node |
//! | `options` | how to connect, and what a fabric reports about itself |
//! | `device` | devices, ports, GIDs, and how one of them is chosen |
//! | `error`, `verbs` | errors; libibverbs and librdmacm as small safe types: all `unsafe` but one call in `fork` |
//! | `handshake`, `fork` | the private data of connect; the process that a fabric belongs to |
//!
//! The data path uses nothing of the [control plane](control) but the client's epochs.

mod connector;
pub mod control;
mod device;
mod error;
mod fabric;
mod fork;
mod handshake;
mod memnode;
mod options;
#[cfg(test)]
mod tests;
mod verbs;

pub use device::{DeviceChoice, DeviceInfo, GidInfo, GidKind, PortInfo, PortState, devices};
pub use error::{Error, Fault};
pub use fabric::RdmaFabric;
pub use fabric::completion::{Completion, Reply};
pub use handshake::{ClientId, InstanceId, NodeHello, PoolId, TRANSPORT_VERSION};
pub use memnode::{MemoryNode, MemorySource, NodeReport, ServeOptions};
pub use options::{ConnectOptions, Counters, Endpoint, NodeStatus};
