//! Runs operations on keys that are cells for a profiler: `hot_cell increment|get|lock COUNT`.
//!
//! A program of its own beside `hot_path`: where a get is called twice, the compiler does otherwise with both.

use std::error::Error;

use swarm_kv::shm::{self, CreateOptions, Pool};

const COUNTERS: u64 = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let count: u64 = args.next().unwrap_or_default().parse()?;
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let path = dir.path().join("pool");
    Pool::create(
        &path,
        &CreateOptions { nodes: 3, capacity: 64 << 20, ..CreateOptions::default() },
    )?;
    let client = shm::open_path(&path)?;
    let (store, lock) = (client.blocking(), client.blocking().lock(b"lock"));
    let counter = |number: u64| (number % COUNTERS).to_le_bytes();
    for number in 0..3 * COUNTERS {
        store.increment(&counter(number), 1)?;
    }
    for number in 0..count {
        match what.as_str() {
            "increment" => drop(store.increment(&counter(number), 1)?),
            "get" => assert!(store.get(&counter(number))?.is_some()),
            "lock" => lock.acquire()?.release()?,
            _ => return Err(format!("there is no operation {what:?}").into()),
        }
    }
    Ok(())
}
