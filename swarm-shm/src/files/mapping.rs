//! Files mapped into this process, as words.
//!
//! Mapped memory is shared with other processes, so it is only accessed as atomic words, never as
//! bytes. This is the only place that turns addresses into references.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};

use crate::error::Error;
use crate::files::pages::{HUGE_PAGE, Source};
use crate::sigbus::{self, Guard, Marks};
use crate::words::sync::{Ordering, Word, fence};

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The guard, if it is guarded. Declared before the mapping, which is unmapped after it.
    guard: Option<Guard>,
    raw: MmapRaw,
    words: usize,
    source: Source,
}

/// Bytes of a small page.
const PAGE: usize = 4096;
/// How often a mapping is tried at an address that allows huge pages.
const TRIES: usize = 4;

/// The access for which a pool's files are opened and mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Read only. A store to such a mapping ends the process by SIGSEGV.
    Read,
    /// Read and write.
    Write,
}

/// What the kernel may be asked to do with pages. None of it changes their contents.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Advice {
    /// Touch each of them, as a store does.
    PopulateWrite,
    /// Merge them into huge ones.
    Collapse,
}

/// Maps the first `length` bytes of `file`, if possible at a multiple of a huge page: elsewhere,
/// the kernel cannot map huge pages.
fn map(file: &File, length: usize, access: Access) -> io::Result<MmapRaw> {
    let mut beyond = 0;
    for _ in 0..TRIES {
        // A mapping ends where the next one begins: one that is longer by `beyond` begins where it
        // should, unless another thread maps something meanwhile. Its part past the file's end is
        // never touched.
        let raw = whole(file, length + beyond, access);
        let raw = if beyond == 0 { raw? } else { raw.or_else(|_| whole(file, length, access))? };
        let amiss = raw.as_ptr() as usize % HUGE_PAGE;
        if length < HUGE_PAGE || amiss == 0 {
            return Ok(raw);
        }
        beyond = (beyond + amiss) % HUGE_PAGE;
    }
    whole(file, length, access)
}

/// Maps `length` bytes at any address.
fn whole(file: &File, length: usize, access: Access) -> io::Result<MmapRaw> {
    let mut options = MmapOptions::new();
    match access {
        Access::Write => options.len(length).map_raw(file),
        Access::Read => options.len(length).map_raw_read_only(file),
    }
}

/// Keeps the pool's memory out of this process's core dumps. They omit files that exist anyway, but
/// would include all the memory of files that were removed.
fn spare_dumps(raw: &MmapRaw) {
    // SAFETY: the range is that of the mapping, and the advice does not change its contents. If the
    // kernel does not know it, dumps are large.
    let _ = unsafe { libc::madvise(raw.as_mut_ptr().cast(), raw.len(), libc::MADV_DONTDUMP) };
}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`, which is at least that long.
    pub(crate) fn new(file: &File, path: &Path, bytes: u64) -> Result<Arc<Self>, Error> {
        Self::open(file, path, bytes, Access::Write)
    }

    /// The same with this access.
    pub(crate) fn open(
        file: &File,
        path: &Path,
        bytes: u64,
        access: Access,
    ) -> Result<Arc<Self>, Error> {
        let length = usize::try_from(bytes)
            .map_err(|_| Error::unsuited(path, "it is larger than this machine's address space"))?;
        let raw = map(file, length, access).map_err(|error| Error::io(path, "map", error))?;
        spare_dumps(&raw);
        Ok(Arc::new(Self { guard: None, raw, words: length / 8, source: Source::of(file) }))
    }

    /// The same; if its memory is gone, that does not end the process, but the mapping [is
    /// lost](Self::is_lost).
    pub(crate) fn guarded(
        file: &File,
        path: &Path,
        bytes: u64,
        access: Access,
        marks: Marks,
    ) -> Result<Arc<Self>, Error> {
        sigbus::install().map_err(|error| Error::io(path, "handle SIGBUS for", error))?;
        let mut mapping = Self::open(file, path, bytes, access)?;
        let own = Arc::get_mut(&mut mapping).expect("nobody else has it yet");
        let start = own.start() as usize;
        own.guard = Some(Guard::over(start..start + own.bytes(), marks));
        Ok(mapping)
    }

    /// Returns whether some of its memory was found gone, and other pages replace all of it. What
    /// was loaded from it counts only if this returns `false` after the loads and a fence (S11).
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }

    /// Refuses a [lost](Self::is_lost) mapping of `file`. Call it after loading from it (S11).
    ///
    /// # Errors
    /// What is wrong with the file.
    pub(crate) fn check(&self, file: &File, path: &Path) -> Result<(), Error> {
        fence(Ordering::SeqCst);
        if !self.is_lost() {
            return Ok(());
        }
        let (path, expected) = (path.to_path_buf(), self.bytes() as u64);
        // A device's length would not show it.
        match file.metadata() {
            Ok(metadata) if metadata.is_file() && metadata.len() < expected => {
                Err(Error::Length { file: path, found: metadata.len(), expected })
            }
            _ => Err(Error::MemoryLost { file: path }),
        }
    }

    /// Returns its length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.words * 8
    }

    /// Returns where its pages come from.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

    /// Returns its address in this process's memory.
    pub(crate) fn start(&self) -> *mut u8 {
        self.raw.as_mut_ptr()
    }

    /// Returns all of its words.
    pub(crate) fn words(&self) -> &[Word] {
        // SAFETY: the mapping is page-aligned, readable, `words * 8` bytes long, and lives as long
        // as `self`. If it is not writable, only a mistaken store would hit it, which ends the
        // process. This process accesses it through atomics alone. Other processes change it as a
        // device would: any value of a word is a valid `u64`. If the file is cut short, touching
        // the missing pages ends the process (SIGBUS), which is not undefined behaviour, or the
        // handler replaces them (`sigbus`).
        unsafe { slice::from_raw_parts(self.raw.as_ptr().cast::<Word>(), self.words) }
    }

    /// Loads the words of an array, one by one.
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

    /// Has the file's first page, its header, written to the disk, if it is on one.
    pub(crate) fn sync_header(&self) -> io::Result<()> {
        // SAFETY: the bytes lie within the mapping, which begins with a page. They are written as
        // they are, and stay so.
        let answer =
            unsafe { libc::msync(self.start().cast(), self.bytes().min(PAGE), libc::MS_SYNC) };
        match io::Error::last_os_error() {
            // A device is memory, and knows of nothing to write.
            error if answer != 0 && error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives the kernel advice on the pages of these bytes, which begin with a page.
    pub(crate) fn advise(&self, bytes: Range<usize>, advice: Advice) -> io::Result<()> {
        assert!(bytes.start <= bytes.end && bytes.end <= self.bytes(), "not within the mapping");
        let advice = match advice {
            Advice::PopulateWrite => libc::MADV_POPULATE_WRITE,
            Advice::Collapse => libc::MADV_COLLAPSE,
        };
        // SAFETY: the bytes lie within the mapping, whose memory is accessed as atomic words alone.
        // The advice changes where its contents lie in physical memory, which no access can observe
        // (`pages` says when that is true). If it fails, nothing changes. A missing page is an
        // error here, not a SIGBUS.
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

/// A mapping's words from some word on, kept ready so that the data path finds them in one step:
/// all of them, of whichever mapping it is at present, or an array, of which a constant index takes
/// no bounds check.
#[derive(Debug)]
pub(crate) struct Window<W: ?Sized + 'static = [Word]> {
    words: Cell<&'static W>,
    mapping: RefCell<Option<Arc<Mapping>>>,
    first: usize,
}

impl<const N: usize> Window<[Word; N]> {
    /// Returns the `N` words of `mapping` from `first` on.
    ///
    /// # Panics
    /// The mapping has fewer.
    pub(crate) fn few(mapping: &Arc<Mapping>, first: usize) -> Self {
        let words =
            mapping.words()[first..].first_chunk::<N>().expect("a mapping with these words");
        // SAFETY: the window holds the mapping for as long as it lives, and lends the words out for
        // no longer.
        let words = unsafe { &*core::ptr::from_ref(words) };
        Self { words: Cell::new(words), mapping: RefCell::new(Some(Arc::clone(mapping))), first }
    }
}

impl Window {
    /// Returns the words of `mapping` from `first` on.
    pub(crate) fn new(mapping: &Arc<Mapping>, first: usize) -> Self {
        let window = Self::empty(first);
        // SAFETY: nobody has the window yet.
        unsafe { window.change(Some(mapping)) };
        window
    }

    /// Returns a window without words.
    pub(crate) fn empty(first: usize) -> Self {
        Self { words: Cell::new(&[]), mapping: RefCell::new(None), first }
    }

    /// Goes on with the words of another mapping, or with none.
    ///
    /// # Safety
    /// None of the [words](Self::words) that the window has lent is used any more.
    pub(crate) unsafe fn change(&self, mapping: Option<&Arc<Mapping>>) {
        let words = mapping.map_or(&[][..], |mapping| &mapping.words()[self.first..]);
        // SAFETY: the window holds the mapping until it is changed again or dropped, and lends the
        // words out for no longer: the caller sees to the former, the borrow to the latter.
        self.words.set(unsafe { slice::from_raw_parts(words.as_ptr(), words.len()) });
        // Behind that: the former mapping may end here.
        drop(self.mapping.replace(mapping.map(Arc::clone)));
    }
}

impl<W: ?Sized> Window<W> {
    /// Returns the words.
    #[inline(always)]
    pub(crate) fn words(&self) -> &W {
        self.words.get()
    }

    /// Returns whether the mapping [is lost](Mapping::is_lost).
    #[cold]
    #[inline(never)]
    pub(crate) fn is_lost(&self) -> bool {
        self.mapping.borrow().as_ref().is_some_and(|mapping| mapping.is_lost())
    }
}
