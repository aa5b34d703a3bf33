//! Threads of a thread pool write and read keys in parallel.
//!
//! ```sh
//! cargo run --release -- create /dev/shm/pool
//! cargo run --release --manifest-path examples/Cargo.toml --bin rayon /dev/shm/pool
//! ```

use std::error::Error;

use rayon::prelude::*;
use swarm_kv::Store;

fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args().nth(1).ok_or("usage: rayon POOL")?;
    let store = Store::open(pool)?;

    (0..10_000_u32).into_par_iter().try_for_each(|number| {
        let key = format!("row:{number}");
        store.blocking().put(key.as_bytes(), &number.to_le_bytes())
    })?;

    let keys = store.blocking().keys(b"row:")?;
    let sum = keys.par_iter().map(|key| number(&store, key)).try_reduce(|| 0, |a, b| Ok(a + b))?;
    println!("the sum of {} rows is {sum}", keys.len());
    Ok(())
}

/// Reads the number under `key` without copying its value; 0 if the key was deleted meanwhile.
fn number(store: &Store, key: &[u8]) -> Result<u64, swarm_kv::Error> {
    let number = store.blocking().read(key, |value| {
        let bytes = value.try_into().map_err(|_| swarm_kv::Error::Type(value.len()))?;
        Ok(u64::from(u32::from_le_bytes(bytes)))
    })?;
    number.unwrap_or(Ok(0))
}
