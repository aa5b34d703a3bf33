//! The epoch table in the control file: which clients are pinned, and since which
//! [epoch](crate::words::epochs). Each client slot has a word there.

use std::cell::Cell;

use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, Laggard, LaggardState, Lost, RemoteFree};
use swarm_core::words::Incarnation;

use crate::clients::incarnation::next_incarnation;
use crate::clients::list::ClientInfo;
use crate::clients::slot::ClientSlot;
use crate::clients::wait;
use crate::clients::watch::Watch;
use crate::clock::PoolClock;
use crate::files::control::{self, Control, GENERATION};
use crate::files::mapping::Window;
use crate::files::range_lock;
use crate::pool::Pool;
use crate::processes::halt::stopped_in_part;
use crate::processes::state::ClientState;
use crate::words::epochs;
use crate::words::remote_free;
use crate::words::sync::{Ordering, Word, fence};
use crate::words::waits;

/// The word that says since when it is this epoch: `[ the epoch's last bits 16 | milliseconds 48
/// ]`, of the pool's clock. The first client that needs memory in the epoch stores it. It says
/// nothing of another epoch.
const AGE: usize = 2;
/// Bits of the time in it.
const AGE_BITS: u32 = 48;
const MILLISECOND: u64 = 1_000_000;

/// The pool's epoch table, as the client in one slot sees it.
#[derive(Debug)]
pub struct ShmEpochs {
    pool: Pool,
    /// The word that counts epochs, and those after it.
    epoch: Window<[Word; AGE + 1]>,
    /// The words on which clients sleep that wait for keys.
    waits: Window<[Word; waits::WORDS]>,
    /// This client's word.
    own: Window<[Word; 1]>,
    slot: usize,
    /// How many entries of its remote-free queue it has read.
    drained: Cell<u64>,
    /// When it checks whether the pool still exists.
    watch: Watch,
    /// Whether a node's file was found to be another than the one that this client has mapped.
    is_replaced: Cell<bool>,
    clock: PoolClock,
}

impl ShmEpochs {
    /// Makes the epoch table for the owner of `attachment`.
    pub(crate) fn new(attachment: &ClientSlot) -> Self {
        let pool = attachment.pool().clone();
        let mapping = pool.control().mapping();
        let epoch = Window::few(mapping, control::EPOCH);
        let waits = Window::few(mapping, control::WAIT_WORDS);
        let slot = attachment.session().client;
        let own = Window::few(mapping, control::epoch_word(slot));
        let clock = pool.clock();
        let watch = Watch::new(clock.now());
        let (drained, is_replaced) = (Cell::new(0), Cell::new(false));
        Self { pool, epoch, waits, own, slot, drained, watch, is_replaced, clock }
    }

    /// Records since when it is this epoch, unless another client has.
    fn note_age(&self, epoch: u64) {
        let word = &self.epoch.words()[AGE];
        // Relaxed throughout: for display, and the word publishes nothing else.
        let known = word.load(Ordering::Relaxed);
        if is_of(known, epoch) {
            return;
        }
        let time = (self.pool.clock().now() / MILLISECOND) & ((1 << AGE_BITS) - 1);
        // A client that was delayed here finds another word.
        let _ = word.compare_exchange(
            known,
            (epoch << AGE_BITS) | time,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    fn remote_free_queue(&self, slot: usize) -> &[Word] {
        &self.pool.control().mapping().words()[control::remote_free_queue(slot)..]
            [..remote_free::WORDS]
    }

    /// Returns whether the control file is gone or cut short, or a node's file was replaced. Raises
    /// the event counts if not (S10).
    #[cold]
    fn is_amiss(&self) -> bool {
        let control = self.pool.control();
        if control.fate().is_some() {
            return true;
        }
        // The client that destroys the pool begins another generation itself, and a device may soon
        // be another pool's.
        if !control.says_destroyed() && self.pool.raise_events().is_some() {
            self.is_replaced.set(true);
        }
        self.is_replaced.get()
    }

    /// Returns whether the slot's owner is dead. The kernel knows.
    #[cold]
    fn is_dead(&self, slot: usize) -> bool {
        let bytes = Control::slot_bytes(slot..slot + 1);
        range_lock::is_locked(self.pool.control().file(), bytes).is_ok_and(|locked| !locked)
    }
}

/// Returns whether a client goes on by itself.
fn state_of(tenant: &ClientInfo) -> LaggardState {
    match tenant.condition {
        ClientState::Stopped => LaggardState::Stopped,
        ClientState::Frozen => LaggardState::Frozen,
        _ if tenant.elsewhere => LaggardState::Elsewhere,
        _ => LaggardState::Running,
    }
}

/// Returns whether a word says since when it is this epoch.
fn is_of(word: u64, epoch: u64) -> bool {
    word != 0 && word >> AGE_BITS == epoch & (u64::MAX >> AGE_BITS)
}

impl Pool {
    /// Returns for at least how many nanoseconds the epoch has not advanced: since a client that
    /// needed memory first found it. `None` if none has.
    pub fn epoch_age(&self) -> Option<u64> {
        let word = self.control().mapping().words()[control::EPOCH + AGE].load(Ordering::Relaxed);
        let began = (word & ((1 << AGE_BITS) - 1)) * MILLISECOND;
        is_of(word, self.epoch()).then(|| self.clock().now().saturating_sub(began))
    }
}

impl EpochDomain for ShmEpochs {
    #[inline]
    fn pin(&self) -> u64 {
        epochs::pin(&self.epoch.words()[0], &self.own.words()[0])
    }

    #[inline]
    fn pin_beside(&self) -> u64 {
        epochs::pin_beside(&self.epoch.words()[0])
    }

    fn repin(&self, epoch: u64) {
        epochs::remain(&self.own.words()[0], epoch);
    }

    #[inline]
    fn unpin(&self) {
        epochs::unpin(&self.own.words()[0]);
    }

    #[inline]
    fn epoch(&self) -> u64 {
        epochs::epoch(&self.epoch.words()[0])
    }

    #[inline]
    fn generation(&self) -> u64 {
        epochs::generation(&self.epoch.words()[GENERATION])
    }

    /// Reads the clock, and makes one system call twice a second. If the control file is gone or
    /// cut short, all clients that have the pool mapped find another generation (S8). The same if a
    /// node's file is not the one that this client has mapped: others vote with contents that this
    /// one does not see. Copies of nodes' files that are made now are older than the nodes at the
    /// next call (S10).
    fn look(&self) -> bool {
        let (is_due, is_brisk) = self.watch.look(self.clock.now());
        if is_due && self.is_amiss() {
            self.new_generation();
        }
        is_brisk
    }

    fn lost(&self) -> Option<Lost> {
        let control = self.pool.control();
        // S8: pairs with the release of `renew`, after the mark: a client that finds that
        // generation finds the mark. If the generation is that of a lost control file's pages, the
        // loss was marked before (`sigbus`).
        fence(Ordering::Acquire);
        if control.says_destroyed() {
            return Some(Lost::Destroyed);
        }
        control.fate().or_else(|| self.is_replaced.get().then_some(Lost::Removed))
    }

    fn new_generation(&self) {
        epochs::renew(&self.epoch.words()[GENERATION]);
    }

    fn is_attached(&self, slot: usize) -> bool {
        !self.is_dead(slot)
    }

    #[inline(always)]
    fn wake(&self, hash: u64) {
        let word = &self.waits.words()[waits::place_of(hash)];
        if waits::any_wait(word) {
            wait::wake(word);
        }
    }

    fn is_gone(&self, slot: usize, session: Incarnation) -> bool {
        self.pool.is_gone(slot, session)
    }

    fn send_remote_free(&self, slot: usize, replaced: RemoteFree) {
        if slot < self.pool.geometry().max_clients {
            remote_free::push(self.remote_free_queue(slot), replaced);
        }
    }

    fn drain_remote_frees(&self, each: &mut dyn FnMut(RemoteFree)) {
        self.drained.set(remote_free::drain(
            self.remote_free_queue(self.slot),
            self.drained.get(),
            each,
        ));
    }

    fn incarnation(&self) -> Option<Incarnation> {
        next_incarnation(&self.pool).ok()
    }

    fn try_advance(&self) -> u64 {
        let words = self.pool.control().mapping().words();
        let slots = self.pool.geometry().max_clients;
        let clients = (0..slots).map(|slot| &words[control::epoch_word(slot)]);
        // S11: if the control file is lost, clients' words are zeros. The standstill word is read
        // after the epoch. If the epoch is from the replacement pages, so is that word; if the
        // epoch is the file's own, the CAS changes no other epoch.
        let words = clients.chain([&words[control::STANDSTILL]]);
        let is_dead = |slot| slot < slots && self.is_dead(slot);
        let epoch = epochs::advance(&self.epoch.words()[0], words, is_dead);
        self.note_age(epoch);
        epoch
    }

    fn laggard(&self, least: u64) -> Option<Laggard> {
        let (epoch, age) = (self.epoch(), self.pool.epoch_age());
        // Before any system call: a client that has just begun is no laggard.
        if age.unwrap_or(0) < least {
            return None;
        }
        let is_behind = |slot: &usize| {
            let since = self.pool.control().mapping().words()[control::epoch_word(*slot)]
                .load(Ordering::Acquire);
            since != 0 && since < epoch
        };
        let slots = (0..self.pool.geometry().max_clients).filter(is_behind);
        let tenants = slots.filter_map(|slot| self.pool.tenant(slot));
        let behind = tenants
            .filter_map(|tenant| Some((tenant, tenant.since.filter(|&since| since < epoch)?)))
            .min_by_key(|(tenant, since)| (!state_of(tenant).is_halted(), *since));
        behind.map(|(tenant, since)| Laggard {
            slot: tenant.slot,
            is_own: tenant.slot == self.slot,
            process: Some(tenant.process),
            state: match state_of(&tenant) {
                LaggardState::Running if !stopped_in_part(tenant.process).is_empty() => {
                    LaggardState::StoppedInPart
                }
                state => state,
            },
            since,
            nanoseconds: age,
        })
    }

    fn end_halted(&self) {
        self.pool.end_halted();
    }
}
