//! A board for simulated clients. It keeps watch over memory that came back: whoever touches it before
//! its client uses it again fails the test.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use fastrand::Rng;
use swarm_core::fabric::{Board, Fabric, Replaced};
use swarm_core::layout::{Site, buffer, register};
use swarm_core::sim::SimFabric;
use swarm_core::words::{GRANULE_WORDS, Pointer};

/// Who has operations under way, and since when.
#[derive(Default)]
pub(crate) struct Notes {
    /// How often the epoch moved on.
    moves: Cell<u64>,
    /// How often clients were told to forget places.
    generation: Cell<u64>,
    /// How often chunks went from one client to another, or back to the heap map.
    passed_on: Cell<u64>,
    /// Tasks of each client that are at work.
    working: RefCell<HashMap<usize, usize>>,
    seats: RefCell<Vec<Chair>>,
    /// Where clients hear of epochs one after the other: when they do, and how likely, each time that
    /// one of them looks.
    hearsay: Option<(RefCell<Rng>, f64)>,
    /// What clients were told, and how often it was heard. It is heard again as long as the play lasts.
    told: RefCell<Vec<(usize, Replaced)>>,
    /// Whose clients are held up at times between their look at the epoch and their mark on the board: all that
    /// happened since they had nothing under way happened in between.
    late: Option<RefCell<Rng>>,
    /// Others take their steps between two calls that a client makes within one poll.
    between: Option<RefCell<Rng>>,
    /// There, up to which epoch whoever hears of one forgets what it remembers of places.
    renewed: Cell<u64>,
}

/// What is known of a seat.
struct Chair {
    client: usize,
    slot: usize,
    /// Since when it has operations under way, or 0.
    since: u64,
    /// The epoch that it has heard of.
    heard: u64,
    /// The epoch in which all its operations under way began at the earliest, as it has said.
    reached: u64,
    /// How often it was told to forget places.
    generation: u64,
    /// Up to which epoch it has asked the others to forget.
    renewed: u64,
    /// The epoch that it was when it had nothing under way any more.
    left: u64,
    /// Whether its client has left its slot.
    gone: bool,
}

impl Notes {
    /// A board of which clients hear by messages, as behind RDMA cards.
    pub(crate) fn by_hearsay(mut rng: Rng) -> Self {
        let likely = [0.05, 0.2, 0.5][rng.usize(..3)];
        Self { hearsay: Some((RefCell::new(rng), likely)), ..Self::default() }
    }

    /// The same, and nobody hears of anything but by [`hears`](Self::hears).
    pub(crate) fn by_hand() -> Self {
        Self { hearsay: Some((RefCell::new(Rng::with_seed(0)), 0.0)), ..Self::default() }
    }

    /// This board, where clients are held up as they begin.
    pub(crate) fn with_late_ones(self, rng: Rng) -> Self {
        Self { late: Some(RefCell::new(rng)), ..self }
    }

    /// This board, where others take their steps between two calls that a client makes within one poll: some words of
    /// chains, a look at the epoch, and, rarely, another generation. What they would decide to do next they
    /// do not, as only one is polled at a time.
    pub(crate) fn with_steps_between(self, rng: Rng) -> Self {
        Self { between: Some(RefCell::new(rng)), ..self }
    }

    /// A client says how far it is, and hears of the epoch.
    pub(crate) fn hears(&self, client: usize) {
        for chair in self.seats.borrow_mut().iter_mut().filter(|chair| chair.client == client) {
            self.exchange(chair);
        }
    }

    fn exchange(&self, chair: &mut Chair) {
        if chair.since == 0 || chair.since == chair.heard {
            chair.reached = chair.heard;
        }
        self.renewed.set(self.renewed.get().max(chair.renewed));
        if chair.heard < self.epoch() {
            chair.heard += 1;
            chair.generation += u64::from(self.renewed.get() >= chair.heard);
        }
    }

    /// A client has left its slot.
    pub(crate) fn leaves(&self, client: usize) {
        for chair in self.seats.borrow_mut().iter_mut().filter(|chair| chair.client == client) {
            chair.gone = true;
        }
    }

    /// The epoch that it is.
    pub(crate) fn epoch(&self) -> u64 {
        self.moves.get() + 1
    }

    /// How often chunks went from one client to another, or back to the heap map.
    pub(crate) fn passed_on(&self) -> u64 {
        self.passed_on.get()
    }

    fn works(&self, client: usize) -> bool {
        self.working.borrow().get(&client).is_some_and(|&tasks| tasks > 0)
    }

    /// Some say how far they are, and hear of the epoch.
    fn gossip(&self) {
        let Some((dice, likely)) = &self.hearsay else { return };
        for chair in self.seats.borrow_mut().iter_mut() {
            if dice.borrow_mut().f64() < *likely {
                self.exchange(chair);
            }
        }
    }
}

/// A board that simulated clients share.
pub(crate) struct Seat {
    notes: Rc<Notes>,
    /// Tells who is dead.
    world: SimFabric,
    seat: usize,
}

impl Seat {
    pub(crate) fn new(notes: &Rc<Notes>, world: SimFabric, client: usize) -> Self {
        Self::in_slot(client, notes, world, client)
    }

    /// The same in another slot than the one of the client's number.
    pub(crate) fn in_slot(slot: usize, notes: &Rc<Notes>, world: SimFabric, client: usize) -> Self {
        let mut seats = notes.seats.borrow_mut();
        let heard = notes.epoch();
        let (since, reached, generation, renewed) = Default::default();
        let left = heard;
        let gone = false;
        seats.push(Chair { client, slot, since, heard, reached, generation, renewed, left, gone });
        let seat = seats.len() - 1;
        Self { notes: Rc::clone(notes), world, seat }
    }

    /// The epoch that it is as this client knows it.
    fn now(&self) -> u64 {
        if self.hears() { self.chair(|chair| chair.heard) } else { self.notes.epoch() }
    }

    fn hears(&self) -> bool {
        self.notes.hearsay.is_some()
    }

    fn chair<T>(&self, work: impl FnOnce(&mut Chair) -> T) -> T {
        work(&mut self.notes.seats.borrow_mut()[self.seat])
    }

    /// What others do before this call.
    fn others_go_on(&self) {
        let Some(dice) = &self.notes.between else { return };
        let mut dice = dice.borrow_mut();
        if dice.u8(..4) == 0 {
            self.world.go_on(dice.u8(1..8));
        }
        if dice.u8(..8) == 0 {
            self.look();
        }
        if dice.u8(..128) == 0 && !self.hears() {
            self.notes.generation.set(self.notes.generation.get() + 1);
        }
    }

    /// Moves on to the next epoch if nobody is in the way of it.
    fn look(&self) {
        let epoch = self.notes.epoch();
        let over = |chair: &Chair| {
            let says_so = match self.notes.hearsay {
                None => chair.since == 0 || chair.since == epoch,
                Some(_) => chair.reached == epoch,
            };
            // One that has left is not there to say so once its chains are over.
            let has_left = !self.notes.works(chair.client) && self.world.is_still(chair.client);
            says_so || has_left || self.world.is_gone(chair.client)
        };
        if self.notes.seats.borrow().iter().all(over) {
            self.notes.moves.set(epoch);
        }
    }
}

impl Board for Seat {
    fn enter(&self) -> u64 {
        self.others_go_on();
        self.notes.gossip();
        let is_late = self.notes.late.as_ref().is_some_and(|dice| dice.borrow_mut().u8(..4) == 0);
        let seen = if is_late { self.chair(|chair| chair.left) } else { self.now() };
        self.remain(seen);
        seen
    }

    fn remain(&self, epoch: u64) {
        self.chair(|chair| chair.since = epoch);
    }

    fn leave(&self) {
        self.others_go_on();
        self.remain(0);
        let left = self.now();
        self.chair(|chair| chair.left = left);
    }

    fn epoch(&self) -> u64 {
        self.others_go_on();
        self.now()
    }

    fn latest(&self) -> u64 {
        self.others_go_on();
        self.now() + u64::from(self.hears())
    }

    fn generation(&self) -> u64 {
        self.others_go_on();
        // Who asks too early, while it is not there for others, may be told of none.
        if self.chair(|chair| chair.since) == 0 {
            return 0;
        }
        self.notes.generation.get() + self.chair(|chair| chair.generation)
    }

    fn renew(&self) {
        self.others_go_on();
        self.world.note("begins another generation");
        if self.hears() {
            let until = self.now() + 2;
            self.chair(|chair| chair.renewed = until);
        } else {
            self.notes.generation.set(self.notes.generation.get() + 1);
        }
    }

    fn keeps_watch(&self) -> bool {
        true
    }

    fn reclaimed(&self, memory: &Site) {
        // Up to a buffer's value, a record's payload; a register's slots and identity, and at home up to the value in
        // place. Away from there a bucket's cell has no more room.
        let at = |node| {
            let words = match memory.place.home {
                _ if memory.is_alike() => buffer::HEADER_WORDS,
                home if node == home => register::VALUE,
                _ => register::STATE_WORDS,
            };
            let first = memory.place.at(node, self.world.nodes()).0;
            (node, first..first + words as u64)
        };
        self.world.note(format_args!("has {:?} again", memory.place.pointer));
        self.world.forbid(memory.holders.map(at).collect());
    }

    fn passed_on(&self, first: Pointer, granules: u64) {
        let words = GRANULE_WORDS as u64;
        self.notes.passed_on.set(self.notes.passed_on() + 1);
        self.world.note(format_args!("passes on {granules} granules from {first:?} on"));
        self.world.permit(first.0 * words..(first.0 + granules) * words);
    }

    fn is_attached(&self, slot: usize) -> bool {
        let holds =
            |chair: &Chair| chair.slot == slot && !chair.gone && !self.world.is_gone(chair.client);
        self.notes.seats.borrow().iter().any(holds)
    }

    fn tell(&self, slot: usize, replaced: Replaced) {
        self.notes.told.borrow_mut().push((slot, replaced));
    }

    fn told(&self, each: &mut dyn FnMut(Replaced)) {
        let slot = self.chair(|chair| chair.slot);
        let told = self.notes.told.borrow();
        told.iter().filter(|(of, _)| *of == slot).for_each(|(_, replaced)| each(*replaced));
    }

    fn advance(&self) -> u64 {
        self.others_go_on();
        self.notes.gossip();
        self.look();
        self.now()
    }
}

/// A task that is at work.
pub(crate) struct Works(Rc<Notes>, usize);

impl Works {
    pub(crate) fn new(notes: &Rc<Notes>, client: usize) -> Self {
        *notes.working.borrow_mut().entry(client).or_default() += 1;
        Self(Rc::clone(notes), client)
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        *self.0.working.borrow_mut().entry(self.1).or_default() -= 1;
    }
}
