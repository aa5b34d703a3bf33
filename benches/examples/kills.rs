//! One of four clients is killed. The others' operations go on as if nothing had happened.
//!
//! How long they take depends on optimized code, as it is used: CI has a step for it, `kills`. It is an example and no test
//! since tests of a release are built anew, together with all libraries: they do not abort when they panic.
//!
//! `cargo run --release -p swarm-benches --no-default-features --example kills [NAME]`: only what has the name in its own.

#[path = "../../swarm-kv/tests/common/mod.rs"]
mod common;

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use common::own_time;
use swarm_kv::Options;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};

/// The variable that names the pool to a re-executed program.
const POOL: &str = "SWARM_KV_TEST_POOL";
/// The variables for which of the clients it is, and for how many keys there are.
const PART: &str = "SWARM_KV_TEST_PART";
const KEYS: &str = "SWARM_KV_TEST_KEYS";
const CLIENTS: usize = 4;
/// With more keys than these a pool is nearly full, and all values have one size: nothing else is
/// promised there.
const FEW: u64 = 8;
/// No operation of a survivor may take more processor time.
const WANTED: Duration = Duration::from_millis(10);
/// How often one of four is killed. Interrupts count for the operation that they hit: a single one
/// is ignored.
const KILLS: usize = 7;

/// How often the parent looks at most whether the pool is nearly full, ten times a second.
const LOOKS: usize = 3000;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// Whether the input of this child has ended.
static END: AtomicBool = AtomicBool::new(false);
/// An operation that has not ended by then never will.
const HANGS: Duration = Duration::from_secs(20);

fn main() {
    if let Some(pool) = env::var_os(POOL) {
        return child(Path::new(&pool));
    }
    let all: [(&str, fn()); 2] = [
        (
            "the_others_operations_go_on_when_a_client_is_killed",
            the_others_operations_go_on_when_a_client_is_killed,
        ),
        ("so_they_do_in_a_pool_that_is_nearly_full", so_they_do_in_a_pool_that_is_nearly_full),
    ];
    let wanted = env::args().nth(1).unwrap_or_default();
    let chosen: Vec<_> = all.into_iter().filter(|(name, _)| name.contains(&wanted)).collect();
    assert!(!chosen.is_empty(), "nothing has {wanted} in its name");
    for (name, run) in chosen {
        println!("{name}:");
        run();
    }
}

/// What each client does until its input ends, or it is killed. It prints a line once it has begun, and another with the
/// nanoseconds of its longest operation since.
fn child(path: &Path) {
    let pool = Pool::open(path, OpenOptions::default()).expect("the parent's pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let store = client.blocking();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        END.store(true, Ordering::Relaxed);
        sleep(HANGS);
        eprintln!("an operation has not ended in {HANGS:?}");
        std::process::exit(1);
    });
    let number = |name| env::var(name).expect("a number").parse::<u64>().expect("a number");
    let (part, keys) = (number(PART), number(KEYS));
    let mut rng = fastrand::Rng::with_seed(u64::from(std::process::id()));
    let value = [7; 4096];
    for key in (part..keys).step_by(CLIENTS) {
        store.put(&key.to_le_bytes(), &value[..1000]).expect("room for all keys");
    }
    let (mut longest, mut operations) = (Duration::ZERO, 0u64);
    while !END.load(Ordering::Relaxed) {
        let key = rng.u64(..keys).to_le_bytes();
        let (lengths, choice) = match keys {
            FEW => ([64, 1000, 4096], rng.u32(..50)),
            _ => ([1000; 3], rng.u32(3..37)),
        };
        let value = &value[..lengths[rng.usize(..3)]];
        let before = own_time();
        let outcome = match choice {
            0 => store.delete(&key),
            1 => store.insert(&key, value).map(drop),
            2 => store.put(&key, value),
            3..20 => store.update(&key, value).map(drop),
            _ => store.get(&key).map(drop),
        };
        let took = own_time() - before;
        outcome.expect("an operation");
        operations += 1;
        match operations {
            // Until then it gets memory of its own.
            0..2000 => {}
            2000 => println!("\nsays: 0"),
            _ => longest = longest.max(took),
        }
    }
    println!("\nsays: {}", longest.as_nanos());
}

/// A client in a process of its own.
struct Client {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Client {
    fn begins(pool: &Path, part: usize, keys: u64) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env(POOL, pool).env(PART, part.to_string()).env(KEYS, keys.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a child");
        let (stdin, stdout) = (process.stdin.take(), process.stdout.take().expect("its output"));
        Self { process, stdin, stdout: BufReader::new(stdout) }
    }

    /// Returns the next number that it prints.
    fn next_number(&mut self) -> u64 {
        let lines = self.stdout.by_ref().lines();
        let mut reports = lines.map_while(Result::ok).filter_map(|line| {
            line.split_once("says: ").and_then(|(_, number)| number.trim().parse().ok())
        });
        reports.next().expect("it prints a number before it ends")
    }

    fn killed(mut self) -> Option<Self> {
        self.process.kill().expect("SIGKILL");
        let ended = self.process.wait().expect("it ends");
        assert_eq!(ended.signal(), Some(9), "it worked until it was killed: {ended}");
        None
    }

    /// It ends by itself. Returns how long its longest operation took.
    fn ends(mut self) -> Duration {
        drop(self.stdin.take());
        let longest = Duration::from_nanos(self.next_number());
        assert!(self.process.wait().expect("it ends").success());
        longest
    }
}

/// Clients at work, one of which is killed.
struct Scene {
    capacity: u64,
    keys: u64,
    /// How long all clients work, and how long the survivors do after that.
    before: Duration,
    after: Duration,
}

impl Scene {
    /// Makes a pool where writing a page back to a disk cannot delay a store.
    fn pool(&self, dir: &Path) -> Pool {
        let capacity = self.capacity;
        let options = CreateOptions { capacity, max_clients: 8, ..CreateOptions::default() };
        Pool::create(dir.join("pool"), &options).expect("create")
    }

    /// Waits until clients own seven eighths of the pool, which takes longer on a busy machine.
    ///
    /// # Panics
    /// If they own less after [`LOOKS`] looks.
    fn wait_until_nearly_full(&self, pool: &Pool) {
        let (most, mut owned) = (self.capacity / 8 * 7, 0);
        for _ in 0..LOOKS {
            let usage = shm::client_usage(pool).expect("what clients own");
            owned = usage.iter().map(|client| client.owned_bytes).sum();
            if owned > most {
                return;
            }
            sleep(BETWEEN_LOOKS);
        }
        panic!("clients own {owned} bytes of {}", self.capacity);
    }

    /// Returns the survivors' longest operation.
    fn longest_around_a_kill(&self, pool: &Pool) -> Duration {
        self.longest(pool, Client::killed)
    }

    /// Returns the longest operation of all clients except one, which `of_one` handles.
    fn longest(&self, pool: &Pool, of_one: impl Fn(Client) -> Option<Client>) -> Duration {
        let begins = |part| Client::begins(pool.path(), part, self.keys);
        let mut clients: Vec<Client> = (0..CLIENTS).map(begins).collect();
        for client in &mut clients {
            client.next_number();
        }
        sleep(self.before);
        if self.keys > FEW {
            self.wait_until_nearly_full(pool);
        }
        let one = of_one(clients.swap_remove(0));
        sleep(self.after);
        let longest = clients.into_iter().map(Client::ends).max().expect("survivors");
        one.map(Client::ends);
        longest
    }
}

fn scratch() -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    dir.expect("a temporary directory")
}

fn the_others_operations_go_on_when_a_client_is_killed() {
    let dir = scratch();
    let after = Duration::from_millis(150);
    let scene = Scene { capacity: 128 << 20, keys: FEW, before: Duration::ZERO, after };
    let pool = scene.pool(dir.path());
    let kill = |kill| {
        // Anywhere in an operation.
        let before = Duration::from_micros(50_000 + 137 * kill as u64);
        Scene { before, ..scene }.longest_around_a_kill(&pool)
    };
    let mut longest: Vec<Duration> = (0..KILLS).map(kill).collect();
    longest.sort();
    // What the machine itself does to operations.
    let spared = |_| Scene { before: Duration::from_millis(50), ..scene }.longest(&pool, Some);
    let mut without: Vec<Duration> = (0..KILLS).map(spared).collect();
    without.sort();
    println!("longest operations where nobody is killed: {without:?}");
    println!("the survivors' longest operations: {longest:?} (wanted: {WANTED:?})");
    assert!(longest[KILLS - 2] <= WANTED, "{longest:?}");
}

/// When hardly any memory is left except the dead client's. Takes a minute, or longer on a busy machine.
fn so_they_do_in_a_pool_that_is_nearly_full() {
    let mut longest: Vec<Duration> = (0..3)
        .map(|_| {
            let dir = scratch();
            let (before, after) = (Duration::from_secs(6), Duration::from_secs(10));
            let scene = Scene { capacity: 288 << 20, keys: 150_000, before, after };
            scene.longest_around_a_kill(&scene.pool(dir.path()))
        })
        .collect();
    longest.sort();
    println!("the survivors' longest operations: {longest:?} (wanted: {WANTED:?})");
    assert!(longest[1] <= WANTED, "{longest:?}");
}
