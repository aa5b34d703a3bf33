//! A client of the store.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::task::Poll;

use swarm_core::clock::Clock;
use swarm_core::counting::{Counting, Tally};
use swarm_core::fabric::{Fabric, NodeId};
use swarm_core::geometry::Geometry;
use swarm_core::group::{Group, Patience, Session};
use swarm_core::layout::{MAX_KEY, MAX_VALUE, buffer, words_for};
use swarm_core::look::confirm;
use swarm_core::register::{self, Begun, Check, Found, Protocol, Register, Write, Written};
use swarm_core::safe_guess::SafeGuess;

use crate::blocking::Blocking;
use crate::bucket::{Bucket, Content, Entry};
use crate::cache::{LocationCache, hash_key};
use crate::counters::{Counters, KindCounters};
use crate::error::Error;
use crate::heap::Heap;
use crate::index::{Index, Located};

/// A value, in memory that the client's fabric owns. Dereferences to its bytes.
pub type Value<'c, F> = register::Value<'c, Counting<F>>;

type CoreResult<T> = Result<T, swarm_core::error::Error>;
type GetResult<'c, F> = Result<Option<Value<'c, F>>, Error>;
type ReadBegun<'c, F, C, P> =
    Begun<CoreResult<Found<'c, Counting<F>>>, <P as Protocol>::Reading<'c, Counting<F>, C>>;
type WriteBegun<'c, F, C, P> =
    Begun<CoreResult<Written>, <P as Protocol>::Writing<'c, Counting<F>, C>>;

/// A get on its way, or one that has to ask the index.
struct Get<'c, F: Fabric + 'c, C: Clock + 'c, P: Protocol> {
    hash: u64,
    read: Option<(Register, ReadBegun<'c, F, C, P>)>,
}

/// An update on its way, or one that has posted nothing yet.
struct Update<'c, 'v, F: Fabric + 'c, C: Clock + 'c, P: Protocol> {
    hash: u64,
    value: &'v [u8],
    begun: Option<UpdateBegun<'c, 'v, F, C, P>>,
}

struct UpdateBegun<'c, 'v, F: Fabric + 'c, C: Clock + 'c, P: Protocol> {
    turn: Turn<'c>,
    register: Register,
    write: Write<'v>,
    written: WriteBegun<'c, F, C, P>,
}

/// Times that an operation begins again because what it stood on was deleted or changed. Each of
/// them is another client's success; the deadline usually ends it sooner.
pub(crate) const TRIES: usize = 10_000;

/// How a client is to behave.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Keys whose location it remembers.
    pub cached_keys: usize,
    /// Index buckets that it remembers.
    pub cached_buckets: usize,
    /// How long it waits for memory nodes.
    pub patience: Patience,
}

impl Default for Options {
    fn default() -> Self {
        Self { cached_keys: 100_000, cached_buckets: 20_000, patience: Patience::default() }
    }
}

impl Options {
    /// Remembers the locations of so many keys.
    #[must_use]
    pub fn cached_keys(mut self, keys: usize) -> Self {
        self.cached_keys = keys.max(1);
        self
    }

    /// Remembers so many index buckets. Inserts into those take one roundtrip.
    #[must_use]
    pub fn cached_buckets(mut self, buckets: usize) -> Self {
        self.cached_buckets = buckets.max(1);
        self
    }

    /// Waits so long for memory nodes.
    #[must_use]
    pub fn patience(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }
}

/// A client of a store: one thread's access to its keys.
///
/// `Send`, not `Sync`: open one for each thread. Several operations may be in flight at a time;
/// writes of one key queue behind each other. All operations are linearizable.
///
/// # Cancel safety
/// Dropping an operation's future before it ends equals a crash of the client at that point: a
/// write may or may not take effect, and nothing else is harmed.
pub struct Client<F: Fabric, C: Clock, P = SafeGuess> {
    pub(crate) group: Group<Counting<F>, C>,
    pub(crate) geometry: Geometry,
    pub(crate) index: Index,
    pub(crate) heap: Heap,
    pub(crate) locations: LocationCache,
    writing: RefCell<Vec<u64>>,
    counters: RefCell<Counters>,
    last: Cell<Tally>,
    protocol: PhantomData<fn() -> P>,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// A client of the pool of this geometry behind `fabric`, as `session`.
    ///
    /// `session` must be this client's alone as long as it lives.
    pub fn new(
        fabric: F,
        clock: C,
        geometry: Geometry,
        session: Session,
        options: Options,
    ) -> Self {
        let group = Group::new(Counting::new(fabric), clock, geometry.format, session);
        group.set_patience(options.patience);
        Self {
            group,
            geometry,
            index: Index::new(geometry, options.cached_buckets),
            heap: Heap::new(geometry, session.client),
            locations: LocationCache::new(options.cached_keys, geometry.hash_seed),
            writing: RefCell::new(Vec::with_capacity(64)),
            counters: RefCell::default(),
            last: Cell::default(),
            protocol: PhantomData,
        }
    }

    /// The value of `key`, if it is there.
    ///
    /// One roundtrip where the key's location is cached and its value fits in place; one more for a
    /// longer value; two more to look the key up.
    ///
    /// # Errors
    /// A key out of bounds; too few memory nodes that answer.
    #[inline]
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value<'_, F>>, Error> {
        let fabric = self.group.fabric();
        let others = fabric.begin();
        let begun = self.begin_get(key);
        let tally = fabric.pause(others);
        let (result, tally) = match begun {
            Begun::Done(result) => (result, tally),
            Begun::Rest(get) => fabric.track_on(tally, self.end_get(key, get)).await,
        };
        self.count(|counters| &mut counters.get, tally);
        result
    }

    /// Makes `value` the value of `key`, whether it is there or not.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let put = async {
            let hash = self.check(key, value)?;
            let _turn = self.turn(hash).await;
            for _ in 0..TRIES {
                if self.update_now(hash, key, value).await?
                    || self.insert_now(hash, key, value).await?
                {
                    return Ok(());
                }
            }
            Err(Error::Contended)
        };
        let (result, tally) = self.group.fabric().track(put).await;
        self.count(|counters| &mut counters.put, tally);
        result
    }

    /// Adds `key` with `value`. False, and no effect, if it is there already: of two inserts at the
    /// same time one wins, and the other knows.
    ///
    /// One roundtrip where the key's bucket is cached; one more to read it.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let insert = async {
            let hash = self.check(key, value)?;
            let _turn = self.turn(hash).await;
            self.insert_now(hash, key, value).await
        };
        let (result, tally) = self.group.fabric().track(insert).await;
        self.count(|counters| &mut counters.insert, tally);
        result
    }

    /// Replaces the value of `key`. False, and no effect, if it is not there.
    ///
    /// One roundtrip where the key's location is cached; two more to look it up.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    #[inline]
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let fabric = self.group.fabric();
        let others = fabric.begin();
        let begun = self.begin_update(key, value);
        let tally = fabric.pause(others);
        let (result, tally) = match begun {
            Begun::Done(result) => (result, tally),
            Begun::Rest(update) => fabric.track_on(tally, self.end_update(key, update)).await,
        };
        self.count(|counters| &mut counters.update, tally);
        result
    }

    /// Takes `key` away, whether it is there or not.
    ///
    /// Two roundtrips where the key's location is cached; one more to look it up.
    ///
    /// # Errors
    /// A key out of bounds; a full pool; too few memory nodes that answer.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let delete = async {
            let hash = self.check(key, &[])?;
            let _turn = self.turn(hash).await;
            self.delete_now(hash, key).await
        };
        let (result, tally) = self.group.fabric().track(delete).await;
        self.count(|counters| &mut counters.delete, tally);
        result
    }

    /// The values of `keys`, in their order, fetched at the same time.
    ///
    /// # Errors
    /// The first error that one of the gets meets.
    pub async fn get_many(
        &self,
        keys: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Option<Value<'_, F>>>, Error> {
        futures_util::future::try_join_all(keys.iter().map(|key| self.get(key.as_ref()))).await
    }

    /// The same operations for programs without `async`: each returns when it is done.
    pub fn blocking(&self) -> Blocking<'_, F, C, P> {
        Blocking::new(self)
    }

    /// What this client's operations cost so far.
    pub fn counters(&self) -> Counters {
        Counters { events: self.group.events(), ..*self.counters.borrow() }
    }

    /// What the operation that ended last cost.
    #[inline]
    pub fn last(&self) -> Tally {
        self.last.get()
    }

    /// Changes how long this client waits for memory nodes.
    pub fn set_patience(&self, patience: Patience) {
        self.group.set_patience(patience);
    }

    #[inline]
    fn count(&self, kind: impl Fn(&mut Counters) -> &mut KindCounters, tally: Tally) {
        kind(&mut self.counters.borrow_mut()).add(tally);
        self.last.set(tally);
    }

    #[inline]
    fn check(&self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(Error::Key(key.len()));
        }
        if value.len() > MAX_VALUE {
            return Err(Error::Value(value.len()));
        }
        Ok(hash_key(key, self.geometry.hash_seed))
    }

    /// Waits until no other write of this client to the key is under way: a reader takes a
    /// writer's second stamp as proof that its first write is complete.
    async fn turn(&self, hash: u64) -> Turn<'_> {
        poll_fn(|cx| {
            self.turn_now(hash).map_or_else(
                || {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                },
                Poll::Ready,
            )
        })
        .await
    }

    /// The same, if no such write is under way.
    #[inline]
    fn turn_now(&self, hash: u64) -> Option<Turn<'_>> {
        let mut writing = self.writing.borrow_mut();
        if writing.contains(&hash) {
            return None;
        }
        writing.push(hash);
        Some(Turn { writing: &self.writing, hash })
    }

    /// The node that holds the in-place copies of keys with this hash.
    pub(crate) fn home(&self, hash: u64) -> NodeId {
        NodeId((hash % self.geometry.nodes as u64) as u8)
    }

    /// The beginning of a get: all of it where the key's location is cached and memory is near.
    #[inline]
    fn begin_get(&self, key: &[u8]) -> Begun<GetResult<'_, F>, Get<'_, F, C, P>> {
        let hash = match self.check(key, &[]) {
            Ok(hash) => hash,
            Err(error) => return Begun::Done(Err(error)),
        };
        let near = |register: &Register| match P::near_read(&self.group, register)? {
            Begun::Done(Ok(Found::Value(value))) => Some(Ok(value)),
            begun => Some(Err((*register, begun))),
        };
        match self.locations.look(hash, key, near) {
            Some(Some(Ok(value))) => return Begun::Done(Ok(Some(value))),
            Some(Some(Err(read))) => return Begun::Rest(Get { hash, read: Some(read) }),
            _ => {}
        }
        let Some(mut register) = self.locations.get(hash, key) else {
            return Begun::Rest(Get { hash, read: None });
        };
        match P::begin_read(&self.group, &mut register, Check::Identity) {
            Begun::Done(Ok(Found::Value(value))) => Begun::Done(Ok(Some(value))),
            begun => Begun::Rest(Get { hash, read: Some((register, begun)) }),
        }
    }

    async fn end_get<'c>(&'c self, key: &[u8], get: Get<'c, F, C, P>) -> GetResult<'c, F> {
        let Get { hash, read } = get;
        if let Some((mut register, begun)) = read {
            let found = match begun {
                Begun::Done(found) => found,
                Begun::Rest(reading) => self.read_on(&mut register, reading).await,
            };
            match found {
                Ok(Found::Value(value)) => return Ok(Some(value)),
                Ok(_) | Err(swarm_core::error::Error::Gone) => self.locations.remove(hash, key),
                Err(error) => return Err(error.into()),
            }
        }
        Box::pin(self.get_by_index(hash, key)).await
    }

    #[inline]
    async fn read_on<'c>(
        &'c self,
        register: &mut Register,
        reading: P::Reading<'c, Counting<F>, C>,
    ) -> CoreResult<Found<'c, Counting<F>>> {
        let check = Check::Identity;
        match P::wait_read(&self.group, register, check, reading).await {
            Begun::Done(found) => found,
            Begun::Rest(rest) => Box::pin(P::end_read(&self.group, register, check, rest)).await,
        }
    }

    async fn get_by_index(&self, hash: u64, key: &[u8]) -> Result<Option<Value<'_, F>>, Error> {
        let located = self.index.fresh(&self.group, hash).await?;
        for entry in entries(&located, hash, key) {
            let Some(mut register) = entry.register(&self.geometry) else { continue };
            match P::read(&self.group, &mut register, Check::Key(key)).await? {
                Found::Value(value) => {
                    self.locations.insert(key, register);
                    return Ok(Some(value));
                }
                // It was mapped within this operation, so the key was absent when it was deleted,
                // or when it was found mapped.
                Found::Deleted => return Ok(None),
                Found::OtherKey => {}
            }
        }
        Ok(None)
    }

    /// Where the key's register is, from the cache or the index, and whether the index said so
    /// within this operation.
    #[inline]
    async fn locate(&self, hash: u64, key: &[u8]) -> Result<Option<(Register, bool)>, Error> {
        match self.locations.get(hash, key) {
            Some(register) => Ok(Some((register, false))),
            None => Box::pin(self.locate_by_index(hash, key)).await,
        }
    }

    #[cold]
    async fn locate_by_index(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(Register, bool)>, Error> {
        let located = self.index.fresh(&self.group, hash).await?;
        for entry in entries(&located, hash, key) {
            let Some(mut register) = entry.register(&self.geometry) else { continue };
            if confirm(&self.group, &mut register, key).await? {
                self.locations.insert(key, register);
                return Ok(Some((register, true)));
            }
        }
        Ok(None)
    }

    /// The beginning of an update: all of it where the key's location is cached, memory for the
    /// value is set aside, no other write of this key is under way, and memory is near.
    #[inline]
    fn begin_update<'v>(
        &self,
        key: &[u8],
        value: &'v [u8],
    ) -> Begun<Result<bool, Error>, Update<'_, 'v, F, C, P>> {
        let hash = match self.check(key, value) {
            Ok(hash) => hash,
            Err(error) => return Begun::Done(Err(error)),
        };
        let nothing = Begun::Rest(Update { hash, value, begun: None });
        let Some(turn) = self.turn_now(hash) else { return nothing };
        let Some(write) = self.new_write_now(value) else { return nothing };
        let mut rest = None;
        let cached = self.locations.work(hash, key, |register| {
            match P::begin_write(&self.group, register, write) {
                Begun::Done(Ok(Written::Done)) => {}
                written => rest = Some(UpdateBegun { turn, register: *register, write, written }),
            }
        });
        if cached.is_none() {
            self.heap.take_back(self.heap.plain(buffer_words(value)), write.buffer);
            return nothing;
        }
        match rest {
            None => Begun::Done(Ok(true)),
            begun => Begun::Rest(Update { hash, value, begun }),
        }
    }

    async fn end_update<'c>(
        &'c self,
        key: &[u8],
        update: Update<'c, '_, F, C, P>,
    ) -> Result<bool, Error> {
        let Update { hash, value, begun } = update;
        let Some(UpdateBegun { turn: _turn, mut register, write, written }) = begun else {
            let _turn = self.turn(hash).await;
            return Box::pin(self.update_now(hash, key, value)).await;
        };
        let written = match written {
            Begun::Done(written) => written,
            Begun::Rest(writing) => {
                match P::wait_write(&self.group, &mut register, write, writing).await {
                    Begun::Done(written) => written,
                    Begun::Rest(rest) => {
                        Box::pin(P::end_write(&self.group, &mut register, write, rest)).await
                    }
                }
            }
        };
        match self.updated(hash, key, &register, false, written)? {
            Some(done) => Ok(done),
            None => Box::pin(self.update_now(hash, key, value)).await,
        }
    }

    /// Updates the key, whose turn this write has.
    async fn update_now(&self, hash: u64, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        for _ in 0..TRIES {
            let Some((mut register, fresh)) = self.locate(hash, key).await? else {
                return Ok(false);
            };
            let write = self.new_write(value).await?;
            let written = P::write(&self.group, &mut register, write).await;
            if let Some(done) = self.updated(hash, key, &register, fresh, written)? {
                return Ok(done);
            }
        }
        Err(Error::Contended)
    }

    /// What a write to a register says of the update: whether the key was there, or `None` to look
    /// for it again. `fresh`: the index named the register within this operation.
    fn updated(
        &self,
        hash: u64,
        key: &[u8],
        register: &Register,
        fresh: bool,
        written: Result<Written, swarm_core::error::Error>,
    ) -> Result<Option<bool>, Error> {
        match written {
            Ok(Written::Done) => {
                self.locations.update(hash, key, register);
                return Ok(Some(true));
            }
            Ok(Written::Deleted) | Err(swarm_core::error::Error::Gone) => {}
            Err(error) => return Err(error.into()),
        }
        self.locations.remove(hash, key);
        // Absent only if the index agrees: a cached register may have been dead long.
        Ok((fresh && written == Ok(Written::Deleted)).then_some(false))
    }

    /// Deletes the key, whose turn this write has.
    ///
    /// Only a register that the index named within this operation is stamped. It is dead in the
    /// end, so that the key was absent when the index named it, or when it died since: that is the
    /// delete's moment. To stamp first and look at the index beside it would save a roundtrip and
    /// is wrong: found replaced, the register may have died of this very stamp, and to go on to its
    /// successor deletes twice.
    async fn delete_now(&self, hash: u64, key: &[u8]) -> Result<(), Error> {
        for _ in 0..TRIES {
            let Some((mut register, fresh)) = self.locate(hash, key).await? else { return Ok(()) };
            if !fresh {
                let located = self.index.fresh(&self.group, hash).await?;
                if !lists(&located.bucket, &register) {
                    self.locations.remove(hash, key);
                    continue;
                }
            }
            let buffer = self.heap.allocate_anywhere(&self.group, buffer::HEADER_WORDS).await?;
            let number = self.group.number().ok_or(Error::Spent)?;
            let write = Write { number, buffer, value: &[] };
            let deleted = P::delete(&self.group, &mut register, write).await;
            self.locations.remove(hash, key);
            match deleted {
                Ok(()) => return Ok(()),
                Err(swarm_core::error::Error::Gone) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended)
    }

    /// A fresh number and a fresh buffer for a write of `value`.
    pub(crate) async fn new_write<'v>(&self, value: &'v [u8]) -> Result<Write<'v>, Error> {
        let kind = self.heap.plain(buffer_words(value));
        let buffer = self.heap.allocate(&self.group, kind).await?;
        let number = self.group.number().ok_or(Error::Spent)?;
        Ok(Write { number, buffer, value })
    }

    /// The same, if memory is set aside.
    #[inline]
    fn new_write_now<'v>(&self, value: &'v [u8]) -> Option<Write<'v>> {
        let kind = self.heap.plain(buffer_words(value));
        let number = self.group.number()?;
        let buffer = self.heap.take(kind)?;
        Some(Write { number, buffer, value })
    }
}

/// Words of a buffer for `value`.
fn buffer_words(value: &[u8]) -> usize {
    buffer::HEADER_WORDS + words_for(value.len())
}

/// The entries that may be this key's.
pub(crate) fn entries<'a>(
    located: &'a Located,
    hash: u64,
    key: &[u8],
) -> impl Iterator<Item = &'a Entry> {
    let entries = match &located.bucket.content {
        Content::Entries { entries, .. } => entries.as_slice(),
        Content::Split(_) => &[],
    };
    let length = key.len();
    entries.iter().filter(move |entry| entry.hash == hash && entry.key_length == length)
}

/// Whether a bucket maps a key to this very register.
fn lists(bucket: &Bucket, register: &Register) -> bool {
    let Content::Entries { entries, .. } = &bucket.content else { return false };
    entries.iter().any(|e| e.pointer == register.place.pointer && e.identity == register.identity)
}

/// A write of a key that is under way.
struct Turn<'a> {
    writing: &'a RefCell<Vec<u64>>,
    hash: u64,
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut writing = self.writing.borrow_mut();
        if let Some(at) = writing.iter().position(|hash| *hash == self.hash) {
            writing.swap_remove(at);
        }
    }
}

impl<F: Fabric, C: Clock, P> Drop for Client<F, C, P> {
    fn drop(&mut self) {
        self.heap.detach(&self.group);
    }
}
