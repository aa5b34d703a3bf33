//! The log of a client of torture, which survives the client.
//!
//! **Invariant:** a call is logged before anything of it is posted, and an answer before the next
//! call. One write hands a record to the kernel, so SIGKILL loses none. A client that is killed
//! leaves at most one call without an answer, at the end.
//!
//! A record is three words:
//!
//! ```text
//! call     [ 1 | op 4 bits | key 24 bits | number 32 bits ]     when it was called   0
//! answer   [ 2 | answer 4 bits | client 24 bits | number 32 bits ]   when called     when returned
//! ```
//!
//! A write's value is identified by its client and its number there; an answer that is a value
//! names it in the same way. The time of the call is taken again after the call is logged, because
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

/// Keys from this number on have values of mixed sizes.
pub(crate) const MIXED: u32 = 1 << 23;

/// The identity of a value in histories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The client that wrote it.
    pub client: u32,
    /// The number of the client's write.
    pub number: u32,
}

impl Tag {
    /// Fills in a value's stored bytes: the tag, the key, and bytes that are derived from them.
    pub(crate) fn fill(self, key: u32, value: &mut Vec<u8>) {
        value.clear();
        value.extend(self.client.to_le_bytes());
        value.extend(self.number.to_le_bytes());
        value.extend(key.to_le_bytes());
        let mut word = u64::from(self.client) << 32 | u64::from(self.number);
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
pub enum Told {
    /// The operation is done.
    Done,
    /// The key existed already, or did not exist.
    Refused,
    /// The key does not exist.
    Absent,
    /// The identity of the value.
    Value(Tag),
    /// A value that no client can have written.
    Damaged,
    /// The operation ended in an error.
    Unknown,
    /// The operation had no effect: the pool is full.
    Full,
}

/// A client's log.
pub(crate) struct Log(File);

impl Log {
    /// Creates an empty log.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        File::create(path).map(Self)
    }

    /// Logs a call that is about to begin.
    pub(crate) fn call(&mut self, op: Op, key: u32, number: u32, at_ns: u64) -> io::Result<()> {
        self.write([
            CALL << 60 | (op as u64) << 56 | u64::from(key) << 32 | u64::from(number),
            at_ns,
            0,
        ])
    }

    /// Logs the answer.
    pub(crate) fn answer(&mut self, told: Told, called_ns: u64, at_ns: u64) -> io::Result<()> {
        let (kind, tag) = match told {
            Told::Done => (0, None),
            Told::Refused => (1, None),
            Told::Absent => (2, None),
            Told::Value(tag) => (3, Some(tag)),
            Told::Damaged => (4, None),
            Told::Unknown => (5, None),
            Told::Full => (FULL, None),
        };
        let tag = tag.map_or(0, |tag| u64::from(tag.client) << 32 | u64::from(tag.number));
        self.write([ANSWER << 60 | kind << 56 | tag, called_ns, at_ns])
    }

    fn write(&mut self, words: [u64; 3]) -> io::Result<()> {
        let mut record = [0; RECORD];
        for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.0.write_all(&record)
    }
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
            (CALL, None) => under_way = Some(call(history, head, called_ns, client)),
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

fn call(history: &mut History, head: u64, called: u64, client: u32) -> Operation {
    let tag = Tag { client, number: head as u32 };
    let mut value = || name(history, tag);
    // The number of an `Op`.
    let call = match head >> 56 & 7 {
        0 => Call::Get,
        1 => Call::Put(value()),
        2 => Call::Insert(value()),
        3 => Call::Update(value()),
        _ => Call::Delete,
    };
    let key = head >> 32 & 0xff_ffff;
    Operation { key, client: client as usize, call, called, answered: None }
}

fn answer(history: &mut History, head: u64) -> Option<Answer> {
    let tag = Tag { client: (head >> 32 & 0xff_ffff) as u32, number: head as u32 };
    match head >> 56 & 0xf {
        0 => Some(Answer::Done),
        1 => Some(Answer::Refused),
        2 => Some(Answer::Value(None)),
        3 => Some(Answer::Value(Some(name(history, tag)))),
        4 => Some(Answer::Value(Some(history.value("damaged".to_owned())))),
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
        log.call(Op::Get, 2, 1, 10).expect("it is writable");
        log.answer(Told::Value(tag), 11, 12).expect("it is writable");
        log.call(Op::Insert, 2, 2, 13).expect("it is writable");
        log.answer(Told::Refused, 14, 15).expect("it is writable");
        log.call(Op::Update, 2, 3, 16).expect("it is writable");
        log.answer(Told::Unknown, 17, 18).expect("it is writable");
        log.call(Op::Put, 2, 5, 18).expect("it is writable");
        log.answer(Told::Full, 18, 19).expect("it is writable");
        log.call(Op::Delete, 1, 4, 19).expect("it is writable");
        log.0.write_all(&[1; RECORD - 1]).expect("it is writable");
        let mut history = History::default();
        take(&mut history, &path, 5).expect("it is whole");
        let read = name(&mut history, tag);
        let (two, three) = (Tag { client: 5, number: 2 }, Tag { client: 5, number: 3 });
        let (two, three) = (name(&mut history, two), name(&mut history, three));
        let op = |key, call, called, answered| Operation { key, client: 5, call, called, answered };
        let expected = [
            op(2, Call::Get, 11, Some((12, Answer::Value(Some(read))))),
            op(2, Call::Insert(two), 14, Some((15, Answer::Refused))),
            op(2, Call::Update(three), 17, None),
            op(1, Call::Delete, 19, None),
        ];
        assert_eq!(history.operations, expected);
    }
}
