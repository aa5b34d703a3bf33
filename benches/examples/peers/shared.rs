//! Memory that processes share, as words, and what the tables in it have in common.

use std::fs::File;
use std::path::Path;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use xxhash_rust::xxh3::xxh3_64;

use crate::Result;
use crate::work::{Key, Value};

pub(crate) const KEY_WORDS: usize = 3;
pub(crate) const VALUE_WORDS: usize = 8;
/// Words of a slot of either table: two lines, with one word of its own, key and value.
pub(crate) const SLOT: usize = 16;

/// A mapped file.
pub(crate) struct Shared(MmapRaw);

impl Shared {
    /// One of so many words, all of which are zero.
    pub(crate) fn create(path: &Path, words: usize) -> Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(8 * words as u64)?;
        Ok(Self(MmapOptions::new().map_raw(&file)?))
    }

    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self(MmapOptions::new().map_raw(&file)?))
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to pages, can be written, is so long, and lives as long as `self`. Processes touch
        // it by atomics alone, but for mutexes, which are the C library's.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() / 8) }
    }
}

pub(crate) fn hash(key: &Key) -> u64 {
    xxh3_64(key)
}

fn words_of<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|at| u64::from_le_bytes(words[at]))
}

/// Whether a slot is this key's.
#[inline]
pub(crate) fn is(slot: &[AtomicU64], key: &Key) -> bool {
    let words: [u64; KEY_WORDS] = words_of(key);
    slot[1..].iter().zip(words).all(|(word, of_key)| word.load(Ordering::Relaxed) == of_key)
}

pub(crate) fn name(slot: &[AtomicU64], key: &Key) {
    let words: [u64; KEY_WORDS] = words_of(key);
    slot[1..].iter().zip(words).for_each(|(word, of_key)| word.store(of_key, Ordering::Relaxed));
}

#[inline]
pub(crate) fn load(slot: &[AtomicU64], value: &mut Value) {
    for (word, bytes) in slot[1 + KEY_WORDS..].iter().zip(value.as_chunks_mut::<8>().0) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
}

#[inline]
pub(crate) fn store(slot: &[AtomicU64], value: &Value) {
    let words: [u64; VALUE_WORDS] = words_of(value);
    let places = &slot[1 + KEY_WORDS..];
    places.iter().zip(words).for_each(|(word, of_value)| word.store(of_value, Ordering::Relaxed));
}
