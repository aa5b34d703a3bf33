//! Checks a node's answer to a request for a connection.
//!
//! **Invariant:** a connection is used only if the node at its other end reports this pool, this
//! number, the instance id in the pool's descriptor, and enough memory.

use swarm_core::node::NodeId;

use super::ConnectPlan;
use crate::error::Fault;
use crate::handshake::{NodeHello, Reject, Unreadable};
use crate::options::Endpoint;

/// Reject reasons of the connection manager.
const NO_SUCH_SERVICE: i32 = 8;
const BY_CONSUMER: i32 = 28;

/// The request that an answer belongs to.
pub(super) struct HandshakeCheck<'p> {
    pub(super) plan: &'p ConnectPlan,
    pub(super) node: NodeId,
    pub(super) endpoint: Endpoint,
}

impl HandshakeCheck<'_> {
    /// Checks that the node that accepted the connection is the requested one.
    pub(super) fn consent(&self, data: &[u8]) -> Result<NodeHello, Fault> {
        let Endpoint { address, life } = self.endpoint;
        let card = NodeHello::decode(data).map_err(|unreadable| self.unread(unreadable))?;
        let wanted = self.plan.pool;
        if card.pool != wanted {
            return Err(Fault::OtherPool { address, found: card.pool, wanted });
        }
        if card.node != self.node {
            return Err(Fault::OtherNode { address, found: card.node, wanted: self.node });
        }
        if let Some(known) = life.filter(|&known| known != card.life) {
            return Err(Fault::Reborn { address, found: card.life, known });
        }
        if card.words < self.plan.words {
            return Err(Fault::Small { address, found: card.words, needed: self.plan.words });
        }
        Ok(card)
    }

    /// Translates a rejection into a fault.
    pub(super) fn refusal(&self, data: &[u8], reason: i32) -> Fault {
        let address = self.endpoint.address;
        if reason != BY_CONSUMER {
            let why = match reason {
                NO_SUCH_SERVICE => "no memory node listens there".to_owned(),
                _ => format!("the connection manager there refused (reason {reason})"),
            };
            return Fault::Unreachable { address, why };
        }
        match Reject::decode(data) {
            Err(unreadable) => self.unread(unreadable),
            Ok(Reject::Foreign) => Fault::Foreign { address },
            Ok(Reject::Version(version)) => Fault::Version { address, version },
            Ok(Reject::NoPool) => Fault::NoPool { address },
            Ok(Reject::Pool(found)) => Fault::OtherPool { address, found, wanted: self.plan.pool },
            Ok(Reject::Node(found)) => Fault::OtherNode { address, found, wanted: self.node },
            Ok(Reject::Fenced) => Fault::Fenced { address, client: self.plan.client },
            Ok(Reject::Exhausted) => Fault::Exhausted { address },
        }
    }

    fn unread(&self, unreadable: Unreadable) -> Fault {
        let address = self.endpoint.address;
        match unreadable {
            Unreadable::Foreign => Fault::Foreign { address },
            Unreadable::Version(version) => Fault::Version { address, version },
        }
    }
}
