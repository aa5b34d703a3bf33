//! When the epoch advances: the reports that daemons keep, and the rule by which a client decides
//! from their replies.
//!
//! Clients learn of an epoch one after the other. Each reports which epoch it has *reached*: all
//! its operations in progress began after it learned of that epoch.
//!
//! **Invariant:** every client that is not gone has learned of the epoch before the latest (E2a).
//! So a client that learns of e knows that e + 1 is the latest anywhere. This holds because
//!
//! - a client that allows the epoch after e has replies of a majority that had learned of e, and
//!   every client that any of those lists has reached e;
//! - before its first operation, a client has reported to a majority, and begins with the latest
//!   epoch that those had learned of. That majority shares a daemon with the one that allows the
//!   next epoch: this daemon either lists the client, or had learned of e before the client
//!   reported;
//! - a client is gone if it reported so, which it does after its last operation; or if all daemons
//!   that reply, a majority, have fenced it: from then on it has no effect at these nodes. The
//!   checksums of buffers guard against what it may still do at the others.
//!
//! Cached locations are invalidated when an epoch begins. A client that wants this asks for it two
//! epochs ahead, and its request precedes its report that it has reached the next epoch. Daemons
//! and clients pass the request on with the epoch, so a client that learns of an epoch has learned
//! of all requests for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A client's epoch report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EpochReport {
    /// The latest epoch that it has learned of, or allowed.
    pub epoch: u64,
    /// A client that learns of an epoch up to this one invalidates its cached locations.
    pub renewed: u64,
    /// The epoch that it has reached; 0 before its first operation.
    pub reached: u64,
}

/// A client and its epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientEpoch {
    /// Its client slot.
    pub slot: usize,
    /// Its incarnation.
    pub incarnation: u64,
    /// The latest epoch that it is known to have reached.
    pub reached: u64,
}

/// A daemon's reply to an epoch report.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EpochReply {
    /// The latest epoch that it has learned of.
    pub epoch: u64,
    /// A client that learns of an epoch up to this one invalidates its cached locations.
    pub renewed: u64,
    /// The clients that have reported to it. A client that holds a client slot and has not reported
    /// runs no operation: its claim may have been late, or it was killed.
    pub clients: Vec<ClientEpoch>,
    /// For each client slot, the highest incarnation that is fenced there.
    pub fenced: Vec<(usize, u64)>,
    /// For each client slot, the highest incarnation that has left.
    pub left: Vec<(usize, u64)>,
}

/// The reports that a daemon keeps.
#[derive(Default)]
pub(in crate::control) struct Epochs {
    epoch: u64,
    renewed: u64,
    /// For each client slot, the latest incarnation that reported, and the epoch that it has
    /// reached.
    reached: BTreeMap<usize, (u64, u64)>,
    left: BTreeMap<usize, u64>,
}

impl Epochs {
    /// Records a report of the client in `slot` with this incarnation.
    pub(in crate::control) fn record(
        &mut self,
        slot: usize,
        incarnation: u64,
        report: &EpochReport,
    ) {
        self.epoch = self.epoch.max(report.epoch);
        self.renewed = self.renewed.max(report.renewed);
        let (whose, reached) = self.reached.entry(slot).or_default();
        if *whose < incarnation {
            (*whose, *reached) = (incarnation, 0);
        }
        if *whose == incarnation {
            *reached = report.reached.max(*reached);
        }
    }

    /// Records that a client has left.
    pub(in crate::control) fn leave(&mut self, slot: usize, incarnation: u64) {
        let left = self.left.entry(slot).or_default();
        *left = incarnation.max(*left);
    }

    /// Returns whether a client has left.
    pub(in crate::control) fn has_left(&self, slot: usize, incarnation: u64) -> bool {
        self.left.get(&slot).is_some_and(|&left| incarnation <= left)
    }

    /// Returns the latest epoch in any report.
    pub(in crate::control) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns a client's epoch, if it has reported.
    fn report_of(&self, slot: usize, incarnation: u64) -> Option<ClientEpoch> {
        let &(whose, reached) = self.reached.get(&slot)?;
        (whose == incarnation).then_some(ClientEpoch { slot, incarnation, reached })
    }

    /// Returns a client's epoch: 0 if it has not reported.
    pub(in crate::control) fn epoch_of(&self, slot: usize, incarnation: u64) -> ClientEpoch {
        let nothing = ClientEpoch { slot, incarnation, reached: 0 };
        self.report_of(slot, incarnation).unwrap_or(nothing)
    }

    /// Makes the reply for these clients and these fences. Clients that have not reported are not
    /// listed (E2a).
    pub(in crate::control) fn answer(
        &self,
        clients: impl Iterator<Item = (usize, u64)>,
        fenced: &BTreeMap<usize, u64>,
    ) -> EpochReply {
        EpochReply {
            epoch: self.epoch,
            renewed: self.renewed,
            clients: clients.filter_map(|(slot, life)| self.report_of(slot, life)).collect(),
            fenced: fenced.iter().map(|(&slot, &up_to)| (slot, up_to)).collect(),
            left: self.left.iter().map(|(&slot, &up_to)| (slot, up_to)).collect(),
        }
    }
}

/// The decision that follows from the daemons' replies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::control) enum Verdict {
    /// The next epoch may begin.
    MoveOn,
    /// This client has not reached the epoch.
    Held(ClientEpoch),
    /// This client slot and incarnation must be fenced by all daemons that reply before the client
    /// is gone.
    Fence(usize, u64),
    /// Too few daemons have replied since they learned of the epoch.
    TooFewReplies,
}

/// Decides whether the epoch after `epoch` may begin, by the replies of a pool's daemons,
/// `majority` of which are a majority. E2a: every listed client has reached `epoch`, has left, or
/// is fenced by all daemons that reply.
pub(in crate::control) fn decide(
    epoch: u64,
    answers: &[Option<EpochReply>],
    majority: usize,
) -> Verdict {
    let answers: Vec<&EpochReply> =
        answers.iter().flatten().filter(|it| it.epoch == epoch).collect();
    if answers.len() < majority {
        return Verdict::TooFewReplies;
    }
    let fenced = |slot| answers.iter().filter_map(move |reply| up_to(&reply.fenced, slot));
    let left = |slot| answers.iter().filter_map(move |reply| up_to(&reply.left, slot)).max();
    for &(slot, _) in answers.iter().flat_map(|reply| &reply.fenced) {
        let most = fenced(slot).max().unwrap_or(0);
        if fenced(slot).filter(|&up_to| up_to == most).count() < answers.len() {
            return Verdict::Fence(slot, most);
        }
    }
    let clients: Vec<&ClientEpoch> = answers.iter().flat_map(|reply| &reply.clients).collect();
    for client in &clients {
        let (life, left) = (Some(client.incarnation), left(client.slot));
        if life <= fenced(client.slot).max() || life == left {
            continue;
        }
        if life < left {
            // E2a: a later incarnation has left; whether this one has left or was evicted is
            // unknown.
            return Verdict::Fence(client.slot, client.incarnation);
        }
        let same =
            |it: &&&ClientEpoch| (it.slot, it.incarnation) == (client.slot, client.incarnation);
        let reached = clients.iter().filter(same).map(|it| it.reached).max().unwrap_or(0);
        if reached < epoch {
            return Verdict::Held(ClientEpoch { reached, ..**client });
        }
    }
    Verdict::MoveOn
}

/// Returns the incarnation that a list has for a client slot.
fn up_to(list: &[(usize, u64)], slot: usize) -> Option<u64> {
    list.iter().find(|(of, _)| *of == slot).map(|&(_, up_to)| up_to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(slot: usize, incarnation: u64, reached: u64) -> ClientEpoch {
        ClientEpoch { slot, incarnation, reached }
    }

    fn reply(epoch: u64, clients: &[ClientEpoch]) -> Option<EpochReply> {
        Some(EpochReply { epoch, clients: clients.to_vec(), ..EpochReply::default() })
    }

    #[test]
    fn the_epoch_waits_for_every_client_that_a_majority_lists() {
        let (near, far) = (client(0, 1, 5), client(1, 2, 4));
        let answers = [reply(5, &[near]), reply(5, &[near, far]), None];
        assert_eq!(decide(5, &answers, 2), Verdict::Held(far));
        let later = client(1, 2, 5);
        let answers = [reply(5, &[near, far]), reply(5, &[near, later]), None];
        assert_eq!(decide(5, &answers, 2), Verdict::MoveOn, "one that received it is enough");
        assert_eq!(decide(5, &[reply(5, &[]), reply(4, &[]), None], 2), Verdict::TooFewReplies);
        assert_eq!(decide(5, &[reply(5, &[]), None, None], 2), Verdict::TooFewReplies);
    }

    /// One daemon has fenced the client. The others, where it can still write, do not know.
    #[test]
    fn a_client_that_one_daemon_alone_fenced_is_not_gone() {
        let fenced = Some(EpochReply { epoch: 5, fenced: vec![(1, 2)], ..EpochReply::default() });
        let unaware = reply(5, &[]);
        let answers = [fenced.clone(), unaware, None];
        assert_eq!(decide(5, &answers, 2), Verdict::Fence(1, 2));
        assert_eq!(decide(5, &[fenced.clone(), fenced.clone(), None], 2), Verdict::MoveOn);
        let lists = reply(5, &[client(1, 2, 3)]);
        let answers = [fenced.clone(), fenced.clone(), lists];
        assert_eq!(decide(5, &answers, 2), Verdict::Fence(1, 2), "the third answers");
        let mut next = fenced.clone();
        next.as_mut().expect("it is one").clients.push(client(1, 3, 4));
        assert_eq!(decide(5, &[next, fenced, None], 2), Verdict::Held(client(1, 3, 4)));
    }

    #[test]
    fn a_client_that_left_is_gone_wherever_that_was_reported() {
        let left = Some(EpochReply { epoch: 5, left: vec![(1, 2)], ..EpochReply::default() });
        let lists = reply(5, &[client(1, 2, 3), client(0, 1, 5)]);
        assert_eq!(decide(5, &[left.clone(), lists, None], 2), Verdict::MoveOn);
        let next = reply(5, &[client(1, 3, 0)]);
        assert_eq!(decide(5, &[left, next, None], 2), Verdict::Held(client(1, 3, 0)));
    }

    /// A client was evicted, but one daemon did not learn of it. The next client in its slot has
    /// joined and left since. Its leave was taken for both, while the former client was still at
    /// work at that daemon.
    #[test]
    fn a_client_that_left_does_not_report_for_a_former_life() {
        let left = vec![(1, 9)];
        let knows = EpochReply { epoch: 5, fenced: vec![(1, 8)], left, ..EpochReply::default() };
        let lists = reply(5, &[client(1, 8, 3)]);
        let answers = [Some(knows.clone()), Some(knows.clone()), lists.clone()];
        assert_eq!(decide(5, &answers, 2), Verdict::Fence(1, 8));
        let unfenced = EpochReply { fenced: Vec::new(), ..knows.clone() };
        assert_eq!(decide(5, &[Some(unfenced), None, lists], 2), Verdict::Fence(1, 8));
        let fenced = Some(EpochReply { left: Vec::new(), ..knows.clone() });
        assert_eq!(decide(5, &[Some(knows), fenced, None], 2), Verdict::MoveOn);
    }

    #[test]
    fn a_daemon_takes_the_furthest_of_each_life() {
        let mut epochs = Epochs::default();
        let report = |epoch, reached| EpochReport { epoch, renewed: 0, reached };
        epochs.record(3, 7, &report(4, 3));
        epochs.record(3, 7, &report(2, 2));
        assert_eq!((epochs.epoch(), epochs.epoch_of(3, 7).reached), (4, 3), "late messages");
        epochs.record(3, 8, &report(5, 0));
        epochs.record(3, 7, &report(5, 5));
        assert_eq!(epochs.epoch_of(3, 8).reached, 0, "another life's report");
        epochs.leave(3, 8);
        let answer = |epochs: &Epochs| {
            epochs.answer([(2, 4), (3, 9)].into_iter(), &BTreeMap::from([(3, 7)]))
        };
        assert_eq!(answer(&epochs).clients, [], "they hold slots, and have reported nothing");
        epochs.record(3, 9, &report(5, 0));
        let reply = answer(&epochs);
        assert_eq!(reply.clients, [client(3, 9, 0)]);
        assert_eq!((reply.fenced, reply.left), (vec![(3, 7)], vec![(3, 8)]));
    }
}
