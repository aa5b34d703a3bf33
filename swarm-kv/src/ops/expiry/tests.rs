//! Clients of one pool, with clocks of their own, and keys that expire.

use std::cell::Cell;
use std::ops::ControlFlow;

use swarm_core::fabric::EpochDomain;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::layout::Geometry;
use swarm_core::quorum::Session;
use swarm_core::sim::explore::LoneClock;
use swarm_core::words::Incarnation;

use super::*;
use crate::client::handle::Options;
use crate::heap::tests::Watched;
use crate::ops::cursor::Cursor;
use crate::ops::modify::CompareAndSwap;
use crate::runtime::block_on::block_on;

/// A clock that its test sets.
struct Hand(Rc<Cell<u64>>);

impl Clock for Hand {
    fn now(&self) -> u64 {
        self.0.get()
    }
}

/// Whatever their clocks are, clients are of one type, and built once.
type Here = Client<Loopback, Rc<dyn Clock>>;

const TTL: Duration = Duration::from_nanos(1_000);

/// Clients of one pool, each with a clock of its own.
fn clients() -> ([Here; 2], [Rc<Cell<u64>>; 2]) {
    let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry").with_keyed_cells(true);
    let nodes = Loopback::new(3, 4 << 17);
    let clocks = [0, 1].map(|_| Rc::new(Cell::new(10_000)));
    let clients = [0, 1].map(|client| {
        let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
        let clock: Rc<dyn Clock> = Rc::new(Hand(Rc::clone(&clocks[client])));
        Client::new(nodes.clone(), clock, geometry, session, Options::default())
    });
    (clients, clocks)
}

fn get(client: &Here, key: &[u8]) -> Option<Vec<u8>> {
    client.blocking().get(key).expect("nodes answer").map(|value| value.to_vec())
}

fn put(client: &Here, key: &[u8], value: &[u8]) {
    client.blocking().put_with_ttl(key, value, TTL).expect("memory");
}

fn cell_of(client: &Here, key: &[u8]) -> KeyedCell {
    let hash = client.check(key, &[]).expect("a key");
    client.cells.get(hash, key).expect("it is cached").0
}

/// Keys that are new, in registers, in registers that are longer than a cell, and cells.
#[test]
fn a_key_expires_whatever_it_was_before() {
    let ([one, two], [clock, other]) = clients();
    one.blocking().put(b"register", b"before").expect("memory");
    one.blocking().put(b"long", &[7; 9000]).expect("memory");
    one.blocking().increment(b"cell", 1).expect("memory");
    for round in 1..=3 {
        for key in [&b"new"[..], b"register", b"long", b"cell"] {
            put(&one, key, b"value");
            assert_eq!(get(&two, key).as_deref(), Some(&b"value"[..]), "{round}");
            let left = two.blocking().ttl(key).expect("nodes answer");
            assert_eq!(left, TimeToLive::Left(TTL));
        }
        clock.set(clock.get() + 1_000);
        other.set(clock.get());
        for key in [&b"new"[..], b"register", b"long", b"cell"] {
            assert_eq!(get(&two, key), None);
            assert_eq!(get(&one, key), None);
            assert_eq!(one.blocking().ttl(key), Ok(TimeToLive::Absent));
            assert_eq!(one.blocking().update(key, b"x"), Ok(false));
        }
    }
    assert_eq!(one.blocking().insert(b"new", b"again"), Ok(true));
    assert_eq!(two.blocking().ttl(b"new"), Ok(TimeToLive::Endless));
}

/// A clock that passes a deadline after so many readings.
struct Passing(Rc<Cell<u64>>);

impl Clock for Passing {
    fn now(&self) -> u64 {
        self.0.set(self.0.get().saturating_sub(1));
        if self.0.get() == 0 { 20_000 } else { 10_000 }
    }
}

/// The deadline passes while a client looks the key up, at any of its readings of the clock. What had not expired when it was
/// read stays where it is: others go on to write it there.
#[test]
fn a_deadline_may_pass_at_any_time() {
    for insert in [false, true] {
        for readings in 1..60 {
            let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
            let nodes = Loopback::new(3, 4 << 17);
            let left = Rc::new(Cell::new(u64::MAX));
            let [one, two] = [0, 1].map(|client| {
                let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
                let left =
                    if client == 0 { Rc::new(Cell::new(u64::MAX)) } else { Rc::clone(&left) };
                let clock: Rc<dyn Clock> = Rc::new(Passing(left));
                Client::new(nodes.clone(), clock, geometry, session, Options::default())
            });
            let (here, there): (&Client<_, _>, &Client<_, _>) = (&one, &two);
            here.blocking().put_with_ttl(b"key", b"value", TTL).expect("memory");
            left.set(readings);
            if insert {
                there.blocking().insert(b"key", b"another").expect("memory");
            } else {
                there.blocking().get(b"key").expect("nodes answer");
            }
            left.set(u64::MAX);
            here.blocking().put(b"key", b"last").expect("memory");
            for client in [there, here] {
                let read = client.blocking().get(b"key").expect("nodes answer");
                assert_eq!(read.as_deref(), Some(&b"last"[..]), "{readings} readings");
            }
        }
    }
}

/// A client whose clock is ahead found the key expired; for one whose clock is not, it is as well.
#[test]
fn what_one_clock_found_expired_is_absent_by_all() {
    let ([one, two], [_, ahead]) = clients();
    put(&one, b"key", b"value");
    assert_eq!(get(&one, b"key").as_deref(), Some(&b"value"[..]));
    ahead.set(20_000);
    assert_eq!(get(&two, b"key"), None);
    assert_eq!(get(&one, b"key"), None);
    ahead.set(0);
    assert_eq!(get(&two, b"key"), None, "its clock was set back");
}

/// A client found the key expired, and slept before it ended the cell; others put, add, and let it
/// stay, or expire and insert.
#[test]
fn to_expire_takes_no_newer_value_away() {
    for newer in 0..5 {
        let ([one, two], [_, ahead]) = clients();
        put(&one, b"key", b"1");
        let cell = cell_of(&one, b"key");
        let (_, shown) = block_on(two.read_cell_as_it_is(&cell)).expect("nodes answer");
        ahead.set(20_000);
        assert!(two.is_past(shown.deadline));
        let expected: &[u8] = match newer {
            0 => {
                one.blocking().put(b"key", b"9").expect("memory");
                b"9"
            }
            1 => {
                assert_eq!(one.blocking().increment(b"key", 1), Ok(2));
                b"2"
            }
            2 => {
                assert_eq!(one.blocking().persist(b"key"), Ok(true));
                b"1"
            }
            3 => {
                put(&one, b"key", b"5");
                b"5"
            }
            _ => {
                one.blocking().delete(b"key").expect("memory");
                assert_eq!(one.blocking().insert(b"key", b"7"), Ok(true));
                b"7"
            }
        };
        let expired = two.expire(&cell, b"key", &shown.view, Purpose::Replace);
        assert_eq!(block_on(expired), Ok(false), "{newer}");
        assert_eq!(get(&one, b"key").as_deref(), Some(expected));
    }
}

/// Two clients find a key expired at a time: one ends it, and of their inserts one wins.
#[test]
fn two_expire_a_key_and_one_inserts_it() {
    let ([one, two], clocks) = clients();
    put(&one, b"key", b"value");
    let cell = cell_of(&one, b"key");
    clocks.iter().for_each(|clock| clock.set(20_000));
    let (_, shown) = block_on(two.read_cell_as_it_is(&cell)).expect("nodes answer");
    assert_eq!(one.blocking().insert(b"key", b"one"), Ok(true));
    let expired = two.expire(&cell, b"key", &shown.view, Purpose::Replace);
    assert_eq!(block_on(expired), Ok(false));
    assert_eq!(two.blocking().insert(b"key", b"two"), Ok(false));
    assert_eq!(get(&two, b"key").as_deref(), Some(&b"one"[..]));
}

#[test]
fn a_put_ends_a_life_and_a_change_keeps_it() {
    let ([one, two], _) = clients();
    let life = |key: &[u8]| two.blocking().ttl(key).expect("nodes answer");
    put(&one, b"key", b"1");
    one.blocking().increment(b"key", 1).expect("memory");
    assert_eq!(life(b"key"), TimeToLive::Left(TTL));
    let swap = one.blocking().compare_and_swap(b"key", Some(b"2"), Some(b"7"));
    assert_eq!((swap, life(b"key")), (Ok(CompareAndSwap::Swapped), TimeToLive::Left(TTL)));
    one.blocking().put(b"key", b"9").expect("memory");
    assert_eq!(life(b"key"), TimeToLive::Endless);
    assert_eq!(one.blocking().persist(b"key"), Ok(false));
    put(&one, b"key", b"9");
    assert_eq!(life(b"key"), TimeToLive::Left(TTL));
    assert_eq!(one.blocking().persist(b"key"), Ok(true));
    assert_eq!(life(b"key"), TimeToLive::Endless);
    assert_eq!(one.blocking().persist(b"none"), Ok(false));
    // What is expired is absent for a change.
    put(&one, b"key", b"5");
    let now = one.group.clock().clock_time();
    one.blocking().put_with_ttl(b"key", b"5", Duration::ZERO).expect("memory");
    assert_eq!(one.group.clock().clock_time(), now);
    assert_eq!(two.blocking().increment(b"key", 1), Ok(1));
    assert_eq!(life(b"key"), TimeToLive::Endless);
}

/// What outgrows its cell goes on in a larger one, with its deadline; what is too long for any is
/// refused if it is to expire, and ends the life if it is put.
#[test]
fn what_outgrows_a_cell_keeps_its_life() {
    let ([one, two], [_, other]) = clients();
    put(&one, b"key", b"short");
    let grown = one.blocking().update_with(b"key", |_| Some(vec![5; 3000]));
    assert_eq!(grown.expect("memory").map(|value| value.len()), Some(3000));
    assert_eq!(two.blocking().ttl(b"key"), Ok(TimeToLive::Left(TTL)));
    let long = vec![5; MAX_EXPIRING + 1];
    let refused = one.blocking().put_with_ttl(b"key", &long, TTL);
    assert_eq!(refused, Err(Error::TooLongForCell(long.len())));
    let refused = one.blocking().update_with(b"key", |_| Some(long.clone()));
    assert_eq!(refused, Err(Error::TooLongForCell(long.len())));
    assert_eq!(get(&two, b"key").map(|value| value.len()), Some(3000));
    put(&one, b"key", &long[1..]);
    // No cell has room for this one.
    let longer = vec![6; 9000];
    one.blocking().put(b"key", &longer).expect("memory");
    assert_eq!(two.blocking().ttl(b"key"), Ok(TimeToLive::Endless));
    other.set(1 << 40);
    assert_eq!(get(&two, b"key"), Some(longer));
}

/// What an evacuation moves keeps its life, expired or not.
#[test]
fn an_evacuation_keeps_a_life() {
    let ([one, two], [_, other]) = clients();
    put(&one, b"key", b"value");
    let (hash, cell) = (one.check(b"key", &[]).expect("a key"), cell_of(&one, b"key"));
    let (_, shown) = block_on(one.read_cell_as_it_is(&cell)).expect("nodes answer");
    let last = (shown.kind, &shown.view, &*shown.value, shown.deadline);
    assert_eq!(block_on(one.move_cell_out(hash, b"key", &cell, last)), Ok(true));
    assert_eq!(two.blocking().ttl(b"key"), Ok(TimeToLive::Left(TTL)));
    assert_ne!(cell_of(&two, b"key").identity, cell.identity);
    other.set(20_000);
    assert_eq!(get(&two, b"key"), None);
}

/// Epochs that advance whenever somebody asks for it.
struct Advancing(Cell<u64>);

impl EpochDomain for Advancing {
    fn epoch(&self) -> u64 {
        self.0.get()
    }
    fn pin(&self) -> u64 {
        self.epoch()
    }
    fn repin(&self, _: u64) {}
    fn unpin(&self) {}
    fn generation(&self) -> u64 {
        0
    }
    fn new_generation(&self) {}
    fn is_attached(&self, _: usize) -> bool {
        true
    }
    fn try_advance(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.epoch()
    }
}

/// A collection ends what has expired by its client's clock, and nothing else.
#[test]
fn a_collection_ends_what_has_expired() {
    let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
    let nodes = Loopback::new(3, 4 << 17);
    let clock = |now| LoneClock::new(now).with_look(0);
    let session = |client| Session { client, incarnation: Incarnation(client as u64 + 1) };
    let one: Client<_, _> =
        Client::new(nodes.clone(), clock(10_000), geometry, session(0), Options::default());
    let collect = |client, now| {
        let (fabric, options) = (Watched::new(nodes.clone(), |_| false), Options::default());
        let client: Client<_, _> =
            Client::new(fabric, clock(now), geometry, session(client), options);
        let client = client.with_epochs(Box::new(Advancing(Cell::new(5))));
        block_on(client.collect()).expect("nodes answer");
    };
    let get = || one.blocking().get(b"key").expect("nodes answer").map(|value| value.to_vec());
    one.blocking().put_with_ttl(b"key", b"value", TTL).expect("memory");
    collect(1, 10_000);
    assert_eq!(get().as_deref(), Some(&b"value"[..]));
    collect(2, 20_000);
    assert_eq!(get(), None);
}

/// A client forwarded a cell with an expiring value, and listed nothing in its place.
#[test]
fn what_was_forwarded_expires_all_the_same() {
    for (uses, is_past) in (0..4).flat_map(|uses| [(uses, false), (uses, true)]) {
        let ([one, two], [_, other]) = clients();
        put(&one, b"key", b"value");
        let cell = cell_of(&one, b"key");
        let (key, shown) = block_on(one.read_cell_as_it_is(&cell)).expect("nodes answer");
        let (kind, deadline, key) = (Kind::Forward, shown.deadline, &*key);
        let content = CellContent { kind, deadline, key, value: &shown.value };
        let forward = one.propose_to(&cell, &shown.view, &content, Purpose::Replace);
        assert!(block_on(forward).expect("memory").is_some());
        other.set(if is_past { 20_000 } else { 10_000 });
        let there = (!is_past).then_some(&b"value"[..]);
        match uses {
            0 => assert_eq!(get(&two, b"key").as_deref(), there),
            1 => assert_eq!(two.blocking().insert(b"key", b"other"), Ok(is_past)),
            2 => assert_eq!(two.blocking().ttl(b"key").expect("memory").left(), {
                (!is_past).then_some(TTL)
            }),
            _ => {
                let (mut cursor, mut met) = (Cursor::new(), None);
                let mut each = |_: &[u8], value: &[u8]| met = Some(value.to_vec());
                while block_on(two.next_keys(&mut cursor, &mut each)).expect("nodes answer") {}
                assert_eq!(met.as_deref(), there);
            }
        }
        // A walk changes nothing: for a client whose clock says so the value is there.
        if uses != 1 {
            let there = if uses == 3 { Some(&b"value"[..]) } else { there };
            assert_eq!(get(&one, b"key").as_deref(), there, "{uses}");
        }
    }
}

#[test]
fn walks_leave_out_what_has_expired() {
    let ([one, two], [_, other]) = clients();
    put(&one, b"key", b"value");
    one.blocking().put(b"stays", b"value").expect("memory");
    other.set(20_000);
    let mut met = Vec::new();
    let each = |key: &[u8], _: &[u8]| {
        met.push(key.to_vec());
        ControlFlow::Continue(())
    };
    block_on(two.for_each(each)).expect("nodes answer");
    assert_eq!(met, [b"stays".to_vec()]);
    assert_eq!(get(&one, b"key").as_deref(), Some(&b"value"[..]), "a walk changes nothing");
    assert_eq!(get(&two, b"key"), None);
    assert_eq!(get(&one, b"key"), None);
}

/// The value of a version goes on in a larger cell, or in a register, unless something newer is there.
#[test]
fn a_change_by_version_may_outgrow_its_cell() {
    let ([one, two], _) = clients();
    let versioned = |client: &Here| client.blocking().get_versioned(b"key").expect("memory");
    for with_life in [false, true] {
        let first = cell_of_new(&one, with_life);
        let ((_, version), long) = (versioned(&two).expect("it is there"), vec![7; 300]);
        one.blocking().update(b"key", b"newer").expect("memory");
        assert_eq!(two.blocking().put_if_version(b"key", &long, version), Ok(false));
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"newer"[..]));
        if with_life {
            put(&one, b"key", b"again");
        }
        let (_, version) = versioned(&two).expect("it is there");
        assert_eq!(two.blocking().put_if_version(b"key", &long, version), Ok(true));
        assert_eq!(get(&one, b"key"), Some(long));
        assert_eq!(one.blocking().ttl(b"key").map(TimeToLive::left), Ok(with_life.then_some(TTL)));
        assert!(versioned(&one).is_some() && cell_of(&one, b"key").identity != first.identity);
        one.blocking().delete(b"key").expect("memory");
    }
}

/// A client remembers what was there before another change.
#[test]
fn what_has_changed_since_goes_on_where_it_is() {
    let ([one, two], _) = clients();
    let hash = two.check(b"key", &[]).expect("a key");
    put(&one, b"key", b"first");
    let found = block_on(two.find_key(hash, b"key")).expect("nodes answer");
    let Some(FoundKey::Cell((cell, _), seen)) = found else { panic!("it is a cell") };
    put(&one, b"key", b"newer");
    let moved = block_on(two.forward_to_cell(hash, b"key", (&cell, &seen), 300));
    assert!(moved.expect("memory").is_none());
    assert_eq!(get(&two, b"key").as_deref(), Some(&b"newer"[..]));
}

/// The cell of a key that is new.
fn cell_of_new(client: &Here, with_life: bool) -> KeyedCell {
    match with_life {
        false => drop(client.blocking().increment(b"key", 1).expect("memory")),
        true => put(client, b"key", b"first"),
    }
    client.blocking().get_versioned(b"key").expect("memory");
    cell_of(client, b"key")
}

/// To end a key takes a record, and frees its cell.
#[test]
fn what_expires_in_a_full_pool_is_absent() {
    let ([one, two], [clock, other]) = clients();
    put(&one, b"key", b"value");
    let mut number = 0;
    let full = loop {
        number += 1;
        let key = format!("other {number}");
        match one.blocking().put(key.as_bytes(), &[7; 100]) {
            Ok(()) => {}
            Err(why) => break why,
        }
    };
    assert!(matches!(full, Error::Full(_)), "{full}");
    // What replaces others has a part of the reserve.
    let records = two.heap.plain(cell_of(&one, b"key").record_words());
    while block_on(two.allocate(records, Purpose::Replace)).is_ok() {}
    clock.set(clock.get() + 1_000);
    other.set(clock.get());
    assert_eq!(get(&two, b"key"), None);
}

#[test]
fn walks_report_how_long_keys_are_there_yet() {
    let ([one, two], [_, other]) = clients();
    put(&one, b"key", b"value");
    one.blocking().put(b"stays", b"value").expect("memory");
    other.set(10_400);
    let (mut cursor, mut met) = (Cursor::new(), Vec::new());
    let mut each = |key: &[u8], _: &[u8], left: Option<Duration>| met.push((key.to_vec(), left));
    while two.blocking().next_keys_with_ttl(&mut cursor, &mut each).expect("nodes answer") {}
    let all = |key: &[u8], _: &[u8], left| {
        each(key, b"", left);
        ControlFlow::Continue(())
    };
    two.blocking().for_each_with_ttl(all).expect("nodes answer");
    met.sort();
    let (key, stays) = ((b"key".to_vec(), Some(TTL * 6 / 10)), (b"stays".to_vec(), None));
    assert_eq!(met, [key.clone(), key, stays.clone(), stays]);
}

/// A version tells a value from an equal one, and a change by version keeps the life.
#[test]
fn a_version_is_of_one_change() {
    let ([one, two], _) = clients();
    let versioned = |client: &Here| client.blocking().get_versioned(b"key").expect("memory");
    assert_eq!(versioned(&one), None);
    for with_life in [false, true] {
        match with_life {
            false => one.blocking().put(b"key", b"a").expect("memory"),
            true => put(&one, b"key", b"a"),
        }
        let (value, version) = versioned(&two).expect("it is there");
        assert_eq!((&*value, versioned(&one)), (&b"a"[..], Some((value.clone(), version))));
        one.blocking().put(b"key", b"b").expect("memory");
        one.blocking().put(b"key", b"a").expect("memory");
        let put = two.blocking().put_if_version(b"key", b"c", version);
        assert_eq!((put, get(&one, b"key").as_deref()), (Ok(false), Some(&b"a"[..])));
        let (_, version) = versioned(&two).expect("it is there");
        assert_eq!(two.blocking().put_if_version(b"key", b"c", version), Ok(true));
        assert_eq!(two.blocking().put_if_version(b"key", b"d", version), Ok(false));
        assert_eq!(get(&one, b"key").as_deref(), Some(&b"c"[..]));
    }
    put(&one, b"key", b"a");
    let (_, version) = versioned(&two).expect("it is there");
    assert_eq!(two.blocking().put_if_version(b"key", b"c", version), Ok(true));
    assert_eq!(one.blocking().ttl(b"key"), Ok(TimeToLive::Left(TTL)));
    one.blocking().delete(b"key").expect("memory");
    assert_eq!(two.blocking().put_if_version(b"key", b"c", version), Ok(false));
}
