//! The replicas of a register in a round: which ones vote, and which ones lack the register.
//!
//! **Invariant (I6):** a replica votes only if it has the register's identity. A replica without it
//! is a missing vote: the register has not arrived there yet, or the words belong to an earlier use
//! of the memory. A client that needs that vote backfills the register there.

use super::handle::Register;
use super::in_n_out::state;
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{ReplicaSet, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::words::{Stamp, StampFlags, Timestamp};

/// Rounds in which missing replicas are backfilled. Each brings the register to one more node, or
/// that node falls silent.
pub(crate) const COMPLETIONS: usize = MAX_NODES;

/// What the replicas that voted in a round hold.
pub(crate) struct Votes {
    /// The largest stamp.
    max: Stamp,
    /// The nodes that hold it, verified or not.
    pub(crate) holders: NodeSet,
    /// Whether the register must be relocated: a slot is frozen, or too many clients share it.
    moves: bool,
    /// Nodes that answered but lack the register.
    pub(crate) missing: NodeSet,
}

impl Votes {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let (holders, missing) = (NodeSet::EMPTY, NodeSet::EMPTY);
        Self { max: Stamp::EMPTY, holders, moves: false, missing }
    }

    /// Returns a replica's maximum, as a READ shows it. I6: a replica without the register's
    /// identity counts as missing.
    #[inline(always)]
    pub(crate) fn read(
        &mut self,
        register: &mut Register,
        slot: usize,
        node: NodeId,
        read: &[u64],
    ) -> Option<Stamp> {
        let Some(max) = state(read, register.identity) else {
            self.missing.insert(node);
            return None;
        };
        register.own.saw(node, Stamp(read[slot]));
        Some(max)
    }

    /// Counts the vote of `node`, whose maximum is `max`.
    #[inline(always)]
    pub(crate) fn count(&mut self, node: NodeId, max: Stamp) {
        self.moves |= max.is_frozen();
        if !max.same_write(self.max) {
            if max < self.max {
                return;
            }
            self.holders = NodeSet::EMPTY;
        }
        self.max = self.max.max(max);
        self.holders.insert(node);
    }

    /// Marks the register for relocation: other writers keep this one from its slot, and a register
    /// of its own ends that.
    #[cold]
    pub(crate) fn give_way(&mut self) {
        self.moves = true;
    }

    /// Returns the largest stamp of those that voted.
    ///
    /// # Errors
    /// [`Error::Moved`] if one of them is frozen (V3): the register may have been relocated since,
    /// and only the relocation determines its last value.
    #[inline(always)]
    pub(crate) fn largest(&self) -> Result<Stamp, Error> {
        if self.moves { Err(Error::Moved) } else { Ok(self.max) }
    }

    /// Returns the largest stamp of those that voted, all of them frozen.
    pub(crate) fn last(&self) -> Stamp {
        Stamp(self.max.0 & !StampFlags::FROZEN.bits())
    }
}

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Returns the nodes that may show `stamp` of a register, and where they hold its buffer (M3).
    #[inline(always)]
    pub(crate) fn site(&self, register: &Register, stamp: Stamp) -> ReplicaSet {
        let (format, buffers) = (self.format(), self.placement());
        let pointer = format.pointer(stamp);
        if format.is_deleted(stamp) {
            return ReplicaSet::everywhere(pointer, pointer, self.nodes());
        }
        if format.timestamp(stamp) == Timestamp::FIRST {
            // M4: the first buffer at the home node is the in-place copy.
            return buffers.first_site(pointer, &register.place);
        }
        buffers.site(pointer)
    }
}

/// A round over the replicas that failed.
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Nodes that answered but lack the register.
    pub(crate) missing: NodeSet,
}

impl From<Error> for Failed {
    /// For a failure that the votes themselves show; no replica is missing.
    fn from(error: Error) -> Self {
        Self { error, missing: NodeSet::EMPTY }
    }
}

impl Failed {
    /// Backfills the register at the nodes that lack it, so that the round can be retried. If its
    /// home nodes die, a minority that it never reached must serve it. Fails if a majority holds
    /// another register, which means that this one is gone, or if no node lacks it.
    #[cold]
    pub(crate) async fn complete<F: Fabric, C: Clock>(
        self,
        group: &Group<F, C>,
        register: &Register,
    ) -> Result<(), Error> {
        if self.missing.len() > group.nodes() / 2 {
            return Err(Error::Gone);
        }
        if self.missing.is_empty() {
            return Err(self.error);
        }
        let from = NodeSet::all(group.nodes()).minus(self.missing);
        complete(group, register, from, self.missing).await;
        Ok(())
    }
}

/// Writes the register's header to replicas that lack it, without waiting for those WRITEs. One
/// roundtrip.
///
/// Their slots need nothing: an empty slot is below every stamp. The register's creator and its
/// writers put the stamps there that a majority must hold.
#[cold]
pub(crate) async fn complete<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    register: &Register,
    from: NodeSet,
    missing: NodeSet,
) {
    let n = group.nodes();
    // Best effort: if this fails, the next client finds the same replicas missing.
    if let Ok(image) = read_header(group, register, from).await {
        let header = register.shape().header_place(&register.place);
        for node in missing {
            // I6: the header comes before the identity, so a client that finds the identity finds
            // the header.
            let header = Verb::Write { at: header.at(node, n), head: &image, tail: &[] };
            let at = register.place.at(node, n).plus(register::IDENTITY);
            let identity = Verb::Write { at, head: &register.identity.encode(), tail: &[] };
            drop(group.fabric().post(node, &[header, identity]));
        }
    }
}

/// READs the register's header and key at one of `from`, where they are whole (I6): a header that is
/// torn there must not become the only one elsewhere. One roundtrip.
pub(crate) async fn read_header<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    from: NodeSet,
) -> Result<F::Reply<'f>, Error> {
    let n = group.nodes();
    let mut found = None;
    let read = |node, reply: Option<F::Reply<'f>>| match reply {
        None => Next::Post(group.fabric().post(node, &[register.read_header(node, n)])),
        Some(reply) if register.is_whole(&reply) => {
            found = Some(reply);
            Next::Vote
        }
        Some(_) => Next::NoVote,
    };
    group.collect_votes(from, 1, read).await?;
    found.ok_or(Error::Gone)
}
