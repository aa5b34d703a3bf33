//! Files mapped into this process, as words.
//!
//! Mapped memory is shared with other processes, so it is only ever seen as atomic words, never as
//! bytes. This is the only place that turns addresses into references.

use std::fs::File;
use std::io;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::error::Error;
use crate::sync::{Ordering, Word};

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapping {
    raw: MmapRaw,
    words: usize,
}

/// A huge page.
const HUGE_PAGE: usize = 2 << 20;

/// Maps the first `length` bytes of `file`, where possible from a multiple of a huge page on:
/// elsewhere, the kernel cannot map huge pages.
fn map(file: &File, length: usize) -> io::Result<MmapRaw> {
    let raw = MmapOptions::new().len(length).map_raw(file)?;
    let beyond = raw.as_ptr() as usize % HUGE_PAGE;
    if length < HUGE_PAGE || beyond == 0 {
        return Ok(raw);
    }
    // Mappings end where the next one begins: one that is longer by so much begins where it should.
    // What it has behind the file's end is never touched.
    drop(raw);
    match MmapOptions::new().len(length + beyond).map_raw(file) {
        Ok(raw) => Ok(raw),
        Err(_) => MmapOptions::new().len(length).map_raw(file),
    }
}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`, which is at least that long.
    pub(crate) fn new(file: &File, path: &Path, bytes: u64) -> Result<Arc<Self>, Error> {
        let length = usize::try_from(bytes)
            .map_err(|_| Error::unsuited(path, "it is larger than this machine's address space"))?;
        let raw = map(file, length).map_err(|error| Error::io(path, "map", error))?;
        Ok(Arc::new(Self { raw, words: length / 8 }))
    }

    /// All of its words.
    pub(crate) fn words(&self) -> &[Word] {
        // SAFETY: the mapping is page-aligned, readable and writable, `words * 8` bytes long, and
        // lives as long as `self`. This process touches it through atomics alone. What other
        // processes do to it is like what a device does: any value of a word is a valid `u64`.
        // Should somebody cut the file short, touching the missing pages ends the process
        // (SIGBUS), which is not undefined behaviour.
        unsafe { slice::from_raw_parts(self.raw.as_ptr().cast::<Word>(), self.words) }
    }

    /// The words of an array, one by one.
    pub(crate) fn load<const N: usize>(&self, at: usize) -> [u64; N] {
        let words = &self.words()[at..at + N];
        std::array::from_fn(|index| words[index].load(Ordering::Relaxed))
    }

    /// Stores `values` from word `at` on.
    pub(crate) fn store(&self, at: usize, values: &[u64]) {
        for (word, &value) in self.words()[at..at + values.len()].iter().zip(values) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Enters every page into this process's page tables, as huge ones where the kernel can put
    /// them together: with small ones, each access to a place of its own is also a miss of the
    /// processor's page tables. The first time takes as long as copying the file a few times.
    pub(crate) fn populate(&self) {
        let whole = self.words * 8 / HUGE_PAGE * HUGE_PAGE;
        // SAFETY: the range lies within the mapping. The advice changes where its contents lie in
        // physical memory, and nothing that anybody could see. Where it fails, all is as before.
        let _ = unsafe { libc::madvise(self.raw.as_mut_ptr().cast(), whole, libc::MADV_COLLAPSE) };
        // Whatever comes of it, the pages come in one by one when they are touched.
        drop(self.raw.advise(Advice::PopulateWrite));
    }

    /// Stores zero in every word.
    pub(crate) fn clear(&self) {
        for word in self.words() {
            word.store(0, Ordering::Relaxed);
        }
    }
}

/// A mapping's words from some word on, kept at hand so that the data path finds them in one step.
#[derive(Debug)]
pub(crate) struct Window {
    words: &'static [Word],
    _mapping: Option<Arc<Mapping>>,
}

impl Window {
    /// The words of `mapping` from `first` on.
    pub(crate) fn new(mapping: &Arc<Mapping>, first: usize) -> Self {
        let words = &mapping.words()[first..];
        // SAFETY: the window holds the mapping for as long as it lives, and hands the words out
        // for no longer than it lives itself.
        let words = unsafe { slice::from_raw_parts(words.as_ptr(), words.len()) };
        Self { words, _mapping: Some(Arc::clone(mapping)) }
    }

    /// No words.
    pub(crate) fn empty() -> Self {
        Self { words: &[], _mapping: None }
    }

    /// The words.
    #[inline(always)]
    pub(crate) fn words(&self) -> &[Word] {
        self.words
    }
}
