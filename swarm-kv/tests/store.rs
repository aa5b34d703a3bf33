//! The store's operations, one client or a few in turn, on a small pool of files.

mod reader;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::node::NodeId;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Client, Error, Options, TimeToLive};
use swarm_shm::SwitchState;

struct TestPool {
    pool: Pool,
    _dir: tempfile::TempDir,
}

fn pool(capacity: u64) -> TestPool {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("pool");
    let options = CreateOptions { nodes: 3, capacity, max_clients: 8, ..CreateOptions::default() };
    Pool::create(&path, &options).expect("create");
    let pool = Pool::open(&path, OpenOptions::default()).expect("open");
    TestPool { pool, _dir: dir }
}

fn open(test: &TestPool) -> shm::Client {
    shm::open(&test.pool, Options::default()).expect("attach")
}

#[test]
fn operations_do_what_is_documented() {
    let test = pool(16 << 20);
    let client = open(&test);
    let store = client.blocking();
    assert!(store.get(b"a").expect("get").is_none());
    assert!(!store.update(b"a", b"1").expect("update"));
    assert!(store.insert(b"a", b"1").expect("insert"));
    assert!(!store.insert(b"a", b"2").expect("insert"));
    assert_eq!(store.get(b"a").expect("get").as_deref(), Some(&b"1"[..]));
    assert!(store.update(b"a", b"2").expect("update"));
    assert_eq!(store.get(b"a").expect("get").as_deref(), Some(&b"2"[..]));
    store.put(b"a", b"3").expect("put");
    store.put(b"b", b"").expect("put");
    assert_eq!(store.get(b"a").expect("get").as_deref(), Some(&b"3"[..]));
    assert_eq!(store.get(b"b").expect("get").as_deref(), Some(&b""[..]));
    store.delete(b"a").expect("delete");
    store.delete(b"a").expect("delete");
    store.delete(b"never").expect("delete");
    assert!(store.get(b"a").expect("get").is_none());
    assert!(!store.update(b"a", b"4").expect("update"));
    assert!(store.insert(b"a", b"5").expect("insert"));
    assert_eq!(store.get(b"a").expect("get").as_deref(), Some(&b"5"[..]));
}

/// Each large value takes chunks of its own, each time by a record of the chunk map. When the first
/// few records were used up, the pool was reported full, with nearly all of it free. Clients that
/// came and went had the same problem with values of any size.
#[test]
fn a_pool_is_full_only_when_its_memory_is() {
    let test = pool(64 << 20);
    let client = open(&test);
    for key in 0..60u8 {
        client.blocking().put(&[key], &[key; 300_000]).expect("put");
    }
    drop(client);
    for key in 0..150u8 {
        let size = 5_000 + 150 * usize::from(key);
        open(&test).blocking().put(&[key, 0], &vec![key; size]).expect("put");
    }
    let client = open(&test);
    for key in 0..60u8 {
        let value = client.blocking().get(&[key]).expect("get");
        assert_eq!(value.as_deref(), Some(&[key; 300_000][..]));
    }
}

#[test]
fn clients_see_each_other_through_stale_caches() {
    let test = pool(16 << 20);
    let (a, b) = (open(&test), open(&test));
    let (a, b) = (a.blocking(), b.blocking());
    a.put(b"k", b"1").expect("put");
    assert_eq!(b.get(b"k").expect("get").as_deref(), Some(&b"1"[..]));
    a.delete(b"k").expect("delete");
    assert!(b.get(b"k").expect("get").is_none());
    assert!(a.insert(b"k", b"2").expect("insert"));
    assert!(b.update(b"k", b"3").expect("update"));
    assert_eq!(a.get(b"k").expect("get").as_deref(), Some(&b"3"[..]));
    a.delete(b"k").expect("delete");
    assert!(a.insert(b"k", b"4").expect("insert"));
    // b still has the register before last cached; its delete must reach the mapped one.
    b.delete(b"k").expect("delete");
    assert!(a.get(b"k").expect("get").is_none());
}

#[test]
fn values_of_all_lengths() {
    let test = pool(64 << 20);
    let client = open(&test);
    let other = open(&test);
    let (store, other) = (client.blocking(), other.blocking());
    let lengths = [0, 1, 7, 8, 63, 64, 65, 1000, 4095, 4096, 4097, 70_000, 1 << 20];
    for (i, &length) in lengths.iter().enumerate() {
        let value: Vec<u8> = (0..length).map(|b| (b ^ i) as u8).collect();
        store.put(b"same", &value).expect("put");
        assert_eq!(other.get(b"same").expect("get").as_deref(), Some(&value[..]), "{length}");
        let key = format!("key {i}");
        store.put(key.as_bytes(), &value).expect("put");
        assert_eq!(other.get(key.as_bytes()).expect("get").as_deref(), Some(&value[..]));
    }
}

#[test]
fn keys_and_values_out_of_bounds_are_refused() {
    let test = pool(16 << 20);
    let client = open(&test);
    let store = client.blocking();
    assert_eq!(store.put(b"", b"x"), Err(Error::Key(0)));
    assert_eq!(store.put(&[1; 256], b"x"), Err(Error::Key(256)));
    assert_eq!(store.put(b"k", &vec![0; (1 << 20) + 1]), Err(Error::Value((1 << 20) + 1)));
    assert!(store.get(b"k").expect("get").is_none());
    store.put(&[1; 255], b"x").expect("put");
    assert_eq!(store.get(&[1; 255]).expect("get").as_deref(), Some(&b"x"[..]));
}

#[test]
fn the_index_grows_and_lists_every_key_once() {
    let test = pool(64 << 20);
    let client = open(&test);
    let store = client.blocking();
    let keys = 40_000u32;
    for key in 0..keys {
        assert!(store.insert(&key.to_le_bytes(), &key.to_be_bytes()).expect("insert"), "{key}");
    }
    let other = open(&test);
    let mut seen = vec![false; keys as usize];
    let each = |key: &[u8], value: &[u8]| {
        let number = u32::from_le_bytes(key.try_into().expect("four bytes"));
        assert_eq!(value, number.to_be_bytes());
        assert!(!std::mem::replace(&mut seen[number as usize], true), "{number} twice");
        ControlFlow::Continue(())
    };
    swarm_kv::block_on(other.for_each(each)).expect("walk");
    assert!(seen.iter().all(|seen| *seen));
    let usage = swarm_kv::block_on(other.usage()).expect("usage");
    assert_eq!(usage.keys, u64::from(keys));
}

#[test]
fn common_operations_take_one_roundtrip() {
    let test = pool(64 << 20);
    let client = open(&test);
    let store = client.blocking();
    let keys = 1000u32;
    for key in 0..keys {
        store.insert(&key.to_le_bytes(), &[7; 64]).expect("insert");
    }
    let loaded = client.counters();
    for key in 0..keys {
        store.get(&key.to_le_bytes()).expect("get");
        store.update(&key.to_le_bytes(), &[8; 64]).expect("update");
    }
    let counters = client.counters() - loaded;
    assert_eq!(counters.get.roundtrips[1], u64::from(keys));
    // A few updates raise a high-water mark.
    assert!(counters.update.roundtrips[1] >= u64::from(keys) * 98 / 100);
    // If key and bucket are cached, a delete takes two.
    let before = client.counters();
    store.delete(&5u32.to_le_bytes()).expect("delete");
    let deleted = (client.counters() - before).delete;
    assert_eq!(deleted.roundtrips[2], 1, "{deleted:?}");
}

#[test]
fn a_full_pool_says_so_and_goes_on_reading() {
    let test = pool(4 << 20);
    let client = open(&test);
    let store = client.blocking();
    let mut stored = 0u32;
    let error = loop {
        match store.insert(&stored.to_le_bytes(), &[1; 1000]) {
            Ok(true) => stored += 1,
            Ok(false) => panic!("the key is new"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Full(_)), "{error}");
    assert!(stored > 500, "{stored}");
    for key in 0..stored {
        let value = store.get(&key.to_le_bytes()).expect("get");
        assert_eq!(value.as_deref(), Some(&[1; 1000][..]));
    }
}

#[test]
fn a_slots_next_holder_goes_on_with_its_memory() {
    let test = pool(8 << 20);
    for call in 0..2000u32 {
        let client = open(&test);
        let store = client.blocking();
        store.put(&(call % 50).to_le_bytes(), &call.to_le_bytes()).expect("put");
    }
    let client = open(&test);
    let usage = swarm_kv::block_on(client.usage()).expect("usage");
    assert_eq!(usage.keys, 50);
    for key in 0..50u32 {
        let value = client.blocking().get(&key.to_le_bytes()).expect("get");
        assert_eq!(value.as_deref(), Some(&(1950 + key).to_le_bytes()[..]));
    }
}

/// `create` prints for how many clients a capacity suffices: that many clients that attach at the
/// same moment each find memory for a value.
#[test]
fn as_many_clients_write_as_a_pool_says() {
    for nodes in [1, 3, 7] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (capacity, max_clients) = (4 << 20, 160);
        let options = CreateOptions { nodes, capacity, max_clients, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        let writing = swarm_kv::writing_clients(&pool.geometry());
        assert!((8..max_clients).contains(&writing), "{writing} of {nodes} nodes");
        let together = std::sync::Barrier::new(writing);
        std::thread::scope(|scope| {
            for writer in 0..writing {
                let (pool, together) = (&pool, &together);
                scope.spawn(move || {
                    let client = shm::open(pool, Options::default()).expect("attach");
                    together.wait();
                    let put = client.blocking().put(&writer.to_le_bytes(), &[7; 100]);
                    // No client leaves before all have memory: what it had would serve others.
                    together.wait();
                    put.unwrap_or_else(|full| panic!("{writer} of {writing}: {full}"));
                });
            }
        });
        let client_usage = shm::client_usage(&pool).expect("who holds what");
        // A few claimers' chunk-map records are in chunks of their own.
        let shared = client_usage.last().expect("all share some");
        let own: usize = client_usage.iter().map(|holding| holding.chunks).sum();
        assert_eq!(shared.client, None);
        assert!(own - shared.chunks <= writing / 8, "{client_usage:?}");
    }
}

/// A client that reads what a dead client left half done completes it. Counting must not: it is
/// done without a client slot, and a client may be completing it.
#[test]
fn counting_changes_nothing() {
    let test = pool(4 << 20);
    let path = test.pool.path();
    for key in 0..100u8 {
        open(&test).blocking().put(&[key], &[key; 100]).expect("put");
    }
    let image = || {
        let files = ["control", "node-0", "node-1", "node-2"];
        files.map(|file| std::fs::read(path.join(file)).expect("it is there"))
    };
    // Clients that die in the middle of an update, a delete and an insert, with a node away.
    let frozen = test.pool.switch(NodeId(2));
    for step in 0..3u8 {
        let client = shm::open_emulated::<SafeGuess>(&test.pool, Options::default(), 1_000_000);
        let client = client.expect("attach");
        assert!(client.blocking().update(&[step], b"x").expect("update"));
        frozen.set(SwitchState::Frozen);
        let value = [b"half", &[step][..]].concat();
        let mut operation: Pin<Box<dyn Future<Output = ()>>> = match step {
            0 => Box::pin(async { assert!(client.update(&[step], &value).await.is_ok()) }),
            1 => Box::pin(async { assert!(client.delete(&[step]).await.is_ok()) }),
            _ => Box::pin(async { assert!(client.insert(b"new", &value).await.is_ok()) }),
        };
        // Until it has looked everything up and allocated memory, and its write is in progress.
        let begun = image();
        for poll in 0.. {
            assert!(poll < 1000, "step {step} wrote nothing");
            let polled = operation.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending(), "step {step} is over");
            let now = image();
            let has_value = |node: usize| names(&begun[node], &now[node], &value);
            let is_under_way = match step {
                1 => now[1..] != begun[1..],
                _ => (1..4).any(has_value),
            };
            if is_under_way {
                break;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        drop(operation);
        frozen.set(SwitchState::Up);
    }
    let before = image();
    let usage = shm::usage(&test.pool).expect("usage");
    assert!(image() == before, "counting changed the pool");
    assert!((99..=101).contains(&usage.keys), "{usage:?}");
    // It was half done: a client has something to complete.
    assert_eq!(swarm_kv::block_on(open(&test).usage()).expect("usage"), usage);
    assert!(image()[1..] != before[1..], "nothing was half done");
}

/// Returns whether `what` occurs in the changed part of a node's memory.
fn names(before: &[u8], now: &[u8], what: &[u8]) -> bool {
    let pages = before.chunks(4096).zip(now.chunks(4096)).filter(|(before, now)| before != now);
    pages.map(|(_, now)| now).any(|page| page.windows(what.len()).any(|bytes| bytes == what))
}

/// One after the other, they take at least twenty-one roundtrips, whatever the machine does.
#[test]
fn the_gets_of_a_batch_share_their_roundtrips() {
    const RTT: Duration = Duration::from_millis(2);
    let test = pool(16 << 20);
    let rtt_ns = RTT.as_nanos() as u64;
    let client =
        shm::open_emulated::<SafeGuess>(&test.pool, Options::default(), rtt_ns).expect("a slot");
    let store = client.blocking();
    for key in 0..20u8 {
        store.put(&[key], &[key; 10]).expect("put");
    }
    let keys: Vec<[u8; 1]> = (0..21).map(|key| [key]).collect();
    let values = store.get_many(&keys).expect("get");
    for key in 0..20u8 {
        assert_eq!(values[usize::from(key)].as_deref(), Some(&[key; 10][..]));
    }
    assert!(values[20].is_none());
    let took = || {
        let began = Instant::now();
        store.get_many(&keys).expect("get");
        began.elapsed()
    };
    assert!((0..100).any(|_| took() < 10 * RTT), "each key has its own roundtrip");
}

#[test]
fn batches_return_what_single_operations_do() {
    let test = pool(16 << 20);
    batches(&open(&test));
    let test = pool(16 << 20);
    batches(
        &shm::open_emulated::<SafeGuess>(&test.pool, Options::default(), 1000).expect("a slot"),
    );
}

fn batches<F: Fabric, C: Clock>(client: &Client<F, C>) {
    let store = client.blocking();
    let key = |number: u32| number.to_le_bytes();
    let value = |number: u32| vec![number as u8; number as usize % 300];
    let mut expected = BTreeMap::new();
    for round in 0..6 {
        // Some exist, some are cached, some occur twice.
        let numbers: Vec<u32> =
            (0..200).map(|number| (number * 7 + round * 90) % 170 * 2).collect();
        let keys: Vec<_> = numbers.iter().copied().map(key).collect();
        let values: Vec<_> = numbers.iter().map(|number| value(number + round)).collect();
        store.put_many(&keys, &values).expect("put");
        expected.extend(numbers.iter().copied().zip(values));
        let gone: Vec<u32> = numbers.iter().copied().filter(|number| number % 3 == 0).collect();
        store.delete_many(&gone.iter().copied().map(key).collect::<Vec<_>>()).expect("delete");
        gone.iter().for_each(|number| drop(expected.remove(number)));
        let all: Vec<_> = (0..350).map(key).collect();
        for (number, found) in (0..350).zip(store.get_many(&all).expect("get")) {
            assert_eq!(found.as_deref(), expected.get(&number).map(Vec::as_slice), "{number}");
        }
    }
    assert_eq!(store.put_many(&[[0; 0]], &[b"no key"]), Err(Error::Key(0)));
    assert_eq!(store.get_many(&[[0; 0]; 0]).expect("get").len(), 0);
}

/// An update of a key whose location was not cached took a buffer, found that out, and lost it.
#[test]
fn updates_of_keys_that_are_not_cached_waste_nothing() {
    let test = pool(4 << 20);
    let writer = open(&test);
    for key in 0..10u8 {
        writer.blocking().put(&[key], &[0; 1000]).expect("put");
    }
    let before = swarm_kv::block_on(writer.usage()).expect("usage").used_bytes;
    let client = shm::open(&test.pool, Options::default().cached_keys(1)).expect("attach");
    // Each round takes ten buffers of 1,280 bytes.
    for round in 0..120u8 {
        for key in 0..10u8 {
            assert!(client.blocking().update(&[key], &[round; 1000]).expect("update"));
        }
    }
    let after = swarm_kv::block_on(writer.usage()).expect("usage").used_bytes;
    assert!(after - before <= 1200 * 1280 + (512 << 10), "{} bytes", after - before);
}

/// Synchronous memory was read twice before a value that does not fit in place was fetched.
#[test]
fn a_long_value_takes_one_roundtrip_more() {
    let test = pool(16 << 20);
    let client = open(&test);
    client.blocking().put(b"long", &[7; 10_000]).expect("put");
    let value = client.blocking().get(b"long").expect("get");
    assert_eq!(value.map(|value| value.len()), Some(10_000));
    assert_eq!(client.last().roundtrips, 2);
}

/// By the clock that processes of a host share, of every kind of handle.
#[test]
fn keys_expire_by_the_hosts_clock() {
    let test = pool(4 << 20);
    let [one, two] = [open(&test), open(&test)];
    let ttl = std::time::Duration::from_millis(50);
    one.blocking().put(b"stays", b"value").expect("put");
    one.blocking().put_with_ttl(b"key", b"value", ttl).expect("put");
    one.blocking().put_with_ttl(b"long", b"value", 1000 * ttl).expect("put");
    assert!(two.blocking().ttl(b"key").expect("ttl").left().is_some_and(|left| left <= ttl));
    assert_eq!(two.blocking().ttl(b"stays"), Ok(TimeToLive::Endless));
    std::thread::sleep(ttl);
    for client in [&two, &one] {
        assert!(client.blocking().get(b"key").expect("get").is_none());
        assert!(client.blocking().get(b"long").expect("get").is_some());
        assert_eq!(client.blocking().ttl(b"key"), Ok(TimeToLive::Absent));
        assert_eq!(client.blocking().update(b"key", b"again"), Ok(false));
    }
    let mut keys = Vec::new();
    let each = |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
        std::ops::ControlFlow::Continue(())
    };
    two.blocking().for_each(each).expect("for_each");
    keys.sort();
    assert_eq!(keys, [b"long".to_vec(), b"stays".to_vec()]);
    assert_eq!(two.blocking().persist(b"long"), Ok(true));
    assert_eq!(one.blocking().ttl(b"long"), Ok(TimeToLive::Endless));
    assert_eq!(one.blocking().insert(b"key", b"again"), Ok(true));
}
