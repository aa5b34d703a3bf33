//! A cell: offsets within it, in words.

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::words::CellWord;

/// The word.
pub const WORD: usize = 0;
/// The in-place copy of the record's payload.
pub const IN_PLACE: usize = 1;
/// Words before the payload in the in-place copy.
pub const IN_PLACE_WORDS: usize = 3;

/// Returns the checksum of a cell's in-place copy, seeded with the word that it belongs to (C8).
pub fn cell_checksum(word: CellWord, payload: &[u64]) -> u64 {
    xxh3_64_with_seed(payload.as_bytes(), word.0)
}
