//! The replicas of a register as a round meets them: which vote, and which it has not reached.
//!
//! A replica without the register's identity is a missing vote: the register has not arrived there
//! yet, or another life of the memory shines through. Whoever needs its vote brings the register
//! there.

use super::handle::Register;
use super::in_n_out::state;
use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Site, register};
use crate::node::{MAX_NODES, NodeId, NodeSet};
use crate::quorum::{Group, Next};
use crate::words::{Stamp, StampFlags, Timestamp};

/// Rounds in which replicas are completed that the register has not reached. Each brings it to one
/// more node, or that node falls silent.
pub(crate) const COMPLETIONS: usize = MAX_NODES;

/// What the replicas that voted in a round hold.
pub(crate) struct Votes {
    /// The largest stamp.
    max: Stamp,
    /// Who holds it, verified or not.
    pub(crate) holders: NodeSet,
    /// Whether the register is to be moved: a slot is frozen, or too many share it.
    moves: bool,
    /// Nodes that answered but do not have the register.
    pub(crate) missing: NodeSet,
}

impl Votes {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        let (holders, missing) = (NodeSet::EMPTY, NodeSet::EMPTY);
        Self { max: Stamp::EMPTY, holders, moves: false, missing }
    }

    /// A replica's maximum, as a READ shows it. A replica without the register's identity is a
    /// missing vote: the register has not arrived there yet, or another life of the memory shines
    /// through.
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

    /// Other writers keep this one from its slot: a register of its own makes an end of that.
    #[cold]
    pub(crate) fn give_way(&mut self) {
        self.moves = true;
    }

    /// The largest stamp of those that voted.
    ///
    /// # Errors
    /// [`Error::Moved`] if one of them is frozen: the register may have moved since, and its last
    /// value is for the move to tell.
    #[inline(always)]
    pub(crate) fn largest(&self) -> Result<Stamp, Error> {
        if self.moves { Err(Error::Moved) } else { Ok(self.max) }
    }

    /// The largest stamp of those that voted, all of them frozen.
    pub(crate) fn last(&self) -> Stamp {
        Stamp(self.max.0 & !StampFlags::FROZEN.bits())
    }
}

impl<F: Fabric, C: Clock> Group<F, C> {
    /// Which nodes may show `stamp` of a register, and where they have its buffer.
    #[inline(always)]
    pub(crate) fn site(&self, register: &Register, stamp: Stamp) -> Site {
        let (format, buffers) = (self.format(), self.buffers());
        let pointer = format.pointer(stamp);
        if format.is_deleted(stamp) {
            return Site::everywhere(pointer, pointer, self.nodes());
        }
        if format.timestamp(stamp) == Timestamp::FIRST {
            return buffers.first_site(pointer, &register.place);
        }
        buffers.site(pointer)
    }
}

/// A round over the replicas that did not end.
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// Nodes that answered but do not have the register.
    pub(crate) missing: NodeSet,
}

impl From<Error> for Failed {
    /// The votes themselves say no; no replica is missing.
    fn from(error: Error) -> Self {
        Self { error, missing: NodeSet::EMPTY }
    }
}

impl Failed {
    /// Brings the register to the nodes that lack it, so that the round can be tried again: with
    /// its home nodes dying, a minority that it never reached has to serve it. Fails if a majority
    /// holds another register, which means that this one is gone, or if no node lacks it.
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

/// Brings the register's header to replicas that lack it, in the background. One roundtrip.
///
/// Their slots need nothing: an empty slot is below every stamp, and the stamps that a majority
/// must hold were put there by whoever bore the register and by its writers.
#[cold]
pub(crate) async fn complete<'f, F: Fabric, C: Clock>(
    group: &'f Group<F, C>,
    register: &Register,
    from: NodeSet,
    missing: NodeSet,
) {
    let n = group.nodes();
    let mut found = None;
    let read = |node, reply: Option<F::Reply<'f>>| match reply {
        None => Next::Post(group.fabric().post(node, &[register.read_header(node, n)])),
        // A header that is torn here must not become the only one elsewhere.
        Some(reply) if register.is_whole(&reply) => {
            found = Some(reply);
            Next::Vote
        }
        Some(_) => Next::NoVote,
    };
    // Best effort: where this fails, whoever comes next finds the same replicas missing.
    if group.settle(from, 1, read).await.is_ok()
        && let Some(image) = found
    {
        let header = register.shape().header_place(&register.place);
        for node in missing {
            // Who finds the identity finds the header.
            let header = Verb::Write { at: header.at(node, n), head: &image, tail: &[] };
            let at = register.place.at(node, n).plus(register::IDENTITY);
            let identity = Verb::Write { at, head: &register.identity.encode(), tail: &[] };
            drop(group.fabric().post(node, &[header, identity]));
        }
    }
}
