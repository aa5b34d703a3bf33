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
//! A read-modify-write that replaced a value by another one is a read of the one and the write of the other, with
//! nothing in between. So the clusters of both are one, and so on: a *line* of values, each made of the one before,
//! which begins with a write that needs none. In all that follows a line is a cluster. Its operations fit into its
//! time if each one's call comes before the answers of all that come after it in the line.
//!
//! An increment of unknown outcome writes a value that only its readers show. If several could have written what was
//! read, one is taken: then a violation is no proof ([`Units::are_guessed`]).
//!
//! The rest does not depend on values any more, only on whether there is one. A [`Unit`] is one of:
//! an operation that needs a value, or none; a write, insert, update or delete that may take effect
//! in a moment, reads included; a long cluster. Operations of unknown outcome are left out if they
//! are of no use: reads, and updates that are never read, which do not change whether there is a
//! value. Of unread unknown puts and inserts, and of unknown deletes, only the number counts: they
//! may take effect at any time after their calls, so all are equivalent.

use std::collections::{BTreeSet, HashMap, HashSet};
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
    /// Whether there was a choice which increments of unknown outcome wrote what was read.
    pub(super) are_guessed: bool,
}

/// The result of the conversion.
#[derive(Debug)]
pub(super) enum Conversion {
    /// The history in this form.
    Units(Units),
    /// A value that is read was written more than once, a read-modify-write removes a value or leaves it as it was, or an
    /// operation is about a life: those depend on values, which units do not have.
    Unfit,
    /// It is not linearizable: a value was read that was never written or was replaced twice, or an answer is
    /// impossible.
    Impossible,
}

/// What an operation has to do with values.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// The value that must be there.
    needs: Option<u64>,
    /// The value that it leaves in its place.
    writes: Option<u64>,
}

impl Part {
    /// Returns what an operation has to do with values, as far as its call and its answer show; `None` if units cannot
    /// express it.
    fn of(op: &Operation) -> Option<Self> {
        let (needs, writes) = match (op.call, op.answered.map(|(_, answer)| answer)) {
            // Lives depend on values, too.
            (Call::PutWithTtl { .. } | Call::Persist | Call::Ttl | Call::Expire(_), _) => {
                return None;
            }
            (Call::Get | Call::CompareAndSwap { .. }, Some(Answer::Value(found))) => (found, None),
            (Call::Get | Call::Delete, _) | (_, Some(Answer::Refused)) => (None, None),
            (Call::Put(value) | Call::Insert(value) | Call::Update(value), _) => {
                (None, Some(value))
            }
            (Call::CompareAndSwap { expected: None, new }, _) => (None, new),
            (Call::CompareAndSwap { expected, new: Some(new) }, _) => (expected, Some(new)),
            (Call::Swap(None), None | Some(Answer::Value(None))) => (None, None),
            (Call::Swap(Some(new)), Some(Answer::Value(before))) => (before, Some(new)),
            (Call::Swap(Some(new)), None) => (None, Some(new)),
            (Call::CompareAndSwap { .. } | Call::Swap(_) | Call::Increment(0), _) => return None,
            (Call::Increment(by), Some(Answer::Value(Some(sum)))) => {
                ((sum != by).then(|| sum.wrapping_sub(by)), Some(sum))
            }
            (Call::Increment(_), _) => (None, None),
        };
        (needs.is_none() || needs != writes).then_some(Self { needs, writes })
    }
}

/// Returns what a unit of this operation alone does, or that of a line which it begins; `None` if it begins none and is
/// of no use without its value.
fn kind(op: &Operation, part: Part) -> Option<Kind> {
    Some(match (op.call, op.answered.map(|(_, answer)| answer)) {
        _ if part.needs.is_some() => return None,
        (Call::Get | Call::CompareAndSwap { expected: None, new: None }, None) => return None,
        (Call::Get | Call::Swap(None) | Call::CompareAndSwap { .. }, Some(Answer::Value(_)))
        | (Call::Update(_), Some(Answer::Refused))
        | (Call::CompareAndSwap { new: None, .. }, _) => Kind::SeesNone,
        (_, Some(Answer::Refused)) => Kind::SeesSome,
        (Call::Update(_), _) => Kind::Update,
        (Call::Put(_) | Call::Swap(Some(_)), None) | (Call::Put(_), _) => Kind::Put,
        (Call::Increment(_), None) if part.writes.is_none() => Kind::Put,
        (Call::Insert(_) | Call::CompareAndSwap { .. } | Call::Swap(Some(_)), _)
        | (Call::Increment(_), _) => Kind::Insert,
        (Call::Get | Call::Delete | Call::Swap(None), _) => Kind::Delete,
        (Call::PutWithTtl { .. } | Call::Persist | Call::Ttl | Call::Expire(_), _) => return None,
    })
}

/// A value's write and reads.
#[derive(Clone, Copy)]
struct Cluster {
    /// Its writer, if it has exactly one, and how many there are. That it was there at first counts as one.
    writer: Option<usize>,
    writers: u32,
    /// The last call and the first answer of its reads.
    last_call: u64,
    first_answer: u64,
    reads: u32,
    /// An operation that replaced it by another value, and how many did.
    link: Option<usize>,
    links: u32,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            writer: None,
            writers: 0,
            last_call: 0,
            first_answer: u64::MAX,
            reads: 0,
            link: None,
            links: 0,
        }
    }
}

impl Cluster {
    /// Returns whether an operation needs its value.
    fn is_needed(&self) -> bool {
        self.reads > 0 || self.link.is_some()
    }
}

/// Returns whether the call may have this answer, at this time.
fn makes_sense(op: &Operation) -> bool {
    op.answered.is_none_or(|(at, answer)| {
        let fits = match op.call {
            Call::Get | Call::Swap(_) => matches!(answer, Answer::Value(_)),
            Call::Increment(_) => matches!(answer, Answer::Value(Some(_))),
            Call::Put(_) | Call::Delete | Call::PutWithTtl { .. } => answer == Answer::Done,
            Call::Persist => matches!(answer, Answer::Done | Answer::Refused),
            Call::Ttl => matches!(answer, Answer::Life(_)),
            Call::Expire(_) => false,
            Call::Insert(_) | Call::Update(_) => {
                matches!(answer, Answer::Done | Answer::Refused)
            }
            Call::CompareAndSwap { expected, .. } => match answer {
                Answer::Done => true,
                Answer::Value(found) => found != expected,
                Answer::Refused | Answer::Life(_) => false,
            },
        };
        fits && op.called <= at
    })
}

/// Converts the history of one key.
pub(super) fn convert(history: &[Operation], initial: Option<u64>) -> Conversion {
    if !history.iter().all(makes_sense) {
        return Conversion::Impossible;
    }
    let Some(parts) = history.iter().map(Part::of).collect::<Option<Vec<_>>>() else {
        return Conversion::Unfit;
    };
    let mut lines = Lines { history, initial, parts, clusters: HashMap::new() };
    let Some(are_guessed) = lines.find_sums() else { return Conversion::Unfit };
    lines.find_clusters();
    match lines.units() {
        Conversion::Units(units) => Conversion::Units(Units { are_guessed, ..units }),
        Conversion::Impossible if are_guessed => Conversion::Unfit,
        unfit => unfit,
    }
}

/// Returns a history with compare-and-swaps and inserts in place of increments: the same, as long as it is known what
/// each one made of what. `None` if that is not so, or if units cannot express the history.
pub(super) fn without_sums(history: &[Operation], initial: Option<u64>) -> Option<Vec<Operation>> {
    let parts = history.iter().map(Part::of).collect::<Option<Vec<_>>>()?;
    let mut lines = Lines { history, initial, parts, clusters: HashMap::new() };
    if !history.iter().all(makes_sense) || lines.find_sums()? {
        return None;
    }
    lines.find_clusters();
    if lines.clusters.values().any(|cluster| cluster.is_needed() && cluster.writers > 1) {
        return None;
    }
    let mut unread = (0..u64::MAX).rev().filter(|value| !lines.clusters.contains_key(value));
    let spell_out = |(op, part): (&Operation, &Part)| {
        let call = match (op.call, part.needs, part.writes) {
            (Call::Increment(_), None, Some(sum)) => Call::Insert(sum),
            (Call::Increment(_), expected, Some(sum)) => {
                Call::CompareAndSwap { expected, new: Some(sum) }
            }
            // Nobody needed its sum.
            (Call::Increment(_), _, None) => Call::Put(unread.next().unwrap_or(u64::MAX)),
            _ => return *op,
        };
        Operation { call, answered: op.answered.map(|(at, _)| (at, Answer::Done)), ..*op }
    };
    Some(history.iter().zip(&lines.parts).map(spell_out).collect())
}

/// A history that is being converted.
struct Lines<'h> {
    history: &'h [Operation],
    initial: Option<u64>,
    parts: Vec<Part>,
    clusters: HashMap<u64, Cluster>,
}

impl Lines<'_> {
    /// Finds out which increments of unknown outcome wrote what was read, and returns whether others could have; `None` if
    /// an increment may have begun with 0 or with no value.
    fn find_sums(&mut self) -> Option<bool> {
        let is_increment = |op: &Operation| matches!(op.call, Call::Increment(_));
        if !self.history.iter().any(is_increment) {
            return Some(false);
        }
        let mut written: HashSet<u64> = self.parts.iter().filter_map(|part| part.writes).collect();
        written.extend(self.initial);
        // No value counts as 0.
        if !written.insert(0) {
            return None;
        }
        let open = |(index, op): (usize, &Operation)| match (op.call, op.answered) {
            (Call::Increment(by), None) => Some((index, by)),
            _ => None,
        };
        let mut open: Vec<_> = self.history.iter().enumerate().filter_map(open).collect();
        if open.is_empty() {
            return Some(false);
        }
        let mut sums = Sums::of(&open, &written);
        let mut ways = |value: u64| sums.as_mut()?.ways(value);
        loop {
            let needed = self.needed();
            let left = open.len();
            for &sum in needed.difference(&written.iter().copied().collect()) {
                let before = |by: u64| sum.wrapping_sub(by);
                let comes_from = |&(_, by): &(usize, u64)| written.contains(&before(by));
                let Some(at) = open.iter().position(comes_from) else { continue };
                let (index, by) = open.swap_remove(at);
                let needs = Some(before(by)).filter(|&value| value != 0);
                self.parts[index] = Part { needs, writes: Some(sum) };
                written.insert(sum);
            }
            if open.len() == left {
                // Whether a sum can be 0 matters, too. If one is left that can be, it takes several increments.
                let is_certain = |value: u64| match ways(value) {
                    Some(0) => true,
                    Some(1) => written.contains(&value),
                    _ => false,
                };
                return Some(!needed.into_iter().chain([0]).all(is_certain));
            }
        }
    }

    /// Returns the values that must have been there: those that known operations needed, and those of which
    /// read-modify-writes of unknown outcome made such a value.
    fn needed(&self) -> BTreeSet<u64> {
        let mut sources = HashMap::<u64, Vec<u64>>::new();
        let mut next = Vec::new();
        for (op, part) in self.history.iter().zip(&self.parts) {
            match (op.answered, part.needs, part.writes) {
                (Some(_), Some(value), _) => next.push(value),
                (None, Some(value), Some(new)) => sources.entry(new).or_default().push(value),
                _ => {}
            }
        }
        let mut needed = BTreeSet::new();
        while let Some(value) = next.pop() {
            if needed.insert(value) {
                next.extend(sources.get(&value).into_iter().flatten());
            }
        }
        needed
    }

    /// Collects each value's writers and reads, and what replaced it. A read-modify-write of unknown outcome that
    /// would replace a value counts if the one that it would write is needed: then it has taken effect. If not, it is of
    /// no use.
    fn find_clusters(&mut self) {
        let Self { history, initial, parts, clusters } = self;
        clusters.reserve(history.len());
        for (index, part) in parts.iter().enumerate() {
            if let Some(value) = part.writes {
                let cluster = clusters.entry(value).or_default();
                cluster.writers += 1;
                cluster.writer = (cluster.writers == 1).then_some(index);
            }
        }
        if let Some(value) = *initial {
            let cluster = clusters.entry(value).or_default();
            cluster.writers += 1;
            cluster.writer = None;
        }
        for index in 0..history.len() {
            // Those that are known, and the unknown ones whose values they need, and so on.
            let mut next = history[index].answered.map(|_| index);
            while let Some(index) = next.take() {
                let (op, part) = (&history[index], parts[index]);
                let Some(value) = part.needs else { break };
                let cluster = clusters.entry(value).or_default();
                let is_new = !cluster.is_needed();
                if part.writes.is_none() {
                    cluster.reads += 1;
                    cluster.last_call = op.called.max(cluster.last_call);
                    cluster.first_answer =
                        op.answered.map_or(u64::MAX, |(at, _)| at).min(cluster.first_answer);
                } else {
                    cluster.links += 1;
                    cluster.link = Some(index);
                }
                let is_unknown = |&writer: &usize| history[writer].answered.is_none();
                next = cluster.writer.filter(is_unknown).filter(|_| is_new);
            }
        }
    }

    /// Makes the units.
    fn units(&self) -> Conversion {
        let Self { history, initial, parts, clusters } = self;
        let mut is_unfit = false;
        for cluster in clusters.values().filter(|cluster| cluster.is_needed()) {
            match cluster.writers {
                0 => return Conversion::Impossible,
                // It was there once, and replaced twice.
                1 if cluster.links > 1 => return Conversion::Impossible,
                1 => {}
                _ => is_unfit = true,
            }
        }
        if is_unfit {
            return Conversion::Unfit;
        }
        let mut units = Units::default();
        let mut links = clusters.values().map(|cluster| cluster.links as usize).sum::<usize>();
        let first = initial.and_then(|value| clusters.get(&value)).filter(|it| it.is_needed());
        if let Some(first) = first {
            let Some(line) = self.line(None, first) else { return Conversion::Impossible };
            units.initial_until = Some(line.available);
            links -= line.links;
        }
        for (index, (op, part)) in history.iter().zip(parts).enumerate() {
            let Some(kind) = kind(op, *part) else { continue };
            let cluster = part.writes.and_then(|value| clusters.get(&value));
            let cluster = cluster.filter(|it| it.writer == Some(index) && it.is_needed());
            match (cluster, op.answered) {
                (Some(cluster), _) => {
                    let Some(line) = self.line(Some(index), cluster) else {
                        return Conversion::Impossible;
                    };
                    links -= line.links;
                    let Line { available, due, .. } = line;
                    units.units.push(Unit { kind, called: op.called, available, due });
                }
                (None, Some((due, _))) => {
                    let (called, available) = (op.called, op.called);
                    units.units.push(Unit { kind, called, available, due });
                }
                (None, None) => match kind {
                    Kind::Put | Kind::Insert => units.spare_writes.push(op.called),
                    Kind::Delete => units.spare_deletes.push(op.called),
                    Kind::SeesNone | Kind::SeesSome | Kind::Update => {}
                },
            }
        }
        // What is left are values that were made of each other in a circle.
        if links == 0 { Conversion::Units(units) } else { Conversion::Impossible }
    }

    /// Returns when the line of a value takes effect; `None` if its operations cannot follow each other.
    fn line(&self, writer: Option<usize>, first: &Cluster) -> Option<Line> {
        let answered = |op: &Operation| op.answered.map_or(u64::MAX, |(at, _)| at);
        let mut line = Line { available: 0, due: u64::MAX, links: 0 };
        let (mut writer, mut cluster) = (writer.map(|index| &self.history[index]), first);
        loop {
            if let Some(op) = writer {
                // What comes before it was called in time.
                if line.available > answered(op) {
                    return None;
                }
                line.available = line.available.max(op.called);
                line.due = line.due.min(answered(op));
            }
            // For example, a value that was read before its write was called.
            if line.available > cluster.first_answer {
                return None;
            }
            line.available = line.available.max(cluster.last_call);
            line.due = line.due.min(cluster.first_answer);
            let Some(link) = cluster.link else { return Some(line) };
            line.links += 1;
            writer = Some(&self.history[link]);
            let Some(next) = self.parts[link].writes.and_then(|value| self.clusters.get(&value))
            else {
                return Some(line);
            };
            cluster = next;
        }
    }
}

/// When a line of values takes effect, and the number of read-modify-writes between them.
struct Line {
    /// When the last of it was called.
    available: u64,
    /// When the first of it was answered.
    due: u64,
    links: usize,
}

/// The most increments of unknown outcome of which all sums are looked at, and the most looks.
const MOST_OPEN: usize = 16;
const MOST_LOOKS: usize = 1 << 24;

/// The sums of all sets of increments of unknown outcome, unless those are too many.
struct Sums {
    /// How many sets have a sum; the empty one is among them.
    sets: HashMap<u64, u32>,
    /// The largest sum; all that there may be if sums overflow.
    largest: u64,
    /// What is written by others, in order.
    written: Vec<u64>,
    looks: usize,
}

impl Sums {
    fn of(open: &[(usize, u64)], written: &HashSet<u64>) -> Option<Self> {
        if open.len() > MOST_OPEN {
            return None;
        }
        let mut sets = HashMap::from([(0, 1)]);
        for &(_, by) in open {
            for (sum, count) in Vec::from_iter(sets.clone()) {
                *sets.entry(by.wrapping_add(sum)).or_default() += count;
            }
        }
        let largest = open.iter().try_fold(0_u64, |sum, &(_, by)| sum.checked_add(by));
        let mut written: Vec<u64> = written.iter().copied().collect();
        written.sort_unstable();
        Some(Self { sets, largest: largest.unwrap_or(u64::MAX), written, looks: 0 })
    }

    /// Returns in how many ways a value may have come to be, each being a value that was written and a set that was added
    /// to it. `None` if that is too much to find out.
    fn ways(&mut self, value: u64) -> Option<u32> {
        // Below it, unless a sum overflows.
        let range = match value.checked_sub(self.largest) {
            Some(lowest) if self.largest < u64::MAX => {
                let begin = self.written.partition_point(|&it| it < lowest);
                let end = self.written.partition_point(|&it| it <= value);
                &self.written[begin..end]
            }
            _ => &self.written[..],
        };
        self.looks += range.len().min(self.sets.len());
        if self.looks > MOST_LOOKS {
            return None;
        }
        let sets = |before: &u64| self.sets.get(&value.wrapping_sub(*before)).copied();
        let is_written = |(sum, _): &(&u64, &u32)| {
            self.written.binary_search(&value.wrapping_sub(**sum)).is_ok()
        };
        Some(if range.len() < self.sets.len() {
            range.iter().filter_map(sets).sum()
        } else {
            self.sets.iter().filter(is_written).map(|(_, count)| count).sum()
        })
    }
}
