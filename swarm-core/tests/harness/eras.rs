//! A model of what was weighed and not built: buffers that are reclaimed by eras (ARCHITECTURE,
//! "A stopped client pins what others retire").
//!
//! One register at three nodes, each with a slot for the writer and one for the reader, words in one
//! order. The *writer* updates: it hands out a buffer, sets its slot at two nodes, and retires its
//! former buffer. The *reader* announces [lower, upper] and reads two nodes. If the era has moved on
//! since, it raises upper and reads again. Then it fetches the buffer of the largest stamp and writes
//! the stamp back. A buffer is reused once no announced interval meets its birth and retirement.
//! Every interleaving is played.

use std::collections::HashSet;

/// Buffers, and how many of them there are for the writer to begin with.
const BUFFERS: usize = 4;
/// An upper end above every era.
const ALL: u8 = u8::MAX;
/// How often a reader reads again before it announces all eras.
const TRIES: u8 = 2;
const MAJORITIES: [(u8, u8); 6] = [(0, 1), (1, 2), (0, 2), (1, 0), (2, 1), (2, 0)];

/// A timestamp and its buffer.
type Stamp = (u8, u8);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Buffer {
    Free,
    /// Handed out in this era.
    Live(u8),
    /// Created and retired in these eras.
    Retired(u8, u8),
    /// There is no such buffer.
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    Idle,
    /// It has loaded the era, and not announced it.
    Pins(u8),
    Reads,
    /// It has read one node.
    Half(u8, Stamp),
    Checks(Stamp),
    Raises(u8),
    RaisesAll,
    /// The wrong order: raised behind the READ that counts.
    RaisesLate(u8, Stamp),
    Fetches(Stamp),
    WritesBack(Stamp),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Idle,
    WritesBuffer(u8),
    First(u8, u8, Stamp),
    Second(u8, Stamp),
    LoadsEra(u8),
    Retires(u8, u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    era: u8,
    /// Of each node: the writer's slot, and the reader's.
    slots: [[Stamp; 2]; 3],
    buffers: [Buffer; BUFFERS],
    /// The timestamp that each buffer's content has.
    content: [u8; BUFFERS],
    last: u8,
    own: u8,
    updates: u8,
    writer: Writer,
    reader: Reader,
    reads: u8,
    tries: u8,
    lower: u8,
    upper: u8,
}

impl State {
    fn to(self, reader: Reader) -> Self {
        Self { reader, ..self }
    }
}

/// What is left out of the rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    All,
    NoSecondRead,
    RaisedLate,
}

/// What all interleavings showed.
#[derive(Default)]
struct Shown {
    states: usize,
    /// A buffer was fetched, or its stamp written back, that served another write by then.
    reused: bool,
    /// States in which the writer finds no buffer beside the stopped reader.
    refused: usize,
}

struct Model {
    rules: Rules,
    /// Eras that begin without a retirement.
    eras: u8,
    /// Where the reader is stopped for ever.
    stop: Option<fn(&Reader) -> bool>,
}

impl Model {
    fn play(&self, buffers: usize, updates: u8) -> Shown {
        let mut start = State {
            era: 1,
            slots: [[(1, 0), (0, 0)]; 3],
            buffers: [Buffer::None; BUFFERS],
            content: [1, 0, 0, 0],
            last: 1,
            own: 0,
            updates,
            writer: Writer::Idle,
            reader: Reader::Idle,
            reads: 1,
            tries: 0,
            lower: 0,
            upper: 0,
        };
        start.buffers[..buffers].fill(Buffer::Free);
        start.buffers[0] = Buffer::Live(0);
        let (mut seen, mut open) = (HashSet::from([start]), vec![start]);
        let mut shown = Shown::default();
        while let Some(state) = open.pop() {
            let mut next = Vec::new();
            if self.stop.is_none() && state.era < self.eras {
                next.push(State { era: state.era + 1, ..state });
            }
            if !self.is_stopped(&state) {
                self.reader_goes_on(state, &mut next, &mut shown);
            }
            if shown.reused {
                break;
            }
            self.writer_goes_on(state, &mut next, &mut shown);
            open.extend(next.into_iter().filter(|state| seen.insert(*state)));
        }
        shown.states = seen.len();
        shown
    }

    fn is_stopped(&self, state: &State) -> bool {
        self.stop.is_some_and(|stop| stop(&state.reader))
    }

    fn reader_goes_on(&self, state: State, next: &mut Vec<State>, shown: &mut Shown) {
        let largest =
            |node: u8| state.slots[usize::from(node)].into_iter().max().expect("two slots");
        let is_reused = |(time, buffer): Stamp| state.content[usize::from(buffer)] != time;
        match state.reader {
            Reader::Idle if state.reads > 0 => {
                next.push(State { reads: state.reads - 1, ..state.to(Reader::Pins(state.era)) });
            }
            Reader::Idle => {}
            Reader::Pins(era) => {
                next.push(State { lower: era, upper: era, tries: 0, ..state.to(Reader::Reads) });
            }
            Reader::Reads => {
                next.extend(MAJORITIES.map(|(one, two)| state.to(Reader::Half(two, largest(one)))));
            }
            Reader::Half(node, stamp) => {
                next.push(state.to(Reader::Checks(stamp.max(largest(node)))))
            }
            Reader::Checks(stamp)
                if self.rules == Rules::NoSecondRead || state.era <= state.upper =>
            {
                next.push(state.to(Reader::Fetches(stamp)));
            }
            Reader::Checks(stamp) if self.rules == Rules::RaisedLate => {
                next.push(state.to(Reader::RaisesLate(state.era, stamp)));
            }
            Reader::Checks(_) if state.tries < TRIES => {
                next.push(State { tries: state.tries + 1, ..state.to(Reader::Raises(state.era)) });
            }
            Reader::Checks(_) => next.push(state.to(Reader::RaisesAll)),
            Reader::Raises(era) => next.push(State { upper: era, ..state.to(Reader::Reads) }),
            Reader::RaisesAll => next.push(State { upper: ALL, ..state.to(Reader::Reads) }),
            Reader::RaisesLate(era, stamp) => {
                next.push(State { upper: era, ..state.to(Reader::Fetches(stamp)) });
            }
            Reader::Fetches(stamp) => {
                shown.reused |= is_reused(stamp);
                next.push(state.to(Reader::WritesBack(stamp)));
            }
            Reader::WritesBack(stamp) => {
                shown.reused |= is_reused(stamp);
                for node in 0..3 {
                    let mut ended =
                        State { lower: 0, upper: 0, tries: 0, ..state.to(Reader::Idle) };
                    ended.slots[node][1] = ended.slots[node][1].max(stamp);
                    next.push(ended);
                }
            }
        }
    }

    fn writer_goes_on(&self, mut state: State, next: &mut Vec<State>, shown: &mut Shown) {
        match state.writer {
            Writer::Idle if state.updates == 0 => {}
            Writer::Idle => match state.buffers.iter().position(|it| *it == Buffer::Free) {
                Some(buffer) => {
                    state.buffers[buffer] = Buffer::Live(state.era);
                    next.push(State { writer: Writer::WritesBuffer(buffer as u8), ..state });
                }
                None if reclaim(&mut state) => next.push(state),
                None => shown.refused += usize::from(self.is_stopped(&state)),
            },
            Writer::WritesBuffer(buffer) => {
                state.last += 1;
                state.content[usize::from(buffer)] = state.last;
                let stamp = (state.last, buffer);
                for &(one, two) in &MAJORITIES[..3] {
                    next.push(State { writer: Writer::First(one, two, stamp), ..state });
                }
            }
            Writer::First(node, other, stamp) => {
                state.slots[usize::from(node)][0] = stamp;
                next.push(State { writer: Writer::Second(other, stamp), ..state });
            }
            Writer::Second(node, stamp) => {
                state.slots[usize::from(node)][0] = stamp;
                next.push(State { writer: Writer::LoadsEra(stamp.1), ..state });
            }
            Writer::LoadsEra(buffer) => {
                next.push(State { writer: Writer::Retires(buffer, state.era), ..state });
            }
            Writer::Retires(buffer, era) => {
                let Buffer::Live(created_at) = state.buffers[usize::from(state.own)] else {
                    unreachable!("its own buffer is in use")
                };
                state.buffers[usize::from(state.own)] = Buffer::Retired(created_at, era);
                // Beside a stopped client, each retirement begins an era, and waits for nobody.
                state.era += u8::from(self.stop.is_some());
                let updates = state.updates - 1;
                next.push(State { writer: Writer::Idle, own: buffer, updates, ..state });
            }
        }
    }
}

/// Frees what no announced interval meets. Returns whether that was anything.
fn reclaim(state: &mut State) -> bool {
    let before = state.buffers;
    let announces = !matches!(state.reader, Reader::Idle | Reader::Pins(_));
    for buffer in &mut state.buffers {
        if let Buffer::Retired(created_at, end) = *buffer
            && !(announces && end >= state.lower && created_at <= state.upper)
        {
            *buffer = Buffer::Free;
        }
    }
    state.buffers != before
}

#[test]
fn eras_keep_buffers_from_a_reader_that_reads_again() {
    let shown = Model { rules: Rules::All, eras: 3, stop: None }.play(3, 3);
    println!("{} states", shown.states);
    assert!(!shown.reused);
}

#[test]
fn eras_without_the_second_read_or_raised_behind_it_do_not() {
    for rules in [Rules::NoSecondRead, Rules::RaisedLate] {
        assert!(Model { rules, eras: 3, stop: None }.play(3, 3).reused);
    }
}

/// Why eras do not keep updates going beside a stopped client: one that is stopped before it ever
/// raised pins one buffer, but one that had to read again pins what was retired since it began, and
/// after some attempts all that there is.
#[test]
fn a_reader_that_is_stopped_before_its_fetch_pins_every_buffer_in_some_schedule() {
    let stopped = |stop| Model { rules: Rules::All, eras: 0, stop: Some(stop) }.play(4, 7);
    let at_its_reads = stopped(|reader: &Reader| matches!(reader, Reader::Reads));
    let before_its_fetch = stopped(|reader: &Reader| matches!(reader, Reader::Fetches(_)));
    println!("{}, {} states", at_its_reads.states, before_its_fetch.states);
    assert!(!at_its_reads.reused && !before_its_fetch.reused);
    assert_eq!(at_its_reads.refused, 0);
    assert!(before_its_fetch.refused > 0);
}
