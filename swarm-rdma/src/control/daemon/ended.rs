//! Which clients have ended, by what the daemons replied.
//!
//! **Invariant (O1):** a client that is reported to have ended changes nothing any more but words at a minority of the
//! nodes. It left, which it reports after its last operation; or a majority has fenced it, which from then on
//! execute nothing that it posts. Both stay true: fences only rise, and a session never comes back.
//!
//! A client slot's next client reports itself to a majority before its first operation, and each of these
//! daemons fences the slot's former clients then. One that leaves before that has them fenced where it reports that. So
//! what a daemon forgets of a client that left is known by its fence.

use std::collections::{BTreeMap, BTreeSet};

use crate::control::daemon::epochs::EpochReply;

/// What the daemons have reported of clients that ended. What one reported remains true when it no longer answers.
pub(in crate::control) struct Ended {
    majority: usize,
    /// For each node and client slot, the highest incarnation that is fenced.
    fenced: Vec<BTreeMap<usize, u64>>,
    /// Client slots and incarnations that left, and are not known to be fenced.
    left: BTreeSet<(usize, u64)>,
}

impl Ended {
    /// Knows nothing of the clients of a pool with so many nodes.
    pub(in crate::control) fn new(nodes: usize, majority: usize) -> Self {
        Self { majority, fenced: vec![BTreeMap::new(); nodes], left: BTreeSet::new() }
    }

    /// Records what the daemon of node number `node` replied.
    pub(in crate::control) fn record(&mut self, node: usize, reply: &EpochReply) {
        for &(slot, up_to) in &reply.fenced {
            let fenced = self.fenced[node].entry(slot).or_default();
            *fenced = up_to.max(*fenced);
        }
        self.left.extend(&reply.left);
        let (fenced, majority) = (&self.fenced, self.majority);
        self.left.retain(|&(slot, incarnation)| !is_fenced(fenced, majority, slot, incarnation));
    }

    /// Returns whether the client that attached to `slot` with `incarnation` has ended, as far as is known.
    pub(in crate::control) fn has(&self, slot: usize, incarnation: u64) -> bool {
        self.left.contains(&(slot, incarnation))
            || is_fenced(&self.fenced, self.majority, slot, incarnation)
    }
}

fn is_fenced(
    nodes: &[BTreeMap<usize, u64>],
    majority: usize,
    slot: usize,
    incarnation: u64,
) -> bool {
    let covers = |fenced: &&BTreeMap<usize, u64>| fenced.get(&slot) >= Some(&incarnation);
    nodes.iter().filter(covers).count() >= majority
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(fenced: &[(usize, u64)], left: &[(usize, u64)]) -> EpochReply {
        EpochReply { fenced: fenced.to_vec(), left: left.to_vec(), ..EpochReply::default() }
    }

    #[test]
    fn a_client_has_ended_once_a_majority_has_fenced_it() {
        let mut ended = Ended::new(3, 2);
        ended.record(0, &reply(&[(1, 7)], &[]));
        ended.record(0, &reply(&[(1, 7)], &[]));
        assert!(!ended.has(1, 7), "one node, twice");
        ended.record(2, &reply(&[(1, 5), (4, 9)], &[]));
        assert!(ended.has(1, 5) && !ended.has(1, 6) && !ended.has(1, 7));
        ended.record(1, &reply(&[(1, 8)], &[]));
        assert!(ended.has(1, 7) && !ended.has(1, 8) && !ended.has(0, 1) && !ended.has(4, 9));
        ended.record(0, &reply(&[], &[]));
        assert!(ended.has(1, 7), "a fact stays one");
    }

    #[test]
    fn a_client_that_left_has_ended_and_no_other_life_of_its_slot() {
        let mut ended = Ended::new(3, 2);
        ended.record(0, &reply(&[], &[(1, 7)]));
        assert!(ended.has(1, 7) && !ended.has(1, 6) && !ended.has(1, 8) && !ended.has(2, 7));
        ended.record(0, &reply(&[], &[(1, 12)]));
        assert!(ended.has(1, 7) && ended.has(1, 12), "the next one left as well");
        for node in 0..2 {
            ended.record(node, &reply(&[(1, 11)], &[(1, 12)]));
        }
        assert!(ended.has(1, 7) && ended.has(1, 12));
        assert_eq!(ended.left.len(), 1, "fences show the first one");
    }
}
