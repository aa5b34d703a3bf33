//! Clients that come and go more often than there are slots, some of them killed at any
//! instruction.

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use swarm_kv::shm::{self, Client, CreateOptions, OpenOptions, Pool};
use swarm_kv::{ClientUsage, Options};

/// For a re-executed test: which pool to use.
const POOL: &str = "SWARM_KV_TEST_POOL";
const SLOTS: usize = 6;
/// Clients of one child or thread before it ends.
const COMINGS: u64 = 1000;

/// Tests here run one after the other: a child that one starts shares the slots of the others'
/// clients until it calls `exec`.
static ALONE: Mutex<()> = Mutex::new(());

fn pool(capacity: u64) -> (MutexGuard<'static, ()>, tempfile::TempDir, Pool) {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity, max_clients: SLOTS, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    (alone, dir, pool)
}

/// On a busy machine a client that does not get the processor for a while blocks reclamation; the
/// others wait for it.
fn open(pool: &Pool) -> Client {
    let options = Options::default().cached_keys(16).cached_buckets(16).memory_wait(5_000_000_000);
    shm::open(pool, options).expect("there are more slots than clients")
}

/// One client attaches, does a little of everything, and leaves. Only it uses `name`.
fn come_and_go(pool: &Pool, name: u64, round: u64) {
    let client = open(pool);
    let (store, key) = (client.blocking(), [b"comes-".as_slice(), &name.to_le_bytes()].concat());
    let value = vec![round as u8; 10 + (round % 7 * 100) as usize];
    store.put(&key, &value).expect("a put");
    assert!(store.get(&key).expect("a get").as_deref() == Some(&value[..]), "{name} {round}");
    store.put(b"shared", &round.to_le_bytes()).expect("a put");
    assert!(store.get(b"stays").expect("a get").as_deref() == Some(b"here"));
    if round % 10 == 9 {
        store.delete(&key).expect("a delete");
        assert!(store.get(&key).expect("a get").is_none(), "{name} {round}");
    }
}

/// Not a test itself: what the children of the test below do.
#[test]
fn child() {
    let Some(path) = env::var_os(POOL) else { return };
    let pool = Pool::open(path, OpenOptions::default()).expect("the parent's pool");
    println!("says: ready");
    for round in 0..COMINGS {
        come_and_go(&pool, 1 << 32 | u64::from(std::process::id()), round);
    }
}

/// A child, ended when this is dropped.
struct Coming {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Coming {
    fn start(pool: &Path) -> Self {
        let mut command = Command::new(env::current_exe().expect("the test program"));
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
        let mut child = command.env(POOL, pool).stdout(Stdio::piped()).spawn().expect("a child");
        let lines = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, lines }
    }

    /// Kills it `pause` after its start, and returns whether it was still running.
    fn kill_after(mut self, pause: Duration) -> bool {
        let mut line = String::new();
        while !line.contains("says: ready") {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).expect("its output"), 0, "it has failed");
        }
        thread::sleep(pause);
        self.child.kill().expect("SIGKILL");
        let status = self.child.wait().expect("it ends");
        assert!(status.code().is_none_or(|code| code == 0), "{status}");
        !status.success()
    }
}

/// Checks what must hold of a pool that no client uses any more.
fn check_deserted(pool: &Pool, comings: u64) {
    assert_eq!(pool.live_clients(), [] as [usize; 0]);
    let clients: Vec<Client> = (0..SLOTS).map(|_| open(pool)).collect();
    for (slot, client) in clients.iter().enumerate() {
        let session = client.attachment().session();
        assert_eq!(session.client, slot, "every slot is free");
        assert!(session.incarnation.0 > comings, "{session:?} after {comings} comings");
        let store = client.blocking();
        store.put(b"shared", b"last").expect("a put");
        assert_eq!(store.get(b"stays").expect("a get").as_deref(), Some(&b"here"[..]));
    }
    let refused = pool.attach();
    assert!(refused.is_err(), "there is no slot more than {SLOTS}");
    let held = shm::client_usage(pool).expect("holdings");
    let sum = |bytes: fn(&ClientUsage) -> u64| held.iter().map(bytes).sum::<u64>();
    let usage = shm::usage(pool).expect("usage");
    let own = pool.geometry().first_chunk() as u64 * pool.geometry().chunk_bytes;
    assert_eq!(
        sum(|holding| holding.owned_bytes) + own,
        usage.used_bytes,
        "each chunk is somebody's"
    );
    assert!(sum(|holding| holding.allocated_bytes) >= usage.live_bytes, "{usage:?} {held:?}");
    println!("{comings} clients came; {} bytes used", usage.used_bytes);
}

/// Threads that attach and leave in order, at the same time.
fn let_threads_come(pool: &Pool, rounds: u64) {
    thread::scope(|scope| {
        for name in 0..4 {
            scope.spawn(move || (0..rounds).for_each(|round| come_and_go(pool, 10 + name, round)));
        }
    });
}

#[test]
fn more_clients_come_and_go_than_there_are_slots() {
    let (_alone, _dir, pool) = pool(64 << 20);
    open(&pool).blocking().put(b"stays", b"here").expect("a put");
    let_threads_come(&pool, COMINGS);
    check_deserted(&pool, 4 * COMINGS);
}

/// A client's writes that a delete refuses count as abandoned, and soon use up its numbers. It goes
/// on under another incarnation, with larger numbers, as often as necessary.
#[test]
fn a_client_whose_numbers_are_used_up_is_given_others() {
    /// How many abandoned writes one incarnation has numbers for.
    const ABANDONED: u64 = 1 << 13;
    const TIMES: u64 = 2;
    let (_alone, _dir, pool) = pool(4 << 20);
    let (writer, other) = (open(&pool), open(&pool));
    let first = pool.attach().expect("a slot").session().incarnation.0;
    for round in 0..TIMES * ABANDONED {
        writer.blocking().put(b"key", &round.to_le_bytes()).expect("a put");
        other.blocking().delete(b"key").expect("a delete");
        assert!(other.blocking().get(b"key").expect("a get").is_none(), "{round}");
    }
    writer.blocking().put(b"key", b"last").expect("a put");
    assert_eq!(other.blocking().get(b"key").expect("a get").as_deref(), Some(&b"last"[..]));
    let last = pool.attach().expect("a slot").session().incarnation.0;
    assert!(last > first + TIMES, "it wrote under {} incarnations", last - first);
}

/// Starts children, and kills each at a random moment. Returns how many were killed.
fn let_children_be_killed(pool: &Pool, children: usize, seed: u64) -> usize {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut killed = 0;
    let mut at_work: Vec<Coming> = (0..3).map(|_| Coming::start(pool.path())).collect();
    for number in 0..children {
        let next = at_work.remove(0);
        if number + 1 + at_work.len() < children {
            at_work.push(Coming::start(pool.path()));
        }
        let pause = Duration::from_micros(dice.u64(0..5000));
        killed += usize::from(next.kill_after(pause));
    }
    killed
}

#[test]
fn clients_killed_at_any_instruction_leave_their_slots_to_others() {
    let (_alone, _dir, pool) = pool(64 << 20);
    open(&pool).blocking().put(b"stays", b"here").expect("a put");
    let killed = let_children_be_killed(&pool, 60, 1);
    assert!(killed > 40, "{killed} of 60 children were killed");
    let comings = pool.attach().expect("a slot").session().incarnation.0;
    assert!(comings > 60, "{comings}");
    check_deserted(&pool, comings);
}

/// Clients attach and leave in threads, then some are killed, and all that once more. Returns the
/// memory in use after each half.
fn let_all_come(pool: &Pool, rounds: u64, children: usize) -> [u64; 2] {
    open(pool).blocking().put(b"stays", b"here").expect("a put");
    let used = [0, 1].map(|half| {
        let_threads_come(pool, rounds);
        let_children_be_killed(pool, children, half);
        shm::usage(pool).expect("usage").used_bytes
    });
    check_deserted(pool, 2 * 4 * rounds);
    used
}

/// Memory of clients that died or left is reclaimed: each takes more than one of the pool's 256
/// chunks, and none of eight thousand is refused any.
#[test]
fn memory_of_clients_that_died_or_left_is_not_lost() {
    let (_alone, _dir, pool) = pool(16 << 20);
    let_all_come(&pool, COMINGS, 30);
}

/// The second half takes no more memory than the first, which must have taken all it can.
#[test]
#[ignore = "takes two minutes"]
fn memory_of_clients_that_died_or_left_is_not_lost_for_long() {
    let (_alone, _dir, pool) = pool(16 << 20);
    let used = let_all_come(&pool, 5 * COMINGS, 60);
    let more = used[1].saturating_sub(used[0]);
    assert!(more <= SLOTS as u64 * pool.geometry().chunk_bytes, "{used:?}");
}
