//! A crowd of clients that need little each: servers that fork, test farms, a day of calls of the command.

use swarm_kv::shm::{CreateOptions, Pool};
use swarm_kv::{Error, Options};

use crate::open;

const CROWD: usize = 60;

/// A pool in which a crowd, if there is one, put a key each and left.
fn pool(crowd: usize) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options =
        CreateOptions { capacity: 8 << 20, max_clients: CROWD, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let attach = |_| open(&pool, Options::default());
    let clients: Vec<_> = (0..crowd).map(attach).collect();
    for (number, client) in clients.iter().enumerate() {
        let key = format!("of the crowd {number}");
        client.blocking().put(key.as_bytes(), &[1; 100]).expect("they need little");
    }
    drop(clients);
    (dir, pool)
}

/// How many values of so many bytes a new client stores until the pool is full for it time and again.
fn capacity(pool: &Pool, size: usize) -> u32 {
    let client = open(pool, Options::default());
    let (mut stored, mut refused) = (0_u32, 0);
    while refused < 3 {
        match client.blocking().put(&stored.to_le_bytes(), &vec![3; size]) {
            Ok(()) => stored += 1,
            Err(Error::Full(_)) => refused += 1,
            Err(error) => panic!("{stored}: {error}"),
        }
    }
    stored
}

/// Each took a chunk for each kind of object, which ended with one in it and was for no other size ever after: a crowd half
/// as large as this left no room for a single value of any other.
#[test]
fn what_a_crowd_leaves_is_to_be_had() {
    for size in [100, 1000, 60_000] {
        let [fresh, left] = [0, CROWD].map(|crowd| capacity(&pool(crowd).1, size));
        println!("{left} values of {size} bytes, {fresh} in a new pool");
        assert!(left * 100 >= fresh * 85, "{left} values of {size} bytes, {fresh} in a new pool");
    }
}

/// It does not get dearer for those that come last.
#[test]
fn the_last_of_a_crowd_finds_memory_like_the_first() {
    let (_dir, pool) = pool(0);
    let attach = |_| open(&pool, Options::default());
    let clients: Vec<_> = (0..CROWD).map(attach).collect();
    let roundtrips = |number: usize| {
        let client = &clients[number];
        client.blocking().put(&number.to_le_bytes(), &[1; 100]).expect("they need little");
        client.last().roundtrips
    };
    let all: Vec<u32> = (0..CROWD).map(roundtrips).collect();
    let [first, last] = [&all[..CROWD / 2], &all[CROWD / 2..]].map(|half| half.iter().sum::<u32>());
    println!("{first} roundtrips of the first half, {last} of the second");
    assert!(last <= 2 * first, "{all:?}");
}
