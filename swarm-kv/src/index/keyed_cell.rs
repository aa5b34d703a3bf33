//! A keyed cell: a key's value as a [cell](swarm_core::cell), for changes that depend on the value.
//!
//! ```text
//! object  0     the cell's word, in place of a register's first stamp slot; five reserved words
//!         6     birth and number; then header, key and in-place copy where a register has them
//!
//! payload 0     [ value length 48 | key length 8 | kind 8 ]
//!         1     key, then value, each up to a whole word
//! ```
//!
//! | kind | the key | what may be built on it |
//! | --- | --- | --- |
//! | value | has this value | anything |
//! | absent | is deleted, for good: an insert puts another register in its place | nothing |
//! | forward | has this value, and goes on in a register that begins with it | nothing |
//!
//! **Invariant (Q2):** nothing is built on a record of the kinds *absent* and *forward*. So a cell
//! that showed one of them shows it for ever, as a register does that is deleted or frozen.
//!
//! The object has a register's size, identity and header, at a register's places. So memory of
//! either serves the other, and a writer that follows predecessors passes cells as it passes
//! registers (V5).

use swarm_core::cell::CellRef;
use swarm_core::layout::{ChunkClass, Predecessor};
use swarm_core::layout::{
    Geometry, Identity, Location, Shape, bytes, cell, record, register, words_for,
};
use swarm_core::words::Stamp;
use zerocopy::IntoBytes;

/// Words of a payload before the key.
const HEAD_WORDS: usize = 1;
/// Words of a register's in-place copy that a cell's has for its payload.
const SPARED: usize = register::IN_PLACE_WORDS - cell::IN_PLACE_WORDS;

/// A key's cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyedCell {
    pub(crate) at: CellRef,
    pub(crate) identity: Identity,
    pub(crate) shape: Shape,
}

impl KeyedCell {
    /// Returns the cell that lies at `place`, of a register's shape.
    pub(crate) fn new(place: Location, identity: Identity, shape: Shape) -> Self {
        let at = CellRef { place, room: shape.capacity + SPARED, in_place: register::IN_PLACE };
        Self { at, identity, shape }
    }

    /// Returns the shape of a register that is as large as a cell for a key and a value of these
    /// lengths.
    pub(crate) fn shape_for(key_length: usize, length: usize) -> Shape {
        let payload = HEAD_WORDS + words_for(key_length) + words_for(length);
        Shape { key_length, capacity: payload.saturating_sub(SPARED) }
    }

    /// Whether a value of this length fits into its records.
    pub(crate) fn fits(&self, length: usize) -> bool {
        HEAD_WORDS + self.shape.key_words() + words_for(length) <= self.at.room
    }

    /// Returns the words of each of its records: all have one size, so that each may take the place
    /// of any other.
    pub(crate) fn record_words(&self) -> usize {
        record::HEADER_WORDS + self.at.room
    }

    /// Returns its class.
    pub(crate) fn class(&self, geometry: &Geometry) -> ChunkClass {
        geometry.register_class(self.shape.small_words(), self.shape.full_words())
    }

    /// Returns it as the predecessor of a register. No write of a register is in a cell, so its
    /// origin is none.
    pub(crate) fn predecessor(&self, geometry: &Geometry) -> Predecessor {
        let (pointer, class) = (self.at.place.pointer, self.class(geometry));
        Predecessor { pointer, class, number: self.identity.number, origin: Stamp::EMPTY }
    }
}

/// What a record says of its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Value = 1,
    Absent = 2,
    Forward = 3,
}

/// Where a payload has key and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub(crate) kind: Kind,
    pub(crate) key_length: usize,
    /// Bytes of the value.
    pub(crate) length: usize,
}

impl Parts {
    /// Returns what a payload is made of. `None` if it is damaged.
    pub(crate) fn of(payload: &[u64]) -> Option<Self> {
        let &[head, ..] = payload else { return None };
        let kind = match head & 0xff {
            1 => Kind::Value,
            2 => Kind::Absent,
            3 => Kind::Forward,
            _ => return None,
        };
        let parts =
            Self { kind, key_length: (head >> 8 & 0xff) as usize, length: (head >> 16) as usize };
        let rest = payload.len() - HEAD_WORDS;
        let is_whole = parts.length <= 8 * rest
            && words_for(parts.key_length) + words_for(parts.length) == rest;
        is_whole.then_some(parts)
    }

    /// Returns the word at which the value begins.
    pub(crate) fn value_at(&self) -> usize {
        HEAD_WORDS + words_for(self.key_length)
    }

    /// Returns the key of a payload that is made so.
    pub(crate) fn key<'p>(&self, payload: &'p [u64]) -> &'p [u8] {
        let key = payload.get(HEAD_WORDS..).and_then(|words| bytes(words, self.key_length));
        key.unwrap_or_default()
    }

    /// Returns its value.
    #[cfg(test)]
    pub(crate) fn value<'p>(&self, payload: &'p [u64]) -> &'p [u8] {
        let value = payload.get(self.value_at()..).and_then(|words| bytes(words, self.length));
        value.unwrap_or_default()
    }
}

/// Returns the payload of a record.
pub(crate) fn payload(kind: Kind, key: &[u8], value: &[u8]) -> Vec<u64> {
    let mut words = vec![0; HEAD_WORDS + words_for(key.len()) + words_for(value.len())];
    words[0] = kind as u64 | (key.len() as u64) << 8 | (value.len() as u64) << 16;
    let at = HEAD_WORDS + words_for(key.len());
    words[HEAD_WORDS..].as_mut_bytes()[..key.len()].copy_from_slice(key);
    words[at..].as_mut_bytes()[..value.len()].copy_from_slice(value);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_apart_as_they_went_together() {
        for (key, value) in
            [(&b"k"[..], &b""[..]), (b"longer than one word", b"12345678"), (b"12345678", b"9")]
        {
            for kind in [Kind::Value, Kind::Absent, Kind::Forward] {
                let words = payload(kind, key, value);
                let parts = Parts::of(&words).expect("it is whole");
                assert_eq!(
                    (parts.kind, parts.key(&words), parts.value(&words)),
                    (kind, key, value)
                );
                assert_eq!(Parts::of(&words[..words.len() - 1]), None);
                assert_eq!(Parts::of(&[&words[..], &[0]].concat()), None);
            }
        }
        assert_eq!(Parts::of(&[]), None);
        assert_eq!(Parts::of(&[4]), None);
        assert_eq!(Parts::of(&[!0xff | 1, 0]), None);
    }

    /// The in-place copy ends where the header begins, and the record has room for it.
    #[test]
    fn a_cell_lies_where_a_register_of_its_shape_lies() {
        for (key_length, length) in [(1, 0), (8, 24), (255, 1), (9, 4096)] {
            let shape = KeyedCell::shape_for(key_length, length);
            let place =
                Location::everywhere(swarm_core::words::Pointer(8), swarm_core::node::NodeId(0));
            let cell = KeyedCell::new(place, Identity::default(), shape);
            assert!(cell.fits(length));
            let copy = cell.at.in_place + cell::IN_PLACE_WORDS + cell.at.room;
            assert!(copy <= shape.header_at(true), "{key_length}, {length}");
            assert_eq!(cell.record_words(), record::HEADER_WORDS + cell.at.room);
        }
    }
}
