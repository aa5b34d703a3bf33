//! The fabric over verbs.

use std::future::Future;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use swarm_core::fabric::{Fabric, NodeDown, NodeId, Verb};

use crate::device::DeviceChoice;
use crate::error::{Error, Fault};
use crate::greeting::{ClientId, Life, PoolId};

/// Where a memory node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Its address.
    pub address: SocketAddr,
    /// The life that the pool knows it by; any, the first time, if this is `None`. A node in
    /// another life has lost its memory and counts as down.
    pub life: Option<Life>,
}

/// How to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The device.
    pub device: DeviceChoice,
    /// The pool.
    pub pool: PoolId,
    /// Who connects.
    pub client: ClientId,
    /// Words that each node must have.
    pub words: u64,
    /// How long [`RdmaFabric::connect`] waits for nodes, at most.
    pub patience: std::time::Duration,
}

impl ConnectOptions {
    /// Connects `client` to the nodes of `pool`, which have `words` words each.
    pub fn new(pool: PoolId, client: ClientId, words: u64) -> Self {
        let patience = std::time::Duration::from_secs(2);
        Self { device: DeviceChoice::default(), pool, client, words, patience }
    }
}

/// What a fabric has done so far. Plain counts, for tests and reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Chains posted.
    pub chains: u64,
    /// Calls that hand work requests to a device: one for each chain.
    pub doorbells: u64,
    /// Work requests posted.
    pub work_requests: u64,
    /// Completions that were asked for: one for each chain.
    pub signalled: u64,
    /// Memory registrations.
    pub registrations: u64,
    /// Connections made, those that replaced others included.
    pub connections: u64,
}

/// How a node stands with this client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its life, once met.
    pub life: Option<Life>,
    /// Why there is no connection, if there is none.
    pub fault: Option<Fault>,
}

/// One client's access to the memory nodes of a pool.
#[derive(Debug)]
pub struct RdmaFabric {
    nodes: usize,
}

impl RdmaFabric {
    /// Connects to `nodes`, by their numbers in the pool. A node that cannot be reached is a missing
    /// vote, not an error: it is tried again in the background.
    ///
    /// # Errors
    /// The options or the device.
    pub fn connect(_options: &ConnectOptions, _nodes: &[Endpoint]) -> Result<Self, Error> {
        Err(Error::NoDevice { why: "not looked for".to_owned() })
    }

    /// How each node stands.
    pub fn status(&self) -> Vec<NodeStatus> {
        Vec::new()
    }

    /// What this fabric has done so far.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}

/// What the verbs of a chain yielded.
#[derive(Debug)]
pub struct Reply<'f>(PhantomData<&'f RdmaFabric>);

impl Deref for Reply<'_> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &[]
    }
}

/// A posted chain.
#[derive(Debug)]
pub struct Completion<'f>(PhantomData<&'f RdmaFabric>);

impl<'f> Future for Completion<'f> {
    type Output = Result<Reply<'f>, NodeDown>;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Err(NodeDown))
    }
}

impl Fabric for RdmaFabric {
    type Reply<'f> = Reply<'f>;
    type Completion<'f> = Completion<'f>;

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn post<'f>(&'f self, _node: NodeId, _chain: &[Verb<'_>]) -> Completion<'f> {
        Completion(PhantomData)
    }
}
