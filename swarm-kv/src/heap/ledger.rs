//! What a client knows of the objects in its chunks.
//!
//! Of each object one word: whether it is at hand for the next use, or what it is used for, as far
//! as that is known. It all rests on this: *an object is handed out only when its entry says that it
//! is at hand*, whichever way it came to be.

use std::mem::take;
use std::ops::Range;

use swarm_core::layout::{Buffers, Class, Geometry, Site};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::words::Pointer;

use super::Kind;
use super::counter::homes;

/// What a ledger says of one object.
///
/// 0: it is in use, nobody here knows for what. Otherwise a write that is complete:
/// `[ timestamp | register ]`, as wide as a stamp without its flags. Or, with the topmost bit, a bucket's
/// record that is committed: its cell, and whether there may be nodes that lack it, as it came of a split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry(u64);

impl Entry {
    /// In use for what is not known.
    pub(super) const OUT: Self = Self(0);
    /// Not in use: at hand, or on its way there.
    pub(super) const IDLE: Self = Self(1 << 63);
    /// Set in entries that a collection looks at; anything that happens to the object clears it.
    const OLD: u64 = 1 << 62;
    /// Set in entries of children's first records until every node shows the split.
    const BORN: u64 = 1 << 61;
    /// It is another client's, as this one has only a part of the chunk. It agrees with none of the others: whatever is asked
    /// about it, it is neither at hand nor in use here.
    const OTHERS: Self = Self(Self::IDLE.0 | Self::BORN);

    /// It holds this complete write.
    pub(super) fn holds(write: u64) -> Self {
        debug_assert!(write != 0 && write < Self::OLD);
        Self(write)
    }

    /// Whether it is in use for what is not known.
    pub(super) fn is_out(self) -> bool {
        self.0 & !Self::OLD == Self::OUT.0
    }

    /// It is, or was, the record of the bucket at `cell`.
    pub(super) fn is_in(cell: Pointer) -> Self {
        debug_assert!(!cell.is_null());
        Self(Self::IDLE.0 | cell.0)
    }

    /// It is the first record of the bucket at `cell`, and there may be nodes that lack both.
    pub(super) fn is_born_in(cell: Pointer) -> Self {
        Self(Self::is_in(cell).0 | Self::BORN)
    }

    /// The cell of the bucket whose record it is, or was, if no node may lack it.
    pub(super) fn cell(self) -> Option<Pointer> {
        let cell = Pointer(self.0 & (Self::OLD - 1));
        (self.0 & Self::IDLE.0 != 0 && cell.0 & Self::BORN == 0 && !cell.is_null()).then_some(cell)
    }

    /// Whether it is the first record of that bucket, and there may be nodes that lack both.
    pub(super) fn was_born_in(self, cell: Pointer) -> bool {
        self.0 & !Self::OLD == Self::is_born_in(cell).0
    }

    /// The complete write that it holds.
    #[inline(always)]
    pub(super) fn held(self) -> Option<u64> {
        let write = self.0 & !Self::OLD;
        (write != 0 && write < Self::OLD).then_some(write)
    }

    /// Whether this client has handed it out.
    fn is_in_use(self) -> bool {
        self != Self::IDLE && self != Self::OTHERS
    }

    /// Whether the object is this client's.
    pub(super) fn is_own(self) -> bool {
        self != Self::OTHERS
    }

    fn is_old(self) -> bool {
        self.0 & Self::OLD != 0
    }
}

/// Where an object's entry is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    chunk: u32,
    index: u32,
    /// The node that does without the buffer, or the only one.
    absent: NodeId,
}

/// A buffer, and where it and its entry are: one that some node does without, or of the only node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(super) buffer: Pointer,
    /// A word that its [site](Ledgers::site) is made of.
    at: u64,
    pub(super) spot: Spot,
}

/// The objects of one chunk, or of a run.
pub(super) struct Ledger {
    class: Class,
    /// Chunks that an object takes.
    chunks: usize,
    /// The largest word divided by an object's granules: objects are found without a division.
    inverse: u64,
    /// Objects of each home.
    objects: u64,
    /// Homes whose objects are known.
    homes: NodeSet,
    /// Whether all clients share the chunk: most entries are others'.
    shared: bool,
    entries: Box<[Entry]>,
    /// A bit for each object, for a collection: something may still name it.
    marks: Box<[u64]>,
}

impl Ledger {
    /// Of objects that are all this.
    fn new(geometry: &Geometry, kind: Kind, each: Entry) -> Self {
        let stride = match kind.class {
            Class::Plain(size) | Class::Lean(size) | Class::Wide(size) => size.granules(),
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
            shared: each == Entry::OTHERS,
            entries: vec![each; all].into_boxed_slice(),
            marks: Box::default(),
        }
    }

    /// What kind of object number `index` is.
    fn kind(&self, index: usize) -> Kind {
        let home = match self.class {
            Class::Homed { .. } | Class::Lean(_) => NodeId((index as u64 / self.objects) as u8),
            _ => NodeId(0),
        };
        self.kind_at(home)
    }

    #[inline(always)]
    fn kind_at(&self, home: NodeId) -> Kind {
        Kind { class: self.class, home, chunks: self.chunks }
    }

    /// Whether the objects of all homes are known.
    fn is_whole(&self, geometry: &Geometry) -> bool {
        self.homes.len() == homes(geometry, self.class).len()
    }

    /// The number of the object that granule `within` of the chunk, counted from 1, belongs to.
    ///
    /// That is `(within - 1) / stride`: the product stands for a little less than `within / stride`, by
    /// `within / 2^64` at most, which is less than `1 / stride`.
    #[inline(always)]
    fn index(&self, within: u64) -> usize {
        ((u128::from(within) * u128::from(self.inverse)) >> 64) as usize
    }

    /// The number of the buffer that lies so many granules into the parts for those without `absent`.
    #[inline(always)]
    fn index_within(&self, absent: Option<NodeId>, within: u64) -> Option<usize> {
        let index = self.index(within + 1);
        let first = absent.map_or(0, |absent| absent.index() * self.objects as usize);
        (index < self.objects as usize).then_some(first + index)
    }

    fn is_marked(&self, index: usize) -> bool {
        self.marks.get(index / 64).is_none_or(|bits| bits >> (index % 64) & 1 != 0)
    }
}

/// An object that nothing names, as far as a collection has seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unnamed {
    pub(crate) pointer: Pointer,
    pub(crate) kind: Kind,
    /// Whether it holds a complete write of this client.
    pub(crate) held: bool,
}

impl Unnamed {
    /// What kind of object it is.
    pub(crate) fn class(&self) -> Class {
        self.kind.class
    }
}

/// The ledgers of a client's chunks.
pub(super) struct Ledgers {
    geometry: Geometry,
    /// Granules in a chunk are 2 to this power.
    chunk_bits: u32,
    buffers: Buffers,
    /// Empty as long as this client has no chunk: who only reads does without.
    chunks: Box<[Option<Ledger>]>,
    /// How often a collection that goes over the index met the name of an object of others' in each chunk.
    counts: Vec<u32>,
    /// The same of the last one that is over it.
    named: Vec<u32>,
}

impl Ledgers {
    pub(super) fn new(geometry: Geometry) -> Self {
        let chunk_bits = geometry.chunk_granules().trailing_zeros();
        let (chunks, counts, named) = Default::default();
        Self { geometry, chunk_bits, buffers: geometry.buffers(), chunks, counts, named }
    }

    /// From now on the objects of this kind in `chunk` are this client's, of which the first `used`
    /// were handed out by whoever had the chunk before.
    pub(super) fn open(&mut self, chunk: usize, kind: Kind, used: u64) {
        self.make_room();
        let geometry = &self.geometry;
        let Some(slot) = self.chunks.get_mut(chunk) else { return };
        let ledger = slot.get_or_insert_with(|| Ledger::new(geometry, kind, Entry::IDLE));
        if !ledger.homes.contains(kind.home) {
            ledger.homes.insert(kind.home);
            let first = kind.home.index() * ledger.objects as usize;
            let used = first + used.min(ledger.objects) as usize;
            ledger.entries[first..used].fill(Entry::OUT);
        }
    }

    /// From now on a range of the objects of this kind in `chunk` is this client's, which nobody was ever handed out; the
    /// rest is others'.
    pub(super) fn open_range(&mut self, chunk: usize, kind: Kind, range: Range<u64>) {
        self.make_room();
        let geometry = &self.geometry;
        let Some(slot) = self.chunks.get_mut(chunk) else { return };
        let ledger = slot.get_or_insert_with(|| Ledger::new(geometry, kind, Entry::OTHERS));
        let first = kind.home.index() as u64 * ledger.objects;
        let [from, to] = [range.start, range.end].map(|index| (first + index) as usize);
        ledger.homes.insert(kind.home);
        ledger.entries[from..to].fill(Entry::IDLE);
    }

    /// Ledgers come with the first chunk.
    fn make_room(&mut self) {
        if self.chunks.is_empty() {
            self.chunks = (0..self.geometry.chunks()).map(|_| None).collect();
        }
    }

    /// Chunks of which others have objects too.
    pub(super) fn shared(&self) -> impl Iterator<Item = usize> {
        let ledgers = self.chunks.iter().enumerate();
        ledgers.filter(|(_, ledger)| ledger.as_ref().is_some_and(|it| it.shared)).map(|(at, _)| at)
    }

    /// Closes the ledgers of all other chunks.
    pub(super) fn keep(&mut self, is_own: impl Fn(usize) -> bool) {
        for (chunk, ledger) in self.chunks.iter_mut().enumerate() {
            if !is_own(chunk) && ledger.take().is_some() {
                // What is named there was not counted.
                for counts in [&mut self.counts, &mut self.named] {
                    counts.get_mut(chunk).into_iter().for_each(|count| *count = u32::MAX);
                }
            }
        }
    }

    /// Whether the objects of this chunk are known, and none is in use.
    pub(super) fn is_idle(&self, chunk: usize) -> bool {
        let Some(ledger) = self.chunks.get(chunk).and_then(Option::as_ref) else { return false };
        ledger.is_whole(&self.geometry) && ledger.entries.iter().all(|entry| *entry == Entry::IDLE)
    }

    /// How many objects of this chunk are in use, where all are known.
    pub(super) fn in_use(&self, chunk: usize) -> Option<u64> {
        let ledger = self.chunks.get(chunk)?.as_ref()?;
        let in_use = || ledger.entries.iter().filter(|entry| **entry != Entry::IDLE).count() as u64;
        ledger.is_whole(&self.geometry).then(in_use)
    }

    /// Whether the objects of this home in `chunk` are known.
    pub(super) fn is_open(&self, chunk: usize, home: NodeId) -> bool {
        let ledger = self.chunks.get(chunk).and_then(Option::as_ref);
        ledger.is_some_and(|ledger| ledger.homes.contains(home))
    }

    /// The entry of an object, if it is this client's.
    #[inline(always)]
    pub(super) fn find(&mut self, object: Pointer) -> Option<&mut Entry> {
        let (ledger, index) = self.locate(object)?;
        ledger.entries.get_mut(index)
    }

    /// A buffer of this client's, with where it and its entry are. `None` of those of several nodes that all of them hold.
    #[inline(always)]
    pub(super) fn buffer(&self, buffer: Pointer) -> Option<Found> {
        let chunk = self.buffers.chunk(buffer, self.chunk_bits);
        let ledger = self.chunks.get(chunk)?.as_ref()?;
        // In a chunk of another class, pointers are told apart otherwise.
        let (absent, index, at) = match (ledger.class, self.buffers.within_at(buffer)) {
            (Class::Lean(_), Some((absent, within, at))) => {
                (absent, ledger.index_within(Some(absent), within)?, at)
            }
            (Class::Plain(_), None) if self.buffers.part().is_none() => {
                (NodeId(0), ledger.index(self.within(buffer)), 0)
            }
            _ => return None,
        };
        let spot = Spot { chunk: chunk as u32, index: index as u32, absent };
        Some(Found { buffer, at, spot })
    }

    /// Where all nodes that have it have such a buffer.
    #[inline(always)]
    pub(super) fn site(&self, found: &Found) -> Site {
        match self.buffers.part() {
            Some(_) => self.buffers.lean_site(found.buffer, found.spot.absent, found.at),
            None => self.buffers.site(found.buffer),
        }
    }

    /// The granule of its chunk that an object begins with, where all nodes have it in the same place.
    #[inline(always)]
    fn within(&self, object: Pointer) -> u64 {
        object.0 & ((1 << self.chunk_bits) - 1)
    }

    /// Objects that are in use for what is not known.
    #[cfg(test)]
    pub(super) fn count_out(&self) -> usize {
        let ledgers = self.chunks.iter().flatten();
        ledgers.map(|ledger| ledger.entries.iter().filter(|entry| entry.is_out()).count()).sum()
    }

    /// What is at a spot.
    #[inline(always)]
    pub(super) fn get(&self, spot: Spot) -> Option<&Entry> {
        self.chunks.get(spot.chunk as usize)?.as_ref()?.entries.get(spot.index as usize)
    }

    /// The entry of an object and what kind it is, where it was found before, or where it is.
    #[inline(always)]
    pub(super) fn at_or_of(
        &mut self,
        spot: Option<Spot>,
        object: Pointer,
    ) -> Option<(&mut Entry, Kind)> {
        match spot {
            Some(spot) => self.at(spot),
            None => self.look_up(object),
        }
    }

    /// The entry at a spot and what kind its object is, as long as nothing has changed since it was found.
    #[inline(always)]
    fn at(&mut self, spot: Spot) -> Option<(&mut Entry, Kind)> {
        let ledger = self.chunks.get_mut(spot.chunk as usize)?.as_mut()?;
        let kind = ledger.kind_at(spot.absent);
        Some((ledger.entries.get_mut(spot.index as usize)?, kind))
    }

    /// The entry of an object and what kind it is, if it is this client's.
    #[inline(always)]
    pub(super) fn look_up(&mut self, object: Pointer) -> Option<(&mut Entry, Kind)> {
        let (ledger, index, absent) = self.locate_without(object)?;
        let kind = absent.map_or_else(|| ledger.kind(index), |absent| ledger.kind_at(absent));
        Some((ledger.entries.get_mut(index)?, kind))
    }

    #[inline(always)]
    fn locate(&mut self, object: Pointer) -> Option<(&mut Ledger, usize)> {
        self.locate_without(object).map(|(ledger, index, _)| (ledger, index))
    }

    /// The ledger of an object, its number in there, and the node that does without it.
    #[inline(always)]
    fn locate_without(&mut self, object: Pointer) -> Option<(&mut Ledger, usize, Option<NodeId>)> {
        let (chunk, within) = (self.buffers.chunk(object, self.chunk_bits), self.within(object));
        let ledger = self.chunks.get_mut(chunk)?.as_mut()?;
        if let Class::Plain(_) | Class::Homed { .. } = ledger.class {
            let index = ledger.index(within);
            return (within != 0).then_some((ledger, index, None));
        }
        let (absent, within) = self.buffers.within(object);
        let index = ledger.index_within(absent, within)?;
        Some((ledger, index, absent))
    }

    /// A collection begins: it looks at what is in use by now, and nothing is marked.
    pub(super) fn begin(&mut self) {
        for ledger in self.chunks.iter_mut().flatten() {
            for entry in ledger.entries.iter_mut().filter(|entry| entry.is_in_use()) {
                entry.0 |= Entry::OLD;
            }
            ledger.marks = vec![0; ledger.entries.len().div_ceil(64)].into_boxed_slice();
        }
        self.counts = vec![0; self.geometry.chunks()];
    }

    /// Something may still name this object. Each is told of once.
    pub(super) fn mark(&mut self, object: Pointer) {
        let mut counts = true;
        if let Some((ledger, index)) = self.locate(object) {
            counts = ledger.entries.get(index).is_some_and(|entry| !entry.is_own());
            if let Some(bits) = ledger.marks.get_mut(index / 64) {
                *bits |= 1 << (index % 64);
            }
        }
        if counts && let Some(count) = self.counts.get_mut(self.geometry.chunk_of(object)) {
            *count = count.saturating_add(1);
        }
    }

    /// All that is named was told of.
    pub(super) fn all_marked(&mut self) {
        self.named = take(&mut self.counts);
    }

    /// How many objects of `chunk` that are others' the index names, if it was gone over since a collection began.
    pub(super) fn named(&self, chunk: usize) -> Option<u64> {
        self.named.get(chunk).map(|&named| u64::from(named))
    }

    /// Of a shared chunk that this client has a part of: how many objects are others', and how many of its own are in use.
    pub(super) fn parts(&self, chunk: usize) -> Option<(u64, u64)> {
        let ledger = self.chunks.get(chunk)?.as_ref().filter(|ledger| ledger.shared)?;
        let others = ledger.entries.iter().filter(|entry| !entry.is_own()).count();
        let in_use = ledger.entries.iter().filter(|entry| entry.is_in_use()).count();
        Some((others as u64, in_use as u64))
    }

    /// What is not marked in `chunk`, of what was in use when the collection began and was not
    /// touched since.
    pub(super) fn unnamed(&self, chunk: usize) -> Vec<Unnamed> {
        let Some(ledger) = self.chunks.get(chunk).and_then(Option::as_ref) else {
            return Vec::new();
        };
        let unnamed = |(index, entry): (usize, &Entry)| {
            let (kind, held) = (ledger.kind(index), entry.held().is_some());
            let within = index as u64 - u64::from(kind.home.0) * ledger.objects;
            let pointer = self.geometry.object(chunk, kind.class, kind.home, within);
            (entry.is_old() && !ledger.is_marked(index)).then_some(Unnamed { pointer, kind, held })
        };
        ledger.entries.iter().enumerate().filter_map(unnamed).collect()
    }

    /// Whether an object is as the collection found it, and not marked.
    pub(super) fn is_unnamed(&mut self, object: Pointer) -> bool {
        self.locate(object).is_some_and(|(ledger, index)| {
            ledger.entries.get(index).is_some_and(|entry| entry.is_old())
                && !ledger.is_marked(index)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use swarm_core::layout::{MIN_CAPACITY, Size};

    /// A collection of a client that has no chunk goes by what it meets of others' all the same: only of those in which
    /// it met nothing does it take chunks over.
    #[test]
    fn who_has_no_chunk_keeps_no_ledgers_and_counts_what_others_have() {
        let geometry = Geometry::new(3, MIN_CAPACITY, 4, 1).expect("geometry");
        let mut ledgers = Ledgers::new(geometry);
        let kind = Kind { class: geometry.plain_class(16), home: NodeId(0), chunks: 1 };
        let (chunk, last) = (geometry.first_chunk(), geometry.chunks() - 1);
        let object = |chunk| geometry.object(chunk, kind.class, kind.home, 0);
        assert!(ledgers.find(object(chunk)).is_none() && !ledgers.is_open(chunk, kind.home));
        ledgers.keep(|_| false);
        ledgers.begin();
        ledgers.mark(object(last));
        ledgers.all_marked();
        assert_eq!([chunk, last].map(|chunk| ledgers.named(chunk)), [Some(0), Some(1)]);
        assert!(ledgers.chunks.is_empty());
        ledgers.open(last, kind, 1);
        assert_eq!(ledgers.find(object(last)).copied(), Some(Entry::OUT));
        assert!(ledgers.find(object(chunk)).is_none());
    }

    /// Objects of any size, in the largest chunks that there are.
    #[test]
    fn an_object_is_found_by_its_first_granule_and_by_its_last() {
        const GRANULES: u64 = 1 << 28;
        for granules in (0..26).flat_map(|bits| (0..32).map(move |step| (32 + step) << bits >> 5)) {
            let stride = Size::for_granules(granules).granules();
            let ledger = Ledger {
                class: Class::Run,
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
                assert_eq!(ledger.index(index * stride + 1), index as usize, "{stride}: its first");
                assert_eq!(
                    ledger.index((index + 1) * stride),
                    index as usize,
                    "{stride}: its last"
                );
            }
        }
    }
}
