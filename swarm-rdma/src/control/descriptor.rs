//! The descriptor of a pool and of its memory nodes, as etcd and the nodes' daemons keep it.
//!
//! **Invariant:** a descriptor never changes. It names the pool's nodes by their instance ids. A
//! daemon draws its instance id at random when it starts with empty memory, so a node that lost its
//! memory never passes for the one in the descriptor.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use swarm_core::layout::{BadGeometry, Geometry, LAYOUT_VERSION, SLOTS};
use swarm_core::words::WordFormat;

use super::PoolSpec;
use super::error::Error;

/// A tick over RDMA: 2 to this power nanoseconds, about a microsecond.
const TICK_SHIFT: u32 = 10;

/// A 128-bit number, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(pub u128);

impl Id {
    /// Draws a new random id.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| Error::Random(error.to_string()))?;
        Ok(Self(u128::from_le_bytes(bytes).max(1)))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let id = plain.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        id.map(Self).ok_or_else(|| format!("`{text}` is not 32 hexadecimal digits"))
    }
}

/// A memory node's daemon: its identity and address.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Its name.
    pub name: String,
    /// The address at which it listens for queue pairs and for the control plane.
    pub address: SocketAddr,
    /// Its instance id, drawn when its memory was made: another id means other memory.
    pub life: Id,
    /// Bytes of its memory.
    pub capacity: u64,
}

/// A pool, as `swarm create` made it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolDescriptor {
    /// The pool's permanent id.
    pub id: Id,
    /// Its name.
    pub name: String,
    /// The layout of its memory.
    pub layout_version: u32,
    /// Features that a program must know to use the pool, one bit each: bit 0, keys may be cells.
    #[serde(default)]
    pub features: u64,
    /// Wall-clock nanoseconds since 1970.
    pub created: u64,
    /// Bytes of each node's memory that the pool uses.
    pub capacity: u64,
    /// Client slots.
    pub max_clients: usize,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// The index begins with 2 to this power buckets.
    pub bucket_bits: u32,
    /// Words of payload in a bucket's record.
    pub bucket_payload: usize,
    /// Bits of a pointer.
    pub pointer_bits: u32,
    /// A tick is 2 to this power nanoseconds.
    pub tick_shift: u32,
    /// Stamp slots that writers use.
    #[serde(default = "all_slots")]
    pub slots: usize,
    /// Seed of the hash of keys, as hexadecimal digits, because TOML's numbers are signed.
    #[serde(with = "hex")]
    pub hash_seed: u64,
    /// Its memory nodes, in order.
    pub nodes: Vec<NodeEntry>,
}

impl PoolDescriptor {
    /// Makes the descriptor of a new pool on all of `nodes`.
    ///
    /// # Errors
    /// The parameters contradict each other, or a node's memory is too small.
    pub fn new(name: String, nodes: Vec<NodeEntry>, wishes: &PoolSpec) -> Result<Self, Error> {
        let &PoolSpec { capacity, max_clients, slots, .. } = wishes;
        if let Some(small) = nodes.iter().find(|node| node.capacity < capacity) {
            return Err(Error::SmallNode { node: small.clone(), wanted: capacity });
        }
        let hash_seed = Id::random()?.0 as u64;
        let geometry =
            Geometry::new(nodes.len(), capacity, max_clients, hash_seed)?.with_slots(slots)?;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            id: Id::random()?,
            name,
            layout_version: LAYOUT_VERSION,
            features: geometry.features(),
            created: created.as_nanos() as u64,
            capacity: geometry.capacity,
            max_clients: geometry.max_clients,
            chunk_bytes: geometry.chunk_bytes,
            bucket_bits: geometry.bucket_bits,
            bucket_payload: geometry.bucket_payload,
            pointer_bits: geometry.format.pointer_bits,
            tick_shift: TICK_SHIFT,
            slots: geometry.slots,
            hash_seed: geometry.hash_seed,
            nodes,
        })
    }

    /// Returns the layout of the nodes' memory.
    ///
    /// # Errors
    /// The descriptor has another version, or contradicts itself.
    pub fn geometry(&self) -> Result<Geometry, Error> {
        if self.layout_version != LAYOUT_VERSION {
            return Err(Error::Version { found: self.layout_version, known: LAYOUT_VERSION });
        }
        let geometry = Geometry {
            group: 0,
            nodes: self.nodes.len(),
            capacity: self.capacity,
            max_clients: self.max_clients,
            chunk_bytes: self.chunk_bytes,
            bucket_bits: self.bucket_bits,
            bucket_payload: self.bucket_payload,
            format: WordFormat { pointer_bits: self.pointer_bits, tick_shift: self.tick_shift },
            slots: self.slots,
            hash_seed: self.hash_seed,
            keyed_cells: false,
        };
        let unknown = |unknown| Error::Features { unknown };
        let geometry = geometry.with_features(self.features).map_err(unknown)?;
        geometry.check()?;
        if self.nodes.iter().any(|node| node.capacity < self.capacity) {
            return Err(BadGeometry::Inconsistent.into());
        }
        Ok(geometry)
    }

    /// Returns how many of its nodes are a majority.
    pub fn majority(&self) -> usize {
        self.nodes.len() / 2 + 1
    }
}

/// Returns the value for descriptors without this field.
fn all_slots() -> usize {
    SLOTS
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(capacity: u64) -> PoolSpec {
        PoolSpec { nodes: 3, capacity, max_clients: 8, slots: SLOTS }
    }

    fn nodes(count: u16) -> Vec<NodeEntry> {
        (0..count)
            .map(|n| NodeEntry {
                name: format!("node-{n}"),
                address: SocketAddr::from(([10, 0, 0, 1], 7471 + n)),
                life: Id(u128::from(n) + 1),
                capacity: 64 << 20,
            })
            .collect()
    }

    #[test]
    fn a_record_survives_being_written_down() {
        let record =
            PoolDescriptor::new("a".into(), nodes(3), &wishes(64 << 20)).expect("it is sound");
        let text = serde_json::to_string(&record).expect("it can be written");
        let read: PoolDescriptor = serde_json::from_str(&text).expect("it can be read");
        assert_eq!(read, record);
        assert_eq!(read.geometry().expect("it is sound").hash_seed, record.hash_seed);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        assert!(matches!(
            PoolDescriptor::new("a".into(), nodes(2), &wishes(64 << 20)),
            Err(Error::Geometry(_))
        ));
        assert!(matches!(
            PoolDescriptor::new("a".into(), nodes(3), &wishes(1 << 30)),
            Err(Error::SmallNode { .. })
        ));
        let record =
            PoolDescriptor::new("a".into(), nodes(3), &wishes(64 << 20)).expect("it is sound");
        let newer = PoolDescriptor { layout_version: LAYOUT_VERSION + 1, ..record.clone() };
        assert!(matches!(newer.geometry(), Err(Error::Version { .. })));
        let strange = PoolDescriptor { features: 2, ..record.clone() };
        assert!(matches!(strange.geometry(), Err(Error::Features { unknown: 2 })));
        let torn = PoolDescriptor { chunk_bytes: 3, ..record };
        assert!(torn.geometry().is_err());
    }
}
