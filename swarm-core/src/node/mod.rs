//! Memory nodes: which one, sets of them, and where a word lies in one.

mod id;
mod set;

pub use id::{Address, MAX_NODES, NodeId};
pub use set::NodeSet;
