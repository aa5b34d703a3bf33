//! A client of the store.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;

use swarm_core::clock::Clock;
use swarm_core::epoch::{Participant, Pinned};
use swarm_core::fabric::counting::{Counting, OpCost};
use swarm_core::fabric::{EpochDomain, Fabric, Lost};
use swarm_core::layout::{Geometry, MAX_KEY, MAX_VALUE};
use swarm_core::quorum::{Group, Session, Timeouts};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{self, Protocol};
use swarm_core::words::{GRANULE, Pointer, WriteNumber};
use swarm_shm::WaitWords;

use crate::client::cell_cache::CellCache;
use crate::client::counters::{Counters, KindCounters};
use crate::client::gc_state::{FailedReclaim, GcCycle, Tombstones};
use crate::client::key_locks::KeyLocks;
use crate::client::left_places::LeftPlaces;
use crate::client::location_cache::{LocationCache, hash_key};
use crate::error::Error;
use crate::heap::{Heap, ObjectKind, Purpose};
use crate::index::lookup::Index;
use crate::runtime::local_mutex::LocalMutex;

/// A value, in memory that the client's fabric owns. Dereferences to its bytes.
pub type Value<'c, F> = register::Value<'c, Counting<F>>;

/// How often an operation starts over because what it found was deleted or changed. Each time is
/// another client's success; the deadline usually ends it sooner.
pub(crate) const TRIES: usize = 10_000;
/// Operations of a kind between two checks that the pool still exists, less one: a bit mask.
const BETWEEN_LOOKS: u64 = 63;

/// How a client is to behave.
///
/// # Memory
/// What a client takes of its process's memory, in bytes, besides the pool's own pages:
///
/// - some 50,000 when it is opened, and 80 for each chunk of the pool (2,048 at most) once it has
///   one;
/// - 144 for each of [`cached_keys`](Self::cached_keys), as keys are cached;
/// - about 700 for each of [`cached_buckets`](Self::cached_buckets), likewise: a bucket lists up to
///   14 keys;
/// - 8 for each object that the chunks of its slot have room for, in use or not, and up to 32 for
///   each reclaimed one: a key with a short value is two objects and its part of a bucket's record;
/// - during a GC cycle, which any operation without memory may start, 17 for each place of a table.
///   It has up to two and a third times as many places as registers fit in the pool's chunks, or as
///   twice the number that earlier cycles met, if that is less. The table is freed before the cycle
///   retires what it found. Garbage is not listed: a bit for each object tells it apart.
///
/// Of address space, 400,000 more for each size of buffers and each node that they leave out, which
/// are touched as buffers are reclaimed.
///
/// So the options bound what is cached, and the pool's capacity bounds the rest.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Keys whose locations are cached at most, of those that the pool has room for. Each takes 144
    /// bytes, which are touched only when there are keys; keys longer than 24 bytes take 24 more,
    /// and their own length.
    pub cached_keys: usize,
    /// Index buckets that are cached.
    pub cached_buckets: usize,
    /// Retired buffers are freed once there are this many. Pending retirements of buckets' records
    /// are looked at once this many records were taken, or a few chains' worth. A smaller number
    /// keeps less memory out of use, but checks more often which epoch all other clients are in.
    pub reclaimed_at_once: usize,
    /// Nanoseconds for which an operation waits for other clients that make no progress while they
    /// block the reclamation of memory that it needs. Time in which this client had no processor
    /// does not count: on a busy machine they may have none either. The wait lasts longer while
    /// they make progress, eight times as long at most.
    pub memory_wait: u64,
    /// How long it waits for memory nodes.
    pub timeouts: Timeouts,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cached_keys: 100_000,
            cached_buckets: 20_000,
            reclaimed_at_once: 256,
            memory_wait: 1_000_000_000,
            timeouts: Timeouts::default(),
        }
    }
}

impl Options {
    /// Caches the locations of this many keys.
    #[must_use]
    pub fn cached_keys(mut self, keys: usize) -> Self {
        self.cached_keys = keys.max(1);
        self
    }

    /// Caches this many index buckets. An insert into a bucket that was read in this epoch takes
    /// one roundtrip.
    #[must_use]
    pub fn cached_buckets(mut self, buckets: usize) -> Self {
        self.cached_buckets = buckets.max(1);
        self
    }

    /// Frees retired buffers once there are this many.
    #[must_use]
    pub fn reclaimed_at_once(mut self, buffers: usize) -> Self {
        self.reclaimed_at_once = buffers.max(1);
        self
    }

    /// Sets how many nanoseconds an operation waits for clients that block reclamation and make no
    /// progress: see [`memory_wait`](Self::memory_wait).
    #[must_use]
    pub fn memory_wait(mut self, nanoseconds: u64) -> Self {
        self.memory_wait = nanoseconds;
        self
    }

    /// Sets how long it waits for memory nodes.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }
}

/// A client of a store: one thread's access to its keys.
///
/// `Send`, not `Sync`: open one for each thread. Several operations may be in flight at a time;
/// writes of one key queue up. All operations are linearizable.
///
/// # Forks
/// A client belongs to the process that opened it. In a forked child, each operation ends in
/// [`Error::Forked`], also one that began before the fork and is polled there. Dropping the client,
/// its operations and values changes nothing that is shared. The parent continues unaffected, and
/// the child may open a client of its own. (A `fork` from a signal handler that interrupted an
/// operation leaves the child in the middle of a poll: it must `exec` or `_exit` in the handler.)
///
/// # Pools that are destroyed
/// If the pool is destroyed by force under the client, its next operation ends in
/// [`Error::Destroyed`], and so do all that follow. If a pool's files on this host are removed by
/// hand, an active client notices within a second, or 64 operations later if it did more at a time
/// before. Its operations then end in [`Error::Gone`], and what it wrote since the removal is lost.
///
/// # Futures that are kept
/// An operation is under way from the first poll of its future until that ends or is dropped. A
/// future that is kept and not polled, such as a branch that lost a `select!` by reference, stops
/// in the middle: its pin blocks reclamation for all clients of the pool. Operations of this client
/// that have to wait for it end in [`Error::Unfinished`]. They do so after at most as long as a
/// wait for nodes and for memory ([`Timeouts::deadline`], [`Options::memory_wait`]). These are a
/// later write of its key and, if it was reclaiming memory or raising a high-water mark, all others
/// that do so. (A write that has met a move of its key by then ends in
/// [`Error::UnsettledUnfinished`].) Poll it to its end, or drop it.
///
/// # Cancel safety
/// Dropping an operation's future before it ends equals a crash of the client at that point: a
/// write may or may not take effect, and nothing else is harmed.
pub struct Client<F: Fabric, C: Clock, P = SafeGuess> {
    pub(crate) group: Group<Counting<F>, C>,
    /// Its session: as what it attached to its slot. It goes on under other incarnations later.
    pub(crate) attached: Session,
    pub(crate) geometry: Geometry,
    pub(crate) index: Index,
    pub(crate) heap: Heap,
    pub(crate) locations: LocationCache,
    /// Keys that are cells.
    pub(crate) cells: CellCache,
    pub(crate) key_locks: KeyLocks,
    /// Room for the words of a record: a common change of a cell allocates none.
    pub(crate) record_words: Cell<Vec<u64>>,
    /// The bytes of a value that a change of a cell replaced: room for the next one.
    pub(crate) spare_value: Cell<Vec<u8>>,
    /// The last ticket of a place in an object.
    pub(crate) tickets: Cell<u32>,
    /// Places in objects that are to be given up.
    pub(crate) left_places: LeftPlaces,
    pub(crate) reclaimed_at_once: usize,
    pub(crate) memory_wait: u64,
    /// How many more values that outgrow their place stay out of place.
    pub(crate) growths_put_off: Cell<u32>,
    /// Keys that this client moved.
    pub(crate) moved: Cell<u64>,
    /// How many of those it moved out of sparse chunks.
    pub(crate) evacuated: Cell<u64>,
    pub(crate) participant: Option<Participant<F::EpochDomain>>,
    /// Where its threads sleep until keys change, if its fabric has that.
    pub(crate) wait_words: Option<WaitWords>,
    /// The GC cycle under way, except while a step of it runs.
    pub(crate) collection: Cell<Option<Box<GcCycle>>>,
    /// The tombstones that the last GC cycle met.
    pub(crate) tombstones: RefCell<Tombstones>,
    /// The most registers that a GC cycle met, if there was one.
    pub(crate) registers_met: Cell<Option<usize>>,
    /// Admits one search for memory at a time.
    pub(crate) searching: LocalMutex,
    /// The last search that found nothing.
    pub(crate) failed_reclaim: Cell<Option<FailedReclaim>>,
    pub(crate) generation: Cell<u64>,
    /// Whether it is a reader's, whose fabric changes nothing (X5).
    pub(crate) only_looks: bool,
    /// What became of the pool, once the client is cut off from it.
    pub(crate) lost: Cell<Option<Lost>>,
    /// How many operations of a kind pass between checks that the pool still exists, less one.
    between_looks: Cell<u64>,
    counters: RefCell<Counters>,
    last: Cell<OpCost>,
    protocol: PhantomData<fn() -> P>,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Makes a client of the pool of this geometry behind `fabric`, as `session`.
    ///
    /// No other client may use `session` as long as this one lives.
    pub fn new(
        fabric: F,
        clock: C,
        geometry: Geometry,
        session: Session,
        options: Options,
    ) -> Self {
        let group = Group::new(Counting::new(fabric), clock, geometry.format, session)
            .with_slots(geometry.slots)
            .with_placement(geometry.placement());
        group.set_timeouts(options.timeouts);
        // A key takes at least one granule at each node.
        let keys = options.cached_keys.min((geometry.capacity / GRANULE as u64) as usize);
        Self {
            group,
            attached: session,
            geometry,
            index: Index::new(geometry, options.cached_buckets),
            heap: Heap::new(geometry, session.client),
            locations: LocationCache::new(keys, geometry.hash_seed),
            cells: CellCache::new(keys),
            key_locks: KeyLocks::default(),
            record_words: Cell::default(),
            spare_value: Cell::default(),
            tickets: Cell::new(0),
            left_places: LeftPlaces::default(),
            reclaimed_at_once: options.reclaimed_at_once,
            memory_wait: options.memory_wait,
            growths_put_off: Cell::new(0),
            moved: Cell::new(0),
            evacuated: Cell::new(0),
            participant: None,
            wait_words: None,
            collection: Cell::new(None),
            tombstones: RefCell::default(),
            registers_met: Cell::new(None),
            searching: LocalMutex::default(),
            failed_reclaim: Cell::new(None),
            generation: Cell::new(0),
            only_looks: false,
            lost: Cell::new(None),
            between_looks: Cell::new(BETWEEN_LOOKS),
            counters: RefCell::default(),
            last: Cell::default(),
            protocol: PhantomData,
        }
    }

    /// Makes it a reader's: it proposes nothing that its fabric would keep to itself.
    pub(crate) fn that_only_looks(mut self) -> Self {
        self.only_looks = true;
        self
    }

    /// Turns reclamation on: memory that this client's writes supersede is reused once no operation
    /// can reach it, by `domain`. All clients of a pool must share one epoch domain, or use none.
    #[must_use]
    pub fn with_epochs(mut self, domain: F::EpochDomain) -> Self {
        self.participant = Some(Participant::new(domain));
        drop(self.pin());
        self
    }

    /// Lets threads that wait for a key sleep until it changes.
    pub(crate) fn with_wait_words(mut self, words: Option<WaitWords>) -> Self {
        self.wait_words = words;
        self
    }

    /// Sends deferred chains and waits for them, at most 500 ms. Call it before the client goes
    /// idle: until then its pin can block reclamation for all clients. Does nothing on shared
    /// memory.
    pub fn rest(&self) {
        if self.is_cut_off() {
            return;
        }
        self.group.fabric().drain();
        if let Some(participant) = &self.participant {
            participant.unpin_completed(self.group.fabric());
        }
    }

    /// Returns what this client's operations cost so far.
    pub fn counters(&self) -> Counters {
        Counters {
            events: self.group.events(),
            reclaimed: self.heap.reclaimer.reclaimed(),
            moved: self.moved.get(),
            evacuated: self.evacuated.get(),
            ..*self.counters.borrow()
        }
    }

    /// Returns what the operation that ended last cost.
    #[inline]
    pub fn last(&self) -> OpCost {
        self.last.get()
    }

    /// Changes how long this client waits for memory nodes.
    pub fn set_timeouts(&self, timeouts: Timeouts) {
        self.group.set_timeouts(timeouts);
    }

    /// Pins the client: memory that is retired from here on is not reused before the guard is
    /// dropped.
    #[inline]
    pub(crate) fn pin(&self) -> PinGuard<'_, F, C, P> {
        let visit = self.participant.as_ref().map(|participant| {
            let visit = participant.pin();
            // E2: after the pin. A client that was delayed before it may have pinned an old epoch.
            self.index.enter(participant.domain().epoch());
            // E7: the generation is checked after the pin, before anything cached is used.
            let generation = participant.domain().generation();
            if generation != self.generation.get() {
                self.forget(generation);
            }
            visit
        });
        PinGuard { visit, client: self }
    }

    /// Returns a fresh write number.
    ///
    /// # Errors
    /// [`Error::NumbersExhausted`] if there is none, and none is granted.
    pub(crate) fn number(&self) -> Result<WriteNumber, Error> {
        // A refill follows each write. With none left, not even the last writes got that far.
        let found = || self.finds_numbers().then(|| self.group.number()).flatten();
        self.group.number().or_else(found).ok_or(Error::NumbersExhausted)
    }

    /// Runs `change`, of the chunk map, again as long as it lacks numbers and the epoch domain
    /// grants some.
    ///
    /// Changes of the map take their numbers before they post anything, so one that finds none can
    /// start over.
    pub(crate) async fn with_numbers<T>(
        &self,
        change: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        loop {
            match change().await {
                Err(Error::NumbersExhausted) if self.finds_numbers() => {}
                outcome => return outcome,
            }
        }
    }

    /// Whether there are numbers, or the epoch domain grants some.
    #[cold]
    pub(crate) fn finds_numbers(&self) -> bool {
        if !self.group.has_numbers() {
            self.look_for_numbers();
        }
        self.group.has_numbers()
    }

    /// Allocates an object of this kind, like [`Heap::allocate`].
    pub(crate) async fn allocate(&self, kind: ObjectKind, need: Purpose) -> Result<Pointer, Error> {
        self.with_numbers(async || self.heap.allocate(&self.group, kind, need).await).await
    }

    /// Allocates an object of this kind, like [`Heap::allocate_there`].
    pub(crate) async fn allocate_there(
        &self,
        kind: ObjectKind,
        need: Purpose,
    ) -> Result<Pointer, Error> {
        self.with_numbers(async || self.heap.allocate_there(&self.group, kind, need).await).await
    }

    /// Keeps the next incarnation ready, for when the present numbers are used up.
    #[cold]
    pub(crate) fn look_for_numbers(&self) {
        if self.is_cut_off() {
            return;
        }
        let domain = self.participant.as_ref().map(Participant::domain);
        if let Some(incarnation) = domain.and_then(EpochDomain::incarnation) {
            self.group.keep_next_incarnation(incarnation);
        }
    }

    /// Enters another generation (E7): cached locations may be reused soon.
    #[cold]
    fn forget(&self, generation: u64) {
        // S8: the outcome of the operation under way is checked at its end, as it finds no location
        // cached.
        if let Some(lost) =
            self.participant.as_ref().and_then(|participant| participant.domain().lost())
        {
            self.lost.set(Some(lost));
            self.group.fabric().cut_off();
        }
        // H7: a node that is gone is so for each operation that begins in this generation.
        self.group.fabric().reconfigure();
        self.generation.set(generation);
        self.locations.renew(generation);
        self.cells.renew(generation);
        self.index.renew(generation);
        self.heap.renew(generation);
    }

    #[inline]
    pub(crate) fn count(&self, kind: impl Fn(&mut Counters) -> &mut KindCounters, tally: OpCost) {
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

    /// Checks that the pool still exists, after some operations.
    #[cold]
    #[inline(never)]
    pub(crate) fn look(&self) {
        // S7: in a child, nothing is looked at, and no count raised.
        if self.is_cut_off() {
            return;
        }
        let is_brisk =
            self.participant.as_ref().is_none_or(|participant| participant.domain().look());
        self.between_looks.set(if is_brisk { BETWEEN_LOOKS } else { 0 });
    }

    /// Wakes clients that sleep until a key of this hash changes, behind a change of it.
    #[inline(always)]
    pub(crate) fn wake(&self, hash: u64) {
        if let Some(participant) = &self.participant {
            participant.domain().wake(hash);
        }
    }

    #[inline]
    pub(crate) fn check(&self, key: &[u8], value: &[u8]) -> Result<u64, Error> {
        check_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(Error::Value(value.len()));
        }
        Ok(hash_key(key, self.geometry.hash_seed))
    }
}

/// Checks a key's length.
#[inline(always)]
pub(crate) fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > MAX_KEY { Err(Error::Key(key.len())) } else { Ok(()) }
}

impl<F: Fabric, C: Clock, P> Drop for Client<F, C, P> {
    fn drop(&mut self) {
        // S7: a child's copy owns nothing.
        if self.is_cut_off() {
            return;
        }
        self.leave_chunks();
        // E9: only a pinned client that has observed the generation knows what it owns.
        let pin = self.participant.as_ref().map(|participant| (participant, participant.pin()));
        let generation =
            pin.as_ref().map_or(0, |(participant, _)| participant.domain().generation());
        if generation == self.generation.get() {
            self.heap.detach(&self.group);
        }
        if let Some((participant, visit)) = pin {
            participant.unpin(visit, self.group.fabric());
        }
    }
}

/// Keeps the client pinned. Memory retired after this guard was taken is not reused before it is
/// dropped.
pub(crate) struct PinGuard<'c, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    visit: Option<Pinned>,
}

impl<F: Fabric, C: Clock, P: Protocol> PinGuard<'_, F, C, P> {
    /// Unpins an operation that ended within the poll in which it began: no child can have a copy
    /// of it (S7).
    #[inline]
    pub(crate) fn end(mut self) {
        self.leave();
    }

    #[inline]
    fn leave(&mut self) {
        if let (Some(participant), Some(visit)) = (&self.client.participant, self.visit.take()) {
            participant.unpin(visit, self.client.group.fabric());
        }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Drop for PinGuard<'_, F, C, P> {
    #[inline]
    fn drop(&mut self) {
        // S7: only the client's own process unpins.
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
    use crate::heap::tests::{Watched, still};
    use crate::pools::shm::{self, CreateOptions, Pool};

    const SESSION: Session = Session { client: 0, incarnation: Incarnation(1) };

    fn geometry() -> Geometry {
        Geometry::new(1, 4 << 20, 2, 1).expect("geometry")
    }

    /// The only client of a pool of one node, without reclamation.
    pub(crate) fn alone() -> Client<Loopback, LoneClock> {
        let nodes = Loopback::new(1, 4 << 17);
        // Stories of keys that move use it.
        let geometry = geometry().with_keyed_cells(false);
        Client::new(nodes, LoneClock::new(1000), geometry, SESSION, Options::default())
    }

    /// An epoch domain without other clients.
    #[derive(Clone, Default)]
    struct Of {
        generation: Rc<Cell<u64>>,
        is_pinned: Rc<Cell<bool>>,
    }

    impl EpochDomain for Of {
        fn epoch(&self) -> u64 {
            1
        }
        fn pin(&self) -> u64 {
            self.is_pinned.set(true);
            self.epoch()
        }
        fn repin(&self, _: u64) {}
        fn unpin(&self) {
            self.is_pinned.set(false);
        }
        fn generation(&self) -> u64 {
            self.generation.get()
        }
        fn new_generation(&self) {}
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn try_advance(&self) -> u64 {
            self.epoch()
        }
    }

    /// A client of one node without keyed cells.
    fn watched<'w>(fabric: Watched<'w>, domain: &Of) -> Client<Watched<'w>, LoneClock> {
        let (clock, geometry) = (LoneClock::new(1000), geometry().with_keyed_cells(false));
        let client = Client::new(fabric, clock, geometry, SESSION, Options::default());
        client.with_epochs(Box::new(domain.clone()))
    }

    /// A client detaches; if `another`, a new generation has begun since its last operation.
    /// Returns how many objects it takes back.
    fn takes_back(another: bool) -> u64 {
        let (geometry, nodes) = (geometry(), Loopback::new(1, 4 << 17));
        let domain = Of::default();
        let fabric = Watched::new(nodes.clone(), |_| false);
        let clock = LoneClock::new(1000);
        let client: Client<_, _> =
            Client::new(fabric, clock, geometry, SESSION, Options::default());
        let client = client.with_epochs(Box::new(domain.clone()));
        client.blocking().put(b"key", b"value").expect("memory");
        let counted = || -> u64 {
            let counters = (geometry.first_chunk()..geometry.chunks())
                .map(|chunk| geometry.counter(chunk, NodeId(0)));
            counters.map(|at| nodes.word(NodeId(0), at) & 0xffff_ffff).sum()
        };
        let before = counted();
        domain.generation.set(u64::from(another));
        drop(client);
        before - counted()
    }

    /// Another client may own the chunks by then, and reuse what lies below the high-water marks.
    #[test]
    fn a_client_that_leaves_behind_another_generation_takes_nothing_back() {
        assert!(takes_back(false) > 0);
        assert_eq!(takes_back(true), 0);
    }

    /// A location is looked up before the pin, and another generation may have begun by then: what
    /// lies there may be reused while this operation runs.
    #[test]
    fn a_location_of_an_earlier_generation_is_not_used() {
        let domain = Of::default();
        let client = watched(Watched::new(Loopback::new(1, 4 << 17), |_| false), &domain);
        let store = client.blocking();
        let verbs = |operation: &dyn Fn()| {
            operation();
            client.last().verbs
        };
        let get = || assert!(store.get(b"key").expect("a node").is_some());
        let update = || assert_eq!(store.update(b"key", b"value"), Ok(true));
        store.put(b"key", b"value").expect("memory");
        for operation in [&get as &dyn Fn(), &update] {
            verbs(operation);
            let cached = verbs(operation);
            domain.generation.set(domain.generation.get() + 1);
            assert!(verbs(operation) > cached, "it asks the index");
            assert_eq!(verbs(operation), cached);
        }
    }

    /// What is cached is prefetched in front of the pin, and read behind it.
    #[test]
    fn a_cached_operation_reads_nothing_before_its_pin() {
        let domain = Of::default();
        let (pinned, unpinned) = (Cell::new(0), Cell::new(0));
        let counts = |_: &[Verb<'_>]| {
            let count = if domain.is_pinned.get() { &pinned } else { &unpinned };
            count.set(count.get() + 1);
            false
        };
        let fabric = Watched::new(Loopback::new(1, 4 << 17).near(), counts);
        let client = watched(fabric, &domain);
        let store = client.blocking();
        store.put(b"key", b"value").expect("memory");
        let (many, keys) = (pinned.get(), [b"key".as_slice()]);
        unpinned.set(0);
        assert!(store.get(b"key").expect("a node").is_some());
        assert_eq!(store.update(b"key", b"another"), Ok(true));
        assert!(store.get_many(&keys).expect("a node")[0].is_some());
        assert!(pinned.get() > many);
        assert_eq!(unpinned.get(), 0, "what it found may be of another generation by then");
    }

    /// The buffer that a key was inserted with is named by its bucket's record, and a client that brings that to
    /// a node copies it: a cycle leaves it, and takes it out of the record, and the next one retires it.
    #[test]
    fn what_came_with_a_record_is_garbage_once_the_record_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let open = || shm::open(&pool, Options::default()).expect("a client");
        let (client, other) = (open(), open());
        let store = client.blocking();
        store.put(b"key", b"value").expect("memory");
        other.blocking().put(b"key", b"another").expect("memory");
        assert_eq!(store.collect(), Ok(Some(0)), "nothing that the record names");
        assert_eq!(store.collect(), Ok(Some(2)), "the buffer, and the record that named it");
    }

    /// Uses up all numbers that a client has.
    fn spend<F: Fabric, C: Clock, P: Protocol>(client: &Client<F, C, P>) {
        while client.group.has_numbers() {
            drop(client.group.begin_write());
        }
    }

    /// An insert first needs a chunk, and a change of the chunk map takes a number as well.
    #[test]
    fn a_client_that_claims_memory_looks_for_numbers_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        let client = shm::open(&pool, Options::default()).expect("a client");
        spend(&client);
        assert_eq!(client.blocking().put(b"key", b"value"), Ok(()));
        assert!(client.group.has_numbers());
    }

    #[test]
    fn where_no_numbers_are_granted_they_are_exhausted() {
        let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let nodes = Loopback::new(3, 4 << 17);
        let client: Client<_, _> =
            Client::new(nodes, still(), geometry, session, Options::default());
        spend(&client);
        assert_eq!(client.blocking().put(b"key", b"value"), Err(Error::NumbersExhausted));
    }
}
