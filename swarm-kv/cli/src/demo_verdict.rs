//! Whether every acknowledged write is found, and how the demo's clients make that checkable.
//!
//! A value says who wrote it as which of his writes, and to which key. Each client keeps a log of
//! the writes that were acknowledged to it, with the times at which they began and ended; it is
//! written before the next operation begins, and survives the client. In the end, a key's value
//! must be that of a write that was made, and no acknowledged write to the key may have begun
//! after that one had ended: it would have been lost. (Of writes that overlap, either may stay.)

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use super::outcome::Failure;

/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 64;
/// Whoever loaded the keys, with writes number 0.
pub(crate) const LOADER: u32 = u32::MAX;

const RECORD_BYTES: usize = 32;

/// A write as its value tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag {
    pub(crate) client: u32,
    /// Which of the client's writes, from 1.
    pub(crate) number: u64,
    pub(crate) key: u32,
}

impl Tag {
    /// The value: the tag, and words that follow from it.
    pub(crate) fn value(self) -> [u8; VALUE_BYTES] {
        let mut value = [0; VALUE_BYTES];
        let mut word = 0x9e37_79b9_7f4a_7c15;
        let head = [u64::from(self.client), self.number, u64::from(self.key)];
        for (at, bytes) in value.chunks_exact_mut(8).enumerate() {
            if let Some(tag) = head.get(at) {
                word = (word ^ tag).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(29);
            }
            bytes.copy_from_slice(&head.get(at).copied().unwrap_or(word).to_le_bytes());
            if at >= head.len() {
                word = word.wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(31);
            }
        }
        value
    }

    /// What a value tells, unless it is not one of these, whole.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = value.get(8 * at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let tag = Self {
            client: word(0)?.try_into().ok()?,
            number: word(1)?,
            key: word(2)?.try_into().ok()?,
        };
        (tag.value() == value).then_some(tag)
    }
}

/// An acknowledged write. A client's are numbered from 1, in the order of its log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) key: u32,
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// A client's log of its acknowledged writes.
pub(crate) struct Log {
    file: File,
    number: u64,
}

impl Log {
    /// An empty log.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, number: 0 })
    }

    /// The number of the next write.
    pub(crate) fn next(&self) -> u64 {
        self.number + 1
    }

    /// Notes an acknowledged write: the kernel has it when this returns.
    pub(crate) fn note(&mut self, write: Acknowledged) -> io::Result<()> {
        self.number += 1;
        let words = [self.number, u64::from(write.key), write.start_ns, write.end_ns];
        let mut record = [0; RECORD_BYTES];
        for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all(&record)
    }

    /// What a log holds; a record that was being written at the end does not count.
    pub(crate) fn read(path: &Path) -> Result<Vec<Acknowledged>, Failure> {
        let failed = |why| Failure::because(format!("cannot read {}", path.display()), why);
        let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
        let records = bytes.chunks_exact(RECORD_BYTES).enumerate().map(|(at, record)| {
            let mut words = record
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("chunks have eight bytes")));
            let mut word = || words.next().unwrap_or(0);
            let (number, key) = (word(), word());
            let key = u32::try_from(key).ok().filter(|_| number == at as u64 + 1);
            let key = key.ok_or_else(|| failed(format!("record {at} is damaged")))?;
            Ok(Acknowledged { key, start_ns: word(), end_ns: word() })
        });
        records.collect()
    }
}

/// What was looked for and what was not found.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Acknowledged writes, the loading included.
    pub(crate) acknowledged: u64,
    pub(crate) lost: Vec<String>,
}

/// Compares what is found under the keys, in their order, with the clients' logs. `killed` is the
/// one client that may have had a write under way.
pub(crate) fn judge(
    found: &[Option<Vec<u8>>],
    logs: &[Vec<Acknowledged>],
    killed: Option<usize>,
) -> Verdict {
    let mut latest_start = vec![0; found.len()];
    for write in logs.iter().flatten() {
        if let Some(start) = latest_start.get_mut(write.key as usize) {
            *start = write.start_ns.max(*start);
        }
    }
    let lost = found.iter().zip(&latest_start).enumerate().filter_map(|(key, (value, latest))| {
        let why = lost(key as u32, value.as_deref(), *latest, logs, killed)?;
        Some(format!("key {key}: {why}"))
    });
    Verdict {
        lost: lost.collect(),
        acknowledged: logs.iter().map(|log| log.len() as u64).sum::<u64>() + found.len() as u64,
    }
}

fn lost(
    key: u32,
    value: Option<&[u8]>,
    latest_start: u64,
    logs: &[Vec<Acknowledged>],
    killed: Option<usize>,
) -> Option<String> {
    let Some(value) = value else { return Some("it has vanished".to_owned()) };
    let Some(tag) = Tag::parse(value) else {
        return Some("its value was never written".to_owned());
    };
    if tag.key != key {
        return Some(format!("it holds a value of key {}", tag.key));
    }
    let ended = if (tag.client, tag.number) == (LOADER, 0) {
        0
    } else {
        let client = tag.client as usize;
        let Some(log) = logs.get(client) else { return Some("an unknown client's value".into()) };
        let number = tag.number;
        match number.checked_sub(1).and_then(|at| log.get(usize::try_from(at).ok()?)) {
            Some(write) if write.key == key => write.end_ns,
            // The write that was under way when its client was killed: it never ended.
            None if killed == Some(client) && number == log.len() as u64 + 1 => return None,
            _ => return Some(format!("client {client} never made its write {number} there")),
        }
    };
    (latest_start > ended).then(|| {
        let by = latest_start - ended;
        format!("an acknowledged write, begun {by} ns after the found one had ended, is lost")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(client: u32, number: u64, key: u32) -> Option<Vec<u8>> {
        Some(Tag { client, number, key }.value().to_vec())
    }

    fn write(key: u32, start_ns: u64, end_ns: u64) -> Acknowledged {
        Acknowledged { key, start_ns, end_ns }
    }

    /// Two clients; key 0 has two writes of client 0, and one of client 1 that overlaps the second.
    fn logs() -> Vec<Vec<Acknowledged>> {
        vec![vec![write(0, 10, 20), write(0, 30, 50)], vec![write(0, 40, 60), write(1, 70, 80)]]
    }

    #[test]
    fn the_last_writes_are_found_in_either_order_if_they_overlap() {
        for last in [value(0, 2, 0), value(1, 1, 0)] {
            let verdict = judge(&[last, value(1, 2, 1), value(LOADER, 0, 2)], &logs(), None);
            assert!(verdict.lost.is_empty(), "{:?}", verdict.lost);
            assert_eq!(verdict.acknowledged, 4 + 3);
        }
    }

    #[test]
    fn every_kind_of_loss_is_seen() {
        let mut torn = value(0, 2, 0);
        torn.as_mut().expect("it is there")[40] ^= 1;
        for (bad, why) in [
            (value(0, 1, 0), "is lost"),
            (value(LOADER, 0, 0), "is lost"),
            (None, "vanished"),
            (torn, "never written"),
            (Some(Vec::new()), "never written"),
            (value(1, 2, 1), "of key 1"),
            (value(1, 2, 0), "never made"),
            (value(0, 3, 0), "never made"),
            (value(0, 0, 0), "never made"),
            (value(7, 1, 0), "unknown"),
        ] {
            let verdict = judge(&[bad], &logs(), Some(1));
            assert_eq!(verdict.lost.len(), 1, "expected: {why}");
            assert!(verdict.lost[0].contains(why), "{:?} is not: {why}", verdict.lost);
        }
    }

    #[test]
    fn a_killed_clients_last_write_may_be_there_or_not() {
        assert!(judge(&[value(0, 3, 0)], &logs(), Some(0)).lost.is_empty());
        assert!(judge(&[value(0, 2, 0)], &logs(), Some(0)).lost.is_empty());
        assert_eq!(judge(&[value(0, 4, 0)], &logs(), Some(0)).lost.len(), 1);
    }

    #[test]
    fn a_log_comes_back_without_its_torn_end() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("log");
        let mut log = Log::create(&path).expect("it is writable");
        for write in &logs()[0] {
            log.note(*write).expect("it is writable");
        }
        let mut bytes = std::fs::read(&path).expect("it is there");
        bytes.extend([1; RECORD_BYTES - 1]);
        std::fs::write(&path, &bytes).expect("it is writable");
        assert_eq!(Log::read(&path).expect("it is whole"), logs()[0]);
        bytes[0] ^= 1;
        std::fs::write(&path, &bytes).expect("it is writable");
        assert!(Log::read(&path).is_err());
    }
}
