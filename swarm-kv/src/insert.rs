//! Insert: one change of a bucket's cell, whose chains carry the newborn register in front.
//!
//! Who wins is decided by the cell. A bucket that is full first loses the keys that were deleted,
//! or splits.

use heapless::Vec;
use swarm_core::cell::{self, Proposal, Proposed};
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Class, Identity, MAX_IN_PLACE, Place, Shape, record, words_for};
use swarm_core::node::NodeId;
use swarm_core::register::{Check, Found, Protocol, Register, Write};
use swarm_core::words::Pointer;

use crate::bucket::{Bucket, Child, Content, Entry, MAX_DEPTH, MAX_ENTRIES, SPLIT_PAYLOAD, shape};
use crate::client::{Client, TRIES};
use crate::error::Error;
use crate::heap::{Kind, Need};
use crate::index::{Located, bit};
use crate::locate::entries;
use crate::newborn::{NewChild, NewRegister};

/// Whether a change ended before it posted anything: for want of memory or of a number, or behind another operation
/// of this client that keeps it from those. No node has heard of what was to be born with it.
pub(crate) fn has_no_memory<T>(change: &Result<T, Error>) -> bool {
    matches!(change, Err(Error::Full(_) | Error::Spent | Error::Unfinished))
}

/// What an insert found under its key's hash.
enum Before {
    /// The key is there.
    Exists,
    /// The key is not there; the entry to replace, if it was there and is deleted.
    Absent(Option<Entry>),
    /// A register under the hash was on the move, and is no longer.
    Moved,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Inserts the key. False if it is there.
    pub(crate) async fn insert_now(
        &self,
        hash: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        let mut newborn = None::<NewRegister<'_>>;
        let mut located = self.index.cached(&self.group, hash).await?;
        for _ in 0..TRIES {
            let dead = match self.before(&located, hash, key).await? {
                Before::Exists => return Ok(false),
                Before::Absent(dead) => dead,
                Before::Moved => {
                    located = self.index.fresh(&self.group, hash).await?;
                    continue;
                }
            };
            if self.is_worn(&located) {
                located = self.in_young_cells(located, hash).await?;
                continue;
            }
            if dead.is_none() && located.bucket.is_full(&self.geometry) {
                located = self.make_room(located, hash).await?;
                continue;
            }
            // Who is stuck behind the dead one finds out by the link.
            let link = dead.filter(|dead| dead.linked).map(|dead| dead.predecessor(self.ended()));
            // A register that was proposed in vain is known to no one: it is proposed again. Not
            // with another header, over which a late copy of the first one might come.
            let (newborn, is_new) = match &mut newborn {
                Some(newborn) if newborn.predecessor == link => (newborn, false),
                other => {
                    let fresh = self.bear(hash, key, value).await?;
                    (other.insert(NewRegister { predecessor: link, ..fresh }), true)
                }
            };
            let proposed = self.propose(&located, hash, newborn, dead).await;
            if is_new && has_no_memory(&proposed) {
                self.heap.take_back(newborn.buffer);
                self.heap.take_back_unused(newborn.register.place.pointer);
            }
            if proposed? {
                let register = newborn.seen_from(self.geometry.format, self.group.slot());
                self.locations.insert(key, register, located.generation);
                return Ok(true);
            }
            self.index.forget(located.cell.place.pointer);
            located = self.index.fresh(&self.group, hash).await?;
        }
        Err(Error::Contended)
    }

    /// Whether the key is there, as far as the bucket at hand and the registers that it lists tell.
    ///
    /// A bucket that is out of date does no harm: a register that has a value is mapped, and a
    /// proposal on an old record is lost.
    async fn before(&self, located: &Located, hash: u64, key: &[u8]) -> Result<Before, Error> {
        let mut dead = None;
        for entry in entries(located, hash, key) {
            let Some(mut register) = entry.register(&self.geometry) else { continue };
            match P::read(&self.group, &mut register, Check::Key(key)).await {
                Ok(Found::Value(_)) => {
                    self.locations.insert(key, register, located.generation);
                    return Ok(Before::Exists);
                }
                Ok(Found::Deleted) => dead = Some(*entry),
                Ok(Found::OtherKey) => {}
                Err(swarm_core::error::Error::Moved) => {
                    self.move_on(hash, &register, 0, Need::Move).await?;
                    return Ok(Before::Moved);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Before::Absent(dead))
    }

    /// A register for the key, in memory of its own, before any node has it.
    async fn bear<'a>(
        &self,
        hash: u64,
        key: &'a [u8],
        value: &'a [u8],
    ) -> Result<NewRegister<'a>, Error> {
        let capacity = if value.len() <= MAX_IN_PLACE { words_for(value.len()) } else { 0 };
        let wanted = Shape { key_length: key.len(), capacity };
        let (place, shape, write) = self.room(hash, wanted, value, Need::More).await?;
        let identity = Identity { birth: self.group.now(), number: write.number };
        let (register, buffer) = (Register::new(place, identity, shape), write.buffer);
        Ok(NewRegister { register, buffer, key, value, deleted: false, predecessor: None })
    }

    /// Memory for a register with room in place for at least so many words, and for a write of `value`.
    pub(crate) async fn room<'v>(
        &self,
        hash: u64,
        wanted: Shape,
        value: &'v [u8],
        need: Need,
    ) -> Result<(Place, Shape, Write<'v>), Error> {
        let (n, first) = (self.geometry.nodes, self.home(hash).index());
        let mut told = None;
        // Where there is no room at its home, another one is.
        for home in (0..n).map(|step| NodeId(((first + step) % n) as u8)) {
            match self.room_at(home, wanted, value, need).await {
                Err(Error::Full(shortage)) => _ = told.get_or_insert(Error::Full(shortage)),
                room => return room,
            }
        }
        Err(told.unwrap_or(Error::Contended))
    }

    /// The same for a register with this home. Its buffer first, which is as quickly given back.
    async fn room_at<'v>(
        &self,
        home: NodeId,
        wanted: Shape,
        value: &'v [u8],
        need: Need,
    ) -> Result<(Place, Shape, Write<'v>), Error> {
        let class = self.geometry.register_class(wanted.small_words(), wanted.full_words());
        let shape = shape(class, wanted.key_length).expect("the class was chosen for the key");
        let kind = self.first_buffer(home, shape, value);
        let write = self.new_write(kind, value, need, false).await?;
        match self.room_for_register(self.heap.homed(class, home), class, need).await {
            Ok(place) => Ok((place, shape, write)),
            Err(error) => {
                self.heap.take_back(write.buffer);
                Err(error)
            }
        }
    }

    /// The kind of the first buffer of a register of this home and shape that begins with `value`.
    pub(crate) fn first_buffer(&self, home: NodeId, shape: Shape, value: &[u8]) -> Kind {
        self.heap.first_buffer(value.len(), home, value.len() <= 8 * shape.capacity)
    }

    async fn room_for_register(
        &self,
        kind: Kind,
        class: Class,
        need: Need,
    ) -> Result<Place, Error> {
        let pointer = self.allocate_there(kind, need).await?;
        let place =
            self.geometry.homed_place(pointer, class).ok_or(swarm_core::error::Error::Damaged)?;
        Ok(place)
    }

    /// Proposes the bucket with the newborn in it. False if another change came first.
    async fn propose(
        &self,
        located: &Located,
        hash: u64,
        newborn: &NewRegister<'_>,
        dead: Option<Entry>,
    ) -> Result<bool, Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else { return Ok(false) };
        let mut entries: Vec<Entry, MAX_ENTRIES> =
            entries.iter().filter(|e| Some(**e) != dead).copied().collect();
        let born = newborn.born(entries.len());
        if entries.push(newborn.entry(&self.geometry, hash)).is_err() {
            return Ok(false);
        }
        let content = Content::Entries { entries, born: Some(born) };
        let bucket = Bucket { content, ..located.bucket };
        let image = newborn.image(self.geometry.format);
        let parts = newborn.parts(&image, self.group.buffers());
        self.change(located, bucket, &parts, Need::Instead).await
    }

    /// Changes a bucket to `bucket`. False if another change came first. Where it [ends before](has_no_memory)
    /// it has a record and a number, no node has heard of it.
    pub(crate) async fn change(
        &self,
        located: &Located,
        bucket: Bucket,
        newborns: &[cell::Newborn<'_>],
        need: Need,
    ) -> Result<bool, Error> {
        let payload = bucket.encode();
        let change = self.number()?;
        let record = self.record(&bucket.content, need).await?;
        let proposal = Proposal { change, record, payload: &payload, newborns, sparing: false };
        let births = self.index.births();
        let proposed =
            cell::propose(&self.group, &located.cell, &located.view, &proposal, &births).await?;
        let Proposed::Committed(view) = proposed else { return Ok(false) };
        self.has_changed(located, record, &bucket.content);
        if view.record() == record {
            self.index.remember(&Located { view, bucket, ..*located });
        } else {
            // Others have built on it. Their record says more than this bucket: to propose this
            // one's entries on it would take theirs away.
            self.index.forget(located.cell.place.pointer);
        }
        Ok(true)
    }

    /// A change of this client's is committed: the record that it replaced may come back.
    fn has_changed(&self, before: &Located, record: Pointer, content: &Content) {
        let Some(presence) = &self.presence else { return };
        let cell = before.cell.place.pointer;
        self.heap.has_replaced(presence.board(), cell, (before.view.record(), record));
        match content {
            Content::Split(children) => self.heap.has_split(cell, record, *children),
            Content::Entries { entries, born } => {
                let born = born.as_ref().filter(|born| !born.deleted);
                let first = born.map(|born| (entries[born.entry].pointer, born.buffer));
                self.heap.has_borne(record, first);
            }
        }
    }

    /// Memory for a bucket's record, which takes the place of the one before.
    ///
    /// All with entries are of one size. Hashes fill buckets evenly, so that at any time most are
    /// of few sizes, and what came back of the others would be of no use.
    async fn record(&self, content: &Content, need: Need) -> Result<Pointer, Error> {
        // Without a board none come back.
        if self.presence.is_some() {
            self.heap.takes_a_record();
        }
        self.allocate(self.record_kind(content), need).await
    }

    /// What a bucket's record is.
    pub(crate) fn record_kind(&self, content: &Content) -> Kind {
        match content {
            Content::Entries { .. } => self.heap.entries_records(),
            Content::Split(_) => self.heap.plain(record::HEADER_WORDS + SPLIT_PAYLOAD),
        }
    }

    /// Makes room in a full bucket: drops deleted keys, or splits it. Yields the bucket that now
    /// covers the hash.
    #[cold]
    async fn make_room(&self, located: Located, hash: u64) -> Result<Located, Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else {
            return Ok(self.index.fresh(&self.group, hash).await?);
        };
        let mut live = Vec::<Entry, MAX_ENTRIES>::new();
        for entry in entries {
            let Some(mut register) = entry.register(&self.geometry) else { continue };
            let found = match P::read(&self.group, &mut register, Check::Identity).await {
                Err(swarm_core::error::Error::Moved) => {
                    self.move_on(entry.hash, &register, 0, Need::Move).await?;
                    return Ok(self.index.fresh(&self.group, hash).await?);
                }
                found => found?,
            };
            // A writer that is stuck behind a linked one needs it.
            if !matches!(found, Found::Deleted) || entry.linked {
                live.push(*entry).expect("no more than there were");
            }
        }
        if live.len() < entries.len() {
            let content = Content::Entries { entries: live, born: None };
            let bucket = Bucket { content, ..located.bucket };
            self.change(&located, bucket, &[], Need::Instead).await?;
        } else {
            self.split(&located, hash).await?;
        }
        self.index.forget(located.cell.place.pointer);
        Ok(self.index.fresh(&self.group, hash).await?)
    }

    /// Whether a bucket's cell is near the end of its ballots. A bucket that cannot be split takes changes to the end.
    #[inline]
    pub(crate) fn is_worn(&self, located: &Located) -> bool {
        located.view.is_worn(self.geometry.format) && located.bucket.depth < MAX_DEPTH
    }

    /// Has the keys of a worn bucket go on in two cells that are young. Yields the bucket that now covers
    /// the hash.
    #[cold]
    async fn in_young_cells(&self, located: Located, hash: u64) -> Result<Located, Error> {
        self.split(&located, hash).await?;
        self.index.forget(located.cell.place.pointer);
        Ok(self.index.fresh(&self.group, hash).await?)
    }

    /// The bucket that covers `hash`, as it is now, in a cell that can be changed.
    pub(crate) async fn fresh_to_change(&self, hash: u64) -> Result<Located, Error> {
        let mut located = self.index.fresh(&self.group, hash).await?;
        for _ in 0..TRIES {
            if !self.is_worn(&located) {
                return Ok(located);
            }
            located = Box::pin(self.in_young_cells(located, hash)).await?;
        }
        Err(Error::Contended)
    }

    /// Splits a bucket in two. Whether this change or another came first shows when it is read.
    async fn split(&self, located: &Located, hash: u64) -> Result<(), Error> {
        let mut taken = Vec::new();
        let split = self.split_with(located, hash, &mut taken).await;
        if has_no_memory(&split) {
            // No node has heard of it.
            taken.into_iter().for_each(|object| self.heap.take_back_unused(object));
        }
        split
    }

    /// The same; `taken`: its children's cells and records.
    async fn split_with(
        &self,
        located: &Located,
        hash: u64,
        taken: &mut Vec<Pointer, 4>,
    ) -> Result<(), Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else { return Ok(()) };
        let depth = located.bucket.depth;
        if depth == MAX_DEPTH {
            return Err(Error::Crowded);
        }
        let change = self.number()?;
        let mut children = Vec::<(Child, NewChild), 2>::new();
        for side in 0..2 {
            let prefix = located.bucket.prefix | ((side as u64) << (63 - depth));
            let entries = entries.iter().filter(|e| bit(e.hash, depth) == side).copied().collect();
            let content = Content::Entries { entries, born: None };
            let bucket = Bucket { depth: depth + 1, prefix, content };
            let home = NodeId(((hash as usize + side) % self.geometry.nodes) as u8);
            let kind = self.heap.homed(self.geometry.bucket_class(), home);
            // The key that it makes room for has found its memory already, and waits for this alone.
            let cell = self.allocate(kind, Need::Instead).await?;
            taken.push(cell).expect("two children");
            let place =
                self.geometry.bucket_place(cell).ok_or(swarm_core::error::Error::Damaged)?;
            let record = self.record(&bucket.content, Need::Instead).await?;
            taken.push(record).expect("two children");
            let child = NewChild::new(&self.geometry, place, record, change, &bucket);
            let named = Child { cell, record, words: child.record_words() };
            let pushed = children.push((named, child));
            debug_assert!(pushed.is_ok(), "two children");
        }
        let parts: Vec<cell::Newborn<'_>, 8> =
            children.iter().flat_map(|(_, child)| child.parts()).collect();
        let named = [children[0].0, children[1].0];
        let bucket = Bucket { content: Content::Split(named), ..located.bucket };
        self.change(located, bucket, &parts, Need::Instead).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::MAX_ENTRIES;
    use crate::blocking::block_on;
    use crate::client::tests::alone;
    use crate::error::Error;

    /// However often a bucket splits, keys of one hash stay together. Where there are as many as it lists, one more is
    /// refused and nothing of it is there; the others are, and once one of them is deleted there is room.
    #[test]
    fn of_one_hash_there_are_as_many_keys_as_a_bucket_lists() {
        const HASH: u64 = 0x5a5a_0123_89ab_cdef;
        let client = alone();
        let name = |number: usize| format!("key {number}").into_bytes();
        let insert = |number| block_on(client.insert_now(HASH, &name(number), b"value"));
        let is_there = |number| {
            let got = block_on(client.get_by_index(HASH, &name(number)));
            got.expect("a node").is_some()
        };
        for number in 0..MAX_ENTRIES {
            assert_eq!(insert(number), Ok(true), "key {number}");
        }
        for _ in 0..2 {
            assert_eq!(insert(MAX_ENTRIES), Err(Error::Crowded));
            assert_eq!(insert(0), Ok(false), "it is one of them");
            assert!((0..MAX_ENTRIES).all(is_there) && !is_there(MAX_ENTRIES));
        }
        assert_eq!(block_on(client.delete_now(HASH, &name(3))), Ok(()));
        assert_eq!(insert(MAX_ENTRIES), Ok(true));
        assert!((0..=MAX_ENTRIES).all(|number| is_there(number) == (number != 3)));
    }
}
