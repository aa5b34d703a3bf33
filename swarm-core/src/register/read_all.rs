//! What all replicas of a register show: which of its buffers may still be fetched.
//!
//! A read fetches only the buffer of a majority's maximum. So a buffer is never fetched again if
//! its stamp is below a verified stamp that every majority shows. Nor is one that no replica's
//! slots name: where a slot once named it, something larger took its place.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Location, SLOTS, register};
use crate::node::{MAX_NODES, NodeId};
use crate::quorum::Group;
use crate::words::Stamp;

/// What every replica of a register shows.
#[derive(Clone, Copy, Debug)]
pub struct AllReplicas {
    nodes: usize,
    slots: [[Stamp; SLOTS]; MAX_NODES],
    /// Whether all words are 0.
    vacant: bool,
}

impl AllReplicas {
    /// Returns the largest verified stamp that the maxima of a majority reach or exceed.
    pub fn completed(&self) -> Option<Stamp> {
        let majority = self.nodes / 2 + 1;
        let reached = |stamp: Stamp| {
            let past = |slots: &&[Stamp; SLOTS]| slots.iter().any(|&held| held >= stamp);
            self.replicas().iter().filter(past).count() >= majority
        };
        self.stamps().filter(|&stamp| stamp.is_verified() && reached(stamp)).max()
    }

    /// Returns the stamps whose buffers may still be fetched: all from the
    /// [completed](Self::completed) one on, whichever node shows them (E6).
    pub fn current(&self) -> impl Iterator<Item = Stamp> + '_ {
        let settled = self.completed().map_or(Stamp::EMPTY, Stamp::guessed);
        self.stamps().filter(move |&stamp| stamp != Stamp::EMPTY && stamp >= settled)
    }

    /// Returns whether no replica was ever written, or all were zeroed since: there is no register.
    pub fn is_vacant(&self) -> bool {
        self.vacant
    }

    /// Returns whether any slot is frozen.
    pub fn is_frozen(&self) -> bool {
        self.stamps().any(Stamp::is_frozen)
    }

    fn replicas(&self) -> &[[Stamp; SLOTS]] {
        &self.slots[..self.nodes]
    }

    fn stamps(&self) -> impl Iterator<Item = Stamp> + '_ {
        self.replicas().iter().flatten().copied()
    }
}

/// READs slots and identity at every node. One roundtrip.
///
/// # Errors
/// [`Error::NoMajority`] if not all nodes answer in time.
pub async fn read_all<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    place: &Location,
) -> Result<AllReplicas, Error> {
    let nodes = group.nodes();
    let mut read_all =
        AllReplicas { nodes, slots: [[Stamp::EMPTY; SLOTS]; MAX_NODES], vacant: true };
    let read = |node| {
        let at = place.at(node, nodes).plus(register::SLOTS_AT);
        group.fabric().post(node, &[Verb::Read { at, words: register::STATE_WORDS }])
    };
    let collect = |node: NodeId, reply: F::Reply<'_>| {
        read_all.vacant &= reply.iter().all(|&word| word == 0);
        for (slot, &word) in read_all.slots[node.index()].iter_mut().zip(reply.iter()) {
            *slot = Stamp(word);
        }
    };
    group.everywhere(read, collect).await?;
    Ok(read_all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Pointer, StampFlags, Timestamp, WordFormat};

    const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };

    fn stamp(timestamp: u64, flags: StampFlags) -> Stamp {
        FORMAT.stamp(Timestamp(timestamp), Pointer(timestamp), flags)
    }

    /// Returns what three replicas show, with one slot for each stamp.
    fn read_all(replicas: [&[Stamp]; 3]) -> AllReplicas {
        let mut slots = [[Stamp::EMPTY; SLOTS]; MAX_NODES];
        for (slots, stamps) in slots.iter_mut().zip(replicas) {
            slots[..stamps.len()].copy_from_slice(stamps);
        }
        AllReplicas { nodes: 3, slots, vacant: false }
    }

    fn current(read_all: &AllReplicas) -> std::vec::Vec<u64> {
        let mut current: std::vec::Vec<u64> =
            read_all.current().map(|stamp| FORMAT.timestamp(stamp).0).collect();
        current.sort_unstable();
        current.dedup();
        current
    }

    #[test]
    fn what_lies_below_a_verified_stamp_of_a_majority_is_of_no_use() {
        let [old, new] = [3, 5].map(|timestamp| stamp(timestamp, StampFlags::VERIFIED));
        let read_all = read_all([&[old, new], &[new], &[old]]);
        assert_eq!(read_all.completed(), Some(new));
        assert_eq!(current(&read_all), [5]);
    }

    /// Its write may be rewritten under another stamp, or have no effect.
    #[test]
    fn a_guess_settles_nothing() {
        let (old, guess) = (stamp(3, StampFlags::VERIFIED), stamp(5, StampFlags::empty()));
        let read_all = read_all([&[old, guess], &[old, guess], &[old]]);
        assert_eq!(read_all.completed(), Some(old));
        assert_eq!(current(&read_all), [3, 5]);
    }

    #[test]
    fn what_a_minority_shows_settles_nothing_and_is_of_use() {
        let [old, new] = [3, 5].map(|timestamp| stamp(timestamp, StampFlags::VERIFIED));
        let read_all = read_all([&[old, new], &[old], &[old]]);
        assert_eq!(read_all.completed(), Some(old));
        assert_eq!(current(&read_all), [3, 5]);
    }

    /// A majority is past it, though under other stamps.
    #[test]
    fn a_stamp_is_settled_where_maxima_are_past_it() {
        let (old, guess) = (stamp(3, StampFlags::VERIFIED), stamp(5, StampFlags::empty()));
        let read_all = read_all([&[old], &[guess], &[]]);
        assert_eq!(read_all.completed(), Some(old));
    }
}
