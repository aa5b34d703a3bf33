//! The fabric over verbs.
//!
//! ```text
//! connecting   sets up connections; returns failed ones, takes over new ones
//! posting      posts a chain with one call to the device
//! completing   turns completions into replies
//! waiting      polls, yields and sleeps until a completion arrives
//! ```
//!
//! **Invariant:** a chain's payload and reply lie in one slot of registered memory, which belongs
//! to the device until the chain's completion, whether or not a caller waits for it. So dropping or
//! forgetting a completion changes nothing that the device still reads or writes.
//!
//! Nothing here takes a lock or allocates memory on the fast path.

pub(crate) mod completion;
pub(crate) mod deferred;
pub(crate) mod peer;
pub(crate) mod replies;
pub(crate) mod work_requests;

mod completing;
mod connecting;
mod posting;
mod waiting;

use std::cell::{Cell, RefCell};
use std::mem::forget;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use swarm_core::fabric::{Fabric, Verb};
use swarm_core::node::NodeId;

use self::posting::Posted;
use crate::connector::handoff::Handoffs;
use crate::control::RdmaEpochs;
use crate::fabric::completion::{Completion, Reply, State};
use crate::fabric::peer::Peer;
use crate::fabric::replies::Tickets;
use crate::fabric::work_requests::ReplyLayout;
use crate::fork::Origin;
use crate::options::{Counters, NodeStatus};
use crate::verbs::{CompletionQueue, Slots};

/// The longest wait for in-flight chains.
const DRAIN: Duration = Duration::from_millis(500);

/// State of the in-flight chain of a slot.
#[derive(Clone, Copy, Default)]
struct InFlight {
    ticket: u32,
    /// Where the reply begins in the slot, in words.
    start: u16,
    words: u32,
    node: u8,
    work: u8,
    asked: ReplyLayout,
    failed: bool,
}

/// One client's access to the memory nodes of a pool.
///
/// `Send`, not `Sync`. The connector reconnects a node that does not answer, in the background.
/// Dropping the fabric waits for in-flight chains, at most 500 ms. Only the process that made it
/// may use it: dropping a forked child's copy does nothing (S7).
pub struct RdmaFabric {
    origin: Origin,
    links: Vec<Peer>,
    slots: Slots,
    flights: RefCell<Vec<InFlight>>,
    tickets: RefCell<Tickets>,
    queue: Arc<CompletionQueue>,
    handoffs: Arc<Handoffs>,
    counters: Cell<Counters>,
    /// Number of chains posted or deferred.
    chains: Cell<u64>,
    idle: Cell<u32>,
    spins: u32,
    /// How long a node may be quiet while a chain is in flight; then it counts as lost.
    longest: Duration,
    connector: Option<JoinHandle<()>>,
    /// Status that replaces the status of the next completion.
    #[cfg(test)]
    injected_status: Cell<Option<u32>>,
    /// What failed, in order. The status names a reason only until the node is up again.
    #[cfg(test)]
    failures: RefCell<Vec<String>>,
}

impl RdmaFabric {
    /// Returns the state of each node's connection.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.handoffs.status()
    }

    /// Returns this fabric's event counts.
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// S7: leaks all kernel objects of this fabric, so that a process that did not make them does
    /// not release them.
    fn leak(&mut self) {
        forget(self.connector.take());
        forget((Arc::clone(&self.handoffs), Arc::clone(&self.queue)));
        forget(Arc::clone(self.slots.region()));
        self.links.iter().for_each(Peer::leak);
    }

    fn next_number(&self) -> u64 {
        self.chains.replace(self.chains.get() + 1)
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }
}

#[cfg(test)]
impl RdmaFabric {
    /// Makes the fabric assume that the nodes have more memory than they do.
    pub(crate) fn inject_larger_memory(&self) {
        for link in &self.links {
            let joined = link.up().expect("the node is up");
            joined.assumes_larger.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Returns how many READs and atomics the device may have in flight at the first node, if that
    /// is up.
    pub(crate) fn asks(&self) -> Option<u8> {
        Some(self.links[0].up()?.connection.asks())
    }

    /// Returns the first node's timeout for acknowledgments and its retries, as the device has them.
    pub(crate) fn retransmission(&self) -> Option<(u8, u8)> {
        Some(self.links[0].up()?.connection.retransmission())
    }

    /// Takes what has failed since the last call, in order.
    pub(crate) fn take_failures(&self) -> Vec<String> {
        self.failures.take()
    }

    /// Replaces the status of the next completion.
    pub(crate) fn inject_status(&self, status: u32) {
        self.injected_status.set(Some(status));
    }

    /// Uses a wrong local key in the next work request that touches a slot.
    pub(crate) fn inject_wrong_key(&self) {
        self.slots.wrong_key.set(true);
    }
}

impl Drop for RdmaFabric {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            return self.leak();
        }
        self.drain();
        self.handoffs.stop();
        if let Some(connector) = self.connector.take() {
            // The thread panics only through a bug in this crate; then nothing is left to clean up.
            let _ = connector.join();
        }
    }
}

impl std::fmt::Debug for RdmaFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaFabric").field("nodes", &self.status()).finish_non_exhaustive()
    }
}

impl Fabric for RdmaFabric {
    type EpochDomain = RdmaEpochs;
    type Reply<'f> = Reply<'f>;
    type Completion<'f> = Completion<'f>;

    #[inline]
    fn is_cut_off(&self) -> bool {
        self.origin.is_elsewhere()
    }

    #[inline]
    fn nodes(&self) -> usize {
        self.links.len()
    }

    /// Posts the chain. A chain that reaches outside of the node's memory is not posted, and its
    /// node counts as one that does not answer.
    #[inline]
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Completion<'f> {
        Completion(match self.try_post(node, chain, self.next_number()) {
            Some(Posted::Ticket(ticket)) => State::Pending { fabric: self, ticket },
            Some(Posted::Empty) => State::Empty,
            None => State::Over,
        })
    }

    /// Defers the chain: the next chain to the node, or [`flush`](RdmaFabric::flush), posts it.
    #[inline]
    fn post_deferred(&self, node: NodeId, chain: &[Verb<'_>]) {
        let Some(link) = self.links.get(node.index()) else { return };
        if link.is_up() {
            link.waits(self.next_number());
            if link.deferred().borrow_mut().take(chain) {
                return;
            }
        }
        drop(self.post(node, chain));
    }

    /// Flushes deferred chains and waits for all in-flight chains, at most 500 ms.
    fn drain(&self) {
        self.flush();
        let deadline = Instant::now() + DRAIN;
        while self.links.iter().any(Peer::is_busy) && Instant::now() < deadline {
            if !self.progress() {
                thread::yield_now();
            }
        }
    }

    #[inline]
    fn posted(&self) -> u64 {
        self.chains.get()
    }

    #[inline]
    fn oldest_under_way(&self) -> u64 {
        let oldest = self.links.iter().filter_map(Peer::oldest).min();
        oldest.unwrap_or_else(|| self.posted())
    }
}
