//! Going over all keys, a few buckets at a time: for backups.
//!
//! S13: each key that is reported had that value at a moment between the first call and the last; one that is not was absent at
//! such a moment. For a bucket is READ within a call, and of the hashes that it covers it lists all keys that there are
//! then; the register of each is read behind that: if it was deleted by now, its key was absent then or when the bucket
//! was READ, and if it has moved, the key is looked up again. A bucket that is split meanwhile goes on to its children,
//! which cover the same hashes; so no hash is gone over twice, or not at all. Keys are not of one moment: of two that
//! somebody changes one after the other, the later change alone may be reported.
//!
//! Between two calls nothing is under way. So a caller that hands it on to a slow pipe keeps no memory from
//! coming back. Within a call, many keys are on their way at a time: where memory is far all of some buckets, and where it
//! is near what comes next is asked for some keys ahead.

use std::time::Duration;

use futures_util::future::try_join;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::Counting;
use swarm_core::register::{Check, Found, Protocol, Register, read_key, try_read_key};

use crate::client::handle::{Client, Value};
use crate::client::location_cache::hash_key;
use crate::error::Error;
use crate::index::bucket::{Content, Entry, KeyObject};
use crate::index::keyed_cell::{KeyedCell, Kind};
use crate::index::lookup::{Located, Walk};
use crate::runtime::side_by_side::try_join_all;

/// The most buckets of one call: some hundred keys where memory is near; where it is far, as many are READ at the same time.
const MOST: usize = 32;
/// Bytes of values from which on a call takes fewer buckets than the one before.
const MANY_BYTES: usize = 1 << 20;
/// Keys, and first buckets, ahead of which memory is asked for that is near.
const AHEAD: usize = 8;

/// How far a walk over all keys has come: see [`Client::next_keys`].
#[derive(Default)]
pub struct Cursor {
    /// The next of the first buckets.
    next: usize,
    /// Below those before it, as far as they are not gone over.
    walks: Vec<Walk>,
    /// Buckets of the next call.
    width: usize,
}

impl Cursor {
    /// In front of all keys.
    pub fn new() -> Self {
        Self { width: 1, ..Self::default() }
    }

    /// How many of the index's first buckets are gone over or begun. As hashes pick them, keys are spread evenly over them.
    pub fn done(&self) -> usize {
        self.next
    }

    /// Values of so many bytes were reported in one call: the next one is to bring about as many as are good for one.
    fn adapt(&mut self, bytes: usize) {
        self.width = if bytes > MANY_BYTES { self.width / 2 } else { 2 * self.width };
        self.width = self.width.clamp(1, MOST);
    }
}

/// A key and its value, if it has one.
enum Pair<'c, F: Fabric + 'c> {
    None,
    Register(Value<'c, F>, Value<'c, F>),
    Cell(Vec<u8>, Value<'c, F>, Option<u64>),
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Calls `each` with the keys of the next few buckets and their values. False, and no call, behind the last one.
    ///
    /// Over all calls with one cursor, each key that is there all the while is reported once; one that comes or goes
    /// meanwhile may be or not. Where memory is far, a call takes four roundtrips in the common case, for up to some hundred
    /// keys. They take 1 MiB of this process's memory, or more if fewer values do.
    ///
    /// # Errors
    /// Too few memory nodes that answer; damaged memory. The cursor is of no more use.
    ///
    /// # Cancel safety
    /// Nothing of the pool changes; the cursor is of no more use.
    pub async fn next_keys(
        &self,
        cursor: &mut Cursor,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<bool, Error> {
        self.next_until(cursor, |key, value, _| each(key, value)).await
    }

    /// As [`next_keys`](Self::next_keys), and passes on for each key how long it will still be there, by this client's clock, if it
    /// expires.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn next_keys_with_ttl(
        &self,
        cursor: &mut Cursor,
        mut each: impl FnMut(&[u8], &[u8], Option<Duration>),
    ) -> Result<bool, Error> {
        let each = |key: &[u8], value: &[u8], deadline: Option<u64>| {
            each(key, value, deadline.map(|deadline| self.left_until(deadline)));
        };
        self.next_until(cursor, each).await
    }

    /// The same with the deadlines themselves.
    async fn next_until(
        &self,
        cursor: &mut Cursor,
        mut each: impl FnMut(&[u8], &[u8], Option<u64>),
    ) -> Result<bool, Error> {
        self.look();
        let mut bytes = 0;
        let visit = |key: &[u8], value: &[u8], deadline| {
            bytes += value.len();
            each(key, value, deadline);
        };
        let goes_on = self
            .in_own_process(async {
                // What the buckets name is there as long as this is.
                let _pin = self.pin();
                match self.group.fabric().is_near() {
                    true => self.next_near(cursor, visit).await,
                    false => self.next_far(cursor, visit).await,
                }
            })
            .await?;
        cursor.adapt(bytes);
        Ok(goes_on)
    }

    /// How many first buckets the index has: a [`Cursor`] is [`done`](Cursor::done) with so many in the end.
    pub fn first_buckets(&self) -> usize {
        self.geometry.first_buckets()
    }

    /// One bucket and one key after the other.
    async fn next_near(
        &self,
        cursor: &mut Cursor,
        mut each: impl FnMut(&[u8], &[u8], Option<u64>),
    ) -> Result<bool, Error> {
        let mut found: Vec<(u64, KeyObject)> = Vec::with_capacity(MOST);
        for bucket in 0..cursor.width {
            let Some(located) = self.next_bucket(cursor).await? else {
                if bucket == 0 {
                    return Ok(false);
                }
                break;
            };
            for entry in entries(&located) {
                found.push((entry.hash, self.object_of(entry)?));
            }
        }
        let expect = |(_, object): &(u64, KeyObject)| {
            let (place, shape) = match object {
                KeyObject::Register(register) => (&register.place, register.shape()),
                KeyObject::Cell(cell) => (&cell.at.place, cell.shape),
            };
            self.group.expect(place, shape.full_words());
        };
        found.iter().take(AHEAD).for_each(expect);
        for at in 0..found.len() {
            found.get(at + AHEAD).into_iter().for_each(expect);
            let (hash, object) = &mut found[at];
            let register = match object {
                KeyObject::Register(register) => register,
                KeyObject::Cell(cell) => {
                    if let Some((key, value, deadline)) = self.pair_of_cell(*hash, cell).await? {
                        each(&key, &value, deadline);
                    }
                    continue;
                }
            };
            let (mut seen, tried) = (None, try_read_key(&self.group, register));
            let value = match P::try_read(&self.group, register, &mut seen) {
                Some(value) => Some(value),
                None => self.value_of(*hash, register, seen).await?,
            };
            let Some(value) = value else { continue };
            let key = match tried {
                Some(key) => key,
                None => read_key(&self.group, register).await?,
            };
            self.is_at(*hash, &key)?;
            each(&key, &value, None);
        }
        Ok(true)
    }

    /// The next bucket, split or not, of one walk after the other.
    async fn next_bucket(&self, cursor: &mut Cursor) -> Result<Option<Located>, Error> {
        loop {
            let walk = match cursor.walks.first_mut() {
                Some(walk) if walk.next_place().is_some() => walk,
                _ if cursor.next == self.first_buckets() => return Ok(None),
                begun => {
                    let first = cursor.next;
                    cursor.next += 1;
                    if first + AHEAD < self.first_buckets() {
                        self.expect_bucket(&self.geometry.bucket_cell(first + AHEAD));
                    }
                    match begun {
                        Some(walk) => {
                            self.index.walk_again(walk, first);
                            walk
                        }
                        None => {
                            cursor.walks.push(self.index.walk(first));
                            continue;
                        }
                    }
                }
            };
            let located = self.index.step(&self.group, walk).await?;
            walk.next_place().iter().for_each(|place| self.expect_bucket(place));
            if located.is_some() {
                return Ok(located);
            }
        }
    }

    /// A bucket of each of some walks, all at the same time.
    async fn next_far(
        &self,
        cursor: &mut Cursor,
        mut each: impl FnMut(&[u8], &[u8], Option<u64>),
    ) -> Result<bool, Error> {
        cursor.walks.retain(|walk| walk.next_place().is_some());
        while cursor.walks.len() < cursor.width && cursor.next < self.first_buckets() {
            cursor.walks.push(self.index.walk(cursor.next));
            cursor.next += 1;
        }
        if cursor.walks.is_empty() {
            return Ok(false);
        }
        let walks = cursor.walks.iter_mut().take(cursor.width);
        // All of these go side by side, and cost as many roundtrips as the longest.
        let fabric = self.group.fabric();
        let buckets = walks.map(|walk| {
            fabric.branch(async move {
                let Some(located) = self.index.step(&self.group, walk).await? else {
                    return Ok(Vec::new());
                };
                let pair = |entry| fabric.branch(self.pair_of(entry));
                try_join_all(entries(&located).iter().map(pair)).await
            })
        });
        for pair in try_join_all(buckets).await?.into_iter().flatten() {
            match pair {
                Pair::None => {}
                Pair::Register(key, value) => each(&key, &value, None),
                Pair::Cell(key, value, deadline) => each(&key, &value, deadline),
            }
        }
        Ok(true)
    }

    /// An entry's key and value, if it has one: at the same time.
    async fn pair_of(&self, entry: &Entry) -> Result<Pair<'_, F>, Error> {
        let mut register = match self.object_of(entry)? {
            KeyObject::Register(register) => register,
            KeyObject::Cell(cell) => {
                let pair = self.pair_of_cell(entry.hash, &cell).await?;
                return Ok(pair.map_or(Pair::None, |(key, value, deadline)| {
                    Pair::Cell(key, value, deadline)
                }));
            }
        };
        let named = register;
        let fabric = self.group.fabric();
        let key = fabric.branch(async { Ok(read_key(&self.group, &named).await?) });
        let value = fabric.branch(self.value_of(entry.hash, &mut register, None));
        let (key, value) = try_join(key, value).await?;
        let Some(value) = value else { return Ok(Pair::None) };
        self.is_at(entry.hash, &key)?;
        Ok(Pair::Register(key, value))
    }

    /// The key, the value and the deadline of a cell that a bucket named within this call, if it has a value.
    async fn pair_of_cell(
        &self,
        hash: u64,
        cell: &KeyedCell,
    ) -> Result<Option<(Vec<u8>, Value<'_, F>, Option<u64>)>, Error> {
        let (key, shown) = self.read_cell_as_it_is(cell).await?;
        self.is_at(hash, &key)?;
        // X5: a walk leaves out what has expired, and changes nothing.
        let is_there = shown.kind != Kind::Absent && !self.is_past(shown.deadline);
        Ok(is_there.then_some((key, shown.value, shown.deadline)))
    }

    /// The rest of a read of a register that a bucket named within this call: its key's value, if it has one.
    async fn value_of<'c>(
        &'c self,
        hash: u64,
        register: &mut Register,
        seen: Option<P::Seen<'c, Counting<F>>>,
    ) -> Result<Option<Value<'c, F>>, Error> {
        match P::read_on(&self.group, register, Check::Identity, seen).await {
            Ok(Found::Value(value)) => Ok(Some(value)),
            Ok(_) => Ok(None),
            Err(swarm_core::error::Error::Moved) => self.get_moved(hash, register).await,
            Err(error) => Err(error.into()),
        }
    }

    /// A backup that passes over what it cannot read would be short of it, and nobody would know.
    fn object_of(&self, entry: &Entry) -> Result<KeyObject, Error> {
        entry.object(&self.geometry).ok_or(Error::DAMAGED)
    }

    fn is_at(&self, hash: u64, key: &[u8]) -> Result<(), Error> {
        if hash_key(key, self.geometry.hash_seed) == hash { Ok(()) } else { Err(Error::DAMAGED) }
    }
}

/// What a bucket lists, if it was not split.
fn entries(located: &Located) -> &[Entry] {
    match &located.bucket.content {
        Content::Entries { entries, .. } => entries,
        Content::Split(_) => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use swarm_core::node::NodeId;
    use swarm_core::register::freeze::freeze;

    use super::*;
    use crate::client::handle::Options;
    use crate::client::handle::tests::alone;
    use crate::pools::shm::{self, CreateOptions, Pool};
    use crate::runtime::block_on::block_on;

    type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

    /// All that a client gets, each key once; and how many roundtrips that takes.
    fn all<F: Fabric, C: Clock, P: Protocol>(client: &Client<F, C, P>) -> (Pairs, u64) {
        let (mut cursor, mut pairs, mut roundtrips) = (Cursor::new(), Pairs::new(), 0);
        loop {
            let next = client.next_keys(&mut cursor, |key, value| {
                assert_eq!(pairs.insert(key.to_vec(), value.to_vec()), None, "reported twice");
            });
            let (goes_on, tally) = block_on(client.group.fabric().track(next));
            roundtrips += u64::from(tally.roundtrips);
            if !goes_on.expect("all nodes answer") {
                assert_eq!(cursor.done(), client.first_buckets());
                return (pairs, roundtrips);
            }
        }
    }

    fn pool() -> (tempfile::TempDir, Pool) {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 8 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        (dir, pool)
    }

    /// Also those in buckets that were split, with values that are empty or out of place; those that were deleted
    /// are not. Where memory is far a roundtrip is shared by several keys.
    #[test]
    fn each_key_is_listed_once_where_memory_is_near_or_far() {
        let (_dir, pool) = pool();
        let client = shm::open(&pool, Options::default()).expect("a client");
        let mut expected = Pairs::new();
        for number in 0..3000_u32 {
            let length = if number % 1000 == 0 { 9000 } else { number as usize % 40 };
            let (key, value) = (format!("key {number}").into_bytes(), vec![number as u8; length]);
            client.blocking().put(&key, &value).expect("memory");
            if number % 5 == 3 {
                client.blocking().delete(&key).expect("it is there");
            } else {
                expected.insert(key, value);
            }
        }
        assert!(expected.len() > 2 * client.first_buckets(), "some are split");
        let (near, _) = all(&client);
        assert!(near == expected);
        let far = shm::open_emulated::<swarm_core::register::safe_guess::SafeGuess>(
            &pool,
            Options::default(),
            1000,
        );
        let (far, roundtrips) = all(&*far.expect("a client"));
        assert!(far == expected);
        assert!(roundtrips < expected.len() as u64 / 4, "{roundtrips}");
    }

    #[test]
    fn an_empty_pool_reports_nothing() {
        assert_eq!(all(&alone()).0, Pairs::new());
    }

    /// A register that is frozen says nothing: its key goes on in another one.
    #[test]
    fn keys_on_the_move_are_reported() {
        let client = alone();
        let mut expected = Pairs::new();
        for number in 0..50_u8 {
            client.blocking().put(&[number], &[number, 7]).expect("memory");
            expected.insert(vec![number], vec![number, 7]);
            if number % 7 == 0 {
                let hash = client.check(&[number], &[]).expect("a key");
                let register = client.locations.get(hash, &[number]).expect("it is remembered");
                block_on(freeze(&client.group, &register)).expect("a node");
            }
        }
        assert!(all(&client).0 == expected);
    }

    /// What cannot be read is no key less: nobody would miss it.
    #[test]
    fn a_key_that_is_damaged_is_an_error() {
        let (_dir, pool) = pool();
        let client = shm::open(&pool, Options::default()).expect("a client");
        client.blocking().put(b"key", b"value").expect("memory");
        let hash = client.check(b"key", &[]).expect("a key");
        let register = client.locations.get(hash, b"key").expect("it is remembered");
        let header = register.shape().header_place(&register.place);
        for node in (0..3).map(NodeId) {
            let at = header.at(node, 3);
            let zeros = swarm_core::fabric::Verb::Write { at, head: &[0; 5], tail: &[] };
            block_on(client.group.fabric().post(node, &[zeros])).expect("up");
        }
        let visit = |cursor: &mut Cursor| client.blocking().next_keys(cursor, |_, _| {});
        let mut cursor = Cursor::new();
        let end = std::iter::repeat_with(|| visit(&mut cursor)).find(|visit| *visit != Ok(true));
        assert!(matches!(end, Some(Err(Error::Replication(_)))), "{end:?}");
    }

    /// A caller that waits between two calls would keep all memory from coming back.
    #[test]
    fn nothing_is_under_way_between_two_calls() {
        let (_dir, pool) = pool();
        let client = shm::open(&pool, Options::default()).expect("a client");
        client.blocking().put(b"key", b"value").expect("memory");
        let mut cursor = Cursor::new();
        let is_under_way = || pool.clients().iter().any(|tenant| tenant.since.is_some());
        let was = Cell::new(false);
        let look = |_: &[u8], _: &[u8]| was.set(was.get() | is_under_way());
        while client.blocking().next_keys(&mut cursor, look).expect("up") {
            assert!(!is_under_way());
        }
        assert!(was.get(), "within a call it is");
    }
}
