//! Collecting garbage aside, before memory runs out, and taking over what the dead held.
//!
//! Once memory is scarce and a client has come to [more of it, or runs short](crate::heap), each of its operations that
//! writes takes a short step of a [collection](crate::collect) when it is over, and then resets a little of what was
//! found, until that is done. Otherwise one operation would have to do all of it at once. Where all that is free
//! is kept back, it takes as many steps as a millisecond has room for. Collections
//! take an answer of every node, and a write must not wait for one that is silent: a step that takes too
//! long is dropped, and the collection with it, until memory has grown again or some time has gone by. A look for
//! what the dead held that takes too long is dropped alone, and some writes go by before the next one.

use std::pin::pin;

use futures_util::future::{Either, select};
use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::node::NodeSet;
use swarm_core::register::Protocol;

use crate::client::Client;
use crate::collect::Progress;
use crate::error::Error;
use crate::heap::RECORDS_AT_ONCE;

/// Buckets that a step goes over, or objects of which it READs what they hold: as many as one chain.
const SHORT_STEP: usize = MAX_VERBS;
/// Batches of objects that a step resets.
const BATCHES: usize = 4;
/// Batches that a look for records resets: more than come back meanwhile, or what waits would be ever more.
pub(crate) const RECORD_BATCHES: usize = RECORDS_AT_ONCE.div_ceil(MAX_VERBS) + 2;
/// Nanoseconds that a step takes at most, of this client's own time.
const LONGEST: u64 = 2_000_000;
/// Nanoseconds for which one step follows the other where all that is free is kept back: with a step for each
/// write, what there is would be used up before a collection is through.
const URGENT: u64 = 1_000_000;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aside {
    Going,
    /// For others' operations.
    Waiting,
    Done,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// An operation is over, and garbage is worth a look.
    #[cold]
    pub(crate) async fn collect_aside(&self) {
        // Somebody else's search for memory is not to be waited for.
        let Some(_alone) = self.searching.try_enter() else { return };
        let now = || self.group.clock().now();
        let since = now();
        let is_urgent = || self.heap.is_tight() && now().wrapping_sub(since) < URGENT;
        if !self.heap.is_swept() && !self.is_collecting() {
            if self.heap.rests_from_looks() {
                return;
            }
            let in_vain = self.in_time(self.vacant_aside()).await.is_none();
            self.heap.look_is_over(in_vain);
            // No collection has failed by that: one that is due is due still.
            if in_vain {
                return self.heap.has_looked();
            }
            // What was taken over comes first, so that the collection finds out what is in it.
            if self.heap.is_taking() || !self.heap.is_collection_due() {
                return;
            }
        }
        loop {
            match self.in_time(self.step_aside()).await {
                Some(Aside::Going) if is_urgent() => {}
                Some(Aside::Going | Aside::Waiting) => return,
                Some(Aside::Done) => return self.heap.is_collected(now()),
                None => return self.heap.gives_up(now()),
            }
        }
    }

    /// An operation is over, and many before it took memory for buckets' records: takes in those that
    /// were replaced, by this client or others, a few at a time.
    #[cold]
    pub(crate) async fn records_aside(&self) {
        let Some(_alone) = self.searching.try_enter() else { return };
        let look = async {
            self.look_for_records().await?;
            self.some_memory_back(RECORD_BATCHES, NodeSet::EMPTY).await
        };
        let in_vain = self.in_time(look).await.is_none();
        self.heap.has_looked_for_records(in_vain);
    }

    /// Retires records of this client's that were replaced, and buffers of writes that others followed, as far as it
    /// was told.
    ///
    /// # Errors
    /// Not all nodes answer; then it is left to a collection.
    pub(crate) async fn look_for_records(&self) -> Result<(), Error> {
        let Some(presence) = &self.presence else { return Ok(()) };
        let _here = self.here();
        let remembered = |hash| Some(self.locations.by_hash(hash)?.place);
        self.heap.look_for_records(&self.group, presence.board(), remembered).await
    }

    /// What a step comes to. `None` if it fails or takes too long; then it is dropped.
    async fn in_time<T>(&self, step: impl Future<Output = Result<T, Error>>) -> Option<T> {
        match select(pin!(self.in_own_process(step)), pin!(self.group.own_time(LONGEST))).await {
            Either::Left((told, _)) => told.ok(),
            Either::Right(_) => None,
        }
    }

    /// A short step of a collection.
    async fn step_aside(&self) -> Result<Aside, Error> {
        if self.heap.is_swept() {
            let any = self.some_memory_back(BATCHES, NodeSet::EMPTY).await?;
            return Ok(match self.heap.recycler.is_to_reset() {
                true if any => Aside::Going,
                true => Aside::Waiting,
                false => Aside::Done,
            });
        }
        match self.collect_step(SHORT_STEP).await? {
            Progress::Going => {
                self.records_back().await?;
                return Ok(Aside::Going);
            }
            Progress::Waiting => return Ok(Aside::Waiting),
            Progress::Done(_) => self.heap.sweep_is_over(),
        }
        Ok(Aside::Going)
    }

    /// Takes over some of what clients that are gone held, or goes on with that: to wait until an operation finds no
    /// memory would have that one do it all. It takes a majority's answers, so that nobody waits for a silent node.
    async fn vacant_aside(&self) -> Result<(), Error> {
        if self.heap.is_taking() {
            self.heap.takes_vacant();
            self.some_memory_back(BATCHES, self.group.suspects()).await?;
        } else if self.heap.looks_for_vacant() {
            if let Some(presence) = &self.presence {
                let _here = self.here();
                self.heap.take_half_of_vacant(&self.group, presence.board()).await?;
                // Also of what was left half-way, by a look that was dropped or whoever had the slot before.
                self.heap.announce(presence.board());
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
    use swarm_core::fabric::{Board, Verb};
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use crate::blocking::block_on;
    use crate::client::{Client, Options};
    use crate::heap::tests::Watched;

    /// A board on which only the client of slot 0 is left.
    struct Alone(Rc<Cell<u64>>);

    impl Board for Alone {
        fn epoch(&self) -> u64 {
            self.0.get()
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
        fn is_attached(&self, slot: usize) -> bool {
            slot == 0
        }
        fn advance(&self) -> u64 {
            self.epoch()
        }
    }

    /// A client goes on with what it took over of the dead, and gets no answer. No collection has failed: the one that is
    /// to find out what is in there is due still. However many writes go by, few of them look again.
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
        let fabric = Watched { nodes, watch };
        let client: Client<_, _> =
            Client::new(fabric, clock(), geometry, session(0), Options::default());
        let client = client.recycling(Box::new(Alone(Rc::clone(&epoch))));
        client.blocking().put(b"key", b"value").expect("memory");
        let board = Alone(Rc::clone(&epoch));
        assert_eq!(block_on(client.heap.take_vacant(&client.group, &board)), Ok(true));
        client.heap.announce(&board);
        epoch.set(5 + GRACE);
        is_lost.set(true);
        block_on(client.collect_aside());
        assert!(client.heap.is_collection_due());
        let of_one = lost.get();
        for _ in 0..1000 {
            block_on(client.collect_aside());
        }
        assert!(of_one > 0 && lost.get() <= 8 * of_one, "{of_one} chains of one, {lost:?} of all");
        assert!(client.heap.is_collection_due());
        is_lost.set(false);
        let writes = (0..5000).take_while(|_| client.heap.is_taking());
        writes.for_each(|_| block_on(client.collect_aside()));
        assert!(!client.heap.is_taking(), "it has them");
        assert!(client.heap.is_collection_due());
    }
}
