//! What all replicas of a register show: which of its buffers may still be of use.
//!
//! A read fetches the buffer of a majority's maximum and no other. So what is below a verified stamp
//! that every majority shows is never fetched again, and what no replica's slots name is not either:
//! where it once was it made room for something larger.

use crate::clock::Clock;
use crate::error::Error;
use crate::fabric::{Fabric, Verb};
use crate::layout::{Place, SLOTS, register};
use crate::node::{MAX_NODES, NodeId};
use crate::quorum::Group;
use crate::words::Stamp;

/// What every replica of a register shows.
#[derive(Clone, Copy, Debug)]
pub struct Survey {
    nodes: usize,
    slots: [[Stamp; SLOTS]; MAX_NODES],
    /// Whether all words are 0.
    vacant: bool,
}

impl Survey {
    /// The largest verified stamp that a majority's maxima are no less than.
    pub fn settled(&self) -> Option<Stamp> {
        let majority = self.nodes / 2 + 1;
        let reached = |stamp: Stamp| {
            let past = |slots: &&[Stamp; SLOTS]| slots.iter().any(|&held| held >= stamp);
            self.replicas().iter().filter(past).count() >= majority
        };
        self.stamps().filter(|&stamp| stamp.is_verified() && reached(stamp)).max()
    }

    /// The stamps whose buffers may still be fetched: all that are no less than the
    /// [settled](Self::settled) one.
    pub fn current(&self) -> impl Iterator<Item = Stamp> + '_ {
        let settled = self.settled().map_or(Stamp::EMPTY, Stamp::guessed);
        self.stamps().filter(move |&stamp| stamp != Stamp::EMPTY && stamp >= settled)
    }

    /// Whether no replica was ever written, or all were reset since: there is no register.
    pub fn is_vacant(&self) -> bool {
        self.vacant
    }

    /// Whether a replica's slots are frozen.
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
pub async fn survey<F: Fabric, C: Clock>(
    group: &Group<F, C>,
    place: &Place,
) -> Result<Survey, Error> {
    let nodes = group.nodes();
    let mut survey = Survey { nodes, slots: [[Stamp::EMPTY; SLOTS]; MAX_NODES], vacant: true };
    let read = |node| {
        let at = place.at(node, nodes).plus(register::SLOTS_AT);
        group.fabric().post(node, &[Verb::Read { at, words: register::STATE_WORDS }])
    };
    let hear = |node: NodeId, reply: F::Reply<'_>| {
        survey.vacant &= reply.iter().all(|&word| word == 0);
        for (slot, &word) in survey.slots[node.index()].iter_mut().zip(reply.iter()) {
            *slot = Stamp(word);
        }
    };
    group.everywhere(read, hear).await?;
    Ok(survey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Pointer, StampFlags, Timestamp, WordFormat};

    const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };

    fn stamp(timestamp: u64, flags: StampFlags) -> Stamp {
        FORMAT.stamp(Timestamp(timestamp), Pointer(timestamp), flags)
    }

    /// What three replicas show, a slot for each stamp.
    fn survey(replicas: [&[Stamp]; 3]) -> Survey {
        let mut slots = [[Stamp::EMPTY; SLOTS]; MAX_NODES];
        for (slots, stamps) in slots.iter_mut().zip(replicas) {
            slots[..stamps.len()].copy_from_slice(stamps);
        }
        Survey { nodes: 3, slots, vacant: false }
    }

    fn current(survey: &Survey) -> std::vec::Vec<u64> {
        let mut current: std::vec::Vec<u64> =
            survey.current().map(|stamp| FORMAT.timestamp(stamp).0).collect();
        current.sort_unstable();
        current.dedup();
        current
    }

    #[test]
    fn what_lies_below_a_verified_stamp_of_a_majority_is_of_no_use() {
        let [old, new] = [3, 5].map(|timestamp| stamp(timestamp, StampFlags::VERIFIED));
        let survey = survey([&[old, new], &[new], &[old]]);
        assert_eq!(survey.settled(), Some(new));
        assert_eq!(current(&survey), [5]);
    }

    /// Its write may yet be written again under another stamp, or come to nothing.
    #[test]
    fn a_guess_settles_nothing() {
        let (old, guess) = (stamp(3, StampFlags::VERIFIED), stamp(5, StampFlags::empty()));
        let survey = survey([&[old, guess], &[old, guess], &[old]]);
        assert_eq!(survey.settled(), Some(old));
        assert_eq!(current(&survey), [3, 5]);
    }

    #[test]
    fn what_a_minority_shows_settles_nothing_and_is_of_use() {
        let [old, new] = [3, 5].map(|timestamp| stamp(timestamp, StampFlags::VERIFIED));
        let survey = survey([&[old, new], &[old], &[old]]);
        assert_eq!(survey.settled(), Some(old));
        assert_eq!(current(&survey), [3, 5]);
    }

    /// A majority is past it, though under other stamps.
    #[test]
    fn a_stamp_is_settled_where_maxima_are_past_it() {
        let (old, guess) = (stamp(3, StampFlags::VERIFIED), stamp(5, StampFlags::empty()));
        let survey = survey([&[old], &[guess], &[]]);
        assert_eq!(survey.settled(), Some(old));
    }
}
