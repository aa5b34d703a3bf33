//! A full pool is not a broken one.

mod crowd;
mod heap;

use swarm_core::register::safe_guess::SafeGuess;
use swarm_kv::shm::{self, CreateOptions, Emulated, Pool};
use swarm_kv::{Error, Options};

/// A client with an emulated network or without: of one type, so that the store is generated once.
type Client = shm::Client<SafeGuess, Emulated>;

const SIZE: usize = 3000;
/// How often something is tried again that waits for memory to come back.
const TRIES: usize = 200;

/// Opens a client without a network.
fn open(pool: &Pool, options: Options) -> Client {
    shm::open_unhindered(pool, options).expect("a slot")
}

/// A small pool with one client that has put as many values as there was room for.
fn full() -> (tempfile::TempDir, Pool, Client, usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let client = open(&pool, Options::default().reclaimed_at_once(1));
    let stored = fill(&client, 0);
    assert!(stored > 500, "{stored}");
    (dir, pool, client, stored)
}

/// Puts values, from key number `from` on, until one is refused, and yields the number of that key.
fn fill(client: &Client, from: usize) -> usize {
    for number in from..10_000 {
        match client.blocking().insert(&key(number), &value(number, 0)) {
            Ok(true) => {}
            Ok(false) => panic!("key {number} is new"),
            Err(Error::Full(_)) => return number,
            Err(why) => panic!("key {number}: {why}"),
        }
    }
    panic!("there is no room for so much");
}

fn key(number: usize) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(number: usize, round: u8) -> Vec<u8> {
    let mut value = vec![round; SIZE];
    value[..8].copy_from_slice(&number.to_le_bytes());
    value
}

/// Tries again while memory is still on its way back.
fn soon<T>(what: &str, mut tried: impl FnMut() -> Result<T, Error>) -> T {
    for _ in 0..TRIES {
        match tried() {
            Err(Error::Full(_)) => std::thread::sleep(std::time::Duration::from_millis(10)),
            outcome => return outcome.unwrap_or_else(|error| panic!("{what}: {error}")),
        }
    }
    panic!("{what}: no memory has come back")
}

/// Counts up to four times, until the count is within the bound. A client that goes without a processor for long drops a
/// step and repeats it, so a busy machine only ever adds to a count: the least of several is the protocol's.
fn least(bound: usize, what: &str, mut count: impl FnMut() -> usize) {
    let mut counts = Vec::new();
    while counts.last().is_none_or(|&last| last > bound) {
        assert!(counts.len() < 4, "{what}: {counts:?}, and {bound} are allowed");
        counts.push(count());
    }
    println!("{what}: {counts:?}, and {bound} are allowed");
}

/// To look for garbage takes some roundtrips for each key, and where there was none, a second look finds none either.
#[test]
fn a_refused_write_goes_over_the_index_once() {
    let (_dir, pool, first, stored) = full();
    drop(first);
    let client = open(&pool, Options::default());
    let mut numbers = stored..;
    least(6 * stored, &format!("roundtrips at most of three refusals, {stored} keys"), || {
        let (mut refused, mut most) = (0, 0);
        while refused < 3 {
            let number = numbers.next().expect("there are more");
            match client.blocking().insert(&key(number), &value(number, 0)) {
                Ok(_) => continue,
                Err(Error::Full(_)) => refused += 1,
                Err(why) => panic!("{why}"),
            }
            most = most.max(client.last().roundtrips as usize);
        }
        most
    });
}

/// A client that is new finds some garbage of short values, but none that serves its own key: that there was some is no reason for
/// a second look.
#[test]
fn a_refused_write_that_finds_garbage_of_no_use_goes_over_the_index_once() {
    let (_dir, pool) = empty(8 << 20);
    let short = |number: usize| ([1; 64], format!("short {number}"));
    let fill = |client: &Client, from: usize| {
        let refused = (from..100_000).find(|&number| {
            let (value, key) = short(number);
            matches!(client.blocking().insert(key.as_bytes(), &value), Err(Error::Full(_)))
        });
        refused.expect("it is full in the end")
    };
    let first = open(&pool, Options::default());
    let mut keys = 0;
    for _ in 0..10 {
        keys = fill(&first, keys);
    }
    drop(first);
    least(2 * keys, &format!("roundtrips of a refusal, {keys} keys"), || {
        let client = open(&pool, Options::default());
        keys = fill(&client, keys);
        client.last().roundtrips as usize
    });
}

#[test]
fn what_needs_more_memory_is_refused_and_what_is_there_stays() {
    let (_dir, pool, client, first) = full();
    let store = client.blocking();
    let other = open(&pool, Options::default());
    // What changes of buckets left behind comes back after a while.
    let stored = fill(&client, fill(&other, first));
    assert!(stored < first + first / 10, "{stored} after {first}");
    for store in [&store, &other.blocking()] {
        let refused = store.update(&key(0), &vec![1; 100_000]);
        assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
        assert_eq!(store.get(&key(stored)).expect("a get").as_deref(), None, "it was refused");
        for number in 0..stored {
            let read = store.get(&key(number)).expect("a get");
            assert!(read.as_deref() == Some(&value(number, 0)[..]), "key {number}");
        }
    }
    let Err(Error::Full(shortage)) = store.update(&key(0), &vec![1; 100_000]) else {
        panic!("it is still full")
    };
    assert!(shortage.object > 100_000 && shortage.capacity == 8 << 20, "{shortage:?}");
    let usage = shm::usage(&pool).expect("usage");
    assert_eq!(usage.keys, stored as u64);
    assert!(usage.live_bytes < usage.used_bytes && usage.used_bytes > 15 << 19, "{usage:?}");
}

/// Values take their predecessors' place.
#[test]
fn updates_of_the_same_size_go_on() {
    let (_dir, pool, client, stored) = full();
    let other = open(&pool, Options::default().reclaimed_at_once(1));
    for (round, store) in [(1, client.blocking()), (2, other.blocking()), (3, client.blocking())] {
        for number in 0..stored {
            let update = || store.update(&key(number), &value(number, round));
            assert!(soon("an update of the same size", update), "key {number}");
        }
        for number in 0..stored {
            let read = store.get(&key(number)).expect("a get");
            assert!(read.as_deref() == Some(&value(number, round)[..]), "key {number}");
        }
    }
}

/// What clients write over each other's values leaves garbage to those, which only a look at all keys finds. The
/// operations of a client that runs short take their share of that look, so that hardly ever one has to do all of it.
/// What they do so, aside, is not counted.
#[test]
fn hardly_any_update_alone_looks_for_all_garbage() {
    /// Most of what there is room for.
    const VALUES: usize = 5000;
    /// So many are deleted. At the end of its turn a client holds 0.62 of those that are left (of half as many as there
    /// are keys, picked at random, 0.39 are picked at least once). Both together need buffers for 1.24 of them then: if
    /// that is all that there are, as with a fifth deleted, chunks change hands in each turn.
    const DELETED: usize = VALUES / 4;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 4, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let clients = [(); 2].map(|()| open(&pool, Options::default()));
    for number in 0..VALUES {
        assert!(clients[number % 2].blocking().insert(&key(number), &[7; 500]).expect("room"));
    }
    // No chunk is left to anybody.
    for number in VALUES.. {
        match clients[0].blocking().insert(&key(number), &[7; 60_000]) {
            Err(Error::Full(_)) => break,
            outcome => assert!(outcome.expect("an insert")),
        }
    }
    for number in 0..DELETED {
        soon("a delete", || clients[number % 2].blocking().delete(&key(number)));
    }
    let mut rng = fastrand::Rng::with_seed(1);
    least(3, "updates that looked at all keys", || {
        let mut long = 0;
        for turn in 0..16 * VALUES {
            // So many in turn that not all that one writes over comes to the other's ears.
            let (client, number) = (&clients[turn / 2000 % 2], rng.usize(DELETED..VALUES));
            let before = client.counters().update.verbs;
            soon("an update", || client.blocking().update(&key(number), &[8; 500]));
            long += usize::from(client.counters().update.verbs - before > VALUES as u64);
        }
        long
    });
}

#[test]
fn there_is_room_again_for_as_much_as_was_deleted() {
    let (_dir, pool, client, stored) = full();
    let store = client.blocking();
    let mut present: Vec<usize> = (0..stored).collect();
    for round in 0..20_usize {
        // Some of the oldest and some of the newest.
        let gone: Vec<usize> = present.extract_if(.., |number| number.is_multiple_of(3)).collect();
        for &number in &gone {
            soon("a delete", || store.delete(&key(number)));
        }
        // As many as went, but for one in ten: bucket records and sizes take their share.
        for new in 0..gone.len() * 9 / 10 {
            let number = (round + 1) * 100_000 + new;
            let insert = || store.insert(&key(number), &value(number, 0));
            assert!(soon("an insert", insert), "round {round}: key {number} is new");
            present.push(number);
        }
    }
    for &number in &present {
        let read = store.get(&key(number)).expect("a get");
        assert!(read.as_deref() == Some(&value(number, 0)[..]), "key {number}");
    }
    assert_eq!(shm::usage(&pool).expect("usage").keys, present.len() as u64);
}

/// Each of those comes with nothing, and leaves again. What they split takes memory of another kind than
/// what was deleted leaves behind.
#[test]
fn clients_that_are_new_find_room_after_deletes() {
    let (_dir, pool) = empty(8 << 20);
    let attach = || open(&pool, Options::default());
    let stored = fill(&attach(), 0);
    let deleted = (0..stored).step_by(10);
    for number in deleted.clone() {
        soon("a delete", || attach().blocking().delete(&key(number)));
    }
    let room = deleted.count() * 3 / 4;
    for new in 0..room {
        let inserted = attach().blocking().insert(&key(100_000 + new), &value(new, 0));
        assert_eq!(inserted, Ok(true), "number {new} of {room}");
    }
}

/// Small values take memory of many kinds, of which what one leaves is of no use to the other. As many as there were fit
/// again all the same, but for what the index grew by.
#[test]
fn a_pool_is_filled_and_emptied_many_times() {
    let (_dir, pool) = empty(4 << 20);
    let client = open(&pool, Options::default());
    let store = client.blocking();
    let key = |round: usize, number: usize| key(round * 100_000 + number);
    let mut first = None;
    for round in 0..3 {
        let insert = |&number: &usize| match store.insert(&key(round, number), &[7; 64]) {
            Ok(_) => false,
            Err(Error::Full(_)) => true,
            Err(why) => panic!("round {round}, key {number}: {why}"),
        };
        let stored = (0..).find(insert).expect("it is full in the end");
        let first = *first.get_or_insert(stored);
        assert!(stored >= first * 8 / 10, "round {round}: {stored} keys where {first} were");
        for number in 0..stored {
            soon("a delete", || store.delete(&key(round, number)));
        }
    }
}

/// A pool of so many bytes a node.
fn empty(capacity: u64) -> (tempfile::TempDir, Pool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    (dir, pool)
}

/// A pool that is full of values that take a chunk each, and how many.
fn full_of_long() -> (tempfile::TempDir, Pool, Client, usize) {
    let (dir, pool) = empty(16 << 20);
    let client = open(&pool, Options::default().reclaimed_at_once(1));
    let insert =
        |&number: &usize| client.blocking().insert(&key(number), &long(number, 0)).is_err();
    let stored = (0..).find(insert).expect("it is full in the end");
    (dir, pool, client, stored)
}

fn long(number: usize, round: u8) -> Vec<u8> {
    [value(number, round), vec![round; 40_000]].concat()
}

/// Values that take a chunk each take their predecessors' place as well, whichever client writes them.
#[test]
fn updates_of_the_same_size_of_long_values_go_on() {
    let (_dir, pool, client, stored) = full_of_long();
    let attach = || open(&pool, Options::default().reclaimed_at_once(1));
    for number in 0..stored {
        let update = || client.blocking().update(&key(number), &long(number, 1));
        assert!(soon("an update", update), "key {number} of {stored}");
        let update = || attach().blocking().update(&key(number), &long(number, 2));
        assert!(soon("another's", update), "key {number} of {stored}");
    }
    let grown = client.blocking().update(&key(0), &vec![3; 100_000]);
    assert!(matches!(grown, Err(Error::Full(_))), "{grown:?}");
    for number in 0..stored {
        let read = client.blocking().get(&key(number)).expect("a get");
        assert!(read.as_deref() == Some(&long(number, 2)[..]), "key {number} of {stored}");
    }
}

/// What an update of the same size takes of the reserve comes back to it, and is not for inserts that are tried in
/// between. Otherwise a few of them would end the updates, for good.
#[test]
fn inserts_take_nothing_from_updates_of_the_same_size() {
    let (_dir, _pool, client, stored) = full_of_long();
    let store = client.blocking();
    let mut inserted = 0;
    for number in (0..stored).step_by(4) {
        let update = || store.update(&key(number), &long(number, 1));
        assert!(soon("an update", update), "key {number} of {stored}, {inserted} inserted");
        // Behind a delete no earlier search is believed.
        store.delete(b"is not there").expect("a delete");
        let new = 10_000 + number;
        match store.insert(&key(new), &long(new, 1)) {
            Ok(true) => inserted += 1,
            Err(Error::Full(_)) => {}
            outcome => panic!("{outcome:?}"),
        }
    }
    println!("{inserted} inserted in a pool that was full of {stored}");
}

/// An update begins at a register that somebody else has replaced, with the last buffer at hand. It
/// begins again, and the memory for that is to be looked for like any other.
#[test]
fn an_update_that_begins_again_finds_memory() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = CreateOptions { capacity: 8 << 20, max_clients: 2, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("create");
    let [one, other] = [(); 2].map(|()| open(&pool, Options::default()));
    let (one, other) = (one.blocking(), other.blocking());
    for round in 0..6000 {
        other.delete(&key(0)).expect("a delete");
        other.put(&key(0), &value(round, 0)).expect("a put");
        let updated = one.update(&key(0), &value(round, 1));
        assert!(matches!(updated, Ok(true)), "round {round}: {updated:?}");
    }
}

/// Of four sizes, one of which takes a chunk for itself and one two.
fn mixed(number: usize, round: u8) -> Vec<u8> {
    let more = [0, 0, 12_000, 40_000, 90_000][number % 5];
    [value(number, round), vec![round; more]].concat()
}

/// Clients take turns at keys whose values lie in any one's chunks, and go on trying to insert.
#[test]
fn updates_of_the_same_size_of_all_sizes_go_on_whichever_client_writes() {
    const ROUNDS: u8 = 3;
    let (_dir, pool) = empty(16 << 20);
    let attach = || open(&pool, Options::default().reclaimed_at_once(1));
    let clients: Vec<Client> = (0..8).map(|_| attach()).collect();
    let insert = |store: &Client, number| store.blocking().insert(&key(number), &mixed(number, 0));
    let stored = (0..).find(|&number| insert(&clients[0], number).is_err());
    let stored = stored.expect("it is full in the end");
    let mut random = fastrand::Rng::with_seed(5);
    let (mut tries, mut inserted) = (0, 0);
    for round in 1..=ROUNDS {
        for number in 0..stored {
            let client = random.choice(&clients).expect("some");
            let update = || {
                tries += 1;
                client.blocking().update(&key(number), &mixed(number, round))
            };
            assert!(soon("an update", update), "round {round}, key {number} of {stored}");
            if number % 7 == 0 {
                inserted +=
                    usize::from(insert(client, usize::from(round) * 10_000 + number).is_ok());
            }
        }
    }
    for number in 0..stored {
        let read = random.choice(&clients).expect("some").blocking().get(&key(number));
        let read = read.expect("a get");
        assert!(read.as_deref() == Some(&mixed(number, ROUNDS)[..]), "key {number} of {stored}");
    }
    println!("{tries} tries, {inserted} inserted in a pool that was full of {stored}");
    assert!(tries <= usize::from(ROUNDS) * stored * 51 / 50, "{tries} tries");
}

/// One more chunk than the reserve of a pool of that size would have.
#[test]
fn updates_of_the_same_size_of_the_longest_values_go_on() {
    let (_dir, pool) = empty(16 << 20);
    let attach = || open(&pool, Options::default().reclaimed_at_once(1));
    let (client, other) = (attach(), attach());
    let longest = |number, round| [value(number, round), vec![round; (1 << 20) - SIZE]].concat();
    let insert =
        |&number: &usize| client.blocking().insert(&key(number), &longest(number, 0)).is_err();
    let long = (0..).find(insert).expect("it is full in the end");
    let stored = fill(&other, long);
    for (round, store) in [(1, client.blocking()), (2, other.blocking()), (3, client.blocking())] {
        for number in (0..stored).filter(|number| number % 10 == 0 || *number < long) {
            let new = if number < long { longest(number, round) } else { value(number, round) };
            let update = || store.update(&key(number), &new);
            assert!(soon("an update", update), "round {round}, key {number} of {stored}");
        }
    }
    let inserted = client.blocking().insert(&key(stored), &longest(stored, 0));
    assert!(matches!(inserted, Err(Error::Full(_))), "{inserted:?} after {long}, {stored}");
}

/// Values that grow are refused in the end. As many as have grown take each other's place then.
#[test]
fn updates_of_the_same_size_go_on_of_values_that_grew() {
    let (_dir, pool) = empty(8 << 20);
    let attach = || open(&pool, Options::default().reclaimed_at_once(1));
    let (client, other) = (attach(), attach());
    let insert = |&number: &usize| client.blocking().insert(&key(number), &[0; 600]).is_err();
    let stored = (0..).find(insert).expect("it is full in the end");
    let grow = |&number: &usize| client.blocking().update(&key(number), &value(number, 0)).is_err();
    let grown = (0..stored).find(grow).expect("no more grow in the end");
    for (round, store) in [(1, client.blocking()), (2, other.blocking()), (3, client.blocking())] {
        for number in 0..grown.max(100) {
            let new = if number < grown { value(number, round) } else { vec![round; 600] };
            let update = || store.update(&key(number), &new);
            assert!(soon("an update", update), "round {round}, key {number} of {grown}");
        }
    }
}

/// A pool that was filled with one size after the other, so that all chunks of the first ones are full.
#[test]
fn updates_of_the_same_size_go_on_of_each_size_that_was_ever_written() {
    let (_dir, pool) = empty(8 << 20);
    let attach = || open(&pool, Options::default().reclaimed_at_once(1));
    let (client, other) = (attach(), attach());
    let sizes = (0..24).map(|step| (60.0 * 1.3_f64.powi(step)) as usize);
    let of_all = sizes.flat_map(|size| std::iter::repeat_n(size, 200_000 / (size + 400)));
    let mut present = Vec::new();
    for size in of_all.chain(std::iter::repeat(400)) {
        match client.blocking().insert(&key(present.len()), &vec![0; size]) {
            Ok(_) => present.push(size),
            Err(Error::Full(_)) => break,
            Err(why) => panic!("{size} bytes: {why}"),
        }
    }
    assert_eq!(present.last(), Some(&400), "all sizes are there");
    for (round, store) in [(1, client.blocking()), (2, other.blocking()), (3, client.blocking())] {
        for (number, &size) in present.iter().enumerate() {
            let update = || store.update(&key(number), &vec![round; size]);
            assert!(soon("an update", update), "round {round}, key {number} of {size} bytes");
        }
    }
}

/// Chunks in which nothing is in use are for any size, though the buffers in them wait for their next use.
#[test]
fn what_was_of_one_size_is_for_another() {
    let (_dir, pool) = empty(8 << 20);
    let client = open(&pool, Options::default());
    let store = client.blocking();
    let medium = |number| [value(number, 0), vec![0; 9000]].concat();
    let insert = |&number: &usize| store.insert(&key(number), &medium(number)).is_err();
    let stored = (0..).find(insert).expect("it is full in the end");
    for number in 0..stored {
        assert!(soon("an update", || store.update(&key(number), &medium(number))), "key {number}");
    }
    for number in 1..stored {
        assert!(soon("an update", || store.update(&key(number), &[1; 100])), "key {number}");
    }
    let room = (0..).find(|&number| store.insert(&key(stored + number), &long(number, 0)).is_err());
    // A long one takes a chunk, and there were some of the others in one.
    assert!(room > Some(stored / 6), "{room:?} where {stored} were");
}

/// Clients that have deleted what they wrote leave their chunks to others, though they are still there.
#[test]
fn clients_that_do_nothing_keep_little() {
    let (_dir, pool) = empty(8 << 20);
    let attach = || open(&pool, Options::default());
    let idle: Vec<Client> = (0..24).map(|_| attach()).collect();
    for (number, client) in idle.iter().enumerate() {
        let store = client.blocking();
        for size in [10, 1000] {
            match store.insert(&key(number), &vec![1; size]) {
                Ok(_) => store.delete(&key(number)).map(drop).expect("a delete"),
                Err(why) => assert!(matches!(why, Error::Full(_)), "{why}"),
            }
        }
    }
    let client = attach();
    let insert =
        |&number: &usize| client.blocking().insert(&key(number), &long(number, 0)).is_err();
    let room = (0..).find(insert);
    assert!(room > Some(64), "{room:?} of 120 chunks");
}
