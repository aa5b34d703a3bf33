//! Collecting garbage aside, before memory runs out, and taking over what the dead held.
//!
//! Once memory is scarce and a client has come to [more of it, or runs short](crate::heap), each of its operations that
//! writes takes a short step of a [collection](crate::collect) when it is over, and then resets a little of what was
//! found, until that is done. Otherwise one operation would have to do all of it at once. Where all that is free
//! is kept back, it takes as many steps as a millisecond has room for. Collections
//! take an answer of every node, and a write must not wait for one that is silent: a step that takes too
//! long is dropped, and the collection with it, until memory has grown again or some time has gone by.

use std::pin::pin;

use futures_util::future::{Either, select};
use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::node_set::NodeSet;
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
/// Nanoseconds that a step takes at most.
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
        loop {
            match self.in_time(self.step_aside()).await {
                Some(Aside::Going) if is_urgent() => {}
                Some(Aside::Going | Aside::Waiting) => return,
                Some(Aside::Done) => return self.heap.is_collected(now()),
                // A collection that is due is due still.
                None if self.heap.looks_for_vacant() => return self.heap.has_looked(),
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
        match select(pin!(self.in_own_process(step)), pin!(self.group.pause(LONGEST))).await {
            Either::Left((told, _)) => told.ok(),
            Either::Right(_) => None,
        }
    }

    /// A short step.
    async fn step_aside(&self) -> Result<Aside, Error> {
        if self.heap.is_swept() {
            let any = self.some_memory_back(BATCHES, NodeSet::EMPTY).await?;
            return Ok(match self.heap.recycler.is_to_reset() {
                true if any => Aside::Going,
                true => Aside::Waiting,
                false => Aside::Done,
            });
        }
        if !self.is_collecting() {
            self.vacant_aside().await?;
            // What was taken over comes first, so that the collection finds out what is in it.
            if self.heap.is_taking() || !self.heap.is_collection_due() {
                return Ok(Aside::Waiting);
            }
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
    /// memory would have that one do it all.
    async fn vacant_aside(&self) -> Result<(), Error> {
        if self.heap.is_taking() {
            self.heap.takes_vacant();
            self.some_memory_back(BATCHES, NodeSet::EMPTY).await?;
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
