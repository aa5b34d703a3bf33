//! The fabric over verbs.
//!
//! ```text
//! connecting   from addresses to connections; connections that are lost, and new ones
//! posting      from a chain to one call to the device
//! arriving     from completions to replies
//! waiting      what a client does until something arrives
//! ```
//!
//! The invariant: what a chain carries and yields lies in one slot of registered memory, which is the
//! device's until the chain's completion came, whether anybody waits for it or not. So whoever drops a
//! completion, or forgets it, changes nothing that the device still reads or writes.
//!
//! Nothing here takes a lock or allocates while all is well.

mod arriving;
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
use crate::chain::Asked;
use crate::completion::{Completion, Reply, State};
use crate::control::FarBoard;
use crate::doors::Doors;
use crate::fork::Origin;
use crate::link::Link;
use crate::options::{Counters, NodeStatus};
use crate::tickets::Tickets;
use crate::verbs::{CompletionQueue, Slots};

/// How long to wait for chains under way at most.
const DRAIN: Duration = Duration::from_millis(500);

/// What is known of a slot's chain while it is under way.
#[derive(Clone, Copy, Default)]
struct Flight {
    ticket: u32,
    /// Where the reply begins in the slot, and its length: words.
    start: u16,
    words: u32,
    node: u8,
    work: u8,
    asked: Asked,
    failed: bool,
}

/// One client's access to the memory nodes of a pool.
///
/// `Send`, not `Sync`. A node that does not answer is reconnected in the background. Dropping it
/// waits until the chains under way have ended. It is the process's that made it: dropping the copy that a forked
/// child has of it does nothing.
pub struct RdmaFabric {
    origin: Origin,
    links: Vec<Link>,
    slots: Slots,
    flights: RefCell<Vec<Flight>>,
    tickets: RefCell<Tickets>,
    queue: Arc<CompletionQueue>,
    doors: Arc<Doors>,
    counters: Cell<Counters>,
    /// How many chains were posted, or wait to be.
    chains: Cell<u64>,
    idle: Cell<u32>,
    spins: u32,
    /// How long a chain may be under way.
    longest: Duration,
    connector: Option<JoinHandle<()>>,
    /// What the next completion is to have become, whatever the device says.
    #[cfg(test)]
    feigned: Cell<Option<u32>>,
}

impl RdmaFabric {
    /// How each node stands.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.doors.status()
    }

    /// What this fabric has done so far.
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// Keeps all that the kernel has of this fabric from being let go of by a process whose it is not.
    fn leak(&mut self) {
        forget(self.connector.take());
        forget((Arc::clone(&self.doors), Arc::clone(&self.queue)));
        forget(Arc::clone(self.slots.region()));
        self.links.iter().for_each(Link::leak);
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
    /// Believes that the nodes have more memory than they have.
    pub(crate) fn pretend_larger(&self) {
        for link in &self.links {
            let joined = link.up().expect("the node is up");
            joined.pretends.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// READs and atomics that the device has under way at the first node at most, if that is up.
    pub(crate) fn asks(&self) -> Option<u8> {
        Some(self.links[0].up()?.connection.asks())
    }

    /// Takes the next completion for one of this status.
    pub(crate) fn feign(&self, status: u32) {
        self.feigned.set(Some(status));
    }

    /// Names a wrong key to its own memory in the next work request that touches it.
    pub(crate) fn forge_key(&self) {
        self.slots.forged.set(true);
    }
}

impl Drop for RdmaFabric {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            return self.leak();
        }
        self.drain();
        self.doors.stop();
        if let Some(connector) = self.connector.take() {
            // It panics only if this crate is wrong; there is nothing left to clean up then.
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
    type Board = FarBoard;
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

    /// Posts the chain. One that reaches outside of the node's memory is not posted, as though the
    /// node did not answer.
    #[inline]
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Completion<'f> {
        Completion(match self.try_post(node, chain, self.next_number()) {
            Some(Posted::Ticket(ticket)) => State::Pending { fabric: self, ticket },
            Some(Posted::Empty) => State::Empty,
            None => State::Over,
        })
    }

    /// The chain goes out with the next one to the node, or with [`flush`](RdmaFabric::flush).
    #[inline]
    fn post_aside(&self, node: NodeId, chain: &[Verb<'_>]) {
        let Some(link) = self.links.get(node.index()) else { return };
        if link.is_up() {
            link.waits(self.next_number());
            if link.rider().borrow_mut().take(chain) {
                return;
            }
        }
        drop(self.post(node, chain));
    }

    /// Waits for half a second at most.
    fn drain(&self) {
        self.flush();
        let deadline = Instant::now() + DRAIN;
        while self.links.iter().any(Link::is_busy) && Instant::now() < deadline {
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
        let oldest = self.links.iter().filter_map(Link::oldest).min();
        oldest.unwrap_or_else(|| self.posted())
    }
}
