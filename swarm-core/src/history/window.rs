//! A small part that shows that a history is not linearizable.
//!
//! A part is made only by forgetting: if the history were linearizable, the part would be, too. So
//! a part that is not linearizable is a proof, however it was found. What is forgotten:
//!
//! - *What comes after a moment.* Later calls are removed; later answers count as unknown.
//! - *What comes before a moment*, and with it the value at that moment: the part must fail from
//!   every value that it may begin with. Operations that were answered before the moment are
//!   removed. Those in progress may have taken effect on either side of it: the answers of writes
//!   count as unknown, others are removed.
//! - *Operations, many or one*: a read or refused operation is removed, a write's answer counts as
//!   unknown.
//!
//! A read-modify-write fits only one value before it, which may come from sums of unknown
//! increments. So increments are taken for the compare-and-swaps that they amount to, where each sum is known. If one is
//! not, or values come up again, a window with a read-modify-write begins where the history does.
//!
//! The end is the earliest at which the history fails, found by bisection. The start is late. It
//! need not be the latest, since a write in progress at a moment may explain more than one that is
//! not.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use super::search::writes;
use super::sweep::Verdict;
use super::units::without_sums;
use super::{Answer, Call, Operation, verdict};

/// Bound on the operations that are looked at, over all attempts, to reduce a window.
const WORK: usize = 20_000_000;
/// Bound on the steps of a window's checks: it need only be smaller, not the smallest.
const BUDGET: u64 = 2_000_000;
/// The same where there are read-modify-writes. Those whose answers are forgotten fit almost
/// anywhere, so many parts are hard to decide.
const LITTLE_BUDGET: u64 = 20_000;

/// A part of one key's history that is not linearizable by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// The key.
    pub key: u64,
    /// The value at the start; `None` if the part fails with any value.
    pub initial: Option<Option<u64>>,
    /// The operations whose answers contradict each other, and the writes of the values in them, in
    /// the order of their calls.
    pub operations: Vec<Operation>,
    /// Number of other operations at that time, none of which can explain it.
    pub others: usize,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "key {}: not linearizable. In no order do these fit together:", self.key)?;
        match self.initial {
            None => writeln!(f, "  (whatever the value was at first)")?,
            Some(None) => writeln!(f, "  (there was no value at first)")?,
            Some(Some(value)) => writeln!(f, "  (the value was {value} at first)")?,
        }
        self.operations.iter().try_for_each(|operation| writeln!(f, "  {operation}"))?;
        if self.others > 0 {
            writeln!(f, "  ({} more at that time do not explain it)", self.others)?;
        }
        Ok(())
    }
}

impl Window {
    /// Returns a small part of a history that is not linearizable.
    pub(super) fn of(original: &[Operation], initial: Option<u64>, budget: u64) -> Self {
        let without_sums = without_sums(original, initial);
        let history = without_sums.as_deref().unwrap_or(original);
        let is_modify = |op: &Operation| op.call.is_read_modify_write() || op.call.is_about_life();
        let whole = without_sums.is_none() && history.iter().any(is_modify);
        let most = if whole { LITTLE_BUDGET } else { BUDGET };
        let checker = Checker::new(history, budget.min(most.max(4 * history.len() as u64)));
        let mut start = Some(initial);
        let mut part = history.to_vec();
        let mut ends: Vec<u64> = history.iter().filter_map(|op| Some(op.answered?.0)).collect();
        ends.sort_unstable();
        ends.dedup();
        // An impossible answer is given at one of these times.
        let fails = |&end: &u64| checker.fails(&until(history, end), Some(initial));
        let at = ends.partition_point(|end| !fails(end));
        if let Some(end) = ends.get(at).filter(|end| fails(end)) {
            part = until(history, *end);
        }
        let mut begins: Vec<u64> = part.iter().map(|op| op.called).collect();
        begins.sort_unstable();
        begins.dedup();
        // From the end backwards in steps that double, since short windows are the quickest to
        // check and the easiest to read; then, by bisection, as late as possible.
        let (mut works, mut fails) = (begins.len(), None);
        let powers = if whole { 0..0 } else { 0..usize::BITS };
        for step in powers.map_while(|power| 1usize.checked_shl(power)) {
            let index = begins.len().saturating_sub(step);
            let later = begins.get(index).map(|&begin| from(&part, begin)).unwrap_or_default();
            if checker.fails(&later, None) {
                fails = Some((index, later));
                break;
            }
            works = index;
            if index == 0 {
                break;
            }
        }
        if let Some((mut index, mut shortest)) = fails {
            while index + 1 < works {
                let middle = index + (works - index) / 2;
                let later = from(&part, begins[middle]);
                if checker.fails(&later, None) {
                    (index, shortest) = (middle, later);
                } else {
                    works = middle;
                }
            }
            (part, start) = (shortest, None);
        }
        checker.forget_rest(&mut part, start);
        Self::show((original, history), &part, start)
    }

    /// Returns the operations of a part that matter, in their original form.
    fn show(
        (original, history): (&[Operation], &[Operation]),
        part: &[Operation],
        initial: Option<Option<u64>>,
    ) -> Self {
        let values: BTreeSet<u64> = part.iter().filter_map(value_of).collect();
        let writes = |op: &Operation| written(op.call).is_some_and(|value| values.contains(&value));
        let matter = |op: &&Operation| op.answered.is_some() || writes(op);
        let pairs = history.iter().zip(original);
        let was: BTreeMap<_, _> =
            pairs.map(|pair| ((pair.0.client, pair.0.called), pair)).collect();
        let mut operations: Vec<Operation> = part.iter().filter(matter).copied().collect();
        let others = part.len() - operations.len();
        for op in &mut operations {
            let was = was.get(&(op.client, op.called)).filter(|(was, _)| was.call == op.call);
            if let Some((_, original)) = was {
                *op = **original;
            }
        }
        operations.sort_by_key(|op| op.called);
        let key = original.first().map_or(0, |op| op.key);
        Self { key, initial, operations, others }
    }
}

/// What the checks of one history's parts have in common.
struct Checker {
    /// The values that are written more than once: such a value may be the first one although it is
    /// written in the part, too.
    repeated: BTreeSet<u64>,
    budget: u64,
}

impl Checker {
    fn new(history: &[Operation], budget: u64) -> Self {
        let mut values: Vec<u64> = history.iter().filter_map(|op| written(op.call)).collect();
        values.sort_unstable();
        let repeated = values.windows(2).filter(|two| two[0] == two[1]).map(|two| two[0]).collect();
        Self { repeated, budget }
    }

    /// Returns whether a part fails, from the initial value or from any.
    fn fails(&self, part: &[Operation], initial: Option<Option<u64>>) -> bool {
        let violated = |initial| verdict(part, initial, self.budget) == Verdict::Violated;
        match initial {
            Some(initial) => violated(initial),
            None => self.begins(part).into_iter().all(violated),
        }
    }

    /// Returns the values that a part may have begun with, as far as it makes a difference.
    fn begins(&self, part: &[Operation]) -> Vec<Option<u64>> {
        let value_of: BTreeSet<u64> = part.iter().filter_map(value_of).collect();
        let written: BTreeSet<u64> = part.iter().filter_map(|op| written(op.call)).collect();
        // A value that was read must be the first one if it was never written; no two can be.
        let mut unwritten = value_of.difference(&written);
        match (unwritten.next(), unwritten.next()) {
            (Some(&value), None) => std::vec![Some(value)],
            (Some(_), Some(_)) => Vec::new(),
            (None, _) => {
                // What a read-modify-write of unknown outcome made something of, which was read.
                let source = |op: &Operation| source(op).filter(|(_, new)| value_of.contains(new));
                let sources: BTreeSet<u64> =
                    part.iter().filter_map(source).map(|(before, _)| before).collect();
                // A value that is never read or written.
                let other =
                    (0..).find(|value| !written.contains(value) && !sources.contains(value));
                let repeated = value_of.intersection(&self.repeated).copied().map(Some);
                let sources = sources.difference(&written).copied().map(Some);
                [None, other].into_iter().chain(repeated).chain(sources).collect()
            }
        }
    }

    /// Forgets all that is not needed: halves first, then quarters, down to single operations, so
    /// that what matters is found quickly among many.
    fn forget_rest(&self, part: &mut Vec<Operation>, initial: Option<Option<u64>>) {
        let mut work = WORK;
        let mut size = part.len().div_ceil(2);
        loop {
            // From the end, so that the positions before it stay the same.
            let mut end = part.len();
            while end > 0 {
                let begin = end.saturating_sub(size);
                let known = part[begin..end].iter().any(|op| op.answered.is_some());
                if known {
                    let Some(rest) = work.checked_sub(part.len()) else { return };
                    work = rest;
                    let group = part[begin..end].iter().filter_map(forget);
                    let (front, back) = (&part[..begin], &part[end..]);
                    let less: Vec<_> =
                        front.iter().copied().chain(group).chain(back.iter().copied()).collect();
                    if self.fails(&less, initial) {
                        *part = less;
                    }
                }
                end = begin;
            }
            if size == 1 {
                return;
            }
            size = size.div_ceil(2);
        }
    }
}

/// Returns the value that must have been there.
fn value_of(op: &Operation) -> Option<u64> {
    match (op.call, op.answered) {
        (Call::CompareAndSwap { expected, .. }, Some((_, Answer::Done))) => expected,
        (_, Some((_, Answer::Value(value)))) => value,
        _ => None,
    }
}

/// Returns what a compare-and-swap of unknown outcome replaced by what, if it did.
fn source(op: &Operation) -> Option<(u64, u64)> {
    match (op.call, op.answered) {
        (Call::CompareAndSwap { expected, new }, None) => expected.zip(new),
        _ => None,
    }
}

fn written(call: Call) -> Option<u64> {
    match call {
        Call::Put(value) | Call::Insert(value) | Call::Update(value) => Some(value),
        Call::PutWithTtl { value, .. } => Some(value),
        Call::CompareAndSwap { new, .. } | Call::Swap(new) => new,
        Call::Get | Call::Delete | Call::Increment(_) => None,
        Call::Persist | Call::Ttl | Call::Expire(_) => None,
    }
}

/// Returns a history up to a moment.
fn until(history: &[Operation], end: u64) -> Vec<Operation> {
    let called = history.iter().filter(|op| op.called <= end);
    called
        .map(|op| Operation { answered: op.answered.filter(|&(at, _)| at <= end), ..*op })
        .collect()
}

/// Returns a history from a moment on.
fn from(history: &[Operation], begin: u64) -> Vec<Operation> {
    let lasting = history.iter().filter(|op| op.answered.is_none_or(|(at, _)| at >= begin));
    lasting.filter_map(|op| if op.called >= begin { Some(*op) } else { forget(op) }).collect()
}

/// Returns what is left of an operation whose answer is forgotten.
fn forget(op: &Operation) -> Option<Operation> {
    let wrote = writes(op.call, op.answered.map(|(_, answer)| answer));
    wrote.then_some(Operation { answered: None, ..*op })
}
