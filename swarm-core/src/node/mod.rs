//! Memory nodes: their numbers, sets of them, which memory is whose, and addresses of words in them.

mod configuration;
mod id;
mod set;

pub use configuration::{Configuration, NodeState, Refused};
pub use id::{Address, MAX_NODES, NodeId};
pub use set::NodeSet;
