//! SIGBUS: what a process does about mapped memory that is gone.
//!
//! A process that cuts a file short takes its pages from all processes that map it. Failing memory
//! does the same, and so does a file system without room for what it promised. A process that
//! touches such a page ends by SIGBUS. Here the mapping is *lost* instead: a handler puts other
//! pages in its place, so that the access ends, and code that checks after the access learns that
//! what it read is void.
//!
//! The new pages read as zeros, and zeros mean something in a node: a cell that was never written,
//! a slot that is empty. So everything rests on this. **Invariant (S11):** a mapping is marked as
//! lost before other pages are in its place, and what was loaded from it counts only if a check
//! *after* the loads finds no such mark. A thread that loads from the new pages finds them in the
//! page table, which was changed after the mark was stored; a fence after the loads keeps the check
//! after them. The whole mapping is replaced at once, never one page of it: of two successive
//! loads, either both are the file's, or the later one is not.
//!
//! The handler walks a list of mappings: it takes no lock, allocates nothing and calls only what a
//! handler may call. A fault that concerns no mapping in the list goes to the previous handler. A
//! thread that faults holds its mapping, which is thus mapped and in the list until the handler
//! returns. A forked child has copies of the list, the handler and the mappings, and loses only its
//! own copies.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, compiler_fence, fence,
};

/// Whether any mapping of this process was ever lost: one check for all mappings.
static ANY: AtomicBool = AtomicBool::new(false);

/// The first entry of the list of guarded mappings.
static FIRST: AtomicPtr<Guarded> = AtomicPtr::new(ptr::null_mut());

/// An entry of the list, for one mapping. Entries are never freed, and are reused.
#[derive(Debug)]
struct Guarded {
    /// Odd while the entry is free or being filled or emptied; it changes each time.
    version: AtomicU64,
    start: AtomicUsize,
    /// One past its last byte.
    end: AtomicUsize,
    /// Its [`Marks`].
    mark: [AtomicU64; MARKS * 2],
    is_lost: AtomicBool,
    /// Whether the entry is in use.
    is_taken: AtomicBool,
    next: AtomicPtr<Guarded>,
}

/// The maximum number of words that differ from zero.
const MARKS: usize = 2;

/// The words of a lost mapping's new pages that are not zero: index and value.
pub(crate) type Marks = [(usize, u64); MARKS];

/// Zeros alone.
pub(crate) const NO_MARKS: Marks = [(0, 0); MARKS];

/// A guarded mapping. Dropped before it is unmapped.
#[derive(Debug)]
pub(crate) struct Guard(&'static Guarded);

/// Returns whether any mapping was lost in this process. Ask after the loads from mapped memory,
/// with a fence in between.
#[inline(always)]
pub(crate) fn any_lost() -> bool {
    // Relaxed: the caller's fence precedes it.
    ANY.load(Ordering::Relaxed)
}

impl Guard {
    /// Guards the bytes of `range`, which begin with a page and are mapped by the caller. `marks`:
    /// the words of the pages that would replace them.
    pub(crate) fn over(range: Range<usize>, marks: Marks) -> Self {
        let place = places().find(|place| !place.is_taken.swap(true, Ordering::Acquire));
        let place = place.unwrap_or_else(add);
        place.is_lost.store(false, Ordering::Relaxed);
        place.start.store(range.start, Ordering::Relaxed);
        place.end.store(range.end, Ordering::Relaxed);
        for (at, (word, value)) in place.mark.chunks(2).zip(marks) {
            at[0].store(word as u64, Ordering::Relaxed);
            at[1].store(value, Ordering::Relaxed);
        }
        // Even. Release: a load of this version also sees all that was stored before it.
        place.version.fetch_add(1, Ordering::Release);
        Self(place)
    }

    /// Returns whether the mapping is lost. Ask as with [`any_lost`].
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.0.is_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Odd, before the entry is reused: a reader of other bounds notices.
        self.0.version.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        self.0.is_taken.store(false, Ordering::Release);
    }
}

fn places() -> impl Iterator<Item = &'static Guarded> {
    let at = |link: &AtomicPtr<Guarded>| {
        // SAFETY: an entry was leaked, and initialised before the release that this pairs with.
        unsafe { link.load(Ordering::Acquire).as_ref() }
    };
    std::iter::successors(at(&FIRST), move |place| at(&place.next))
}

/// Adds an entry, which is in use.
#[cold]
fn add() -> &'static Guarded {
    let place: &'static Guarded = Box::leak(Box::new(Guarded {
        version: AtomicU64::new(1),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        mark: [const { AtomicU64::new(0) }; MARKS * 2],
        is_lost: AtomicBool::new(false),
        is_taken: AtomicBool::new(true),
        next: AtomicPtr::new(FIRST.load(Ordering::Acquire)),
    }));
    let new = ptr::from_ref(place).cast_mut();
    let mut first = place.next.load(Ordering::Relaxed);
    while let Err(now) = FIRST.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
        place.next.store(now, Ordering::Relaxed);
        first = now;
    }
    place
}

impl Guarded {
    /// Returns the mapping of this entry, if `address` lies in it.
    fn holds(&self, address: usize) -> Option<Range<usize>> {
        let before = self.version.load(Ordering::Acquire);
        let (start, end) = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        // Before the second load of the version: pairs with the one after its change.
        fence(Ordering::Acquire);
        let is_stable = before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before;
        // An entry that changes is not that of the mapping that this thread holds.
        (is_stable && (start..end).contains(&address)).then_some(start..end)
    }

    /// Marks the mapping as lost, and then lets `replace` put other pages in its place. Returns
    /// whether it did.
    fn lose(&self, replace: impl FnOnce() -> bool) -> bool {
        // S11: first, and by each thread that gets here: another one may be about to store it.
        self.is_lost.store(true, Ordering::SeqCst);
        ANY.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        replace()
    }

    /// Puts other pages in place of `range`, all at once. Returns whether it did.
    fn replace(&self, range: &Range<usize>) -> bool {
        let (there, bytes) = (range.start as *mut c_void, range.end - range.start);
        let marks = self.mark.chunks(2).map(|mark| {
            (mark[0].load(Ordering::Relaxed) as usize, mark[1].load(Ordering::Relaxed))
        });
        let mut marks = marks.filter(|&(word, value)| value != 0 && word < bytes / 8).peekable();
        if marks.peek().is_none() {
            return zeros(there, bytes, libc::MAP_FIXED) == there;
        }
        // No thread may find the pages without their marks.
        let pages = zeros(ptr::null_mut(), bytes, 0);
        if pages == libc::MAP_FAILED {
            return false;
        }
        for (word, value) in marks {
            // SAFETY: the word lies within the pages, which no other thread knows of, and is
            // aligned.
            unsafe { pages.cast::<u64>().add(word).write(value) };
        }
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the range is a mapping of this process that this thread holds while it is in the
        // handler. It is accessed as atomic words alone, of which any value is valid.
        let moved = unsafe { libc::mremap(pages, bytes, bytes, how, there) };
        if moved != there {
            // SAFETY: as above; it was not moved.
            unsafe { libc::munmap(pages, bytes) };
        }
        moved == there
    }
}

/// Maps pages of zeros: where the kernel likes, or, with `MAP_FIXED`, at `there`, which is a
/// mapping that this thread holds.
fn zeros(there: *mut c_void, bytes: usize, fixed: c_int) -> *mut c_void {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // They take memory only if written to, which is rare once the mapping is known to be lost.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a new mapping overlaps no other one, and a replaced one is accessed as atomic words
    // alone, of which any value is valid.
    unsafe { libc::mmap(there, bytes, protection, flags, -1, 0) }
}

/// The previous handler.
struct Earlier {
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
    /// Whether `action` is filled in: handlers may read it then.
    is_set: AtomicBool,
    /// Whether a thread has begun to fill it in.
    is_begun: AtomicBool,
}

// SAFETY: only the thread that sets `is_begun` writes, before `is_set`; readers check `is_set`.
unsafe impl Sync for Earlier {}

static EARLIER: Earlier = Earlier {
    action: UnsafeCell::new(MaybeUninit::uninit()),
    is_set: AtomicBool::new(false),
    is_begun: AtomicBool::new(false),
};

impl Earlier {
    fn set(&self, action: libc::sigaction) {
        if !self.is_begun.swap(true, Ordering::AcqRel) {
            // SAFETY: no thread reads it before `is_set`, and no other thread writes it.
            unsafe { self.action.get().write(MaybeUninit::new(action)) };
            self.is_set.store(true, Ordering::Release);
        }
    }

    fn get(&self) -> Option<libc::sigaction> {
        let is_set = self.is_set.load(Ordering::Acquire);
        // SAFETY: it was written before `is_set`, and is not written again.
        is_set.then(|| unsafe { (*self.action.get()).assume_init() })
    }
}

/// Installs the handler before the previous one, once. Two threads at the same time install the
/// same one.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: AtomicBool = AtomicBool::new(false);
    if INSTALLED.load(Ordering::Acquire) {
        return Ok(());
    }
    let there = ask(None)?;
    let own = on_sigbus as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    if there.sa_sigaction != own as libc::sighandler_t {
        EARLIER.set(there);
        let mut action = there;
        action.sa_sigaction = own as libc::sighandler_t;
        // On the alternate signal stack, if threads have one: the previous handler may need it. The
        // mask, SA_RESTART and SA_NODEFER stay as they were for that one. SA_RESETHAND does not: it
        // would remove this handler after its first call.
        action.sa_flags &= libc::SA_RESTART | libc::SA_NODEFER;
        action.sa_flags |= libc::SA_SIGINFO | libc::SA_ONSTACK;
        ask(Some(&action))?;
    }
    INSTALLED.store(true, Ordering::Release);
    Ok(())
}

/// Sets the action for SIGBUS, if `action` is given. Returns the previous one.
fn ask(action: Option<&libc::sigaction>) -> io::Result<libc::sigaction> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    let action = action.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both are valid or null, and outlive the call. The handler that is installed is
    // `on_sigbus`.
    if unsafe { libc::sigaction(libc::SIGBUS, action, before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it in.
    Ok(unsafe { before.assume_init() })
}

/// The handler.
extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: this thread's, for as long as it runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    // SAFETY: the kernel passes the signal's information to a handler with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    // A signal that a process sent has no address. Memory that failed and that no thread has touched yet has one, but this
    // thread does not hold its mapping: it is met when a thread touches it.
    let is_fault = code > 0 && code != libc::BUS_MCEERR_AO;
    let is_ours = is_fault && {
        // SAFETY: as above; the kernel's own SIGBUS has an address.
        let address = unsafe { (*info).si_addr() } as usize;
        places().find_map(|place| Some((place, place.holds(address)?))).is_some_and(
            |(place, range)| {
                let is_replaced = place.lose(|| place.replace(&range));
                // What this thread loads next, it loads from the new pages.
                compiler_fence(Ordering::SeqCst);
                is_replaced
            },
        )
    };
    if !is_ours {
        pass_on(signal, info, context, is_fault);
    }
    // SAFETY: as above.
    unsafe { *errno = before };
}

/// Does what would happen without this handler. `is_fault`: the faulting access is retried after
/// it.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, is_fault: bool) {
    let earlier = EARLIER.get();
    let (handler, flags) =
        earlier.map_or((libc::SIG_DFL, 0), |action| (action.sa_sigaction, action.sa_flags));
    match handler {
        // A fault is not ignored: the process ends, as it does without a handler.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeros is a valid action, the default one. It ends the process.
            unsafe {
                let action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
            // A fault recurs; a signal that was sent does not. It arrives when this handler
            // returns.
            if !is_fault {
                // SAFETY: it may be called in handlers.
                unsafe { libc::raise(signal) };
            }
        }
        _ if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed as such a function.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        _ => {
            // SAFETY: it was installed as such a function.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(range: Range<usize>) -> Guard {
        Guard::over(range, NO_MARKS)
    }

    fn holds(address: usize) -> bool {
        places().any(|place| place.holds(address).is_some())
    }

    /// A thread that finds the new pages also finds the mark: it is not a matter of time.
    #[test]
    fn a_mapping_reports_that_it_is_lost_before_others_are_in_its_place() {
        let guard = guard(4096..8192);
        assert!(!guard.is_lost());
        let mut seen = None;
        guard.0.lose(|| {
            seen = Some((any_lost(), guard.is_lost()));
            true
        });
        assert_eq!(seen, Some((true, true)));
    }

    /// These addresses are never mapped: they lie in the first page.
    #[test]
    fn places_are_used_again_and_show_nothing_of_their_former_users() {
        for _ in 0..100 {
            let (first, second) = (guard(64..128), guard(256..512));
            assert!(holds(64) && holds(127) && holds(256) && holds(511));
            assert!(!holds(63) && !holds(128) && !holds(512));
            first.0.lose(|| true);
            drop(first);
            assert!(!holds(64) && !second.is_lost());
            let third = guard(600..700);
            assert!(!third.is_lost() && holds(650) && !holds(100));
        }
        // Other tests use some at the same time.
        assert!(places().count() < 100, "no more places than were needed at a time");
    }
}
