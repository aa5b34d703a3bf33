//! Processes that hold a lock are killed and stopped. What they do under it is written to a file, whose lines show which one
//! held it when.

use std::env;
use std::fs::{self, File, OpenOptions as FileOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use swarm_kv::Options;
use swarm_kv::objects::ObjectError;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};

/// For a re-executed test: which pool to use, and what to do there.
const POOL: &str = "SWARM_KV_TEST_POOL";
const ROLE: &str = "SWARM_KV_TEST_ROLE";
const LOCK: &[u8] = b"lock";
const CHILDREN: usize = 4;
/// Clients that are killed; in the environment, how many instead.
const KILLS: usize = 60;
const MORE_KILLS: &str = "SWARM_KV_TEST_KILLS";
/// Bytes of a line of what holders write.
const LINE: u64 = 12;
const ACCOUNTS: usize = 8;
/// What they have together.
const MONEY: u64 = 8_000;
const JOURNAL: &[u8] = b"journal";
const PERMITS: u32 = 3;

fn kills() -> usize {
    let more = env::var(MORE_KILLS).ok().map(|number| number.parse().expect("a number"));
    more.unwrap_or(KILLS)
}

/// Where the lines are.
fn log_of(pool: &Path) -> PathBuf {
    pool.with_extension("log")
}

fn report(what: impl std::fmt::Display) {
    println!("says: {what}");
}

/// Not a test itself: what the children of the tests below do.
#[test]
fn child() {
    let (Some(path), Ok(role)) = (env::var_os(POOL), env::var(ROLE)) else { return };
    let pool = Pool::open(&path, OpenOptions::default()).expect("the parent's pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let lock = client.blocking().lock(LOCK);
    match role.as_str() {
        "again and again" => {
            let mut log = FileOptions::new().append(true).open(log_of(path.as_ref()));
            let log = log.as_mut().expect("the parent's file");
            loop {
                let guard = lock.acquire().expect("a small pool");
                // One write each: lines come whole and in order.
                let line = |what: &str| format!("{what} {}\n", guard.token());
                log.write_all(line("enters").as_bytes()).expect("a file");
                std::thread::yield_now();
                log.write_all(line("leaves").as_bytes()).expect("a file");
                guard.release().expect("it is held");
            }
        }
        "bank" => loop {
            let mut guard = lock.acquire().expect("a small pool");
            if opens(&client, &mut guard) {
                report("settled");
            }
            let token = guard.token();
            let (from, to) = (token as usize % ACCOUNTS, (token / 8) as usize % ACCOUNTS);
            let sum = (0..ACCOUNTS).map(|account| balance(&client, account)).sum::<u64>();
            if sum != MONEY {
                report(format_args!("wrong: {sum} under token {token}"));
                return;
            }
            transfers(&client, from, to, token % 100);
            guard.release().expect("it is held");
        },
        "hold" => {
            let guard = lock.acquire().expect("a small pool");
            report(guard.token());
            // Until the parent writes a line.
            let mut line = String::new();
            std::io::stdin().read_line(&mut line).expect("the parent");
            report(format_args!("{:?}", guard.release()));
        }
        "write" => {
            let lock = client.blocking().rw_lock(LOCK);
            let guard = lock.write().acquire().expect("a small pool");
            held_until_killed(guard.token())
        }
        "permits" => {
            let semaphore = client.blocking().semaphore(LOCK, PERMITS);
            let all = semaphore.many(PERMITS);
            let guard = all.acquire().expect("a small pool");
            held_until_killed(guard.token())
        }
        "begin" => {
            let once = client.blocking().once(LOCK);
            let doing = once.begin().expect("a small pool").expect("it is the first");
            held_until_killed(doing.token())
        }
        "join" => {
            let barrier = client.blocking().barrier(LOCK, 2);
            let mut member = barrier.join().expect("a small pool");
            held_until_killed(member.seat().slot as u64)
        }
        other => panic!("no such role: {other}"),
    }
}

type Client = shm::Client;
type Guard<'l> = swarm_kv::objects::BlockingGuard<
    'l,
    shm::Plain,
    shm::PoolClock,
    swarm_core::register::safe_guess::SafeGuess,
>;

fn account(number: usize) -> Vec<u8> {
    format!("account {number}").into_bytes()
}

fn balance(client: &Client, number: usize) -> u64 {
    let value = client.blocking().get(&account(number)).expect("nodes answer").expect("an account");
    std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).expect("a number")
}

fn has(client: &Client, number: usize, balance: u64) {
    client.blocking().put(&account(number), balance.to_string().as_bytes()).expect("memory");
}

/// Moves money from one account to another, each of which is a register of its own. The journal says what both come to, until
/// both do.
fn transfers(client: &Client, from: usize, to: usize, amount: u64) {
    let have = balance(client, from);
    if from == to || have < amount {
        return;
    }
    let (less, more) = (have - amount, balance(client, to) + amount);
    let journal = format!("{from} {less} {to} {more}");
    client.blocking().put(JOURNAL, journal.as_bytes()).expect("memory");
    has(client, from, less);
    std::thread::yield_now();
    has(client, to, more);
    client.blocking().put(JOURNAL, b"").expect("memory");
}

/// If a holder was killed, settles all keys, and does what the journal says. Returns whether one was.
fn opens(client: &Client, guard: &mut Guard<'_>) -> bool {
    if !guard.is_unsettled() {
        return false;
    }
    let mut keys: Vec<_> = (0..ACCOUNTS).map(account).collect();
    keys.push(JOURNAL.to_vec());
    // A process that is killed in here is followed by one that finds it unsettled again.
    guard.settle(&keys).expect("it is held");
    let journal = client.blocking().get(JOURNAL).expect("nodes answer").expect("it is there");
    let text = String::from_utf8(journal.to_vec()).expect("text");
    let words: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    if let [from, less, to, more] = words[..] {
        has(client, from as usize, less);
        has(client, to as usize, more);
        client.blocking().put(JOURNAL, b"").expect("memory");
    }
    true
}

fn held_until_killed(token: u64) -> ! {
    report(token);
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// A child at work.
struct Running {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(role: &str, pool: &Path) -> Self {
        let mut command = Command::new(env::current_exe().expect("the test program"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        command.env(POOL, pool).env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("a child");
        let lines = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, lines }
    }

    /// What it reports next.
    fn receive(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).expect("its output") > 0, "it ended");
            if let Some((_, report)) = line.trim_end().split_once("says: ") {
                return report.to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.process);
        kill_process(process, signal).expect("it is a child");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pool() -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 16 << 20, max_clients: 8, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    File::create(log_of(pool.path())).expect("a file");
    (dir, pool)
}

/// Holders and waiters are killed at any instruction: the lock has one holder at a time, whose token is larger than all
/// before it, and goes on.
#[test]
fn killed_clients_wedge_no_lock() {
    let (_dir, pool) = pool();
    let start = || Running::start("again and again", pool.path());
    let mut children: Vec<_> = (0..CHILDREN).map(|_| start()).collect();
    let written = || fs::metadata(log_of(pool.path())).expect("a file").len();
    let (mut seen, mut longest) = (0, Duration::ZERO);
    for kill in 0..kills() {
        // It goes on after each of them.
        let since = Instant::now();
        while written() <= seen + 4 * LINE {
            assert!(
                since.elapsed() < Duration::from_secs(100),
                "after {kill} kills it stands still"
            );
            std::thread::sleep(Duration::from_micros(500));
        }
        longest = longest.max(since.elapsed());
        let victim = &mut children[kill % CHILDREN];
        victim.process.kill().expect("SIGKILL");
        victim.process.wait().expect("it ends");
        seen = written();
        *victim = start();
    }
    drop(children);
    let log = fs::read_to_string(log_of(pool.path())).expect("a file");
    let (mut last, mut entered) = (0, 0);
    for line in log.lines() {
        let (what, token) = line.split_once(' ').expect("two words");
        let token: u64 = token.parse().expect("a number");
        if what == "enters" {
            assert!(token > last, "{token} after {last}");
            last = token;
            entered += 1;
        }
        assert_eq!(token, last, "it {what} though another one holds it");
    }
    let kills = kills();
    println!("held {entered} times, last token {last}, {kills} kills, longest pause {longest:?}");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let lock = client.blocking().lock(LOCK);
    assert!(lock.acquire().expect("all are dead").token() > last);
}

/// Tellers are killed in the middle of transfers between accounts that a lock guards: a process that takes over learns of it, settles the accounts and
/// ends the transfer. No money comes or goes.
#[test]
fn a_bank_whose_tellers_are_killed_loses_no_money() {
    let (_dir, pool) = pool();
    let client = shm::open(&pool, Options::default()).expect("a slot");
    (0..ACCOUNTS).for_each(|number| has(&client, number, MONEY / ACCOUNTS as u64));
    client.blocking().put(JOURNAL, b"").expect("memory");
    let start = || Running::start("bank", pool.path());
    let mut children: Vec<_> = (0..CHILDREN).map(|_| start()).collect();
    let lock = client.blocking().lock(LOCK);
    let (mut settled, mut last) = (0, 0);
    for kill in 0..kills() {
        // It goes on after each of them.
        let since = Instant::now();
        let mut token = last;
        while token <= last + 2 {
            assert!(since.elapsed() < Duration::from_secs(100), "it stands still: {kill} kills");
            std::thread::sleep(Duration::from_micros(300 + 37 * (kill as u64 % 11)));
            token = lock.view().expect("nodes answer").token;
        }
        last = token;
        let victim = &mut children[kill % CHILDREN];
        victim.process.kill().expect("SIGKILL");
        victim.process.wait().expect("it ends");
        let mut rest = String::new();
        let _ = std::io::Read::read_to_string(&mut victim.lines, &mut rest);
        assert!(!rest.contains("wrong"), "{rest}");
        settled += rest.matches("settled").count();
        *victim = start();
        if kill % 10 == 9 {
            let mut guard = lock.acquire().expect("a small pool");
            settled += usize::from(opens(&client, &mut guard));
            let sum = (0..ACCOUNTS).map(|number| balance(&client, number)).sum::<u64>();
            assert_eq!(sum, MONEY, "after {kill} kills");
            last = guard.token();
        }
    }
    println!("{} kills, last token {last}, settled {settled} times", kills());
}

/// A stopped holder keeps the lock, until it is evicted; then it gets an error, and changes nothing.
#[test]
fn a_stopped_holder_keeps_the_lock_until_it_is_evicted() {
    let (_dir, pool) = pool();
    let mut stopped = Running::start("hold", pool.path());
    let token: u64 = stopped.receive().parse().expect("a token");
    stopped.signal(Signal::STOP);
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let lock = client.blocking().lock(LOCK);
    assert!(lock.acquire_within(Duration::from_millis(50)).expect("a small pool").is_none());
    assert_eq!(lock.view().expect("nodes answer").holders[0].token, token);
    assert_eq!(lock.evict(token), Ok(true));
    let guard = lock.try_acquire().expect("a small pool").expect("it is free");
    assert!(guard.token() > token);
    stopped.signal(Signal::CONT);
    stopped.process.stdin.take().expect("its input").write_all(b"\n").expect("it reads");
    let expected = format!("{:?}", Err::<(), _>(ObjectError::TakenAway { token }));
    assert_eq!(stopped.receive(), expected);
    assert_eq!(guard.is_held(), Ok(true));
}

/// The one that waits has the lock once the kernel has let go of the dead one's slot, whatever client attaches there then.
#[test]
fn who_waits_takes_over_from_a_killed_holder() {
    let (_dir, pool) = pool();
    let mut holder = Running::start("hold", pool.path());
    let token: u64 = holder.receive().parse().expect("a token");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let lock = client.blocking().lock(LOCK);
    assert!(lock.try_acquire().expect("a small pool").is_none());
    holder.process.kill().expect("SIGKILL");
    holder.process.wait().expect("it ends");
    // It has the slot of the dead one.
    let _other = shm::open(&pool, Options::default()).expect("a slot");
    let guard = lock.acquire().expect("a small pool");
    assert_eq!(guard.token(), token + 1);
}

/// Killed while it wrote, had all permits, was doing what is done once, and was a member of a barrier: each of them goes on.
#[test]
fn no_object_waits_for_a_killed_client() {
    for role in ["write", "permits", "begin", "join"] {
        let (_dir, pool) = pool();
        let mut holder = Running::start(role, pool.path());
        let token: u64 = holder.receive().parse().expect("a number");
        let client = shm::open(&pool, Options::default()).expect("a slot");
        let store = client.blocking();
        let (lock, once) = (store.rw_lock(LOCK), store.once(LOCK));
        let (semaphore, barrier) = (store.semaphore(LOCK, PERMITS), store.barrier(LOCK, 2));
        let mut member = (role == "join").then(|| barrier.join().expect("a small pool"));
        let short = Duration::from_millis(10);
        match role {
            "write" => assert!(lock.read().acquire_within(short).expect("memory").is_none()),
            "permits" => assert!(semaphore.one().acquire_within(short).expect("memory").is_none()),
            "begin" => {}
            _ => {
                let member = member.as_mut().expect("it has joined");
                assert_eq!(member.wait_within(short), Ok(None));
            }
        }
        holder.process.kill().expect("SIGKILL");
        holder.process.wait().expect("it ends");
        match role {
            "write" => assert_eq!(lock.read().acquire().expect("memory").token(), token + 1),
            "permits" => assert_eq!(semaphore.one().acquire().expect("memory").token(), token + 1),
            "begin" => {
                let doing = once.begin().expect("memory").expect("it was not done");
                assert_eq!(doing.token(), token + 1);
                doing.done().expect("memory");
                assert!(once.begin().expect("memory").is_none());
            }
            _ => {
                let member = member.as_mut().expect("it has joined");
                let met = member.wait().expect("memory");
                assert_eq!((met.generation, met.members), (1, vec![member.seat()]));
            }
        }
    }
}
