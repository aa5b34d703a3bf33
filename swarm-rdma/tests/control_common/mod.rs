//! Daemons whose memory is made up.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;

use swarm_core::fabric::EpochDomain;
use swarm_rdma::control::{
    FenceAgent, Holder, Id, Membership, NodeEntry, Plane, PoolAddress, PoolDescriptor, PoolSpec,
    Server,
};

/// Bytes of each node.
pub(crate) const CAPACITY: u64 = 128 << 20;

#[derive(Default)]
struct Log {
    fenced: Vec<(usize, u64)>,
    released: bool,
    zeroing: Duration,
}

struct MadeUp(Arc<Mutex<Log>>);

impl FenceAgent for MadeUp {
    fn join(&mut self, _: &PoolDescriptor, _: u8) -> Result<(), String> {
        Ok(())
    }

    fn release(&mut self) -> Result<Id, String> {
        let zeroing = self.0.lock().expect("nobody panicked").zeroing;
        sleep(zeroing);
        self.0.lock().expect("nobody panicked").released = true;
        Id::random().map_err(|error| error.to_string())
    }

    fn fence(&mut self, client: usize, incarnation: u64) -> usize {
        self.0.lock().expect("nobody panicked").fenced.push((client, incarnation));
        0
    }
}

/// A daemon without a device.
pub(crate) struct Daemon {
    server: Server<MadeUp>,
    log: Arc<Mutex<Log>>,
}

impl Daemon {
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self::named(&address.to_string(), address)
    }

    pub(crate) fn named(name: &str, address: SocketAddr) -> Self {
        let log = Arc::default();
        let life = Id::random().expect("there is chance");
        let entry = NodeEntry { name: name.to_owned(), address, life, capacity: CAPACITY };
        let server = Server::start(Membership::new(entry, MadeUp(Arc::clone(&log))));
        Self { server: server.expect("the port is free"), log }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn entry(&self) -> NodeEntry {
        self.server.membership().entry().clone()
    }

    pub(crate) fn is_free(&self) -> bool {
        self.server.membership().pool().is_none()
    }

    pub(crate) fn holders(&self) -> Vec<Holder> {
        self.server.membership().holders()
    }

    /// To zero its memory will take so long.
    pub(crate) fn takes(&self, zeroing: Duration) {
        self.log.lock().expect("nobody panicked").zeroing = zeroing;
    }

    /// Grants a client its slot.
    pub(crate) fn grant(&self, pool: Id, client: Holder) {
        self.server.membership().claim(pool, client).expect("the slot is free");
    }

    pub(crate) fn fenced(&self) -> Vec<(usize, u64)> {
        self.log.lock().expect("nobody panicked").fenced.clone()
    }

    pub(crate) fn released(&self) -> bool {
        self.log.lock().expect("nobody panicked").released
    }
}

/// A port of this host that is free, and stays so for a while.
pub(crate) fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there are ports");
    listener.local_addr().expect("it listens")
}

pub(crate) fn daemons(count: usize) -> Vec<Daemon> {
    (0..count).map(|_| Daemon::at(free_address())).collect()
}

/// A file that lists them.
pub(crate) fn list(daemons: &[Daemon]) -> (PoolAddress, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("there is room");
    let file = directory.path().join("nodes.toml");
    let addresses: Vec<_> = daemons.iter().map(|daemon| daemon.address().to_string()).collect();
    std::fs::write(&file, format!("nodes = {addresses:?}\n")).expect("it can be written");
    (PoolAddress::Static(file), directory)
}

pub(crate) fn wishes() -> PoolSpec {
    PoolSpec { nodes: 3, capacity: CAPACITY, max_clients: 8, slots: 6 }
}

/// Clients that live long are given incarnations to go on under, larger and larger ones that nobody else has;
/// and a later client has a larger one than all.
pub(crate) fn gives_more_incarnations(plane: &Plane, record: &PoolDescriptor) {
    let seats: Vec<_> = (0..4).map(|_| plane.attach(record).expect("there are slots")).collect();
    let mut given: BTreeSet<_> =
        seats.iter().map(|client_slot| client_slot.session().incarnation).collect();
    assert!(seats[0].domain().incarnation().is_none(), "none were asked for");
    // Sleeps are longer on a busy host.
    let mut sleeps = 3_000;
    for client_slot in &seats {
        let (domain, mut before) = (client_slot.domain(), client_slot.session().incarnation);
        // More than are drawn at a time.
        for _ in 0..100 {
            let next = loop {
                if let Some(next) = domain.incarnation() {
                    break next;
                }
                sleeps -= 1;
                assert!(sleeps > 0, "none are given out");
                sleep(Duration::from_millis(10));
            };
            assert!(next > before && given.insert(next), "{next:?} after {before:?}");
            before = next;
        }
    }
    let later = plane.attach(record).expect("there are slots").session().incarnation;
    assert!(given.iter().all(|&it| it < later), "{later:?}");
}
