//! Memory by client slot: the chunk map and the chunks' high-water marks, added up.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::ChunkClass;
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::Group;
use swarm_core::words::GRANULE;

use crate::error::Error;
use crate::heap::alloc::high_water::{homes, read_counters};
use crate::heap::chunk_map::{Extent, SHARED, extents};
use crate::heap::{Heap, ObjectKind};

/// Memory that a client slot owns at each node, or that all clients share. A slot keeps its chunks
/// when its client changes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ClientUsage {
    /// The client slot; none for chunks that clients share.
    pub client: Option<usize>,
    /// Its chunks.
    pub chunks: usize,
    /// Bytes of those.
    pub owned_bytes: u64,
    /// Bytes of their allocated objects: values, garbage, and freed objects that wait for reuse.
    /// The rest of the chunks was never used.
    pub allocated_bytes: u64,
    /// Bytes of those that keys and the index take, if counted (`Client::accounts`). The rest is
    /// garbage, or waits for reuse.
    pub live_bytes: Option<u64>,
}

impl Heap {
    /// Returns the usage of each slot that owns anything, and last of shared chunks. One roundtrip
    /// for each chunk that has an owner.
    pub(crate) async fn client_usage<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Vec<ClientUsage>, Error> {
        self.alone(group, self.read_map(group)).await?;
        let extents: Vec<Extent> = extents(&self.map.borrow()).collect();
        let slots = self.geometry.max_clients;
        let mut client_usage: Vec<ClientUsage> = (0..=slots)
            .map(|slot| ClientUsage {
                client: (slot < slots).then_some(slot),
                ..ClientUsage::default()
            })
            .collect();
        for Extent { first, chunks, owner, class, .. } in extents {
            let counters: Vec<Address> = homes(&self.geometry, class)
                .map(|home| self.geometry.counter(first, home))
                .collect();
            debug_assert!(counters.len() <= MAX_VERBS, "a counter for each node at most");
            let used = read_counters(group, &counters).await?;
            let used: u64 =
                used.iter().map(|used| used.objects().min(self.geometry.objects(class))).sum();
            let at = if owner == SHARED { slots } else { owner };
            let Some(holding) = client_usage.get_mut(at) else { continue };
            holding.chunks += chunks;
            holding.owned_bytes += chunks as u64 * self.geometry.chunk_bytes;
            holding.allocated_bytes += used * chunks as u64 * self.object_bytes(class);
        }
        client_usage.retain(|holding| holding.chunks > 0);
        Ok(client_usage)
    }

    /// Returns the bytes of a node's memory that an object takes, averaged over the nodes.
    pub(crate) fn object_bytes(&self, class: ChunkClass) -> u64 {
        let nodes = self.geometry.nodes as u64;
        let at_all_nodes = match class {
            ChunkClass::Uniform(size) | ChunkClass::AllNodes(size) => nodes * size.granules(),
            ChunkClass::AllButOne(size) => (nodes - 1) * size.granules(),
            ChunkClass::Homed { small, full } => full.granules() + (nodes - 1) * u64::from(small),
            ChunkClass::Large | ChunkClass::LargeTail => nodes * self.geometry.chunk_granules(),
        };
        GRANULE as u64 * at_all_nodes / nodes
    }

    /// Returns the bytes of a node's memory that a buffer of a value of `length` bytes takes,
    /// likewise.
    pub(crate) fn buffer_bytes(&self, length: usize) -> u64 {
        self.bytes(self.buffer(length, Some(NodeId(0))))
    }

    /// Returns the bytes of a node's memory that an object of this kind takes, likewise.
    pub(crate) fn bytes(&self, kind: ObjectKind) -> u64 {
        self.object_bytes(kind.class) * kind.chunks as u64
    }
}
