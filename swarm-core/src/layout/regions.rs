//! What lies where in every node's memory, as derived from a pool's geometry.
//!
//! ```text
//! 4 KiB            the transport's own header; never touched by the protocols
//! chunk map        one cell whose record names each chunk's owner and class
//! bootstrap        per client slot: memory for the records by which it gets its first chunk
//! buckets          the index's first buckets, one cell each, in sets of one for each home
//! chunk, chunk, …  the heap
//! ```
//!
//! A chunk begins with a granule of high-water marks, one for each home: how many of its objects
//! are allocated. A chunk of a *plain* class holds objects of one size, at the same address on
//! every node. A chunk of a *homed* class holds objects that are larger at one node, their home.
//! Each node holds the objects whose home it is in full, and after them the small replicas of the
//! others' objects, so the chunk has the same size everywhere.

use super::bytes::words_for;
use super::class::{ChunkClass, SizeClass};
use super::geometry::{BOOTSTRAP_RECORDS, Geometry, HEADER_BYTES, granule_bits};
use super::place::Location;
use super::placement::Placement;
use super::register::MAX_IN_PLACE;
use super::{buffer, cell, record};
use crate::node::{Address, NodeId};
use crate::words::{GRANULE, GRANULE_WORDS, Pointer};

impl Geometry {
    /// Returns the number of chunks in a node's memory, counted from its beginning; those before
    /// [`first_chunk`](Self::first_chunk) are not the heap's.
    pub fn chunks(&self) -> usize {
        (self.capacity / self.chunk_bytes) as usize
    }

    /// Returns the first chunk of the heap.
    pub fn first_chunk(&self) -> usize {
        self.heap_start().div_ceil(self.chunk_granules()) as usize
    }

    /// Returns the number of granules in a chunk.
    pub fn chunk_granules(&self) -> u64 {
        self.chunk_bytes / GRANULE as u64
    }

    /// Returns the payload of the chunk map's record, in words: 32 bits a chunk.
    pub fn map_payload(&self) -> usize {
        self.chunks().div_ceil(2)
    }

    /// Returns where the chunk map's cell lies.
    pub fn map_cell(&self) -> Location {
        Location::everywhere(Pointer(HEADER_BYTES / GRANULE as u64), NodeId(0))
    }

    /// Returns how many buckets the index begins with.
    pub fn first_buckets(&self) -> usize {
        1 << self.bucket_bits
    }

    /// Returns where first bucket number `index` lies.
    pub fn bucket_cell(&self, index: usize) -> Location {
        let (set, home) = (index / self.nodes, index % self.nodes);
        let first = self.buckets_start() + set as u64 * self.bucket_set_granules();
        let words = GRANULE_WORDS as u64;
        Location {
            pointer: Pointer(first + home as u64),
            home: NodeId(home as u8),
            at_home: first * words,
            elsewhere: (first + self.bucket_granules()) * words,
            stride: GRANULE_WORDS as u32,
        }
    }

    /// Returns where the cell of the bucket with this pointer lies, one of the first or one that a
    /// split created. `None` if none can be there.
    pub fn bucket_place(&self, cell: Pointer) -> Option<Location> {
        let first = cell.0.checked_sub(self.buckets_start())?;
        if cell.0 >= self.heap_start() {
            return self.homed_place(cell, self.bucket_class());
        }
        let (set, home) = (first / self.bucket_set_granules(), first % self.bucket_set_granules());
        let index = set as usize * self.nodes + home as usize;
        let is_one = home < self.nodes as u64 && index < self.first_buckets();
        is_one.then(|| self.bucket_cell(index))
    }

    /// Returns the word that counts how many bootstrap records a client slot has used.
    pub fn bootstrap_counter(&self, slot: usize) -> Address {
        Address(self.bootstrap_start(slot) * GRANULE_WORDS as u64)
    }

    /// Returns where bootstrap record number `index` of a client slot lies.
    pub fn bootstrap_record(&self, slot: usize, index: u64) -> Pointer {
        Pointer(self.bootstrap_start(slot) + 1 + index * self.map_record_granules())
    }

    /// Returns the class for registers of this shape.
    pub fn register_class(&self, small_words: usize, full_words: usize) -> ChunkClass {
        let small = small_words.div_ceil(GRANULE_WORDS) as u8;
        ChunkClass::Homed { small, full: SizeClass::for_words(full_words) }
    }

    /// Returns the class for a bucket's cell that a split creates.
    pub fn bucket_class(&self) -> ChunkClass {
        ChunkClass::Homed { small: 1, full: SizeClass::for_granules(self.bucket_granules()) }
    }

    /// Returns the class for objects of `words` words that are the same at every node, or
    /// [`ChunkClass::Large`] if they are too large to share a chunk.
    pub fn plain_class(&self, words: usize) -> ChunkClass {
        let size = SizeClass::for_words(words);
        if size.granules() <= (self.chunk_granules() - 1) / 2 {
            ChunkClass::Uniform(size)
        } else {
            ChunkClass::Large
        }
    }

    /// Returns which nodes hold a buffer, and where.
    pub fn placement(&self) -> Placement {
        let chunk_bits = self.chunk_granules().trailing_zeros();
        let buffers = Placement::in_chunks(self.nodes, chunk_bits, granule_bits(self.capacity));
        buffers.in_words(self.capacity / 8)
    }

    /// Returns the class for buffers of values of `length` bytes. `all_but_one`: one node may be left out,
    /// if the value is not longer than what fits in place (M4).
    pub fn buffer_class(&self, length: usize, all_but_one: bool) -> ChunkClass {
        let words = buffer::HEADER_WORDS + words_for(length);
        let Some(part) = self.placement().part() else { return self.plain_class(words) };
        let size = SizeClass::for_words(words);
        if all_but_one && length <= MAX_IN_PLACE && size.granules() <= part {
            return ChunkClass::AllButOne(size);
        }
        let size = SizeClass::for_granules(size.granules().next_multiple_of(2));
        if size.granules() <= (self.chunk_granules() - 1) / 2 {
            ChunkClass::AllNodes(size)
        } else {
            ChunkClass::Large
        }
    }

    /// Returns how many chunks a run for an object of `words` words takes.
    pub fn run_chunks(&self, words: usize) -> usize {
        ((words as u64).div_ceil(GRANULE_WORDS as u64) + 1).div_ceil(self.chunk_granules()) as usize
    }

    /// Returns how many objects of `class` a chunk holds, for each home if the class has homes.
    pub fn objects(&self, class: ChunkClass) -> u64 {
        let room = self.chunk_granules() - 1;
        match class {
            // A client that READs a bucket's record does not know its length, so there must be that
            // many words.
            ChunkClass::Uniform(size) => {
                let last = size.granules().max(self.bucket_record_granules());
                room.checked_sub(last).map_or(0, |before| before / size.granules() + 1)
            }
            ChunkClass::AllNodes(size) => room / size.granules(),
            ChunkClass::AllButOne(size) => {
                self.placement().part().map_or(0, |part| part / size.granules())
            }
            ChunkClass::Homed { small, full } => {
                room / (full.granules() + (self.nodes as u64 - 1) * u64::from(small))
            }
            ChunkClass::Large => 1,
            ChunkClass::LargeTail => 0,
        }
    }

    /// Returns the pointer of object `index` of `home` in `chunk`; for an all-but-one buffer, `home` is the
    /// node that does not hold it. Other classes without homes have home 0.
    pub fn object(&self, chunk: usize, class: ChunkClass, home: NodeId, index: u64) -> Pointer {
        let first = chunk as u64 * self.chunk_granules() + 1;
        match class {
            ChunkClass::Uniform(size) => Pointer(first + index * size.granules()),
            ChunkClass::Homed { .. } => {
                Pointer(first + u64::from(home.0) * self.objects(class) + index)
            }
            ChunkClass::AllButOne(size) => {
                let without = self.placement().without(home, chunk, index * size.granules());
                without.unwrap_or(Pointer::NULL)
            }
            ChunkClass::AllNodes(size) => {
                let all = self.placement().with_all(chunk, index * size.granules());
                all.unwrap_or(Pointer::NULL)
            }
            ChunkClass::Large | ChunkClass::LargeTail => {
                self.placement().with_all(chunk, 0).unwrap_or(Pointer(first))
            }
        }
    }

    /// Returns the chunk that an object lies in.
    pub fn chunk_of(&self, pointer: Pointer) -> usize {
        self.placement().chunk(pointer, self.chunk_granules().trailing_zeros())
    }

    /// Returns the high-water mark of `chunk` for `home`.
    pub fn counter(&self, chunk: usize, home: NodeId) -> Address {
        Address(chunk as u64 * self.chunk_granules() * GRANULE_WORDS as u64 + u64::from(home.0))
    }

    /// Returns whether an object of `words` words at `pointer` lies within a node's memory.
    pub fn contains(&self, pointer: Pointer, words: usize) -> bool {
        let Some(start) = pointer.0.checked_mul(GRANULE_WORDS as u64) else { return false };
        start.checked_add(words as u64).is_some_and(|end| end <= self.capacity / 8)
            && pointer.0 >= HEADER_BYTES / GRANULE as u64
    }

    /// Returns where an object of a homed class lies at each node. `None` if no object of this
    /// class can have this pointer.
    pub fn homed_place(&self, pointer: Pointer, class: ChunkClass) -> Option<Location> {
        let ChunkClass::Homed { small, full } = class else { return None };
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
        Some(Location {
            pointer,
            home: NodeId(home as u8),
            at_home: (first + index * full.granules()) * words,
            elsewhere: (first + objects * full.granules() + index * small) * words,
            stride: (objects * small * words) as u32,
        })
    }

    /// Returns the granules of a bucket's cell at its home; elsewhere it takes one.
    fn bucket_granules(&self) -> u64 {
        granules(cell::IN_PLACE + cell::IN_PLACE_WORDS + self.bucket_payload)
    }

    fn bucket_record_granules(&self) -> u64 {
        granules(record::HEADER_WORDS + self.bucket_payload)
    }

    /// Returns the granules that the first buckets with one home each take at each node.
    fn bucket_set_granules(&self) -> u64 {
        self.bucket_granules() + self.nodes as u64 - 1
    }

    fn map_cell_granules(&self) -> u64 {
        granules(cell::IN_PLACE + cell::IN_PLACE_WORDS + self.map_payload())
    }

    fn map_record_granules(&self) -> u64 {
        granules(record::HEADER_WORDS + self.map_payload())
    }

    fn bootstrap_start(&self, slot: usize) -> u64 {
        let bootstrap_records = 1 + BOOTSTRAP_RECORDS * self.map_record_granules();
        HEADER_BYTES / GRANULE as u64 + self.map_cell_granules() + slot as u64 * bootstrap_records
    }

    fn buckets_start(&self) -> u64 {
        self.bootstrap_start(self.max_clients)
    }

    fn heap_start(&self) -> u64 {
        let sets = self.first_buckets().div_ceil(self.nodes) as u64;
        self.buckets_start() + sets * self.bucket_set_granules()
    }
}

fn granules(words: usize) -> u64 {
    words.div_ceil(GRANULE_WORDS) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::layout::geometry::MIN_CAPACITY;

    /// Every word of every object in a chunk, at every node, belongs to that object alone.
    #[test]
    fn objects_of_a_homed_chunk_do_not_overlap() {
        let geometry = Geometry::new(5, MIN_CAPACITY, 4, 1).expect("geometry");
        let class = geometry.register_class(16, 40);
        let ChunkClass::Homed { small, full } = class else { unreachable!() };
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

    /// First buckets fill their sets: each node has one in full and the words of the others.
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
                assert!(spans[0].0 >= geometry.bootstrap_start(geometry.max_clients) * 8);
                assert!(spans[spans.len() - 1].1 <= geometry.heap_start() * 8);
            }
        }
    }

    /// A client that READs a bucket's record asks for the length of the longest one, and a node
    /// returns nothing if part of that lies beyond its memory. The record of a split is short, and
    /// was the last object in some pools.
    #[test]
    fn a_read_of_any_record_stays_within_the_pool() {
        let geometry = Geometry::new(3, MIN_CAPACITY, 4, 1).expect("geometry");
        let words = record::HEADER_WORDS + geometry.bucket_payload;
        let chunk = geometry.chunks() - 1;
        for granules in 1..=geometry.chunk_granules() / 2 {
            let class = ChunkClass::Uniform(SizeClass::for_granules(granules));
            let last = geometry.objects(class).checked_sub(1).expect("a chunk has an object");
            let last = geometry.object(chunk, class, NodeId(0), last);
            assert!(geometry.contains(last, words), "{granules}");
        }
    }
}
