//! The board in the control file: who has operations under way, and since which epoch.
//!
//! A client slot's word there is 0 while its holder does nothing, or else the epoch in which the
//! oldest of its operations began. The holder alone stores to it, at the beginning and the end of
//! its operations; who wants to move the epoch on READs them all.
//!
//! The full fence behind the exchange at the beginning, and the one in front of those reads, pair:
//! either whoever moves the epoch on sees that the operation is under way, or the operation sees all
//! that took effect before, so that it cannot come across what was retired by then.

use std::cell::Cell;

use swarm_core::epoch::{Board, Replaced};

use crate::attachment::Attachment;
use crate::control::{self, Control};
use crate::lock;
use crate::mailbox;
use crate::mapping::Window;
use crate::pool::Pool;
use crate::sync::{Ordering, Word, fence, fence_behind_cas};

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
        let epoch = self.epoch();
        let word = &self.own.words()[0];
        // Release: pairs with the acquire in `advance`, for what this client did before. An exchange
        // rather than a store, because on x86-64 the fence behind it then costs nothing more.
        word.swap(epoch, Ordering::Release);
        fence_behind_cas();
        epoch
    }

    fn remain(&self, epoch: u64) {
        self.own.words()[0].store(epoch, Ordering::Release);
    }

    #[inline]
    fn leave(&self) {
        // Release: pairs with the acquire in `advance`. Whoever uses memory again stores there
        // behind all that this client did.
        self.own.words()[0].store(0, Ordering::Release);
    }

    #[inline]
    fn epoch(&self) -> u64 {
        // Acquire: pairs with the release in `advance`, for those who did not look at the others'
        // words themselves.
        self.epoch.words()[0].load(Ordering::Acquire) + 1
    }

    #[inline]
    fn generation(&self) -> u64 {
        // Ordered by the fences of `enter` and `renew`; both words are in one cache line.
        self.epoch.words()[GENERATION].load(Ordering::Relaxed)
    }

    fn renew(&self) {
        self.epoch.words()[GENERATION].fetch_add(1, Ordering::AcqRel);
        // In front of reading the epoch: who enters in a later one than is read behind this meets
        // the generation.
        fence(Ordering::SeqCst);
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

    fn advance(&self) -> u64 {
        let epoch = self.epoch();
        fence(Ordering::SeqCst);
        for slot in 0..self.pool.geometry().max_clients {
            let word = &self.pool.control().mapping().words()[control::board(slot)];
            let since = word.load(Ordering::Acquire);
            if since != 0 && since != epoch && !self.is_dead(slot) {
                return epoch;
            }
        }
        // One step only: another client may have looked, and moved on, meanwhile.
        let word = &self.epoch.words()[0];
        match word.compare_exchange(epoch - 1, epoch, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => epoch + 1,
            Err(now) => now + 1,
        }
    }
}
