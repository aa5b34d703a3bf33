//! Objects of clients on nodes in this process, whose deaths the test decides.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::future::{Future, Ready};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::fabric::{EpochDomain, Fabric, NodeDown, Verb};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_core::quorum::Session;
use swarm_core::words::Incarnation;

use super::*;
use crate::client::handle::{Client, Options};
use crate::error::Error;
use crate::runtime::block_on::block_on;

/// A clock that advances with each look.
struct Ticks(Rc<Cell<u64>>);

impl Clock for Ticks {
    fn now(&self) -> u64 {
        self.0.set(self.0.get() + 1000);
        self.0.get()
    }
}

/// Nodes in this process that are near, or answer nothing any more.
struct Near {
    nodes: Loopback,
    is_near: bool,
    down: Rc<Cell<bool>>,
}

impl Fabric for Near {
    type EpochDomain = Deaths;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Ready<Result<Vec<u64>, NodeDown>>;

    fn is_near(&self) -> bool {
        self.is_near
    }
    fn nodes(&self) -> usize {
        self.nodes.nodes()
    }
    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        if self.down.get() {
            return std::future::ready(Err(NodeDown));
        }
        self.nodes.post(node, chain)
    }
}

/// Which sessions have ended, and how often somebody asked.
#[derive(Default)]
struct Ended {
    gone: RefCell<HashSet<(usize, u64)>>,
    asked: Cell<u64>,
}

struct Deaths(Rc<Ended>);

impl EpochDomain for Deaths {
    fn pin(&self) -> u64 {
        1
    }
    fn repin(&self, _: u64) {}
    fn unpin(&self) {}
    fn epoch(&self) -> u64 {
        1
    }
    fn generation(&self) -> u64 {
        0
    }
    fn new_generation(&self) {}
    fn is_attached(&self, _: usize) -> bool {
        true
    }
    fn is_gone(&self, slot: usize, session: Incarnation) -> bool {
        self.0.asked.set(self.0.asked.get() + 1);
        self.0.gone.borrow().contains(&(slot, session.0))
    }
    fn try_advance(&self) -> u64 {
        1
    }
}

type Here = Client<Near, Ticks>;

/// A pool, and what is known of its clients.
struct Play {
    nodes: Loopback,
    ended: Rc<Ended>,
    time: Rc<Cell<u64>>,
    down: Rc<Cell<bool>>,
    geometry: Geometry,
}

impl Play {
    fn new() -> Self {
        let geometry = Geometry::new(3, 4 << 20, 40, 1).expect("geometry").with_keyed_cells(true);
        Self {
            nodes: Loopback::new(3, 4 << 17),
            ended: Rc::default(),
            time: Rc::default(),
            down: Rc::default(),
            geometry,
        }
    }

    fn client_on(&self, slot: usize, session: u64, is_near: bool) -> Here {
        let session = Session { client: slot, incarnation: Incarnation(session) };
        let (nodes, down) = (self.nodes.clone(), Rc::clone(&self.down));
        let (fabric, clock) = (Near { nodes, is_near, down }, Ticks(Rc::clone(&self.time)));
        Client::new(fabric, clock, self.geometry, session, Options::default())
            .with_epochs(Deaths(Rc::clone(&self.ended)))
    }

    /// The client in this slot, under a session of the same number and a hundred.
    fn client(&self, slot: usize) -> Here {
        self.client_on(slot, slot as u64 + 100, true)
    }

    fn dies(&self, slot: usize) {
        self.ended.gone.borrow_mut().insert((slot, slot as u64 + 100));
    }
}

fn poll<T>(future: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Slots of those that hold a lock, and of those that wait for it.
fn places(client: &Here) -> (Vec<usize>, Vec<usize>) {
    let view = client.blocking().lock(b"lock").view().expect("nodes answer");
    let holders = view.holders.iter().map(|holder| holder.seat.slot).collect();
    (holders, view.waiters.iter().map(|seat| seat.slot).collect())
}

#[test]
fn a_lock_has_one_holder_and_tokens_grow() {
    let play = Play::new();
    let [one, two] = [0, 1].map(|slot| play.client(slot));
    let (here, there) = (one.blocking().lock(b"lock"), two.blocking().lock(b"lock"));
    for round in 0..3 {
        let guard = here.acquire().expect("memory");
        assert_eq!((guard.token(), guard.is_held()), (2 * round + 1, Ok(true)));
        assert!(there.try_acquire().expect("memory").is_none());
        assert_eq!(guard.release(), Ok(()));
        // Dropped, it is released as well.
        assert_eq!(there.acquire().expect("memory").token(), 2 * round + 2);
    }
    assert_eq!(places(&one), (vec![], vec![]));
}

/// One to acquire it and one to release it; nobody is asked who is alive.
#[test]
fn without_contention_it_takes_two_roundtrips() {
    let play = Play::new();
    let client = play.client(0);
    let lock = client.blocking().lock(b"lock");
    let mut roundtrips = vec![];
    for _ in 0..500 {
        let guard = lock.acquire().expect("memory");
        roundtrips.push(client.last().roundtrips);
        guard.release().expect("memory");
        roundtrips.push(client.last().roundtrips);
    }
    // Others raise the mark of memory that was handed out, twice as much each time.
    let more = roundtrips.iter().filter(|&&it| it > 1).count();
    assert!(more <= 20, "{more} of {roundtrips:?}");
    assert_eq!(play.ended.asked.get(), 0);
}

#[test]
fn who_came_first_holds_it_first() {
    let play = Play::new();
    let clients = [0, 1, 2].map(|slot| play.client(slot));
    let locks = clients.each_ref().map(|client| client.lock(b"lock"));
    let first = block_on(locks[0].acquire()).expect("memory");
    let mut others = [pin!(locks[1].acquire()), pin!(locks[2].acquire())];
    for _ in 0..100 {
        // The last one looks more often.
        for at in [0, 1, 1] {
            assert!(poll(others[at].as_mut()).is_pending());
        }
    }
    assert_eq!(places(&clients[0]), (vec![0], vec![1, 2]));
    block_on(first.release()).expect("memory");
    for at in 0..2 {
        let mut guard = None;
        for _ in 0..1000 {
            for (other, waiting) in others.iter_mut().enumerate().skip(at) {
                if guard.is_none()
                    && let Poll::Ready(held) = poll(waiting.as_mut())
                {
                    assert_eq!(other, at);
                    guard = Some(held.expect("memory"));
                }
            }
        }
        let guard = guard.expect("it is its turn");
        assert_eq!(guard.token(), at as u64 + 2);
        block_on(guard.release()).expect("memory");
    }
}

/// A client died while it held the lock, and another one while it waited.
#[test]
fn a_lock_goes_from_the_dead_to_the_next_that_lives() {
    let play = Play::new();
    let clients = [0, 1, 2, 3].map(|slot| play.client(slot));
    let locks = clients.each_ref().map(|client| client.lock(b"lock"));
    let guard = block_on(locks[0].acquire()).expect("memory");
    let mut dead = pin!(locks[1].acquire());
    let mut next = pin!(locks[2].acquire());
    for _ in 0..100 {
        assert!(poll(dead.as_mut()).is_pending());
        assert!(poll(next.as_mut()).is_pending());
    }
    // One that is stopped keeps it, however long that takes.
    assert_eq!(places(&clients[3]), (vec![0], vec![1, 2]));
    play.dies(0);
    play.dies(1);
    let held = block_on(next).expect("memory");
    assert_eq!((held.token(), places(&clients[3])), (2, (vec![2], vec![])));
    // The next client in the slot of the dead one is another one.
    let heir = play.client_on(0, 500, true);
    let lock = heir.lock(b"lock");
    assert!(block_on(lock.try_acquire()).expect("memory").is_none());
    block_on(held.release()).expect("memory");
    let held = block_on(lock.try_acquire()).expect("memory");
    assert_eq!(held.expect("it is free").token(), 3);
    // What the dead one would do, had it only seemed dead.
    assert_eq!(block_on(guard.release()), Err(ObjectError::TakenAway { token: 1 }));
}

/// A guard that had lost the lock released it for the next holder.
#[test]
fn who_was_evicted_changes_nothing() {
    let play = Play::new();
    let [one, two, other] = [0, 1, 2].map(|slot| play.client(slot));
    let stopped = one.blocking().lock(b"lock");
    let guard = stopped.acquire().expect("memory");
    let lock = two.blocking().lock(b"lock");
    assert_eq!(lock.acquire_within(Duration::from_millis(1)).map(|it| it.is_some()), Ok(false));
    assert_eq!(places(&other), (vec![0], vec![]), "it gave up");
    assert_eq!(lock.evict(guard.token()), Ok(true));
    let held = lock.try_acquire().expect("memory").expect("it is free");
    assert_eq!(lock.evict(guard.token()), Ok(false), "another one holds it");
    assert_eq!((guard.is_held(), held.is_held()), (Ok(false), Ok(true)));
    let before = other.blocking().get(b"lock").expect("a node").expect("a lock").to_vec();
    assert_eq!(guard.release(), Err(ObjectError::TakenAway { token: 1 }));
    let after = other.blocking().get(b"lock").expect("a node").expect("a lock").to_vec();
    assert_eq!(before, after);
    assert_eq!((held.token(), places(&other)), (2, (vec![1], vec![])));
}

/// A future that was dropped left its place in the queue, and all others waited for it.
#[test]
fn a_place_whose_future_is_dropped_is_given_up() {
    for is_near in [true, false] {
        let play = Play::new();
        let [one, three] = [0, 2].map(|slot| play.client(slot));
        let two = play.client_on(1, 101, is_near);
        let (lock, waits) = (one.lock(b"lock"), two.lock(b"lock"));
        let guard = block_on(lock.acquire()).expect("memory");
        {
            let mut waiting = pin!(waits.acquire());
            assert!(poll(waiting.as_mut()).is_pending());
            assert_eq!(places(&three), (vec![0], vec![1]));
        }
        if !is_near {
            assert_eq!(places(&three), (vec![0], vec![1]), "nothing can be waited for in a drop");
            let other = two.lock(b"another lock");
            drop(block_on(other.acquire()).expect("memory"));
        }
        assert_eq!(places(&three), (vec![0], vec![]));
        drop(guard);
        // A guard that is dropped behind a network is released by the next operation.
        drop(block_on(waits.acquire()).expect("memory"));
        assert_eq!(places(&three).0, if is_near { vec![] } else { vec![1] });
        let again = block_on(waits.acquire()).expect("memory");
        assert_eq!(again.token(), 3);
    }
}

/// An operation failed, as no node answered, and it was unknown whether the client had come in.
#[test]
fn what_failed_is_given_up_later() {
    let play = Play::new();
    let [one, two] = [0, 1].map(|slot| play.client(slot));
    let lock = one.blocking().lock(b"lock");
    let guard = lock.acquire().expect("memory");
    play.down.set(true);
    assert!(matches!(guard.release(), Err(ObjectError::Store(Error::Replication(_)))));
    assert!(matches!(lock.acquire(), Err(ObjectError::Store(Error::Replication(_)))));
    play.down.set(false);
    assert_eq!(places(&two), (vec![0], vec![]));
    let guard = lock.try_acquire().expect("memory").expect("it gave up what it held");
    assert_eq!(guard.token(), 2);
}

/// The 33rd that waits has no place, and gets one later.
#[test]
fn more_than_a_queue_of_clients_get_the_lock() {
    let play = Play::new();
    let clients: Vec<_> = (0..36).map(|slot| play.client(slot)).collect();
    let locks: Vec<_> = clients.iter().map(|client| client.lock(b"lock")).collect();
    let mut waiting: Vec<_> = locks.iter().map(|lock| Some(Box::pin(lock.acquire()))).collect();
    let (mut held, mut tokens) = (None, vec![]);
    while tokens.len() < 36 {
        for future in &mut waiting {
            let Some(polled) = future else { continue };
            if let Poll::Ready(guard) = poll(polled.as_mut()) {
                let guard: Guard<'_, _, _, _> = guard.expect("memory");
                assert!(held.is_none(), "two hold it");
                tokens.push(guard.token());
                held = Some(guard);
                *future = None;
            }
        }
        if tokens.len() == 1 && held.is_some() {
            assert!(places(&clients[0]).1.len() <= MAX_WAITERS);
        }
        held = None;
    }
    assert!(tokens.is_sorted());
}

#[test]
fn what_is_no_lock_is_told_and_left_as_it_is() {
    let play = Play::new();
    let client = play.client(0);
    let store = client.blocking();
    store.put(b"lock", b"a value").expect("memory");
    let lock = store.lock(b"lock");
    let wrong = ObjectError::OtherKind { wanted: ObjectKind::Lock, found: None };
    assert_eq!(lock.acquire().map(|guard| guard.token()), Err(wrong));
    assert_eq!(lock.view(), Err(wrong));
    assert_eq!(store.get(b"lock").expect("a node").as_deref(), Some(&b"a value"[..]));
    store.delete(b"lock").expect("a node");
    let guard = lock.acquire().expect("memory");
    // Somebody writes over it.
    store.put(b"lock", b"a value").expect("memory");
    assert_eq!(guard.release(), Err(wrong));
    assert_eq!(store.get(b"lock").expect("a node").as_deref(), Some(&b"a value"[..]));
    let lock = store.lock(b"");
    assert_eq!(lock.acquire().map(drop), Err(ObjectError::Store(Error::Key(0))));
}
