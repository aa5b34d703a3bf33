//! Changes of the heap map: how a client makes chunks its own.
//!
//! One cell holds the map of all chunks. Each change takes a record, and whoever would change the map
//! needs memory for that first: a slot has a few *seeds* for the time before it owns a chunk for
//! records, and each change afterwards sees to the next ones. A change that is lost gives its
//! record back where that can be, so that however many clients come for their first chunks at once,
//! none is left without.

use swarm_core::cell::{self, Birth, Births, CellRef, Proposal, Proposed};
use swarm_core::clock::{Clock, Wait};
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Class, SEED_RECORDS, record};
use swarm_core::quorum::Group;
use swarm_core::words::Pointer;

use super::arena::{Arena, FEW_RECORDS};
use super::counter::{Raise, raise_counters, read_counters};
use super::map::{SHARED, Unit, is_sound, units};
use super::{CLAIM_TRIES, DAMAGED, Heap, Kind, Need};
use crate::error::{Error, Shortage};

/// Chunks claimed at once at most.
const MAX_CLAIM: usize = 8;
/// For so many chunks of a kind that a client has, it claims one more at a time. What it does not use
/// nobody does.
const OWNED_PER_CLAIM: usize = 64;
/// Nanoseconds of one try at most that the pause after it goes by.
const LONGEST_CLAIM: u64 = 200_000;

/// Nothing is born with a heap map's record.
struct NoBirths;

impl Births for NoBirths {
    fn births(&self, _payload: &[u64], _each: &mut dyn FnMut(Birth)) {}
}

impl Heap {
    /// Makes free chunks this slot's, or one all clients', unless the map shows that one already is.
    pub(super) async fn claim<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        need: Need,
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

    /// Changes the map by `edit`, if it is needed as the map stands. Yields whether it was. Whoever
    /// calls this is [alone](Self::alone).
    pub(super) async fn change_map<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        need: Need,
        is_needed: impl Fn(&[u32]) -> bool,
        edit: impl Fn(&mut [u32]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        // By reference, so that it is built once for all changes.
        self.change_map_by(group, need, &is_needed, &edit).await
    }

    async fn change_map_by<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        need: Need,
        is_needed: &dyn Fn(&[u32]) -> bool,
        edit: &dyn Fn(&mut [u32]) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let cell = self.map_cell();
        let mut wait = Wait::new(group.clock().now());
        for attempt in 0..CLAIM_TRIES {
            let begun = group.clock().now();
            if wait.is_over(group.patience().deadline, begun) {
                break;
            }
            let view = self.read_map(group).await?;
            let mut map = self.map.borrow().clone();
            if !is_needed(&map) {
                return Ok(false);
            }
            let change = group.number().ok_or(Error::Spent)?;
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
                Proposal { change, record, payload: &payload, newborns: &[], sparing: true };
            // Records are dear: a slot has few before it owns a chunk for them, and many clients may
            // come for their first chunks at the same time.
            match cell::propose(group, &cell, &view, &proposal, &NoBirths).await? {
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
        (owner, kind): (usize, Kind),
        need: Need,
    ) -> Result<(), Error> {
        let owned = self.own(map).filter(|unit| unit.class == kind.class).count();
        let wanted = match kind.class {
            Class::Run => 1,
            _ if owner == SHARED => 1,
            _ => (owned / OWNED_PER_CLAIM + 1).min(MAX_CLAIM),
        };
        for got in 0..wanted {
            let left = self.count_free(map);
            let first = self.free(map, kind.chunks);
            // More than the first one is for later: nothing from the reserve.
            let kept = self.kept_from(map, kind, if got == 0 { need } else { Need::More });
            let enough = left >= kind.chunks + kept;
            match first.filter(|_| enough) {
                Some(first) => Unit { owner, ..self.unit(kind, first) }.enter_into(map),
                None if got == 0 => return Err(self.full(kind, need)),
                None => break,
            }
        }
        Ok(())
    }

    /// Marks free chunks in `map` as this slot's, for what was missing here, unless it has such. As many as
    /// were just `left` by units that may be for that will do: this takes nothing of the reserve.
    pub(super) fn choose_of(&self, map: &mut [u32], wanted: (Kind, Need), left: &[Unit]) {
        let (kind, need) = wanted;
        let may_pass = |unit: &&Unit| self.may_pass(unit, wanted);
        let left: usize = left.iter().filter(may_pass).map(|unit| unit.chunks).sum();
        let is_there = kind.chunks <= left
            || self.count_free(map) >= kind.chunks + self.kept_from(map, kind, need);
        if is_there
            && self.unread_in(map, kind).is_empty()
            && let Some(first) = self.free(map, kind.chunks)
        {
            self.unit(kind, first).enter_into(map);
        }
    }

    /// Marks a free chunk in `map` as this slot's, for heap-map records, where those run out: whatever
    /// changes the map takes one, so whatever changes it must see to the next ones. Where the reserve is
    /// for others, seeds [come back](super::seeds) one change after the other.
    fn see_to_records(&self, map: &mut [u32], need: Need) {
        let records = self.records();
        let spare = self.count_free(map) > self.kept_from(map, records, need);
        // In chunks that were taken over there may be no room.
        let is_due = match self.records_left() {
            0 => true,
            left => {
                let few = left <= FEW_RECORDS && self.unread_in(map, records).is_empty();
                few && need != Need::Move
            }
        };
        if is_due
            && spare
            && let Some(first) = self.free(map, 1)
        {
            self.unit(records, first).enter_into(map);
        }
    }

    pub(super) fn count_free(&self, map: &[u32]) -> usize {
        map[self.geometry.first_chunk()..].iter().filter(|entry| **entry == 0).count()
    }

    /// The first of so many chunks side by side that belong to nobody, where the fewest lie side by side:
    /// longer runs need the others.
    fn free(&self, map: &[u32], chunks: usize) -> Option<usize> {
        let mut at = self.geometry.first_chunk();
        let gaps = map[at..].chunk_by(|a, b| (*a == 0) == (*b == 0)).map(|some| {
            at += some.len();
            (some.len(), at - some.len())
        });
        gaps.filter(|&(length, at)| length >= chunks && map[at] == 0).min().map(|(_, at)| at)
    }

    /// Chunks for `kind`, as this slot's.
    fn unit(&self, kind: Kind, first: usize) -> Unit {
        let Kind { class, chunks, .. } = kind;
        Unit { first, chunks, owner: self.slot, class, taken: false }
    }

    /// The units that this slot may use.
    pub(super) fn own<'m>(&self, map: &'m [u32]) -> impl Iterator<Item = Unit> + use<'m> {
        let slot = self.slot;
        units(map).filter(move |unit| unit.owner == slot && !unit.taken)
    }

    /// How many units those are, by the map at hand.
    pub(super) fn count_own(&self) -> usize {
        self.own(&self.map.borrow()).count()
    }

    /// What heap-map records are.
    pub(super) fn records(&self) -> Kind {
        self.plain(record::HEADER_WORDS + self.geometry.map_payload())
    }

    /// What the records of buckets with entries are.
    pub(crate) fn entries_records(&self) -> Kind {
        self.plain(record::HEADER_WORDS + self.geometry.bucket_payload)
    }

    /// How many heap-map records this slot can still propose without another chunk.
    fn records_left(&self) -> u64 {
        let records = self.records();
        let arenas = self.arenas.borrow();
        let arena = arenas.iter().find(|arena| arena.kind == records);
        let back = self.seeds_back.borrow().len() + self.recycler.fresh(records);
        // Seeds that were not counted yet do not count: they may be used up.
        SEED_RECORDS
            - self.seeds.get().map_or(SEED_RECORDS, |seeds| seeds.objects().min(SEED_RECORDS))
            + arena.map_or(0, Arena::unused)
            + back as u64
    }

    /// Memory for a heap-map record: from a chunk for them, or a seed.
    async fn map_record<F: Fabric, C: Clock>(&self, group: &Group<F, C>) -> Result<Pointer, Error> {
        let spare = self.spare.take().or_else(|| self.seeds_back.borrow_mut().pop());
        if let Some(pointer) = spare.or_else(|| self.recycler.take_fresh(self.records())) {
            self.recycler.handed_out(pointer);
            return Ok(pointer);
        }
        if let Some(pointer) = self.take_own(group, self.records(), Need::Instead, 0).await? {
            return Ok(pointer);
        }
        let counter = self.geometry.seed_counter(self.slot);
        let seeds = match self.seeds.get() {
            Some(seeds) => seeds,
            None => read_counters(group, &[counter]).await?[0],
        };
        self.seeds.set(Some(seeds));
        let used = seeds.objects();
        if used > SEED_RECORDS {
            return Err(DAMAGED);
        }
        if used == SEED_RECORDS {
            let shortage = self.shortage(self.records(), Need::Instead);
            // By the map that was read for this claim. Where all is kept back, no other client would do better.
            return Err(Error::Full(Shortage { cannot_claim: !self.is_tight(), ..shortage }));
        }
        let raise = Raise { at: counter, from: seeds, to: used + 1, slot: self.slot };
        raise_counters(group, &[raise]).await?;
        self.seeds.set(Some(raise.raised()));
        Ok(self.geometry.seed(self.slot, used))
    }

    /// Keeps a record that no node names, and that is as good as new, for the next claim. Until then
    /// it is not in use: to a collection it would look like garbage, and so would a seed to who looks for
    /// those that come back.
    fn keep(&self, record: Pointer) {
        self.recycler.untouched(record);
        self.notes_not(record);
        self.spare.set(Some(record));
    }

    fn map_cell(&self) -> CellRef {
        CellRef { place: self.geometry.map_cell(), room: self.geometry.map_payload() }
    }

    /// Reads the map. The view is for a change of it. Whoever calls this is [alone](Self::alone).
    pub(super) async fn read_map<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<cell::View, Error> {
        let generation = self.generation.get();
        let committed = cell::read(group, &self.map_cell(), &NoBirths).await?;
        let mut map = vec![0; self.geometry.chunks()];
        for (pair, word) in map.chunks_mut(2).zip(committed.iter()) {
            pair[0] = *word as u32;
            if let Some(second) = pair.get_mut(1) {
                *second = (*word >> 32) as u32;
            }
        }
        if !is_sound(&map, self.geometry.max_clients) {
            return Err(DAMAGED);
        }
        self.see(map);
        self.current.set(generation == self.generation.get());
        Ok(committed.view)
    }

    /// The map's record, once its cell is quiet.
    ///
    /// # Errors
    /// Not all nodes answer, or others go on changing the map.
    pub(crate) async fn quiet_record<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
    ) -> Result<Pointer, swarm_core::error::Error> {
        let map = cell::quiet(group, &self.map_cell(), &NoBirths).await?;
        Ok(map.ok_or(swarm_core::error::Error::Contended)?.view.record())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::fabric::Verb;

    use super::super::tests::{Still, Watched, alone, raise};
    use super::*;
    use crate::blocking::block_on;

    /// While a client reads the map, somebody takes its chunks over, and it is told of another generation. What it
    /// has read is not the map as of that.
    #[test]
    fn a_map_that_was_read_in_an_earlier_generation_says_nothing() {
        let (group, heap) = alone();
        let object = block_on(heap.allocate(&group, heap.plain(16), Need::More)).expect("memory");
        let rival = Heap::new(heap.geometry, 1);
        let is_read = Cell::new(false);
        let watch = |_: &[Verb<'_>]| {
            if !is_read.replace(true) {
                block_on(rival.used(&group)).expect("a node");
                let taken = block_on(rival.take_over(&group, <[Unit]>::to_vec));
                assert_eq!(taken, Ok(true));
                heap.renew(2);
            }
            false
        };
        let watched = Watched { nodes: group.fabric().clone(), watch };
        let watched = Group::new(watched, Still, heap.geometry.format, group.session());
        heap.renew(1);
        block_on(heap.know_own(&watched)).expect("a node");
        assert!(is_read.get());
        let own: Vec<usize> = heap.own(&heap.map.borrow()).map(|unit| unit.first).collect();
        assert!(own.is_empty(), "{own:?} are somebody else's, {object:?} among them");
    }

    /// Chunks that are taken over and given up take records as well as those that are claimed.
    #[test]
    fn whatever_changes_the_map_sees_to_the_next_records() {
        let (group, heap) = alone();
        for change in 0..4 * SEED_RECORDS {
            let changed = block_on(heap.change_map(&group, Need::Instead, |_| true, |_| Ok(())));
            assert_eq!(changed, Ok(true), "change {change}");
        }
    }

    /// Its claims were lost to others', or nobody polled them to their end, until it had no record left for another one.
    /// It called a pool full that is empty, and had keys deleted for it.
    #[test]
    fn who_has_no_record_to_claim_with_does_not_call_the_pool_full() {
        let (group, heap) = alone();
        raise(&group, heap.geometry.seed_counter(0), SEED_RECORDS);
        let refused = |heap: &Heap, kind| loop {
            match block_on(heap.allocate(&group, kind, Need::More)) {
                Ok(_) => {}
                Err(Error::Full(shortage)) => break shortage,
                Err(error) => panic!("{error}"),
            }
        };
        let told = refused(&heap, heap.plain(16));
        assert!(told.cannot_claim, "{told:?}");
        // Another client can, until there is nothing left but what is kept back.
        let rival = Heap::new(heap.geometry, 1);
        let told = refused(&rival, rival.buffer(10_000, None));
        assert!(!told.cannot_claim, "{told:?}");
        // It would do no better then.
        let told = refused(&heap, heap.plain(16));
        assert!(!told.cannot_claim, "{told:?}");
    }

    /// One that was taken over may have none left, which shows only when it is opened.
    #[test]
    fn a_chunk_without_records_is_not_counted_on() {
        let (group, heap) = alone();
        let (records, chunk) = (heap.records(), heap.geometry.chunks() - 1);
        let in_a_chunk = heap.geometry.objects(records.class);
        raise(&group, heap.geometry.counter(chunk, records.home), in_a_chunk);
        block_on(heap.allocate(&group, records, Need::More)).expect("memory");
        heap.seeds.set(Some(raise(&group, heap.geometry.seed_counter(0), SEED_RECORDS)));
        for change in 0..2 * in_a_chunk {
            let take_over = |map: &mut [u32]| {
                if heap.records_left() == FEW_RECORDS {
                    heap.unit(records, chunk).enter_into(map);
                }
                Ok(())
            };
            let changed = block_on(heap.change_map(&group, Need::Instead, |_| true, take_over));
            assert_eq!(changed, Ok(true), "change {change}");
        }
    }

    /// Nothing names it, and it is no garbage: it would be handed out beside the claim that takes it.
    #[test]
    fn a_record_that_is_kept_for_the_next_claim_is_no_garbage() {
        let (group, heap) = alone();
        let records = heap.records();
        let allocate = || block_on(heap.allocate(&group, records, Need::More)).expect("memory");
        let (kept, lost) = (allocate(), allocate());
        heap.keep(kept);
        let chunk = heap.geometry.chunk_of(kept);
        heap.recycler.begin();
        let garbage = heap.recycler.unnamed(chunk);
        let is_garbage = |record| garbage.iter().any(|unnamed| unnamed.pointer == record);
        assert!(is_garbage(lost));
        assert!(!is_garbage(kept));
        assert_eq!(block_on(heap.map_record(&group)).ok(), Some(kept));
    }
}
