//! The index: extendible hashing over cells (design of Fagin et al., TODS 1979).
//!
//! The hash's leading bits choose one of the first buckets; a bucket that was split leads to one of
//! two children by the next bit. Insert, replacement and split are each one change of one cell, so
//! nothing is half done when a client dies.
//!
//! **Invariant:** a bucket's prefix never changes, and a split bucket stays split. So a client may
//! cache splits for ever, and never reads the wrong bucket.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use heapless::Vec;
use quick_cache::unsync::Cache;
use swarm_core::cell::{self, CellRef, CreatedPart, CreatedParts, View};
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::{Fabric, MAX_VERBS, Verb};
use swarm_core::layout::{self, Geometry, Location, buffer, record, register};
use swarm_core::node::NodeId;
use swarm_core::quorum::Group;
use swarm_core::register::safe_guess::{deleted_stamp, first_stamp};
use swarm_core::words::{Ballot, CellFlags, CellWord, Pointer, WordFormat};

use crate::index::bucket::{Bucket, Child, Content, Created, KeyObject, MAX_DEPTH};
use crate::index::keyed_cell::KeyedCell;

/// The ballot of the record with which a cell is created.
pub(crate) const FIRST_BALLOT: Ballot = Ballot(2);

/// Returns the word with which a cell is created.
pub(crate) fn first_word(format: WordFormat, record: Pointer) -> CellWord {
    format.cell(FIRST_BALLOT, record, CellFlags::CONFIRMED | CellFlags::ACCEPTED)
}

/// One client's view of the index.
pub(crate) struct Index {
    geometry: Geometry,
    /// Cells that were split, with their children's.
    splits: RefCell<HashMap<Pointer, [Pointer; 2]>>,
    /// Buckets as last read, in this generation.
    buckets: RefCell<Cache<Pointer, Located>>,
    generation: Cell<u64>,
    /// The epoch in which the latest operation began.
    epoch: Cell<u64>,
}

/// A bucket with its cell.
#[derive(Clone)]
pub(crate) struct Located {
    pub(crate) cell: CellRef,
    pub(crate) view: View,
    pub(crate) bucket: Bucket,
    /// The generation in which it was looked up, or an earlier one.
    pub(crate) generation: u64,
    /// The same for the epoch.
    pub(crate) epoch: u64,
}

impl Index {
    pub(crate) fn new(geometry: Geometry, buckets: usize) -> Self {
        let buckets = RefCell::new(Cache::new(buckets));
        let (generation, epoch) = Default::default();
        Self { geometry, splits: RefCell::default(), buckets, generation, epoch }
    }

    /// Notes the epoch as read after an operation's pin. E2, E4a: the operation uses no bucket that
    /// was read in an earlier epoch. Its record may have been replaced and retired then, and is
    /// reused when the operations of that epoch have ended.
    #[inline(always)]
    pub(crate) fn enter(&self, epoch: u64) {
        self.epoch.set(epoch);
    }

    /// Returns the epoch in which the latest operation began.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// Enters another generation: drops cached buckets (E7). Splits are for ever.
    pub(crate) fn renew(&self, generation: u64) {
        self.generation.set(generation);
        self.buckets.borrow_mut().clear();
    }

    /// Returns how to find what was created together with a bucket's record.
    pub(crate) fn created_parts(&self) -> BucketCreatedParts<'_> {
        BucketCreatedParts(&self.geometry)
    }

    /// Returns the bucket that covers `hash`, as last read in this epoch.
    pub(crate) async fn cached<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        hash: u64,
    ) -> Result<Located, Error> {
        self.find(group, hash, true).await
    }

    /// Returns the bucket that covers `hash`, as it is now. One roundtrip if its location is
    /// cached; one more for each split that is not.
    pub(crate) async fn fresh<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        hash: u64,
    ) -> Result<Located, Error> {
        self.find(group, hash, false).await
    }

    async fn find<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        hash: u64,
        cached: bool,
    ) -> Result<Located, Error> {
        let (mut place, mut depth) = self.root(hash);
        while depth <= MAX_DEPTH {
            if let Some(children) = self.splits.borrow().get(&place.pointer) {
                let child = children[bit(hash, depth)];
                place = self.geometry.bucket_place(child).ok_or(Error::Damaged)?;
                depth += 1;
                continue;
            }
            if cached
                && let Some(seen) = self.buckets.borrow().get(&place.pointer)
                && seen.epoch == self.epoch.get()
            {
                return Ok(Located { generation: self.generation.get(), ..seen.clone() });
            }
            let located = self.read(group, place, prefix(hash, depth), depth).await?;
            self.remember(&located);
            if let Content::Entries { .. } = located.bucket.content {
                return Ok(located);
            }
        }
        Err(Error::Damaged)
    }

    /// Reads the bucket at `place`, which is known to have this prefix and depth.
    pub(crate) async fn read<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        place: Location,
        prefix: u64,
        depth: u32,
    ) -> Result<Located, Error> {
        let (cell, since) = (self.cell(place), (self.generation.get(), self.epoch.get()));
        let committed = cell::read(group, &cell, &self.created_parts()).await?;
        self.located(cell, since, &committed, prefix, depth)
    }

    /// Returns a bucket with its cell, as its committed record describes it. S5: its prefix and
    /// depth must be those of the place.
    fn located<F: Fabric>(
        &self,
        cell: CellRef,
        (generation, epoch): (u64, u64),
        committed: &cell::Committed<'_, F>,
        prefix: u64,
        depth: u32,
    ) -> Result<Located, Error> {
        let bucket = if committed.is_empty() {
            Bucket::empty(depth, prefix)
        } else {
            Bucket::decode(committed).ok_or(Error::Damaged)?
        };
        if bucket.depth != depth || bucket.prefix != prefix {
            return Err(Error::Damaged);
        }
        Ok(Located { cell, view: committed.view, bucket, generation, epoch })
    }

    /// Returns the first bucket for a hash, and its depth.
    pub(crate) fn root(&self, hash: u64) -> (Location, u32) {
        let bits = self.geometry.bucket_bits;
        let index = hash.checked_shr(64 - bits).unwrap_or(0);
        (self.geometry.bucket_cell(index as usize), bits)
    }

    /// Returns the cell of a bucket at `place`.
    pub(crate) fn cell(&self, place: Location) -> CellRef {
        CellRef::new(place, self.geometry.bucket_payload)
    }

    /// Caches a bucket. E7: not if it was read in an earlier generation, except splits.
    pub(crate) fn remember(&self, located: &Located) {
        let pointer = located.cell.place.pointer;
        match &located.bucket.content {
            Content::Entries { .. } if located.generation != self.generation.get() => {}
            Content::Entries { .. } => {
                self.buckets.borrow_mut().insert(pointer, located.clone());
            }
            Content::Split(children) => {
                self.splits.borrow_mut().insert(pointer, children.map(|child| child.cell));
                self.forget(pointer);
            }
        }
    }

    /// Drops a cached bucket.
    pub(crate) fn forget(&self, cell: Pointer) {
        self.buckets.borrow_mut().remove(&cell);
    }
}

/// Returns which child of a bucket of this depth covers `hash`.
pub(crate) fn bit(hash: u64, depth: u32) -> usize {
    ((hash << depth) >> 63) as usize
}

/// Returns the leading `depth` bits of `hash`.
pub(crate) fn prefix(hash: u64, depth: u32) -> u64 {
    if depth == 0 { 0 } else { hash >> (64 - depth) << (64 - depth) }
}

/// What is created together with a bucket's record: a register, or the two cells of a split.
pub(crate) struct BucketCreatedParts<'a>(&'a Geometry);

impl CreatedParts for BucketCreatedParts<'_> {
    fn created_parts(&self, payload: &[u64], each: &mut dyn FnMut(CreatedPart)) {
        match Bucket::decode(payload).map(|bucket| bucket.content) {
            Some(Content::Entries { entries, created: Some(created) }) => {
                let entry = &entries[created.entry];
                let new_register = match entry.object(self.0) {
                    Some(KeyObject::Register(new_register)) => new_register,
                    Some(KeyObject::Cell(new_register)) => {
                        return self.keyed_cell(&new_register, created, each);
                    }
                    None => return,
                };
                let (place, shape) = (new_register.place, new_register.shape());
                let header = shape.header_place(&place);
                each(CreatedPart::Copy { place: header, from: 0, words: shape.header_words() });
                let words = register::IDENTITY_WORDS;
                each(CreatedPart::Copy { place, from: register::IDENTITY, words });
                let first = self.0.placement().first_site(created.buffer, &place);
                let words = created.words.saturating_sub(buffer::REWRITE);
                // All nodes have it, the home in place. Otherwise the record is damaged.
                if first.holders.len() == self.0.nodes {
                    each(CreatedPart::Copy { place: first.place, from: buffer::REWRITE, words });
                }
                // V6: a register that was deleted when it moved is created deleted.
                let stamp = if created.deleted { deleted_stamp } else { first_stamp };
                let value = stamp(self.0.format, created.buffer).0;
                each(CreatedPart::Set { place, at: register::SLOTS_AT, value });
            }
            Some(Content::Split(children)) => {
                children.iter().for_each(|child| self.child(child, each));
            }
            _ => {}
        }
    }
}

impl BucketCreatedParts<'_> {
    /// The in-place copy is a hint, and left out.
    fn keyed_cell(
        &self,
        new_register: &KeyedCell,
        created: Created,
        each: &mut dyn FnMut(CreatedPart),
    ) {
        let (place, shape) = (new_register.at.place, new_register.shape);
        let header = shape.header_place(&place);
        each(CreatedPart::Copy { place: header, from: 0, words: shape.header_words() });
        let words = register::IDENTITY_WORDS;
        each(CreatedPart::Copy { place, from: register::IDENTITY, words });
        self.first_record(created.buffer, created.words, place, each);
    }

    /// A cell's first record, and the word that names it (S1).
    fn first_record(
        &self,
        record: Pointer,
        words: usize,
        cell: Location,
        each: &mut dyn FnMut(CreatedPart),
    ) {
        let everywhere = Location::everywhere(record, NodeId(0));
        let words = words.saturating_sub(record::BODY);
        each(CreatedPart::Copy { place: everywhere, from: record::BODY, words });
        each(CreatedPart::Set { place: everywhere, at: record::ACCEPTED, value: FIRST_BALLOT.0 });
        let value = first_word(self.0.format, record).0;
        each(CreatedPart::Set { place: cell, at: layout::cell::WORD, value });
    }

    fn child(&self, child: &Child, each: &mut dyn FnMut(CreatedPart)) {
        let Some(place) = self.0.bucket_place(child.cell) else { return };
        self.first_record(child.record, child.words, place, each);
    }
}

/// A walk over all buckets below one of the first ones, split or not.
#[derive(Clone)]
pub(crate) struct Walk {
    stack: Vec<(Location, u64, u32), { 2 * MAX_DEPTH as usize }>,
}

impl Walk {
    /// Where the next bucket lies.
    pub(crate) fn next_place(&self) -> Option<Location> {
        self.stack.last().map(|&(place, ..)| place)
    }

    /// The first hash that it covers.
    pub(crate) fn next_prefix(&self) -> u64 {
        self.stack.last().map_or(0, |&(_, prefix, _)| prefix)
    }
}

impl Index {
    /// Starts a walk over first bucket number `index` and all buckets below it.
    pub(crate) fn walk(&self, index: usize) -> Walk {
        let mut walk = Walk { stack: Vec::new() };
        self.walk_again(&mut walk, index);
        walk
    }

    /// Begins a walk anew, over the buckets that stand for first bucket number `index`.
    pub(crate) fn walk_again(&self, walk: &mut Walk, index: usize) {
        walk.stack.clear();
        let root = self.first(index);
        walk.stack.push(root).expect("an empty stack has room");
    }

    /// First bucket number `index`: where it lies, its prefix and depth.
    fn first(&self, index: usize) -> (Location, u64, u32) {
        let bits = self.geometry.bucket_bits;
        let prefix = if bits == 0 { 0 } else { (index as u64) << (64 - bits) };
        (self.geometry.bucket_cell(index), prefix, bits)
    }

    /// Returns the next bucket of a walk, split or not.
    pub(crate) async fn step<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        walk: &mut Walk,
    ) -> Result<Option<Located>, Error> {
        let Some((place, prefix, depth)) = walk.stack.pop() else { return Ok(None) };
        let located = self.read(group, place, prefix, depth).await?;
        self.descend(walk, &located)?;
        Ok(Some(located))
    }

    /// The same once its cell has converged (E6); an error if other clients go on changing it.
    pub(crate) async fn quiet_step<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        walk: &mut Walk,
    ) -> Result<Option<Located>, Error> {
        let Some((place, prefix, depth)) = walk.stack.pop() else { return Ok(None) };
        let (cell, since) = (self.cell(place), (self.generation.get(), self.epoch.get()));
        let converged = cell::converged(group, &cell, &self.created_parts()).await?;
        let committed = converged.ok_or(Error::Contended)?;
        let located = self.located(cell, since, &committed, prefix, depth)?;
        self.descend(walk, &located)?;
        Ok(Some(located))
    }

    /// The same once its cell is at `node` as well, which `joining` posts to and the client's own
    /// fabric does not (H2).
    pub(crate) async fn fill_step<F: Fabric, N: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        walk: &mut Walk,
        joining: (&N, NodeId),
    ) -> Result<Option<Located>, Error> {
        let Some((place, prefix, depth)) = walk.stack.pop() else { return Ok(None) };
        let (cell, since) = (self.cell(place), (self.generation.get(), self.epoch.get()));
        let committed = cell::fill(group, &cell, &self.created_parts(), joining).await?;
        let located = self.located(cell, since, &committed, prefix, depth)?;
        self.descend(walk, &located)?;
        Ok(Some(located))
    }

    /// Returns how many first buckets in a row, from number `index` on, are vacant at every node,
    /// as far as one chain shows. Such a bucket has converged, and names nothing (E6). One
    /// roundtrip.
    pub(crate) async fn vacant<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        index: usize,
    ) -> Result<usize, Error> {
        let buckets = (index..self.geometry.first_buckets()).take(MAX_VERBS);
        let cells: Vec<Location, MAX_VERBS> =
            buckets.map(|index| self.geometry.bucket_cell(index)).collect();
        let read = |node| {
            let word = |cell: &Location| cell.at(node, group.nodes()).plus(layout::cell::WORD);
            let chain: Vec<Verb<'_>, MAX_VERBS> =
                cells.iter().map(|cell| Verb::Read { at: word(cell), words: 1 }).collect();
            group.fabric().post(node, &chain)
        };
        let mut vacant = cells.len();
        let collect = |_, reply: F::Reply<'_>| {
            let named = reply.iter().position(|&word| CellWord(word) != CellWord(0));
            vacant = vacant.min(named.unwrap_or(cells.len()));
        };
        group.everywhere(read, collect).await?;
        Ok(vacant)
    }

    /// Continues a walk with a bucket's children, if it was split.
    fn descend(&self, walk: &mut Walk, located: &Located) -> Result<(), Error> {
        let Content::Split(children) = &located.bucket.content else { return Ok(()) };
        self.remember(located);
        let Bucket { prefix, depth, .. } = located.bucket;
        for (bit, child) in children.iter().enumerate().rev() {
            let place = self.geometry.bucket_place(child.cell).ok_or(Error::Damaged)?;
            let prefix = prefix | ((bit as u64) << (63 - depth.min(63)));
            walk.stack.push((place, prefix, depth + 1)).map_err(|_| Error::Damaged)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::node::NodeId;
    use swarm_core::quorum::Session;
    use swarm_core::words::{GRANULE_WORDS, Incarnation};

    use super::*;
    use crate::client::handle::{Client, Options};
    use swarm_core::sim::explore::LoneClock;

    use crate::heap::tests::still;
    use crate::runtime::block_on::block_on;

    fn pool(nodes: usize) -> (Geometry, Loopback) {
        let geometry = Geometry::new(nodes, 4 << 20, 2, 1).expect("geometry");
        (geometry, Loopback::new(nodes, 4 << 17))
    }

    fn client(nodes: &Loopback, geometry: Geometry, slot: usize) -> Client<Loopback, LoneClock> {
        let session = Session { client: slot, incarnation: Incarnation(slot as u64 + 1) };
        Client::new(nodes.clone(), still(), geometry, session, Options::default())
    }

    /// A bucket that was copied to another's place is intact, but not that one: what it does not
    /// list may exist all the same.
    #[test]
    fn a_bucket_in_anothers_place_is_damaged() {
        let (geometry, nodes) = pool(1);
        let [writer, reader] = [0, 1].map(|slot| client(&nodes, geometry, slot));
        let at = |key: &[u8]| {
            let hash = writer.check(key, &[]).expect("a key");
            writer.index.root(hash).0.at(NodeId(0), 1)
        };
        let others = (0..100_u8).map(|number| [number]);
        let (key, other) = (*b"key", others.into_iter().find(|other| at(other) != at(b"key")));
        let other = other.expect("there are many buckets");
        assert_eq!(block_on(writer.insert(&key, b"value")), Ok(true));
        assert!(block_on(reader.get(&other)).expect("an empty bucket").is_none());
        let [first, second] = [0, 1].map(|index| geometry.bucket_cell(index).pointer.0);
        for word in 0..(second - first) as usize * GRANULE_WORDS {
            let copy = nodes.word(NodeId(0), at(&key).plus(word));
            nodes.set_word(NodeId(0), at(&other).plus(word), copy);
        }
        let outcome = block_on(reader.get(&other)).map(drop);
        assert_eq!(outcome, Err(Error::Damaged.into()));
    }

    /// The bucket's record may be reused by then.
    #[test]
    fn a_bucket_that_was_seen_in_an_earlier_epoch_is_not_gone_by() {
        let (geometry, nodes) = pool(1);
        let [writer, reader] = [0, 1].map(|slot| client(&nodes, geometry, slot));
        let hash = reader.check(b"key", &[]).expect("a key");
        let cached = |epoch| {
            reader.index.enter(epoch);
            let located = block_on(reader.index.cached(&reader.group, hash)).expect("a node");
            located.view.record()
        };
        assert!(cached(4).is_null());
        assert_eq!(block_on(writer.insert(b"key", b"value")), Ok(true));
        assert!(cached(4).is_null(), "as last seen");
        assert!(!cached(5).is_null());
    }

    /// A first bucket in which a single node names something is walked like any other, whichever
    /// node that is.
    #[test]
    fn first_buckets_are_vacant_if_they_are_at_every_node() {
        for node in (0..3).map(NodeId) {
            let (geometry, nodes) = pool(3);
            let client = client(&nodes, geometry, 0);
            let vacant = |index| block_on(client.index.vacant(&client.group, index));
            let all = geometry.first_buckets();
            assert!(all > 2 * MAX_VERBS);
            assert_eq!(vacant(0), Ok(MAX_VERBS));
            assert_eq!(vacant(all - 2), Ok(2));
            let cell = geometry.bucket_cell(5).at(node, 3).plus(layout::cell::WORD);
            nodes.set_word(node, cell, 1 << 40);
            assert_eq!((vacant(0), vacant(5), vacant(6)), (Ok(5), Ok(0), Ok(MAX_VERBS)));
        }
    }

    #[test]
    fn bits_and_prefixes_of_a_hash() {
        let hash = 0b1011 << 60;
        assert_eq!([bit(hash, 0), bit(hash, 1), bit(hash, 2), bit(hash, 63)], [1, 0, 1, 0]);
        assert_eq!(prefix(hash, 2), 0b10 << 62);
        assert_eq!(prefix(hash, 0), 0);
        assert_eq!(prefix(u64::MAX, 64), u64::MAX);
    }
}
