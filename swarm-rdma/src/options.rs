//! How to connect, and what a fabric reports about itself.

use std::net::SocketAddr;
use std::time::Duration;

use crate::device::DeviceChoice;
use crate::error::Fault;
use crate::handshake::{ClientId, InstanceId, PoolId};

/// Where a memory node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Its address.
    pub address: SocketAddr,
    /// The instance id in the pool's descriptor. `None` accepts any at the first connection. A node
    /// with another instance id has lost its memory and counts as down.
    pub life: Option<InstanceId>,
}

/// How to connect.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// The device.
    pub device: DeviceChoice,
    /// The pool.
    pub pool: PoolId,
    /// The client that connects.
    pub client: ClientId,
    /// Words that each node must have.
    pub words: u64,
    /// The longest time that [`connect`](crate::RdmaFabric::connect) waits for nodes.
    pub patience: Duration,
    /// How long the device waits for a packet's acknowledgment before it retransmits: 4.096 µs
    /// times 2 to this power.
    pub ack_timeout: u8,
    /// How often the device retransmits a packet before the connection counts as lost: at most 6,
    /// because some devices take 7 as unlimited.
    pub retries: u8,
}

impl ConnectOptions {
    /// Options that connect `client` to the nodes of `pool`, which have `words` words each. With
    /// them, a dead peer is an error within about 100 ms.
    pub fn new(pool: PoolId, client: ClientId, words: u64) -> Self {
        let patience = Duration::from_secs(2);
        let device = DeviceChoice::default();
        Self { device, pool, client, words, patience, ack_timeout: 12, retries: 3 }
    }

    /// Sets timeout and retries so that a node that does not answer counts as lost after `time`, or
    /// up to twice that. The longer, the longer a lost packet delays its chain: a seventh of that.
    #[must_use]
    pub fn node_timeout(mut self, time: Duration) -> Self {
        self.retries = 6;
        let tries = u128::from(self.retries) + 1;
        // 0 is without end.
        let is_enough = |&power: &u8| (4096 << power) * tries >= time.as_nanos();
        self.ack_timeout = (1..=31).find(is_enough).unwrap_or(31);
        self
    }
}

/// Event counts of a fabric, for tests and reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Chains posted.
    pub chains: u64,
    /// Calls that hand work requests to a device: one for each chain.
    pub doorbells: u64,
    /// Work requests posted.
    pub work_requests: u64,
    /// Work requests posted with the fence flag.
    pub fenced: u64,
    /// Work requests posted signalled: one for each chain.
    pub signalled: u64,
    /// Memory registrations.
    pub registrations: u64,
    /// Connections made, including reconnections.
    pub connections: u64,
    /// Times that posting waited for a slot or for room in a queue pair.
    pub full: u64,
    /// Times that a wait for completions slept.
    pub sleeps: u64,
    /// Probes: READs posted to wake a queue pair that has been quiet for long.
    pub probes: u64,
}

/// This client's connection to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStatus {
    /// Its address.
    pub address: SocketAddr,
    /// Its instance id, known from the first connection on.
    pub life: Option<InstanceId>,
    /// Why there is no connection, if there is none.
    pub fault: Option<Fault>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_lost_after_the_time_that_is_set_or_up_to_twice_that() {
        let options = ConnectOptions::new(PoolId(1), ClientId::NOBODY, 8);
        for millis in [1, 67, 100, 1_000, 7_500, 60_000, 3_600_000] {
            let time = Duration::from_millis(millis);
            let set = options.clone().node_timeout(time);
            let lost = Duration::from_nanos(4096 << set.ack_timeout) * (u32::from(set.retries) + 1);
            assert!((time..=time * 2).contains(&lost), "{lost:?} for {time:?}");
        }
        let (none, longest) = (Duration::ZERO, Duration::MAX);
        assert_eq!(options.clone().node_timeout(none).ack_timeout, 1, "0 is without end");
        assert_eq!(options.node_timeout(longest).ack_timeout, 31);
    }
}
