//! The control plane without etcd: daemons of which only the memory is made up.

mod control_common;
#[path = "common/in_time.rs"]
mod in_time;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use in_time::in_time;

use control_common::{Daemon, daemons, gives_more_incarnations, list, wishes};
use swarm_core::layout::MAX_CLIENTS;
use swarm_rdma::control::{Error, Holder, Plane, PoolAddress, PoolSpec};

fn plane(daemons: &[Daemon]) -> (Plane, tempfile::TempDir) {
    let (address, directory) = list(daemons);
    (Plane::open(&address).expect("the file can be read"), directory)
}

#[test]
fn a_pool_is_made_found_and_removed() {
    let daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    assert!(matches!(plane.record(), Err(Error::NoPool { .. })));
    let record = plane.create(&wishes()).expect("three nodes are free");
    assert_eq!(plane.record().expect("it is there"), record);
    assert!(matches!(plane.create(&wishes()), Err(Error::Exists { .. })));
    let client_slot = plane.attach(&record).expect("all slots are free");
    assert!(matches!(plane.destroy(false), Err(Error::InUse { clients: 1, .. })));
    drop(client_slot);
    plane.destroy(false).expect("nobody uses it");
    assert!(matches!(plane.record(), Err(Error::NoPool { .. })));
    assert!(daemons.iter().all(|daemon| daemon.released()));
    plane.create(&wishes()).expect("the nodes are free again");
}

/// Once a memory node of 64 GiB, which takes ten seconds to zero, counted as one that does not answer, and
/// those behind it stayed in the pool.
#[test]
fn a_pool_is_removed_however_long_its_memory_takes_to_zero() {
    let daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    for daemon in &daemons {
        daemon.takes(Duration::from_secs(4));
    }
    let limit = Duration::ZERO..Duration::from_secs(8);
    in_time("all at once", limit, 5, || {
        plane.create(&wishes()).expect("three nodes are free");
        let begun = Instant::now();
        plane.destroy(false).expect("nobody uses it");
        assert!(daemons.iter().all(|daemon| daemon.released() && daemon.is_free()));
        begun.elapsed()
    });
}

/// Once it was reported as removed when one node alone had been reached: the others went on serving its clients.
#[test]
fn removing_a_pool_reports_which_of_its_nodes_were_not_reached() {
    let mut daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    plane.create(&wishes()).expect("three nodes are free");
    let away: Vec<_> = daemons.drain(1..).map(|daemon| daemon.address()).collect();
    let error = plane.destroy(true).expect_err("one of three answers").to_string();
    assert!(away.iter().all(|address| error.contains(&address.to_string())), "{error}");
    assert!(!error.contains(&format!("memory node {}", daemons[0].address())), "{error}");
    assert!(daemons[0].released() && daemons[0].is_free());
    let _again: Vec<_> = away.iter().map(|&address| Daemon::at(address)).collect();
    plane.create(&wishes()).expect("all of them have forgotten it");
}

/// The pool's record names its nodes, also one that a file has lost.
#[test]
fn a_pool_is_removed_from_nodes_that_are_not_listed() {
    let daemons = daemons(3);
    let (whole, _directory) = plane(&daemons);
    whole.create(&wishes()).expect("three nodes are free");
    let (most, _directory) = plane(&daemons[..2]);
    most.destroy(false).expect("nobody uses it");
    assert!(daemons.iter().all(|daemon| daemon.released() && daemon.is_free()));
}

/// Once `create` looked at the first node that answered alone: with that one free and a pool on others, or
/// the pool's first node dead, it made a second pool, of which clients then found either.
#[test]
fn a_file_has_one_pool_whichever_of_its_nodes_are_there() {
    let mut daemons = daemons(6);
    let (all, _directory) = plane(&daemons);
    let record = all.create(&wishes()).expect("six nodes are free");
    let address = daemons.remove(0).address();
    let again = all.create(&wishes());
    assert!(matches!(again, Err(Error::Exists { id, .. }) if id == record.id), "{again:?}");
    daemons.insert(0, Daemon::at(address));
    let again = all.create(&wishes());
    assert!(matches!(again, Err(Error::Exists { id, .. }) if id == record.id), "{again:?}");
    assert_eq!(all.record().expect("a majority is in it"), record);
}

/// A file that lists one node of another's pool by mistake does not take it away from there.
#[test]
fn a_node_of_another_pool_stays_there() {
    let mut daemons = daemons(3);
    let (theirs, _directory) = plane(&daemons);
    let record = theirs.create(&wishes()).expect("three nodes are free");
    let mut mixed = self::daemons(2);
    mixed.push(daemons.remove(0));
    let (ours, _directory) = plane(&mixed);
    let error = ours.create(&wishes()).expect_err("one is another's").to_string();
    assert!(error.contains("there are 2") && error.contains(&record.id.to_string()), "{error}");
    assert!(matches!(ours.destroy(true), Err(Error::NoPool { .. })));
    assert_eq!(theirs.record().expect("it is whole").id, record.id);
}

/// Many clients that begin at once, again and again: no two have a slot at a time, no two ever have
/// an incarnation, and a client that begins later has a larger one.
#[test]
fn slots_and_incarnations_belong_to_one_client() {
    let daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    let record = plane.create(&wishes()).expect("three nodes are free");
    let (held, given) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new()));
    let last = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let before = *last.lock().expect("nobody panicked");
                    let client_slot = plane.attach(&record).expect("there are slots for all");
                    let session = client_slot.session();
                    let incarnation = session.incarnation.0;
                    assert!(incarnation > before, "{incarnation} after {before}");
                    assert!(given.lock().expect("nobody panicked").insert(incarnation));
                    assert!(held.lock().expect("nobody panicked").insert(session.client));
                    let mut last = last.lock().expect("nobody panicked");
                    *last = incarnation.max(*last);
                    drop(last);
                    thread::sleep(Duration::from_millis(1));
                    held.lock().expect("nobody panicked").remove(&session.client);
                    drop(client_slot);
                }
            });
        }
    });
    assert_eq!(given.lock().expect("nobody panicked").len(), 60);
    let client_slot = plane.attach(&record).expect("all slots are free");
    assert_eq!(client_slot.session().client, 0, "the lowest");
}

/// With a node gone as well.
#[test]
fn clients_that_live_long_are_given_more_incarnations() {
    let mut daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    let record = plane.create(&wishes()).expect("three nodes are free");
    drop(daemons.remove(1));
    gives_more_incarnations(&plane, &record);
}

#[test]
fn a_client_that_was_killed_holds_its_slot_until_it_is_evicted() {
    let daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    let record = plane.create(&wishes()).expect("three nodes are free");
    let seats: Vec<_> =
        (0..record.max_clients).map(|_| plane.attach(&record).expect("there is a slot")).collect();
    assert!(matches!(plane.attach(&record), Err(Error::Slots { .. })));
    // As if it were killed: nobody lets go of anything.
    let dead = seats.into_iter().map(std::mem::ManuallyDrop::new).nth(2).expect("there are more");
    let evicted = plane.evict(&record, dead.session().client).expect("all nodes answer");
    assert_eq!(evicted.incarnation, dead.session().incarnation.0);
    assert_eq!(evicted.fenced.len(), 3);
    let fenced = (dead.session().client, dead.session().incarnation.0);
    assert!(daemons.iter().all(|daemon| daemon.fenced().contains(&fenced)));
    let next = plane.attach(&record).expect("one slot is free");
    assert_eq!(next.session().client, dead.session().client);
    assert!(next.session().incarnation > dead.session().incarnation);
    assert!(matches!(plane.evict(&record, 99), Err(Error::NoClient { slot: 99, .. })));
}

#[test]
fn a_minority_of_the_nodes_may_be_gone() {
    let mut daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    let record = plane.create(&wishes()).expect("three nodes are free");
    let first = plane.attach(&record).expect("all slots are free");
    daemons.remove(1);
    assert_eq!(plane.record().expect("two of three know it"), record);
    let second = plane.attach(&record).expect("two of three grant it");
    assert_ne!(first.session().client, second.session().client);
    let evicted = plane.evict(&record, first.session().client).expect("two of three fence it");
    assert_eq!((evicted.fenced.len(), evicted.missing.len()), (2, 1));
    daemons.remove(0);
    let error = plane.attach(&record).map(|_| ()).expect_err("one of three is no majority");
    assert!(error.to_string().contains("only 1 of 3 memory nodes answered"), "{error}");
}

/// A node is killed and started again at its address: its memory is empty. It must not pass for the
/// one that it was, to those who know the pool nor to those who look for it.
#[test]
fn a_node_that_was_started_again_is_another() {
    let mut daemons = daemons(3);
    let (plane, _directory) = plane(&daemons);
    let record = plane.create(&wishes()).expect("three nodes are free");
    for _ in 0..2 {
        let address = daemons.remove(0).address();
        daemons.push(Daemon::at(address));
    }
    let error = plane.record().expect_err("one of three is no majority").to_string();
    assert!(error.contains("belongs to no pool"), "{error}");
    let error = plane.attach(&record).map(|_| ()).expect_err("two have lost it").to_string();
    assert!(error.contains("lost its memory"), "{error}");
    assert!(plane.create(&wishes()).is_err(), "one belongs to a pool still");
    plane.destroy(true).expect("what is left of it goes");
    plane.create(&wishes()).expect("three nodes are free");
}

/// Once a daemon's answer was cut off behind some 400 clients: it passed for something else than a
/// memory node, nobody got a slot any more, and nobody could be evicted.
#[test]
fn a_daemon_names_as_many_clients_as_a_pool_may_have() {
    let daemons = daemons(1);
    let (plane, _directory) = plane(&daemons);
    let wishes = PoolSpec { nodes: 1, max_clients: MAX_CLIENTS, ..wishes() };
    let record = plane.create(&wishes).expect("the node is free");
    for slot in 0..MAX_CLIENTS - 1 {
        let mut client = Holder::new(slot, slot as u64 + 1).expect("there is chance");
        client.label = format!("{}:4194304", "h".repeat(64));
        daemons[0].grant(record.id, client);
    }
    let last = plane.attach(&record).expect("one slot is free");
    assert_eq!(last.session().client, MAX_CLIENTS - 1);
    assert_eq!(plane.clients(&record).expect("the daemon answers").len(), MAX_CLIENTS);
    assert!(matches!(plane.attach(&record), Err(Error::Slots { .. })));
    plane.evict(&record, 7).expect("it is fenced");
    assert_eq!(plane.attach(&record).expect("a slot is free").session().client, 7);
}

#[test]
fn files_that_list_no_nodes_say_why() {
    let directory = tempfile::tempdir().expect("there is room");
    let file = directory.path().join("nodes.toml");
    let open = || Plane::open(&PoolAddress::Static(file.clone())).map(|_| ()).expect_err("bad");
    assert!(open().to_string().contains("cannot be read"));
    for (text, reason) in [
        ("nodes = []", "lists no memory nodes"),
        ("nods = []", "unknown field"),
        ("nodes = [1]", "invalid type"),
        ("nodes = [\"10.0.0.1\"]", "10.0.0.1"),
        ("nodes = [\"10.0.0.1:1\", \"10.0.0.2:1\", \"10.0.0.1:1\"]", "two memory nodes claim"),
    ] {
        std::fs::write(&file, text).expect("it can be written");
        let error = open().to_string();
        assert!(error.contains(reason) && error.contains("nodes.toml"), "{text}: {error}");
    }
}

/// Something else listens where a memory node should; or listens and sends nothing.
#[test]
fn what_is_no_memory_node_is_told_apart_within_seconds() {
    let mute = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let directory = tempfile::tempdir().expect("there is room");
    let file = directory.path().join("nodes.toml");
    let address = mute.local_addr().expect("it listens");
    std::fs::write(&file, format!("nodes = [\"{address}\"]")).expect("it can be written");
    let plane = Plane::open(&PoolAddress::Static(file)).expect("the file can be read");
    in_time("to ask it", Duration::ZERO..Duration::from_secs(5), 5, || {
        let begun = Instant::now();
        let error = plane.record().expect_err("nobody answers").to_string();
        assert!(error.contains("does not answer"), "{error}");
        begun.elapsed()
    });
}

#[test]
fn too_few_nodes_are_refused_with_what_is_wrong_with_the_others() {
    let daemons = daemons(1);
    let (plane, _directory) = plane(&daemons);
    let error = plane.create(&wishes()).expect_err("three are wanted").to_string();
    assert!(error.contains("wants 3 memory nodes") && error.contains("there are 1"), "{error}");
    assert!(daemons[0].is_free());
}
