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
fn what_is_no_lock_is_reported_and_left_as_it_is() {
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

/// Many read, one writes, and one that comes to read waits behind a writer.
#[test]
fn many_read_and_one_writes() {
    let play = Play::new();
    let clients = [0, 1, 2, 3].map(|slot| play.client(slot));
    let locks = clients.each_ref().map(|client| client.rw_lock(b"lock"));
    let readers = [0, 1].map(|at| block_on(locks[at].read().acquire()).expect("memory"));
    let mut writer = pin!(locks[2].write().acquire());
    assert!(poll(writer.as_mut()).is_pending());
    assert!(block_on(locks[3].read().try_acquire()).expect("memory").is_none());
    let [first, second] = readers;
    drop(first);
    for _ in 0..100 {
        assert!(poll(writer.as_mut()).is_pending(), "one reads still");
    }
    // It dies.
    play.dies(1);
    let written = block_on(writer).expect("memory");
    assert_eq!(written.token(), 3);
    assert!(block_on(locks[3].read().try_acquire()).expect("memory").is_none());
    drop(written);
    assert!(block_on(locks[3].read().try_acquire()).expect("memory").is_some());
    assert_eq!(block_on(second.release()), Err(ObjectError::TakenAway { token: 2 }));
    let other = block_on(clients[0].lock(b"lock").acquire()).map(drop);
    let found = Some(ObjectKind::RwLock);
    assert_eq!(other, Err(ObjectError::OtherKind { wanted: ObjectKind::Lock, found }));
}

#[test]
fn permits_of_the_dead_are_free_again() {
    let play = Play::new();
    let [one, two] = [0, 1].map(|slot| play.client(slot));
    let (here, there) = (one.blocking().semaphore(b"s", 3), two.blocking().semaphore(b"s", 3));
    let both = here.many(2);
    let held = both.acquire().expect("memory");
    let last = there.one().try_acquire().expect("memory").expect("there is one");
    assert!(there.one().try_acquire().expect("memory").is_none());
    play.dies(0);
    let all = there.many(2);
    let more = all.try_acquire().expect("memory").expect("those of the dead");
    drop((last, more));
    assert_eq!(held.is_held(), Ok(false));
    let wrong = two.blocking().semaphore(b"s", 4);
    let error = ObjectError::OtherNumber { wanted: 4, found: 3 };
    assert_eq!(wrong.one().acquire().map(drop), Err(error));
}

/// The one that began died in the middle of it; the next one gave up; the third did it.
#[test]
fn what_is_to_be_done_once_is_done_by_one_that_lives() {
    let play = Play::new();
    let clients = [0, 1, 2, 3].map(|slot| play.client(slot));
    let onces = clients.each_ref().map(|client| client.once(b"once"));
    let dead = block_on(onces[0].begin()).expect("memory").expect("it is the first");
    let mut waiting = [1, 2, 3].map(|at| Box::pin(onces[at].begin()));
    for waits in &mut waiting {
        assert!(poll(waits.as_mut()).is_pending());
    }
    play.dies(0);
    let [gives_up, does, learns] = waiting;
    drop(block_on(gives_up).expect("memory").expect("it is its turn"));
    let doing = block_on(does).expect("memory").expect("it is its turn");
    assert_eq!(block_on(dead.done()), Err(ObjectError::TakenAway { token: 1 }));
    assert_eq!(doing.token(), 3);
    block_on(doing.done()).expect("memory");
    assert!(block_on(learns).expect("memory").is_none());
    assert!(clients[0].blocking().once(b"once").begin().expect("memory").is_none());
}

#[test]
fn a_latch_opens_when_it_was_counted_down() {
    let play = Play::new();
    let [one, two] = [0, 1].map(|slot| play.client(slot));
    let (here, there) = (one.blocking().latch(b"latch", 3), two.blocking().latch(b"latch", 3));
    assert_eq!((here.left_to_count(), here.count_down(1)), (Ok(3), Ok(2)));
    assert_eq!(there.wait_within(Duration::from_micros(50)), Ok(false));
    assert_eq!(there.count_down(2), Ok(0));
    assert_eq!((here.count_down(1), here.wait(), there.wait()), (Ok(0), Ok(()), Ok(())));
}

/// Members that died, left or were evicted were waited for.
#[test]
fn a_barrier_waits_for_members_that_live() {
    let play = Play::new();
    let clients = [0, 1, 2, 3].map(|slot| play.client(slot));
    let barriers = clients.each_ref().map(|client| client.barrier(b"barrier", 4));
    let [mut one, mut two, three, mut four] =
        barriers.each_ref().map(|barrier| block_on(barrier.join()).expect("memory"));
    {
        let mut others = [Box::pin(one.wait()), Box::pin(two.wait()), Box::pin(four.wait())];
        for _ in 0..20 {
            for other in &mut others {
                assert!(poll(other.as_mut()).is_pending());
            }
        }
        play.dies(2);
        for other in others {
            let met = block_on(other).expect("memory");
            assert_eq!((met.generation, met.members.len()), (1, 3));
        }
    }
    assert_eq!(block_on(barriers[0].evict(four.seat())), Ok(true));
    block_on(two.leave()).expect("memory");
    assert_eq!(block_on(one.wait()).expect("memory").generation, 2);
    assert_eq!(block_on(four.wait()), Err(ObjectError::Evicted));
    let again = block_on(barriers[3].join()).expect("memory");
    assert_eq!(block_on(barriers[1].view()).expect("a node").members.len(), 2);
    drop(again);
    assert_eq!(block_on(barriers[1].view()).expect("a node").members, [one.seat()]);
    assert_eq!(block_on(three.leave()), Err(ObjectError::Evicted));
    let wrong = block_on(clients[1].barrier(b"barrier", 5).join()).map(drop);
    assert_eq!(wrong, Err(ObjectError::OtherNumber { wanted: 5, found: 4 }));
}

#[cfg(feature = "zerocopy")]
#[test]
fn atomic_values_change_as_a_whole() {
    let play = Play::new();
    let [one, two] = [0, 1].map(|slot| play.client(slot));
    let here = one.blocking().atomic(b"atomic", [0_u64; 2]);
    let there = two.blocking().atomic(b"atomic", [0_u64; 2]);
    assert_eq!((here.load(), here.swap([1, 2])), (Ok([0, 0]), Ok([0, 0])));
    assert_eq!(there.compare_exchange([1, 3], [5, 5]), Ok(Err([1, 2])));
    assert_eq!(there.compare_exchange([1, 2], [3, 4]), Ok(Ok([1, 2])));
    let doubled = here.fetch_update(|[a, b]| Some([2 * a, 2 * b]));
    assert_eq!((doubled, there.load()), (Ok(([3, 4], [6, 8])), Ok([6, 8])));
    let short = one.blocking().atomic(b"atomic", 0_u8);
    assert_eq!(short.load(), Err(ObjectError::Store(Error::Type(16))));
    assert_eq!(short.swap(1), Err(ObjectError::Store(Error::Type(16))));
    assert_eq!(there.load(), Ok([6, 8]));
}

#[cfg(feature = "serde")]
#[test]
fn guarded_states_change_as_a_whole() {
    let play = Play::new();
    let [one, two] = [0, 1].map(|slot| play.client(slot));
    let here = one.blocking().guarded::<Vec<String>>(b"guarded");
    let there = two.blocking().guarded::<Vec<String>>(b"guarded");
    assert_eq!(here.get(), Ok(None));
    let grows = |word: &str| {
        let word = word.to_owned();
        move |state: Option<Vec<String>>| {
            let mut words = state.unwrap_or_default();
            words.push(word.clone());
            words
        }
    };
    for number in 0..50 {
        let word = format!("word number {number}");
        let after =
            if number % 2 == 0 { here.update(grows(&word)) } else { there.update(grows(&word)) };
        assert_eq!(after.map(|words| words.len()), Ok(number + 1));
    }
    assert_eq!(
        here.get().map(|words| words.map(|it| it[49].clone())),
        Ok(Some("word number 49".to_owned()))
    );
    let other = one.blocking().guarded::<(u64, String, bool)>(b"guarded");
    assert!(matches!(other.get(), Err(ObjectError::Store(Error::Type(_)))));
}

/// Programs in Python and C have the same values: `test_they_are_encoded_as_in_rust`, `they_are_encoded_as_in_rust` of `tests/values.c`.
#[cfg(all(feature = "zerocopy", feature = "serde"))]
#[test]
fn values_are_what_other_languages_make_of_them() {
    let play = Play::new();
    let client = play.client(0);
    let store = client.blocking();
    let is = |name: &[u8]| store.get(name).expect("a node").expect("there").to_vec();
    let with = |header: &[u8], state: &[u8]| [b"\xffswarm", header, state].concat();
    store.atomic(b"n", 0_u64).swap(1 << 63 | 2).expect("memory");
    assert_eq!(is(b"n"), with(b"\x07\x01", b"\x02\0\0\0\0\0\0\x80"));
    assert_eq!(store.atomic(b"n", 0_i64).load(), Ok(i64::MIN + 2));
    let bytes = vec![b'x'; 300];
    store.guarded::<Vec<u8>>(b"bytes").update(|_| bytes.clone()).expect("memory");
    assert_eq!(is(b"bytes"), with(b"\x08\x01", &[&b"\xac\x02"[..], &bytes].concat()));
    store.guarded::<String>(b"text").update(|_| "{}".to_owned()).expect("memory");
    assert_eq!(is(b"text"), with(b"\x08\x01", b"\x02{}"));
    assert_eq!(store.guarded::<Vec<u8>>(b"text").get(), Ok(Some(b"{}".to_vec())));
}

/// A client that takes over from the dead learns of it, until one has settled what the dead one may have left.
#[test]
fn a_takeover_is_reported_until_it_is_settled() {
    let play = Play::new();
    let clients = [0, 1, 2, 3].map(|slot| play.client(slot));
    let locks = clients.each_ref().map(|client| client.blocking().lock(b"lock"));
    let first = locks[0].acquire().expect("memory");
    assert!(!first.is_unsettled());
    clients[0].blocking().put(b"key", b"value").expect("memory");
    play.dies(0);
    let second = locks[1].acquire().expect("memory");
    assert!(second.is_unsettled());
    // It dies as well, before it has settled anything.
    play.dies(1);
    let mut third = locks[2].acquire().expect("memory");
    assert!(third.is_unsettled());
    third.settle(&[b"key"]).expect("memory");
    assert!(!third.is_unsettled());
    third.release().expect("memory");
    let fourth = locks[3].acquire().expect("memory");
    assert!(!fourth.is_unsettled());
    let read = clients[3].blocking().get(b"key").expect("a node");
    assert_eq!(read.as_deref(), Some(&b"value"[..]));
    std::mem::forget((first, second));
}

/// Bytes that no client wrote: each of them ends in an error, or is a state that goes on.
#[test]
fn damaged_values_are_reported() {
    let play = Play::new();
    let client = play.client(0);
    let (store, lock) = (client.blocking(), client.blocking().lock(b"lock"));
    drop(lock.acquire().expect("memory"));
    let whole = store.get(b"lock").expect("a node").expect("a lock").to_vec();
    for length in 0..whole.len() {
        store.put(b"lock", &whole[..length]).expect("memory");
        assert!(lock.try_acquire().is_err(), "{length} bytes");
    }
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut other = whole.clone();
            other[at] ^= 1 << bit;
            store.put(b"lock", &other).expect("memory");
            let _ = (lock.view(), lock.try_acquire().map(drop), store.get(b"lock").map(drop));
        }
    }
}
