//! Read-modify-writes of processes that are stopped and killed: money goes from account to account,
//! and none is lost or made; threads that share a handle add to one number.

use std::env;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::Relaxed;

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Error, ErrorKind, Options, Store};

/// For a re-executed test: which pool the accounts are in, which of the tellers at work it is, and what its dice begin
/// with.
const POOL: &str = "SWARM_KV_TEST_POOL";
const TELLER: &str = "SWARM_KV_TEST_TELLER";
const SEED: &str = "SWARM_KV_TEST_SEED";
const BANK: &[u8] = b"bank";
/// Accounts, and what all of them have together.
const ACCOUNTS: usize = 8;
const TOTAL: i64 = 8000;
/// Tellers at a time. They are killed one after the other, and others take their places.
const AT_ONCE: usize = 3;
/// Kills in each run of the tests, and where they are as many as it takes.
const KILLS: usize = 24;
const MANY_KILLS: usize = 10_000;
/// Transfers that a teller does at most before it is killed, and while another one is stopped.
const LONGEST: i64 = 60;
/// What an audit adds to a teller's counter, above all that tellers add.
const AUDIT: i64 = 1 << 32;

/// The accounts; behind them how often each of the tellers moved money, and how often all was audited.
type Books = Vec<i64>;
const AUDITS: usize = ACCOUNTS + AT_ONCE;

fn read(bytes: &[u8]) -> Books {
    let text = std::str::from_utf8(bytes).expect("text");
    text.split(' ').map(|number| number.parse().expect("a number")).collect()
}

fn written(books: &Books) -> Vec<u8> {
    let numbers: Vec<String> = books.iter().map(i64::to_string).collect();
    numbers.join(" ").into_bytes()
}

fn counter(teller: usize) -> Vec<u8> {
    format!("teller {teller}").into_bytes()
}

/// Not a test itself: a teller, until it is killed. It prints how many of its transfers have returned.
#[test]
fn child() {
    let Some(path) = env::var_os(POOL) else { return };
    let number = |name| env::var(name).ok().and_then(|it| it.parse().ok()).expect("a number");
    let (teller, mut rng) = (number(TELLER) as usize, Rng::with_seed(number(SEED)));
    let pool = Pool::open(path, OpenOptions::default()).expect("the parent's pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let mut last = None;
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
        // One that gets the error that others were faster for too long goes home, like one that is killed.
        let moved = client.blocking().update_with(BANK, transfer);
        let counted = moved.and_then(|_| client.blocking().increment(&counter(teller), 1));
        match counted {
            Ok(counted) => {
                let before = last.replace(counted);
                assert!(before.is_none_or(|before| before + 1 == counted), "{before:?}, {counted}");
            }
            Err(error) if error.kind() == ErrorKind::Retry => return,
            Err(error) => panic!("{error}"),
        }
        println!("did: {done}");
    }
}

/// A teller at work.
struct ClientStory {
    /// Which of the tellers at work.
    place: usize,
    child: Child,
    reports: std::io::Lines<BufReader<std::process::ChildStdout>>,
    did: i64,
}

impl ClientStory {
    fn new(pool: &Pool, place: usize, seed: usize) -> Self {
        let mut command = Command::new(env::current_exe().expect("the test program"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(POOL, pool.path()).env(TELLER, place.to_string()).env(SEED, seed.to_string());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a child");
        let reports = BufReader::new(child.stdout.take().expect("its output")).lines();
        Self { place, child, reports, did: 0 }
    }

    /// Lets it do some more, unless it goes home.
    fn goes_on(&mut self, more: i64) {
        let until = self.did + more;
        while self.did < until {
            let Some(line) = self.reports.next().and_then(Result::ok) else { return };
            let did = line.split_once("did: ").and_then(|(_, did)| did.parse().ok());
            self.did = did.unwrap_or(self.did);
        }
    }

    /// Stops it, or has it go on, wherever it is by then.
    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.child);
        // It has not been waited for: the number is still its own.
        kill_process(process, signal).expect("a signal");
    }

    /// Kills it wherever it is by then. Returns how many transfers it reported.
    fn kill(mut self) -> i64 {
        self.child.kill().expect("SIGKILL");
        let ended = self.child.wait().expect("it ends");
        let is_fine = ended.signal() == Some(Signal::KILL.as_raw()) || ended.success();
        assert!(is_fine, "teller {}: {ended}", self.place);
        self.goes_on(i64::MAX - self.did);
        self.did
    }
}

/// Looks into the books by a change of its own, so that whatever the dead left half done is decided by then. Others may
/// be faster, but not for ever.
fn audit(client: &shm::Client, teller: usize) -> (Books, i64) {
    let patiently = |change: &dyn Fn() -> Result<Books, Error>| {
        let tries = (0..100)
            .map(|_| change())
            .find(|outcome| !outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::Retry));
        tries.expect("others are not always faster").expect("a node")
    };
    let books = patiently(&|| {
        let audited = client.blocking().update_with(BANK, |books| {
            let mut books = read(books.expect("the bank is open"));
            books[AUDITS] += 1;
            Some(written(&books))
        });
        audited.map(|books| read(&books.expect("the bank is open")))
    });
    let counted = patiently(&|| {
        let counted = client.blocking().increment(&counter(teller), AUDIT);
        counted.map(|counted| vec![counted % AUDIT])
    });
    (books, counted[0])
}

/// Has tellers at work, of which `kills` are killed and as many stopped. What has returned to a teller is there, and of what
/// has not at most the last one: once.
fn nothing_is_lost_or_made(kills: usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 16 << 20, max_clients: 8, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let mut open = vec![TOTAL / ACCOUNTS as i64; ACCOUNTS];
    open.resize(AUDITS + 1, 0);
    assert_eq!(client.blocking().put_if_absent(BANK, &written(&open)), Ok(None));
    let mut rng = Rng::with_seed(37);
    let mut tellers: Vec<ClientStory> =
        (0..AT_ONCE).map(|at| ClientStory::new(&pool, at, at)).collect();
    // By place: transfers, and those that were counted, when its teller began.
    let mut before = [[0; 2]; AT_ONCE];
    let (mut stopped, mut killed_stopped) = (0, 0);
    for next in AT_ONCE..AT_ONCE + kills {
        let mut teller = tellers.swap_remove(rng.usize(..tellers.len()));
        // One is stopped in the middle of something, and others go on. It is killed or goes on.
        let rests = &tellers[rng.usize(..tellers.len())];
        teller.goes_on(rng.i64(1..LONGEST / 2));
        rests.signal(Signal::STOP);
        stopped += 1;
        teller.goes_on(rng.i64(1..LONGEST / 2));
        if rng.bool() {
            teller.signal(Signal::STOP);
            killed_stopped += 1;
            rests.signal(Signal::CONT);
        }
        let place = teller.place;
        let did = teller.kill();
        let (books, counted) = audit(&client, place);
        rests.signal(Signal::CONT);
        let sum: i64 = books[..ACCOUNTS].iter().sum();
        assert_eq!(sum, TOTAL, "after teller {next}: {books:?}");
        let [moved_before, counted_before] =
            std::mem::replace(&mut before[place], [books[ACCOUNTS + place], counted]);
        let (moved, counted) = (books[ACCOUNTS + place] - moved_before, counted - counted_before);
        assert!((did..=did + 1).contains(&moved), "a teller reported {did}, and moved {moved}");
        assert!((did..=moved).contains(&counted), "a teller reported {did} of {moved}: {counted}");
        tellers.push(ClientStory::new(&pool, place, next));
    }
    tellers.into_iter().for_each(|teller| _ = teller.kill());
    let transfers: i64 = before.iter().map(|[moved, _]| moved).sum();
    println!(
        "{transfers} transfers; {kills} tellers were killed, {killed_stopped} of them while they were stopped, and \
         {stopped} were stopped"
    );
    assert!(transfers >= kills as i64, "{transfers}");
}

#[test]
fn the_sum_of_all_accounts_stays_whichever_client_is_killed() {
    nothing_is_lost_or_made(KILLS);
}

#[test]
#[ignore = "takes minutes"]
fn the_sum_of_all_accounts_stays_over_ten_thousand_kills() {
    nothing_is_lost_or_made(MANY_KILLS);
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
