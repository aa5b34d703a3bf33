//! Sleeping until a key changes: the kernel's futexes on the [wait words](crate::words::waits) of the
//! control file.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex;

use crate::files::control;
use crate::files::mapping::Mapping;
use crate::pool::Pool;
use crate::words::sync::Word;
use crate::words::waits;

/// Where a process's threads sleep until keys of a pool change.
///
/// A wake is a hint: it may be for another key, and it is missing where the client that changed the
/// key died before it. So a client that waits looks again by itself every so often.
#[derive(Clone, Debug)]
pub struct WaitWords(Arc<Mapping>);

impl Pool {
    /// Returns where this process's threads sleep until keys change: `None` if the pool was opened to
    /// read only.
    pub fn wait_words(&self) -> Option<WaitWords> {
        (!self.is_read_only()).then(|| WaitWords(Arc::clone(self.control().mapping())))
    }
}

impl WaitWords {
    fn word(&self, hash: u64) -> &Word {
        &self.0.words()[control::WAIT_WORDS..][waits::place_of(hash)]
    }

    /// Records that this thread waits for a change of a key with this hash. Returns what [`wait`](Self::wait) takes:
    /// it does not sleep if the key changes after this.
    #[must_use]
    pub fn prepare(&self, hash: u64) -> u32 {
        waits::prepare(self.word(hash))
    }

    /// Sleeps until a key with this hash has changed since [`prepare`](Self::prepare), or for so long at most.
    pub fn wait(&self, hash: u64, prepared: u32, longest: Duration) {
        let longest = rustix::time::Timespec {
            tv_sec: longest.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: longest.subsec_nanos().into(),
        };
        // A signal, a time that is over, another word by now: all the same to a client that looks again.
        let _: Result<(), Errno> =
            futex::wait(lower(self.word(hash)), futex::Flags::empty(), prepared, Some(&longest));
    }
}

/// Wakes those that wait at this word.
#[cold]
#[inline(never)]
pub(crate) fn wake(word: &Word) {
    waits::release(word);
    // Of a lost control file nobody waits (`sigbus`).
    let _: Result<usize, Errno> =
        futex::wake(lower(word), futex::Flags::empty(), i32::MAX.unsigned_abs());
}

/// Returns a word's lower half.
fn lower(word: &Word) -> &AtomicU32 {
    const { assert!(cfg!(target_endian = "little"), "the lower half of a word comes first") };
    // SAFETY: the half lies within the word, which outlives the borrow, and is aligned. Both are
    // atomic, and the kernel alone goes by the half.
    unsafe { &*ptr::from_ref(word).cast::<AtomicU32>() }
}
