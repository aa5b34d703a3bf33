//! A bucket of the index: the content of a bucket cell's record.
//!
//! ```text
//! 0      [ kind 8 | depth 8 | entries 8 | created 8 ]  kind 0 = entries, 1 = split
//! 1      prefix       the hash's leading `depth` bits, left-aligned
//! 2      created      entries: buffer of the new register [ pointer 40 | deleted 1 | words 23 ]
//! 3 …    entries      of four words: hash, [ pointer 40 | class 16 | key length 8 ], number,
//!                     creation time; one that is linked has LINKED in its class; one whose key
//!                     is a cell has CELL in its second word
//!        or children  of two words: cell, [ record 40 | words 24 ]
//! ```
//!
//! A bucket covers the hashes that begin with its prefix. Prefix and depth never change; every
//! reader compares them. A bucket that was split names its two children for ever.

use heapless::Vec;
use swarm_core::layout::{BUCKET_PAYLOAD, ChunkClass, Geometry, Identity, Predecessor, Shape};
use swarm_core::register::Register;
use swarm_core::words::{GRANULE_WORDS, Pointer, Stamp, WriteNumber};

use crate::index::keyed_cell::KeyedCell;

const HEADER_WORDS: usize = 3;
const ENTRY_WORDS: usize = 4;
const CHILD_WORDS: usize = 2;
const NONE_CREATED: u64 = 0xff;
/// In an entry's class: the register names a predecessor.
const LINKED: u16 = 0x4000;
/// In an entry's second word: the key is a [cell](crate::index::keyed_cell). A pointer has 39 bits.
const CELL: u64 = 1 << 63;
/// In what was created: the register is deleted from the beginning.
const CREATED_DELETED: u64 = 1 << 23;

/// How many keys a bucket lists in any pool.
pub(crate) const MAX_ENTRIES: usize = (BUCKET_PAYLOAD - HEADER_WORDS) / ENTRY_WORDS;
/// Words of payload in the record of a bucket that was split.
pub(crate) const SPLIT_PAYLOAD: usize = HEADER_WORDS + 2 * CHILD_WORDS;
/// Hashes cannot be told apart at a greater depth.
pub(crate) const MAX_DEPTH: u32 = 64;

/// A record's payload.
pub(crate) type Payload = Vec<u64, BUCKET_PAYLOAD>;

/// A key's register or cell, as a bucket lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) hash: u64,
    pub(crate) pointer: Pointer,
    pub(crate) class: ChunkClass,
    pub(crate) key_length: usize,
    pub(crate) identity: Identity,
    /// Whether the register replaced another one and names it as its predecessor. A writer that was
    /// overtaken there may have to find out what became of its write (V5).
    pub(crate) linked: bool,
    /// Whether it is a cell.
    pub(crate) is_cell: bool,
}

/// What has a key's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyObject {
    Register(Register),
    Cell(KeyedCell),
}

impl Entry {
    /// Returns this entry's register or cell as the predecessor of an object that begins with
    /// `origin`.
    pub(crate) fn predecessor(&self, origin: Stamp) -> Predecessor {
        let Self { pointer, class, identity, .. } = *self;
        Predecessor { pointer, class, number: identity.number, origin }
    }

    /// Whether this entry names that very register.
    pub(crate) fn names(&self, register: &Register) -> bool {
        self.pointer == register.place.pointer && self.identity == register.identity
    }

    /// Whether this entry names that very object.
    pub(crate) fn is(&self, pointer: Pointer, identity: Identity) -> bool {
        self.pointer == pointer && self.identity == identity
    }

    /// Returns the register or the cell that this entry names. `None` if neither can be there: the
    /// entry is damaged.
    pub(crate) fn object(&self, geometry: &Geometry) -> Option<KeyObject> {
        let shape = shape(self.class, self.key_length)?;
        let place = geometry.homed_place(self.pointer, self.class)?;
        Some(if self.is_cell {
            KeyObject::Cell(KeyedCell::new(place, self.identity, shape))
        } else {
            KeyObject::Register(Register::new(place, self.identity, shape))
        })
    }

    fn encode(&self) -> [u64; ENTRY_WORDS] {
        let class = self.class.encode() | if self.linked { LINKED } else { 0 };
        let location = (self.pointer.0 << 24) | (u64::from(class) << 8) | self.key_length as u64;
        let location = location | if self.is_cell { CELL } else { 0 };
        [self.hash, location, self.identity.number.0, self.identity.created_at]
    }

    fn decode(words: &[u64]) -> Option<Self> {
        let &[hash, location, number, created_at] = words else { return None };
        let class = (location >> 8) as u16;
        Some(Self {
            hash,
            pointer: Pointer((location & !CELL) >> 24),
            is_cell: location & CELL != 0,
            class: ChunkClass::decode(class & !LINKED)?,
            linked: class & LINKED != 0,
            key_length: (location & 0xff) as usize,
            identity: Identity { created_at, number: WriteNumber(number) },
        })
    }
}

/// Returns the shape of a register of `class` for a key of this length: its in-place copy takes all
/// the room that the class has. `None` if the key does not fit.
pub(crate) fn shape(class: ChunkClass, key_length: usize) -> Option<Shape> {
    let ChunkClass::Homed { small, full } = class else { return None };
    let shape = Shape::largest(key_length, full.granules() as usize * GRANULE_WORDS)?;
    (shape.small_words() <= usize::from(small) * GRANULE_WORDS).then_some(shape)
}

/// The register or cell that was created together with a record: it must be at a node before the
/// record is (S1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Created {
    /// Its number in the list of entries.
    pub(crate) entry: usize,
    /// Its first buffer; a cell's first record.
    pub(crate) buffer: Pointer,
    /// Words of that buffer or record.
    pub(crate) words: usize,
    /// Whether it is deleted from the beginning.
    pub(crate) deleted: bool,
}

/// One child of a split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    /// Its cell.
    pub(crate) cell: Pointer,
    /// Its first record.
    pub(crate) record: Pointer,
    /// Words of that record.
    pub(crate) words: usize,
}

/// What a bucket holds.
#[expect(clippy::large_enum_variant, reason = "entries are what nearly all buckets hold")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Keys.
    Entries { entries: Vec<Entry, MAX_ENTRIES>, created: Option<Created> },
    /// The two buckets that replace it, for the next bit 0 and 1.
    Split([Child; 2]),
}

/// A bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bucket {
    pub(crate) depth: u32,
    pub(crate) prefix: u64,
    pub(crate) content: Content,
}

impl Bucket {
    /// Makes an empty bucket.
    pub(crate) fn empty(depth: u32, prefix: u64) -> Self {
        Self { depth, prefix, content: Content::Entries { entries: Vec::new(), created: None } }
    }

    /// Whether it lists as many keys as a bucket of this pool may.
    pub(crate) fn is_full(&self, geometry: &Geometry) -> bool {
        let most = (geometry.bucket_payload - HEADER_WORDS) / ENTRY_WORDS;
        matches!(&self.content, Content::Entries { entries, .. } if entries.len() >= most)
    }

    /// Whether it lists this very register or cell.
    pub(crate) fn lists(&self, pointer: Pointer, identity: Identity) -> bool {
        let Content::Entries { entries, .. } = &self.content else { return false };
        entries.iter().any(|entry| entry.is(pointer, identity))
    }

    /// Returns the words of the payload.
    pub(crate) fn encode(&self) -> Payload {
        let mut words = Payload::new();
        let mut push = |word| words.push(word).expect("a payload has room for a full bucket");
        let depth = u64::from(self.depth) << 8;
        match &self.content {
            Content::Entries { entries, created } => {
                let entry = created.map_or(NONE_CREATED, |created| created.entry as u64);
                push(depth | ((entries.len() as u64) << 16) | (entry << 24));
                push(self.prefix);
                push(created.map_or(0, |created| {
                    let deleted = if created.deleted { CREATED_DELETED } else { 0 };
                    (created.buffer.0 << 24) | deleted | created.words as u64
                }));
                entries.iter().flat_map(Entry::encode).for_each(push);
            }
            Content::Split(children) => {
                push(1 | depth);
                push(self.prefix);
                push(0);
                for child in children {
                    push(child.cell.0);
                    push((child.record.0 << 24) | child.words as u64);
                }
            }
        }
        words
    }

    /// Decodes a payload. `None` if it is damaged.
    pub(crate) fn decode(words: &[u64]) -> Option<Self> {
        let (&[head, prefix, created], rest) = words.split_first_chunk::<HEADER_WORDS>()?;
        let depth = ((head >> 8) & 0xff) as u32;
        let count = ((head >> 16) & 0xff) as usize;
        let entry = (head >> 24) & 0xff;
        if depth > MAX_DEPTH {
            return None;
        }
        let content = match head & 0xff {
            0 => {
                let words = rest.get(..count * ENTRY_WORDS)?;
                let entries: Option<Vec<Entry, MAX_ENTRIES>> = (count <= MAX_ENTRIES)
                    .then(|| words.chunks_exact(ENTRY_WORDS).map(Entry::decode).collect())?;
                let created = (entry != NONE_CREATED).then_some(Created {
                    entry: entry as usize,
                    buffer: Pointer(created >> 24),
                    words: (created & (CREATED_DELETED - 1)) as usize,
                    deleted: created & CREATED_DELETED != 0,
                });
                if created.is_some_and(|created| created.entry >= count) {
                    return None;
                }
                Content::Entries { entries: entries?, created }
            }
            1 => {
                let &[a, x, b, y] = rest.first_chunk()?;
                let child = |cell, record: u64| Child {
                    cell: Pointer(cell),
                    record: Pointer(record >> 24),
                    words: (record & 0xff_ffff) as usize,
                };
                Content::Split([child(a, x), child(b, y)])
            }
            _ => return None,
        };
        Some(Self { depth, prefix, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_core::layout::MIN_CAPACITY;

    fn entry(hash: u64) -> Entry {
        Entry {
            hash,
            pointer: Pointer(77),
            class: Geometry::new(3, MIN_CAPACITY, 4, 1).expect("geometry").register_class(16, 30),
            key_length: 24,
            identity: Identity { created_at: 5, number: WriteNumber(6) },
            linked: hash % 2 == 1,
            is_cell: hash % 3 == 1,
        }
    }

    #[test]
    fn buckets_come_apart_as_they_went_together() {
        let entries = (0..MAX_ENTRIES as u64).map(entry).collect();
        let created = Some(Created { entry: 2, buffer: Pointer(9), words: 14, deleted: true });
        let full =
            Bucket { depth: 9, prefix: 3 << 55, content: Content::Entries { entries, created } };
        assert_eq!(full.encode().len(), BUCKET_PAYLOAD);
        assert_eq!(Bucket::decode(&full.encode()), Some(full));
        let child = Child { cell: Pointer(4), record: Pointer(5), words: 12 };
        let split = Bucket { depth: 64, prefix: 3, content: Content::Split([child, child]) };
        assert_eq!(split.encode().len(), SPLIT_PAYLOAD);
        assert_eq!(Bucket::decode(&split.encode()), Some(split));
    }

    /// The shape that a class gives a register leads back to the class: the bucket lists the class
    /// alone.
    #[test]
    fn shapes_and_classes_name_each_other() {
        let geometry = Geometry::new(3, 1 << 30, 4, 1).expect("geometry");
        for key_length in [1, 8, 9, 24, 100, 255] {
            for capacity in 0..=512 {
                let wanted = Shape { key_length, capacity };
                let class = geometry.register_class(wanted.small_words(), wanted.full_words());
                let has = shape(class, key_length).expect("the class was chosen for the key");
                assert!(has.capacity >= capacity, "{wanted:?}: {has:?}");
                assert_eq!(has.value_words() % GRANULE_WORDS, 0, "{wanted:?}: {has:?}");
                let again = geometry.register_class(has.small_words(), has.full_words());
                assert_eq!(again, class, "{wanted:?}: {has:?}");
            }
        }
    }

    #[test]
    fn damaged_buckets_are_refused() {
        assert_eq!(Bucket::decode(&[]), None);
        assert_eq!(Bucket::decode(&[2, 0, 0]), None);
        assert_eq!(Bucket::decode(&[5 << 16 | 0xff << 24, 0, 0]), None);
        let many = (MAX_ENTRIES as u64 + 1) << 16;
        assert_eq!(Bucket::decode(&[many | 0xff << 24; 80]), None);
        let mut payload = Bucket::empty(1, 0).encode();
        payload[0] = 65 << 8 | 0xff << 24;
        assert_eq!(Bucket::decode(&payload), None);
    }
}
