//! Threads of one process that share a pool's memory: what they were told is linearizable.
//!
//! With the thread sanitizer (`ci/threads.sh`) this shows as well that no memory is shared in
//! another way than by atomic words.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use swarm_core::history::{Answer, BUDGET, Call, Operation, check};
use swarm_kv::shm::{self, CreateOptions, Pool};
use swarm_kv::{Error, Options};

const THREADS: usize = 4;
const KEYS: u64 = 3;
const OPERATIONS: u64 = 3000;
/// Keys that move every second are written until there were so many moves.
const MOVES: u64 = 3 * KEYS;
/// They do not move if there were not by then.
const HANGS: Duration = Duration::from_secs(120);
/// Between operations of such a thread: it is to last, not to fill the history.
const PAUSE: Duration = Duration::from_micros(100);

/// What a thread did.
type Told = Result<Vec<Operation>, Error>;

/// What one thread did: all five operations on a few keys, of which it forgets where they are; or
/// gets and updates until there were that many moves of keys.
fn work(
    pool: &Pool,
    me: usize,
    since: Instant,
    (moves, wanted): (&AtomicU64, Option<u64>),
    ready: &Barrier,
) -> Told {
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
        let told = |done| if done { Answer::Done } else { Answer::Refused };
        let answer = match call {
            Call::Get => Answer::Value(store.get(&name)?.map(|value| {
                u64::from_le_bytes(*value.first_chunk().expect("values have eight bytes"))
            })),
            Call::Update(_) => told(store.update(&name, &value)?),
            Call::Put(_) => store.put(&name, &value).map(|()| Answer::Done)?,
            Call::Insert(_) => told(store.insert(&name, &value)?),
            Call::Delete => store.delete(&name).map(|()| Answer::Done)?,
        };
        let answered = Some((since.elapsed().as_nanos() as u64, answer));
        history.push(Operation { key, client: me, call, called, answered });
    }
    Ok(history)
}

/// What threads did in a pool like this, and how many keys they moved.
fn play(options: &CreateOptions, wanted: Option<u64>) -> (Vec<Operation>, u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let pool = &Pool::create(dir.path().join("pool"), options).expect("a pool");
    let (since, ready) = (Instant::now(), &Barrier::new(THREADS));
    let moves = &AtomicU64::new(0);
    let told: Vec<Told> = std::thread::scope(|scope| {
        let spawn = |me| scope.spawn(move || work(pool, me, since, (moves, wanted), ready));
        let threads: Vec<_> = (0..THREADS).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
    });
    let mut all = Vec::new();
    for told in told {
        all.extend(told.expect("all nodes answer, and there is room"));
    }
    if let Err(rejected) = check(&all, |_| None, BUDGET) {
        panic!("{rejected}");
    }
    (all, moves.load(Ordering::Relaxed))
}

#[test]
fn what_threads_are_told_is_linearizable() {
    let options = CreateOptions { nodes: 3, capacity: 64 << 20, ..CreateOptions::default() };
    let (all, _) = play(&options, None);
    assert_eq!(all.len() as u64, THREADS as u64 * OPERATIONS);
}

/// The timestamps of this pool end a second after a register's birth.
#[test]
fn keys_move_every_second_under_those_who_use_them() {
    let options =
        CreateOptions { capacity: 64 << 20, pointer_bits: Some(38), ..CreateOptions::default() };
    let (all, moves) = play(&options, Some(MOVES));
    assert!(moves >= MOVES, "{moves} moves in {HANGS:?}, {} operations", all.len());
}
