//! What a handle promises, beside what its clients do.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use swarm_core::quorum::Timeouts;

use super::clients::{Clients, Lease, Waiting};
use super::*;
use crate::pools::shm::CreateOptions;

fn pool(options: CreateOptions) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    (dir, pool)
}

/// Few keys are remembered, so that many clients are opened soon.
fn options(clients: usize) -> StoreOptions {
    StoreOptions::default().clients(clients).client(Options::default().cached_keys(100))
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Tasks that are ready, tasks that have not ended, and threads that poll one.
#[derive(Default)]
struct Tasks {
    ready: VecDeque<Arc<Spawned>>,
    left: usize,
    polling: usize,
}

/// A task, whichever thread polls it.
struct Spawned {
    /// None once it has ended.
    task: Mutex<Option<Task>>,
    is_ready: AtomicBool,
    runtime: Arc<Runtime>,
}

/// Threads that poll tasks in turn: each poll of a task may be another thread's.
#[derive(Default)]
struct Runtime {
    tasks: Mutex<Tasks>,
    changed: Condvar,
}

impl Wake for Spawned {
    fn wake(self: Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::SeqCst) {
            let runtime = Arc::clone(&self.runtime);
            runtime.tasks.lock().expect("no panic").ready.push_back(self);
            runtime.changed.notify_one();
        }
    }
}

/// Spawns as a runtime of several threads does.
fn spawn(runtime: &Arc<Runtime>, task: impl Future<Output = ()> + Send + 'static) {
    runtime.tasks.lock().expect("no panic").left += 1;
    let task = Mutex::new(Some(Box::pin(task) as Task));
    let is_ready = AtomicBool::new(false);
    Arc::new(Spawned { task, is_ready, runtime: Arc::clone(runtime) }).wake();
}

/// Polls until all tasks have ended. False if some have not, and nobody will wake them.
fn work(runtime: &Runtime) -> bool {
    let mut tasks = runtime.tasks.lock().expect("no panic");
    loop {
        let Some(next) = tasks.ready.pop_front() else {
            if tasks.left == 0 || tasks.polling == 0 {
                runtime.changed.notify_all();
                return tasks.left == 0;
            }
            tasks = runtime.changed.wait(tasks).expect("no panic");
            continue;
        };
        tasks.polling += 1;
        drop(tasks);
        next.is_ready.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&next));
        let mut task = next.task.lock().expect("no panic");
        let ended = task
            .as_mut()
            .is_some_and(|task| task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        if ended {
            *task = None;
        }
        drop(task);
        tasks = runtime.tasks.lock().expect("no panic");
        tasks.polling -= 1;
        tasks.left -= usize::from(ended);
    }
}

/// Each operation waits for its roundtrips, so that clients run out; and each poll may be another thread's than the one before.
#[test]
fn ten_thousand_tasks_do_with_sixty_four_clients() {
    const TASKS: u32 = 10_000;
    const KEYS: u32 = 256;
    let (_dir, pool) = pool(CreateOptions { capacity: 32 << 20, ..CreateOptions::default() });
    // However busy the machine is.
    let timeouts = Timeouts { deadline: 100_000_000_000, ..Timeouts::default() };
    let mut options = options(64);
    options.client = options.client.timeouts(timeouts);
    let store = Store::emulated(&pool, options, 20_000).expect("a free slot");
    for number in 0..KEYS {
        store.blocking().put(&number.to_le_bytes(), &number.to_le_bytes()).expect("memory");
    }
    let runtime = Arc::<Runtime>::default();
    let done = Arc::new(AtomicUsize::new(0));
    for number in 0..TASKS {
        let (store, done) = (store.clone(), Arc::clone(&done));
        spawn(&runtime, async move {
            let key = (number % KEYS).to_le_bytes();
            if number % 4 == 0 {
                assert_eq!(store.update(&key, &key).await, Ok(true), "waiting is no error");
            }
            let read = store.read(&key, |value| value == key).await;
            assert_eq!(read, Ok(Some(true)), "key {number}");
            done.fetch_add(1, Ordering::Relaxed);
        });
    }
    thread::scope(|threads| {
        let working: Vec<_> = (0..4).map(|_| threads.spawn(|| work(&runtime))).collect();
        for thread in working {
            assert!(thread.join().expect("no panic"), "nobody wakes some of them");
        }
    });
    assert_eq!(done.load(Ordering::Relaxed), TASKS as usize);
    assert_eq!(store.clients(), 64);
    assert_eq!(pool.live_clients().len(), 64);
    drop(store);
    assert_eq!(pool.live_clients(), [0_usize; 0], "they leave with the last handle");
}

/// The pool has two slots for this process, and four threads do not notice.
#[test]
fn threads_share_what_slots_there_are() {
    let (_dir, pool) = pool(CreateOptions {
        nodes: 1,
        capacity: 4 << 20,
        max_clients: 3,
        ..CreateOptions::default()
    });
    let other = shm::open(&pool, Options::default()).expect("a free slot");
    let store = Store::of(&pool, options(16)).expect("a free slot");
    let key = |thread: u8, number: u8| [thread, number];
    thread::scope(|threads| {
        for thread in 0..4 {
            let store = store.clone();
            threads.spawn(move || {
                let store = store.blocking();
                for number in 0..100 {
                    store.put(&key(thread, number), &[number]).expect("waiting is no error");
                    let got = store.get(&key(thread, number)).expect("waiting is no error");
                    assert_eq!(got.as_deref(), Some(&[number][..]));
                }
            });
        }
    });
    assert!(store.clients() <= 2);
    assert_eq!(other.blocking().len().expect("nodes answer").usage.keys, 400);
}

/// Nothing of what is read escapes, and the client is not lost.
#[test]
fn an_operation_that_panics_gives_its_client_back() {
    let (_dir, pool) = pool(CreateOptions { nodes: 1, capacity: 4 << 20, ..Default::default() });
    let store = Store::of(&pool, options(1)).expect("a free slot");
    let store = store.blocking();
    store.put(b"key", b"value").expect("memory");
    for _ in 0..3 {
        let read = || store.read(b"key", |_| panic!("as a test of ours does"));
        assert!(catch_unwind(AssertUnwindSafe(read)).is_err());
    }
    assert_eq!(store.get(b"key").expect("there is a client").as_deref(), Some(&b"value"[..]));
}

/// A write that is dropped in the middle gives its client to the next one, which goes on with the same key.
#[test]
fn a_dropped_operation_gives_its_client_back() {
    let (_dir, pool) = pool(CreateOptions { capacity: 4 << 20, ..CreateOptions::default() });
    let store = Store::emulated(&pool, options(1), 10_000).expect("a free slot");
    for number in 0..50_u8 {
        let value = [number; 3];
        let mut put = pin!(store.put(b"key", &value));
        for _ in 0..number {
            if put.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
        }
    }
    store.blocking().put(b"key", b"last").expect("there is a client");
    assert_eq!(store.blocking().get(b"key").expect("nodes answer").as_deref(), Some(&b"last"[..]));
}

/// Counts how often it was woken.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Polled<'s> = Poll<Result<Lease<'s, usize>, Error>>;

/// A waiter, and whether it was woken.
struct One<'s>(Pin<Box<Waiting<'s, usize>>>, Arc<Woken>);

impl<'s> One<'s> {
    fn of(clients: &'s Clients<usize>) -> Self {
        Self(Box::pin(clients.lend()), Arc::default())
    }

    fn poll(&mut self) -> Polled<'s> {
        let waker = Waker::from(Arc::clone(&self.1));
        self.0.as_mut().poll(&mut Context::from_waker(&waker))
    }

    fn woken(&self) -> usize {
        self.1.0.load(Ordering::SeqCst)
    }

    fn is_woken(&self) -> bool {
        self.woken() > 0
    }
}

/// Clients that are numbers.
fn numbers(limit: usize) -> Clients<usize> {
    let next = AtomicUsize::new(0);
    Clients::new(limit, Box::new(move || Ok(next.fetch_add(1, Ordering::Relaxed))))
        .expect("a number")
}

fn ready<'s>(polled: Polled<'s>) -> Lease<'s, usize> {
    match polled {
        Poll::Ready(Ok(lease)) => lease,
        _ => panic!("it has none"),
    }
}

/// In the order in which they came, whatever comes meanwhile.
#[test]
fn the_longest_waiter_is_served_first() {
    let clients = numbers(2);
    let first = ready(One::of(&clients).poll());
    let second = clients.lend_now();
    assert!(second.is_none(), "all that there are are in use");
    let second = ready(One::of(&clients).poll());
    assert_ne!(*first, *second);
    let mut waiting: Vec<_> = (0..3).map(|_| One::of(&clients)).collect();
    assert!(waiting.iter_mut().all(|one| one.poll().is_pending()));
    drop(first);
    assert!(waiting[0].is_woken() && !waiting[1].is_woken());
    assert!(clients.lend_now().is_none() && One::of(&clients).poll().is_pending());
    let got = ready(waiting[0].poll());
    assert!(waiting[1].poll().is_pending());
    drop(got);
    drop(second);
    assert!(waiting[1].is_woken() && waiting[2].is_woken());
    assert_ne!(*ready(waiting[1].poll()), *ready(waiting[2].poll()));
    drop(waiting);
    assert!(clients.lend_now().is_some());
}

/// However many wait, each is polled when it comes and when it has a client, and never in vain: a runtime
/// whose tasks wait has nothing to do.
#[test]
fn a_waiter_is_woken_once() {
    let clients = numbers(1);
    let mut first = One::of(&clients);
    let mut lent = ready(first.poll());
    assert_eq!(first.woken(), 0, "it has its client already");
    let mut waiting: VecDeque<_> = (0..100).map(|_| One::of(&clients)).collect();
    assert!(waiting.iter_mut().all(|one| one.poll().is_pending()));
    while let Some(mut next) = waiting.pop_front() {
        assert!(!next.is_woken() && waiting.iter().all(|one| !one.is_woken()));
        drop(lent);
        assert_eq!(next.woken(), 1);
        lent = ready(next.poll());
        assert_eq!(next.woken(), 1, "it has its client");
    }
    drop(lent);
    assert!(clients.lend_now().is_some());
}

/// Between the look that found none and the place in the queue.
#[test]
fn a_client_that_came_back_meanwhile_is_found() {
    let clients = numbers(1);
    let lent = clients.lend_now().expect("the first one");
    assert!(clients.lend_now().is_none());
    drop(lent);
    assert_eq!(*ready(One::of(&clients).poll()), 0);
}

/// One that was granted a client and is dropped before it takes it passes it on.
#[test]
fn a_waiter_that_leaves_the_queue_passes_on_what_it_was_granted() {
    let clients = numbers(1);
    let lent = clients.lend_now().expect("the first one");
    let mut waiting: VecDeque<_> = (0..3).map(|_| One::of(&clients)).collect();
    assert!(waiting.iter_mut().all(|one| one.poll().is_pending()));
    // Behind others.
    drop(waiting.remove(1));
    drop(lent);
    assert!(waiting[0].is_woken() && !waiting[1].is_woken());
    waiting.pop_front();
    assert!(waiting[0].is_woken());
    assert_eq!(*ready(waiting[0].poll()), 0);
}

/// Many threads, few clients: each is one thread's at a time, and nobody sleeps on.
#[test]
fn a_client_is_lent_to_one_at_a_time() {
    const THREADS: usize = 8;
    const TIMES: usize = 300;
    let clients = numbers(3);
    let in_use = [const { AtomicBool::new(false) }; 3];
    thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                for _ in 0..TIMES {
                    let lent = clients.lend_now().map_or_else(|| clients.lend_blocking(), Ok);
                    let lent = lent.expect("waiting is no error");
                    assert!(!in_use[*lent].swap(true, Ordering::SeqCst), "it is lent out twice");
                    thread::yield_now();
                    in_use[*lent].store(false, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(clients.opened() <= 3);
}

/// Compiles: whatever threads and tasks do with a handle, its clients and what they hold, a runtime may move.
#[test]
fn all_of_it_may_move_between_threads() {
    fn whole<T: Send + 'static>(_: T) {}
    fn shared<T: Clone + Send + Sync + 'static>() {}
    shared::<Store>();
    shared::<Store<Emulated>>();
    let (_dir, pool) = pool(CreateOptions { nodes: 1, capacity: 4 << 20, ..Default::default() });
    let store = Store::emulated(&pool, options(1), 0).expect("a free slot");
    whole(async move {
        let key = b"key";
        let _ = store.get(key).await;
        let _ = store.read(key, |value| value.len()).await;
        let _ = store.put(key, b"value").await;
        let _ = store.insert(key, b"value").await;
        let _ = store.update(key, b"value").await;
        let _ = store.delete(key).await;
        let _ = store.get_many(&[key]).await;
        let _ = store.put_many(&[key], &[b"value"]).await;
        let _ = store.delete_many(&[key]).await;
        let _ = store.keys(b"").await;
        let _ = store.scan(b"", |_, _| ControlFlow::Break(())).await;
        let _ = store.len().await;
    });
}

/// Threads of one process, more than the handle has clients, hold a lock one after the other, and use the handle
/// meanwhile: a user that holds it or waits for it has no client to itself.
#[test]
fn threads_hold_a_lock_one_after_the_other() {
    const EACH: usize = 50;
    const THREADS: usize = 6;
    let (_dir, pool) =
        pool(CreateOptions { nodes: 1, capacity: 8 << 20, ..CreateOptions::default() });
    let store = Store::of(&pool, options(2)).expect("a free slot");
    let (inside, last) = (AtomicUsize::new(0), AtomicU64::new(0));
    let enters = |token: u64| {
        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
        assert!(last.swap(token, Ordering::SeqCst) < token);
        assert_eq!(store.blocking().put(b"last", &token.to_le_bytes()), Ok(()));
        inside.fetch_sub(1, Ordering::SeqCst);
    };
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                for _ in 0..EACH {
                    let entered = store.blocking().with_lock(b"lock", None, enters);
                    assert_eq!(entered, Ok(Some(())));
                }
            });
        }
    });
    assert_eq!(last.load(Ordering::SeqCst), (THREADS * EACH) as u64);
    let nested = store.blocking().with_lock(b"lock", None, |_| {
        store.blocking().with_lock(b"lock", Some(Duration::ZERO), |_| ())
    });
    assert_eq!(nested, Ok(Some(Ok(None))));
}

#[test]
fn a_handle_watches_a_key_with_no_client_in_use() {
    let (_dir, pool) =
        pool(CreateOptions { nodes: 1, capacity: 8 << 20, ..CreateOptions::default() });
    let store = Store::of(&pool, options(1)).expect("a free slot");
    let mut watch = store.blocking().watch(b"key");
    assert_eq!(watch.changed(), Ok(None));
    assert_eq!(watch.changed_within(Duration::from_millis(1)), Ok(None));
    std::thread::scope(|threads| {
        let watches = threads.spawn(|| watch.changed_within(Duration::from_secs(60)));
        store.blocking().put(b"key", b"7").expect("memory");
        assert_eq!(watches.join().expect("it ends"), Ok(Some(Some(b"7".to_vec()))));
    });
}
