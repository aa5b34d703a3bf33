//! Sets up connections, takes them over from the connector, and returns failed ones.
//!
//! **Invariant:** nothing is posted to a failed connection. After its last completion it is
//! returned to the [`connector`](crate::connector), which makes another.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread;

use super::waiting::{SPINS, longest};
use super::{InFlight, RdmaFabric};
use crate::connector::handoff::{Handoffs, Joined};
use crate::connector::{ConnectPlan, Connector};
use crate::error::{Error, Fault};
use crate::fabric::peer::Peer;
use crate::fabric::replies::Tickets;
use crate::fork::Origin;
use crate::memnode::memory;
use crate::options::{ConnectOptions, Counters, Endpoint};
use crate::verbs::{Channel, CompletionQueue, Domain, Limits, Slots};

/// In-flight work requests at each node.
const QUEUE: u32 = 512;
/// The longest WRITE that is posted inline, in bytes, if the device allows it.
const INLINE: u32 = 256;
/// In-flight READs and atomics at each node.
const ASKED: u8 = 16;

impl RdmaFabric {
    /// Connects to `nodes`, which are in the order of their numbers in the pool. A node that cannot
    /// be reached is a missing vote, not an error: the connector retries in the background.
    ///
    /// # Errors
    /// The options are invalid, or the device cannot be used.
    pub fn connect(options: &ConnectOptions, nodes: &[Endpoint]) -> Result<Self, Error> {
        if !matches!(nodes.len(), 1 | 3 | 5 | 7) {
            let count = nodes.len();
            return Err(Error::Options(format!(
                "a pool has 1, 3, 5 or 7 memory nodes, not {count}"
            )));
        }
        if options.retries > 6 || options.ack_timeout > 31 {
            let why = "a packet is sent again at most 6 times, and its timeout is at most 31";
            return Err(Error::Options(why.to_owned()));
        }
        let chosen = options.device.resolve()?;
        if let (Some(index), Some(from)) = (options.device.gid_index, chosen.from)
            && let Some(node) = nodes.iter().find(|node| node.address.is_ipv4() != from.is_ipv4())
        {
            let (device, address) = (chosen.device.name(), node.address);
            let why = format!("it is {from}, from which {address} cannot be reached");
            return Err(Error::Gid { device, index, why });
        }
        let device = chosen.device;
        let failed = |action| move |source| Error::Device { device: device.name(), action, source };
        let attributes = device.attributes().map_err(failed("ask what it can do"))?;
        let domain = Domain::new(device).map_err(failed("make a protection domain"))?;
        let slots = Slots::register(&domain).map_err(|source| {
            memory::refused(device, Slots::bytes(), attributes.max_region, source)
        })?;
        // If a connection fails, each of its work requests completes, signalled or not: the
        // completion queue has room for all of them.
        let count = nodes.len() as u32;
        let room = QUEUE.min(attributes.max_queue).min(attributes.max_completions / count);
        let queue = CompletionQueue::new(device, room * count)
            .map_err(failed("make a completion queue"))?;
        let limits = Limits {
            queue: room,
            inline: INLINE,
            asked: ASKED.min(attributes.max_asked),
            answered: 0,
            retries: options.retries,
        };
        let plan = ConnectPlan {
            domain,
            queue: Arc::clone(&queue),
            region: Arc::clone(slots.region()),
            from: chosen.from,
            limits,
            ack_timeout: options.ack_timeout,
            pool: options.pool,
            client: options.client,
            words: options.words,
        };
        let system = |action| move |source| Error::System { action, source };
        let (handoffs, woken) = Handoffs::new(nodes).map_err(system("make a socket pair"))?;
        let channel = Channel::new().map_err(|source| Error::Manager { source })?;
        let connector = Connector::new(plan, channel, Arc::clone(&handoffs), woken, nodes);
        let connector = thread::Builder::new()
            .name("swarm-connect".to_owned())
            .spawn(move || connector.run())
            .map_err(system("start a thread"))?;
        handoffs.wait_settled(options.patience);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            origin: Origin::current(),
            links: nodes.iter().map(|node| Peer::new(node.address, room)).collect(),
            flights: RefCell::new(vec![InFlight::default(); Slots::COUNT as usize]),
            tickets: RefCell::new(Tickets::new(Slots::COUNT)),
            slots,
            queue,
            handoffs,
            counters: Cell::new(Counters { registrations: 1, ..Counters::default() }),
            chains: Cell::new(0),
            idle: Cell::new(0),
            // With few processors, the process that answers may need this one.
            spins: if processors > 2 { SPINS } else { 2 },
            longest: longest(options),
            connector: Some(connector),
            #[cfg(test)]
            injected_status: Cell::new(None),
            #[cfg(test)]
            failures: RefCell::default(),
        })
    }

    /// Returns the node's connection, if it is up or the connector has handed one over.
    #[inline]
    pub(super) fn joined(&self, node: usize, link: &Peer) -> Option<Arc<Joined>> {
        if let Some(joined) = link.up() {
            return Some(joined);
        }
        self.rejoin(node, link)
    }

    #[cold]
    fn rejoin(&self, node: usize, link: &Peer) -> Option<Arc<Joined>> {
        if link.is_gone() {
            link.fail();
        }
        self.progress();
        self.retire(node);
        if !link.is_down() {
            return None;
        }
        link.join(self.handoffs.take(node)?);
        self.count(|counters| counters.connections += 1);
        link.up()
    }

    /// Returns a failed connection to the connector if none of its work requests is in flight.
    pub(super) fn retire(&self, node: usize) {
        if self.links[node].let_go() {
            self.handoffs.retire(node);
        }
    }

    /// Marks the connection to `node` as failed, and reports why.
    #[cold]
    pub(super) fn lose(&self, node: usize, why: &str) {
        let link = &self.links[node];
        #[cfg(test)]
        self.failures.borrow_mut().push(why.to_owned());
        if link.fail() {
            let fault = Fault::Lost { address: link.address(), why: why.to_owned() };
            self.handoffs.report(node, fault);
        }
    }
}
