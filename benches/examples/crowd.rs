//! What a crowd of clients that put a key each and leave has left of a pool: how many values of SIZE bytes a new client
//! stores behind them, beside a pool that is new; what their first puts cost, and what they held.
//!
//! `cargo run --release -p swarm-benches --no-default-features --example crowd CLIENTS MIB SIZE`

use std::error::Error;

use swarm_kv::Options;
use swarm_kv::shm::{self, Client, CreateOptions, Pool};

/// Puts that are refused in a row before a pool is taken for full: each may have found memory that is on its way back.
const REFUSALS: usize = 3;
/// What each of the crowd puts.
const VALUE: [u8; 100] = [1; 100];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the crowd's first puts cost.
#[derive(Default)]
struct Crowd {
    /// Roundtrips of all of them together, and of the dearest one.
    roundtrips: u64,
    most: u32,
    /// Bytes of each node in chunks that belong to somebody, more than before the crowd came.
    held: u64,
}

fn open(pool: &Pool) -> Result<Client> {
    Ok(shm::open(pool, Options::default())?)
}

/// So many clients are there at a time, put a key each, and leave.
fn come_and_go(pool: &Pool, clients: usize) -> Result<Crowd> {
    let before = shm::usage(pool)?.used_bytes;
    let all = (0..clients).map(|_| open(pool)).collect::<Result<Vec<Client>>>()?;
    let mut crowd = Crowd::default();
    for (number, client) in all.iter().enumerate() {
        client.blocking().put(format!("of the crowd {number}").as_bytes(), &VALUE)?;
        let roundtrips = client.last().roundtrips;
        crowd.roundtrips += u64::from(roundtrips);
        crowd.most = crowd.most.max(roundtrips);
    }
    crowd.held = shm::usage(pool)?.used_bytes - before;
    Ok(crowd)
}

/// How many values of `size` bytes a new client stores.
fn capacity(pool: &Pool, size: usize) -> Result<usize> {
    let (client, value) = (open(pool)?, vec![3; size]);
    let (mut stored, mut refused) = (0_usize, 0);
    while refused < REFUSALS {
        match client.blocking().put(&stored.to_le_bytes(), &value) {
            Ok(()) => (stored, refused) = (stored + 1, 0),
            Err(swarm_kv::Error::Full(_)) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(stored)
}

fn main() -> Result<()> {
    let numbers: Vec<usize> =
        std::env::args().skip(1).map(|it| it.parse()).collect::<std::result::Result<_, _>>()?;
    let [clients, mib, size] = numbers[..] else {
        return Err("usage: crowd CLIENTS MIB SIZE".into());
    };
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = CreateOptions {
        capacity: (mib as u64) << 20,
        max_clients: clients.max(1),
        ..CreateOptions::default()
    };
    let fresh = {
        let pool = Pool::create(dir.path().join("fresh"), &options)?;
        let fresh = capacity(&pool, size)?;
        Pool::destroy(dir.path().join("fresh"), true)?;
        fresh
    };
    let pool = Pool::create(dir.path().join("crowd"), &options)?;
    let crowd = come_and_go(&pool, clients)?;
    let left = capacity(&pool, size)?;
    println!(
        "{clients} clients in {mib} MiB: {left} values of {size} B fit behind them, {fresh} in a new pool ({:.1} %); \
         a first put took {:.1} roundtrips, {} at most; they held {:.2} MiB",
        100.0 * left as f64 / fresh.max(1) as f64,
        crowd.roundtrips as f64 / clients.max(1) as f64,
        crowd.most,
        crowd.held as f64 / (1 << 20) as f64,
    );
    Ok(())
}
