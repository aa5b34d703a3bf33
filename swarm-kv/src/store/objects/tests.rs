//! What is held and waited for without a client: beside `objects::tests`, which drive the same states through every fault.

use std::cell::Cell;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;
use std::time::Instant;

use swarm_core::node::NodeId;
use swarm_core::quorum::Timeouts;

use super::*;
use crate::client::handle::Options;
use crate::error::Error;
use crate::objects::{ObjectError, ObjectKind};
use crate::pools::shm::{CreateOptions, Pool};
use crate::runtime::block_on::block_on;
use crate::store::*;
use swarm_shm::SwitchState;

/// So long that what is waited for comes.
const LONG: Option<Duration> = Some(Duration::from_secs(60));
const SHORT: Option<Duration> = Some(Duration::from_millis(20));

fn pool() -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 8, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    (dir, pool)
}

fn handle(pool: &Pool, clients: usize) -> Store {
    Store::of(pool, StoreOptions::default().clients(clients)).expect("a slot")
}

fn acquired(lock: &StoreLock, limit: Option<Duration>) -> Option<StoreGuard<Plain>> {
    block_on(lock.acquire_paced(limit, Pause::blocks)).expect("memory")
}

/// Returns tokens of those that hold an object, and how many wait.
fn queue(lock: &StoreLock) -> (Vec<u64>, usize) {
    let view = block_on(lock.view()).expect("a majority");
    (view.holders.iter().map(|holder| holder.token).collect(), view.waiters.len())
}

/// Six threads wait with the one client that the holder works with as well.
#[test]
fn who_waits_keeps_no_client_from_who_holds() {
    let (_dir, pool) = pool();
    let store = handle(&pool, 1);
    let lock = store.lock(b"lock");
    let first = acquired(&lock, LONG).expect("free");
    thread::scope(|threads| {
        for _ in 0..6 {
            threads.spawn(|| {
                let guard = acquired(&lock, LONG).expect("in time");
                let number = store.blocking().get(b"n").expect("a majority").expect("there");
                store.blocking().put(b"n", &[number[0] + 1]).expect("memory");
                block_on(guard.release()).expect("held");
            });
        }
        while queue(&lock).1 < 6 {
            thread::yield_now();
        }
        store.blocking().put(b"n", &[0]).expect("memory");
        block_on(first.release()).expect("held");
    });
    assert_eq!(store.blocking().get(b"n"), Ok(Some(vec![6])));
    assert_eq!((store.clients(), queue(&lock)), (1, (vec![], 0)));
}

/// Its guard goes to another thread, and outlives all that it came from.
#[test]
fn what_is_held_borrows_nothing() {
    let (_dir, pool) = pool();
    let other = handle(&pool, 1);
    let guard = block_on(handle(&pool, 1).lock(b"lock").acquire()).expect("memory");
    let lock = other.lock(b"lock");
    assert_eq!(block_on(lock.try_acquire()).map(|guard| guard.is_some()), Ok(false));
    assert_eq!(block_on(guard.is_held()), Ok(true));
    thread::spawn(move || drop(guard)).join().expect("no panic");
    assert_eq!(acquired(&lock, LONG).map(|guard| guard.token()), Some(2));
}

#[test]
fn a_wait_that_is_dropped_or_over_leaves_no_place() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let (mine, theirs) = (one.lock(b"lock"), two.lock(b"lock"));
    let guard = acquired(&mine, LONG).expect("free");
    {
        let mut waits = pin!(theirs.acquire());
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(queue(&mine), (vec![1], 1));
    }
    assert_eq!(queue(&mine), (vec![1], 0));
    assert!(acquired(&theirs, SHORT).is_none());
    assert_eq!(queue(&mine), (vec![1], 0));
    block_on(guard.release()).expect("held");
}

/// The only client is in use: another thread releases it once that is given back.
#[test]
fn a_guard_that_is_dropped_while_all_clients_are_in_use_is_released() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let guard = acquired(&one.lock(b"lock"), LONG).expect("free");
    let lent = one.0.clients.lend_now().expect("it is free");
    drop(guard);
    let lock = two.lock(b"lock");
    assert!(acquired(&lock, SHORT).is_none());
    drop(lent);
    assert_eq!(acquired(&lock, LONG).map(|guard| guard.token()), Some(2));
}

#[test]
fn what_failed_is_given_up_by_a_later_operation_of_the_handle() {
    let (_dir, pool) = pool();
    let timeouts = Timeouts { deadline: 50_000_000, ..Timeouts::default() };
    let options = StoreOptions::default().clients(2).client(Options::default().timeouts(timeouts));
    let store = Store::emulated(&pool, options, 0).expect("a slot");
    let other = handle(&pool, 1);
    let guard = block_on(store.lock(b"lock").acquire()).expect("memory");
    let switch = |state| (0..2).for_each(|node| pool.switch(NodeId(node)).set(state));
    switch(SwitchState::Down);
    let released = block_on(guard.release());
    assert!(matches!(released, Err(ObjectError::Store(Error::Replication(_)))), "{released:?}");
    switch(SwitchState::Up);
    let lock = other.lock(b"lock");
    assert_eq!(queue(&lock), (vec![1], 0));
    // Of another object.
    assert_eq!(block_on(store.latch(b"latch", 1).wait_paced(SHORT, Pause::blocks)), Ok(false));
    assert_eq!(queue(&lock), (vec![], 0));
}

#[test]
fn an_evicted_holder_gets_an_error() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let (mine, theirs) = (one.lock(b"lock"), two.lock(b"lock"));
    let guard = acquired(&mine, LONG).expect("free");
    assert_eq!(block_on(theirs.evict(guard.token())), Ok(true));
    assert_eq!(block_on(theirs.evict(guard.token())), Ok(false));
    let mut next = acquired(&theirs, LONG).expect("in time");
    assert!(next.is_unsettled() && next.token() == 2);
    assert_eq!(block_on(guard.is_held()), Ok(false));
    assert_eq!(block_on(guard.release()), Err(ObjectError::TakenAway { token: 1 }));
    assert_eq!(queue(&mine), (vec![2], 0));
    one.blocking().put(b"key", b"value").expect("memory");
    block_on(next.settle(&[b"key"])).expect("held");
    assert!(!next.is_unsettled());
    block_on(next.release()).expect("held");
    assert_eq!(acquired(&mine, LONG).map(|guard| guard.is_unsettled()), Some(false));
    let found =
        Err(ObjectError::OtherKind { wanted: ObjectKind::Once, found: Some(ObjectKind::Lock) });
    assert_eq!(block_on(one.once(b"lock").begin()).map(|_| ()), found);
    assert!(matches!(block_on(one.lock(b"").acquire()), Err(ObjectError::Store(Error::Key(0)))));
}

#[test]
fn many_read_or_one_writes_and_permits_are_counted() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let (mine, theirs) = (one.rw_lock(b"shared"), two.rw_lock(b"shared"));
    let readers = [mine.read(), theirs.read()].map(|lock| acquired(lock, LONG).expect("free"));
    assert!(acquired(mine.write(), SHORT).is_none());
    readers.into_iter().for_each(|guard| block_on(guard.release()).expect("held"));
    let writer = acquired(theirs.write(), LONG).expect("free");
    assert!(acquired(mine.read(), SHORT).is_none());
    drop(writer);
    let (mine, theirs) = (one.semaphore(b"permits", 3), two.semaphore(b"permits", 3));
    let both = acquired(&mine.many(2), LONG).expect("free");
    let last = acquired(theirs.one(), LONG).expect("free");
    assert!(acquired(theirs.one(), SHORT).is_none());
    drop((both, last));
    assert!(acquired(&theirs.many(3), LONG).is_some());
    let other = block_on(one.semaphore(b"permits", 2).one().acquire()).map(drop);
    assert_eq!(other, Err(ObjectError::OtherNumber { wanted: 2, found: 3 }));
}

#[test]
fn what_is_to_be_done_once_is_done_by_one() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let (mine, theirs) = (one.once(b"once"), two.once(b"once"));
    let Ok(Begun::Ours(doing)) = block_on(mine.begin()) else { panic!("nobody has begun") };
    let begun = || block_on(theirs.begin_paced(SHORT, Pause::blocks));
    assert!(matches!(begun(), Ok(Begun::NotYet)));
    block_on(doing.give_up()).expect("held");
    let Ok(Begun::Ours(doing)) = begun() else { panic!("it was given up") };
    assert_eq!(doing.token(), 2);
    block_on(doing.done()).expect("held");
    assert!(matches!(begun(), Ok(Begun::Done)));
    assert!(matches!(block_on(mine.begin()), Ok(Begun::Done)));
    assert_eq!(queue(mine.queue()), (vec![], 0));
}

#[test]
fn latches_open_and_members_meet() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let (mine, theirs) = (one.latch(b"latch", 2), two.latch(b"latch", 2));
    assert_eq!(block_on(mine.wait_paced(SHORT, Pause::blocks)), Ok(false));
    assert_eq!(block_on(mine.count_down(1)), Ok(1));
    assert_eq!(block_on(theirs.count_down(1)), Ok(0));
    assert_eq!(block_on(mine.wait_paced(LONG, Pause::blocks)), Ok(true));
    assert_eq!(block_on(mine.left_to_count()), Ok(0));

    let (mine, theirs) = (one.barrier(b"barrier", 2), two.barrier(b"barrier", 2));
    let mut member = block_on(mine.join()).expect("room");
    assert_eq!(block_on(member.wait_paced(SHORT, Pause::blocks)), Ok(None));
    let mut other = block_on(theirs.join()).expect("room");
    let meets = |member: &mut StoreMember| {
        let view = block_on(member.wait_paced(LONG, Pause::blocks)).expect("memory");
        assert_eq!(view.map(|view| view.members.len()), Some(2));
    };
    thread::scope(|threads| {
        threads.spawn(|| meets(&mut other));
        meets(&mut member);
    });
    assert_eq!(block_on(mine.evict(other.seat())), Ok(true));
    assert_eq!(block_on(other.wait_paced(LONG, Pause::blocks)), Err(ObjectError::Evicted));
    assert_eq!(block_on(mine.view()).map(|view| view.members), Ok(vec![member.seat()]));
    block_on(member.leave()).expect("it was in");
    drop(block_on(theirs.join()).expect("room"));
    assert_eq!(block_on(mine.view()).map(|view| view.members), Ok(vec![]));
}

#[test]
fn a_watch_returns_the_last_value_of_another_handle() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let mut watch = one.watch(b"key");
    assert_eq!(block_on(watch.changed()), Ok(None));
    assert_eq!(block_on(watch.changed_paced(SHORT, Pause::blocks)), Ok(None));
    thread::scope(|threads| {
        threads.spawn(|| {
            (1..=100).for_each(|number: u8| two.blocking().put(b"key", &[number]).expect("memory"));
        });
        let mut last = 0;
        while last < 100 {
            let value = block_on(watch.changed_paced(LONG, Pause::blocks)).expect("a majority");
            let next = value.expect("in time").expect("there")[0];
            assert!(next > last);
            last = next;
        }
    });
    assert!(matches!(block_on(one.watch(b"").changed()), Err(Error::Key(0))));
}

/// N1: the key changes once this has looked, before it sleeps; and nobody looks again for half a second.
#[test]
fn a_change_wakes_who_watches_by_a_handle() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let mut watch = one.watch(b"key");
    assert_eq!(block_on(watch.changed()), Ok(None));
    let woken = Cell::new(None);
    let sleep = |pause: Pause| {
        let longest = pause.longest();
        let is_long = longest >= Duration::from_millis(500);
        if is_long {
            two.blocking().put(b"key", b"value").expect("memory");
        }
        let began = Instant::now();
        let passed = pause.blocks();
        if is_long {
            woken.set(Some(began.elapsed() < longest));
        }
        passed
    };
    assert_eq!(block_on(watch.changed_paced(LONG, sleep)), Ok(Some(Some(b"value".to_vec()))));
    assert_eq!(woken.get(), Some(true), "it was woken");
}

/// Threads without `async`, more than the handle has clients; what one holds is released by a call, or by its drop.
#[test]
fn threads_acquire_and_release_one_after_the_other() {
    const EACH: usize = 30;
    let (_dir, pool) = pool();
    let store = handle(&pool, 2);
    let lock = store.blocking().lock(b"lock");
    let (is_inside, last) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|threads| {
        for _ in 0..6 {
            threads.spawn(|| {
                for turn in 0..EACH {
                    let guard = lock.acquire().expect("memory");
                    assert!(!is_inside.swap(true, Ordering::SeqCst), "two are inside");
                    assert!(last.swap(guard.token(), Ordering::SeqCst) < guard.token());
                    assert_eq!(store.blocking().increment(b"n", 1), Ok(guard.token() as i64));
                    is_inside.store(false, Ordering::SeqCst);
                    if turn % 2 == 0 {
                        assert_eq!(guard.release(), Ok(()));
                    }
                }
            });
        }
    });
    assert_eq!(last.into_inner(), 6 * EACH as u64);
    assert_eq!(queue(&lock), (vec![], 0));
    assert!(store.clients() <= 2);
}

/// Threads without `async` meet again and again, with one client among them.
#[test]
fn threads_meet_at_a_barrier() {
    const ROUNDS: usize = 20;
    let (_dir, pool) = pool();
    let store = handle(&pool, 1);
    let (barrier, arrived) = (store.blocking().barrier(b"barrier", 4), AtomicUsize::new(0));
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let mut member = barrier.join().expect("room");
                for round in 1..=ROUNDS {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    let met = member.wait().expect("memory");
                    assert!(arrived.load(Ordering::SeqCst) >= 4 * round, "one did not wait");
                    assert_eq!(met.generation, round as u64);
                }
            });
        }
    });
    assert_eq!(barrier.view().map(|view| view.members), Ok(vec![]));
    assert_eq!(store.clients(), 1);
}

#[test]
fn what_is_waited_for_without_async_ends_in_time() {
    let (_dir, pool) = pool();
    let (one, two) = (handle(&pool, 1), handle(&pool, 1));
    let (mine, theirs) = (one.blocking(), two.blocking());
    let short = SHORT.expect("a limit");

    let guard = mine.lock(b"lock").acquire().expect("memory");
    let lock = theirs.lock(b"lock");
    assert!(lock.acquire_within(short).expect("memory").is_none());
    assert!(lock.try_acquire().expect("memory").is_none());
    assert_eq!((lock.evict(guard.token()), guard.is_held()), (Ok(true), Ok(false)));
    let mut next = lock.try_acquire().expect("memory").expect("nobody has it");
    assert!(next.is_unsettled());
    assert_eq!((next.settle(&[b"key"]), next.is_unsettled()), (Ok(()), false));
    assert_eq!(guard.release(), Err(ObjectError::TakenAway { token: 1 }));
    assert_eq!(lock.view().map(|view| view.holders.len()), Ok(1));

    let reads = mine.rw_lock(b"shared").read().acquire().expect("memory");
    let shared = theirs.rw_lock(b"shared");
    assert!(shared.write().acquire_within(short).expect("memory").is_none());
    assert!(shared.read().acquire_within(short).expect("memory").is_some());
    drop(reads);
    assert!(shared.write().try_acquire().expect("memory").is_some());

    let semaphore = mine.semaphore(b"permits", 2);
    let one_of_them = semaphore.one().acquire().expect("memory");
    assert!(semaphore.many(2).acquire_within(short).expect("memory").is_none());
    drop(one_of_them);
    assert!(semaphore.many(2).try_acquire().expect("memory").is_some());

    let doing = mine.once(b"once").begin().expect("memory").expect("nobody has begun");
    let once = theirs.once(b"once");
    assert!(matches!(once.begin_within(short), Ok(Begun::NotYet)));
    assert_eq!(once.queue().view().map(|view| view.token), Ok(doing.token()));
    assert_eq!(doing.give_up(), Ok(()));
    let Ok(Begun::Ours(doing)) = once.begin_within(short) else { panic!("it was given up") };
    assert_eq!(doing.done(), Ok(()));
    assert!(mine.once(b"once").begin().expect("memory").is_none());

    let latch = mine.latch(b"latch", 2);
    assert_eq!((latch.count_down(1), latch.wait_within(short)), (Ok(1), Ok(false)));
    assert_eq!(theirs.latch(b"latch", 2).count_down(1), Ok(0));
    assert_eq!(
        (latch.wait(), latch.wait_within(short), latch.left_to_count()),
        (Ok(()), Ok(true), Ok(0))
    );

    let barrier = mine.barrier(b"barrier", 2);
    let mut member = barrier.join().expect("room");
    assert_eq!(member.wait_within(short), Ok(None));
    assert_eq!(barrier.evict(member.seat()), Ok(true));
    assert_eq!(member.wait(), Err(ObjectError::Evicted));
    assert_eq!(theirs.barrier(b"barrier", 2).join().expect("room").leave(), Ok(()));
}

/// Threads with fewer clients; what changes the value need not be `Send`.
#[cfg(feature = "zerocopy")]
#[test]
fn atomic_values_of_a_handle_change_as_a_whole() {
    const EACH: u64 = 50;
    let (_dir, pool) = pool();
    let store = handle(&pool, 2);
    let sum = store.blocking().atomic(b"sum", [7_u64; 2]);
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                let calls = std::rc::Rc::new(Cell::new(0));
                for _ in 0..EACH {
                    let add = |[one, two]: [u64; 2]| {
                        calls.set(calls.get() + 1);
                        Some([one + 1, two + 2])
                    };
                    let (before, after) = sum.fetch_update(add).expect("memory");
                    assert_eq!(after, [before[0] + 1, before[1] + 2]);
                }
                assert!(calls.get() >= EACH);
            });
        }
    });
    let all = [7 + 4 * EACH, 7 + 8 * EACH];
    // A client's, a task's and a thread's are one.
    let client = crate::shm::open(&pool, Options::default()).expect("a slot");
    let task = store.atomic(b"sum", [7_u64; 2]);
    assert_eq!(client.blocking().atomic(b"sum", [7_u64; 2]).load(), Ok(all));
    assert_eq!(block_on(task.compare_exchange([7; 2], [0; 2])), Ok(Err(all)));
    assert_eq!(block_on(task.compare_exchange(all, [1, 2])), Ok(Ok(all)));
    assert_eq!((sum.load(), sum.swap([3; 2])), (Ok([1, 2]), Ok([1, 2])));
    assert_eq!(sum.compare_exchange([3; 2], [4; 2]), Ok(Ok([3; 2])));
    assert_eq!((block_on(task.swap([5; 2])), block_on(task.load())), (Ok([4; 2]), Ok([5; 2])));
    assert_eq!(block_on(task.fetch_update(|_| None)), Ok(([5; 2], [5; 2])));
    // Another handle's change comes first.
    let (other, mut calls) = (handle(&pool, 1), 0);
    let late = |[one, two]: [u64; 2]| {
        calls += 1;
        if calls == 1 {
            assert_eq!(other.blocking().atomic(b"sum", [7_u64; 2]).swap([9; 2]), Ok([5; 2]));
        }
        Some([one + 1, two])
    };
    assert_eq!((sum.fetch_update(late), calls), (Ok(([9; 2], [10, 9])), 2));
    let other = store.blocking().atomic(b"sum", 0_u8).load();
    assert_eq!(other, Err(ObjectError::Store(Error::Type(16))));
    let locked = store.blocking().lock(b"sum").acquire().map(drop);
    let (wanted, found) = (ObjectKind::Lock, Some(ObjectKind::Atomic));
    assert_eq!(locked, Err(ObjectError::OtherKind { wanted, found }));
    assert!(store.clients() <= 2);
}

/// Threads with fewer clients: each adds to what it found, and nothing is lost.
#[cfg(feature = "serde")]
#[test]
fn guarded_states_of_a_handle_change_as_a_whole() {
    const EACH: usize = 30;
    let (_dir, pool) = pool();
    let store = handle(&pool, 2);
    let list = store.blocking().guarded::<Vec<u32>>(b"list");
    assert_eq!(list.get(), Ok(None));
    thread::scope(|threads| {
        for number in 0..4 {
            let list = &list;
            threads.spawn(move || {
                for _ in 0..EACH {
                    let with =
                        |list: Option<Vec<u32>>| [list.unwrap_or_default(), vec![number]].concat();
                    assert_eq!(list.update(with).expect("memory").last(), Some(&number));
                }
            });
        }
    });
    let task = store.guarded::<Vec<u32>>(b"list");
    let all = block_on(task.get()).expect("a majority").expect("it was set");
    assert!((0..4).all(|number| all.iter().filter(|it| **it == number).count() == EACH));
    let is_long = |list: Option<Vec<u32>>| list.filter(|list| list.len() < 4 * EACH);
    assert_eq!(list.fetch_update(is_long), Ok((Some(all.clone()), Some(all.clone()))));
    let first = block_on(task.fetch_update(|list| list?.first().map(|it| vec![*it])));
    assert_eq!(first, Ok((Some(all.clone()), Some(vec![all[0]]))));
    assert_eq!(block_on(task.update(|list| list.unwrap_or_default())), Ok(vec![all[0]]));
    assert_eq!(
        store.blocking().guarded::<Vec<u32>>(b"none").fetch_update(|it| it),
        Ok((None, None))
    );
    // Another handle's change comes first.
    let (other, mut calls) = (handle(&pool, 1), 0);
    let late = |list: Option<Vec<u32>>| {
        calls += 1;
        if calls == 1 {
            let theirs = other.blocking().guarded(b"list").update(|_| vec![7_u32]);
            assert_eq!(theirs, Ok(vec![7]));
        }
        list.map(|list| [list, vec![8]].concat())
    };
    assert_eq!((list.fetch_update(late), calls), (Ok((Some(vec![7]), Some(vec![7, 8]))), 2));
    let other = store.blocking().guarded::<(u64, String, bool)>(b"list").get();
    assert_eq!(other, Err(ObjectError::Store(Error::Type(3))));
    assert!(store.clients() <= 2);
}

/// Compiles: a runtime may move them, with values that threads may not share.
#[cfg(all(feature = "zerocopy", feature = "serde"))]
#[test]
fn values_that_change_as_a_whole_may_move_between_threads() {
    fn whole<T: Send + 'static>(_: T) {}
    fn one<T: Send>(future: T) -> T {
        future
    }
    let (_dir, pool) = pool();
    let store = handle(&pool, 1);
    let state = store.guarded::<Cell<u8>>(b"guarded");
    whole(async move {
        let value = store.atomic(b"atomic", 0_u64);
        let _ = (value.load().await?, value.swap(1).await?, value.compare_exchange(1, 2).await?);
        let _ = value.fetch_update(|value| value.checked_add(1)).await?;
        let _ = state.update(|state| state.unwrap_or_default()).await?;
        let _ = one(state.fetch_update(|state| state)).await?;
        let _ = one(state.get()).await?;
        Ok::<_, ObjectError>(())
    });
}

/// Compiles: a runtime may move what waits and what is held.
#[test]
fn all_of_it_may_move_between_threads() {
    fn whole<T: Send + 'static>(_: T) {}
    let (_dir, pool) = pool();
    let store = handle(&pool, 1);
    whole(async move {
        let mut guard = store.lock(b"lock").acquire().await?;
        let _ = (guard.is_held().await?, guard.settle(&[b"key"]).await?, guard.release().await?);
        let lock = store.rw_lock(b"shared");
        let _ = (lock.read().try_acquire().await?, lock.write().view().await?);
        if let Begun::Ours(doing) = store.once(b"once").begin().await? {
            doing.done().await?;
        }
        let _ = store.latch(b"latch", 1).count_down(1).await?;
        let _ = store.latch(b"latch", 1).wait_paced(None, Pause::yields).await?;
        let mut member = store.barrier(b"barrier", 1).join().await?;
        let _ = member.wait_paced(None, Pause::yields).await?;
        let mut watch = store.watch(b"key");
        let _ = (member.leave().await?, watch.changed().await?);
        Ok::<_, ObjectError>(())
    });
}
