//! Who holds the heap's memory: the heap map and the chunks' counters, added up by client slot.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Address, Fabric, MAX_VERBS, NodeId};
use swarm_core::geometry::{Class, Geometry};
use swarm_core::group::Group;
use swarm_core::words::GRANULE;

use super::Heap;
use super::counter::read_counters;
use crate::error::Error;

/// What a client slot holds of each node's memory. Chunks stay a slot's whoever holds the slot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Holding {
    /// Which slot.
    pub client: usize,
    /// Its chunks.
    pub chunks: usize,
    /// Bytes of those.
    pub held_bytes: u64,
    /// Bytes of objects in them that were set aside, for use or used: values, garbage, and what
    /// came back and waits for its next use. The rest of the chunks was never used.
    pub aside_bytes: u64,
}

/// What the heap map says of a chunk, and its counters.
struct Chunk {
    owner: usize,
    class: Class,
    counters: Vec<Address>,
}

impl Heap {
    /// What each slot holds that holds anything. A roundtrip for each chunk that is owned.
    pub(crate) async fn holdings<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Vec<Holding>, Error> {
        self.read_map(group).await?;
        let chunks: Vec<Chunk> = self.owned();
        let mut holdings = vec![Holding::default(); self.geometry.max_clients];
        // Whether the run at hand is set aside, whose chunks follow each other.
        let mut run = false;
        for Chunk { owner, class, counters } in chunks {
            debug_assert!(counters.len() <= MAX_VERBS, "a counter for each node at most");
            let used = if counters.is_empty() {
                Vec::new()
            } else {
                read_counters(group, &counters).await?
            };
            let used: u64 = used.iter().map(|&used| used.min(self.geometry.objects(class))).sum();
            if class == Class::Run {
                run = used > 0;
            }
            let Some(holding) = holdings.get_mut(owner) else { continue };
            holding.chunks += 1;
            holding.held_bytes += self.geometry.chunk_bytes;
            holding.aside_bytes += match class {
                Class::Run | Class::RunTail => u64::from(run) * self.geometry.chunk_bytes,
                Class::Plain(_) | Class::Homed { .. } => used * self.object_bytes(class),
            };
        }
        for (client, holding) in holdings.iter_mut().enumerate() {
            holding.client = client;
        }
        holdings.retain(|holding| holding.chunks > 0);
        Ok(holdings)
    }

    /// The chunks that have an owner.
    fn owned(&self) -> Vec<Chunk> {
        let entries = self.map.borrow();
        let owned = entries.iter().enumerate().filter(|(_, entry)| **entry != 0);
        let chunk = |(chunk, &entry): (usize, &u32)| {
            let class = Class::decode(entry as u16)?;
            let counters =
                homes(&self.geometry, class).map(|home| self.geometry.counter(chunk, home));
            Some(Chunk { owner: (entry >> 16) as usize, class, counters: counters.collect() })
        };
        owned.filter_map(chunk).collect()
    }

    /// Bytes of a node's memory that an object takes, for those that differ between nodes on average.
    pub(crate) fn object_bytes(&self, class: Class) -> u64 {
        let nodes = self.geometry.nodes as u64;
        GRANULE as u64
            * match class {
                Class::Plain(size) => size.granules(),
                Class::Homed { small, full } => {
                    (full.granules() + (nodes - 1) * u64::from(small)).div_ceil(nodes)
                }
                Class::Run | Class::RunTail => self.geometry.chunk_granules(),
            }
    }

    /// Bytes of a node's memory that an object of `words` words takes that is the same at every node.
    pub(crate) fn plain_bytes(&self, words: usize) -> u64 {
        let kind = self.plain(words);
        self.object_bytes(kind.class) * kind.chunks as u64
    }
}

/// The homes that a chunk of this class has counters for.
fn homes(geometry: &Geometry, class: Class) -> impl Iterator<Item = NodeId> {
    let homes = match class {
        Class::Homed { .. } => geometry.nodes as u8,
        Class::Plain(_) | Class::Run => 1,
        Class::RunTail => 0,
    };
    (0..homes).map(NodeId)
}
