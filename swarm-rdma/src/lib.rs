//! Memory nodes behind RDMA cards: the fabric over verbs.
//!
//! A memory node is a process that registers memory with its card and accepts connections; from then
//! on clients read, write and compare-and-swap its words through one reliable queue pair each, and
//! none of its code runs for them.
//!
//! | file              | concept                                                              |
//! | ----------------- | -------------------------------------------------------------------- |
//! | `error`           | what can be wrong with options, devices and nodes                    |
//! | `greeting`        | what clients and nodes say of themselves when they connect           |
//! | `device`          | devices, ports, GIDs, and choosing among them                        |
//! | `verbs`           | libibverbs and librdmacm as small safe types: all `unsafe` is there, but for one call in `fork` |
//! | `memory`          | a node's memory: allocated or mapped, and registered once            |
//! | `memnode`         | the memory node                                                      |
//! | `chain`           | from verbs to work requests, and the order that these keep           |
//! | `rider`           | chains in the background, which go out with the next ones            |
//! | `tickets`         | where replies wait                                                   |
//! | `doors`           | where the connector and the fabric meet                              |
//! | `connector`       | the thread that connects, and connects again                         |
//! | `link`            | the way to one node                                                  |
//! | `options`         | how to connect, and what a fabric says of itself                     |
//! | `completion`      | chains on their way, and what they yielded                           |
//! | `fabric`          | the fabric                                                           |
//! | `fork`            | whose a client is                                                    |
//!
//! The [control plane](control) stands beside these; nothing on the data path knows of it.

mod chain;
mod completion;
mod connector;
pub mod control;
mod device;
mod doors;
mod error;
mod fabric;
mod fork;
mod greeting;
mod link;
mod memnode;
mod memory;
mod options;
mod rider;
#[cfg(test)]
mod tests;
mod tickets;
mod verbs;

pub use completion::{Completion, Reply};
pub use device::{DeviceChoice, DeviceInfo, GidInfo, GidKind, PortInfo, PortState, devices};
pub use error::{Error, Fault};
pub use fabric::RdmaFabric;
pub use greeting::{ClientId, Life, NodeCard, PoolId, TRANSPORT_VERSION};
pub use memnode::{MemoryNode, MemorySource, NodeReport, ServeOptions};
pub use options::{ConnectOptions, Counters, Endpoint, NodeStatus};
