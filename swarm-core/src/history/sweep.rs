//! Checking a history whose read values are written once, in one sweep through time.
//!
//! The sweep keeps every *possibility* of what may have happened so far that no other possibility
//! beats. A possibility is whether there is a value, which units still want to take effect, and
//! which have been used to change that. The history is linearizable if a possibility is left at the
//! end. These rules keep them few:
//!
//! - **What changes nothing is done at once.** Without a value, a unit that needs none is
//!   *content*, and so is a delete. With a value that will not be read again, a put or update is
//!   content: it may take effect and be overwritten at once. A content unit is not used: a content
//!   put can still be used to set a value, until its time is over. (One possibility stands for
//!   several: the unit has taken effect already, or it will when it is used.)
//! - **What changes something is done at the last moment** (Lowe's just-in-time linearization).
//!   That is when the time of a unit ends that is not content, or that could be used for the last
//!   time. Later is never worse: operations that are called meanwhile can see both states.
//! - **Of equivalent units, the one whose time ends first is used.** In an order of events that
//!   uses another one first, the two can be exchanged. For setting a value, an insert also comes
//!   before puts whose time ends later: it has to be used once, and a put in its place does as
//!   well.
//! - **A value that is still to be read holds**: until the last of its reads is called, nothing
//!   else can take effect. While there is a value no cluster need begin before its last moment,
//!   since a free state is better than a held one. While there is none, a cluster may begin as soon
//!   as its write is called, for units that need a value.
//! - **Right before a put, deletes and other puts are content**: they are overwritten at once.
//! - **A possibility beats another** in the same state if it is a subset: no other units of it want
//!   to take effect and no others are used.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use super::units::{Kind, Unit, Units};

/// Whether there is a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Absent,
    /// There is one that will not be read again.
    Present,
    /// There is this unit's, for as long as it is still to be read.
    Held(u32),
}

/// Stands for the unit whose value is the initial one.
const INITIAL: u32 = u32::MAX;

/// What may have happened so far.
#[derive(Clone, Debug)]
struct Possibility {
    state: State,
    /// Number of operations of unknown outcome that were used.
    writes: u32,
    deletes: u32,
    /// Of the current units: those that want to take effect, then those that were used.
    bits: Box<[u64]>,
}

/// What happens at a time. In this order if times are equal: operations overlap if one is answered
/// at the moment at which the other is called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    SpareWrite,
    SpareDelete,
    Called(u32),
    Available(u32),
    Due(u32),
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Linearizable,
    Violated,
    /// It needed more steps than were allowed.
    Undecided,
}

pub(super) struct Sweep {
    units: Vec<Unit>,
    /// Each unit's bit during its time; the unit of each bit.
    slots: Vec<u32>,
    unit_at: Vec<u32>,
    words: usize,
    /// The units of each kind that may take effect in a moment now.
    now: [Box<[u64]>; 6],
    /// Clusters that may begin now, though not all of their reads were called.
    early: Vec<u32>,
    /// Number of operations of unknown outcome called so far.
    writes: u32,
    deletes: u32,
    possible: Vec<Possibility>,
    /// Steps so far: a word of a possibility's bits is one.
    steps: u64,
    budget: u64,
}

impl Sweep {
    /// Checks a history that begins with a value or without one.
    pub(super) fn run(units: Units, present: bool, budget: u64) -> Verdict {
        let events = events(&units);
        let initial = match (units.initial_until, present) {
            (Some(_), _) => State::Held(INITIAL),
            (None, true) => State::Present,
            (None, false) => State::Absent,
        };
        let mut sweep = Self::new(units.units, &events, budget);
        let bits = vec![0; 2 * sweep.words].into();
        sweep.possible.push(Possibility { state: initial, writes: 0, deletes: 0, bits });
        for (_, event) in events {
            sweep.spend(sweep.possible.len());
            match event {
                Event::SpareWrite => sweep.writes += 1,
                Event::SpareDelete => sweep.deletes += 1,
                Event::Called(unit) => sweep.called(unit),
                Event::Available(unit) => sweep.available(unit),
                Event::Due(unit) => sweep.due(unit),
            }
            // The possibilities were not determined completely then.
            if sweep.is_spent() {
                return Verdict::Undecided;
            }
            if sweep.possible.is_empty() {
                return Verdict::Violated;
            }
        }
        Verdict::Linearizable
    }

    /// Gives each unit a bit during its time.
    fn new(units: Vec<Unit>, events: &[(u64, Event)], budget: u64) -> Self {
        let mut slots = vec![u32::MAX; units.len()];
        let mut free = Vec::new();
        let mut count = 0;
        for &(_, event) in events {
            match event {
                Event::Called(unit) | Event::Available(unit)
                    if unit != INITIAL && slots[unit as usize] == u32::MAX =>
                {
                    slots[unit as usize] = free.pop().unwrap_or_else(|| {
                        count += 1;
                        count - 1
                    });
                }
                Event::Due(unit) => free.push(slots[unit as usize]),
                _ => {}
            }
        }
        let words = (count as usize).div_ceil(64).max(1);
        Self {
            units,
            slots,
            unit_at: vec![0; 64 * words],
            words,
            now: std::array::from_fn(|_| vec![0; words].into()),
            early: Vec::new(),
            writes: 0,
            deletes: 0,
            possible: Vec::new(),
            steps: 0,
            budget,
        }
    }

    /// Counts a look at this many possibilities.
    fn spend(&mut self, possibilities: usize) {
        self.steps += (possibilities * self.words) as u64;
    }

    /// Returns whether the budget is used up.
    fn is_spent(&self) -> bool {
        self.steps > self.budget
    }

    fn called(&mut self, unit: u32) {
        self.unit_at[self.slots[unit as usize] as usize] = unit;
        if matches!(self.units[unit as usize].kind, Kind::Put | Kind::Insert) {
            self.early.push(unit);
        }
    }

    /// Handles that all of a unit was called: it may take effect in a moment. If it began before,
    /// its value need not be there any longer.
    fn available(&mut self, unit: u32) {
        let mut possible = std::mem::take(&mut self.possible);
        let waits = self.units.get(unit as usize).filter(|unit| !unit.is_long());
        let bit = waits.map(|waits| (waits.kind, self.slots[unit as usize]));
        if let Some((kind, slot)) = bit {
            self.unit_at[slot as usize] = unit;
            self.early.retain(|&early| early != unit);
            set(&mut self.now[kind as usize], slot);
        }
        for possibility in &mut possible {
            if possibility.state == State::Held(unit) {
                possibility.state = State::Present;
            } else if let Some((_, slot)) = bit {
                set(&mut possibility.bits[..self.words], slot);
            }
            self.settle(possibility);
        }
        self.possible = possible;
    }

    /// Handles that a unit's time is over.
    fn due(&mut self, unit: u32) {
        let mut left = Vec::with_capacity(self.possible.len());
        for possibility in std::mem::take(&mut self.possible) {
            if self.is_spent() {
                break;
            }
            if self.units[unit as usize].is_long() {
                self.begin_at_last(unit, possibility, &mut left);
            } else {
                self.close(unit, possibility, &mut left);
            }
        }
        let slot = self.slots[unit as usize];
        self.early.retain(|&early| early != unit);
        for bits in &mut self.now {
            clear(bits, slot);
        }
        for possibility in &mut left {
            let (wanting, used) = possibility.bits.split_at_mut(self.words);
            clear(wanting, slot);
            clear(used, slot);
        }
        self.possible = self.best(left);
    }

    /// Adds to `left` what can follow from a possibility when a unit's time is over.
    fn close(&mut self, unit: u32, at: Possibility, left: &mut Vec<Possibility>) {
        use State::{Absent, Present};
        let (kind, slot) = (self.units[unit as usize].kind, self.slots[unit as usize]);
        let wants = has(&at.bits[..self.words], slot);
        let used = has(&at.bits[self.words..], slot);
        match (kind, at.state) {
            _ if used => left.push(at),
            // It is content; but this is the last time that it may be used.
            (Kind::Put, Absent) if !wants => {
                left.push(self.using(&at, Tool::Unit(unit)));
                left.push(at);
            }
            (Kind::Delete, Present) if !wants => {
                left.push(self.using(&at, Tool::Unit(unit)));
                left.push(at);
            }
            (Kind::Put, Present) if !wants => {
                if self.wants_any(&at, &[Kind::SeesNone, Kind::Delete])
                    && let Some(delete) = self.delete(&at)
                {
                    left.push(self.using(&self.using(&at, delete), Tool::Unit(unit)));
                }
                left.push(at);
            }
            (Kind::Delete, Absent) if !wants => {
                if self.wants_any(&at, &[Kind::SeesSome, Kind::Update, Kind::Put, Kind::Insert]) {
                    for write in self.writes(&at) {
                        left.push(self.using(&self.using(&at, write), Tool::Unit(unit)));
                    }
                }
                left.push(at);
            }
            _ if !wants => left.push(at),
            // It wants to take effect.
            (Kind::SeesNone, Present) => {
                left.extend(self.delete(&at).map(|delete| self.using(&at, delete)));
            }
            (Kind::SeesSome, Absent) => {
                left.extend(self.writes(&at).map(|write| self.using(&at, write)));
                left.extend(self.early.iter().filter_map(|&early| self.beginning(&at, early)));
            }
            // Another write suffices before a put; its own is among them.
            (Kind::Update | Kind::Put, Absent) => {
                left.extend(self.writes(&at).map(|write| self.using(&at, write)));
            }
            (Kind::Insert, Absent) | (Kind::Delete, Present) => {
                left.push(self.using(&at, Tool::Unit(unit)));
            }
            (Kind::Insert, Present) => {
                if let Some(delete) = self.delete(&at) {
                    left.push(self.using(&self.using(&at, delete), Tool::Unit(unit)));
                }
            }
            // A value that is still to be read is in the way.
            (_, State::Held(_)) => {}
            (Kind::SeesNone | Kind::Delete, Absent) => unreachable!("it is content"),
            (Kind::SeesSome | Kind::Update | Kind::Put, Present) => unreachable!("it is content"),
        }
    }

    /// Adds to `left` what can follow from a possibility when a long cluster must have begun.
    fn begin_at_last(&mut self, unit: u32, at: Possibility, left: &mut Vec<Possibility>) {
        match at.state {
            State::Held(held) if held == unit => left.push(at),
            State::Held(_) => {}
            // All that is to happen before it must happen now.
            State::Absent | State::Present => {
                for at in self.reachable(at) {
                    left.extend(self.beginning(&at, unit));
                }
            }
        }
    }

    /// Returns all that can be reached by using the current units, without what others beat.
    fn reachable(&mut self, from: Possibility) -> Vec<Possibility> {
        let mut reached: Vec<Possibility> = Vec::new();
        let mut further = vec![from];
        while let Some(at) = further.pop() {
            self.spend(1 + reached.len());
            if self.is_spent() {
                break;
            }
            if reached.iter().any(|other| other.beats(&at)) {
                continue;
            }
            reached.retain(|other| !at.beats(other));
            match at.state {
                State::Absent => {
                    further.extend(self.writes(&at).map(|write| self.using(&at, write)));
                }
                State::Present => {
                    further.extend(self.delete(&at).map(|delete| self.using(&at, delete)));
                }
                State::Held(_) => {}
            }
            reached.push(at);
        }
        reached
    }

    /// Returns `at` after a cluster's write took effect and its value holds, if that is possible.
    fn beginning(&self, at: &Possibility, unit: u32) -> Option<Possibility> {
        let Unit { kind, available, .. } = self.units[unit as usize];
        let slot = self.slots[unit as usize];
        let fits = match (kind, at.state) {
            (_, State::Held(_)) => false,
            (Kind::Put, _) => true,
            (kind, State::Present) => kind == Kind::Update,
            (kind, State::Absent) => kind == Kind::Insert,
        };
        if !fits || has(&at.bits[self.words..], slot) {
            return None;
        }
        let mut at = at.clone();
        if kind == Kind::Put {
            let overwritten =
                if at.state == State::Present { Kind::Delete } else { Kind::Put } as usize;
            without(&mut at.bits[..self.words], &self.now[overwritten]);
        }
        at.state = State::Held(unit);
        set(&mut at.bits[self.words..], slot);
        self.settle(&mut at);
        // A unit that wants to take effect while the value holds cannot.
        let in_time = ones(&at.bits[..self.words])
            .all(|slot| self.units[self.unit_at[slot as usize] as usize].due >= available);
        in_time.then_some(at)
    }

    /// Returns `at` after something was used to set or remove the value.
    fn using(&self, at: &Possibility, tool: Tool) -> Possibility {
        let mut at = at.clone();
        match tool {
            Tool::Unit(unit) => {
                let slot = self.slots[unit as usize];
                let (wanting, used) = at.bits.split_at_mut(self.words);
                clear(wanting, slot);
                set(used, slot);
            }
            Tool::Spare if at.state == State::Absent => at.writes += 1,
            Tool::Spare => at.deletes += 1,
        }
        at.state = if at.state == State::Absent { State::Present } else { State::Absent };
        self.settle(&mut at);
        at
    }

    /// Makes units content that can take effect without changing anything.
    fn settle(&self, at: &mut Possibility) {
        let content: &[Kind] = match at.state {
            State::Absent => &[Kind::SeesNone, Kind::Delete],
            State::Present => &[Kind::SeesSome, Kind::Update, Kind::Put],
            State::Held(_) => &[Kind::SeesSome],
        };
        for &kind in content {
            without(&mut at.bits[..self.words], &self.now[kind as usize]);
        }
    }

    fn wants_any(&self, at: &Possibility, kinds: &[Kind]) -> bool {
        kinds.iter().any(|&kind| {
            let bits = at.bits.iter().zip(&self.now[kind as usize]);
            bits.take(self.words).any(|(wanting, now)| wanting & now != 0)
        })
    }

    /// Returns what can set a value.
    fn writes(&self, at: &Possibility) -> impl Iterator<Item = Tool> + use<> {
        let put = self.first_due(at, Kind::Put);
        let insert = self.first_due(at, Kind::Insert);
        let due = |unit: u32| self.units[unit as usize].due;
        let put = put.filter(|&put| insert.is_none_or(|insert| due(put) < due(insert)));
        let spare =
            (put.is_none() && insert.is_none() && at.writes < self.writes).then_some(Tool::Spare);
        put.map(Tool::Unit).into_iter().chain(insert.map(Tool::Unit)).chain(spare)
    }

    /// Returns what can remove the value.
    fn delete(&self, at: &Possibility) -> Option<Tool> {
        let spare = (at.deletes < self.deletes).then_some(Tool::Spare);
        self.first_due(at, Kind::Delete).map(Tool::Unit).or(spare)
    }

    /// Returns the unit of a kind that was not used and whose time ends first.
    fn first_due(&self, at: &Possibility, kind: Kind) -> Option<u32> {
        let now = &self.now[kind as usize];
        let unused = now.iter().zip(&at.bits[self.words..]).map(|(now, used)| now & !used);
        let unused = unused.enumerate().flat_map(|(word, bits)| ones_of(word, bits));
        unused
            .map(|slot| self.unit_at[slot as usize])
            .min_by_key(|&unit| (self.units[unit as usize].due, unit))
    }

    /// Returns those that no other beats.
    fn best(&mut self, all: Vec<Possibility>) -> Vec<Possibility> {
        if all.len() < 2 {
            return all;
        }
        let mut best: Vec<Possibility> = Vec::with_capacity(all.len());
        for at in all {
            self.spend(best.len());
            if self.is_spent() {
                break;
            }
            if !best.iter().any(|other| other.beats(&at)) {
                best.retain(|other| !at.beats(other));
                best.push(at);
            }
        }
        best
    }
}

/// Something that can set or remove the value.
#[derive(Clone, Copy, Debug)]
enum Tool {
    Unit(u32),
    /// An operation of unknown outcome.
    Spare,
}

impl Possibility {
    fn beats(&self, other: &Self) -> bool {
        self.state == other.state
            && self.writes <= other.writes
            && self.deletes <= other.deletes
            && self.bits.iter().zip(&other.bits).all(|(mine, others)| mine & !others == 0)
    }
}

/// Returns the events in order of time.
fn events(units: &Units) -> Vec<(u64, Event)> {
    let mut events = Vec::with_capacity(3 * units.units.len());
    for (index, unit) in units.units.iter().enumerate() {
        let index = index as u32;
        if unit.called < unit.available {
            events.push((unit.called, Event::Called(index)));
        }
        events.push((unit.available, Event::Available(index)));
        events.push((unit.due, Event::Due(index)));
    }
    events.extend(units.spare_writes.iter().map(|&at| (at, Event::SpareWrite)));
    events.extend(units.spare_deletes.iter().map(|&at| (at, Event::SpareDelete)));
    events.extend(units.initial_until.map(|until| (until, Event::Available(INITIAL))));
    events.sort_unstable();
    events
}

fn has(bits: &[u64], slot: u32) -> bool {
    bits[slot as usize / 64] >> (slot % 64) & 1 == 1
}

fn set(bits: &mut [u64], slot: u32) {
    bits[slot as usize / 64] |= 1 << (slot % 64);
}

fn clear(bits: &mut [u64], slot: u32) {
    bits[slot as usize / 64] &= !(1 << (slot % 64));
}

fn without(bits: &mut [u64], others: &[u64]) {
    bits.iter_mut().zip(others).for_each(|(bits, others)| *bits &= !others);
}

fn ones(bits: &[u64]) -> impl Iterator<Item = u32> + use<'_> {
    bits.iter().enumerate().flat_map(|(word, &bits)| ones_of(word, bits))
}

fn ones_of(word: usize, mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(64 * word as u32 + bit)
    })
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use fastrand::Rng;

    use super::super::search::Search;
    use super::super::units::{Conversion, convert};
    use super::super::{Answer, Call, Operation};
    use super::*;

    /// Returns what the clients of a map are answered, with one wrong answer in every other
    /// history. Each operation lasts long, so that many overlap.
    fn history(rng: &mut Rng) -> Vec<Operation> {
        let count = rng.u64(10..30);
        let mut value = None;
        let mut history = Vec::new();
        for moment in (100..).step_by(10).take(count as usize) {
            let call = match rng.u8(..7) {
                0 | 1 => Call::Get,
                2 => Call::Put(moment),
                3 => Call::Insert(moment),
                4 => Call::Update(moment),
                _ => Call::Delete,
            };
            let before = value;
            match call {
                Call::Put(new) => value = Some(new),
                Call::Insert(new) => value = value.or(Some(new)),
                Call::Update(new) => value = value.map(|_| new),
                Call::Delete => value = None,
                _ => {}
            }
            let answer = match call {
                Call::Get => Answer::Value(value),
                Call::Insert(_) if before.is_some() => Answer::Refused,
                Call::Update(_) if before.is_none() => Answer::Refused,
                _ => Answer::Done,
            };
            let (called, at) = (moment - rng.u64(..80), moment + rng.u64(..80));
            let answered = (rng.u8(..8) > 0).then_some((at, answer));
            history.push(Operation { key: 0, client: moment as usize, call, called, answered });
        }
        if rng.bool() {
            let wrong = &mut history[rng.usize(..count as usize)];
            wrong.answered = wrong.answered.map(|(at, answer)| {
                let other = match (wrong.call, answer) {
                    (Call::Get, Answer::Value(Some(_))) => Answer::Value(None),
                    (Call::Insert(_) | Call::Update(_), Answer::Done) => Answer::Refused,
                    (Call::Insert(_) | Call::Update(_), _) => Answer::Done,
                    _ => answer,
                };
                (at, other)
            });
        }
        history
    }

    /// Histories too long for brute force: the search for an order is another way to check them.
    #[test]
    fn agrees_with_the_search_for_an_order() {
        let rounds = std::env::var("SWARM_HISTORY_ROUNDS")
            .map_or(5_000, |text| text.parse().expect("it is a number"));
        let (mut right, mut wrong) = (0, 0);
        for seed in 0..rounds {
            let history = history(&mut Rng::with_seed(seed));
            let expected = Search::new(&history, None).run(1_000_000);
            let found = match convert(&history, None) {
                Conversion::Units(units) => Sweep::run(units, false, 1_000_000),
                Conversion::Impossible => Verdict::Violated,
                Conversion::Unfit => unreachable!("values are unique"),
            };
            match expected {
                Verdict::Undecided => continue,
                Verdict::Linearizable => right += 1,
                Verdict::Violated => wrong += 1,
            }
            assert_eq!(found, expected, "seed {seed}: {history:#?}");
        }
        std::println!("{right} linearizable, {wrong} not, of {rounds}");
        assert!(right > rounds / 4 && wrong > rounds / 50);
    }
}
