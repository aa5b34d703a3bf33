//! The heap under many clients that claim chunks at the same time.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use swarm_core::quorum::Timeouts;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::sim::seeds::is_deep;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Error, Options};

use crate::open;

const CLIENTS: usize = 64;

fn pool(capacity: u64) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("pool");
    let options =
        CreateOptions { nodes: 3, capacity, max_clients: CLIENTS, ..CreateOptions::default() };
    Pool::create(&path, &options).expect("create");
    (dir, Pool::open(&path, OpenOptions::default()).expect("open"))
}

/// How a client ended.
struct End {
    /// Values that it stored.
    stored: usize,
    /// Nothing if it stored all.
    why: Option<Error>,
    /// Bytes of each node that were not free then.
    used: u64,
}

/// Has every client put values of `size` bytes until it cannot, or has put so many. They take turns poll by poll, so
/// that all that is in flight is in flight at the same time.
fn fill(pool: &Pool, size: usize, most: usize, roundtrip: u64) -> Vec<End> {
    // Duels over the chunk map may take their time here.
    let timeouts = Timeouts { deadline: 60_000_000_000, ..Timeouts::default() };
    let options = Options::default().timeouts(timeouts);
    let open = |_| {
        let client = shm::open_emulated::<SafeGuess>(pool, options, roundtrip);
        client.expect("a slot")
    };
    let clients: Vec<_> = (0..CLIENTS).map(open).collect();
    let value = &vec![1; size];
    let mut running: Vec<Pin<Box<dyn Future<Output = End>>>> = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        running.push(Box::pin(async move {
            let mut stored = 0_usize;
            while stored < most {
                let key = [number.to_le_bytes(), stored.to_le_bytes()].concat();
                if let Err(why) = client.put(&key, value).await {
                    let used = shm::usage(pool).expect("usage").used_bytes;
                    return End { stored, why: Some(why), used };
                }
                stored += 1;
            }
            End { stored, why: None, used: 0 }
        }));
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut ends = Vec::new();
    while !running.is_empty() {
        running.retain_mut(|client| match client.as_mut().poll(&mut cx) {
            Poll::Pending => true,
            Poll::Ready(end) => {
                ends.push(end);
                false
            }
        });
    }
    ends
}

/// Each lost claim used up a chunk-map record, of which a slot has eight before it owns a chunk for
/// them. Of 64 clients that began together, 48 to 64 got the error that the pool was full, for good,
/// when a twentieth of it was in use.
#[test]
fn clients_that_claim_at_once_do_not_find_the_pool_full_early() {
    let (_dir, pool) = pool(32 << 20);
    // There is room for some fifty of each.
    for End { stored, why, used } in fill(&pool, 1000, 40, 20_000) {
        assert_eq!(why, None, "after {stored}, with {used} in use");
    }
}

/// Likewise, up to the end.
#[test]
#[ignore = "takes minutes, as each client that finds the pool full looks for garbage: ci/full.sh has a step for it"]
fn clients_that_claim_at_once_fill_the_pool() {
    let (_dir, pool) = pool(32 << 20);
    let ends = fill(&pool, 1000, usize::MAX, 20_000);
    for End { stored, why, used } in &ends {
        let Some(why) = why else { unreachable!("no pool has room for all") };
        assert!(matches!(why, Error::Full(_)), "after {stored}: {why}");
        // A share is kept for values that take others' place.
        assert!(*used >= pool.geometry().capacity / 16 * 15, "{used} after {stored}: {why}");
    }
    let stored: usize = ends.iter().map(|end| end.stored).sum();
    println!("{stored} values of 1,000 bytes by {CLIENTS} clients in nodes of 32 MiB");
    assert!(stored > 3_000, "{stored}");
}

/// Before buffers came back, a pool was full, for good, once it had been written to as often as it
/// had room. Here a few clients write ten times that, forty where it goes deep, sizes mixed, and it goes on.
#[test]
fn updates_wear_nothing_out() {
    let times = if is_deep("updates_wear_nothing_out") { 40 } else { 10 };
    let (_dir, pool) = pool(4 << 20);
    let clients: Vec<_> = (0..4).map(|_| open(&pool, Options::default())).collect();
    let keys: Vec<Vec<u8>> = (0..20).map(|key| format!("key {key}").into_bytes()).collect();
    let size = |round: usize| [40, 700, 1500, 3000][round % 4];
    let (mut written, mut round) = (0, 0);
    while written < times * (4 << 20) {
        let client = clients[round % clients.len()].blocking();
        let key = &keys[round * 7 % keys.len()];
        let value = vec![round as u8; size(round / 5)];
        client.put(key, &value).unwrap_or_else(|error| panic!("after {written} bytes: {error}"));
        assert_eq!(client.get(key).expect("a get").as_deref(), Some(&value[..]));
        written += value.len();
        round += 1;
    }
    let reclaimed: u64 = clients.iter().map(|client| client.counters().reclaimed).sum();
    println!("{round} writes, {reclaimed} buffers came back");
    assert!(reclaimed > round as u64 / 2, "{reclaimed} of {round}");
}

/// Memory comes back when the operations end that were under way, and a client that finds none
/// asks again before it reports that.
#[test]
fn an_operation_under_way_holds_up_the_others_no_longer_than_it_lasts() {
    let (_dir, pool) = pool(4 << 20);
    let slow = shm::open_emulated::<SafeGuess>(&pool, Options::default(), 1_000_000_000);
    let slow = slow.expect("a slot");
    let quick = open(&pool, Options::default());
    let quick = quick.blocking();
    quick.put(b"key", &[1; 3000]).expect("a put");
    let mut cx = Context::from_waker(Waker::noop());
    {
        let mut get = Box::pin(slow.get(b"key"));
        assert!(get.as_mut().poll(&mut cx).is_pending(), "it takes a second");
        let full = (0..100_000).find_map(|n| quick.put(b"key", &[n as u8; 3000]).err());
        assert!(matches!(full, Some(Error::Full(_))), "{full:?}");
    }
    for n in 0..10_000 {
        quick.put(b"key", &[n as u8; 3000]).expect("there is memory again");
    }
}

/// Registers, records, first buffers and what others' writes took the place of come back as well: a pool is written
/// five times over, twenty where it goes deep.
#[test]
fn inserts_and_deletes_wear_nothing_out() {
    let times = if is_deep("inserts_and_deletes_wear_nothing_out") { 20 } else { 5 };
    let (_dir, pool) = pool(4 << 20);
    let clients: Vec<_> = (0..3).map(|_| open(&pool, Options::default())).collect();
    let size = |round: usize| [40, 700, 200, 1200][round % 4];
    let key = |round: usize| format!("key {}", round % 300).into_bytes();
    let (mut written, mut round) = (0, 0);
    while written < times * (4 << 20) {
        let client = clients[round % clients.len()].blocking();
        let value = vec![round as u8; size(round)];
        let stored = client.put(&key(round), &value);
        stored.unwrap_or_else(|error| panic!("after {written} bytes in round {round}: {error}"));
        assert_eq!(client.get(&key(round)).expect("a get").as_deref(), Some(&value[..]));
        let gone = clients[(round + 1) % clients.len()].blocking();
        gone.delete(&key(round + 150)).expect("a delete");
        assert!(gone.get(&key(round + 150)).expect("a get").is_none());
        written += value.len();
        round += 1;
    }
    let reclaimed: u64 = clients.iter().map(|client| client.counters().reclaimed).sum();
    println!("{round} rounds, {reclaimed} objects came back");
}

/// A full pool takes inserts again after deletes, and meanwhile serves all else.
#[test]
fn a_full_pool_takes_inserts_again_after_deletes() {
    let (_dir, pool) = pool(4 << 20);
    let client = open(&pool, Options::default());
    let client = client.blocking();
    let key = |n: usize| format!("key {n}").into_bytes();
    let mut stored = 0;
    while client.insert(&key(stored), &[stored as u8; 900]).is_ok() {
        stored += 1;
    }
    println!("{stored} keys");
    // Only once no chunk was left the last buffers began to be kept for values that take others' place:
    // four of those that do without a node, of each.
    let back = stored / 2 - 4 * pool.geometry().nodes;
    for round in 0..3 {
        for n in (0..back).chain(stored / 2..stored) {
            assert_eq!(client.get(&key(n)).expect("a get").expect("there").len(), 900);
        }
        for n in 0..stored / 2 {
            client.delete(&key(n)).expect("a delete");
        }
        for n in 0..back {
            let again = client.insert(&key(n), &[round; 900]);
            again.unwrap_or_else(|error| panic!("round {round}, after {n} of {stored}: {error}"));
        }
    }
}
