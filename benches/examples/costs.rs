//! What one cached operation costs, as lines of `name value`: roundtrips, verbs and bytes, and how large the futures are.
//! 24-byte keys, 64-byte values, 3 nodes; once on near memory, and once on memory that answers 2 us late.
//!
//! Of many operations of a kind it reports what most of them cost: now and then one looks after memory as well.
//! `benches/guard.sh` compares it with what it was.

use std::error::Error;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::OpCost;
use swarm_core::register::Protocol;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, CreateOptions, Pool};
use swarm_kv::{Client, Options};

const KEYS: u64 = 200;
/// Nanoseconds of a roundtrip.
const ROUNDTRIP: u64 = 2000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

/// What most of them cost.
fn usual(costs: &[OpCost]) -> Option<OpCost> {
    let times = |cost: &OpCost| costs.iter().filter(|other| *other == cost).count();
    costs.iter().copied().max_by_key(times).filter(|cost| 2 * times(cost) > costs.len())
}

/// A pool of its own for `measure`.
fn with_pool(measure: impl FnOnce(&Pool) -> Result<()>) -> Result<()> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = CreateOptions { nodes: 3, capacity: 32 << 20, ..CreateOptions::default() };
    measure(&Pool::create(dir.path().join("pool"), &options)?)
}

fn report<F: Fabric, C: Clock, P: Protocol>(memory: &str, client: &Client<F, C, P>) -> Result<()> {
    let (store, value) = (client.blocking(), [7; 64]);
    let futures = [
        ("get", size_of_val(&client.get(&key(0)))),
        ("put", size_of_val(&client.put(&key(0), &value))),
        ("update", size_of_val(&client.update(&key(0), &value))),
        ("insert", size_of_val(&client.insert(&key(0), &value))),
        ("delete", size_of_val(&client.delete(&key(0)))),
    ];
    for (operation, bytes) in futures {
        println!("{memory}-{operation}-future-bytes {bytes}");
    }
    // What is looked up once is not counted: where buckets are, and memory.
    for number in 0..KEYS {
        store.put(&key(number), &value)?;
    }
    let operate = |operation: &str, number: u64| -> Result<bool> {
        let key = key(number);
        Ok(match operation {
            "get" => store.get(&key)?.as_deref() == Some(&value[..]),
            "update" => store.update(&key, &value)?,
            "insert" => store.insert(&key, &value)?,
            _ => store.delete(&key).map(|()| true)?,
        })
    };
    for (operation, first) in [("get", 0), ("update", 0), ("insert", KEYS), ("delete", KEYS)] {
        let mut costs = Vec::new();
        for number in first..first + KEYS {
            // A client that looks for a key reads its bucket: the insert goes by what it saw.
            if operation == "insert" && store.get(&key(number))?.is_some() {
                return Err(format!("key {number} is there before it is inserted").into());
            }
            if !operate(operation, number)? {
                return Err(format!("{operation} of key {number} on {memory} memory: no").into());
            }
            costs.push(client.last());
        }
        let OpCost { roundtrips, verbs, bytes } = usual(&costs)
            .ok_or_else(|| format!("{operation} on {memory} memory: no cost is that of most"))?;
        println!("{memory}-{operation}-roundtrips {roundtrips}");
        println!("{memory}-{operation}-verbs {verbs}");
        println!("{memory}-{operation}-bytes {bytes}");
    }
    Ok(())
}

fn main() -> Result<()> {
    with_pool(|pool| report("near", &*shm::open(pool, Options::default())?))?;
    with_pool(|pool| {
        let client = shm::open_emulated::<SafeGuess>(pool, Options::default(), ROUNDTRIP)?;
        report("far", &*client)
    })
}
