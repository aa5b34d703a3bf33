//! The configuration: which memory is each node's, and whether its vote counts.
//!
//! A node that is lost for good is *replaced*: other memory takes its place, all zeros at first.
//! The place keeps its number, and its *life* grows by one. The new memory is *filling* until all
//! is there that it has to hold; then it votes. A client that begins an operation treats a node that
//! is filling as one that is down. So a node is *gone* from the moment it is filling: nobody counts
//! on its former life any more, and nobody but the client that fills posts to the next one.
//!
//! **Invariant (H6):** configurations have one order, and one writer each: each is decided once,
//! by the client that changes the one before it. And each has a majority of nodes that vote, each in the
//! life that filled it.
//!
//! This is all that is common to fabrics, and knows neither files nor daemons. What a fabric brings:
//! where the configuration is kept, so that it is decided by one at a time and outlives any minority
//! of nodes; fresh memory of each life, which no chain to a former life reaches; and that a client
//! that begins an operation in a later generation goes by it
//! ([`Fabric::reconfigure`](crate::fabric::Fabric::reconfigure)).

use core::fmt;

use super::{MAX_NODES, NodeId, NodeSet};

/// Whether a node takes part in majorities.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// It does.
    Votes,
    /// It is being filled, or its filling was given up: it does not have what it must. To all
    /// clients but the one that fills it is down.
    Filling,
}

/// Which memory is each node's, and which nodes vote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Configuration {
    nodes: usize,
    number: u64,
    lives: [u32; MAX_NODES],
    filling: NodeSet,
}

/// Why a configuration cannot be changed so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refused {
    /// There is no such node, of so many.
    NoSuchNode(usize),
    /// There is no other node that knows what was there.
    NoOther,
    /// Without it, so few nodes vote, which is no majority.
    NoMajority(usize),
    /// It was replaced as often as can be counted.
    LivesUsedUp,
    /// The node is in this life by now: somebody else has replaced it, or began to, since.
    Superseded(u32),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NoSuchNode(nodes) => write!(f, "the pool has nodes 0 to {}", nodes - 1),
            Self::NoOther => f.write_str("the pool has no other node that knows what was in it"),
            Self::NoMajority(vote) => write!(
                f,
                "without it {vote} nodes would vote, which is no majority; first end the replacement \
                 of another one"
            ),
            Self::LivesUsedUp => f.write_str("it was replaced as often as can be counted"),
            Self::Superseded(life) => {
                write!(f, "somebody else began to replace it meanwhile: it is in life {life}")
            }
        }
    }
}

impl core::error::Error for Refused {}

impl Configuration {
    /// Returns the first configuration of a pool: every node votes, in life 0.
    pub fn first(nodes: usize) -> Self {
        Self { nodes, number: 0, lives: [0; MAX_NODES], filling: NodeSet::EMPTY }
    }

    /// Returns the configuration of this number, as a fabric has kept it: the life of each of its
    /// `nodes`, and the nodes that do not vote.
    pub fn kept(nodes: usize, number: u64, lives: [u32; MAX_NODES], filling: NodeSet) -> Self {
        Self { nodes, number, lives, filling: filling.intersection(NodeSet::all(nodes)) }
    }

    /// Returns its number: how often the configuration was changed.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns how often a node was replaced, or is being replaced.
    pub fn life(&self, node: NodeId) -> u32 {
        self.lives[node.index()]
    }

    /// Returns the life of each node.
    pub fn lives(&self) -> &[u32; MAX_NODES] {
        &self.lives
    }

    /// Returns whether a node votes.
    pub fn state(&self, node: NodeId) -> NodeState {
        if self.filling.contains(node) { NodeState::Filling } else { NodeState::Votes }
    }

    /// Returns the nodes that vote.
    pub fn voters(&self) -> NodeSet {
        NodeSet::all(self.nodes).minus(self.filling)
    }

    /// Returns the next configuration, in which `node` is gone, and is filling in its next life.
    /// That life is of the one that decides this: what another one has filled of it, or still has
    /// on its way there, is of a former life.
    ///
    /// # Errors
    /// There is no such node, or no majority without it, or no further life.
    pub fn replacing(&self, node: NodeId) -> Result<Self, Refused> {
        if node.index() >= self.nodes {
            return Err(Refused::NoSuchNode(self.nodes));
        }
        if self.nodes == 1 {
            return Err(Refused::NoOther);
        }
        let mut filling = self.filling;
        filling.insert(node);
        // H6: all that completes from here on is at f + 1 of the others.
        let vote = self.nodes - filling.len();
        if 2 * vote <= self.nodes {
            return Err(Refused::NoMajority(vote));
        }
        let mut next = Self { filling, number: self.number.saturating_add(1), ..*self };
        let life = &mut next.lives[node.index()];
        *life = life.checked_add(1).ok_or(Refused::LivesUsedUp)?;
        Ok(next)
    }

    /// Returns the next configuration, in which `node` votes, which was filled in this life.
    ///
    /// # Errors
    /// Somebody else began to fill the node in a later life, or let it vote.
    pub fn voting(&self, node: NodeId, life: u32) -> Result<Self, Refused> {
        // H6: what was filled is not the memory of any other life.
        if self.life(node) != life || !self.filling.contains(node) {
            return Err(Refused::Superseded(self.life(node)));
        }
        let mut filling = self.filling;
        filling.remove(node);
        Ok(Self { filling, number: self.number.saturating_add(1), ..*self })
    }

    /// Returns whether it is the next one after `other`: what a fabric asks before it decides.
    pub fn follows(&self, other: &Self) -> bool {
        self.nodes == other.nodes && other.number.checked_add(1) == Some(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_gone_is_filled_and_votes() {
        let first = Configuration::first(3);
        let gone = first.replacing(NodeId(1)).expect("two others vote");
        assert_eq!((gone.number(), gone.life(NodeId(1))), (1, 1));
        assert_eq!(gone.state(NodeId(1)), NodeState::Filling);
        assert_eq!(gone.voters(), [0, 2].map(NodeId).into_iter().collect());
        let whole = gone.voting(NodeId(1), 1).expect("it was filled in this life");
        assert_eq!(whole.voters(), NodeSet::all(3));
        assert_eq!(whole.lives()[..3], [0, 1, 0]);
        assert!(whole.follows(&gone) && gone.follows(&first) && !whole.follows(&first));
        let kept = Configuration::kept(3, gone.number(), *gone.lives(), gone.filling);
        assert_eq!(kept, gone);
    }

    #[test]
    fn a_majority_votes_always() {
        let first = Configuration::first(3);
        let gone = first.replacing(NodeId(0)).expect("two others vote");
        assert_eq!(gone.replacing(NodeId(2)), Err(Refused::NoMajority(1)));
        let two =
            Configuration::first(5).replacing(NodeId(0)).and_then(|it| it.replacing(NodeId(4)));
        assert_eq!(two.map(|two| two.voters().len()), Ok(3));
        assert_eq!(first.replacing(NodeId(3)), Err(Refused::NoSuchNode(3)));
        assert_eq!(Configuration::first(1).replacing(NodeId(0)), Err(Refused::NoOther));
    }

    /// Somebody else takes a replacement up, in another life. The first filler must not let that vote.
    #[test]
    fn who_fills_lets_what_it_filled_vote_and_nothing_else() {
        let gone = Configuration::first(3).replacing(NodeId(0)).expect("two others vote");
        let again = gone.replacing(NodeId(0)).expect("it is gone already");
        assert_eq!(again.life(NodeId(0)), 2);
        assert_eq!(again.voting(NodeId(0), 1), Err(Refused::Superseded(2)));
        let whole = again.voting(NodeId(0), 2).expect("it was filled in this life");
        assert_eq!(whole.voting(NodeId(0), 2), Err(Refused::Superseded(2)), "it votes");
    }
}
