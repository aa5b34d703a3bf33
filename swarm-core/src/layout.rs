//! The layout of registers, buffers, cells and records, in words.
//!
//! ```text
//! register:  0  stamp slots [6]
//!            6  birth            nanoseconds since the pool's creation
//!            7  number           of the write that bore it: birth and number are its identity
//!            8  in-place copy    at the home node only: a buffer's image with the stamp in the lock's place
//!
//!            header              at the home node in the granule behind the copy, elsewhere behind the identity:
//!            0  shape            [ predecessor's pointer 40 | its class 16 | key length 8 ]
//!            1  predecessor      number of the register that this one took the place of, or 0
//!            2  origin           the last stamp there, whose value it began with, or 0
//!            3  checksum         of number, shape, predecessor, origin and key
//!            4  key              bytes, up to a whole word
//!
//! buffer:    0  lock             changed by CAS alone
//!            1  rewrite          timestamp of the verified rewrite, sealed with the checksum
//!            2  number           of the write
//!            3  length, register [ register's pointer 40 | value's length, bytes 24 ]
//!            4  guess            timestamp that the write was posted under
//!            5  checksum
//!            6  value
//!
//! cell:      0  word             changed by CAS alone
//!            1  in-place copy    at the home node only: word, checksum, length (words), payload
//!
//!            of a key (set aside: no entry names one so far)
//!            1  birth, number    as of a register
//!            3  shape, predecessor, origin, checksum; then a word for when the key expires
//!            8  key, and at the home node behind it the in-place copy
//!
//! record:    0  accepted         ballot; changed by CAS alone, only ever grows
//!            1  base             word that named the record that it builds on
//!            2  writer           number of the change
//!            3  length           of the payload, words
//!            4  checksum
//!            5  payload
//! ```

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::IntoBytes;

use crate::class::Class;
use crate::node::{Address, NodeId};
use crate::words::{CellWord, GRANULE_WORDS, Pointer, Stamp, Timestamp, WordFormat, WriteNumber};

/// The largest value, in bytes.
pub const MAX_VALUE: usize = 1 << 20;
/// The longest key, in bytes. The shortest is 1.
pub const MAX_KEY: usize = 255;
/// The largest value that a register keeps a copy of in place, in bytes.
pub const MAX_IN_PLACE: usize = 4096;
/// Stamp slots in a register (§4.4): with its identity, they fill a cache line. Writers beyond this
/// many share.
pub const SLOTS: usize = 6;

/// Offsets within a register, in words.
pub mod register {
    /// First slot.
    pub const SLOTS_AT: usize = 0;
    /// Birth and number.
    pub const IDENTITY: usize = super::SLOTS;
    /// Words of the identity.
    pub const IDENTITY_WORDS: usize = 2;
    /// Slots and identity, which every READ takes.
    pub const STATE_WORDS: usize = IDENTITY + IDENTITY_WORDS;
    /// The in-place copy, at the home node.
    pub const IN_PLACE: usize = STATE_WORDS;
    /// Words in front of the value in the in-place copy.
    pub const IN_PLACE_WORDS: usize = super::buffer::HEADER_WORDS;
    /// The value in the in-place copy.
    pub const VALUE: usize = IN_PLACE + IN_PLACE_WORDS;
    /// Words in the header, which begins behind them, without the key.
    pub const HEADER_WORDS: usize = 4;
}

/// Offsets within a buffer, in words.
pub mod buffer {
    /// The lock.
    pub const LOCK: usize = 0;
    /// Timestamp of the verified rewrite.
    pub const REWRITE: usize = 1;
    /// Number of the write: the first word that all who write the buffer agree on.
    pub const NUMBER: usize = 2;
    /// Timestamp of the guess.
    pub const GUESS: usize = 4;
    /// Words in front of the value.
    pub const HEADER_WORDS: usize = 6;
}

/// Offsets within a cell, in words.
pub mod cell {
    /// The word.
    pub const WORD: usize = 0;
    /// The in-place copy of the record's payload.
    pub const IN_PLACE: usize = 1;
    /// Words in front of the payload in the in-place copy.
    pub const IN_PLACE_WORDS: usize = 3;
}

/// Offsets within a record, in words.
pub mod record {
    /// The accepted ballot.
    pub const ACCEPTED: usize = 0;
    /// The rest: base, writer, length, checksum, payload.
    pub const BODY: usize = 1;
    /// Words in front of the payload.
    pub const HEADER_WORDS: usize = 5;
}

/// How many words `bytes` bytes take.
pub const fn words_for(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// Where an object lies at each node.
///
/// Replicas may differ in what they hold: a register's in-place copy is at its *home* node alone.
/// See [`Geometry`](crate::geometry::Geometry) for how places follow from pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The object's name: the same on every node.
    pub pointer: Pointer,
    /// The node that holds in-place copies, and the first that operations turn to.
    pub home: NodeId,
    /// Word address at the home node.
    pub at_home: u64,
    /// Word address at the node that precedes the home node in the ring.
    pub elsewhere: u64,
    /// Word distance from there to the address at the node before that one, and so on.
    pub stride: u32,
}

impl Place {
    /// The same address at every node.
    pub fn everywhere(pointer: Pointer, home: NodeId) -> Self {
        let at = pointer.0 * GRANULE_WORDS as u64;
        Self { pointer, home, at_home: at, elsewhere: at, stride: 0 }
    }

    /// The object's first word at `node`, in a group of `nodes`.
    #[inline]
    pub fn at(&self, node: NodeId, nodes: usize) -> Address {
        if node == self.home {
            return Address(self.at_home);
        }
        let back = usize::from(self.home.0) + nodes - usize::from(node.0);
        let rank = if back > nodes { back - nodes } else { back } - 1;
        Address(self.elsewhere + rank as u64 * u64::from(self.stride))
    }
}

/// A register's name for ever: memory that is used again holds another identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Identity {
    /// Nanoseconds since the pool's creation; timestamps count from here.
    pub birth: u64,
    /// Number of the write that bore it, which no other register has.
    pub number: WriteNumber,
}

impl Identity {
    /// The words at [`register::IDENTITY`].
    #[inline]
    pub fn encode(self) -> [u64; register::IDENTITY_WORDS] {
        [self.birth, self.number.0]
    }
}

/// The seeded checksum of a buffer of write `number` to the register of this identity: xxh3 of the
/// value (whose length it takes in), seeded with pointer, the guess's timestamp, number and the
/// register's.
///
/// Without the timestamp, a torn in-place copy could pass off an earlier write's value for a later
/// write that uses the same buffer again; without the number, who reads a buffer that is half written would lock
/// the number of the write that it served before; without the register, an earlier write to another
/// one, under a timestamp that happens to be the same, would pass for this one's.
#[inline]
pub fn checksum(
    format: WordFormat,
    register: Identity,
    timestamp: Timestamp,
    pointer: Pointer,
    number: WriteNumber,
    value: &[u8],
) -> u64 {
    // Spread over all bits, or numbers that follow each other would undo stamps that do.
    let spread = |number: WriteNumber| number.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let stamp = (timestamp.0 << format.pointer_bits) ^ pointer.0;
    let seed = stamp ^ spread(number) ^ spread(register.number).rotate_left(32);
    xxh3_64_with_seed(value, seed)
}

/// The bytes that `words` hold, without those that fill up the last word.
///
/// `None` if `words` is too short for `length` bytes.
#[inline]
pub fn bytes(words: &[u64], length: usize) -> Option<&[u8]> {
    words.as_bytes().get(..length)
}

/// What a buffer says of its write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BufferHeader {
    /// Timestamp of the verified rewrite, or 0. None that there can be if the word is of a former life
    /// of the buffer.
    pub rewrite: Timestamp,
    /// Number of the write.
    pub number: WriteNumber,
    /// The register it was written to.
    pub register: Pointer,
    /// Length of the value, bytes.
    pub length: usize,
    /// Timestamp of the guess.
    pub guess: Timestamp,
    /// [Checksum](checksum) of the value.
    pub checksum: u64,
}

impl BufferHeader {
    /// Whether `timestamp` is that of the write's verified rewrite: it is never taken back.
    #[inline]
    pub fn is_rewrite(&self, timestamp: Timestamp) -> bool {
        self.rewrite == timestamp && self.guess != timestamp
    }

    /// The words from [`buffer::REWRITE`] to the value.
    ///
    /// The rewrite's timestamp is sealed with the checksum: where this word has landed in front of the
    /// others, those of a former life must not be taken for the rewrite's. (It cannot be part of the
    /// checksum: who dies in the midst of a rewrite would leave no buffer for the guess.)
    #[inline]
    pub fn encode(&self) -> [u64; buffer::HEADER_WORDS - 1] {
        [
            self.rewrite.0 ^ self.checksum,
            self.number.0,
            (self.register.0 << 24) | self.length as u64,
            self.guess.0,
            self.checksum,
        ]
    }

    /// Reads the words from [`buffer::REWRITE`] on. `None` if there are too few.
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

    /// Whether the buffer was written for `stamp` of the register of this identity at `register`, and
    /// header and `value` are whole.
    #[inline]
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

/// How large a register is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Length of the key, bytes.
    pub key_length: usize,
    /// Words that the in-place copy has for a value.
    pub capacity: usize,
}

impl Shape {
    /// The largest that takes at most so many words at home, with a key of this length. `None` if they are too few.
    pub fn largest(key_length: usize, full_words: usize) -> Option<Self> {
        let rest = Self { key_length, capacity: 0 }.header_words();
        let lines = full_words.checked_sub(rest)? / GRANULE_WORDS;
        let capacity = (lines * GRANULE_WORDS).checked_sub(register::VALUE)?;
        Some(Self { key_length, capacity })
    }

    /// Words of the key.
    pub fn key_words(self) -> usize {
        words_for(self.key_length)
    }

    /// Words of the header with the key.
    pub fn header_words(self) -> usize {
        register::HEADER_WORDS + self.key_words()
    }

    /// Words of a register's replica away from home: slots, identity, header, key.
    pub fn small_words(self) -> usize {
        register::STATE_WORDS + self.header_words()
    }

    /// Words at home up to the header: slots, identity, in-place copy. A read of a register that is known takes
    /// no more.
    #[inline(always)]
    pub fn value_words(self) -> usize {
        register::VALUE + self.capacity
    }

    /// Words of a register's replica at home.
    pub fn full_words(self) -> usize {
        self.header_at(true) + self.header_words()
    }

    /// Offset of the header in the register's replica at home, or in another, in words.
    pub fn header_at(self, is_home: bool) -> usize {
        // In a line of its own, so that the copy may take all of those before it.
        let behind_copy = self.value_words().next_multiple_of(GRANULE_WORDS);
        if is_home { behind_copy } else { register::STATE_WORDS }
    }

    /// Where the header of the register at `place` lies at each node.
    pub fn header_place(self, place: &Place) -> Place {
        Place {
            at_home: place.at_home + self.header_at(true) as u64,
            elsewhere: place.elsewhere + self.header_at(false) as u64,
            ..*place
        }
    }
}

/// The register that another one took the place of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Predecessor {
    /// Where it lies.
    pub pointer: Pointer,
    /// Its class.
    pub class: Class,
    /// The number of the write that bore it, which no other register has.
    pub number: WriteNumber,
    /// Its last stamp: what its successor began with.
    pub origin: Stamp,
}

/// What a register's header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header<'k> {
    /// Which register it is, by the number in its identity.
    pub number: WriteNumber,
    /// The register's key.
    pub key: &'k [u8],
    /// The register that it took the place of, if any.
    pub predecessor: Option<Predecessor>,
}

impl<'k> Header<'k> {
    /// The words in front of the key.
    pub fn encode(&self) -> [u64; register::HEADER_WORDS] {
        let Self { number, key, predecessor } = *self;
        let length = key.len() as u64;
        let [shape, before, origin] = predecessor.map_or([length, 0, 0], |before| {
            let class = u64::from(before.class.encode()) << 8;
            [(before.pointer.0 << 24) | class | length, before.number.0, before.origin.0]
        });
        let sum = header_checksum([number.0, shape, before, origin], key);
        [shape, before, origin, sum]
    }

    /// From a READ of header and key of the register with this number. `None` if that is not whole, or another
    /// register's: one that is just being written may show the identity before the key.
    pub fn decode(number: WriteNumber, read: &'k [u64]) -> Option<Self> {
        let (header, key) = read.split_first_chunk::<{ register::HEADER_WORDS }>()?;
        let &[shape, before, origin, sum] = header;
        let key = bytes(key, key_length(shape))?;
        if sum != header_checksum([number.0, shape, before, origin], key) {
            return None;
        }
        let predecessor = Class::decode((shape >> 8) as u16).map(|class| Predecessor {
            pointer: Pointer(shape >> 24),
            class,
            number: WriteNumber(before),
            origin: Stamp(origin),
        });
        Some(Self { number, key, predecessor })
    }
}

/// Length of the key, as a header's shape word says.
fn key_length(shape: u64) -> usize {
    (shape & 0xff) as usize
}

/// Whether a READ of a header, which may be torn, shows this key.
pub(crate) fn has_key(read: &[u64], key: &[u8]) -> bool {
    debug_assert!(key.len() <= MAX_KEY);
    let Some((header, words)) = read.split_first_chunk::<{ register::HEADER_WORDS }>() else {
        return false;
    };
    key_length(header[0]) == key.len() && bytes(words, key.len()) == Some(key)
}

/// The header of the register with this number, which takes no other's place.
pub fn header(number: WriteNumber, key: &[u8]) -> [u64; register::HEADER_WORDS] {
    Header { number, key, predecessor: None }.encode()
}

fn header_checksum(words: [u64; register::HEADER_WORDS], key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, xxh3_64_with_seed(words.as_bytes(), 0))
}

/// What a record says in front of its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// The word that its proposer took every node to show: it names the record that this one builds
    /// on.
    pub base: CellWord,
    /// Number of the change.
    pub writer: WriteNumber,
    /// Words of payload.
    pub length: usize,
    /// Checksum of base, writer and payload.
    pub checksum: u64,
}

impl RecordHeader {
    /// The header of a record at `pointer` with this `payload`.
    pub fn new(pointer: Pointer, base: CellWord, writer: WriteNumber, payload: &[u64]) -> Self {
        let length = payload.len();
        let checksum = record_checksum(pointer, base, writer, payload);
        Self { base, writer, length, checksum }
    }

    /// The words from [`record::BODY`] to the payload.
    pub fn encode(&self) -> [u64; record::HEADER_WORDS - 1] {
        [self.base.0, self.writer.0, self.length as u64, self.checksum]
    }

    /// Reads the words from [`record::BODY`] on. `None` if there are too few.
    pub fn decode(words: &[u64]) -> Option<Self> {
        let &[base, writer, length, checksum, ..] = words else { return None };
        Some(Self {
            base: CellWord(base),
            writer: WriteNumber(writer),
            length: usize::try_from(length).ok()?,
            checksum,
        })
    }

    /// Whether this is the header of an undamaged record at `pointer` with this `payload`.
    pub fn agrees(&self, pointer: Pointer, payload: &[u64]) -> bool {
        self.length == payload.len()
            && self.checksum == record_checksum(pointer, self.base, self.writer, payload)
    }
}

fn record_checksum(pointer: Pointer, base: CellWord, writer: WriteNumber, payload: &[u64]) -> u64 {
    let seed = pointer.0 ^ base.0.rotate_left(32) ^ writer.0.rotate_left(8);
    xxh3_64_with_seed(payload.as_bytes(), seed)
}

/// The checksum of a cell's in-place copy, seeded with the word that it belongs to.
pub fn cell_checksum(word: CellWord, payload: &[u64]) -> u64 {
    xxh3_64_with_seed(payload.as_bytes(), word.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::StampFlags;

    #[test]
    fn places_away_from_home_are_told_apart_by_ring_distance() {
        let place = Place {
            pointer: Pointer(1),
            home: NodeId(1),
            at_home: 1000,
            elsewhere: 100,
            stride: 10,
        };
        assert_eq!(place.at(NodeId(1), 3), Address(1000));
        assert_eq!(place.at(NodeId(0), 3), Address(100));
        assert_eq!(place.at(NodeId(2), 3), Address(110));
        let all: std::vec::Vec<_> = (0..5).map(|n| place.at(NodeId(n), 5).0).collect();
        assert_eq!(all, [100, 1000, 130, 120, 110]);
    }

    #[test]
    fn headers_come_apart_as_they_went_together() {
        let class = Class::decode(0xb964).expect("a class");
        let (pointer, number) = (Pointer(1 << 39), WriteNumber(u64::MAX >> 2));
        let predecessor = Predecessor { pointer, class, number, origin: Stamp(9) };
        let other = WriteNumber(6);
        for predecessor in [None, Some(predecessor)] {
            let header = Header { number: WriteNumber(5), key: b"some key", predecessor };
            let mut read = [0; register::HEADER_WORDS + 1];
            read[..register::HEADER_WORDS].copy_from_slice(&header.encode());
            assert_eq!(Header::decode(header.number, &read), None);
            read[register::HEADER_WORDS] = u64::from_le_bytes(*b"some key");
            assert_eq!(Header::decode(header.number, &read), Some(header));
            assert_eq!(Header::decode(other, &read), None);
        }
        let header = BufferHeader {
            rewrite: Timestamp(3),
            number: WriteNumber(9),
            register: Pointer(1 << 39),
            length: MAX_VALUE,
            guess: Timestamp(2),
            checksum: 7,
        };
        assert_eq!(BufferHeader::decode(&header.encode()), Some(header));
        let header = RecordHeader::new(Pointer(4), CellWord(3), WriteNumber(8), &[1, 2, 3]);
        assert_eq!(RecordHeader::decode(&header.encode()), Some(header));
        assert!(header.agrees(Pointer(4), &[1, 2, 3]));
        assert!(!header.agrees(Pointer(5), &[1, 2, 3]));
        assert!(!header.agrees(Pointer(4), &[1, 2, 4]));
    }

    /// Memory is used again, and timestamps of one register say nothing of another's. Where a node has
    /// what a buffer held before, for a register that lay in the same place, under the same timestamp,
    /// that is not the write that is looked for.
    #[test]
    fn a_buffer_of_another_registers_write_does_not_agree() {
        let format = WordFormat { pointer_bits: 20, tick_shift: 0 };
        let (pointer, register) = (Pointer(9), Pointer(40));
        let stamp = format.stamp(Timestamp(5), pointer, StampFlags::empty());
        let identity = |number| Identity { birth: 4, number: WriteNumber(number) };
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
