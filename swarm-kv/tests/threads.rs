//! Threads of one process that share a pool's memory: their answers are linearizable.
//!
//! With the thread sanitizer (`ci/threads.sh`) this also shows that memory is shared only by atomic
//! words.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use swarm_core::history::{Answer, BUDGET, Call, Operation, check};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, CreateOptions, Pool};
use swarm_kv::{Cursor, Error, Options, Store, StoreOptions, block_on};

const THREADS: usize = 4;
const KEYS: u64 = 3;
const OPERATIONS: u64 = 3000;
/// The same, if the threads share a handle.
const SHARED_OPERATIONS: u64 = 1000;
/// Keys that move every second are written until there were this many moves.
const MOVES: u64 = 3 * KEYS;
/// If there were not by then, they do not move.
const HANGS: Duration = Duration::from_secs(120);
/// Between operations of such a thread: it should last, not fill the history.
const PAUSE: Duration = Duration::from_micros(100);

/// What a thread did.
type Outcome = Result<Vec<Operation>, Error>;

/// Runs one thread's operations: all five on a few keys, whose locations it drops from its cache;
/// or gets and updates until there were enough moves of keys.
fn work(
    pool: &Pool,
    me: usize,
    since: Instant,
    (moves, wanted): (&AtomicU64, Option<u64>),
    ready: &Barrier,
) -> Outcome {
    let client = shm::open(pool, Options::default().cached_keys(2).cached_buckets(1))
        .expect("there is a slot for each thread");
    let store = client.blocking();
    let mut rng = fastrand::Rng::with_seed(me as u64);
    let mut history = Vec::new();
    ready.wait();
    let mut moved = 0;
    for nth in 0.. {
        let moved_before = std::mem::replace(&mut moved, client.counters().moved);
        let so_far = moves.fetch_add(moved - moved_before, Ordering::Relaxed);
        match wanted {
            None if nth == OPERATIONS => break,
            Some(wanted) if so_far >= wanted || since.elapsed() > HANGS => break,
            None => {}
            Some(_) => std::thread::sleep(PAUSE),
        }
        let key = rng.u64(..KEYS);
        let name = [b'a' + key as u8; 9];
        let number = nth * THREADS as u64 + me as u64 + 1;
        let value = number.to_le_bytes();
        let call = match rng.u8(..10) {
            0..4 => Call::Get,
            4..6 => Call::Update(number),
            7..10 if wanted.is_some() => Call::Update(number),
            6 => Call::Put(number),
            7..9 => Call::Insert(number),
            _ => Call::Delete,
        };
        let called = since.elapsed().as_nanos() as u64;
        let outcome = |done| if done { Answer::Done } else { Answer::Refused };
        let answer = match call {
            Call::Get => Answer::Value(store.get(&name)?.map(|value| {
                u64::from_le_bytes(*value.first_chunk().expect("values have eight bytes"))
            })),
            Call::Update(_) => outcome(store.update(&name, &value)?),
            Call::Put(_) => store.put(&name, &value).map(|()| Answer::Done)?,
            Call::Insert(_) => outcome(store.insert(&name, &value)?),
            Call::Delete => store.delete(&name).map(|()| Answer::Done)?,
            _ => unreachable!("it is none of those above"),
        };
        let answered = Some((since.elapsed().as_nanos() as u64, answer));
        history.push(Operation { key, client: me, call, called, answered });
    }
    Ok(history)
}

/// Runs threads on such a pool. Returns their operations, and how many keys they moved.
fn play(options: &CreateOptions, wanted: Option<u64>) -> (Vec<Operation>, u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = &Pool::create(dir.path().join("pool"), options).expect("a pool");
    let (since, ready) = (Instant::now(), &Barrier::new(THREADS));
    let moves = &AtomicU64::new(0);
    let outcome: Vec<Outcome> = std::thread::scope(|scope| {
        let spawn = |me| scope.spawn(move || work(pool, me, since, (moves, wanted), ready));
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let mut all = Vec::new();
    for outcome in outcome {
        all.extend(outcome.expect("all nodes answer, and there is room"));
    }
    if let Err(rejected) = check(&all, |_| None, BUDGET) {
        panic!("{rejected}");
    }
    (all, moves.load(Ordering::Relaxed))
}

/// Scans all keys again and again until the others are done: each key is recorded as if it was got
/// at some moment of the scan. Every second scan uses the asynchronous path.
fn walk(pool: &Pool, since: Instant, done: &AtomicU64) -> Outcome {
    let near = shm::open(pool, Options::default()).expect("there is a slot");
    let far = shm::open_emulated::<SafeGuess>(pool, Options::default(), 2000);
    let far = far.expect("there is a slot");
    let mut history = Vec::new();
    for time in 0.. {
        if time > 1 && done.load(Ordering::Acquire) == THREADS as u64 {
            break;
        }
        let called = since.elapsed().as_nanos() as u64;
        let (mut cursor, mut outcome) = (Cursor::new(), [None; KEYS as usize]);
        let mut each = |key: &[u8], value: &[u8]| {
            let value = u64::from_le_bytes(*value.first_chunk().expect("values have eight bytes"));
            let twice = outcome[usize::from(key[0] - b'a')].replace(value);
            assert_eq!(twice, None, "a key is reported once");
        };
        while match time % 2 {
            0 => near.blocking().next_keys(&mut cursor, &mut each)?,
            _ => far.blocking().next_keys(&mut cursor, &mut each)?,
        } {}
        let answered = since.elapsed().as_nanos() as u64;
        for (key, value) in (0..).zip(outcome) {
            let (call, answered) = (Call::Get, Some((answered, Answer::Value(value))));
            // Reads of one walk overlap, and those of one client do not.
            let client = THREADS + key as usize;
            history.push(Operation { key, client, call, called, answered });
        }
    }
    Ok(history)
}

/// A scan of all keys while others change them is linearizable for each key by itself.
#[test]
fn a_walk_over_all_keys_is_linearizable_key_by_key() {
    let options = CreateOptions { capacity: 8 << 20, ..CreateOptions::default() };
    let dir = tempfile::tempdir().expect("a directory");
    let pool = &Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let (since, ready) = (Instant::now(), &Barrier::new(THREADS));
    let (moves, done) = (&AtomicU64::new(0), &AtomicU64::new(0));
    let all = std::thread::scope(|scope| {
        let walker = scope.spawn(move || walk(pool, since, done));
        let spawn = |me| {
            scope.spawn(move || {
                let outcome = work(pool, me, since, (moves, None), ready);
                done.fetch_add(1, Ordering::Release);
                outcome
            })
        };
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        let threads = threads.into_iter().chain([walker]);
        let outcome = threads.map(|thread| thread.join().expect("no thread panics"));
        outcome.collect::<Result<Vec<_>, Error>>().expect("all nodes answer, and there is room")
    });
    let walks = all.last().map_or(0, Vec::len) / KEYS as usize;
    if let Err(rejected) = check(&all.concat(), |_| None, BUDGET) {
        panic!("{walks} walks: {rejected}");
    }
}

#[test]
fn what_threads_see_is_linearizable() {
    let options = CreateOptions { nodes: 3, capacity: 64 << 20, ..CreateOptions::default() };
    let (all, _) = play(&options, None);
    assert_eq!(all.len() as u64, THREADS as u64 * OPERATIONS);
}

/// The timestamps of this pool end a second after a register's creation.
#[test]
fn keys_move_every_second_under_clients_that_use_them() {
    let options =
        CreateOptions { capacity: 64 << 20, pointer_bits: Some(38), ..CreateOptions::default() };
    let (all, moves) = play(&options, Some(MOVES));
    assert!(moves >= MOVES, "{moves} moves in {HANGS:?}, {} operations", all.len());
}

/// Runs one thread's operations, on a handle that others use as well.
fn use_handle(store: &Store, me: usize, since: Instant) -> Outcome {
    let mut rng = fastrand::Rng::with_seed(me as u64);
    let mut history = Vec::new();
    for nth in 0..SHARED_OPERATIONS {
        let key = rng.u64(..KEYS);
        let name = [b'a' + key as u8; 9];
        let number = nth * THREADS as u64 + me as u64 + 1;
        let value = number.to_le_bytes();
        let call = match rng.u8(..10) {
            0..4 => Call::Get,
            4..6 => Call::Update(number),
            6 => Call::Put(number),
            7..9 => Call::Insert(number),
            _ => Call::Delete,
        };
        let called = since.elapsed().as_nanos() as u64;
        let outcome = |done| if done { Answer::Done } else { Answer::Refused };
        let read = |value: &[u8]| u64::from_le_bytes(*value.first_chunk().expect("eight bytes"));
        let answer = match call {
            Call::Get => Answer::Value(block_on(store.read(&name, read))?),
            Call::Update(_) => outcome(block_on(store.update(&name, &value))?),
            Call::Put(_) => store.blocking().put(&name, &value).map(|()| Answer::Done)?,
            Call::Insert(_) => outcome(store.blocking().insert(&name, &value)?),
            Call::Delete => block_on(store.delete(&name)).map(|()| Answer::Done)?,
            _ => unreachable!("it is none of those above"),
        };
        let answered = Some((since.elapsed().as_nanos() as u64, answer));
        history.push(Operation { key, client: me, call, called, answered });
    }
    Ok(history)
}

/// More threads than clients: each client serves one thread after another.
#[test]
fn threads_that_share_a_handle_see_what_is_linearizable() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { nodes: 3, capacity: 64 << 20, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let options = StoreOptions::default().clients(THREADS / 2);
    let store = Store::of(&pool, options.client(Options::default().cached_keys(2)));
    let (store, since) = (&store.expect("a free slot"), Instant::now());
    let outcome: Vec<Outcome> = std::thread::scope(|scope| {
        let spawn = |me| scope.spawn(move || use_handle(store, me, since));
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let mut all = Vec::new();
    for outcome in outcome {
        all.extend(outcome.expect("all nodes answer, and there is room"));
    }
    if let Err(rejected) = check(&all, |_| None, BUDGET) {
        panic!("{rejected}");
    }
    assert_eq!(all.len() as u64, THREADS as u64 * SHARED_OPERATIONS);
}
