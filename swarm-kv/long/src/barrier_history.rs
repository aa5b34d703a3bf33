//! Whether a barrier may do what its members saw of it.
//!
//! **Invariants:** it opens only when all of its parties have joined, and every member that lives has arrived, once for
//! each time that it opens (O6). What a member is shown has itself and each member that lives and stays (O1), and nobody
//! else: neither one that never joined, nor one that had left, or ended without having arrived, before this member arrived.

use std::collections::BTreeMap;

use crate::steps::{Deed, Steps};

/// What a client does with a barrier. It is one member at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum BarrierDeed {
    /// Begins to join.
    Joins,
    /// Knows that it is a member.
    Joined,
    /// Begins to wait.
    Arrives,
    /// Knows that the barrier has opened so often, and whom it shows.
    Passes {
        /// How often it has opened.
        generation: u64,
        /// The members.
        members: Vec<usize>,
    },
    /// Begins to leave; dropped its future, or an operation failed.
    Leaves,
    /// Knows that it is no member any more.
    Left,
    /// Has ended.
    Ends,
}

impl Deed for BarrierDeed {
    const ENDS: Self = Self::Ends;
}

/// What clients did with one barrier.
pub type BarrierHistory = Steps<BarrierDeed>;

/// What is known of a client.
#[derive(Default)]
struct Party {
    /// Whether it began to join, and is not known to have left.
    may_be_in: bool,
    /// The step since which it is a member, and stays one.
    joined: Option<usize>,
    /// The step since which it waits.
    arrived: Option<usize>,
    /// How often the barrier has opened when this wait is over, if that is known.
    waits_for: Option<u64>,
    /// How often the barrier had opened, as it was shown last.
    passed: Option<u64>,
    /// The step at which it was gone.
    left: Option<usize>,
    /// The step at which it had ended.
    ended: Option<usize>,
}

impl Party {
    /// Whether it has passed by the time that the barrier has opened so often.
    fn has_passed(&self, generation: u64) -> bool {
        self.passed.is_some_and(|last| last >= generation)
    }

    /// Whether it may have arrived for the barrier to open so often. One wait is for one time.
    fn has_arrived(&self, generation: u64) -> bool {
        let waits =
            self.arrived.is_some() && self.waits_for.is_none_or(|known| known == generation);
        waits || self.has_passed(generation)
    }

    /// Whether one that arrived at this step, and passed, has waited for it.
    fn was_awaited(&self, by: usize) -> bool {
        self.joined.is_some_and(|joined| joined < by)
    }
}

/// Judges a history of a barrier of so many parties. Returns how often members passed it.
///
/// # Errors
/// What no barrier may do.
pub fn check_barrier(history: &[(usize, BarrierDeed)], parties: usize) -> Result<u64, String> {
    let mut all = BTreeMap::<usize, Party>::new();
    let (mut joins, mut passed) = (0, 0);
    for (at, (client, deed)) in history.iter().enumerate() {
        let at_step = |what: String| format!("step {at}: client {client} {what}");
        let wrong = |what: String| Err(at_step(what));
        if let BarrierDeed::Passes { generation, members } = deed {
            if joins < parties {
                return wrong(format!("passes, and {joins} of {parties} have joined"));
            }
            let arrived = passes(&all, (*client, *generation), members).map_err(at_step)?;
            for party in all.values_mut().filter(|it| it.was_awaited(arrived)) {
                if party.arrived.is_some() && !party.has_passed(*generation) {
                    party.waits_for = Some(*generation);
                }
            }
            passed += 1;
        }
        let party = all.entry(*client).or_default();
        let is_in = party.joined.is_some();
        let is_possible = match deed {
            BarrierDeed::Joins => !party.may_be_in || !is_in,
            BarrierDeed::Joined => party.may_be_in && !is_in,
            BarrierDeed::Arrives => is_in && party.arrived.is_none(),
            BarrierDeed::Passes { .. } => party.arrived.is_some(),
            BarrierDeed::Leaves => party.may_be_in,
            BarrierDeed::Left | BarrierDeed::Ends => !is_in || *deed == BarrierDeed::Ends,
        };
        if !is_possible || party.ended.is_some() {
            return wrong(format!("does {deed:?}, which it cannot"));
        }
        match deed {
            BarrierDeed::Joins => {
                *party = Party { may_be_in: true, ..Party::default() };
                joins += 1;
            }
            BarrierDeed::Joined => party.joined = Some(at),
            BarrierDeed::Arrives => {
                (party.arrived, party.waits_for) = (Some(at), party.passed.map(|last| last + 1));
            }
            BarrierDeed::Passes { generation, .. } => {
                (party.arrived, party.passed) = (None, Some(*generation));
            }
            BarrierDeed::Leaves => party.joined = None,
            BarrierDeed::Left => party.left = Some(at),
            BarrierDeed::Ends => (party.joined, party.ended) = (None, Some(at)),
        }
    }
    Ok(passed)
}

/// Judges what a client is shown that passes. Returns the step at which it had arrived.
fn passes(
    all: &BTreeMap<usize, Party>,
    (client, generation): (usize, u64),
    members: &[usize],
) -> Result<usize, String> {
    let its = all.get(&client).filter(|its| its.joined.is_some());
    let Some((its, arrived)) = its.and_then(|its| Some((its, its.arrived?))) else {
        return Err("passes, and does not wait".to_owned());
    };
    if generation == 0 || its.has_passed(generation) || !its.has_arrived(generation) {
        return Err(format!("passes time {generation}, and waits for {:?}", its.waits_for));
    }
    for (other, party) in all {
        // A member that joined before it arrived was waited for.
        let is_awaited = party.was_awaited(arrived);
        if is_awaited && !party.has_arrived(generation) {
            return Err(format!("passes, and client {other} has not arrived"));
        }
        if is_awaited && !members.contains(other) {
            return Err(format!("is not shown client {other}: {members:?}"));
        }
        let before = |step: Option<usize>| step.is_some_and(|step| step < arrived);
        let is_out = before(party.left) || before(party.ended) && party.arrived.is_none();
        if members.contains(other) && is_out {
            return Err(format!("is shown client {other}, which is gone: {members:?}"));
        }
    }
    match members.iter().find(|&it| !all.get(it).is_some_and(|it| it.may_be_in)) {
        Some(stranger) => Err(format!("is shown client {stranger}, which never joined")),
        None => Ok(arrived),
    }
}

#[cfg(test)]
mod tests {
    use super::BarrierDeed::{Arrives, Ends, Joined, Joins, Leaves, Left};
    use super::*;

    type History = Vec<(usize, BarrierDeed)>;

    /// So many have joined.
    fn joined(count: usize) -> History {
        (0..count).flat_map(|client| [(client, Joins), (client, Joined)]).collect()
    }

    fn passes(client: usize, generation: u64, members: &[usize]) -> (usize, BarrierDeed) {
        (client, BarrierDeed::Passes { generation, members: members.to_vec() })
    }

    fn after(history: History, then: &[(usize, BarrierDeed)]) -> Result<u64, String> {
        check_barrier(&[&history[..], then].concat(), 2)
    }

    #[test]
    fn what_a_barrier_may_do_is_right() {
        let met = [(0, Arrives), (1, Arrives), passes(0, 1, &[0, 1])];
        assert_eq!(after(joined(2), &met), Ok(1));
        // One arrives once more before the other one knows.
        let again = [(0, Arrives), passes(1, 1, &[0, 1]), (1, Arrives), passes(1, 2, &[0, 1])];
        assert_eq!(after([joined(2), met.to_vec()].concat(), &again), Ok(3));
        // One dies without having arrived, or leaves; another one joins.
        let dies = [(0, Arrives), (1, Ends), (2, Joins), passes(0, 1, &[0])];
        assert_eq!(after(joined(2), &dies), Ok(1));
        let leaves = [(1, Leaves), (1, Left), (0, Arrives), (2, Joins), passes(0, 4, &[0, 2])];
        assert_eq!(after(joined(2), &leaves), Ok(1));
        // It had arrived when it died.
        let after_that = [(0, Arrives), (1, Arrives), (1, Ends), passes(0, 1, &[0, 1])];
        assert_eq!(after(joined(2), &after_that), Ok(1));
    }

    #[test]
    fn one_that_opens_early_is_refused() {
        let early = [(0, Arrives), passes(0, 1, &[0, 1])];
        assert!(after(joined(2), &early).expect_err("early").contains("client 1 has not arrived"));
        let unjoined = [(0, Arrives), passes(0, 1, &[0])];
        assert!(after(joined(1), &unjoined).expect_err("one joined").contains("1 of 2"));
        // The other one has not arrived for the second time.
        let met = [(0, Arrives), (1, Arrives), passes(0, 1, &[0, 1]), passes(1, 1, &[0, 1])];
        let again = [&met[..], &[(0, Arrives), passes(0, 2, &[0, 1])]].concat();
        assert!(after(joined(2), &again).is_err());
        // Nor does it know of the first one yet: one wait is for one time.
        let twice = [&met[..3], &[(0, Arrives), passes(0, 2, &[0, 1])]].concat();
        assert!(after(joined(2), &twice).is_err());
        let other = [&met[..3], &[passes(1, 2, &[0, 1])]].concat();
        assert!(after(joined(2), &other).is_err());
        let skips = [&met[..], &[(0, Arrives), (1, Arrives), passes(0, 3, &[0, 1])]].concat();
        assert!(after(joined(2), &skips).is_err());
    }

    #[test]
    fn a_view_with_a_stranger_or_without_a_member_is_refused() {
        let both = [(0, Arrives), (1, Arrives)];
        let shown = |members: &[usize]| {
            let view = [passes(0, 1, members)];
            after([joined(2), both.to_vec()].concat(), &view)
        };
        assert_eq!(shown(&[1, 0]), Ok(1));
        for wrong in [&[0][..], &[1], &[0, 1, 2]] {
            assert!(shown(wrong).is_err(), "{wrong:?}");
        }
        // The dead one had not arrived, and was shown.
        for gone in [&[(1, Ends)][..], &[(1, Leaves), (1, Left)]] {
            let view = [gone, &[(0, Arrives), passes(0, 1, &[0, 1])]].concat();
            assert!(after(joined(2), &view).expect_err("it is gone").contains("which is gone"));
        }
    }

    #[test]
    fn what_a_client_cannot_do_is_refused() {
        for wrong in [
            &[(1, Arrives), (1, Arrives)][..],
            &[passes(1, 1, &[0, 1])],
            &[(1, Joins)],
            &[(1, Ends), (1, Arrives)],
            &[(1, Left)],
            &[(2, Joined)],
        ] {
            assert!(after(joined(2), wrong).is_err(), "{wrong:?}");
        }
    }
}
