//! Ten thousand tasks of a multi-threaded runtime share one handle.
//!
//! ```sh
//! cargo run --release -- create /dev/shm/pool
//! cargo run --release --manifest-path examples/Cargo.toml --bin tokio /dev/shm/pool
//! ```

use std::error::Error;

use swarm_kv::Store;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let pool = std::env::args().nth(1).ok_or("usage: tokio POOL")?;
    let store = Store::open(pool)?;

    let mut tasks = JoinSet::new();
    for number in 0..10_000_u32 {
        let store = store.clone();
        tasks.spawn(async move {
            let key = format!("task:{number}");
            store.put(key.as_bytes(), &number.to_le_bytes()).await?;
            store.get(key.as_bytes()).await
        });
    }
    let mut sum = 0;
    while let Some(result) = tasks.join_next().await {
        let value = result??.ok_or("another program deleted a key")?;
        sum += u64::from(u32::from_le_bytes(value.as_slice().try_into()?));
    }
    println!("the sum is {sum}; {} clients were enough", store.clients());
    Ok(())
}
