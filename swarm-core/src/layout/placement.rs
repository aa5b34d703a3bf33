//! Where buffers lie: at every node but one.
//!
//! A write is complete when a majority has it, so where all nodes are well n - 1 copies are more than enough:
//! whoever writes leaves out the node that operations on this register turn to last. With three nodes a third
//! of what values take out of place is saved. Where nodes are silent, buffers go to all that there are.
//!
//! It all rests on this: *a slot names a buffer only at nodes that hold it*, so that a stamp is
//! complete, or written back, when a majority **of nodes that hold its buffer** has it.
//!
//! A register's *first* buffer leaves out its home, which has that value in place: the in-place copy is a
//! buffer's image, with the stamp where a buffer has its lock. It is not overwritten before a later stamp
//! is complete. So a newborn register's value is wherever the register is.
//!
//! Which node is left out follows from the pointer, as does where the buffer lies at the others:
//!
//! ```text
//! chunk at each node    counters | part 0 | part 1 | … | part n - 2
//! buffers without a     at node a + 1 in part n - 2, at a + 2 in part n - 3, …, at a - 1 in part 0
//! ```
//!
//! A buffer's pointer says `[ more 1 | chunk | within 1 … ]`: counted through `within`, then `more`, the first
//! n parts are those without node 0, 1, …; then come, every second granule having a pointer, buffers
//! that all nodes hold, each at the same place.

use super::place::Place;
use super::register;
use crate::node::{Address, NodeId, NodeSet};
use crate::words::{GRANULE_WORDS, Pointer};

/// Which nodes hold a buffer, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Where it lies at those.
    pub place: Place,
    /// Which ones.
    pub holders: NodeSet,
}

impl Site {
    /// Whether all nodes that have the object have the same of it: it is a buffer or a record.
    pub fn is_alike(&self) -> bool {
        self.place.stride == 0 || !self.holders.contains(self.place.home)
    }

    /// At all nodes, at the same place.
    pub(crate) fn everywhere(pointer: Pointer, at: Pointer, nodes: usize) -> Self {
        let place = Place { pointer, ..Place::everywhere(at, NodeId(0)) };
        Self { place, holders: NodeSet::all(nodes) }
    }
}

/// How a group's nodes share buffers among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    nodes: usize,
    /// Where each node's memory ends, in words, if that is known.
    end: u64,
    /// `None`: every node holds every buffer.
    parts: Option<Parts>,
}

/// A chunk's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Parts {
    /// Granules of a chunk are 2 to this power.
    chunk_bits: u32,
    /// Granules of a part.
    length: u32,
    /// Granules of all parts.
    span: u32,
    /// The largest word divided by the length: parts are found without a division.
    inverse: u64,
    /// The bit in front of a pointer's chunk.
    more: u32,
}

/// What a buffer's pointer says.
struct Located {
    chunk: u64,
    /// The part, counted through; from `nodes` on of buffers that all nodes hold.
    part: u64,
    within: u64,
}

impl Buffers {
    /// Every node holds every buffer: where nothing is known of chunks.
    pub fn everywhere(nodes: usize) -> Self {
        Self { nodes, end: u64::MAX, parts: None }
    }

    /// The same in nodes of so many words.
    pub(crate) fn in_words(self, words: u64) -> Self {
        Self { end: words, ..self }
    }

    /// Whether a node can have an object of so many words there. A pointer that leads elsewhere is one that
    /// nobody wrote.
    pub(crate) fn has_room_at(&self, at: Address, words: usize) -> bool {
        at.0.saturating_add(words as u64) <= self.end
    }

    /// In chunks of 2 to the power of `chunk_bits` granules, with pointers to fewer than 2 to the power of
    /// `more` granules.
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

    /// Granules of a chunk that buffers without one node can take; `None` if there are no such.
    pub fn part(&self) -> Option<u64> {
        self.parts.map(|parts| u64::from(parts.length))
    }

    /// The pointer of a buffer in `chunk` that is not at `absent` and lies `within` granules into the parts
    /// for such. `None` if every node holds every buffer.
    pub fn without(&self, absent: NodeId, chunk: usize, within: u64) -> Option<Pointer> {
        let parts = self.parts?;
        Some(self.pointer(parts, chunk, u64::from(absent.0) * u64::from(parts.length) + within))
    }

    /// The pointer of a buffer in `chunk` that all nodes hold and that lies `within` granules, an even
    /// number, into it.
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

    /// The part is `through / length`: the product stands for a little less than `(through + 1) / length`, by
    /// `(through + 1) / 2^64` at most, which is less than `1 / length`.
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

    /// How far into its chunk a buffer lies, and which node does not hold it.
    #[inline(always)]
    pub fn within(&self, pointer: Pointer) -> (Option<NodeId>, u64) {
        let Some(parts) = &self.parts else { return (None, 0) };
        let Located { part, within, .. } = Self::locate(parts, pointer);
        match part.checked_sub(self.nodes as u64) {
            None => (Some(NodeId(part as u8)), within),
            Some(later) => (None, 2 * (later * u64::from(parts.length) + within)),
        }
    }

    /// The chunk that an object lies in, buffer or not.
    #[inline(always)]
    pub fn chunk(&self, pointer: Pointer, chunk_bits: u32) -> usize {
        let mask = self.parts.as_ref().map_or(u64::MAX, |parts| (1 << parts.more) - 1);
        ((pointer.0 & mask) >> chunk_bits) as usize
    }

    /// The node that does not hold this buffer.
    pub fn absent(&self, pointer: Pointer) -> Option<NodeId> {
        self.within(pointer).0
    }

    /// Which nodes hold a buffer, and where.
    #[inline(always)]
    pub fn site(&self, pointer: Pointer) -> Site {
        let Some(parts) = &self.parts else {
            return Site::everywhere(pointer, pointer, self.nodes);
        };
        if let Some((absent, _, at)) = self.within_at(pointer) {
            return self.lean_site(pointer, absent, at);
        }
        let Located { chunk, part, within } = Self::locate(parts, pointer);
        let later = part - self.nodes as u64;
        let within = 2 * (later * u64::from(parts.length) + within);
        let at = Pointer((chunk << parts.chunk_bits) + 1 + within);
        Site::everywhere(pointer, at, self.nodes)
    }

    /// The same of a buffer that `absent` does without and that lies at word `at` of the node behind that one: see
    /// [`within_at`](Self::within_at).
    #[inline(always)]
    pub fn lean_site(&self, pointer: Pointer, absent: NodeId, at: u64) -> Site {
        let length = self.parts.as_ref().map_or(0, |parts| parts.length);
        let mut holders = NodeSet::all(self.nodes);
        holders.remove(absent);
        // As of an object whose home it is: the others are told apart by how far they are from it.
        let stride = length * GRANULE_WORDS as u32;
        Site { place: Place { pointer, home: absent, at_home: at, elsewhere: at, stride }, holders }
    }

    /// Of a buffer that some node does without: which one, how far into the parts for such it lies, and the word
    /// that a [site](Self::lean_site) is made of. `None` of all others.
    #[inline(always)]
    pub fn within_at(&self, pointer: Pointer) -> Option<(NodeId, u64, u64)> {
        let parts = self.parts.as_ref()?;
        let Located { chunk, part, within } = Self::locate(parts, pointer);
        let first = (chunk << parts.chunk_bits) + 1;
        let at = (first + within) * GRANULE_WORDS as u64;
        (part < self.nodes as u64).then_some((NodeId(part as u8), within, at))
    }

    /// The [site](Self::site) of the first buffer of the register at `place`: its home has it in place.
    #[inline(always)]
    pub fn first_site(&self, pointer: Pointer, place: &Place) -> Site {
        let site = self.site(pointer);
        if site.holders.contains(place.home) {
            return site;
        }
        let at_home = place.at_home + register::IN_PLACE as u64;
        let place = Place { at_home, ..site.place };
        Site { place, holders: NodeSet::all(self.nodes) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Every granule that a buffer takes at a node is that buffer's alone, and its pointer tells.
    #[test]
    fn buffers_do_not_overlap() {
        for nodes in [3, 5, 7] {
            let buffers = Buffers::in_chunks(nodes, 6, 10);
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
            let buffers = Buffers::in_chunks(nodes, 6, 10);
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
