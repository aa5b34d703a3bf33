//! Read-modify-write: compare-and-swap, counters, and whatever else makes a key's new value of the
//! one before.
//!
//! A register cannot do that: its writes are blind. The bucket's cell can. So a change that depends
//! on the value is a [move](crate::ops::relocate) of the key, to a register that begins with the
//! new value. The old register is frozen first. Then its last value is decided, as soon as the cell
//! decides which mover's last value counts, and no write comes between that value and the change.
//!
//! **Invariants:** the new value is made of the register's last value, which the freeze showed
//! (K1). It counts only if the cell chose this client's register (K2). So the change takes effect
//! with that change of the bucket, which happens once or never (C6), right after the write that the
//! register's last value stems from. Where nothing is to change, the operation is a get (K3). Once
//! the register is frozen, what is there can be kept: there was memory for it before (K4).
//!
//! A key without a register that has a value is inserted, which is one change of the bucket as
//! well.
//!
//! Where keys may be cells, the first change of a key makes a [cell](crate::ops::convert) of its
//! register in the same way, and later ones are [changes of the cell](crate::ops::keyed). What
//! follows holds for keys that are none.
//!
//! Roundtrips: a get where nothing changes; six more for a change; an insert's where there is no
//! key. Each change takes a register, a buffer and a record, and what they replace comes back by a
//! [GC cycle](crate::gc::mark_sweep).

use std::future::Future;
use std::rc::Rc;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::OpCost;
use swarm_core::layout::MAX_VALUE;
use swarm_core::register::{Check, Found, Protocol};

use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::ops::fast_change::Begun;
use crate::ops::locate::{LocatedBy, Place};

/// After a change that is lost the client pauses for up to twice this long, in nanoseconds, and twice
/// as long after each further one, so many times at most.
const SHORTEST_PAUSE: u64 = 1024;
const DOUBLINGS: u64 = 10;

/// What a compare-and-swap did.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum CompareAndSwap {
    /// It found what it expected, and replaced it.
    Swapped,
    /// It found something else, and changed nothing: the value, or that there is none.
    Lost(Option<Vec<u8>>),
}

/// What is to be there after a value.
pub(crate) enum Next {
    /// The same, or still nothing.
    Keep,
    Put(Vec<u8>),
    Delete,
}

impl Next {
    fn of(value: Option<Vec<u8>>) -> Self {
        value.map_or(Self::Delete, Self::Put)
    }

    /// Returns what is there after `before`.
    pub(crate) fn after<'v>(&'v self, before: Option<&'v [u8]>) -> Option<&'v [u8]> {
        match self {
            Self::Keep => before,
            Self::Put(value) => Some(value),
            Self::Delete => None,
        }
    }
}

/// A value before and after a change; `None` where there is none.
pub(crate) type Change = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Returns what is to be there after a value.
pub(crate) type Choice<'c> = dyn Fn(Option<&[u8]>) -> Result<Rc<Next>, Error> + 'c;

/// Chooses what is to be there after a value, for a caller.
pub(crate) type Choose<'c> = dyn FnMut(Option<&[u8]>) -> Result<Next, Error> + 'c;

/// What chooses the value that is to be there after another, and what it chose last. It is asked again
/// where another value is met, so only once if nobody else changes the key.
pub(crate) struct Chooser<'a, 'c> {
    pub(crate) choose: &'a mut Choose<'c>,
    pub(crate) last: Option<Chosen>,
}

/// A value, and what was chosen to be there after it.
pub(crate) type Chosen = (Option<Vec<u8>>, Rc<Next>);

impl Chooser<'_, '_> {
    pub(crate) fn after(&mut self, before: Option<&[u8]>) -> Result<Rc<Next>, Error> {
        // K1: what was made of an equal value was made of this one.
        match self.last.take().filter(|(value, _)| value.as_deref() == before) {
            Some(last) => self.last = Some(last),
            None => {
                let next = Rc::new(checked(self.choose, before)?);
                self.last = Some((before.map(<[u8]>::to_vec), next));
            }
        }
        let (_, next) = self.last.as_ref().expect("it was chosen");
        Ok(Rc::clone(next))
    }
}

/// Lets `choose` choose what is to be there after `before`, and checks that.
#[inline]
pub(crate) fn checked(choose: &mut Choose<'_>, before: Option<&[u8]>) -> Result<Next, Error> {
    let next = choose(before)?;
    match &next {
        Next::Put(value) if value.len() > MAX_VALUE => Err(Error::Value(value.len())),
        Next::Put(value) if Some(&**value) == before => Ok(Next::Keep),
        Next::Delete if before.is_none() => Ok(Next::Keep),
        _ => Ok(next),
    }
}

/// A change of a key's value that is made by moving the key.
pub(crate) struct Rewrite<'a> {
    pub(crate) key: &'a [u8],
    /// The value as it was read, before the register was frozen.
    pub(crate) read: &'a [u8],
    pub(crate) choice: &'a Choice<'a>,
    /// When a value that is put expires, if it does: then the key goes on in a cell.
    pub(crate) deadline: Option<u64>,
    pub(crate) done: Option<Change>,
}

impl Rewrite<'_> {
    /// Chooses what the key goes on with, of its register's last value. What cannot be made of it
    /// stays as it is, and the next read reports why.
    pub(crate) fn next(&self, last: Option<&[u8]>) -> Rc<Next> {
        (self.choice)(last).unwrap_or_else(|_| Rc::new(Next::Keep))
    }

    /// Notes that the key went on with `after`, made of `before`.
    pub(crate) fn is_done(&mut self, before: Option<&[u8]>, after: Option<&[u8]>) {
        self.is_done_with(before, after, false);
    }

    /// The same; with a deadline also the value that was there is another one.
    pub(crate) fn is_done_with(
        &mut self,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
        has_deadline: bool,
    ) {
        if before != after || has_deadline {
            self.done = Some((before.map(<[u8]>::to_vec), after.map(<[u8]>::to_vec)));
        }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Makes `new` the value of `key` if its value is `expected`; `None` stands for no value, on
    /// either side.
    ///
    /// It takes effect once or, if it is lost or ends in an error, never; after some errors that is
    /// unknown ([`Error::may_have_taken_effect`]). One that is lost changes nothing, and says what
    /// it found.
    ///
    /// About seven roundtrips for the first change of a key; after that one if nobody else changed
    /// the key since this client did, and one or two if it is lost; an insert's if there is to be no
    /// value yet. Values above 4 KiB take seven each time. It takes memory, as an insert does. Of many that change one key at a time those that
    /// lose begin anew, after a random pause.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareAndSwap, Error> {
        if let Some(new) = new.filter(|new| new.len() > MAX_VALUE) {
            return Err(Error::Value(new.len()));
        }
        let mut choice = |found: Option<&[u8]>| {
            let is_expected = found == expected;
            Ok(if is_expected { Next::of(new.map(<[u8]>::to_vec)) } else { Next::Keep })
        };
        let result_of = |found: Option<&[u8]>, _: Option<&[u8]>| match found == expected {
            true => CompareAndSwap::Swapped,
            false => CompareAndSwap::Lost(found.map(<[u8]>::to_vec)),
        };
        self.modify(key, None, &mut choice, result_of).await
    }

    /// Makes the value of `key` what `change` makes of it, and returns that; `None` stands for no
    /// value. It changes nothing if `change` returns what it was given.
    ///
    /// Writes that come in between are not lost: `change` is called again with what they wrote, as
    /// often as it takes. Only what its last call returned counts. So it should make the same of the
    /// same value each time: what it moves out of its surroundings is gone in the next call. It runs
    /// while the key is held up for others, so it should be short; and it must not use this client.
    ///
    /// Effects and roundtrips are those of [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn update_with(
        &self,
        key: &[u8],
        mut change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut choice = |found: Option<&[u8]>| Ok(Next::of(change(found)));
        self.modify(key, None, &mut choice, |_, after| after.map(<[u8]>::to_vec)).await
    }

    /// Adds `by` to the number under `key`, and returns the sum. No value counts as 0.
    ///
    /// The number is decimal text, as [`i64::from_str`](std::str::FromStr) reads it: a program that gets
    /// the key, by whatever program, can read it, and put another one.
    ///
    /// Effects and roundtrips are those of [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// # Errors
    /// A key out of bounds; [`Error::Number`] if the value is no such number, and
    /// [`Error::Overflow`] if the sum is none, both without effect; a full pool; too few memory
    /// nodes that answer.
    pub async fn increment(&self, key: &[u8], by: i64) -> Result<i64, Error> {
        let mut choice = |found: Option<&[u8]>| {
            let sum = number(found)?.checked_add(by).ok_or(Error::Overflow)?;
            // A counter is there once something was added to it, be it 0.
            Ok(Next::Put(sum.to_string().into_bytes()))
        };
        self.modify(key, None, &mut choice, |_, after| number(after)).await?
    }

    /// Makes `value` the value of `key`, whether it is there or not, and returns the one before.
    ///
    /// Effects and roundtrips are those of [`compare_and_swap`](Self::compare_and_swap).
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn swap(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut choice = |_: Option<&[u8]>| Ok(Next::Put(value.to_vec()));
        self.modify(key, None, &mut choice, |before, _| before.map(<[u8]>::to_vec)).await
    }

    /// Adds `key` with `value` if it is not there, and returns the value that was there instead.
    ///
    /// One roundtrip or two if the key is there, an [insert](Self::insert)'s and one more if not.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(match self.compare_and_swap(key, None, Some(value)).await? {
            CompareAndSwap::Swapped => None,
            CompareAndSwap::Lost(found) => found,
        })
    }

    /// Deletes `key`, and returns the value that it had. Of several that do so at a time, one gets
    /// the value.
    ///
    /// Effects and roundtrips are those of [`compare_and_swap`](Self::compare_and_swap). Unlike
    /// [`delete`](Self::delete), it takes memory.
    ///
    /// # Errors
    /// A key out of bounds; a full pool; too few memory nodes that answer.
    pub async fn get_and_delete(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut choice = |_: Option<&[u8]>| Ok(Next::Delete);
        self.modify(key, None, &mut choice, |before, _| before.map(<[u8]>::to_vec)).await
    }

    /// Lets `choose` choose what is there after the key's value, and returns what `result_of` makes of both. With
    /// `room` a key that is not there is inserted in a cell, with room for so many bytes.
    ///
    /// # Errors
    /// [`Error::NoCells`], [`Error::TooLongForCell`]: there is no such cell.
    pub(crate) async fn modify<T>(
        &self,
        key: &[u8],
        room: Option<usize>,
        choose: &mut Choose<'_>,
        result_of: impl FnOnce(Option<&[u8]>, Option<&[u8]>) -> T,
    ) -> Result<T, Error> {
        let (mut result_of, mut reported) = (Some(result_of), None);
        let mut note = |before: Option<&[u8]>, after: Option<&[u8]>| {
            reported = result_of.take().map(|result_of| result_of(before, after));
        };
        match self.begin_change(key, room, choose, &mut note) {
            Begun::Done(result) => result?,
            Begun::Rest(rest) => rest.await?,
        }
        Ok(reported.expect("what took effect was reported"))
    }

    /// Runs a change of one key's cell, counts it, and does this client's share of collecting garbage.
    pub(crate) async fn as_change<T>(
        &self,
        change: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.as_change_on(OpCost::default(), Box::pin(self.with_memory(change))).await
    }

    /// The same for what is left of a change whose start has cost `tally`.
    pub(crate) async fn as_change_on<T>(
        &self,
        tally: OpCost,
        rest: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let rest = self.in_own_process(rest);
        let (result, tally) = self.group.fabric().track_on(tally, rest).await;
        self.count(|counters| &mut counters.modify, tally);
        self.gc_assist().await;
        result
    }

    /// Runs an operation that looks one key up, and counts it as a get.
    pub(crate) async fn as_lookup<T>(
        &self,
        lookup: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let lookup = Box::pin(self.in_own_process(self.with_memory(lookup)));
        let (result, tally) = self.group.fabric().track(lookup).await;
        self.count(|counters| &mut counters.get, tally);
        result
    }

    /// Lets `choice` choose what is there after the value of a key that the caller has locked, and
    /// returns both.
    pub(crate) async fn modify_now(
        &self,
        hash: u64,
        key: &[u8],
        room: Option<usize>,
        choice: &Choice<'_>,
    ) -> Result<Change, Error> {
        for attempt in 0..TRIES as u64 {
            if attempt > 0 {
                // Changes that begin in step may undo each other's for ever.
                let longest = SHORTEST_PAUSE << attempt.min(DOUBLINGS);
                self.group.pause(self.group.dice(attempt) % longest).await;
            }
            if let Some(cell) = self.cells.get(hash, key)
                && let Some(done) = self.change_cell(hash, key, cell, choice).await?
            {
                return Ok(done);
            }
            let Some((read, object)) = self.read_to_modify(hash, key).await? else {
                let next = choice(None)?;
                let Next::Put(new) = &*next else { return Ok((None, None)) };
                let is_new = match room {
                    None => self.insert_now(hash, key, new).await?,
                    Some(room) => {
                        Box::pin(self.insert_in_cell(hash, key, (new, None), room)).await?
                    }
                };
                if is_new {
                    return Ok((None, Some(new.clone())));
                }
                continue;
            };
            if let Ok(Place::Cell(cell)) = object {
                match self.change_cell(hash, key, cell, choice).await? {
                    Some(done) => return Ok(done),
                    None => continue,
                }
            }
            let next = choice(Some(&read))?;
            let new = match &*next {
                // K3: what was read was the value at a moment within this operation.
                Next::Keep => return Ok((Some(read.clone()), Some(read))),
                Next::Put(new) => new.as_slice(),
                Next::Delete => &[],
            };
            let mut rewrite = Rewrite { key, read: &read, choice, deadline: None, done: None };
            let Place::Register(register, _) = object? else { continue };
            if matches!(&*next, Next::Put(_)) && self.becomes_cell(key, new.len(), read.len()) {
                Box::pin(self.convert(hash, &register, new, &mut rewrite)).await?;
            } else {
                self.move_rewritten(hash, &register, new, &mut rewrite).await?;
            }
            if let Some(done) = rewrite.done {
                // What it replaced can be looked for.
                self.failed_reclaim.set(None);
                return Ok(done);
            }
            self.locations.remove(hash, key);
        }
        Err(Error::Contended)
    }

    /// Returns the key's value and its register, if it is there, or why that cannot be moved on.
    pub(crate) async fn read_to_modify(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(Vec<u8>, Result<Place, Error>)>, Error> {
        if let Some(mut register) = self.locations.get(hash, key) {
            match P::read(&self.group, &mut register, Check::Identity).await {
                Ok(Found::Value(value)) => {
                    let place = Place::Register(register, LocatedBy::Remembered);
                    return Ok(Some((value.to_vec(), Ok(place))));
                }
                Ok(_) | Err(swarm_core::error::Error::Gone | swarm_core::error::Error::Moved) => {
                    self.locations.remove(hash, key);
                }
                Err(error) => return Err(error.into()),
            }
        }
        let listed = self.read_by_index(hash, key).await?;
        Ok(listed.map(|(value, object)| (value.to_vec(), object)))
    }
}

/// Returns the number that a value is.
fn number(value: Option<&[u8]>) -> Result<i64, Error> {
    let Some(bytes) = value else { return Ok(0) };
    let text = std::str::from_utf8(bytes).ok();
    text.and_then(|text| text.parse().ok()).ok_or(Error::Number(bytes.len()))
}

#[cfg(test)]
mod tests {
    use swarm_core::layout::cell;
    use swarm_core::node::NodeId;
    use swarm_core::register::freeze::freeze;
    use swarm_core::register::safe_guess::SafeGuess;
    use swarm_core::words::{Ballot, CellFlags};

    use super::*;
    use crate::client::handle::tests::alone;
    use crate::error::Shortage;
    use crate::heap::Purpose;
    use crate::index::bucket::MAX_ENTRIES;
    use crate::runtime::block_on::block_on;

    #[test]
    fn numbers_are_text() {
        let client = alone();
        let store = client.blocking();
        assert_eq!(store.increment(b"key", 0), Ok(0), "there is no value yet");
        assert_eq!(store.increment(b"key", 5), Ok(5));
        assert_eq!(store.increment(b"key", -12), Ok(-7));
        assert_eq!(store.get(b"key").expect("a node").as_deref(), Some(&b"-7"[..]));
        store.put(b"key", b"9223372036854775806").expect("memory");
        assert_eq!(store.increment(b"key", 1), Ok(i64::MAX));
        assert_eq!(store.increment(b"key", 1), Err(Error::Overflow));
        assert_eq!(store.increment(b"key", -1), Ok(i64::MAX - 1));
        store.put(b"key", b"seven").expect("memory");
        assert_eq!(store.increment(b"key", 1), Err(Error::Number(5)));
        assert_eq!(store.get(b"key").expect("a node").as_deref(), Some(&b"seven"[..]));
    }

    #[test]
    fn what_is_returned_is_what_was_there() {
        let client = alone();
        let store = client.blocking();
        let some = |value: &[u8]| Some(value.to_vec());
        assert_eq!(store.get_and_delete(b"key"), Ok(None));
        assert_eq!(store.put_if_absent(b"key", b"one"), Ok(None));
        assert_eq!(store.put_if_absent(b"key", b"two"), Ok(some(b"one")));
        assert_eq!(store.swap(b"key", b"two"), Ok(some(b"one")));
        let lost = store.compare_and_swap(b"key", Some(b"one"), Some(b"three"));
        assert_eq!(lost, Ok(CompareAndSwap::Lost(some(b"two"))));
        let lost = store.compare_and_swap(b"key", None, Some(b"three"));
        assert_eq!(lost, Ok(CompareAndSwap::Lost(some(b"two"))));
        let swapped = store.compare_and_swap(b"key", Some(b"two"), Some(b"three"));
        assert_eq!(swapped, Ok(CompareAndSwap::Swapped));
        let twice = |found: Option<&[u8]>| found.map(|found| found.repeat(2));
        assert_eq!(store.update_with(b"key", twice), Ok(some(b"threethree")));
        assert_eq!(store.update_with(b"another", twice), Ok(None));
        let swapped = store.compare_and_swap(b"key", Some(b"threethree"), None);
        assert_eq!(swapped, Ok(CompareAndSwap::Swapped));
        assert_eq!(store.get(b"key").expect("a node").as_deref(), None);
        let swapped = store.compare_and_swap(b"key", None, None);
        assert_eq!(swapped, Ok(CompareAndSwap::Swapped));
        assert_eq!(store.swap(b"key", b"four"), Ok(None));
        assert_eq!(store.get_and_delete(b"key"), Ok(some(b"four")));
        let long = vec![1; MAX_VALUE + 1];
        assert_eq!(store.swap(b"key", &long), Err(Error::Value(long.len())));
        let swapped = store.compare_and_swap(b"key", Some(b"none"), Some(&long));
        assert_eq!(swapped, Err(Error::Value(long.len())));
        assert_eq!(store.insert(b"key", b"five"), Ok(true));
    }

    /// Nobody else changes the key. What the closure gives away in its only call is what counts.
    #[test]
    fn of_an_undisturbed_value_something_is_made_once() {
        let client = alone();
        let store = client.blocking();
        for value in [&b"one"[..], b"two"] {
            let mut value = Some(value.to_vec());
            let given = value.clone();
            assert_eq!(store.update_with(b"key", |_| value.take()), Ok(given.clone()));
            assert_eq!(store.get(b"key").expect("a node").as_deref(), given.as_deref());
        }
    }

    #[test]
    fn where_a_key_was_found_is_remembered() {
        let client = alone();
        let store = client.blocking();
        assert_eq!(store.insert(b"key", b"value"), Ok(true));
        let hash = client.check(b"key", &[]).expect("a key");
        client.locations.remove(hash, b"key");
        assert_eq!(store.put_if_absent(b"key", b"other"), Ok(Some(b"value".to_vec())));
        assert!(client.locations.get(hash, b"key").is_some());
    }

    /// There is memory for the new value. The records that are left are kept for keys that move, and
    /// changes must not use them up (E11).
    #[test]
    fn a_change_takes_no_record_that_is_for_moves() {
        let client = alone();
        let store = client.blocking();
        for key in [&b"key"[..], b"another"] {
            store.put(key, b"value").expect("memory");
        }
        assert_eq!(store.swap(b"another", b"other"), Ok(Some(b"value".to_vec())));
        let records = client.heap.entries_records();
        let take = || block_on(client.heap.allocate_there(&client.group, records, Purpose::Insert));
        let full = (0..).find_map(|_| take().err()).expect("an end");
        let hash = client.check(b"key", &[]).expect("a key");
        let mut register = client.locations.get(hash, b"key").expect("it was written");
        let (Error::Full(full), Err(Error::Full(outcome))) = (full, store.swap(b"key", b"other"))
        else {
            panic!("{full} is not reported")
        };
        assert_eq!(outcome.object, full.object);
        let read = block_on(SafeGuess::read(&client.group, &mut register, Check::Identity));
        assert!(matches!(read, Ok(Found::Value(value)) if *value == b"value"[..]), "not frozen");
        let moved = block_on(client.move_on(hash, &register, 0, Purpose::Relocate));
        assert!(moved.is_ok_and(|origin| origin.is_some()));
        assert_eq!(store.update(b"key", b"other"), Ok(true));
    }

    /// A bucket lists as many keys of one hash as it can, and cannot be split. Near the end of its
    /// ballots nothing is frozen that might find no other place, and what is frozen is read (S6).
    #[test]
    fn nothing_is_frozen_in_a_bucket_that_is_exhausted_for_good() {
        const HASH: u64 = 0x5a5a_0123_89ab_cdef;
        const EXHAUSTED: Error = Error::Replication(swarm_core::error::Error::Exhausted);
        let client = alone();
        let insert = |number| {
            let name = format!("key {number}");
            block_on(client.insert_now(HASH, name.as_bytes(), b"value"))
        };
        (0..MAX_ENTRIES).for_each(|number| assert_eq!(insert(number), Ok(true)));
        assert_eq!(insert(MAX_ENTRIES), Err(Error::TooManyCollisions));
        let (key, format) = (b"key 0", client.geometry.format);
        let choice = |_: Option<&[u8]>| -> Result<Rc<Next>, Error> {
            Ok(Rc::new(Next::Put(b"other".to_vec())))
        };
        let change = || block_on(client.modify_now(HASH, key, None, &choice));
        let get = || block_on(client.get_by_index(HASH, key)).map(|got| got.map(|it| it.to_vec()));
        let last = format.last_ballot().0;
        let goes_on = |left: u64| {
            let located = block_on(client.index.fresh(&client.group, HASH)).expect("a node");
            let at = located.cell.place.at(NodeId(0), 1).plus(cell::WORD);
            // Fast ballots are even.
            let ballot = Ballot((last - left * (last / 8) + 2) & !1);
            let flags = CellFlags::CONFIRMED | CellFlags::ACCEPTED;
            let word = format.cell(ballot, located.view.record(), flags);
            client.group.fabric().inner().set_word(NodeId(0), at, word.0);
        };
        let updated = || block_on(client.update_now(HASH, key, b"again"));
        assert!(change().is_ok(), "there are more");
        goes_on(2);
        assert_eq!(change(), Err(EXHAUSTED));
        assert_eq!(updated(), Ok(true), "it is not frozen");
        goes_on(1);
        assert_eq!(change(), Err(EXHAUSTED));
        let listed = block_on(client.read_by_index(HASH, key)).expect("a node");
        let (_, place) = listed.expect("it is there");
        let Ok(Place::Register(register, _)) = place else { panic!("it is frozen") };
        let moved = block_on(client.move_on(HASH, &register, 0, Purpose::Relocate));
        assert_eq!(moved, Err(EXHAUSTED));
        assert_eq!(updated(), Ok(true), "it is not frozen");
        assert_eq!(get(), Ok(Some(b"again".to_vec())));
        // Somebody froze it before, and others came first until there were no more ballots.
        block_on(freeze(&client.group, &register)).expect("a node");
        assert_eq!(get(), Ok(Some(b"again".to_vec())));
        assert_eq!(change(), Err(EXHAUSTED));
    }

    /// There is memory for the new value and none for the one that is there, which a write that
    /// comes first might make as long again: the register must not be frozen.
    #[test]
    fn what_could_not_be_kept_is_not_moved() {
        let client = alone();
        let store = client.blocking();
        let long = [7; 3000];
        for key in [&b"key"[..], b"another"] {
            store.put(key, &long).expect("memory");
            store.put(b"short", b"short").expect("memory");
            assert_eq!(store.swap(b"short", b"other"), Ok(Some(b"short".to_vec())));
        }
        let hash = client.check(b"key", &[]).expect("a key");
        let mut register = client.locations.get(hash, b"key").expect("it was written");
        let kind = client.first_buffer(register.home(), register.shape(), &long);
        let full = loop {
            let take = client.heap.allocate_there(&client.group, kind, Purpose::Insert);
            match block_on(take) {
                Ok(_) => {}
                Err(Error::Full(Shortage { object, .. })) => break object,
                Err(error) => panic!("{error}"),
            }
        };
        let outcome = store.swap(b"key", b"short");
        assert!(
            matches!(outcome, Err(Error::Full(shortage)) if shortage.object == full),
            "{outcome:?}"
        );
        let read = block_on(SafeGuess::read(&client.group, &mut register, Check::Identity));
        assert!(matches!(read, Ok(Found::Value(value)) if *value == long), "it is not frozen");
    }
}
