//! The values of the demo's clients, and their logs of acknowledged writes.
//!
//! A value names its client, the number of the write, and the key. Each client keeps a log of its
//! acknowledged writes with their start and end times. It logs a write before its next operation
//! begins, and the log survives the client.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::Failure;

/// Bytes of a value.
pub const VALUE_BYTES: usize = 64;
/// The client number of the loader, whose writes have number 0.
pub const LOADER: u32 = u32::MAX;

const RECORD_BYTES: usize = 32;

/// A write, as encoded in its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// The client that wrote it, or [`LOADER`].
    pub client: u32,
    /// The number of the client's write, from 1.
    pub number: u64,
    /// The key that it was written to.
    pub key: u32,
}

impl Tag {
    /// Returns the value: the tag, and words that are derived from it.
    pub fn value(self) -> [u8; VALUE_BYTES] {
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

    /// Decodes a value. Returns `None` unless it is an intact one of these.
    pub fn parse(value: &[u8]) -> Option<Self> {
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
pub struct Acknowledged {
    /// The key that it was written to.
    pub key: u32,
    /// When it began, in nanoseconds.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

/// A client's log of its acknowledged writes.
pub struct Log {
    file: File,
    number: u64,
}

impl Log {
    /// Creates an empty log.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::create(path)?, number: 0 })
    }

    /// Returns the number of the next write.
    pub fn next(&self) -> u64 {
        self.number + 1
    }

    /// Logs an acknowledged write. The kernel has the record when this returns.
    pub fn note(&mut self, write: Acknowledged) -> io::Result<()> {
        self.number += 1;
        let words = [self.number, u64::from(write.key), write.start_ns, write.end_ns];
        let mut record = [0; RECORD_BYTES];
        for (bytes, word) in record.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        self.file.write_all(&record)
    }

    /// Reads a log. An incomplete record at the end does not count.
    pub fn read(path: &Path) -> Result<Vec<Acknowledged>, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn writes() -> Vec<Acknowledged> {
        let write = |key, start_ns, end_ns| Acknowledged { key, start_ns, end_ns };
        vec![write(0, 10, 20), write(0, 30, 50)]
    }

    #[test]
    fn a_log_comes_back_without_its_torn_end() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let path = directory.path().join("log");
        let mut log = Log::create(&path).expect("it is writable");
        for write in writes() {
            log.note(write).expect("it is writable");
        }
        let mut bytes = std::fs::read(&path).expect("it is there");
        bytes.extend([1; RECORD_BYTES - 1]);
        std::fs::write(&path, &bytes).expect("it is writable");
        assert_eq!(Log::read(&path).expect("it is whole"), writes());
        bytes[0] ^= 1;
        std::fs::write(&path, &bytes).expect("it is writable");
        assert!(Log::read(&path).is_err());
    }
}
