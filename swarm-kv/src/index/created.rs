//! What an insert or a split creates, as the parts that its chains write.

use swarm_core::cell::{InitialWrite, Replicas};
use swarm_core::layout::{
    self, BufferHeader, Geometry, Header, Location, Placement, Predecessor, RecordHeader, buffer,
    cell_checksum, checksum, record, register,
};
use swarm_core::register::Register;
use swarm_core::register::safe_guess::{deleted_stamp, first_stamp};
use swarm_core::words::{CellWord, Pointer, Stamp, Timestamp, WordFormat, WriteNumber};
use zerocopy::IntoBytes;

use crate::index::bucket::{Bucket, Created, Entry, Payload};
use crate::index::keyed_cell::KeyedCell;
use crate::index::lookup::{FIRST_BALLOT, first_word};

/// A register with its first value, before any node has it.
pub(crate) struct NewRegister<'a> {
    pub(crate) register: Register,
    /// Its first buffer.
    pub(crate) buffer: Pointer,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    /// Whether it is deleted from the beginning.
    pub(crate) deleted: bool,
    /// The register that it replaces.
    pub(crate) predecessor: Option<Predecessor>,
}

/// The words of a new register that are not key or value.
pub(crate) struct Image {
    stamp: Stamp,
    /// The identity, and after it, at home, the in-place copy up to the value.
    home: [u64; register::IDENTITY_WORDS + register::IN_PLACE_WORDS],
    /// The identity, and after it, elsewhere, the header up to the key.
    elsewhere: [u64; register::IDENTITY_WORDS + register::HEADER_WORDS],
    buffer_header: [u64; buffer::HEADER_WORDS - 1],
}

impl<'a> NewRegister<'a> {
    /// Returns the words that go with key and value.
    pub(crate) fn image(&self, format: WordFormat) -> Image {
        let Self { register, buffer, key, value, deleted, predecessor } = *self;
        let identity = register.identity;
        let stamp = self.stamp(format);
        let first = format.timestamp(stamp);
        let sum = checksum(format, identity, first, buffer, identity.number, value);
        let buffer_header = BufferHeader {
            rewrite: Timestamp(0),
            number: identity.number,
            register: register.place.pointer,
            length: value.len(),
            guess: first,
            checksum: sum,
        };
        // In place is a value, and a delete has none.
        let in_place = if deleted { Stamp::EMPTY } else { stamp };
        let buffer_header = buffer_header.encode();
        let [rewrite, number, register, guess, sum] = buffer_header;
        let [created_at, name] = identity.encode();
        let header = Header { number: identity.number, key, predecessor };
        let [shape, before, origin, header_sum] = header.encode();
        Image {
            stamp,
            home: [created_at, name, in_place.0, rewrite, number, register, guess, sum],
            elsewhere: [created_at, name, shape, before, origin, header_sum],
            buffer_header,
        }
    }

    /// Returns its first stamp.
    fn stamp(&self, format: WordFormat) -> Stamp {
        let first = if self.deleted { deleted_stamp } else { first_stamp };
        first(format, self.buffer)
    }

    /// Returns its entry in the bucket.
    pub(crate) fn entry(&self, geometry: &Geometry, hash: u64) -> Entry {
        let Register { place, identity, .. } = self.register;
        let shape = self.register.shape();
        Entry {
            hash,
            pointer: place.pointer,
            class: geometry.register_class(shape.small_words(), shape.full_words()),
            key_length: shape.key_length,
            identity,
            linked: self.predecessor.is_some(),
            is_cell: false,
        }
    }

    /// Returns what a record says of it, where it is entry number `entry`.
    pub(crate) fn created(&self, entry: usize) -> Created {
        let words = buffer::HEADER_WORDS + layout::words_for(self.value.len());
        Created { entry, buffer: self.buffer, words, deleted: self.deleted }
    }

    /// Returns the register as the client with stamp slot `slot` knows it once it is created.
    pub(crate) fn seen_from(&self, format: WordFormat, slot: usize) -> Register {
        let Register { place, identity, .. } = self.register;
        Register::just_created(place, identity, self.register.shape(), self.stamp(format), slot)
    }

    /// Returns what the chains write, in order. S1: the register is complete before its first stamp
    /// slot shows it. The home has the first buffer in place, if it has no other copy.
    pub(crate) fn parts<'b>(
        &'b self,
        image: &'b Image,
        buffers: &Placement,
    ) -> [InitialWrite<'b>; 5] {
        let place = self.register.place;
        let first = buffers.first_site(self.buffer, &place).place;
        let only_in_place = buffers.absent(self.buffer) == Some(place.home);
        let (head, tail): (&[u64], &[u8]) = match self.value.len() <= self.register.capacity() {
            _ if only_in_place => (&image.home[..register::IDENTITY_WORDS + 1], &[]),
            true => (&image.home, self.value),
            false => (&image.home, &[]),
        };
        [
            InitialWrite::Write {
                place: self.register.shape().header_place(&place),
                from: 0,
                head: &image.elsewhere[register::IDENTITY_WORDS..],
                tail: self.key,
                at: Replicas::Home,
            },
            InitialWrite::Write { place, from: register::IDENTITY, head, tail, at: Replicas::Home },
            InitialWrite::Write {
                place,
                from: register::IDENTITY,
                head: &image.elsewhere,
                tail: self.key,
                at: Replicas::Elsewhere,
            },
            InitialWrite::Write {
                place: first,
                from: buffer::REWRITE,
                head: &image.buffer_header,
                tail: self.value,
                at: Replicas::All,
            },
            InitialWrite::Set { place, at: register::SLOTS_AT, value: image.stamp.0 },
        ]
    }
}

/// A keyed cell with its first record, before any node has it.
pub(crate) struct NewCell<'a> {
    pub(crate) cell: KeyedCell,
    /// Its first record.
    pub(crate) record: Pointer,
    pub(crate) key: &'a [u8],
    pub(crate) payload: &'a [u64],
    /// The register or cell that it replaces.
    pub(crate) predecessor: Option<Predecessor>,
}

/// The words of a new keyed cell that are not key or payload.
pub(crate) struct CellImage {
    word: CellWord,
    /// The identity, and after it, at home, the in-place copy up to the payload.
    home: [u64; register::IDENTITY_WORDS + layout::cell::IN_PLACE_WORDS],
    /// The identity, and after it, elsewhere, the header up to the key.
    elsewhere: [u64; register::IDENTITY_WORDS + register::HEADER_WORDS],
    record_header: [u64; record::HEADER_WORDS - 1],
}

impl<'a> NewCell<'a> {
    /// Returns the words that go with key and payload.
    pub(crate) fn image(&self, format: WordFormat) -> CellImage {
        let Self { cell, record, key, payload, predecessor } = *self;
        assert!(payload.len() <= cell.at.room, "the cell has room for what it begins with");
        let (word, number) = (first_word(format, record), cell.identity.number);
        let record_header = RecordHeader::new(record, CellWord(0), number, payload).encode();
        let [created_at, name] = cell.identity.encode();
        let header = Header { number, key, predecessor };
        let [shape, before, origin, header_sum] = header.encode();
        let sum = cell_checksum(word, payload);
        CellImage {
            word,
            home: [created_at, name, word.0, sum, payload.len() as u64],
            elsewhere: [created_at, name, shape, before, origin, header_sum],
            record_header,
        }
    }

    /// Returns its entry in the bucket.
    pub(crate) fn entry(&self, geometry: &Geometry, hash: u64) -> Entry {
        Entry {
            hash,
            pointer: self.cell.at.place.pointer,
            class: self.cell.class(geometry),
            key_length: self.key.len(),
            identity: self.cell.identity,
            linked: self.predecessor.is_some(),
            is_cell: true,
        }
    }

    /// Returns what a record says of it, where it is entry number `entry`.
    pub(crate) fn created(&self, entry: usize) -> Created {
        let words = record::HEADER_WORDS + self.payload.len();
        Created { entry, buffer: self.record, words, deleted: false }
    }

    /// Returns what the chains write, in order. S1: the first record is complete before its
    /// accepted ballot, and all else before the cell's word names it.
    pub(crate) fn parts<'b>(&'b self, image: &'b CellImage) -> [InitialWrite<'b>; 6] {
        let place = self.cell.at.place;
        let everywhere = Location::everywhere(self.record, place.home);
        let payload = self.payload.as_bytes();
        [
            InitialWrite::Write {
                place: self.cell.shape.header_place(&place),
                from: 0,
                head: &image.elsewhere[register::IDENTITY_WORDS..],
                tail: self.key,
                at: Replicas::Home,
            },
            InitialWrite::Write {
                place,
                from: register::IDENTITY,
                head: &image.home,
                tail: payload,
                at: Replicas::Home,
            },
            InitialWrite::Write {
                place,
                from: register::IDENTITY,
                head: &image.elsewhere,
                tail: self.key,
                at: Replicas::Elsewhere,
            },
            InitialWrite::Write {
                place: everywhere,
                from: record::BODY,
                head: &image.record_header,
                tail: payload,
                at: Replicas::All,
            },
            InitialWrite::Set { place: everywhere, at: record::ACCEPTED, value: FIRST_BALLOT.0 },
            InitialWrite::Set { place, at: layout::cell::WORD, value: image.word.0 },
        ]
    }
}

/// A child of a split with its first record, before any node has it.
pub(crate) struct NewChild {
    place: Location,
    record: Pointer,
    payload: Payload,
    header: [u64; record::HEADER_WORDS - 1],
    in_place: [u64; layout::cell::IN_PLACE_WORDS],
    word: u64,
}

impl NewChild {
    /// Makes the child whose cell is at `place` and begins as `bucket`, in `record`.
    pub(crate) fn new(
        geometry: &Geometry,
        place: Location,
        record: Pointer,
        change: WriteNumber,
        bucket: &Bucket,
    ) -> Self {
        let payload = bucket.encode();
        let word = first_word(geometry.format, record);
        let header = RecordHeader::new(record, CellWord(0), change, &payload).encode();
        let in_place = [word.0, cell_checksum(word, &payload), payload.len() as u64];
        Self { place, record, payload, header, in_place, word: word.0 }
    }

    /// Returns the words of the record.
    pub(crate) fn record_words(&self) -> usize {
        record::HEADER_WORDS + self.payload.len()
    }

    /// Returns what the chains write, in order. S1: the record is complete before the cell's word
    /// names it.
    pub(crate) fn parts(&self) -> [InitialWrite<'_>; 4] {
        let everywhere = Location::everywhere(self.record, self.place.home);
        [
            InitialWrite::Write {
                place: everywhere,
                from: record::BODY,
                head: &self.header,
                tail: self.payload.as_bytes(),
                at: Replicas::All,
            },
            InitialWrite::Write {
                place: self.place,
                from: layout::cell::IN_PLACE,
                head: &self.in_place,
                tail: self.payload.as_bytes(),
                at: Replicas::Home,
            },
            InitialWrite::Set { place: everywhere, at: record::ACCEPTED, value: FIRST_BALLOT.0 },
            InitialWrite::Set { place: self.place, at: layout::cell::WORD, value: self.word },
        ]
    }
}
