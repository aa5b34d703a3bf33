//! Files mapped into this process, as words.
//!
//! Mapped memory is shared with other processes, so it is only ever seen as atomic words, never as
//! bytes. This is the only place that turns addresses into references.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use crate::error::Error;
use crate::pages::{HUGE_PAGE, Source};
use crate::sync::{Ordering, Word};

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapping {
    raw: MmapRaw,
    words: usize,
    source: Source,
}

/// So often a mapping is tried to be had where huge pages can be.
const TRIES: usize = 4;

/// What the kernel may be asked to do with pages. None of it changes what they hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Advice {
    /// Touch each of them, as a store does.
    PopulateWrite,
    /// Put them together to huge ones.
    Collapse,
}

/// Maps the first `length` bytes of `file`, where possible from a multiple of a huge page on:
/// elsewhere, the kernel cannot map huge pages.
fn map(file: &File, length: usize) -> io::Result<MmapRaw> {
    let mut beyond = 0;
    for _ in 0..TRIES {
        // Mappings end where the next one begins: one that is longer by so much begins where it should, unless
        // another thread maps something meanwhile. What it has behind the file's end is never touched.
        let raw = MmapOptions::new().len(length + beyond).map_raw(file);
        let raw = if beyond == 0 { raw? } else { raw.or_else(|_| whole(file, length))? };
        let amiss = raw.as_ptr() as usize % HUGE_PAGE;
        if length < HUGE_PAGE || amiss == 0 {
            return Ok(raw);
        }
        beyond = (beyond + amiss) % HUGE_PAGE;
    }
    whole(file, length)
}

/// Maps as much, wherever that is.
fn whole(file: &File, length: usize) -> io::Result<MmapRaw> {
    MmapOptions::new().len(length).map_raw(file)
}

/// Keeps the pool's memory out of this process's core dumps. While the files are there it is not in them anyhow, but that of files
/// that were removed would be, all of it.
fn spare_dumps(raw: &MmapRaw) {
    // SAFETY: the range is that of the mapping, and the advice changes nothing that it holds. Where the kernel does not know it, dumps
    // are large.
    let _ = unsafe { libc::madvise(raw.as_mut_ptr().cast(), raw.len(), libc::MADV_DONTDUMP) };
}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`, which is at least that long.
    pub(crate) fn new(file: &File, path: &Path, bytes: u64) -> Result<Arc<Self>, Error> {
        let length = usize::try_from(bytes)
            .map_err(|_| Error::unsuited(path, "it is larger than this machine's address space"))?;
        let raw = map(file, length).map_err(|error| Error::io(path, "map", error))?;
        spare_dumps(&raw);
        Ok(Arc::new(Self { raw, words: length / 8, source: Source::of(file) }))
    }

    /// How long it is, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.words * 8
    }

    /// Where its pages come from.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Where it begins in this process's memory.
    pub(crate) fn start(&self) -> *mut u8 {
        self.raw.as_mut_ptr()
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

    /// Asks the kernel for something about the pages of these bytes, which begin with a page.
    pub(crate) fn advise(&self, bytes: Range<usize>, advice: Advice) -> io::Result<()> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes(), "not within the mapping");
        let advice = match advice {
            Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
            Advice::Collapse => libc::MADV_COLLAPSE,
        };
        // SAFETY: the bytes lie within the mapping, whose memory is seen as atomic words alone. The advice changes
        // where its contents lie in physical memory, and nothing that anybody could see (`pages` says of what that is true).
        // Where it fails, all is as before. A page that is missing is an error here, and no SIGBUS.
        let answer =
            unsafe { libc::madvise(self.start().add(bytes.start).cast(), bytes.len(), advice) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
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
