//! Whether a lock may do what clients saw of it.
//!
//! **Invariants:** nobody enters while another client is inside that has not ended (O1). Each that enters has a larger
//! token than all before it (O2). Nobody enters past one that waited already when it came, unless that has ended or
//! given up (O3). The last one holds for as many as wait in order, [`MAX_WAITERS`](swarm_kv::objects::MAX_WAITERS):
//! histories have fewer clients.

use std::collections::BTreeMap;

use crate::steps::{Deed, Steps};

/// What a client does with a lock. It has one place at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockDeed {
    /// Begins to acquire it.
    Comes,
    /// Knows that it has a place in the queue.
    Waits,
    /// Holds it, and knows this token.
    Enters(u64),
    /// Begins to release it.
    Leaves,
    /// Dropped its future, or an operation failed.
    GivesUp,
    /// Has ended.
    Ends,
}

impl Deed for LockDeed {
    const ENDS: Self = Self::Ends;
}

/// What clients did with one lock.
pub type LockHistory = Steps<LockDeed>;

/// How often clients were inside.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Entered {
    /// In all.
    pub times: u64,
    /// As the next one after a client that had ended inside.
    pub taken_over: u64,
}

/// Where a client is, and since which step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whereabouts {
    Outside,
    Comes(usize),
    /// It came at the first of these steps, and had a place at the second.
    Waits(usize, usize),
    Inside,
}

/// Judges a history.
///
/// # Errors
/// What no lock may do.
pub fn check_lock(history: &[(usize, LockDeed)]) -> Result<Entered, String> {
    use Whereabouts::{Comes, Inside, Outside, Waits};
    let (mut all, mut entered) = (BTreeMap::new(), Entered::default());
    let (mut last, mut dead_inside) = (0, false);
    for (at, &(client, deed)) in history.iter().enumerate() {
        let is = *all.get(&client).unwrap_or(&Outside);
        let wrong = |what: &str| Err(format!("step {at}: client {client} {what}"));
        let next = match (deed, is) {
            (LockDeed::Comes, Outside) => Comes(at),
            (LockDeed::Waits, Comes(came)) => Waits(came, at),
            (LockDeed::Enters(token), Comes(came) | Waits(came, _)) => {
                let others = all.iter().filter(|(other, _)| **other != client);
                for (other, whereabouts) in others {
                    match *whereabouts {
                        Inside => return wrong(&format!("enters while client {other} is inside")),
                        Waits(_, since) if since < came => {
                            return wrong(&format!("enters past client {other}, which waits"));
                        }
                        _ => {}
                    }
                }
                if token <= last {
                    return wrong(&format!("enters with token {token} after {last}"));
                }
                last = token;
                entered.times += 1;
                entered.taken_over += u64::from(std::mem::take(&mut dead_inside));
                Inside
            }
            (LockDeed::Leaves, Inside) | (LockDeed::GivesUp, Comes(_) | Waits(..)) => Outside,
            (LockDeed::Ends, _) => {
                dead_inside |= is == Inside;
                Outside
            }
            _ => return wrong(&format!("does {deed:?}, and it is {is:?}")),
        };
        all.insert(client, next);
    }
    Ok(entered)
}

#[cfg(test)]
mod tests {
    use super::LockDeed::{Comes, Ends, Enters, GivesUp, Leaves, Waits};
    use super::*;

    #[test]
    fn what_a_lock_may_do_is_right() {
        let in_turn = [
            (0, Comes),
            (1, Comes),
            (0, Enters(1)),
            (1, Waits),
            (2, Comes),
            (2, Waits),
            (0, Leaves),
            (1, Enters(2)),
            (1, Leaves),
            (2, Enters(3)),
        ];
        assert_eq!(check_lock(&in_turn), Ok(Entered { times: 3, taken_over: 0 }));
        let dead = [(0, Comes), (0, Enters(1)), (1, Comes), (1, Waits), (0, Ends), (1, Enters(2))];
        assert_eq!(check_lock(&dead), Ok(Entered { times: 2, taken_over: 1 }));
        // Tokens are missing where a client was let in that ended, or gave up, before it knew.
        let gaps = [(0, Comes), (0, Enters(1)), (0, Leaves), (1, Comes), (1, Enters(7))];
        assert!(check_lock(&gaps).is_ok());
    }

    #[test]
    fn two_inside_are_refused() {
        let two = [(0, Comes), (1, Comes), (0, Enters(1)), (1, Enters(2))];
        assert!(check_lock(&two).expect_err("two").contains("while client 0 is inside"));
        // It ended later than that.
        let later = [&two[..], &[(0, Ends)]].concat();
        assert!(check_lock(&later).is_err());
    }

    #[test]
    fn a_token_that_does_not_grow_is_refused() {
        for token in [0, 1, 2] {
            let stays = [(0, Comes), (0, Enters(2)), (0, Leaves), (1, Comes), (1, Enters(token))];
            assert!(check_lock(&stays).expect_err("it is not larger").contains("after 2"));
        }
        // The dead one's is none but a token.
        let dead = [(0, Comes), (0, Enters(2)), (0, Ends), (1, Comes), (1, Enters(2))];
        assert!(check_lock(&dead).is_err());
    }

    #[test]
    fn who_came_last_and_is_let_in_first_is_refused() {
        let came = [(0, Comes), (0, Enters(1)), (1, Comes), (1, Waits), (2, Comes)];
        let past = [&came[..], &[(0, Leaves), (2, Enters(2))]].concat();
        assert!(check_lock(&past).expect_err("past client 1").contains("past client 1"));
        for gone in [Ends, GivesUp] {
            let past = [&came[..], &[(0, Leaves), (1, gone), (2, Enters(2))]].concat();
            assert!(check_lock(&past).is_ok(), "client 1 waits no more");
        }
        // Whichever of two comes first that came at the same time.
        let at_once = [&came[..3], &[(2, Comes), (1, Waits), (0, Leaves), (2, Enters(2))]].concat();
        assert!(check_lock(&at_once).is_ok());
    }

    #[test]
    fn what_a_client_cannot_do_is_refused() {
        for wrong in [
            &[(0, Leaves)][..],
            &[(0, Enters(1))],
            &[(0, Comes), (0, Comes)],
            &[(0, Comes), (0, Enters(1)), (0, GivesUp)],
            &[(0, Comes), (0, Ends), (0, Enters(1))],
        ] {
            assert!(check_lock(wrong).is_err(), "{wrong:?}");
        }
    }

    /// That a client has ended is noted before what is due to that, once.
    #[test]
    fn ends_are_noted() {
        let history = LockHistory::default();
        history.note(0, Comes, |_| false);
        history.note(0, Enters(1), |_| false);
        let digest = history.digest();
        history.note(1, Comes, |client| client == 0);
        history.note(1, Enters(2), |client| client == 0);
        let all = [(0, Comes), (0, Enters(1)), (0, Ends), (1, Comes), (1, Enters(2))];
        assert_eq!(history.all(), all);
        assert_eq!((history.last_of(0), history.last_of(2)), (Some(Ends), None));
        assert_ne!(history.digest(), digest);
    }
}
