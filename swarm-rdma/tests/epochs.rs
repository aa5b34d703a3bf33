//! When memory may be used again, by daemons of which only the memory is made up: the epoch goes on and
//! waits for whom it must, and clients forget places in time.

mod control_common;

use std::time::Duration;

use control_common::{Daemon, daemons, list, wishes};
use swarm_core::fabric::EpochDomain;
use swarm_core::quorum::Session;
use swarm_rdma::control::protocol::{Reply, Request, ask};
use swarm_rdma::control::{EpochReport, Holder, Plane, PoolDescriptor, RdmaEpochs};

/// A pool's nodes, and how to get at it.
struct Cluster {
    daemons: Vec<Daemon>,
    plane: Plane,
    record: PoolDescriptor,
    _directory: tempfile::TempDir,
}

impl Cluster {
    fn new() -> Self {
        let daemons = daemons(3);
        let (address, directory) = list(&daemons);
        let plane = Plane::open(&address).expect("the file can be read");
        let record = plane.create(&wishes()).expect("three nodes are free");
        Self { daemons, plane, record, _directory: directory }
    }
}

/// Waits until `done`, for ten seconds at most that this process slept: on a busy host, sleeps and what
/// is awaited both take longer. Whether it came to that.
fn within_seconds(done: impl Fn() -> bool) -> bool {
    (0..2_000).any(|_| {
        let is_done = done();
        if !is_done {
            std::thread::sleep(Duration::from_millis(5));
        }
        is_done
    })
}

fn goes_on(domain: &RdmaEpochs, epochs: u64) -> bool {
    let until = domain.epoch() + epochs;
    within_seconds(|| domain.try_advance() >= until)
}

/// Time for many rounds of messages.
fn some_rounds() {
    std::thread::sleep(Duration::from_millis(400));
}

#[test]
fn the_epoch_goes_on_while_nobody_is_under_way_and_without_a_minority() {
    let mut cluster = Cluster::new();
    let seats: Vec<_> =
        (0..3).map(|_| cluster.plane.attach(&cluster.record).expect("there are slots")).collect();
    let domains: Vec<_> = seats.iter().map(|client_slot| client_slot.domain()).collect();
    assert!(goes_on(&domains[0], 5), "nobody does anything");
    let now = domains[0].epoch();
    assert!(within_seconds(|| domains[2].epoch() + 1 >= now), "all learn of it");
    cluster.daemons.pop();
    assert!(goes_on(&domains[1], 3), "without a minority");
    cluster.daemons.pop();
    some_rounds();
    let now = domains[1].try_advance();
    some_rounds();
    assert!(domains[1].try_advance() <= now + 1, "not without a majority");
}

#[test]
fn the_epoch_stays_while_nobody_wants_memory_back() {
    let cluster = Cluster::new();
    let client_slot = cluster.plane.attach(&cluster.record).expect("there are slots");
    let domain = client_slot.domain();
    assert!(goes_on(&domain, 2));
    let stays = (0..100).any(|_| {
        let before = domain.epoch();
        some_rounds();
        domain.epoch() == before
    });
    assert!(stays);
    assert!(goes_on(&domain, 2), "it is wanted again");
}

#[test]
fn an_operation_under_way_holds_the_epoch_up_until_it_is_over() {
    let cluster = Cluster::new();
    let (here, there) = (
        cluster.plane.attach(&cluster.record).expect("there are slots"),
        cluster.plane.attach(&cluster.record).expect("there are slots"),
    );
    let (here, there) = (here.domain(), there.domain());
    assert!(goes_on(&here, 2));
    let since = here.pin();
    some_rounds();
    some_rounds();
    assert!(
        there.try_advance() <= since + 1 && there.epoch_bound() <= since + 2,
        "it began in {since}"
    );
    here.unpin();
    assert!(goes_on(&there, 4), "it is over");
}

/// The threads that speak for a client are its own process's, as is the slot.
#[test]
fn a_child_that_drops_its_copy_of_a_seat_neither_leaves_nor_waits() {
    let cluster = Cluster::new();
    let client_slot = cluster.plane.attach(&cluster.record).expect("there are slots");
    // SAFETY: the child does no more than is written here, and ends by `_exit`, or by the alarm if it waits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: the child alone runs this, and ends without another look at the seat.
        unsafe {
            libc::alarm(120);
            drop(std::ptr::read(&raw const client_slot));
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: it is this test's child, and the status outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "it waited");
    let clients = cluster.plane.clients(&cluster.record).expect("the daemons answer");
    assert_eq!(clients.len(), 1, "its parent is there");
    assert!(goes_on(&client_slot.domain(), 2), "and reply");
}

/// A client that learns of the epoch after the latest at the time has forgotten.
#[test]
fn a_client_beyond_the_epoch_bound_has_forgotten_places() {
    let cluster = Cluster::new();
    let (caller, other) = (
        cluster.plane.attach(&cluster.record).expect("there are slots"),
        cluster.plane.attach(&cluster.record).expect("there are slots"),
    );
    let (caller, other) = (caller.domain(), other.domain());
    for round in 0..10 {
        let before = other.generation();
        caller.new_generation();
        let latest = caller.epoch_bound();
        let met = within_seconds(|| {
            caller.try_advance();
            let epoch = other.try_advance();
            let generation = other.generation();
            assert!(epoch <= latest || generation > before, "{epoch} in round {round}");
            epoch > latest
        });
        assert!(met, "the epoch goes on");
    }
}

#[test]
fn a_client_that_died_holds_the_epoch_up_until_it_is_evicted() {
    let cluster = Cluster::new();
    let client_slot = cluster.plane.attach(&cluster.record).expect("there are slots");
    let domain = client_slot.domain();
    assert!(goes_on(&domain, 2));
    // It has reported itself to all daemons, and falls silent.
    let slot = 5;
    let client = Holder::new(slot, 1000).expect("there is chance");
    let report = EpochReport { epoch: 1, renewed: 0, reached: 0 };
    let request = Request::Report { pool: cluster.record.id, client, report };
    let now = domain.epoch();
    let latest_of = |daemon: &Daemon| match ask(daemon.address(), &request).expect("it answers") {
        Reply::EpochReply(reply) => reply.epoch,
        reply => panic!("{reply:?}"),
    };
    let latest = cluster.daemons.iter().map(latest_of).max();
    assert!(latest >= Some(now - 1), "{latest:?} at {domain:?}");
    assert!(domain.is_attached(slot) || within_seconds(|| domain.is_attached(slot)));
    some_rounds();
    let held = domain.try_advance();
    some_rounds();
    assert!(domain.try_advance() <= held + 1, "nobody knows that it is dead");
    cluster.plane.evict(&cluster.record, slot).expect("a majority answers");
    assert!(goes_on(&domain, 4), "it is gone");
    assert!(within_seconds(|| !domain.is_attached(slot)));
    let late = ask(cluster.daemons[0].address(), &request);
    assert!(late.is_err(), "it does not come back: {late:?}");
}

/// A client that holds an object is asked about: one that lives is not gone, nor one that is silent, until it is evicted.
#[test]
fn a_client_is_gone_when_it_has_left_or_is_evicted() {
    let mut cluster = Cluster::new();
    let asks = cluster.plane.attach(&cluster.record).expect("there are slots");
    let (leaves, silent) = (
        cluster.plane.attach(&cluster.record).expect("there are slots"),
        cluster.plane.attach(&cluster.record).expect("there are slots"),
    );
    let domain = asks.domain();
    let [left, evicted] = [leaves.session(), silent.session()];
    let is_gone = |session: Session| domain.is_gone(session.client, session.incarnation);
    some_rounds();
    assert!(![left, evicted, asks.session()].into_iter().any(is_gone), "they live");
    drop(leaves);
    assert!(within_seconds(|| is_gone(left)));
    // As if it were killed, with its copy of the slot never dropped.
    let silent = std::mem::ManuallyDrop::new(silent);
    some_rounds();
    assert!(!is_gone(evicted), "nobody knows");
    cluster.daemons.pop();
    cluster.plane.evict(&cluster.record, evicted.client).expect("a majority answers");
    assert!(within_seconds(|| is_gone(evicted)));
    assert_eq!(silent.session(), evicted);
    // Its successor, and what the next ones of the slot know.
    let next = cluster.plane.attach(&cluster.record).expect("the slot is free");
    assert_eq!(next.session().client, left.client);
    some_rounds();
    assert!(!is_gone(next.session()) && is_gone(left));
    let knows = next.domain();
    assert!(within_seconds(|| knows.is_gone(left.client, left.incarnation)));
    assert!(within_seconds(|| knows.is_gone(evicted.client, evicted.incarnation)));
}

#[test]
fn a_client_that_left_holds_nothing_up_and_its_reports_are_ignored() {
    let cluster = Cluster::new();
    let (stays, leaves) = (
        cluster.plane.attach(&cluster.record).expect("there are slots"),
        cluster.plane.attach(&cluster.record).expect("there are slots"),
    );
    let slot = leaves.session().client;
    let last_words = Request::Report {
        pool: cluster.record.id,
        client: cluster.daemons[0].holders()[slot].clone(),
        report: EpochReport::default(),
    };
    leaves.domain().pin();
    drop(leaves);
    assert!(goes_on(&stays.domain(), 4));
    let late = ask(cluster.daemons[0].address(), &last_words);
    assert!(late.is_err(), "{late:?}");
    assert!(cluster.daemons[0].holders().iter().all(|holder| holder.slot != slot));
    let next = cluster.plane.attach(&cluster.record).expect("its slot is free");
    assert_eq!(next.session().client, slot);
    assert!(goes_on(&next.domain(), 3));
}
