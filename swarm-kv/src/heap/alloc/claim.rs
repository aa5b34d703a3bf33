//! Changes of the chunk map: how a client claims chunks.
//!
//! One cell holds the map of all chunks. Each change takes a record, so a client needs memory
//! before it can claim any. Each slot has a few *bootstrap records* for the time before it owns a
//! chunk for records; every change after that provides the next records. A lost change gives its
//! record back where possible. So however many clients make their first claims at once, each has a
//! record.

use swarm_core::cell::{self, CellRef, CreatedPart, CreatedParts, Proposal, Proposed};
use swarm_core::clock::{Clock, Wait};
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::{BOOTSTRAP_RECORDS, ChunkClass, record};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::Group;
use swarm_core::words::Pointer;

use crate::error::{Error, Shortage};
use crate::heap::alloc::active_chunk::{ActiveChunk, FEW_RECORDS};
use crate::heap::alloc::high_water::{Raise, fill_counters, raise_counters, read_counters};
use crate::heap::chunk_map::{Extent, SHARED, extents, is_sound};
use crate::heap::{CLAIM_TRIES, Heap, ObjectKind, Purpose};

/// Chunks claimed at once at most.
const MAX_CLAIM: usize = 8;
/// For this many chunks of a kind that a client owns, it claims one more at a time. No other client
/// can use what it leaves unused.
const OWNED_PER_CLAIM: usize = 64;
/// The longest time of a try, in nanoseconds, that counts for the pause after it.
const LONGEST_CLAIM: u64 = 200_000;

/// No object is created together with a chunk-map record.
struct NothingCreated;

impl CreatedParts for NothingCreated {
    fn created_parts(&self, _payload: &[u64], _each: &mut dyn FnMut(CreatedPart)) {}
}

impl Heap {
    /// Claims free chunks for this slot, or one to be shared, unless the map shows that there is
    /// one already.
    pub(in crate::heap) async fn claim<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        need: Purpose,
    ) -> Result<(), Error> {
        let owner = if self.shares(kind) { SHARED } else { self.slot };
        let is_needed = |map: &[u32]| {
            self.unread_in(map, kind).is_empty()
                && (owner != SHARED || self.shared_in(map, kind).is_empty())
        };
        let choose = |map: &mut [u32]| self.choose(map, (owner, kind), need);
        let claimed = self.change_map(group, need, is_needed, choose).await;
        let free = self.count_free(&self.map.borrow());
        self.growth.goes_on(self.count_own(), (free, self.geometry.chunks()));
        claimed.map(drop)
    }

    /// Changes the map by `edit`, if `is_needed` holds for the map as it is. Returns whether it
    /// did. The caller has [exclusive access](Self::alone).
    pub(in crate::heap) async fn change_map<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        need: Purpose,
        is_needed: impl Fn(&[u32]) -> bool,
        edit: impl Fn(&mut [u32]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        // By reference, so that the code is generated once for all changes.
        self.change_map_by(group, need, &is_needed, &edit).await
    }

    async fn change_map_by<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        need: Purpose,
        is_needed: &dyn Fn(&[u32]) -> bool,
        edit: &dyn Fn(&mut [u32]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let cell = self.map_cell();
        let mut wait = Wait::new(group.clock().now());
        for attempt in 0..CLAIM_TRIES {
            let begun = group.clock().now();
            if wait.is_over(group.timeouts().deadline, begun) {
                break;
            }
            let view = self.read_map(group).await?;
            let mut map = self.map.borrow().clone();
            if !is_needed(&map) {
                return Ok(false);
            }
            let change = group.number().ok_or(Error::NumbersExhausted)?;
            let record = self.map_record(group).await?;
            if let Err(error) = edit(&mut map) {
                self.keep(record);
                return Err(error);
            }
            self.see_to_records(&mut map, need);
            let payload: Vec<u64> = map
                .chunks(2)
                .map(|pair| u64::from(pair[0]) | (u64::from(*pair.get(1).unwrap_or(&0)) << 32))
                .collect();
            let proposal =
                Proposal { change, record, payload: &payload, initial_writes: &[], sparing: true };
            // Sparing, as records are few: a slot has little before it owns a chunk for them, and
            // many clients may make their first claims at once.
            match cell::propose(group, &cell, &view, &proposal, &NothingCreated).await? {
                Proposed::Committed(_) => {
                    self.see(map);
                    return Ok(true);
                }
                Proposed::Lost { unused: true } => self.keep(record),
                Proposed::Lost { unused: false } => {}
            }
            let took = group.clock().now().saturating_sub(begun).clamp(1, LONGEST_CLAIM);
            group.pause(group.dice(attempt as u64) % (took << (attempt + 1).min(6))).await;
        }
        Err(Error::Contended)
    }

    /// Marks free chunks in `map` as this owner's, for `kind`.
    fn choose(
        &self,
        map: &mut [u32],
        (owner, kind): (usize, ObjectKind),
        need: Purpose,
    ) -> Result<(), Error> {
        let owned = self.own(map).filter(|extent| extent.class == kind.class).count();
        let wanted = match kind.class {
            ChunkClass::Large => 1,
            _ if owner == SHARED => 1,
            _ => (owned / OWNED_PER_CLAIM + 1).min(MAX_CLAIM),
        };
        for got in 0..wanted {
            let left = self.count_free(map);
            let first = self.free(map, kind.chunks);
            // Only the first chunk may come from the reserve; the others are for later.
            let kept = self.kept_from(map, kind, if got == 0 { need } else { Purpose::Insert });
            let enough = left >= kind.chunks + kept;
            match first.filter(|_| enough) {
                Some(first) => Extent { owner, ..self.extent(kind, first) }.enter_into(map),
                None if got == 0 => return Err(self.full(kind, need)),
                None => break,
            }
        }
        Ok(())
    }

    /// Marks free chunks in `map` as this slot's, for the allocation that failed, unless it has
    /// such chunks. Units in `left` were just released: if those that may serve this purpose are
    /// large enough, nothing is taken from the reserve.
    pub(in crate::heap) fn choose_of(
        &self,
        map: &mut [u32],
        wanted: (ObjectKind, Purpose),
        left: &[Extent],
    ) {
        let (kind, need) = wanted;
        let may_pass = |extent: &&Extent| self.may_pass(extent, wanted);
        let left: usize = left.iter().filter(may_pass).map(|extent| extent.chunks).sum();
        let is_there = kind.chunks <= left
            || self.count_free(map) >= kind.chunks + self.kept_from(map, kind, need);
        if is_there
            && self.unread_in(map, kind).is_empty()
            && let Some(first) = self.free(map, kind.chunks)
        {
            self.extent(kind, first).enter_into(map);
        }
    }

    /// Marks a free chunk in `map` as this slot's, for chunk-map records, where those run out. Each
    /// change of the map takes a record, so each change must provide the next ones. Where the
    /// reserve is for others, bootstrap records are [reclaimed](crate::heap::alloc::bootstrap), one
    /// change after the other.
    fn see_to_records(&self, map: &mut [u32], need: Purpose) {
        let records = self.records();
        let spare = self.count_free(map) > self.kept_from(map, records, need);
        // Chunks that were taken over may have no room.
        let is_due = match self.records_left() {
            0 => true,
            left => {
                let few = left <= FEW_RECORDS && self.unread_in(map, records).is_empty();
                few && need != Purpose::Relocate
            }
        };
        if is_due
            && spare
            && let Some(first) = self.free(map, 1)
        {
            self.extent(records, first).enter_into(map);
        }
    }

    /// Chunks that are nobody's, and all that there are, by the map at hand.
    pub(crate) fn free_chunks(&self) -> (u64, u64) {
        let all = self.geometry.chunks() - self.geometry.first_chunk();
        (self.count_free(&self.map.borrow()) as u64, all as u64)
    }

    pub(in crate::heap) fn count_free(&self, map: &[u32]) -> usize {
        map[self.geometry.first_chunk()..].iter().filter(|entry| **entry == 0).count()
    }

    /// Returns the first of `chunks` adjacent free chunks, from the smallest gap that fits: longer
    /// runs need the larger ones.
    fn free(&self, map: &[u32], chunks: usize) -> Option<usize> {
        let mut at = self.geometry.first_chunk();
        let gaps = map[at..].chunk_by(|a, b| (*a == 0) == (*b == 0)).map(|some| {
            at += some.len();
            (some.len(), at - some.len())
        });
        gaps.filter(|&(length, at)| length >= chunks && map[at] == 0).min().map(|(_, at)| at)
    }

    /// Returns a unit of this slot for `kind`.
    fn extent(&self, kind: ObjectKind, first: usize) -> Extent {
        let ObjectKind { class, chunks, .. } = kind;
        Extent { first, chunks, owner: self.slot, class, taken: false }
    }

    /// Returns the units that this slot may use: units that were taken over are not among them
    /// (E9).
    pub(in crate::heap) fn own<'m>(
        &self,
        map: &'m [u32],
    ) -> impl Iterator<Item = Extent> + use<'m> {
        let slot = self.slot;
        extents(map).filter(move |extent| extent.owner == slot && !extent.taken)
    }

    /// Returns how many units those are, by the map as last read.
    pub(in crate::heap) fn count_own(&self) -> usize {
        self.own(&self.map.borrow()).count()
    }

    /// Returns the kind of chunk-map records, which are never moved.
    pub(crate) fn records_of_the_map(&self) -> ObjectKind {
        self.records()
    }

    /// Returns the kind of chunk-map records.
    pub(in crate::heap) fn records(&self) -> ObjectKind {
        self.plain(record::HEADER_WORDS + self.geometry.map_payload())
    }

    /// Returns the kind of records of buckets that have entries.
    pub(crate) fn entries_records(&self) -> ObjectKind {
        self.plain(record::HEADER_WORDS + self.geometry.bucket_payload)
    }

    /// Returns how many chunk-map records this slot can still propose without another chunk.
    fn records_left(&self) -> u64 {
        let records = self.records();
        let active_chunks = self.active_chunks.borrow();
        let active = active_chunks.iter().find(|active| active.kind == records);
        let back = self.bootstrap_free.borrow().len() + self.reclaimer.fresh(records);
        // Bootstrap records count only once their mark was read: they may be used up.
        BOOTSTRAP_RECORDS
            - self.bootstrap_records.get().map_or(BOOTSTRAP_RECORDS, |bootstrap_records| {
                bootstrap_records.objects().min(BOOTSTRAP_RECORDS)
            })
            + active.map_or(0, ActiveChunk::unused)
            + back as u64
    }

    /// Takes memory for a chunk-map record: from a chunk for them, or a bootstrap record.
    async fn map_record<F: Fabric, C: Clock>(&self, group: &Group<F, C>) -> Result<Pointer, Error> {
        let spare = self.spare.take().or_else(|| self.bootstrap_free.borrow_mut().pop());
        if let Some(pointer) = spare.or_else(|| self.reclaimer.take_fresh(self.records())) {
            self.reclaimer.handed_out(pointer);
            return Ok(pointer);
        }
        if let Some(pointer) = self.take_own(group, self.records(), Purpose::Replace, 0).await? {
            return Ok(pointer);
        }
        let counter = self.geometry.bootstrap_counter(self.slot);
        let bootstrap_records = match self.bootstrap_records.get() {
            Some(bootstrap_records) => bootstrap_records,
            None => read_counters(group, &[counter]).await?[0],
        };
        self.bootstrap_records.set(Some(bootstrap_records));
        let used = bootstrap_records.objects();
        if used > BOOTSTRAP_RECORDS {
            return Err(Error::DAMAGED);
        }
        if used == BOOTSTRAP_RECORDS {
            let shortage = self.shortage(self.records(), Purpose::Replace);
            // By the map that was read for this claim. Where all free chunks are reserved, no other
            // client could claim either.
            return Err(Error::Full(Shortage { cannot_claim: !self.is_tight(), ..shortage }));
        }
        let raise = Raise { at: counter, from: bootstrap_records, to: used + 1, slot: self.slot };
        raise_counters(group, &[raise]).await?;
        self.bootstrap_records.set(Some(raise.raised()));
        Ok(self.geometry.bootstrap_record(self.slot, used))
    }

    /// Keeps a record that no node names, and that is as if never used, for the next claim. Until
    /// then it counts as free (E5): otherwise a GC cycle would take it for garbage, and so would
    /// the reclamation of bootstrap records.
    fn keep(&self, record: Pointer) {
        self.reclaimer.untouched(record);
        self.notes_not(record);
        self.spare.set(Some(record));
    }

    fn map_cell(&self) -> CellRef {
        CellRef::new(self.geometry.map_cell(), self.geometry.map_payload())
    }

    /// Reads the map, and returns the view for a change of it. The caller has [exclusive
    /// access](Self::alone). E9: the map counts as read only in the generation in which the READ
    /// began.
    pub(in crate::heap) async fn read_map<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<cell::View, Error> {
        let generation = self.generation.get();
        let committed = cell::read(group, &self.map_cell(), &NothingCreated).await?;
        self.see(self.decode_map(&committed)?);
        self.current.set(generation == self.generation.get());
        Ok(committed.view)
    }

    /// Returns the map of a record's payload.
    fn decode_map(&self, payload: &[u64]) -> Result<Vec<u32>, Error> {
        let mut map = vec![0; self.geometry.chunks()];
        for (pair, word) in map.chunks_mut(2).zip(payload) {
            pair[0] = *word as u32;
            if let Some(second) = pair.get_mut(1) {
                *second = (*word >> 32) as u32;
            }
        }
        if is_sound(&map, self.geometry.max_clients) { Ok(map) } else { Err(Error::DAMAGED) }
    }

    /// Puts the chunk map, and all high-water marks, at `node`, which takes a lost one's place and
    /// which `joining` posts to. After all else that is filled: until then the client that fills
    /// may itself claim chunks and raise marks.
    ///
    /// # Errors
    /// Too few nodes that answer, or the new one does not; damaged memory.
    pub(crate) async fn fill<F: Fabric, N: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        joining: (&N, NodeId),
    ) -> Result<(), Error> {
        let committed = cell::fill(group, &self.map_cell(), &NothingCreated, joining).await?;
        let map = self.decode_map(&committed)?;
        // A run's other chunks have no marks: the object lies there.
        let chunks: Vec<Address> =
            extents(&map).map(|extent| self.geometry.counter(extent.first, NodeId(0))).collect();
        for chunks in chunks.chunks(MAX_VERBS) {
            fill_counters(group, joining, chunks, self.geometry.nodes).await?;
        }
        let bootstrap_records =
            (0..self.geometry.max_clients).map(|slot| self.geometry.bootstrap_counter(slot));
        for bootstrap_records in bootstrap_records.collect::<Vec<_>>().chunks(MAX_VERBS) {
            fill_counters(group, joining, bootstrap_records, 1).await?;
        }
        Ok(())
    }

    /// Returns the map's record, once its cell has converged (E6).
    ///
    /// # Errors
    /// If not all nodes answer, or other clients go on changing the map.
    pub(crate) async fn quiet_record<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Pointer, swarm_core::error::Error> {
        let map = cell::converged(group, &self.map_cell(), &NothingCreated).await?;
        Ok(map.ok_or(swarm_core::error::Error::Contended)?.view.record())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::fabric::Verb;

    use super::*;
    use crate::heap::tests::{Watched, alone, raise, still, use_up_bootstrap_records};
    use crate::runtime::block_on::block_on;

    /// While a client reads the map, another client takes its chunks over, and the reader observes
    /// a new generation. What it has read is not the map of that generation.
    #[test]
    fn a_map_that_was_read_in_an_earlier_generation_says_nothing() {
        let (group, heap) = alone();
        // Not of a chunk that clients share.
        heap.has_had_all();
        let object =
            block_on(heap.allocate(&group, heap.plain(16), Purpose::Insert)).expect("memory");
        let own =
            || heap.own(&heap.map.borrow()).map(|extent| extent.first).collect::<Vec<usize>>();
        assert!(!own().is_empty());
        let rival = Heap::new(heap.geometry, 1);
        let is_read = Cell::new(false);
        let watch = |_: &[Verb<'_>]| {
            if !is_read.replace(true) {
                block_on(rival.used(&group)).expect("a node");
                let taken = block_on(rival.take_over(&group, <[Extent]>::to_vec));
                assert_eq!(taken, Ok(true));
                heap.renew(2);
            }
            false
        };
        let watched = Watched::new(group.fabric().clone(), watch);
        let watched = Group::new(watched, still(), heap.geometry.format, group.session());
        heap.renew(1);
        block_on(heap.know_own(&watched)).expect("a node");
        assert!(is_read.get());
        let own = own();
        assert!(own.is_empty(), "{own:?} are somebody else's, {object:?} among them");
    }

    /// Takeovers and releases take records as well as claims.
    #[test]
    fn whatever_changes_the_map_sees_to_the_next_records() {
        let (group, heap) = alone();
        for change in 0..4 * BOOTSTRAP_RECORDS {
            let changed = block_on(heap.change_map(&group, Purpose::Replace, |_| true, |_| Ok(())));
            assert_eq!(changed, Ok(true), "change {change}");
        }
    }

    /// A client's claims were lost to others' claims, or their futures were dropped, until it had
    /// no record left for another claim. It reported an empty pool as full, and so had keys
    /// deleted.
    #[test]
    fn a_client_without_a_record_to_claim_with_does_not_call_the_pool_full() {
        let (group, heap) = alone();
        use_up_bootstrap_records(&group, &heap.geometry, 0);
        let refused = |heap: &Heap, kind| loop {
            match block_on(heap.allocate(&group, kind, Purpose::Insert)) {
                Ok(_) => {}
                Err(Error::Full(shortage)) => break shortage,
                Err(error) => panic!("{error}"),
            }
        };
        let outcome = refused(&heap, heap.plain(16));
        assert!(outcome.cannot_claim, "{outcome:?}");
        // Another client can claim, until nothing is left but the reserve.
        let rival = Heap::new(heap.geometry, 1);
        let outcome = refused(&rival, rival.buffer(10_000, None));
        assert!(!outcome.cannot_claim, "{outcome:?}");
        // Then the other client could claim no more either.
        let outcome = refused(&heap, heap.plain(16));
        assert!(!outcome.cannot_claim, "{outcome:?}");
    }

    /// A chunk that was taken over may have no records left, which shows only when it is opened.
    #[test]
    fn a_chunk_without_records_is_not_counted_on() {
        let (group, heap) = alone();
        let (records, chunk) = (heap.records(), heap.geometry.chunks() - 1);
        let in_a_chunk = heap.geometry.objects(records.class);
        raise(&group, heap.geometry.counter(chunk, records.home), in_a_chunk);
        block_on(heap.allocate(&group, records, Purpose::Insert)).expect("memory");
        heap.bootstrap_records.set(Some(raise(
            &group,
            heap.geometry.bootstrap_counter(0),
            BOOTSTRAP_RECORDS,
        )));
        for change in 0..2 * in_a_chunk {
            let take_over = |map: &mut [u32]| {
                if heap.records_left() == FEW_RECORDS {
                    heap.extent(records, chunk).enter_into(map);
                }
                Ok(())
            };
            let changed = block_on(heap.change_map(&group, Purpose::Replace, |_| true, take_over));
            assert_eq!(changed, Ok(true), "change {change}");
        }
    }

    /// Nothing names the record, yet it is no garbage: it would be handed out a second time, beside
    /// the claim that takes it.
    #[test]
    fn a_record_that_is_kept_for_the_next_claim_is_no_garbage() {
        let (group, heap) = alone();
        let records = heap.records();
        let allocate =
            || block_on(heap.allocate(&group, records, Purpose::Insert)).expect("memory");
        let (kept, lost) = (allocate(), allocate());
        heap.keep(kept);
        let chunk = heap.geometry.chunk_of(kept);
        heap.reclaimer.begin();
        let garbage = heap.reclaimer.all_unreachable(chunk);
        let is_garbage = |record| garbage.iter().any(|unreachable| unreachable.pointer == record);
        assert!(is_garbage(lost));
        assert!(!is_garbage(kept));
        assert_eq!(block_on(heap.map_record(&group)).ok(), Some(kept));
    }
}
