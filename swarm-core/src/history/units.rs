//! What a history requires of the key's value, once the values that reads returned are accounted
//! for: the form that the sweep checks.
//!
//! **Invariant:** a value that is read has one write (if it has several, the history is not
//! converted into this form). So the value is there once, from its write to the last of its reads,
//! and nothing else takes effect in between. The write and its reads are one *cluster* (Gibbons and
//! Korach's zones):
//!
//! - If all of them overlap in some moment (the last call is not after the first answer), the
//!   cluster may take effect in a moment. So may a write that is never read, which may be
//!   overwritten at once. Its time is from the last call to the first answer.
//! - If not, the value must be there from the first answer to the last call: the cluster is *long*.
//!
//! The rest does not depend on values any more, only on whether there is one. A [`Unit`] is one of:
//! an operation that needs a value, or none; a write, insert, update or delete that may take effect
//! in a moment, reads included; a long cluster. Operations of unknown outcome are left out if they
//! are of no use: reads, and updates that are never read, which do not change whether there is a
//! value. Of unread unknown puts and inserts, and of unknown deletes, only the number counts: they
//! may take effect at any time after their calls, so all are equivalent.

use std::collections::HashMap;
use std::vec::Vec;

use super::{Answer, Call, Operation};

/// What a unit needs and does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Needs that there is no value: a read of none, a refused update.
    SeesNone,
    /// Needs that there is a value: a refused insert.
    SeesSome,
    /// Sets the value if there is one.
    Update,
    /// Sets the value.
    Put,
    /// Sets the value if there is none.
    Insert,
    /// Removes the value.
    Delete,
}

/// What must take effect in a moment of its time, or in all of its time if it is long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit {
    pub(super) kind: Kind,
    /// When its write was called.
    pub(super) called: u64,
    /// When the last of it was called.
    pub(super) available: u64,
    /// When the first of it was answered. Before `available` if it is long.
    pub(super) due: u64,
}

impl Unit {
    /// Returns whether its value must be there from `due` to `available`.
    pub(super) fn is_long(&self) -> bool {
        self.due < self.available
    }
}

/// A history, as far as the sweep needs it.
#[derive(Debug, Default)]
pub(super) struct Units {
    pub(super) units: Vec<Unit>,
    /// The calls of unread puts and inserts of unknown outcome.
    pub(super) spare_writes: Vec<u64>,
    /// The calls of deletes of unknown outcome.
    pub(super) spare_deletes: Vec<u64>,
    /// Until when the initial value must be there, if it is read.
    pub(super) initial_until: Option<u64>,
}

/// The result of the conversion.
#[derive(Debug)]
pub(super) enum Brought {
    /// The history in this form.
    Units(Units),
    /// A value that is read was written more than once, or an operation is a read-modify-write:
    /// those depend on values, which units do not have.
    Unfit,
    /// It is not linearizable: a value was read that was never written, or an answer is impossible.
    Impossible,
}

/// A value's write and reads.
struct Cluster {
    /// Its writer, if it has exactly one.
    writer: Option<usize>,
    writers: u32,
    last_call: u64,
    first_answer: u64,
    reads: u32,
}

/// Returns the value that an operation writes, unless it is known to have been refused.
fn written(op: &Operation) -> Option<u64> {
    match (op.call, op.answered) {
        (Call::Put(value) | Call::Insert(value) | Call::Update(value), answered)
            if !matches!(answered, Some((_, Answer::Refused))) =>
        {
            Some(value)
        }
        _ => None,
    }
}

/// Returns whether the call may have this answer, at this time.
fn makes_sense(op: &Operation) -> bool {
    op.answered.is_none_or(|(at, answer)| {
        let fits = match op.call {
            Call::Get | Call::Swap(_) => matches!(answer, Answer::Value(_)),
            Call::Increment(_) => matches!(answer, Answer::Value(Some(_))),
            Call::Put(_) | Call::Delete => answer == Answer::Done,
            Call::Insert(_) | Call::Update(_) => !matches!(answer, Answer::Value(_)),
            Call::CompareAndSwap { expected, .. } => {
                answer != Answer::Refused && answer != Answer::Value(expected)
            }
        };
        fits && op.called <= at
    })
}

/// Converts the history of one key.
pub(super) fn bring(history: &[Operation], initial: Option<u64>) -> Brought {
    if !history.iter().all(makes_sense) {
        return Brought::Impossible;
    }
    if history.iter().any(|op| op.call.is_read_modify_write()) {
        return Brought::Unfit;
    }
    let mut clusters = HashMap::with_capacity(history.len());
    for (index, op) in history.iter().enumerate() {
        if let Some(value) = written(op) {
            let cluster = clusters.entry(value).or_insert(Cluster {
                writer: None,
                writers: 0,
                last_call: op.called,
                first_answer: op.answered.map_or(u64::MAX, |(at, _)| at),
                reads: 0,
            });
            cluster.writers += 1;
            cluster.writer = (cluster.writers == 1).then_some(index);
        }
    }
    let mut initial_until = None;
    for op in history {
        let Some((at, Answer::Value(Some(value)))) = op.answered else { continue };
        match clusters.get_mut(&value) {
            Some(_) if initial == Some(value) => return Brought::Unfit,
            Some(cluster) if cluster.writers > 1 => return Brought::Unfit,
            Some(cluster) => {
                cluster.last_call = op.called.max(cluster.last_call);
                cluster.first_answer = at.min(cluster.first_answer);
                cluster.reads += 1;
            }
            None if initial == Some(value) => {
                initial_until = Some(op.called.max(initial_until.unwrap_or(0)));
            }
            None => return Brought::Impossible,
        }
    }
    let mut units = Units { initial_until, ..Units::default() };
    for (index, op) in history.iter().enumerate() {
        let cluster = written(op).and_then(|value| clusters.get(&value));
        let cluster = cluster.filter(|cluster| cluster.writer == Some(index) && cluster.reads > 0);
        if !units.add(op, cluster) {
            return Brought::Impossible;
        }
    }
    Brought::Units(units)
}

impl Units {
    /// Adds an operation, with its cluster if it is a write that is read. Returns whether that is
    /// possible.
    fn add(&mut self, op: &Operation, cluster: Option<&Cluster>) -> bool {
        let kind = match (op.call, op.answered) {
            (Call::Get, None | Some((_, Answer::Value(Some(_))))) => return true,
            (Call::Get, _) | (Call::Update(_), Some((_, Answer::Refused))) => Kind::SeesNone,
            (_, Some((_, Answer::Refused))) => Kind::SeesSome,
            (Call::Update(_), _) => Kind::Update,
            (Call::Put(_), _) => Kind::Put,
            (Call::Insert(_), _) => Kind::Insert,
            (Call::Delete, _) => Kind::Delete,
            (Call::CompareAndSwap { .. } | Call::Swap(_) | Call::Increment(_), _) => {
                unreachable!("a history with a read-modify-write is unfit")
            }
        };
        let called = op.called;
        let (available, due) = match (cluster, op.answered) {
            (Some(cluster), _) => (cluster.last_call, cluster.first_answer),
            (None, Some((at, _))) => (called, at),
            (None, None) => {
                match kind {
                    Kind::Put | Kind::Insert => self.spare_writes.push(called),
                    Kind::Delete => self.spare_deletes.push(called),
                    Kind::SeesNone | Kind::SeesSome | Kind::Update => {}
                }
                return true;
            }
        };
        self.units.push(Unit { kind, called, available, due });
        // Otherwise the value was read before its write was called.
        called <= due
    }
}
