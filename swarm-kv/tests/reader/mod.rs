//! A reader of a pool, which writes nothing.

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Waker};
use std::thread;
use std::time::Duration;

use swarm_core::node::{NodeId, NodeSet};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::Reader;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Error, Options};
use swarm_shm::SwitchState;

/// One key is written over and over, deleted and inserted anew, in a pool so small that its memory is soon used again, with values that are in
/// buffers. Each is made of its number.
#[test]
fn a_reader_is_linearizable_with_a_writer() {
    const WRITES: u64 = 600;
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let value = |number: u64| number.to_le_bytes().repeat(1 + number as usize % 400);
    let is_deleted = |number: u64| number % 7 == 3;
    let (begun, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let looks = thread::scope(|scope| {
        scope.spawn(|| {
            let client = shm::open(&pool, Options::default()).expect("a client");
            let client = client.blocking();
            for number in 1..=WRITES {
                begun.store(number, SeqCst);
                match is_deleted(number) {
                    true => client.delete(b"key").expect("memory"),
                    false => client.put(b"key", &value(number)).expect("memory"),
                }
                done.store(number, SeqCst);
                // Half of the time the key stays as it is for as long as a look takes.
                if number % 2 == 0 {
                    thread::sleep(Duration::from_micros(300));
                }
            }
        });
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let reader = Reader::new(&Pool::open(pool.path(), options).expect("it is there"));
        let (mut seen, mut looks) = (0, 0);
        while done.load(SeqCst) < WRITES {
            let first = done.load(SeqCst).max(seen);
            let got = match reader.get(b"key") {
                Err(Error::Contended) => continue,
                got => got.expect("the nodes are up"),
            };
            let last = begun.load(SeqCst);
            looks += 1;
            match got {
                Some(got) => {
                    let number = u64::from_le_bytes(*got.first_chunk().expect("a number"));
                    assert_eq!(got, value(number), "it is one write's");
                    assert!((first..=last).contains(&number), "{number}: {first} to {last}");
                    seen = number;
                }
                None => {
                    let of = (first..=last).find(|&number| number == 0 || is_deleted(number));
                    seen = of.expect("a delete was not yet followed by another write");
                }
            }
        }
        looks
    });
    assert!(looks > 0, "it saw something now and then");
}

#[test]
fn a_pool_that_is_opened_to_read_alone_is_read_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let client = shm::open(&pool, Options::default()).expect("a client");
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for number in 0..300_u32 {
        let key = number.to_le_bytes().to_vec();
        pairs.push((key.clone(), key.repeat(1 + number as usize % 100)));
        client.blocking().put(&key, &pairs.last().expect("it was pushed").1).expect("memory");
    }
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let alone = Pool::open(pool.path(), options).expect("it is there");
    assert!(alone.is_read_only() && !pool.is_read_only());
    assert!(matches!(
        shm::open(&alone, Options::default()).err(),
        Some(shm::Error::ReadOnly { .. })
    ));
    for reader in [Reader::new(&alone), Reader::new(&pool)] {
        for (key, value) in &pairs {
            assert_eq!(reader.get(key).expect("a majority").as_ref(), Some(value));
        }
        assert_eq!(reader.get(b"absent"), Ok(None));
        assert_eq!(reader.get(b""), Err(Error::Key(0)));
        let mut all = Vec::new();
        let each = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        reader.for_each(each).expect("a majority");
        all.sort();
        pairs.sort();
        assert!(all == pairs, "each key once");
    }
    assert_eq!(shm::usage(&alone).expect("a majority").keys, 300);
    assert_eq!(alone.live_clients(), pool.live_clients());
    // What one of two majorities shows.
    drop(client);
    Pool::destroy(pool.path(), true).expect("by force");
    assert_eq!(Reader::new(&alone).get(b"key"), Err(Error::Destroyed));
}

/// A write is at all nodes, and nobody knows yet that it stays: its writer might still take it back. A client that gets it locks it in first, which takes stores.
#[test]
fn a_reader_returns_nothing_that_it_would_have_to_make_sure_of() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let client = shm::open(&pool, Options::default()).expect("a client");
    client.blocking().put(b"key", b"value").expect("memory");
    let reader = Reader::new(&pool);
    assert_eq!(reader.get(b"key").expect("a majority").as_deref(), Some(&b"value"[..]));
    let roundtrip = 1_000_000;
    let slow = shm::open_emulated::<SafeGuess>(&pool, Options::default(), roundtrip);
    let slow = slow.expect("a client");
    let mut under_way = Box::pin(slow.put(b"key", b"another"));
    let mut step = || {
        let ends = under_way.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        assert!(!ends, "a reader saw a write at each of its steps");
        thread::sleep(Duration::from_nanos(2 * roundtrip));
        reader.get(b"key")
    };
    let refused = (0..100).map(|_| step()).find(|got| *got != Ok(Some(b"value".to_vec())));
    assert_eq!(refused, Some(Err(Error::Contended)));
    drop(under_way);
    let got = client.blocking().get(b"key").expect("a majority").map(|value| value.to_vec());
    assert_eq!(reader.get(b"key"), Ok(got), "a client has made sure");
}

/// Files of the same content in the place of two nodes': what clients write from then on, the reader does not see.
#[test]
fn a_reader_notices_that_nodes_were_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let put = |value: &[u8]| {
        let client = shm::open_path(pool.path()).expect("a client");
        client.blocking().put(b"key", value).expect("memory");
    };
    put(b"first");
    let reader = Reader::new(&pool);
    assert_eq!(reader.get(b"key"), Ok(Some(b"first".to_vec())));
    for node in ["node-0", "node-1"] {
        let (path, copy) = (pool.path().join(node), pool.path().join("copy"));
        std::fs::copy(&path, &copy).expect("copied");
        std::fs::rename(&copy, &path).expect("replaced");
    }
    put(b"second");
    assert_eq!(reader.get(b"key"), Err(Error::Gone));
    let again = Reader::new(&Pool::open(pool.path(), OpenOptions::default()).expect("it is whole"));
    assert_eq!(again.get(b"key"), Ok(Some(b"second".to_vec())));
}

/// Deletes a key by a client that only `nodes` answer, and that then leaves. Returns whether all of
/// them do: the client may ask the others first.
fn is_deleted_at(pool: &Pool, key: &[u8], nodes: &[NodeId]) -> bool {
    let roundtrip = 1_000_000;
    let slow = shm::open_emulated::<SafeGuess>(pool, Options::default(), roundtrip);
    let slow = slow.expect("a client");
    // It knows where the key is, looks whether it is listed there, and deletes it.
    assert!(slow.blocking().get(key).expect("a majority").is_some());
    let mut delete = Box::pin(slow.delete(key));
    let mut step = || delete.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(step());
    thread::sleep(Duration::from_nanos(2 * roundtrip));
    let all = NodeSet::all(pool.geometry().nodes);
    let others = || all.into_iter().filter(|other| !nodes.contains(other));
    let switch = |state| others().for_each(|other| pool.switch(other).set(state));
    switch(SwitchState::Frozen);
    let image =
        |node: &NodeId| std::fs::read(pool.path().join(format!("node-{}", node.0))).expect("ours");
    let before: Vec<_> = nodes.iter().map(image).collect();
    assert!(step());
    let is_there = nodes.iter().map(image).zip(&before).all(|(now, before)| now != *before);
    drop(delete);
    drop(slow);
    switch(SwitchState::Up);
    is_there
}

/// A delete that one node has may be undone: the next client may get no answer from that node. So a reader goes by the two others, which have none of it; where one
/// of these is missing, they may as well have it, and it goes by nothing.
#[test]
fn a_delete_that_one_node_has_is_not_taken_for_done() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let value = Some(b"value".to_vec());
    let put = |key: &[u8]| {
        let client = shm::open(&pool, Options::default()).expect("a client");
        client.blocking().put(key, b"value").expect("memory");
    };
    let keys = [0, 1, 2].map(|node| {
        let is_one = |key: &[u8; 2]| {
            put(key);
            is_deleted_at(&pool, key, &[NodeId(node)])
        };
        (0..100).map(|number| [node, number]).find(is_one).expect("one that it asks first for")
    });
    for key in &keys {
        assert_eq!(Reader::new(&pool).get(key), Ok(value.clone()), "of a whole pool");
    }
    let path = pool.path().to_path_buf();
    drop(pool);
    let open = || {
        let options = OpenOptions { degraded: true, ..OpenOptions::default() };
        Pool::open(&path, options).expect("a majority")
    };
    for missing in 0..3 {
        let (file, away) = (path.join(format!("node-{missing}")), dir.path().join("away"));
        std::fs::rename(&file, &away).expect("it is there");
        let reader = Reader::new(&open());
        for (node, key) in keys.iter().enumerate() {
            let right = if node == missing { Ok(value.clone()) } else { Err(Error::Contended) };
            assert_eq!(reader.get(key), right, "deleted at node {node}, without node {missing}");
        }
        std::fs::rename(&away, &file).expect("it is there");
    }
    // A client makes sure of it either way.
    let pool = open();
    let client = shm::open(&pool, Options::default()).expect("a client");
    for key in &keys {
        let got = client.blocking().get(key).expect("a majority").map(|value| value.to_vec());
        assert_eq!(Reader::new(&pool).get(key), Ok(got));
    }
}

/// It was refused, though the three others are a majority that has none of the delete.
#[test]
fn a_delete_that_two_of_five_nodes_have_is_no_obstacle() {
    let dir = tempfile::tempdir().expect("a directory");
    let options =
        CreateOptions { nodes: 5, capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    for pair in [[0, 1], [0, 2], [1, 2], [0, 4]] {
        let is_both = |key: &[u8; 3]| {
            let client = shm::open(&pool, Options::default()).expect("a client");
            client.blocking().put(key, b"value").expect("memory");
            drop(client);
            is_deleted_at(&pool, key, &pair.map(NodeId))
        };
        let mut keys = (0..100).map(|number| [pair[0], pair[1], number]);
        let key = keys.find(is_both).expect("one that it asks both for");
        assert_eq!(Reader::new(&pool).get(&key), Ok(Some(b"value".to_vec())), "nodes {pair:?}");
    }
}
