//! A node of a group, and a word of its memory.

use core::fmt;

/// Maximum number of replicas of a group.
pub const MAX_NODES: usize = 7;

/// A memory node's number within its replica group, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct NodeId(pub u8);

impl NodeId {
    /// Returns the node's number as an array index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// Offset of a word in a node's memory, in words.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Address(pub u64);

impl Address {
    /// Returns the address `words` further on.
    #[must_use]
    pub fn plus(self, words: usize) -> Self {
        Self(self.0 + words as u64)
    }
}
