//! Sets of nodes of one group.

use super::NodeId;

/// A set of nodes, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct NodeSet(u8);

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self(0);

    /// Returns it as bits: the lowest is node 0's.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Makes a set from bits.
    pub fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// Returns the nodes 0 to `n` - 1.
    pub fn all(n: usize) -> Self {
        Self(((1u16 << n) - 1) as u8)
    }

    /// Returns `count` nodes of `n`, beginning with `first` and wrapping around.
    pub fn ring(first: NodeId, count: usize, n: usize) -> Self {
        let run = ((1u16 << count) - 1) << first.0;
        Self((run | (run >> n)) as u8).intersection(Self::all(n))
    }

    /// Returns how many nodes are in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether no node is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether `node` is in the set.
    pub fn contains(self, node: NodeId) -> bool {
        self.0 & (1 << node.0) != 0
    }

    /// Adds `node`.
    pub fn insert(&mut self, node: NodeId) {
        self.0 |= 1 << node.0;
    }

    /// Removes `node`.
    pub fn remove(&mut self, node: NodeId) {
        self.0 &= !(1 << node.0);
    }

    /// Returns the nodes in both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the nodes in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the nodes in this set for which `f` holds.
    #[must_use]
    pub fn holding(self, mut f: impl FnMut(NodeId) -> bool) -> Self {
        self.filter(|&node| f(node)).collect()
    }

    /// Returns the nodes in this set that are not in `other`.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl Iterator for NodeSet {
    type Item = NodeId;

    /// Removes the lowest node from the set.
    fn next(&mut self) -> Option<NodeId> {
        if self.0 == 0 {
            return None;
        }
        let node = NodeId(self.0.trailing_zeros() as u8);
        self.0 &= self.0 - 1;
        Some(node)
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> Self {
        let mut set = Self::EMPTY;
        nodes.into_iter().for_each(|node| set.insert(node));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_goes_round() {
        assert_eq!(NodeSet::ring(NodeId(2), 2, 3), NodeSet(0b101));
        assert_eq!(NodeSet::ring(NodeId(0), 2, 3), NodeSet(0b011));
        assert_eq!(NodeSet::ring(NodeId(6), 4, 7), NodeSet(0b1000111));
        assert_eq!(NodeSet::ring(NodeId(0), 1, 1), NodeSet(0b1));
        assert_eq!(NodeSet::all(7).len(), 7);
    }

    #[test]
    fn iterates_from_the_lowest() {
        let mut nodes = NodeSet::ring(NodeId(2), 2, 3);
        assert_eq!(nodes.next(), Some(NodeId(0)));
        assert_eq!(nodes.next(), Some(NodeId(2)));
        assert_eq!(nodes.next(), None);
    }
}
