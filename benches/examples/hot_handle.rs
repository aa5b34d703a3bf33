//! Runs cached gets or updates of a handle for a profiler: `hot_handle get|read|update|task-get|none COUNT`, the first three called by a thread, the
//! fourth polled as a task is.
//!
//! `benches/instructions.sh` counts the instructions of one operation with it. A program of its own: what the compiler puts in line depends on
//! who else calls it.

use std::error::Error;
use std::hint::black_box;

use swarm_kv::shm::{CreateOptions, Pool};
use swarm_kv::{Store, block_on};

const KEYS: u64 = 1000;

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_default();
    let count: u64 = args.next().unwrap_or_default().parse()?;
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let path = dir.path().join("pool");
    let capacity = (64 << 20) + count * 128;
    let options = CreateOptions { nodes: 3, capacity, ..CreateOptions::default() };
    Pool::create(&path, &options)?;
    let handle = Store::open(&path)?;
    let store = handle.blocking();
    for number in 0..KEYS {
        store.put(&key(number), &[number as u8; 64])?;
    }
    for number in 0..count {
        let key = key(number % KEYS);
        match what.as_str() {
            "get" => assert_eq!(store.get(&key)?.map(|value| value.len()), Some(64)),
            "read" => assert_eq!(store.read(&key, |value| value.len())?, Some(64)),
            "update" => assert!(store.update(&key, &[number as u8; 64])?),
            "task-get" => {
                assert_eq!(block_on(handle.get(&key))?.map(|value| value.len()), Some(64));
            }
            _ => {
                black_box(key);
            }
        }
    }
    Ok(())
}
