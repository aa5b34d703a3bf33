//! Which high-water marks a client has read.

use swarm_core::node::{NodeId, NodeSet};

/// For each chunk, the homes whose high-water mark was read; of shared chunks, only marks that are
/// used up.
#[derive(Default)]
pub(in crate::heap) struct KnownMarks(Vec<NodeSet>);

impl KnownMarks {
    pub(in crate::heap) fn insert(&mut self, chunk: usize, home: NodeId) {
        if self.0.len() <= chunk {
            self.0.resize(chunk + 1, NodeSet::EMPTY);
        }
        self.0[chunk].insert(home);
    }

    pub(in crate::heap) fn contains(&self, chunk: usize, home: NodeId) -> bool {
        self.0.get(chunk).is_some_and(|homes| homes.contains(home))
    }

    /// Forgets the marks of all other chunks.
    pub(in crate::heap) fn keep(&mut self, is_kept: impl Fn(usize) -> bool) {
        for (chunk, homes) in self.0.iter_mut().enumerate() {
            if !is_kept(chunk) {
                *homes = NodeSet::EMPTY;
            }
        }
    }
}
