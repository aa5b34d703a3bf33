//! A client that held most of a pool is killed. Its memory serves the others soon.

mod common;

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::own_time;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Error, GcStage, Options, block_on};

/// For a re-executed test: which pool to fill, and with how many values.
const POOL: &str = "SWARM_KV_TEST_POOL";
const VALUES: &str = "SWARM_KV_TEST_VALUES";
const SIZE: usize = 3000;
/// The survivor's processor time within which the memory must be usable again: what others take of
/// a busy machine does not count.
const WANTED: Duration = Duration::from_secs(2);

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Not a test itself: what the client does that is killed.
#[test]
fn child() {
    let Some(path) = env::var_os(POOL) else { return };
    let pool = Pool::open(path, OpenOptions::default()).expect("the parent's pool");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let values = env::var(VALUES).ok().and_then(|values| values.parse().ok()).expect("a number");
    let put = |number| match client.blocking().insert(&key(number), &[1; SIZE]) {
        Ok(true) => true,
        Err(Error::Full(_)) => false,
        other => panic!("key {number}: {other:?}"),
    };
    let stored = (0..values).take_while(|&number| put(number)).count();
    println!("says: {stored}");
    // It is killed in the middle of an operation.
    loop {
        let _ = client.blocking().update(&key(0), &[2; SIZE]);
    }
}

/// Lets a child put `values` values, or as many as there is room for, and kills it. Returns how
/// many it put.
fn is_filled_by_a_client_that_dies(pool: &Path, values: usize) -> usize {
    let mut command = Command::new(env::current_exe().expect("the test program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(POOL, pool).env(VALUES, values.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let stored = lines.find_map(|line| line.ok()?.split_once("says: ")?.1.parse().ok());
    std::thread::sleep(Duration::from_millis(5));
    child.kill().expect("SIGKILL");
    child.wait().expect("it ends");
    stored.expect("it fills the pool")
}

/// What the dead client stored is deleted, and as much stored again, except for a tenth. First its
/// chunks must become the survivor's, and their contents known.
#[test]
fn memory_of_a_killed_client_serves_the_others_soon() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let survivor = shm::open(&pool, Options::default()).expect("a slot");
    let stored = is_filled_by_a_client_that_dies(pool.path(), usize::MAX);
    let (since, store) = (own_time(), survivor.blocking());
    assert!(stored > 500, "{stored}");
    for number in 0..stored {
        store.delete(&key(number)).expect("a delete");
    }
    for number in 0..stored * 9 / 10 {
        let new = key(10_000 + number);
        while let Err(error) = store.insert(&new, &[3; SIZE]) {
            assert!(matches!(error, Error::Full(_)), "{error}");
            let took = own_time() - since;
            assert!(took < WANTED, "{number} of {stored} after {took:?}");
        }
    }
    let took = own_time() - since;
    println!(
        "{stored} values went, and {} came, in {took:?} (wanted: {WANTED:?})",
        stored * 9 / 10
    );
}

/// A survivor takes over much of the dead client's memory while there is free memory left:
/// otherwise one operation would have to do all of it when there is none.
#[test]
fn what_the_dead_held_is_taken_over_before_memory_runs_out() {
    /// Less than half of what there is room for.
    const VALUES: usize = 3000;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 32 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let survivor = shm::open(&pool, Options::default()).expect("a slot");
    assert_eq!(is_filled_by_a_client_that_dies(pool.path(), VALUES), VALUES);
    let held_by_the_dead = || {
        let held = shm::client_usage(&pool).expect("holdings");
        // The survivor attached first.
        held.iter().filter(|it| it.client != Some(0)).map(|it| it.owned_bytes).sum::<u64>()
    };
    let before = held_by_the_dead();
    let chunk = pool.geometry().chunk_bytes;
    for number in 0.. {
        survivor.blocking().insert(&key(10_000 + number), &[3; SIZE]).expect("there is room");
        if number % 100 > 0 {
            continue;
        }
        let free = options.capacity - shm::usage(&pool).expect("usage").used_bytes;
        assert!(free > options.capacity / 16, "after {number}, {} of {before}", held_by_the_dead());
        if held_by_the_dead() <= before / 2 + chunk {
            println!("{number} values came before that, {free} bytes were free");
            return;
        }
    }
}

/// Fills a pool, and deletes all keys except `kept`. Returns how many keys there were.
fn is_filled_with_garbage(pool: &Pool, kept: impl Fn(usize) -> bool) -> usize {
    let client = shm::open(pool, Options::default()).expect("a slot");
    let store = client.blocking();
    let stored = (0..).take_while(|&number| store.insert(&key(number), &[1; SIZE]).is_ok()).count();
    (0..stored)
        .filter(|&number| !kept(number))
        .for_each(|number| store.delete(&key(number)).expect("a delete"));
    stored
}

/// Returns what the first put of a new client costs: roundtrips and verbs.
type Cost = (usize, u64);

fn first_put(pool: &Pool, key: &[u8]) -> Cost {
    let client = shm::open(pool, Options::default()).expect("a slot");
    client.blocking().put(key, &[2; SIZE]).expect("memory");
    let put = client.counters().put;
    let roundtrips = put.roundtrips.iter().position(|&operations| operations > 0);
    (roundtrips.expect("there was one"), put.verbs)
}

/// Returns a pool that was once full of garbage, the cost of a first put in one that never was, and
/// how many keys there were.
fn with_garbage(kept: impl Fn(usize) -> bool) -> (tempfile::TempDir, Pool, Cost, usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let create = |name| Pool::create(dir.path().join(name), &options).expect("create");
    let usual = first_put(&create("fresh"), b"key");
    let pool = create("pool");
    let stored = is_filled_with_garbage(&pool, kept);
    (dir, pool, usual, stored)
}

/// What it takes to make the marks of a chunk of each of three kinds one's own (E8a): a CAS at two
/// nodes for each mark of three homes.
const ADOPTS: u64 = 3 * 3 * 2;

/// Clients attach one after another for one put each. Returns the costs of those that take more
/// than twice as many roundtrips or verbs as usual, apart from those that adopt marks.
fn pay_more(pool: &Pool, usual: Cost) -> Vec<Cost> {
    let puts = (0..24).map(|number| first_put(pool, format!("new {number}").as_bytes()));
    puts.filter(|cost| cost.0 > 2 * usual.0 || cost.1 > 2 * usual.1 + ADOPTS).collect()
}

/// Each process that attached for one put searched for the memory that the one before had found,
/// for ever.
#[test]
fn what_a_collection_found_is_for_clients_that_come_later() {
    let (_dir, pool, usual, _) = with_garbage(|number| number < 16);
    // One client has to search, and the next ones take the first of the chunks that it released.
    // Registers of deleted keys stay for another cycle: marks of more chunks are read.
    let paid = pay_more(&pool, usual);
    assert!(paid.len() <= 1, "{paid:?} roundtrips and verbs, where {usual:?} are usual");
}

/// What a first put costs grows with the chunks of its slot that are full: their marks are read. It
/// took a verb for each mark of a chunk, and a roundtrip for four chunks.
#[test]
fn a_first_put_reads_all_marks_of_a_chunk_at_once() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let (first, second) = (first_put(&pool, b"first"), first_put(&pool, b"second"));
    let client = shm::open(&pool, Options::default()).expect("a slot");
    for number in 0..330 {
        client.blocking().insert(&key(number), &[1; SIZE]).expect("memory");
    }
    drop(client);
    let chunks =
        shm::client_usage(&pool).expect("all nodes").iter().map(|it| it.chunks).sum::<usize>();
    // It claims a chunk of each kind, or takes ranges of those.
    assert_eq!([first, second], [(19, 98), (9, 42)]);
    // It looks for room in those of its slot: a verb for each at a majority, twelve at a time. Where
    // keys have their homes differs from pool to pool, and so does how many are full: it may have to
    // claim another one for the value, and one for the register, and to raise the mark of the records
    // that name them. A verb for each mark of a chunk would be three times as many.
    let claims = (2 * 4 + 1, 2 * 15 + 3);
    let third = first_put(&pool, b"third");
    let most = (second.0 + chunks.div_ceil(12) + claims.0, second.1 + 2 * chunks as u64 + claims.1);
    assert!(most.1 < second.1 + 3 * 2 * chunks as u64);
    assert!(third.0 <= most.0 && third.1 <= most.1, "{third:?}, not {most:?}, of {chunks} chunks");
}

/// Objects in use are all over the pool, so that no chunk becomes empty by itself.
#[test]
fn garbage_that_is_looked_for_comes_back_in_whole_chunks() {
    let (_dir, pool, usual, stored) = with_garbage(|number| number % 10 == 0);
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let mut stages = Vec::new();
    let gc = block_on(client.gc(&mut |stage| stages.push(stage))).expect("all nodes");
    assert!(gc.objects as usize >= stored * 8 / 10 && gc.moved > 0 && !gc.held_up, "{gc:?}");
    assert!(gc.chunks >= gc.free.1 / 2 && gc.free.0 >= gc.chunks, "{gc:?}");
    assert!(stages.contains(&GcStage::Moving) && stages.contains(&GcStage::Sweeping));
    assert!(stages.iter().any(|stage| matches!(stage, GcStage::Marking(done, all) if done <= all)));
    drop(client);
    let paid = pay_more(&pool, usual);
    assert!(paid.is_empty(), "{paid:?} roundtrips and verbs, where {usual:?} are usual");
    let client = shm::open(&pool, Options::default()).expect("a slot");
    for number in 0..stored {
        let found = client.blocking().get(&key(number)).expect("all is well");
        assert_eq!(found.is_some(), number % 10 == 0, "key {number}");
    }
}

/// Chunks of attached clients stay theirs, and those of dead clients are released.
#[test]
fn what_the_dead_held_is_given_back() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let other = shm::open(&pool, Options::default()).expect("a slot");
    let store = other.blocking();
    (0..200).for_each(|number| store.put(&key(10_000 + number), &[1; SIZE]).expect("memory"));
    let stored = is_filled_by_a_client_that_dies(pool.path(), usize::MAX);
    (0..stored).for_each(|number| store.delete(&key(number)).expect("a delete"));
    let held = || {
        shm::client_usage(&pool)
            .expect("all nodes")
            .into_iter()
            .map(|it| (it.client, it.chunks))
            .collect::<Vec<_>>()
    };
    let before = held();
    let client = shm::open(&pool, Options::default()).expect("a slot");
    let gc = block_on(client.gc(&mut |_| ())).expect("all nodes");
    drop(client);
    let after = held();
    let of = |held: &[(Option<usize>, usize)], slot| {
        held.iter().find(|it| it.0 == Some(slot)).map_or(0, |it| it.1)
    };
    assert!(
        of(&before, 1) > 50 && of(&after, 1) < of(&before, 1) / 5,
        "{before:?}, then {after:?}: {gc:?}"
    );
    assert_eq!(of(&before, 0), of(&after, 0), "{gc:?}");
    (0..200).for_each(|number| {
        assert!(store.get(&key(10_000 + number)).expect("all is well").is_some())
    });
}
