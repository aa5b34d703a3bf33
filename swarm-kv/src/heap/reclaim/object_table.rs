//! The state of each object in a client's chunks, one word per object: free, or in use for a write
//! or a record, as far as that is known.
//!
//! **Invariant:** an object is handed out only when its state says that it is free (E3), whichever
//! way it was freed.

use std::mem::take;
use std::ops::Range;

use swarm_core::layout::{ChunkClass, Geometry, Placement, ReplicaSet};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::words::Pointer;

use crate::heap::ObjectKind;
use crate::heap::alloc::high_water::homes;

/// The state of one object.
///
/// 0: in use, this client does not know for what. A complete write: `[ timestamp | register ]`, as
/// wide as a stamp without its flags. With the topmost bit set, a bucket's committed record: its
/// cell, and whether nodes may lack the record, as it was created by a split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ObjectState(u64);

impl ObjectState {
    /// In use, not known for what.
    pub(in crate::heap) const OUT: Self = Self(0);
    /// Not in use: free, or being reclaimed.
    pub(in crate::heap) const IDLE: Self = Self(1 << 63);
    /// Set at the start of a GC cycle in the states of objects in use; any change of the object
    /// clears it (E5).
    const OLD: u64 = 1 << 62;
    /// Set in the states of children's first records until every node shows the split.
    const SPLIT_PENDING: u64 = 1 << 61;
    /// Another client's: this one has only a part of the chunk. The value differs from all others,
    /// so the object is neither free nor in use here.
    const OTHERS: Self = Self(Self::IDLE.0 | Self::SPLIT_PENDING);

    /// Makes the state of an object with this complete write.
    pub(in crate::heap) fn holds(write: u64) -> Self {
        debug_assert!(write != 0 && write < Self::OLD);
        Self(write)
    }

    /// Whether it is in use, not known for what.
    pub(in crate::heap) fn is_out(self) -> bool {
        self.0 & !Self::OLD == Self::OUT.0
    }

    /// Makes the state of the record of the bucket at `cell`.
    pub(in crate::heap) fn is_in(cell: Pointer) -> Self {
        debug_assert!(!cell.is_null());
        Self(Self::IDLE.0 | cell.0)
    }

    /// Makes the state of the first record of the bucket at `cell`, while nodes may lack both.
    pub(in crate::heap) fn is_created_in(cell: Pointer) -> Self {
        Self(Self::is_in(cell).0 | Self::SPLIT_PENDING)
    }

    /// Returns the cell of the bucket whose record it is, if no node may lack it.
    pub(in crate::heap) fn cell(self) -> Option<Pointer> {
        let cell = Pointer(self.0 & (Self::OLD - 1));
        (self.0 & Self::IDLE.0 != 0 && cell.0 & Self::SPLIT_PENDING == 0 && !cell.is_null())
            .then_some(cell)
    }

    /// Whether it is the first record of that bucket, and nodes may lack both.
    pub(in crate::heap) fn was_created_in(self, cell: Pointer) -> bool {
        self.0 & !Self::OLD == Self::is_created_in(cell).0
    }

    /// Returns the complete write that it holds.
    #[inline(always)]
    pub(in crate::heap) fn held(self) -> Option<u64> {
        let write = self.0 & !Self::OLD;
        (write != 0 && write < Self::OLD).then_some(write)
    }

    /// Whether this client has handed it out.
    fn is_in_use(self) -> bool {
        self != Self::IDLE && self != Self::OTHERS
    }

    /// Whether the object is this client's.
    pub(in crate::heap) fn is_own(self) -> bool {
        self != Self::OTHERS
    }

    fn is_old(self) -> bool {
        self.0 & Self::OLD != 0
    }
}

/// Where an object's state is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectIndex {
    chunk: u32,
    index: u32,
    /// The node that has no copy of the buffer, or the only node.
    absent: NodeId,
}

/// Where a buffer and its state are: an all-but-one buffer, or any buffer of a pool of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(in crate::heap) buffer: Pointer,
    /// A word from which its [replica set](Self::site) is computed.
    at: u64,
    pub(in crate::heap) object_index: ObjectIndex,
}

impl Found {
    /// Returns the buffer's replica set.
    #[inline(always)]
    pub(in crate::heap) fn site(&self, placement: &Placement) -> ReplicaSet {
        match placement.part() {
            Some(_) => placement.all_but_one_set(self.buffer, self.object_index.absent, self.at),
            None => placement.site(self.buffer),
        }
    }
}

/// The objects of one chunk, or of a run.
pub(in crate::heap) struct ObjectTable {
    class: ChunkClass,
    /// Chunks that an object takes.
    chunks: usize,
    /// The largest word divided by an object's granules: objects are found without a division.
    inverse: u64,
    /// Objects of each home.
    objects: u64,
    /// Homes whose objects are known.
    homes: NodeSet,
    /// Whether all clients share the chunk: most objects are other clients'.
    shared: bool,
    entries: Box<[ObjectState]>,
    /// The mark bits of a GC cycle: set for objects that may be reachable.
    marks: Box<[u64]>,
}

impl ObjectTable {
    /// Makes a table of objects that are all in this state.
    fn new(geometry: &Geometry, kind: ObjectKind, each: ObjectState) -> Self {
        let stride = match kind.class {
            ChunkClass::Uniform(size)
            | ChunkClass::AllButOne(size)
            | ChunkClass::AllNodes(size) => size.granules(),
            _ => 1,
        };
        let objects = geometry.objects(kind.class);
        let all = objects as usize * homes(geometry, kind.class).len();
        Self {
            class: kind.class,
            chunks: kind.chunks,
            inverse: u64::MAX / stride,
            objects,
            homes: NodeSet::EMPTY,
            shared: each == ObjectState::OTHERS,
            entries: vec![each; all].into_boxed_slice(),
            marks: Box::default(),
        }
    }

    /// Returns the kind of object number `index`.
    fn kind(&self, index: usize) -> ObjectKind {
        let home = match self.class {
            ChunkClass::Homed { .. } | ChunkClass::AllButOne(_) => {
                NodeId((index as u64 / self.objects) as u8)
            }
            _ => NodeId(0),
        };
        self.kind_at(home)
    }

    #[inline(always)]
    fn kind_at(&self, home: NodeId) -> ObjectKind {
        ObjectKind { class: self.class, home, chunks: self.chunks }
    }

    /// Whether the objects of all homes are known.
    fn is_whole(&self, geometry: &Geometry) -> bool {
        self.homes.len() == homes(geometry, self.class).len()
    }

    /// Returns the number of the object to which granule `within` of the chunk, counted from 1,
    /// belongs.
    ///
    /// That is `(within - 1) / stride`: the product is a little less than `within / stride`, by
    /// `within / 2^64` at most, which is less than `1 / stride`.
    #[inline(always)]
    fn index(&self, within: u64) -> usize {
        ((u128::from(within) * u128::from(self.inverse)) >> 64) as usize
    }

    /// Returns the number of the buffer that lies `within` granules into the parts for those
    /// without `absent`.
    #[inline(always)]
    fn index_within(&self, absent: Option<NodeId>, within: u64) -> Option<usize> {
        let index = self.index(within + 1);
        let first = absent.map_or(0, |absent| absent.index() * self.objects as usize);
        (index < self.objects as usize).then_some(first + index)
    }

    fn is_marked(&self, index: usize) -> bool {
        self.marks.get(index / 64).is_none_or(|bits| bits >> (index % 64) & 1 != 0)
    }

    fn set_mark(&mut self, index: usize) {
        if let Some(bits) = self.marks.get_mut(index / 64) {
            *bits |= 1 << (index % 64);
        }
    }
}

/// An object that is unreachable, as far as a GC cycle has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unreachable {
    pub(crate) pointer: Pointer,
    pub(crate) kind: ObjectKind,
    /// Whether it holds a complete write of this client.
    pub(crate) held: bool,
}

impl Unreachable {
    /// Returns the object's class.
    pub(crate) fn class(&self) -> ChunkClass {
        self.kind.class
    }
}

/// The object tables of a client's chunks.
pub(in crate::heap) struct ObjectTables {
    geometry: Geometry,
    /// Binary logarithm of the granules in a chunk.
    chunk_bits: u32,
    buffers: Placement,
    /// Empty as long as this client has no chunk: a client that only reads needs none.
    chunks: Box<[Option<ObjectTable>]>,
    /// For each chunk, how many reachable objects of other clients the cycle under way has met.
    counts: Vec<u32>,
    /// The same of the last cycle that has walked the whole index.
    reachable: Vec<u32>,
}

impl ObjectTables {
    pub(in crate::heap) fn new(geometry: Geometry) -> Self {
        let chunk_bits = geometry.chunk_granules().trailing_zeros();
        let (chunks, counts, reachable) = Default::default();
        Self { geometry, chunk_bits, buffers: geometry.placement(), chunks, counts, reachable }
    }

    /// Opens the objects of this kind in `chunk`, which are this client's from now on. The chunk's
    /// former owner handed out the first `used` of them.
    pub(in crate::heap) fn open(&mut self, chunk: usize, kind: ObjectKind, used: u64) {
        self.make_room();
        let geometry = &self.geometry;
        let Some(slot) = self.chunks.get_mut(chunk) else { return };
        let table = slot.get_or_insert_with(|| ObjectTable::new(geometry, kind, ObjectState::IDLE));
        if !table.homes.contains(kind.home) {
            table.homes.insert(kind.home);
            let first = kind.home.index() * table.objects as usize;
            let used = first + used.min(table.objects) as usize;
            table.entries[first..used].fill(ObjectState::OUT);
        }
    }

    /// Opens a range of the objects of this kind in `chunk`, which is this client's from now on and
    /// was never handed out. The rest is other clients'.
    pub(in crate::heap) fn open_range(
        &mut self,
        chunk: usize,
        kind: ObjectKind,
        range: Range<u64>,
    ) {
        self.make_room();
        let geometry = &self.geometry;
        let Some(slot) = self.chunks.get_mut(chunk) else { return };
        let table =
            slot.get_or_insert_with(|| ObjectTable::new(geometry, kind, ObjectState::OTHERS));
        let first = kind.home.index() as u64 * table.objects;
        let [from, to] = [range.start, range.end].map(|index| (first + index) as usize);
        table.homes.insert(kind.home);
        table.entries[from..to].fill(ObjectState::IDLE);
    }

    /// Allocates the tables, with the first chunk.
    fn make_room(&mut self) {
        if self.chunks.is_empty() {
            self.chunks = (0..self.geometry.chunks()).map(|_| None).collect();
        }
    }

    /// Returns the chunks in which other clients have objects too.
    pub(in crate::heap) fn shared(&self) -> impl Iterator<Item = usize> {
        let tables = self.chunks.iter().enumerate();
        tables.filter(|(_, table)| table.as_ref().is_some_and(|it| it.shared)).map(|(at, _)| at)
    }

    /// Closes the object tables of all other chunks.
    pub(in crate::heap) fn keep(&mut self, is_own: impl Fn(usize) -> bool) {
        for (chunk, table) in self.chunks.iter_mut().enumerate() {
            if !is_own(chunk) && table.take().is_some() {
                // Reachable objects there were not counted.
                for counts in [&mut self.counts, &mut self.reachable] {
                    counts.get_mut(chunk).into_iter().for_each(|count| *count = u32::MAX);
                }
            }
        }
    }

    /// Whether the objects of this chunk are known, and none is in use.
    pub(in crate::heap) fn is_idle(&self, chunk: usize) -> bool {
        let Some(table) = self.chunks.get(chunk).and_then(Option::as_ref) else { return false };
        table.is_whole(&self.geometry)
            && table.entries.iter().all(|entry| *entry == ObjectState::IDLE)
    }

    /// Returns how many objects of this chunk are in use, if all are known.
    pub(in crate::heap) fn in_use(&self, chunk: usize) -> Option<u64> {
        let table = self.chunks.get(chunk)?.as_ref()?;
        let in_use =
            || table.entries.iter().filter(|entry| **entry != ObjectState::IDLE).count() as u64;
        table.is_whole(&self.geometry).then(in_use)
    }

    /// Whether the objects of this home in `chunk` are known.
    pub(in crate::heap) fn is_open(&self, chunk: usize, home: NodeId) -> bool {
        let table = self.chunks.get(chunk).and_then(Option::as_ref);
        table.is_some_and(|table| table.homes.contains(home))
    }

    /// Returns the state of an object, if it is in a chunk with a table.
    #[inline(always)]
    pub(in crate::heap) fn find(&mut self, object: Pointer) -> Option<&mut ObjectState> {
        let (table, index) = self.locate(object)?;
        table.entries.get_mut(index)
    }

    /// Returns where a buffer and its state are, if it is this client's. `None` for buffers that
    /// all of several nodes hold.
    #[inline(always)]
    pub(in crate::heap) fn buffer(&self, buffer: Pointer) -> Option<Found> {
        let object_index = |chunk: usize, index: usize, absent| ObjectIndex {
            chunk: chunk as u32,
            index: index as u32,
            absent,
        };
        if let Some((chunk, absent, within, at)) = self.buffers.within_at(buffer) {
            let table = self.chunks.get(chunk)?.as_ref()?;
            // In a chunk of another class, pointers are told apart differently.
            let ChunkClass::AllButOne(_) = table.class else { return None };
            let index = table.index_within(Some(absent), within)?;
            return Some(Found { buffer, at, object_index: object_index(chunk, index, absent) });
        }
        let chunk = self.buffers.chunk(buffer, self.chunk_bits);
        let table = self.chunks.get(chunk)?.as_ref()?;
        let is_lone = self.buffers.part().is_none();
        let (ChunkClass::Uniform(_), true) = (table.class, is_lone) else { return None };
        let index = table.index(self.within(buffer));
        Some(Found { buffer, at: 0, object_index: object_index(chunk, index, NodeId(0)) })
    }

    /// Returns how nodes share buffers.
    pub(in crate::heap) fn placement(&self) -> &Placement {
        &self.buffers
    }

    /// Returns the granule within its chunk at which an object begins, where that is the same at
    /// all nodes.
    #[inline(always)]
    fn within(&self, object: Pointer) -> u64 {
        object.0 & ((1 << self.chunk_bits) - 1)
    }

    /// Returns how many objects are in use, not known for what.
    #[cfg(test)]
    pub(in crate::heap) fn count_out(&self) -> usize {
        let tables = self.chunks.iter().flatten();
        tables.map(|table| table.entries.iter().filter(|entry| entry.is_out()).count()).sum()
    }

    /// Returns the state at an index.
    #[inline(always)]
    pub(in crate::heap) fn get(&self, object_index: ObjectIndex) -> Option<&ObjectState> {
        self.chunks
            .get(object_index.chunk as usize)?
            .as_ref()?
            .entries
            .get(object_index.index as usize)
    }

    /// Returns the state and the kind of an object, by its index if it was found before.
    #[inline(always)]
    pub(in crate::heap) fn at_or_of(
        &mut self,
        object_index: Option<ObjectIndex>,
        object: Pointer,
    ) -> Option<(&mut ObjectState, ObjectKind)> {
        match object_index {
            Some(object_index) => self.at(object_index),
            None => self.look_up(object),
        }
    }

    /// Returns the state at an index and its object's kind. The tables must be as they were when
    /// the index was found.
    #[inline(always)]
    fn at(&mut self, object_index: ObjectIndex) -> Option<(&mut ObjectState, ObjectKind)> {
        let table = self.chunks.get_mut(object_index.chunk as usize)?.as_mut()?;
        let kind = table.kind_at(object_index.absent);
        Some((table.entries.get_mut(object_index.index as usize)?, kind))
    }

    /// Returns the state and the kind of an object, if it is in a chunk with a table.
    #[inline(always)]
    pub(in crate::heap) fn look_up(
        &mut self,
        object: Pointer,
    ) -> Option<(&mut ObjectState, ObjectKind)> {
        let (table, index, absent) = self.locate_without(object)?;
        let kind = absent.map_or_else(|| table.kind(index), |absent| table.kind_at(absent));
        Some((table.entries.get_mut(index)?, kind))
    }

    #[inline(always)]
    fn locate(&mut self, object: Pointer) -> Option<(&mut ObjectTable, usize)> {
        self.locate_without(object).map(|(table, index, _)| (table, index))
    }

    /// Returns the table of an object, its number in there, and the node that has no copy of it.
    #[inline(always)]
    fn locate_without(
        &mut self,
        object: Pointer,
    ) -> Option<(&mut ObjectTable, usize, Option<NodeId>)> {
        let (chunk, within) = (self.buffers.chunk(object, self.chunk_bits), self.within(object));
        let table = self.chunks.get_mut(chunk)?.as_mut()?;
        if let ChunkClass::Uniform(_) | ChunkClass::Homed { .. } = table.class {
            let index = table.index(within);
            return (within != 0).then_some((table, index, None));
        }
        let (absent, within) = self.buffers.within(object);
        let index = table.index_within(absent, within)?;
        Some((table, index, absent))
    }

    /// Starts a GC cycle: notes which objects are in use (E5), and clears all marks.
    pub(in crate::heap) fn begin(&mut self) {
        for table in self.chunks.iter_mut().flatten() {
            for entry in table.entries.iter_mut().filter(|entry| entry.is_in_use()) {
                entry.0 |= ObjectState::OLD;
            }
            table.marks = vec![0; table.entries.len().div_ceil(64)].into_boxed_slice();
        }
        self.counts = vec![0; self.geometry.chunks()];
    }

    /// Marks an object as reachable. Called once for each.
    pub(in crate::heap) fn mark(&mut self, object: Pointer) {
        let mut counts = true;
        if let Some((table, index)) = self.locate(object) {
            counts = table.entries.get(index).is_some_and(|entry| !entry.is_own());
            table.set_mark(index);
        }
        if counts && let Some(count) = self.counts.get_mut(self.geometry.chunk_of(object)) {
            *count = count.saturating_add(1);
        }
    }

    /// Ends the mark phase.
    pub(in crate::heap) fn all_marked(&mut self) {
        self.reachable = take(&mut self.counts);
    }

    /// Returns how many objects of other clients in `chunk` are reachable, by the last cycle that
    /// walked the whole index.
    pub(in crate::heap) fn reachable(&self, chunk: usize) -> Option<u64> {
        self.reachable.get(chunk).map(|&reachable| u64::from(reachable))
    }

    /// For a shared chunk of which this client has a part, returns how many objects are other
    /// clients', and how many of its own are in use.
    pub(in crate::heap) fn parts(&self, chunk: usize) -> Option<(u64, u64)> {
        let table = self.chunks.get(chunk)?.as_ref().filter(|table| table.shared)?;
        let others = table.entries.iter().filter(|entry| !entry.is_own()).count();
        let in_use = table.entries.iter().filter(|entry| entry.is_in_use()).count();
        Some((others as u64, in_use as u64))
    }

    /// Marks an object that no bucket names, but an operation may still fetch.
    pub(in crate::heap) fn spare(&mut self, object: Pointer) {
        if let Some((table, index)) = self.locate(object) {
            table.set_mark(index);
        }
    }

    /// Returns the unmarked objects of `chunk` that were in use when the cycle began and were not
    /// touched since (E5): at most `most`, from object number `from` on. Returns also from which
    /// number on there are more, if there are.
    pub(in crate::heap) fn unreachable(
        &self,
        chunk: usize,
        from: usize,
        most: usize,
    ) -> (Vec<Unreachable>, Option<usize>) {
        let mut found = Vec::new();
        let Some(table) = self.chunks.get(chunk).and_then(Option::as_ref) else {
            return (found, None);
        };
        for (index, entry) in table.entries.iter().enumerate().skip(from) {
            if !entry.is_old() || table.is_marked(index) {
                continue;
            }
            if found.len() == most {
                return (found, Some(index));
            }
            let (kind, held) = (table.kind(index), entry.held().is_some());
            let within = index as u64 - u64::from(kind.home.0) * table.objects;
            let pointer = self.geometry.object(chunk, kind.class, kind.home, within);
            found.push(Unreachable { pointer, kind, held });
        }
        (found, None)
    }

    /// Whether an object is as the cycle found it, and unmarked.
    pub(in crate::heap) fn is_unreachable(&mut self, object: Pointer) -> bool {
        self.locate(object).is_some_and(|(table, index)| {
            table.entries.get(index).is_some_and(|entry| entry.is_old()) && !table.is_marked(index)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_core::layout::{MIN_CAPACITY, SizeClass};

    /// A GC cycle of a client without chunks still counts other clients' reachable objects: it
    /// takes over only chunks in which it met none.
    #[test]
    fn a_client_without_chunks_keeps_no_tables_and_counts_what_others_have() {
        let geometry = Geometry::new(3, MIN_CAPACITY, 4, 1).expect("geometry");
        let mut tables = ObjectTables::new(geometry);
        let kind = ObjectKind { class: geometry.plain_class(16), home: NodeId(0), chunks: 1 };
        let (chunk, last) = (geometry.first_chunk(), geometry.chunks() - 1);
        let object = |chunk| geometry.object(chunk, kind.class, kind.home, 0);
        assert!(tables.find(object(chunk)).is_none() && !tables.is_open(chunk, kind.home));
        tables.keep(|_| false);
        tables.begin();
        tables.mark(object(last));
        tables.all_marked();
        assert_eq!([chunk, last].map(|chunk| tables.reachable(chunk)), [Some(0), Some(1)]);
        assert!(tables.chunks.is_empty());
        tables.open(last, kind, 1);
        assert_eq!(tables.find(object(last)).copied(), Some(ObjectState::OUT));
        assert!(tables.find(object(chunk)).is_none());
    }

    /// Objects of any size, in the largest chunks that there are.
    #[test]
    fn an_object_is_found_by_its_first_granule_and_by_its_last() {
        const GRANULES: u64 = 1 << 28;
        for granules in (0..26).flat_map(|bits| (0..32).map(move |step| (32 + step) << bits >> 5)) {
            let stride = SizeClass::for_granules(granules).granules();
            let table = ObjectTable {
                class: ChunkClass::Large,
                chunks: 1,
                inverse: u64::MAX / stride,
                objects: 0,
                homes: NodeSet::EMPTY,
                shared: false,
                entries: Box::default(),
                marks: Box::default(),
            };
            let objects = GRANULES / stride;
            for index in (0..3).chain(objects.saturating_sub(3)..objects) {
                assert_eq!(table.index(index * stride + 1), index as usize, "{stride}: its first");
                assert_eq!(table.index((index + 1) * stride), index as usize, "{stride}: its last");
            }
        }
    }
}
