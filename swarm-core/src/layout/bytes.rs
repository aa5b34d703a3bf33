//! Bytes in words.

use zerocopy::IntoBytes;

/// Returns how many words `bytes` bytes take.
pub const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Returns the bytes that `words` hold, without those that fill up the last word.
///
/// `None` if `words` is too short for `length` bytes.
#[inline]
pub fn bytes(words: &[u64], length: usize) -> Option<&[u8]> {
    words.as_bytes().get(..length)
}
