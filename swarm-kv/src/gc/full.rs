//! Full GC: releases memory in whole chunks, before a client lacks some.
//!
//! What a [GC cycle](crate::gc::mark_sweep) finds is known to its client only. Without a release,
//! the slot's next owner would have the same chunks, which are full by their high-water marks, and
//! would have to walk the whole index for its first value. So would every process that attaches,
//! puts a value, and leaves. So a client that has run a cycle *releases* its empty chunks when it
//! leaves, for objects of any size. For objects scattered over chunks in use, there is a call for
//! idle programs ([`Client::gc`]).
//!
//! E10b: it relies on what [releasing](crate::heap) chunks relies on, and takes no other path. A
//! client that is killed in the middle leaves them as if they were taken over, and the slot's next
//! owner continues.

use std::cell::Cell;
use std::pin::pin;

use futures_util::future::{Either, select};
use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{EpochDomain, Fabric};
use swarm_core::node::NodeSet;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::error::Error;
use crate::runtime::block_on::block_on;
use crate::runtime::wait_budget::WaitBudget;

/// Maximum number of evacuations of one call: each walks the index, and moves a bounded number of
/// objects.
const ROUNDS: usize = 16;
/// How long a client that leaves releases chunks: nanoseconds of its own time. What is half released by then the slot's next
/// owner releases (E10b).
const LEAVING: u64 = 20_000_000;

/// The result of a [`Client::gc`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Gc {
    /// Objects that were unreachable.
    pub objects: u64,
    /// Keys that were moved out of sparse chunks.
    pub moved: u64,
    /// How many more chunks are free than before.
    pub chunks: u64,
    /// How many chunks are free now, and how many there are.
    pub free: (u64, u64),
    /// Bytes of a chunk, at each node.
    pub chunk_bytes: u64,
    /// Whether other clients' operations held it up for too long, so that it ended early. Where it
    /// lacked a record for a change, only [`more`](Self::more) is set.
    pub held_up: bool,
    /// Whether another call may release more.
    pub more: bool,
}

/// The progress of a [`Client::gc`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GcStage {
    /// It waits for other clients' operations.
    Waiting,
    /// It marks reachable objects: how many parts of the index of how many.
    Marking(u64, u64),
    /// It sweeps its chunks.
    Sweeping,
    /// It evacuates sparse chunks.
    Moving,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Takes over the chunks of departed clients, collects garbage in them and in this client's
    /// own, evacuates sparse chunks, and releases whole chunks to the pool, for values of any size.
    /// Calls `report` with its progress.
    ///
    /// Clients do as much of this as they need when memory runs out. After it the next ones find
    /// free chunks without a search. Takes a roundtrip for each key of the pool and two for each
    /// bucket, twice at least, and some eight for each key that moves. Waits for other clients'
    /// operations in progress. Chunks of attached clients stay theirs.
    ///
    /// # Cancel safety
    /// Nothing is lost, and the next call starts over.
    ///
    /// # Errors
    /// If not all memory nodes answer: objects that a dead node may still name are not reused.
    pub async fn gc(&self, report: &mut dyn FnMut(GcStage)) -> Result<Gc, Error> {
        self.in_own_process(self.gc_alone(report)).await
    }

    async fn gc_alone(&self, report: &mut dyn FnMut(GcStage)) -> Result<Gc, Error> {
        let _alone = self.search_alone().await?;
        let mut stall = self.stall(self.group.clock().now());
        let mut done = Gc { chunk_bytes: self.geometry.chunk_bytes, ..Gc::default() };
        let moved = self.counters().evacuated;
        let (free, _) = self.free_chunks().await?;
        let mut waits = self.take_all_vacant(report, &mut stall).await?;
        let mut rounds = 0..ROUNDS;
        while !waits {
            let cycle = self.collect_garbage(&mut stall, || report(self.stage()));
            let Some(collected) = cycle.await? else {
                waits = true;
                break;
            };
            done.objects += collected.garbage as u64;
            waits = self.all_back(&mut stall).await?;
            let lacked_records = !self.leave_all_empty(&mut stall).await?;
            report(GcStage::Moving);
            let goes_on = collected.more || self.evacuate(self.heap.records_of_the_map()).await?;
            done.more = goes_on || lacked_records;
            if !goes_on || rounds.next().is_none() {
                break;
            }
        }
        // Others hold it up only if it waited for them in vain.
        done.held_up = waits && stall.is_in_vain();
        done.more |= waits || self.heap.is_taking();
        let (now, all) = self.free_chunks().await?;
        done.free = (now, all);
        done.chunks = now.saturating_sub(free);
        done.moved = self.counters().evacuated - moved;
        Ok(done)
    }

    /// Returns how many chunks have no owner, and how many there are.
    async fn free_chunks(&self) -> Result<(u64, u64), Error> {
        let _pin = self.pin();
        self.heap.used(&self.group).await?;
        Ok(self.heap.free_chunks())
    }

    /// Makes the chunks of departed clients this client's, as far as there are records for that.
    /// Returns whether it would have to wait longer.
    async fn take_all_vacant(
        &self,
        report: &mut dyn FnMut(GcStage),
        stall: &mut WaitBudget,
    ) -> Result<bool, Error> {
        let Some(participant) = &self.participant else { return Ok(false) };
        let domain = participant.domain();
        self.with_records(stall, async || {
            let _pin = self.pin();
            self.heap.take_vacant(&self.group, domain).await
        })
        .await?;
        // Also for chunks half-transferred by the slot's previous client.
        self.heap.announce(domain);
        while self.heap.is_taking() {
            report(GcStage::Waiting);
            let came = self.what_comes_back().await?;
            if !came && !self.heap.waits(self.epoch(), NodeSet::EMPTY) {
                // Without a record for the change no wait helps. A cycle may find some.
                break;
            }
            if self.heap.is_taking() && !self.give_way(stall).await {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reclaims what can be. Returns whether there was any: not if the chunk map cannot be changed.
    ///
    /// # Errors
    /// If not all memory nodes answer.
    async fn what_comes_back(&self) -> Result<bool, Error> {
        match self.some_memory_back(usize::MAX, NodeSet::EMPTY).await {
            Err(Error::Full(_) | Error::Contended) => Ok(false),
            outcome => outcome,
        }
    }

    /// Returns the stage of the GC cycle under way.
    fn stage(&self) -> GcStage {
        match self.marked() {
            Some((_, 0)) => GcStage::Sweeping,
            Some((done, all)) => GcStage::Marking(done, all),
            None => GcStage::Waiting,
        }
    }

    /// Reclaims all retired objects. Returns whether it would have to wait longer.
    async fn all_back(&self, stall: &mut WaitBudget) -> Result<bool, Error> {
        loop {
            self.what_comes_back().await?;
            if !self.heap.waits(self.epoch(), NodeSet::EMPTY) {
                return Ok(false);
            }
            if !self.give_way(stall).await {
                return Ok(true);
            }
        }
    }

    /// Releases the empty chunks, but the last one of a class in use that has the reserved buffers: this client goes on. False if
    /// there was no record for the change.
    async fn leave_all_empty(&self, stall: &mut WaitBudget) -> Result<bool, Error> {
        let Some(participant) = &self.participant else { return Ok(true) };
        let goes_on = Cell::new(true);
        while goes_on.get() {
            let release = self.with_records(stall, async || {
                let _pin = self.pin();
                let domain = participant.domain();
                goes_on.set(self.heap.leave_all_empty(&self.group, domain, true).await?);
                Ok(true)
            });
            if !release.await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs `change` of the chunk map, which takes a record. Returns false if there is none, and
    /// none is being reclaimed.
    async fn with_records(
        &self,
        stall: &mut WaitBudget,
        change: impl AsyncFn() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        loop {
            match self.with_numbers(&change).await {
                Err(Error::Full(_)) => {
                    let came = self.memory_back(NodeSet::EMPTY).await?;
                    let waits = self.heap.waits(self.epoch(), NodeSet::EMPTY);
                    if !(came || waits && self.give_way(stall).await) {
                        return Ok(false);
                    }
                }
                Err(Error::Contended) => return Ok(false),
                outcome => return outcome,
            }
        }
    }
}

impl<F: Fabric, C: Clock, P> Client<F, C, P> {
    /// Releases the empty chunks of a client that has run a GC cycle, as far as that takes no
    /// waiting: on a synchronous fabric, if no client holds up what was retired. Otherwise the
    /// slot's next owner collects them.
    pub(crate) fn leave_chunks(&self) {
        let Some(participant) = &self.participant else { return };
        if !self.has_collected() || !self.group.fabric().is_near() {
            return;
        }
        let domain = participant.domain();
        for _ in 0..GRACE {
            domain.try_advance();
        }
        let since = self.group.clock().now();
        // A few chunks for each pin: all clients' memory waits for it meanwhile.
        let mut goes_on = true;
        while goes_on && self.group.clock().now().saturating_sub(since) < LEAVING {
            let visit = participant.pin();
            let generation = domain.generation();
            // A device may be another pool's by now, if this pool is lost.
            goes_on = (generation == self.generation.get() || domain.lost().is_none()) && {
                if generation != self.generation.get() {
                    // H7; and the chunk map is read anew.
                    self.group.fabric().reconfigure();
                    self.generation.set(generation);
                    self.heap.renew(generation);
                }
                let leave = self.heap.leave_all_empty(&self.group, domain, false);
                // If it fails the chunks stay.
                block_on(async {
                    let (leave, over) = (pin!(leave), pin!(self.group.own_time(LEAVING)));
                    let ended = select(leave, over).await;
                    matches!(ended, Either::Left((Ok(true), _)))
                })
            };
            participant.unpin(visit, self.group.fabric());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use swarm_core::fabric::Verb;
    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::Geometry;
    use swarm_core::node::NodeId;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;
    use crate::heap::tests::Watched;

    /// The epoch advances whenever a client asks, and only that of slot 0 is attached.
    struct GoesOn {
        epoch: Rc<Cell<u64>>,
        /// By how much others may be ahead.
        ahead: u64,
        generation: Rc<Cell<u64>>,
    }

    impl EpochDomain for GoesOn {
        fn pin(&self) -> u64 {
            self.epoch()
        }
        fn repin(&self, _: u64) {}
        fn unpin(&self) {}
        fn epoch(&self) -> u64 {
            self.epoch.get()
        }
        fn epoch_bound(&self) -> u64 {
            self.epoch() + self.ahead
        }
        fn generation(&self) -> u64 {
            self.generation.get()
        }
        fn new_generation(&self) {}
        fn is_attached(&self, slot: usize) -> bool {
            slot == 0
        }
        fn try_advance(&self) -> u64 {
            self.epoch.set(self.epoch() + 1);
            self.epoch()
        }
    }

    type Alone<'w> = Client<Watched<'w>, LoneClock>;

    /// A client, beside the chunks of one that is gone. `watch` says which replies are lost.
    fn beside_the_dead<'w>(watch: impl Fn(&[Verb<'_>]) -> bool + 'w, ahead: u64) -> Alone<'w> {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let nodes = Loopback::new(1, 4 << 17);
        let session = |client| Session { client, incarnation: Incarnation(1) };
        let clock = || LoneClock::new(1000);
        let dead: Client<_, _> =
            Client::new(nodes.clone(), clock(), geometry, session(1), Options::default());
        for words in 1..8 {
            dead.blocking().put(&[words as u8], &vec![1; 128 * words]).expect("memory");
        }
        dead.heap.has_had_all();
        dead.blocking().put(b"own", &[1; 128]).expect("memory");
        let options = Options::default().memory_wait(1_000_000);
        let client: Alone<'_> =
            Client::new(Watched::new(nodes, watch), clock(), geometry, session(0), options);
        let (epoch, generation) = (Rc::new(Cell::new(5)), Rc::default());
        client.with_epochs(Box::new(GoesOn { epoch, ahead, generation }))
    }

    /// Memory of this process whose configuration is another one in each generation.
    struct Configured {
        nodes: Loopback,
        generation: Rc<Cell<u64>>,
        taken_up: Cell<u64>,
        posted: Rc<Cell<bool>>,
    }

    impl Fabric for Configured {
        type EpochDomain = Box<dyn EpochDomain>;
        type Reply<'f> = Vec<u64>;
        type Completion<'f> = <Loopback as Fabric>::Completion<'f>;

        fn is_near(&self) -> bool {
            true
        }
        fn nodes(&self) -> usize {
            self.nodes.nodes()
        }
        fn reconfigure(&self) {
            self.taken_up.set(self.generation.get());
        }
        fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
            let is_known = self.taken_up.get() == self.generation.get();
            assert!(is_known, "a chain by a former configuration");
            self.posted.set(true);
            self.nodes.post(node, chain)
        }
    }

    /// A node is replaced while a client that has run a collection is idle, and then it leaves: what
    /// it does on leaving are operations of their own. Chunks were given back at the former node.
    #[test]
    fn who_leaves_gives_chunks_back_by_the_configuration_that_stands() {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let nodes = Loopback::new(1, 4 << 17);
        let (generation, posted) = (Rc::<Cell<u64>>::default(), Rc::<Cell<bool>>::default());
        let fabric = Configured {
            nodes,
            generation: Rc::clone(&generation),
            taken_up: Cell::new(0),
            posted: Rc::clone(&posted),
        };
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let client: Client<_, _> =
            Client::new(fabric, LoneClock::new(1000), geometry, session, Options::default());
        let domain =
            GoesOn { epoch: Rc::new(Cell::new(5)), ahead: 0, generation: Rc::clone(&generation) };
        let client = client.with_epochs(Box::new(domain));
        client.blocking().put(b"key", b"value").expect("memory");
        client.blocking().delete(b"key").expect("a node");
        block_on(client.gc(&mut |_| ())).expect("a node");
        generation.set(1);
        posted.set(false);
        drop(client);
        assert!(posted.get(), "it has chunks to give back");
    }

    /// Nothing is wrong.
    #[test]
    fn what_the_dead_held_is_taken_over() {
        let client = beside_the_dead(|_| false, 0);
        let gc = block_on(client.gc(&mut |_| ())).expect("a node");
        assert!(!gc.held_up && !client.heap.is_taking(), "{gc:?}");
    }

    /// No change of the chunk map is answered. The report was that others' operations held it up.
    #[test]
    fn a_node_that_does_not_answer_is_no_operation_that_holds_it_up() {
        let is_lost = Cell::new(false);
        let is_change = |chain: &[Verb<'_>]| chain.iter().any(|it| matches!(it, Verb::Cas { .. }));
        let client = beside_the_dead(|chain| is_lost.get() && is_change(chain), 0);
        let participant = client.participant.as_ref().expect("it has epochs");
        let domain = participant.domain();
        assert_eq!(block_on(client.heap.used(&client.group)).map(|_| ()), Ok(()));
        assert_eq!(block_on(client.heap.take_vacant(&client.group, domain)), Ok(true));
        client.heap.announce(domain);
        assert!(client.heap.is_taking());
        is_lost.set(true);
        let outcome = block_on(client.gc(&mut |_| ()));
        assert!(matches!(outcome, Err(Error::Replication(_))), "{outcome:?}");
    }

    /// Epochs advance all the time, and never far enough: it takes too long, and no operation is to
    /// blame.
    #[test]
    fn a_client_that_waits_too_long_while_others_go_on_blames_none() {
        let client = beside_the_dead(|_| false, 1 << 40);
        let gc = block_on(client.gc(&mut |_| ())).expect("a node");
        assert!(!gc.held_up && gc.more, "{gc:?}");
    }
}
