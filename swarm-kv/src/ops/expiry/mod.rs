//! Keys that expire.
//!
//! A value's *deadline* stands in the record that gives the key this value, so the key is a
//! [cell](crate::ops::keyed), and value and deadline change together. The deadline is a reading of the
//! pool's clock, in nanoseconds since the pool's creation: the clock of the client that set it, and its
//! time to live.
//!
//! **Invariants:** a key is absent only once its cell says so, never because a clock does (X1). That
//! record is built on the very record whose deadline a clock found past (X2). So clocks decide when a
//! client proposes the change, and nothing else: an expired value that one client found absent is absent
//! for all, by whatever clocks, and a newer value, or a longer life, is never taken away. A cell that
//! goes on elsewhere takes its deadline along (X3), and a value without a deadline never follows one
//! that has it but by one change (X4).
//!
//! Roundtrips: a put with a time to live costs what a change costs; a get that finds a value expired, a
//! change and a look at the bucket more, once.

use std::rc::Rc;
use std::time::Duration;

use swarm_core::cell::View;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::MAX_IN_PLACE;
use swarm_core::register::Protocol;
use swarm_core::words::Pointer;

use crate::client::cell_cache::{FoundCell, SeenCell};
use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::created::NewCell;
use crate::index::keyed_cell::{CellContent, DEADLINE_BYTES, KeyedCell, Kind};
use crate::ops::convert::LEAST;
use crate::ops::insert::has_no_memory;
use crate::ops::keyed::{ShownCell, seen_of};
use crate::ops::locate::Place;
use crate::ops::modify::{Change, Next, Rewrite};

/// The longest value that can have a time to live, or a version, in bytes. In a pool of very small
/// chunks it is less.
pub const MAX_EXPIRING: usize = MAX_IN_PLACE - DEADLINE_BYTES;

/// How long a key is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeToLive {
    /// It is not there.
    Absent,
    /// It does not expire.
    Endless,
    /// It expires after this time, unless it is changed; zero if it is about to.
    Left(Duration),
}

impl TimeToLive {
    /// Returns how long it is there, if it is and expires.
    #[must_use]
    pub fn left(self) -> Option<Duration> {
        if let Self::Left(left) = self { Some(left) } else { None }
    }
}

/// What a change does about a key's deadline.
#[derive(Clone, Copy)]
pub(crate) enum Life {
    Kept,
    Set(Option<u64>),
}

impl Life {
    pub(crate) fn after(self, before: Option<u64>) -> Option<u64> {
        match self {
            Self::Kept => before,
            Self::Set(deadline) => deadline,
        }
    }
}

/// A key that is there.
pub(crate) enum FoundKey {
    /// In a register, which has neither deadline nor version; or why that cannot be moved on.
    Register(Vec<u8>, Result<swarm_core::register::Register, Error>),
    Cell(FoundCell, SeenCell),
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Sets the value of `key`, whether or not the key is there, and lets it expire after `ttl`: from
    /// then on it is as if it had been deleted.
    ///
    /// A later [`put`](Self::put) or [`update`](Self::update) ends the time to live, as does
    /// [`persist`](Self::persist); [`compare_and_swap`](Self::compare_and_swap),
    /// [`update_with`](Self::update_with), [`increment`](Self::increment) and [`swap`](Self::swap) keep
    /// it.
    ///
    /// When the key expires is decided by clocks: the time to live begins by this client's clock when
    /// the operation does, and it is over once the clock of a client that uses the key, or collects
    /// garbage, says so. Clients of one host share one clock. Between hosts, clocks that disagree make a
    /// key expire earlier or later by as much. They decide nothing else: to expire is one change of the
    /// key, which all clients agree on, so an expired key does not come back, and no newer value goes
    /// with it.
    ///
    /// As an increment: about seven roundtrips the first time, then one.
    ///
    /// # Errors
    /// A key out of bounds; [`Error::TooLongForCell`] for a value of more than [`MAX_EXPIRING`] bytes;
    /// [`Error::NoCells`] in a pool that was created without keyed cells; a full pool; too few memory
    /// nodes that answer.
    pub async fn put_with_ttl(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<(), Error> {
        let ttl = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let deadline = self.group.clock().clock_time().saturating_add(ttl);
        let put = async || {
            let hash = self.check(key, value)?;
            self.can_be_cell(key, value.len())?;
            let _lock = self.lock_key(hash).await?;
            self.put_until(hash, key, value, deadline).await
        };
        self.as_change(put).await
    }

    /// Returns how long `key` is there yet, by this client's clock.
    ///
    /// One roundtrip if the key's cell is cached; two more to look it up.
    ///
    /// # Errors
    /// A key out of bounds; a full pool, if the key has to be moved, or has expired; too few memory
    /// nodes that answer.
    pub async fn ttl(&self, key: &[u8]) -> Result<TimeToLive, Error> {
        let find = async || {
            let hash = self.check(key, &[])?;
            self.find_key(hash, key).await
        };
        Ok(match self.as_lookup(find).await? {
            None => TimeToLive::Absent,
            Some(FoundKey::Cell(_, SeenCell { deadline: Some(deadline), .. })) => {
                TimeToLive::Left(self.left_until(deadline))
            }
            Some(_) => TimeToLive::Endless,
        })
    }

    /// Lets `key` stay, if it is to expire. Returns whether it was: false, with no effect, if it is not
    /// there or does not expire.
    ///
    /// One roundtrip if the key's cell is cached, and one for the change.
    ///
    /// # Errors
    /// A key out of bounds; a full pool; too few memory nodes that answer.
    pub async fn persist(&self, key: &[u8]) -> Result<bool, Error> {
        let persist = async || {
            let hash = self.check(key, &[])?;
            let _lock = self.lock_key(hash).await?;
            self.persist_now(hash, key).await
        };
        self.as_change(persist).await
    }

    /// How long it is until a deadline by this client's clock.
    pub(crate) fn left_until(&self, deadline: u64) -> Duration {
        Duration::from_nanos(deadline.saturating_sub(self.group.clock().clock_time()))
    }

    /// Whether a deadline is past by this client's clock.
    pub(crate) fn is_past(&self, deadline: Option<u64>) -> bool {
        deadline.is_some_and(|deadline| self.group.clock().clock_time() >= deadline)
    }

    /// Checks that a key can be a cell with a value of this length and a deadline.
    pub(crate) fn can_be_cell(&self, key: &[u8], length: usize) -> Result<(), Error> {
        if !self.geometry.keyed_cells {
            return Err(Error::NoCells);
        }
        match self.becomes_cell(key, length + DEADLINE_BYTES, 0) {
            true => Ok(()),
            false => Err(Error::TooLongForCell(length)),
        }
    }

    /// Reads a cell and its key, and ends the cell if its value has expired. A client that only looks
    /// answers as if it had.
    pub(crate) async fn read_any_cell(
        &self,
        cell: &KeyedCell,
    ) -> Result<(Vec<u8>, ShownCell<'_, F>), Error> {
        for lost in 0..TRIES as u32 {
            let (key, shown) = self.read_cell_as_it_is(cell).await?;
            if shown.kind != Kind::Value || !self.is_past(shown.deadline) {
                return Ok((key, shown));
            }
            // X1: absent only once the cell says so. (X5: a reader cannot change it.) It frees what the key
            // takes, so it may use the reserve.
            let need = Purpose::Relocate;
            if self.only_looks || self.expire(cell, &key, &shown.view, need).await? {
                let absent = ShownCell { kind: Kind::Absent, deadline: None, ..shown };
                return Ok((key, absent));
            }
            self.pause_after(lost).await;
        }
        Err(Error::Contended)
    }

    /// Ends a cell whose deadline this client found past. Returns whether it did: if not, something
    /// newer is there.
    pub(crate) async fn expire(
        &self,
        cell: &KeyedCell,
        key: &[u8],
        view: &View,
        need: Purpose,
    ) -> Result<bool, Error> {
        let absent = CellContent { kind: Kind::Absent, deadline: None, key, value: &[] };
        // X2: built on the very record that has the deadline.
        Ok(self.propose_to(cell, view, &absent, need).await?.is_some())
    }

    /// Finds a key and what there is to know of it.
    pub(crate) async fn find_key(&self, hash: u64, key: &[u8]) -> Result<Option<FoundKey>, Error> {
        for _ in 0..TRIES {
            if let Some(found) = self.cells.get(hash, key) {
                let epoch = self.index.epoch();
                match self.read_cell(&found.0, key).await? {
                    Some(shown) if shown.kind == Kind::Value => {
                        return Ok(Some(FoundKey::Cell(found, seen_of(&shown, epoch))));
                    }
                    Some(shown) if shown.kind == Kind::Forward => {
                        self.move_forwarded(hash, key, &found.0, &shown).await?;
                    }
                    _ => self.cells.remove(hash),
                }
            }
            let Some((value, place)) = self.read_to_modify(hash, key).await? else {
                return Ok(None);
            };
            match place {
                Ok(Place::Register(register, _)) => {
                    return Ok(Some(FoundKey::Register(value, Ok(register))));
                }
                Err(why) => return Ok(Some(FoundKey::Register(value, Err(why)))),
                // One that was forwarded is not cached.
                Ok(Place::Cell(found)) => self.cells.insert(hash, key, found, None),
            }
        }
        Err(Error::Contended)
    }

    async fn persist_now(&self, hash: u64, key: &[u8]) -> Result<bool, Error> {
        for lost in 0..TRIES as u32 {
            let Some(FoundKey::Cell(found, seen)) = self.find_key(hash, key).await? else {
                return Ok(false);
            };
            if seen.deadline.is_none() {
                return Ok(false);
            }
            let (cell, value) = (found.0, &*seen.value);
            self.cells.insert(hash, key, found, None);
            let endless = CellContent { kind: Kind::Value, deadline: None, key, value };
            if seen.view.is_worn(self.geometry.format) {
                Box::pin(self.forward_expiring(hash, &cell, &seen, &endless)).await?;
            } else if self
                .propose_to(&cell, &seen.view, &endless, Purpose::Replace)
                .await?
                .is_some()
            {
                return Ok(true);
            }
            self.pause_after(lost).await;
        }
        Err(Error::Contended)
    }

    /// Sets the value of a key that the caller has locked, and its deadline.
    async fn put_until(
        &self,
        hash: u64,
        key: &[u8],
        value: &[u8],
        deadline: u64,
    ) -> Result<(), Error> {
        let next = Rc::new(Next::Put(value.to_vec()));
        let choice = |_: Option<&[u8]>| Ok(Rc::clone(&next));
        let life = Life::Set(Some(deadline));
        for attempt in 0..TRIES as u32 {
            if attempt > 0 {
                self.pause_after(attempt).await;
            }
            if let Some(cell) = self.cells.get(hash, key)
                && self.change_cell_and_life(hash, key, cell, (&choice, life)).await?.is_some()
            {
                return Ok(());
            }
            let Some((read, place)) = self.read_to_modify(hash, key).await? else {
                let insert = self.insert_in_cell(hash, key, (value, Some(deadline)), value.len());
                if Box::pin(insert).await? {
                    return Ok(());
                }
                continue;
            };
            let register = match place? {
                Place::Cell(cell) => {
                    let change = self.change_cell_and_life(hash, key, cell, (&choice, life));
                    if change.await?.is_some() {
                        return Ok(());
                    }
                    continue;
                }
                Place::Register(register, _) => register,
            };
            let deadline = Some(deadline);
            let mut rewrite = Rewrite { key, read: &read, choice: &choice, deadline, done: None };
            Box::pin(self.convert(hash, &register, value, &mut rewrite)).await?;
            if rewrite.done.is_some() {
                self.failed_reclaim.set(None);
                return Ok(());
            }
            self.locations.remove(hash, key);
        }
        Err(Error::Contended)
    }

    /// Inserts a key in a cell that has room for so many bytes, with a deadline, if it expires. Returns false if
    /// it is there.
    pub(crate) async fn insert_in_cell(
        &self,
        hash: u64,
        key: &[u8],
        (value, deadline): (&[u8], Option<u64>),
        room: usize,
    ) -> Result<bool, Error> {
        let (kind, room) = (Kind::Value, room.max(value.len()));
        let payload = CellContent { kind, deadline, key, value }.payload();
        let mut new_cell = None::<NewCell<'_>>;
        let mut located = self.index.cached(&self.group, hash).await?;
        for _ in 0..TRIES {
            let dead;
            (located, dead) = match self.with_room(located, hash, key).await? {
                Some(found) => found,
                None => return Ok(false),
            };
            // V5: as an insert of a register.
            let link = dead.filter(|dead| dead.linked).map(|dead| dead.predecessor(self.ended()));
            let (new_cell, is_new) = match &mut new_cell {
                Some(new_cell) if new_cell.predecessor == link => (new_cell, false),
                other => {
                    let room = self.new_expiring(hash, key, room, Purpose::Insert).await?;
                    let (payload, predecessor) = (&payload, link);
                    let (mut cell, record) = room;
                    cell.identity.created_at = self.group.now();
                    (other.insert(NewCell { cell, record, key, payload, predecessor }), true)
                }
            };
            let image = new_cell.image(self.geometry.format);
            let (entry, created) =
                (new_cell.entry(&self.geometry, hash), |at| new_cell.created(at));
            let new = (entry, &created as &dyn Fn(usize) -> _, &new_cell.parts(&image)[..]);
            let proposed = self.propose_entry(&located, new, dead).await;
            if is_new && has_no_memory(&proposed) {
                self.give_back_cell(&new_cell.cell.at.place, new_cell.record);
            }
            if proposed? {
                self.wake(hash);
                self.cells.insert(hash, key, (new_cell.cell, located.generation), None);
                return Ok(true);
            }
            located = self.again(&located, hash).await?;
        }
        Err(Error::Contended)
    }

    /// Allocates a cell for a key with an expiring value of this length.
    async fn new_expiring(
        &self,
        hash: u64,
        key: &[u8],
        length: usize,
        need: Purpose,
    ) -> Result<(KeyedCell, Pointer), Error> {
        let class = self.class_of_cell(key, length.max(LEAST) + DEADLINE_BYTES);
        self.new_cell(hash, key, class, need).await
    }

    /// Ends a cell with an expiring value that is worn, or has no room for what comes next: the key goes
    /// on in another cell. Returns the change if that is done as well, or `None` if the key is to be
    /// looked for again.
    pub(crate) async fn forward_expiring(
        &self,
        hash: u64,
        cell: &KeyedCell,
        seen: &SeenCell,
        next: &CellContent<'_>,
    ) -> Result<Option<Change>, Error> {
        let key = next.key;
        if let Err(too_long) = self.can_be_cell(key, next.value.len()) {
            if next.deadline.is_some() {
                return Err(too_long);
            }
            // X4: the register begins with the next value, as the value of before has a deadline.
            let is_done = self.forward(hash, key, (cell, seen), (next.value, 0)).await?;
            let change = || (Some(seen.value.clone()), Some(next.value.to_vec()));
            return Ok(is_done.then(change));
        }
        self.forward_to_cell(hash, key, (cell, seen), next.value.len()).await?;
        Ok(None)
    }

    /// Ends a cell with an expiring value: the key goes on, with this value, in another cell, with room
    /// for `least` bytes. If it is this client's, returns where it was found and a view of its first
    /// record.
    pub(crate) async fn forward_to_cell(
        &self,
        hash: u64,
        key: &[u8],
        (cell, seen): (&KeyedCell, &SeenCell),
        least: usize,
    ) -> Result<Option<(FoundCell, View)>, Error> {
        self.bucket_to_list_in(hash).await?;
        let length = seen.value.len().max(least);
        let room = self.new_expiring(hash, key, length, Purpose::Insert).await?;
        match self.end_cell(key, cell, seen).await {
            Ok(true) => {
                let value = (&*seen.value, seen.deadline.expect("it expires"));
                self.list_expiring(hash, key, cell, (room, value)).await
            }
            outcome => {
                self.give_back_cell(&room.0.at.place, room.1);
                outcome.map(|_| None)
            }
        }
    }

    /// Lists a cell in place of one that was forwarded with an expiring value.
    pub(crate) async fn move_expiring(
        &self,
        hash: u64,
        key: &[u8],
        cell: &KeyedCell,
        (value, deadline): (&[u8], u64),
    ) -> Result<(), Error> {
        let room = self.new_expiring(hash, key, value.len(), Purpose::Relocate).await?;
        self.list_expiring(hash, key, cell, (room, (value, deadline))).await.map(drop)
    }

    /// Q3, X3: the cell begins with the value and the deadline that the one before ended with, and the
    /// bucket has one winner.
    async fn list_expiring(
        &self,
        hash: u64,
        key: &[u8],
        old: &KeyedCell,
        ((mut cell, record), (value, deadline)): ((KeyedCell, Pointer), (&[u8], u64)),
    ) -> Result<Option<(FoundCell, View)>, Error> {
        self.cells.remove(hash);
        cell.identity.created_at = self.group.now();
        let (kind, deadline) = (Kind::Value, Some(deadline));
        let payload = CellContent { kind, deadline, key, value }.payload();
        let predecessor = Some(old.predecessor(&self.geometry));
        let new_cell = NewCell { cell, record, key, payload: &payload, predecessor };
        let old = (old.at.place.pointer, old.identity);
        let listed = self.list_cell(hash, old, &new_cell).await?;
        if let Some((found, _)) = listed {
            self.cells.insert(hash, key, found, None);
        }
        Ok(listed)
    }
}

#[cfg(test)]
mod tests;
