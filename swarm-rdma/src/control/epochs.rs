//! When the epoch moves on: what daemons remember of how far clients are, and what a client makes of
//! their answers.
//!
//! Clients hear of an epoch one after the other. Each says of itself which epoch it has *reached*: all
//! its operations under way began since it heard of that one. The invariant: *no client that is not gone
//! has heard less than the epoch before the latest*, so that who hears of e knows that e + 1 is the
//! latest anywhere. It holds because
//!
//! - whoever allows the epoch after e has answers of a majority that had heard of e, and every client that
//!   any of those lists has reached e;
//! - before its first operation a client has told a majority of itself, and begins with the latest epoch
//!   that those had heard of. That majority shares a daemon with the one that allows the next epoch: it
//!   either lists the client there, or had heard of e before the client asked;
//! - a client is gone if it said so, which it does behind its last operation; or if it is fenced by all
//!   daemons that answer, a majority: from then on it does nothing at these nodes. What it may still do
//!   at the others, buffers' checksums are for.
//!
//! Places that clients remember are forgotten at an epoch's beginning: whoever wants that asks for it two
//! epochs ahead, and says so before it has reached the next. Daemons and clients pass the request on with
//! the epoch, so who hears of an epoch has heard of all that was asked for it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a client says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Said {
    /// The latest epoch that it has heard of, or allowed.
    pub epoch: u64,
    /// Up to which epoch whoever hears of one forgets what it remembers of places.
    pub renewed: u64,
    /// The epoch that it has reached; 0 before its first operation.
    pub reached: u64,
}

/// A client, and how far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Standing {
    /// Its slot.
    pub slot: usize,
    /// Its life.
    pub incarnation: u64,
    /// The epoch that it has reached, as far as is known.
    pub reached: u64,
}

/// What a daemon answers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Heard {
    /// The latest epoch that it has heard of.
    pub epoch: u64,
    /// Up to which epoch whoever hears of one forgets what it remembers of places.
    pub renewed: u64,
    /// The clients that have told it of themselves. Who holds a slot there and has not is not at work: a
    /// claim may have been late, or its client killed.
    pub clients: Vec<Standing>,
    /// Up to which life each slot's clients are fenced there.
    pub fenced: Vec<(usize, u64)>,
    /// Up to which life each slot's clients have left.
    pub left: Vec<(usize, u64)>,
}

/// What a daemon remembers of all that.
#[derive(Default)]
pub(super) struct Epochs {
    epoch: u64,
    renewed: u64,
    /// Of each slot, whose word it is and how far that one is.
    reached: BTreeMap<usize, (u64, u64)>,
    left: BTreeMap<usize, u64>,
}

impl Epochs {
    /// Takes in what the client in `slot` says, in its life `incarnation`.
    pub(super) fn hear(&mut self, slot: usize, incarnation: u64, said: &Said) {
        self.epoch = self.epoch.max(said.epoch);
        self.renewed = self.renewed.max(said.renewed);
        let (whose, reached) = self.reached.entry(slot).or_default();
        if *whose < incarnation {
            (*whose, *reached) = (incarnation, 0);
        }
        if *whose == incarnation {
            *reached = said.reached.max(*reached);
        }
    }

    /// A client has left.
    pub(super) fn leave(&mut self, slot: usize, incarnation: u64) {
        let left = self.left.entry(slot).or_default();
        *left = incarnation.max(*left);
    }

    /// Whether a client has left.
    pub(super) fn has_left(&self, slot: usize, incarnation: u64) -> bool {
        self.left.get(&slot).is_some_and(|&left| incarnation <= left)
    }

    /// The latest epoch that was heard of.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How far a client is, as it has told.
    fn told(&self, slot: usize, incarnation: u64) -> Option<Standing> {
        let &(whose, reached) = self.reached.get(&slot)?;
        (whose == incarnation).then_some(Standing { slot, incarnation, reached })
    }

    /// How far a client is.
    pub(super) fn standing(&self, slot: usize, incarnation: u64) -> Standing {
        let nothing = Standing { slot, incarnation, reached: 0 };
        self.told(slot, incarnation).unwrap_or(nothing)
    }

    /// What there is to answer, with these clients and these fences.
    pub(super) fn answer(
        &self,
        clients: impl Iterator<Item = (usize, u64)>,
        fenced: &BTreeMap<usize, u64>,
    ) -> Heard {
        Heard {
            epoch: self.epoch,
            renewed: self.renewed,
            clients: clients.filter_map(|(slot, life)| self.told(slot, life)).collect(),
            fenced: fenced.iter().map(|(&slot, &up_to)| (slot, up_to)).collect(),
            left: self.left.iter().map(|(&slot, &up_to)| (slot, up_to)).collect(),
        }
    }
}

/// What the daemons' answers come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The next epoch may begin.
    MoveOn,
    /// This client holds it up.
    Held(Standing),
    /// It has to be fenced by all daemons that answer before it is gone: slot and life.
    Fence(usize, u64),
    /// Too few daemons have answered since they heard of the epoch.
    Unheard,
}

/// Whether the epoch behind `epoch` may begin, as far as these daemons tell, of which so many are a
/// majority.
pub(super) fn judge(epoch: u64, answers: &[Option<Heard>], majority: usize) -> Verdict {
    let answers: Vec<&Heard> = answers.iter().flatten().filter(|it| it.epoch == epoch).collect();
    if answers.len() < majority {
        return Verdict::Unheard;
    }
    let fenced = |slot| answers.iter().filter_map(move |heard| up_to(&heard.fenced, slot));
    let left = |slot| answers.iter().filter_map(move |heard| up_to(&heard.left, slot)).max();
    for &(slot, _) in answers.iter().flat_map(|heard| &heard.fenced) {
        let most = fenced(slot).max().unwrap_or(0);
        if fenced(slot).filter(|&up_to| up_to == most).count() < answers.len() {
            return Verdict::Fence(slot, most);
        }
    }
    let clients: Vec<&Standing> = answers.iter().flat_map(|heard| &heard.clients).collect();
    for client in &clients {
        let (life, left) = (Some(client.incarnation), left(client.slot));
        if life <= fenced(client.slot).max() || life == left {
            continue;
        }
        if life < left {
            // A later life had the slot, and whether this one has left or was evicted is not known here.
            return Verdict::Fence(client.slot, client.incarnation);
        }
        let same = |it: &&&Standing| (it.slot, it.incarnation) == (client.slot, client.incarnation);
        let reached = clients.iter().filter(same).map(|it| it.reached).max().unwrap_or(0);
        if reached < epoch {
            return Verdict::Held(Standing { reached, ..**client });
        }
    }
    Verdict::MoveOn
}

/// Up to which life a list says it of the slot's clients.
fn up_to(list: &[(usize, u64)], slot: usize) -> Option<u64> {
    list.iter().find(|(of, _)| *of == slot).map(|&(_, up_to)| up_to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(slot: usize, incarnation: u64, reached: u64) -> Standing {
        Standing { slot, incarnation, reached }
    }

    fn heard(epoch: u64, clients: &[Standing]) -> Option<Heard> {
        Some(Heard { epoch, clients: clients.to_vec(), ..Heard::default() })
    }

    #[test]
    fn the_epoch_waits_for_every_client_that_a_majority_lists() {
        let (near, far) = (client(0, 1, 5), client(1, 2, 4));
        let answers = [heard(5, &[near]), heard(5, &[near, far]), None];
        assert_eq!(judge(5, &answers, 2), Verdict::Held(far));
        let later = client(1, 2, 5);
        let answers = [heard(5, &[near, far]), heard(5, &[near, later]), None];
        assert_eq!(judge(5, &answers, 2), Verdict::MoveOn, "one that heard it is enough");
        assert_eq!(judge(5, &[heard(5, &[]), heard(4, &[]), None], 2), Verdict::Unheard);
        assert_eq!(judge(5, &[heard(5, &[]), None, None], 2), Verdict::Unheard);
    }

    /// One daemon has fenced it, and the others, where it can still do harm, do not know.
    #[test]
    fn who_is_fenced_by_one_daemon_alone_is_not_gone() {
        let fenced = Some(Heard { epoch: 5, fenced: vec![(1, 2)], ..Heard::default() });
        let unaware = heard(5, &[]);
        let answers = [fenced.clone(), unaware, None];
        assert_eq!(judge(5, &answers, 2), Verdict::Fence(1, 2));
        assert_eq!(judge(5, &[fenced.clone(), fenced.clone(), None], 2), Verdict::MoveOn);
        let lists = heard(5, &[client(1, 2, 3)]);
        let answers = [fenced.clone(), fenced.clone(), lists];
        assert_eq!(judge(5, &answers, 2), Verdict::Fence(1, 2), "the third answers");
        let mut next = fenced.clone();
        next.as_mut().expect("it is one").clients.push(client(1, 3, 4));
        assert_eq!(judge(5, &[next, fenced, None], 2), Verdict::Held(client(1, 3, 4)));
    }

    #[test]
    fn who_has_left_is_gone_wherever_that_was_heard() {
        let left = Some(Heard { epoch: 5, left: vec![(1, 2)], ..Heard::default() });
        let lists = heard(5, &[client(1, 2, 3), client(0, 1, 5)]);
        assert_eq!(judge(5, &[left.clone(), lists, None], 2), Verdict::MoveOn);
        let next = heard(5, &[client(1, 3, 0)]);
        assert_eq!(judge(5, &[left, next, None], 2), Verdict::Held(client(1, 3, 0)));
    }

    /// A client was evicted, but for one daemon that did not hear of it; the next one in its slot has come and
    /// left since. That one's word was taken for both, and the former was still at work at that daemon.
    #[test]
    fn who_has_left_does_not_speak_for_a_former_life() {
        let left = vec![(1, 9)];
        let knows = Heard { epoch: 5, fenced: vec![(1, 8)], left, ..Heard::default() };
        let lists = heard(5, &[client(1, 8, 3)]);
        let answers = [Some(knows.clone()), Some(knows.clone()), lists.clone()];
        assert_eq!(judge(5, &answers, 2), Verdict::Fence(1, 8));
        let unfenced = Heard { fenced: Vec::new(), ..knows.clone() };
        assert_eq!(judge(5, &[Some(unfenced), None, lists], 2), Verdict::Fence(1, 8));
        let fenced = Some(Heard { left: Vec::new(), ..knows.clone() });
        assert_eq!(judge(5, &[Some(knows), fenced, None], 2), Verdict::MoveOn);
    }

    #[test]
    fn a_daemon_takes_the_furthest_of_each_life() {
        let mut epochs = Epochs::default();
        let said = |epoch, reached| Said { epoch, renewed: 0, reached };
        epochs.hear(3, 7, &said(4, 3));
        epochs.hear(3, 7, &said(2, 2));
        assert_eq!((epochs.epoch(), epochs.standing(3, 7).reached), (4, 3), "late messages");
        epochs.hear(3, 8, &said(5, 0));
        epochs.hear(3, 7, &said(5, 5));
        assert_eq!(epochs.standing(3, 8).reached, 0, "another life's word");
        epochs.leave(3, 8);
        let answer = |epochs: &Epochs| {
            epochs.answer([(2, 4), (3, 9)].into_iter(), &BTreeMap::from([(3, 7)]))
        };
        assert_eq!(answer(&epochs).clients, [], "they hold slots, and have told nothing");
        epochs.hear(3, 9, &said(5, 0));
        let heard = answer(&epochs);
        assert_eq!(heard.clients, [client(3, 9, 0)]);
        assert_eq!((heard.fenced, heard.left), (vec![(3, 7)], vec![(3, 8)]));
    }
}
