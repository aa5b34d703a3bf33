//! The thread that connects a client to its nodes, and again when a connection is lost.
//!
//! It and the fabric meet at a [`Door`] for each node. The invariant: a connection has one user at a
//! time. The connector hands it in at the door; the fabric has it until all that it posted came
//! back, then *retires* it, and only then does the connector try to make another.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use swarm_core::fabric::NodeId;

use crate::error::Fault;
use crate::greeting::{ClientId, Hello, NodeCard, PoolId, Refusal, Unreadable};
use crate::options::{Endpoint, NodeStatus};
use crate::verbs::{
    Channel, CompletionQueue, Connection, Domain, Event, EventKind, Id, IdKey, Limits, Region,
    wait_readable,
};

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

/// What the connector needs to connect.
pub(crate) struct Plan {
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

/// First pause before trying again; doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long each attempt may take.
const ATTEMPT: Duration = Duration::from_secs(1);
/// How long the rest is waited for when a majority is up.
const MOMENT: Duration = Duration::from_millis(200);
/// The connector looks at its doors at least so often.
const TICK: Duration = Duration::from_millis(100);

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
        // Pairs with the acquire in the connector's round.
        self.doors[node].retired.store(true, Ordering::Release);
        self.ring();
    }

    /// Says why there is no connection to `node`.
    pub(crate) fn report(&self, node: usize, fault: Fault) {
        lock(&self.doors[node].status).fault = Some(fault);
        // Whoever is about to wait has looked, and waits, or looks after this.
        drop(lock(&self.settled.0));
        self.settled.1.notify_all();
    }

    /// The connection to `node` has ended. If it is known why, it stays at that.
    fn report_lost(&self, node: usize, fault: Fault) {
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

    /// Ends the connector.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.ring();
    }

    fn ring(&self) {
        // A bell that is full has been rung.
        let _ = (&self.bell).write(&[1]);
    }

    fn hand_in(&self, node: usize, joined: Arc<Joined>) {
        let door = &self.doors[node];
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

/// How far a node is.
enum Stage {
    /// Nothing is under way until then.
    Idle(Instant),
    /// Its address or the route to it is being resolved.
    Resolving(Id, Instant),
    /// It has been asked.
    Asking(Connection, Instant),
    /// The fabric has a connection.
    Up(Arc<Joined>),
    /// It will not take this client again.
    Never,
}

struct Node {
    endpoint: Endpoint,
    stage: Stage,
    pause: Duration,
}

/// The connector.
pub(crate) struct Connector {
    plan: Plan,
    channel: Arc<Channel>,
    doors: Arc<Doors>,
    woken: UnixStream,
    nodes: Vec<Node>,
}

impl Connector {
    pub(crate) fn new(
        plan: Plan,
        channel: Arc<Channel>,
        doors: Arc<Doors>,
        woken: UnixStream,
        nodes: &[Endpoint],
    ) -> Self {
        let node = |&endpoint: &Endpoint| Node {
            endpoint,
            stage: Stage::Idle(Instant::now()),
            pause: FIRST_PAUSE,
        };
        Self { plan, channel, doors, woken, nodes: nodes.iter().map(node).collect() }
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) {
        while !self.doors.stopping.load(Ordering::Relaxed) {
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

    /// How long nothing is to be done, unless something happens.
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
            // Pairs with the release in `retire`.
            Stage::Up(_) if self.doors.doors[node].retired.swap(false, Ordering::Acquire) => {
                self.pause(node);
            }
            _ => {}
        }
    }

    fn begin(&mut self, node: usize, now: Instant) {
        let address = self.nodes[node].endpoint.address;
        let resolving = Id::new(&self.channel).and_then(|id| {
            id.set_ack_timeout(self.plan.ack_timeout)?;
            id.resolve_address(self.plan.from, address, ATTEMPT)?;
            Ok(id)
        });
        match resolving {
            Ok(id) => self.nodes[node].stage = Stage::Resolving(id, now + ATTEMPT),
            Err(error) => self.fail(node, unreachable(address, "resolving its address", &error)),
        }
    }

    /// Tries again later.
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
        self.doors.report(node, fault);
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
                let fault = self.rejection(node, event.private.bytes(), event.status);
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
        let Plan { domain, queue, region, limits, pool, client, .. } = &self.plan;
        let hello = Hello { pool: *pool, node: NodeId(node as u8), client: *client };
        let asked = Connection::new(id, domain, queue, region, *limits).and_then(|connection| {
            connection.connect(&hello.encode()[..Hello::BYTES])?;
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

    fn establish(&mut self, node: usize, said: &[u8]) {
        let card = match self.accept(node, said) {
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
            pretends: AtomicBool::new(false),
        });
        self.nodes[node].endpoint.life = Some(card.life);
        self.nodes[node].pause = FIRST_PAUSE;
        self.nodes[node].stage = Stage::Up(Arc::clone(&joined));
        self.doors.doors[node].retired.store(false, Ordering::Relaxed);
        self.doors.hand_in(node, joined);
    }

    /// Whether the node that took the connection is the right one.
    fn accept(&self, node: usize, said: &[u8]) -> Result<NodeCard, Fault> {
        let Endpoint { address, life } = self.nodes[node].endpoint;
        let card = NodeCard::decode(said).map_err(|unreadable| unread(address, unreadable))?;
        let (wanted, number) = (self.plan.pool, NodeId(node as u8));
        if card.pool != wanted {
            return Err(Fault::OtherPool { address, found: card.pool, wanted });
        }
        if card.node != number {
            return Err(Fault::OtherNode { address, found: card.node, wanted: number });
        }
        if let Some(known) = life.filter(|&known| known != card.life) {
            return Err(Fault::Reborn { address, found: card.life, known });
        }
        if card.words < self.plan.words {
            return Err(Fault::Small { address, found: card.words, needed: self.plan.words });
        }
        Ok(card)
    }

    /// What a node's refusal means.
    fn rejection(&self, node: usize, said: &[u8], reason: i32) -> Fault {
        let address = self.nodes[node].endpoint.address;
        /// Reasons that the connection manager itself gives.
        const NO_SUCH_SERVICE: i32 = 8;
        const BY_CONSUMER: i32 = 28;
        if reason != BY_CONSUMER {
            let why = match reason {
                NO_SUCH_SERVICE => "no memory node listens there".to_owned(),
                _ => format!("the connection manager there refused (reason {reason})"),
            };
            return Fault::Unreachable { address, why };
        }
        match Refusal::decode(said) {
            Err(unreadable) => unread(address, unreadable),
            Ok(Refusal::Foreign) => Fault::Foreign { address },
            Ok(Refusal::Version(version)) => Fault::Version { address, version },
            Ok(Refusal::NoPool) => Fault::NoPool { address },
            Ok(Refusal::Pool(found)) => Fault::OtherPool { address, found, wanted: self.plan.pool },
            Ok(Refusal::Node(found)) => {
                Fault::OtherNode { address, found, wanted: NodeId(node as u8) }
            }
            Ok(Refusal::Fenced) => Fault::Fenced { address, client: self.plan.client },
            Ok(Refusal::Exhausted) => Fault::Exhausted { address },
        }
    }

    /// The other end has ended the connection.
    fn lost(&mut self, node: usize) {
        let address = self.nodes[node].endpoint.address;
        let why = "the node has ended it".to_owned();
        match &self.nodes[node].stage {
            Stage::Up(joined) => {
                joined.gone.store(true, Ordering::Relaxed);
                // What is under way comes back at once rather than after the last retry.
                joined.connection.disconnect();
                self.doors.report_lost(node, Fault::Lost { address, why });
                // A connection that the fabric has not taken yet has no user.
                if let Some(joined) = self.doors.take(node) {
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

fn unread(address: SocketAddr, unreadable: Unreadable) -> Fault {
    match unreadable {
        Unreadable::Foreign => Fault::Foreign { address },
        Unreadable::Version(version) => Fault::Version { address, version },
    }
}
