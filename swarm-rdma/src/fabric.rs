//! The fabric over verbs.
//!
//! A chain is one call to the device: its work requests go out linked, and only the last is
//! signalled. What it carries and yields lies in one slot of registered memory, which is the device's
//! until that completion came, whether anybody waits for it or not. Small WRITEs go inline.
//!
//! Nothing here takes a lock or allocates while all is well. A connection that is lost fails its
//! chains; the [`connector`](crate::connector) makes another meanwhile.

mod waiting;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use swarm_core::epoch::NoBoard;
use swarm_core::fabric::{Fabric, NodeDown, NodeId, Verb};

use self::waiting::{SPINS, longest};
use crate::chain::{Asked, plan};
use crate::completion::{Completion, Reply, State, Words};
use crate::connector::{Connector, Doors, Joined, Plan};
use crate::error::{Error, Fault};
use crate::link::Link;
use crate::memory;
use crate::options::{ConnectOptions, Counters, Endpoint, NodeStatus};
use crate::tickets::{Extent, Ticket, Tickets};
use crate::verbs::{Channel, CompletionQueue, Domain, Done, Limits, Slot, Slots, status_text};

/// Work requests under way at each node.
const QUEUE: u32 = 512;
/// Bytes that are posted inline, where the device takes as many.
const INLINE: u32 = 256;
/// READs and atomics under way at each node.
const ASKED: u8 = 16;
/// How long tear-down waits for chains under way.
const DRAIN: Duration = Duration::from_millis(500);

/// What is known of a slot's chain while it is under way.
#[derive(Clone, Copy, Default)]
struct Flight {
    ticket: u32,
    /// Where the reply begins in the slot, and its length: words.
    start: u16,
    words: u32,
    node: u8,
    work: u8,
    asked: Asked,
    failed: bool,
}

/// One client's access to the memory nodes of a pool.
///
/// `Send`, not `Sync`. A node that does not answer is reconnected in the background. Dropping it
/// waits until the chains under way have ended.
pub struct RdmaFabric {
    links: Vec<Link>,
    slots: Slots,
    flights: RefCell<Vec<Flight>>,
    tickets: RefCell<Tickets>,
    queue: Arc<CompletionQueue>,
    doors: Arc<Doors>,
    counters: Cell<Counters>,
    idle: Cell<u32>,
    spins: u32,
    /// How long a chain may be under way.
    longest: Duration,
    connector: Option<JoinHandle<()>>,
    /// What the next completion is to have become, whatever the device says.
    #[cfg(test)]
    feigned: Cell<Option<u32>>,
}

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
            links: nodes.iter().map(|node| Link::new(node.address, room)).collect(),
            flights: RefCell::new(vec![Flight::default(); Slots::COUNT as usize]),
            tickets: RefCell::new(Tickets::new(Slots::COUNT)),
            slots,
            queue,
            doors,
            counters: Cell::new(Counters { registrations: 1, ..Counters::default() }),
            idle: Cell::new(0),
            // Where processors are few, the answer may need this one.
            spins: if processors > 2 { SPINS } else { 2 },
            longest: longest(options),
            connector: Some(connector),
            #[cfg(test)]
            feigned: Cell::new(None),
        })
    }

    /// How each node stands.
    pub fn status(&self) -> Vec<NodeStatus> {
        self.doors.status()
    }

    /// What this fabric has done so far.
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    /// Posts, if the node is up and the chain leads nowhere else. `None` if not. A chain that has
    /// waited for this one goes out in front of it.
    #[inline]
    fn try_post(&self, node: NodeId, chain: &[Verb<'_>]) -> Option<Posted> {
        let link = self.links.get(node.index())?;
        let joined = self.joined(node.index(), link)?;
        let rider = link.rider().borrow();
        if rider.is_empty() {
            drop(rider);
            return self.post_on(node, link, &joined, chain, 0);
        }
        let (together, words) = rider.with(chain);
        let posted = self.post_on(node, link, &joined, &together, words);
        drop(together);
        drop(rider);
        link.rider().borrow_mut().clear();
        posted
    }

    /// Posts `chain`, the first `skipped` words of whose reply nobody wants.
    #[inline]
    fn post_on(
        &self,
        node: NodeId,
        link: &Link,
        joined: &Joined,
        chain: &[Verb<'_>],
        skipped: usize,
    ) -> Option<Posted> {
        if link.asked().any() && chain.iter().any(|verb| !matches!(verb, Verb::Read { .. })) {
            // What has ended already need not be waited for.
            self.progress();
        }
        let planned = plan(chain, joined.reach(), joined.connection.limits(), link.asked())?;
        if planned.work.is_empty() {
            return Some(Posted::Empty);
        }
        let class = Slots::class_for(planned.bytes)?;
        let count = planned.work.len() as u32;
        if link.room() < count {
            self.wait_for(|| (link.room() >= count).then_some(()))?;
        }
        let mut slot = match self.slots.take(class) {
            Some(slot) => slot,
            None => self.make_room(class)?,
        };
        if !link.is_up() {
            // It was lost while this waited for room.
            self.slots.give(slot);
            return None;
        }
        self.copy_in(&mut slot, chain, planned.words, joined.connection.limits().inline as usize);
        let ticket = self.tickets.borrow_mut().issue();
        self.flights.borrow_mut()[slot.index() as usize] = Flight {
            ticket,
            start: skipped as u16,
            words: (planned.words - skipped) as u32,
            node: node.0,
            work: count as u8,
            asked: planned.asked,
            failed: false,
        };
        let fenced = planned.work.iter().filter(|(_, fenced)| *fenced).count() as u64;
        let key = joined.card.rkey;
        if let Err(error) = joined.connection.post(&self.slots, slot, key, &planned.work) {
            self.tickets.borrow_mut().close(ticket);
            self.lose(node.index(), &format!("posting failed: {error}"));
            return None;
        }
        link.posted(count, planned.asked);
        self.count(|counters| {
            counters.chains += 1;
            counters.doorbells += 1;
            counters.signalled += 1;
            counters.work_requests += u64::from(count);
            counters.fenced += fenced;
        });
        Some(Posted::Ticket(ticket))
    }

    /// Lets go of a ticket: its chain runs, and nobody waits for it.
    #[inline]
    pub(crate) fn detach(&self, number: u32) {
        let mut tickets = self.tickets.borrow_mut();
        let ticket = tickets.get(number);
        if matches!(ticket, Ticket::Pending) {
            *ticket = Ticket::Detached;
        } else if let Ticket::Ready(slot, _) = tickets.close(number) {
            self.slots.give(slot);
        }
    }

    /// Posts what waits for a next chain to go out with.
    pub fn flush(&self) {
        for (number, link) in self.links.iter().enumerate() {
            if !link.rider().borrow().is_empty()
                && let Some(Posted::Ticket(ticket)) = self.try_post(NodeId(number as u8), &[])
            {
                self.detach(ticket);
            }
        }
    }

    /// Copies what is not posted inline to behind the chain's reply.
    #[inline]
    fn copy_in(&self, slot: &mut Slot, chain: &[Verb<'_>], words: usize, inline: usize) {
        let mut at = words * 8;
        for verb in chain {
            if let Verb::Write { head, tail, .. } = *verb {
                let bytes = head.len() * 8 + tail.len().next_multiple_of(8);
                if bytes > inline {
                    self.slots.put(slot, at, head, tail);
                    at += bytes;
                }
            }
        }
    }

    /// The node's connection, if there is one.
    #[inline]
    fn joined(&self, node: usize, link: &Link) -> Option<Arc<Joined>> {
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
    fn retire(&self, node: usize) {
        if self.links[node].let_go() {
            self.doors.retire(node);
        }
    }

    /// The connection to `node` does not work any more.
    #[cold]
    fn lose(&self, node: usize, why: &str) {
        let link = &self.links[node];
        if link.fail() {
            let fault = Fault::Lost { address: link.address(), why: why.to_owned() };
            self.doors.report(node, fault);
        }
    }

    /// Takes completions that are there. Whether there were any.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        match self.queue.poll(&self.slots, |done| self.complete(done)) {
            Ok(count) => count > 0,
            Err(error) => {
                for node in 0..self.links.len() {
                    self.lose(node, &format!("polling failed: {error}"));
                }
                false
            }
        }
    }

    #[inline]
    fn complete(&self, done: Done) {
        #[cfg(test)]
        let done = Done { status: self.feigned.take().unwrap_or(done.status), ..done };
        let mut flights = self.flights.borrow_mut();
        let Some(flight) = flights.get_mut(done.index as usize) else { return };
        let node = usize::from(flight.node);
        if done.status != 0 {
            flight.failed = true;
            self.lose(node, &status_text(done.status));
        }
        let Some(slot) = done.slot else { return };
        let flight = *flight;
        drop(flights);
        let link = &self.links[node];
        link.completed(u32::from(flight.work), flight.asked);
        let mut tickets = self.tickets.borrow_mut();
        let ticket = tickets.get(flight.ticket);
        if matches!(ticket, Ticket::Detached) {
            tickets.close(flight.ticket);
            self.slots.give(slot);
        } else if flight.failed {
            *ticket = Ticket::Failed;
            self.slots.give(slot);
        } else {
            *ticket = Ticket::Ready(slot, Extent { start: flight.start, words: flight.words });
        }
        drop(tickets);
        if flight.failed {
            self.retire(node);
        }
    }

    /// A slot of a class that has none left: of a reply that nobody has taken yet, which is moved
    /// elsewhere, or of the next chain that ends.
    #[cold]
    fn make_room(&self, class: usize) -> Option<Slot> {
        self.wait_for(|| {
            if let Some(slot) = self.slots.take(class) {
                return Some(slot);
            }
            let mut tickets = self.tickets.borrow_mut();
            let ticket = tickets.ready_in(class)?;
            match std::mem::replace(ticket, Ticket::Failed) {
                Ticket::Ready(slot, extent) => {
                    *ticket = Ticket::Moved(self.words(&slot, extent).into());
                    Some(slot)
                }
                other => {
                    *ticket = other;
                    None
                }
            }
        })
    }

    /// A reply in its slot.
    #[inline]
    pub(crate) fn words<'s>(&'s self, slot: &'s Slot, extent: Extent) -> &'s [u64] {
        let start = usize::from(extent.start);
        &self.slots.words(slot, start + extent.words as usize)[start..]
    }

    /// The reply behind a ticket, if it is there.
    #[inline]
    pub(crate) fn redeem(&self, number: u32) -> Option<Result<Reply<'_>, NodeDown>> {
        let mut tickets = self.tickets.borrow_mut();
        if matches!(tickets.get(number), Ticket::Pending) {
            return None;
        }
        let ticket = tickets.close(number);
        drop(tickets);
        Some(match ticket {
            // Replies that are kept must not use up the slots: chains need some.
            Ticket::Ready(slot, extent) if self.slots.is_short(slot.class()) => {
                let moved = self.words(&slot, extent).into();
                self.slots.give(slot);
                Ok(Reply(Words::Moved(moved)))
            }
            Ticket::Ready(slot, extent) => {
                Ok(Reply(Words::Lent { fabric: self, slot: Some(slot), extent }))
            }
            Ticket::Moved(words) => Ok(Reply(Words::Moved(words))),
            _ => Err(NodeDown),
        })
    }

    /// Takes the slot of a reply back.
    #[inline]
    pub(crate) fn give(&self, slot: Slot) {
        self.slots.give(slot);
    }
}

#[cfg(test)]
impl RdmaFabric {
    /// Believes that the nodes have more memory than they have.
    pub(crate) fn pretend_larger(&self) {
        for link in &self.links {
            let joined = link.up().expect("the node is up");
            joined.pretends.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Takes the next completion for one of this status.
    pub(crate) fn feign(&self, status: u32) {
        self.feigned.set(Some(status));
    }

    /// Names a wrong key to its own memory in the next work request that touches it.
    pub(crate) fn forge_key(&self) {
        self.slots.forged.set(true);
    }
}

impl Drop for RdmaFabric {
    fn drop(&mut self) {
        self.flush();
        let deadline = Instant::now() + DRAIN;
        while self.links.iter().any(Link::is_busy) && Instant::now() < deadline {
            if !self.progress() {
                thread::yield_now();
            }
        }
        self.doors.stop();
        if let Some(connector) = self.connector.take() {
            // It panics only if this crate is wrong; there is nothing left to clean up then.
            let _ = connector.join();
        }
    }
}

impl std::fmt::Debug for RdmaFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaFabric").field("nodes", &self.status()).finish_non_exhaustive()
    }
}

enum Posted {
    Ticket(u32),
    Empty,
}

impl Fabric for RdmaFabric {
    type Board = NoBoard;
    type Reply<'f> = Reply<'f>;
    type Completion<'f> = Completion<'f>;

    #[inline]
    fn nodes(&self) -> usize {
        self.links.len()
    }

    /// Posts the chain. One that reaches outside of the node's memory is not posted, as though the
    /// node did not answer.
    #[inline]
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Completion<'f> {
        Completion(match self.try_post(node, chain) {
            Some(Posted::Ticket(ticket)) => State::Pending { fabric: self, ticket },
            Some(Posted::Empty) => State::Empty,
            None => State::Over,
        })
    }

    /// The chain goes out with the next one to the node, or with [`flush`](RdmaFabric::flush).
    #[inline]
    fn post_aside(&self, node: NodeId, chain: &[Verb<'_>]) {
        let Some(link) = self.links.get(node.index()) else { return };
        if !link.is_up() || !link.rider().borrow_mut().take(chain) {
            drop(self.post(node, chain));
        }
    }
}
