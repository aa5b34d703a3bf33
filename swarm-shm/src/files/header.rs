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
//! 16  features          of the pool, one a bit: a program that does not know one refuses the pool
//! 17  configuration     its number: how often a node was replaced; see `configuration`
//! 18  life, state       [ life 32 | state 32 ] of this node, or 0
//! 19  incarnations      [ end 36 | check 28 ]: those above the end were not given out, if a
//!                       majority says so: see `incarnation`; 0 in the control file
//! 20  lives             of a node: the life of each node as of that configuration, two in a word
//! 24  events            a node's event count: see `events`; in its own cache line, as it changes
//! 25  others' events    for each node a count that its current file has, or has passed
//! ```
//!
//! The first sixteen words are written once, before the pool can be opened. Magic, version and
//! features keep their places in every version of the layout. Nothing in a header is trusted before
//! its checksum and its geometry were checked.

use std::path::Path;

use swarm_core::layout::{Geometry, LAYOUT_VERSION, SLOTS};
use swarm_core::node::{MAX_NODES, NodeId};
use swarm_core::words::WordFormat;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;

/// Words of a header.
pub(crate) const HEADER_WORDS: usize = 20;
/// The word after them with a node's event count. Not part of what is read to tell files apart.
pub(crate) const EVENTS: usize = 24;
/// The first of the words with a count of each node, as clients last knew it.
pub(crate) const OTHERS_EVENTS: usize = EVENTS + 1;
/// The word with the number of the configuration.
pub(crate) const CONFIGURATION: usize = 17;
/// The word with this node's life and state.
pub(crate) const LIFE: usize = 18;
/// The first of a node's words with all nodes' lives.
pub(crate) const LIVES: usize = HEADER_WORDS;
/// The word with the end of the incarnations that may have been given out.
pub(crate) const INCARNATIONS: usize = 19;
/// Bits of the check in that word.
const CHECK_BITS: u32 = 28;
/// The checksum of the words before it.
const CHECKSUM: usize = 15;
/// Features of the pool that a program must know: bit 0, keys may be cells.
pub(crate) const FEATURES: usize = 16;

const _: () = assert!(LIVES + MAX_NODES.div_ceil(2) <= EVENTS);
// In one cache line.
const _: () = assert!(OTHERS_EVENTS + MAX_NODES <= EVENTS + 8);

const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"SWARMctl");
const NODE_MAGIC: u64 = u64::from_le_bytes(*b"SWARMmem");

/// The role of a header's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileRole {
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
    /// The file's role in the pool.
    pub(crate) member: FileRole,
    /// The layout of the nodes' memory.
    pub(crate) geometry: Geometry,
    /// Wall-clock nanoseconds since 1970.
    pub(crate) created: u64,
}

impl Header {
    /// Bytes of a header that name its pool.
    pub(crate) const NAMES_POOL: usize = 4 * 8;

    /// Returns the same pool's header for another of its files.
    pub(crate) fn of(self, member: FileRole) -> Self {
        Self { member, ..self }
    }

    /// Returns whether these are the first words of a memory node's header.
    pub(crate) fn is_node(words: &[u64; HEADER_WORDS]) -> bool {
        words[0] == NODE_MAGIC
    }

    /// Returns whether these are the first words of a header of one of this pool's memory nodes,
    /// damaged or not.
    pub(crate) fn is_node_of(words: &[u64; HEADER_WORDS], pool_id: u128) -> bool {
        Self::is_node(words) && Self::pool(words) == pool_id
    }

    /// Returns the pool that a memory node's header names, damaged or not. `None` for any other
    /// header.
    pub(crate) fn node_pool(words: &[u64; HEADER_WORDS]) -> Option<u128> {
        Self::is_node(words).then(|| Self::pool(words))
    }

    /// Returns the pool that a control file's header names, damaged or not. `None` for any other
    /// header.
    pub(crate) fn control_pool(words: &[u64; HEADER_WORDS]) -> Option<u128> {
        (words[0] == CONTROL_MAGIC).then(|| Self::pool(words))
    }

    fn pool(words: &[u64; HEADER_WORDS]) -> u128 {
        u128::from(words[2]) | (u128::from(words[3]) << 64)
    }

    /// Encodes it as words.
    pub(crate) fn encode(&self) -> [u64; HEADER_WORDS] {
        let (magic, node) = match self.member {
            FileRole::Control => (CONTROL_MAGIC, 0),
            FileRole::Node(node) => (NODE_MAGIC, u64::from(node.0)),
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
        words[FEATURES] = geometry.features();
        words[CHECKSUM] = checksum(&words);
        if let FileRole::Node(_) = self.member {
            words[INCARNATIONS] = incarnations(0);
        }
        words
    }

    /// Decodes the header of the file at `path`.
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
            keyed_cells: false,
        };
        let unknown = |unknown| Error::Features { file: path.to_path_buf(), unknown };
        let geometry = geometry.with_features(words[FEATURES]).map_err(unknown)?;
        geometry.check().map_err(|error| damaged(&error.to_string()))?;
        let node = u8::try_from(words[5]).ok().map(NodeId);
        let node = node.filter(|node| node.index() < geometry.nodes);
        let node = node.ok_or_else(|| damaged("the node's number is off"))?;
        let member =
            if words[0] == CONTROL_MAGIC { FileRole::Control } else { FileRole::Node(node) };
        Ok(Self { pool_id: Self::pool(words), member, geometry, created: words[14] })
    }
}

/// Encodes the end of the incarnations that may have been given out. Later ends are larger words.
pub(crate) fn incarnations(end: u64) -> u64 {
    end << CHECK_BITS | (sum(&[end]) & ((1 << CHECK_BITS) - 1))
}

/// Decodes it. `None` if the word is damaged.
pub(crate) fn incarnations_end(word: u64) -> Option<u64> {
    let end = word >> CHECK_BITS;
    (word == incarnations(end)).then_some(end)
}

fn checksum(words: &[u64; HEADER_WORDS]) -> u64 {
    sum(&words[..CHECKSUM])
}

/// Returns the checksum of `words`, at most a header's.
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
            member: FileRole::Node(NodeId(2)),
            geometry: Geometry::new(3, 8 << 20, 16, 77).expect("a geometry"),
            created: 1_700_000_000_000_000_000,
        }
    }

    #[test]
    fn a_header_comes_apart_as_it_went_together() {
        let alone = header().geometry.with_slots(1).expect("a geometry");
        let alone = Header { geometry: alone, ..header() };
        for header in [header(), header().of(FileRole::Control), alone] {
            assert_eq!(Header::decode(&header.encode(), Path::new("x")).ok(), Some(header));
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let words = header().encode();
        for bit in 0..(FEATURES + 1) * 64 {
            let mut flipped = words;
            flipped[bit / 64] ^= 1 << (bit % 64);
            let decoded = Header::decode(&flipped, Path::new("x"));
            if bit == FEATURES * 64 {
                assert!(decoded.is_ok_and(|header| !header.geometry.keyed_cells), "it is known");
                continue;
            }
            let error = decoded.expect_err("a flipped bit");
            match bit / 64 {
                0 => assert!(matches!(error, Error::Foreign { .. }), "{bit}: {error}"),
                1 => assert!(matches!(error, Error::Version { .. }), "{bit}: {error}"),
                FEATURES => {
                    let unknown = 1 << (bit % 64);
                    let is_reported =
                        matches!(error, Error::Features { unknown: u, .. } if u == unknown);
                    assert!(is_reported, "{bit}: {error}");
                }
                _ => assert!(matches!(error, Error::Damaged { .. }), "{bit}: {error}"),
            }
        }
    }

    #[test]
    fn a_damaged_end_of_incarnations_is_noticed() {
        for end in [0, 1, 257, (1 << 36) - 1] {
            let word = incarnations(end);
            assert_eq!(incarnations_end(word), Some(end));
            for bit in 0..64 {
                assert_eq!(incarnations_end(word ^ (1 << bit)), None, "{end} {bit}");
            }
        }
        assert_eq!(incarnations_end(0), None, "a word that was never stored");
        assert!(incarnations(4) < incarnations(5) && incarnations(255) < incarnations(256));
        let control = header().of(FileRole::Control).encode()[INCARNATIONS];
        assert_eq!((incarnations_end(header().encode()[INCARNATIONS]), control), (Some(0), 0));
    }

    /// A checksum is no proof: the words may have been nonsense when it was computed.
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
