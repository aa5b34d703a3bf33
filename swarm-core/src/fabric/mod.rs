//! The fabric, the protocols' whole interface to memory nodes, and fabrics that wrap another.

pub mod counting;
mod epochs;
pub mod faults;
mod interface;
pub mod latency;
#[cfg(any(test, feature = "sim"))]
pub mod loopback;

pub use epochs::{EpochDomain, Laggard, LaggardState, Lost, NoEpochs, RemoteFree};
pub use interface::{Fabric, MAX_VERBS, NodeDown, Store, Swap, Verb};
