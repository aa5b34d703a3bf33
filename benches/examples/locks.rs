//! What a lock costs: acquired and released without contention, beside an update, flock(2) and a robust mutex between
//! processes; and how long it takes until a client that sleeps has it, beside a futex ping-pong.
//!
//! `cargo run --release -p swarm-benches --no-default-features --example locks`

use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use swarm_kv::Options;
use swarm_kv::shm::{self, CreateOptions, Pool};

const ROUNDS: usize = 21;
const PAIRS: u32 = 2000;
const HANDED: usize = 300;
/// So long that a client that waits sleeps.
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

/// A word that threads of any process could sleep on.
struct Futex(AtomicU32);

impl Futex {
    /// Sleeps until the word is this.
    fn wait_for(&self, value: u32) {
        loop {
            let now = self.0.load(Ordering::Acquire);
            if now == value {
                return;
            }
            // SAFETY: the word outlives the call; without a time limit there is no other pointer.
            unsafe {
                let none = std::ptr::null::<libc::timespec>();
                libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAIT, now, none);
            }
        }
    }

    /// Sets the word, and wakes those that sleep on it.
    fn set(&self, value: u32) {
        self.0.store(value, Ordering::Release);
        // SAFETY: the word outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, 1) };
    }
}

/// Microseconds of a futex ping-pong, and of the way there: to when the thread that slept goes on.
fn ping_pong() -> Result<[f64; 2]> {
    let [ping, pong] = [(); 2].map(|()| Futex(AtomicU32::new(0)));
    let (began, woke) = (Instant::now(), AtomicU64::new(0));
    let now = || began.elapsed().as_nanos() as u64;
    let mut times: [Vec<f64>; 2] = Default::default();
    thread::scope(|threads| {
        let _answers = threads.spawn(|| {
            for round in 1..=HANDED as u32 {
                ping.wait_for(round);
                woke.store(now(), Ordering::Relaxed);
                pong.set(round);
            }
        });
        for round in 1..=HANDED as u32 {
            thread::sleep(ASLEEP);
            let start = now();
            ping.set(round);
            pong.wait_for(round);
            times[0].push((now() - start) as f64 / 1e3);
            times[1].push((woke.load(Ordering::Relaxed) - start) as f64 / 1e3);
        }
    });
    Ok(times.map(median))
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
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..5 {
        times[0].push(handed_over(&pool)?);
        let [both, there] = ping_pong()?;
        times[1].push(both);
        times[2].push(there);
    }
    let [handed, both, there] = times.map(median);
    println!("\nfrom a release to a client that slept {handed:.1} us");
    println!(
        "a futex ping-pong {both:.1} us: {:.2} of it; the way there {there:.1} us: {:.2}",
        handed / both,
        handed / there
    );
    Ok(())
}
