//! The clients of a handle: each is lent to one operation at a time, and one that finds none waits for one.
//!
//! **Invariant (S12):** *a client is in its slot, with one lease, or granted to one that waits, and nowhere else*. A slot is a pointer that is swapped: one that
//! finds null there has nothing. A thread remembers which slot it found a client in last, and looks there first, so that
//! threads that work at the same time come to have a client each, whose cached keys and lines stay with them; clients are opened only
//! while all that there are are in use.
//!
//! No wake-up is lost: one that waits notes it (`waiting`) and then looks at all slots; one that gives a client back puts it into its slot and then looks
//! whether anybody waits. All this is sequentially consistent, so that one of them sees the other. Those that wait are served in the order in which
//! they came, and a new one takes nothing as long as another waits.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use swarm_shm::Origin;

use super::lock::Lock;
use super::slot::Slot;
use crate::error::Error;
use crate::pools::shm;
use crate::runtime::block_on::park_on;

/// From one attempt to open another client to the next, where one has failed: the pool's slots may all be taken, which takes long
/// to find out.
const AGAIN: Duration = Duration::from_secs(1);

thread_local! {
    /// The slot in which this thread found a client last, of whichever handle.
    static LAST: Cell<usize> = const { Cell::new(0) };
}

/// Opens a client.
pub(super) type Open<C> = Box<dyn Fn() -> Result<C, shm::Error> + Send + Sync>;

/// Clients of one pool.
pub(super) struct Clients<C> {
    slots: Box<[Slot<C>]>,
    /// Clients that were opened: those of the first slots.
    opened: AtomicUsize,
    /// Operations that wait for a client.
    waiting: AtomicUsize,
    queue: Lock<Queue<C>>,
    /// Held while one is opened: when that failed last.
    failed: Lock<Option<Instant>>,
    open: Open<C>,
    /// In a child that this forks, nobody gives back what was lent out, and the thread that had a lock is not there.
    origin: Origin,
}

/// Those that wait, by the ticket that each drew, and what each is given.
struct Queue<C> {
    tickets: u64,
    waiting: BTreeMap<u64, Waker>,
    granted: BTreeMap<u64, (usize, Box<C>)>,
}

/// A client that is lent out. Dropping it gives it back.
pub(super) struct Lease<'s, C> {
    clients: &'s Clients<C>,
    slot: usize,
    /// There until this is dropped.
    client: Option<Box<C>>,
}

impl<C> Deref for Lease<'_, C> {
    type Target = C;

    #[inline]
    fn deref(&self) -> &C {
        self.client.as_ref().expect("it is lent out")
    }
}

impl<C> Drop for Lease<'_, C> {
    #[inline]
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            self.clients.give_back(self.slot, client);
        }
    }
}

impl<C> Clients<C> {
    /// Up to so many clients, of which one is opened at once.
    pub(super) fn new(limit: usize, open: Open<C>) -> Result<Self, shm::Error> {
        let slots: Box<[Slot<C>]> = (0..limit.max(1)).map(|_| Slot::default()).collect();
        slots[0].put(Box::new(open()?));
        let queue = Queue { tickets: 0, waiting: BTreeMap::new(), granted: BTreeMap::new() };
        Ok(Self {
            slots,
            opened: AtomicUsize::new(1),
            waiting: AtomicUsize::new(0),
            queue: Lock::new(queue),
            failed: Lock::new(None),
            open,
            origin: Origin::current(),
        })
    }

    /// Whether this is a child that the process forked which opened them.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// How many there are.
    pub(super) fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }

    /// A client that is in its slot: as a rule the one that this thread had last.
    #[inline]
    pub(super) fn lend_now(&self) -> Option<Lease<'_, C>> {
        // Relaxed: an operation that does not see yet that another waits came first.
        if self.waiting.load(Ordering::Relaxed) != 0 {
            return None;
        }
        let last = LAST.get();
        match self.slots.get(last).and_then(Slot::take) {
            Some(client) => Some(self.lease(last, client)),
            None => self.search().map(|(slot, client)| self.lease(slot, client)),
        }
    }

    /// A client, when it is this operation's turn. Opens one where all are in use and there may be more.
    ///
    /// # Errors
    /// [`Error::Forked`] in a child.
    pub(super) fn lend(&self) -> Waiting<'_, C> {
        Waiting { clients: self, ticket: None }
    }

    /// The same, with the thread asleep meanwhile.
    #[cold]
    pub(super) fn lend_blocking(&self) -> Result<Lease<'_, C>, Error> {
        park_on(self.lend())
    }

    #[inline]
    fn lease(&self, slot: usize, client: Box<C>) -> Lease<'_, C> {
        Lease { clients: self, slot, client: Some(client) }
    }

    /// Any client that is in its slot.
    #[cold]
    fn search(&self) -> Option<(usize, Box<C>)> {
        // S12: by a swap, so no two find the same client.
        let opened = self.opened.load(Ordering::SeqCst);
        let found = (0..opened).find_map(|slot| Some((slot, self.slots[slot].take()?)))?;
        LAST.set(found.0);
        Some(found)
    }

    #[inline]
    fn give_back(&self, slot: usize, client: Box<C>) {
        // S12: first back into its slot, then a look for waiters.
        self.slots[slot].put(client);
        // Behind the swap, as `waiting` is raised in front of a search: see above.
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.serve();
        }
    }

    /// Grants what is in the slots to those that wait.
    #[cold]
    fn serve(&self) {
        if self.origin.is_elsewhere() {
            return;
        }
        let woken = self.grant(&mut self.queue.lock());
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Those that have a client now, by their tickets, and are to be woken when the queue is let go of.
    fn grant(&self, queue: &mut Queue<C>) -> Vec<(u64, Waker)> {
        let mut woken = Vec::new();
        while !queue.waiting.is_empty()
            && let Some(found) = self.search()
            && let Some((ticket, waker)) = queue.waiting.pop_first()
        {
            // S12: one that leaves the queue without it passes it on.
            queue.granted.insert(ticket, found);
            woken.push((ticket, waker));
        }
        self.waiting.store(queue.waiting.len(), Ordering::SeqCst);
        woken
    }

    /// Another client, where there may be more.
    #[cold]
    fn open_another(&self) -> Option<Lease<'_, C>> {
        if self.opened() == self.slots.len() {
            return None;
        }
        let mut failed = self.failed.lock();
        // Somebody was done meanwhile. Where others wait, it is theirs.
        if self.waiting.load(Ordering::SeqCst) == 0
            && let Some((slot, client)) = self.search()
        {
            return Some(self.lease(slot, client));
        }
        let slot = self.opened();
        if slot == self.slots.len() || failed.is_some_and(|failed| failed.elapsed() < AGAIN) {
            return None;
        }
        match (self.open)() {
            Ok(client) => {
                // It is lent out before anybody looks for it.
                self.opened.store(slot + 1, Ordering::SeqCst);
                LAST.set(slot);
                Some(self.lease(slot, Box::new(client)))
            }
            // There is one at least, and those that there are are waited for.
            Err(_) => {
                *failed = Some(Instant::now());
                None
            }
        }
    }
}

/// Waits for a client.
pub(super) struct Waiting<'s, C> {
    clients: &'s Clients<C>,
    /// Its place in the queue, once it has one.
    ticket: Option<u64>,
}

impl<'s, C> Future for Waiting<'s, C> {
    type Output = Result<Lease<'s, C>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let clients = self.clients;
        if clients.origin.is_elsewhere() {
            self.ticket = None;
            return Poll::Ready(Err(Error::Forked));
        }
        if self.ticket.is_none()
            && let Some(lease) = clients.open_another()
        {
            return Poll::Ready(Ok(lease));
        }
        let mut queue = clients.queue.lock();
        let ticket = *self.ticket.get_or_insert_with(|| {
            queue.tickets += 1;
            queue.tickets
        });
        let mut woken = Vec::<(u64, Waker)>::new();
        if !queue.granted.contains_key(&ticket) {
            queue.waiting.insert(ticket, cx.waker().clone());
            clients.waiting.store(queue.waiting.len(), Ordering::SeqCst);
            woken = clients.grant(&mut queue);
        }
        let granted = queue.granted.remove(&ticket);
        drop(queue);
        // An operation that takes its client in this very poll is not woken for it: a runtime would poll it once more.
        let others = woken.into_iter().filter(|(other, _)| *other != ticket);
        others.for_each(|(_, waker)| waker.wake());
        let Some((slot, client)) = granted else { return Poll::Pending };
        self.ticket = None;
        LAST.set(slot);
        Poll::Ready(Ok(clients.lease(slot, client)))
    }
}

impl<C> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        if self.clients.origin.is_elsewhere() {
            return;
        }
        let mut queue = self.clients.queue.lock();
        let waited = queue.waiting.remove(&ticket);
        self.clients.waiting.store(queue.waiting.len(), Ordering::SeqCst);
        let granted = queue.granted.remove(&ticket);
        drop(queue);
        drop(waited);
        if let Some((slot, client)) = granted {
            self.clients.give_back(slot, client);
        }
    }
}
