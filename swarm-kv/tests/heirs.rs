//! A client is killed that held most of a pool. Its memory serves the others soon.

mod common;

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::own_time;
use swarm_kv::shm::{self, CreateOptions, OpenOptions, Pool};
use swarm_kv::{Error, Options};

/// Tells a re-executed test which pool to fill, and with how many values.
const POOL: &str = "SWARM_KV_TEST_POOL";
const VALUES: &str = "SWARM_KV_TEST_VALUES";
const SIZE: usize = 3000;
/// In so much of the survivor's processor time its memory must be of use again: what others have of a busy machine
/// does not count.
const WANTED: Duration = Duration::from_secs(2);

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Not a test by itself: what the client does that is killed.
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
    // It is killed in the middle of something.
    loop {
        let _ = client.blocking().update(&key(0), &[2; SIZE]);
    }
}

/// Has a child put so many values, or as many as there is room for, and kills it. Yields how many it put.
fn is_filled_by_one_who_dies(pool: &Path, values: usize) -> usize {
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

/// What the dead client stored is deleted, and as much stored again, but for a tenth: first its chunks
/// must become the survivor's, and what is in them known.
#[test]
fn memory_of_one_who_was_killed_serves_the_others_soon() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let survivor = shm::open(&pool, Options::default()).expect("a slot");
    let stored = is_filled_by_one_who_dies(pool.path(), usize::MAX);
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

/// A survivor takes over much of what the dead one held while there is free memory yet: who waits until there is none
/// has one operation find it all.
#[test]
fn what_the_dead_held_is_taken_over_before_memory_runs_out() {
    /// Less than half of what there is room for.
    const VALUES: usize = 3000;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 32 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let survivor = shm::open(&pool, Options::default()).expect("a slot");
    assert_eq!(is_filled_by_one_who_dies(pool.path(), VALUES), VALUES);
    let held_by_the_dead = || {
        let held = shm::holdings(&pool).expect("holdings");
        // The survivor came first.
        held.iter().filter(|it| it.client != Some(0)).map(|it| it.held_bytes).sum::<u64>()
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
