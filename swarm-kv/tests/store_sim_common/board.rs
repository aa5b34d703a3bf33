//! A board for simulated clients. It keeps watch over memory that came back: whoever touches it before
//! its client uses it again fails the test.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use swarm_core::epoch::Board;
use swarm_core::fabric::Fabric;
use swarm_core::layout::{Place, buffer, register};
use swarm_core::node_set::NodeSet;
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
    /// Of each seat: whose it is, and since when, or 0.
    seats: RefCell<Vec<(usize, u64)>>,
}

impl Notes {
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
        let mut seats = notes.seats.borrow_mut();
        seats.push((client, 0));
        let seat = seats.len() - 1;
        Self { notes: Rc::clone(notes), world, seat }
    }
}

impl Board for Seat {
    fn enter(&self) -> u64 {
        self.remain(self.epoch());
        self.epoch()
    }

    fn remain(&self, epoch: u64) {
        self.notes.seats.borrow_mut()[self.seat].1 = epoch;
    }

    fn leave(&self) {
        self.remain(0);
    }

    fn epoch(&self) -> u64 {
        self.notes.epoch()
    }

    fn generation(&self) -> u64 {
        self.notes.generation.get()
    }

    fn renew(&self) {
        self.world.note("begins another generation");
        self.notes.generation.set(self.generation() + 1);
    }

    fn reclaimed(&self, memory: &Place) {
        // Up to a buffer's value, a record's payload; from a register's slots to its header.
        let words = if memory.stride == 0 { buffer::HEADER_WORDS } else { register::KEY };
        let at = |node| {
            let first = memory.at(node, self.world.nodes()).0;
            (node, first..first + words as u64)
        };
        self.world.note(format_args!("has {:?} again", memory.pointer));
        self.world.forbid(NodeSet::all(self.world.nodes()).map(at).collect());
    }

    fn passed_on(&self, first: Pointer, granules: u64) {
        let words = GRANULE_WORDS as u64;
        self.notes.passed_on.set(self.notes.passed_on() + 1);
        self.world.note(format_args!("passes on {granules} granules from {first:?} on"));
        self.world.permit(first.0 * words..(first.0 + granules) * words);
    }

    fn is_attached(&self, slot: usize) -> bool {
        self.notes.seats.borrow().iter().any(|&(client, _)| client == slot)
            && !self.world.is_gone(slot)
    }

    fn advance(&self) -> u64 {
        let epoch = self.epoch();
        let seats = self.notes.seats.borrow();
        let over = |&(client, since): &(usize, u64)| {
            // One that has left is not there to say so once its chains are over.
            let has_left = !self.notes.works(client) && self.world.is_still(client);
            since == 0 || since == epoch || has_left || self.world.is_gone(client)
        };
        if seats.iter().all(over) {
            self.notes.moves.set(epoch);
        }
        self.epoch()
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
