//! Where an object lies at each node.

use crate::node::{Address, NodeId};
use crate::words::{GRANULE_WORDS, Pointer};

/// Where an object lies at each node.
///
/// Replicas may differ in what they hold: a register's in-place copy is at its *home* node alone.
/// See [`Geometry`](crate::layout::geometry::Geometry) for how locations follow from pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Location {
    /// The object's name: the same on every node.
    pub pointer: Pointer,
    /// The node that holds in-place copies, and the first that operations use.
    pub home: NodeId,
    /// Word address at the home node.
    pub at_home: u64,
    /// Word address at the node that precedes the home node in the ring.
    pub elsewhere: u64,
    /// Word distance from there to the address at the node before that one, and so on.
    pub stride: u32,
}

impl Location {
    /// Returns a location with the same address at every node.
    pub fn everywhere(pointer: Pointer, home: NodeId) -> Self {
        let at = pointer.0 * GRANULE_WORDS as u64;
        Self { pointer, home, at_home: at, elsewhere: at, stride: 0 }
    }

    /// Returns the address of the object's first word at `node`, in a group of `nodes`.
    #[inline]
    pub fn at(&self, node: NodeId, nodes: usize) -> Address {
        if node == self.home {
            return Address(self.at_home);
        }
        let back = usize::from(self.home.0) + nodes - usize::from(node.0);
        let rank = if back > nodes { back - nodes } else { back } - 1;
        Address(self.elsewhere + rank as u64 * u64::from(self.stride))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_away_from_home_are_told_apart_by_ring_distance() {
        let place = Location {
            pointer: Pointer(1),
            home: NodeId(1),
            at_home: 1000,
            elsewhere: 100,
            stride: 10,
        };
        assert_eq!(place.at(NodeId(1), 3), Address(1000));
        assert_eq!(place.at(NodeId(0), 3), Address(100));
        assert_eq!(place.at(NodeId(2), 3), Address(110));
        let all: std::vec::Vec<_> = (0..5).map(|n| place.at(NodeId(n), 5).0).collect();
        assert_eq!(all, [100, 1000, 130, 120, 110]);
    }
}
