//! The memory node: registers memory, accepts connections and fences clients. It runs no code for
//! an operation.
//!
//! **Invariant:** the node's words are accessed through its device alone, by connections that
//! [`admission`] accepted. The node's own code zeroes them while no client has a connection, and
//! never reads them.

pub(crate) mod memory;

mod admission;
mod options;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use swarm_core::node::NodeId;

use self::admission::{Shared, State};
pub use self::options::{MemorySource, NodeReport, ServeOptions};
use crate::device::DeviceChoice;
use crate::error::Error;
use crate::handshake::{ClientId, InstanceId, PoolId};
#[cfg(test)]
use crate::verbs;
use crate::verbs::{Channel, CompletionQueue, Id, Limits, local_address};

/// A memory node. It serves until it is dropped.
pub struct MemoryNode {
    shared: Arc<Shared>,
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The most requests that wait for an answer.
const BACKLOG: i32 = 128;

impl MemoryNode {
    /// Registers memory and listens. The node belongs to no pool, and rejects clients until
    /// [`enlist`](Self::enlist) names one.
    ///
    /// # Errors
    /// The device, the memory or the address cannot be used.
    pub fn serve(options: &ServeOptions) -> Result<Self, Error> {
        let chosen = options.device.resolve()?;
        let channel = Channel::new().map_err(|source| Error::Manager { source })?;
        let listener = Id::new(&channel).map_err(|source| Error::Manager { source })?;
        let wrong =
            |action| move |source| Error::Address { address: options.listen, action, source };
        listener.bind(options.listen).map_err(wrong("bind to it"))?;
        // An address belongs to one device; the unspecified address to all.
        let device = match listener.device() {
            Some(device) => device,
            None if options.listen.ip().is_unspecified() => chosen.device,
            None => {
                let none = std::io::Error::from_raw_os_error(libc::ENODEV);
                return Err(wrong("serve there")(none));
            }
        };
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
            removed: false,
        };
        let words = options.capacity / 8;
        let state = Mutex::new(state);
        let shared = Arc::new(Shared {
            domain,
            region,
            queue,
            limits,
            words,
            state,
            #[cfg(test)]
            injected_depth: limits.queue.into(),
        });
        let stopping = Arc::new(AtomicBool::new(false));
        let (its, stop) = (Arc::clone(&shared), Arc::clone(&stopping));
        let thread = thread::Builder::new()
            .name("swarm-memnode".to_owned())
            .spawn(move || its.run(&channel, &listener, &stop))
            .map_err(|source| Error::System { action: "start a thread", source })?;
        Ok(Self { shared, address, stopping, thread: Some(thread) })
    }

    /// Returns the address at which the node listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the node's instance id. [`release`](Self::release) draws another.
    pub fn life(&self) -> InstanceId {
        self.shared.state().life
    }

    /// Returns the bytes of the node's memory.
    pub fn capacity(&self) -> u64 {
        self.shared.words * 8
    }

    /// Joins `pool` as `node`: from now on the node accepts its clients.
    pub fn enlist(&self, pool: PoolId, node: NodeId) {
        self.shared.state().member = Some((pool, node));
    }

    /// Leaves the pool: ends all connections, zeroes the memory, and draws a new instance id.
    ///
    /// # Errors
    /// The system has no random numbers. The node has left the pool all the same.
    pub fn release(&self) -> Result<(), Error> {
        let mut state = self.shared.state();
        state.member = None;
        state.fences.clear();
        // S8: dropping a connection destroys its queue pair, so no client reaches the memory after
        // this.
        state.connections.clear();
        self.shared.region.zero();
        state.life = new_life()?;
        Ok(())
    }

    /// Fences a client slot up to the given incarnation: takes the access flags off its queue
    /// pairs, ends them, and rejects these incarnations from now on. When this returns, nothing
    /// that they have posted takes effect at this node any more. Returns how many connections it
    /// ended.
    pub fn fence(&self, client: ClientId) -> usize {
        self.shared.state().fence(client)
    }

    /// Returns whether the node's device was removed: then no client reaches the memory again.
    pub fn is_removed(&self) -> bool {
        self.shared.state().removed
    }

    /// Returns the node's event counts.
    pub fn report(&self) -> NodeReport {
        let state = self.shared.state();
        NodeReport { connections: state.connections.len(), ..state.report }
    }
}

#[cfg(test)]
impl MemoryNode {
    /// Returns the parts from which tests build misbehaving peers.
    pub(crate) fn parts(&self) -> (Arc<verbs::Domain>, Arc<CompletionQueue>, Arc<verbs::Region>) {
        let Shared { domain, queue, region, .. } = &*self.shared;
        (Arc::clone(domain), Arc::clone(queue), Arc::clone(region))
    }

    /// Makes the device refuse further queue pairs.
    pub(crate) fn inject_exhaustion(&self) {
        self.shared.injected_depth.store(u32::MAX, Ordering::Relaxed);
    }

    /// Takes the access flags off all queue pairs.
    pub(crate) fn forbid(&self) {
        for joined in self.shared.state().connections.values() {
            joined.connection.forbid().expect("flags change");
        }
    }

    /// Makes all queue pairs stop responding, without a message to the other end.
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
            // The thread panics only through a bug in this crate; then nothing is left to clean up.
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

fn new_life() -> Result<InstanceId, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        action: "get random numbers",
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(InstanceId(u128::from_le_bytes(bytes).max(1)))
}
