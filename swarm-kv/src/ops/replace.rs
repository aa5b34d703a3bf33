//! Replacing a node while clients work.
//!
//! | step | what | why |
//! | --- | --- | --- |
//! | gone | the next configuration is decided: the node is filling, in another life; then another generation begins | operations that begin from now on do not count on it (H7) |
//! | quiet | the epoch moves past every operation that began before | nothing that counts on the former life is under way |
//! | filled | all that the node has to hold is put at its new memory ([`fill`](super::fill)) | every majority with the node shows what completed before it was gone, or something later (H1, H2, H5) |
//! | votes | the next configuration is decided, and another generation begins | it is as a node that lagged |
//!
//! A client that fills and dies leaves the node gone. The next one begins anew, in another life and
//! with other memory, so no two clients ever fill the same memory: what the dead one still has on
//! its way goes to memory that never votes (H6).
//!
//! This is what is common to fabrics; what each brings is [`Membership`].

use std::future::Future;

use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{EpochDomain, Fabric, Laggard};
use swarm_core::node::{Configuration, NodeId, Refused};
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::error::Error;
use crate::ops::fill::Filled;

/// Nanoseconds between two looks at whether the epoch advances.
const BETWEEN_LOOKS: u64 = 100_000;
/// Nanoseconds after which an operation that holds the epoch up is named.
const LATE: u64 = 100_000_000;
/// How often others' changes of the configuration may come first.
const TRIES: usize = 100;

/// Where a pool's configuration is decided, and where a node's new memory comes from: what a
/// fabric brings for [`Client::replace_node`].
///
/// The fabric of each client, [`reconfigured`](Fabric::reconfigure), goes by the configuration that
/// is decided then or a later one.
pub trait Membership {
    /// The fabric that posts to a node's new memory alone.
    type Joining: Fabric;

    /// Returns the configuration that was decided last.
    fn configuration(&self) -> Configuration;

    /// Decides `next`, if it [follows](Configuration::follows) the one that was decided last, and
    /// returns whether it does. It is decided once and for all, whatever minority of nodes is lost.
    ///
    /// # Errors
    /// Too few nodes, or daemons, answer. It is open whether it was decided.
    fn decide(&self, next: &Configuration) -> impl Future<Output = Result<bool, Error>>;

    /// Returns access to the memory of a node that is filling in this life. It is all zeros, and no
    /// chain to a former life ever reaches it.
    ///
    /// # Errors
    /// There is no such memory.
    fn join(&self, node: NodeId, life: u32) -> impl Future<Output = Result<Self::Joining, Error>>;
}

/// How far a replacement is.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum ReplaceStep {
    /// The node is gone, and operations that began before that are under way: this client's, if it
    /// is known.
    Waits(Option<Laggard>),
    /// So much was filled.
    Fills(Filled),
}

/// Why a node was not replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// The configuration does not allow it.
    #[error("the node cannot be replaced now: {0}")]
    Refused(Refused),
    /// It failed on the way. If the node is gone by then it stays so until it is replaced.
    #[error("{0}")]
    Failed(Error),
}

impl From<Refused> for ReplaceError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<Error> for ReplaceError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Replaces `node` by fresh memory, while clients work. The node may be lost, or well; what it
    /// holds is not read. Calls `goes_on` between steps, while it holds up nobody, and gives up if
    /// that returns `false`. Returns whether the node votes.
    ///
    /// A replacement that was given up, or whose client died, leaves the node gone; another one
    /// begins anew.
    ///
    /// # Cancel safety
    /// Dropping the future equals giving up.
    ///
    /// # Errors
    /// The pool can spare no node, or somebody else replaces this one. Too few of the other nodes
    /// answer, or the new one does not.
    ///
    /// # Panics
    /// If the client has no epoch domain: nothing would show when operations are over.
    pub async fn replace_node<M: Membership>(
        &self,
        membership: &M,
        node: NodeId,
        goes_on: &mut dyn FnMut(ReplaceStep) -> bool,
    ) -> Result<bool, ReplaceError> {
        let gone = decide(membership, |now| now.replacing(node)).await?;
        let life = gone.life(node);
        if !self.wait_for_earlier_operations(goes_on).await {
            return Ok(false);
        }
        let joining = membership.join(node, life).await?;
        let mut progress = |filled| {
            let is_own = membership.configuration().life(node) == life;
            goes_on(ReplaceStep::Fills(filled)) && is_own
        };
        if !self.fill_node((&joining, node), &mut progress).await? {
            let now = membership.configuration().life(node);
            return if now == life { Ok(false) } else { Err(Refused::Superseded(now).into()) };
        }
        decide(membership, |now| now.voting(node, life)).await?;
        self.announce_generation();
        Ok(true)
    }

    /// Waits until every operation is over that may have begun before the configuration was decided
    /// that stands. Returns `false` if it was given up.
    ///
    /// H7: the configuration is decided first, then the generation begins, and then the epoch is
    /// read that counts: a client that begins an operation in a later one meets the generation, and the
    /// configuration with it.
    async fn wait_for_earlier_operations(
        &self,
        goes_on: &mut dyn FnMut(ReplaceStep) -> bool,
    ) -> bool {
        let announced = self.announce_generation();
        let participant = self.participant.as_ref().expect("it was announced");
        while participant.domain().try_advance() < announced + GRACE {
            if !goes_on(ReplaceStep::Waits(participant.domain().laggard(LATE))) {
                return false;
            }
            self.rest();
            self.group.pause(BETWEEN_LOOKS).await;
        }
        true
    }

    /// Begins another generation: operations that begin from now on meet the configuration. Returns
    /// the epoch up to which others may still begin without.
    fn announce_generation(&self) -> u64 {
        let participant = self.participant.as_ref().expect("a replacement takes an epoch domain");
        participant.domain().new_generation();
        participant.domain().epoch_bound()
    }
}

/// Decides what `next` makes of the configuration that was decided last, whatever others change
/// meanwhile.
async fn decide<M: Membership>(
    membership: &M,
    next: impl Fn(&Configuration) -> Result<Configuration, Refused>,
) -> Result<Configuration, ReplaceError> {
    for _ in 0..TRIES {
        let next = next(&membership.configuration())?;
        if membership.decide(&next).await? {
            return Ok(next);
        }
    }
    Err(Error::Contended.into())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::Session;
    use swarm_core::sim::explore::LoneClock;
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;
    use crate::heap::tests::Watched;
    use crate::runtime::block_on::block_on;

    /// While a client announces another generation to the others, the epoch goes on.
    #[derive(Clone, Default)]
    struct Busy {
        epoch: Rc<Cell<u64>>,
        /// The epoch when the generation was announced.
        announced: Rc<Cell<u64>>,
    }

    impl EpochDomain for Busy {
        fn pin(&self) -> u64 {
            self.epoch()
        }
        fn repin(&self, _: u64) {}
        fn unpin(&self) {}
        fn epoch(&self) -> u64 {
            1 + self.epoch.get()
        }
        fn generation(&self) -> u64 {
            0
        }
        fn new_generation(&self) {
            self.epoch.set(self.epoch.get() + 10);
            self.announced.set(self.epoch());
        }
        fn is_attached(&self, _: usize) -> bool {
            true
        }
        fn try_advance(&self) -> u64 {
            self.epoch.set(self.epoch.get() + 1);
            self.epoch()
        }
    }

    fn client(domain: &Busy) -> Client<Watched<'static>, LoneClock> {
        let geometry = Geometry::new(1, 4 << 20, 2, 1).expect("geometry");
        let fabric = Watched::new(Loopback::new(1, 4 << 17), |_| false);
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let clock = LoneClock::new(1000);
        let client: Client<_, _> =
            Client::new(fabric, clock, geometry, session, Options::default());
        client.with_epochs(Box::new(domain.clone()))
    }

    /// A client that began an operation in an epoch before the announcement does not know that a node is gone.
    #[test]
    fn the_epochs_count_from_the_announcement() {
        let domain = Busy::default();
        let client = client(&domain);
        assert!(block_on(client.wait_for_earlier_operations(&mut |_| true)));
        assert!(domain.epoch() >= domain.announced.get() + GRACE, "{} epochs", domain.epoch());
        assert!(domain.announced.get() > 10);
    }

    #[test]
    fn who_waits_may_give_up() {
        let domain = Busy::default();
        let client = client(&domain);
        let mut waits = 0;
        let given_up = block_on(client.wait_for_earlier_operations(&mut |step| {
            waits += u32::from(matches!(step, ReplaceStep::Waits(None)));
            false
        }));
        assert!(!given_up && waits == 1);
    }
}
