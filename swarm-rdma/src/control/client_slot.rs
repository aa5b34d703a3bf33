//! A client slot held by this client.

use std::mem::forget;

use swarm_core::quorum::Session;
use swarm_core::words::Incarnation;

use super::error::Error;
use crate::control::daemon::membership::Holder;
use crate::control::descriptor::PoolDescriptor;
use crate::control::epoch_domain::{EpochThreads, RdmaEpochs, Reaper};
use crate::control::etcd::lease::Lease;
use crate::control::incarnations::IncarnationSource;
use crate::control::static_pool::release;
use crate::fork::Origin;

/// A client slot. Dropping it releases the slot: drop everything that posts under it first, and
/// wait for in-flight chains. If the process dies with it, the slot stays held until its lease ends
/// or the client is evicted. Only the process that took it may use it: dropping a forked child's
/// copy does nothing (S7).
pub struct ClientSlot {
    origin: Origin,
    holder: Holder,
    record: PoolDescriptor,
    lease: Option<Lease>,
    threads: Option<EpochThreads>,
}

impl ClientSlot {
    pub(super) fn new(holder: Holder, record: PoolDescriptor, lease: Option<Lease>) -> Self {
        Self { origin: Origin::current(), holder, record, lease, threads: None }
    }

    /// Starts to report the client's epochs to the daemons, and to draw more incarnations when they
    /// are needed.
    ///
    /// # Errors
    /// Fewer than a majority answer.
    pub(super) fn start_reports(
        &mut self,
        reaper: Option<Reaper>,
        source: IncarnationSource,
    ) -> Result<(), Error> {
        self.threads = Some(EpochThreads::start(&self.record, &self.holder, reaper, source)?);
        Ok(())
    }

    /// Returns the epoch domain that the pool's clients share.
    ///
    /// # Panics
    /// If [`Plane::attach`](super::Plane::attach) did not return this client slot.
    pub fn domain(&self) -> RdmaEpochs {
        self.threads.as_ref().expect("a seat that was given out speaks").domain()
    }

    /// Returns the client's session.
    pub fn session(&self) -> Session {
        Session { client: self.holder.slot, incarnation: Incarnation(self.holder.incarnation) }
    }

    /// Returns the pool's descriptor.
    pub fn record(&self) -> &PoolDescriptor {
        &self.record
    }

    /// Returns whether another client may hold the slot: this client's lease ended, and the other
    /// client fenced it. Never true without etcd.
    pub fn is_lost(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_lost)
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            // S7: the threads of these run in the parent only. A child that joined them would wait
            // for ever.
            forget((self.threads.take(), self.lease.take()));
            return;
        }
        // The client's last report precedes its leave.
        drop(self.threads.take());
        // The daemons first: the next client in the slot then has no connection to fence.
        release(&self.record, &self.holder);
        drop(self.lease.take());
    }
}
