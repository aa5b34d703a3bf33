//! The memory node: registers memory, accepts connections, fences clients, and runs nothing for an
//! operation.
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
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use swarm_core::fabric::NodeId;
use swarm_core::geometry::LAYOUT_VERSION;

use crate::device::DeviceChoice;
use crate::error::Error;
use crate::greeting::{ClientId, Hello, Life, NodeCard, PoolId, Refusal, Unreadable};
use crate::memory;
use crate::verbs::{
    Channel, CompletionQueue, Connection, Domain, Event, EventKind, Id, IdKey, Limits, Region,
    local_address, wait_readable,
};

/// Where a node's memory comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemorySource {
    /// The process allocates it, in huge pages where there are any.
    Allocated,
    /// A file or a DAX device of at least the capacity. What it held is lost.
    File(PathBuf),
}

/// How a memory node is to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// Where to listen: an address of the device's network interface. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Bytes of memory.
    pub capacity: u64,
    /// Where it comes from.
    pub memory: MemorySource,
    /// The device.
    pub device: DeviceChoice,
}

impl ServeOptions {
    /// Serves `capacity` bytes of allocated memory at `listen`.
    pub fn new(listen: SocketAddr, capacity: u64) -> Self {
        Self { listen, capacity, memory: MemorySource::Allocated, device: DeviceChoice::default() }
    }
}

/// What a memory node has to report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeReport {
    /// Connections that there are.
    pub connections: usize,
    /// Connections that there have been, those included.
    pub accepted: u64,
    /// Requests for connections that were refused.
    pub refused: u64,
    /// Connections that were ended because their client was fenced.
    pub fenced: u64,
    /// Memory registrations.
    pub registrations: u64,
    /// Whether the memory lies in huge pages that were set aside.
    pub huge_pages: bool,
}

/// A memory node that serves until this is dropped.
pub struct MemoryNode {
    shared: Arc<Shared>,
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// How often the thread looks whether it is to stop.
const TICK: Duration = Duration::from_millis(50);
/// Requests that wait to be looked at.
const BACKLOG: i32 = 128;

struct Shared {
    domain: Arc<Domain>,
    region: Arc<Region>,
    queue: Arc<CompletionQueue>,
    limits: Limits,
    words: u64,
    state: Mutex<State>,
}

struct State {
    life: Life,
    member: Option<(PoolId, NodeId)>,
    connections: HashMap<IdKey, Joined>,
    /// For each client slot, up to which life it is fenced.
    fences: HashMap<u32, u64>,
    report: NodeReport,
}

struct Joined {
    client: ClientId,
    connection: Connection,
}

impl MemoryNode {
    /// Registers memory and listens. The node belongs to no pool, and refuses clients until
    /// [`enlist`](Self::enlist) tells it to which.
    ///
    /// # Errors
    /// The device, the memory or the address cannot be had.
    pub fn serve(options: &ServeOptions) -> Result<Self, Error> {
        let chosen = options.device.resolve()?;
        let channel = Channel::new().map_err(|source| Error::Manager { source })?;
        let listener = Id::new(&channel).map_err(|source| Error::Manager { source })?;
        let wrong =
            |action| move |source| Error::Address { address: options.listen, action, source };
        listener.bind(options.listen).map_err(wrong("bind to it"))?;
        // An address belongs to one device; the unspecified one to all.
        let device = listener.device().unwrap_or(chosen.device);
        let asked = options.device != DeviceChoice::default();
        if asked && device != chosen.device {
            return Err(Error::Options(format!(
                "{}: is an address of {}, not of {}; listen at an address of the device",
                options.listen,
                device.name(),
                chosen.device.name()
            )));
        }
        let (domain, region) = memory::register(device, options)?;
        let failed = |action| move |source| Error::Device { device: device.name(), action, source };
        let attributes = device.attributes().map_err(failed("ask what it can do"))?;
        let queue = CompletionQueue::new(device, 16).map_err(failed("make a completion queue"))?;
        listener.listen(BACKLOG).map_err(wrong("listen there"))?;
        let address = local_address(&listener).unwrap_or(options.listen);
        let limits =
            Limits { queue: 1, inline: 0, asked: 0, answered: attributes.max_answered, retries: 0 };
        let report = NodeReport {
            registrations: 1,
            huge_pages: region.area().huge(),
            ..NodeReport::default()
        };
        let state = State {
            life: new_life()?,
            member: None,
            connections: HashMap::new(),
            fences: HashMap::new(),
            report,
        };
        let words = options.capacity / 8;
        let state = Mutex::new(state);
        let shared = Arc::new(Shared { domain, region, queue, limits, words, state });
        let stopping = Arc::new(AtomicBool::new(false));
        let (its, stop) = (Arc::clone(&shared), Arc::clone(&stopping));
        let thread = thread::Builder::new()
            .name("swarm-memnode".to_owned())
            .spawn(move || its.run(&channel, &listener, &stop))
            .map_err(|source| Error::System { action: "start a thread", source })?;
        Ok(Self { shared, address, stopping, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Which life of the node this is. [`release`](Self::release) begins another.
    pub fn life(&self) -> Life {
        self.shared.state().life
    }

    /// Bytes of its memory.
    pub fn capacity(&self) -> u64 {
        self.shared.words * 8
    }

    /// The node belongs to `pool` now, as `node`: it takes connections of its clients.
    pub fn enlist(&self, pool: PoolId, node: NodeId) {
        self.shared.state().member = Some((pool, node));
    }

    /// The node belongs to no pool any more: all connections end, its memory is zeroed, and another
    /// life of it begins.
    ///
    /// # Errors
    /// The system has no random numbers. The node belongs to no pool then, either.
    pub fn release(&self) -> Result<(), Error> {
        let mut state = self.shared.state();
        state.member = None;
        state.fences.clear();
        // Dropping a connection destroys its queue pair: nobody reaches the memory after this.
        state.connections.clear();
        self.shared.region.zero();
        state.life = new_life()?;
        Ok(())
    }

    /// Takes the access flags off the queue pairs of this client slot in all its lives up to the
    /// given one, ends them, and refuses these lives from now on. When this returns, nothing that
    /// they have posted takes effect here any more. Says how many connections that were.
    pub fn fence(&self, client: ClientId) -> usize {
        self.shared.state().fence(client)
    }

    /// What there is to report.
    pub fn report(&self) -> NodeReport {
        let state = self.shared.state();
        NodeReport { connections: state.connections.len(), ..state.report }
    }
}

#[cfg(test)]
impl MemoryNode {
    /// What peers that misbehave are made of.
    pub(crate) fn parts(&self) -> (Arc<Domain>, Arc<CompletionQueue>, Arc<Region>) {
        let Shared { domain, queue, region, .. } = &*self.shared;
        (Arc::clone(domain), Arc::clone(queue), Arc::clone(region))
    }

    /// Takes the access flags off all queue pairs.
    pub(crate) fn forbid(&self) {
        for joined in self.shared.state().connections.values() {
            joined.connection.forbid().expect("flags change");
        }
    }

    /// Makes all queue pairs deaf, without a word to the other end.
    pub(crate) fn kill_silently(&self) {
        for joined in self.shared.state().connections.values() {
            joined.connection.deafen().expect("states change");
        }
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It panics only if this crate is wrong; there is nothing left to clean up then.
            let _ = thread.join();
        }
        self.shared.state().connections.clear();
    }
}

impl std::fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryNode").field("address", &self.address).finish_non_exhaustive()
    }
}

impl State {
    fn fence(&mut self, client: ClientId) -> usize {
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
    fn judge(&self, hello: &[u8]) -> Result<(Hello, PoolId, NodeId), Refusal> {
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
        Ok((hello, pool, node))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held left nothing half done that matters more than serving on.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, channel: &Arc<Channel>, _listener: &Id, stop: &AtomicBool) {
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
                    self.consider(id, event.private.bytes());
                }
            }
            EventKind::Disconnected | EventKind::DeviceRemoved | EventKind::Failed(_) => {
                let gone = self.state().connections.remove(&event.key);
                if let Some(joined) = gone {
                    joined.connection.disconnect();
                }
            }
            _ => {}
        }
    }

    fn consider(&self, id: Id, hello: &[u8]) {
        let mut state = self.state();
        let refusal = match state.judge(hello) {
            Ok((hello, pool, node)) => match self.join(&mut state, id, &hello, pool, node) {
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
    fn join(
        &self,
        state: &mut State,
        id: Id,
        hello: &Hello,
        pool: PoolId,
        node: NodeId,
    ) -> Result<(), Option<Id>> {
        let client = hello.client;
        if client != ClientId::NOBODY {
            state.connections.retain(|_, joined| joined.client != client);
            if let Some(earlier) = client.incarnation.checked_sub(1) {
                state.fence(ClientId { slot: client.slot, incarnation: earlier });
            }
        }
        if id.device() != Some(self.domain.device()) {
            return Err(Some(id));
        }
        let connection = Connection::new(id, &self.domain, &self.queue, &self.region, self.limits)
            .map_err(|_| None)?;
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

fn new_life() -> Result<Life, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        action: "get random numbers",
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(Life(u128::from_le_bytes(bytes).max(1)))
}
