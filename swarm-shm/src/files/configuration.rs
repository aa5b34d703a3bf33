//! The [configuration](swarm_core::node::Configuration) in files: which file is each node's.
//!
//! A node that is lost for good is *replaced*: a new file takes its place. The place keeps its
//! number, and its *life* grows by one. The number of the configuration grows with it, so that
//! a process that reads without a lock finds that it is another one (S15).
//!
//! **Invariant (H3):** no file of a former life votes. A life is decided once the headers of a
//! majority say it, and then the control file. The new file takes the place of the old one after
//! that, by a rename. So a process that is killed in between leaves a node without a file that votes, and
//! never one with two.
//!
//! One process at a time changes the configuration: one that holds the lock for it (H4).

pub(crate) use swarm_core::node::NodeState;
use swarm_core::node::{MAX_NODES, NodeId};

use crate::files::header::{LIFE, LIVES};
use crate::files::mapping::Mapping;
use crate::words::sync::Ordering;

/// The life of each node: how often it was replaced.
pub(crate) type Lives = [u32; MAX_NODES];

/// Encodes a life and a state as a word of a header or of the control file.
pub(crate) fn life_word(life: u32, state: NodeState) -> u64 {
    u64::from(life) << 32 | u64::from(state == NodeState::Filling)
}

/// Decodes it. A state that this version does not know is none that votes.
pub(crate) fn decode_life(word: u64) -> (u32, NodeState) {
    let state = if word as u32 == 0 { NodeState::Votes } else { NodeState::Filling };
    ((word >> 32) as u32, state)
}

/// Returns the life and state that a node's header says of its own file.
pub(crate) fn own_life(node: &Mapping) -> (u32, NodeState) {
    decode_life(node.words()[LIFE].load(Ordering::Relaxed))
}

/// Returns the life of `node` as another node's header, or its own, has it.
pub(crate) fn recorded_life(by: &Mapping, node: NodeId) -> u32 {
    let word = by.words()[LIVES + node.index() / 2].load(Ordering::Relaxed);
    (word >> (node.index() % 2 * 32)) as u32
}

/// Stores the life of each node in a node's header. The caller holds the lock of the only writer.
pub(crate) fn store_lives(to: &Mapping, lives: &Lives) {
    for (word, pair) in to.words()[LIVES..].iter().zip(lives.chunks(2)) {
        let high = pair.get(1).copied().unwrap_or(0);
        word.store(u64::from(high) << 32 | u64::from(pair[0]), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_and_a_state_come_apart_as_they_went_together() {
        for life in [0, 1, u32::MAX] {
            for state in [NodeState::Votes, NodeState::Filling] {
                assert_eq!(decode_life(life_word(life, state)), (life, state));
            }
        }
        assert_eq!(life_word(0, NodeState::Votes), 0, "as in pools of which no node was replaced");
        assert_eq!(decode_life(7).1, NodeState::Filling, "a state that is not known");
    }
}
