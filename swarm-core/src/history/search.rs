//! The search for an order, for histories whose values repeat.
//!
//! The search is Wing and Gong's with Lowe's memory of what was tried: operations are put in order
//! one by one; those that do not change the value (reads that fit, refusals) are put as soon as
//! they can be, which is never wrong. What was tried is the set of operations in order so far and
//! the value after them; the set is remembered by a 128-bit hash. A value is not written over while
//! somebody is still to be told of it, unless it is to come again. Time is a few hash-table accesses
//! an operation, unless many writes overlap and their values repeat.

use std::collections::{HashMap, HashSet};
use std::vec::Vec;

use super::sweep::Verdict;
use super::{Answer, Call, Operation};

/// The value after `call` took effect, if it may have had `answer` on `value`.
fn apply(call: Call, answer: Option<Answer>, value: Option<u64>) -> Option<Option<u64>> {
    let (after, told) = match (call, value) {
        (Call::Get, _) => (value, Answer::Value(value)),
        (Call::Put(new), _) | (Call::Insert(new), None) | (Call::Update(new), Some(_)) => {
            (Some(new), Answer::Done)
        }
        (Call::Insert(_), Some(_)) | (Call::Update(_), None) => (value, Answer::Refused),
        (Call::Delete, _) => (None, Answer::Done),
    };
    answer.is_none_or(|answer| answer == told).then_some(after)
}

/// Whether the call changes the value whenever it has this answer (or when it does anything).
fn writes(call: Call, answer: Option<Answer>) -> bool {
    !matches!((call, answer), (Call::Get, _) | (_, Some(Answer::Refused)))
}

/// What an operation has to do with a value.
#[derive(Clone, Copy)]
enum Part {
    Tells(u64),
    Writes(u64),
    Neither,
}

fn part(op: &Operation) -> Part {
    match (op.call, op.answered) {
        (Call::Get, Some((_, Answer::Value(Some(value))))) => Part::Tells(value),
        (_, Some((_, Answer::Refused))) | (Call::Get | Call::Delete, _) => Part::Neither,
        (Call::Put(value) | Call::Insert(value) | Call::Update(value), _) => Part::Writes(value),
    }
}

/// How often a value is still to be told, and to be written.
#[derive(Clone, Copy, Default)]
struct Left {
    told: u32,
    written: u32,
}

/// To look at so many operations takes about as long as a step.
const LOOKS: u64 = 64;
/// No event.
const END: u32 = u32::MAX;

/// Where the search goes on.
#[derive(Clone, Copy)]
enum Cursor {
    /// At this event of the operations that were answered.
    Event(u32),
    /// At this one of the operations whose answers are not known.
    Unknown(u32),
}

/// An operation put in order.
struct Placed {
    operation: u32,
    value_before: Option<u64>,
    /// Where to go on when it is taken back; `None` if there was nothing else to try.
    resume: Option<Cursor>,
}

pub(super) struct Search {
    /// Those whose answers are known, by their calls; then those whose are not, likewise.
    operations: Vec<Operation>,
    known: usize,
    /// Events of the known: operation's index times two, plus one for its answer; linked in the
    /// order of time, without those that were put in order.
    next: Vec<u32>,
    previous: Vec<u32>,
    first: u32,
    placed_unknown: Vec<bool>,
    /// Unknown writes whose values nobody was told: they matter only where there is no value.
    unseen: Vec<bool>,
    left: HashMap<u64, Left>,
    order: Vec<Placed>,
    value: Option<u64>,
    set: u128,
    tried: HashSet<(u128, Option<u64>)>,
    /// Operations that were looked at so far, to find one that fits.
    looked: u64,
}

impl Search {
    pub(super) fn new(history: &[Operation], initial: Option<u64>) -> Self {
        let mut operations: Vec<_> =
            history.iter().filter(|op| op.answered.is_some()).copied().collect();
        let known = operations.len();
        let unknown = |op: &&Operation| op.answered.is_none() && op.call != Call::Get;
        operations.extend(history.iter().filter(unknown));
        operations[..known].sort_by_key(|op| op.called);
        operations[known..].sort_by_key(|op| op.called);

        let mut left = HashMap::<u64, Left>::new();
        for op in &operations {
            match part(op) {
                Part::Tells(value) => left.entry(value).or_default().told += 1,
                Part::Writes(value) => left.entry(value).or_default().written += 1,
                Part::Neither => {}
            }
        }
        let unseen = |op: &Operation| match part(op) {
            Part::Writes(value) => left[&value].told == 0,
            Part::Tells(_) | Part::Neither => false,
        };
        let unseen = operations[known..].iter().map(unseen).collect();
        let mut search = Self {
            next: std::vec![END; 2 * known],
            previous: std::vec![END; 2 * known],
            first: END,
            placed_unknown: std::vec![false; operations.len() - known],
            unseen,
            left,
            order: Vec::with_capacity(operations.len()),
            value: initial,
            set: 0,
            tried: HashSet::new(),
            looked: 0,
            operations,
            known,
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
                // Whatever is next has to be before this answer: one of those above, or an
                // operation of which it is not known whether it ever took effect.
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

    /// Puts an operation next, if it fits and that was not tried before.
    fn try_next(&mut self, operation: u32, otherwise: Cursor) -> Option<Cursor> {
        let op = &self.operations[operation as usize];
        let after = apply(op.call, op.answered.map(|(_, answer)| answer), self.value)?;
        if after != self.value
            && let Some(value) = self.value
            && let Some(left) = self.left.get(&value)
            && left.told > 0
            && left.written == 0
        {
            return None;
        }
        let set = self.set ^ mark(operation);
        if !self.tried.insert((set, after)) {
            return None;
        }
        self.place(operation, after, Some(otherwise));
        Some(self.settle())
    }

    /// Puts one of the unknown operations next, from number `index` on.
    fn try_unknown(&mut self, index: u32) -> Option<Cursor> {
        let deadline = self.deadline();
        // Of those that do the same, the one that was called first will do.
        let (mut filled, mut emptied) = (false, false);
        for unknown in 0..self.placed_unknown.len() {
            self.looked += 1;
            let op = &self.operations[self.known + unknown];
            if op.called > deadline {
                return None;
            }
            let after = apply(op.call, None, self.value);
            if self.placed_unknown[unknown] || after == Some(self.value) {
                continue;
            }
            // A value that no one was told explains nothing but that there is one.
            let same = if op.call == Call::Delete {
                std::mem::replace(&mut emptied, true)
            } else if self.unseen[unknown] {
                self.value.is_some() || std::mem::replace(&mut filled, true)
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

    /// When the first answer is due among the operations that are not in order yet.
    fn deadline(&mut self) -> u64 {
        let mut event = self.first;
        while event != END && is_call(event) {
            self.looked += 1;
            event = self.next[event as usize];
        }
        if event == END { u64::MAX } else { self.time(event) }
    }

    /// Puts next whatever can be next without changing the value: to put it later is no better.
    fn settle(&mut self) -> Cursor {
        let mut event = self.first;
        while event != END && is_call(event) {
            self.looked += 1;
            let operation = event / 2;
            event = self.next[event as usize];
            let op = &self.operations[operation as usize];
            let answer = op.answered.map(|(_, answer)| answer);
            if !writes(op.call, answer) && apply(op.call, answer, self.value).is_some() {
                // The answer that ends the scan may be this operation's own.
                if event == 2 * operation + 1 {
                    event = self.next[event as usize];
                }
                self.place(operation, self.value, None);
            }
        }
        Cursor::Event(self.first)
    }

    fn place(&mut self, operation: u32, after: Option<u64>, resume: Option<Cursor>) {
        self.order.push(Placed { operation, value_before: self.value, resume });
        self.value = after;
        self.set ^= mark(operation);
        self.count(operation, u32::wrapping_sub);
        if let Some(unknown) = (operation as usize).checked_sub(self.known) {
            self.placed_unknown[unknown] = true;
        } else {
            self.unlink(2 * operation);
            self.unlink(2 * operation + 1);
        }
    }

    /// Takes an operation out of what is left, or puts it back.
    fn count(&mut self, operation: u32, change: impl Fn(u32, u32) -> u32) {
        let part = part(&self.operations[operation as usize]);
        let (Part::Tells(value) | Part::Writes(value)) = part else { return };
        if let Some(left) = self.left.get_mut(&value) {
            match part {
                Part::Tells(_) => left.told = change(left.told, 1),
                _ => left.written = change(left.written, 1),
            }
        }
    }

    /// Takes back operations until there is something else to try.
    fn take_back(&mut self) -> Option<Cursor> {
        while let Some(Placed { operation, value_before, resume }) = self.order.pop() {
            self.value = value_before;
            self.set ^= mark(operation);
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

    /// The reverse of the last [`unlink`](Self::unlink) that was not reversed.
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

/// An operation's share in the hash of a set.
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

/// Whether an event is an operation's call, not its answer.
fn is_call(event: u32) -> bool {
    event.is_multiple_of(2)
}
