//! Changes in a straight line, and what they leave to the general path.

use std::cell::Cell;
use std::time::Duration;

use swarm_core::fabric::loopback::Loopback;
use swarm_core::fabric::{NodeDown, Verb};
use swarm_core::layout::{Geometry, Location, cell, record};
use swarm_core::node::{NodeId, NodeSet};
use swarm_core::quorum::Session;
use swarm_core::words::{Ballot, CellFlags, Incarnation};

use super::*;
use crate::client::handle::Options;
use crate::index::keyed_cell::KeyedCell;
use crate::ops::expiry::TimeToLive;
use crate::pools::shm::{self, CreateOptions, Pool};
use crate::runtime::block_on::block_on;

/// Says what it is set to.
#[derive(Clone, Default)]
struct Set(Rc<Cell<u64>>);

impl Clock for Set {
    fn now(&self) -> u64 {
        self.0.get()
    }
}

type Near = Client<Loopback, Set>;

/// Clients of one pool whose memory is near, and their clock.
fn clients() -> (Loopback, [Near; 2], Set) {
    let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
    let (nodes, clock) = (Loopback::new(3, 4 << 17).near(), Set::default());
    let clients = [0, 1].map(|client| {
        let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
        Client::new(nodes.clone(), clock.clone(), geometry, session, Options::default())
    });
    (nodes, clients, clock)
}

fn cell_of(client: &Near, key: &[u8]) -> KeyedCell {
    let hash = client.check(key, &[]).expect("a key");
    client.cells.get(hash, key).expect("it is cached").0
}

fn increment(client: &Near) -> i64 {
    client.blocking().increment(b"key", 1).expect("memory")
}

/// Changes the key by the plain code alone; `None` if that leaves it to the general path.
fn changed_at_once(client: &Near, value: &[u8]) -> Option<Vec<u8>> {
    let mut reported = None;
    let mut choose = |_: Option<&[u8]>| Ok(Next::Put(value.to_vec()));
    let mut report =
        |before: Option<&[u8]>, _: Option<&[u8]>| reported = before.map(<[u8]>::to_vec);
    if let Begun::Done(done) = client.begin_change(b"key", None, &mut choose, &mut report) {
        done.expect("nodes answer");
    }
    reported
}

#[test]
fn what_was_changed_last_is_changed_in_one_roundtrip() {
    let (_, [one, two], _) = clients();
    (0..2).for_each(|_| _ = increment(&one));
    let mut of_one = 0;
    for sum in 3..100 {
        assert_eq!(increment(&one), sum);
        let change = one.last();
        of_one += u64::from((change.roundtrips, change.verbs) == (1, 13));
    }
    // The others raised a high-water mark.
    assert!(of_one > 90, "{of_one} of 97");
    assert_eq!(changed_at_once(&one, b"7").as_deref(), Some(&b"99"[..]));
    assert_eq!(two.blocking().get(b"key").expect("nodes").as_deref(), Some(&b"7"[..]));
}

/// Each finds that the other one was first when it has posted its own record, reads the cell, and adds to
/// what is there.
#[test]
fn what_another_client_has_changed_is_changed_without_a_future() {
    let (_, [one, two], _) = clients();
    (0..2).for_each(|_| _ = increment(&one));
    assert_eq!(increment(&two), 3);
    for sum in 2..50 {
        assert_eq!((increment(&one), increment(&two)), (2 * sum, 2 * sum + 1));
    }
    assert_eq!(changed_at_once(&one, b"7").as_deref(), Some(&b"99"[..]));
    assert_eq!(one.last().roundtrips, 3);
    assert_eq!(increment(&two), 8, "no lost change takes effect");
}

/// What a client remembers is long past.
#[test]
fn what_changes_nothing_is_a_read() {
    let (_, [one, two], _) = clients();
    (0..3).for_each(|_| _ = increment(&one));
    two.blocking().put(b"key", b"9").expect("memory");
    assert_eq!(changed_at_once(&one, b"3").as_deref(), Some(&b"9"[..]), "it remembers a 3");
    assert_eq!(changed_at_once(&one, b"3").as_deref(), Some(&b"3"[..]));
    assert_eq!(one.last().roundtrips, 1);
    two.blocking().put(b"key", b"word").expect("memory");
    assert_eq!(one.blocking().increment(b"key", 1), Err(Error::Number(4)));
}

/// A choice that was made is not made again, whatever the plain code leaves to do.
#[test]
fn a_choice_is_made_once_for_each_value() {
    let (_, [one, _], _) = clients();
    (0..3).for_each(|_| _ = increment(&one));
    for length in [1, 3000, 5, 20] {
        let (calls, new) = (Cell::new(0), vec![b'1'; length]);
        let choose = |_: Option<&[u8]>| {
            calls.set(calls.get() + 1);
            Some(new.clone())
        };
        let after = block_on(one.update_with(b"key", choose)).expect("memory");
        assert_eq!((after, calls.get()), (Some(new.clone()), 1), "{length} bytes");
    }
}

/// A word that says of a record that it is committed under nearly the last ballot.
#[test]
fn a_worn_cell_is_left_to_the_general_path() {
    let (nodes, [one, _], _) = clients();
    (0..3).for_each(|_| _ = increment(&one));
    let (worn, format) = (cell_of(&one, b"key"), one.geometry.format);
    let hash = one.check(b"key", &[]).expect("a key");
    let seen = one.cells.take(hash, b"key").and_then(|(_, seen)| seen).expect("it was seen");
    let (ballot, record) = (Ballot((format.last_ballot().0 / 5 * 4) & !1), seen.view.record());
    let word = format.cell(ballot, record, CellFlags::CONFIRMED | CellFlags::ACCEPTED);
    for node in NodeSet::all(3) {
        let at = Location::everywhere(record, NodeId(0)).at(node, 3);
        nodes.set_word(node, at.plus(record::ACCEPTED), ballot.0);
        nodes.set_word(node, worn.at.place.at(node, 3).plus(cell::WORD), word.0);
    }
    let view = swarm_core::cell::View::created(format, 3, word);
    one.cells.put_back(hash, &worn, Box::new(SeenCell { view, ..*seen }));
    assert_eq!(changed_at_once(&one, b"9"), None);
    assert_eq!(increment(&one), 4);
    assert_ne!(cell_of(&one, b"key").identity, worn.identity, "it went on as a register");
}

/// What is remembered of a key whose time is over is not built on.
#[test]
fn what_has_expired_is_left_to_the_general_path() {
    let (_, [one, _], clock) = clients();
    let store = one.blocking();
    store.put_with_ttl(b"key", b"5", Duration::from_nanos(1000)).expect("memory");
    assert_eq!((increment(&one), increment(&one)), (6, 7));
    assert_eq!(store.ttl(b"key"), Ok(TimeToLive::Left(Duration::from_nanos(1000))));
    clock.0.set(5000);
    assert_eq!(changed_at_once(&one, b"9"), None);
    assert_eq!(increment(&one), 1);
}

/// What was seen in another epoch is read again.
#[test]
fn what_was_seen_in_an_earlier_epoch_is_looked_at_again() {
    for changed in [false, true] {
        let (_, [one, two], _) = clients();
        (0..3).for_each(|_| _ = increment(&one));
        let hash = one.check(b"key", &[]).expect("a key");
        let (found, seen) = one.cells.take(hash, b"key").expect("it is cached");
        let mut seen = seen.expect("it was seen");
        seen.epoch += 1;
        one.cells.put_back(hash, &found.0, seen);
        if changed {
            assert_eq!(increment(&two), 4);
        }
        let before = if changed { b"4" } else { b"3" };
        assert_eq!(changed_at_once(&one, b"9").as_deref(), Some(&before[..]));
        assert_eq!(one.last().roundtrips, 2);
    }
}

/// A cell that was deleted or forwarded has no value, nor one on which anything is built.
#[test]
fn what_has_ended_is_left_to_the_general_path() {
    let (_, [one, two], _) = clients();
    (0..3).for_each(|_| _ = increment(&one));
    let get = |client: &Near| client.blocking().get(b"key").expect("nodes").map(|it| it.to_vec());
    assert_eq!((get(&two), get(&one)), (Some(b"3".to_vec()), Some(b"3".to_vec())));
    assert_eq!(one.last().roundtrips, 1);
    let (dead, hash) = (cell_of(&one, b"key"), one.check(b"key", &[]).expect("a key"));
    two.blocking().delete(b"key").expect("nodes");
    assert_eq!(get(&one), None);
    one.cells.insert(hash, b"key", (dead, 0), None);
    assert_eq!(changed_at_once(&one, b"4"), None);
    (0..3).for_each(|_| _ = increment(&one));
    assert_eq!(get(&two), Some(b"3".to_vec()));
    let forwarded = cell_of(&one, b"key");
    two.blocking().put(b"key", &[7; 3000]).expect("memory");
    one.cells.insert(hash, b"key", (forwarded, 0), None);
    assert_eq!(get(&one), Some(vec![7; 3000]));
    one.cells.insert(hash, b"key", (forwarded, 0), None);
    assert_eq!(changed_at_once(&one, b"4"), None);
}

/// A key of the same hash is another key.
#[test]
fn another_key_of_the_same_hash_is_left_alone() {
    let (_, [one, _], _) = clients();
    (0..3).for_each(|_| _ = increment(&one));
    let hash = one.check(b"key", &[]).expect("a key");
    assert!(one.cells.take(hash, b"kex").is_none());
    let (found, _) = one.cells.take(hash, b"key").expect("it is cached");
    assert!(one.read_cell_now(&found.0, b"kex").is_none());
    assert!(one.read_cell_now(&found.0, b"key").is_some());
}

type Hook = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

/// Near nodes, what happens before the next chain to the last of them, and whether it answers.
#[derive(Clone)]
struct Interrupted {
    nodes: Loopback,
    hook: Hook,
    is_silent: Rc<Cell<bool>>,
}

impl Fabric for Interrupted {
    type EpochDomain = <Loopback as Fabric>::EpochDomain;
    type Reply<'f> = <Loopback as Fabric>::Reply<'f>;
    type Completion<'f> = <Loopback as Fabric>::Completion<'f>;

    fn is_near(&self) -> bool {
        true
    }

    fn nodes(&self) -> usize {
        self.nodes.nodes()
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        if node == NodeId(2) && self.is_silent.get() {
            return std::future::ready(Err(NodeDown));
        }
        if node == NodeId(2)
            && let Some(happens) = self.hook.take()
        {
            happens();
        }
        self.nodes.post(node, chain)
    }
}

/// Two nodes have a change's record when another client comes by that reaches these two alone. It
/// completes that change, and adds its own: each counts once.
#[test]
fn a_change_that_others_met_half_way_counts_once() {
    let nodes = Loopback::new(3, 4 << 17);
    let geometry = Geometry::new(3, 4 << 20, 4, 1).expect("geometry");
    let (hook, is_silent) = (Hook::default(), Rc::<Cell<bool>>::default());
    let fabric = Interrupted { nodes, hook: Rc::clone(&hook), is_silent: is_silent.clone() };
    let [one, two] = [0, 1].map(|client| {
        let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
        let (fabric, clock) = (fabric.clone(), Set::default());
        Client::<_, _>::new(fabric, clock, geometry, session, Options::default())
    });
    for sum in 1..=3 {
        assert_eq!(one.blocking().increment(b"key", 1), Ok(sum));
    }
    *hook.borrow_mut() = Some(Box::new(move || {
        is_silent.set(true);
        assert_eq!(two.blocking().increment(b"key", 1), Ok(5), "behind the one that it met");
        is_silent.set(false);
        assert_eq!(two.blocking().increment(b"key", 1), Ok(6), "at the third node as well");
    }));
    assert_eq!(one.blocking().increment(b"key", 1), Ok(4));
    assert!(hook.borrow().is_none());
    assert_eq!(one.blocking().increment(b"key", 1), Ok(7));
}

/// Records come back as soon as no operation can reach them, and no sooner.
#[test]
fn what_changes_replace_is_used_again_when_earlier_operations_are_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = CreateOptions { capacity: 4 << 20, ..CreateOptions::default() };
    let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
    let [one, two] = [(); 2].map(|()| shm::open(&pool, Options::default()).expect("a client"));
    let add = |times: i64| {
        (0..times).for_each(|_| _ = one.blocking().increment(b"key", 1).expect("memory"));
        one.counters().reclaimed
    };
    let pin = two.pin();
    let meanwhile = add(1000);
    assert!(meanwhile == 0, "{meanwhile} records are used again that it may come across");
    drop(pin);
    let after = add(1000);
    assert!(after > 1000, "{after} came back");
}
