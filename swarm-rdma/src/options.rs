//! How to connect, and what a fabric says of itself.

use std::net::SocketAddr;
use std::time::Duration;

use crate::device::DeviceChoice;
use crate::error::Fault;
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
    /// How long [`connect`](crate::RdmaFabric::connect) waits for nodes, at most.
    pub patience: Duration,
    /// How long the device waits for a packet's acknowledgment before it sends it again: 4.096 µs
    /// times 2 to this power.
    pub ack_timeout: u8,
    /// How often it sends a packet again before the connection counts as lost; at most 6, as 7 means
    /// for ever to some devices.
    pub retries: u8,
}

impl ConnectOptions {
    /// Connects `client` to the nodes of `pool`, which have `words` words each. A dead peer is an
    /// error within about 100 ms.
    pub fn new(pool: PoolId, client: ClientId, words: u64) -> Self {
        let patience = Duration::from_secs(2);
        let device = DeviceChoice::default();
        Self { device, pool, client, words, patience, ack_timeout: 12, retries: 3 }
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
    /// Work requests that waited for earlier ones.
    pub fenced: u64,
    /// Completions that were asked for: one for each chain.
    pub signalled: u64,
    /// Memory registrations.
    pub registrations: u64,
    /// Connections made, those that replaced others included.
    pub connections: u64,
    /// Times that posting had to wait for room.
    pub full: u64,
    /// Times that waiting slept.
    pub sleeps: u64,
    /// READs posted to nodes that let it wait for long.
    pub nudges: u64,
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
