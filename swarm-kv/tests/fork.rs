//! A client belongs to the process that opened it: a child's use of its copy changes nothing that
//! clients share.

#![cfg(target_os = "linux")]

use std::cell::RefCell;
use std::fs;
use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::Pin;
use std::ptr;
use std::task::{Context, Poll, Waker};

use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, CreateOptions, Pool};
use swarm_kv::{Error, Options, Store, StoreOptions, block_on};

fn pool() -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 8, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    (dir, pool)
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Returns all that the pool's clients share, byte by byte.
fn shared(pool: &Path) -> Vec<Vec<u8>> {
    let files = ["control", "node-0", "node-1", "node-2"];
    files.map(|file| fs::read(pool.join(file)).expect("a file of the pool")).into()
}

/// Makes a child that runs `act`, with a copy of all that this process has; its exit status says
/// whether that returned true. It must not panic: other threads' locks may be held for ever there.
fn begin_child(act: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child's one thread does no more than these tests say, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_so = act();
        // SAFETY: ends the child, without touching this process's state.
        unsafe { libc::_exit(i32::from(!is_so)) };
    }
    assert!(child > 0, "no child");
    child
}

/// Waits for a child's end. Returns whether its result was true.
fn returned_true(child: i32) -> bool {
    let mut status = 0;
    // SAFETY: it is this test's child, and the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status == 0
}

/// Drops a child's copy of a value that its parent still uses.
///
/// # Safety
/// For a child only, which does not use the value again.
unsafe fn drop_copy<T>(copied: &T) {
    // SAFETY: as the caller promises.
    drop(unsafe { ptr::read(copied) });
}

#[test]
fn a_child_can_do_nothing_with_its_parents_client() {
    let (_dir, pool) = pool();
    let client = shm::open(&pool, Options::default()).expect("a free slot");
    let store = client.blocking();
    for number in 0..40 {
        store.put(&key(number), &[1; 64]).expect("put");
    }
    let value = store.get(&key(1)).expect("get").expect("it is there");
    // A look after the pool is due by now.
    std::thread::sleep(std::time::Duration::from_millis(600));
    let before = shared(pool.path());
    let child = begin_child(|| {
        let refused = [
            store.get(&key(1)).err(),
            store.get(&key(99)).err(),
            store.update(&key(1), &[2; 64]).err(),
            store.update(&key(99), &[2; 64]).err(),
            store.put(&key(1), &[2; 64]).err(),
            store.insert(&key(99), &[2; 64]).err(),
            store.delete(&key(1)).err(),
            store.get_many(&[key(1), key(2)]).err(),
            block_on(client.collect()).err(),
            block_on(client.usage()).err(),
            block_on(client.client_usage()).err(),
            block_on(client.for_each(|_, _| ControlFlow::Continue(()))).err(),
        ];
        client.rest();
        // SAFETY: this is a child, which ends after this.
        unsafe {
            drop_copy(&value);
            drop_copy(&client);
        }
        refused.iter().all(|refused| *refused == Some(Error::Forked))
    });
    assert!(returned_true(child));
    assert!(shared(pool.path()) == before, "the child changed something");
    assert_eq!(pool.live_clients(), [0]);
    assert_eq!(value[..], [1; 64]);
    for number in 0..40 {
        store.put(&key(number), &[3; 64]).expect("the parent goes on");
    }
    assert_eq!(store.get(&key(1)).expect("get").as_deref(), Some(&[3; 64][..]));
}

/// One of a handle's clients is in use at the moment of the fork, by a thread that the child does
/// not have, so it is never returned there; another operation waits for it.
#[test]
fn a_child_waits_for_nothing_with_its_parents_handle() {
    let (_dir, pool) = pool();
    let store = Store::emulated(&pool, StoreOptions::default().clients(1), 1 << 40);
    let store = store.expect("a free slot");
    let operation = || RefCell::new(Box::pin(store.get(b"key")));
    let (under_way, waiting) = (operation(), operation());
    assert!(poll(&under_way).is_pending() && poll(&waiting).is_pending());
    let before = shared(pool.path());
    let child = begin_child(|| {
        let forked = Poll::Ready(Err(Error::Forked));
        // The client is still lent out, and an operation that waits for it waits for ever.
        if poll(&waiting) != forked || poll(&operation()) != forked {
            return false;
        }
        if store.blocking().put(b"key", b"value") != Err(Error::Forked) {
            return false;
        }
        if poll(&under_way) != forked {
            return false;
        }
        // SAFETY: this is a child, which ends after this.
        unsafe {
            drop_copy(&waiting);
            drop_copy(&under_way);
        }
        if store.blocking().get(b"key") != Err(Error::Forked) {
            return false;
        }
        // One of its own works.
        let own = Store::open(store.pool().path()).expect("there are slots");
        own.blocking().get(b"key") == Ok(None)
    });
    assert!(returned_true(child));
    // The child's own client raised the nodes' event counts, and stored those of the others at each node: words
    // 24 to 31 of their headers, and nothing else.
    let besides = |nodes: &[Vec<u8>]| -> Vec<Vec<u8>> {
        nodes.iter().map(|node| [&node[..24 * 8], &node[32 * 8..]].concat()).collect()
    };
    let after = shared(pool.path());
    assert!(besides(&after[1..]) == besides(&before[1..]), "the child changed something");
    drop(under_way);
    assert!(poll(&waiting).is_pending(), "it has the client and waits for the nodes");
    drop(waiting);
    assert_eq!(pool.live_clients(), [0]);
}

/// An operation that a child has a copy of.
type Kept<T> = RefCell<Pin<Box<T>>>;

fn poll<T: Future>(operation: &Kept<T>) -> Poll<T::Output> {
    operation.borrow_mut().as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Nodes that answer late leave operations in progress at the moment of the fork.
#[test]
fn a_child_goes_on_with_none_of_its_parents_operations() {
    /// Nanoseconds: no answer arrives within the test.
    const NEVER: u64 = 1_000_000_000_000;
    /// Answers have arrived by then, and nobody has looked.
    const SOON: u64 = 1_000_000;
    fn kept<T: Future>(operation: T) -> Kept<T> {
        RefCell::new(Box::pin(operation))
    }
    let (_dir, pool) = pool();
    shm::open(&pool, Options::default()).expect("a slot").blocking().put(b"k", b"1").expect("put");
    let client = shm::open_emulated::<SafeGuess>(&pool, Options::default(), NEVER).expect("a slot");
    let other = shm::open_emulated::<SafeGuess>(&pool, Options::default(), SOON).expect("a slot");
    // It knows where the key is, so that its next update is posted by the first poll.
    other.blocking().put(b"k", b"0").expect("put");
    let answered = kept(other.update(b"k", b"4"));
    assert!(poll(&answered).is_pending());
    std::thread::sleep(std::time::Duration::from_millis(20));
    let (get, put) = (kept(client.get(b"k")), kept(client.put(b"k", b"2")));
    let (update, collect) = (kept(client.update(b"l", b"3")), kept(client.collect()));
    assert!(poll(&get).is_pending() && poll(&put).is_pending());
    assert!(poll(&update).is_pending() && poll(&collect).is_pending());
    let (before, clients) = (shared(pool.path()), pool.clients());
    assert!(clients[0].since.is_some(), "{clients:?}");
    let child = begin_child(|| {
        let get = matches!(poll(&get), Poll::Ready(Err(Error::Forked)));
        let put = poll(&put) == Poll::Ready(Err(Error::Forked));
        // Its next poll would go on with what the nodes answered.
        let answered = poll(&answered) == Poll::Ready(Err(Error::Forked));
        // SAFETY: this is a child, which ends after this.
        unsafe {
            drop_copy(&*update.borrow());
            drop_copy(&*collect.borrow());
            drop_copy(&client);
        }
        get && put && answered
    });
    assert!(returned_true(child));
    assert!(shared(pool.path()) == before, "the child changed something");
    assert_eq!(pool.clients(), clients, "the parent's operations are under way");
    drop((get, put, update, collect, answered));
    assert_eq!(pool.clients()[0].since, None);
}

/// A process that opens the pool once, and whose children have clients of their own.
#[test]
fn a_server_may_fork_workers_that_open_clients() {
    const WORKERS: usize = 3;
    const KEYS: usize = 200;
    let (_dir, pool) = pool();
    let client = shm::open(&pool, Options::default()).expect("a free slot");
    let put_all = |client: &shm::Client, worker: usize| {
        let store = client.blocking();
        let put = |at: usize| store.put(&key(worker * KEYS + at % KEYS), &at.to_le_bytes()).is_ok();
        let shared = |at: usize| store.put(b"everybody's", &at.to_le_bytes()).is_ok();
        (0..3 * KEYS).all(|at| put(at) && shared(at))
    };
    let worker = |worker: usize| {
        begin_child(|| {
            let own = shm::open(&pool, Options::default());
            own.is_ok_and(|own| put_all(&own, worker) && client.blocking().get(b"k").is_err())
        })
    };
    let workers: Vec<i32> = (1..=WORKERS).map(worker).collect();
    assert!(put_all(&client, 0));
    // All are waited for: a child still at work would outlive the pool.
    let outcome: Vec<bool> = workers.into_iter().map(returned_true).collect();
    assert_eq!(outcome, [true; WORKERS]);
    assert_eq!(pool.live_clients(), [0]);
    let fresh = shm::open(&pool, Options::default()).expect("a free slot");
    for at in 0..(WORKERS + 1) * KEYS {
        let value = fresh.blocking().get(&key(at)).expect("get").expect("the key is there");
        assert_eq!(value[..], (2 * KEYS + at % KEYS).to_le_bytes(), "key {at}");
    }
}
