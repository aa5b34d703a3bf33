//! Histories of operations on keys, and whether they are linearizable.
//!
//! A history is linearizable if every operation can be given one moment between its call and its
//! answer at which it takes effect, such that the answers are those of a plain map. Keys are
//! independent. An operation whose answer is not known (its client died, or it ended in an error)
//! takes effect at any time after its call, or never.
//!
//! | file | concept |
//! | --- | --- |
//! | `recorder` | taking histories down |
//! | `units`, `sweep` | judging a history whose read values are written once: in one sweep through time |
//! | `search` | judging any history: the search for an order, which may take long |
//! | `window` | of a history that is not linearizable, a small part that shows it |

mod recorder;
mod search;
mod sweep;
mod units;
mod window;

use core::fmt;
use std::collections::BTreeMap;
use std::vec::Vec;

pub use recorder::Recorder;
use search::Search;
use sweep::{Sweep, Verdict};
use units::Brought;
pub use window::Window;

/// What a client asked for. Values are known by numbers; 0 is as good as any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// Reads the value. Answer: [`Answer::Value`].
    Get,
    /// Sets the value, whether or not there was one. Answer: [`Answer::Done`].
    Put(u64),
    /// Sets the value if there is none. Answer: done or refused.
    Insert(u64),
    /// Sets the value if there is one. Answer: done or refused.
    Update(u64),
    /// Removes the value, if there is one. Answer: [`Answer::Done`].
    Delete,
}

/// What it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The value, or that there is none.
    Value(Option<u64>),
    /// It was done.
    Done,
    /// It had no effect: the key was there already (insert), or was not there (update).
    Refused,
}

/// One operation of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// On which key.
    pub key: u64,
    /// Whose, for reports.
    pub client: usize,
    /// What was asked for.
    pub call: Call,
    /// When: any clock that all clients share.
    pub called: u64,
    /// When it was answered, and how; `None` if that is not known. An operation that is answered
    /// at the moment at which another is called overlaps with it.
    pub answered: Option<(u64, Answer)>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, call, called, .. } = self;
        match self.answered {
            Some((at, answer)) => {
                write!(f, "{called:>8} .. {at:<8} client {client}: {call:?} -> {answer:?}")
            }
            None => write!(f, "{called:>8} ..          client {client}: {call:?} -> not known"),
        }
    }
}

/// Why a history was not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rejected {
    /// It is not linearizable.
    Violation(Window),
    /// It took more steps than were allowed to tell.
    Undecided {
        /// Which key's.
        key: u64,
        /// How many steps were allowed.
        budget: u64,
    },
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(window) => window.fmt(f),
            Self::Undecided { key, budget } => {
                write!(f, "key {key}: no answer after {budget} steps; allow more")
            }
        }
    }
}

/// Enough steps for any history that is not made to be hard.
pub const BUDGET: u64 = 200_000_000;

/// Checks a history in which `initial` gives the keys' values at first.
///
/// # Errors
/// If the history is not linearizable, or that could not be told within `budget` steps.
pub fn check(
    operations: &[Operation],
    initial: impl Fn(u64) -> Option<u64>,
    budget: u64,
) -> Result<(), Rejected> {
    let mut keys = BTreeMap::<u64, Vec<Operation>>::new();
    for operation in operations {
        keys.entry(operation.key).or_default().push(*operation);
    }
    keys.into_iter().try_for_each(|(key, history)| check_key(&history, initial(key), budget))
}

/// Checks the history of one key, whose value is `initial` at first.
///
/// # Errors
/// If the history is not linearizable, or that could not be told within `budget` steps.
pub fn check_key(
    operations: &[Operation],
    initial: Option<u64>,
    budget: u64,
) -> Result<(), Rejected> {
    match verdict(operations, initial, budget) {
        Verdict::Linearizable => Ok(()),
        Verdict::Violated => Err(Rejected::Violation(Window::of(operations, initial, budget))),
        Verdict::Undecided => {
            let key = operations.first().map_or(0, |op| op.key);
            Err(Rejected::Undecided { key, budget })
        }
    }
}

/// Whether the history of one key is linearizable.
fn verdict(operations: &[Operation], initial: Option<u64>, budget: u64) -> Verdict {
    match units::bring(operations, initial) {
        Brought::Units(units) => Sweep::run(units, initial.is_some(), budget),
        Brought::Repeats => Search::new(operations, initial).run(budget),
        Brought::Impossible => Verdict::Violated,
    }
}
