//! A task for a client of any kind.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;
use swarm_kv::Client;

use crate::Failure;

/// A task that uses a client, compiled for each kind.
pub(crate) trait Task {
    type Output;
    fn run<F: Fabric, C: Clock, P: Protocol>(
        self,
        client: &Client<F, C, P>,
    ) -> Result<Self::Output, Failure>;
}
