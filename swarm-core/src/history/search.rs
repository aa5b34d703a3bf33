//! The search for an order, for histories whose values repeat or have lives, or that have
//! read-modify-writes.
//!
//! The search is Wing and Gong's with Lowe's memory of what was tried. Operations are ordered one
//! by one. Those that do not change the value (reads that fit, refusals) are placed as soon as
//! possible, which is never wrong. A tried state is the set of operations ordered so far and the
//! value after them, with its life; the set is remembered by a 128-bit hash. What failed with some
//! operations of unknown outcome in the set fails with more of them. A value is not overwritten while a
//! read of it is still to be placed, unless it will be written again. An operation takes a few
//! hash-table accesses, unless many writes overlap and their values repeat.
//!
//! A value with a life is there until a write or the life's end. That is an operation of unknown
//! outcome, which is tried where nothing else fits.
//!
//! A read-modify-write with an answer needs the value before it as a read does, so of two that
//! replaced one value the second is missed at once. An increment of unknown outcome may write any
//! value again, except where the value only grows.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::vec::Vec;

use super::sweep::Verdict;
use super::{Answer, Call, Operation};

/// The key's value, and the name of its life, if it has one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct State {
    value: Option<u64>,
    life: Option<u64>,
}

/// Returns the state after `call` took effect, if it may have had `answer` on `state`.
fn apply(call: Call, answer: Option<Answer>, state: State) -> Option<State> {
    let State { value, life } = state;
    let after = |value| State { value, life: None };
    let (after, outcome) = match call {
        Call::PutWithTtl { value, .. } => {
            (State { value: Some(value), life: Some(value) }, Answer::Done)
        }
        Call::Persist if life.is_some() => (after(value), Answer::Done),
        Call::Persist => (state, Answer::Refused),
        Call::Ttl => (state, Answer::Life(value.map(|_| life.is_some()))),
        Call::Expire(of) if life == Some(of) => (after(None), Answer::Done),
        Call::Expire(_) => (state, Answer::Done),
        _ => {
            let (new, outcome) = apply_to_value(call, value);
            let is_kept = new == value && !matches!(outcome, Answer::Done)
                || call.is_read_modify_write() && value.is_some() && new.is_some();
            (if is_kept { State { value: new, life } } else { after(new) }, outcome)
        }
    };
    answer.is_none_or(|answer| answer == outcome).then_some(after)
}

/// The same for a call that is not about lives, without the answer to match.
fn apply_to_value(call: Call, value: Option<u64>) -> (Option<u64>, Answer) {
    match (call, value) {
        (Call::Get, _) => (value, Answer::Value(value)),
        (Call::Put(new), _) | (Call::Insert(new), None) | (Call::Update(new), Some(_)) => {
            (Some(new), Answer::Done)
        }
        (Call::Insert(_), Some(_)) | (Call::Update(_), None) => (value, Answer::Refused),
        (Call::Delete, _) => (None, Answer::Done),
        (Call::CompareAndSwap { expected, new }, _) if expected == value => (new, Answer::Done),
        (Call::CompareAndSwap { .. }, _) => (value, Answer::Value(value)),
        (Call::Swap(new), _) => (new, Answer::Value(value)),
        (Call::Increment(by), _) => {
            let sum = Some(value.unwrap_or(0).wrapping_add(by));
            (sum, Answer::Value(sum))
        }
        (Call::PutWithTtl { .. } | Call::Persist | Call::Ttl | Call::Expire(_), _) => {
            unreachable!("it is about a life")
        }
    }
}

/// Returns whether the call changes the value whenever it has this answer (or when it takes
/// effect).
pub(super) fn writes(call: Call, answer: Option<Answer>) -> bool {
    !matches!(
        (call, answer),
        (Call::Get | Call::Ttl, _)
            | (_, Some(Answer::Refused))
            | (Call::CompareAndSwap { .. }, Some(Answer::Value(_)))
    )
}

/// How an operation relates to values, as far as its call and its answer show.
#[derive(Clone, Copy, Default)]
struct Part {
    /// The value without which it cannot be placed.
    needs: Option<u64>,
    /// The value that it leaves.
    writes: Option<u64>,
}

fn part(op: &Operation) -> Part {
    let (needs, writes) = match (op.call, op.answered.map(|(_, answer)| answer)) {
        (Call::Get | Call::CompareAndSwap { .. }, Some(Answer::Value(found))) => (found, None),
        (_, Some(Answer::Refused)) | (Call::Get | Call::Delete, _) => (None, None),
        (Call::Persist | Call::Ttl | Call::Expire(_), _) => (None, None),
        (
            Call::Put(value)
            | Call::Insert(value)
            | Call::Update(value)
            | Call::PutWithTtl { value, .. },
            _,
        ) => (None, Some(value)),
        (Call::CompareAndSwap { expected, new }, answer) => (answer.and(expected), new),
        (Call::Swap(new), Some(Answer::Value(before))) => (before, new),
        (Call::Swap(new), _) => (None, new),
        // No value does as well as 0.
        (Call::Increment(by), Some(Answer::Value(Some(sum)))) if sum != by => {
            (Some(sum.wrapping_sub(by)), Some(sum))
        }
        (Call::Increment(_), Some(Answer::Value(sum))) => (None, sum),
        (Call::Increment(_), _) => (None, None),
    };
    Part { needs, writes }
}

/// How many operations that need a value, or leave it, are still to be placed.
#[derive(Clone, Copy, Default)]
struct Left {
    needed: u32,
    written: u32,
}

/// Whether a value that was replaced may be there again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Returns {
    /// Never: there are only reads and increments, and their sum does not overflow.
    Never,
    /// Only if an operation is known to write it.
    Written,
    /// Always: the sum of an increment of unknown outcome is not known.
    Always,
}

impl Returns {
    fn of(operations: &[Operation], initial: Option<u64>) -> Self {
        let sum = operations.iter().try_fold(initial.unwrap_or(0), |sum, op| match op.call {
            Call::Get => Some(sum),
            Call::Increment(by) => sum.checked_add(by),
            _ => None,
        });
        let open = |op: &Operation| op.answered.is_none() && matches!(op.call, Call::Increment(_));
        match sum {
            Some(_) => Self::Never,
            None if operations.iter().any(open) => Self::Always,
            None => Self::Written,
        }
    }
}

/// Looking at this many operations takes about as long as a step.
const LOOKS: u64 = 64;
/// No event.
const END: u32 = u32::MAX;

/// Where the search continues.
#[derive(Clone, Copy)]
enum Cursor {
    /// At this event of the operations with known answers.
    Event(u32),
    /// At this one of the operations with unknown answers.
    Unknown(u32),
}

/// An operation that was placed.
struct Placed {
    operation: u32,
    state_before: State,
    /// Where to continue when it is removed; `None` if there was no alternative.
    resume: Option<Cursor>,
}

pub(super) struct Search {
    /// Operations with known answers, by their calls; then those with unknown ones, likewise, the ends of
    /// lives first.
    operations: Vec<Operation>,
    known: usize,
    /// The ends of each life, by their numbers among the unknown operations.
    expiries: HashMap<u64, Vec<u32>>,
    /// How many those are.
    all_expiries: usize,
    /// Values that are put with a life more than once.
    lives_again: HashSet<u64>,
    /// Events of the known operations: an operation's index times two, plus one for its answer.
    /// Linked in the order of time, without those that were placed.
    next: Vec<u32>,
    previous: Vec<u32>,
    first: u32,
    placed_unknown: Vec<bool>,
    /// Unknown writes whose values were never read: they matter only where there is no value. With
    /// a read-modify-write none counts as unread.
    unseen: Vec<bool>,
    left: HashMap<u64, Left>,
    returns: Returns,
    order: Vec<Placed>,
    state: State,
    set: u128,
    /// Which of the first unknown operations were placed.
    used: u128,
    /// For each set of the other operations and state that was tried: which unknown ones were placed then.
    tried: HashMap<(u128, State), u128>,
    /// The same, where there were several.
    tried_again: HashMap<(u128, State), Vec<u128>>,
    /// Number of operations that were looked at so far, to find one that fits.
    looked: u64,
}

impl Search {
    pub(super) fn new(history: &[Operation], initial: Option<u64>) -> Self {
        let mut operations: Vec<_> =
            history.iter().filter(|op| op.answered.is_some()).copied().collect();
        let known = operations.len();
        let unknown = |op: &&Operation| op.answered.is_none() && !op.call.is_read();
        operations.extend(history.iter().filter(unknown));
        operations[..known].sort_by_key(|op| op.called);
        let is_plain = |op: &Operation| !matches!(op.call, Call::Expire(_));
        operations[known..].sort_by_key(|op| (is_plain(op), op.called));
        let mut expiries = HashMap::<u64, Vec<u32>>::new();
        for (number, op) in operations[known..].iter().enumerate() {
            let Call::Expire(of) = op.call else { break };
            expiries.entry(of).or_default().push(number as u32);
        }
        let all_expiries = expiries.values().map(Vec::len).sum();
        let (mut lives, mut lives_again) = (HashSet::new(), HashSet::new());
        for op in &operations {
            if let Call::PutWithTtl { value, .. } = op.call
                && !lives.insert(value)
            {
                lives_again.insert(value);
            }
        }

        let mut left = HashMap::<u64, Left>::new();
        for op in &operations {
            let Part { needs, writes } = part(op);
            needs.into_iter().for_each(|value| left.entry(value).or_default().needed += 1);
            writes.into_iter().for_each(|value| left.entry(value).or_default().written += 1);
        }
        let modified =
            operations.iter().any(|op| op.call.is_read_modify_write() || op.call.is_about_life());
        let unseen = |op: &Operation| {
            !modified && part(op).writes.is_some_and(|value| left[&value].needed == 0)
        };
        let unseen = operations[known..].iter().map(unseen).collect();
        let mut search = Self {
            next: std::vec![END; 2 * known],
            previous: std::vec![END; 2 * known],
            first: END,
            placed_unknown: std::vec![false; operations.len() - known],
            unseen,
            left,
            returns: Returns::of(&operations, initial),
            order: Vec::with_capacity(operations.len()),
            state: State { value: initial, life: None },
            set: 0,
            used: 0,
            tried: HashMap::new(),
            tried_again: HashMap::new(),
            looked: 0,
            operations,
            known,
            expiries,
            all_expiries,
            lives_again,
        };
        search.link();
        search
    }

    /// Links the events in order of time; calls before answers at the same time.
    fn link(&mut self) {
        let mut events: Vec<u32> = (0..2 * self.known as u32).collect();
        events.sort_by_key(|&event| (self.time(event), event % 2));
        let mut last = END;
        for event in events {
            self.previous[event as usize] = last;
            match last {
                END => self.first = event,
                last => self.next[last as usize] = event,
            }
            last = event;
        }
    }

    fn time(&self, event: u32) -> u64 {
        let operation = &self.operations[event as usize / 2];
        match operation.answered {
            Some((at, _)) if event % 2 == 1 => at,
            _ => operation.called,
        }
    }

    pub(super) fn run(mut self, budget: u64) -> Verdict {
        let mut cursor = self.settle();
        for step in 0..budget {
            if step + self.looked / LOOKS > budget {
                break;
            }
            let found = match cursor {
                Cursor::Event(END) => return Verdict::Linearizable,
                Cursor::Event(event) if is_call(event) => {
                    let otherwise = Cursor::Event(self.next[event as usize]);
                    self.try_next(event / 2, otherwise).unwrap_or(otherwise)
                }
                // The next operation must come before this answer: one of those above, or an
                // operation of unknown outcome.
                Cursor::Event(_) => Cursor::Unknown(0),
                Cursor::Unknown(index) => match self.try_unknown(index) {
                    Some(cursor) => cursor,
                    None => match self.take_back() {
                        Some(cursor) => cursor,
                        None => return Verdict::Violated,
                    },
                },
            };
            cursor = found;
        }
        Verdict::Undecided
    }

    /// Places an operation next, if it fits and was not tried before.
    fn try_next(&mut self, operation: u32, otherwise: Cursor) -> Option<Cursor> {
        let op = &self.operations[operation as usize];
        let after = apply(op.call, op.answered.map(|(_, answer)| answer), self.state)?;
        if after.value != self.state.value && self.strands(op) {
            return None;
        }
        let (mark, bit) = self.mark(operation);
        if self.was_tried((self.set ^ mark, after), self.used | bit) {
            return None;
        }
        self.place(operation, after, Some(otherwise));
        Some(self.settle())
    }

    /// Returns whether this was tried, with these unknown operations placed or fewer of them: then those that were left
    /// could be placed later as well. Notes it if not.
    fn was_tried(&mut self, tried: (u128, State), used: u128) -> bool {
        match self.tried.entry(tried) {
            Entry::Vacant(vacant) => {
                vacant.insert(used);
                return false;
            }
            Entry::Occupied(first) if first.get() & !used == 0 => return true,
            Entry::Occupied(_) => {}
        }
        let more = self.tried_again.entry(tried).or_default();
        let is_tried = more.iter().any(|before| before & !used == 0);
        if !is_tried {
            more.push(used);
        }
        is_tried
    }

    /// Returns what an operation adds to the set of those that were placed, and to the unknown ones that were.
    fn mark(&self, operation: u32) -> (u128, u128) {
        let Some(unknown) = (operation as usize).checked_sub(self.known) else {
            return (mark(operation), 0);
        };
        match self.operations[operation as usize].call {
            // A life that has ended, or was replaced, is there no more: whether it did expire is of no matter.
            Call::Expire(of) if !self.lives_again.contains(&of) => (0, 0),
            _ => match unknown.checked_sub(self.all_expiries) {
                Some(plain) if plain < 128 => (0, 1 << plain),
                _ => (mark(operation), 0),
            },
        }
    }

    /// Returns whether another operation needs the value that this one replaces, and can never be
    /// placed then.
    fn strands(&self, op: &Operation) -> bool {
        let Some(left) = self.state.value.and_then(|value| self.left.get(&value)) else {
            return false;
        };
        let gone = match self.returns {
            Returns::Never => true,
            Returns::Written => left.written == 0,
            Returns::Always => false,
        };
        gone && left.needed > u32::from(part(op).needs == self.state.value)
    }

    /// Places one of the unknown operations next, from number `index` on.
    fn try_unknown(&mut self, index: u32) -> Option<Cursor> {
        let deadline = self.deadline();
        if let Some(cursor) = self.try_expiry(index, deadline) {
            return Some(cursor);
        }
        // Of equivalent operations, the one that was called first suffices.
        let (mut filled, mut emptied, mut added) = (false, false, HashSet::new());
        for unknown in self.all_expiries..self.placed_unknown.len() {
            self.looked += 1;
            let op = &self.operations[self.known + unknown];
            if op.called > deadline {
                return None;
            }
            let after = apply(op.call, None, self.state);
            if self.placed_unknown[unknown] || after == Some(self.state) {
                continue;
            }
            // A value that was never read matters only by its existence.
            let same = if op.call == Call::Delete {
                std::mem::replace(&mut emptied, true)
            } else if let Call::Increment(by) = op.call {
                !added.insert(by)
            } else if self.unseen[unknown] {
                self.state.value.is_some() || std::mem::replace(&mut filled, true)
            } else {
                false
            };
            if same || unknown < index as usize {
                continue;
            }
            let otherwise = Cursor::Unknown(unknown as u32 + 1);
            if let Some(cursor) = self.try_next((self.known + unknown) as u32, otherwise) {
                return Some(cursor);
            }
        }
        None
    }

    /// Places the end of the life that there is next, from number `index` of the unknown operations on.
    fn try_expiry(&mut self, index: u32, deadline: u64) -> Option<Cursor> {
        let ends = self.expiries.get(&self.state.life?)?.len();
        for end in 0..ends {
            self.looked += 1;
            let unknown = self.expiries[&self.state.life?][end];
            let operation = self.known + unknown as usize;
            let is_late = self.operations[operation].called > deadline;
            if unknown < index || is_late || self.placed_unknown[unknown as usize] {
                continue;
            }
            let otherwise = Cursor::Unknown(unknown + 1);
            if let Some(cursor) = self.try_next(operation as u32, otherwise) {
                return Some(cursor);
            }
        }
        None
    }

    /// Returns the time of the first answer among the operations that are not placed yet.
    fn deadline(&mut self) -> u64 {
        let mut event = self.first;
        while event != END && is_call(event) {
            self.looked += 1;
            event = self.next[event as usize];
        }
        if event == END { u64::MAX } else { self.time(event) }
    }

    /// Places next all that can be next without changing the value: a later place is no better.
    fn settle(&mut self) -> Cursor {
        let mut event = self.first;
        while event != END && is_call(event) {
            self.looked += 1;
            let operation = event / 2;
            event = self.next[event as usize];
            let op = &self.operations[operation as usize];
            let answer = op.answered.map(|(_, answer)| answer);
            if !writes(op.call, answer) && apply(op.call, answer, self.state).is_some() {
                // The answer that ends the scan may be this operation's own.
                if event == 2 * operation + 1 {
                    event = self.next[event as usize];
                }
                self.place(operation, self.state, None);
            }
        }
        Cursor::Event(self.first)
    }

    fn place(&mut self, operation: u32, after: State, resume: Option<Cursor>) {
        self.order.push(Placed { operation, state_before: self.state, resume });
        self.state = after;
        let (mark, bit) = self.mark(operation);
        (self.set, self.used) = (self.set ^ mark, self.used | bit);
        self.count(operation, u32::wrapping_sub);
        if let Some(unknown) = (operation as usize).checked_sub(self.known) {
            self.placed_unknown[unknown] = true;
        } else {
            self.unlink(2 * operation);
            self.unlink(2 * operation + 1);
        }
    }

    /// Removes an operation from those still to be placed, or adds it again.
    fn count(&mut self, operation: u32, change: impl Fn(u32, u32) -> u32) {
        let Part { needs, writes } = part(&self.operations[operation as usize]);
        if let Some(left) = needs.and_then(|value| self.left.get_mut(&value)) {
            left.needed = change(left.needed, 1);
        }
        if let Some(left) = writes.and_then(|value| self.left.get_mut(&value)) {
            left.written = change(left.written, 1);
        }
    }

    /// Removes operations until there is an alternative.
    fn take_back(&mut self) -> Option<Cursor> {
        while let Some(Placed { operation, state_before, resume }) = self.order.pop() {
            self.state = state_before;
            let (mark, bit) = self.mark(operation);
            (self.set, self.used) = (self.set ^ mark, self.used & !bit);
            self.count(operation, u32::wrapping_add);
            if let Some(unknown) = (operation as usize).checked_sub(self.known) {
                self.placed_unknown[unknown] = false;
            } else {
                self.relink(2 * operation + 1);
                self.relink(2 * operation);
            }
            if resume.is_some() {
                return resume;
            }
        }
        None
    }

    fn unlink(&mut self, event: u32) {
        let (previous, next) = (self.previous[event as usize], self.next[event as usize]);
        self.join(previous, next);
    }

    /// Reverses the last [`unlink`](Self::unlink) that was not reversed.
    fn relink(&mut self, event: u32) {
        let (previous, next) = (self.previous[event as usize], self.next[event as usize]);
        self.join(previous, event);
        self.join(event, next);
    }

    fn join(&mut self, one: u32, two: u32) {
        match one {
            END => self.first = two,
            one => self.next[one as usize] = two,
        }
        if two != END {
            self.previous[two as usize] = one;
        }
    }
}

/// Returns an operation's share in the hash of a set.
fn mark(operation: u32) -> u128 {
    let mix = |mut x: u64| {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let base = 2 * u64::from(operation);
    u128::from(mix(base + 1)) << 64 | u128::from(mix(base + 2))
}

/// Returns whether an event is an operation's call, not its answer.
fn is_call(event: u32) -> bool {
    event.is_multiple_of(2)
}
