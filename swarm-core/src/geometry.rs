//! The geometry of a pool: what lies where in every node's memory.
//!
//! ```text
//! 4 KiB            the transport's own header; never touched by the protocols
//! heap map         one cell whose record says who owns each chunk and for what
//! seeds            per client slot: room for the records by which it gets its first chunk
//! buckets          the index's first buckets, one cell each, in sets of one for each home
//! chunk, chunk, …  the heap
//! ```
//!
//! A chunk begins with a granule of counters, one for each home: how many of its objects its owner has set aside. A
//! chunk of a *plain* class holds objects of one size, at the same address on every node. A chunk
//! of a *homed* class holds objects that are larger at one node, their home: each node holds the
//! objects whose home it is in full, and behind them the small replicas of the others' objects, so
//! that the chunk takes the same room everywhere.

use crate::buffers::Buffers;
use crate::layout::{MAX_IN_PLACE, Place, SLOTS, buffer, cell, record, words_for};
use crate::node::{Address, NodeId};
use crate::words::{GRANULE, GRANULE_WORDS, Pointer, WordFormat};

/// The layout that this version of the code reads and writes.
pub const LAYOUT_VERSION: u32 = 12;
/// Bytes at the beginning of a node's memory that belong to the transport.
pub const HEADER_BYTES: u64 = 4096;
/// The most chunks that a pool may have.
pub const MAX_CHUNKS: usize = 2048;
/// The most clients that a pool may be made for.
pub const MAX_CLIENTS: usize = 1024;
/// The smallest capacity of a node, in bytes.
pub const MIN_CAPACITY: u64 = 4 << 20;
/// The largest capacity of a node, in bytes.
pub const MAX_CAPACITY: u64 = 1 << 44;
/// Words of payload in a bucket's record at most, and where nothing else is asked for: with its header it
/// fills eight granules.
pub const BUCKET_PAYLOAD: usize = 59;
/// Heap-map records that a slot may propose before it owns a chunk.
pub const SEED_RECORDS: u64 = 8;

const MIN_CHUNK: u64 = 64 << 10;
/// What [`MAX_CAPACITY`] comes to.
const MAX_CHUNK: u64 = MAX_CAPACITY / MAX_CHUNKS as u64;
const BYTES_PER_BUCKET: u64 = 32 << 10;
/// Room to say that a bucket was split.
const MIN_BUCKET_PAYLOAD: usize = 8;
const TICK_SHIFT: u32 = 6;

const SIZE_BITS: u32 = 11;
const PLAIN: u16 = 0x1000;
const LEAN: u16 = 0x1800;
const WIDE: u16 = 0x0800;
const RUN: u16 = 0x0200;
const RUN_TAIL: u16 = 0x0201;
const HOMED: u16 = 0x8000;

/// What a chunk holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Class {
    /// Objects of one size, the same at every node.
    Plain(Size),
    /// Buffers, each at all nodes but one.
    Lean(Size),
    /// Buffers that all nodes hold, of an even number of granules.
    Wide(Size),
    /// Objects of which each has a home node, where it is larger.
    Homed {
        /// Granules away from home: 1 to 7.
        small: u8,
        /// Size at home.
        full: Size,
    },
    /// The first chunk of a run that holds one object.
    Run,
    /// The other chunks of a run.
    RunTail,
}

impl Class {
    /// As 16 bits, never 0, of which the second is 0.
    ///
    /// ```text
    /// plain   [ 00010 | size 11 ]            run  0x0200, its other chunks  0x0201
    /// lean    [ 00011 | size 11 ]
    /// wide    [ 00001 | size 11 ]
    /// homed   [ 10 | small 3 | size 11 ]
    /// ```
    pub fn encode(self) -> u16 {
        match self {
            Self::Plain(size) => PLAIN | size.0,
            Self::Lean(size) => LEAN | size.0,
            Self::Wide(size) => WIDE | size.0,
            Self::Homed { small, full } => HOMED | (u16::from(small) << SIZE_BITS) | full.0,
            Self::Run => RUN,
            Self::RunTail => RUN_TAIL,
        }
    }

    /// From 16 bits.
    pub fn decode(code: u16) -> Option<Self> {
        let size = Size(code % (1 << SIZE_BITS)).checked();
        let small = (code >> SIZE_BITS) as u8 % 8;
        match code {
            RUN => Some(Self::Run),
            RUN_TAIL => Some(Self::RunTail),
            _ if code >> SIZE_BITS == PLAIN >> SIZE_BITS => size.map(Self::Plain),
            _ if code >> SIZE_BITS == LEAN >> SIZE_BITS => size.map(Self::Lean),
            _ if code >> SIZE_BITS == WIDE >> SIZE_BITS => size.map(Self::Wide),
            _ if code >> 14 == HOMED >> 14 && small > 0 => {
                size.map(|full| Self::Homed { small, full })
            }
            _ => None,
        }
    }
}

/// A size class: 1 to 32 granules, then sixteen steps to each doubling.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Size(u16);

impl Size {
    /// Doublings have 2 to this power steps.
    const STEP_BITS: u64 = 4;
    /// Classes of one granule more than the one before.
    const EVEN: u64 = 2 << Self::STEP_BITS;
    /// 2^26 granules.
    const LAST: u16 = 367;

    /// The smallest class of at least `granules` granules.
    pub fn for_granules(granules: u64) -> Self {
        let granules = granules.max(1);
        if granules <= Self::EVEN {
            return Self((granules - 1) as u16);
        }
        let doubling = u64::from((granules - 1).ilog2());
        let step = 1 << (doubling - Self::STEP_BITS);
        let steps = (granules - (1 << doubling)).div_ceil(step);
        let before = (doubling - Self::STEP_BITS - 1) << Self::STEP_BITS;
        Self((Self::EVEN - 1 + before + steps) as u16)
    }

    /// The smallest class of at least `words` words.
    pub fn for_words(words: usize) -> Self {
        Self::for_granules((words as u64).div_ceil(GRANULE_WORDS as u64))
    }

    /// How many granules.
    pub fn granules(self) -> u64 {
        let index = u64::from(self.0);
        let Some(later) = index.checked_sub(Self::EVEN) else { return index + 1 };
        let doublings = later >> Self::STEP_BITS;
        let steps = later % (1 << Self::STEP_BITS) + 1;
        (Self::EVEN << doublings) + (steps << (doublings + 1))
    }

    fn checked(self) -> Option<Self> {
        (self.0 <= Self::LAST).then_some(self)
    }
}

/// What lies where in every node's memory. The fields are what a pool's header stores; all else
/// follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Which replica group of the pool this is.
    pub group: u32,
    /// Memory nodes in the group.
    pub nodes: usize,
    /// Bytes of each node's memory.
    pub capacity: u64,
    /// Client slots.
    pub max_clients: usize,
    /// Bytes of a chunk: a power of two.
    pub chunk_bytes: u64,
    /// The index begins with 2 to this power buckets.
    pub bucket_bits: u32,
    /// Words of payload in a bucket's record, at most [`BUCKET_PAYLOAD`]. Small buckets split sooner.
    pub bucket_payload: usize,
    /// How words are split.
    pub format: WordFormat,
    /// Stamp slots of a register that writers use, of the [`SLOTS`] there are: a client's is its
    /// number modulo this. With a slot to each writer a CAS succeeds at once; with one slot for all,
    /// a CAS that succeeds tells what a READ of the slots would.
    pub slots: usize,
    /// Seed of the hash of keys.
    pub hash_seed: u64,
}

/// Why a pool cannot have the geometry that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BadGeometry {
    /// The number of nodes is none of 1, 3, 5 and 7.
    Nodes(usize),
    /// The capacity is outside [`MIN_CAPACITY`] to [`MAX_CAPACITY`], in bytes.
    Capacity(u64),
    /// The number of clients is outside 1 to [`MAX_CLIENTS`].
    Clients(usize),
    /// The number of stamp slots in use is outside 1 to [`SLOTS`].
    Slots(usize),
    /// Pointers of so many bits do not do for the capacity, or are too wide.
    PointerBits(u32),
    /// The clients' areas would take more than half of the capacity.
    TooSmall {
        /// The capacity, bytes.
        capacity: u64,
        /// The smallest capacity that does, as does whatever is larger, bytes.
        needed: u64,
    },
    /// Stored fields that do not belong together.
    Inconsistent,
}

impl core::fmt::Display for BadGeometry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Self::Nodes(n) => write!(f, "a pool has 1, 3, 5 or 7 memory nodes, not {n}"),
            Self::Capacity(bytes) => write!(
                f,
                "a node's capacity is {MIN_CAPACITY} bytes to {MAX_CAPACITY} bytes, not {bytes}"
            ),
            Self::Clients(n) => {
                write!(f, "a pool is made for 1 to {MAX_CLIENTS} clients, not {n}")
            }
            Self::Slots(n) => write!(f, "writers use 1 to {SLOTS} stamp slots, not {n}"),
            Self::PointerBits(bits) => {
                write!(f, "pointers have as many bits as the capacity needs, to 39, not {bits}")
            }
            Self::TooSmall { capacity, needed } => write!(
                f,
                "more than half of {capacity} bytes a node would go to the clients' areas; \
                 give it at least {needed} bytes, or fewer clients"
            ),
            Self::Inconsistent => f.write_str("the stored geometry contradicts itself"),
        }
    }
}

impl core::error::Error for BadGeometry {}

impl Geometry {
    /// The geometry of a new pool.
    ///
    /// # Errors
    /// A number out of its bounds, or a capacity too small for so many clients.
    pub fn new(
        nodes: usize,
        capacity: u64,
        max_clients: usize,
        hash_seed: u64,
    ) -> Result<Self, BadGeometry> {
        check_numbers(nodes, capacity, max_clients)?;
        let geometry = Self::of(nodes, capacity, max_clients, hash_seed);
        geometry.check()?;
        Ok(geometry)
    }

    /// What lies where in a pool of these numbers, which are within their bounds, whether there is room for it or not.
    fn of(nodes: usize, capacity: u64, max_clients: usize, hash_seed: u64) -> Self {
        let chunk_bytes = capacity.div_ceil(MAX_CHUNKS as u64).next_power_of_two().max(MIN_CHUNK);
        let pointer_bits = granule_bits(capacity) + u32::from(nodes >= 3);
        let with = |chunk_bytes| Self {
            group: 0,
            nodes,
            capacity,
            max_clients,
            chunk_bytes,
            bucket_bits: (capacity / BYTES_PER_BUCKET).ilog2(),
            bucket_payload: BUCKET_PAYLOAD,
            format: WordFormat { pointer_bits, tick_shift: TICK_SHIFT },
            slots: SLOTS,
            hash_seed,
        };
        let (many, fewer) = (with(chunk_bytes), with(2 * chunk_bytes));
        // Each client's area holds records of the heap map: with half as many chunks they are half as long.
        let crowded = many.is_too_small() && many.chunks() > MAX_CHUNKS / 2;
        if crowded { fewer } else { many }
    }

    /// The smallest capacity that does for so many clients, as does whatever is larger; all in bytes.
    ///
    /// Not every capacity does that is larger than one that does: the index doubles at once, and chunks are whole. So
    /// this goes down to the first one that does not, from where there may be fewer chunks than 64 KiB each would
    /// make: from there on clients' areas take less than half of any capacity. In steps of a chunk, as nothing changes
    /// in between.
    fn enough(nodes: usize, max_clients: usize) -> u64 {
        let most = MAX_CHUNKS as u64 / 2;
        let least = MIN_CAPACITY / MIN_CHUNK;
        let is_too_small =
            |chunks: &u64| Self::of(nodes, chunks * MIN_CHUNK, max_clients, 0).is_too_small();
        let last = (least..=most).rev().find(is_too_small);
        last.map_or(MIN_CAPACITY, |last| (last + 1) * MIN_CHUNK)
    }

    /// The same with so many stamp slots in use.
    ///
    /// # Errors
    /// There are not so many, or it is none.
    pub fn with_slots(self, slots: usize) -> Result<Self, BadGeometry> {
        let geometry = Self { slots, ..self };
        geometry.check()?;
        Ok(geometry)
    }

    /// The same with pointers of so many bits, at least as many as the capacity needs. What they take
    /// is timestamps' and ballots': with 38, timestamps end a second after a register's birth. For tests
    /// of what happens then.
    ///
    /// # Errors
    /// They do not do for the capacity, or are too many.
    pub fn with_pointer_bits(self, pointer_bits: u32) -> Result<Self, BadGeometry> {
        let geometry = Self { format: WordFormat { pointer_bits, ..self.format }, ..self };
        geometry.check().map_err(|_| BadGeometry::PointerBits(pointer_bits))?;
        Ok(geometry)
    }

    /// Whether the fields are within bounds and belong together.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), BadGeometry> {
        check_numbers(self.nodes, self.capacity, self.max_clients)?;
        if !(1..=SLOTS).contains(&self.slots) {
            return Err(BadGeometry::Slots(self.slots));
        }
        let bits = self.format.pointer_bits;
        if !self.chunk_bytes.is_power_of_two()
            || !(MIN_CHUNK..=MAX_CHUNK).contains(&self.chunk_bytes)
            || self.capacity / self.chunk_bytes > MAX_CHUNKS as u64
            || !(16..=39).contains(&bits)
            || granule_bits(self.capacity) + u32::from(self.nodes >= 3) > bits
            || self.format.tick_shift > 20
            || self.bucket_bits > 30
            || !(MIN_BUCKET_PAYLOAD..=BUCKET_PAYLOAD).contains(&self.bucket_payload)
        {
            return Err(BadGeometry::Inconsistent);
        }
        if self.is_too_small() {
            let (capacity, needed) = (self.capacity, Self::enough(self.nodes, self.max_clients));
            // A new pool of that capacity would have been laid out in another way.
            let is_other = capacity >= needed;
            return Err(if is_other {
                BadGeometry::Inconsistent
            } else {
                BadGeometry::TooSmall { capacity, needed }
            });
        }
        Ok(())
    }

    /// Whether clients' areas and the index take more than half of it.
    fn is_too_small(&self) -> bool {
        self.chunks() < 2 * self.first_chunk()
    }

    /// Chunks in a node's memory, counted from its beginning; those in front of
    /// [`first_chunk`](Self::first_chunk) are not the heap's.
    pub fn chunks(&self) -> usize {
        (self.capacity / self.chunk_bytes) as usize
    }

    /// The first chunk of the heap.
    pub fn first_chunk(&self) -> usize {
        self.heap_start().div_ceil(self.chunk_granules()) as usize
    }

    /// Granules in a chunk.
    pub fn chunk_granules(&self) -> u64 {
        self.chunk_bytes / GRANULE as u64
    }

    /// Words of payload in the heap map's record: 32 bits a chunk.
    pub fn map_payload(&self) -> usize {
        self.chunks().div_ceil(2)
    }

    /// Where the heap map's cell lies.
    pub fn map_cell(&self) -> Place {
        Place::everywhere(Pointer(HEADER_BYTES / GRANULE as u64), NodeId(0))
    }

    /// How many buckets the index begins with.
    pub fn first_buckets(&self) -> usize {
        1 << self.bucket_bits
    }

    /// Where first bucket number `index` lies.
    pub fn bucket_cell(&self, index: usize) -> Place {
        let (set, home) = (index / self.nodes, index % self.nodes);
        let first = self.buckets_start() + set as u64 * self.bucket_set_granules();
        let words = GRANULE_WORDS as u64;
        Place {
            pointer: Pointer(first + home as u64),
            home: NodeId(home as u8),
            at_home: first * words,
            elsewhere: (first + self.bucket_granules()) * words,
            stride: GRANULE_WORDS as u32,
        }
    }

    /// Where the cell of the bucket with this pointer lies, one of the first or one that a split bore. `None` if
    /// none can be there.
    pub fn bucket_place(&self, cell: Pointer) -> Option<Place> {
        let first = cell.0.checked_sub(self.buckets_start())?;
        if cell.0 >= self.heap_start() {
            return self.homed_place(cell, self.bucket_class());
        }
        let (set, home) = (first / self.bucket_set_granules(), first % self.bucket_set_granules());
        let index = set as usize * self.nodes + home as usize;
        let is_one = home < self.nodes as u64 && index < self.first_buckets();
        is_one.then(|| self.bucket_cell(index))
    }

    /// The counter word of a client slot's seeds: how many it has used.
    pub fn seed_counter(&self, slot: usize) -> Address {
        Address(self.seed_start(slot) * GRANULE_WORDS as u64)
    }

    /// Where seed number `index` of a client slot lies.
    pub fn seed(&self, slot: usize, index: u64) -> Pointer {
        Pointer(self.seed_start(slot) + 1 + index * self.map_record_granules())
    }

    /// The class for registers of this shape.
    pub fn register_class(&self, small_words: usize, full_words: usize) -> Class {
        let small = small_words.div_ceil(GRANULE_WORDS) as u8;
        Class::Homed { small, full: Size::for_words(full_words) }
    }

    /// The class for a bucket's cell that is born by a split.
    pub fn bucket_class(&self) -> Class {
        Class::Homed { small: 1, full: Size::for_granules(self.bucket_granules()) }
    }

    /// The class for objects of `words` words that are the same at every node, or [`Class::Run`]
    /// if they are too large to share a chunk.
    pub fn plain_class(&self, words: usize) -> Class {
        let size = Size::for_words(words);
        if size.granules() <= (self.chunk_granules() - 1) / 2 {
            Class::Plain(size)
        } else {
            Class::Run
        }
    }

    /// Which nodes hold a buffer, and where.
    pub fn buffers(&self) -> Buffers {
        let chunk_bits = self.chunk_granules().trailing_zeros();
        let buffers = Buffers::in_chunks(self.nodes, chunk_bits, granule_bits(self.capacity));
        buffers.in_words(self.capacity / 8)
    }

    /// The class for buffers of values of `length` bytes. `lean`: one node can do without, if the value is not
    /// longer than what lies in place.
    pub fn buffer_class(&self, length: usize, lean: bool) -> Class {
        let words = buffer::HEADER_WORDS + words_for(length);
        let Some(part) = self.buffers().part() else { return self.plain_class(words) };
        let size = Size::for_words(words);
        if lean && length <= MAX_IN_PLACE && size.granules() <= part {
            return Class::Lean(size);
        }
        let size = Size::for_granules(size.granules().next_multiple_of(2));
        if size.granules() <= (self.chunk_granules() - 1) / 2 {
            Class::Wide(size)
        } else {
            Class::Run
        }
    }

    /// How many chunks a run for an object of `words` words takes.
    pub fn run_chunks(&self, words: usize) -> usize {
        ((words as u64).div_ceil(GRANULE_WORDS as u64) + 1).div_ceil(self.chunk_granules()) as usize
    }

    /// How many objects of `class` a chunk holds, of each home if the class has homes.
    pub fn objects(&self, class: Class) -> u64 {
        let room = self.chunk_granules() - 1;
        match class {
            // Who READs a bucket's record does not know how long it is, and must find so many words.
            Class::Plain(size) => {
                let last = size.granules().max(self.bucket_record_granules());
                room.checked_sub(last).map_or(0, |before| before / size.granules() + 1)
            }
            Class::Wide(size) => room / size.granules(),
            Class::Lean(size) => self.buffers().part().map_or(0, |part| part / size.granules()),
            Class::Homed { small, full } => {
                room / (full.granules() + (self.nodes as u64 - 1) * u64::from(small))
            }
            Class::Run => 1,
            Class::RunTail => 0,
        }
    }

    /// The pointer of object `index` of `home` in `chunk`: of a lean buffer, of those that are not there.
    /// Other classes without homes have home 0.
    pub fn object(&self, chunk: usize, class: Class, home: NodeId, index: u64) -> Pointer {
        let first = chunk as u64 * self.chunk_granules() + 1;
        match class {
            Class::Plain(size) => Pointer(first + index * size.granules()),
            Class::Homed { .. } => Pointer(first + u64::from(home.0) * self.objects(class) + index),
            Class::Lean(size) => {
                let without = self.buffers().without(home, chunk, index * size.granules());
                without.unwrap_or(Pointer::NULL)
            }
            Class::Wide(size) => {
                let all = self.buffers().with_all(chunk, index * size.granules());
                all.unwrap_or(Pointer::NULL)
            }
            Class::Run | Class::RunTail => {
                self.buffers().with_all(chunk, 0).unwrap_or(Pointer(first))
            }
        }
    }

    /// The chunk that an object lies in.
    pub fn chunk_of(&self, pointer: Pointer) -> usize {
        self.buffers().chunk(pointer, self.chunk_granules().trailing_zeros())
    }

    /// The counter word of `chunk` for `home`.
    pub fn counter(&self, chunk: usize, home: NodeId) -> Address {
        Address(chunk as u64 * self.chunk_granules() * GRANULE_WORDS as u64 + u64::from(home.0))
    }

    /// Whether an object of `words` words at `pointer` lies within a node's memory.
    pub fn contains(&self, pointer: Pointer, words: usize) -> bool {
        let Some(start) = pointer.0.checked_mul(GRANULE_WORDS as u64) else { return false };
        start.checked_add(words as u64).is_some_and(|end| end <= self.capacity / 8)
            && pointer.0 >= HEADER_BYTES / GRANULE as u64
    }

    /// Where an object of a homed class lies at each node. `None` if no object of this class can
    /// have this pointer.
    pub fn homed_place(&self, pointer: Pointer, class: Class) -> Option<Place> {
        let Class::Homed { small, full } = class else { return None };
        let chunk = self.chunk_of(pointer);
        let objects = self.objects(class);
        if objects == 0 || !(self.first_chunk()..self.chunks()).contains(&chunk) {
            return None;
        }
        let first = chunk as u64 * self.chunk_granules() + 1;
        let index = pointer.0.checked_sub(first)?;
        let (home, index) = (index / objects, index % objects);
        if home >= self.nodes as u64 {
            return None;
        }
        let words = GRANULE_WORDS as u64;
        let small = u64::from(small);
        Some(Place {
            pointer,
            home: NodeId(home as u8),
            at_home: (first + index * full.granules()) * words,
            elsewhere: (first + objects * full.granules() + index * small) * words,
            stride: (objects * small * words) as u32,
        })
    }

    /// Granules of a bucket's cell at its home; elsewhere it takes one.
    fn bucket_granules(&self) -> u64 {
        granules(cell::IN_PLACE + cell::IN_PLACE_WORDS + self.bucket_payload)
    }

    fn bucket_record_granules(&self) -> u64 {
        granules(record::HEADER_WORDS + self.bucket_payload)
    }

    /// Granules that the first buckets with one home each take at each node.
    fn bucket_set_granules(&self) -> u64 {
        self.bucket_granules() + self.nodes as u64 - 1
    }

    fn map_cell_granules(&self) -> u64 {
        granules(cell::IN_PLACE + cell::IN_PLACE_WORDS + self.map_payload())
    }

    fn map_record_granules(&self) -> u64 {
        granules(record::HEADER_WORDS + self.map_payload())
    }

    fn seed_start(&self, slot: usize) -> u64 {
        let seeds = 1 + SEED_RECORDS * self.map_record_granules();
        HEADER_BYTES / GRANULE as u64 + self.map_cell_granules() + slot as u64 * seeds
    }

    fn buckets_start(&self) -> u64 {
        self.seed_start(self.max_clients)
    }

    fn heap_start(&self) -> u64 {
        let sets = self.first_buckets().div_ceil(self.nodes) as u64;
        self.buckets_start() + sets * self.bucket_set_granules()
    }
}

/// Whether these are within their bounds.
fn check_numbers(nodes: usize, capacity: u64, max_clients: usize) -> Result<(), BadGeometry> {
    if !matches!(nodes, 1 | 3 | 5 | 7) {
        return Err(BadGeometry::Nodes(nodes));
    }
    if !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
        return Err(BadGeometry::Capacity(capacity));
    }
    if !(1..=MAX_CLIENTS).contains(&max_clients) {
        return Err(BadGeometry::Clients(max_clients));
    }
    Ok(())
}

/// Bits of the number of a granule.
fn granule_bits(capacity: u64) -> u32 {
    (capacity / GRANULE as u64).next_power_of_two().ilog2()
}

fn granules(words: usize) -> u64 {
    words.div_ceil(GRANULE_WORDS) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::format;

    #[test]
    fn size_classes_are_tight_and_monotone() {
        for granules in 1..20_000 {
            let size = Size::for_granules(granules);
            assert!(size.granules() >= granules, "{granules}");
            if size.0 > 0 {
                assert!(Size(size.0 - 1).granules() < granules, "{granules}");
            }
        }
        assert_eq!(Size::for_granules(33).granules(), 34);
        assert_eq!(Size(Size::LAST).granules(), 1 << 26);
    }

    #[test]
    fn classes_come_apart_as_they_went_together() {
        for class in [
            Class::Plain(Size::for_granules(40)),
            Class::Homed { small: 6, full: Size::for_granules(70) },
            Class::Run,
            Class::RunTail,
        ] {
            assert_eq!(Class::decode(class.encode()), Some(class));
        }
        assert_eq!(Class::decode(0), None);
        assert_eq!(Class::decode(0xffff), None);
    }

    /// Every word of every object in a chunk, at every node, belongs to that object alone.
    #[test]
    fn objects_of_a_homed_chunk_do_not_overlap() {
        let geometry = Geometry::new(5, MIN_CAPACITY, 4, 1).expect("geometry");
        let class = geometry.register_class(16, 40);
        let Class::Homed { small, full } = class else { unreachable!() };
        let chunk = geometry.first_chunk() + 1;
        let bytes = geometry.chunk_bytes / 8;
        for node in (0..5).map(NodeId) {
            let mut taken = BTreeMap::new();
            for home in (0..5).map(NodeId) {
                for index in 0..geometry.objects(class) {
                    let pointer = geometry.object(chunk, class, home, index);
                    assert_eq!(geometry.chunk_of(pointer), chunk);
                    let place = geometry.homed_place(pointer, class).expect("place");
                    assert_eq!(place.home, home);
                    let at = place.at(node, 5).0;
                    let granules = if node == home { full.granules() } else { u64::from(small) };
                    assert!(
                        at >= chunk as u64 * bytes + 8
                            && at + granules * 8 <= (chunk as u64 + 1) * bytes
                    );
                    assert_eq!(taken.insert(at, at + granules * 8), None);
                }
            }
            let spans: std::vec::Vec<_> = taken.into_iter().collect();
            assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        }
    }

    /// First buckets fill their sets: at each node, one is there in full and the others with their words.
    #[test]
    fn first_buckets_do_not_overlap() {
        for nodes in [1, 3, 5, 7] {
            let geometry = Geometry::new(nodes, MIN_CAPACITY, 4, 1).expect("geometry");
            for node in (0..nodes as u8).map(NodeId) {
                let mut taken = BTreeMap::new();
                for place in (0..geometry.first_buckets()).map(|index| geometry.bucket_cell(index))
                {
                    assert_eq!(geometry.bucket_place(place.pointer), Some(place));
                    let at = place.at(node, nodes).0;
                    let copy = cell::IN_PLACE_WORDS + geometry.bucket_payload;
                    let words = cell::IN_PLACE + if node == place.home { copy } else { 0 };
                    assert_eq!(taken.insert(at, at + words as u64), None);
                }
                let spans: std::vec::Vec<_> = taken.into_iter().collect();
                assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0));
                assert!(spans[0].0 >= geometry.seed_start(geometry.max_clients) * 8);
                assert!(spans[spans.len() - 1].1 <= geometry.heap_start() * 8);
            }
        }
    }

    /// Who READs a bucket's record asks for as many words as the longest one has, and a node gives none at
    /// all where some lie beyond its memory. The record of a split is short, and was the last thing in some pools.
    #[test]
    fn a_read_of_any_record_stays_within_the_pool() {
        let geometry = Geometry::new(3, MIN_CAPACITY, 4, 1).expect("geometry");
        let words = record::HEADER_WORDS + geometry.bucket_payload;
        let chunk = geometry.chunks() - 1;
        for granules in 1..=geometry.chunk_granules() / 2 {
            let class = Class::Plain(Size::for_granules(granules));
            let last = geometry.objects(class).checked_sub(1).expect("a chunk has an object");
            let last = geometry.object(chunk, class, NodeId(0), last);
            assert!(geometry.contains(last, words), "{granules}");
        }
    }

    /// What a refusal says will do was refused in turn, eight times and more.
    #[test]
    fn what_is_said_to_be_needed_does_and_less_does_not() {
        for nodes in [1, 3, 5, 7] {
            let mut refused = 0;
            for clients in (1..=MAX_CLIENTS).step_by(11).chain([1000, MAX_CLIENTS]) {
                let new = |capacity| Geometry::new(nodes, capacity, clients, 1);
                let Err(bad) = new(MIN_CAPACITY) else { continue };
                let BadGeometry::TooSmall { needed, .. } = bad else { panic!("{bad}") };
                refused += 1;
                let of = format!("{needed} bytes for {clients} clients of {nodes} nodes");
                // Whatever is refused tells the same, and is less.
                for less in [MIN_CHUNK, 1] {
                    let capacity = needed - less;
                    let told = BadGeometry::TooSmall { capacity, needed };
                    assert_eq!(new(capacity), Err(told), "{of}");
                }
                // At least so much does, to where chunks double again, and beyond.
                for chunks in 0..2 * MAX_CHUNKS as u64 {
                    let capacity = needed + chunks * MIN_CHUNK;
                    assert!(new(capacity).is_ok(), "{capacity}, {of}");
                }
                assert!(new(1 << 30).is_ok() && new(MAX_CAPACITY).is_ok(), "{of}");
            }
            assert!(refused > 0, "{nodes} nodes");
        }
    }

    #[test]
    fn a_default_pool_spends_little_on_itself() {
        let geometry = Geometry::new(3, 256 << 20, 64, 1).expect("geometry");
        assert_eq!(geometry.format.pointer_bits, 23);
        assert!(geometry.first_chunk() < geometry.chunks() / 40);
    }

    /// What ARCHITECTURE.md says of how long timestamps last, (m).
    #[test]
    fn timestamps_end_sooner_in_a_larger_pool() {
        let lasts = |nodes, capacity| {
            let format = Geometry::new(nodes, capacity, 64, 1).expect("geometry").format;
            let seconds = format.nanoseconds(format.deleted()) as f64 / 1e9;
            (format.pointer_bits, seconds.round() as u64)
        };
        assert_eq!(lasts(3, 256 << 20), (23, 35_184));
        assert_eq!(lasts(1, 256 << 20), (22, 70_369));
        assert_eq!(lasts(3, 3 << 30), (27, 2_199));
        assert_eq!(lasts(3, 64 << 30), (31, 137));
        assert_eq!(lasts(3, 1 << 40), (35, 9));
        // The largest there can be.
        assert_eq!(lasts(7, MAX_CAPACITY), (39, 1));
    }

    #[test]
    fn numbers_out_of_bounds_are_refused() {
        assert_eq!(Geometry::new(2, 256 << 20, 64, 1), Err(BadGeometry::Nodes(2)));
        assert_eq!(Geometry::new(3, 1, 64, 1), Err(BadGeometry::Capacity(1)));
        assert_eq!(Geometry::new(3, 256 << 20, 0, 1), Err(BadGeometry::Clients(0)));
        let sound = Geometry::new(3, 256 << 20, 64, 1).expect("geometry");
        assert_eq!(sound.slots, SLOTS);
        assert!(sound.with_pointer_bits(38).is_ok());
        for bits in [22, 40] {
            assert_eq!(sound.with_pointer_bits(bits), Err(BadGeometry::PointerBits(bits)));
        }
        assert_eq!(sound.with_slots(0), Err(BadGeometry::Slots(0)));
        assert_eq!(sound.with_slots(SLOTS + 1), Err(BadGeometry::Slots(SLOTS + 1)));
        assert!(matches!(
            Geometry::new(3, MIN_CAPACITY, MAX_CLIENTS, 1),
            Err(BadGeometry::TooSmall { .. })
        ));
    }
}
