//! The heap under many clients that claim chunks at the same time.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use swarm_core::group::Patience;
use swarm_core::safe_guess::SafeGuess;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Error, Options};

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
    why: Error,
    /// Bytes of each node that were not free then.
    used: u64,
}

/// Has every client put values of `size` bytes until it cannot. They take turns poll by poll, so
/// that all that is in flight is in flight at the same time.
fn fill(pool: &Pool, size: usize, roundtrip: u64) -> Vec<End> {
    // Duels over the heap map may take their time here.
    let patience = Patience { deadline: 60_000_000_000, ..Patience::default() };
    let options = Options::default().patience(patience);
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
            loop {
                let key = [number.to_le_bytes(), stored.to_le_bytes()].concat();
                if let Err(why) = client.put(&key, value).await {
                    let used = shm::usage(pool).expect("usage").used_bytes;
                    return End { stored, why, used };
                }
                stored += 1;
            }
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

/// Each lost claim used up a heap-map record, of which a slot has eight before it owns a chunk for
/// them. Of 64 clients that began together, 48 to 64 were told that the pool was full, for good,
/// when a twentieth of it was in use.
#[test]
fn clients_that_claim_at_once_are_not_told_early_that_the_pool_is_full() {
    let (_dir, pool) = pool(32 << 20);
    let ends = fill(&pool, 1000, 20_000);
    for End { stored, why, used } in &ends {
        assert!(matches!(why, Error::Full(_)), "after {stored}: {why}");
        assert_eq!(*used, pool.geometry().capacity, "after {stored}: {why}");
    }
    let stored: usize = ends.iter().map(|end| end.stored).sum();
    println!("{stored} values of 1,000 bytes by {CLIENTS} clients in nodes of 32 MiB");
    assert!(stored > 3_000, "{stored}");
}
