//! The fabric, which is all that the protocols ask of memory nodes, and fabrics that wrap another.

mod board;
pub mod counting;
pub mod faults;
mod interface;
pub mod latency;
#[cfg(any(test, feature = "sim"))]
pub mod loopback;

pub use board::{Board, Laggard, Lost, NoBoard, Replaced};
pub use interface::{Fabric, MAX_VERBS, NodeDown, Store, Swap, Verb};
