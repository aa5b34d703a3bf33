//! What an insert or a split brings into the world, as the parts that its chains write.

use swarm_core::cell::Newborn;
use swarm_core::geometry::Geometry;
use swarm_core::layout::{
    self, BufferHeader, Place, RecordHeader, buffer, cell_checksum, checksum, record, register,
};
use swarm_core::register::Register;
use swarm_core::safe_guess::{FIRST, first_stamp};
use swarm_core::words::{Pointer, Stamp, Timestamp, WordFormat, WriteNumber};
use zerocopy::IntoBytes;

use crate::bucket::{Bucket, Payload};
use crate::index::{FIRST_BALLOT, first_word};

/// A register with its first value, before any node has it.
pub(crate) struct NewRegister<'a> {
    pub(crate) register: Register,
    pub(crate) buffer: Pointer,
    key: &'a [u8],
    value: &'a [u8],
    stamp: Stamp,
    header: [u64; register::HEADER_WORDS],
    in_place: [u64; register::IN_PLACE_WORDS],
    buffer_header: [u64; buffer::HEADER_WORDS - 1],
}

impl<'a> NewRegister<'a> {
    /// The image of `register` for a first `value` in `buffer`.
    pub(crate) fn new(
        format: WordFormat,
        register: Register,
        buffer: Pointer,
        key: &'a [u8],
        value: &'a [u8],
    ) -> Self {
        let identity = register.identity;
        let stamp = first_stamp(format, buffer);
        let sum = checksum(format, FIRST, buffer, value);
        let buffer_header = BufferHeader {
            rewrite: Timestamp(0),
            number: identity.number,
            register: register.place.pointer,
            length: value.len(),
            guess: FIRST,
            checksum: sum,
        };
        Self {
            register,
            buffer,
            key,
            value,
            stamp,
            header: layout::header(identity, register.shape(), key),
            in_place: [stamp.0, sum, identity.number.0, value.len() as u64],
            buffer_header: buffer_header.encode(),
        }
    }

    /// Words of the first buffer.
    pub(crate) fn buffer_words(&self) -> usize {
        buffer::HEADER_WORDS + layout::words_for(self.value.len())
    }

    /// What the chains write, in order: the register is complete before its first slot shows it.
    pub(crate) fn parts(&self) -> [Newborn<'_>; 4] {
        let place = self.register.place;
        let fits = self.value.len() <= self.register.capacity();
        [
            Newborn::Write {
                place,
                from: register::HEADER,
                head: &self.header,
                tail: self.key,
                home_only: false,
            },
            Newborn::Write {
                place,
                from: self.register.shape().small_words(),
                head: &self.in_place,
                tail: if fits { self.value } else { &[] },
                home_only: true,
            },
            Newborn::Write {
                place: Place::everywhere(self.buffer, place.home),
                from: buffer::REWRITE,
                head: &self.buffer_header,
                tail: self.value,
                home_only: false,
            },
            Newborn::Set { place, at: register::SLOTS_AT, value: self.stamp.0 },
        ]
    }
}

/// A child of a split with its first record, before any node has it.
pub(crate) struct NewChild {
    place: Place,
    record: Pointer,
    payload: Payload,
    header: [u64; record::HEADER_WORDS - 1],
    in_place: [u64; layout::cell::IN_PLACE_WORDS],
    word: u64,
}

impl NewChild {
    /// The cell at `place` that begins as `bucket`, in `record`.
    pub(crate) fn new(
        geometry: &Geometry,
        place: Place,
        record: Pointer,
        change: WriteNumber,
        bucket: &Bucket,
    ) -> Self {
        let payload = bucket.encode();
        let word = first_word(geometry.format, record);
        let header = RecordHeader::new(record, Pointer::NULL, change, &payload).encode();
        let in_place = [word.0, cell_checksum(word, &payload), payload.len() as u64];
        Self { place, record, payload, header, in_place, word: word.0 }
    }

    /// Words of the record.
    pub(crate) fn record_words(&self) -> usize {
        record::HEADER_WORDS + self.payload.len()
    }

    /// What the chains write, in order: the record is complete before the cell's word names it.
    pub(crate) fn parts(&self) -> [Newborn<'_>; 4] {
        let everywhere = Place::everywhere(self.record, self.place.home);
        [
            Newborn::Write {
                place: everywhere,
                from: record::BODY,
                head: &self.header,
                tail: self.payload.as_bytes(),
                home_only: false,
            },
            Newborn::Write {
                place: self.place,
                from: layout::cell::IN_PLACE,
                head: &self.in_place,
                tail: self.payload.as_bytes(),
                home_only: true,
            },
            Newborn::Set { place: everywhere, at: record::ACCEPTED, value: FIRST_BALLOT.0 },
            Newborn::Set { place: self.place, at: layout::cell::WORD, value: self.word },
        ]
    }
}
