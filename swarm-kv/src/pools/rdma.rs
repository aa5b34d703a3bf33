//! The store on memory nodes behind RDMA cards.
//!
//! A pool's clients may run on any host that reaches the nodes. [`Pool::open`] finds the pool in
//! etcd or through the nodes' daemons; [`open`] takes a client slot there and connects a queue pair
//! to each node. From then on neither etcd nor a daemon is asked for anything until the client
//! leaves.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use swarm_core::layout::Geometry;
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::words::Incarnation;
use swarm_rdma::control::protocol::Status;
use swarm_rdma::control::{
    ClientSlot, Error as PlaneError, Evicted, Holder, Plane, PoolDescriptor,
};
use swarm_rdma::{ClientId, Endpoint, Error as DeviceError, InstanceId, PoolId};

pub use swarm_rdma::control::{PoolAddress, PoolSpec, WallClock};
pub use swarm_rdma::{ConnectOptions, DeviceChoice, Fault, NodeStatus, RdmaFabric, control};

use crate::client::handle::Options;
use crate::ops::scan::Usage;
use crate::ops::verify::Verdict;
use crate::read_only::ReadOnlyFabric;
use crate::runtime::block_on::block_on;

/// Why a pool could not be opened, or a client of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The control plane failed.
    #[error(transparent)]
    Plane(#[from] PlaneError),
    /// This host's device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// A pool on memory nodes. Cheap to clone.
///
/// It belongs to the process that opened it: a forked child shares its connections to etcd, and has
/// to open the pool anew.
#[derive(Clone)]
pub struct Pool {
    plane: Arc<Plane>,
    record: Arc<PoolDescriptor>,
    geometry: Geometry,
    device: DeviceChoice,
    node_timeout: Option<Duration>,
}

impl Pool {
    /// Creates a pool on memory nodes that belong to none.
    ///
    /// # Errors
    /// The pool exists, or too few nodes are free, or the specification contradicts itself.
    pub fn create(
        address: &PoolAddress,
        wishes: &PoolSpec,
        device: DeviceChoice,
    ) -> Result<Self, Error> {
        let plane = Plane::open(address)?;
        let record = plane.create(wishes)?;
        Self::of(plane, record, device)
    }

    /// Finds a pool.
    ///
    /// # Errors
    /// There is none, or the control plane does not answer.
    pub fn open(address: &PoolAddress, device: DeviceChoice) -> Result<Self, Error> {
        let plane = Plane::open(address)?;
        let record = plane.record()?;
        Self::of(plane, record, device)
    }

    fn of(plane: Plane, record: PoolDescriptor, device: DeviceChoice) -> Result<Self, Error> {
        let geometry = record.geometry()?;
        let (plane, record) = (Arc::new(plane), Arc::new(record));
        Ok(Self { plane, record, geometry, device, node_timeout: None })
    }

    /// Sets for how long a node may be silent before clients that are opened from now on count it
    /// as lost, and do without it until they are connected again. It is some 70 ms by default: see
    /// [`ConnectOptions::node_timeout`].
    #[must_use]
    pub fn node_timeout(mut self, time: Duration) -> Self {
        self.node_timeout = Some(time);
        self
    }

    /// Removes a pool: its nodes drop what they hold. `force` does so under live clients.
    ///
    /// # Errors
    /// There is none, clients use it, or the control plane does not answer.
    pub fn destroy(address: &PoolAddress, force: bool) -> Result<(), Error> {
        Ok(Plane::open(address)?.destroy(force)?)
    }

    /// Returns what lies where in the nodes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Returns the pool's descriptor.
    pub fn record(&self) -> &PoolDescriptor {
        &self.record
    }

    /// Returns the clients that hold a client slot.
    ///
    /// # Errors
    /// The control plane does not answer.
    pub fn clients(&self) -> Result<Vec<Holder>, Error> {
        Ok(self.plane.clients(&self.record)?)
    }

    /// Returns the status of each node's daemon, in order, or what is wrong with it.
    pub fn statuses(&self) -> Vec<Result<Status, PlaneError>> {
        self.plane.statuses(&self.record)
    }

    /// Evicts the client in `slot`: nothing that it posts takes effect any more at the nodes that
    /// are returned as fenced, a majority at least.
    ///
    /// # Errors
    /// There is no such client, or fewer than a majority of the nodes answered.
    pub fn evict(&self, slot: usize) -> Result<Evicted, Error> {
        Ok(self.plane.evict(&self.record, slot)?)
    }

    /// Returns the pool's clock.
    pub fn clock(&self) -> WallClock {
        WallClock::since(self.record.created)
    }

    fn connect(&self, client: ClientId) -> Result<RdmaFabric, Error> {
        let words = self.geometry.capacity / 8;
        let mut options = ConnectOptions::new(PoolId(self.record.id.0), client, words);
        options.device = self.device.clone();
        if let Some(time) = self.node_timeout {
            options = options.node_timeout(time);
        }
        let endpoint = |node: &swarm_rdma::control::NodeEntry| Endpoint {
            address: node.address,
            life: Some(InstanceId(node.life.0)),
        };
        let nodes: Vec<_> = self.record.nodes.iter().map(endpoint).collect();
        Ok(RdmaFabric::connect(&options, &nodes)?)
    }
}

/// A client of a pool, with its client slot. Dereferences to the
/// [`Client`](crate::client::handle::Client).
///
/// In a forked child, its operations end in [`Error::Forked`](crate::Error::Forked), and dropping
/// it does nothing: queue pairs, lease and client slot are the parent's. (`_Fork` and a bare
/// `clone` run no fork handlers: their children cannot know, and must not touch it.)
pub struct Client<P: Protocol = SafeGuess> {
    // Dropped in this order: the chains that the client posts on leaving are posted, and have
    // ended, while the slot is its own.
    client: crate::client::handle::Client<RdmaFabric, WallClock, P>,
    client_slot: ClientSlot,
}

impl<P: Protocol> Client<P> {
    /// Returns the client's slot in the pool.
    pub fn client_slot(&self) -> &ClientSlot {
        &self.client_slot
    }

    /// Returns the client's state at each node, and why it has no connection where it has none.
    pub fn nodes(&self) -> Vec<NodeStatus> {
        self.client.group.fabric().inner().status()
    }
}

impl<P: Protocol> Deref for Client<P> {
    type Target = crate::client::handle::Client<RdmaFabric, WallClock, P>;

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

/// Opens a client of `pool`.
///
/// # Errors
/// All client slots are taken; the control plane does not answer; the device fails.
pub fn open(pool: &Pool, options: Options) -> Result<Client, Error> {
    open_plain::<SafeGuess>(pool, options)
}

/// Opens a client of `pool` whose registers follow protocol `P`. All clients of one pool must use
/// the same.
///
/// # Errors
/// All client slots are taken; the control plane does not answer; the device fails.
pub fn open_plain<P: Protocol>(pool: &Pool, options: Options) -> Result<Client<P>, Error> {
    let client_slot = pool.plane.attach(&pool.record)?;
    let session = client_slot.session();
    let fabric =
        pool.connect(ClientId { slot: session.client as u32, incarnation: session.incarnation.0 })?;
    let client =
        crate::client::handle::Client::new(fabric, pool.clock(), pool.geometry, session, options);
    Ok(Client { client: client.with_epochs(client_slot.domain()), client_slot })
}

/// Verifies that all of `pool` is intact, as [`shm::verify`](crate::pools::shm::verify) does for
/// pools in shared memory. Faults are read again 200 ms later. An idle client that has not
/// [quiesced](crate::client::handle::Client::rest) may have deferred the chains that mark its
/// last writes as complete: then they are reported as unsettled.
///
/// # Errors
/// The device fails. Too few memory nodes that answer.
pub fn verify(
    pool: &Pool,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Result<Verdict, crate::Error>, Error> {
    let mut grace = || std::thread::sleep(std::time::Duration::from_millis(200));
    Ok(block_on(read_only(pool)?.verify(progress, &mut grace)))
}

/// Returns what `pool` holds. Takes no client slot and changes nothing.
///
/// # Errors
/// The device fails. Too few memory nodes that answer; damaged memory.
pub fn usage(pool: &Pool) -> Result<Result<Usage, crate::Error>, Error> {
    Ok(block_on(read_only(pool)?.usage()))
}

fn read_only(
    pool: &Pool,
) -> Result<crate::client::handle::Client<ReadOnlyFabric<RdmaFabric>, WallClock>, Error> {
    // No other client sees its changes, so the session may be any.
    let nobody = Session { client: 0, incarnation: Incarnation(0) };
    let fabric = ReadOnlyFabric::new(pool.connect(ClientId::NOBODY)?);
    Ok(crate::client::handle::Client::new(
        fabric,
        pool.clock(),
        pool.geometry,
        nobody,
        Options::default(),
    )
    .that_only_looks())
}
