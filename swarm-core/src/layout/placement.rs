//! Where buffers lie: at every node but one.
//!
//! A write is complete when a majority has it, so n - 1 copies suffice while all nodes answer. A
//! writer leaves out the node that operations on this register use last. With three nodes that
//! saves a third of what out-of-place values take. If nodes are silent, buffers go to all nodes.
//!
//! **Invariant (M3):** a slot names a buffer only at nodes that hold it. So a stamp is complete, or
//! written back, when f + 1 **of the nodes that hold its buffer** have it.
//!
//! M4: a register's *first* buffer leaves out its home, which has that value in place. The in-place
//! copy is a buffer's image, with the stamp where a buffer has its lock. It is not overwritten
//! before a later stamp is complete. So a new register's value is wherever the register is.
//!
//! The pointer determines which node is left out, and where the buffer lies at the others:
//!
//! ```text
//! chunk at each node    counters | part 0 | part 1 | … | part n - 2
//! buffers without a     at node a + 1 in part n - 2, at a + 2 in part n - 3, …, at a - 1 in part 0
//! ```
//!
//! A buffer's pointer is `[ more 1 | chunk | within 1 … ]`. Counted first through `within`, then
//! `more`, the first n parts are those without node 0, 1, …. Buffers that all nodes hold come after
//! them, each at the same address everywhere; there every second granule has a pointer.

use super::place::Location;
use super::register;
use crate::node::{Address, NodeId, NodeSet};
use crate::words::{GRANULE_WORDS, Pointer};

/// Which nodes hold a buffer, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplicaSet {
    /// Where it lies at those.
    pub place: Location,
    /// The nodes that hold it.
    pub holders: NodeSet,
}

impl ReplicaSet {
    /// Returns whether all nodes that have the object hold the same: it is a buffer or a record.
    pub fn is_alike(&self) -> bool {
        self.place.stride == 0 || !self.holders.contains(self.place.home)
    }

    /// Returns a set of all nodes, with the same address.
    pub(crate) fn everywhere(pointer: Pointer, at: Pointer, nodes: usize) -> Self {
        let place = Location { pointer, ..Location::everywhere(at, NodeId(0)) };
        Self { place, holders: NodeSet::all(nodes) }
    }
}

/// How a group's nodes share buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    nodes: usize,
    /// Where each node's memory ends, in words, if known.
    end: u64,
    /// `None`: every node holds every buffer.
    parts: Option<Parts>,
}

/// A chunk's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parts {
    /// A chunk has 2 to this power granules.
    chunk_bits: u32,
    /// Granules of a part.
    length: u32,
    /// Granules of all parts.
    span: u32,
    /// The largest word divided by the length, to find parts without a division.
    inverse: u64,
    /// The bit above a pointer's chunk.
    more: u32,
}

/// What a buffer's pointer encodes.
struct Located {
    chunk: u64,
    /// The part's number; from `nodes` on for buffers that all nodes hold.
    part: u64,
    within: u64,
}

impl Placement {
    /// Returns a placement where every node holds every buffer: if nothing is known of chunks.
    pub fn everywhere(nodes: usize) -> Self {
        Self { nodes, end: u64::MAX, parts: None }
    }

    /// Sets the size of the nodes, in words.
    pub(crate) fn in_words(self, words: u64) -> Self {
        Self { end: words, ..self }
    }

    /// Returns whether a node can have an object of this many words there. No client wrote a
    /// pointer that leads elsewhere.
    pub(crate) fn has_room_at(&self, at: Address, words: usize) -> bool {
        at.0.saturating_add(words as u64) <= self.end
    }

    /// Returns the placement for chunks of 2 to the power of `chunk_bits` granules, with pointers
    /// to fewer than 2 to the power of `more` granules.
    pub(crate) fn in_chunks(nodes: usize, chunk_bits: u32, more: u32) -> Self {
        if nodes < 3 {
            return Self::everywhere(nodes);
        }
        let length = ((1_u64 << chunk_bits) - 1) / (nodes as u64 - 1);
        let (span, inverse) = (length * (nodes as u64 - 1), u64::MAX / length);
        let (length, span) = (length as u32, span as u32);
        let parts = Some(Parts { chunk_bits, length, span, inverse, more });
        Self { parts, ..Self::everywhere(nodes) }
    }

    /// Returns how many granules of a chunk buffers without one node can take; `None` if there are
    /// no such buffers.
    pub fn part(&self) -> Option<u64> {
        self.parts.map(|parts| u64::from(parts.length))
    }

    /// Returns the pointer of a buffer in `chunk` that is not at `absent` and lies `within`
    /// granules into the parts for such buffers. `None` if every node holds every buffer.
    pub fn without(&self, absent: NodeId, chunk: usize, within: u64) -> Option<Pointer> {
        let parts = self.parts?;
        Some(self.pointer(parts, chunk, u64::from(absent.0) * u64::from(parts.length) + within))
    }

    /// Returns the pointer of a buffer in `chunk` that all nodes hold and that lies `within`
    /// granules, an even number, into it.
    pub fn with_all(&self, chunk: usize, within: u64) -> Option<Pointer> {
        let parts = self.parts?;
        let first = self.nodes as u64 * u64::from(parts.length);
        Some(self.pointer(parts, chunk, first + within / 2))
    }

    fn pointer(&self, parts: Parts, chunk: usize, through: u64) -> Pointer {
        let span = u64::from(parts.span);
        let chunk = (chunk as u64) << parts.chunk_bits;
        Pointer(((through / span) << parts.more) | chunk | (through % span + 1))
    }

    /// The part is `through / length`. The product stands for a little less than
    /// `(through + 1) / length`, by `(through + 1) / 2^64` at most, which is less than
    /// `1 / length`.
    #[inline(always)]
    fn locate(parts: &Parts, pointer: Pointer) -> Located {
        let more = pointer.0 >> parts.more;
        let rest = pointer.0 & ((1 << parts.more) - 1);
        let within = (rest & ((1 << parts.chunk_bits) - 1)).saturating_sub(1);
        let through = u64::from((more * u64::from(parts.span) + within) as u32);
        let part = ((u128::from(through + 1) * u128::from(parts.inverse)) >> 64) as u64;
        let within = through - part * u64::from(parts.length);
        Located { chunk: rest >> parts.chunk_bits, part, within }
    }

    /// Returns which node does not hold a buffer, and how far into its chunk the buffer lies.
    #[inline(always)]
    pub fn within(&self, pointer: Pointer) -> (Option<NodeId>, u64) {
        let Some(parts) = &self.parts else { return (None, 0) };
        let Located { part, within, .. } = Self::locate(parts, pointer);
        match part.checked_sub(self.nodes as u64) {
            None => (Some(NodeId(part as u8)), within),
            Some(later) => (None, 2 * (later * u64::from(parts.length) + within)),
        }
    }

    /// Returns the chunk that an object lies in, buffer or not.
    #[inline(always)]
    pub fn chunk(&self, pointer: Pointer, chunk_bits: u32) -> usize {
        let mask = self.parts.as_ref().map_or(u64::MAX, |parts| (1 << parts.more) - 1);
        ((pointer.0 & mask) >> chunk_bits) as usize
    }

    /// Returns the node that does not hold this buffer.
    pub fn absent(&self, pointer: Pointer) -> Option<NodeId> {
        self.within(pointer).0
    }

    /// Returns which nodes hold a buffer, and where.
    #[inline(always)]
    pub fn site(&self, pointer: Pointer) -> ReplicaSet {
        let Some(parts) = &self.parts else {
            return ReplicaSet::everywhere(pointer, pointer, self.nodes);
        };
        if let Some((_, absent, _, at)) = self.within_at(pointer) {
            return self.all_but_one_set(pointer, absent, at);
        }
        let Located { chunk, part, within } = Self::locate(parts, pointer);
        let later = part - self.nodes as u64;
        let within = 2 * (later * u64::from(parts.length) + within);
        let at = Pointer((chunk << parts.chunk_bits) + 1 + within);
        ReplicaSet::everywhere(pointer, at, self.nodes)
    }

    /// The same for a buffer that is not at `absent` and lies at word `at` of the node after that
    /// one: see [`within_at`](Self::within_at).
    #[inline(always)]
    pub fn all_but_one_set(&self, pointer: Pointer, absent: NodeId, at: u64) -> ReplicaSet {
        let length = self.parts.as_ref().map_or(0, |parts| parts.length);
        let mut holders = NodeSet::all(self.nodes);
        holders.remove(absent);
        // Computed as for an object whose home `absent` is: the others' addresses depend on their
        // distance from it.
        let stride = length * GRANULE_WORDS as u32;
        ReplicaSet {
            place: Location { pointer, home: absent, at_home: at, elsewhere: at, stride },
            holders,
        }
    }

    /// For a buffer that is not at all nodes: returns its chunk, the node that does not hold it, its
    /// offset in the parts for such buffers, and the word for its [site](Self::all_but_one_set).
    /// `None` for all others.
    #[inline(always)]
    pub fn within_at(&self, pointer: Pointer) -> Option<(usize, NodeId, u64, u64)> {
        let parts = self.parts.as_ref()?;
        let Located { chunk, part, within } = Self::locate(parts, pointer);
        let first = (chunk << parts.chunk_bits) + 1;
        let at = (first + within) * GRANULE_WORDS as u64;
        (part < self.nodes as u64).then_some((chunk as usize, NodeId(part as u8), within, at))
    }

    /// Returns the [site](Self::site) of the first buffer of the register at `place`: its home has
    /// it in place (M4).
    #[inline(always)]
    pub fn first_site(&self, pointer: Pointer, place: &Location) -> ReplicaSet {
        let site = self.site(pointer);
        if site.holders.contains(place.home) {
            return site;
        }
        let at_home = place.at_home + register::IN_PLACE as u64;
        let place = Location { at_home, ..site.place };
        ReplicaSet { place, holders: NodeSet::all(self.nodes) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Every granule that a buffer takes at a node belongs to that buffer alone, and its pointer
    /// shows that.
    #[test]
    fn buffers_do_not_overlap() {
        for nodes in [3, 5, 7] {
            let buffers = Placement::in_chunks(nodes, 6, 10);
            let length = buffers.part().expect("parts");
            let chunks = [1, 7].into_iter();
            let mut taken = BTreeMap::new();
            for (chunk, absent) in
                chunks.flat_map(|chunk| (0..nodes).map(move |node| (chunk, NodeId(node as u8))))
            {
                for within in 0..length {
                    let pointer = buffers.without(absent, chunk, within).expect("a pointer");
                    assert!(pointer.0 < 1 << 11);
                    assert_eq!(buffers.within(pointer), (Some(absent), within));
                    assert_eq!(buffers.chunk(pointer, 6), chunk);
                    let site = buffers.site(pointer);
                    assert_eq!(site.holders.len(), nodes - 1);
                    for node in site.holders {
                        let granule = site.place.at(node, nodes).0 / GRANULE_WORDS as u64;
                        assert_eq!(granule >> 6, chunk as u64);
                        assert_ne!(granule & 63, 0, "the counters'");
                        assert_eq!(taken.insert((node, granule), pointer), None);
                    }
                }
            }
            assert_eq!(taken.len() as u64, 2 * (nodes * (nodes - 1)) as u64 * length);
        }
    }

    #[test]
    fn buffers_that_all_nodes_hold_lie_at_the_same_place() {
        for nodes in [3, 5, 7] {
            let buffers = Placement::in_chunks(nodes, 6, 10);
            for within in (0..62).step_by(2) {
                let pointer = buffers.with_all(3, within).expect("a pointer");
                assert!(pointer.0 < 1 << 11, "{nodes}: {within}");
                assert_eq!(buffers.within(pointer), (None, within));
                let site = buffers.site(pointer);
                assert_eq!(site.holders, NodeSet::all(nodes));
                let at = (3 * 64 + 1 + within) * GRANULE_WORDS as u64;
                site.holders.into_iter().for_each(|n| assert_eq!(site.place.at(n, nodes).0, at));
            }
        }
    }
}
