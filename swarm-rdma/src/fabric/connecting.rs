//! From addresses to connections, and what becomes of these.
//!
//! The invariant: nothing is posted to a connection that failed, and it is given back to the
//! [`connector`](crate::connector), which makes another, once all that was posted to it has come back.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread;

use super::waiting::{SPINS, longest};
use super::{Flight, RdmaFabric};
use crate::connector::{Connector, Plan};
use crate::doors::{Doors, Joined};
use crate::error::{Error, Fault};
use crate::fork::Origin;
use crate::link::Link;
use crate::memory;
use crate::options::{ConnectOptions, Counters, Endpoint};
use crate::tickets::Tickets;
use crate::verbs::{Channel, CompletionQueue, Domain, Limits, Slots};

/// Work requests under way at each node.
const QUEUE: u32 = 512;
/// Bytes that are posted inline, where the device takes as many.
const INLINE: u32 = 256;
/// READs and atomics under way at each node.
const ASKED: u8 = 16;

impl RdmaFabric {
    /// Connects to `nodes`, by their numbers in the pool. A node that cannot be reached is a missing
    /// vote, not an error: it is tried again in the background.
    ///
    /// # Errors
    /// The options or the device.
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
        // If a connection fails, each of its work requests completes, signalled or not.
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
        let plan = Plan {
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
        let (doors, woken) = Doors::new(nodes).map_err(system("make a socket pair"))?;
        let channel = Channel::new().map_err(|source| Error::Manager { source })?;
        let connector = Connector::new(plan, channel, Arc::clone(&doors), woken, nodes);
        let connector = thread::Builder::new()
            .name("swarm-connect".to_owned())
            .spawn(move || connector.run())
            .map_err(system("start a thread"))?;
        doors.wait_settled(options.patience);
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            origin: Origin::here(),
            links: nodes.iter().map(|node| Link::new(node.address, room)).collect(),
            flights: RefCell::new(vec![Flight::default(); Slots::COUNT as usize]),
            tickets: RefCell::new(Tickets::new(Slots::COUNT)),
            slots,
            queue,
            doors,
            counters: Cell::new(Counters { registrations: 1, ..Counters::default() }),
            chains: Cell::new(0),
            idle: Cell::new(0),
            // Where processors are few, the answer may need this one.
            spins: if processors > 2 { SPINS } else { 2 },
            longest: longest(options),
            connector: Some(connector),
            #[cfg(test)]
            feigned: Cell::new(None),
        })
    }

    /// The node's connection, if there is one.
    #[inline]
    pub(super) fn joined(&self, node: usize, link: &Link) -> Option<Arc<Joined>> {
        if let Some(joined) = link.up() {
            return Some(joined);
        }
        self.rejoin(node, link)
    }

    #[cold]
    fn rejoin(&self, node: usize, link: &Link) -> Option<Arc<Joined>> {
        if link.is_gone() {
            link.fail();
        }
        self.progress();
        self.retire(node);
        if !link.is_down() {
            return None;
        }
        link.join(self.doors.take(node)?);
        self.count(|counters| counters.connections += 1);
        link.up()
    }

    /// Gives a failed connection back, once all that was posted has come back.
    pub(super) fn retire(&self, node: usize) {
        if self.links[node].let_go() {
            self.doors.retire(node);
        }
    }

    /// The connection to `node` does not work any more.
    #[cold]
    pub(super) fn lose(&self, node: usize, why: &str) {
        let link = &self.links[node];
        if link.fail() {
            let fault = Fault::Lost { address: link.address(), why: why.to_owned() };
            self.doors.report(node, fault);
        }
    }
}
