//! The log of a client of torture, which survives the client.
//!
//! **Invariant:** a call is logged before anything of it is posted, and an answer before the next
//! call. One write hands a record to the kernel, so SIGKILL loses none. A client that is killed
//! leaves at most one call without an answer, at the end.
//!
//! A record is three words:
//!
//! ```text
//! call     [ 1 | op 4 bits | key 24 bits | number 32 bits ]     when it was called   what a cas expects, a life's length, else 0
//! answer   [ 2 | answer 4 bits | value 56 bits ]                when called          when returned
//! value    [ client 24 bits | number 32 bits ], or a sum
//! ```
//!
//! A write's value is identified by its client and its number there; an answer that is a value
//! names it in the same way. What a cas expects is its value, with bit 63 set, or 0 for no value. The values of
//! [counters](is_counter) are numbers: a client adds to a counter, or writes, what its number there is
//! mapped to, so that each sum is there once, but for one chance in millions. The time of the call is taken again after the call is logged, because
//! it is posted only then. For a client that was killed in between, the first time counts.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use swarm_core::history::{Answer, Call, Operation};

use crate::Failure;
use crate::history::{History, Op};

/// Bytes of a record.
const RECORD: usize = 24;
const CALL: u64 = 1;
const ANSWER: u64 = 2;
const FULL: u64 = 6;

const SUM: u64 = 7;
/// What a ttl found: no key, one that stays, one that expires.
const LIVES: [Option<bool>; 3] = [None, Some(false), Some(true)];
/// The answer that is the first of those.
const LIFE: u64 = 8;
/// The bit that is set if there is a value.
const SOME: u64 = 1 << 63;
/// Bits of a value in a record.
const VALUE: u64 = (1 << 56) - 1;

/// Keys from this number on have values of mixed sizes.
pub(crate) const MIXED: u32 = 1 << 23;

/// Returns whether a key of torture holds a number, to which clients add.
pub fn is_counter(key: u32) -> bool {
    key < MIXED && key % 3 == 2
}

/// Returns whether values of a key of torture may expire.
pub fn may_expire(key: u32) -> bool {
    key < MIXED && key % 3 == 1
}

/// The identity of a value in histories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The client that wrote it.
    pub client: u32,
    /// The number of the client's write.
    pub number: u32,
}

impl Tag {
    /// Returns it as it stands in a record.
    fn word(self) -> u64 {
        u64::from(self.client) << 32 | u64::from(self.number)
    }

    fn of_word(word: u64) -> Self {
        Self { client: (word >> 32 & 0xff_ffff) as u32, number: word as u32 }
    }

    /// Returns the number that is written under a counter: so large that sums of it and what is added do not come up
    /// again elsewhere, and so small that a thousand times what is added fits above it.
    pub(crate) fn written_number(self) -> u64 {
        1 << 54 | self.scattered() >> 11
    }

    /// Returns what is added to a counter.
    pub(crate) fn added_number(self) -> u64 {
        1 + (self.scattered() >> 24)
    }

    /// Returns how long the value is there, if it is put to expire, in nanoseconds: over at once, or soon, or long after
    /// the others.
    pub(crate) fn ttl_ns(self) -> u64 {
        [0, 100_000, 3_000_000, 50_000_000, 1_000_000_000, 1 << 50][(self.scattered() % 6) as usize]
    }

    fn scattered(self) -> u64 {
        let mut word = self.word().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word ^ word >> 29
    }

    /// Fills in a value's stored bytes: the tag, the key, and bytes that are derived from them; of a counter, its
    /// number as text.
    pub(crate) fn fill(self, key: u32, value: &mut Vec<u8>) {
        value.clear();
        if is_counter(key) {
            value.extend(self.written_number().to_string().into_bytes());
            return;
        }
        value.extend(self.client.to_le_bytes());
        value.extend(self.number.to_le_bytes());
        value.extend(key.to_le_bytes());
        let mut word = self.word();
        value.resize(self.length(key), 0);
        for bytes in value[12..].chunks_mut(8) {
            word = (word ^ u64::from(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }

    /// Returns a value's length. Most values are small, as in caches. Some are out of place, and
    /// some of those are large.
    fn length(self, key: u32) -> usize {
        match self.number {
            _ if key >= MIXED => self.mixed_length(),
            // What expires has no room for more.
            number if number.is_multiple_of(256) && may_expire(key) => 3000,
            number if number.is_multiple_of(256) => 5000,
            number if number.is_multiple_of(16) => 400,
            number => 12 + (number % 40) as usize,
        }
    }

    /// Returns a length of 64 B to 64 KiB: four of five are short, one in a hundred is long.
    fn mixed_length(self) -> usize {
        let word = u64::from(self.client) << 32 | u64::from(self.number);
        let dice = word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        let (share, place) = (dice % 100, (dice >> 16) as usize);
        match share {
            0..80 => 64 + place % 448,
            80..95 => 512 + place % 3584,
            95..99 => 4096 + place % 12_288,
            _ => 16_384 + place % 49_153,
        }
    }

    /// Decodes a value of `key`. Returns `None` unless it is intact.
    pub fn parse(key: u32, value: &[u8], room: &mut Vec<u8>) -> Option<Self> {
        let word = |at: usize| Some(u32::from_le_bytes(*value.get(at..)?.first_chunk()?));
        let tag = Self { client: word(0)?, number: word(4)? };
        tag.fill(key, room);
        (room == value).then_some(tag)
    }
}

/// The result of an operation, as logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The operation is done.
    Done,
    /// The key existed already, or did not exist.
    Refused,
    /// The key does not exist.
    Absent,
    /// The identity of the value.
    Value(Tag),
    /// The number under a counter.
    Sum(u64),
    /// Whether the key expires, if it is there.
    Life(Option<bool>),
    /// A value that no client can have written.
    Damaged,
    /// The operation ended in an error.
    Unknown,
    /// The operation had no effect: the pool is full.
    Full,
}

/// A value, as a client knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// What a client wrote.
    Tag(Tag),
    /// The number under a counter.
    Sum(u64),
}

impl Known {
    /// Fills in its stored bytes, as the value of `key`.
    pub(crate) fn fill(self, key: u32, value: &mut Vec<u8>) {
        match self {
            Self::Tag(tag) => tag.fill(key, value),
            Self::Sum(sum) => {
                value.clear();
                value.extend(sum.to_string().into_bytes());
            }
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::Tag(tag) => tag.word(),
            Self::Sum(sum) => sum,
        }
    }
}

/// A client's log.
pub(crate) struct Log(File);

impl Log {
    /// Creates an empty log.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        File::create(path).map(Self)
    }

    /// Logs a call that is about to begin, and what it expects if it is a cas.
    pub(crate) fn call(
        &mut self,
        (op, expected): (Op, Option<Known>),
        key: u32,
        Tag { client, number }: Tag,
        at_ns: u64,
    ) -> io::Result<()> {
        let ttl_ns = Tag { client, number }.ttl_ns();
        let expected = match op {
            Op::PutWithTtl => at_least(ttl_ns),
            _ => expected.map_or(0, |known| SOME | known.word()),
        };
        let head = CALL << 60 | (op as u64) << 56 | u64::from(key) << 32 | u64::from(number);
        self.write([head, at_ns, expected])
    }

    /// Logs the answer.
    pub(crate) fn answer(
        &mut self,
        outcome: Outcome,
        called_ns: u64,
        at_ns: u64,
    ) -> io::Result<()> {
        let (kind, value) = match outcome {
            Outcome::Done => (0, 0),
            Outcome::Refused => (1, 0),
            Outcome::Absent => (2, 0),
            Outcome::Value(tag) => (3, tag.word()),
            // No client can have added so much.
            Outcome::Sum(sum) if sum > VALUE => (4, 0),
            Outcome::Sum(sum) => (SUM, sum),
            Outcome::Life(life) => {
                (LIFE + LIVES.iter().position(|it| *it == life).unwrap_or(0) as u64, 0)
            }
            Outcome::Damaged => (4, 0),
            Outcome::Unknown => (5, 0),
            Outcome::Full => (FULL, 0),
        };
        self.write([ANSWER << 60 | kind << 56 | value, called_ns, at_ns])
    }

    fn write(&mut self, words: [u64; 3]) -> io::Result<()> {
        let mut record = [0; RECORD];
        for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.0.write_all(&record)
    }
}

/// How long a value is there at least, by the clock of histories: the pool's may be a little faster.
fn at_least(ttl_ns: u64) -> u64 {
    ttl_ns - ttl_ns / 64
}

/// Adds a client's log to the history. It skips an incomplete record at the end, and operations
/// that a full pool refused: their values must not be seen.
pub fn take(history: &mut History, path: &Path, client: u32) -> Result<(), Failure> {
    let failed = |why: String| Failure::because(format!("cannot read {}", path.display()), why);
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        // The client was killed before it had a log.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error.to_string())),
    };
    let mut under_way: Option<Operation> = None;
    for (at, record) in bytes.chunks_exact(RECORD).enumerate() {
        let mut words = record
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("chunks have eight bytes")));
        let mut word = || words.next().unwrap_or(0);
        let (head, called_ns, at_ns) = (word(), word(), word());
        match (head >> 60, under_way.take()) {
            (CALL, None) => under_way = Some(call(history, (head, at_ns), called_ns, client)),
            (ANSWER, Some(mut op)) => {
                op.called = called_ns;
                op.answered = answer(history, head).map(|answer| (at_ns, answer));
                // An operation that a full pool refuses has no effect.
                if head >> 56 & 0xf != FULL {
                    history.operations.push(op);
                }
            }
            _ => return Err(failed(format!("record {at} is damaged"))),
        }
    }
    history.operations.extend(under_way);
    Ok(())
}

fn call(
    history: &mut History,
    (head, expected): (u64, u64),
    called: u64,
    client: u32,
) -> Operation {
    let tag = Tag { client, number: head as u32 };
    let key = head >> 32 & 0xff_ffff;
    let is_counter = is_counter(key as u32);
    let mut value = |tag: Tag| if is_counter { tag.written_number() } else { name(history, tag) };
    // The number of an `Op`.
    let call = match head >> 56 & 0xf {
        0 => Call::Get,
        1 => Call::Put(value(tag)),
        2 => Call::Insert(value(tag)),
        3 => Call::Update(value(tag)),
        4 => Call::Delete,
        5 => {
            let word = expected & VALUE;
            let before = if is_counter { word } else { value(Tag::of_word(word)) };
            let expected = (expected & SOME != 0).then_some(before);
            Call::CompareAndSwap { expected, new: Some(value(tag)) }
        }
        6 => Call::Swap(Some(value(tag))),
        7 => Call::Increment(tag.added_number()),
        8 => Call::PutWithTtl { value: value(tag), ttl: expected },
        9 => Call::Persist,
        _ => Call::Ttl,
    };
    Operation { key, client: client as usize, call, called, answered: None }
}

fn answer(history: &mut History, head: u64) -> Option<Answer> {
    let value = head & VALUE;
    match head >> 56 & 0xf {
        0 => Some(Answer::Done),
        1 => Some(Answer::Refused),
        2 => Some(Answer::Value(None)),
        3 => Some(Answer::Value(Some(name(history, Tag::of_word(value))))),
        4 => Some(Answer::Value(Some(history.value("damaged".to_owned())))),
        SUM => Some(Answer::Value(Some(value))),
        life @ LIFE.. => LIVES.get((life - LIFE) as usize).map(|life| Answer::Life(*life)),
        _ => None,
    }
}

/// Returns the number of a value's name.
pub fn name(history: &mut History, tag: Tag) -> u64 {
    history.value(format!("{}-{}", tag.client, tag.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_apart_and_known_again() {
        let (mut value, mut room) = (Vec::new(), Vec::new());
        for number in [0, 1, 15, 16, 39, 256, 1000] {
            let tag = Tag { client: 7, number };
            tag.fill(3, &mut value);
            assert_eq!(Tag::parse(3, &value, &mut room), Some(tag));
            assert_eq!(Tag::parse(4, &value, &mut room), None);
            *value.last_mut().expect("it is not empty") ^= 1;
            assert_eq!(Tag::parse(3, &value, &mut room), None);
        }
        assert_eq!(Tag::parse(3, b"", &mut room), None);
    }

    /// A counter's value is what other programs read as a number, and a thousand clients' sums fit into a record.
    #[test]
    fn numbers_are_small_enough_to_be_added_to() {
        let mut value = Vec::new();
        for client in 0..100 {
            for number in 1..100 {
                let tag = Tag { client, number };
                let (written, added) = (tag.written_number(), tag.added_number());
                assert!((1 << 54..1 << 55).contains(&written), "{written}");
                assert!(
                    (1..=1 << 40).contains(&added) && written + 2000 * added < VALUE,
                    "{added}"
                );
                tag.fill(2, &mut value);
                assert_eq!(value, written.to_string().into_bytes());
            }
        }
    }

    #[test]
    fn mixed_sizes_are_mostly_small_and_reach_64_kib() {
        let mut value = Vec::new();
        let mut sizes: Vec<usize> = (0..10_000)
            .map(|number| {
                Tag { client: 3, number }.fill(MIXED, &mut value);
                value.len()
            })
            .collect();
        sizes.sort_unstable();
        assert!(sizes[0] >= 64 && sizes[5000] < 512, "{} {}", sizes[0], sizes[5000]);
        assert!((60_000..=65_536).contains(&sizes[9999]), "{}", sizes[9999]);
    }

    #[test]
    fn a_log_comes_back_with_the_call_that_was_under_way() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("log");
        let mut log = Log::create(&path).expect("it is writable");
        let tag = Tag { client: 9, number: 4 };
        let own = |number| Tag { client: 5, number };
        let no = |op| (op, None);
        log.call(no(Op::Get), 1, own(1), 10).expect("it is writable");
        log.answer(Outcome::Value(tag), 11, 12).expect("it is writable");
        log.call(no(Op::Insert), 1, own(2), 13).expect("it is writable");
        log.answer(Outcome::Refused, 14, 15).expect("it is writable");
        log.call(no(Op::Update), 1, own(3), 16).expect("it is writable");
        log.answer(Outcome::Unknown, 17, 18).expect("it is writable");
        log.call(no(Op::Put), 1, own(5), 18).expect("it is writable");
        log.answer(Outcome::Full, 18, 19).expect("it is writable");
        log.call((Op::CompareAndSwap, Some(Known::Tag(tag))), 1, own(6), 20)
            .expect("it is writable");
        log.answer(Outcome::Absent, 21, 22).expect("it is writable");
        log.call((Op::CompareAndSwap, Some(Known::Sum(77))), 2, own(7), 23)
            .expect("it is writable");
        log.answer(Outcome::Done, 24, 25).expect("it is writable");
        log.call(no(Op::CompareAndSwap), 1, own(8), 26).expect("it is writable");
        log.answer(Outcome::Value(tag), 27, 28).expect("it is writable");
        log.call(no(Op::Increment), 2, own(9), 29).expect("it is writable");
        log.answer(Outcome::Sum(88), 30, 31).expect("it is writable");
        log.call(no(Op::PutWithTtl), 1, own(10), 32).expect("it is writable");
        log.answer(Outcome::Done, 33, 34).expect("it is writable");
        log.call(no(Op::Persist), 1, own(11), 35).expect("it is writable");
        log.answer(Outcome::Refused, 36, 37).expect("it is writable");
        for (at, life) in LIVES.into_iter().enumerate() {
            log.call(no(Op::Ttl), 1, own(12), 38).expect("it is writable");
            log.answer(Outcome::Life(life), 39 + at as u64, 50).expect("it is writable");
        }
        log.call(no(Op::Delete), 1, own(4), 52).expect("it is writable");
        log.0.write_all(&[1; RECORD - 1]).expect("it is writable");
        let mut history = History::default();
        take(&mut history, &path, 5).expect("it is whole");
        let read = name(&mut history, tag);
        let [two, three, six, eight] = [2, 3, 6, 8].map(|number| name(&mut history, own(number)));
        let cas = |expected, new| Call::CompareAndSwap { expected, new: Some(new) };
        let ttl = at_least(own(10).ttl_ns());
        let put = Call::PutWithTtl { value: name(&mut history, own(10)), ttl };
        let added = own(9).added_number();
        let op = |key, call, called, answered| Operation { key, client: 5, call, called, answered };
        let expected = [
            op(1, Call::Get, 11, Some((12, Answer::Value(Some(read))))),
            op(1, Call::Insert(two), 14, Some((15, Answer::Refused))),
            op(1, Call::Update(three), 17, None),
            op(1, cas(Some(read), six), 21, Some((22, Answer::Value(None)))),
            op(2, cas(Some(77), own(7).written_number()), 24, Some((25, Answer::Done))),
            op(1, cas(None, eight), 27, Some((28, Answer::Value(Some(read))))),
            op(2, Call::Increment(added), 30, Some((31, Answer::Value(Some(88))))),
            op(1, put, 33, Some((34, Answer::Done))),
            op(1, Call::Persist, 36, Some((37, Answer::Refused))),
            op(1, Call::Ttl, 39, Some((50, Answer::Life(None)))),
            op(1, Call::Ttl, 40, Some((50, Answer::Life(Some(false))))),
            op(1, Call::Ttl, 41, Some((50, Answer::Life(Some(true))))),
            op(1, Call::Delete, 52, None),
        ];
        assert_eq!(history.operations, expected);
    }
}
