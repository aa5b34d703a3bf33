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
        let deadline = self.group.clock().said().saturating_add(ttl);
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
                let left = deadline.saturating_sub(self.group.clock().said());
                TimeToLive::Left(Duration::from_nanos(left))
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

    /// Whether a deadline is past by this client's clock.
    pub(crate) fn is_past(&self, deadline: Option<u64>) -> bool {
        deadline.is_some_and(|deadline| self.group.clock().said() >= deadline)
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
                if Box::pin(self.insert_expiring(hash, key, value, deadline)).await? {
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

    /// Inserts a key in a cell, with a deadline. Returns false if it is there.
    async fn insert_expiring(
        &self,
        hash: u64,
        key: &[u8],
        value: &[u8],
        deadline: u64,
    ) -> Result<bool, Error> {
        let (kind, deadline) = (Kind::Value, Some(deadline));
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
                    let room = self.new_expiring(hash, key, value.len(), Purpose::Insert).await?;
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
mod tests {
    use std::cell::Cell;
    use std::ops::ControlFlow;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::fabric::{EpochDomain, Verb};
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;
    use crate::heap::tests::Watched;
    use crate::ops::cursor::Cursor;
    use crate::ops::modify::CompareAndSwap;
    use crate::runtime::block_on::block_on;

    /// A clock that its test sets.
    struct Hand(Rc<Cell<u64>>);

    impl Clock for Hand {
        fn now(&self) -> u64 {
            self.0.get()
        }
    }

    type Here = Client<Loopback, Hand>;

    const TTL: Duration = Duration::from_nanos(1_000);

    /// Clients of one pool, each with a clock of its own.
    fn clients() -> ([Here; 2], [Rc<Cell<u64>>; 2]) {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry").with_keyed_cells(true);
        let nodes = Loopback::new(3, 4 << 17);
        let clocks = [0, 1].map(|_| Rc::new(Cell::new(10_000)));
        let clients = [0, 1].map(|client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            let clock = Hand(Rc::clone(&clocks[client]));
            Client::new(nodes.clone(), clock, geometry, session, Options::default())
        });
        (clients, clocks)
    }

    fn get(client: &Here, key: &[u8]) -> Option<Vec<u8>> {
        client.blocking().get(key).expect("nodes answer").map(|value| value.to_vec())
    }

    fn put(client: &Here, key: &[u8], value: &[u8]) {
        client.blocking().put_with_ttl(key, value, TTL).expect("memory");
    }

    fn cell_of(client: &Here, key: &[u8]) -> KeyedCell {
        let hash = client.check(key, &[]).expect("a key");
        client.cells.get(hash, key).expect("it is cached").0
    }

    /// Keys that are new, in registers, in registers that are longer than a cell, and cells.
    #[test]
    fn a_key_expires_whatever_it_was_before() {
        let ([one, two], [clock, other]) = clients();
        one.blocking().put(b"register", b"before").expect("memory");
        one.blocking().put(b"long", &[7; 9000]).expect("memory");
        one.blocking().increment(b"cell", 1).expect("memory");
        for round in 1..=3 {
            for key in [&b"new"[..], b"register", b"long", b"cell"] {
                put(&one, key, b"value");
                assert_eq!(get(&two, key).as_deref(), Some(&b"value"[..]), "{round}");
                let left = two.blocking().ttl(key).expect("nodes answer");
                assert_eq!(left, TimeToLive::Left(TTL));
            }
            clock.set(clock.get() + 1_000);
            other.set(clock.get());
            for key in [&b"new"[..], b"register", b"long", b"cell"] {
                assert_eq!(get(&two, key), None);
                assert_eq!(get(&one, key), None);
                assert_eq!(one.blocking().ttl(key), Ok(TimeToLive::Absent));
                assert_eq!(one.blocking().update(key, b"x"), Ok(false));
            }
        }
        assert_eq!(one.blocking().insert(b"new", b"again"), Ok(true));
        assert_eq!(two.blocking().ttl(b"new"), Ok(TimeToLive::Endless));
    }

    /// A clock that passes a deadline after so many readings.
    struct Passing(Rc<Cell<u64>>);

    impl Clock for Passing {
        fn now(&self) -> u64 {
            self.0.set(self.0.get().saturating_sub(1));
            if self.0.get() == 0 { 20_000 } else { 10_000 }
        }
    }

    /// The deadline passes while a client looks the key up, at any of its readings of the clock. What had not expired when it was
    /// read stays where it is: others go on to write it there.
    #[test]
    fn a_deadline_may_pass_at_any_time() {
        for insert in [false, true] {
            for readings in 1..60 {
                let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
                let nodes = Loopback::new(3, 4 << 17);
                let left = Rc::new(Cell::new(u64::MAX));
                let [one, two] = [0, 1].map(|client| {
                    let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
                    let left =
                        if client == 0 { Rc::new(Cell::new(u64::MAX)) } else { Rc::clone(&left) };
                    let clock = Passing(left);
                    Client::new(nodes.clone(), clock, geometry, session, Options::default())
                });
                let (here, there): (&Client<_, _>, &Client<_, _>) = (&one, &two);
                here.blocking().put_with_ttl(b"key", b"value", TTL).expect("memory");
                left.set(readings);
                if insert {
                    there.blocking().insert(b"key", b"another").expect("memory");
                } else {
                    there.blocking().get(b"key").expect("nodes answer");
                }
                left.set(u64::MAX);
                here.blocking().put(b"key", b"last").expect("memory");
                for client in [there, here] {
                    let read = client.blocking().get(b"key").expect("nodes answer");
                    assert_eq!(read.as_deref(), Some(&b"last"[..]), "{readings} readings");
                }
            }
        }
    }

    /// A client whose clock is ahead found the key expired; for one whose clock is not, it is as well.
    #[test]
    fn what_one_clock_found_expired_is_absent_by_all() {
        let ([one, two], [_, ahead]) = clients();
        put(&one, b"key", b"value");
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"value"[..]));
        ahead.set(20_000);
        assert_eq!(get(&two, b"key"), None);
        assert_eq!(get(&one, b"key"), None);
        ahead.set(0);
        assert_eq!(get(&two, b"key"), None, "its clock was set back");
    }

    /// A client found the key expired, and slept before it ended the cell; others put, add, and let it
    /// stay, or expire and insert.
    #[test]
    fn to_expire_takes_no_newer_value_away() {
        for newer in 0..5 {
            let ([one, two], [_, ahead]) = clients();
            put(&one, b"key", b"1");
            let cell = cell_of(&one, b"key");
            let (_, shown) = block_on(two.read_cell_as_it_is(&cell)).expect("nodes answer");
            ahead.set(20_000);
            assert!(two.is_past(shown.deadline));
            let expected: &[u8] = match newer {
                0 => {
                    one.blocking().put(b"key", b"9").expect("memory");
                    b"9"
                }
                1 => {
                    assert_eq!(one.blocking().increment(b"key", 1), Ok(2));
                    b"2"
                }
                2 => {
                    assert_eq!(one.blocking().persist(b"key"), Ok(true));
                    b"1"
                }
                3 => {
                    put(&one, b"key", b"5");
                    b"5"
                }
                _ => {
                    one.blocking().delete(b"key").expect("memory");
                    assert_eq!(one.blocking().insert(b"key", b"7"), Ok(true));
                    b"7"
                }
            };
            let expired = two.expire(&cell, b"key", &shown.view, Purpose::Replace);
            assert_eq!(block_on(expired), Ok(false), "{newer}");
            assert_eq!(get(&one, b"key").as_deref(), Some(expected));
        }
    }

    /// Two clients find a key expired at a time: one ends it, and of their inserts one wins.
    #[test]
    fn two_expire_a_key_and_one_inserts_it() {
        let ([one, two], clocks) = clients();
        put(&one, b"key", b"value");
        let cell = cell_of(&one, b"key");
        clocks.iter().for_each(|clock| clock.set(20_000));
        let (_, shown) = block_on(two.read_cell_as_it_is(&cell)).expect("nodes answer");
        assert_eq!(one.blocking().insert(b"key", b"one"), Ok(true));
        let expired = two.expire(&cell, b"key", &shown.view, Purpose::Replace);
        assert_eq!(block_on(expired), Ok(false));
        assert_eq!(two.blocking().insert(b"key", b"two"), Ok(false));
        assert_eq!(get(&two, b"key").as_deref(), Some(&b"one"[..]));
    }

    #[test]
    fn a_put_ends_a_life_and_a_change_keeps_it() {
        let ([one, two], _) = clients();
        let life = |key: &[u8]| two.blocking().ttl(key).expect("nodes answer");
        put(&one, b"key", b"1");
        one.blocking().increment(b"key", 1).expect("memory");
        assert_eq!(life(b"key"), TimeToLive::Left(TTL));
        let swap = one.blocking().compare_and_swap(b"key", Some(b"2"), Some(b"7"));
        assert_eq!((swap, life(b"key")), (Ok(CompareAndSwap::Swapped), TimeToLive::Left(TTL)));
        one.blocking().put(b"key", b"9").expect("memory");
        assert_eq!(life(b"key"), TimeToLive::Endless);
        assert_eq!(one.blocking().persist(b"key"), Ok(false));
        put(&one, b"key", b"9");
        assert_eq!(life(b"key"), TimeToLive::Left(TTL));
        assert_eq!(one.blocking().persist(b"key"), Ok(true));
        assert_eq!(life(b"key"), TimeToLive::Endless);
        assert_eq!(one.blocking().persist(b"none"), Ok(false));
        // What is expired is absent for a change.
        put(&one, b"key", b"5");
        let now = one.group.clock().said();
        one.blocking().put_with_ttl(b"key", b"5", Duration::ZERO).expect("memory");
        assert_eq!(one.group.clock().said(), now);
        assert_eq!(two.blocking().increment(b"key", 1), Ok(1));
        assert_eq!(life(b"key"), TimeToLive::Endless);
    }

    /// What outgrows its cell goes on in a larger one, with its deadline; what is too long for any is
    /// refused if it is to expire, and ends the life if it is put.
    #[test]
    fn what_outgrows_a_cell_keeps_its_life() {
        let ([one, two], [_, other]) = clients();
        put(&one, b"key", b"short");
        let grown = one.blocking().update_with(b"key", |_| Some(vec![5; 3000]));
        assert_eq!(grown.expect("memory").map(|value| value.len()), Some(3000));
        assert_eq!(two.blocking().ttl(b"key"), Ok(TimeToLive::Left(TTL)));
        let long = vec![5; MAX_EXPIRING + 1];
        let refused = one.blocking().put_with_ttl(b"key", &long, TTL);
        assert_eq!(refused, Err(Error::TooLongForCell(long.len())));
        let refused = one.blocking().update_with(b"key", |_| Some(long.clone()));
        assert_eq!(refused, Err(Error::TooLongForCell(long.len())));
        assert_eq!(get(&two, b"key").map(|value| value.len()), Some(3000));
        put(&one, b"key", &long[1..]);
        // No cell has room for this one.
        let longer = vec![6; 9000];
        one.blocking().put(b"key", &longer).expect("memory");
        assert_eq!(two.blocking().ttl(b"key"), Ok(TimeToLive::Endless));
        other.set(1 << 40);
        assert_eq!(get(&two, b"key"), Some(longer));
    }

    /// What an evacuation moves keeps its life, expired or not.
    #[test]
    fn an_evacuation_keeps_a_life() {
        let ([one, two], [_, other]) = clients();
        put(&one, b"key", b"value");
        let (hash, cell) = (one.check(b"key", &[]).expect("a key"), cell_of(&one, b"key"));
        let (_, shown) = block_on(one.read_cell_as_it_is(&cell)).expect("nodes answer");
        let last = (shown.kind, &shown.view, &*shown.value, shown.deadline);
        assert_eq!(block_on(one.move_cell_out(hash, b"key", &cell, last)), Ok(true));
        assert_eq!(two.blocking().ttl(b"key"), Ok(TimeToLive::Left(TTL)));
        assert_ne!(cell_of(&two, b"key").identity, cell.identity);
        other.set(20_000);
        assert_eq!(get(&two, b"key"), None);
    }

    /// Epochs that advance whenever somebody asks for it.
    struct Advancing(Cell<u64>);

    impl EpochDomain for Advancing {
        fn epoch(&self) -> u64 {
            self.0.get()
        }
        fn pin(&self) -> u64 {
            self.epoch()
        }
        fn repin(&self, _: u64) {}
        fn unpin(&self) {}
        fn generation(&self) -> u64 {
            0
        }
        fn new_generation(&self) {}
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn try_advance(&self) -> u64 {
            self.0.set(self.0.get() + 1);
            self.epoch()
        }
    }

    /// A collection ends what has expired by its client's clock, and nothing else.
    #[test]
    fn a_collection_ends_what_has_expired() {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let nodes = Loopback::new(3, 4 << 17);
        let watch: fn(&[Verb<'_>]) -> bool = |_| false;
        let [now, clock] = [0, 1].map(|_| Rc::new(Cell::new(10_000)));
        let session = |client| Session { client, incarnation: Incarnation(client as u64 + 1) };
        let one: Client<_, _> =
            Client::new(nodes.clone(), Hand(clock), geometry, session(0), Options::default());
        let fabric = Watched { nodes, watch };
        let clock = Hand(Rc::clone(&now));
        let two: Client<_, _> =
            Client::new(fabric, clock, geometry, session(1), Options::default());
        let two = two.with_epochs(Box::new(Advancing(Cell::new(5))));
        let get = || one.blocking().get(b"key").expect("nodes answer").map(|value| value.to_vec());
        one.blocking().put_with_ttl(b"key", b"value", TTL).expect("memory");
        block_on(two.collect()).expect("nodes answer");
        assert_eq!(get().as_deref(), Some(&b"value"[..]));
        now.set(20_000);
        block_on(two.collect()).expect("nodes answer");
        assert_eq!(get(), None);
    }

    /// A client forwarded a cell with an expiring value, and listed nothing in its place.
    #[test]
    fn what_was_forwarded_expires_all_the_same() {
        for (uses, is_past) in (0..4).flat_map(|uses| [(uses, false), (uses, true)]) {
            let ([one, two], [_, other]) = clients();
            put(&one, b"key", b"value");
            let cell = cell_of(&one, b"key");
            let (key, shown) = block_on(one.read_cell_as_it_is(&cell)).expect("nodes answer");
            let (kind, deadline, key) = (Kind::Forward, shown.deadline, &*key);
            let content = CellContent { kind, deadline, key, value: &shown.value };
            let forward = one.propose_to(&cell, &shown.view, &content, Purpose::Replace);
            assert!(block_on(forward).expect("memory").is_some());
            other.set(if is_past { 20_000 } else { 10_000 });
            let there = (!is_past).then_some(&b"value"[..]);
            match uses {
                0 => assert_eq!(get(&two, b"key").as_deref(), there),
                1 => assert_eq!(two.blocking().insert(b"key", b"other"), Ok(is_past)),
                2 => assert_eq!(two.blocking().ttl(b"key").expect("memory").left(), {
                    (!is_past).then_some(TTL)
                }),
                _ => {
                    let (mut cursor, mut met) = (Cursor::new(), None);
                    let mut each = |_: &[u8], value: &[u8]| met = Some(value.to_vec());
                    while block_on(two.next_keys(&mut cursor, &mut each)).expect("nodes answer") {}
                    assert_eq!(met.as_deref(), there);
                }
            }
            // A walk changes nothing: for a client whose clock says so the value is there.
            if uses != 1 {
                let there = if uses == 3 { Some(&b"value"[..]) } else { there };
                assert_eq!(get(&one, b"key").as_deref(), there, "{uses}");
            }
        }
    }

    #[test]
    fn walks_leave_out_what_has_expired() {
        let ([one, two], [_, other]) = clients();
        put(&one, b"key", b"value");
        one.blocking().put(b"stays", b"value").expect("memory");
        other.set(20_000);
        let mut met = Vec::new();
        let each = |key: &[u8], _: &[u8]| {
            met.push(key.to_vec());
            ControlFlow::Continue(())
        };
        block_on(two.for_each(each)).expect("nodes answer");
        assert_eq!(met, [b"stays".to_vec()]);
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"value"[..]), "a walk changes nothing");
        assert_eq!(get(&two, b"key"), None);
        assert_eq!(get(&one, b"key"), None);
    }

    /// The value of a version goes on in a larger cell, or in a register, unless something newer is there.
    #[test]
    fn a_change_by_version_may_outgrow_its_cell() {
        let ([one, two], _) = clients();
        let versioned = |client: &Here| client.blocking().get_versioned(b"key").expect("memory");
        for with_life in [false, true] {
            let first = cell_of_new(&one, with_life);
            let ((_, version), long) = (versioned(&two).expect("it is there"), vec![7; 300]);
            one.blocking().update(b"key", b"newer").expect("memory");
            assert_eq!(two.blocking().put_if_version(b"key", &long, version), Ok(false));
            assert_eq!(get(&one, b"key").as_deref(), Some(&b"newer"[..]));
            if with_life {
                put(&one, b"key", b"again");
            }
            let (_, version) = versioned(&two).expect("it is there");
            assert_eq!(two.blocking().put_if_version(b"key", &long, version), Ok(true));
            assert_eq!(get(&one, b"key"), Some(long));
            assert_eq!(
                one.blocking().ttl(b"key").map(TimeToLive::left),
                Ok(with_life.then_some(TTL))
            );
            assert!(versioned(&one).is_some() && cell_of(&one, b"key").identity != first.identity);
            one.blocking().delete(b"key").expect("memory");
        }
    }

    /// A client remembers what was there before another change.
    #[test]
    fn what_has_changed_since_goes_on_where_it_is() {
        let ([one, two], _) = clients();
        let hash = two.check(b"key", &[]).expect("a key");
        put(&one, b"key", b"first");
        let found = block_on(two.find_key(hash, b"key")).expect("nodes answer");
        let Some(FoundKey::Cell((cell, _), seen)) = found else { panic!("it is a cell") };
        put(&one, b"key", b"newer");
        let moved = block_on(two.forward_to_cell(hash, b"key", (&cell, &seen), 300));
        assert!(moved.expect("memory").is_none());
        assert_eq!(get(&two, b"key").as_deref(), Some(&b"newer"[..]));
    }

    /// The cell of a key that is new.
    fn cell_of_new(client: &Here, with_life: bool) -> KeyedCell {
        match with_life {
            false => drop(client.blocking().increment(b"key", 1).expect("memory")),
            true => put(client, b"key", b"first"),
        }
        client.blocking().get_versioned(b"key").expect("memory");
        cell_of(client, b"key")
    }

    /// To end a key takes a record, and frees its cell.
    #[test]
    fn what_expires_in_a_full_pool_is_absent() {
        let ([one, two], [clock, other]) = clients();
        put(&one, b"key", b"value");
        let mut number = 0;
        let full = loop {
            number += 1;
            let key = format!("other {number}");
            match one.blocking().put(key.as_bytes(), &[7; 100]) {
                Ok(()) => {}
                Err(why) => break why,
            }
        };
        assert!(matches!(full, Error::Full(_)), "{full}");
        // What replaces others has a part of the reserve.
        let records = two.heap.plain(cell_of(&one, b"key").record_words());
        while block_on(two.allocate(records, Purpose::Replace)).is_ok() {}
        clock.set(clock.get() + 1_000);
        other.set(clock.get());
        assert_eq!(get(&two, b"key"), None);
    }

    /// A version tells a value from an equal one, and a change by version keeps the life.
    #[test]
    fn a_version_is_of_one_change() {
        let ([one, two], _) = clients();
        let versioned = |client: &Here| client.blocking().get_versioned(b"key").expect("memory");
        assert_eq!(versioned(&one), None);
        for with_life in [false, true] {
            match with_life {
                false => one.blocking().put(b"key", b"a").expect("memory"),
                true => put(&one, b"key", b"a"),
            }
            let (value, version) = versioned(&two).expect("it is there");
            assert_eq!((&*value, versioned(&one)), (&b"a"[..], Some((value.clone(), version))));
            one.blocking().put(b"key", b"b").expect("memory");
            one.blocking().put(b"key", b"a").expect("memory");
            let put = two.blocking().put_if_version(b"key", b"c", version);
            assert_eq!((put, get(&one, b"key").as_deref()), (Ok(false), Some(&b"a"[..])));
            let (_, version) = versioned(&two).expect("it is there");
            assert_eq!(two.blocking().put_if_version(b"key", b"c", version), Ok(true));
            assert_eq!(two.blocking().put_if_version(b"key", b"d", version), Ok(false));
            assert_eq!(get(&one, b"key").as_deref(), Some(&b"c"[..]));
        }
        put(&one, b"key", b"a");
        let (_, version) = versioned(&two).expect("it is there");
        assert_eq!(two.blocking().put_if_version(b"key", b"c", version), Ok(true));
        assert_eq!(one.blocking().ttl(b"key"), Ok(TimeToLive::Left(TTL)));
        one.blocking().delete(b"key").expect("memory");
        assert_eq!(two.blocking().put_if_version(b"key", b"c", version), Ok(false));
    }
}
