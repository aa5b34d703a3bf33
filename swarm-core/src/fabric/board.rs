//! The board: where the clients of a pool see each other's operations.
//!
//! It says which epoch and which generation it is, keeps for each client in which epoch its oldest operation
//! began, and hands on what clients tell each other. What goes by that is [`epoch`](crate::epoch).

use crate::layout::Site;
use crate::words::{Incarnation, Pointer, Stamp};

/// What took another's place, as clients tell each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replaced {
    /// A record made room for another one.
    Record {
        /// In this cell.
        cell: Pointer,
        /// Which one.
        record: Pointer,
    },
    /// A write was followed by another one.
    Write {
        /// To the key of this hash.
        hash: u64,
        /// Its stamp, which names its buffer.
        stamp: Stamp,
    },
}

impl Replaced {
    /// As two words. Halves of two notes make a third one, which is no worse than one that comes late.
    pub fn encode(self) -> [u64; 2] {
        match self {
            Self::Record { cell, record } => [cell.0, record.0 << 1],
            Self::Write { hash, stamp } => [hash, stamp.frozen().0],
        }
    }

    /// From two words.
    pub fn decode([first, second]: [u64; 2]) -> Self {
        let stamp = Stamp(second);
        if stamp.is_frozen() {
            return Self::Write { hash: first, stamp: Stamp(second & !1) };
        }
        Self::Record { cell: Pointer(first), record: Pointer(second >> 1) }
    }
}

/// A client that keeps the epoch from moving on by an operation that began in an earlier one: what was retired since
/// does not come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Laggard {
    /// Its slot.
    pub slot: usize,
    /// Whether it is the client itself that asks.
    pub is_own: bool,
    /// Its process, where that can be seen from here.
    pub process: Option<u32>,
    /// Whether the process was stopped, as by SIGSTOP.
    pub is_stopped: bool,
    /// The epoch in which the operation began.
    pub since: u64,
    /// Nanoseconds for which the epoch has not moved on, at least; nothing if nobody knows.
    pub nanoseconds: Option<u64>,
}

/// What became of a pool that is not there any more, though a client still has its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lost {
    /// Somebody destroys it, or has.
    Destroyed,
    /// Its files were removed or replaced.
    Removed,
}

/// Where the clients of a pool see each other's operations, as one of them sees it.
///
/// Epochs count from 1.
pub trait Board {
    /// Says that this client has operations under way from here on, and yields since which epoch. The
    /// verbs that follow must not take effect in front of this, as others see it. Nothing was held up before
    /// it, so that [`epoch`](Self::epoch), asked behind it, may be later by any number.
    fn enter(&self) -> u64;

    /// An operation begins beside others of this client that began in an earlier epoch and hold that up. Yields the epoch
    /// in which it does. The verbs that follow must not take effect in front of this.
    fn enter_beside(&self) -> u64 {
        self.epoch()
    }

    /// Says that this client's oldest operation began in `epoch`.
    fn remain(&self, epoch: u64);

    /// Says that this client has nothing under way any more. What it did took effect in front of
    /// this.
    fn leave(&self);

    /// The epoch that it is, no earlier than at the time of the call. Where clients hear of epochs one
    /// after the other, the one that this client has heard of: there [`latest`](Self::latest) may be
    /// one more.
    fn epoch(&self) -> u64;

    /// An epoch that nobody is beyond at the time of the call: what is retired now, or told to
    /// everyone, is so from this one on.
    fn latest(&self) -> u64 {
        self.epoch()
    }

    /// The generation that it is: how often clients were told to forget what they remember of
    /// places, counted from 0.
    ///
    /// Asked behind [`enter`](Self::enter), or while an operation is under way, it is no earlier
    /// than that of any call of [`renew`](Self::renew) behind which an earlier epoch was the
    /// [latest](Self::latest).
    fn generation(&self) -> u64;

    /// Begins another generation: operations that begin from here on, as others see it, do not go by
    /// what was remembered before.
    fn renew(&self);

    /// Whether the pool is lost: what is written to it is found by nobody. Asked where an operation meets another
    /// generation, which is [renewed](Self::renew) when a pool is lost. It may ask the system.
    fn lost(&self) -> Option<Lost> {
        None
    }

    /// Some operations have passed. Where somebody may remove a pool without a word, looks whether it is there, if it is
    /// time, and [renews](Self::renew) if not. Yields whether they took so little time that some more may pass before
    /// this is called again.
    fn look(&self) -> bool {
        true
    }

    /// Whether this board keeps watch over memory that comes back.
    fn keeps_watch(&self) -> bool {
        false
    }

    /// Says that memory is nobody's until this client uses it again. For boards that [keep
    /// watch](Self::keeps_watch) over that.
    fn reclaimed(&self, _memory: &Site) {}

    /// Says that whatever was reclaimed in so many granules from `first` on is for another client
    /// from here on. For boards that keep watch.
    fn passed_on(&self, _first: Pointer, _granules: u64) {}

    /// Whether the client slot of this number has a holder, as far as one knows. Nothing but who is
    /// asked for memory first depends on it.
    fn is_attached(&self, slot: usize) -> bool;

    /// Tells the client in a slot that this one has replaced a record or a write of its. A hint: it may be lost, be
    /// heard of late or twice, or say what nobody said.
    fn tell(&self, _slot: usize, _replaced: Replaced) {}

    /// Calls `each` with what others have told the client in this slot since the last call.
    fn told(&self, _each: &mut dyn FnMut(Replaced)) {}

    /// An incarnation that nobody had, larger than all that were given out before: for a client that goes on
    /// to write when its numbers are used up. `None` if there is none now: it may be asked again.
    fn incarnation(&self) -> Option<Incarnation> {
        None
    }

    /// Moves on to the next epoch if every operation that is under way began in this one, and says
    /// which one it is now. Clients that are known to be dead do not count.
    fn advance(&self) -> u64;

    /// A client that keeps the epoch from moving on, as far as one knows: for telling people. It may ask the system
    /// who that is.
    fn laggard(&self) -> Option<Laggard> {
        None
    }
}

#[cfg(any(test, feature = "sim"))]
impl<B: Board + ?Sized> Board for std::boxed::Box<B> {
    fn enter(&self) -> u64 {
        (**self).enter()
    }
    fn enter_beside(&self) -> u64 {
        (**self).enter_beside()
    }
    fn remain(&self, epoch: u64) {
        (**self).remain(epoch);
    }
    fn leave(&self) {
        (**self).leave();
    }
    fn epoch(&self) -> u64 {
        (**self).epoch()
    }
    fn latest(&self) -> u64 {
        (**self).latest()
    }
    fn generation(&self) -> u64 {
        (**self).generation()
    }
    fn renew(&self) {
        (**self).renew();
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
    fn reclaimed(&self, memory: &Site) {
        (**self).reclaimed(memory);
    }
    fn passed_on(&self, first: Pointer, granules: u64) {
        (**self).passed_on(first, granules);
    }
    fn is_attached(&self, slot: usize) -> bool {
        (**self).is_attached(slot)
    }
    fn tell(&self, slot: usize, replaced: Replaced) {
        (**self).tell(slot, replaced);
    }
    fn told(&self, each: &mut dyn FnMut(Replaced)) {
        (**self).told(each);
    }
    fn incarnation(&self) -> Option<Incarnation> {
        (**self).incarnation()
    }
    fn advance(&self) -> u64 {
        (**self).advance()
    }
    fn laggard(&self) -> Option<Laggard> {
        (**self).laggard()
    }
}

/// There is no board.
#[derive(Debug)]
pub enum NoBoard {}

impl Board for NoBoard {
    fn enter(&self) -> u64 {
        match *self {}
    }
    fn remain(&self, _: u64) {
        match *self {}
    }
    fn leave(&self) {
        match *self {}
    }
    fn epoch(&self) -> u64 {
        match *self {}
    }
    fn generation(&self) -> u64 {
        match *self {}
    }
    fn renew(&self) {
        match *self {}
    }
    fn is_attached(&self, _: usize) -> bool {
        match *self {}
    }
    fn advance(&self) -> u64 {
        match *self {}
    }
}
