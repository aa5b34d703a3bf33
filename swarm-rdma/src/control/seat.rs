//! A client slot, held.

use std::mem::forget;

use swarm_core::quorum::Session;
use swarm_core::words::Incarnation;

use super::board::{FarBoard, Keeper, Undertaker};
use super::error::Error;
use super::fixed::release;
use super::lease::Lease;
use super::ledger::Holder;
use super::numbers::Drawer;
use super::record::PoolRecord;
use crate::fork::Origin;

/// A client slot. Dropping it lets go of the slot: drop whatever posts under it first, and wait for
/// what was posted. A process that dies with it leaves the slot held until its lease ends or
/// somebody evicts it. It is that process's alone: dropping the copy that a forked child has of it does
/// nothing.
pub struct Seat {
    origin: Origin,
    holder: Holder,
    record: PoolRecord,
    lease: Option<Lease>,
    keeper: Option<Keeper>,
}

impl Seat {
    pub(super) fn new(holder: Holder, record: PoolRecord, lease: Option<Lease>) -> Self {
        Self { origin: Origin::here(), holder, record, lease, keeper: None }
    }

    /// Tells the daemons, from here on, how far the client is, and draws more incarnations if it lives long.
    ///
    /// # Errors
    /// Fewer than a majority answer.
    pub(super) fn speak(&mut self, undertaker: Undertaker, drawer: Drawer) -> Result<(), Error> {
        self.keeper = Some(Keeper::start(&self.record, &self.holder, undertaker, drawer)?);
        Ok(())
    }

    /// The board that the pool's clients share.
    ///
    /// # Panics
    /// Of a seat that [`Plane::attach`](super::Plane::attach) did not give out.
    pub fn board(&self) -> FarBoard {
        self.keeper.as_ref().expect("a seat that was given out speaks").board()
    }

    /// Who this client is.
    pub fn session(&self) -> Session {
        Session { client: self.holder.slot, incarnation: Incarnation(self.holder.incarnation) }
    }

    /// The pool.
    pub fn record(&self) -> &PoolRecord {
        &self.record
    }

    /// Whether somebody else may have been given the slot: this client's lease ended, and it was
    /// fenced by whoever came. Never true without etcd.
    pub fn is_lost(&self) -> bool {
        self.lease.as_ref().is_some_and(Lease::is_lost)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.origin.is_elsewhere() {
            // The threads behind these are not in this process, which would wait for them for ever.
            forget((self.keeper.take(), self.lease.take()));
            return;
        }
        // Nobody speaks for it any more when it is said that it has left.
        drop(self.keeper.take());
        // The daemons first: whoever is given the slot next finds nobody to fence.
        release(&self.record, &self.holder);
        drop(self.lease.take());
    }
}
