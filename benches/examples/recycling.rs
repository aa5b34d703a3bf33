//! What it costs that memory comes back: a client that takes it back beside one that does not, window by
//! window, so that a machine that is busy now and then is so for both.
//!
//! `cargo run --release -p swarm-benches --example recycling`

use std::error::Error;
use std::time::Instant;

use swarm_kv::shm::{CreateOptions, Plain, Pool, PoolClock};
use swarm_kv::{Client, Options};

const KEYS: u64 = 20_000;
const WINDOWS: usize = 3000;
/// Operations in a window: some 0.2 ms, which mostly pass without anybody else.
const WINDOW: u64 = 500;

type Store = Client<Plain, PoolClock>;

fn key(number: u64) -> [u8; 24] {
    let mut key = *b"user....................";
    key[4..12].copy_from_slice(&number.to_le_bytes());
    key
}

/// Nanoseconds of an operation: gets, of which each `updates`th is an update instead.
fn window(store: &Store, rng: &mut fastrand::Rng, updates: u64) -> Result<f64, swarm_kv::Error> {
    let store = store.blocking();
    let began = Instant::now();
    for number in 0..WINDOW {
        let key = key(rng.u64(..KEYS));
        if number % updates == updates - 1 {
            store.update(&key, &[number as u8; 64])?;
        } else {
            store.get(&key)?;
        }
    }
    Ok(began.elapsed().as_nanos() as f64 / WINDOW as f64)
}

fn median(mut windows: Vec<f64>) -> f64 {
    windows.sort_by(f64::total_cmp);
    windows[windows.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = CreateOptions { nodes: 3, capacity: 512 << 20, ..CreateOptions::default() };
    let pools = [
        Pool::create(dir.path().join("with"), &options)?,
        Pool::create(dir.path().join("without"), &options)?,
    ];
    for pool in &pools {
        // Or memory that is used for the first time would cost more than what comes back.
        pool.populate();
    }
    let [one, other] = pools.each_ref().map(Pool::attach);
    let seats = [one?, other?];
    let [with, without] = [0, 1].map(|at| {
        let (pool, client_slot): (&Pool, _) = (&pools[at], &seats[at]);
        Store::new(
            pool.fabric(),
            pool.clock(),
            pool.geometry(),
            client_slot.session(),
            Options::default(),
        )
    });
    let stores = [with.with_epochs(seats[0].domain()), without];
    for store in &stores {
        for number in 0..KEYS {
            store.blocking().put(&key(number), &[number as u8; 64])?;
        }
    }
    let mut rng = fastrand::Rng::with_seed(1);
    println!(
        "nanoseconds of an operation, median of {WINDOWS} windows; 20,000 keys, values of 64 B"
    );
    for (name, updates) in
        [("C (gets)", u64::MAX), ("B (5 % updates)", 20), ("A (50 % updates)", 2)]
    {
        let mut windows = [Vec::new(), Vec::new()];
        for round in 0..WINDOWS {
            for at in [round % 2, 1 - round % 2] {
                windows[at].push(window(&stores[at], &mut rng, updates)?);
            }
        }
        let [with, without] = windows.map(median);
        let cost = (with / without - 1.0) * 100.0;
        println!("{name:16}  {with:6.1} with, {without:6.1} without recycling: {cost:+.1} %");
    }
    Ok(())
}
