//! A pool of which a node is silent for good. Buffers that this node would have to hold cannot be
//! reused.

use std::cell::Cell;

use swarm_core::clock::Clock;
use swarm_core::fabric::latency::Delayed;
use swarm_core::node::NodeId;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, Client, CreateOptions, Emulated, Pool};
use swarm_kv::{Error, Options};
use swarm_shm::SwitchState;

const SIZE: usize = 1024;
const ROUNDTRIP: u64 = 1000;

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(number: usize, round: u8) -> Vec<u8> {
    let mut value = vec![round; SIZE];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// So many writes are refused.
const ENOUGH: usize = 50;
/// Roundtrips that one takes at most while the failure of a search for memory is remembered.
const REFUSED: u32 = 10;
/// Roundtrips of a search. It is remembered for as long as it took: then a refused write searches anew.
const SEARCH: u32 = 40;

fn small_pool() -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    (dir, pool)
}

fn attach(pool: &Pool) -> Client<SafeGuess, Emulated> {
    let options = Options::default().reclaimed_at_once(1).memory_wait(1_000_000);
    shm::open_emulated::<SafeGuess>(pool, options, ROUNDTRIP).expect("a slot")
}

/// Puts `keys` keys, and updates each `times` times with node 1 down. Returns how many updates were
/// refused.
fn refused(keys: usize, times: u8) -> usize {
    let (_dir, pool) = small_pool();
    let client = attach(&pool);
    let store = client.blocking();
    for number in 0..keys {
        assert_eq!(store.insert(&key(number), &value(number, 0)), Ok(true));
    }
    pool.switch(NodeId(1)).set(SwitchState::Down);
    let (mut refused, mut searches, mut rounds) = (0, 0, vec![0; keys]);
    for round in 1..=times {
        for (number, written) in rounds.iter_mut().enumerate() {
            match store.update(&key(number), &value(number, round)) {
                Ok(true) => *written = round,
                Err(Error::Full(_)) => {
                    refused += 1;
                    assert!(client.last().roundtrips <= SEARCH, "{:?}", client.last());
                    searches += usize::from(client.last().roundtrips > REFUSED);
                }
                outcome => panic!("update {round} of key {number} of {keys}: {outcome:?}"),
            }
            if refused == ENOUGH {
                break;
            }
        }
        for (number, &round) in rounds.iter().enumerate() {
            let read = store.get(&key(number)).expect("a get").expect("the key is there");
            assert_eq!(read[..], value(number, round), "key {number} of {keys}");
        }
    }
    // Those that follow a search take no longer than it did: some of them go by it.
    assert!(searches <= 1 + refused / 4, "{searches} of {refused} refused writes searched");
    refused
}

/// Updates while a node is silent take other buffers, as if there were that many more keys.
#[test]
fn a_pool_that_is_not_half_full_is_written_on_with_a_node_less() {
    assert_eq!(refused(2000, 3), 0);
}

#[test]
fn a_pool_that_is_nearly_full_is_read_on_with_a_node_less() {
    let refused = refused(4800, 1);
    assert!(refused > 0, "it is not nearly full");
}

/// A full pool, whose reserve went to values that grow, loses a node in the middle of updates:
/// operations in progress there cannot be completed, and their key has to move before it can be
/// read.
#[test]
fn a_full_pool_is_read_on_when_a_node_falls_silent() {
    let (_dir, pool) = small_pool();
    let client = attach(&pool);
    let store = client.blocking();
    let keys = (0..)
        .find(|&number| store.insert(&key(number), &value(number, 0)) != Ok(true))
        .expect("it is full in the end");
    let grown = [1; 2 * SIZE];
    let latest = (keys / 2..keys).rev();
    let refused = latest.filter(|&number| store.update(&key(number), &grown).is_err());
    assert_eq!(refused.take(ENOUGH).count(), ENOUGH);
    for (number, round) in (0..4 * ENOUGH).flat_map(|number| [(number, 1), (number, 2)]) {
        assert_eq!(store.update(&key(number), &value(number, round)), Ok(true));
    }
    pool.switch(NodeId(1)).set(SwitchState::Down);
    for number in 0..ENOUGH {
        let updated = store.update(&key(number), &value(number, 3));
        let refused = matches!(updated, Err(Error::Full(_) | Error::Unsettled(_)));
        assert!(updated == Ok(true) || refused, "key {number}: {updated:?}");
    }
    let fresh = attach(&pool);
    for number in 0..keys {
        for store in [&store, &fresh.blocking()] {
            let read = store.get(&key(number));
            assert!(read.is_ok_and(|value| value.is_some()), "key {number} of {keys}");
        }
    }
}

/// One key comes and goes, again and again, until its garbage is all the memory there is: objects
/// that must be zeroed at every node. With a node gone none of it is reclaimed, and an operation
/// that needs some is refused before it posts anything for the second time.
#[test]
fn a_full_pool_says_so_soon_though_a_node_is_gone() {
    for gone in [NodeId(0), NodeId(1), NodeId(2)] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options =
            CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        let client =
            shm::open_emulated::<SafeGuess>(&pool, Options::default(), ROUNDTRIP).expect("a slot");
        let store = client.blocking();
        let call = |number: usize| {
            let value = vec![number as u8; 12 + number % 40];
            match number % 4 {
                0 => store.put(b"key", &value),
                1 => store.get(b"key").map(drop),
                2 => store.delete(b"key"),
                _ => store.insert(b"key", &value).map(drop),
            }
        };
        let mut first = 0;
        // Until memory is reclaimed.
        while client.counters().reclaimed < 2000 {
            call(first).expect("there is room");
            first += 1;
        }
        pool.switch(gone).set(SwitchState::Down);
        let (mut refused, mut longest, mut verbs) = (0, 0, 0);
        for number in first.. {
            let before = client.counters();
            match call(number) {
                Ok(()) => continue,
                Err(Error::Full(_)) => refused += 1,
                Err(error) => panic!("{number}: {error}"),
            }
            let took = client.last();
            let posted = client.counters() - before;
            assert_eq!(posted.events.slow, 0, "a write was posted, and refused by a delete");
            longest = longest.max(took.roundtrips);
            verbs = verbs.max(took.verbs);
            if refused == ENOUGH {
                break;
            }
        }
        assert!(longest <= REFUSED, "{gone} is gone: {longest} roundtrips until it was known");
        assert!(verbs <= 3 * u64::from(REFUSED), "{gone} is gone: {verbs} verbs");
    }
}

/// A clock that advances at each reading and, once in so many readings, by more than the timeout of
/// a node, as if its client did not get the processor.
struct Held {
    now: Cell<u64>,
    looks: Cell<u64>,
    every: u64,
}

impl Clock for Held {
    fn now(&self) -> u64 {
        let look = self.looks.get() + 1;
        self.looks.set(look);
        let passed = if look.is_multiple_of(self.every) { 50_000_000 } else { 100 };
        self.now.set(self.now.get() + passed);
        self.now.get()
    }
}

/// One key comes and goes, so that the only memory is what is zeroed at every node. All nodes are
/// there, and a client that loses the processor at any moment does not take one for silent: none of
/// its writes is refused.
#[test]
fn a_client_without_a_processor_is_refused_nothing() {
    for every in [61, 97, 151] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let options =
            CreateOptions { capacity: 4 << 20, max_clients: 4, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
        let (now, looks) = (Cell::new(0), Cell::new(0));
        let clock = Held { now, looks, every };
        let attachment = pool.attach().expect("a slot");
        let client: swarm_kv::Client<_, _, SafeGuess> = swarm_kv::Client::new(
            Delayed::new(pool.fabric(), &clock, ROUNDTRIP),
            &clock,
            pool.geometry(),
            attachment.session(),
            Options::default(),
        );
        let client = client.with_epochs(attachment.domain());
        let store = client.blocking();
        for number in 0.. {
            if client.counters().reclaimed > 4000 {
                break;
            }
            let value = vec![number as u8; 12 + number % 40];
            let outcome = match number % 4 {
                0 => store.put(b"key", &value),
                1 => store.get(b"key").map(drop),
                2 => store.delete(b"key"),
                _ => store.insert(b"key", &value).map(drop),
            };
            assert_eq!(outcome, Ok(()), "operation {number}, held up every {every} looks");
        }
    }
}
