//! Locks, readers-writer locks, semaphores, and what is done once.

use std::ffi::c_void;
use std::ptr;

use swarm_kv::Store;
use swarm_kv::store::{Begun, Pause, StoreLock};

use crate::SWARM_MAX_HOLDERS;
use crate::arguments::{key, preset, shared};
use crate::guard::swarm_guard;
use crate::status::swarm_status::{SWARM_ABSENT, SWARM_DONE, SWARM_OK, SWARM_TIMED_OUT};
use crate::status::{Failure, call, swarm_error, swarm_status};
use crate::store::swarm_store;
use crate::wait::{limit, wait};

/// Waits until the caller holds the lock of this name, for `timeout_ms` milliseconds at most, or without end if that is
/// SWARM_FOREVER, and writes a guard to `*guard`, or NULL if it does not return SWARM_OK. The lock need not be created: there is
/// one for each key.
///
/// The first that comes gets it first. If its holder's process ends, the next one holds it; one that is only stopped keeps it until it
/// is evicted. One that acquires what it holds itself waits like any other. The thread sleeps meanwhile, and uses none of the handle's
/// clients; signals' handlers run, and the call goes on after them.
///
/// Ownership: the guard is the caller's, until swarm_guard_release, which may be after swarm_close. `name` is not kept. Threads:
/// any.
///
/// Returns SWARM_OK; SWARM_TIMED_OUT; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM,
/// SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `guard` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_lock_acquire(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    timeout_ms: u64,
    guard: *mut *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| Ok(store.lock(name));
    // SAFETY: the caller's promise.
    unsafe { acquire((store, name, name_length), timeout_ms, guard, error, lock) }
}

/// As swarm_lock_acquire, of a lock that up to SWARM_MAX_HOLDERS hold to read. One that comes to read waits behind a writer that
/// waits.
///
/// Returns what swarm_lock_acquire returns.
///
/// # Safety
/// As of swarm_lock_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_rwlock_read(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    timeout_ms: u64,
    guard: *mut *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| Ok(store.rw_lock(name).read().clone());
    // SAFETY: the caller's promise.
    unsafe { acquire((store, name, name_length), timeout_ms, guard, error, lock) }
}

/// As swarm_rwlock_read, to write: nobody else holds it then.
///
/// Returns what swarm_lock_acquire returns.
///
/// # Safety
/// As of swarm_lock_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_rwlock_write(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    timeout_ms: u64,
    guard: *mut *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| Ok(store.rw_lock(name).write().clone());
    // SAFETY: the caller's promise.
    unsafe { acquire((store, name, name_length), timeout_ms, guard, error, lock) }
}

/// As swarm_lock_acquire, of `wanted` of a semaphore's `permits`, which are 1 to SWARM_MAX_HOLDERS. All users have to pass the
/// same number of permits: otherwise it returns SWARM_ERROR_OTHER_KIND.
///
/// Returns what swarm_lock_acquire returns.
///
/// # Safety
/// As of swarm_lock_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_semaphore_acquire(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    permits: u32,
    wanted: u32,
    timeout_ms: u64,
    guard: *mut *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| semaphore(store, name, permits, wanted);
    // SAFETY: the caller's promise.
    unsafe { acquire((store, name, name_length), timeout_ms, guard, error, lock) }
}

/// Waits until what is to be done once under this name is done, and returns SWARM_DONE; or until it is the caller's to do, and
/// returns SWARM_OK with a guard. That one calls swarm_once_done when it is done, or swarm_guard_release to let the next one
/// begin, who also begins if the process ends. For the rest as swarm_lock_acquire.
///
/// Returns SWARM_DONE, and what swarm_lock_acquire returns.
///
/// # Safety
/// As of swarm_lock_acquire.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_once_begin(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    timeout_ms: u64,
    guard: *mut *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(guard, ptr::null_mut(), "where the guard goes") }?;
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        match wait(store.0.once(name).begin_paced(limit(timeout_ms), Pause::blocks))? {
            Begun::Done => Ok(SWARM_DONE),
            Begun::NotYet => Ok(SWARM_TIMED_OUT),
            Begun::Ours(doing) => {
                // SAFETY: it was written before.
                unsafe { guard.write(swarm_guard::doing(doing)) };
                Ok(SWARM_OK)
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Takes the lock of this name away from the holder with this token, which need not have ended, and lets in the next one. The
/// holder gets an error when it releases it (SWARM_ERROR_TAKEN_AWAY). Returns SWARM_ABSENT, and changes nothing, if that holds it
/// no more.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM,
/// SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_lock_evict(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    token: u64,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| Ok(store.lock(name));
    // SAFETY: the caller's promise.
    unsafe { evict((store, name, name_length), token, error, lock) }
}

/// As swarm_lock_evict, of a readers-writer lock.
///
/// Returns what swarm_lock_evict returns.
///
/// # Safety
/// As of swarm_lock_evict.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_rwlock_evict(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    token: u64,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| Ok(store.rw_lock(name).read().clone());
    // SAFETY: the caller's promise.
    unsafe { evict((store, name, name_length), token, error, lock) }
}

/// As swarm_lock_evict, of a semaphore of so many permits.
///
/// Returns what swarm_lock_evict returns.
///
/// # Safety
/// As of swarm_lock_evict.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_semaphore_evict(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    permits: u32,
    token: u64,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| semaphore(store, name, permits, 1);
    // SAFETY: the caller's promise.
    unsafe { evict((store, name, name_length), token, error, lock) }
}

/// As swarm_lock_evict, of the one that does what is to be done once: the next one begins.
///
/// Returns what swarm_lock_evict returns.
///
/// # Safety
/// As of swarm_lock_evict.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_once_evict(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    token: u64,
    error: *mut swarm_error,
) -> swarm_status {
    let lock = |store: &Store, name: &[u8]| Ok(store.once(name).queue().clone());
    // SAFETY: the caller's promise.
    unsafe { evict((store, name, name_length), token, error, lock) }
}

fn semaphore(store: &Store, name: &[u8], permits: u32, wanted: u32) -> Result<StoreLock, Failure> {
    let most = SWARM_MAX_HOLDERS as u32;
    if !(1..=most).contains(&permits) || !(1..=permits).contains(&wanted) {
        return Err(Failure::argument(format!(
            "{wanted} of {permits} permits; there are 1 to {most}"
        )));
    }
    Ok(store.semaphore(name, permits).many(wanted))
}

/// A handle, a name, and that one's length.
type Named = (*const swarm_store, *const c_void, usize);

/// # Safety
/// As of [`swarm_lock_acquire`].
unsafe fn acquire(
    (store, name, name_length): Named,
    timeout_ms: u64,
    guard: *mut *mut swarm_guard,
    error: *mut swarm_error,
    lock: impl FnOnce(&Store, &[u8]) -> Result<StoreLock, Failure>,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(guard, ptr::null_mut(), "where the guard goes") }?;
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let lock = lock(&store.0, name)?;
        let held = wait(lock.acquire_paced(limit(timeout_ms), Pause::blocks))?;
        let Some(held) = held else { return Ok(SWARM_TIMED_OUT) };
        // SAFETY: it was written before.
        unsafe { guard.write(swarm_guard::part(held)) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// # Safety
/// As of [`swarm_lock_evict`].
unsafe fn evict(
    (store, name, name_length): Named,
    token: u64,
    error: *mut swarm_error,
    lock: impl FnOnce(&Store, &[u8]) -> Result<StoreLock, Failure>,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let lock = lock(&store.0, name)?;
        Ok(if wait(lock.evict(token))? { SWARM_OK } else { SWARM_ABSENT })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}
