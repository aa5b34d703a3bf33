//! Passes connections between the connector and the fabric: one hand-off for each node.
//!
//! **Invariant:** a connection has one user at a time. The connector hands a connection over to the
//! fabric. The fabric returns it after its last completion; only then does the connector reconnect.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Fault;
use crate::handshake::NodeHello;
use crate::options::{Endpoint, NodeStatus};
use crate::verbs::Connection;

/// How long to wait for the other nodes once a majority is up.
const MOMENT: Duration = Duration::from_millis(200);

/// An established connection.
pub(crate) struct Joined {
    pub(crate) connection: Connection,
    pub(crate) card: NodeHello,
    /// The node has ended it.
    pub(crate) gone: AtomicBool,
    /// Makes the fabric assume that the node has more memory than it does.
    #[cfg(test)]
    pub(crate) assumes_larger: AtomicBool,
}

/// The hand-off for one node.
pub(crate) struct Handoff {
    /// `handed` holds a connection.
    ready: AtomicBool,
    handed: Mutex<Option<Arc<Joined>>>,
    /// The fabric has returned its connection.
    retired: AtomicBool,
    status: Mutex<NodeStatus>,
}

/// The hand-offs of all nodes of a fabric.
pub(crate) struct Handoffs {
    handoffs: Vec<Handoff>,
    settled: (Mutex<()>, Condvar),
    stopping: AtomicBool,
    /// Wakes the connector.
    notifier: UnixStream,
}

/// How many nodes are up, are in their first attempt, and could not be reached.
#[derive(Default)]
struct Tally {
    up: usize,
    begun: usize,
    unreached: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The data behind these locks is replaced as a whole, so a panic leaves it consistent.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Handoffs {
    /// Makes the hand-offs for `nodes`, and the socket that wakes the connector.
    pub(crate) fn new(nodes: &[Endpoint]) -> std::io::Result<(Arc<Self>, UnixStream)> {
        let (notifier, woken) = UnixStream::pair()?;
        notifier.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let handoff = |node: &Endpoint| Handoff {
            ready: AtomicBool::new(false),
            handed: Mutex::new(None),
            retired: AtomicBool::new(false),
            status: Mutex::new(NodeStatus {
                address: node.address,
                life: node.life,
                fault: Some(Fault::NotYet { address: node.address }),
            }),
        };
        let handoffs = nodes.iter().map(handoff).collect();
        let settled = (Mutex::new(()), Condvar::new());
        let handoffs = Self { handoffs, settled, stopping: AtomicBool::new(false), notifier };
        Ok((Arc::new(handoffs), woken))
    }

    /// Takes a new connection to `node`, if the connector has handed one over.
    #[inline]
    pub(crate) fn take(&self, node: usize) -> Option<Arc<Joined>> {
        let handoff = &self.handoffs[node];
        // Pairs with the release in `hand_over`.
        if !handoff.ready.load(Ordering::Acquire) {
            return None;
        }
        handoff.ready.store(false, Ordering::Relaxed);
        lock(&handoff.handed).take()
    }

    /// Returns the fabric's connection to `node`.
    pub(crate) fn retire(&self, node: usize) {
        // Pairs with the acquire in `was_retired`.
        self.handoffs[node].retired.store(true, Ordering::Release);
        self.notify();
    }

    /// Returns whether the fabric has returned its connection to `node` since the last call.
    pub(crate) fn was_retired(&self, node: usize) -> bool {
        // Pairs with the release in `retire`.
        self.handoffs[node].retired.swap(false, Ordering::Acquire)
    }

    /// Records why there is no connection to `node`.
    pub(crate) fn report(&self, node: usize, fault: Fault) {
        lock(&self.handoffs[node].status).fault = Some(fault);
        // Taking the lock orders this against `wait_settled`: it waits already, or checks after
        // this.
        drop(lock(&self.settled.0));
        self.settled.1.notify_all();
    }

    /// Records that the connection to `node` has ended, unless a reason is recorded already.
    pub(crate) fn report_lost(&self, node: usize, fault: Fault) {
        let known = lock(&self.handoffs[node].status).fault.is_some();
        if !known {
            self.report(node, fault);
        }
    }

    /// Returns the state of each node's connection.
    pub(crate) fn status(&self) -> Vec<NodeStatus> {
        self.handoffs.iter().map(|handoff| lock(&handoff.status).clone()).collect()
    }

    /// Waits until each node is up or known to be down, at most for `patience`. Once a majority is
    /// up, a host that does not answer costs [`MOMENT`]. Until then this also waits for nodes that
    /// could not be reached: the next attempt may succeed, and no operation can run without a
    /// majority.
    pub(crate) fn wait_settled(&self, patience: Duration) {
        let majority = self.handoffs.len() / 2 + 1;
        let too_few = |(): &mut ()| {
            let Tally { up, begun, unreached } = self.tally();
            up < majority && begun + unreached > 0
        };
        let guard = lock(&self.settled.0);
        let waited = self.settled.1.wait_timeout_while(guard, patience, too_few);
        let (guard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let begun = |(): &mut ()| self.tally().begun > 0;
        drop(self.settled.1.wait_timeout_while(guard, patience.min(MOMENT), begun));
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for handoff in &self.handoffs {
            match lock(&handoff.status).fault {
                None => tally.up += 1,
                Some(Fault::NotYet { .. }) => tally.begun += 1,
                Some(Fault::Unreachable { .. }) => tally.unreached += 1,
                Some(_) => {}
            }
        }
        tally
    }

    /// Returns whether the connector must end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Ends the connector.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.notify();
    }

    fn notify(&self) {
        // If the socket is full, a wake-up is pending.
        let _ = (&self.notifier).write(&[1]);
    }

    /// Hands this connection to `node` over to the fabric.
    pub(crate) fn hand_over(&self, node: usize, joined: Arc<Joined>) {
        let handoff = &self.handoffs[node];
        // The flag may be an earlier connection's.
        handoff.retired.store(false, Ordering::Relaxed);
        {
            let mut status = lock(&handoff.status);
            status.life = Some(joined.card.life);
            status.fault = None;
        }
        *lock(&handoff.handed) = Some(joined);
        // Pairs with the acquire in `take`.
        handoff.ready.store(true, Ordering::Release);
        drop(lock(&self.settled.0));
        self.settled.1.notify_all();
    }
}
