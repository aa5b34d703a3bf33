//! The heap: memory for registers, buffers, cells and records.
//!
//! A chunk belongs to a client slot; one record names the owner of each chunk (the *chunk map*, a
//! cell). Inside a chunk, objects of one class are handed out in order. The chunk itself holds its
//! *high-water mark*: how many of its objects may be handed out. So the next client of the slot
//! goes on from there. The owner raises the mark ahead of need, by CAS at a majority, and hands out
//! only objects below it.
//!
//! **Invariant:** no object is handed out twice (E8a), because every majority shows a high-water
//! mark above it. Handing out an object touches no node. Raising the mark costs one roundtrip, for
//! twice as many objects each time. Another chunk costs a change of the chunk map.
//!
//! A client that detaches lowers the mark to what it handed out. If a client dies instead, the
//! unused objects below its mark are unreachable, and the next client of the slot finds them in a
//! GC cycle.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::{ChunkClass, Geometry, Location, ReplicaSet, buffer, words_for};
use swarm_core::node::{Address, NodeId, NodeSet};
use swarm_core::quorum::Group;
use swarm_core::register::Register;
use swarm_core::words::{GRANULE, Pointer, Stamp};

use crate::error::{Error, Shortage};
use crate::runtime::local_mutex::LocalMutex;
use alloc::active_chunk::ActiveChunk;
use alloc::high_water::{HighWater, adopt_counters, homes, read_counters};
use alloc::known_marks::KnownMarks;
pub use alloc::reserve::writing_clients;
use alloc::shared_range::RangeProgress;
use chunk_map::{Extent, SHARED, ends_of_shares, extents};
use gc_pacer::GcPacer;
pub(crate) use reclaim::reclaimer::Reclaimer;
pub(crate) use reclaim::remote_free::AT_ONCE as RECORDS_AT_ONCE;
use reclaim::remote_free::PendingRetirements;
pub use usage::ClientUsage;

mod alloc;
mod chunk_map;
mod gc_pacer;
pub(crate) mod reclaim;
mod transfer;
mod usage;

pub(crate) use reclaim::object_table::{ObjectIndex, ObjectState, Unreachable};
pub(crate) use reclaim::reclaimer::Taken;

/// Object tables of one home in a chunk that are opened at a time.
const OPENED_AT_ONCE: usize = 8 * MAX_VERBS;

/// Changes of the chunk map that one claim tries. Each lost one is another client's success.
const CLAIM_TRIES: usize = 1000;

/// A client's view of the heap, and its memory.
pub(crate) struct Heap {
    geometry: Geometry,
    slot: usize,
    active_chunks: RefCell<Vec<ActiveChunk>>,
    /// Objects that this client has had from shared chunks, by kind.
    had: RefCell<Vec<RangeProgress>>,
    known: RefCell<KnownMarks>,
    /// The chunk map as last read.
    map: RefCell<Vec<u32>>,
    /// The generation that this client has observed.
    generation: Cell<u64>,
    /// Whether the map was read in this generation: only then is what the client takes for its own
    /// still its own (E9).
    current: Cell<bool>,
    /// Bootstrap records used so far, once read.
    bootstrap_records: Cell<Option<HighWater>>,
    /// Bootstrap records that were used and are zeroed again.
    bootstrap_free: RefCell<Vec<Pointer>>,
    /// Bootstrap records that are to be retired, and the epoch in which all of them were in use.
    bootstrap_noted: RefCell<Option<(u64, Vec<Pointer>)>>,
    /// Retired bootstrap records: operations that begin after this epoch cannot reach them.
    bootstrap_retired: RefCell<Option<(u64, Vec<Pointer>)>>,
    /// First chunks of the units that were taken over, and the epoch in which that was announced.
    taken: RefCell<(u64, Vec<usize>)>,
    /// Whether all free chunks are reserved, by the map as last read.
    tight: Cell<bool>,
    /// The last allocation that failed.
    wanted: Cell<Option<(ObjectKind, Purpose)>>,
    /// How much this client's memory grew since its last GC cycle.
    growth: GcPacer,
    awaited: PendingRetirements,
    /// The class of the last buffer, with its length and leanness.
    class_of_last: Cell<((usize, bool), ChunkClass)>,
    /// The words of the last object that is the same at every node, and its kind.
    plain_of_last: Cell<(usize, ObjectKind)>,
    /// A chunk-map record that was proposed, and that no node names: it is as if never used.
    spare: Cell<Option<Pointer>>,
    /// Chunks that could not be emptied, and how many of their objects were in use then.
    stuck: RefCell<HashMap<usize, u64>>,
    pub(crate) reclaimer: Reclaimer,
    gate: LocalMutex,
}

/// What an allocation is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The store holds more afterwards.
    Insert,
    /// The object replaces another one, which is freed in turn: served even where the pool is full
    /// (E11).
    Replace,
    /// A key has to move, or its bucket to change, before any operation on it can go on: served as
    /// long as any memory is free.
    Relocate,
    /// An object leaves a chunk that is being [emptied](transfer::sparse): served only from chunks
    /// that this client has.
    Evacuate,
}

/// The class of an object and its home; for an all-but-one buffer, the node that has no copy.
#[derive(Clone, Copy, Eq, Debug)]
pub(crate) struct ObjectKind {
    class: ChunkClass,
    home: NodeId,
    /// Chunks that one object takes; more than 1 only for runs.
    chunks: usize,
}

impl PartialEq for ObjectKind {
    /// Compares kinds of buffers, which each write does, without the jump table of all classes.
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let is_class = match (self.class, other.class) {
            (ChunkClass::AllButOne(one), ChunkClass::AllButOne(other)) => one == other,
            (one, other) => one == other,
        };
        is_class && (self.home, self.chunks) == (other.home, other.chunks)
    }
}

impl ObjectKind {
    /// Whether these objects can only be buffers: so it is in a pool of several nodes.
    pub(crate) fn is_of_values(self) -> bool {
        matches!(self.class, ChunkClass::AllButOne(_) | ChunkClass::AllNodes(_))
    }

    /// Returns the same kind for another home.
    fn at(self, home: NodeId) -> Self {
        Self { home, ..self }
    }
}

impl Heap {
    pub(crate) fn new(geometry: Geometry, slot: usize) -> Self {
        Self {
            geometry,
            slot,
            active_chunks: RefCell::default(),
            had: RefCell::default(),
            known: RefCell::default(),
            map: RefCell::default(),
            generation: Cell::new(0),
            current: Cell::new(false),
            bootstrap_records: Cell::new(None),
            bootstrap_free: RefCell::default(),
            bootstrap_noted: RefCell::default(),
            bootstrap_retired: RefCell::default(),
            taken: RefCell::default(),
            tight: Cell::new(false),
            wanted: Cell::new(None),
            growth: GcPacer::default(),
            awaited: PendingRetirements::default(),
            class_of_last: Cell::new(((usize::MAX, false), ChunkClass::LargeTail)),
            plain_of_last: Cell::new((
                0,
                ObjectKind { class: geometry.plain_class(0), home: NodeId(0), chunks: 1 },
            )),
            spare: Cell::new(None),
            stuck: RefCell::default(),
            reclaimer: Reclaimer::new(geometry),
            gate: LocalMutex::default(),
        }
    }

    /// Returns the kind for objects of `words` words that are the same at every node.
    #[inline]
    pub(crate) fn plain(&self, words: usize) -> ObjectKind {
        match self.plain_of_last.get() {
            (of, kind) if of == words => kind,
            _ => self.other_plain(words),
        }
    }

    #[inline(never)]
    fn other_plain(&self, words: usize) -> ObjectKind {
        let kind = match self.geometry.plain_class(words) {
            ChunkClass::Large => self.run(words),
            class => ObjectKind { class, home: NodeId(0), chunks: 1 },
        };
        self.plain_of_last.set((words, kind));
        kind
    }

    /// Returns the kind for an object that takes chunks of its own.
    fn run(&self, words: usize) -> ObjectKind {
        let chunks = self.geometry.run_chunks(words);
        ObjectKind { class: ChunkClass::Large, home: NodeId(0), chunks }
    }

    /// Returns the kind for a buffer of a value of `length` bytes. `absent` is the node that has no
    /// copy, if any.
    #[inline(always)]
    pub(crate) fn buffer(&self, length: usize, absent: Option<NodeId>) -> ObjectKind {
        self.of_buffer(length, absent.unwrap_or(NodeId(0)), absent.is_some())
    }

    /// Returns the kind for the first buffer of a register with this home. Its home needs no copy
    /// if the value lies in place.
    pub(crate) fn first_buffer(&self, length: usize, home: NodeId, in_place: bool) -> ObjectKind {
        self.of_buffer(length, home, in_place)
    }

    #[inline(always)]
    fn of_buffer(&self, length: usize, absent: NodeId, all_but_one: bool) -> ObjectKind {
        match self.class_of_last.get() {
            (of, class @ ChunkClass::AllButOne(_)) if of == (length, all_but_one) => {
                ObjectKind { class, home: absent, chunks: 1 }
            }
            _ => self.of_other_buffer(length, absent, all_but_one),
        }
    }

    #[inline(never)]
    fn of_other_buffer(&self, length: usize, absent: NodeId, all_but_one: bool) -> ObjectKind {
        let class = self.geometry.buffer_class(length, all_but_one);
        self.class_of_last.set(((length, all_but_one), class));
        match class {
            ChunkClass::Large => self.run(buffer::HEADER_WORDS + words_for(length)),
            class @ ChunkClass::AllButOne(_) => ObjectKind { class, home: absent, chunks: 1 },
            class => ObjectKind { class, home: NodeId(0), chunks: 1 },
        }
    }

    /// Returns which nodes have an object, and where. `None` if no object of this kind can have
    /// this pointer.
    #[inline]
    pub(crate) fn site(&self, kind: ObjectKind, object: Pointer) -> Option<ReplicaSet> {
        let holders = NodeSet::all(self.geometry.nodes);
        match kind.class {
            ChunkClass::Homed { .. } => {
                let place = self.geometry.homed_place(object, kind.class)?;
                Some(ReplicaSet { place, holders })
            }
            ChunkClass::Uniform(_) => {
                Some(ReplicaSet { place: Location::everywhere(object, kind.home), holders })
            }
            _ => Some(self.geometry.placement().site(object)),
        }
    }

    /// Returns the kind for objects of a homed class. Other classes have no home.
    pub(crate) fn homed(&self, class: ChunkClass, home: NodeId) -> ObjectKind {
        ObjectKind { class, home, chunks: 1 }
    }

    /// Enters another generation: another client may have taken over what this client takes for its
    /// own (E9).
    pub(crate) fn renew(&self, generation: u64) {
        self.generation.set(generation);
        self.current.set(false);
    }

    /// Runs `change` with exclusive access to what this client knows of the chunk map and of its
    /// allocated objects. Waits for an earlier change, but no longer than for nodes: its future may
    /// not be polled any more.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if the earlier change is not polled; then nothing of `change` is done.
    async fn alone<F: Fabric, C: Clock, T>(
        &self,
        group: &Group<F, C>,
        change: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.gate.pass(group.clock(), group.timeouts().deadline, change).await
    }

    /// Reads the map if it was not read in this generation (E9): then this client owns what it
    /// takes for its own, as of the operation that calls this.
    pub(crate) async fn know_own<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<(), Error> {
        if self.current.get() {
            return Ok(());
        }
        self.alone(group, self.read_current(group)).await
    }

    /// The same, for a caller with [exclusive access](Self::alone).
    async fn read_current<F: Fabric, C: Clock>(&self, group: &Group<F, C>) -> Result<(), Error> {
        for _ in 0..CLAIM_TRIES {
            if self.current.get() {
                return Ok(());
            }
            self.read_map(group).await?;
        }
        Err(Error::Contended)
    }

    /// Drops all chunks that, by this map, are neither this slot's nor shared.
    fn keep_own(&self, map: &[u32]) {
        let mut own = vec![false; map.len()];
        // E8b: a chunk that was taken over may be shared again, with other ranges. Then all ranges
        // end. One that was this client's own may be shared by now: it has no range of that.
        let before = self.map.borrow();
        let are_same = ends_of_shares(map) == ends_of_shares(&before);
        let was_shared = |extent: &Extent| before.get(extent.first) == map.get(extent.first);
        let shared = extents(map).filter(|extent| extent.owner == SHARED && !extent.taken);
        let shared = shared.filter(|extent| are_same && was_shared(extent));
        for extent in self.own(map).chain(shared) {
            own[extent.first] = true;
        }
        let is_own = |chunk: usize| own.get(chunk).is_some_and(|own| *own);
        self.keep_chunks(is_own);
        let spare = self.spare.get().filter(|&spare| {
            let chunk = self.geometry.chunk_of(spare);
            chunk < self.geometry.first_chunk() || is_own(chunk)
        });
        self.spare.set(spare);
        // E9: a unit that another client had in between counts as never announced.
        let taken: Vec<usize> = self.taken_extents(map).map(|extent| extent.first).collect();
        self.taken.borrow_mut().1.retain(|first| taken.contains(first));
    }

    /// Drops all other chunks: nothing of them is handed out any more.
    fn keep_chunks(&self, is_own: impl Fn(usize) -> bool) {
        self.known.borrow_mut().keep(&is_own);
        self.active_chunks.borrow_mut().retain(|active| is_own(active.chunk));
        self.reclaimer.keep(&is_own);
        self.awaited.keep(|record| is_own(self.geometry.chunk_of(record)));
        self.stuck.borrow_mut().retain(|&chunk, _| is_own(chunk));
    }

    /// Returns the bytes of each node's memory that are not free: the pool's own, and chunks that
    /// have an owner.
    pub(crate) async fn used<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<u64, Error> {
        self.alone(group, self.read_map(group)).await?;
        let owned = self.map.borrow().iter().skip(1).filter(|entry| **entry != 0).count();
        Ok((self.geometry.first_chunk() + owned) as u64 * self.geometry.chunk_bytes)
    }

    /// Takes a buffer that was reclaimed or allocated, if there is one.
    ///
    /// E4: a reclaimed object that was not zeroed becomes a buffer only. A buffer's lock keeps its
    /// place and only grows, and would be taken for a record's accepted ballot.
    #[inline]
    pub(crate) fn take_buffer(&self, kind: ObjectKind, need: Purpose) -> Option<Pointer> {
        if !self.current.get() || self.keeps(kind, need) {
            return None;
        }
        self.reclaimer.take(kind).or_else(|| self.take_new(kind))
    }

    /// The same for reclaimed buffers, for a caller whose write is over, or that marks the buffer
    /// as [handed out](Reclaimer::handed_out), before anything else happens. Passes to `expect`
    /// where the next free buffer and its state word lie, to prefetch them.
    #[inline(always)]
    pub(crate) fn take_buffer_now(
        &self,
        kind: ObjectKind,
        need: Purpose,
        expect: impl FnOnce(&ReplicaSet, Option<&ObjectState>),
    ) -> Option<Taken> {
        if !self.current.get() || self.keeps(kind, need) {
            return None;
        }
        self.reclaimer.take_now(kind, expect)
    }

    /// Frees an object that was handed out unused, and of which no node has a word.
    pub(crate) fn take_back_unused(&self, object: Pointer) {
        self.reclaimer.take_back_unused(object);
    }

    /// Frees retired buffers, if at least `least` of them may be reused in `epoch`, and calls
    /// `each` with each.
    pub(crate) fn reclaim(
        &self,
        kind: ObjectKind,
        epoch: u64,
        least: usize,
        each: impl Fn(Pointer),
    ) {
        if self.current.get() {
            self.reclaimer.reclaim(kind, epoch, least, each);
        }
    }

    /// Returns whether memory is freed once the epoch advances beyond `epoch`: objects, bootstrap
    /// records, or units that were taken over. Objects that need zeroing at one of the nodes
    /// `silent` are not.
    pub(crate) fn waits(&self, epoch: u64, silent: NodeSet) -> bool {
        let bootstrap_records = self.bootstrap_retired.borrow();
        let bootstrap_waits = self.bootstrap_noted.borrow().is_some()
            || bootstrap_records.as_ref().is_some_and(|(since, _)| since + GRACE > epoch);
        self.reclaimer.waits(epoch, self.are_reset(silent))
            || silent.is_empty() && bootstrap_waits
            || self.taking_waits(epoch)
    }

    /// Retires `buffer`, whose write was refused by a delete that a majority holds.
    pub(crate) fn refused(&self, buffer: Pointer, epoch: u64) {
        self.reclaimer.refused(buffer, epoch);
    }

    /// Whether buckets' records are about to be freed, while all free chunks are reserved and only
    /// a [few](Self::has_few_records) records are free.
    pub(crate) fn awaits_records(&self) -> bool {
        self.is_tight()
            && (self.reclaimer.to_reset(self.entries_records()) > 0 || self.awaited.are_any())
            && self.has_few_records()
    }

    /// Whether no buckets' records are free but the [few](Self::few) that are reserved.
    pub(crate) fn has_few_records(&self) -> bool {
        let records = self.entries_records();
        self.unused(records) + self.reclaimer.fresh(records) <= self.few(records)
            && self.unread(records).is_empty()
    }

    /// Frees a buffer that was handed out and that no chain has named since. Only buffers reuse it:
    /// it may have been one before (E4).
    pub(crate) fn take_back(&self, buffer: Pointer) {
        self.reclaimer.take_back(buffer);
    }

    /// Records that a write of `buffer` to `register` is complete, with this client's own stamp
    /// slot at `after`. Retires what this client had written before under the stamps of `before`
    /// (E1). `epoch` returns the current epoch.
    #[inline]
    pub(crate) fn wrote(
        &self,
        register: &Register,
        buffer: Pointer,
        before: [Stamp; 2],
        epoch: impl Fn() -> u64,
    ) {
        let after = (buffer, register.own_stamp(), None);
        self.reclaimer.wrote(register, after, (before, None), epoch);
    }

    /// Opens the object tables of all chunks of this slot, for a GC cycle. Opens some at a time, as
    /// a dead client may have left many. Returns those chunks and the shared ones of which this
    /// client has a range, or `None` while there are more to open.
    pub(crate) async fn take_stock<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Option<Vec<usize>>, Error> {
        // Exclusive access: a change under way must not put an older map in place of this one when
        // it ends. Another client may have taken chunks over since.
        self.alone(group, self.take_stock_alone(group)).await
    }

    async fn take_stock_alone<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Option<Vec<usize>>, Error> {
        self.read_map(group).await?;
        let own: Vec<Extent> = self.own(&self.map.borrow()).collect();
        let unknown = own.iter().flat_map(|&Extent { first, chunks, class, .. }| {
            homes(&self.geometry, class)
                .map(move |home| (first, ObjectKind { class, home, chunks }))
        });
        let mut unknown: Vec<(usize, ObjectKind)> =
            unknown.filter(|(chunk, kind)| !self.reclaimer.is_open(*chunk, kind.home)).collect();
        let are_more = unknown.len() > OPENED_AT_ONCE;
        unknown.truncate(OPENED_AT_ONCE);
        for batch in unknown.chunks(MAX_VERBS) {
            let counters: Vec<Address> = batch
                .iter()
                .map(|(chunk, kind)| self.geometry.counter(*chunk, kind.home))
                .collect();
            let used = read_counters(group, &counters).await?;
            let is_too_much = |((_, kind), used): (&(usize, ObjectKind), &HighWater)| {
                used.objects() > self.geometry.objects(kind.class)
            };
            if batch.iter().zip(&used).any(is_too_much) {
                return Err(Error::DAMAGED);
            }
            // E8a: no former owner lowers them from here on.
            let marks: Vec<(Address, HighWater)> = counters.into_iter().zip(used).collect();
            let used = adopt_counters(group, &marks, self.slot).await?;
            for (&(chunk, kind), used) in batch.iter().zip(&used) {
                self.reclaimer.open(chunk, kind, used.objects());
            }
        }
        let own = own.into_iter().map(|extent| extent.first);
        Ok((!are_more).then(|| own.chain(self.reclaimer.shared()).collect()))
    }

    /// Returns how many registers fit in all chunks for registers, by the map as last read.
    pub(crate) fn most_registers(&self) -> u64 {
        let map = self.map.borrow();
        let registers =
            extents(&map).filter(|extent| matches!(extent.class, ChunkClass::Homed { .. }));
        registers.map(|extent| self.objects(&extent)).sum()
    }

    /// Returns how many objects fit in a unit, over all homes.
    fn objects(&self, extent: &Extent) -> u64 {
        self.geometry.objects(extent.class) * homes(&self.geometry, extent.class).len() as u64
    }

    /// Returns the last allocation that failed.
    pub(crate) fn wanted(&self) -> Option<(ObjectKind, Purpose)> {
        self.wanted.get()
    }

    fn full(&self, kind: ObjectKind, need: Purpose) -> Error {
        Error::Full(self.shortage(kind, need))
    }

    fn shortage(&self, kind: ObjectKind, need: Purpose) -> Shortage {
        // A failed evacuation leaves no operation without memory.
        if need != Purpose::Evacuate {
            self.wanted.set(Some((kind.at(NodeId(0)), need)));
            self.is_refused();
        }
        let granules = match kind.class {
            ChunkClass::Uniform(size)
            | ChunkClass::AllButOne(size)
            | ChunkClass::AllNodes(size) => size.granules(),
            ChunkClass::Homed { full, .. } => full.granules(),
            ChunkClass::Large | ChunkClass::LargeTail => {
                kind.chunks as u64 * self.geometry.chunk_granules()
            }
        };
        let object = u32::try_from(granules * GRANULE as u64).unwrap_or(u32::MAX);
        let capacity = self.geometry.capacity;
        Shortage { object, capacity, held_up: None, cannot_claim: false }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::future::{Pending, Ready, pending, ready};
    use std::pin::pin;
    use std::task::{Context, Waker};

    use futures_util::future::Either;
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::fabric::{EpochDomain, NodeDown, Verb};
    use swarm_core::layout::{BOOTSTRAP_RECORDS, cell};
    use swarm_core::quorum::{Session, Timeouts};
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::{Client, Options};
    use crate::heap::alloc::high_water::{Raise, raise_counters};
    use crate::runtime::block_on::block_on;
    use crate::runtime::local_mutex::LocalMutexGuard;

    /// A clock that stands.
    pub(crate) fn still() -> LoneClock {
        LoneClock::new(0).with_look(0)
    }

    /// Returns something about a chain.
    type Watch<'w> = Box<dyn Fn(&[Verb<'_>]) -> bool + 'w>;

    /// Nodes in this process, with functions that are called after each chain takes effect. Whatever
    /// these are, it is one type: a client is built anew for each type of fabric.
    pub(crate) struct Watched<'w> {
        nodes: Loopback,
        /// Whether the reply is lost, as that of a node that is down.
        is_lost: Watch<'w>,
        /// Whether there is never a reply.
        is_unanswered: Watch<'w>,
    }

    impl<'w> Watched<'w> {
        /// Those that lose the replies to chains for which `is_lost` is true.
        pub(crate) fn new(nodes: Loopback, is_lost: impl Fn(&[Verb<'_>]) -> bool + 'w) -> Self {
            Self { nodes, is_lost: Box::new(is_lost), is_unanswered: Box::new(|_| false) }
        }

        /// Those that never reply to chains for which `is_unanswered` is true.
        fn silent(nodes: Loopback, is_unanswered: impl Fn(&[Verb<'_>]) -> bool + 'w) -> Self {
            Self { nodes, is_lost: Box::new(|_| false), is_unanswered: Box::new(is_unanswered) }
        }
    }

    impl<'w> Fabric for Watched<'w> {
        type EpochDomain = Box<dyn EpochDomain>;
        type Reply<'f>
            = Vec<u64>
        where
            'w: 'f;
        type Completion<'f>
            = Either<Ready<Result<Vec<u64>, NodeDown>>, Pending<Result<Vec<u64>, NodeDown>>>
        where
            'w: 'f;

        fn is_near(&self) -> bool {
            self.nodes.is_near()
        }

        fn nodes(&self) -> usize {
            self.nodes.nodes()
        }

        fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
            let done = self.nodes.post(node, chain);
            if (self.is_unanswered)(chain) {
                return Either::Right(pending());
            }
            Either::Left(if (self.is_lost)(chain) { ready(Err(NodeDown)) } else { done })
        }
    }

    /// Keeps the heap locked, as an allocation does whose future is kept and not polled.
    pub(crate) fn kept(heap: &Heap) -> LocalMutexGuard<'_> {
        heap.gate.try_enter().expect("nobody else does")
    }

    /// An epoch domain whose epoch is what this function returns, each time that it is read.
    pub(super) struct Says<F>(pub(super) F);

    impl<F: Fn() -> u64> EpochDomain for Says<F> {
        fn epoch(&self) -> u64 {
            (self.0)()
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
            self.epoch()
        }
    }

    /// The heap of the only client of a pool of one node.
    pub(super) fn alone() -> (Group<Loopback, LoneClock>, Heap) {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let fabric = Loopback::new(1, 4 << 17);
        (Group::new(fabric, still(), geometry.format, session), Heap::new(geometry, 0))
    }

    /// Raises the high-water mark at `at` to `to`.
    pub(super) fn raise<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        at: Address,
        to: u64,
    ) -> HighWater {
        let from = block_on(read_counters(group, &[at])).expect("a node")[0];
        let raise = Raise { at, from, to, slot: 0 };
        block_on(raise_counters(group, &[raise])).expect("a node");
        raise.raised()
    }

    /// Uses up a slot's bootstrap records, as clients do that die in a claim.
    pub(crate) fn use_up_bootstrap_records<F: Fabric, C: Clock>(
        group: &Group<F, C>,
        geometry: &Geometry,
        slot: usize,
    ) {
        raise(group, geometry.bootstrap_counter(slot), BOOTSTRAP_RECORDS);
    }

    /// A buffer's lock lies where a record has its accepted ballot. A buffer that was locked would
    /// pass for a record that was accepted already.
    #[test]
    fn what_came_back_is_for_buffers_alone() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let first = block_on(heap.allocate(&group, kind, Purpose::Insert)).expect("memory");
        heap.reclaimer.take_back(first);
        let other = block_on(heap.allocate(&group, kind, Purpose::Insert)).expect("memory");
        assert_ne!(other, first);
        assert_eq!(heap.take_buffer(kind, Purpose::Insert), Some(first));
        // The same holds for an object that was taken and not needed, though it was the last one
        // allocated.
        heap.reclaimer.take_back(other);
        assert_eq!(heap.take_buffer(kind, Purpose::Insert), Some(other));
        heap.take_back(other);
        let next = block_on(heap.allocate(&group, kind, Purpose::Insert)).expect("memory");
        assert_ne!(next, other);
    }

    /// An insert reads the chunk map for its first memory, gets no reply, and is not polled any
    /// more.
    #[test]
    fn an_operation_that_needs_memory_behind_a_kept_future_gets_an_error() {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let map = geometry.map_cell().at(NodeId(0), 1);
        let is_silent = Cell::new(true);
        let reads = |at: Address, words: usize| {
            (at.0..at.0 + words as u64).contains(&map.plus(cell::WORD).0)
        };
        let is_map =
            |verb: &Verb<'_>| matches!(*verb, Verb::Read { at, words } if reads(at, words));
        let is_unanswered = |chain: &[Verb<'_>]| is_silent.get() && chain.iter().any(is_map);
        let fabric = Watched::silent(Loopback::new(1, 4 << 17), is_unanswered);
        let timeouts = Timeouts { deadline: 1_000_000, ..Timeouts::default() };
        let options = Options::default().timeouts(timeouts).memory_wait(1_000_000);
        let clock = LoneClock::new(1000);
        let client: Client<_, _> = Client::new(fabric, clock, geometry, session, options);
        let client = client.with_epochs(Box::new(Says(|| 9)));
        let store = client.blocking();
        {
            let mut kept = pin!(client.put(b"key", b"value"));
            assert!(kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            is_silent.set(false);
            assert_eq!(store.put(b"other", b"value"), Err(Error::Unfinished));
            assert_eq!(store.insert(b"other", b"value"), Err(Error::Unfinished));
            assert_eq!(block_on(client.collect()), Err(Error::Unfinished));
            assert_eq!(block_on(client.usage()), Err(Error::Unfinished));
            assert_eq!(block_on(client.client_usage()), Err(Error::Unfinished));
            let Ok(None) = store.get(b"other") else {
                panic!("it takes no memory, and is not there")
            };
            assert_eq!(store.update(b"other", b"value"), Ok(false));
        }
        assert_eq!(store.put(b"other", b"value"), Ok(()));
        assert_eq!(store.get(b"other").expect("a node").as_deref(), Some(&b"value"[..]));
    }
}
