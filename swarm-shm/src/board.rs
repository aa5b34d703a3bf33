//! The board in the control file: who has operations under way, and since which
//! [epoch](crate::epochs). Each client slot has a word there.

use std::cell::Cell;

use swarm_core::epoch::{Board, Replaced};
use swarm_core::words::Incarnation;

use crate::attachment::{Attachment, next_incarnation};
use crate::control::{self, Control};
use crate::epochs;
use crate::lock;
use crate::mailbox;
use crate::mapping::Window;
use crate::pool::Pool;
use crate::sync::Word;

/// The word that counts generations, from the one that counts epochs.
const GENERATION: usize = 1;

/// The pool's board, as the client in one slot sees it.
#[derive(Debug)]
pub struct PoolBoard {
    pool: Pool,
    /// The word that counts epochs, and those behind it.
    epoch: Window,
    /// This client's word, and those behind it.
    own: Window,
    slot: usize,
    /// Notes of its mailbox that it has read.
    heard: Cell<u64>,
}

impl PoolBoard {
    /// For the holder of `attachment`.
    pub(crate) fn new(attachment: &Attachment) -> Self {
        let pool = attachment.pool().clone();
        let mapping = pool.control().mapping();
        let epoch = Window::new(mapping, control::EPOCH);
        let slot = attachment.session().client;
        let own = Window::new(mapping, control::board(slot));
        Self { pool, epoch, own, slot, heard: Cell::new(0) }
    }

    fn mailbox(&self, slot: usize) -> &[Word] {
        &self.pool.control().mapping().words()[control::mailbox(slot)..][..mailbox::WORDS]
    }

    /// Whether the slot's holder is dead. The kernel knows.
    #[cold]
    fn is_dead(&self, slot: usize) -> bool {
        let bytes = Control::slot_bytes(slot..slot + 1);
        lock::is_locked(self.pool.control().file(), bytes).is_ok_and(|locked| !locked)
    }
}

impl Board for PoolBoard {
    #[inline]
    fn enter(&self) -> u64 {
        epochs::enter(&self.epoch.words()[0], &self.own.words()[0])
    }

    #[inline]
    fn enter_beside(&self) -> u64 {
        epochs::enter_beside(&self.epoch.words()[0])
    }

    fn remain(&self, epoch: u64) {
        epochs::remain(&self.own.words()[0], epoch);
    }

    #[inline]
    fn leave(&self) {
        epochs::leave(&self.own.words()[0]);
    }

    #[inline]
    fn epoch(&self) -> u64 {
        epochs::epoch(&self.epoch.words()[0])
    }

    #[inline]
    fn generation(&self) -> u64 {
        epochs::generation(&self.epoch.words()[GENERATION])
    }

    fn renew(&self) {
        epochs::renew(&self.epoch.words()[GENERATION]);
    }

    fn is_attached(&self, slot: usize) -> bool {
        !self.is_dead(slot)
    }

    fn tell(&self, slot: usize, replaced: Replaced) {
        if slot < self.pool.geometry().max_clients {
            mailbox::tell(self.mailbox(slot), replaced);
        }
    }

    fn told(&self, each: &mut dyn FnMut(Replaced)) {
        self.heard.set(mailbox::told(self.mailbox(self.slot), self.heard.get(), each));
    }

    fn incarnation(&self) -> Option<Incarnation> {
        next_incarnation(self.pool.control()).ok()
    }

    fn advance(&self) -> u64 {
        let words = self.pool.control().mapping().words();
        let slots = 0..self.pool.geometry().max_clients;
        let clients = slots.map(|slot| &words[control::board(slot)]);
        epochs::advance(&self.epoch.words()[0], clients, |slot| self.is_dead(slot))
    }
}
