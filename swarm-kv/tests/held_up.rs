//! What a refused write reports when another client's pin blocks reclamation.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader, Read, stdin};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Waker};

use swarm_core::quorum::Timeouts;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, CreateOptions, Emulated, EvictStopped, OpenOptions, Pool};
use swarm_kv::{Error, Laggard, LaggardState, Options, Shortage, Store, StoreOptions};

/// For a process that will be stopped: where the pool is.
const POOL: &str = "SWARM_TEST_HELD_UP";

fn pool() -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 8, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    (dir, pool)
}

/// More nanoseconds than any test takes.
const NEVER: u64 = 1_000_000_000_000;

/// Makes a client that no node answers within the test: its operations stay in progress.
fn slow(pool: &Pool) -> shm::Client<SafeGuess, Emulated> {
    shm::open_emulated(pool, Options::default(), NEVER).expect("a free slot")
}

fn put(client: &shm::Client, at: usize) -> Result<(), Error> {
    client.blocking().put(format!("key {}", at % 100).as_bytes(), &[1; 1000])
}

/// Writes in place until a refusal names a client.
fn refused(client: &shm::Client) -> (Shortage, Laggard) {
    for at in 0.. {
        match put(client, at) {
            Ok(()) => {}
            // A write that hardly waited names no client yet.
            Err(Error::Full(Shortage { held_up: None, .. })) => {}
            Err(Error::Full(shortage)) => {
                return (shortage, shortage.held_up.expect("it names somebody"));
            }
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!("numbers do not end")
}

fn writer(pool: &Pool) -> shm::Client {
    shm::open(pool, Options::default().memory_wait(50_000_000)).expect("a free slot")
}

/// An operation that was polled once, whose future a live client keeps.
#[test]
fn a_full_pool_names_the_client_that_keeps_an_operations_future() {
    let (_dir, pool) = pool();
    let writer = writer(&pool);
    put(&writer, 0).expect("there is room");
    let idle = slow(&pool);
    let mut kept = Box::pin(idle.put(b"key", b"value"));
    assert!(kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let (shortage, laggard) = refused(&writer);
    assert_eq!((laggard.slot, laggard.is_own, laggard.state), (1, false, LaggardState::Running));
    assert_eq!(laggard.process, Some(std::process::id()));
    let message = Error::Full(shortage).to_string();
    assert!(message.contains("client 1") && message.contains("has to poll"), "{message}");
    assert!(laggard.since < pool.epoch(), "{laggard:?}");
    drop(kept);
    assert!((0..1_000_000).any(|at| put(&writer, at).is_ok()), "all of it is to be had again");
}

/// The client's own write of the key, which is not polled, so that it does not end.
#[test]
fn a_write_behind_one_whose_future_is_kept_gets_an_error() {
    let (_dir, pool) = pool();
    let timeouts = Timeouts { deadline: 10_000_000, ..Timeouts::default() };
    let options = Options::default().timeouts(timeouts).memory_wait(10_000_000);
    let client = shm::open_emulated::<SafeGuess>(&pool, options, NEVER).expect("a free slot");
    let mut kept = Box::pin(client.put(b"key", b"1"));
    assert!(kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let store = client.blocking();
    assert_eq!(store.put(b"key", b"2"), Err(Error::Unfinished));
    assert_eq!(store.insert(b"key", b"2"), Err(Error::Unfinished));
    assert_eq!(store.update(b"key", b"2"), Err(Error::Unfinished));
    assert_eq!(store.delete(b"key"), Err(Error::Unfinished));
    let others = store.put(b"another", b"2");
    assert!(matches!(others, Err(Error::Replication(_))), "no node answers: {others:?}");
    drop(kept);
    let after = store.put(b"key", b"2");
    assert!(matches!(after, Err(Error::Replication(_))), "it had its turn: {after:?}");
}

/// A process in the middle of an operation.
struct Stopped(Child);

impl Stopped {
    fn in_an_operation(pool: &Pool) -> Self {
        let test = "a_full_pool_names_the_client_that_is_stopped_in_an_operation";
        let mut command = Command::new(std::env::current_exe().expect("a test has a program"));
        command.args(["--exact", test, "--nocapture"]).env(POOL, pool.path());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = Self(spawned.expect("the test's program runs"));
        let lines = BufReader::new(child.0.stdout.take().expect("its output")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("under way")), "it began");
        let process = child.0.id();
        // SAFETY: it is this test's child.
        assert_eq!(unsafe { libc::kill(process as i32, libc::SIGSTOP) }, 0);
        let stat = format!("/proc/{process}/stat");
        while !std::fs::read_to_string(&stat).expect("it lives").contains(") T ") {
            std::thread::yield_now();
        }
        child
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_full_pool_names_the_client_that_is_stopped_in_an_operation() {
    if let Some(pool) = std::env::var_os(POOL) {
        be_in_an_operation(pool.as_ref());
    }
    let (_dir, pool) = pool();
    let writer = writer(&pool);
    put(&writer, 0).expect("there is room");
    let child = Stopped::in_an_operation(&pool);
    let process = child.0.id();
    let (shortage, laggard) = refused(&writer);
    assert_eq!((laggard.slot, laggard.process), (1, Some(process)));
    assert_eq!(laggard.state, LaggardState::Stopped);
    assert!(!laggard.is_own && laggard.nanoseconds.is_some());
    let message = Error::Full(shortage).to_string();
    assert!(message.contains(&format!("kill -CONT {process}")), "{message}");
    assert!(message.contains("swarm evict") && message.contains("client 1"), "{message}");
    pool.evict(1).expect("it is this user's");
    assert!((0..1_000_000).any(|at| put(&writer, at).is_ok()), "all of it is to be had again");
}

/// A writer that may end it goes on, and the pool is written over many times.
#[test]
fn a_client_that_may_ends_the_one_that_is_stopped_in_an_operation() {
    let (_dir, pool) = pool();
    let may = EvictStopped::after(std::time::Duration::from_millis(300));
    let may = OpenOptions { evict_stopped: Some(may), ..OpenOptions::default() };
    let may = Pool::open(pool.path(), may).expect("it is there");
    let options = StoreOptions::default().client(Options::default().memory_wait(50_000_000));
    let former = Store::of(&may, options).expect("a free slot");
    // Which opens the pool once more, and may as well.
    let store = former.reopen().expect("it is still there");
    drop((former, may));
    let writer = store.blocking();
    let put = |at: usize| writer.put(format!("key {}", at % 100).as_bytes(), &[1; 1000]);
    put(0).expect("there is room");
    let mut child = Stopped::in_an_operation(&pool);
    let (mut written, mut refused) = (0, 0);
    while written < 20_000 {
        match put(written) {
            Ok(()) => written += 1,
            Err(Error::Full(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        assert!(refused < 1_000_000, "nothing comes back after {written}");
    }
    let status = child.0.try_wait().expect("a child").expect("it has ended");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
}

/// Begins an operation, reports that, and ends with its input.
fn be_in_an_operation(pool: &Path) -> ! {
    let pool = Pool::open(pool, OpenOptions::default()).expect("the parent's pool");
    let client = slow(&pool);
    let mut kept = pin!(client.put(b"key", b"value"));
    assert!(kept.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    println!("under way");
    let _ = stdin().read(&mut [0]);
    std::process::exit(1)
}
