//! Histories of operations on keys, and whether they are linearizable.
//!
//! A history is linearizable if each operation can be assigned one moment between its call and its
//! answer at which it takes effect, such that the answers are those of a plain map. Keys are
//! independent. An operation with an unknown answer (its client died, or it ended in an error)
//! takes effect at any time after its call, or never.
//!
//! | file | concept |
//! | --- | --- |
//! | `recorder` | recording histories |
//! | `units`, `sweep` | checking a history whose read values are written once, in one sweep |
//! | `search` | checking any history: the search for an order, often long |
//! | `window` | a small part that shows that a history is not linearizable |

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
use units::Conversion;
pub use window::Window;

/// What a client requested. Values are represented by numbers; 0 is a value like any other.
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
    /// Replaces the value if it is `expected`, none included; no new value removes it. Answer:
    /// done, or the value that it found instead.
    CompareAndSwap {
        /// What must be there.
        expected: Option<u64>,
        /// What replaces it.
        new: Option<u64>,
    },
    /// Sets or removes the value. Answer: the value before.
    Swap(Option<u64>),
    /// Adds to the value, modulo 2^64; no value counts as 0. Answer: the value after.
    Increment(u64),
    /// Sets the value, with a life of this length. Other writes end it, but read-modify-writes
    /// keep it. Answer: [`Answer::Done`].
    PutWithTtl {
        /// The value, after which its life is named.
        value: u64,
        /// How long it lasts at least: see [`with_expiries`].
        ttl: u64,
    },
    /// Ends the life of the value, so that it stays. Answer: done, or refused if it has none.
    Persist,
    /// Asks for a life. Answer: [`Answer::Life`].
    Ttl,
    /// Removes the value if its life is the one of this name. Nobody asks for it, so it has no answer:
    /// a client does it as a clock says so.
    Expire(u64),
}

impl Call {
    /// Returns whether what it writes or answers depends on the value that it replaces.
    pub fn is_read_modify_write(self) -> bool {
        matches!(self, Self::CompareAndSwap { .. } | Self::Swap(_) | Self::Increment(_))
    }

    /// Returns whether it is about the life of a value.
    pub fn is_about_life(self) -> bool {
        matches!(self, Self::PutWithTtl { .. } | Self::Persist | Self::Ttl | Self::Expire(_))
    }

    /// Returns whether it changes nothing, whatever its answer.
    fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::Ttl)
    }
}

/// What the client was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The value, or that there is none: what a read returned, what a compare-and-swap found
    /// instead of what it expected, what a swap replaced, what an increment made of it.
    Value(Option<u64>),
    /// It succeeded.
    Done,
    /// It had no effect: the key was there already (insert), was not there (update), or had no life
    /// (persist).
    Refused,
    /// Whether the value has a life, or that there is no value.
    Life(Option<bool>),
}

/// One operation of a history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its key.
    pub key: u64,
    /// Its client, for reports.
    pub client: usize,
    /// What was requested.
    pub call: Call,
    /// When it was called, by any clock that all clients share.
    pub called: u64,
    /// When it was answered, and how; `None` if unknown. An operation that is answered at the
    /// moment at which another is called overlaps with it.
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
    /// The check needed more steps than were allowed.
    Undecided {
        /// The key.
        key: u64,
        /// Number of steps that were allowed.
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

/// Enough steps for any history that is not constructed to be hard.
pub const BUDGET: u64 = 200_000_000;

/// Returns the history with an [`Expire`](Call::Expire) for each value that was put with a life: it may
/// happen from the life's length after the put's call on, or never. So it is right where clients' clocks go
/// as the one of the history's times does.
pub fn with_expiries(operations: &[Operation]) -> Vec<Operation> {
    let expire = |op: &Operation| {
        let Call::PutWithTtl { value, ttl } = op.call else { return None };
        let called = op.called.saturating_add(ttl);
        Some(Operation { call: Call::Expire(value), called, answered: None, ..*op })
    };
    operations.iter().copied().chain(operations.iter().filter_map(expire)).collect()
}

/// Checks a history in which `initial` gives the keys' first values.
///
/// # Errors
/// If the history is not linearizable, or if `budget` steps do not suffice to decide.
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

/// Checks the history of one key, whose first value is `initial`.
///
/// # Errors
/// If the history is not linearizable, or if `budget` steps do not suffice to decide.
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

/// Returns whether the history of one key is linearizable.
fn verdict(operations: &[Operation], initial: Option<u64>, budget: u64) -> Verdict {
    match units::convert(operations, initial) {
        Conversion::Units(units) => {
            let are_guessed = units.are_guessed;
            match Sweep::run(units, initial.is_some(), budget) {
                Verdict::Violated if are_guessed => Search::new(operations, initial).run(budget),
                verdict => verdict,
            }
        }
        Conversion::Unfit => Search::new(operations, initial).run(budget),
        Conversion::Impossible => Verdict::Violated,
    }
}
