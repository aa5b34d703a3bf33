//! What a `fork` copies and must not share: a client belongs to one process.
//!
//! A child has a copy of its parent's memory, with the parent's clients in it, and of its
//! descriptors, whose locks decide who owns a client slot.
//!
//! **Invariant (S7):** only the process that opened a client uses it and holds its slot. Two things
//! keep it:
//!
//! - an [`Origin`] shows a child that what it has is its parent's. It compares a word with the
//!   value it had when the client was opened. The word lies in a page that the kernel hands to
//!   every copy of this memory as zeros (`MADV_WIPEONFORK`), whichever call makes the copy;
//! - an [`OwnFile`] is a descriptor whose copy a child closes before `fork` returns there, in a
//!   handler (`pthread_atfork`). Without that, the lock would outlive the parent for as long as the
//!   child lives.
//!
//! The child of a multi-threaded process has one thread, while the others may have been anywhere.
//! So the handlers take no lock and allocate nothing; they access atomic words and call `close`.
//! `_Fork` and a bare `clone` run no handlers; their children close the copies when they drop the
//! client, call `exec`, or end. `posix_spawn` and `vfork` lead to `exec` at once, which closes the
//! copies as well, though a little after `posix_spawn` has returned.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::thread::sleep;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::files::range_lock::PAUSE;

/// How often a file is opened again because a fork ran at the same time.
const TRIES: usize = 50;
/// Bytes of the page with this process's word. The kernel rounds up to a whole page.
const PAGE: usize = 4096;

/// The page with this process's word; null until there is one.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The word, if there is no memory for a page.
static WITHOUT_PAGE: AtomicU64 = AtomicU64::new(0);
/// The last number that this process, or a process that it was copied from, has drawn.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The process in which a value was made. A forked child, which has a copy of the value, finds
/// that it is not that process.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    word: &'static AtomicU64,
    /// The word's value in that process.
    number: u64,
}

impl Origin {
    /// Returns the origin of this process.
    pub fn current() -> Self {
        let word = word();
        // Relaxed throughout: the word and the last number carry no other data. A child finds 0 in
        // the word, and draws no number that was drawn before it was made.
        let number = match word.load(Ordering::Relaxed) {
            0 => {
                let drawn = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                let first = word.compare_exchange(0, drawn, Ordering::Relaxed, Ordering::Relaxed);
                first.map_or_else(|there| there, |_| drawn)
            }
            number => number,
        };
        Self { word, number }
    }

    /// Returns an origin that is no process's: [`here`](Self::here) never draws this number.
    pub(crate) fn nowhere() -> Self {
        Self { word: word(), number: u64::MAX }
    }

    /// Returns a number that no process has that this one was copied from, and is not 0.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether this process is another one than the origin's: a copy of it.
    #[inline(always)]
    pub fn is_elsewhere(&self) -> bool {
        // Relaxed: only the kernel and the handler change it, before any thread can see it.
        self.word.load(Ordering::Relaxed) != self.number
    }
}

/// Returns this process's word.
fn word() -> &'static AtomicU64 {
    let known = WORD.load(Ordering::Acquire);
    let word = if known.is_null() { new_word() } else { known };
    // SAFETY: an installed word is a static one or lies at the beginning of a page that is never
    // unmapped, and is aligned. It is accessed through atomics alone.
    unsafe { &*word }
}

#[cold]
fn new_word() -> *mut AtomicU64 {
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses overlaps no other one.
    let page = unsafe { mmap_anonymous(ptr::null_mut(), PAGE, protection, flags) };
    let word = page.map_or(ptr::from_ref(&WITHOUT_PAGE).cast_mut(), |page| {
        // SAFETY: the page was mapped above, and no other thread knows of it. A kernel without this
        // advice leaves the zero to the fork handler.
        let _ = unsafe { madvise(page, PAGE, Advice::LinuxWipeOnFork) };
        page.cast()
    });
    let installed =
        WORD.compare_exchange(ptr::null_mut(), word, Ordering::AcqRel, Ordering::Acquire);
    let Err(first) = installed else { return word };
    if page.is_ok() {
        // SAFETY: the page was mapped above; another thread's was installed, and none knows of
        // this.
        let _ = unsafe { munmap(word.cast(), PAGE) };
    }
    first
}

/// How many calls of `fork` began, and how many of them ended.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of forks, or `None` while one is in progress. It reads the ended forks first,
/// and no fork ends before it begins: if the numbers are equal, none was in progress between the
/// two loads.
fn forks() -> Option<u64> {
    let ended = ENDED.load(Ordering::SeqCst);
    let begun = BEGUN.load(Ordering::SeqCst);
    (begun == ended).then_some(begun)
}

extern "C" fn before_fork() {
    BEGUN.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn in_parent() {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn in_child() {
    // What other threads had begun is not this process's.
    ENDED.store(BEGUN.load(Ordering::Relaxed), Ordering::SeqCst);
    // Null if no client was ever opened.
    let word = WORD.load(Ordering::Acquire);
    if !word.is_null() {
        // SAFETY: as in `word`.
        unsafe { &*word }.store(0, Ordering::Relaxed);
    }
    places().for_each(Place::close);
}

/// Registers the handlers once. Two threads at the same time may register them twice, which counts
/// each fork twice and changes nothing else.
fn watch_forks() -> io::Result<()> {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: the handlers are safe functions that do only what is allowed in a child with one of
    // several threads: atomic accesses and `close`.
    let refused =
        unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    if refused != 0 {
        return Err(io::Error::from_raw_os_error(refused));
    }
    WATCHED.store(true, Ordering::Release);
    Ok(())
}

/// An entry in which the handler finds a descriptor. Entries form a list that only grows, and are
/// reused.
struct Place {
    descriptor: AtomicI32,
    next: AtomicPtr<Place>,
}

/// The first entry.
static PLACES: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());
/// The entry is unused.
const FREE: i32 = -1;
/// The entry is in use, and has no descriptor yet or any more.
const EMPTY: i32 = -2;

/// Returns all entries.
fn places() -> impl Iterator<Item = &'static Place> {
    let at = |link: &AtomicPtr<Place>| {
        // SAFETY: an entry was leaked, and initialised before the release that this pairs with.
        unsafe { link.load(Ordering::Acquire).as_ref() }
    };
    std::iter::successors(at(&PLACES), move |place| at(&place.next))
}

impl Place {
    /// Takes an entry for one descriptor.
    fn take() -> &'static Self {
        let take = |place: &&Self| {
            let free =
                place.descriptor.compare_exchange(FREE, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
            free.is_ok()
        };
        places().find(take).unwrap_or_else(Self::add)
    }

    #[cold]
    fn add() -> &'static Self {
        let next = AtomicPtr::new(PLACES.load(Ordering::Acquire));
        let place = Box::into_raw(Box::new(Self { descriptor: AtomicI32::new(EMPTY), next }));
        // SAFETY: it was just made, and is never freed.
        let new: &'static Self = unsafe { &*place };
        let mut first = new.next.load(Ordering::Relaxed);
        while let Err(now) =
            PLACES.compare_exchange(first, place, Ordering::AcqRel, Ordering::Acquire)
        {
            new.next.store(now, Ordering::Relaxed);
            first = now;
        }
        new
    }

    /// Takes the descriptor out, if there is one. The thread that takes it closes it: so it is
    /// closed once, and its number, which may mean another file from then on, is not used again.
    fn empty(&self) -> Option<i32> {
        let descriptor = self.descriptor.load(Ordering::Acquire);
        let taken = descriptor >= 0
            && self
                .descriptor
                .compare_exchange(descriptor, EMPTY, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        taken.then_some(descriptor)
    }

    /// Closes the descriptor, if there is one.
    fn close(&self) {
        if let Some(descriptor) = self.empty() {
            // SAFETY: the thread that takes a descriptor out owns it; `OwnFile` relies on that as
            // well.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// An open file of which no child keeps a copy once `fork` has returned there.
#[derive(Debug)]
pub(crate) struct OwnFile {
    /// Closed by the thread that takes its descriptor out of the entry.
    file: ManuallyDrop<File>,
    _place: Held,
}

/// An entry in use.
struct Held(&'static Place);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.close();
        self.0.descriptor.store(FREE, Ordering::Release);
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.descriptor.fmt(f)
    }
}

impl OwnFile {
    /// Opens a file by `open`.
    ///
    /// A child that is made between the opening and the entry of the descriptor would keep its
    /// copy. If there may be such a child, the file is opened again: only then is anything locked
    /// (S7). Either `before_fork` runs after the second load of the count, so that the child finds
    /// the entry, or that load notices it. After [`TRIES`] forks in a row it gives up: then a
    /// child's copy may keep a client slot taken while the child lives, and nothing else is lost.
    ///
    /// # Errors
    /// Those of `open`; `refused` if the handlers cannot be registered.
    pub(crate) fn open<E>(
        open: impl Fn() -> Result<File, E>,
        refused: impl FnOnce(io::Error) -> E,
    ) -> Result<Self, E> {
        watch_forks().map_err(refused)?;
        let mut tries = 0;
        loop {
            tries += 1;
            let before = forks();
            let place = Held(Place::take());
            let file = ManuallyDrop::new(open()?);
            place.0.descriptor.store(file.as_raw_fd(), Ordering::SeqCst);
            let after = forks();
            if (before.is_some() && before == after) || tries == TRIES {
                return Ok(Self { file, _place: place });
            }
            drop(place);
            sleep(PAUSE);
        }
    }
}

impl Deref for OwnFile {
    type Target = File;

    /// Returns the file. Not for a child, whose copy is closed.
    fn deref(&self) -> &File {
        &self.file
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::{PipeReader, PipeWriter, Read, pipe};
    use std::time::Instant;

    use super::*;
    use crate::files::range_lock;

    /// Runs `act` in a child that `call` makes. Returns whether it returned true.
    fn is_so_in_a_child(call: impl FnOnce() -> i32, act: impl FnOnce() -> bool) -> bool {
        let child = call();
        assert!(child >= 0, "no child");
        if child == 0 {
            let is_so = act();
            // SAFETY: ends the child, without touching this process's state.
            unsafe { libc::_exit(i32::from(!is_so)) };
        }
        ended(child) == 0
    }

    fn fork() -> i32 {
        // SAFETY: the child does no more than these tests show, and ends by `_exit`.
        unsafe { libc::fork() }
    }

    /// Makes a child that no fork handler sees.
    fn bare_clone() -> i32 {
        let none = ptr::null::<u8>();
        // SAFETY: without flags it is a fork: the child has a copy of this memory and of the stack.
        let child = unsafe {
            libc::syscall(
                libc::SYS_clone,
                libc::c_long::from(libc::SIGCHLD),
                none,
                none,
                none,
                none,
            )
        };
        child as i32
    }

    /// Waits for the child's end and returns its status.
    fn ended(child: i32) -> i32 {
        let mut status = 0;
        // SAFETY: it is this test's child, and the status outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    }

    /// Makes a child that lives until the other end of `until` is closed.
    fn idle_child(until: (PipeReader, PipeWriter)) -> (i32, PipeWriter) {
        let (mut waits, end) = until;
        let child = fork();
        if child == 0 {
            drop(end);
            let _ = waits.read(&mut [0]);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        (child, end)
    }

    #[test]
    fn a_child_knows_that_it_is_one() {
        for call in [fork, bare_clone] {
            let parents = Origin::current();
            let is_so = is_so_in_a_child(call, || {
                let own = Origin::current();
                let childs = own.number != parents.number && !own.is_elsewhere();
                childs
                    && parents.is_elsewhere()
                    && is_so_in_a_child(call, || {
                        let next = Origin::current();
                        own.is_elsewhere() && parents.is_elsewhere() && !next.is_elsewhere()
                    })
            });
            assert!(is_so);
            assert!(!parents.is_elsewhere(), "it is where it was");
            assert_eq!(Origin::current().number, parents.number);
        }
    }

    fn refused(error: io::Error) -> io::Error {
        error
    }

    /// The child is made after the opening, and during it, when no handler can know of the
    /// descriptor.
    #[test]
    fn a_child_does_not_hold_a_lock_of_its_parents() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = || std::fs::OpenOptions::new().read(true).write(true).open(file.path());
        let is_locked = || range_lock::is_locked(file.as_file(), 0..8).expect("a look");
        for while_it_is_opened in [false, true] {
            let child = RefCell::new(None);
            let make_child = || *child.borrow_mut() = Some(idle_child(pipe().expect("a pipe")));
            let open = || {
                let opened = open();
                if while_it_is_opened && child.borrow().is_none() {
                    make_child();
                }
                opened
            };
            let opened = OwnFile::open(open, refused).expect("it is there");
            assert!(range_lock::try_lock(&opened, 0..8).expect("a lock"));
            if !while_it_is_opened {
                make_child();
            }
            assert!(is_locked(), "the child's handler leaves the parent's lock alone");
            // As when the parent dies: no one unlocks.
            drop(opened);
            // The handlers of this child, and of children of other tests, may still run.
            let since = Instant::now();
            while is_locked() {
                let held = since.elapsed().as_secs() >= 10;
                assert!(!held, "the child holds it: {while_it_is_opened}");
                sleep(PAUSE);
            }
            let (child, end) = child.take().expect("a child was made");
            drop(end);
            assert_eq!(ended(child), 0);
        }
    }

    /// By then the number is another file's.
    #[test]
    fn a_child_does_not_close_what_it_opened_under_the_same_number() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let own = OwnFile::open(|| File::open(file.path()), refused).expect("it is there");
        let number = own.as_raw_fd();
        let is_so = is_so_in_a_child(fork, || {
            let other = File::open(file.path()).expect("it is there");
            // SAFETY: the handler has closed the number, so nothing is open under it.
            let moved = unsafe { libc::dup2(other.as_raw_fd(), number) } == number;
            // SAFETY: only the child runs this, and it ends without using the value again.
            drop(unsafe { ptr::read(&raw const own) });
            // SAFETY: the call changes nothing, whatever the number stands for.
            moved && unsafe { libc::fcntl(number, libc::F_GETFD) } != -1
        });
        assert!(is_so);
        assert!(own.metadata().is_ok(), "the parent's is open");
    }
}
