//! What a client does when memory runs out.
//!
//! Most memory comes back by itself, as clients write (see [`recycle`](crate::heap::recycle)). An
//! operation that finds none looks for more before it reports a full pool, each place only if those
//! before had none: what is on its way back; chunks whose slots have no holder; its own chunks, by a
//! [collection](crate::collect), and others' with room for objects of that size; those of its own in which
//! nothing is in use any more, for objects of another size; such of others; its own chunks in which little is in use, once
//! that has [moved](crate::evacuate), and such that clients share; last, what others took over and do not use.
//!
//! The operation begins again each time. None of this happens while it is under way: memory comes
//! back only when operations are over.
//!
//! Where a node is silent, most of this is of no use: what a collection finds, and what is reset, takes an answer
//! of every node. A search asks such a node once whether it is back, and goes without what it would have to
//! answer for.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Board, Fabric, Verb};
use swarm_core::node::NodeSet;
use swarm_core::register::Protocol;

use crate::aside::RECORD_BATCHES;
use crate::client::Client;
use crate::collect::{Collected, LONG_STEP, Progress};
use crate::error::{Error, Shortage};
use crate::gate::Inside;
use crate::heap::{Kind, Need};
use crate::stall::Stall;

/// Nanoseconds between looks at whether others' operations are over.
pub(crate) const PAUSE: u64 = 100_000;

/// Nanoseconds at most for which a search that found nothing is believed: others delete keys. One that
/// waited for others in vain is believed for longer, unless those have gone on since.
const LONGEST_BELIEF: u64 = 10_000_000;
/// Times that a search tries all there is.
const ROUNDS: usize = 3;

/// What a search tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Chunks whose slots have no holder.
    Vacant,
    /// Garbage. Each time some may come to light that the time before has unmapped.
    Collect,
    /// Others' chunks with room for such objects, or for the records that the last collection lacked.
    Alike,
    /// Chunks in which nothing is in use, for objects of another size.
    Empty,
    /// Others' chunks for other objects in which nothing is named.
    Share,
    /// Chunks that clients share, for other objects, in which little is named.
    Sparse,
    /// Chunks in which little is in use: what is named there moves out of them. Garbage and empty chunks are looked for
    /// behind that.
    Evacuate,
    /// What others took over and have not made their own: they may be idle, or have died in between.
    Stranded,
}

impl Step {
    /// Whether what it yields are chunks, of which only a collection tells what is in use there.
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
/// Steps behind an evacuation that are of no use without it.
const BEHIND_IT: usize = 2;

/// How far an operation's search for memory has come.
struct Search {
    /// When it began.
    since: u64,
    /// How many steps were taken.
    steps: usize,
    /// Whether they found anything: others may have been quicker to use it.
    found: bool,
    /// How often all steps were taken.
    rounds: usize,
    /// How long it waits for others.
    stall: Stall,
    /// What is looked for.
    wanted: Option<(Kind, Need)>,
    /// Whether a collection may find something: none of this search is over, or the last one promised more, or chunks
    /// came to this client since.
    promises: bool,
    /// Whether the last collection lacked memory for buckets' records.
    lacked_records: bool,
    /// Whether a node did not answer that was asked whether it is back.
    misses_a_node: bool,
}

/// A search that found nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fruitless {
    /// What was looked for.
    wanted: (Kind, Need),
    /// Until when it is believed.
    until: u64,
    /// The epoch that others held up, if it waited for them in vain.
    held_up: Option<u64>,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// What `operation` comes to, which needs memory. Begins it again where there is none, as long as
    /// memory is coming back.
    pub(crate) async fn with_memory<T>(
        &self,
        operation: impl AsyncFn() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let now = self.group.clock().now();
        let mut search = Search {
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
            let here = self.here();
            let full = match operation().await {
                Err(full @ Error::Full(_)) => full,
                // What was begun is not to be begun again.
                Err(unsettled @ Error::Unsettled(_)) => return Err(self.held_up(unsettled)),
                told => return told,
            };
            drop(here);
            if !self.find_memory(&mut search).await? {
                return Err(self.held_up(full));
            }
        }
    }

    /// The error, where it is for want of memory, with the client whose operation holds back what would have come back,
    /// if that was waited for in vain and still does.
    #[cold]
    pub(crate) fn held_up(&self, full: Error) -> Error {
        let (Error::Full(shortage) | Error::Unsettled(shortage), Some(presence)) =
            (full, &self.presence)
        else {
            return full;
        };
        let board = presence.board();
        let in_vain = self.fruitless.get().and_then(|last| last.held_up);
        if in_vain != Some(board.epoch()) {
            return full;
        }
        // Whoever has just begun something is in nobody's way for long.
        let is_long = |nanoseconds: u64| nanoseconds.saturating_mul(2) >= self.memory_wait;
        let laggard = board.laggard().filter(|laggard| laggard.nanoseconds.is_some_and(is_long));
        let shortage = Shortage { held_up: laggard, ..shortage };
        if let Error::Full(_) = full { Error::Full(shortage) } else { Error::Unsettled(shortage) }
    }

    /// Looks for garbage in all that this client's chunks hold, and takes in what can be used again.
    /// Yields how many objects were found, or nothing if others' operations take too long: then the
    /// next call goes on.
    ///
    /// Clients do so by themselves before they report a full pool; for a program that has nothing
    /// better to do, so that no operation has to wait for it. Takes a roundtrip for each key of the
    /// pool and two for each bucket, and some for each of this client's objects of which it does not
    /// know what they hold. Waits for operations that others have under way, but not for those that
    /// begin meanwhile.
    ///
    /// # Cancel safety
    /// Nothing is lost, and the next one begins anew or goes on.
    ///
    /// # Errors
    /// Not all memory nodes answer: what one that is dead may still name is not used again.
    pub async fn collect(&self) -> Result<Option<usize>, Error> {
        self.in_own_process(self.collect_alone()).await
    }

    async fn collect_alone(&self) -> Result<Option<usize>, Error> {
        let _alone = self.search_alone().await?;
        let mut stall = self.stall(self.group.clock().now());
        let found = self.collect_garbage(&mut stall).await?;
        self.memory_back(NodeSet::EMPTY).await?;
        Ok(found.map(|found| found.garbage))
    }

    /// Waits until no other operation of this client looks for memory.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if one does that does not go on.
    async fn search_alone(&self) -> Result<Inside<'_>, Error> {
        self.searching.enter_within(self.group.clock(), self.longest_wait()).await
    }

    /// What there was. Nothing if others stand still for longer than that.
    async fn collect_garbage(&self, stall: &mut Stall) -> Result<Option<Collected>, Error> {
        loop {
            self.searching.goes_on();
            match self.collect_step(LONG_STEP).await? {
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

    /// Whether some memory may have come back.
    #[cold]
    async fn find_memory(&self, search: &mut Search) -> Result<bool, Error> {
        let Some(presence) = &self.presence else { return Ok(false) };
        search.wanted = self.heap.wanted();
        let _alone = self.search_alone().await?;
        let suspects = self.group.suspects();
        if self.memory_back(suspects).await? {
            return Ok(true);
        }
        let now = self.group.clock().now();
        let (wanted, epoch) = (search.wanted, presence.board().epoch());
        let is_believed = |last: Fruitless| {
            let gone_on = last.held_up.is_some_and(|held_up| held_up != epoch);
            wanted == Some(last.wanted) && now < last.until && !gone_on
        };
        if search.steps + search.rounds == 0 && self.fruitless.get().is_some_and(is_believed) {
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
            // Nothing comes back by itself before the epoch moves on. Others may free some: it is worth another try when
            // as much time again has passed.
            let until = now.saturating_add(now.saturating_sub(search.since));
            while presence.board().advance() == epoch
                && self.group.clock().now() < until
                && self.give_way(&mut search.stall).await
            {
                presence.settle(self.group.fabric());
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
                // It takes changes of the heap map.
                Err(Error::Spent) if self.finds_numbers() => search.steps -= 1,
                // Without an answer of every node, and a record for the heap map, there are other
                // steps.
                Err(Error::Replication(_)) if step == Step::Collect => search.misses_a_node = true,
                Ok(false) | Err(Error::Replication(_) | Error::Full(_) | Error::Contended) => {}
                Err(error) => return Err(error),
            }
        }
        // A pool that stays full is searched half of the time at most, or once in a while.
        let (now, epoch) = (self.group.clock().now(), presence.board().epoch());
        let took = now.saturating_sub(search.since);
        let held_up = search.stall.is_over().then_some(epoch);
        let until = now + if held_up.is_some() { took } else { took.min(LONGEST_BELIEF) };
        self.fruitless.set(wanted.map(|wanted| Fruitless { wanted, until, held_up }));
        Ok(false)
    }

    /// A wait for others that begins now.
    fn stall(&self, now: u64) -> Stall {
        Stall::new(self.memory_wait, now, self.epoch())
    }

    /// The epoch that it is; 0 for a client that is on no board.
    fn epoch(&self) -> u64 {
        self.presence.as_ref().map_or(0, |presence| presence.board().epoch())
    }

    /// Lets some time pass for others' operations, unless they have stood still for too long; whether it did. Whoever
    /// is in the middle of one may need this very processor: where there are more clients than processors, to go on
    /// looking would keep it from him until his turn comes.
    async fn give_way(&self, stall: &mut Stall) -> bool {
        if !stall.goes_on(self.group.clock().now(), self.epoch()) {
            return false;
        }
        // Whoever of this client waits for this search sees that it goes on.
        self.searching.goes_on();
        std::thread::yield_now();
        self.group.pause(PAUSE).await;
        true
    }

    /// Whether records for the heap map are on their way back, which a step lacked.
    async fn awaits_map_records(&self, search: &mut Search) -> Result<bool, Error> {
        let Some(presence) = &self.presence else { return Ok(false) };
        if search.stall.is_over() {
            return Ok(false);
        }
        if self.memory_back(self.silent(search)).await? {
            return Ok(true);
        }
        let waits = self.heap.waits(presence.board().epoch(), self.silent(search));
        Ok(waits && self.give_way(&mut search.stall).await)
    }

    /// Whether a step of a search promises memory.
    async fn take_step(&self, step: Step, search: &mut Search) -> Result<bool, Error> {
        let (Some(presence), Some(wanted)) = (&self.presence, search.wanted) else {
            return Ok(false);
        };
        let board = presence.board();
        match step {
            Step::Collect | Step::Sparse | Step::Evacuate if search.misses_a_node => Ok(false),
            // What takes another's place finds what that leaves.
            Step::Sparse if wanted.1 != Need::More => Ok(false),
            Step::Evacuate if wanted.1 == Need::Instead && wanted.0.is_of_values() => Ok(false),
            // It goes over the whole index, and would find what the last one found.
            Step::Collect if !search.promises => Ok(false),
            Step::Collect => {
                let before = self.heap.recycler.reclaimed();
                let collected = self.collect_garbage(&mut search.stall).await?;
                search.promises = collected.is_none_or(|it| it.garbage > 0 || it.more);
                let collected = collected.unwrap_or_default();
                search.found |= collected.garbage > 0 || collected.more;
                search.lacked_records = collected.lacked_records;
                self.records_back().await?;
                // What came back by itself meanwhile was none of its garbage.
                let came_back = self.heap.recycler.reclaimed() > before;
                let waits = self.heap.waits(board.epoch(), self.silent(search));
                Ok(collected.garbage > 0 || came_back || waits)
            }
            Step::Vacant => {
                let _here = self.here();
                // Whoever had the slot before may have left some half-way.
                let taken = self.heap.take_vacant(&self.group, board).await?;
                self.heap.announce(board);
                Ok(taken || self.heap.is_taking())
            }
            Step::Alike => {
                let _here = self.here();
                let mut taken = self.heap.take_room(&self.group, wanted.0).await?;
                if !taken && search.lacked_records && self.heap.has_few_records() {
                    taken = self.heap.take_room(&self.group, self.heap.entries_records()).await?;
                    search.found |= taken;
                }
                self.heap.announce(board);
                Ok(taken)
            }
            Step::Share => {
                let _here = self.here();
                let taken = self.heap.take_unnamed(&self.group, wanted.0).await?;
                self.heap.announce(board);
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
                let _here = self.here();
                let taken = self.heap.take_sparse(&self.group, wanted.0).await?;
                self.heap.announce(board);
                Ok(taken)
            }
            Step::Stranded => {
                let _here = self.here();
                let taken = self.heap.take_stranded(&self.group).await?;
                search.found |= taken;
                self.heap.announce(board);
                Ok(taken)
            }
            Step::Empty => {
                let _here = self.here();
                let left = self.heap.leave_empty(&self.group, board, wanted).await?;
                search.found |= left;
                Ok(left)
            }
        }
    }

    /// Nodes that a search goes without: what they hold does not come back.
    fn silent(&self, search: &Search) -> NodeSet {
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

    /// Takes in what came back and has to be reset, but for what nodes hold that are `silent`, and what was taken
    /// over. Yields whether there is any.
    async fn memory_back(&self, silent: NodeSet) -> Result<bool, Error> {
        or_none(self.some_memory_back(usize::MAX, silent).await)
    }

    /// Takes in records of buckets that come back, where [few](crate::heap::Heap::awaits_records) must do for all
    /// buckets, one after the other: between the steps of a collection, which takes some.
    pub(crate) async fn records_back(&self) -> Result<(), Error> {
        if !self.heap.awaits_records() {
            return Ok(());
        }
        self.replaced_back().await
    }

    /// Takes in records of buckets that were replaced, as far as nobody holds them any more.
    pub(crate) async fn replaced_back(&self) -> Result<(), Error> {
        let back = async {
            self.look_for_records().await?;
            self.some_memory_back(RECORD_BATCHES, NodeSet::EMPTY).await
        };
        or_none(back.await).map(drop)
    }

    /// The same with at most so many batches of what has to be reset, of a roundtrip each, and nothing that takes
    /// an answer of nodes that are `silent`.
    ///
    /// # Errors
    /// Not all nodes answer; no memory for the heap map's record. Nothing is lost by it.
    pub(crate) async fn some_memory_back(
        &self,
        batches: usize,
        silent: NodeSet,
    ) -> Result<bool, Error> {
        let Some(presence) = &self.presence else { return Ok(false) };
        presence.settle(self.group.fabric());
        let board = presence.board();
        board.advance();
        let _here = self.here();
        self.heap.know_own(&self.group).await?;
        let recalled = match silent.is_empty() {
            true => self.heap.recall_seeds(&self.group, board).await,
            false => Ok(()),
        };
        let epoch = board.epoch();
        let each = |place: &_| board.reclaimed(place);
        let reset = self.heap.reset_due(&self.group, (epoch, batches, silent), each).await;
        // What was taken over is this client's also where a node is silent, of which a reset needs an answer.
        let own = self.with_numbers(async || self.heap.make_own(&self.group, board).await).await?;
        recalled?;
        Ok(reset? > 0 || own)
    }
}

/// Whether memory came back; none where a node does not answer, as that pins what it may still name, or where the heap
/// map cannot be changed.
fn or_none(back: Result<bool, Error>) -> Result<bool, Error> {
    match back {
        Err(Error::Replication(_) | Error::Full(_) | Error::Contended) => Ok(false),
        told => told,
    }
}
