//! Many increments of one number: in a pool that has no room for what they replace, and without a node.

use swarm_core::node::NodeId;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, Client, CreateOptions, Emulated, Pool};
use swarm_kv::{CompareAndSwap, Error, Options};
use swarm_shm::SwitchState;

const NUMBER: &[u8] = b"number";
const MILLION: i64 = 1_000_000;
/// An emulated roundtrip, in nanoseconds.
const ROUNDTRIP: u64 = 2000;

type Far = Client<SafeGuess, Emulated>;

fn pool(capacity: u64) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    (dir, pool)
}

/// A client on whose path nodes can be taken away.
fn far(pool: &Pool) -> Far {
    shm::open_emulated::<SafeGuess>(pool, Options::default(), ROUNDTRIP).expect("a slot")
}

/// Adds to the number until it is `last`, or until a change is refused. Returns what it is then.
fn count_up_to(client: &Far, last: i64) -> Result<i64, (i64, Error)> {
    let store = client.blocking();
    let mut sum = store.increment(NUMBER, 0).expect("a node");
    while sum < last {
        match store.increment(NUMBER, 1) {
            Ok(next) => assert_eq!(std::mem::replace(&mut sum, next) + 1, next),
            Err(error) => return Err((sum, error)),
        }
    }
    Ok(sum)
}

/// Adds to a number in a pool of that size, and reads it. At least so many in 100 changes, and 99 in 100 gets, take one roundtrip:
/// the others look for memory, or were the first in their epoch.
fn take_one_roundtrip(capacity: u64, changes: i64, least: u64) {
    let (_dir, pool) = pool(capacity);
    let client = shm::open(&pool, Options::default()).expect("a slot");
    for sum in 1..=changes {
        assert_eq!(client.blocking().increment(NUMBER, 1), Ok(sum));
    }
    for _ in 0..1000 {
        let read = client.blocking().get(NUMBER).expect("a node").map(|value| value.to_vec());
        assert_eq!(read, Some(changes.to_string().into_bytes()));
    }
    for (kind, least) in [(client.counters().modify, least), (client.counters().get, 99)] {
        let of_one = kind.roundtrips[1];
        println!("{of_one} of {} took 1 roundtrip: {:?}", kind.operations, kind.roundtrips);
        assert!(100 * of_one >= least * kind.operations);
    }
}

/// There is room for some thirty thousand of them. Collections make epochs follow each other while the pool fills for the first time,
/// and what was seen in an earlier epoch is read again: of so few changes, 93 in 100 take one roundtrip.
#[test]
fn increments_use_their_memory_again() {
    take_one_roundtrip(4 << 20, 70_000, 93);
}

/// There is room for some hundred thousand of them.
#[test]
#[ignore = "takes a minute"]
fn a_million_increments_need_16_mib() {
    take_one_roundtrip(16 << 20, MILLION, 95);
}

/// Adds to a number until the pool is used up, as a node is gone. Returns how often.
fn used_up_by(capacity: u64) -> i64 {
    let (_dir, pool) = pool(capacity);
    let client = far(&pool);
    let store = client.blocking();
    assert_eq!(count_up_to(&client, 100), Ok(100));
    pool.switch(NodeId(1)).set(SwitchState::Down);
    let (sum, error) = count_up_to(&client, MILLION).expect_err("there is no room");
    println!("{capacity} bytes: {} increments, then: {error}", sum - 100);
    assert!(matches!(error, Error::Full(_)) && !error.may_have_taken_effect(), "{error}");
    // It is refused before the cell changes: what needs no memory goes on. An update of a cell needs a record.
    let get = || store.get(NUMBER).expect("a majority").map(|value| value.to_vec());
    assert_eq!(get(), Some(sum.to_string().into_bytes()));
    let lost = store.compare_and_swap(NUMBER, Some(b"none"), Some(b"0"));
    assert!(matches!(lost, Ok(CompareAndSwap::Lost(Some(_)))), "{lost:?}");
    assert!(matches!(store.update(NUMBER, b"1"), Err(Error::Full(_))));
    assert!(matches!(store.increment(NUMBER, 1), Err(Error::Full(_))));
    // With the node there is room for as many again, and again, as soon as the client looks for room: that there was
    // none it remembers for as long as it took to find out.
    pool.switch(NodeId(1)).set(SwitchState::Up);
    assert!((0..100_000).any(|_| store.increment(NUMBER, 1).is_ok()));
    assert_eq!(count_up_to(&client, 3 * sum), Ok(3 * sum));
    sum - 100
}

/// What changes replace comes back when every node has answered. Without a node they use the pool up, and are then
/// refused.
#[test]
fn without_a_node_increments_use_memory_up() {
    let times = used_up_by(4 << 20);
    assert!((20_000..40_000).contains(&times), "{times}");
}

#[test]
#[ignore = "takes a minute"]
fn without_a_node_increments_use_16_mib_up() {
    let times = used_up_by(16 << 20);
    assert!((100_000..150_000).contains(&times), "{times}");
}
