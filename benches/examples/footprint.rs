//! How much memory KEYS values of SIZE bytes take in a pool of three nodes of MIB each, as a multiple of the values:
//! CLIENTS put them, and update a tenth of them, in turn. Processes that do so at the same time, as those of `swarm bench`,
//! also leave hints that others could not send to a client that had no processor meanwhile.
//!
//! `cargo run --release -p swarm-benches --no-default-features --example footprint DIRECTORY CLIENTS MIB KEYS SIZE`

use std::error::Error;

use swarm_benches::Zipf;
use swarm_kv::Options;
use swarm_kv::shm::{self, Client, CreateOptions, Pool};

const NODES: usize = 3;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

fn report(pool: &Pool, (keys, size): (u64, usize), when: &str) -> Result<()> {
    let usage = shm::usage(pool)?;
    let times = |bytes: u64| (NODES as u64 * bytes) as f64 / (keys * size as u64) as f64;
    println!(
        "{when}: {:.3} times the values in chunks, {:.3} of keys and values, {:.3} of the index",
        times(usage.used_bytes),
        times(usage.live_bytes),
        times(usage.index_bytes)
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().ok_or("usage: footprint DIRECTORY CLIENTS MIB KEYS SIZE")?;
    let numbers: Vec<usize> = args.map(|it| it.parse()).collect::<std::result::Result<_, _>>()?;
    let [clients, mib, keys, size] = numbers[..] else {
        return Err("usage: footprint DIRECTORY CLIENTS MIB KEYS SIZE".into());
    };
    let dir = tempfile::tempdir_in(directory)?;
    let options = CreateOptions {
        nodes: NODES,
        capacity: (mib as u64) << 20,
        max_clients: clients.max(1),
        ..CreateOptions::default()
    };
    let pool = Pool::create(dir.path().join("pool"), &options)?;
    let open = |_| Ok(shm::open(&pool, Options::default())?);
    let all = (0..clients.max(1)).map(open).collect::<Result<Vec<Client>>>()?;
    let (keys, value) = (keys as u64, vec![7; size]);
    for (number, client) in (0..keys).zip(all.iter().cycle()) {
        client.blocking().insert(&key(number), &value)?;
    }
    report(&pool, (keys, size), "put")?;
    let (zipf, mut rng) = (Zipf::new(keys.max(2)), fastrand::Rng::with_seed(1));
    for client in all.iter().cycle().take(keys as usize / 10) {
        client.blocking().update(&key(zipf.draw(rng.f64())), &value)?;
    }
    report(&pool, (keys, size), "a tenth is updated")
}
