//! The fabric's state for one node.
//!
//! down → up (the connector handed over a connection) → failing (the connection failed; nothing is
//! posted) → down (the last completion arrived, and the connection was returned).

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::connector::handoff::Joined;
use crate::fabric::deferred::DeferredChain;
use crate::fabric::work_requests::{RemoteMemory, ReplyLayout};

/// The fabric's state for one node.
pub(crate) struct Peer {
    address: SocketAddr,
    joined: RefCell<Option<Arc<Joined>>>,
    failing: Cell<bool>,
    /// Work requests that the queue pair takes in all.
    limit: u32,
    /// Work requests that the queue pair takes now.
    room: Cell<u32>,
    /// The deferred chain.
    deferred: RefCell<DeferredChain>,
    /// The number of the first chain that is part of the deferred chain.
    deferred_number: Cell<u64>,
    /// The numbers of the in-flight chains, which complete in this order.
    numbers: RefCell<VecDeque<u64>>,
    /// In-flight chains that have READs.
    reads: Cell<u32>,
    /// In-flight chains that have atomics.
    atomics: Cell<u32>,
    /// When a wait first saw that chains are in flight and nothing completes.
    quiet: Cell<Option<Instant>>,
    is_probed: Cell<bool>,
}

impl Joined {
    /// Returns where the node's memory lies.
    #[inline]
    pub(crate) fn reach(&self) -> RemoteMemory {
        #[cfg(test)]
        if self.assumes_larger.load(Ordering::Relaxed) {
            return RemoteMemory { base: self.card.base, words: u64::MAX / 16 };
        }
        RemoteMemory { base: self.card.base, words: self.card.words }
    }
}

impl Peer {
    /// A node without a connection; a connection will take `limit` work requests.
    pub(crate) fn new(address: SocketAddr, limit: u32) -> Self {
        Self {
            address,
            joined: RefCell::new(None),
            failing: Cell::new(false),
            limit,
            room: Cell::new(limit),
            deferred: RefCell::new(DeferredChain::new()),
            deferred_number: Cell::new(0),
            numbers: RefCell::new(VecDeque::with_capacity(limit as usize)),
            reads: Cell::new(0),
            atomics: Cell::new(0),
            quiet: Cell::new(None),
            is_probed: Cell::new(false),
        }
    }

    /// Leaks the connection, so that a process that did not make it does not end it.
    pub(crate) fn leak(&self) {
        std::mem::forget(self.joined.borrow().clone());
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the connection, unless it is known to have failed.
    #[inline]
    pub(crate) fn up(&self) -> Option<Arc<Joined>> {
        let joined = self.joined.borrow();
        // Relaxed: a caller that sees the flag late posts to a queue pair that fails the post.
        let works =
            |joined: &&Arc<Joined>| !self.failing.get() && !joined.gone.load(Ordering::Relaxed);
        joined.as_ref().filter(works).map(Arc::clone)
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up().is_some()
    }

    /// Returns whether the node has ended the connection.
    pub(crate) fn is_gone(&self) -> bool {
        self.joined.borrow().as_ref().is_some_and(|joined| joined.gone.load(Ordering::Relaxed))
    }

    /// Returns whether there is no connection.
    pub(crate) fn is_down(&self) -> bool {
        self.joined.borrow().is_none()
    }

    /// Returns whether a work request is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.room.get() < self.limit
    }

    /// Returns how long chains are in flight and nothing has completed, counted from the first
    /// call.
    pub(crate) fn quiet(&self, now: Instant) -> Option<Duration> {
        if !self.is_busy() || !self.is_up() {
            self.quiet.set(None);
            return None;
        }
        let since = self.quiet.get();
        if since.is_none() {
            self.quiet.set(Some(now));
            self.is_probed.set(false);
        }
        since.map(|since| now.saturating_duration_since(since))
    }

    /// Marks the node as probed. Returns whether it was not yet in this quiet period.
    pub(crate) fn start_probe(&self) -> bool {
        !self.is_probed.replace(true)
    }

    /// Takes over a connection that the connector handed over.
    pub(crate) fn join(&self, joined: Arc<Joined>) {
        self.room.set(self.limit);
        self.reads.set(0);
        self.atomics.set(0);
        self.numbers.borrow_mut().clear();
        self.failing.set(false);
        self.quiet.set(None);
        // The chain deferred for the former connection was lost with it.
        self.deferred.borrow_mut().clear();
        *self.joined.borrow_mut() = Some(joined);
    }

    /// Marks the connection as failed. Returns whether it was not yet.
    pub(crate) fn fail(&self) -> bool {
        let news = !self.failing.replace(true);
        if news && let Some(joined) = self.joined.borrow().as_ref() {
            // In-flight work requests complete at once, as failed.
            joined.connection.disconnect();
        }
        news
    }

    /// Gives up a failing connection if nothing is in flight. Returns whether it did.
    pub(crate) fn let_go(&self) -> bool {
        if !self.failing.get() || self.is_busy() || self.is_down() {
            return false;
        }
        self.joined.borrow_mut().take();
        true
    }

    /// Returns the deferred chain.
    #[inline]
    pub(crate) fn deferred(&self) -> &RefCell<DeferredChain> {
        &self.deferred
    }

    /// Returns how many work requests may be posted now.
    #[inline]
    pub(crate) fn room(&self) -> u32 {
        self.room.get()
    }

    /// Returns whether READs and atomics are in flight.
    #[inline]
    pub(crate) fn asked(&self) -> ReplyLayout {
        ReplyLayout { reads: self.reads.get() > 0, atomics: self.atomics.get() > 0 }
    }

    /// Returns the number of the deferred chain.
    pub(crate) fn deferred_number(&self) -> u64 {
        self.deferred_number.get()
    }

    /// Records the number of a chain that is about to be deferred, unless others are already.
    #[inline]
    pub(crate) fn waits(&self, number: u64) {
        if self.deferred.borrow().is_empty() {
            self.deferred_number.set(number);
        }
    }

    /// Returns the number of the oldest chain that may still take effect (E2: chains are part of an
    /// operation). A deferred chain is lost with its connection. A posted chain counts until its
    /// completion, which a failed connection delivers after the end of its queue pair.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let waiting = (!self.deferred.borrow().is_empty() && self.is_up())
            .then(|| self.deferred_number.get());
        self.numbers.borrow().front().copied().into_iter().chain(waiting).min()
    }

    /// Records that a chain of `work` work requests was posted under this number.
    #[inline]
    pub(crate) fn posted(&self, work: u32, asked: ReplyLayout, number: u64) {
        self.numbers.borrow_mut().push_back(number);
        self.room.set(self.room.get() - work);
        self.reads.set(self.reads.get() + u32::from(asked.reads));
        self.atomics.set(self.atomics.get() + u32::from(asked.atomics));
    }

    /// Records that a chain has completed.
    #[inline]
    pub(crate) fn completed(&self, work: u32, asked: ReplyLayout) {
        self.quiet.set(None);
        self.numbers.borrow_mut().pop_front();
        self.room.set(self.room.get() + work);
        self.reads.set(self.reads.get() - u32::from(asked.reads));
        self.atomics.set(self.atomics.get() - u32::from(asked.atomics));
    }
}
