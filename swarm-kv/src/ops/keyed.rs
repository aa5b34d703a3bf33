//! Operations on keys that are cells: see [`keyed_cell`](crate::index::keyed_cell).
//!
//! A read-modify-write [turns](crate::ops::convert) a register into a cell. From then on a change of
//! the key is one proposal to its cell: one roundtrip for a client that knows what is there, as the
//! proposal is lost if that is not so any more. Every other operation on the key goes by the cell as
//! well.
//!
//! **Invariants:** a change is made of the value of the record that it is built on (Q1). A record
//! that ends the cell is built on by nobody (Q2): so a deleted cell is dead for good, and what was
//! forwarded has its value for good, until the bucket lists the register that begins with it (Q3).
//! Whether a change took effect is what the cell says (C6): no operation that meets the end of a
//! cell has to look for what became of its own change.

use std::rc::Rc;

use swarm_core::cell::{self, Proposal, Proposed, View};
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Identity, Shape, words_in_place};
use swarm_core::register::{self, Protocol, Register};
use swarm_core::words::Pointer;

use crate::client::cell_cache::{FoundCell, SeenCell};
use crate::client::handle::{Client, TRIES, Value};
use crate::client::location_cache::hash_key;
use crate::error::Error;
use crate::heap::Purpose;
use crate::index::created::NewRegister;
use crate::index::keyed_cell::{CellContent, KeyedCell, Kind, Parts};
use crate::index::lookup::Located;
use crate::ops::expiry::Life;
use crate::ops::modify::{Change, Choice, Next};
use crate::ops::relocate::Room;

/// A client that lost a change pauses for up to this long, in nanoseconds, and twice as long after
/// each further one, so many times at most.
const SHORTEST_PAUSE: u64 = 256;
const DOUBLINGS: u32 = 12;

/// What a cell showed.
pub(crate) struct ShownCell<'c, F: Fabric + 'c> {
    pub(crate) kind: Kind,
    pub(crate) deadline: Option<u64>,
    pub(crate) view: View,
    pub(crate) value: Value<'c, F>,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Reads a cell that was found by its key's hash. `None` if it is another key's (S5).
    pub(crate) async fn read_cell(
        &self,
        cell: &KeyedCell,
        key: &[u8],
    ) -> Result<Option<ShownCell<'_, F>>, Error> {
        let (its, shown) = self.read_any_cell(cell).await?;
        Ok((*its == *key).then_some(shown))
    }

    /// Reads a cell and its key, whether or not its value has expired.
    pub(crate) async fn read_cell_as_it_is(
        &self,
        cell: &KeyedCell,
    ) -> Result<(Vec<u8>, ShownCell<'_, F>), Error> {
        let committed = cell::read(&self.group, &cell.at, &()).await?;
        let (view, parts) = (committed.view, Parts::of(&committed).ok_or(Error::DAMAGED)?);
        let key = parts.key(&committed).to_vec();
        // A cell that a bucket listed was created with a record.
        let (reply, from, _) = committed.into_reply().ok_or(Error::DAMAGED)?;
        let value = register::Value::of(reply, from + parts.value_at(), parts.length);
        Ok((key, ShownCell { kind: parts.kind, deadline: parts.deadline, view, value }))
    }

    /// Reads a cell that goes on, if that need not wait. `None` as well if it is another key's (S5), has
    /// ended (Q2), or if the time of its value is over (X1).
    #[inline]
    pub(crate) fn read_cell_now(&self, cell: &KeyedCell, key: &[u8]) -> Option<ShownCell<'_, F>> {
        let committed = cell::try_read(&self.group, &cell.at)?;
        let (view, parts) = (committed.view, Parts::of(&committed)?);
        let Parts { kind, deadline, length, .. } = parts;
        if kind != Kind::Value || parts.key(&committed) != key || self.is_past(deadline) {
            return None;
        }
        let (reply, from, _) = committed.into_reply()?;
        let value = register::Value::of(reply, from + parts.value_at(), length);
        Some(ShownCell { kind, deadline, view, value })
    }

    /// Gets the value of a key whose cell is cached, if that need not wait.
    pub(crate) fn get_by_cell_now(&self, hash: u64, key: &[u8]) -> Option<Value<'_, F>> {
        let (cell, _) = self.cells.get(hash, key)?;
        Some(self.read_cell_now(&cell, key)?.value)
    }

    /// Gets the value of a key whose cell is cached. `None` if it is not, or if the index has to be
    /// asked.
    pub(crate) async fn get_by_cell(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<Value<'_, F>>, Error> {
        let Some((cell, _)) = self.cells.get(hash, key) else { return Ok(None) };
        match self.read_cell(&cell, key).await? {
            // Q2: it is listed as long as it goes on.
            Some(shown) if shown.kind == Kind::Value => Ok(Some(shown.value)),
            _ => {
                self.cells.remove(hash);
                Ok(None)
            }
        }
    }

    /// Replaces the value of a key that is a cell, or deletes it, whatever is there. Returns false
    /// if the key is to be looked for again: this cell has ended.
    pub(crate) async fn write_cell(
        &self,
        hash: u64,
        key: &[u8],
        cell: FoundCell,
        value: Option<&[u8]>,
    ) -> Result<bool, Error> {
        let next = Rc::new(value.map_or(Next::Delete, |value| Next::Put(value.to_vec())));
        let choice = |_: Option<&[u8]>| Ok(Rc::clone(&next));
        let life = Life::Set(None);
        Ok(self.change_cell_and_life(hash, key, cell, (&choice, life)).await?.is_some())
    }

    /// Lets `choice` choose what comes after the value of a key that is a cell, and keeps its
    /// deadline. Returns both, or `None` if the key is to be looked for again: this cell has ended.
    ///
    /// # Errors
    /// [`Error::Full`]: the key has the value that it had.
    pub(crate) async fn change_cell(
        &self,
        hash: u64,
        key: &[u8],
        cell: FoundCell,
        choice: &Choice<'_>,
    ) -> Result<Option<Change>, Error> {
        self.change_cell_and_life(hash, key, cell, (choice, Life::Kept)).await
    }

    /// The same with another deadline.
    pub(crate) async fn change_cell_and_life(
        &self,
        hash: u64,
        key: &[u8],
        (cell, generation): FoundCell,
        (choice, life): (&Choice<'_>, Life),
    ) -> Result<Option<Change>, Error> {
        let mut lost = 0_u32;
        for _ in 0..TRIES {
            let epoch = self.index.epoch();
            let seen = self.cells.take_seen(hash, &cell, epoch);
            let (seen, is_fresh) = match seen.filter(|seen| !self.is_past(seen.deadline)) {
                Some(seen) => (seen, false),
                None => match self.see_cell(hash, key, &cell, epoch).await? {
                    Some(seen) => (seen, true),
                    None => return Ok(None),
                },
            };
            let next = match choice(Some(&seen.value)) {
                // K3: what was cached may be long past. What changes nothing is a read.
                Err(_) if !is_fresh => continue,
                next => next?,
            };
            let (kind, value) = match &*next {
                Next::Keep if !is_fresh => continue,
                Next::Keep => {
                    let value = seen.value.clone();
                    self.cells.insert(hash, key, (cell, generation), Some(seen));
                    return Ok(Some((Some(value.clone()), Some(value))));
                }
                Next::Put(value) => (Kind::Value, value.as_slice()),
                Next::Delete => (Kind::Absent, &[][..]),
            };
            let deadline = if kind == Kind::Absent { None } else { life.after(seen.deadline) };
            let content = CellContent { kind, deadline, key, value };
            // S6: a cell that is worn goes on as a register.
            if !cell.fits_content(&content) || seen.view.is_worn(self.geometry.format) {
                if seen.deadline.is_some() {
                    return Box::pin(self.forward_expiring(hash, &cell, &seen, &content)).await;
                }
                let next = (&*seen.value, value.len());
                self.forward(hash, key, (&cell, &seen), next).await?;
                return Ok(None);
            }
            // Q1: built on the record that `value` was made of.
            let proposed = self.propose_to(&cell, &seen.view, &content, Purpose::Replace).await?;
            if let Some(view) = proposed {
                let SeenCell { epoch, value: before, .. } = seen;
                if kind == Kind::Absent {
                    self.cells.remove(hash);
                    return Ok(Some((Some(before), None)));
                }
                // Others may have built on it: what they wrote is not known.
                let value_of = |view| SeenCell { epoch, view, deadline, value: value.to_vec() };
                let seen = view.map(value_of);
                self.cells.insert(hash, key, (cell, generation), seen);
                return Ok(Some((Some(before), Some(value.to_vec()))));
            }
            self.pause_after(lost).await;
            lost += 1;
        }
        Err(Error::Contended)
    }

    /// Waits for a random time, so that of several clients that change a key one at a time gets on.
    pub(crate) async fn pause_after(&self, lost: u32) {
        let longest = SHORTEST_PAUSE << lost.min(DOUBLINGS);
        self.group.pause(self.group.dice(u64::from(lost)) % longest).await;
    }

    /// Reads the cell of a key. `None` if it has ended; then the key goes on in another place, if it
    /// is there at all.
    async fn see_cell(
        &self,
        hash: u64,
        key: &[u8],
        cell: &KeyedCell,
        epoch: u64,
    ) -> Result<Option<SeenCell>, Error> {
        let Some(shown) = self.read_cell(cell, key).await? else {
            return Err(Error::DAMAGED);
        };
        match shown.kind {
            Kind::Value => Ok(Some(seen_of(&shown, epoch))),
            Kind::Absent => {
                self.cells.remove(hash);
                Ok(None)
            }
            Kind::Forward => {
                self.move_forwarded(hash, key, cell, &shown).await?;
                Ok(None)
            }
        }
    }

    /// Proposes a record. Returns whether it was committed, and the view if it is the last one
    /// there. One roundtrip if the view is right.
    pub(crate) async fn propose_to(
        &self,
        cell: &KeyedCell,
        view: &View,
        content: &CellContent<'_>,
        need: Purpose,
    ) -> Result<Option<Option<View>>, Error> {
        let words = content.payload();
        let change = self.number()?;
        let records = self.heap.plain(cell.record_words());
        let record = self.allocate(records, need).await?;
        let payload = &words;
        let proposal = Proposal { change, record, payload, initial_writes: &[], sparing: false };
        let proposed = cell::propose(&self.group, &cell.at, view, &proposal, &()).await?;
        let hash = hash_key(content.key, self.geometry.hash_seed);
        Ok(self.was_committed(hash, record, proposed))
    }

    /// Returns whether a record was committed, and the view if it is the last one there. Wakes clients
    /// that wait for that, or takes the record's memory back.
    pub(crate) fn was_committed(
        &self,
        hash: u64,
        record: Pointer,
        proposed: Proposed,
    ) -> Option<Option<View>> {
        match proposed {
            Proposed::Committed(view) => {
                self.wake(hash);
                Some((view.record() == record).then_some(view))
            }
            Proposed::Lost { unused } => {
                if unused {
                    self.heap.take_back_unused(record);
                }
                None
            }
        }
    }

    /// Ends a cell with the value that it has. The key goes on in a register that begins with `value`,
    /// that one or what comes after it, with room in place for `least` bytes. Memory comes first (K4).
    /// Returns whether it goes on in this register.
    ///
    /// # Errors
    /// [`Error::Full`]: nothing has changed.
    pub(crate) async fn forward(
        &self,
        hash: u64,
        key: &[u8],
        (cell, seen): (&KeyedCell, &SeenCell),
        (value, least): (&[u8], usize),
    ) -> Result<bool, Error> {
        self.bucket_to_list_in(hash).await?;
        let room = self.room_after(hash, key, (value, least), Purpose::Insert).await?;
        match self.end_cell(key, cell, seen).await {
            Ok(true) => self.list_forwarded(hash, key, cell, (room, value)).await,
            outcome => {
                self.give_back(&room.0, std::slice::from_ref(&room.2));
                outcome
            }
        }
    }

    /// Ends a cell with the value that it has: its key goes on in other memory. Returns whether it did;
    /// if not, it has another value.
    pub(crate) async fn end_cell(
        &self,
        key: &[u8],
        cell: &KeyedCell,
        seen: &SeenCell,
    ) -> Result<bool, Error> {
        // X3: with its deadline.
        let SeenCell { view, deadline, value, .. } = seen;
        let forward = CellContent { kind: Kind::Forward, deadline: *deadline, key, value };
        Ok(self.propose_to(cell, view, &forward, Purpose::Replace).await?.is_some())
    }

    /// Returns the bucket that is to list what a key goes on in.
    ///
    /// # Errors
    /// It is worn. S6: one that stays so has no changes left but for keys that come, go or must move.
    pub(crate) async fn bucket_to_list_in(&self, hash: u64) -> Result<Located, Error> {
        let located = self.fresh_to_change(hash).await?;
        match located.view.is_worn(self.geometry.format) {
            true => Err(swarm_core::error::Error::Exhausted.into()),
            false => Ok(located),
        }
    }

    /// Lists a register in place of a cell that was forwarded, unless another client has; a cell if
    /// its value has a deadline.
    pub(crate) async fn move_forwarded(
        &self,
        hash: u64,
        key: &[u8],
        cell: &KeyedCell,
        shown: &ShownCell<'_, F>,
    ) -> Result<(), Error> {
        let value = &*shown.value;
        self.cells.remove(hash);
        let located = self.fresh_to_change(hash).await?;
        if !located.bucket.lists(cell.at.place.pointer, cell.identity) {
            return Ok(());
        }
        if let Some(deadline) = shown.deadline {
            return self.move_expiring(hash, key, cell, (value, deadline)).await;
        }
        let room = self.room_after(hash, key, (value, 0), Purpose::Relocate).await?;
        self.list_forwarded(hash, key, cell, (room, value)).await.map(drop)
    }

    /// Allocates a register for a key and its value, with room in place for `least` bytes, and sees to
    /// a record for the bucket that will list it.
    pub(crate) async fn room_after<'v>(
        &self,
        hash: u64,
        key: &[u8],
        (value, least): (&'v [u8], usize),
        need: Purpose,
    ) -> Result<Room<'v>, Error> {
        let capacity = words_in_place(value.len()).max(words_in_place(least));
        let wanted = Shape { key_length: key.len(), capacity };
        let room = self.room(hash, wanted, value, need).await?;
        let record = self.has_record(Purpose::Relocate).await;
        record.inspect_err(|_| self.give_back(&room.0, std::slice::from_ref(&room.2)))?;
        Ok(room)
    }

    /// Q3: the register begins with the value that the cell ended with, and the bucket has one
    /// winner. Returns whether it is this register.
    pub(crate) async fn list_forwarded(
        &self,
        hash: u64,
        key: &[u8],
        cell: &KeyedCell,
        ((place, shape, write), value): (Room<'_>, &[u8]),
    ) -> Result<bool, Error> {
        self.cells.remove(hash);
        let identity = Identity { created_at: self.group.now(), number: write.number };
        let new_register = NewRegister {
            register: Register::new(place, identity, shape),
            buffer: write.buffer,
            key,
            value,
            deleted: false,
            predecessor: Some(cell.predecessor(&self.geometry)),
        };
        let mut is_proposed = false;
        let old = (cell.at.place.pointer, cell.identity);
        let listed =
            self.put_register_in_place_of(hash, old, &new_register, &mut is_proposed).await;
        if !is_proposed {
            self.give_back(&place, &[write]);
        }
        listed
    }

    /// Reads a cell that the index listed within this operation, and caches it. `None` if it is
    /// another key's.
    pub(crate) async fn read_listed_cell(
        &self,
        hash: u64,
        key: &[u8],
        found: FoundCell,
    ) -> Result<Option<ShownCell<'_, F>>, Error> {
        let epoch = self.index.epoch();
        let shown = self.read_cell(&found.0, key).await?;
        if let Some(shown) = shown.as_ref().filter(|shown| shown.kind == Kind::Value) {
            self.cells.insert(hash, key, found, Some(seen_of(shown, epoch)));
        }
        Ok(shown)
    }
}

/// Returns what was seen of a cell that has a value.
pub(crate) fn seen_of<F: Fabric>(shown: &ShownCell<'_, F>, epoch: u64) -> SeenCell {
    let ShownCell { deadline, view, .. } = *shown;
    SeenCell { epoch, view, deadline, value: shown.value.to_vec() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ops::ControlFlow;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::{self, Geometry, record};
    use swarm_core::node::{NodeId, NodeSet};
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::{Ballot, CellFlags, Incarnation};

    use super::*;
    use crate::client::handle::Options;
    use crate::ops::cursor::Cursor;
    use crate::runtime::block_on::block_on;

    type Here = Client<Loopback, LoneClock>;

    /// Clients of one pool in which keys may be cells.
    fn clients() -> (Loopback, [Here; 2]) {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry").with_keyed_cells(true);
        let nodes = Loopback::new(3, 4 << 17);
        let clients = [0, 1].map(|client| {
            let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
            let clock = LoneClock::new(10_000);
            Client::new(nodes.clone(), clock, geometry, session, Options::default())
        });
        (nodes, clients)
    }

    fn cell_of(client: &Here, key: &[u8]) -> KeyedCell {
        let hash = client.check(key, &[]).expect("a key");
        client.cells.get(hash, key).expect("it is cached").0
    }

    /// A client leaves a cell that it has ended, and lists nothing in its place.
    fn left_forwarded(client: &Here, key: &[u8]) {
        let cell = cell_of(client, key);
        let shown = block_on(client.read_cell(&cell, key)).expect("nodes").expect("its key");
        let (kind, value) = (Kind::Forward, &*shown.value);
        let forward = CellContent { kind, deadline: shown.deadline, key, value };
        let outcome = client.propose_to(&cell, &shown.view, &forward, Purpose::Replace);
        let outcome = block_on(outcome);
        assert!(outcome.expect("memory").is_some());
    }

    fn get(client: &Here, key: &[u8]) -> Option<Vec<u8>> {
        client.blocking().get(key).expect("nodes answer").map(|value| value.to_vec())
    }

    #[test]
    fn a_counter_becomes_a_cell_and_stays_one() {
        let (_, [one, two]) = clients();
        for sum in 1..=20 {
            assert_eq!(one.blocking().increment(b"key", 1), Ok(2 * sum - 1));
            assert_eq!(two.blocking().increment(b"key", 1), Ok(2 * sum));
        }
        let names = [&one, &two].map(|client| cell_of(client, b"key").identity);
        assert_eq!(names[0], names[1]);
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"40"[..]));
        one.blocking().put(b"key", b"7").expect("memory");
        assert_eq!(two.blocking().increment(b"key", -1), Ok(6));
        assert_eq!(two.blocking().insert(b"key", b"1"), Ok(false));
        assert!(matches!(one.blocking().put(b"key", b"no number"), Ok(())));
        assert!(matches!(two.blocking().increment(b"key", 1), Err(Error::Number(9))));
    }

    /// What a client remembers is long past.
    #[test]
    fn what_changes_nothing_is_read_first() {
        let (_, [one, two]) = clients();
        (0..3).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        two.blocking().put(b"key", b"9").expect("memory");
        let swap = one.blocking().compare_and_swap(b"key", Some(b"9"), Some(b"word"));
        assert_eq!(swap, Ok(crate::ops::modify::CompareAndSwap::Swapped));
        two.blocking().put(b"key", b"5").expect("memory");
        assert_eq!(one.blocking().increment(b"key", 1), Ok(6), "it was a word");
    }

    /// Two keys may have one hash.
    #[test]
    fn a_cell_is_its_keys_alone() {
        let (_, [one, _]) = clients();
        (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        let cell = cell_of(&one, b"key");
        assert!(block_on(one.read_cell(&cell, b"kex")).expect("nodes answer").is_none());
        assert!(block_on(one.read_cell(&cell, b"key")).expect("nodes answer").is_some());
    }

    #[test]
    fn what_was_seen_in_an_earlier_epoch_is_not_built_on() {
        let (_, [one, _]) = clients();
        (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        let (hash, cell) = (one.check(b"key", &[]).expect("a key"), cell_of(&one, b"key"));
        assert!(one.cells.take_seen(hash, &cell, 0).is_some());
        assert_eq!(one.blocking().increment(b"key", 1), Ok(3));
        assert!(one.cells.take_seen(hash, &cell, 1).is_none());
    }

    #[test]
    fn a_value_that_outgrows_its_cell_goes_on_in_a_register() {
        for length in [1000, 5000] {
            let (_, [one, two]) = clients();
            (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
            assert_eq!(get(&two, b"key").as_deref(), Some(&b"2"[..]));
            let long = vec![7; length];
            one.blocking().put(b"key", &long).expect("memory");
            assert_eq!(get(&one, b"key").as_ref(), Some(&long));
            assert_eq!(get(&two, b"key").as_ref(), Some(&long));
            assert_eq!(two.blocking().swap(b"key", b"3"), Ok(Some(long)));
            assert_eq!(one.blocking().increment(b"key", 1), Ok(4));
            assert_eq!(two.blocking().get_and_delete(b"key"), Ok(Some(b"4".to_vec())));
            assert_eq!((get(&one, b"key"), get(&two, b"key")), (None, None));
        }
    }

    /// A client that remembers the cell finds the register that an insert put in its place.
    #[test]
    fn what_is_deleted_is_dead_for_good() {
        let (_, [one, two]) = clients();
        (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        assert_eq!(two.blocking().increment(b"key", 1), Ok(3));
        let dead = cell_of(&two, b"key");
        one.blocking().delete(b"key").expect("memory");
        one.blocking().delete(b"key").expect("nodes answer");
        assert_eq!(two.blocking().update(b"key", b"9"), Ok(false));
        two.cells.insert(two.check(b"key", &[]).expect("a key"), b"key", (dead, 0), None);
        assert_eq!(two.blocking().put_if_absent(b"key", b"5"), Ok(None));
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"5"[..]));
        two.cells.insert(two.check(b"key", &[]).expect("a key"), b"key", (dead, 0), None);
        assert_eq!(get(&two, b"key").as_deref(), Some(&b"5"[..]));
        assert_eq!(two.blocking().increment(b"key", 1), Ok(6));
        assert_ne!(cell_of(&two, b"key").identity, dead.identity);
    }

    /// A client that reaches it reads the value; one that changes it goes on with a register.
    #[test]
    fn what_was_forwarded_and_left_has_its_value_and_goes_on() {
        for change in 0..5 {
            let (_, [one, two]) = clients();
            (0..3).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
            assert_eq!(get(&two, b"key").as_deref(), Some(&b"3"[..]));
            left_forwarded(&one, b"key");
            assert_eq!(get(&two, b"key").as_deref(), Some(&b"3"[..]));
            let store = two.blocking();
            let left: Option<&[u8]> = match change {
                0 => store.put(b"key", b"4").map(|()| Some(&b"4"[..])),
                1 => store.increment(b"key", 2).map(|_| Some(&b"5"[..])),
                2 => store.delete(b"key").map(|()| None),
                3 => store.insert(b"key", b"8").map(|is| if is { None } else { Some(&b"3"[..]) }),
                _ => store.update(b"key", b"6").map(|_| Some(&b"6"[..])),
            }
            .expect("memory");
            assert_eq!((get(&one, b"key").as_deref(), get(&two, b"key").as_deref()), (left, left));
        }
    }

    /// The bucket that a client remembers lists a cell that was forwarded, and the key was deleted since.
    #[test]
    fn an_insert_takes_no_forwarded_cell_for_its_key() {
        let (_, [one, two]) = clients();
        (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        assert_eq!(two.blocking().insert(b"key", b"8"), Ok(false));
        one.blocking().put(b"key", &[7; 1000]).expect("memory");
        one.blocking().delete(b"key").expect("nodes answer");
        assert_eq!(two.blocking().insert(b"key", b"8"), Ok(true));
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"8"[..]));
    }

    /// A register finds no memory: the cell goes on with the value that it has (K4).
    #[test]
    fn what_finds_no_place_is_not_forwarded() {
        let (_, [one, two]) = clients();
        (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        let long = vec![7; 1000];
        let is_full = |number: usize| {
            let put = two.blocking().put(format!("another {number}").as_bytes(), &long);
            put.is_err_and(|error| matches!(error, Error::Full(_)))
        };
        assert!((0..10_000).any(is_full));
        for _ in 0..3 {
            assert!(matches!(two.blocking().put(b"key", &long), Err(Error::Full(_))));
            let cell = cell_of(&one, b"key");
            let shown = block_on(one.read_cell(&cell, b"key")).expect("nodes").expect("its key");
            assert_eq!((shown.kind, &*shown.value), (Kind::Value, &b"2"[..]));
        }
        assert_eq!(one.blocking().increment(b"key", 1), Ok(3));
    }

    /// An evacuation has read a cell, and another client changes it before it is forwarded.
    #[test]
    fn a_cell_that_changed_meanwhile_is_not_moved() {
        let (_, [one, two]) = clients();
        (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        let (hash, cell) = (one.check(b"key", &[]).expect("a key"), cell_of(&one, b"key"));
        let moves = |change: bool| {
            let shown = block_on(one.read_cell(&cell, b"key")).expect("nodes").expect("its key");
            let last = (shown.kind, &shown.view, &*shown.value, shown.deadline);
            if change {
                assert_eq!(two.blocking().increment(b"key", 1), Ok(3));
            }
            block_on(one.move_cell_out(hash, b"key", &cell, last)).expect("memory")
        };
        assert!(!moves(true));
        assert_eq!(get(&two, b"key").as_deref(), Some(&b"3"[..]));
        assert!(moves(false));
        assert_eq!(get(&two, b"key").as_deref(), Some(&b"3"[..]));
        assert_eq!(two.blocking().increment(b"key", 1), Ok(4));
        assert_ne!(cell_of(&two, b"key").identity, cell.identity);
        assert_eq!(one.blocking().increment(b"key", 1), Ok(5));
        // The bucket lists the other cell by now.
        assert!(!moves(false));
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"5"[..]));
    }

    /// Ballots end: the key goes on in a register, and in another cell from the next change on.
    #[test]
    fn a_worn_cell_goes_on() {
        let (nodes, [one, two]) = clients();
        (0..2).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        let (worn, format) = (cell_of(&one, b"key"), one.geometry.format);
        let shown = block_on(one.read_cell(&worn, b"key")).expect("nodes").expect("its key");
        let (ballot, record) = (Ballot((format.last_ballot().0 / 5 * 4) & !1), shown.view.record());
        let word = format.cell(ballot, record, CellFlags::CONFIRMED | CellFlags::ACCEPTED);
        for node in NodeSet::all(3) {
            let at = layout::Location::everywhere(record, NodeId(0)).at(node, 3);
            nodes.set_word(node, at.plus(record::ACCEPTED), ballot.0);
            nodes.set_word(node, worn.at.place.at(node, 3).plus(layout::cell::WORD), word.0);
        }
        assert_eq!(two.blocking().increment(b"key", 1), Ok(3));
        assert_eq!(two.blocking().increment(b"key", 1), Ok(4));
        assert_ne!(cell_of(&two, b"key").identity, worn.identity);
        assert_eq!(one.blocking().increment(b"key", 1), Ok(5));
    }

    /// Registers, cells, deleted and forwarded ones: each walk reports all that there are.
    #[test]
    fn walks_meet_cells() {
        let (_, [one, two]) = clients();
        let (mut all, name) = (BTreeMap::new(), |number: u32| number.to_le_bytes().to_vec());
        for number in 0..200 {
            one.blocking().put(&name(number), b"1").expect("memory");
            let value = if number % 3 == 0 { 1 } else { 2 };
            if value == 2 {
                assert_eq!(one.blocking().increment(&name(number), 1), Ok(2));
            }
            match number % 12 {
                4 | 6 => one.blocking().delete(&name(number)).expect("memory"),
                5 => left_forwarded(&one, &name(number)),
                _ => {}
            }
            if !matches!(number % 12, 4 | 6) {
                all.insert(name(number), value.to_string().into_bytes());
            }
        }
        let mut met = BTreeMap::new();
        let each = |key: &[u8], value: &[u8]| {
            assert_eq!(met.insert(key.to_vec(), value.to_vec()), None);
            ControlFlow::Continue(())
        };
        block_on(two.for_each(each)).expect("nodes answer");
        assert_eq!(met, all);
        let (mut cursor, mut met) = (Cursor::new(), BTreeMap::new());
        let add = |met: &mut BTreeMap<_, _>, key: &[u8], value: &[u8]| {
            assert_eq!(met.insert(key.to_vec(), value.to_vec()), None);
        };
        while block_on(two.next_keys(&mut cursor, |key, value| add(&mut met, key, value)))
            .expect("nodes answer")
        {}
        assert_eq!(met, all);
        assert_eq!(block_on(two.usage()).expect("nodes answer").keys, all.len() as u64);
        for (key, value) in &all {
            assert_eq!(get(&two, key).as_ref(), Some(value));
        }
    }
}
