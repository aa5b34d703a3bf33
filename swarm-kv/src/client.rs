//! A client of the store.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use swarm_core::clock::Clock;
use swarm_core::epoch::{Presence, Visit};
use swarm_core::fabric::counting::{Counting, Tally};
use swarm_core::fabric::{Board, Fabric, Lost};
use swarm_core::layout::{Geometry, MAX_KEY, MAX_VALUE};
use swarm_core::quorum::{Group, Patience, Session};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{self, Protocol};
use swarm_core::words::{GRANULE, Pointer, WriteNumber};

use crate::blocking::Blocking;
use crate::cache::{LocationCache, hash_key};
use crate::collect::{Collection, LineEnds};
use crate::counters::{Counters, KindCounters};
use crate::error::Error;
use crate::gate::Gate;
use crate::heap::{Heap, Kind, Need};
use crate::index::Index;
use crate::memory::Fruitless;
use crate::turn::Writing;
use crate::update::UpdateRest;

/// A value, in memory that the client's fabric owns. Dereferences to its bytes.
pub type Value<'c, F> = register::Value<'c, Counting<F>>;

/// Times that an operation begins again because what it stood on was deleted or changed. Each of
/// them is another client's success; the deadline usually ends it sooner.
pub(crate) const TRIES: usize = 10_000;
/// Operations of a kind from one look at whether the pool is there to the next, less one: as many bits as those have.
const BETWEEN_LOOKS: u64 = 63;

/// How a client is to behave.
///
/// # Memory
/// What a client takes of its process's memory, in bytes, beside the pool's own pages:
///
/// - some 50,000 when it is opened, and 80 for each chunk of the pool (2,048 at most) once it has one;
/// - 144 for each of [`cached_keys`](Self::cached_keys), as keys are met;
/// - about 700 for each of [`cached_buckets`](Self::cached_buckets), likewise: a bucket lists up to 14 keys;
/// - 8 for each object that the chunks of its slot have room for, whether it is in use or not, and up to 24 for each of those that came
///   back: a key with a short value is two objects and its part of a bucket's record;
/// - while it looks for garbage, which every operation may that finds no memory, 17 for each place of a table that has up to twice and a third as
///   many places as registers have room in the pool's chunks, or as two times those that the collections before it met, if that is less.
///   They are given back when the collection is over.
///
/// So the options bound what is remembered, and the pool's capacity bounds the rest.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Keys whose location it remembers at most, of those that the pool has room for. 144 bytes of memory for each, of which none is
    /// touched before there are keys; longer keys than 24 bytes take 24 more, and their own length.
    pub cached_keys: usize,
    /// Index buckets that it remembers.
    pub cached_buckets: usize,
    /// Buffers that come back are taken in when there are so many; buckets' records are looked for
    /// when so many were taken, or a few chains' worth. Fewer keep less memory from use,
    /// and ask more often what all other clients do.
    pub reclaimed_at_once: usize,
    /// Nanoseconds for which an operation waits for other clients that do nothing, while they hold back memory
    /// that it needs. Time in which this client had no processor does not count: on a busy machine they may have
    /// none either. It takes longer as long as they go on, eight times as long at most.
    pub memory_wait: u64,
    /// How long it waits for memory nodes.
    pub patience: Patience,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cached_keys: 100_000,
            cached_buckets: 20_000,
            reclaimed_at_once: 256,
            memory_wait: 1_000_000_000,
            patience: Patience::default(),
        }
    }
}

impl Options {
    /// Remembers the locations of so many keys.
    #[must_use]
    pub fn cached_keys(mut self, keys: usize) -> Self {
        self.cached_keys = keys.max(1);
        self
    }

    /// Remembers so many index buckets. Inserts into those that were seen in this epoch take one
    /// roundtrip.
    #[must_use]
    pub fn cached_buckets(mut self, buckets: usize) -> Self {
        self.cached_buckets = buckets.max(1);
        self
    }

    /// Takes buffers in that come back when there are so many.
    #[must_use]
    pub fn reclaimed_at_once(mut self, buffers: usize) -> Self {
        self.reclaimed_at_once = buffers.max(1);
        self
    }

    /// An operation waits so many nanoseconds for others that hold memory and do nothing: see
    /// [`memory_wait`](Self::memory_wait).
    #[must_use]
    pub fn memory_wait(mut self, nanoseconds: u64) -> Self {
        self.memory_wait = nanoseconds;
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
/// # Forks
/// A client is the process's that opened it. In a child that this forks, each operation ends in
/// [`Error::Forked`], also one that was begun before and is polled there, and dropping the client, its
/// operations and values changes nothing that is shared. The parent goes on as though nothing had been, and the
/// child may open a client of its own. (A `fork` out of a signal handler that interrupted an operation leaves
/// the child in the middle of a poll: it must `exec` or `_exit` in the handler.)
///
/// # Pools that are destroyed
/// Where the pool is destroyed by force under the client, its next operation ends in [`Error::Destroyed`], and so do
/// all that follow. Where a pool's files on this host are removed by hand, a client that is at work notices within a second, or 64
/// operations later if it did more at a time before: they end in [`Error::Gone`], and what it wrote since the removal is lost.
///
/// # Futures that are kept
/// An operation is under way from the first poll of its future until that ends or is dropped. One that is kept and
/// not polled, such as a branch that lost a `select!` by reference, stands still in the middle: no memory that
/// others replace comes back for any client of the pool meanwhile. What of this client has to wait for it
/// ends in [`Error::Unfinished`], after as long as it waits for nodes and for memory at most
/// ([`Patience::deadline`], [`Options::memory_wait`]): a later write of its key, and, if it was looking for memory or setting
/// some aside, whatever else does so. (A write that met its key on the move by then ends in [`Error::UnsettledUnfinished`].)
/// Poll it on, or drop it.
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
    pub(crate) writing: Writing,
    pub(crate) reclaimed_at_once: usize,
    pub(crate) memory_wait: u64,
    /// Values that outgrow their place and are let be.
    pub(crate) growths_put_off: Cell<u32>,
    /// Keys that this client moved.
    pub(crate) moved: Cell<u64>,
    /// Those of them that it moved out of sparse chunks.
    pub(crate) evacuated: Cell<u64>,
    pub(crate) presence: Option<Presence<F::Board>>,
    /// The collection under way, but while a step of it is.
    pub(crate) collection: Cell<Option<Box<Collection>>>,
    /// What the last collection met of ended lines.
    pub(crate) line_ends: RefCell<LineEnds>,
    /// How many registers a collection met at most, if there was one.
    pub(crate) registers_met: Cell<Option<usize>>,
    /// One search for memory at a time.
    pub(crate) searching: Gate,
    /// The last search that found nothing.
    pub(crate) fruitless: Cell<Option<Fruitless>>,
    generation: Cell<u64>,
    /// What became of the pool, once it is cut off from it.
    pub(crate) lost: Cell<Option<Lost>>,
    /// So many operations of a kind pass until it looks whether the pool is there, less one.
    between_looks: Cell<u64>,
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
        let group = Group::new(Counting::new(fabric), clock, geometry.format, session)
            .with_slots(geometry.slots)
            .with_buffers(geometry.buffers());
        group.set_patience(options.patience);
        // A key takes a granule at each node at least.
        let keys = options.cached_keys.min((geometry.capacity / GRANULE as u64) as usize);
        Self {
            group,
            geometry,
            index: Index::new(geometry, options.cached_buckets),
            heap: Heap::new(geometry, session.client),
            locations: LocationCache::new(keys, geometry.hash_seed),
            writing: Writing::default(),
            reclaimed_at_once: options.reclaimed_at_once,
            memory_wait: options.memory_wait,
            growths_put_off: Cell::new(0),
            moved: Cell::new(0),
            evacuated: Cell::new(0),
            presence: None,
            collection: Cell::new(None),
            line_ends: RefCell::default(),
            registers_met: Cell::new(None),
            searching: Gate::default(),
            fruitless: Cell::new(None),
            generation: Cell::new(0),
            lost: Cell::new(None),
            between_looks: Cell::new(BETWEEN_LOOKS),
            counters: RefCell::default(),
            last: Cell::default(),
            protocol: PhantomData,
        }
    }

    /// Uses memory again that this client's writes leave behind, as soon as `board` tells that
    /// nobody holds it any more. All clients of a pool must be on the same board, or none.
    #[must_use]
    pub fn recycling(mut self, board: F::Board) -> Self {
        self.presence = Some(Presence::new(board));
        drop(self.here());
        self
    }

    /// For a client that does nothing for a while. Behind RDMA cards the last operations leave chains
    /// behind that go out with the next ones, and until those are over, what others retire is not used
    /// again: posts them, and waits until they are, half a second at most. Else it does nothing.
    pub fn rest(&self) {
        if self.is_cut_off() {
            return;
        }
        self.group.fabric().drain();
        if let Some(presence) = &self.presence {
            presence.settle(self.group.fabric());
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
        let mut rest = None;
        match self.try_get(key, &mut rest) {
            Some(told) => told,
            None => Box::pin(self.get_on(key, rest.expect("what is left of it"))).await,
        }
    }

    /// Makes `value` the value of `key`, whether it is there or not.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut rest = UpdateRest::default();
        let told = match self.try_update(|counters| &mut counters.put, key, value, &mut rest) {
            Some(told) => told.map(drop),
            None => Box::pin(self.put_on(key, value, rest)).await,
        };
        if self.is_untidy() {
            self.tidy().await;
        }
        told
    }

    /// Adds `key` with `value`. False, and no effect, if it is there already: of two inserts at the
    /// same time one wins, and the other knows.
    ///
    /// One roundtrip where the key's bucket was seen in this epoch; one more to read it.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let insert = self.with_memory(async || {
            let hash = self.check(key, value)?;
            let _turn = self.turn(hash).await?;
            self.insert_now(hash, key, value).await
        });
        let (result, tally) = self.group.fabric().track(self.in_own_process(insert)).await;
        self.count(|counters| &mut counters.insert, tally);
        self.tidy().await;
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
        let mut rest = UpdateRest::default();
        let told = match self.try_update(|counters| &mut counters.update, key, value, &mut rest) {
            Some(told) => told,
            None => Box::pin(self.update_on(key, value, rest)).await,
        };
        if self.is_untidy() {
            self.tidy().await;
        }
        told
    }

    /// Takes `key` away, whether it is there or not.
    ///
    /// Two roundtrips where the key's location is cached; one more to look it up. Takes no memory but
    /// for a key that is being moved.
    ///
    /// # Errors
    /// A key out of bounds; too few memory nodes that answer.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let delete = self.with_memory(async || {
            let hash = self.check(key, &[])?;
            let _turn = self.turn(hash).await?;
            self.delete_now(hash, key).await?;
            self.fruitless.set(None);
            Ok(())
        });
        let (result, tally) = self.group.fabric().track(self.in_own_process(delete)).await;
        self.count(|counters| &mut counters.delete, tally);
        self.tidy().await;
        result
    }

    /// The same operations for programs without `async`: each returns when it is done.
    pub fn blocking(&self) -> Blocking<'_, F, C, P> {
        Blocking::new(self)
    }

    /// What this client's operations cost so far.
    pub fn counters(&self) -> Counters {
        Counters {
            events: self.group.events(),
            reclaimed: self.heap.recycler.reclaimed(),
            moved: self.moved.get(),
            evacuated: self.evacuated.get(),
            ..*self.counters.borrow()
        }
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

    /// An operation begins: what others retire from here on stays as it is until this is dropped.
    #[inline]
    pub(crate) fn here(&self) -> Here<'_, F, C, P> {
        let visit = self.presence.as_ref().map(|presence| {
            let visit = presence.enter();
            // Behind the mark: whoever was held up in front of it has an old epoch there.
            self.index.enter(presence.board().epoch());
            let generation = presence.board().generation();
            if generation != self.generation.get() {
                self.forget(generation);
            }
            visit
        });
        Here { visit, client: self }
    }

    /// Whether what a write that is over looks for is due.
    #[inline]
    pub(crate) fn is_untidy(&self) -> bool {
        self.group.lacks_numbers()
            || self.heap.misses_records(self.reclaimed_at_once)
            || self.heap.has_grown(|| self.group.clock().now())
    }

    /// A write is over: looks for garbage a little, and for write numbers, if that is due.
    pub(crate) async fn tidy(&self) {
        if self.group.lacks_numbers() {
            self.look_for_numbers();
        }
        // What is to be reset is not made more of meanwhile, or it would never be done.
        if self.heap.misses_records(self.reclaimed_at_once) && !self.heap.is_swept() {
            Box::pin(self.records_aside()).await;
        }
        if self.heap.has_grown(|| self.group.clock().now()) {
            Box::pin(self.collect_aside()).await;
        }
    }

    /// A fresh write number.
    ///
    /// # Errors
    /// [`Error::Spent`] if there is none, and nobody gives any out.
    pub(crate) fn number(&self) -> Result<WriteNumber, Error> {
        // Where there are none, not even its last operations came to an end.
        let found = || self.finds_numbers().then(|| self.group.number()).flatten();
        self.group.number().or_else(found).ok_or(Error::Spent)
    }

    /// What `change` of the heap map comes to, if it finds numbers for that, or the board gives some out.
    ///
    /// The map's changes take theirs in front of all that they post, so that one that finds none can begin again.
    pub(crate) async fn with_numbers<T>(
        &self,
        change: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            match change().await {
                Err(Error::Spent) if self.finds_numbers() => {}
                told => return told,
            }
        }
    }

    /// Whether there are numbers, or the board gives some out.
    #[cold]
    pub(crate) fn finds_numbers(&self) -> bool {
        if !self.group.has_numbers() {
            self.look_for_numbers();
        }
        self.group.has_numbers()
    }

    /// Memory for an object of this kind, as [`Heap::allocate`] finds it.
    pub(crate) async fn allocate(&self, kind: Kind, need: Need) -> Result<Pointer, Error> {
        self.with_numbers(async || self.heap.allocate(&self.group, kind, need).await).await
    }

    /// Memory for an object of this kind, as [`Heap::allocate_there`] finds it.
    pub(crate) async fn allocate_there(&self, kind: Kind, need: Need) -> Result<Pointer, Error> {
        self.with_numbers(async || self.heap.allocate_there(&self.group, kind, need).await).await
    }

    /// Sets numbers aside for when those that there are will be used up.
    #[cold]
    fn look_for_numbers(&self) {
        if self.is_cut_off() {
            return;
        }
        let board = self.presence.as_ref().map(Presence::board);
        if let Some(incarnation) = board.and_then(Board::incarnation) {
            self.group.set_aside(incarnation);
        }
    }

    /// Another generation: what was remembered of places may be used for something else soon.
    #[cold]
    fn forget(&self, generation: u64) {
        // What the operation under way comes to from here on is looked at where it ends, as it finds no place remembered.
        if let Some(lost) = self.presence.as_ref().and_then(|presence| presence.board().lost()) {
            self.lost.set(Some(lost));
            self.group.fabric().cut_off();
        }
        self.generation.set(generation);
        self.locations.renew(generation);
        self.index.renew(generation);
        self.heap.renew(generation);
    }

    #[inline]
    pub(crate) fn count(&self, kind: impl Fn(&mut Counters) -> &mut KindCounters, tally: Tally) {
        let mut counters = self.counters.borrow_mut();
        let counted = kind(&mut counters);
        counted.add(tally);
        let is_time = counted.operations & self.between_looks.get() == 0;
        self.last.set(tally);
        drop(counters);
        if is_time {
            self.look();
        }
    }

    /// Some operations have passed: looks whether the pool is there.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&self) {
        let is_brisk = self.presence.as_ref().is_none_or(|presence| presence.board().look());
        self.between_looks.set(if is_brisk { BETWEEN_LOOKS } else { 0 });
    }

    #[inline]
    pub(crate) fn check(&self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(Error::Key(key.len()));
        }
        if value.len() > MAX_VALUE {
            return Err(Error::Value(value.len()));
        }
        Ok(hash_key(key, self.geometry.hash_seed))
    }
}

impl<F: Fabric, C: Clock, P> Drop for Client<F, C, P> {
    fn drop(&mut self) {
        // All that it has is its original's.
        if self.is_cut_off() {
            return;
        }
        // What this client thinks is its own is so within an operation alone.
        let here = self.presence.as_ref().map(|presence| (presence, presence.enter()));
        let generation = here.as_ref().map_or(0, |(presence, _)| presence.board().generation());
        if generation == self.generation.get() {
            self.heap.detach(&self.group);
        }
        if let Some((presence, visit)) = here {
            presence.leave(visit, self.group.fabric());
        }
    }
}

/// An operation under way, as the other clients see it.
pub(crate) struct Here<'c, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    visit: Option<Visit>,
}

impl<F: Fabric, C: Clock, P: Protocol> Here<'_, F, C, P> {
    /// The operation is over within the poll in which it began: no child can have come by it.
    #[inline]
    pub(crate) fn end(mut self) {
        self.leave();
    }

    #[inline]
    fn leave(&mut self) {
        if let (Some(presence), Some(visit)) = (&self.client.presence, self.visit.take()) {
            presence.leave(visit, self.client.group.fabric());
        }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Drop for Here<'_, F, C, P> {
    #[inline]
    fn drop(&mut self) {
        // The mark on the board is that of an operation of the client's own process.
        if self.visit.is_some() && !self.client.is_cut_off() {
            self.leave();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::rc::Rc;

    use swarm_core::fabric::Verb;
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::node::NodeId;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::heap::tests::{Still, Watched};
    use crate::shm::{self, CreateOptions, Pool};

    const SESSION: Session = Session { client: 0, incarnation: Incarnation(1) };

    fn geometry() -> Geometry {
        Geometry::new(1, 4 << 20, 2, 1).expect("geometry")
    }

    /// The only client of a pool of one node, whose memory does not come back.
    pub(crate) fn alone() -> Client<Loopback, LoneClock> {
        let nodes = Loopback::new(1, 4 << 17);
        Client::new(nodes, LoneClock::new(1000), geometry(), SESSION, Options::default())
    }

    /// A board that nobody else is on, of this generation.
    struct Of(Rc<Cell<u64>>);

    impl Board for Of {
        fn epoch(&self) -> u64 {
            1
        }
        fn enter(&self) -> u64 {
            self.epoch()
        }
        fn remain(&self, _: u64) {}
        fn leave(&self) {}
        fn generation(&self) -> u64 {
            self.0.get()
        }
        fn renew(&self) {}
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn advance(&self) -> u64 {
            self.epoch()
        }
    }

    /// A client leaves, or does so when another generation has begun since its last operation. Yields how many objects it
    /// takes back.
    fn takes_back(another: bool) -> u64 {
        let (geometry, nodes) = (geometry(), Loopback::new(1, 4 << 17));
        let generation = Rc::<Cell<u64>>::default();
        let watch: fn(&[Verb<'_>]) -> bool = |_| false;
        let fabric = Watched { nodes: nodes.clone(), watch };
        let clock = LoneClock::new(1000);
        let client: Client<_, _> =
            Client::new(fabric, clock, geometry, SESSION, Options::default());
        let client = client.recycling(Box::new(Of(Rc::clone(&generation))));
        client.blocking().put(b"key", b"value").expect("memory");
        let aside = || -> u64 {
            let counters = (geometry.first_chunk()..geometry.chunks())
                .map(|chunk| geometry.counter(chunk, NodeId(0)));
            counters.map(|at| nodes.word(NodeId(0), at) & 0xffff_ffff).sum()
        };
        let before = aside();
        generation.set(u64::from(another));
        drop(client);
        before - aside()
    }

    /// Its chunks may be somebody else's since, who uses again what lies behind the counters.
    #[test]
    fn who_leaves_behind_another_generation_takes_nothing_back() {
        assert!(takes_back(false) > 0);
        assert_eq!(takes_back(true), 0);
    }

    /// Uses up all numbers that a client has.
    fn spend<F: Fabric, C: Clock, P: Protocol>(client: &Client<F, C, P>) {
        while client.group.has_numbers() {
            drop(client.group.begin_write());
        }
    }

    /// The first thing that an insert needs is a chunk, and a change of the heap map takes a number as well.
    #[test]
    fn who_claims_memory_looks_for_numbers_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let client = shm::open(&pool, Options::default()).expect("a client");
        spend(&client);
        assert_eq!(client.blocking().put(b"key", b"value"), Ok(()));
        assert!(client.group.has_numbers());
    }

    #[test]
    fn where_nobody_gives_numbers_out_they_are_spent() {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let nodes = Loopback::new(3, 4 << 17);
        let client: Client<_, _> = Client::new(nodes, Still, geometry, session, Options::default());
        spend(&client);
        assert_eq!(client.blocking().put(b"key", b"value"), Err(Error::Spent));
    }
}
