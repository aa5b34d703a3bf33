//! Where the connector and the fabric meet: a door for each node.
//!
//! The invariant: a connection has one user at a time. The connector hands it in at the door; the
//! fabric has it until all that it posted came back, then *retires* it, and only then does the
//! connector try to make another.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::Fault;
use crate::greeting::NodeCard;
use crate::options::{Endpoint, NodeStatus};
use crate::verbs::Connection;

/// How long the rest is waited for when a majority is up.
const MOMENT: Duration = Duration::from_millis(200);

/// A connection that works.
pub(crate) struct Joined {
    pub(crate) connection: Connection,
    pub(crate) card: NodeCard,
    /// The other end has ended it.
    pub(crate) gone: AtomicBool,
    /// The fabric is to believe that the node has more memory than it has.
    #[cfg(test)]
    pub(crate) pretends: AtomicBool,
}

/// Where connector and fabric meet, for one node.
pub(crate) struct Door {
    /// There is something in `handed`.
    ready: AtomicBool,
    handed: Mutex<Option<Arc<Joined>>>,
    /// The fabric has given up the connection.
    retired: AtomicBool,
    status: Mutex<NodeStatus>,
}

/// All doors of a fabric.
pub(crate) struct Doors {
    doors: Vec<Door>,
    settled: (Mutex<()>, Condvar),
    stopping: AtomicBool,
    /// Wakes the connector.
    bell: UnixStream,
}

/// How many nodes are up, have not been tried to the end, and were not reached.
#[derive(Default)]
struct Tally {
    up: usize,
    begun: usize,
    unreached: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is behind these locks is replaced as a whole, so a panic leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Doors {
    /// Doors for `nodes`, and what the connector is woken by.
    pub(crate) fn new(nodes: &[Endpoint]) -> std::io::Result<(Arc<Self>, UnixStream)> {
        let (bell, woken) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let door = |node: &Endpoint| Door {
            ready: AtomicBool::new(false),
            handed: Mutex::new(None),
            retired: AtomicBool::new(false),
            status: Mutex::new(NodeStatus {
                address: node.address,
                life: node.life,
                fault: Some(Fault::NotYet { address: node.address }),
            }),
        };
        let doors = nodes.iter().map(door).collect();
        let settled = (Mutex::new(()), Condvar::new());
        let doors = Self { doors, settled, stopping: AtomicBool::new(false), bell };
        Ok((Arc::new(doors), woken))
    }

    /// A new connection to `node`, if there is one.
    #[inline]
    pub(crate) fn take(&self, node: usize) -> Option<Arc<Joined>> {
        let door = &self.doors[node];
        // Pairs with the release when it was handed in.
        if !door.ready.load(Ordering::Acquire) {
            return None;
        }
        door.ready.store(false, Ordering::Relaxed);
        lock(&door.handed).take()
    }

    /// The fabric has let go of its connection to `node`.
    pub(crate) fn retire(&self, node: usize) {
        // Pairs with the acquire in `was_retired`.
        self.doors[node].retired.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether the fabric has let go of its connection to `node` since this was asked last.
    pub(crate) fn was_retired(&self, node: usize) -> bool {
        // Pairs with the release in `retire`.
        self.doors[node].retired.swap(false, Ordering::Acquire)
    }

    /// Says why there is no connection to `node`.
    pub(crate) fn report(&self, node: usize, fault: Fault) {
        lock(&self.doors[node].status).fault = Some(fault);
        // Whoever is about to wait has looked, and waits, or looks after this.
        drop(lock(&self.settled.0));
        self.settled.1.notify_all();
    }

    /// The connection to `node` has ended. If it is known why, it stays at that.
    pub(crate) fn report_lost(&self, node: usize, fault: Fault) {
        let known = lock(&self.doors[node].status).fault.is_some();
        if !known {
            self.report(node, fault);
        }
    }

    /// How the nodes stand.
    pub(crate) fn status(&self) -> Vec<NodeStatus> {
        self.doors.iter().map(|door| lock(&door.status).clone()).collect()
    }

    /// Waits until each node is up or is known not to be, at most for `patience`. Once a majority is up
    /// a host that says nothing costs a moment. Until then those that were not reached are waited for
    /// as well: the next attempt may succeed, and nothing can be done without.
    pub(crate) fn wait_settled(&self, patience: Duration) {
        let majority = self.doors.len() / 2 + 1;
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
        for door in &self.doors {
            match lock(&door.status).fault {
                None => tally.up += 1,
                Some(Fault::NotYet { .. }) => tally.begun += 1,
                Some(Fault::Unreachable { .. }) => tally.unreached += 1,
                Some(_) => {}
            }
        }
        tally
    }

    /// Whether the connector is to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Ends the connector.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.ring();
    }

    fn ring(&self) {
        // A bell that is full has been rung.
        let _ = (&self.bell).write(&[1]);
    }

    /// The fabric may have this connection to `node` from now on.
    pub(crate) fn hand_in(&self, node: usize, joined: Arc<Joined>) {
        let door = &self.doors[node];
        // Nothing that became of an earlier connection is this one's.
        door.retired.store(false, Ordering::Relaxed);
        {
            let mut status = lock(&door.status);
            status.life = Some(joined.card.life);
            status.fault = None;
        }
        *lock(&door.handed) = Some(joined);
        // Pairs with the acquire in `take`.
        door.ready.store(true, Ordering::Release);
        drop(lock(&self.settled.0));
        self.settled.1.notify_all();
    }
}
