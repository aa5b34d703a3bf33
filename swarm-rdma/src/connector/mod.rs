//! The thread that connects a client to its nodes, and reconnects after a connection is lost.
//!
//! Each node is idle, resolving, asking, or up. A node that has fenced this client is not asked
//! again.
//!
//! **Invariant:** each node has at most one attempt in progress. Each attempt ends by a deadline,
//! and the next begins only after the fabric has [returned](Handoffs::retire) the connection of the
//! last one.

pub(crate) mod handoff;

mod handshake_check;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use swarm_core::node::NodeId;

use crate::connector::handoff::{Handoffs, Joined};
use crate::error::Fault;
use crate::handshake::{ClientHello, ClientId, PoolId};
use crate::options::Endpoint;
use crate::verbs::{
    Channel, CompletionQueue, Connection, Domain, Event, EventKind, Id, IdKey, Limits, Region,
    wait_readable,
};
use handshake_check::HandshakeCheck;

/// What the connector needs to connect.
pub(crate) struct ConnectPlan {
    pub(crate) domain: Arc<Domain>,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) region: Arc<Region>,
    pub(crate) from: Option<IpAddr>,
    pub(crate) limits: Limits,
    pub(crate) ack_timeout: u8,
    pub(crate) pool: PoolId,
    pub(crate) client: ClientId,
    pub(crate) words: u64,
}

/// First pause before a retry; it doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long each attempt may take.
const ATTEMPT: Duration = Duration::from_secs(1);
/// The longest time between two checks of the hand-offs.
const TICK: Duration = Duration::from_millis(100);

/// The state of a node's connection.
enum Stage {
    /// The next attempt begins then.
    Idle(Instant),
    /// Its address or the route to it is being resolved.
    Resolving(Id, Instant),
    /// The node has been asked for a connection.
    Asking(Connection, Instant),
    /// The connection was handed over to the fabric.
    Up(Arc<Joined>),
    /// The node has fenced this client.
    Never,
}

struct Node {
    endpoint: Endpoint,
    stage: Stage,
    pause: Duration,
}

/// The connector.
pub(crate) struct Connector {
    plan: ConnectPlan,
    channel: Arc<Channel>,
    handoffs: Arc<Handoffs>,
    woken: UnixStream,
    nodes: Vec<Node>,
}

impl Connector {
    pub(crate) fn new(
        plan: ConnectPlan,
        channel: Arc<Channel>,
        handoffs: Arc<Handoffs>,
        woken: UnixStream,
        nodes: &[Endpoint],
    ) -> Self {
        let node = |&endpoint: &Endpoint| Node {
            endpoint,
            stage: Stage::Idle(Instant::now()),
            pause: FIRST_PAUSE,
        };
        Self { plan, channel, handoffs, woken, nodes: nodes.iter().map(node).collect() }
    }

    /// Runs until the fabric stops it.
    pub(crate) fn run(mut self) {
        while !self.handoffs.is_stopping() {
            let now = Instant::now();
            for node in 0..self.nodes.len() {
                self.look_at(node, now);
            }
            let fds = [self.channel.fd(), self.woken.as_raw_fd()];
            if wait_readable(&fds, self.until_next(now)).is_err() {
                thread::sleep(FIRST_PAUSE);
            }
            let _ = self.woken.read(&mut [0; 64]);
            while let Ok(Some(event)) = self.channel.next() {
                self.handle(&event);
            }
        }
    }

    /// Returns the time until the next deadline.
    fn until_next(&self, now: Instant) -> Duration {
        let due = self.nodes.iter().filter_map(|node| match node.stage {
            Stage::Idle(at) | Stage::Resolving(_, at) | Stage::Asking(_, at) => Some(at),
            Stage::Up(_) | Stage::Never => None,
        });
        due.map(|at| at.saturating_duration_since(now)).min().unwrap_or(TICK).min(TICK)
    }

    fn look_at(&mut self, node: usize, now: Instant) {
        match &self.nodes[node].stage {
            Stage::Idle(at) if *at <= now => self.begin(node, now),
            Stage::Resolving(_, at) | Stage::Asking(_, at) if *at <= now => {
                let address = self.nodes[node].endpoint.address;
                let why = "it does not answer".to_owned();
                self.fail(node, Fault::Unreachable { address, why });
            }
            Stage::Up(_) if self.handoffs.was_retired(node) => self.pause(node),
            _ => {}
        }
    }

    fn begin(&mut self, node: usize, now: Instant) {
        let address = self.nodes[node].endpoint.address;
        let resolving = Id::new(&self.channel).and_then(|id| {
            id.set_ack_timeout(self.plan.ack_timeout)?;
            // A source address of the other family is unusable: let the routes choose.
            let from = self.plan.from.filter(|from| from.is_ipv4() == address.is_ipv4());
            id.resolve_address(from, address, ATTEMPT)?;
            Ok(id)
        });
        match resolving {
            Ok(id) => self.nodes[node].stage = Stage::Resolving(id, now + ATTEMPT),
            Err(error) => self.fail(node, unreachable(address, "resolving its address", &error)),
        }
    }

    /// Schedules the next attempt, with back-off.
    fn pause(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.stage = Stage::Idle(Instant::now() + node.pause);
        node.pause = (node.pause * 2).min(LAST_PAUSE);
    }

    fn fail(&mut self, node: usize, fault: Fault) {
        if matches!(fault, Fault::Fenced { .. }) {
            self.nodes[node].stage = Stage::Never;
        } else {
            self.pause(node);
        }
        self.handoffs.report(node, fault);
    }

    fn handle(&mut self, event: &Event) {
        let Some(node) = self.nodes.iter().position(|node| node.key() == Some(event.key)) else {
            return;
        };
        let address = self.nodes[node].endpoint.address;
        match event.kind {
            EventKind::AddressResolved => self.resolve_route(node),
            EventKind::RouteResolved => self.ask(node),
            EventKind::Established => self.establish(node, event.private.bytes()),
            EventKind::Rejected => {
                let fault = self.handshake_check(node).refusal(event.private.bytes(), event.status);
                self.fail(node, fault);
            }
            EventKind::Disconnected | EventKind::DeviceRemoved => self.lost(node),
            EventKind::Failed(why) => {
                self.fail(node, Fault::Unreachable { address, why: why.to_owned() });
            }
            EventKind::Request | EventKind::Other => {}
        }
    }

    fn resolve_route(&mut self, node: usize) {
        let Stage::Resolving(id, _) = &self.nodes[node].stage else { return };
        if let Err(error) = id.resolve_route(ATTEMPT) {
            let address = self.nodes[node].endpoint.address;
            self.fail(node, unreachable(address, "resolving the route to it", &error));
        }
    }

    fn ask(&mut self, node: usize) {
        let pause = Stage::Idle(Instant::now());
        let Stage::Resolving(id, deadline) = std::mem::replace(&mut self.nodes[node].stage, pause)
        else {
            return;
        };
        let ConnectPlan { domain, queue, region, limits, pool, client, .. } = &self.plan;
        let hello = ClientHello { pool: *pool, node: NodeId(node as u8), client: *client };
        let made = Connection::new(id, domain, queue, region, *limits).map_err(|(_, why)| why);
        let asked = made.and_then(|connection| {
            connection.connect(&hello.encode()[..ClientHello::BYTES])?;
            Ok(connection)
        });
        match asked {
            Ok(connection) => self.nodes[node].stage = Stage::Asking(connection, deadline),
            Err(error) => {
                let address = self.nodes[node].endpoint.address;
                self.fail(node, Fault::Local { address, why: error.to_string() });
            }
        }
    }

    fn establish(&mut self, node: usize, data: &[u8]) {
        let card = match self.handshake_check(node).consent(data) {
            Ok(card) => card,
            Err(fault) => {
                if let Stage::Asking(connection, _) = &self.nodes[node].stage {
                    connection.disconnect();
                }
                return self.fail(node, fault);
            }
        };
        let pause = Stage::Idle(Instant::now());
        let Stage::Asking(connection, _) = std::mem::replace(&mut self.nodes[node].stage, pause)
        else {
            return;
        };
        let joined = Arc::new(Joined {
            connection,
            card,
            gone: AtomicBool::new(false),
            #[cfg(test)]
            assumes_larger: AtomicBool::new(false),
        });
        self.nodes[node].endpoint.life = Some(card.life);
        self.nodes[node].pause = FIRST_PAUSE;
        self.nodes[node].stage = Stage::Up(Arc::clone(&joined));
        self.handoffs.hand_over(node, joined);
    }

    /// Returns the check for the answer of `node`.
    fn handshake_check(&self, node: usize) -> HandshakeCheck<'_> {
        HandshakeCheck {
            plan: &self.plan,
            node: NodeId(node as u8),
            endpoint: self.nodes[node].endpoint,
        }
    }

    /// Handles the end of a connection by the node.
    fn lost(&mut self, node: usize) {
        let address = self.nodes[node].endpoint.address;
        let why = "the node has ended it".to_owned();
        match &self.nodes[node].stage {
            Stage::Up(joined) => {
                joined.gone.store(true, Ordering::Relaxed);
                // In-flight work requests fail at once rather than after the last retry.
                joined.connection.disconnect();
                self.handoffs.report_lost(node, Fault::Lost { address, why });
                // If the fabric has not taken the connection, only this thread uses it.
                if let Some(joined) = self.handoffs.take(node) {
                    drop(joined);
                    self.pause(node);
                }
            }
            Stage::Asking(..) => self.fail(node, Fault::Lost { address, why }),
            _ => {}
        }
    }
}

impl Node {
    fn key(&self) -> Option<IdKey> {
        match &self.stage {
            Stage::Resolving(id, _) => Some(id.key()),
            Stage::Asking(connection, _) => Some(connection.key()),
            Stage::Up(joined) => Some(joined.connection.key()),
            Stage::Idle(_) | Stage::Never => None,
        }
    }
}

fn unreachable(address: SocketAddr, doing: &str, error: &std::io::Error) -> Fault {
    Fault::Unreachable { address, why: format!("{doing} failed: {error}") }
}
