//! The epoch domain: what the clients of a pool share to agree on epochs.
//!
//! It holds the current epoch and generation, each client's mark with the epoch in which its oldest
//! operation began, and the remote-free hints between clients. [`epoch`](crate::epoch) builds on
//! it.

use crate::layout::ReplicaSet;
use crate::words::{Incarnation, Pointer, Stamp};

/// A hint to an object's owner that the object was superseded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RemoteFree {
    /// A record was replaced by another one.
    Record {
        /// The cell.
        cell: Pointer,
        /// The replaced record.
        record: Pointer,
    },
    /// A write was superseded by another one.
    Write {
        /// Hash of the key that it wrote.
        hash: u64,
        /// Its stamp, which names its buffer.
        stamp: Stamp,
    },
}

impl RemoteFree {
    /// Encodes it as two words. Halves of two hints form a third hint, which is no worse than a
    /// late one.
    pub fn encode(self) -> [u64; 2] {
        match self {
            Self::Record { cell, record } => [cell.0, record.0 << 1],
            Self::Write { hash, stamp } => [hash, stamp.frozen().0],
        }
    }

    /// Decodes two words.
    pub fn decode([first, second]: [u64; 2]) -> Self {
        let stamp = Stamp(second);
        if stamp.is_frozen() {
            return Self::Write { hash: first, stamp: Stamp(second & !1) };
        }
        Self::Record { cell: Pointer(first), record: Pointer(second >> 1) }
    }
}

/// A client whose operation in an earlier epoch keeps the epoch from advancing: memory retired
/// since then is not reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Laggard {
    /// Its client slot.
    pub slot: usize,
    /// Whether it is the client that asks.
    pub is_own: bool,
    /// Its process: as seen from here or, if it is [elsewhere](LaggardState::Elsewhere), as it calls
    /// itself. `None` if unknown.
    pub process: Option<u32>,
    /// Whether it goes on by itself.
    pub state: LaggardState,
    /// The epoch in which the operation began.
    pub since: u64,
    /// Nanoseconds for which the epoch has not advanced, at least; `None` if unknown.
    pub nanoseconds: Option<u64>,
}

/// What the process of a [`Laggard`] does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaggardState {
    /// It runs, or waits for something.
    Running,
    /// It was stopped, as by SIGSTOP or a debugger.
    Stopped,
    /// It was frozen with its control group, such as a paused container.
    Frozen,
    /// Some of its threads are stopped, as by a debugger, and others go on.
    StoppedInPart,
    /// It is in another pid namespace and cannot be seen from here.
    Elsewhere,
    /// It is behind a network.
    Unknown,
}

impl LaggardState {
    /// Returns whether it goes on only when another process lets it.
    pub fn is_halted(self) -> bool {
        matches!(self, Self::Stopped | Self::Frozen)
    }
}

/// What happened to a pool that no longer exists although a client still maps its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// A client destroys it, or has done so.
    Destroyed,
    /// Its files were removed or replaced.
    Removed,
    /// What its clients share besides the nodes' memory was cut short.
    CutShort,
}

/// What the clients of a pool share to agree on epochs, as one of them sees it.
///
/// Epochs count from 1.
pub trait EpochDomain {
    /// Marks that this client has operations in progress from now on, and returns the epoch of the
    /// mark. Later verbs must not take effect before the mark, as other clients see it (E2).
    /// Nothing held the epoch before the mark, so [`epoch`](Self::epoch), read after it, may be
    /// later by any number.
    fn pin(&self) -> u64;

    /// Begins an operation while others of this client are pinned in an earlier epoch, and returns
    /// its epoch. Later verbs must not take effect before this (E2).
    fn pin_beside(&self) -> u64 {
        self.epoch()
    }

    /// Marks that this client's oldest operation began in `epoch`.
    fn repin(&self, epoch: u64);

    /// Clears the mark: this client has no operations in progress. All that it did took effect
    /// before this.
    fn unpin(&self);

    /// Returns the current epoch, no earlier than at the time of the call. If clients learn of
    /// epochs one after the other, it is the one that this client knows of: the
    /// [bound](Self::epoch_bound) may be one more.
    fn epoch(&self) -> u64;

    /// Returns an epoch that no client is beyond at the time of the call. What is retired or
    /// announced to all clients now counts as of that epoch.
    fn epoch_bound(&self) -> u64 {
        self.epoch()
    }

    /// Returns the current generation: how often clients were made to invalidate remembered
    /// locations, counted from 0.
    ///
    /// Read after [`pin`](Self::pin), or while an operation is in progress, it includes every call
    /// of [`new_generation`](Self::new_generation) after which the [bound](Self::epoch_bound) was
    /// still an earlier epoch.
    fn generation(&self) -> u64;

    /// Starts another generation: operations that begin from now on, as other clients see it, do
    /// not use what was remembered before.
    fn new_generation(&self);

    /// Returns whether the pool is lost: what is written to it is never found. Called when an
    /// operation sees another generation, which is [started](Self::new_generation) when a pool is
    /// lost. It may make system calls.
    fn lost(&self) -> Option<Lost> {
        None
    }

    /// Notes that some operations have passed. If a pool can be removed without notice, checks now
    /// and then whether it exists, and [starts a generation](Self::new_generation) if not. Returns
    /// whether they took so little time that more may pass before the next call.
    fn look(&self) -> bool {
        true
    }

    /// Returns whether accesses to reclaimed memory fail, for tests.
    fn keeps_watch(&self) -> bool {
        false
    }

    /// Makes accesses to `memory` fail until this client uses it again. For epoch tables that
    /// [check accesses](Self::keeps_watch).
    fn reclaimed(&self, _memory: &ReplicaSet) {}

    /// Transfers what was reclaimed in `_granules` granules from `_first` on to another client. For
    /// epoch tables that check accesses.
    fn passed_on(&self, _first: Pointer, _granules: u64) {}

    /// Returns whether a client holds the client slot of this number, as far as is known. Only the
    /// choice of the client to steal memory from first depends on it.
    fn is_attached(&self, slot: usize) -> bool;

    /// Wakes clients that sleep until a key with this hash changes. To be called behind a change of the
    /// key, whose last verb was a CAS (N1). A hint: a client that sleeps looks again by itself. One load if
    /// nobody sleeps.
    fn wake(&self, _hash: u64) {}

    /// Returns whether the client that attached to the slot of this number as `session`, the
    /// incarnation that it began with, has ended: a fact, never a suspicion (O1). No
    /// majority answers it any more, what it still writes reaches a minority of the nodes at most, and no client is that
    /// session again, so this stays true. `false` as long as it is not known. It may make system calls.
    fn is_gone(&self, _slot: usize, _session: Incarnation) -> bool {
        false
    }

    /// Sends a hint to the client in a slot that this one has replaced a record or a write of its.
    /// The hint may be lost, late, duplicated or wrong.
    fn send_remote_free(&self, _slot: usize, _replaced: RemoteFree) {}

    /// Calls `each` with the hints to this client that have arrived since the last call.
    fn drain_remote_frees(&self, _each: &mut dyn FnMut(RemoteFree)) {}

    /// Returns an incarnation that no client had, larger than all given out before, for a client
    /// whose numbers are used up. `None` if there is none now: it may be called again.
    fn incarnation(&self) -> Option<Incarnation> {
        None
    }

    /// Advances to the next epoch if every operation in progress began in this one (E2), and
    /// returns the current one. Clients that are known to be dead do not count.
    fn try_advance(&self) -> u64;

    /// Returns a client that has kept the epoch from advancing for `least` nanoseconds or more, as
    /// far as is known, to report it. It may make system calls to identify it.
    fn laggard(&self, _least: u64) -> Option<Laggard> {
        None
    }

    /// Ends clients that keep the epoch from advancing and do not go on by themselves, if this
    /// client may do so. Called while an operation waits for memory, each time it looks.
    fn end_halted(&self) {}
}

#[cfg(any(test, feature = "sim"))]
impl<B: EpochDomain + ?Sized> EpochDomain for std::boxed::Box<B> {
    fn pin(&self) -> u64 {
        (**self).pin()
    }
    fn pin_beside(&self) -> u64 {
        (**self).pin_beside()
    }
    fn repin(&self, epoch: u64) {
        (**self).repin(epoch);
    }
    fn unpin(&self) {
        (**self).unpin();
    }
    fn epoch(&self) -> u64 {
        (**self).epoch()
    }
    fn epoch_bound(&self) -> u64 {
        (**self).epoch_bound()
    }
    fn generation(&self) -> u64 {
        (**self).generation()
    }
    fn new_generation(&self) {
        (**self).new_generation();
    }
    fn lost(&self) -> Option<Lost> {
        (**self).lost()
    }
    fn look(&self) -> bool {
        (**self).look()
    }
    fn keeps_watch(&self) -> bool {
        (**self).keeps_watch()
    }
    fn reclaimed(&self, memory: &ReplicaSet) {
        (**self).reclaimed(memory);
    }
    fn passed_on(&self, first: Pointer, granules: u64) {
        (**self).passed_on(first, granules);
    }
    fn is_attached(&self, slot: usize) -> bool {
        (**self).is_attached(slot)
    }
    fn wake(&self, hash: u64) {
        (**self).wake(hash);
    }
    fn is_gone(&self, slot: usize, session: Incarnation) -> bool {
        (**self).is_gone(slot, session)
    }
    fn send_remote_free(&self, slot: usize, replaced: RemoteFree) {
        (**self).send_remote_free(slot, replaced);
    }
    fn drain_remote_frees(&self, each: &mut dyn FnMut(RemoteFree)) {
        (**self).drain_remote_frees(each);
    }
    fn incarnation(&self) -> Option<Incarnation> {
        (**self).incarnation()
    }
    fn try_advance(&self) -> u64 {
        (**self).try_advance()
    }
    fn laggard(&self, least: u64) -> Option<Laggard> {
        (**self).laggard(least)
    }
    fn end_halted(&self) {
        (**self).end_halted();
    }
}

/// For fabrics without an epoch table.
#[derive(Debug)]
pub enum NoEpochs {}

impl EpochDomain for NoEpochs {
    fn pin(&self) -> u64 {
        match *self {}
    }
    fn repin(&self, _: u64) {
        match *self {}
    }
    fn unpin(&self) {
        match *self {}
    }
    fn epoch(&self) -> u64 {
        match *self {}
    }
    fn generation(&self) -> u64 {
        match *self {}
    }
    fn new_generation(&self) {
        match *self {}
    }
    fn is_attached(&self, _: usize) -> bool {
        match *self {}
    }
    fn try_advance(&self) -> u64 {
        match *self {}
    }
}
