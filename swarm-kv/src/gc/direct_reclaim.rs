//! Direct reclaim: what an operation does that finds no memory (E11).
//!
//! Most memory is reclaimed as clients write (see [`reclaimer`](crate::heap::reclaim::reclaimer)).
//! An operation without memory tries these sources in order, before it reports a full pool. First,
//! what is being reclaimed already. Then chunks of dead clients; its own chunks, by a [GC
//! cycle](crate::gc::mark_sweep), and other clients' chunks with room for objects of that size.
//! Then its own empty chunks, for objects of another size, and those of others. Then sparse shared
//! chunks, and its own sparse chunks once their objects have [moved](crate::gc::evacuate). Last,
//! chunks that others took over and do not use.
//!
//! The operation starts over each time. Its client is not pinned meanwhile: memory is reclaimed
//! only when operations have ended.
//!
//! While a node is silent, most of this is of no use: GC cycles and zeroing take an answer of every
//! node. A search asks such a node once whether it is back. If it is not, the search goes without
//! what that node would have to answer for.

use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, Fabric, Verb};
use swarm_core::node::NodeSet;
use swarm_core::register::Protocol;

use crate::client::gc_state::FailedReclaim;
use crate::client::handle::Client;
use crate::error::{Error, Shortage};
use crate::gc::assist::RECORD_BATCHES;
use crate::gc::mark_sweep::{GcResult, LONG_STEP, Progress};
use crate::heap::{ObjectKind, Purpose};
use crate::runtime::local_mutex::LocalMutexGuard;
use crate::runtime::wait_budget::WaitBudget;

/// Nanoseconds between looks at whether other clients' operations have ended.
pub(crate) const PAUSE: u64 = 100_000;

/// Nanoseconds for which a failed search is remembered, at most: other clients delete keys. A
/// search that waited for others in vain is remembered for longer, unless those have made progress
/// since.
const LONGEST_BELIEF: u64 = 10_000_000;
/// How often a search tries all steps.
const ROUNDS: usize = 3;

/// A step of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Take over chunks of dead clients.
    Vacant,
    /// Collect garbage. Each cycle may find what the one before has unmapped.
    Collect,
    /// Steal chunks with room for such objects, or for the records that the last cycle lacked.
    Alike,
    /// Release empty chunks, for objects of another size.
    Empty,
    /// Steal chunks for other objects in which nothing is reachable.
    Share,
    /// Take shared chunks for other objects in which little is reachable.
    Sparse,
    /// Move what is reachable out of sparse chunks. A GC cycle and a release follow.
    Evacuate,
    /// Take half-transferred chunks, whose new owners may be idle or dead.
    Stranded,
}

impl Step {
    /// Whether the step yields chunks of which only a GC cycle shows what is in use.
    fn brings_chunks(self) -> bool {
        !matches!(self, Self::Collect | Self::Empty | Self::Evacuate)
    }
}

const STEPS: [Step; 14] = {
    use Step::{Alike, Collect, Empty, Evacuate, Share, Sparse, Stranded, Vacant};
    [
        Vacant, Collect, Alike, Collect, Empty, Share, Collect, Empty, Sparse, Collect, Evacuate,
        Collect, Empty, Stranded,
    ]
};
/// Steps after an evacuation that are of no use without it.
const BEHIND_IT: usize = 2;

/// The state of an operation's search for memory.
struct ReclaimAttempt {
    /// When it began.
    since: u64,
    /// How many steps were taken.
    steps: usize,
    /// Whether they found anything: other clients may have used it first.
    found: bool,
    /// How often all steps were taken.
    rounds: usize,
    /// How long it waits for others.
    stall: WaitBudget,
    /// What is looked for.
    wanted: Option<(ObjectKind, Purpose)>,
    /// Whether a GC cycle may find something: this search has run none to its end, or the last one
    /// promised more, or the client has gained chunks since.
    promises: bool,
    /// Whether the last cycle lacked memory for buckets' records.
    lacked_records: bool,
    /// Whether a node did not answer that was asked whether it is back.
    misses_a_node: bool,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Runs `operation`, which needs memory. Starts it over if there is none, as long as memory is
    /// being reclaimed.
    pub(crate) async fn with_memory<T>(
        &self,
        operation: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let now = self.group.clock().now();
        let mut search = ReclaimAttempt {
            since: now,
            steps: 0,
            found: false,
            rounds: 0,
            stall: self.stall(now),
            wanted: None,
            promises: true,
            lacked_records: false,
            misses_a_node: false,
        };
        loop {
            let pin = self.pin();
            let full = match operation().await {
                Err(full @ Error::Full(_)) => full,
                // The operation has taken effect in part: it is not started over.
                Err(unsettled @ Error::Unsettled(_)) => {
                    drop(pin);
                    return Err(self.held_up(unsettled));
                }
                outcome => return outcome,
            };
            drop(pin);
            if !self.find_memory(&mut search).await? {
                return Err(self.held_up(full));
            }
        }
    }

    /// Adds to an error for want of memory the client whose operation blocks reclamation: one that
    /// was waited for in vain and is still under way, or that is stopped. The operation that ends in
    /// the error is not pinned any more.
    #[cold]
    pub(crate) fn held_up(&self, full: Error) -> Error {
        let (Error::Full(shortage) | Error::Unsettled(shortage), Some(participant)) =
            (full, &self.participant)
        else {
            return full;
        };
        let domain = participant.domain();
        let last = self.failed_reclaim.get().and_then(|last| last.held_up);
        let in_vain = last == Some(domain.epoch());
        // An operation that has just begun does not block reclamation for long. One that this client
        // has not waited for, as it met a move, or its search found no use in waiting, may be slow;
        // but what does not go on by itself blocks it whatever else was found.
        let least = if in_vain { self.memory_wait / 2 } else { self.memory_wait };
        let laggard = domain.laggard(least).filter(|it| in_vain || it.state.is_halted());
        let shortage = Shortage { held_up: laggard, ..shortage };
        if let Error::Full(_) = full { Error::Full(shortage) } else { Error::Unsettled(shortage) }
    }

    /// The same for an operation that is pinned itself: it waits for no end of its own.
    #[cold]
    pub(crate) fn held_up_by_others(&self, full: Error) -> Error {
        let mut held_up = self.held_up(full);
        if let Error::Full(shortage) | Error::Unsettled(shortage) = &mut held_up {
            shortage.held_up = shortage.held_up.filter(|laggard| !laggard.is_own);
        }
        held_up
    }

    /// Runs a whole GC cycle on this client's chunks, and frees what can be reused. Returns how
    /// many unreachable objects it found, or `None` if other clients' operations take too long:
    /// then the next call continues.
    ///
    /// Clients do so by themselves before they report a full pool. A program may call this when it
    /// is idle, so that no operation has to wait for a cycle. Costs a roundtrip for each key of the
    /// pool, two for each bucket, and some for each of this client's objects whose content it does
    /// not know. Waits for operations that other clients have under way, but not for those that
    /// begin meanwhile.
    ///
    /// # Cancel safety
    /// Nothing is lost; the next call starts over or continues.
    ///
    /// # Errors
    /// If not all memory nodes answer: objects that a dead node may still name are not reused.
    pub async fn collect(&self) -> Result<Option<usize>, Error> {
        self.in_own_process(self.collect_alone()).await
    }

    async fn collect_alone(&self) -> Result<Option<usize>, Error> {
        let _alone = self.search_alone().await?;
        let mut stall = self.stall(self.group.clock().now());
        let found = self.collect_garbage(&mut stall, || {}).await?;
        self.memory_back(NodeSet::EMPTY).await?;
        Ok(found.map(|found| found.garbage))
    }

    /// Waits until no other operation of this client searches for memory.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if one that does makes no progress.
    pub(crate) async fn search_alone(&self) -> Result<LocalMutexGuard<'_>, Error> {
        self.searching.enter_within(self.group.clock(), self.longest_wait()).await
    }

    /// Runs a GC cycle to its end and returns its result, or `None` if other clients make no
    /// progress for longer than that. Calls `before_step` before each step.
    pub(crate) async fn collect_garbage(
        &self,
        stall: &mut WaitBudget,
        mut before_step: impl FnMut(),
    ) -> Result<Option<GcResult>, Error> {
        loop {
            self.searching.goes_on();
            before_step();
            match self.gc_step(LONG_STEP).await? {
                Progress::Going => self.records_back().await?,
                Progress::Waiting => {
                    if !self.give_way(stall).await {
                        return Ok(None);
                    }
                }
                Progress::Done(collected) => {
                    self.heap.is_collected(self.group.clock().now());
                    return Ok(Some(collected));
                }
            }
        }
    }

    /// Searches for memory. Returns whether some may be free now.
    #[cold]
    async fn find_memory(&self, search: &mut ReclaimAttempt) -> Result<bool, Error> {
        let Some(participant) = &self.participant else { return Ok(false) };
        search.wanted = self.heap.wanted();
        let _alone = self.search_alone().await?;
        let suspects = self.group.suspects();
        if self.memory_back(suspects).await? {
            return Ok(true);
        }
        let now = self.group.clock().now();
        let (wanted, epoch) = (search.wanted, participant.domain().epoch());
        let is_believed = |last: FailedReclaim| {
            let gone_on = last.held_up.is_some_and(|held_up| held_up != epoch);
            wanted == Some(last.wanted) && now < last.until && !gone_on
        };
        if search.steps + search.rounds == 0 && self.failed_reclaim.get().is_some_and(is_believed) {
            return Ok(false);
        }
        if !suspects.is_empty() && !search.misses_a_node {
            search.misses_a_node = !self.are_back(suspects).await;
            if !search.misses_a_node && self.memory_back(NodeSet::EMPTY).await? {
                return Ok(true);
            }
        }
        let waits = self.heap.waits(epoch, self.silent(search));
        if waits && self.give_way(&mut search.stall).await {
            // Nothing more is reclaimed before the epoch advances. Other clients may free some:
            // another try is worthwhile once as much time again has passed.
            let until = now.saturating_add(now.saturating_sub(search.since));
            while participant.domain().try_advance() == epoch
                && self.group.clock().now() < until
                && self.give_way(&mut search.stall).await
            {
                participant.unpin_completed(self.group.fabric());
            }
            return Ok(true);
        }
        if let Some((kind, _)) = wanted {
            self.heap.open_for(kind);
        }
        loop {
            let Some(&step) = STEPS.get(search.steps) else {
                search.rounds += 1;
                if !std::mem::take(&mut search.found) || search.rounds == ROUNDS {
                    break;
                }
                search.steps = 0;
                continue;
            };
            search.steps += 1;
            self.searching.goes_on();
            match self.take_step(step, search).await {
                Ok(true) => {
                    search.promises |= step.brings_chunks();
                    return Ok(true);
                }
                Err(Error::Full(_)) if self.awaits_map_records(search).await? => {
                    search.steps -= 1;
                    return Ok(true);
                }
                // Taking chunks changes the chunk map, which takes write numbers.
                Err(Error::NumbersExhausted) if self.finds_numbers() => search.steps -= 1,
                // If a node does not answer, or there is no record for the chunk map, other steps
                // may help.
                Err(Error::Replication(_)) if step == Step::Collect => search.misses_a_node = true,
                Ok(false) | Err(Error::Replication(_) | Error::Full(_) | Error::Contended) => {}
                Err(error) => return Err(error),
            }
        }
        // A pool that stays full is searched half of the time at most, or once in a while.
        let (now, epoch) = (self.group.clock().now(), participant.domain().epoch());
        let took = now.saturating_sub(search.since);
        let held_up = search.stall.is_over().then_some(epoch);
        let until = now + if held_up.is_some() { took } else { took.min(LONGEST_BELIEF) };
        self.failed_reclaim.set(wanted.map(|wanted| FailedReclaim { wanted, until, held_up }));
        Ok(false)
    }

    /// Starts a wait for other clients.
    pub(crate) fn stall(&self, now: u64) -> WaitBudget {
        WaitBudget::new(self.memory_wait, now, self.epoch())
    }

    /// Returns the epoch; 0 for a client without an epoch domain.
    pub(crate) fn epoch(&self) -> u64 {
        self.participant.as_ref().map_or(0, |participant| participant.domain().epoch())
    }

    /// Waits a little for other clients' operations; returns false once they have made no progress
    /// for too long. Yields the processor: with more clients than processors, a pinned client may
    /// need this very one, and polling on would keep it from running.
    pub(crate) async fn give_way(&self, stall: &mut WaitBudget) -> bool {
        if !stall.goes_on(self.group.clock().now(), self.epoch()) {
            return false;
        }
        // Operations of this client that wait for this search see that it makes progress.
        self.searching.goes_on();
        if let Some(participant) = &self.participant {
            participant.domain().end_halted();
        }
        std::thread::yield_now();
        self.group.pause(PAUSE).await;
        true
    }

    /// Whether chunk-map records, which a step lacked, are being reclaimed.
    async fn awaits_map_records(&self, search: &mut ReclaimAttempt) -> Result<bool, Error> {
        let Some(participant) = &self.participant else { return Ok(false) };
        if search.stall.is_over() {
            return Ok(false);
        }
        if self.memory_back(self.silent(search)).await? {
            return Ok(true);
        }
        let waits = self.heap.waits(participant.domain().epoch(), self.silent(search));
        Ok(waits && self.give_way(&mut search.stall).await)
    }

    /// Takes a step of a search. Returns whether it promises memory.
    async fn take_step(&self, step: Step, search: &mut ReclaimAttempt) -> Result<bool, Error> {
        let (Some(participant), Some(wanted)) = (&self.participant, search.wanted) else {
            return Ok(false);
        };
        let domain = participant.domain();
        match step {
            Step::Collect | Step::Sparse | Step::Evacuate if search.misses_a_node => Ok(false),
            // A write that replaces a value finds the memory that this frees.
            Step::Sparse if wanted.1 != Purpose::Insert => Ok(false),
            Step::Evacuate if wanted.1 == Purpose::Replace && wanted.0.is_of_values() => Ok(false),
            // It walks the whole index, and would find what the last cycle found.
            Step::Collect if !search.promises => Ok(false),
            Step::Collect => {
                let before = self.heap.reclaimer.reclaimed();
                let collected = self.collect_garbage(&mut search.stall, || {}).await?;
                // Garbage that a cycle finds makes no more of it. What others replace meanwhile is for
                // updates (E11): a new key need not wait for another walk over the index.
                let is_insert = wanted.1 == Purpose::Insert;
                search.promises =
                    collected.is_none_or(|it| it.more || it.garbage > 0 && !is_insert);
                let collected = collected.unwrap_or_default();
                search.found |= collected.garbage > 0 || collected.more;
                search.lacked_records = collected.lacked_records;
                self.records_back().await?;
                // Memory that was reclaimed meanwhile was none of its garbage.
                let came_back = self.heap.reclaimer.reclaimed() > before;
                let waits = self.heap.waits(domain.epoch(), self.silent(search));
                Ok(collected.garbage > 0 || came_back || waits)
            }
            Step::Vacant => {
                let _pin = self.pin();
                // The slot's previous client may have left chunks half-transferred.
                let taken = self.heap.take_vacant(&self.group, domain).await?;
                self.heap.announce(domain);
                Ok(taken || self.heap.is_taking())
            }
            Step::Alike => {
                let _pin = self.pin();
                let mut taken = self.heap.steal_room(&self.group, wanted.0).await?;
                if !taken && search.lacked_records && self.heap.has_few_records() {
                    taken = self.heap.steal_room(&self.group, self.heap.entries_records()).await?;
                    search.found |= taken;
                }
                self.heap.announce(domain);
                Ok(taken)
            }
            Step::Share => {
                let _pin = self.pin();
                let taken = self.heap.steal_unreachable(&self.group, wanted.0).await?;
                self.heap.announce(domain);
                Ok(taken)
            }
            Step::Evacuate => {
                if self.evacuate(wanted.0).await? {
                    search.promises = true;
                } else {
                    search.steps += BEHIND_IT;
                }
                Ok(false)
            }
            Step::Sparse => {
                let _pin = self.pin();
                let taken = self.heap.take_sparse(&self.group, wanted.0).await?;
                self.heap.announce(domain);
                Ok(taken)
            }
            Step::Stranded => {
                let _pin = self.pin();
                let taken = self.heap.take_stranded(&self.group).await?;
                search.found |= taken;
                self.heap.announce(domain);
                Ok(taken)
            }
            Step::Empty => {
                let _pin = self.pin();
                let left = self.heap.release_empty(&self.group, domain, wanted).await?;
                search.found |= left;
                Ok(left)
            }
        }
    }

    /// Returns the nodes that a search goes without: what they hold is not reclaimed.
    fn silent(&self, search: &ReclaimAttempt) -> NodeSet {
        if search.misses_a_node { self.group.suspects() } else { NodeSet::EMPTY }
    }

    /// Whether all of these nodes answer. One roundtrip.
    async fn are_back(&self, nodes: NodeSet) -> bool {
        let (map, n) = (self.geometry.map_cell(), self.geometry.nodes);
        let look = |node| [Verb::Read { at: map.at(node, n), words: 1 }];
        let asked = self.group.at_all_of(
            nodes,
            |node| self.group.fabric().post(node, &look(node)),
            |_, _| {},
        );
        asked.await.is_ok()
    }

    /// Zeroes and frees what can be, except what nodes in `silent` hold, and makes chunks that were
    /// taken over this client's own. Returns whether there is any.
    pub(crate) async fn memory_back(&self, silent: NodeSet) -> Result<bool, Error> {
        or_none(self.some_memory_back(usize::MAX, silent).await)
    }

    /// Frees replaced records of buckets between the steps of a GC cycle, which takes some, while
    /// [few](crate::heap::Heap::awaits_records) must do for all buckets, one after the other.
    pub(crate) async fn records_back(&self) -> Result<(), Error> {
        if !self.heap.awaits_records() {
            return Ok(());
        }
        self.replaced_back().await
    }

    /// Frees records of buckets that were replaced and that no operation can reach.
    pub(crate) async fn replaced_back(&self) -> Result<(), Error> {
        let back = async {
            self.check_records().await?;
            self.some_memory_back(RECORD_BATCHES, NodeSet::EMPTY).await
        };
        or_none(back.await).map(drop)
    }

    /// The same with at most `batches` batches of objects to zero, of one roundtrip each, and
    /// nothing that takes an answer of nodes in `silent`.
    ///
    /// # Errors
    /// If not all nodes answer, or there is no memory for the chunk map's record. Nothing is lost
    /// by it.
    pub(crate) async fn some_memory_back(
        &self,
        batches: usize,
        silent: NodeSet,
    ) -> Result<bool, Error> {
        let Some(participant) = &self.participant else { return Ok(false) };
        participant.unpin_completed(self.group.fabric());
        let domain = participant.domain();
        domain.try_advance();
        let _pin = self.pin();
        self.heap.know_own(&self.group).await?;
        let recalled = match silent.is_empty() {
            true => self.heap.recall_bootstrap_records(&self.group, domain).await,
            false => Ok(()),
        };
        let epoch = domain.epoch();
        let each = |place: &_| domain.reclaimed(place);
        let reset = self.heap.reset_due(&self.group, (epoch, batches, silent), each).await;
        // Chunks that were taken over become this client's own even while a node is silent whose
        // answer zeroing would need.
        let own = self.with_numbers(async || self.heap.make_own(&self.group, domain).await).await?;
        recalled?;
        Ok(reset? > 0 || own)
    }
}

/// Turns a failure that only means that no memory was freed into `false`: a node does not answer,
/// which pins what it may still name, or the chunk map cannot be changed.
fn or_none(back: Result<bool, Error>) -> Result<bool, Error> {
    match back {
        Err(Error::Replication(_) | Error::Full(_) | Error::Contended) => Ok(false),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::fabric::{Laggard, LaggardState};
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;
    use crate::heap::tests::{Watched, still};

    /// An epoch domain whose epoch another client, or this one, has blocked for a time.
    #[derive(Clone)]
    struct Blocked(Rc<Cell<(LaggardState, bool, u64)>>);

    impl EpochDomain for Blocked {
        fn pin(&self) -> u64 {
            7
        }
        fn repin(&self, _: u64) {}
        fn unpin(&self) {}
        fn epoch(&self) -> u64 {
            7
        }
        fn generation(&self) -> u64 {
            0
        }
        fn new_generation(&self) {}
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn try_advance(&self) -> u64 {
            7
        }
        fn laggard(&self, least: u64) -> Option<Laggard> {
            let (state, is_own, age) = self.0.get();
            let (process, nanoseconds) = (Some(71), Some(age));
            let laggard = Laggard { slot: 3, is_own, process, state, since: 6, nanoseconds };
            (age >= least).then_some(laggard)
        }
    }

    /// A write that met a move searches for no memory itself, and a search that finds nothing to
    /// wait for does not wait. Their errors named nobody, and advised to delete keys.
    #[test]
    fn a_stopped_client_is_named_whatever_was_waited_for() {
        let blocked = Blocked(Rc::new(Cell::new((LaggardState::Stopped, false, 1000))));
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let fabric = Watched::new(Loopback::new(1, 4 << 17), |_| false);
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let options = Options::default().memory_wait(1000);
        let client: Client<_, _> = Client::new(fabric, still(), geometry, session, options);
        let client = client.with_epochs(Box::new(blocked.clone()));
        let shortage = Shortage { object: 64, capacity: 4096, held_up: None, cannot_claim: false };
        let reachable = |state, is_own, age| {
            blocked.0.set((state, is_own, age));
            [Error::Full(shortage), Error::Unsettled(shortage)].map(|error| {
                let outcome = [client.held_up(error), client.held_up_by_others(error)];
                outcome.map(|error| match error {
                    Error::Full(it) | Error::Unsettled(it) => it.held_up.is_some(),
                    other => panic!("{other}"),
                })
            })
        };
        let (nobody, somebody) = ([[false; 2]; 2], [[true; 2]; 2]);
        assert_eq!(reachable(LaggardState::Stopped, false, 1000), somebody);
        assert_eq!(reachable(LaggardState::Frozen, false, 1000), somebody);
        assert_eq!(reachable(LaggardState::Stopped, false, 999), nobody, "not for long");
        for state in [LaggardState::Running, LaggardState::Elsewhere, LaggardState::Unknown] {
            assert_eq!(reachable(state, false, 1000), nobody, "it may be slow: {state:?}");
        }
        // A search has waited for it in vain.
        let wanted = (client.heap.entries_records(), Purpose::Insert);
        let last = FailedReclaim { wanted, until: 0, held_up: Some(7) };
        client.failed_reclaim.set(Some(last));
        assert_eq!(reachable(LaggardState::Running, false, 500), somebody);
        assert_eq!(reachable(LaggardState::Running, false, 499), nobody);
        assert_eq!(reachable(LaggardState::Running, true, 500), [[true, false]; 2]);
        client.failed_reclaim.set(Some(FailedReclaim { held_up: Some(6), ..last }));
        assert_eq!(reachable(LaggardState::Running, false, 1000), nobody, "it has gone on since");
    }
}
