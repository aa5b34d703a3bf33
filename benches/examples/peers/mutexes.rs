//! A table behind 4,096 mutexes of the C library, shared by processes and robust: a death with one is noticed by the
//! next that locks it. What he left half-written is the program's to mend, which here is an error.

use std::mem::{MaybeUninit, size_of};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::pthread_mutex_t;

use crate::Result;
use crate::shared::{SLOT, Shared, hash, is, load, name, store};
use crate::work::{Key, Peer, Value};

const STRIPES: usize = 4096;
/// Each mutex has a line.
const MUTEX_WORDS: usize = 8;
const _: () = assert!(size_of::<pthread_mutex_t>() <= 8 * MUTEX_WORDS);

pub(crate) struct Mutexes {
    shared: Shared,
    /// Slots of a stripe.
    slots: usize,
}

fn slots(keys: u64) -> usize {
    (2 * keys as usize / STRIPES).next_power_of_two().max(16)
}

/// Fails with what the C library says, if that is not zero.
fn done(code: i32) -> Result<()> {
    match code {
        0 => Ok(()),
        libc::EOWNERDEAD => Err("a process died with a mutex".into()),
        code => Err(std::io::Error::from_raw_os_error(code).into()),
    }
}

fn mutex(shared: &Shared, stripe: usize) -> *mut pthread_mutex_t {
    assert!(stripe < STRIPES);
    shared.start().wrapping_add(8 * MUTEX_WORDS * stripe).cast()
}

pub(crate) fn create(place: &Path, keys: u64) -> Result<()> {
    let words = STRIPES * (MUTEX_WORDS + slots(keys) * SLOT);
    let shared = Shared::create(place, words)?;
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: the attributes are initialised by the first call, and the mutexes lie within the mapping, each aligned to a line;
    // no other process has opened it yet.
    unsafe {
        let attributes = attributes.as_mut_ptr();
        done(libc::pthread_mutexattr_init(attributes))?;
        done(libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED))?;
        done(libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST))?;
        for stripe in 0..STRIPES {
            done(libc::pthread_mutex_init(mutex(&shared, stripe), attributes))?;
        }
        done(libc::pthread_mutexattr_destroy(attributes))
    }
}

/// A mutex that is locked.
struct Locked(*mut pthread_mutex_t);

impl Locked {
    #[inline]
    fn new(mutex: *mut pthread_mutex_t) -> Result<Self> {
        // SAFETY: it was initialised by `create`, and is mapped as long as the table is open.
        done(unsafe { libc::pthread_mutex_lock(mutex) })?;
        Ok(Self(mutex))
    }
}

impl Drop for Locked {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this thread has locked it.
        unsafe { libc::pthread_mutex_unlock(self.0) };
    }
}

impl Mutexes {
    pub(crate) fn open(place: &Path, keys: u64) -> Result<Self> {
        Ok(Self { shared: Shared::open(place)?, slots: slots(keys) })
    }

    /// Works on the key's slot, or the free one that it would have, under the mutex of its stripe.
    #[inline]
    fn with(&self, key: &Key, work: impl FnOnce(&[AtomicU64])) -> Result<()> {
        let hash = hash(key);
        let stripe = (hash >> 52) as usize % STRIPES;
        let _locked = Locked::new(mutex(&self.shared, stripe))?;
        let first = STRIPES * MUTEX_WORDS + stripe * self.slots * SLOT;
        let table = &self.shared.words()[first..][..self.slots * SLOT];
        let slot = (0..self.slots)
            .map(|step| &table[(hash as usize + step) % self.slots * SLOT..][..SLOT])
            .find(|slot| slot[0].load(Ordering::Relaxed) == 0 || is(slot, key));
        work(slot.ok_or("a stripe of the table is full")?);
        Ok(())
    }
}

impl Peer for Mutexes {
    fn insert(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.with(key, |slot| {
            name(slot, key);
            store(slot, value);
            slot[0].store(1, Ordering::Relaxed);
        })
    }

    #[inline]
    fn update(&mut self, key: &Key, value: &Value) -> Result<()> {
        self.with(key, |slot| store(slot, value))
    }

    #[inline]
    fn get(&mut self, key: &Key, value: &mut Value) -> Result<()> {
        self.with(key, |slot| load(slot, value))
    }
}
