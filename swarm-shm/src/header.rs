//! Headers: what the first words of each file say about it.
//!
//! ```text
//!  0  magic             the control file's or a memory node's
//!  1  layout version
//!  2  pool id           low half, then high half
//!  4  replica group
//!  5  node              its number; in the control file 0
//!  6  nodes             above, in 32 bits: how many of the stamp slots are not in use
//!  7  capacity          bytes of each node's memory
//!  8  client slots
//!  9  chunk size        bytes
//! 10  bucket bits
//! 11  pointer bits
//! 12  tick shift
//! 13  hash seed
//! 14  created           wall-clock nanoseconds since 1970
//! 15  checksum          xxh3 of words 0 to 14
//! 16  features          of the pool, one a bit: who does not know one of them refuses the pool
//! 17  configuration     its number                                                  } set aside: zero until
//! 18  life, state       [ life 32 | state 32 ] of this node; in the control file 0  } a feature uses them
//! 19  incarnations      where the block of those ends that may be given out         }
//! ```
//!
//! The first sixteen words are written once, before the pool can be opened. Magic, version and features keep their
//! places in every version of the layout. Nothing that a header says is trusted before its checksum and
//! its geometry were checked.

use std::path::Path;

use swarm_core::layout::{Geometry, LAYOUT_VERSION, SLOTS};
use swarm_core::node::NodeId;
use swarm_core::words::WordFormat;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;

/// Words of a header.
pub(crate) const HEADER_WORDS: usize = 20;
/// The checksum of those in front of it.
const CHECKSUM: usize = 15;
/// What the pool uses that one has to know of. No bit has a meaning in this version.
const FEATURES: usize = 16;

const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"SWARMctl");
const NODE_MAGIC: u64 = u64::from_le_bytes(*b"SWARMmem");

/// Whose header it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Member {
    /// The control file's.
    Control,
    /// A memory node's.
    Node(NodeId),
}

/// A file's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The pool that the file belongs to.
    pub(crate) pool_id: u128,
    /// Which of its files it is.
    pub(crate) member: Member,
    /// What lies where in the nodes.
    pub(crate) geometry: Geometry,
    /// Wall-clock nanoseconds since 1970.
    pub(crate) created: u64,
}

impl Header {
    /// The same pool's header for another of its files.
    pub(crate) fn of(self, member: Member) -> Self {
        Self { member, ..self }
    }

    /// Whether these are the first words of a memory node's header.
    pub(crate) fn is_node(words: &[u64; HEADER_WORDS]) -> bool {
        words[0] == NODE_MAGIC
    }

    /// Whether these are the first words of a header of one of this pool's memory nodes, damaged
    /// or not.
    pub(crate) fn is_node_of(words: &[u64; HEADER_WORDS], pool_id: u128) -> bool {
        Self::is_node(words) && Self::pool(words) == pool_id
    }

    /// The pool that a memory node's header names, damaged or not. `None` if it is none.
    pub(crate) fn node_pool(words: &[u64; HEADER_WORDS]) -> Option<u128> {
        Self::is_node(words).then(|| Self::pool(words))
    }

    /// The pool that a control file's header names, damaged or not. `None` if it is none.
    pub(crate) fn control_pool(words: &[u64; HEADER_WORDS]) -> Option<u128> {
        (words[0] == CONTROL_MAGIC).then(|| Self::pool(words))
    }

    fn pool(words: &[u64; HEADER_WORDS]) -> u128 {
        u128::from(words[2]) | (u128::from(words[3]) << 64)
    }

    /// As words.
    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        let (magic, node) = match self.member {
            Member::Control => (CONTROL_MAGIC, 0),
            Member::Node(node) => (NODE_MAGIC, u64::from(node.0)),
        };
        let geometry = &self.geometry;
        let mut words = [
            magic,
            u64::from(LAYOUT_VERSION),
            self.pool_id as u64,
            (self.pool_id >> 64) as u64,
            u64::from(geometry.group),
            node,
            geometry.nodes as u64 | ((SLOTS - geometry.slots) as u64) << 32,
            geometry.capacity,
            geometry.max_clients as u64,
            geometry.chunk_bytes,
            u64::from(geometry.bucket_bits) | (geometry.bucket_payload as u64) << 32,
            u64::from(geometry.format.pointer_bits),
            u64::from(geometry.format.tick_shift),
            geometry.hash_seed,
            self.created,
            0,
            0,
            0,
            0,
            0,
        ];
        words[CHECKSUM] = checksum(&words);
        words
    }

    /// Reads the header of the file at `path`.
    pub(crate) fn decode(words: &[u64; HEADER_WORDS], path: &Path) -> Result<Self, Error> {
        let damaged = |what: &str| Error::Damaged { file: path.to_path_buf(), what: what.into() };
        if !matches!(words[0], CONTROL_MAGIC | NODE_MAGIC) {
            return Err(Error::Foreign { file: path.to_path_buf() });
        }
        let (found, known) = (words[1], u64::from(LAYOUT_VERSION));
        if found != known {
            return Err(Error::Version { file: path.to_path_buf(), found, known });
        }
        if words[CHECKSUM] != checksum(words) {
            return Err(damaged("the checksum does not agree"));
        }
        if words[FEATURES] != 0 {
            return Err(Error::Features { file: path.to_path_buf(), unknown: words[FEATURES] });
        }
        let small = |at: usize| u32::try_from(words[at]).map_err(|_| damaged("a number is off"));
        let geometry = Geometry {
            group: small(4)?,
            nodes: words[6] as u32 as usize,
            capacity: words[7],
            max_clients: small(8)? as usize,
            chunk_bytes: words[9],
            bucket_bits: words[10] as u32,
            bucket_payload: (words[10] >> 32) as usize,
            format: WordFormat { pointer_bits: small(11)?, tick_shift: small(12)? },
            slots: SLOTS.saturating_sub((words[6] >> 32) as usize),
            hash_seed: words[13],
        };
        geometry.check().map_err(|error| damaged(&error.to_string()))?;
        let node = u8::try_from(words[5]).ok().map(NodeId);
        let node = node.filter(|node| node.index() < geometry.nodes);
        let node = node.ok_or_else(|| damaged("the node's number is off"))?;
        let member = if words[0] == CONTROL_MAGIC { Member::Control } else { Member::Node(node) };
        Ok(Self { pool_id: Self::pool(words), member, geometry, created: words[14] })
    }
}

fn checksum(words: &[u64; HEADER_WORDS]) -> u64 {
    sum(&words[..CHECKSUM])
}

/// The checksum of `words`, at most a header's.
pub(crate) fn sum(words: &[u64]) -> u64 {
    let mut bytes = [0; HEADER_WORDS * 8];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    xxh3_64(&bytes[..words.len() * 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            pool_id: 1 << 100 | 5,
            member: Member::Node(NodeId(2)),
            geometry: Geometry::new(3, 8 << 20, 16, 77).expect("a geometry"),
            created: 1_700_000_000_000_000_000,
        }
    }

    #[test]
    fn a_header_comes_apart_as_it_went_together() {
        let alone = header().geometry.with_slots(1).expect("a geometry");
        let alone = Header { geometry: alone, ..header() };
        for header in [header(), header().of(Member::Control), alone] {
            assert_eq!(Header::decode(&header.encode(), Path::new("x")).ok(), Some(header));
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let words = header().encode();
        for bit in 0..(FEATURES + 1) * 64 {
            let mut flipped = words;
            flipped[bit / 64] ^= 1 << (bit % 64);
            let error = Header::decode(&flipped, Path::new("x")).expect_err("a flipped bit");
            match bit / 64 {
                0 => assert!(matches!(error, Error::Foreign { .. }), "{bit}: {error}"),
                1 => assert!(matches!(error, Error::Version { .. }), "{bit}: {error}"),
                FEATURES => {
                    let unknown = 1 << (bit % 64);
                    let told = matches!(error, Error::Features { unknown: u, .. } if u == unknown);
                    assert!(told, "{bit}: {error}");
                }
                _ => assert!(matches!(error, Error::Damaged { .. }), "{bit}: {error}"),
            }
        }
    }

    /// A checksum is no proof: what it covers may have been nonsense from the beginning.
    #[test]
    fn nonsense_with_a_good_checksum_is_noticed() {
        for (at, value) in [
            (4, u64::MAX),
            (5, 3),
            (5, 256),
            (6, 2),
            (6, u64::MAX),
            (6, 6 << 32 | 3),
            (7, 0),
            (7, u64::MAX),
            (8, 0),
            (8, 1 << 32),
            (9, 3),
            (10, 64),
            (10, 8),
            (10, 60 << 32 | 8),
            (11, 63),
            (12, u64::MAX),
        ] {
            let mut words = header().encode();
            words[at] = value;
            words[CHECKSUM] = checksum(&words);
            let error = Header::decode(&words, Path::new("x")).expect_err("nonsense");
            assert!(matches!(error, Error::Damaged { .. }), "{at} {value}: {error}");
        }
    }
}
