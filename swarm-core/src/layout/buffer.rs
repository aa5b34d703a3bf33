//! A buffer: offsets within it, in words, and its header.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::identity::Identity;
use crate::words::{Pointer, Stamp, Timestamp, WordFormat, WriteNumber};

/// The largest value, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// The lock.
pub const LOCK: usize = 0;
/// Timestamp of the verified rewrite.
pub const REWRITE: usize = 1;
/// Number of the write: the first word on which all that write the buffer agree.
pub const NUMBER: usize = 2;
/// Timestamp of the guess.
pub const GUESS: usize = 4;
/// Words before the value.
pub const HEADER_WORDS: usize = 6;

/// Returns the seeded checksum of a buffer of write `number` to the register of this identity (I5).
/// It is xxh3 of the value, whose length it covers, seeded with pointer, the guess's timestamp,
/// number and the register's number.
///
/// Without the timestamp, a torn in-place copy could pass off an earlier write's value as that of a
/// later write that reuses the buffer. Without the number, a client that reads a half-written
/// buffer would lock the number of the write that it served before. Without the register, an
/// earlier write to another one, under a timestamp that happens to be equal, would pass for this
/// one's.
#[inline]
pub fn checksum(
    format: WordFormat,
    register: Identity,
    timestamp: Timestamp,
    pointer: Pointer,
    number: WriteNumber,
    value: &[u8],
) -> u64 {
    // Spread over all bits: otherwise consecutive numbers could cancel out consecutive stamps.
    let spread = |number: WriteNumber| number.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let stamp = (timestamp.0 << format.pointer_bits) ^ pointer.0;
    let seed = stamp ^ spread(number) ^ spread(register.number).rotate_left(32);
    xxh3_64_with_seed(value, seed)
}

/// What a buffer stores about its write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BufferHeader {
    /// Timestamp of the verified rewrite, or 0. An impossible one if the word belongs to an earlier
    /// use of the buffer.
    pub rewrite: Timestamp,
    /// Number of the write.
    pub number: WriteNumber,
    /// The register that it was written to.
    pub register: Pointer,
    /// Length of the value in bytes.
    pub length: usize,
    /// Timestamp of the guess.
    pub guess: Timestamp,
    /// [Checksum](checksum) of the value.
    pub checksum: u64,
}

impl BufferHeader {
    /// Returns whether `timestamp` is that of the write's verified rewrite, which is never taken
    /// back.
    #[inline]
    pub fn is_rewrite(&self, timestamp: Timestamp) -> bool {
        self.rewrite == timestamp && self.guess != timestamp
    }

    /// Returns the words from [`REWRITE`] to the value.
    ///
    /// I5: the rewrite's timestamp is sealed with the checksum. If this word has landed before the
    /// others, those of an earlier use must not be taken for the rewrite's. (It cannot be part of
    /// the checksum: a client that dies in the middle of a rewrite would leave no buffer for the
    /// guess.)
    #[inline]
    pub fn encode(&self) -> [u64; HEADER_WORDS - 1] {
        [
            self.rewrite.0 ^ self.checksum,
            self.number.0,
            (self.register.0 << 24) | self.length as u64,
            self.guess.0,
            self.checksum,
        ]
    }

    /// Decodes the words from [`REWRITE`] on. `None` if there are too few.
    #[inline]
    pub fn decode(words: &[u64]) -> Option<Self> {
        let &[rewrite, number, register, guess, checksum, ..] = words else { return None };
        Some(Self {
            rewrite: Timestamp(rewrite ^ checksum),
            number: WriteNumber(number),
            register: Pointer(register >> 24),
            length: (register & 0xff_ffff) as usize,
            guess: Timestamp(guess),
            checksum,
        })
    }

    /// Returns whether the buffer was written for `stamp` of the register of this identity at
    /// `register`, and header and `value` are complete (I5).
    #[inline(always)]
    pub fn agrees(
        &self,
        format: WordFormat,
        (register, identity): (Pointer, Identity),
        stamp: Stamp,
        value: &[u8],
    ) -> bool {
        let (timestamp, pointer) = (format.timestamp(stamp), format.pointer(stamp));
        let sum = || checksum(format, identity, self.guess, pointer, self.number, value);
        (timestamp == self.guess || timestamp == self.rewrite)
            && self.register == register
            && self.length == value.len()
            && self.checksum == sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::StampFlags;

    #[test]
    fn a_header_comes_apart_as_it_went_together() {
        let header = BufferHeader {
            rewrite: Timestamp(3),
            number: WriteNumber(9),
            register: Pointer(1 << 39),
            length: MAX_VALUE,
            guess: Timestamp(2),
            checksum: 7,
        };
        assert_eq!(BufferHeader::decode(&header.encode()), Some(header));
    }

    /// Memory is reused, and timestamps of different registers are unrelated. A node may still have
    /// what a buffer held before, for a register that lay at the same address, under the same
    /// timestamp. That is not the write in question.
    #[test]
    fn a_buffer_of_another_registers_write_does_not_agree() {
        let format = WordFormat { pointer_bits: 20, tick_shift: 0 };
        let (pointer, register) = (Pointer(9), Pointer(40));
        let stamp = format.stamp(Timestamp(5), pointer, StampFlags::empty());
        let identity = |number| Identity { created_at: 4, number: WriteNumber(number) };
        let header = |identity| BufferHeader {
            rewrite: Timestamp(0),
            number: WriteNumber(8),
            register,
            length: 3,
            guess: Timestamp(5),
            checksum: checksum(format, identity, Timestamp(5), pointer, WriteNumber(8), b"old"),
        };
        let before = header(identity(6));
        assert!(before.agrees(format, (register, identity(6)), stamp, b"old"));
        assert!(!before.agrees(format, (register, identity(7)), stamp, b"old"));
    }
}
