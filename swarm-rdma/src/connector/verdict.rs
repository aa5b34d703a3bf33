//! What a node's answer to a request for a connection means.
//!
//! The invariant: a connection is used only if the node at its other end says that it is the one that
//! was meant: this pool's, of this number, in the life that the pool knows, and large enough.

use swarm_core::node::NodeId;

use super::Plan;
use crate::error::Fault;
use crate::greeting::{NodeCard, Refusal, Unreadable};
use crate::options::Endpoint;

/// Reasons for a refusal that the connection manager itself gives.
const NO_SUCH_SERVICE: i32 = 8;
const BY_CONSUMER: i32 = 28;

/// Who was asked, and for what.
pub(super) struct Verdict<'p> {
    pub(super) plan: &'p Plan,
    pub(super) node: NodeId,
    pub(super) endpoint: Endpoint,
}

impl Verdict<'_> {
    /// Whether the node that took the connection is the right one.
    pub(super) fn consent(&self, said: &[u8]) -> Result<NodeCard, Fault> {
        let Endpoint { address, life } = self.endpoint;
        let card = NodeCard::decode(said).map_err(|unreadable| self.unread(unreadable))?;
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

    /// What a refusal means.
    pub(super) fn refusal(&self, said: &[u8], reason: i32) -> Fault {
        let address = self.endpoint.address;
        if reason != BY_CONSUMER {
            let why = match reason {
                NO_SUCH_SERVICE => "no memory node listens there".to_owned(),
                _ => format!("the connection manager there refused (reason {reason})"),
            };
            return Fault::Unreachable { address, why };
        }
        match Refusal::decode(said) {
            Err(unreadable) => self.unread(unreadable),
            Ok(Refusal::Foreign) => Fault::Foreign { address },
            Ok(Refusal::Version(version)) => Fault::Version { address, version },
            Ok(Refusal::NoPool) => Fault::NoPool { address },
            Ok(Refusal::Pool(found)) => Fault::OtherPool { address, found, wanted: self.plan.pool },
            Ok(Refusal::Node(found)) => Fault::OtherNode { address, found, wanted: self.node },
            Ok(Refusal::Fenced) => Fault::Fenced { address, client: self.plan.client },
            Ok(Refusal::Exhausted) => Fault::Exhausted { address },
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
