//! A keyed cell: a key's value as a [cell](swarm_core::cell), for changes that depend on the value.
//!
//! ```text
//! object  0     the cell's word, in place of a register's first stamp slot; five reserved words
//!         6     birth and number; then header, key and in-place copy where a register has them
//!
//! payload 0     [ value length 48 | key length 8 | has a deadline 1 | kind 7 ]
//!         1     the deadline, if it has one: by the pool's clock, in nanoseconds since the pool's creation
//!               key, then value, each up to a whole word
//! ```
//!
//! | kind | the key | what may be built on it |
//! | --- | --- | --- |
//! | value | has this value | anything |
//! | absent | is deleted, for good: an insert puts another register in its place | nothing |
//! | forward | has this value, and goes on in a register, or a cell, that begins with it | nothing |
//!
//! A value with a deadline is there until the cell is *absent*, as any value is. A client whose clock
//! says that the deadline has passed proposes that ([`expiry`](crate::ops::expiry)).
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
/// The bit of the head that says that a deadline follows.
const DEADLINE: u64 = 0x80;
/// Bytes that a value with a deadline takes besides.
pub(crate) const DEADLINE_BYTES: usize = 8;
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
    #[inline]
    pub(crate) fn fits(&self, length: usize) -> bool {
        HEAD_WORDS + self.shape.key_words() + words_for(length) <= self.at.room
    }

    /// Whether its records have room for what this one says.
    #[inline]
    pub(crate) fn fits_content(&self, content: &CellContent<'_>) -> bool {
        self.fits(content.value.len() + content.deadline.map_or(0, |_| DEADLINE_BYTES))
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

/// What a record says, and of which key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CellContent<'a> {
    pub(crate) kind: Kind,
    /// When the value expires, if it does.
    pub(crate) deadline: Option<u64>,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
}

impl CellContent<'_> {
    /// Returns the payload of a record that says so.
    pub(crate) fn payload(&self) -> Vec<u64> {
        let mut words = Vec::new();
        self.payload_into(&mut words);
        words
    }

    /// Makes `words` the payload of a record that says so.
    pub(crate) fn payload_into(&self, words: &mut Vec<u64>) {
        let Self { kind, deadline, key, value } = *self;
        let (key_words, has_deadline) = (words_for(key.len()), deadline.is_some());
        let head_words = HEAD_WORDS + usize::from(has_deadline);
        words.resize(head_words + key_words + words_for(value.len()), 0);
        let (head, rest) = words.split_at_mut(head_words);
        head[0] = kind as u64 | (key.len() as u64) << 8 | (value.len() as u64) << 16;
        if let Some(deadline) = deadline {
            head[0] |= DEADLINE;
            head[HEAD_WORDS] = deadline;
        }
        let (of_key, of_value) = rest.split_at_mut(key_words);
        for (words, bytes) in [(of_key, key), (of_value, value)] {
            // Other bytes were there before.
            if let Some(last) = words.last_mut() {
                *last = 0;
            }
            words.as_mut_bytes()[..bytes.len()].copy_from_slice(bytes);
        }
    }
}

/// Where a payload has key and value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub(crate) kind: Kind,
    /// When the value expires, if it does.
    pub(crate) deadline: Option<u64>,
    pub(crate) key_length: usize,
    /// Bytes of the value.
    pub(crate) length: usize,
}

impl Parts {
    /// Returns what a payload is made of. `None` if it is damaged.
    pub(crate) fn of(payload: &[u64]) -> Option<Self> {
        let &[head, ref rest @ ..] = payload else { return None };
        let deadline = if head & DEADLINE == 0 { None } else { Some(*rest.first()?) };
        let kind = match head & (DEADLINE - 1) {
            1 => Kind::Value,
            2 => Kind::Absent,
            3 => Kind::Forward,
            _ => return None,
        };
        let (key_length, length) = ((head >> 8 & 0xff) as usize, (head >> 16) as usize);
        let parts = Self { kind, deadline, key_length, length };
        let rest = payload.len() - parts.key_at();
        let is_whole = parts.length <= 8 * rest
            && words_for(parts.key_length) + words_for(parts.length) == rest;
        is_whole.then_some(parts)
    }

    /// Returns the word at which the key begins.
    fn key_at(&self) -> usize {
        HEAD_WORDS + usize::from(self.deadline.is_some())
    }

    /// Returns the word at which the value begins.
    pub(crate) fn value_at(&self) -> usize {
        self.key_at() + words_for(self.key_length)
    }

    /// Returns the key of a payload that is made so.
    pub(crate) fn key<'p>(&self, payload: &'p [u64]) -> &'p [u8] {
        let key = payload.get(self.key_at()..).and_then(|words| bytes(words, self.key_length));
        key.unwrap_or_default()
    }

    /// Returns its value.
    #[cfg(test)]
    pub(crate) fn value<'p>(&self, payload: &'p [u64]) -> &'p [u8] {
        let value = payload.get(self.value_at()..).and_then(|words| bytes(words, self.length));
        value.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_apart_as_they_went_together() {
        for (key, value) in
            [(&b"k"[..], &b""[..]), (b"longer than one word", b"12345678"), (b"12345678", b"9")]
        {
            let kinds = [Kind::Value, Kind::Absent, Kind::Forward];
            for (kind, deadline) in kinds.into_iter().flat_map(|it| [(it, None), (it, Some(!7))]) {
                let content = CellContent { kind, deadline, key, value };
                let words = content.payload();
                let mut other = vec![!0; words.len()];
                content.payload_into(&mut other);
                assert_eq!(other, words, "in the place of another one");
                let parts = Parts::of(&words).expect("it is whole");
                assert_eq!(
                    (parts.kind, parts.deadline, parts.key(&words), parts.value(&words)),
                    (kind, deadline, key, value)
                );
                assert_eq!(Parts::of(&words[..words.len() - 1]), None);
                assert_eq!(Parts::of(&[&words[..], &[0]].concat()), None);
            }
        }
        assert_eq!(Parts::of(&[]), None);
        assert_eq!(Parts::of(&[4]), None);
        assert_eq!(Parts::of(&[!0xff | 1, 0]), None);
        assert_eq!(Parts::of(&[DEADLINE | 1]), None);
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
