//! Who may touch a node's memory: connections, and the fences against clients.
//!
//! The invariant: a connection that may touch the memory is in the table of connections, and was
//! put there when no fence stood against its client. Consent and fence take the same lock, so a
//! client is either fenced before its request is looked at, and refused, or its connection is in the
//! table when the fence comes, and ends there.
//!
//! A client has one connection at a time: a request that comes from the same life of a client ends
//! the earlier connection first, so nothing that was posted through it can take effect later. A
//! request of a later life fences the earlier lives of its slot.

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
use crate::greeting::{ClientId, Hello, Life, NodeCard, PoolId, Refusal, Unreadable};
use crate::verbs::{
    Channel, CompletionQueue, Connection, Domain, Event, EventKind, Id, IdKey, Limits, Region,
    wait_readable,
};

/// How often the thread looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);

/// What the node's thread and its owner share.
pub(super) struct Shared {
    pub(super) domain: Arc<Domain>,
    pub(super) region: Arc<Region>,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) limits: Limits,
    pub(super) words: u64,
    pub(super) state: Mutex<State>,
    /// Work requests that the next queue pairs are to take, so that the device may refuse them.
    #[cfg(test)]
    pub(super) asked_for: AtomicU32,
}

/// What may change while the node serves.
pub(super) struct State {
    pub(super) life: Life,
    pub(super) member: Option<(PoolId, NodeId)>,
    pub(super) connections: HashMap<IdKey, Joined>,
    /// For each client slot, up to which life it is fenced.
    pub(super) fences: HashMap<u32, u64>,
    pub(super) report: NodeReport,
    /// The device is gone.
    pub(super) removed: bool,
}

/// A connection, and whose it is.
pub(super) struct Joined {
    pub(super) client: ClientId,
    pub(super) connection: Connection,
}

impl State {
    /// Ends this client in all its lives up to the given one. How many connections that were.
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
            // Stops the client at once, with an error that says so. Even if it fails, the queue pair
            // is destroyed below.
            let _ = joined.connection.forbid();
        }
        for (_, joined) in &ended {
            joined.connection.disconnect();
        }
        self.report.fenced += ended.len() as u64;
        // Dropping them destroys their queue pairs, which waits for what the device is in the midst
        // of.
        ended.len()
    }

    /// Whether a request is taken.
    fn judge(&self, hello: &[u8]) -> Result<Hello, Refusal> {
        let hello = Hello::decode(hello).map_err(|unreadable| match unreadable {
            Unreadable::Foreign => Refusal::Foreign,
            Unreadable::Version(_) => Refusal::Version(crate::TRANSPORT_VERSION),
        })?;
        let (pool, node) = self.member.ok_or(Refusal::NoPool)?;
        if hello.pool != pool {
            return Err(Refusal::Pool(pool));
        }
        if hello.node != node {
            return Err(Refusal::Node(node));
        }
        let fenced = self.fences.get(&hello.client.slot);
        if fenced.is_some_and(|&up_to| hello.client.incarnation <= up_to) {
            return Err(Refusal::Fenced);
        }
        Ok(hello)
    }
}

impl Shared {
    /// What may change, for as long as the guard is kept.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held left nothing half done that matters more than serving on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests for connections until it is told to stop.
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
                // Of the device all hear, also who listens and has no connection.
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
        let refusal = match state.judge(hello) {
            Ok(hello) => match self.join(&mut state, id, hello, asks) {
                Ok(()) => {
                    state.report.accepted += 1;
                    return;
                }
                Err(Some(id)) => (id, Refusal::Exhausted),
                Err(None) => {
                    state.report.refused += 1;
                    return;
                }
            },
            Err(refusal) => (id, refusal),
        };
        state.report.refused += 1;
        let (id, refusal) = refusal;
        // If this fails, the client finds out by its own clock.
        let _ = id.reject(&refusal.encode()[..Refusal::BYTES]);
    }

    /// Takes a connection. Gives the identifier back if that can still be rejected.
    fn join(&self, state: &mut State, id: Id, hello: Hello, asks: u8) -> Result<(), Option<Id>> {
        let Hello { pool, node, client } = hello;
        if client != ClientId::NOBODY {
            state.connections.retain(|_, joined| joined.client != client);
            if let Some(earlier) = client.incarnation.checked_sub(1) {
                state.fence(ClientId { slot: client.slot, incarnation: earlier });
            }
        }
        // The client's device goes by the number that it is answered, and may take no more than it
        // asked for.
        let limits = Limits { answered: self.limits.answered.min(asks), ..self.limits };
        #[cfg(test)]
        let limits = Limits { queue: self.asked_for.load(Ordering::Relaxed), ..limits };
        let connection = Connection::new(id, &self.domain, &self.queue, &self.region, limits)
            .map_err(|(id, _)| Some(id))?;
        let card = NodeCard {
            pool,
            node,
            life: state.life,
            layout_version: LAYOUT_VERSION,
            words: self.words,
            base: self.region.base(),
            rkey: self.region.remote_key(),
        };
        connection.accept(&card.encode()[..NodeCard::BYTES]).map_err(|_| None)?;
        state.connections.insert(connection.key(), Joined { client, connection });
        Ok(())
    }
}
