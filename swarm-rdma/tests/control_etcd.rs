//! The control plane in etcd: a real one, started by each test on loopback. Skips loudly where there
//! is none (Debian: etcd-server).

mod control_common;
#[path = "common/in_time.rs"]
mod in_time;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn as spawn_thread};
use std::time::{Duration, Instant};

use in_time::in_time;

use control_common::{CAPACITY, Daemon, daemons, free_address, gives_more_incarnations, wishes};
use swarm_core::fabric::EpochDomain;
use swarm_core::words::Incarnation;
use swarm_rdma::control::protocol::{Request, ask};
use swarm_rdma::control::{EpochReport, Error, Etcd, Holder, Id, NodeEntry, Plane, PoolAddress};

/// Longer than a lease.
const EXPIRY: Duration = Duration::from_secs(12);

/// An etcd, ended with the test.
struct Server {
    child: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Server {
    fn start() -> Option<Self> {
        let directory = tempfile::tempdir().expect("there is room");
        let address = free_address();
        let Some(child) = spawn(&directory, address) else {
            eprintln!("SKIPPED: there is no etcd here; apt-get install etcd-server");
            return None;
        };
        let server = Self { child, address, directory };
        server.wait();
        Some(server)
    }

    fn members(&self) -> Vec<String> {
        vec![self.address.to_string()]
    }

    fn plane(&self) -> Plane {
        let members = self.members();
        let address = PoolAddress::Etcd { members, pool: "p".to_owned() };
        Plane::open(&address).expect("etcd answers")
    }

    fn etcd(&self) -> Etcd {
        Etcd::connect(&self.members()).expect("etcd answers")
    }

    fn wait(&self) {
        wait_for("etcd to start", || Etcd::connect(&self.members()).is_ok());
    }

    fn stop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it can be killed");
    }

    fn restart(&mut self) {
        self.child = spawn(&self.directory, self.address).expect("it was there");
        self.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have been stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(directory: &tempfile::TempDir, address: SocketAddr) -> Option<Child> {
    let url = format!("http://{address}");
    let peer = "http://127.0.0.1:0";
    Command::new("etcd")
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", peer, "--log-level", "error"])
        .arg("--data-dir")
        .arg(directory.path().join("data"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

/// Three daemons that etcd knows.
fn cluster(server: &Server) -> (Vec<Daemon>, Vec<swarm_rdma::control::Registration>) {
    let daemons = daemons(3);
    let etcd = server.etcd();
    let registrations =
        daemons.iter().map(|daemon| etcd.register(&daemon.entry()).expect("it is new")).collect();
    (daemons, registrations)
}

#[test]
fn a_pool_is_made_found_and_removed() {
    let Some(server) = Server::start() else { return };
    let plane = server.plane();
    assert!(matches!(plane.record(), Err(Error::NoPool { .. })));
    let error = plane.create(&wishes()).expect_err("there are no nodes").to_string();
    assert!(error.contains("there are 0"), "{error}");
    let (daemons, _registrations) = cluster(&server);
    let record = plane.create(&wishes()).expect("three nodes are free");
    assert_eq!(server.plane().record().expect("it is there"), record);
    assert!(matches!(plane.create(&wishes()), Err(Error::Exists { .. })));
    let client_slot = plane.attach(&record).expect("all slots are free");
    assert_eq!(client_slot.session().client, 0);
    let second = plane.attach(&record).expect("all others are");
    assert_eq!(second.session().client, 1);
    assert!(second.session().incarnation > client_slot.session().incarnation);
    assert!(matches!(plane.destroy(false), Err(Error::InUse { clients: 2, .. })));
    drop(client_slot);
    let third = plane.attach(&record).expect("a slot was let go of");
    assert_eq!(third.session().client, 0);
    assert!(third.session().incarnation > second.session().incarnation);
    drop((second, third));
    plane.destroy(false).expect("nobody uses it");
    assert!(daemons.iter().all(|daemon| daemon.released()));
}

#[test]
fn clients_that_live_long_are_given_more_incarnations() {
    let Some(server) = Server::start() else { return };
    let plane = server.plane();
    let (_daemons, _registrations) = cluster(&server);
    let record = plane.create(&wishes()).expect("three nodes are free");
    gives_more_incarnations(&plane, &record);
}

#[test]
fn two_memory_nodes_with_one_name_are_both_named() {
    let Some(server) = Server::start() else { return };
    let etcd = server.etcd();
    let first = Daemon::named("a", free_address());
    let held = etcd.register(&first.entry()).expect("it is new");
    let twin = Daemon::named("a", free_address());
    let error = etcd.register(&twin.entry()).map(|_| ()).expect_err("it is taken").to_string();
    assert!(error.contains(&first.address().to_string()), "{error}");
    assert!(error.contains(&twin.address().to_string()), "{error}");
    drop(held);
    etcd.register(&twin.entry()).expect("the name is free");
}

/// A memory node is stopped for longer than its lease, and another takes its name. Its pool goes by lives and
/// not by names, but a client that looks for the node by its name would look at the other one.
#[test]
fn a_node_whose_name_was_taken_meanwhile_knows() {
    let Some(server) = Server::start() else { return };
    let etcd = server.etcd();
    let first = Daemon::named("a", free_address());
    let held = etcd.register(&first.entry()).expect("it is new");
    assert!(!held.is_lost());
    revoke(&server, "/swarm/nodes/a");
    let twin = Daemon::named("a", free_address());
    let taken = etcd.register(&twin.entry()).expect("nobody has it");
    wait_for("the first to learn of it", || held.is_lost());
    assert!(!taken.is_lost());
    drop(taken);
    wait_for("the first to have it back", || !held.is_lost());
    assert_eq!(etcd.nodes().expect("etcd answers"), [first.entry()]);
}

/// A daemon that was killed is started again at once: it waits until the name is free.
#[test]
fn a_node_that_starts_again_gets_its_name_when_the_lease_ends() {
    let Some(server) = Server::start() else { return };
    let etcd = server.etcd();
    let address = free_address();
    let dead = NodeEntry { name: "a".to_owned(), address, life: Id(1), capacity: CAPACITY };
    let mut held = Some(etcd.register(&dead).expect("it is new"));
    // Held on to by nobody, as if its process were killed.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| etcd.register(&Daemon::named("a", address).entry()).map(drop));
        sleep(Duration::from_secs(1));
        held.take();
        waiting.join().expect("nobody panicked").expect("the name is free");
    });
}

/// A client's process is stopped: its lease ends, another client gets its slot, and has it fenced
/// before it begins.
#[test]
fn a_client_that_takes_over_a_slot_fences_its_former_holder() {
    let Some(mut server) = Server::start() else { return };
    let (daemons, _registrations) = cluster(&server);
    let plane = server.plane();
    let record = plane.create(&wishes()).expect("three nodes are free");
    let client_slot = plane.attach(&record).expect("all slots are free");
    let session = client_slot.session();
    // etcd forgets the lease while the client cannot renew it.
    revoke(&server, "/swarm/pools/p/clients/0000");
    let next = server.plane().attach(&record).expect("the slot is free");
    assert_eq!(next.session().client, session.client);
    assert!(next.session().incarnation > session.incarnation);
    let before = (session.client, next.session().incarnation.0 - 1);
    assert!(daemons.iter().all(|daemon| daemon.fenced().contains(&before)));
    wait_for("the former holder to learn of it", || client_slot.is_lost());
    // It must not take away its successor's slot.
    drop(client_slot);
    let slots: Vec<_> = plane.clients(&record).expect("etcd answers");
    assert_eq!(slots.len(), 1);
    assert_eq!(slots[0].incarnation, next.session().incarnation.0);
    assert_eq!(daemons[0].holders(), slots);
    server.stop();
}

/// etcd goes away while a client works, for longer than the lease: the client keeps its slot if
/// nobody else took it.
#[test]
fn a_client_outlives_etcd() {
    let Some(mut server) = Server::start() else { return };
    let (_daemons, _registrations) = cluster(&server);
    let plane = server.plane();
    let record = plane.create(&wishes()).expect("three nodes are free");
    let client_slot = plane.attach(&record).expect("all slots are free");
    server.stop();
    let gone = Instant::now();
    in_time("to find that etcd is gone", Duration::ZERO..Duration::from_secs(8), 5, || {
        let begun = Instant::now();
        let error = plane.attach(&record).map(|_| ()).expect_err("etcd is gone").to_string();
        let at = server.address.to_string();
        assert!(error.contains("etcd at") && error.contains(&at), "{error}");
        begun.elapsed()
    });
    sleep(EXPIRY.saturating_sub(gone.elapsed()));
    assert!(!client_slot.is_lost(), "nobody can have taken its slot");
    server.restart();
    wait_for("the slot to be held again", || {
        server.plane().clients(&record).is_ok_and(|clients| {
            clients.iter().any(|held| held.incarnation == client_slot.session().incarnation.0)
        })
    });
    sleep(EXPIRY);
    assert!(!client_slot.is_lost());
    let other = server.plane().attach(&record).expect("there are slots");
    assert_ne!(other.session().client, client_slot.session().client);
}

#[test]
fn etcd_that_is_not_there_is_an_error_within_seconds() {
    let nobody = free_address();
    in_time("to ask nobody", Duration::ZERO..Duration::from_secs(5), 5, || {
        let begun = Instant::now();
        let error = Etcd::connect(&[nobody.to_string()]).map(|_| ()).expect_err("nobody is there");
        let message = error.to_string();
        assert!(message.starts_with(&format!("etcd at {nobody}: Connection refused")), "{message}");
        begun.elapsed()
    });
    // A server that accepts and sends nothing.
    let mute = TcpListener::bind("127.0.0.1:0").expect("there are ports");
    let address = mute.local_addr().expect("it listens");
    in_time("to ask a mute one", Duration::ZERO..Duration::from_secs(8), 5, || {
        let begun = Instant::now();
        assert!(Etcd::connect(&[address.to_string()]).is_err());
        begun.elapsed()
    });
}

/// A way to etcd that can be cut: connections to `at` go on to `to` until this is dropped.
struct Way {
    open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    thread: Option<JoinHandle<()>>,
}

impl Way {
    fn open(at: SocketAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).expect("the port is free");
        listener.set_nonblocking(true).expect("it can be");
        let open = Arc::new(AtomicBool::new(true));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let (its, kept) = (Arc::clone(&open), Arc::clone(&streams));
        let thread = spawn_thread(move || {
            while its.load(Ordering::Relaxed) {
                let Ok((near, _)) = listener.accept() else {
                    sleep(Duration::from_millis(5));
                    continue;
                };
                near.set_nonblocking(false).expect("it can be");
                let far = TcpStream::connect(to).expect("etcd is there");
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let copy = |stream: &TcpStream| stream.try_clone().expect("descriptors");
                    let (mut from, mut to) = (copy(from), copy(to));
                    spawn_thread(move || std::io::copy(&mut from, &mut to));
                }
                kept.lock().expect("nobody panicked").extend([near, far]);
            }
        });
        Self { open, streams, thread: Some(thread) }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.open.store(false, Ordering::Relaxed);
        self.thread.take().map(JoinHandle::join);
        for stream in self.streams.lock().expect("nobody panicked").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Once, with one of three members dead, one request in three failed.
#[test]
fn a_dead_member_of_etcd_is_passed_over() {
    let Some(server) = Server::start() else { return };
    let dead = [free_address(), free_address()].map(|address| address.to_string());
    let members = [&dead[..], &server.members()].concat();
    for _ in 0..10 {
        let etcd = Etcd::connect(&members).expect("one answers");
        assert!(etcd.nodes().expect("it goes on answering").is_empty());
    }
    let _cluster = cluster(&server);
    let address = PoolAddress::Etcd { members, pool: "p".to_owned() };
    let plane = Plane::open(&address).expect("one answers");
    let record = plane.create(&wishes()).expect("three nodes are free");
    plane.attach(&record).expect("there are slots");
}

#[test]
fn a_name_outlives_the_member_by_which_it_was_taken() {
    let Some(server) = Server::start() else { return };
    let (first, second) = (free_address(), free_address());
    let way = Way::open(first, server.address);
    let members = [first.to_string(), second.to_string()];
    let mut etcd = Etcd::connect(&members).expect("the first answers");
    let daemon = &daemons(1)[0];
    let _name = etcd.register(&daemon.entry()).expect("it is new");
    let _other = Way::open(second, server.address);
    drop(way);
    sleep(EXPIRY);
    assert_eq!(server.etcd().nodes().expect("etcd answers"), [daemon.entry()]);
    etcd.turn_elsewhere().expect("the second answers");
    assert_eq!(etcd.nodes().expect("the second answers"), [daemon.entry()]);
}

#[test]
fn an_evicted_client_does_not_come_back() {
    let Some(server) = Server::start() else { return };
    let (daemons, _registrations) = cluster(&server);
    let plane = server.plane();
    let record = plane.create(&wishes()).expect("three nodes are free");
    let client_slot = plane.attach(&record).expect("all slots are free");
    let evicted = plane.evict(&record, 0).expect("all nodes answer");
    let fenced = (0, client_slot.session().incarnation.0);
    assert_eq!((evicted.incarnation, evicted.fenced.len()), (fenced.1, 3));
    assert!(daemons.iter().all(|daemon| daemon.fenced().contains(&fenced)));
    assert!(plane.clients(&record).expect("etcd answers").is_empty());
    wait_for("the evicted client to learn of it", || client_slot.is_lost());
    assert_eq!(server.etcd().evictions("p").expect("etcd answers"), [fenced]);
    let next = plane.attach(&record).expect("all slots are free");
    assert_eq!(next.session().client, 0);
    assert!(matches!(plane.evict(&record, 5), Err(Error::NoClient { slot: 5, .. })));
}

/// An eviction that came late took the place of a later one: a daemon that was cut off meanwhile went by the
/// earlier one, and let the later life of the slot go on.
#[test]
fn an_eviction_leaves_a_later_one_on_record() {
    let Some(server) = Server::start() else { return };
    let _cluster = cluster(&server);
    let plane = server.plane();
    let record = plane.create(&wishes()).expect("three nodes are free");
    let seats = [0, 1].map(|_| plane.attach(&record).expect("there are slots"));
    let lives = seats.each_ref().map(|client_slot| client_slot.session().incarnation.0);
    // Of the one slot a later life was evicted already, of the other one an earlier one.
    put(&server, "/swarm/pools/p/evictions/0000", "1000");
    put(&server, "/swarm/pools/p/evictions/0001", "1");
    for (slot, life) in lives.into_iter().enumerate() {
        assert_eq!(plane.evict(&record, slot).expect("all nodes answer").incarnation, life);
    }
    assert!(lives[1] > 1);
    let evictions = server.etcd().evictions("p").expect("etcd answers");
    assert_eq!(evictions, [(0, 1000), (1, lives[1])]);
}

/// A pool was reported as removed of which two nodes of three had not been reached: they went on serving it.
#[test]
fn a_pool_that_too_few_nodes_have_forgotten_is_not_removed() {
    let Some(server) = Server::start() else { return };
    let (mut daemons, _registrations) = cluster(&server);
    let plane = server.plane();
    let record = plane.create(&wishes()).expect("three nodes are free");
    let addresses = [daemons[1].address(), daemons[2].address()];
    daemons.truncate(1);
    let error = plane.destroy(false).expect_err("one of three answers").to_string();
    assert!(error.contains("is not removed: only 1 of 3"), "{error}");
    assert_eq!(plane.record().expect("it is there"), record);
    // Started again, they have forgotten it. So has the first one, which was reached.
    let again = Daemon::at(addresses[0]);
    assert!(again.is_free() && daemons[0].is_free());
    plane.destroy(false).expect("a majority has forgotten it");
    assert!(matches!(plane.record(), Err(Error::NoPool { .. })));
}

/// A user that insists has etcd forget it, and gets an error with what that means.
#[test]
fn a_pool_is_forgotten_by_force_and_that_is_reported() {
    let Some(server) = Server::start() else { return };
    let (mut daemons, _registrations) = cluster(&server);
    let plane = server.plane();
    plane.create(&wishes()).expect("three nodes are free");
    daemons.truncate(1);
    let error = plane.destroy(true).expect_err("one of three answers").to_string();
    assert!(error.contains("etcd has forgotten") && error.contains("only 1 of 3"), "{error}");
    assert!(matches!(plane.record(), Err(Error::NoPool { .. })));
}

#[test]
fn what_others_left_in_etcd_is_named() {
    let Some(server) = Server::start() else { return };
    put(&server, "/swarm/pools/p/record", "no record");
    let error = server.plane().record().expect_err("it is none").to_string();
    assert!(error.contains("/swarm/pools/p/record"), "{error}");
}

fn put(server: &Server, key: &str, value: &str) {
    run(async {
        let mut client = etcd_client::Client::connect(server.members(), None).await?;
        client.put(key, value, None).await.map(|_| ())
    });
}

/// Ends the lease under which a key is.
fn revoke(server: &Server, key: &str) {
    run(async {
        let mut client = etcd_client::Client::connect(server.members(), None).await?;
        let held = client.get(key, None).await?;
        let lease = held.kvs().first().expect("it is held").lease();
        client.lease_revoke(lease).await.map(|_| ())
    });
}

fn run(call: impl Future<Output = Result<(), etcd_client::Error>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("there is a runtime").block_on(call).expect("etcd answers");
}

/// Waits for twenty seconds that this process sleeps: on a busy host, sleeps and what is awaited both
/// take longer.
fn wait_for(what: &str, done: impl Fn() -> bool) {
    for _ in 0..400 {
        if done() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("waited in vain for {what}");
}

/// Lets all daemons know of a client in slot 5 that etcd does not know.
fn report_a_ghost(daemons: &[Daemon], pool: Id) {
    let client = Holder::new(5, 1).expect("there is chance");
    let report = EpochReport { epoch: 1, renewed: 0, reached: 0 };
    let request = Request::Report { pool, client, report };
    for daemon in daemons {
        ask(daemon.address(), &request).expect("it answers");
    }
}

/// A client that etcd does not know any more holds the epoch up: a client that waits for it has it fenced. One
/// that etcd knows is let be.
#[test]
fn a_client_that_is_waited_for_and_has_no_lease_is_evicted() {
    let Some(server) = Server::start() else { return };
    let (daemons, _registrations) = cluster(&server);
    let plane = server.plane();
    let record = plane.create(&wishes()).expect("three nodes are free");
    let (waits, lives) = (
        plane.attach(&record).expect("there are slots"),
        plane.attach(&record).expect("there are slots"),
    );
    report_a_ghost(&daemons, record.id);
    let domain = waits.domain();
    let until = domain.epoch() + 4;
    wait_for("a ghost to be evicted", || domain.try_advance() >= until);
    assert!(daemons.iter().all(|daemon| daemon.fenced().contains(&(5, 1))));
    let busy = lives.domain();
    busy.pin();
    let held = domain.epoch() + 1;
    sleep(Duration::from_secs(5));
    assert!(domain.try_advance() <= held, "one that lives is waited for");
    assert_eq!(plane.clients(&record).expect("etcd answers").len(), 2);
    busy.unpin();
}

/// A client that etcd does not know any more holds an object. Nobody wants memory; one that waits for the object asks
/// about it, and has it fenced. One that etcd knows is let be.
#[test]
fn a_client_that_is_asked_about_and_has_no_lease_is_evicted() {
    let Some(server) = Server::start() else { return };
    let (daemons, _registrations) = cluster(&server);
    let plane = server.plane();
    let record = plane.create(&wishes()).expect("three nodes are free");
    let (asks, lives) = (
        plane.attach(&record).expect("there are slots"),
        plane.attach(&record).expect("there are slots"),
    );
    report_a_ghost(&daemons, record.id);
    let (domain, lives) = (asks.domain(), lives.session());
    assert!(!domain.is_gone(5, Incarnation(1)), "nobody knows");
    // Places of clients that there never were, as in a damaged object.
    let strangers = [(lives.client, lives.incarnation.0 + 7), (3, 1000), (record.max_clients, 1)];
    wait_for("a ghost to be evicted", || {
        for (slot, session) in strangers {
            assert!(!domain.is_gone(slot, Incarnation(session)), "there is no such client");
        }
        assert!(!domain.is_gone(lives.client, lives.incarnation), "it has its lease");
        domain.is_gone(5, Incarnation(1))
    });
    assert!(daemons.iter().all(|daemon| daemon.fenced().contains(&(5, 1))));
    for _ in 0..50 {
        sleep(Duration::from_millis(100));
        assert!(!domain.is_gone(lives.client, lives.incarnation), "it has its lease");
        for (slot, session) in strangers {
            assert!(!domain.is_gone(slot, Incarnation(session)), "there is no such client");
        }
    }
    let is_strangers = |&(slot, up_to): &(usize, u64)| slot != 5 && up_to > lives.incarnation.0;
    assert!(!daemons[0].fenced().iter().any(is_strangers), "nobody is fenced for a stranger");
    assert_eq!(plane.clients(&record).expect("etcd answers").len(), 2);
}
