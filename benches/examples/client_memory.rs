//! What clients take of their process's memory, the pool's own pages apart, and of its processor: CLIENTS of one process
//! that are opened, and that put a key each; then one that fills the pool with values of SIZE bytes, and is refused.
//!
//! `cargo run --release -p swarm-benches --no-default-features --example client_memory CLIENTS MIB SIZE`

use std::error::Error;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use swarm_kv::Options;
use swarm_kv::shm::{self, Client, CreateOptions, Pool};

/// Puts that are refused in a row before a pool is taken for full: each may have found memory that is on its way back.
const REFUSALS: usize = 3;
/// What each of the clients puts.
const VALUE: [u8; 100] = [1; 100];
/// Between two looks for the most memory.
const LOOK: Duration = Duration::from_micros(500);

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Bytes of this process's memory that no file backs, as the kernel counts them.
fn anonymous() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
    Ok(kib.ok_or("the kernel says nothing of anonymous memory")?.trim().parse::<u64>()? << 10)
}

/// The same, without what was freed and is kept for later.
fn anonymous_in_use() -> Result<u64> {
    // SAFETY: it takes a number alone.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    anonymous()
}

/// Seconds of processor time of this thread.
fn processor() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// What `work` yields; the seconds of processor time that it took, and the most anonymous bytes meanwhile.
fn observed<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, f64, u64)> {
    let (is_over, most) = (AtomicBool::new(false), AtomicU64::new(anonymous_in_use()?));
    let watch = || {
        while !is_over.load(Ordering::Relaxed) {
            most.fetch_max(anonymous().unwrap_or(0), Ordering::Relaxed);
            thread::sleep(LOOK);
        }
    };
    thread::scope(|scope| {
        scope.spawn(watch);
        let before = processor();
        let done = work();
        let took = processor() - before;
        is_over.store(true, Ordering::Relaxed);
        Ok((done?, took, most.load(Ordering::Relaxed).max(anonymous()?)))
    })
}

fn open(pool: &Pool) -> Result<Client> {
    Ok(shm::open(pool, Options::default())?)
}

/// Puts values under keys from `first` on until so many are refused in a row. How many were not.
fn fill(client: &Client, first: u64, size: usize, refusals: usize) -> Result<u64> {
    let value = vec![3; size];
    let (mut stored, mut refused) = (0, 0);
    while refused < refusals {
        match client.blocking().put(&(first + stored).to_le_bytes(), &value) {
            Ok(()) => (stored, refused) = (stored + 1, 0),
            Err(swarm_kv::Error::Full(_)) => refused += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(stored)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

fn main() -> Result<()> {
    let numbers: Vec<usize> =
        std::env::args().skip(1).map(|it| it.parse()).collect::<std::result::Result<_, _>>()?;
    let [clients, size_of_pool, size] = numbers[..] else {
        return Err("usage: client_memory CLIENTS MIB SIZE".into());
    };
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = CreateOptions {
        capacity: (size_of_pool as u64) << 20,
        max_clients: clients.max(1),
        ..CreateOptions::default()
    };
    let pool = Pool::create(dir.path().join("pool"), &options)?;

    let before = anonymous_in_use()?;
    let all = || (0..clients).map(|_| open(&pool)).collect::<Result<Vec<Client>>>();
    let (all, took, most) = observed(all)?;
    let each = |bytes: u64| bytes.saturating_sub(before) as f64 / 1024.0 / clients.max(1) as f64;
    println!("{clients} clients opened: {took:.2} s, {:.0} KiB each", each(most));
    let puts = || {
        for (number, client) in all.iter().enumerate() {
            client.blocking().put(format!("of the crowd {number}").as_bytes(), &VALUE)?;
        }
        Ok(all)
    };
    let (all, took, most) = observed(puts)?;
    println!("each has put a key: {took:.2} s, {:.0} KiB each", each(most));
    drop(all);

    let before = anonymous_in_use()?;
    let of_client = |bytes: u64| mib(bytes.saturating_sub(before));
    let client = open(&pool)?;
    let (stored, took, most) = observed(|| fill(&client, 0, size, REFUSALS))?;
    println!(
        "{stored} values of {size} B fill {size_of_pool} MiB: {took:.2} s, {:.1} MiB at most, {:.1} MiB then",
        of_client(most),
        of_client(anonymous_in_use()?)
    );
    for what in ["the next put", "and one more"] {
        let refused =
            || fill(&client, stored, size, 1).map(|more| (more, client.last().roundtrips));
        let ((more, roundtrips), took, most) = observed(refused)?;
        println!(
            "{what} of a new key is refused ({more} were not): {took:.3} s, {roundtrips} roundtrips, {:.1} MiB at most",
            of_client(most)
        );
    }
    drop(client);
    let fresh = open(&pool)?;
    let (more, took, most) = observed(|| fill(&fresh, stored, size, 1))?;
    println!(
        "a new client's is refused ({more} were not): {took:.3} s, {} roundtrips, {:.1} MiB at most",
        fresh.last().roundtrips,
        of_client(most)
    );
    drop(fresh);

    let deletes = || {
        let client = open(&pool)?;
        for number in 0..stored {
            client.blocking().delete(&number.to_le_bytes())?;
        }
        Ok(())
    };
    let ((), took, most) = observed(deletes)?;
    println!("a new one deletes all: {took:.2} s, {:.1} MiB at most", of_client(most));
    let client = open(&pool)?;
    let (again, took, most) = observed(|| fill(&client, 0, size, REFUSALS))?;
    println!(
        "{again} values of {size} B fill it again: {took:.2} s, {:.1} MiB at most",
        of_client(most)
    );
    Ok(())
}
