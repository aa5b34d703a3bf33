//! Memory for registers, buffers, cells and records.
//!
//! A chunk belongs to a client slot, which one record says for all chunks (the *heap map*, a cell).
//! Inside a chunk, objects of one class are handed out in order. How far a chunk's owner has come
//! is kept in the chunk itself, so that the slot's next holder goes on from there: the owner *sets
//! aside* objects ahead of need, by CAS of the chunk's counter at a majority, and hands out only
//! what is set aside. It all rests on this: *no object is handed out twice, because every majority
//! shows a counter past it*. Handing out touches no node; setting aside costs a roundtrip, twice as
//! many objects each time; a chunk more costs a change of the heap map.
//!
//! A client that detaches takes back what it did not hand out. What one that dies had set aside
//! comes to light like all that nothing names: when the slot's next holder collects.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::{Class, Geometry, Place, Site, buffer, words_for};
use swarm_core::node::{Address, NodeId, NodeSet};
use swarm_core::quorum::Group;
use swarm_core::register::Register;
use swarm_core::words::{GRANULE, Pointer, Stamp};

use crate::error::{Error, Shortage};
use crate::gate::Gate;
use arena::Arena;
use counter::{Counter, homes, read_counters};
use growth::Growth;
pub use holdings::Holding;
use map::{SHARED, Unit, ends_of_shares, units};
use range::Had;
pub(crate) use recycle::Recycler;
pub(crate) use replaced::AT_ONCE as RECORDS_AT_ONCE;
use replaced::Awaited;
pub use reserve::writing_clients;

mod arena;
mod claim;
mod counter;
mod growth;
mod holdings;
mod leave;
mod ledger;
mod map;
mod range;
mod recycle;
mod replaced;
mod reserve;
mod reset;
mod seeds;
mod share;
mod shelf;
mod sparse;
mod takeover;

pub(crate) use ledger::{Entry, Spot, Unnamed};
pub(crate) use recycle::Taken;

/// Ledgers of one home in a chunk that are opened at a time.
const OPENED_AT_ONCE: usize = 8 * MAX_VERBS;

/// Changes of the heap map that one claim tries. Each lost one is another client's success.
const CLAIM_TRIES: usize = 1000;

/// What a client has of the heap.
pub(crate) struct Heap {
    geometry: Geometry,
    slot: usize,
    arenas: RefCell<Vec<Arena>>,
    /// What it has had of chunks that clients share.
    had: RefCell<Vec<Had>>,
    /// Counters that were read, of a shared chunk such as have come to the end: chunk and home.
    known: RefCell<HashSet<(usize, NodeId)>>,
    /// The heap map as last seen.
    map: RefCell<Vec<u32>>,
    /// The generation that this client is in.
    generation: Cell<u64>,
    /// Whether the map was read in this generation: what the client holds is its own.
    current: Cell<bool>,
    /// Seeds used, once read.
    seeds: Cell<Option<Counter>>,
    /// Seeds that were used and are as good as new.
    seeds_back: RefCell<Vec<Pointer>>,
    /// Seeds that are to be retired, and the epoch in which they were all used up.
    seeds_noted: RefCell<Option<(u64, Vec<Pointer>)>>,
    /// Seeds that no operation comes across that begins after this epoch.
    seeds_retired: RefCell<Option<(u64, Vec<Pointer>)>>,
    /// The first chunks of units that were taken over, and the epoch in which everyone was told.
    taken: RefCell<(u64, Vec<usize>)>,
    /// Whether all that is free is kept back, by that map.
    tight: Cell<bool>,
    /// What there was no memory for last.
    wanted: Cell<Option<(Kind, Need)>>,
    /// How much this client's memory grew since its garbage was collected.
    growth: Growth,
    awaited: Awaited,
    /// The class of the last buffer, and what it was for.
    class_of_last: Cell<((usize, bool), Class)>,
    /// A heap-map record that was proposed and is as good as new.
    spare: Cell<Option<Pointer>>,
    /// Chunks that could not be emptied, and how many of their objects were in use then.
    stuck: RefCell<HashMap<usize, u64>>,
    pub(crate) recycler: Recycler,
    gate: Gate,
}

/// What memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// The store holds more afterwards.
    More,
    /// Something takes another's place, so that as much comes back: to be had even where the pool
    /// is full otherwise.
    Instead,
    /// A key has to move, or its bucket to change, before anybody gets any further: to be had as long as
    /// there is any.
    Move,
    /// Something lies in a chunk that is [emptied](sparse): to be had only of what this client has already.
    Room,
}

/// What kind of object, and for which home; of a lean buffer, the node that does without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    class: Class,
    home: NodeId,
    /// Chunks that one object takes; 1 but for runs.
    chunks: usize,
}

impl Kind {
    /// Whether these are buffers and nothing else, in a pool of several nodes.
    pub(crate) fn is_of_values(self) -> bool {
        matches!(self.class, Class::Lean(_) | Class::Wide(_))
    }

    /// The same for another home.
    fn at(self, home: NodeId) -> Self {
        Self { home, ..self }
    }
}

/// A map or a counter says what none can say.
const DAMAGED: Error = Error::Replication(swarm_core::error::Error::Damaged);

impl Heap {
    pub(crate) fn new(geometry: Geometry, slot: usize) -> Self {
        Self {
            geometry,
            slot,
            arenas: RefCell::default(),
            had: RefCell::default(),
            known: RefCell::default(),
            map: RefCell::default(),
            generation: Cell::new(0),
            current: Cell::new(false),
            seeds: Cell::new(None),
            seeds_back: RefCell::default(),
            seeds_noted: RefCell::default(),
            seeds_retired: RefCell::default(),
            taken: RefCell::default(),
            tight: Cell::new(false),
            wanted: Cell::new(None),
            growth: Growth::default(),
            awaited: Awaited::default(),
            class_of_last: Cell::new(((usize::MAX, false), Class::RunTail)),
            spare: Cell::new(None),
            stuck: RefCell::default(),
            recycler: Recycler::new(geometry),
            gate: Gate::default(),
        }
    }

    /// The kind for objects of `words` words that are the same at every node.
    pub(crate) fn plain(&self, words: usize) -> Kind {
        match self.geometry.plain_class(words) {
            Class::Run => self.run(words),
            class => Kind { class, home: NodeId(0), chunks: 1 },
        }
    }

    /// The kind for what takes chunks of its own.
    fn run(&self, words: usize) -> Kind {
        let chunks = self.geometry.run_chunks(words);
        Kind { class: Class::Run, home: NodeId(0), chunks }
    }

    /// The kind for a buffer of a value of `length` bytes, which `absent` does without, if one does.
    pub(crate) fn buffer(&self, length: usize, absent: Option<NodeId>) -> Kind {
        self.of_buffer(length, absent.unwrap_or(NodeId(0)), absent.is_some())
    }

    /// The kind for the first buffer of a register with this home, where its value lies in place or does
    /// not.
    pub(crate) fn first_buffer(&self, length: usize, home: NodeId, in_place: bool) -> Kind {
        self.of_buffer(length, home, in_place)
    }

    #[inline]
    fn of_buffer(&self, length: usize, absent: NodeId, lean: bool) -> Kind {
        let (of, class) = self.class_of_last.get();
        if of == (length, lean)
            && let Class::Lean(_) = class
        {
            return Kind { class, home: absent, chunks: 1 };
        }
        let class = self.geometry.buffer_class(length, lean);
        self.class_of_last.set(((length, lean), class));
        match class {
            Class::Run => self.run(buffer::HEADER_WORDS + words_for(length)),
            class @ Class::Lean(_) => Kind { class, home: absent, chunks: 1 },
            class => Kind { class, home: NodeId(0), chunks: 1 },
        }
    }

    /// Which nodes have an object, and where. `None` if no object of this kind can have this pointer.
    pub(crate) fn site(&self, kind: Kind, object: Pointer) -> Option<Site> {
        let holders = NodeSet::all(self.geometry.nodes);
        match kind.class {
            Class::Homed { .. } => {
                let place = self.geometry.homed_place(object, kind.class)?;
                Some(Site { place, holders })
            }
            Class::Plain(_) => Some(Site { place: Place::everywhere(object, kind.home), holders }),
            _ => Some(self.geometry.buffers().site(object)),
        }
    }

    /// The kind for objects of a homed class, where there are such: others have another home.
    pub(crate) fn homed(&self, class: Class, home: NodeId) -> Kind {
        Kind { class, home, chunks: 1 }
    }

    /// Another generation: what this client thinks is its own may have been taken over.
    pub(crate) fn renew(&self, generation: u64) {
        self.generation.set(generation);
        self.current.set(false);
    }

    /// What `change` comes to, of what this client knows of the heap map and of what is set aside, with no other one of
    /// its own beside it. An earlier one may be nobody's any more who polls it: it is waited for as long as for nodes.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if that one is not polled; then nothing of `change` is done.
    async fn alone<F: Fabric, C: Clock, T>(
        &self,
        group: &Group<F, C>,
        change: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.gate.pass(group.clock(), group.patience().deadline, change).await
    }

    /// Sees to it that what this client holds is its own, as of the operation that asks.
    pub(crate) async fn know_own<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<(), Error> {
        if self.current.get() {
            return Ok(());
        }
        self.alone(group, self.read_current(group)).await
    }

    /// The same for who is [alone](Self::alone).
    async fn read_current<F: Fabric, C: Clock>(&self, group: &Group<F, C>) -> Result<(), Error> {
        for _ in 0..CLAIM_TRIES {
            if self.current.get() {
                return Ok(());
            }
            self.read_map(group).await?;
        }
        Err(Error::Contended)
    }

    /// Lets go of what is neither this slot's any more nor shared, by this map.
    fn keep_own(&self, map: &[u32]) {
        let mut own = vec![false; map.len()];
        // One that was taken over may be shared again by now: it is another one then, whatever this client has of it.
        let are_same = ends_of_shares(map) == ends_of_shares(&self.map.borrow());
        let shared = units(map).filter(|unit| are_same && unit.owner == SHARED && !unit.taken);
        for unit in self.own(map).chain(shared) {
            own[unit.first] = true;
        }
        let is_own = |chunk: usize| own.get(chunk).is_some_and(|own| *own);
        self.keep_chunks(is_own);
        let spare = self.spare.get().filter(|&spare| {
            let chunk = self.geometry.chunk_of(spare);
            chunk < self.geometry.first_chunk() || is_own(chunk)
        });
        self.spare.set(spare);
        // What somebody else had meanwhile is as good as never told.
        let taken: Vec<usize> = self.taken_units(map).map(|unit| unit.first).collect();
        self.taken.borrow_mut().1.retain(|first| taken.contains(first));
    }

    /// Hands nothing out any more of other chunks.
    fn keep_chunks(&self, is_own: impl Fn(usize) -> bool) {
        self.known.borrow_mut().retain(|&(chunk, _)| is_own(chunk));
        self.arenas.borrow_mut().retain(|arena| is_own(arena.chunk));
        self.recycler.keep(&is_own);
        self.awaited.keep(|record| is_own(self.geometry.chunk_of(record)));
        self.stuck.borrow_mut().retain(|&chunk, _| is_own(chunk));
    }

    /// Bytes of each node's memory that are not free: what the pool needs for itself, and chunks
    /// that belong to someone.
    pub(crate) async fn used<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<u64, Error> {
        self.alone(group, self.read_map(group)).await?;
        let owned = self.map.borrow().iter().skip(1).filter(|entry| **entry != 0).count();
        Ok((self.geometry.first_chunk() + owned) as u64 * self.geometry.chunk_bytes)
    }

    /// A buffer, if one came back or is set aside.
    ///
    /// What came back without being reset is for buffers alone: a buffer's lock keeps its place and
    /// only grows, and would be taken for a record's accepted ballot.
    #[inline]
    pub(crate) fn take_buffer(&self, kind: Kind, need: Need) -> Option<Pointer> {
        if !self.current.get() || self.keeps(kind, need) {
            return None;
        }
        self.recycler.take(kind).or_else(|| self.take_new(kind))
    }

    /// The same of what came back, for a write that is over, or notes the buffer as [handed out](Recycler::handed_out),
    /// before anything else happens. `expect` is told where the next one and its entry lie.
    #[inline(always)]
    pub(crate) fn take_buffer_now(
        &self,
        kind: Kind,
        need: Need,
        expect: impl FnOnce(&Site, Option<&Entry>),
    ) -> Option<Taken> {
        if !self.current.get() || self.keeps(kind, need) {
            return None;
        }
        self.recycler.take_now(kind, expect)
    }

    /// A buffer that was taken, with where it lies and where its entry is.
    pub(crate) fn taken(&self, buffer: Pointer) -> Taken {
        self.recycler.taken(buffer)
    }

    /// Takes back what was handed out as good as never used, and of which no node has a word.
    pub(crate) fn take_back_unused(&self, object: Pointer) {
        self.recycler.take_back_unused(object);
    }

    /// Takes in buffers that were retired, if at least so many may be used again in `epoch`, and calls
    /// `each` with each.
    pub(crate) fn reclaim(&self, kind: Kind, epoch: u64, least: usize, each: impl Fn(Pointer)) {
        if self.current.get() {
            self.recycler.reclaim(kind, epoch, least, each);
        }
    }

    /// Whether something comes back when the epoch moves on from `epoch`: objects, seeds, or what was
    /// taken over. What has to be reset at one of the nodes `silent` does not.
    pub(crate) fn waits(&self, epoch: u64, silent: NodeSet) -> bool {
        let seeds = self.seeds_retired.borrow();
        let seeds_wait = self.seeds_noted.borrow().is_some()
            || seeds.as_ref().is_some_and(|(since, _)| since + GRACE > epoch);
        self.recycler.waits(epoch, self.are_reset(silent))
            || silent.is_empty() && seeds_wait
            || self.taking_waits(epoch)
    }

    /// A write of `buffer` was refused by a delete that a majority holds: the buffer comes back in time.
    pub(crate) fn refused(&self, buffer: Pointer, epoch: u64) {
        self.recycler.refused(buffer, epoch);
    }

    /// Whether buckets' records are on their way back, where all that is free is kept back and [few](Self::has_few_records)
    /// are at hand.
    pub(crate) fn awaits_records(&self) -> bool {
        self.is_tight()
            && (self.recycler.to_reset(self.entries_records()) > 0 || self.awaited.are_any())
            && self.has_few_records()
    }

    /// Whether no buckets' records are at hand but the [few](Self::few) that are kept back.
    pub(crate) fn has_few_records(&self) -> bool {
        let records = self.entries_records();
        self.unused(records) + self.recycler.fresh(records) <= self.few(records)
            && self.unread(records).is_empty()
    }

    /// Takes back a buffer that was handed out and that no chain has named since. It is for buffers
    /// again: it may be one that had come back.
    pub(crate) fn take_back(&self, buffer: Pointer) {
        self.recycler.take_back(buffer);
    }

    /// A write of `buffer` to `register` is complete, with this client's own slot there at `after`.
    /// What it had written before under the stamps of `before` comes back in time. `epoch` says
    /// which one it is.
    #[inline]
    pub(crate) fn wrote(
        &self,
        register: &Register,
        buffer: Pointer,
        before: [Stamp; 2],
        epoch: impl Fn() -> u64,
    ) {
        let after = (buffer, register.own_stamp(), None);
        self.recycler.wrote(register, after, (before, None), epoch);
    }

    /// Opens the ledgers of all chunks that are this slot's, for a collection: some at a time, as who is dead may have
    /// left very many. Yields those chunks, and shared ones of which it has a part, or nothing as long as there are more to open.
    pub(crate) async fn take_stock<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Option<Vec<usize>>, Error> {
        // A change under way must not put an older map in this one's place when it is over: somebody
        // may have taken chunks over since.
        self.alone(group, self.take_stock_alone(group)).await
    }

    async fn take_stock_alone<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Option<Vec<usize>>, Error> {
        self.read_map(group).await?;
        let own: Vec<Unit> = self.own(&self.map.borrow()).collect();
        let unknown = own.iter().flat_map(|&Unit { first, chunks, class, .. }| {
            homes(&self.geometry, class).map(move |home| (first, Kind { class, home, chunks }))
        });
        let mut unknown: Vec<(usize, Kind)> =
            unknown.filter(|(chunk, kind)| !self.recycler.is_open(*chunk, kind.home)).collect();
        let are_more = unknown.len() > OPENED_AT_ONCE;
        unknown.truncate(OPENED_AT_ONCE);
        for batch in unknown.chunks(MAX_VERBS) {
            let counters: Vec<Address> = batch
                .iter()
                .map(|(chunk, kind)| self.geometry.counter(*chunk, kind.home))
                .collect();
            let used = read_counters(group, &counters).await?;
            for (&(chunk, kind), counter) in batch.iter().zip(&used) {
                let used = counter.objects();
                if used > self.geometry.objects(kind.class) {
                    return Err(DAMAGED);
                }
                self.recycler.open(chunk, kind, used);
            }
        }
        let own = own.into_iter().map(|unit| unit.first);
        Ok((!are_more).then(|| own.chain(self.recycler.shared()).collect()))
    }

    /// So many registers have room in all chunks that are for some, by the map at hand.
    pub(crate) fn most_registers(&self) -> u64 {
        let map = self.map.borrow();
        let registers = units(&map).filter(|unit| matches!(unit.class, Class::Homed { .. }));
        registers.map(|unit| self.objects(&unit)).sum()
    }

    /// So many objects a unit has room for, of all homes.
    fn objects(&self, unit: &Unit) -> u64 {
        self.geometry.objects(unit.class) * homes(&self.geometry, unit.class).len() as u64
    }

    /// What there was no memory for last.
    pub(crate) fn wanted(&self) -> Option<(Kind, Need)> {
        self.wanted.get()
    }

    fn full(&self, kind: Kind, need: Need) -> Error {
        Error::Full(self.shortage(kind, need))
    }

    fn shortage(&self, kind: Kind, need: Need) -> Shortage {
        // Nobody goes without what was only to be moved.
        if need != Need::Room {
            self.wanted.set(Some((kind.at(NodeId(0)), need)));
            self.is_refused();
        }
        let granules = match kind.class {
            Class::Plain(size) | Class::Lean(size) | Class::Wide(size) => size.granules(),
            Class::Homed { full, .. } => full.granules(),
            Class::Run | Class::RunTail => kind.chunks as u64 * self.geometry.chunk_granules(),
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
    use swarm_core::fabric::{Board, NodeDown, Verb};
    use swarm_core::layout::cell;
    use swarm_core::quorum::{Patience, Session};
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::counter::{Raise, raise_counters};
    use super::*;
    use crate::blocking::block_on;
    use crate::client::{Client, Options};
    use crate::gate::Inside;

    pub(crate) struct Still;

    impl Clock for Still {
        fn now(&self) -> u64 {
            0
        }
    }

    /// Nodes of this process, and who looks on behind each chain that takes effect there: says whether its answer is
    /// lost.
    pub(crate) struct Watched<W> {
        pub(crate) nodes: Loopback,
        pub(crate) watch: W,
    }

    impl<W: Fn(&[Verb<'_>]) -> bool> Fabric for Watched<W> {
        type Board = Box<dyn Board>;
        type Reply<'f>
            = Vec<u64>
        where
            W: 'f;
        type Completion<'f>
            = Ready<Result<Vec<u64>, NodeDown>>
        where
            W: 'f;

        fn nodes(&self) -> usize {
            self.nodes.nodes()
        }

        fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
            let done = self.nodes.post(node, chain);
            if (self.watch)(chain) { ready(Err(NodeDown)) } else { done }
        }
    }

    /// Nodes of this process that leave the chains without an answer of which this says so.
    struct Silent<W> {
        nodes: Loopback,
        is_unanswered: W,
    }

    impl<W: Fn(&[Verb<'_>]) -> bool> Fabric for Silent<W> {
        type Board = Box<dyn Board>;
        type Reply<'f>
            = Vec<u64>
        where
            W: 'f;
        type Completion<'f>
            = Either<Ready<Result<Vec<u64>, NodeDown>>, Pending<Result<Vec<u64>, NodeDown>>>
        where
            W: 'f;

        fn nodes(&self) -> usize {
            self.nodes.nodes()
        }

        fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
            let done = self.nodes.post(node, chain);
            if (self.is_unanswered)(chain) {
                return Either::Right(pending());
            }
            Either::Left(ready(block_on(done).map(|words| words.to_vec())))
        }
    }

    /// As a future that is kept while it sets memory aside.
    pub(crate) fn kept(heap: &Heap) -> Inside<'_> {
        heap.gate.try_enter().expect("nobody else does")
    }

    /// A board on which the epoch is what this says, each time that somebody looks.
    pub(super) struct Says<F>(pub(super) F);

    impl<F: Fn() -> u64> Board for Says<F> {
        fn epoch(&self) -> u64 {
            (self.0)()
        }
        fn enter(&self) -> u64 {
            self.epoch()
        }
        fn remain(&self, _: u64) {}
        fn leave(&self) {}
        fn generation(&self) -> u64 {
            0
        }
        fn renew(&self) {}
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn advance(&self) -> u64 {
            self.epoch()
        }
    }

    /// The heap of the only client of a pool of one node.
    pub(super) fn alone() -> (Group<Loopback, Still>, Heap) {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let fabric = Loopback::new(1, 4 << 17);
        (Group::new(fabric, Still, geometry.format, session), Heap::new(geometry, 0))
    }

    /// Raises the counter at `at` to `to`.
    pub(super) fn raise(group: &Group<Loopback, Still>, at: Address, to: u64) -> Counter {
        let from = block_on(read_counters(group, &[at])).expect("a node")[0];
        let raise = Raise { at, from, to, slot: 0 };
        block_on(raise_counters(group, &[raise])).expect("a node");
        raise.raised()
    }

    /// A buffer's lock lies where a record has its accepted ballot. One that had been locked would
    /// pass for a record that was accepted already.
    #[test]
    fn what_came_back_is_for_buffers_alone() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        let first = block_on(heap.allocate(&group, kind, Need::More)).expect("memory");
        heap.recycler.take_back(first);
        let other = block_on(heap.allocate(&group, kind, Need::More)).expect("memory");
        assert_ne!(other, first);
        assert_eq!(heap.take_buffer(kind, Need::More), Some(first));
        // Nor is one that is taken and not needed, though it is the last that was given out.
        heap.recycler.take_back(other);
        assert_eq!(heap.take_buffer(kind, Need::More), Some(other));
        heap.take_back(other);
        let next = block_on(heap.allocate(&group, kind, Need::More)).expect("memory");
        assert_ne!(next, other);
    }

    /// An insert reads the heap map for its first memory, gets no answer, and is not polled any more.
    #[test]
    fn who_needs_memory_behind_a_kept_future_is_told_so() {
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
        let fabric = Silent { nodes: Loopback::new(1, 4 << 17), is_unanswered };
        let patience = Patience { deadline: 1_000_000, ..Patience::default() };
        let options = Options::default().patience(patience).memory_wait(1_000_000);
        let clock = LoneClock::new(1000);
        let client: Client<_, _> = Client::new(fabric, clock, geometry, session, options);
        let client = client.recycling(Box::new(Says(|| 9)));
        let store = client.blocking();
        {
            let mut kept = pin!(client.put(b"key", b"value"));
            assert!(kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            is_silent.set(false);
            assert_eq!(store.put(b"other", b"value"), Err(Error::Unfinished));
            assert_eq!(store.insert(b"other", b"value"), Err(Error::Unfinished));
            assert_eq!(block_on(client.collect()), Err(Error::Unfinished));
            assert_eq!(block_on(client.usage()), Err(Error::Unfinished));
            assert_eq!(block_on(client.holdings()), Err(Error::Unfinished));
            let Ok(None) = store.get(b"other") else {
                panic!("it takes no memory, and is not there")
            };
            assert_eq!(store.update(b"other", b"value"), Ok(false));
        }
        assert_eq!(store.put(b"other", b"value"), Ok(()));
        assert_eq!(store.get(b"other").expect("a node").as_deref(), Some(&b"value"[..]));
    }
}
