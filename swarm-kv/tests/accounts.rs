//! Read-modify-writes of processes that are killed: money goes from account to account, and none
//! is lost or made; threads that share a handle add to one number.

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use fastrand::Rng;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{ErrorKind, Options, Store};

/// Tells a re-executed test which pool the accounts are in, and which teller it is.
const POOL: &str = "SWARM_KV_TEST_POOL";
const TELLER: &str = "SWARM_KV_TEST_TELLER";
const BANK: &[u8] = b"bank";
/// Accounts, and what all of them have together.
const ACCOUNTS: usize = 8;
const TOTAL: i64 = 8000;
/// Tellers at a time, and how many of them are killed one after the other.
const AT_ONCE: usize = 3;
const KILLS: usize = 24;
const SIGKILL: i32 = 9;

/// The accounts, and behind them how often each teller moved money.
type Books = Vec<i64>;

fn read(bytes: &[u8]) -> Books {
    let text = std::str::from_utf8(bytes).expect("text");
    text.split(' ').map(|number| number.parse().expect("a number")).collect()
}

fn written(books: &Books) -> Vec<u8> {
    let numbers: Vec<String> = books.iter().map(i64::to_string).collect();
    numbers.join(" ").into_bytes()
}

/// Not a test itself: a teller, until it is killed. It says how many transfers it was told of.
#[test]
fn child() {
    let Some(path) = env::var_os(POOL) else { return };
    let teller: usize = env::var(TELLER).ok().and_then(|it| it.parse().ok()).expect("a number");
    let pool = Pool::open(path, OpenOptions::default()).expect("the parent's pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let (mut rng, name) = (Rng::with_seed(teller as u64), format!("teller {teller}"));
    for done in 1.. {
        let [from, to] = [(); 2].map(|()| rng.usize(..ACCOUNTS));
        let sum = rng.i64(1..100);
        let transfer = |books: Option<&[u8]>| {
            let mut books = read(books.expect("the bank is open"));
            books[from] -= sum;
            books[to] += sum;
            books[ACCOUNTS + teller] += 1;
            Some(written(&books))
        };
        // Who is told that others were faster for too long goes home, like one who is killed.
        let moved = client.blocking().update_with(BANK, transfer);
        let counted = moved.and_then(|_| client.blocking().increment(name.as_bytes(), 1));
        match counted {
            Ok(counted) => assert_eq!(counted, done),
            Err(error) if error.kind() == ErrorKind::Retry => return,
            Err(error) => panic!("{error}"),
        }
        println!("did: {done}");
    }
}

/// A teller at work.
struct Teller {
    number: usize,
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Teller {
    fn new(pool: &Pool, number: usize) -> Self {
        let mut command = Command::new(env::current_exe().expect("the test program"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(POOL, pool.path()).env(TELLER, number.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a child");
        let said = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { number, child, said }
    }

    /// Returns the next number of transfers that it says.
    fn says(&mut self) -> Option<i64> {
        self.said.find_map(|line| line.ok()?.split_once("did: ")?.1.parse().ok())
    }

    /// Lets it do some more, and kills it wherever it is by then. Returns how many it said it did.
    fn kill_after(mut self, after: i64) -> i64 {
        let mut did = 0;
        while did < after {
            let Some(more) = self.says() else { break };
            did = more;
        }
        self.child.kill().expect("SIGKILL");
        let ended = self.child.wait().expect("it ends");
        let is_fine = ended.signal() == Some(SIGKILL) || ended.success();
        assert!(is_fine, "teller {}: {ended}", self.number);
        std::iter::from_fn(|| self.says()).last().unwrap_or(did)
    }
}

fn books(client: &shm::Client) -> Books {
    read(&client.blocking().get(BANK).expect("a node").expect("the bank is open"))
}

/// What a teller was told is there, and of what it was not told at most the last one: once.
#[test]
fn the_sum_of_all_accounts_stays_whoever_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 16 << 20, max_clients: 8, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let mut open = vec![TOTAL / ACCOUNTS as i64; ACCOUNTS];
    open.resize(ACCOUNTS + KILLS, 0);
    assert_eq!(client.blocking().put_if_absent(BANK, &written(&open)), Ok(None));
    let mut rng = Rng::with_seed(37);
    let mut tellers: Vec<Teller> = (0..AT_ONCE).map(|number| Teller::new(&pool, number)).collect();
    let mut transfers = 0;
    for next in AT_ONCE.. {
        if tellers.is_empty() {
            break;
        }
        let teller = tellers.swap_remove(rng.usize(..tellers.len()));
        let number = teller.number;
        let did = teller.kill_after(rng.i64(1..60));
        if next < KILLS {
            tellers.push(Teller::new(&pool, next));
        }
        let books = books(&client);
        let sum: i64 = books[..ACCOUNTS].iter().sum();
        assert_eq!(sum, TOTAL, "after teller {number}: {books:?}");
        let done = books[ACCOUNTS + number];
        assert!((did..=did + 1).contains(&done), "teller {number} said {did}, and did {done}");
        let key = format!("teller {number}");
        let counted = client.blocking().increment(key.as_bytes(), 0).expect("a node");
        assert!(counted >= did && counted <= done, "{number}: {did}, {counted}, {done}");
        transfers += done;
    }
    println!("{transfers} transfers by {KILLS} tellers, all of which were killed");
    assert!(transfers >= KILLS as i64, "{transfers}");
}

/// None is lost, and none counts twice.
#[test]
fn threads_that_add_to_one_number_lose_nothing() {
    const EACH: usize = 300;
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 16 << 20, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let store = Store::of(&pool, Default::default()).expect("a slot");
    let (done, open) = (AtomicI64::new(0), AtomicI64::new(0));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                for _ in 0..EACH {
                    match store.blocking().increment(b"number", 1) {
                        Ok(_) => _ = done.fetch_add(1, Relaxed),
                        Err(error) if error.may_have_taken_effect() => {
                            open.fetch_add(1, Relaxed);
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
                    }
                }
            });
        }
    });
    let sum = swarm_kv::block_on(store.increment(b"number", 0)).expect("nobody else is there");
    let (done, open) = (done.into_inner(), open.into_inner());
    println!("{done} of {} increments were done, and {open} perhaps: {sum}", 4 * EACH);
    assert!((done..=done + open).contains(&sum), "{done}, {open}: {sum}");
    assert!(done > 0);
}

/// What changes replace comes back: the pool has no room for all of it.
#[test]
fn a_number_is_added_to_for_as_long_as_one_likes() {
    const TIMES: i64 = 20_000;
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    for sum in 1..=TIMES {
        assert_eq!(client.blocking().increment(b"number", 1), Ok(sum));
    }
    let modify = client.counters().modify;
    println!("{:?}", modify.roundtrips);
    let usual: u64 = modify.roundtrips[..8].iter().sum();
    assert!(usual > TIMES as u64 * 9 / 10, "{modify:?}");
}
