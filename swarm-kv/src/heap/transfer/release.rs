//! Releases empty chunks to the chunk map, for objects of any size.
//!
//! **Invariant:** a chunk changes its class only when it is empty and was zeroed at every node
//! (E10): another class has words with a meaning elsewhere.

use std::cell::RefCell;
use std::collections::HashSet;

use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, Fabric, MAX_VERBS, Verb};
use swarm_core::layout::ChunkClass;
use swarm_core::node::Address;
use swarm_core::quorum::Group;
use swarm_core::words::GRANULE_WORDS;

use crate::error::Error;
use crate::heap::alloc::high_water::homes;
use crate::heap::chunk_map::Extent;
use crate::heap::{Heap, ObjectKind, Purpose};

/// Words that one WRITE zeroes.
const PIECE: usize = 8192;

/// Chunks that one change releases for a client that needs none itself: all clients' memory waits while they are zeroed.
const AT_ONCE: usize = 64;

impl Heap {
    /// Releases chunks in which nothing is in use; this client may claim some of them first for
    /// `wanted`. Returns whether there are any.
    ///
    /// At first the chunks are marked as if this slot had taken them over: a client that is
    /// interrupted in the middle leaves them so.
    ///
    /// # Errors
    /// If not all nodes answer, or there is no memory for the map's record. Nothing is lost by it.
    pub(crate) async fn release_empty<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
        wanted: (ObjectKind, Purpose),
    ) -> Result<bool, Error> {
        if !group.suspects().is_empty() {
            // Zeroing takes an answer of every node; without one, the free objects of the chunk
            // would be lost.
            return Ok(false);
        }
        self.alone(group, self.leave(group, domain, Some(wanted), true)).await
    }

    /// The same of [a few](AT_ONCE) chunks, for a client that needs none itself. One that leaves, and does not `stay`, keeps none
    /// for its own updates either. Returns whether any were released: there may be more.
    ///
    /// # Errors
    /// As [`release_empty`](Self::release_empty).
    pub(crate) async fn leave_all_empty<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
        stays: bool,
    ) -> Result<bool, Error> {
        if !group.suspects().is_empty() {
            return Ok(false);
        }
        self.alone(group, self.leave(group, domain, None, stays)).await
    }

    async fn leave<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
        wanted: Option<(ObjectKind, Purpose)>,
        stays: bool,
    ) -> Result<bool, Error> {
        // An operation that may still hold a pointer retired since may still write there.
        let epoch = domain.epoch();
        let left = RefCell::new(Vec::<Extent>::new());
        let empty = |map: &[u32]| -> Vec<Extent> {
            // Units that it was about to release when another client changed the map have no object
            // table any more. The exception is what it took up again meanwhile: this change's own
            // record may be in there.
            let is_open = |extent: &Extent| {
                let mut homes = homes(&self.geometry, extent.class);
                homes.any(|home| self.reclaimer.is_open(extent.first, home))
            };
            let is_forgotten = |extent: &Extent| {
                left.borrow().iter().any(|left| left.first == extent.first) && !is_open(extent)
            };
            let (forgotten, known): (Vec<Extent>, Vec<Extent>) =
                self.own(map).partition(is_forgotten);
            let held = self.reclaimer.held(epoch);
            // A unit without an object table has none in use.
            let is_wanted = |extent: &Extent| wanted.is_some_and(|(kind, _)| extent.is_for(kind));
            let is_empty = |extent: &Extent| {
                !is_wanted(extent) && self.reclaimer.is_empty(extent.first, &held)
            };
            let empty: Vec<Extent> = known.iter().copied().filter(is_empty).collect();
            let most = if wanted.is_some() { usize::MAX } else { AT_ONCE };
            forgotten.into_iter().chain(self.spare(&known, &empty, stays)).take(most).collect()
        };
        let set_apart = |map: &mut [u32]| {
            let extents = empty(map);
            let firsts: HashSet<usize> = extents.iter().map(|extent| extent.first).collect();
            self.keep_chunks(|chunk| !firsts.contains(&chunk));
            for extent in &extents {
                Extent { taken: true, ..*extent }.enter_into(map);
            }
            left.replace(extents);
            Ok(())
        };
        if !self
            .change_map(group, Purpose::Replace, |map| !empty(map).is_empty(), set_apart)
            .await?
        {
            return Ok(false);
        }
        let left = left.into_inner();
        for extent in &left {
            self.clear(group, extent).await?;
            self.pass_on(domain, extent);
        }
        let is_left = |extent: &Extent| left.iter().any(|left| left.first == extent.first);
        let apart =
            |map: &[u32]| -> Vec<Extent> { self.taken_extents(map).filter(is_left).collect() };
        let leave = |map: &mut [u32]| {
            let apart = apart(map);
            apart.iter().for_each(|extent| extent.take_out_of(map));
            if let Some(wanted) = wanted {
                self.choose_of(map, wanted, &apart);
            }
            Ok(())
        };
        self.change_map(group, Purpose::Replace, |map| !apart(map).is_empty(), leave).await
    }

    /// Returns the `empty` units of these that are not kept. Kept are the last one with chunk-map
    /// records, as the release of the rest takes some, and the last one of a class in use if it has
    /// the [few](Self::few) reserved buffers and this client needs them still. Closed units have none.
    fn spare(&self, extents: &[Extent], empty: &[Extent], is_needed: bool) -> Vec<Extent> {
        let closed = self.reclaimer.closed();
        let is_closed = |extent: &Extent| closed.contains(&extent.first);
        let (closed, empty): (Vec<Extent>, Vec<Extent>) =
            empty.iter().copied().partition(is_closed);
        let extents: Vec<Extent> =
            extents.iter().filter(|extent| !closed.contains(extent)).copied().collect();
        let count = |extents: &[Extent], class| {
            extents.iter().filter(|extent| extent.class == class).count()
        };
        let is_spare = |&(at, extent): &(usize, &Extent)| {
            let (class, gone) = (extent.class, count(&empty[..=at], extent.class));
            let all = count(&empty, class);
            match class {
                ChunkClass::Large => true,
                _ if class == self.records().class => gone < all,
                _ if !is_needed => true,
                _ => gone < all || all == count(&extents, class) || self.leaves_few(class),
            }
        };
        let spare = empty.iter().enumerate().filter(is_spare).map(|(_, extent)| *extent);
        closed.into_iter().chain(spare).collect()
    }

    /// Whether enough buffers of this class are free without those of one chunk.
    fn leaves_few(&self, class: ChunkClass) -> bool {
        let gone = self.geometry.objects(class) as usize;
        homes(&self.geometry, class).map(|home| self.homed(class, home)).all(|kind| {
            let few = self.few(kind);
            few == 0 || self.unused(kind) + self.reclaimer.free_count(kind) >= few + gone
        })
    }

    /// Zeroes a whole unit, at every node, its high-water marks last (E10). If the client is
    /// interrupted, the objects below the marks still count as used; otherwise they would pass for
    /// never used.
    pub(in crate::heap) async fn clear<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        extent: &Extent,
    ) -> Result<(), Error> {
        let words = self.geometry.chunk_granules() as usize * GRANULE_WORDS;
        let (counters, end) = (extent.first * words, (extent.first + extent.chunks) * words);
        let zeros = vec![0; words.min(PIECE)];
        let pieces: Vec<usize> = (counters + GRANULE_WORDS..end).step_by(zeros.len()).collect();
        let set = |at| Verb::Write {
            at: Address(at as u64),
            head: &zeros[..zeros.len().min(end - at)],
            tail: &[],
        };
        for pieces in pieces.chunks(MAX_VERBS) {
            let verbs: Vec<Verb<'_>> = pieces.iter().map(|&at| set(at)).collect();
            group.everywhere(|node| group.fabric().post(node, &verbs), |_, _| {}).await?;
        }
        let at = Address(counters as u64);
        let last = [Verb::Write { at, head: &zeros[..GRANULE_WORDS], tail: &[] }];
        group.everywhere(|node| group.fabric().post(node, &last), |_, _| {}).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::{BOOTSTRAP_RECORDS, cell, record};
    use swarm_core::node::NodeId;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::{CellWord, Incarnation, Pointer};

    use super::*;
    use crate::heap::tests::{Says, Watched, alone, still};
    use crate::runtime::block_on::block_on;

    const NODE: NodeId = NodeId(0);

    /// A client is about to release a chunk of map records when another client changes the map. Its
    /// record for the change is lost, and the next attempt takes one from that very chunk, which
    /// the map still calls its own: then the map's record is in it.
    #[test]
    fn a_chunk_that_was_taken_up_again_is_not_left() {
        let (group, heap) = alone();
        let (kind, records, domain) = (heap.plain(100), heap.records(), Says(|| 9));
        let nothing = (heap.plain(1 << 30), Purpose::Insert);
        heap.has_had(kind);
        let allocate =
            |kind| block_on(heap.allocate(&group, kind, Purpose::Replace)).expect("memory");
        let chunk_of = |object| heap.geometry.chunk_of(object);
        // The first chunk is released when there are two more of records; the third one of records
        // takes its place.
        let idle = allocate(kind);
        let again = chunk_of(idle);
        let mut taken = vec![allocate(records)];
        while taken.iter().all(|&it| chunk_of(it) == chunk_of(taken[0])) {
            taken.push(allocate(records));
        }
        heap.reclaimer.untouched(idle);
        assert_eq!(block_on(heap.release_empty(&group, &domain, nothing)), Ok(true));
        while chunk_of(taken[taken.len() - 1]) != again {
            taken.push(allocate(records));
        }
        // All of their objects are free, except what the map names; and there is one record for
        // another change.
        let own: Vec<usize> = heap.own(&heap.map.borrow()).map(|extent| extent.first).collect();
        let used = block_on(heap.quiet_record(&group)).expect("nobody changes it");
        for (chunk, index) in own
            .iter()
            .flat_map(|&chunk| (0..heap.geometry.objects(records.class)).map(move |i| (chunk, i)))
        {
            let object = heap.geometry.object(chunk, records.class, records.home, index);
            if object != used {
                heap.reclaimer.untouched(object);
            }
        }
        assert!(heap.spare.take().is_none() && heap.reclaimer.fresh(records) == 0);
        let last = heap.geometry.bootstrap_record(0, BOOTSTRAP_RECORDS - 1);
        heap.bootstrap_free.replace(vec![last]);

        let rival = Heap::new(heap.geometry, 1);
        let word = heap.geometry.map_cell().at(NODE, 1).plus(cell::WORD);
        let reachable = || {
            let word = CellWord(group.fabric().word(NODE, word));
            heap.geometry.format.record(word)
        };
        let at = |record: Pointer| record.0 * GRANULE_WORDS as u64 + record::ACCEPTED as u64;
        let (is_read, is_cleared) = (Cell::new(false), Cell::new(false));
        let watch = |chain: &[Verb<'_>]| {
            let map = at(reachable());
            let clears = |verb: &Verb<'_>| match *verb {
                Verb::Write { at, head, tail } => {
                    let words = (head.len() + tail.len() / 8) as u64;
                    (at.0..at.0 + words).contains(&map)
                }
                _ => false,
            };
            is_cleared.set(is_cleared.get() || chain.iter().any(clears));
            if !is_read.replace(true) {
                let changed = rival.change_map(&group, Purpose::Replace, |_| true, |_| Ok(()));
                assert_eq!(block_on(changed), Ok(true));
            }
            // The answer that zeroing the record has succeeded never arrives.
            matches!(chain, [Verb::Cas { at: taken_back, .. }] if taken_back.0 == at(last))
        };
        let watched = Watched::new(group.fabric().clone(), watch);
        let clock = LoneClock::new(1000);
        let watched = Group::new(watched, clock, heap.geometry.format, group.session());
        block_on(heap.release_empty(&watched, &domain, nothing)).expect("a node");
        assert!(!is_cleared.get(), "the map's record was set to zeros");
        assert_eq!(chunk_of(reachable()), again, "it was not taken up again");
    }

    /// A client has taken a chunk over, in which its former owner may be at work, and releases one
    /// of its own.
    #[test]
    fn what_was_taken_over_is_not_left_along_with_the_rest() {
        let (group, heap) = alone();
        let (other, domain) = (Heap::new(heap.geometry, 1), Says(|| 9));
        let (theirs, own) = (heap.plain(16), heap.plain(100));
        other.has_had(theirs);
        heap.has_had(own);
        block_on(other.allocate(&group, theirs, Purpose::Insert)).expect("memory");
        let idle = block_on(heap.allocate(&group, own, Purpose::Insert)).expect("memory");
        heap.reclaimer.untouched(idle);
        let of_theirs = |extents: &[Extent]| -> Vec<Extent> {
            extents.iter().filter(|extent| extent.is_for(theirs)).copied().collect()
        };
        assert_eq!(block_on(heap.take_over(&group, of_theirs)), Ok(true));
        let nothing = (heap.plain(1 << 30), Purpose::Insert);
        assert_eq!(block_on(heap.release_empty(&group, &domain, nothing)), Ok(true));
        let map = heap.map.borrow();
        assert!(heap.own(&map).all(|extent| !extent.is_for(own)), "it is left");
        assert!(heap.taken_extents(&map).any(|extent| extent.is_for(theirs)));
    }

    /// Where the reserve is used up, one more free chunk does not serve inserts yet. Its releaser
    /// gets it all the same, except for runs: otherwise its search would go on until it has filled
    /// the reserve.
    #[test]
    fn a_client_that_leaves_a_chunk_is_served_first() {
        // A chunk holds so few of the longer ones that they would be kept for updates.
        for words in [100, 2500] {
            let (group, heap) = alone();
            let (kind, other, domain) = (heap.plain(words), heap.plain(16), Says(|| 9));
            let wanted = (kind, Purpose::Insert);
            [kind, other].into_iter().for_each(|kind| heap.has_had(kind));
            let allocate = |kind, need| block_on(heap.allocate(&group, kind, need));
            let idle = allocate(other, Purpose::Insert).expect("memory");
            while allocate(kind, Purpose::Relocate).is_ok() {}
            heap.reclaimer.untouched(idle);
            assert!(
                matches!(allocate(kind, Purpose::Insert), Err(Error::Full(_))),
                "{words} words"
            );
            assert_eq!(
                block_on(heap.release_empty(&group, &domain, wanted)),
                Ok(true),
                "{words} words"
            );
            assert!(allocate(kind, Purpose::Insert).is_ok(), "{words} words");
        }
    }

    /// A client that is interrupted leaves a unit whose objects still count as used, as words of
    /// theirs are in it.
    #[test]
    fn an_extents_counters_are_the_last_that_is_set_to_zeros() {
        let (_, heap) = alone();
        let (words, first) = (heap.geometry.chunk_granules() * 8, heap.geometry.chunks() - 2);
        // The node ends in the middle of the unit.
        let nodes = Loopback::new(1, (first + 1) * words as usize + words as usize / 2);
        let counters = Address(first as u64 * words);
        nodes.set_word(NodeId(0), counters, 7);
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let group = Group::new(nodes.clone(), still(), heap.geometry.format, session);
        let extent = Extent { first, chunks: 2, owner: 0, class: ChunkClass::Large, taken: true };
        assert!(block_on(heap.clear(&group, &extent)).is_err());
        assert_eq!(nodes.word(NodeId(0), counters), 7);
    }

    /// Long values return to the reserve what they took of it. Small objects would keep that.
    #[test]
    fn what_a_long_value_leaves_is_for_long_ones() {
        let (group, heap) = alone();
        let (small, long, domain) = (heap.plain(16), heap.plain(8000), Says(|| 9));
        let allocate = |kind| block_on(heap.allocate(&group, kind, Purpose::Replace));
        while allocate(small).is_ok() {}
        let value = allocate(long).expect("there is as much for long ones");
        heap.reclaimer.untouched(value);
        let left = block_on(heap.release_empty(&group, &domain, (small, Purpose::Replace)));
        assert_eq!(left, Ok(true));
        assert!(matches!(allocate(small), Err(Error::Full(_))));
        assert!(allocate(long).is_ok());
    }

    /// Each change of the map takes a record, and each life of a client changes it. Chunks of
    /// reclaimed records are released to others as well, except one.
    #[test]
    fn chunks_of_map_records_are_left_too() {
        let (group, heap) = alone();
        let (kind, domain) = (heap.records(), Says(|| 9));
        // There is not that much memory.
        let wanted = (heap.plain(1 << 30), Purpose::Insert);
        let in_a_chunk = heap.geometry.objects(kind.class);
        for _ in 0..3 * in_a_chunk {
            block_on(heap.allocate(&group, kind, Purpose::Replace)).expect("memory");
        }
        let chunks: Vec<usize> = heap.own(&heap.map.borrow()).map(|extent| extent.first).collect();
        assert!(chunks.len() > 3, "{chunks:?}");
        // All are freed but the one that is in use.
        let used = block_on(heap.quiet_record(&group)).expect("nobody changes it");
        for (chunk, index) in
            chunks.iter().flat_map(|chunk| (0..in_a_chunk).map(move |i| (chunk, i)))
        {
            let record = heap.geometry.object(*chunk, kind.class, kind.home, index);
            if record != used {
                heap.reclaimer.untouched(record);
            }
        }
        assert_eq!(block_on(heap.release_empty(&group, &domain, wanted)), Ok(true));
        let left = heap.count_own();
        assert!(left < chunks.len(), "{left} of {}", chunks.len());
        assert_eq!(
            block_on(heap.release_empty(&group, &domain, wanted)),
            Ok(false),
            "the last one is kept"
        );
        assert_eq!(heap.count_own(), left);
    }

    /// Of a size in use, the last chunk with buffers for updates stays; of other sizes, none does.
    #[test]
    fn a_chunk_with_the_last_buffers_of_a_size_is_kept() {
        let (_, heap) = alone();
        let class = heap.plain(16).class;
        let extent = |first| Extent { first, chunks: 1, owner: 0, class, taken: false };
        let [first, second, third] = [4, 5, 6].map(extent);
        let spare = |extents: &[Extent], empty: &[Extent]| -> Vec<usize> {
            heap.spare(extents, empty, true).into_iter().map(|extent| extent.first).collect()
        };
        assert!(spare(&[first, second], &[second]).is_empty());
        assert_eq!(spare(&[first, second, third], &[second, third]), [5]);
        assert_eq!(spare(&[first, second], &[first, second]), [4, 5]);
    }
}
