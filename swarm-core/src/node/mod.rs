//! Memory nodes: their numbers, sets of them, and addresses of words in them.

mod id;
mod set;

pub use id::{Address, MAX_NODES, NodeId};
pub use set::NodeSet;
