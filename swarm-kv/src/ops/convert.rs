//! A register becomes a [cell](crate::ops::keyed), at the first read-modify-write of its key.
//!
//! It is a [move](crate::ops::relocate) with a cell in place of the register that begins with the
//! new value: the register is frozen, and one change of the bucket lists the cell, whose first
//! record has the value. All of K1, K2 and K4 holds as for a move that changes the value. The cell
//! names the register as its predecessor, so a writer whose stamp met the freeze finds out as in any
//! other move (V4, V5).
//!
//! A cell may become another one, to leave its chunk: that one begins with its last value.
//!
//! Roundtrips: bucket, two for the freeze, value, bucket, change; from cell to cell, forward, bucket
//! and change.

use swarm_core::cell::View;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{ChunkClass, Identity, Location, MAX_IN_PLACE, Shape};
use swarm_core::register::freeze::freeze;
use swarm_core::register::{Protocol, Register};
use swarm_core::words::{GRANULE_WORDS, Pointer};

use crate::client::cell_cache::{FoundCell, SeenCell};
use crate::client::handle::Client;
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::bucket::shape;
use crate::index::created::NewCell;
use crate::index::keyed_cell::{CellContent, DEADLINE_BYTES, KeyedCell, Kind};
use crate::index::lookup::first_word;
use crate::ops::modify::Rewrite;
use crate::ops::relocate::entry_of;

/// A cell has room for a value of at least this many bytes: a number of any length.
pub(crate) const LEAST: usize = 24;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Whether this key goes on in a cell, with a value of this length after one of that: where its
    /// records share chunks, as those of buckets do.
    pub(crate) fn becomes_cell(&self, key: &[u8], new: usize, before: usize) -> bool {
        let length = new.max(before).max(LEAST);
        let words = KeyedCell::shape_for(key.len(), length).capacity + 2 * GRANULE_WORDS;
        self.geometry.keyed_cells
            && length <= MAX_IN_PLACE
            && matches!(self.geometry.plain_class(words), ChunkClass::Uniform(_))
    }

    /// Turns a key's register into a cell, and lets `rewrite` choose with which value it begins. It
    /// has room for `new`, which was chosen of what was read.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing has changed.
    pub(crate) async fn convert(
        &self,
        hash: u64,
        old: &Register,
        new: &[u8],
        rewrite: &mut Rewrite<'_>,
    ) -> Result<(), Error> {
        let located = self.bucket_to_list_in(hash).await?;
        let Some(listed) = entry_of(&located.bucket, old) else { return Ok(()) };
        let key = rewrite.key;
        self.locations.remove(hash, key);
        // K4: memory and a number first. There is room for the new value and for the one that was
        // read: another client may change that first, and then this one has to keep it.
        let length = match rewrite.deadline {
            None => new.len().max(rewrite.read.len()).max(LEAST),
            // Whatever is there is replaced.
            Some(_) => new.len().max(LEAST) + DEADLINE_BYTES,
        };
        let class = self.class_of_cell(key, length);
        let (mut cell, record) = self.new_cell(hash, key, class, Purpose::Insert).await?;
        let give_back = || self.give_back_cell(&cell.at.place, record);
        let epoch = self.index.epoch();
        // V1: a majority of the slots is frozen before the bucket changes.
        let last = freeze(&self.group, old).await.inspect_err(|_| give_back())?;
        let before = last.value.as_deref();
        // K1: of the register's last value, whatever was read before.
        let next = rewrite.next(before);
        let (kind, deadline) = (Kind::Value, rewrite.deadline);
        let content = next.after(before).map(|value| CellContent { kind, deadline, key, value });
        let Some(content) = content.filter(|content| cell.fits_content(content)) else {
            // It was deleted meanwhile, or has grown. It goes on as it is, and the change begins anew.
            give_back();
            let length = before.map_or(0, <[u8]>::len);
            return self.move_on(hash, old, length, Purpose::Relocate).await.map(drop);
        };
        cell.identity.created_at = self.group.now();
        let (after, first) = (content.value, content.payload());
        let predecessor = listed.predecessor(last.stamp);
        let new_cell =
            NewCell { cell, record, key, payload: &first, predecessor: Some(predecessor) };
        let listed = self.list_cell(hash, (old.place.pointer, old.identity), &new_cell).await?;
        // K2: only if the cell of the bucket chose this one does what was made of the value count.
        if let Some((found, view)) = listed {
            let seen = SeenCell { epoch, view, deadline, value: after.to_vec() };
            self.cells.insert(hash, key, found, Some(seen));
            rewrite.is_done_with(before, Some(after), deadline.is_some());
        }
        Ok(())
    }

    /// Frees the memory of a new cell that no node has received.
    pub(crate) fn give_back_cell(&self, place: &Location, record: Pointer) {
        self.heap.take_back_unused(record);
        self.heap.take_back_unused(place.pointer);
    }

    /// Moves a cell that was read to another place of its class (E10a): it is forwarded, and the cell
    /// that the bucket lists in its place begins with its value (Q3). Memory comes first (K4). Returns
    /// false if another change came first.
    ///
    /// # Errors
    /// [`Error::Full`]: the key has the value that it had.
    pub(crate) async fn move_cell_out(
        &self,
        hash: u64,
        key: &[u8],
        old: &KeyedCell,
        shown: (Kind, &View, &[u8], Option<u64>),
    ) -> Result<bool, Error> {
        let (kind, view, value, deadline) = shown;
        self.cells.remove(hash);
        let class = old.class(&self.geometry);
        let (mut cell, record) = self.new_cell(hash, key, class, Purpose::Evacuate).await?;
        let give_back = || self.give_back_cell(&cell.at.place, record);
        // Q2: one that was forwarded before shows its last value.
        if kind == Kind::Value {
            // X3: with its deadline, if it has one.
            let forward = CellContent { kind: Kind::Forward, deadline, key, value };
            let ended = self.propose_to(old, view, &forward, Purpose::Evacuate).await;
            if ended.inspect_err(|_| give_back())?.is_none() {
                give_back();
                return Ok(false);
            }
        }
        cell.identity.created_at = self.group.now();
        let first = CellContent { kind: Kind::Value, deadline, key, value }.payload();
        let predecessor = Some(old.predecessor(&self.geometry));
        let new_cell = NewCell { cell, record, key, payload: &first, predecessor };
        let old = (old.at.place.pointer, old.identity);
        Ok(self.list_cell(hash, old, &new_cell).await?.is_some())
    }

    /// Allocates a cell of this class for a key, its first record and its number, and sees to a record
    /// for the bucket that will list it. No node has received it.
    pub(crate) async fn new_cell(
        &self,
        hash: u64,
        key: &[u8],
        class: ChunkClass,
        need: Purpose,
    ) -> Result<(KeyedCell, Pointer), Error> {
        let (place, shape) = self.room_for_cell(hash, key, class, need).await?;
        let mut cell = KeyedCell::new(place, Identity::default(), shape);
        let records = self.heap.plain(cell.record_words());
        let record = self.allocate(records, need).await;
        let record = record.inspect_err(|_| self.heap.take_back_unused(place.pointer))?;
        let give_back = || self.give_back_cell(&place, record);
        self.has_record(need).await.inspect_err(|_| give_back())?;
        cell.identity.number = self.number().inspect_err(|_| give_back())?;
        Ok((cell, record))
    }

    /// Lists a new cell in place of what the bucket lists for its key: the bucket has one winner. If it
    /// is this cell, returns where it was found and a view of its first record. Frees a cell that no
    /// node has received.
    pub(crate) async fn list_cell(
        &self,
        hash: u64,
        old: (Pointer, Identity),
        new: &NewCell<'_>,
    ) -> Result<Option<(FoundCell, View)>, Error> {
        let (format, n) = (self.geometry.format, self.group.nodes());
        let image = new.image(format);
        let (entry, created) = (new.entry(&self.geometry, hash), |at| new.created(at));
        let (mut is_proposed, parts) = (false, new.parts(&image));
        let listed = self.put_in_place_of(hash, old, (entry, &created, &parts), &mut is_proposed);
        let listed = listed.await;
        if !is_proposed {
            self.give_back_cell(&new.cell.at.place, new.record);
        }
        let view = || View::created(format, n, first_word(format, new.record));
        Ok(listed?.map(|generation| ((new.cell, generation), view())))
    }

    /// Returns the class of a cell for a key and a value of this length.
    pub(crate) fn class_of_cell(&self, key: &[u8], length: usize) -> ChunkClass {
        let wanted = KeyedCell::shape_for(key.len(), length);
        self.geometry.register_class(wanted.small_words(), wanted.full_words())
    }

    /// Allocates a cell of this class for a key.
    async fn room_for_cell(
        &self,
        hash: u64,
        key: &[u8],
        class: ChunkClass,
        need: Purpose,
    ) -> Result<(Location, Shape), Error> {
        let shape = shape(class, key.len()).expect("the class was chosen for the key");
        let room = async |home| {
            let kind = self.heap.homed(class, home);
            self.room_for_register(kind, class, need).await
        };
        Ok((self.at_a_home(hash, room).await?, shape))
    }
}
