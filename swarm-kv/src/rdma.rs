//! The store on memory nodes behind RDMA cards.
//!
//! A pool's clients may be on any host that reaches the nodes. [`Pool::open`] finds the pool in etcd
//! or at the nodes' daemons; [`open`] takes a client slot there and connects a queue pair to each
//! node. From then on neither etcd nor a daemon is asked for anything until the client leaves.

use std::ops::Deref;
use std::sync::Arc;

use swarm_core::layout::Geometry;
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::words::Incarnation;
use swarm_rdma::control::admin::Status;
use swarm_rdma::control::{Error as PlaneError, Evicted, Holder, Plane, PoolRecord, Seat};
use swarm_rdma::{ClientId, Endpoint, Error as DeviceError, Life, PoolId};

pub use swarm_rdma::control::{PoolAddress, PoolWishes, WallClock};
pub use swarm_rdma::{ConnectOptions, DeviceChoice, Fault, NodeStatus, RdmaFabric, control};

use crate::blocking::block_on;
use crate::client::{self, Options};
use crate::onlooker::Onlooker;
use crate::scan::Usage;

/// Why a pool could not be opened, or a client of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Whoever knows the pool.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// This host's device.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A pool on memory nodes. Cheap to clone.
///
/// It is the process's that opened it: a forked child shares its connections to etcd with it, and has to open the
/// pool anew.
#[derive(Clone)]
pub struct Pool {
    plane: Arc<Plane>,
    record: Arc<PoolRecord>,
    geometry: Geometry,
    device: DeviceChoice,
}

impl Pool {
    /// Makes a pool on memory nodes that belong to none.
    ///
    /// # Errors
    /// There is one, or too few nodes are free, or the wishes contradict each other.
    pub fn create(
        address: &PoolAddress,
        wishes: &PoolWishes,
        device: DeviceChoice,
    ) -> Result<Self, Error> {
        let plane = Plane::open(address)?;
        let record = plane.create(wishes)?;
        Self::of(plane, record, device)
    }

    /// Finds a pool.
    ///
    /// # Errors
    /// There is none, or whoever knows does not answer.
    pub fn open(address: &PoolAddress, device: DeviceChoice) -> Result<Self, Error> {
        let plane = Plane::open(address)?;
        let record = plane.record()?;
        Self::of(plane, record, device)
    }

    fn of(plane: Plane, record: PoolRecord, device: DeviceChoice) -> Result<Self, Error> {
        let geometry = record.geometry()?;
        Ok(Self { plane: Arc::new(plane), record: Arc::new(record), geometry, device })
    }

    /// Removes a pool: its nodes forget what they hold. `force` does so under live clients.
    ///
    /// # Errors
    /// There is none, clients use it, or whoever knows does not answer.
    pub fn destroy(address: &PoolAddress, force: bool) -> Result<(), Error> {
        Ok(Plane::open(address)?.destroy(force)?)
    }

    /// What lies where in the nodes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// What is known of the pool.
    pub fn record(&self) -> &PoolRecord {
        &self.record
    }

    /// Who holds a client slot.
    ///
    /// # Errors
    /// Whoever knows does not answer.
    pub fn clients(&self) -> Result<Vec<Holder>, Error> {
        Ok(self.plane.clients(&self.record)?)
    }

    /// How each node's daemon is, in order, or what is wrong with it.
    pub fn statuses(&self) -> Vec<Result<Status, PlaneError>> {
        self.plane.statuses(&self.record)
    }

    /// Ends the client in `slot`: nothing that it posts takes effect any more at the nodes that are
    /// named as fenced, a majority at least.
    ///
    /// # Errors
    /// There is no such client, or fewer than a majority of the nodes answered.
    pub fn evict(&self, slot: usize) -> Result<Evicted, Error> {
        Ok(self.plane.evict(&self.record, slot)?)
    }

    /// The pool's clock.
    pub fn clock(&self) -> WallClock {
        WallClock::since(self.record.created)
    }

    fn connect(&self, client: ClientId) -> Result<RdmaFabric, Error> {
        let words = self.geometry.capacity / 8;
        let mut options = ConnectOptions::new(PoolId(self.record.id.0), client, words);
        options.device = self.device.clone();
        let endpoint = |node: &swarm_rdma::control::NodeEntry| Endpoint {
            address: node.address,
            life: Some(Life(node.life.0)),
        };
        let nodes: Vec<_> = self.record.nodes.iter().map(endpoint).collect();
        Ok(RdmaFabric::connect(&options, &nodes)?)
    }
}

/// A client of a pool, with its slot there. Dereferences to the [`Client`](client::Client).
///
/// In a child that the process forks, its operations end in [`Error::Forked`](crate::Error::Forked), and dropping it
/// does nothing: queue pairs, lease and slot are the parent's. (`_Fork` and a bare `clone` run no fork handlers: their
/// children cannot be told, and must not touch it.)
pub struct Client<P: Protocol = SafeGuess> {
    // Dropped in this order: what the client posts on leaving is posted, and over, while the slot is
    // its own.
    client: client::Client<RdmaFabric, WallClock, P>,
    seat: Seat,
}

impl<P: Protocol> Client<P> {
    /// The client's slot in the pool.
    pub fn seat(&self) -> &Seat {
        &self.seat
    }

    /// How the client stands with each node, and why it has no connection where it has none.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.client.group.fabric().inner().status()
    }
}

impl<P: Protocol> Deref for Client<P> {
    type Target = client::Client<RdmaFabric, WallClock, P>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

/// Opens a client of `pool`.
///
/// # Errors
/// All client slots are taken; whoever gives them out does not answer; the device fails.
pub fn open(pool: &Pool, options: Options) -> Result<Client, Error> {
    open_plain::<SafeGuess>(pool, options)
}

/// Opens a client of `pool` that keeps registers by `P`. All clients of one pool must use the same.
///
/// # Errors
/// All client slots are taken; whoever gives them out does not answer; the device fails.
pub fn open_plain<P: Protocol>(pool: &Pool, options: Options) -> Result<Client<P>, Error> {
    let seat = pool.plane.attach(&pool.record)?;
    let session = seat.session();
    let fabric =
        pool.connect(ClientId { slot: session.client as u32, incarnation: session.incarnation.0 })?;
    let client = client::Client::new(fabric, pool.clock(), pool.geometry, session, options);
    Ok(Client { client: client.recycling(seat.board()), seat })
}

/// What `pool` holds. Takes no client slot and changes nothing.
///
/// # Errors
/// The device fails. Too few memory nodes that answer; damaged memory.
pub fn usage(pool: &Pool) -> Result<Result<Usage, crate::Error>, Error> {
    // Nobody else sees what it does, so it may be anybody.
    let nobody = Session { client: 0, incarnation: Incarnation(0) };
    let fabric = Onlooker::new(pool.connect(ClientId::NOBODY)?);
    let onlooker: client::Client<_, _> =
        client::Client::new(fabric, pool.clock(), pool.geometry, nobody, Options::default());
    Ok(block_on(onlooker.usage()))
}
