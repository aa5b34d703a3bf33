//! A register: offsets within it, in words, how large it is, and its header.

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

pub use super::identity::IDENTITY_WORDS;

use super::bytes::{bytes, words_for};
use super::class::ChunkClass;
use super::place::Location;
use crate::words::{GRANULE_WORDS, Pointer, Stamp, WriteNumber};

/// The longest key, in bytes. The shortest is 1.
pub const MAX_KEY: usize = 255;
/// The largest value that a register keeps a copy of in place, in bytes.
pub const MAX_IN_PLACE: usize = 4096;

/// Returns the words that a new register has in place for a value of this length: none for one that
/// is not kept in place.
pub fn words_in_place(length: usize) -> usize {
    if length <= MAX_IN_PLACE { words_for(length) } else { 0 }
}

/// Stamp slots in a register (§4.4): with its identity, they fill a cache line. More writers than
/// this share slots.
pub const SLOTS: usize = 6;

/// First slot.
pub const SLOTS_AT: usize = 0;
/// Creation time and number.
pub const IDENTITY: usize = SLOTS;
/// Slots and identity, which every READ takes.
pub const STATE_WORDS: usize = IDENTITY + IDENTITY_WORDS;
/// The in-place copy, at the home node.
pub const IN_PLACE: usize = STATE_WORDS;
/// Words before the value in the in-place copy.
pub const IN_PLACE_WORDS: usize = super::buffer::HEADER_WORDS;
/// The value in the in-place copy.
pub const VALUE: usize = IN_PLACE + IN_PLACE_WORDS;
/// Words in the header, without the key. It comes after the in-place copy, or after the identity.
pub const HEADER_WORDS: usize = 4;

/// How large a register is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Length of the key, bytes.
    pub key_length: usize,
    /// Capacity of the in-place copy for a value, in words.
    pub capacity: usize,
}

impl Shape {
    /// Returns the largest shape that takes at most `full_words` at home, with a key of this
    /// length. `None` if they are too few.
    pub fn largest(key_length: usize, full_words: usize) -> Option<Self> {
        let rest = Self { key_length, capacity: 0 }.header_words();
        let lines = full_words.checked_sub(rest)? / GRANULE_WORDS;
        let capacity = (lines * GRANULE_WORDS).checked_sub(VALUE)?;
        Some(Self { key_length, capacity })
    }

    /// Returns the number of words of the key.
    pub fn key_words(self) -> usize {
        words_for(self.key_length)
    }

    /// Returns the number of words of the header with the key.
    pub fn header_words(self) -> usize {
        HEADER_WORDS + self.key_words()
    }

    /// Returns the words of a register's replica away from home: slots, identity, header, key.
    pub fn small_words(self) -> usize {
        STATE_WORDS + self.header_words()
    }

    /// Returns the words at home up to the header: slots, identity, in-place copy. A read of a
    /// register that is known takes no more.
    #[inline(always)]
    pub fn value_words(self) -> usize {
        VALUE + self.capacity
    }

    /// Returns the words of a register's replica at home.
    pub fn full_words(self) -> usize {
        self.header_at(true) + self.header_words()
    }

    /// Returns the offset of the header in the register's replica at home, or in another, in words.
    pub fn header_at(self, is_home: bool) -> usize {
        // In a line of its own, so that the copy can fill all lines before it.
        let behind_copy = self.value_words().next_multiple_of(GRANULE_WORDS);
        if is_home { behind_copy } else { STATE_WORDS }
    }

    /// Returns where the header of the register at `place` lies at each node.
    pub fn header_place(self, place: &Location) -> Location {
        Location {
            at_home: place.at_home + self.header_at(true) as u64,
            elsewhere: place.elsewhere + self.header_at(false) as u64,
            ..*place
        }
    }
}

/// The register that another one replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Predecessor {
    /// Where it lies.
    pub pointer: Pointer,
    /// Its class.
    pub class: ChunkClass,
    /// The number of the write that created it, which no other register has.
    pub number: WriteNumber,
    /// Its last stamp, with which its successor began.
    pub origin: Stamp,
}

/// The contents of a register's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'k> {
    /// Which register it is, by the number in its identity.
    pub number: WriteNumber,
    /// The register's key.
    pub key: &'k [u8],
    /// The register that it replaced, if any.
    pub predecessor: Option<Predecessor>,
}

impl<'k> Header<'k> {
    /// Returns the words before the key.
    pub fn encode(&self) -> [u64; HEADER_WORDS] {
        let Self { number, key, predecessor } = *self;
        let length = key.len() as u64;
        let [shape, before, origin] = predecessor.map_or([length, 0, 0], |before| {
            let class = u64::from(before.class.encode()) << 8;
            [(before.pointer.0 << 24) | class | length, before.number.0, before.origin.0]
        });
        let sum = header_checksum([number.0, shape, before, origin], key);
        [shape, before, origin, sum]
    }

    /// Decodes a READ of header and key of the register with this number. `None` if that is
    /// incomplete, or another register's: one that is being written may show the identity before
    /// the key (I6).
    pub fn decode(number: WriteNumber, read: &'k [u64]) -> Option<Self> {
        let (header, key) = read.split_first_chunk::<{ HEADER_WORDS }>()?;
        let &[shape, before, origin, sum] = header;
        let key = bytes(key, key_length(shape))?;
        if sum != header_checksum([number.0, shape, before, origin], key) {
            return None;
        }
        let predecessor = ChunkClass::decode((shape >> 8) as u16).map(|class| Predecessor {
            pointer: Pointer(shape >> 24),
            class,
            number: WriteNumber(before),
            origin: Stamp(origin),
        });
        Some(Self { number, key, predecessor })
    }
}

/// Returns the length of the key from a header's shape word.
fn key_length(shape: u64) -> usize {
    (shape & 0xff) as usize
}

/// Returns whether a READ of a header, which may be torn, shows this key.
pub(crate) fn has_key(read: &[u64], key: &[u8]) -> bool {
    debug_assert!(key.len() <= MAX_KEY);
    let Some((header, words)) = read.split_first_chunk::<{ HEADER_WORDS }>() else {
        return false;
    };
    key_length(header[0]) == key.len() && bytes(words, key.len()) == Some(key)
}

/// Returns the header of the register with this number, which replaced no other.
pub fn header(number: WriteNumber, key: &[u8]) -> [u64; HEADER_WORDS] {
    Header { number, key, predecessor: None }.encode()
}

fn header_checksum(words: [u64; HEADER_WORDS], key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, xxh3_64_with_seed(words.as_bytes(), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_apart_as_it_went_together() {
        let class = ChunkClass::decode(0xb964).expect("a class");
        let (pointer, number) = (Pointer(1 << 39), WriteNumber(u64::MAX >> 2));
        let predecessor = Predecessor { pointer, class, number, origin: Stamp(9) };
        let other = WriteNumber(6);
        for predecessor in [None, Some(predecessor)] {
            let header = Header { number: WriteNumber(5), key: b"some key", predecessor };
            let mut read = [0; HEADER_WORDS + 1];
            read[..HEADER_WORDS].copy_from_slice(&header.encode());
            assert_eq!(Header::decode(header.number, &read), None);
            read[HEADER_WORDS] = u64::from_le_bytes(*b"some key");
            assert_eq!(Header::decode(header.number, &read), Some(header));
            assert_eq!(Header::decode(other, &read), None);
        }
    }
}
