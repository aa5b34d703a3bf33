//! What a client learns from the epoch table is as good as a completion: two states of a race are the same only if all
//! of that is. So it is noted.

use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use swarm_core::fabric::EpochDomain;
use swarm_core::layout::ReplicaSet;
use swarm_core::words::{Incarnation, Pointer};

use crate::domain::{Notes, SimParticipant};

/// What clients reported to the epoch table and learned from it.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Of each client, a hash of all that.
    hashes: RefCell<Vec<DefaultHasher>>,
    /// Of each client, since when it has operations under way.
    since: RefCell<Vec<u64>>,
    /// How often clients had to forget places.
    generation: Cell<u64>,
}

impl Outcome {
    /// Returns a hash of all of it.
    pub(crate) fn print(&self, notes: &Notes) -> u64 {
        let mut hash = DefaultHasher::new();
        self.hashes.borrow().iter().for_each(|outcome| outcome.finish().hash(&mut hash));
        (&*self.since.borrow(), self.generation.get(), notes.epoch()).hash(&mut hash);
        hash.finish()
    }
}

/// A client's seat, with a record of its calls.
pub(crate) struct Watched {
    participant: SimParticipant,
    outcome: Rc<Outcome>,
    back: Rc<Back>,
    client: usize,
}

impl Watched {
    /// The seat of the next client, from number 0 on.
    pub(crate) fn new(participant: SimParticipant, outcome: &Rc<Outcome>, back: &Rc<Back>) -> Self {
        let mut hashes = outcome.hashes.borrow_mut();
        hashes.push(DefaultHasher::new());
        outcome.since.borrow_mut().push(0);
        let client = hashes.len() - 1;
        Self { participant, outcome: Rc::clone(outcome), back: Rc::clone(back), client }
    }

    fn note(&self, what: u8, answer: u64) -> u64 {
        (what, answer).hash(&mut self.outcome.hashes.borrow_mut()[self.client]);
        answer
    }

    fn is_there(&self, since: u64) {
        self.outcome.since.borrow_mut()[self.client] = since;
    }
}

impl EpochDomain for Watched {
    fn pin(&self) -> u64 {
        let epoch = self.participant.pin();
        self.is_there(epoch);
        self.note(0, epoch)
    }

    fn repin(&self, epoch: u64) {
        self.participant.repin(epoch);
        self.is_there(self.note(1, epoch));
    }

    fn unpin(&self) {
        self.participant.unpin();
        self.is_there(self.note(2, 0));
    }

    fn epoch(&self) -> u64 {
        self.note(3, self.participant.epoch())
    }

    fn epoch_bound(&self) -> u64 {
        self.note(8, self.participant.epoch_bound())
    }

    fn generation(&self) -> u64 {
        self.note(4, self.participant.generation())
    }

    fn new_generation(&self) {
        self.participant.new_generation();
        self.outcome.generation.set(self.outcome.generation.get() + 1);
        self.note(5, self.outcome.generation.get());
    }

    fn keeps_watch(&self) -> bool {
        true
    }

    fn reclaimed(&self, memory: &ReplicaSet) {
        let back = if memory.is_alike() { &self.back.out_of_place } else { &self.back.homed };
        back.set(back.get() + 1);
        self.participant.reclaimed(memory);
    }

    fn passed_on(&self, first: Pointer, granules: u64) {
        self.participant.passed_on(first, granules);
    }

    fn is_attached(&self, slot: usize) -> bool {
        let attached = self.participant.is_attached(slot);
        self.note(6, u64::from(attached)) == 1
    }

    fn is_gone(&self, slot: usize, session: Incarnation) -> bool {
        let gone = self.participant.is_gone(slot, session);
        self.note(9, (slot as u64) << 1 | u64::from(gone)) & 1 == 1
    }

    fn try_advance(&self) -> u64 {
        self.note(7, self.participant.try_advance())
    }
}

/// How often memory came back, in all schedules of a race together.
#[derive(Default)]
pub(crate) struct Back {
    /// Registers and cells.
    pub(crate) homed: Cell<u64>,
    /// Buffers and records.
    pub(crate) out_of_place: Cell<u64>,
}
