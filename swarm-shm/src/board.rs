//! The board in the control file: who has operations under way, and since which
//! [epoch](crate::epochs). Each client slot has a word there.

use std::cell::Cell;

use swarm_core::clock::Clock;
use swarm_core::fabric::{Board, Laggard, Lost, Replaced};
use swarm_core::words::Incarnation;

use crate::attachment::{Attachment, next_incarnation};
use crate::census::Condition;
use crate::clock::PoolClock;
use crate::control::{self, Control, GENERATION};
use crate::epochs;
use crate::lock;
use crate::mailbox;
use crate::mapping::Window;
use crate::pool::Pool;
use crate::sync::{Ordering, Word, fence};
use crate::watch::Watch;

/// The word that says since when it is this epoch: `[ the epoch's last bits 16 | milliseconds 48 ]`, of the pool's
/// clock. It is put there by the first client that looks for memory in the epoch, and says nothing of another one.
const AGE: usize = 2;
/// Bits of the time in it.
const AGE_BITS: u32 = 48;
const MILLISECOND: u64 = 1_000_000;

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
    /// When it looks whether the pool is there.
    watch: Watch,
    clock: PoolClock,
}

impl PoolBoard {
    /// For the holder of `attachment`.
    pub(crate) fn new(attachment: &Attachment) -> Self {
        let pool = attachment.pool().clone();
        let mapping = pool.control().mapping();
        let epoch = Window::new(mapping, control::EPOCH);
        let slot = attachment.session().client;
        let own = Window::new(mapping, control::board(slot));
        let clock = pool.clock();
        let watch = Watch::new(clock.now());
        Self { pool, epoch, own, slot, heard: Cell::new(0), watch, clock }
    }

    /// Takes down since when it is this epoch, unless somebody has.
    fn note_age(&self, epoch: u64) {
        let word = &self.epoch.words()[AGE];
        // Relaxed throughout: for people, and the word stands for itself.
        let known = word.load(Ordering::Relaxed);
        if is_of(known, epoch) {
            return;
        }
        let time = (self.pool.clock().now() / MILLISECOND) & ((1 << AGE_BITS) - 1);
        // Who was held up here finds another word.
        let _ = word.compare_exchange(
            known,
            (epoch << AGE_BITS) | time,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
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

/// Whether a word says since when it is this epoch.
fn is_of(word: u64, epoch: u64) -> bool {
    word != 0 && word >> AGE_BITS == epoch & (u64::MAX >> AGE_BITS)
}

impl Pool {
    /// For how many nanoseconds the epoch has not moved on, at least: since a client that looked for memory met it
    /// first. Nothing if none has.
    pub fn epoch_age(&self) -> Option<u64> {
        let word = self.control().mapping().words()[control::EPOCH + AGE].load(Ordering::Relaxed);
        let began = (word & ((1 << AGE_BITS) - 1)) * MILLISECOND;
        is_of(word, self.epoch()).then(|| self.clock().now().saturating_sub(began))
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

    /// One look at the clock, and one system call twice a second. If the control file is not there, all clients that have
    /// the pool's memory meet another generation.
    fn look(&self) -> bool {
        let (is_due, is_brisk) = self.watch.look(self.clock.now());
        if is_due && self.pool.control().is_removed() {
            self.renew();
        }
        is_brisk
    }

    fn lost(&self) -> Option<Lost> {
        let control = self.pool.control();
        // Pairs with the release of `renew`, behind the mark: who meets that generation finds the mark.
        fence(Ordering::Acquire);
        if control.says_destroyed() {
            return Some(Lost::Destroyed);
        }
        control.is_removed().then_some(Lost::Removed)
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
        let epoch = epochs::advance(&self.epoch.words()[0], clients, |slot| self.is_dead(slot));
        self.note_age(epoch);
        epoch
    }

    fn laggard(&self) -> Option<Laggard> {
        let epoch = self.epoch();
        let is_behind = |slot: &usize| {
            let since = self.pool.control().mapping().words()[control::board(*slot)]
                .load(Ordering::Acquire);
            since != 0 && since < epoch
        };
        let slots = (0..self.pool.geometry().max_clients).filter(is_behind);
        let tenants = slots.filter_map(|slot| self.pool.tenant(slot));
        // One that is stopped does not go on by itself.
        let behind = tenants
            .filter_map(|tenant| Some((tenant, tenant.since.filter(|&since| since < epoch)?)))
            .min_by_key(|(tenant, since)| (tenant.condition != Condition::Stopped, *since));
        behind.map(|(tenant, since)| Laggard {
            slot: tenant.slot,
            is_own: tenant.slot == self.slot,
            process: (!tenant.elsewhere).then_some(tenant.process),
            is_stopped: tenant.condition == Condition::Stopped,
            since,
            nanoseconds: self.pool.epoch_age(),
        })
    }
}
