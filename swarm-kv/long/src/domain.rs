//! An epoch table for simulated clients. It poisons reclaimed memory: an access before its client
//! reuses it fails the test.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use fastrand::Rng;
use swarm_core::fabric::{EpochDomain, Fabric, RemoteFree};
use swarm_core::layout::{ReplicaSet, buffer, register};
use swarm_core::node::NodeId;
use swarm_core::sim::SimFabric;
use swarm_core::words::{GRANULE_WORDS, Incarnation, Pointer};

/// Which clients are pinned, and since when.
#[derive(Default)]
pub struct Notes {
    /// How often the epoch advanced.
    moves: Cell<u64>,
    /// How often cached locations were invalidated.
    generation: Cell<u64>,
    /// How often chunks changed owners, or were released to the chunk map.
    passed_on: Cell<u64>,
    /// Tasks of each client that are at work.
    working: RefCell<HashMap<usize, usize>>,
    seats: RefCell<Vec<SimEpochs>>,
    /// If clients learn of epochs one after the other: when they do, and how likely, at each access
    /// of one of them.
    delayed: Option<(RefCell<Rng>, f64)>,
    /// Remote-free hints, by client. Each is delivered again as long as the run lasts.
    outcome: RefCell<Vec<(usize, RemoteFree)>>,
    /// If clients are sometimes delayed between reading the epoch and storing it in the epoch
    /// table: all that happened since they last unpinned happened in between.
    late: Option<RefCell<Rng>>,
    /// If other clients take steps between two calls that a client makes within one poll.
    between: Option<RefCell<Rng>>,
    /// In that case, the epoch up to which clients that learn of one invalidate their cached
    /// locations.
    renewed: Cell<u64>,
}

/// What is known of a seat.
struct SimEpochs {
    client: usize,
    slot: usize,
    /// The epoch since which it is pinned, or 0.
    since: u64,
    /// The last epoch that it knows of.
    known: u64,
    /// The epoch that it has reported as reached: all its operations in progress began in it or
    /// later.
    reached: u64,
    /// How often its cached locations were invalidated.
    generation: u64,
    /// Up to which epoch it has asked the others to invalidate theirs.
    renewed: u64,
    /// The epoch when it last unpinned.
    left: u64,
    /// Whether its client has left its slot.
    gone: bool,
}

impl Notes {
    /// Makes an epoch table that clients learn of by messages, as behind RDMA cards.
    pub fn with_delays(mut rng: Rng) -> Self {
        let likely = [0.05, 0.2, 0.5][rng.usize(..3)];
        Self { delayed: Some((RefCell::new(rng), likely)), ..Self::default() }
    }

    /// The same, where clients learn of epochs only by [`is_informed`](Self::is_informed).
    pub fn by_hand() -> Self {
        Self { delayed: Some((RefCell::new(Rng::with_seed(0)), 0.0)), ..Self::default() }
    }

    /// Returns this epoch table, with clients that are delayed as they pin.
    pub fn with_late_ones(self, rng: Rng) -> Self {
        Self { late: Some(RefCell::new(rng)), ..self }
    }

    /// Returns this epoch table, where others take steps between two calls that a client makes
    /// within one poll: some words of chains, a reading of the epoch, and, rarely, another
    /// generation. They do not decide what to do next, as only one is polled at a time.
    pub fn with_steps_between(self, rng: Rng) -> Self {
        Self { between: Some(RefCell::new(rng)), ..self }
    }

    /// A client reports its epoch, and learns of the current one.
    pub fn is_informed(&self, client: usize) {
        for with_epochs_of in self
            .seats
            .borrow_mut()
            .iter_mut()
            .filter(|with_epochs_of| with_epochs_of.client == client)
        {
            self.exchange(with_epochs_of);
        }
    }

    fn exchange(&self, with_epochs_of: &mut SimEpochs) {
        if with_epochs_of.since == 0 || with_epochs_of.since == with_epochs_of.known {
            with_epochs_of.reached = with_epochs_of.known;
        }
        self.renewed.set(self.renewed.get().max(with_epochs_of.renewed));
        if with_epochs_of.known < self.epoch() {
            with_epochs_of.known += 1;
            with_epochs_of.generation += u64::from(self.renewed.get() >= with_epochs_of.known);
        }
    }

    /// A client has left its slot.
    pub fn leaves(&self, client: usize) {
        for with_epochs_of in self
            .seats
            .borrow_mut()
            .iter_mut()
            .filter(|with_epochs_of| with_epochs_of.client == client)
        {
            with_epochs_of.gone = true;
        }
    }

    /// Returns the epoch.
    pub fn epoch(&self) -> u64 {
        self.moves.get() + 1
    }

    /// Returns how often chunks changed owners, or were released to the chunk map.
    pub fn passed_on(&self) -> u64 {
        self.passed_on.get()
    }

    fn works(&self, client: usize) -> bool {
        self.working.borrow().get(&client).is_some_and(|&tasks| tasks > 0)
    }

    /// Some clients report their epochs, and learn of the current one.
    fn gossip(&self) {
        let Some((dice, likely)) = &self.delayed else { return };
        for with_epochs_of in self.seats.borrow_mut().iter_mut() {
            if dice.borrow_mut().f64() < *likely {
                self.exchange(with_epochs_of);
            }
        }
    }
}

/// Returns which of the simulator's nodes are or were this one.
pub type Lives = Rc<dyn Fn(NodeId) -> Vec<NodeId>>;

/// An epoch table that simulated clients share.
pub struct SimParticipant {
    notes: Rc<Notes>,
    /// Knows which clients are dead.
    world: SimFabric,
    participant: usize,
    /// Where nodes are replaced: how many the pool has, and which of the simulator's nodes are or
    /// were this one.
    pub lives: Option<(usize, Lives)>,
}

impl SimParticipant {
    /// Makes the one of a client, in the slot of its number.
    pub fn new(notes: &Rc<Notes>, world: SimFabric, client: usize) -> Self {
        Self::in_slot(client, notes, world, client)
    }

    /// The same in another slot than the one of the client's number.
    pub fn in_slot(slot: usize, notes: &Rc<Notes>, world: SimFabric, client: usize) -> Self {
        let mut seats = notes.seats.borrow_mut();
        let known = notes.epoch();
        let (since, reached, generation, renewed) = Default::default();
        let left = known;
        let gone = false;
        seats.push(SimEpochs {
            client,
            slot,
            since,
            known,
            reached,
            generation,
            renewed,
            left,
            gone,
        });
        let participant = seats.len() - 1;
        Self { notes: Rc::clone(notes), world, participant, lives: None }
    }

    /// Returns the epoch that this client knows of.
    fn now(&self) -> u64 {
        if self.is_informed() {
            self.with_epochs_of(|with_epochs_of| with_epochs_of.known)
        } else {
            self.notes.epoch()
        }
    }

    fn is_informed(&self) -> bool {
        self.notes.delayed.is_some()
    }

    fn with_epochs_of<T>(&self, work: impl FnOnce(&mut SimEpochs) -> T) -> T {
        work(&mut self.notes.seats.borrow_mut()[self.participant])
    }

    /// Runs what others do before this call.
    fn others_go_on(&self) {
        let Some(dice) = &self.notes.between else { return };
        let mut dice = dice.borrow_mut();
        if dice.u8(..4) == 0 {
            self.world.go_on(dice.u8(1..8));
        }
        if dice.u8(..8) == 0 {
            self.look();
        }
        if dice.u8(..128) == 0 && !self.is_informed() {
            self.notes.generation.set(self.notes.generation.get() + 1);
        }
    }

    /// Advances the epoch if no client holds it up.
    fn look(&self) {
        let epoch = self.notes.epoch();
        let over = |with_epochs_of: &SimEpochs| {
            let says_so = match self.notes.delayed {
                None => with_epochs_of.since == 0 || with_epochs_of.since == epoch,
                Some(_) => with_epochs_of.reached == epoch,
            };
            // A client that has left cannot report that its chains are over.
            let has_left = !self.notes.works(with_epochs_of.client)
                && self.world.is_still(with_epochs_of.client);
            says_so || has_left || self.world.is_gone(with_epochs_of.client)
        };
        if self.notes.seats.borrow().iter().all(over) {
            self.notes.moves.set(epoch);
        }
    }
}

impl EpochDomain for SimParticipant {
    fn pin(&self) -> u64 {
        self.others_go_on();
        self.notes.gossip();
        let is_late = self.notes.late.as_ref().is_some_and(|dice| dice.borrow_mut().u8(..4) == 0);
        let seen = if is_late {
            self.with_epochs_of(|with_epochs_of| with_epochs_of.left)
        } else {
            self.now()
        };
        self.repin(seen);
        seen
    }

    fn repin(&self, epoch: u64) {
        self.with_epochs_of(|with_epochs_of| with_epochs_of.since = epoch);
    }

    fn unpin(&self) {
        self.others_go_on();
        self.repin(0);
        let left = self.now();
        self.with_epochs_of(|with_epochs_of| with_epochs_of.left = left);
    }

    fn epoch(&self) -> u64 {
        self.others_go_on();
        self.now()
    }

    fn epoch_bound(&self) -> u64 {
        self.others_go_on();
        self.now() + u64::from(self.is_informed())
    }

    fn generation(&self) -> u64 {
        self.others_go_on();
        // A client that asks while it is not pinned may get no new generation.
        if self.with_epochs_of(|with_epochs_of| with_epochs_of.since) == 0 {
            return 0;
        }
        self.notes.generation.get()
            + self.with_epochs_of(|with_epochs_of| with_epochs_of.generation)
    }

    fn new_generation(&self) {
        self.others_go_on();
        self.world.note("begins another generation");
        if self.is_informed() {
            let until = self.now() + 2;
            self.with_epochs_of(|with_epochs_of| with_epochs_of.renewed = until);
        } else {
            self.notes.generation.set(self.notes.generation.get() + 1);
        }
    }

    fn keeps_watch(&self) -> bool {
        true
    }

    fn reclaimed(&self, memory: &ReplicaSet) {
        // Up to a buffer's value or a record's payload; a register's slots and identity, and at
        // home up to the value in place. Elsewhere a bucket's cell has no more room.
        let nodes = self.lives.as_ref().map_or(self.world.nodes(), |(nodes, _)| *nodes);
        let at = |node| {
            let words = match memory.place.home {
                _ if memory.is_alike() => buffer::HEADER_WORDS,
                home if node == home => register::VALUE,
                _ => register::STATE_WORDS,
            };
            let first = memory.place.at(node, nodes).0;
            let physical = self.lives.as_ref().map_or(vec![node], |(_, lives)| lives(node));
            physical.into_iter().map(move |node| (node, first..first + words as u64))
        };
        self.world.note(format_args!("has {:?} again", memory.place.pointer));
        self.world.forbid(memory.holders.flat_map(at).collect());
    }

    fn passed_on(&self, first: Pointer, granules: u64) {
        let words = GRANULE_WORDS as u64;
        self.notes.passed_on.set(self.notes.passed_on() + 1);
        self.world.note(format_args!("passes on {granules} granules from {first:?} on"));
        self.world.permit(first.0 * words..(first.0 + granules) * words);
    }

    fn is_attached(&self, slot: usize) -> bool {
        let holds = |with_epochs_of: &SimEpochs| {
            with_epochs_of.slot == slot
                && !with_epochs_of.gone
                && !self.world.is_gone(with_epochs_of.client)
        };
        self.notes.seats.borrow().iter().any(holds)
    }

    /// Clients attach with the session of their number and one. One that is dead, and of which nothing is under
    /// way, has ended; one that left its slot has, too.
    fn is_gone(&self, slot: usize, session: Incarnation) -> bool {
        let seats = self.notes.seats.borrow();
        let is_it = |it: &&SimEpochs| (it.slot, it.client as u64 + 1) == (slot, session.0);
        seats.iter().find(is_it).is_some_and(|it| it.gone || self.world.is_gone(it.client))
    }

    fn send_remote_free(&self, slot: usize, replaced: RemoteFree) {
        self.notes.outcome.borrow_mut().push((slot, replaced));
    }

    fn drain_remote_frees(&self, each: &mut dyn FnMut(RemoteFree)) {
        let slot = self.with_epochs_of(|with_epochs_of| with_epochs_of.slot);
        let outcome = self.notes.outcome.borrow();
        outcome.iter().filter(|(of, _)| *of == slot).for_each(|(_, replaced)| each(*replaced));
    }

    fn try_advance(&self) -> u64 {
        self.others_go_on();
        self.notes.gossip();
        self.look();
        self.now()
    }
}

/// A task that is at work.
pub struct Works(Rc<Notes>, usize);

impl Works {
    /// The client has one more, until this is dropped.
    pub fn new(notes: &Rc<Notes>, client: usize) -> Self {
        *notes.working.borrow_mut().entry(client).or_default() += 1;
        Self(Rc::clone(notes), client)
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        *self.0.working.borrow_mut().entry(self.1).or_default() -= 1;
    }
}
