//! Insert: one change of a bucket's cell. Its chains carry the new register before the record and
//! the word (S1).
//!
//! The cell decides which insert wins (S4). A full bucket first drops deleted keys, or splits.

use heapless::Vec;
use swarm_core::cell::{self, Proposal, Proposed};
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{ChunkClass, Identity, Location, Shape, record, words_in_place};
use swarm_core::node::NodeId;
use swarm_core::register::{Check, Found, Protocol, Register, Write};
use swarm_core::words::Pointer;

use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::heap::{ObjectKind, Purpose};
use crate::index::bucket::{
    Bucket, Child, Content, Created, Entry, KeyObject, MAX_DEPTH, MAX_ENTRIES, SPLIT_PAYLOAD, shape,
};
use crate::index::created::{NewChild, NewRegister};
use crate::index::keyed_cell::Kind;
use crate::index::lookup::{Located, bit};
use crate::ops::locate::entries;

/// Whether a change ended before it posted anything: for want of memory or of a number, or because
/// another operation of this client keeps it from those. No node has received what was to be
/// created with it.
pub(crate) fn has_no_memory<T>(change: &Result<T, Error>) -> bool {
    matches!(change, Err(Error::Full(_) | Error::NumbersExhausted | Error::Unfinished))
}

/// What an insert found under its key's hash.
enum Before {
    /// The key is there.
    Exists,
    /// The key is not there; if it was deleted, the entry to replace.
    Absent(Option<Entry>),
    /// A register under the hash was being moved, and is no longer; or the bucket is out of date.
    Moved,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Inserts the key. Returns false if it is there.
    pub(crate) async fn insert_now(
        &self,
        hash: u64,
        key: &[u8],
        value: &[u8],
    ) -> Result<bool, Error> {
        let mut new_register = None::<NewRegister<'_>>;
        let mut located = self.index.cached(&self.group, hash).await?;
        for _ in 0..TRIES {
            let dead;
            (located, dead) = match self.with_room(located, hash, key).await? {
                Some(found) => found,
                None => return Ok(false),
            };
            // V5: a writer whose register this entry replaced finds out by the link.
            let link = dead.filter(|dead| dead.linked).map(|dead| dead.predecessor(self.ended()));
            // A register that was proposed in vain is unknown to all other clients: it is proposed
            // again, unless its header would change: a late copy of the first one could overwrite
            // the new one.
            let (new_register, is_new) = match &mut new_register {
                Some(new_register) if new_register.predecessor == link => (new_register, false),
                other => {
                    let fresh = self.prepare_register(hash, key, value).await?;
                    (other.insert(NewRegister { predecessor: link, ..fresh }), true)
                }
            };
            let proposed = self.propose(&located, hash, new_register, dead).await;
            if is_new && has_no_memory(&proposed) {
                self.heap.take_back(new_register.buffer);
                self.heap.take_back_unused(new_register.register.place.pointer);
            }
            if proposed? {
                self.wake(hash);
                let register = new_register.seen_from(self.geometry.format, self.group.slot());
                self.locations.insert(key, register, located.generation);
                return Ok(true);
            }
            located = self.again(&located, hash).await?;
        }
        Err(Error::Contended)
    }

    /// Sees to it that the bucket can list a key that is not there. Returns the bucket, and the entry to
    /// replace if the key was deleted; `None` if the key is there.
    pub(crate) async fn with_room(
        &self,
        mut located: Located,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(Located, Option<Entry>)>, Error> {
        for _ in 0..TRIES {
            let dead = match self.before(&located, hash, key).await? {
                Before::Exists => return Ok(None),
                Before::Absent(dead) => dead,
                Before::Moved => {
                    located = self.index.fresh(&self.group, hash).await?;
                    continue;
                }
            };
            if self.is_worn(&located) {
                located = self.in_young_cells(located, hash).await?;
            } else if dead.is_none() && located.bucket.is_full(&self.geometry) {
                located = self.make_room(located, hash).await?;
            } else {
                return Ok(Some((located, dead)));
            }
        }
        Err(Error::Contended)
    }

    /// Returns the bucket as it is now, after a change of it that was lost.
    pub(crate) async fn again(&self, located: &Located, hash: u64) -> Result<Located, Error> {
        self.index.forget(located.cell.place.pointer);
        Ok(self.index.fresh(&self.group, hash).await?)
    }

    /// Returns whether the key is there, by this bucket and the registers that it lists.
    ///
    /// S4: a bucket that is out of date does no harm. A register that has a value is listed, as is a cell that
    /// was not forwarded, and a proposal on an old record is lost.
    async fn before(&self, located: &Located, hash: u64, key: &[u8]) -> Result<Before, Error> {
        let mut dead = None;
        for entry in entries(located, hash, key) {
            let Some(object) = entry.object(&self.geometry) else { continue };
            let mut register = match object {
                KeyObject::Register(register) => register,
                KeyObject::Cell(cell) => {
                    let found = (cell, located.generation);
                    match self.read_listed_cell(hash, key, found).await? {
                        None => {}
                        // Q2: dead for good.
                        Some(shown) if shown.kind == Kind::Absent => dead = Some(*entry),
                        Some(shown) if shown.kind == Kind::Value => return Ok(Before::Exists),
                        // Q3: it has the key's value as long as it is listed, and this bucket may be out of
                        // date.
                        Some(shown) => {
                            let now = self.index.fresh(&self.group, hash).await?;
                            if !now.bucket.lists(cell.at.place.pointer, cell.identity) {
                                return Ok(Before::Moved);
                            }
                            if !self.is_past(shown.deadline) {
                                return Ok(Before::Exists);
                            }
                            // X3: it goes on in another cell, and expires there.
                            self.move_forwarded(hash, key, &cell, &shown).await?;
                            return Ok(Before::Moved);
                        }
                    }
                    continue;
                }
            };
            // S5: a register is the key's by its key, not by its hash.
            match P::read(&self.group, &mut register, Check::Key(key)).await {
                Ok(Found::Value(_)) => {
                    self.locations.insert(key, register, located.generation);
                    return Ok(Before::Exists);
                }
                Ok(Found::Deleted) => dead = Some(*entry),
                Ok(Found::OtherKey) => {}
                Err(swarm_core::error::Error::Moved) => {
                    self.move_on(hash, &register, 0, Purpose::Relocate).await?;
                    return Ok(Before::Moved);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Before::Absent(dead))
    }

    /// Makes a register for the key, in memory of its own, which no node has yet.
    async fn prepare_register<'a>(
        &self,
        hash: u64,
        key: &'a [u8],
        value: &'a [u8],
    ) -> Result<NewRegister<'a>, Error> {
        let wanted = Shape { key_length: key.len(), capacity: words_in_place(value.len()) };
        let (place, shape, write) = self.room(hash, wanted, value, Purpose::Insert).await?;
        let identity = Identity { created_at: self.group.now(), number: write.number };
        let (register, buffer) = (Register::new(place, identity, shape), write.buffer);
        Ok(NewRegister { register, buffer, key, value, deleted: false, predecessor: None })
    }

    /// Allocates a register with room in place for at least as many words as `wanted`, and a buffer
    /// for `value`.
    pub(crate) async fn room<'v>(
        &self,
        hash: u64,
        wanted: Shape,
        value: &'v [u8],
        need: Purpose,
    ) -> Result<(Location, Shape, Write<'v>), Error> {
        self.at_a_home(hash, async |home| self.room_at(home, wanted, value, need).await).await
    }

    /// Returns what `allocate` finds at the home of keys with this hash or, if that has no room, at
    /// the next node that has. If none has, the error is the home's.
    pub(crate) async fn at_a_home<T>(
        &self,
        hash: u64,
        allocate: impl AsyncFn(NodeId) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (n, first) = (self.geometry.nodes, self.home(hash).index());
        let mut outcome = None;
        for home in (0..n).map(|step| NodeId(((first + step) % n) as u8)) {
            match allocate(home).await {
                Err(Error::Full(shortage)) => _ = outcome.get_or_insert(Error::Full(shortage)),
                found => return found,
            }
        }
        Err(outcome.unwrap_or(Error::Contended))
    }

    /// The same for a register with this home. The buffer comes first, as it is easily given back.
    async fn room_at<'v>(
        &self,
        home: NodeId,
        wanted: Shape,
        value: &'v [u8],
        need: Purpose,
    ) -> Result<(Location, Shape, Write<'v>), Error> {
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

    /// Returns the kind of the first buffer of a register of this home and shape that begins with
    /// `value`.
    pub(crate) fn first_buffer(&self, home: NodeId, shape: Shape, value: &[u8]) -> ObjectKind {
        self.heap.first_buffer(value.len(), home, value.len() <= 8 * shape.capacity)
    }

    pub(crate) async fn room_for_register(
        &self,
        kind: ObjectKind,
        class: ChunkClass,
        need: Purpose,
    ) -> Result<Location, Error> {
        let pointer = self.allocate_there(kind, need).await?;
        let place =
            self.geometry.homed_place(pointer, class).ok_or(swarm_core::error::Error::Damaged)?;
        Ok(place)
    }

    /// Proposes the bucket with the new register in it. Returns false if another change came first.
    async fn propose(
        &self,
        located: &Located,
        hash: u64,
        new_register: &NewRegister<'_>,
        dead: Option<Entry>,
    ) -> Result<bool, Error> {
        let image = new_register.image(self.geometry.format);
        let parts = new_register.parts(&image, self.group.placement());
        let (entry, created) =
            (new_register.entry(&self.geometry, hash), |at| new_register.created(at));
        self.propose_entry(located, (entry, &created, &parts), dead).await
    }

    /// The same for an entry that is created with these parts.
    pub(crate) async fn propose_entry(
        &self,
        located: &Located,
        (entry, created, parts): (Entry, &dyn Fn(usize) -> Created, &[cell::InitialWrite<'_>]),
        dead: Option<Entry>,
    ) -> Result<bool, Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else { return Ok(false) };
        let mut entries: Vec<Entry, MAX_ENTRIES> =
            entries.iter().filter(|e| Some(**e) != dead).copied().collect();
        let created = created(entries.len());
        if entries.push(entry).is_err() {
            return Ok(false);
        }
        let content = Content::Entries { entries, created: Some(created) };
        let bucket = Bucket { content, ..located.bucket };
        self.change(located, bucket, parts, Purpose::Replace).await
    }

    /// Changes a bucket to `bucket`. Returns false if another change came first. If it [ends
    /// early](has_no_memory), no node has received anything.
    pub(crate) async fn change(
        &self,
        located: &Located,
        bucket: Bucket,
        initial_writes: &[cell::InitialWrite<'_>],
        need: Purpose,
    ) -> Result<bool, Error> {
        let payload = bucket.encode();
        let change = self.number()?;
        let record = self.record(&bucket.content, need).await?;
        let proposal =
            Proposal { change, record, payload: &payload, initial_writes, sparing: false };
        let created_parts = self.index.created_parts();
        let proposed =
            cell::propose(&self.group, &located.cell, &located.view, &proposal, &created_parts)
                .await?;
        let Proposed::Committed(view) = proposed else { return Ok(false) };
        self.has_changed(located, record, &bucket.content);
        if view.record() == record {
            self.index.remember(&Located { view, bucket, ..*located });
        } else {
            // S4: other clients have built on this change, and their record says more than this
            // bucket. A proposal of this bucket's entries on it would drop theirs.
            self.index.forget(located.cell.place.pointer);
        }
        Ok(true)
    }

    /// Records that a change of this client is committed: the record that it replaced may be
    /// retired.
    fn has_changed(&self, before: &Located, record: Pointer, content: &Content) {
        let Some(participant) = &self.participant else { return };
        let cell = before.cell.place.pointer;
        self.heap.has_replaced(participant.domain(), cell, (before.view.record(), record));
        match content {
            Content::Split(children) => self.heap.has_split(cell, record, *children),
            Content::Entries { entries, created } => {
                let is_register =
                    |created: &&Created| !created.deleted && !entries[created.entry].is_cell;
                let created = created.as_ref().filter(is_register);
                let first = created.map(|created| (entries[created.entry].pointer, created.buffer));
                self.heap.record_created_with(record, first);
            }
        }
    }

    /// Allocates a bucket's record, which replaces the one before.
    ///
    /// All records with entries have one size. Hashes fill buckets evenly, so at any time most
    /// buckets would need few of several sizes, and freed records of the others would be of no use.
    async fn record(&self, content: &Content, need: Purpose) -> Result<Pointer, Error> {
        // Without an epoch domain no record is reclaimed.
        if self.participant.is_some() {
            self.heap.takes_a_record();
        }
        self.allocate(self.record_kind(content), need).await
    }

    /// Returns the kind of a bucket's record.
    pub(crate) fn record_kind(&self, content: &Content) -> ObjectKind {
        match content {
            Content::Entries { .. } => self.heap.entries_records(),
            Content::Split(_) => self.heap.plain(record::HEADER_WORDS + SPLIT_PAYLOAD),
        }
    }

    /// Makes room in a full bucket: drops deleted keys, or splits it. Returns the bucket that now
    /// covers the hash.
    #[cold]
    pub(crate) async fn make_room(&self, located: Located, hash: u64) -> Result<Located, Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else {
            return Ok(self.index.fresh(&self.group, hash).await?);
        };
        let mut live = Vec::<Entry, MAX_ENTRIES>::new();
        for entry in entries {
            let Some(object) = entry.object(&self.geometry) else { continue };
            let KeyObject::Register(mut register) = object else {
                // V5: it names a register as its predecessor.
                live.push(*entry).expect("no more than there were");
                continue;
            };
            let found = match P::read(&self.group, &mut register, Check::Identity).await {
                Err(swarm_core::error::Error::Moved) => {
                    self.move_on(entry.hash, &register, 0, Purpose::Relocate).await?;
                    return Ok(self.index.fresh(&self.group, hash).await?);
                }
                found => found?,
            };
            // V5: writers may need a linked entry to find out about their writes.
            if !matches!(found, Found::Deleted) || entry.linked {
                live.push(*entry).expect("no more than there were");
            }
        }
        if live.len() < entries.len() {
            let content = Content::Entries { entries: live, created: None };
            let bucket = Bucket { content, ..located.bucket };
            self.change(&located, bucket, &[], Purpose::Replace).await?;
        } else {
            self.split(&located, hash).await?;
        }
        self.index.forget(located.cell.place.pointer);
        Ok(self.index.fresh(&self.group, hash).await?)
    }

    /// Whether a bucket's cell is nearly exhausted: few ballots are left (S6). A bucket that cannot
    /// be split takes changes to the end.
    #[inline]
    pub(crate) fn is_worn(&self, located: &Located) -> bool {
        located.view.is_worn(self.geometry.format) && located.bucket.depth < MAX_DEPTH
    }

    /// Splits a bucket whose cell is nearly exhausted: its keys go on in two new cells (S6).
    /// Returns the bucket that now covers the hash.
    #[cold]
    pub(crate) async fn in_young_cells(
        &self,
        located: Located,
        hash: u64,
    ) -> Result<Located, Error> {
        self.split(&located, hash).await?;
        self.index.forget(located.cell.place.pointer);
        Ok(self.index.fresh(&self.group, hash).await?)
    }

    /// Returns the bucket that covers `hash`, as it is now, in a cell that can be changed.
    ///
    /// # Errors
    /// `Exhausted` if there is none: the bucket cannot be split.
    pub(crate) async fn fresh_to_change(&self, hash: u64) -> Result<Located, Error> {
        let mut located = self.index.fresh(&self.group, hash).await?;
        for _ in 0..TRIES {
            if !self.is_worn(&located) {
                if located.view.is_exhausted(self.geometry.format) {
                    return Err(swarm_core::error::Error::Exhausted.into());
                }
                return Ok(located);
            }
            located = Box::pin(self.in_young_cells(located, hash)).await?;
        }
        Err(Error::Contended)
    }

    /// Splits a bucket in two. Whether this change or another came first shows when the bucket is
    /// read.
    async fn split(&self, located: &Located, hash: u64) -> Result<(), Error> {
        let mut taken = Vec::new();
        let split = self.split_with(located, hash, &mut taken).await;
        if has_no_memory(&split) {
            // No node has received it.
            taken.into_iter().for_each(|object| self.heap.take_back_unused(object));
        }
        split
    }

    /// The same; adds the cells and records of the children to `taken`.
    async fn split_with(
        &self,
        located: &Located,
        hash: u64,
        taken: &mut Vec<Pointer, 4>,
    ) -> Result<(), Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else { return Ok(()) };
        let depth = located.bucket.depth;
        if depth == MAX_DEPTH {
            return Err(Error::TooManyCollisions);
        }
        let change = self.number()?;
        let mut children = Vec::<(Child, NewChild), 2>::new();
        for side in 0..2 {
            let prefix = located.bucket.prefix | ((side as u64) << (63 - depth));
            let entries = entries.iter().filter(|e| bit(e.hash, depth) == side).copied().collect();
            let content = Content::Entries { entries, created: None };
            let bucket = Bucket { depth: depth + 1, prefix, content };
            let home = NodeId(((hash as usize + side) % self.geometry.nodes) as u8);
            let kind = self.heap.homed(self.geometry.bucket_class(), home);
            // A replacement: the key for which this makes room has its memory already, and needs
            // only the split.
            let cell = self.allocate(kind, Purpose::Replace).await?;
            taken.push(cell).expect("two children");
            let place =
                self.geometry.bucket_place(cell).ok_or(swarm_core::error::Error::Damaged)?;
            let record = self.record(&bucket.content, Purpose::Replace).await?;
            taken.push(record).expect("two children");
            let child = NewChild::new(&self.geometry, place, record, change, &bucket);
            let named = Child { cell, record, words: child.record_words() };
            let pushed = children.push((named, child));
            debug_assert!(pushed.is_ok(), "two children");
        }
        let parts: Vec<cell::InitialWrite<'_>, 8> =
            children.iter().flat_map(|(_, child)| child.parts()).collect();
        let named = [children[0].0, children[1].0];
        let bucket = Bucket { content: Content::Split(named), ..located.bucket };
        self.change(located, bucket, &parts, Purpose::Replace).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::MAX_ENTRIES;
    use crate::client::handle::tests::alone;
    use crate::error::Error;
    use crate::runtime::block_on::block_on;

    /// However often a bucket splits, keys of one hash stay together. Once a bucket lists as many
    /// of them as it can, another one is refused, and nothing of it is left. The others stay, and
    /// once one of them is deleted there is room.
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
            assert_eq!(insert(MAX_ENTRIES), Err(Error::TooManyCollisions));
            assert_eq!(insert(0), Ok(false), "it is one of them");
            assert!((0..MAX_ENTRIES).all(is_there) && !is_there(MAX_ENTRIES));
        }
        assert_eq!(block_on(client.delete_now(HASH, &name(3))), Ok(()));
        assert_eq!(insert(MAX_ENTRIES), Ok(true));
        assert!((0..=MAX_ENTRIES).all(|number| is_there(number) == (number != 3)));
    }
}
