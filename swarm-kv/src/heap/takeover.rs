//! Chunks that go from one slot to another.
//!
//! A chunk stays its slot's, whoever holds the slot, until another client *takes it over*: because the
//! slot has no holder, or because that one has more than it needs. Nobody has to agree, since one that
//! does nothing cannot. It all rests on this: *nobody uses a chunk that is not its own by a map that it
//! read in the generation it is in*. Whoever takes a chunk over says so in the map, begins another
//! generation, and uses the chunk only two epochs later: by then every operation that began in an
//! earlier generation is over, and whoever begins one reads the map before it hands anything out.
//!
//! Of what a chunk holds its new owner knows nothing: a collection finds out.
//!
//! A chunk in which nothing is in use goes back to the map, for whatever size of objects somebody
//! needs next. It is set to zeros for that, at every node: words that mean something lie elsewhere
//! there.

use std::cell::RefCell;
use std::collections::BTreeMap;

use swarm_core::clock::Clock;
use swarm_core::epoch::{Board, GRACE};
use swarm_core::fabric::{Address, Fabric, MAX_VERBS, Verb};
use swarm_core::group::Group;
use swarm_core::words::{GRANULE_WORDS, Pointer};

use super::map::{Unit, units};
use super::{Heap, Need};
use crate::error::Error;

/// Words that one WRITE sets to zeros.
const PIECE: usize = 8192;

impl Heap {
    /// Takes all units over whose slots have no holder. Yields whether there are any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_vacant<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
    ) -> Result<bool, Error> {
        self.take_over(group, |units| {
            let vacant = |unit: &&Unit| unit.owner != self.slot && !board.is_attached(unit.owner);
            units.iter().filter(vacant).copied().collect()
        })
        .await
    }

    /// Takes half of what the client has that has the most: `alike`, of what was missing here last, or
    /// of all. Yields whether there is any.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record.
    pub(crate) async fn take_share<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        alike: bool,
    ) -> Result<bool, Error> {
        let wanted = self.wanted.get().filter(|_| alike);
        let fits = |unit: &&Unit| wanted.is_none_or(|(kind, _)| unit.is_for(kind));
        self.take_over(group, |units| self.richest(units.iter().filter(fits).copied())).await
    }

    /// Half of the units of the client that has the most of these.
    fn richest(&self, units: impl Iterator<Item = Unit>) -> Vec<Unit> {
        let mut holders = BTreeMap::<usize, Vec<Unit>>::new();
        for unit in units.filter(|unit| unit.owner != self.slot) {
            holders.entry(unit.owner).or_default().push(unit);
        }
        let mut most = holders.into_values().max_by_key(Vec::len).unwrap_or_default();
        most.truncate(most.len().div_ceil(2));
        most
    }

    async fn take_over<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        choose: impl Fn(&[Unit]) -> Vec<Unit>,
    ) -> Result<bool, Error> {
        let _inside = self.gate.enter().await;
        let chosen = |map: &[u32]| choose(&units(map).collect::<Vec<_>>());
        let take = |map: &mut [u32]| {
            for unit in chosen(map) {
                Unit { owner: self.slot, taken: true, ..unit }.enter_into(map);
            }
            Ok(())
        };
        self.change_map(group, |map| !chosen(map).is_empty(), take).await
    }

    /// Tells everyone of what the map at hand shows as taken over by this slot. Whoever held the slot
    /// before may have died in front of that.
    pub(crate) fn announce(&self, board: &impl Board) {
        let map = self.map.borrow();
        let taken: Vec<usize> = self.taken_units(&map).map(|unit| unit.first).collect();
        let mut known = self.taken.borrow_mut();
        if taken.iter().any(|first| !known.1.contains(first)) {
            board.renew();
            *known = (board.latest(), taken);
        }
    }

    /// Whether units were taken over and are not in use yet.
    pub(crate) fn is_taking(&self) -> bool {
        !self.taken.borrow().1.is_empty()
    }

    /// Whether what was taken over waits for the epoch to move on from `epoch`.
    pub(super) fn taking_waits(&self, epoch: u64) -> bool {
        let taken = self.taken.borrow();
        !taken.1.is_empty() && taken.0 + GRACE > epoch
    }

    /// Makes what was taken over this slot's, once everyone has heard of it. Yields whether anything
    /// was.
    ///
    /// # Errors
    /// Too few nodes that answer; no memory for the map's record. What was taken over stays so.
    pub(crate) async fn make_own<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
    ) -> Result<bool, Error> {
        if !self.is_taking() || self.taking_waits(board.epoch()) {
            return Ok(false);
        }
        let _inside = self.gate.enter().await;
        let due = |map: &[u32]| -> Vec<Unit> {
            let taken = self.taken.borrow();
            self.taken_units(map).filter(|unit| taken.1.contains(&unit.first)).collect()
        };
        let settle = |map: &mut [u32]| {
            for unit in due(map) {
                self.pass_on(board, &unit);
                Unit { taken: false, ..unit }.enter_into(map);
            }
            Ok(())
        };
        self.change_map(group, |map| !due(map).is_empty(), settle).await
    }

    /// Leaves chunks in which nothing is in use to whoever needs some, this client before all others for
    /// what was missing here last. Yields whether there are any.
    ///
    /// First as if this slot had taken them over: who is interrupted in the middle leaves them so.
    ///
    /// # Errors
    /// Not all nodes answer; no memory for the map's record. Nothing is lost by it.
    pub(crate) async fn leave_empty<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
    ) -> Result<bool, Error> {
        let _inside = self.gate.enter().await;
        let wanted = self.wanted.get();
        // Who may still hold what was retired since may still write there.
        let epoch = board.epoch();
        let left = RefCell::new(Vec::<Unit>::new());
        let empty = |map: &[u32]| -> Vec<Unit> {
            // Of what it was about to leave when somebody else changed the map it knows nothing any more.
            let forgotten = |unit: &Unit| left.borrow().iter().any(|left| left.first == unit.first);
            let is_empty =
                |unit: &Unit| forgotten(unit) || self.recycler.is_empty(unit.first, epoch);
            // Of what is missing there is none.
            let other = |unit: &Unit| !wanted.is_some_and(|(kind, _)| unit.is_for(kind));
            let units = self.own(map).filter(other).filter(is_empty);
            let (records, rest): (Vec<Unit>, Vec<Unit>) =
                units.partition(|unit| unit.class == self.records().class);
            // It takes records for the map to leave the rest.
            rest.into_iter().chain(records.into_iter().skip(1)).collect()
        };
        let set_apart = |map: &mut [u32]| {
            let units = empty(map);
            left.replace(units);
            for unit in left.borrow().iter() {
                self.keep_chunks(|chunk| chunk != unit.first);
                Unit { taken: true, ..*unit }.enter_into(map);
            }
            Ok(())
        };
        if !self.change_map(group, |map| !empty(map).is_empty(), set_apart).await? {
            return Ok(false);
        }
        let left = left.into_inner();
        for unit in &left {
            self.clear(group, unit).await?;
            self.pass_on(board, unit);
        }
        let is_left = |unit: &Unit| left.iter().any(|left| left.first == unit.first);
        let apart = |map: &[u32]| -> Vec<Unit> { self.taken_units(map).filter(is_left).collect() };
        let leave = |map: &mut [u32]| {
            let apart = apart(map);
            apart.iter().for_each(|unit| unit.take_out_of(map));
            if let Some(wanted) = wanted {
                self.choose_of(map, wanted, &apart);
            }
            Ok(())
        };
        let are_left = self.change_map(group, |map| !apart(map).is_empty(), leave).await?;
        if wanted.is_some_and(|(kind, need)| need == Need::More && !self.unread(kind).is_empty()) {
            // As if it had claimed that.
            self.short.set(false);
        }
        Ok(are_left)
    }

    /// Units that this slot has taken over and may not use yet.
    pub(super) fn taken_units<'m>(&self, map: &'m [u32]) -> impl Iterator<Item = Unit> + use<'m> {
        let slot = self.slot;
        units(map).filter(move |unit| unit.owner == slot && unit.taken)
    }

    /// Sets all of a unit to zeros, at every node.
    async fn clear<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        unit: &Unit,
    ) -> Result<(), Error> {
        let words = self.geometry.chunk_granules() as usize * GRANULE_WORDS;
        let zeros = vec![0; words.min(PIECE)];
        let pieces: Vec<usize> =
            (unit.first * words..(unit.first + unit.chunks) * words).step_by(zeros.len()).collect();
        for pieces in pieces.chunks(MAX_VERBS) {
            let verbs: Vec<Verb<'_>> = pieces
                .iter()
                .map(|&at| Verb::Write { at: Address(at as u64), head: &zeros, tail: &[] })
                .collect();
            group.everywhere(|node| group.fabric().post(node, &verbs), |_, _| {}).await?;
        }
        Ok(())
    }

    fn pass_on(&self, board: &impl Board, unit: &Unit) {
        let granules = self.geometry.chunk_granules();
        let first = Pointer(unit.first as u64 * granules);
        board.passed_on(first, unit.chunks as u64 * granules);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Need;
    use super::super::tests::{Says, alone};
    use crate::blocking::block_on;
    use crate::error::Error;

    /// Where the reserve is used up, one chunk that comes to be free is none yet for what the store would
    /// hold more. Who gives it up gets it all the same, runs apart: a search would go on otherwise until it has filled
    /// the reserve.
    #[test]
    fn who_leaves_a_chunk_is_served_first() {
        // Of the longer ones a chunk has so few that they would be kept for updates.
        for words in [100, 2500] {
            let (group, heap) = alone();
            let (kind, other, board) = (heap.plain(words), heap.plain(16), Says(|| 9));
            let allocate = |kind, need| block_on(heap.allocate(&group, kind, need));
            let idle = allocate(other, Need::More).expect("memory");
            while allocate(kind, Need::Move).is_ok() {}
            heap.recycler.untouched(idle);
            assert!(matches!(allocate(kind, Need::More), Err(Error::Full(_))), "{words} words");
            assert_eq!(block_on(heap.leave_empty(&group, &board)), Ok(true), "{words} words");
            assert!(allocate(kind, Need::More).is_ok(), "{words} words");
        }
    }

    /// Each change of the map takes a record, and each life of a client changes it. Chunks of records that
    /// came back are for others as well, but for one.
    #[test]
    fn chunks_of_map_records_are_left_too() {
        let (group, heap) = alone();
        let (kind, board) = (heap.records(), Says(|| 9));
        let in_a_chunk = heap.geometry.objects(kind.class);
        for _ in 0..3 * in_a_chunk {
            block_on(heap.allocate(&group, kind, Need::Instead)).expect("memory");
        }
        let chunks: Vec<usize> = heap.own(&heap.map.borrow()).map(|unit| unit.first).collect();
        assert!(chunks.len() > 3, "{chunks:?}");
        // All come back but the one that is in use.
        let used = block_on(heap.quiet_record(&group)).expect("nobody changes it");
        for (chunk, index) in
            chunks.iter().flat_map(|chunk| (0..in_a_chunk).map(move |i| (chunk, i)))
        {
            let record = heap.geometry.object(*chunk, kind.class, kind.home, index);
            if record != used {
                heap.recycler.untouched(record);
            }
        }
        assert_eq!(block_on(heap.leave_empty(&group, &board)), Ok(true));
        let left = heap.count_own();
        assert!(left < chunks.len(), "{left} of {}", chunks.len());
        assert_eq!(block_on(heap.leave_empty(&group, &board)), Ok(false), "the last one is kept");
        assert_eq!(heap.count_own(), left);
    }
}
