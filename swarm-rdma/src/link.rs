//! The way to one node, as the fabric uses it.
//!
//! down → up (a connection was handed in) → failing (it does not work any more; nothing is posted) →
//! down (all that was posted has come back, and the connection was given back).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::chain::{Asked, Reach};
use crate::doors::Joined;
use crate::rider::Rider;

/// The way to one node.
pub(crate) struct Link {
    address: SocketAddr,
    joined: RefCell<Option<Arc<Joined>>>,
    failing: Cell<bool>,
    /// Work requests that the queue pair takes, when nothing is under way.
    limit: u32,
    /// Work requests that it takes now.
    room: Cell<u32>,
    /// A chain that waits for the next one.
    rider: RefCell<Rider>,
    /// The number of the first chain that is part of it.
    rider_number: Cell<u64>,
    /// The numbers of the chains under way, which end in this order.
    numbers: RefCell<VecDeque<u64>>,
    /// Chains under way that have READs.
    reads: Cell<u32>,
    /// Chains under way that have atomics.
    atomics: Cell<u32>,
    /// Since when something is under way and nothing came, as far as anybody looked.
    quiet: Cell<Option<Instant>>,
    nudged: Cell<bool>,
}

impl Joined {
    /// Where the node's memory is.
    #[inline]
    pub(crate) fn reach(&self) -> Reach {
        #[cfg(test)]
        if self.pretends.load(Ordering::Relaxed) {
            return Reach { base: self.card.base, words: u64::MAX / 16 };
        }
        Reach { base: self.card.base, words: self.card.words }
    }
}

impl Link {
    /// No connection yet; one will take `limit` work requests.
    pub(crate) fn new(address: SocketAddr, limit: u32) -> Self {
        Self {
            address,
            joined: RefCell::new(None),
            failing: Cell::new(false),
            limit,
            room: Cell::new(limit),
            rider: RefCell::new(Rider::new()),
            rider_number: Cell::new(0),
            numbers: RefCell::new(VecDeque::with_capacity(limit as usize)),
            reads: Cell::new(0),
            atomics: Cell::new(0),
            quiet: Cell::new(None),
            nudged: Cell::new(false),
        }
    }

    /// Keeps the connection from being ended by a process whose it is not.
    pub(crate) fn leak(&self) {
        std::mem::forget(self.joined.borrow().clone());
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The connection, if it works as far as is known.
    #[inline]
    pub(crate) fn up(&self) -> Option<Arc<Joined>> {
        let joined = self.joined.borrow();
        // No order is needed: whoever sees this late posts to a queue pair that fails it.
        let works =
            |joined: &&Arc<Joined>| !self.failing.get() && !joined.gone.load(Ordering::Relaxed);
        joined.as_ref().filter(works).map(Arc::clone)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up().is_some()
    }

    /// Whether the other end has ended the connection.
    pub(crate) fn is_gone(&self) -> bool {
        self.joined.borrow().as_ref().is_some_and(|joined| joined.gone.load(Ordering::Relaxed))
    }

    /// Whether there is no connection.
    pub(crate) fn is_down(&self) -> bool {
        self.joined.borrow().is_none()
    }

    /// Whether anything is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.room.get() < self.limit
    }

    /// How long something is under way and nothing came, counted from the first look.
    pub(crate) fn quiet(&self, now: Instant) -> Option<Duration> {
        if !self.is_busy() || !self.is_up() {
            self.quiet.set(None);
            return None;
        }
        let since = self.quiet.get();
        if since.is_none() {
            self.quiet.set(Some(now));
            self.nudged.set(false);
        }
        since.map(|since| now.saturating_duration_since(since))
    }

    /// Whether this is the first time that the node is nudged since it is quiet.
    pub(crate) fn nudge(&self) -> bool {
        !self.nudged.replace(true)
    }

    /// A connection was handed in.
    pub(crate) fn join(&self, joined: Arc<Joined>) {
        self.room.set(self.limit);
        self.reads.set(0);
        self.atomics.set(0);
        self.numbers.borrow_mut().clear();
        self.failing.set(false);
        self.quiet.set(None);
        // What waited for the former connection was lost with it.
        self.rider.borrow_mut().clear();
        *self.joined.borrow_mut() = Some(joined);
    }

    /// The connection does not work. Whether that is news.
    pub(crate) fn fail(&self) -> bool {
        let news = !self.failing.replace(true);
        if news && let Some(joined) = self.joined.borrow().as_ref() {
            // What is under way comes back at once, as failed.
            joined.connection.disconnect();
        }
        news
    }

    /// Gives a failing connection up if nothing is under way. Whether it did.
    pub(crate) fn let_go(&self) -> bool {
        if !self.failing.get() || self.is_busy() || self.is_down() {
            return false;
        }
        self.joined.borrow_mut().take();
        true
    }

    /// The chain that waits for the next one.
    #[inline]
    pub(crate) fn rider(&self) -> &RefCell<Rider> {
        &self.rider
    }

    /// Work requests that may be posted now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.room.get()
    }

    /// READs and atomics under way.
    #[inline]
    pub(crate) fn asked(&self) -> Asked {
        Asked { reads: self.reads.get() > 0, atomics: self.atomics.get() > 0 }
    }

    /// The number of the chain that waits for the next one.
    pub(crate) fn rider_number(&self) -> u64 {
        self.rider_number.get()
    }

    /// A chain of this number is about to wait for the next one, with those that wait already.
    #[inline]
    pub(crate) fn waits(&self, number: u64) {
        if self.rider.borrow().is_empty() {
            self.rider_number.set(number);
        }
    }

    /// The number of the oldest chain that may still take effect. One that waited for a connection that
    /// is lost was lost with it; one that was posted there counts until it has come back, behind the end
    /// of its queue pair.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let waiting =
            (!self.rider.borrow().is_empty() && self.is_up()).then(|| self.rider_number.get());
        self.numbers.borrow().front().copied().into_iter().chain(waiting).min()
    }

    /// A chain of `work` work requests was posted under this number.
    #[inline]
    pub(crate) fn posted(&self, work: u32, asked: Asked, number: u64) {
        self.numbers.borrow_mut().push_back(number);
        self.room.set(self.room.get() - work);
        self.reads.set(self.reads.get() + u32::from(asked.reads));
        self.atomics.set(self.atomics.get() + u32::from(asked.atomics));
    }

    /// A chain has ended.
    #[inline]
    pub(crate) fn completed(&self, work: u32, asked: Asked) {
        self.quiet.set(None);
        self.numbers.borrow_mut().pop_front();
        self.room.set(self.room.get() + work);
        self.reads.set(self.reads.get() - u32::from(asked.reads));
        self.atomics.set(self.atomics.get() - u32::from(asked.atomics));
    }
}
