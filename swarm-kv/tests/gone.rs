//! Pools that are destroyed, removed or cut short under their clients. A writer used to acknowledge
//! writes that no other client could find, and files that were cut short ended all clients by
//! SIGBUS.

use std::fs::{self, OpenOptions as FileOptions};
use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread::{scope, sleep};
use std::time::Duration;

use swarm_core::node::NodeId;
use swarm_core::quorum::Timeouts;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, Client, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Error, Options, block_on};
use swarm_shm::SwitchState;

/// More operations than a client runs between two readings of the clock.
const SOME: usize = 100;

fn create(path: &Path) -> Pool {
    let options = CreateOptions { capacity: 4 << 20, max_clients: 16, ..CreateOptions::default() };
    Pool::create(path, &options).expect("a pool")
}

fn open(pool: &Pool) -> Client {
    shm::open(pool, Options::default()).expect("a client")
}

/// An operation, represented by its error.
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
        // Another pool in its place is not theirs.
        let pool = create(&path);
        assert_eq!(operation(&client), Some(Error::Destroyed));
        assert_eq!(open(&pool).blocking().get(b"key").expect("a new pool").as_deref(), None);
        drop((client, other));
    }
}

/// An operation that began before is polled afterwards.
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

/// No client that had the pool open noticed `rm -rf POOL; swarm create POOL`.
#[test]
fn a_client_of_a_removed_pool_notices() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool");
    let pool = create(&path);
    let clients = OPERATIONS.map(|operation| (operation, open(&pool)));
    open(&pool).blocking().put(b"key", b"value").expect("memory");
    fs::remove_dir_all(&path).expect("it is there");
    drop(create(&path));
    // After a second of their own time, the first operation of each notices.
    sleep(Duration::from_secs(1));
    let (last, others) = clients.split_last().expect("some");
    let (operation, client) = last;
    let noticed = (0..SOME).find_map(|_| operation(client));
    assert_eq!(noticed, Some(Error::Gone));
    // It notifies the others.
    for (operation, client) in others {
        assert_eq!(operation(client), Some(Error::Gone));
    }
}

/// Each client notices by itself, including a reader whose data is all cached.
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

/// An older copy of one node's file, and another node lost: there was a majority, and no node of it
/// had the last value.
#[test]
fn an_older_copy_of_a_node_takes_no_part_in_a_majority() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool");
    create(&path);
    let put = |value: &[u8]| {
        let client = shm::open_path(&path).expect("a client");
        client.blocking().put(b"key", value).expect("memory");
    };
    let degraded = || Pool::open(&path, OpenOptions { degraded: true, ..OpenOptions::default() });
    put(b"first");
    let (node, copy) = (path.join("node-0"), dir.path().join("copy"));
    fs::copy(&node, &copy).expect("copied");
    put(b"second");
    fs::copy(&copy, &node).expect("put back");
    let client = open(&degraded().expect("the others are a majority"));
    assert_eq!(
        client.blocking().get(b"key").expect("it is there").as_deref(),
        Some(&b"second"[..])
    );
    drop(client);
    fs::remove_file(path.join("node-1")).expect("another node is lost");
    let error = degraded().expect_err("one node of three is there");
    assert!(matches!(&error, shm::Error::MajorityGone { whys, .. } if whys.len() == 2), "{error}");
}

/// Cuts a file of a pool to nothing.
fn cut(pool: &Pool, file: &str) {
    let file = FileOptions::new().write(true).open(pool.path().join(file)).expect("it is there");
    file.set_len(0).expect("it is this user's");
}

#[test]
fn a_client_whose_control_file_is_cut_short_gets_an_error() {
    for operation in OPERATIONS {
        let dir = tempfile::tempdir().expect("a directory");
        let pool = create(&dir.path().join("pool"));
        let (client, other) = (open(&pool), open(&pool));
        client.blocking().put(b"key", b"value").expect("memory");
        assert_eq!(operation(&client), None, "all is well");
        cut(&pool, "control");
        for _ in 0..3 {
            assert_eq!(operation(&client), Some(Error::CutShort));
        }
        assert_eq!(operation(&other), Some(Error::CutShort));
        assert!(matches!(
            shm::open(&pool, Options::default()).err(),
            Some(shm::Error::Length { .. })
        ));
        drop((client, other));
    }
}

/// At any point of any operation. Each client has its own keys, and knows their values.
#[test]
fn a_node_that_is_cut_short_is_down_and_the_rest_goes_on() {
    const CLIENTS: u64 = 4;
    const ROUNDS: u64 = 60;
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("pool");
    let options = CreateOptions { capacity: 16 << 20, ..CreateOptions::default() };
    let pool = Pool::create(&path, &options).expect("a pool");
    let key = |client: u64, key: u64| format!("{client} {key}").into_bytes();
    scope(|scope| {
        for number in 0..CLIENTS {
            let (pool, key) = (&pool, &key);
            scope.spawn(move || {
                let client = open(pool);
                for round in 0..ROUNDS {
                    let value = round.to_le_bytes();
                    for of in 0..8 {
                        client.blocking().put(&key(number, of), &value).expect("a majority");
                        let got = client.blocking().get(&key(number, of)).expect("a majority");
                        assert_eq!(got.as_deref(), Some(&value[..]));
                    }
                    let name = key(number, 8 + round);
                    assert!(client.blocking().insert(&name, &value).expect("a majority"));
                    if round % 2 == 0 {
                        client.blocking().delete(&name).expect("a majority");
                    }
                    if (round, number) == (ROUNDS / 2, 0) {
                        cut(pool, "node-1");
                    }
                }
            });
        }
    });
    assert!(pool.lost_nodes().contains(NodeId(1)) && pool.lost_nodes().len() == 1);
    let degraded = OpenOptions { degraded: true, ..OpenOptions::default() };
    let client = open(&Pool::open(&path, degraded).expect("a majority is there"));
    for number in 0..CLIENTS {
        for of in 0..8 + ROUNDS {
            let round = if of < 8 { ROUNDS - 1 } else { of - 8 };
            let expected = (of < 8 || round % 2 == 1).then(|| round.to_le_bytes());
            let got = client.blocking().get(&key(number, of)).expect("a majority");
            assert_eq!(got.as_deref(), expected.as_ref().map(|value| &value[..]), "{number} {of}");
        }
    }
}

/// A key was written at two nodes, of which one is lost and the other does not answer for a moment.
/// The third does not have the key, and neither do the zeros in place of the lost one: counted as a
/// vote, they made a majority that did not know the key.
#[test]
fn what_is_in_the_place_of_a_node_makes_no_majority_with_one_that_lags() {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = create(&dir.path().join("pool"));
    let timeouts = Timeouts { deadline: 20_000_000, ..Timeouts::default() };
    let client = || {
        let client =
            shm::open_emulated::<SafeGuess>(&pool, Options::default().timeouts(timeouts), 1000);
        client.expect("a client")
    };
    let [first, gone, lags] = [0, 1, 2].map(NodeId);
    let (writer, reader, inserter) = (client(), client(), client());
    pool.switch(lags).set(SwitchState::Frozen);
    assert!(writer.blocking().insert(b"key", b"value").expect("a majority"));
    pool.switch(lags).set(SwitchState::Up);
    cut(&pool, &format!("node-{}", gone.0));
    pool.switch(first).set(SwitchState::Frozen);
    let none = |error: Option<Error>| matches!(error, Some(Error::Replication(_)));
    assert!(none(reader.blocking().get(b"key").err()), "nobody can tell what it is");
    assert!(none(inserter.blocking().insert(b"key", b"another").err()), "nor that it is not");
    pool.switch(first).set(SwitchState::Up);
    for client in [writer, reader, inserter] {
        assert!(!client.blocking().insert(b"key", b"another").expect("a majority"));
        let got = client.blocking().get(b"key").expect("a majority");
        assert_eq!(got.as_deref(), Some(&b"value"[..]));
    }
}
