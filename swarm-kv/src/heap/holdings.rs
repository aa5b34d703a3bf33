//! Who holds the heap's memory: the heap map and the chunks' counters, added up by client slot.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::Class;
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::Group;
use swarm_core::words::GRANULE;

use super::counter::{homes, read_counters};
use super::map::{SHARED, Unit, units};
use super::{Heap, Kind};
use crate::error::Error;

/// What a client slot holds of each node's memory, or all clients together. Chunks stay a slot's whoever holds the slot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Holding {
    /// Which slot; none for chunks that clients share.
    pub client: Option<usize>,
    /// Its chunks.
    pub chunks: usize,
    /// Bytes of those.
    pub held_bytes: u64,
    /// Bytes of objects in them that were set aside, for use or used: values, garbage, and what
    /// came back and waits for its next use. The rest of the chunks was never used.
    pub aside_bytes: u64,
    /// Bytes of those that keys and the index take, where that was counted (`Client::accounts`): the rest
    /// is garbage, or waits for its next use.
    pub live_bytes: Option<u64>,
}

impl Heap {
    /// What each slot holds that holds anything, and last what is shared. A roundtrip for each chunk that is owned.
    pub(crate) async fn holdings<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Vec<Holding>, Error> {
        self.alone(group, self.read_map(group)).await?;
        let units: Vec<Unit> = units(&self.map.borrow()).collect();
        let slots = self.geometry.max_clients;
        let mut holdings: Vec<Holding> = (0..=slots)
            .map(|slot| Holding { client: (slot < slots).then_some(slot), ..Holding::default() })
            .collect();
        for Unit { first, chunks, owner, class, .. } in units {
            let counters: Vec<Address> = homes(&self.geometry, class)
                .map(|home| self.geometry.counter(first, home))
                .collect();
            debug_assert!(counters.len() <= MAX_VERBS, "a counter for each node at most");
            let used = read_counters(group, &counters).await?;
            let used: u64 =
                used.iter().map(|used| used.objects().min(self.geometry.objects(class))).sum();
            let at = if owner == SHARED { slots } else { owner };
            let Some(holding) = holdings.get_mut(at) else { continue };
            holding.chunks += chunks;
            holding.held_bytes += chunks as u64 * self.geometry.chunk_bytes;
            holding.aside_bytes += used * chunks as u64 * self.object_bytes(class);
        }
        holdings.retain(|holding| holding.chunks > 0);
        Ok(holdings)
    }

    /// Bytes of a node's memory that an object takes, for those that differ between nodes on average.
    pub(crate) fn object_bytes(&self, class: Class) -> u64 {
        let nodes = self.geometry.nodes as u64;
        let at_all_nodes = match class {
            Class::Plain(size) | Class::Wide(size) => nodes * size.granules(),
            Class::Lean(size) => (nodes - 1) * size.granules(),
            Class::Homed { small, full } => full.granules() + (nodes - 1) * u64::from(small),
            Class::Run | Class::RunTail => nodes * self.geometry.chunk_granules(),
        };
        GRANULE as u64 * at_all_nodes / nodes
    }

    /// Bytes of a node's memory that a buffer of a value of `length` bytes takes, likewise.
    pub(crate) fn buffer_bytes(&self, length: usize) -> u64 {
        self.bytes(self.buffer(length, Some(NodeId(0))))
    }

    /// Bytes of a node's memory that an object of this kind takes, likewise.
    pub(crate) fn bytes(&self, kind: Kind) -> u64 {
        self.object_bytes(kind.class) * kind.chunks as u64
    }
}
