//! Pools that are destroyed or removed under their clients. A writer went on to acknowledge what nobody could find.

use std::fs;
use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread::sleep;
use std::time::Duration;

use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, Client, CreateOptions, Pool};
use swarm_kv::{Error, Options, block_on};

/// More operations than a client does from one look at the clock to the next.
const SOME: usize = 100;

fn create(path: &Path) -> Pool {
    let options = CreateOptions { capacity: 4 << 20, max_clients: 16, ..CreateOptions::default() };
    Pool::create(path, &options).expect("a pool")
}

fn open(pool: &Pool) -> Client {
    shm::open(pool, Options::default()).expect("a client")
}

/// An operation, told by how it ends.
type Operation = fn(&Client) -> Option<Error>;

const OPERATIONS: [Operation; 9] = [
    |client| client.blocking().get(b"key").err(),
    |client| client.blocking().put(b"key", b"value").err(),
    |client| client.blocking().update(b"key", b"value").err(),
    |client| client.blocking().insert(b"another", b"value").err(),
    |client| client.blocking().delete(b"key").err(),
    |client| client.blocking().get_many(&[b"key"]).err(),
    |client| block_on(client.get(b"key")).err(),
    |client| block_on(client.update(b"key", b"value")).err(),
    |client| block_on(client.for_each(|_, _| ControlFlow::Continue(()))).err(),
];

#[test]
fn the_next_operation_of_a_client_of_a_destroyed_pool_says_so() {
    for operation in OPERATIONS {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("pool");
        let pool = create(&path);
        let (client, other) = (open(&pool), open(&pool));
        client.blocking().put(b"key", b"value").expect("memory");
        assert_eq!(operation(&client), None, "all is well");
        Pool::destroy(&path, true).expect("by force");
        for _ in 0..3 {
            assert_eq!(operation(&client), Some(Error::Destroyed));
        }
        assert_eq!(operation(&other), Some(Error::Destroyed));
        // Another pool in its place is none of theirs.
        let pool = create(&path);
        assert_eq!(operation(&client), Some(Error::Destroyed));
        assert_eq!(open(&pool).blocking().get(b"key").expect("a new pool").as_deref(), None);
        drop((client, other));
    }
}

/// One that was begun before is polled on by then.
#[test]
fn what_is_under_way_ends_with_the_pool() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool");
    let pool = create(&path);
    let roundtrip = 60_000_000_000;
    let client = shm::open_emulated::<SafeGuess>(&pool, Options::default(), roundtrip);
    let client = client.expect("a client");
    let mut cx = Context::from_waker(Waker::noop());
    let mut under_way = pin!(client.put(b"key", b"value"));
    assert!(under_way.as_mut().poll(&mut cx).is_pending());
    Pool::destroy(&path, true).expect("by force");
    let mut next = pin!(client.get(b"key"));
    assert!(matches!(next.as_mut().poll(&mut cx), Poll::Ready(Err(Error::Destroyed))));
    assert_eq!(under_way.as_mut().poll(&mut cx), Poll::Ready(Err(Error::Destroyed)));
}

/// `rm -rf POOL; swarm create POOL` was noticed by nobody who had it open.
#[test]
fn a_client_of_a_removed_pool_notices() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool");
    let pool = create(&path);
    let clients = OPERATIONS.map(|operation| (operation, open(&pool)));
    open(&pool).blocking().put(b"key", b"value").expect("memory");
    fs::remove_dir_all(&path).expect("it is there");
    drop(create(&path));
    // A second of their own time, as the first operation of each finds it.
    sleep(Duration::from_secs(1));
    let (last, others) = clients.split_last().expect("some");
    let (operation, client) = last;
    let noticed = (0..SOME).find_map(|_| operation(client));
    assert_eq!(noticed, Some(Error::Gone));
    // It tells the others.
    for (operation, client) in others {
        assert_eq!(operation(client), Some(Error::Gone));
    }
}

/// Each by itself: a reader that has all that it asks for cached, too.
#[test]
fn each_client_of_a_removed_pool_looks_for_itself() {
    let made = OPERATIONS.map(|operation| {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = create(&dir.path().join("pool"));
        let client = open(&pool);
        client.blocking().put(b"key", b"value").expect("memory");
        fs::remove_dir_all(pool.path()).expect("it is there");
        (operation, client)
    });
    sleep(Duration::from_secs(1));
    for (operation, client) in &made {
        let noticed = (0..SOME).find_map(|_| operation(client));
        assert_eq!(noticed, Some(Error::Gone));
    }
}
