//! A record, which a cell's word names: offsets within it, in words, and its header.

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::words::{CellWord, Pointer, WriteNumber};

/// The accepted ballot.
pub const ACCEPTED: usize = 0;
/// The rest: base, writer, length, checksum, payload.
pub const BODY: usize = 1;
/// Words before the payload.
pub const HEADER_WORDS: usize = 5;

/// A record's header, which precedes its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// The word that its proposer expected at every node: it names the record that this one builds
    /// on.
    pub base: CellWord,
    /// Number of the change.
    pub writer: WriteNumber,
    /// Length of the payload in words.
    pub length: usize,
    /// Checksum of base, writer and payload.
    pub checksum: u64,
}

impl RecordHeader {
    /// Returns the header of a record at `pointer` with this `payload`.
    #[inline]
    pub fn new(pointer: Pointer, base: CellWord, writer: WriteNumber, payload: &[u64]) -> Self {
        let length = payload.len();
        let checksum = record_checksum(pointer, base, writer, payload);
        Self { base, writer, length, checksum }
    }

    /// Returns the words from [`BODY`] to the payload.
    #[inline]
    pub fn encode(&self) -> [u64; HEADER_WORDS - 1] {
        [self.base.0, self.writer.0, self.length as u64, self.checksum]
    }

    /// Decodes the words from [`BODY`] on. `None` if there are too few.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let &[base, writer, length, checksum, ..] = words else { return None };
        Some(Self {
            base: CellWord(base),
            writer: WriteNumber(writer),
            length: usize::try_from(length).ok()?,
            checksum,
        })
    }

    /// Returns whether this is the header of an undamaged record at `pointer` with this `payload`.
    pub fn agrees(&self, pointer: Pointer, payload: &[u64]) -> bool {
        self.length == payload.len()
            && self.checksum == record_checksum(pointer, self.base, self.writer, payload)
    }
}

fn record_checksum(pointer: Pointer, base: CellWord, writer: WriteNumber, payload: &[u64]) -> u64 {
    let seed = pointer.0 ^ base.0.rotate_left(32) ^ writer.0.rotate_left(8);
    xxh3_64_with_seed(payload.as_bytes(), seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_apart_as_it_went_together() {
        let header = RecordHeader::new(Pointer(4), CellWord(3), WriteNumber(8), &[1, 2, 3]);
        assert_eq!(RecordHeader::decode(&header.encode()), Some(header));
        assert!(header.agrees(Pointer(4), &[1, 2, 3]));
        assert!(!header.agrees(Pointer(5), &[1, 2, 3]));
        assert!(!header.agrees(Pointer(4), &[1, 2, 4]));
    }
}
