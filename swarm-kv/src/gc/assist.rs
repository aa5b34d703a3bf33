//! GC assist: bounded steps of garbage collection and takeover after writes, before memory runs
//! out.
//!
//! Once memory is scarce, and a client has gained [chunks or runs short](crate::heap), each of its
//! writes runs one short step of a [GC cycle](crate::gc::mark_sweep), and later zeroes a little of
//! what it found, until that is done. Otherwise a single operation would have to run all of it.
//! Where all free chunks are reserved, a write runs as many steps as fit in a millisecond.
//!
//! A cycle takes an answer of every node, and a write must not wait for a silent node. So a step
//! that takes too long is dropped together with its cycle, until memory has grown again or some
//! time has passed. A look for orphaned chunks that takes too long is dropped alone, and the next
//! one is some writes later.

use std::pin::pin;

use futures_util::future::{Either, select};
use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::node::NodeSet;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::error::Error;
use crate::gc::mark_sweep::Progress;
use crate::heap::RECORDS_AT_ONCE;

/// Buckets that a step walks, or objects that it READs: as many as one chain holds.
const SHORT_STEP: usize = MAX_VERBS;
/// Batches of objects that a step zeroes.
const BATCHES: usize = 4;
/// Batches that a look for records zeroes: more than are retired meanwhile, or the queue would
/// grow.
pub(crate) const RECORD_BATCHES: usize = RECORDS_AT_ONCE.div_ceil(MAX_VERBS) + 2;
/// Nanoseconds that a step takes at most, of this client's own time.
const LONGEST: u64 = 2_000_000;
/// Nanoseconds for which steps follow each other where all free chunks are reserved: with one step
/// for each write, memory would run out before the cycle ends.
const URGENT: u64 = 1_000_000;

/// How far a cycle is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AssistState {
    Going,
    /// It waits for other clients' operations.
    Waiting,
    Done,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Whether any of the work that follows a write is due.
    #[inline]
    pub(crate) fn is_assist_due(&self) -> bool {
        self.group.lacks_numbers()
            || self.heap.misses_records(self.reclaimed_at_once)
            || self.heap.is_gc_due(|| self.group.clock().now())
    }

    /// Does the bounded work that follows a write: one step of garbage collection, and a refill of
    /// write numbers, if due.
    pub(crate) async fn gc_assist(&self) {
        if self.group.lacks_numbers() {
            self.look_for_numbers();
        }
        // No more garbage may be added while a cycle's garbage is being zeroed, or that would never
        // end.
        if self.heap.misses_records(self.reclaimed_at_once) && !self.heap.is_swept() {
            Box::pin(self.assist_records()).await;
        }
        if self.heap.is_gc_due(|| self.group.clock().now()) {
            Box::pin(self.assist_collection()).await;
        }
    }

    /// Runs steps of a GC cycle, or looks for orphaned chunks, after a write.
    #[cold]
    pub(crate) async fn assist_collection(&self) {
        // Another operation's search for memory is not waited for.
        let Some(_alone) = self.searching.try_enter() else { return };
        let now = || self.group.clock().now();
        let since = now();
        let is_urgent = || self.heap.is_tight() && now().wrapping_sub(since) < URGENT;
        if !self.heap.is_swept() && !self.is_collecting() {
            if self.heap.rests_from_looks() {
                return;
            }
            let in_vain = self.in_time(self.assist_takeover()).await.is_none();
            self.heap.look_is_over(in_vain);
            // No GC cycle has failed by that: one that is due stays due.
            if in_vain {
                return self.heap.has_looked();
            }
            // Chunks that were taken over come first, so that the GC cycle finds what is in use in
            // them.
            if self.heap.is_taking() || !self.heap.is_collection_due() {
                return;
            }
        }
        loop {
            match self.in_time(self.assist_step()).await {
                Some(AssistState::Going) if is_urgent() => {}
                Some(AssistState::Going | AssistState::Waiting) => return,
                Some(AssistState::Done) => return self.heap.is_collected(now()),
                None => return self.heap.gives_up(now()),
            }
        }
    }

    /// Looks at pending retirements after a write, once many buckets' records were taken: frees
    /// those that this client or others replaced, a few at a time.
    #[cold]
    pub(crate) async fn assist_records(&self) {
        let Some(_alone) = self.searching.try_enter() else { return };
        // Boxed, so that it is not copied once more by each future around it.
        let look = Box::pin(async {
            self.check_records().await?;
            self.some_memory_back(RECORD_BATCHES, NodeSet::EMPTY).await
        });
        let in_vain = self.in_time(look).await.is_none();
        self.heap.has_looked_for_records(in_vain);
    }

    /// Retires records of this client that were replaced, and buffers of writes that others
    /// superseded, by the hints that it received (E4a, E4c).
    ///
    /// # Errors
    /// If not all nodes answer; the objects are then left to a GC cycle.
    pub(crate) async fn check_records(&self) -> Result<(), Error> {
        let Some(participant) = &self.participant else { return Ok(()) };
        let _pin = self.pin();
        let remembered = |hash| Some(self.locations.by_hash(hash)?.place);
        self.heap.check_records(&self.group, participant.domain(), remembered).await
    }

    /// Returns the result of a step. `None` if it fails or takes too long; then it is dropped.
    async fn in_time<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Option<T> {
        match select(pin!(self.in_own_process(step)), pin!(self.group.own_time(LONGEST))).await {
            Either::Left((outcome, _)) => outcome.ok(),
            Either::Right(_) => None,
        }
    }

    /// Runs a short step of a GC cycle.
    async fn assist_step(&self) -> Result<AssistState, Error> {
        if self.heap.is_swept() {
            let any = self.some_memory_back(BATCHES, NodeSet::EMPTY).await?;
            return Ok(match self.heap.reclaimer.is_to_reset() {
                true if any => AssistState::Going,
                true => AssistState::Waiting,
                false => AssistState::Done,
            });
        }
        match self.gc_step(SHORT_STEP).await? {
            Progress::Going => {
                self.records_back().await?;
                return Ok(AssistState::Going);
            }
            Progress::Waiting => return Ok(AssistState::Waiting),
            Progress::Done(_) => self.heap.sweep_is_over(),
        }
        Ok(AssistState::Going)
    }

    /// Takes over some orphaned chunks, or continues to: otherwise an operation that finds no
    /// memory would have to take all of them over. It takes a majority's answers, so no write waits
    /// for a silent node.
    async fn assist_takeover(&self) -> Result<(), Error> {
        if self.heap.is_taking() {
            self.heap.takes_vacant();
            self.some_memory_back(BATCHES, self.group.suspects()).await?;
        } else if self.heap.looks_for_vacant() {
            if let Some(participant) = &self.participant {
                let _pin = self.pin();
                self.heap.take_half_of_vacant(&self.group, participant.domain()).await?;
                // Also for chunks half-transferred by a search that was dropped, or by the slot's
                // previous client.
                self.heap.announce(participant.domain());
            }
            if self.heap.is_taking() {
                self.heap.takes_vacant();
            }
            self.heap.has_looked();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use swarm_core::epoch::GRACE;
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::fabric::{EpochDomain, Verb};
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use crate::client::handle::{Client, Options};
    use crate::heap::tests::Watched;
    use crate::runtime::block_on::block_on;

    /// An epoch domain on which only the client of slot 0 is left.
    struct Alone(Rc<Cell<u64>>);

    impl EpochDomain for Alone {
        fn epoch(&self) -> u64 {
            self.0.get()
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
        fn is_attached(&self, slot: usize) -> bool {
            slot == 0
        }
        fn try_advance(&self) -> u64 {
            self.epoch()
        }
    }

    /// A client continues a takeover of orphaned chunks, and gets no answer. No GC cycle has
    /// failed: the one that is to find what is in those chunks is still due. However many writes
    /// follow, few of them look again.
    #[test]
    fn a_look_that_fails_is_no_collection_that_failed() {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let nodes = Loopback::new(1, 4 << 17);
        let session = |client| Session { client, incarnation: Incarnation(1) };
        let clock = || LoneClock::new(1000);
        let dead: Client<_, _> =
            Client::new(nodes.clone(), clock(), geometry, session(1), Options::default());
        for words in 1..8 {
            let value = vec![1; 128 * words];
            dead.blocking().put(&[words as u8], &value).expect("memory");
        }
        let (is_lost, lost, epoch) = (Cell::new(false), Cell::new(0), Rc::new(Cell::new(5)));
        let watch = |_: &[Verb<'_>]| {
            lost.set(lost.get() + u32::from(is_lost.get()));
            is_lost.get()
        };
        let fabric = Watched::new(nodes, watch);
        let client: Client<_, _> =
            Client::new(fabric, clock(), geometry, session(0), Options::default());
        let client = client.with_epochs(Box::new(Alone(Rc::clone(&epoch))));
        client.blocking().put(b"key", b"value").expect("memory");
        let domain = Alone(Rc::clone(&epoch));
        assert_eq!(block_on(client.heap.take_vacant(&client.group, &domain)), Ok(true));
        client.heap.announce(&domain);
        epoch.set(5 + GRACE);
        is_lost.set(true);
        block_on(client.assist_collection());
        assert!(client.heap.is_collection_due());
        let of_one = lost.get();
        for _ in 0..1000 {
            block_on(client.assist_collection());
        }
        assert!(of_one > 0 && lost.get() <= 8 * of_one, "{of_one} chains of one, {lost:?} of all");
        assert!(client.heap.is_collection_due());
        is_lost.set(false);
        let writes = (0..5000).take_while(|_| client.heap.is_taking());
        writes.for_each(|_| block_on(client.assist_collection()));
        assert!(!client.heap.is_taking(), "it has them");
        assert!(client.heap.is_collection_due());
    }
}
