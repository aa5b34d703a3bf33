//! Admission to a node's memory: its connections, and the fences against clients.
//!
//! **Invariant:** every connection with access to the memory is in the table of connections, and no
//! fence covered its client when it was added. Acceptance and fence take the same lock. So either
//! the fence comes first and the request is rejected, or the connection is in the table and the
//! fence ends it.
//!
//! A client has one connection at a time. A request of the same client ends its earlier connection
//! first, so nothing posted through that can take effect later. A request of a later incarnation
//! fences the earlier incarnations of its client slot.

use std::collections::HashMap;
#[cfg(test)]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use swarm_core::layout::LAYOUT_VERSION;
use swarm_core::node::NodeId;

use super::NodeReport;
use crate::handshake::{ClientHello, ClientId, InstanceId, NodeHello, PoolId, Reject, Unreadable};
use crate::verbs::{
    Channel, CompletionQueue, Connection, Domain, Event, EventKind, Id, IdKey, Limits, Region,
    wait_readable,
};

/// How often the thread checks whether it must stop.
const TICK: Duration = Duration::from_millis(50);

/// State shared by the node's thread and its owner.
pub(super) struct Shared {
    pub(super) domain: Arc<Domain>,
    pub(super) region: Arc<Region>,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) limits: Limits,
    pub(super) words: u64,
    pub(super) state: Mutex<State>,
    /// Size of the next queue pairs in work requests, so that the device may refuse them.
    #[cfg(test)]
    pub(super) injected_depth: AtomicU32,
}

/// The state that changes while the node serves.
pub(super) struct State {
    pub(super) life: InstanceId,
    pub(super) member: Option<(PoolId, NodeId)>,
    pub(super) connections: HashMap<IdKey, Joined>,
    /// For each client slot, the highest fenced incarnation.
    pub(super) fences: HashMap<u32, u64>,
    pub(super) report: NodeReport,
    /// The device was removed.
    pub(super) removed: bool,
}

/// A connection and its client.
pub(super) struct Joined {
    pub(super) client: ClientId,
    pub(super) connection: Connection,
}

impl State {
    /// Fences a client slot up to the given incarnation. Returns how many connections this ended.
    pub(super) fn fence(&mut self, client: ClientId) -> usize {
        if client.slot == ClientId::NOBODY.slot {
            return 0;
        }
        let up_to = self.fences.entry(client.slot).or_insert(client.incarnation);
        *up_to = client.incarnation.max(*up_to);
        let ended: Vec<_> = self
            .connections
            .extract_if(|_, joined| {
                joined.client.slot == client.slot && joined.client.incarnation <= client.incarnation
            })
            .collect();
        for (_, joined) in &ended {
            // Stops the client at once, with an access error. If this fails, destroying the queue
            // pair below still stops it.
            let _ = joined.connection.forbid();
        }
        for (_, joined) in &ended {
            joined.connection.disconnect();
        }
        self.report.fenced += ended.len() as u64;
        // Dropping them destroys their queue pairs, which waits for the requests that the device is
        // executing.
        ended.len()
    }

    /// Decides whether a request is accepted.
    fn admit(&self, hello: &[u8]) -> Result<ClientHello, Reject> {
        let hello = ClientHello::decode(hello).map_err(|unreadable| match unreadable {
            Unreadable::Foreign => Reject::Foreign,
            Unreadable::Version(_) => Reject::Version(crate::TRANSPORT_VERSION),
        })?;
        let (pool, node) = self.member.ok_or(Reject::NoPool)?;
        if hello.pool != pool {
            return Err(Reject::Pool(pool));
        }
        if hello.node != node {
            return Err(Reject::Node(node));
        }
        let fenced = self.fences.get(&hello.client.slot);
        if fenced.is_some_and(|&up_to| hello.client.incarnation <= up_to) {
            return Err(Reject::Fenced);
        }
        Ok(hello)
    }
}

impl Shared {
    /// Locks the state that changes.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // After a panic under the lock, serving on matters more than what it left half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests for connections until `stop` is set.
    pub(super) fn run(&self, channel: &Arc<Channel>, _listener: &Id, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            if wait_readable(&[channel.fd()], TICK).is_err() {
                thread::sleep(TICK);
            }
            while let Ok(Some(event)) = channel.next() {
                self.handle(event);
            }
        }
    }

    fn handle(&self, event: Event) {
        match event.kind {
            EventKind::Request => {
                if let Some(id) = event.request {
                    self.consider(id, event.private.bytes(), event.asks);
                }
            }
            EventKind::Disconnected | EventKind::DeviceRemoved | EventKind::Failed(_) => {
                let mut state = self.state();
                // The removal of a device is reported to all identifiers, including the listener.
                state.removed |= event.kind == EventKind::DeviceRemoved;
                let gone = state.connections.remove(&event.key);
                drop(state);
                if let Some(joined) = gone {
                    joined.connection.disconnect();
                }
            }
            _ => {}
        }
    }

    fn consider(&self, id: Id, hello: &[u8], asks: u8) {
        let mut state = self.state();
        let reject = match state.admit(hello) {
            Ok(hello) => match self.join(&mut state, id, hello, asks) {
                Ok(()) => {
                    state.report.accepted += 1;
                    return;
                }
                Err(Some(id)) => (id, Reject::Exhausted),
                Err(None) => {
                    state.report.refused += 1;
                    return;
                }
            },
            Err(reject) => (id, reject),
        };
        state.report.refused += 1;
        let (id, reject) = reject;
        // If this fails, the client's attempt times out.
        let _ = id.reject(&reject.encode()[..Reject::BYTES]);
    }

    /// Accepts a connection. On failure, returns the identifier if it can still be rejected.
    fn join(
        &self,
        state: &mut State,
        id: Id,
        hello: ClientHello,
        asks: u8,
    ) -> Result<(), Option<Id>> {
        let ClientHello { pool, node, client } = hello;
        if client != ClientId::NOBODY {
            state.connections.retain(|_, joined| joined.client != client);
            if let Some(earlier) = client.incarnation.checked_sub(1) {
                state.fence(ClientId { slot: client.slot, incarnation: earlier });
            }
        }
        // The client's device uses the depth in the answer, and may accept no more than it
        // requested.
        let limits = Limits { answered: self.limits.answered.min(asks), ..self.limits };
        #[cfg(test)]
        let limits = Limits { queue: self.injected_depth.load(Ordering::Relaxed), ..limits };
        let connection = Connection::new(id, &self.domain, &self.queue, &self.region, limits)
            .map_err(|(id, _)| Some(id))?;
        let card = NodeHello {
            pool,
            node,
            life: state.life,
            layout_version: LAYOUT_VERSION,
            words: self.words,
            base: self.region.base(),
            rkey: self.region.remote_key(),
        };
        connection.accept(&card.encode()[..NodeHello::BYTES]).map_err(|_| None)?;
        state.connections.insert(connection.key(), Joined { client, connection });
        Ok(())
    }
}
