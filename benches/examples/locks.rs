//! What a lock costs: acquired and released without contention, beside an update, flock(2) and a robust mutex between
//! processes; and how long it takes until a client that sleeps has it, beside a thread that another one unparks.
//!
//! `cargo run --release -p swarm-benches --no-default-features --example locks`

use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use swarm_kv::Options;
use swarm_kv::shm::{self, CreateOptions, Pool};

const ROUNDS: usize = 21;
const PAIRS: u32 = 2000;
const HANDED: usize = 300;
/// So long that whoever waits sleeps.
const ASLEEP: Duration = Duration::from_millis(2);

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of one call.
fn time(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    for _ in 0..PAIRS {
        call()?;
    }
    Ok(began.elapsed().as_nanos() as f64 / f64::from(PAIRS))
}

fn flock(file: &File, operation: i32) -> Result<()> {
    // SAFETY: the descriptor is open as long as `file` is.
    match unsafe { libc::flock(file.as_raw_fd(), operation) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

/// A mutex that processes could share, and that says if its owner died.
struct Robust(Box<libc::pthread_mutex_t>);

impl Robust {
    fn new() -> Self {
        // SAFETY: all zeros is storage for attributes and for a mutex, which are initialised before use.
        let (mut attributes, mut mutex): (libc::pthread_mutexattr_t, Box<libc::pthread_mutex_t>) =
            unsafe { (std::mem::zeroed(), Box::new(std::mem::zeroed())) };
        // SAFETY: both outlive the calls, and the mutex is not moved any more.
        unsafe {
            libc::pthread_mutexattr_init(&mut attributes);
            libc::pthread_mutexattr_setpshared(&mut attributes, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(&mut *mutex, &attributes);
        }
        Self(mutex)
    }

    fn pair(&mut self) {
        // SAFETY: it was initialised, and this thread alone has it.
        unsafe {
            libc::pthread_mutex_lock(&mut *self.0);
            libc::pthread_mutex_unlock(&mut *self.0);
        }
    }
}

/// Microseconds from a release to when a client that slept has the lock.
fn handed_over(pool: &Pool) -> Result<f64> {
    let released = AtomicU64::new(0);
    let began = Instant::now();
    let now = move || began.elapsed().as_nanos() as u64;
    let (goes, go) = channel();
    let (took, taken) = channel();
    thread::scope(|threads| {
        let released = &released;
        let waits = threads.spawn(move || -> Result<()> {
            let client = shm::open(pool, Options::default())?;
            let lock = client.blocking().lock(b"lock");
            while go.recv().is_ok() {
                let guard = lock.acquire()?;
                took.send(now() - released.load(Ordering::Relaxed))?;
                guard.release()?;
            }
            Ok(())
        });
        let client = shm::open(pool, Options::default())?;
        let lock = client.blocking().lock(b"lock");
        let mut times = Vec::new();
        for _ in 0..HANDED {
            let guard = lock.acquire()?;
            goes.send(())?;
            thread::sleep(ASLEEP);
            released.store(now(), Ordering::Relaxed);
            guard.release()?;
            times.push(taken.recv()? as f64 / 1e3);
        }
        drop(goes);
        waits.join().map_err(|_| "it panicked")??;
        Ok(median(times))
    })
}

/// Microseconds from an unpark to when the thread that slept goes on.
fn unparked() -> Result<f64> {
    let (released, is_due, is_over) =
        (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as u64;
    let (took, taken) = channel();
    thread::scope(|threads| {
        let waits = threads.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                thread::park();
                if is_due.swap(false, Ordering::Acquire) {
                    let _ = took.send(now() - released.load(Ordering::Relaxed));
                }
            }
        });
        let mut times = Vec::new();
        for _ in 0..HANDED {
            thread::sleep(ASLEEP);
            released.store(now(), Ordering::Relaxed);
            is_due.store(true, Ordering::Release);
            waits.thread().unpark();
            times.push(taken.recv()? as f64 / 1e3);
        }
        is_over.store(true, Ordering::Release);
        waits.thread().unpark();
        waits.join().map_err(|_| "it panicked")?;
        Ok(median(times))
    })
}

fn main() -> Result<()> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let options = CreateOptions { nodes: 3, capacity: 64 << 20, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options)?;
    let client = shm::open(&pool, Options::default())?;
    let (store, file) = (client.blocking(), File::create(dir.path().join("file"))?);
    let (lock, mut robust) = (store.lock(b"uncontended"), Robust::new());
    store.put(b"key", &[7; 64])?;
    let before = client.counters().modify;
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        times[0].push(time(|| Ok(lock.acquire()?.release()?))?);
        times[1].push(time(|| Ok(store.update(b"key", &[8; 64]).map(drop)?))?);
        times[2].push(time(|| {
            flock(&file, libc::LOCK_EX)?;
            flock(&file, libc::LOCK_UN)
        })?);
        times[3].push(time(|| {
            robust.pair();
            Ok(())
        })?);
    }
    let after = client.counters().modify;
    let changes = after.operations - before.operations;
    let of_one = after.roundtrips[1] - before.roundtrips[1];
    let [ours, update, flocks, mutex] = times.map(median);
    println!("medians of {ROUNDS} rounds in turn, nanoseconds");
    println!(
        "acquire and release  {ours:>8.0}  {:.2} % of the changes took one roundtrip",
        of_one as f64 * 100.0 / changes as f64
    );
    println!("an update            {update:>8.0}  {:.2} of it", ours / update);
    println!("a flock(2) pair      {flocks:>8.0}  {:.2} of it", ours / flocks);
    println!("a robust mutex       {mutex:>8.0}");
    let (mut handed, mut parked) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        handed.push(handed_over(&pool)?);
        parked.push(unparked()?);
    }
    let (handed, parked) = (median(handed), median(parked));
    println!(
        "\nto a client that sleeps {handed:.1} us, to a thread that is unparked {parked:.1} us: {:.2} of it",
        handed / parked
    );
    Ok(())
}
