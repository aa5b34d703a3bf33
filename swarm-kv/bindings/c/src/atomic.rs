//! Integers that change as a whole.

use std::ffi::c_void;

use swarm_kv::objects::ObjectError;
use swarm_kv::shm::Plain;
use swarm_kv::store::{BlockingObject, StoreAtomic};

use crate::arguments::{key, preset, shared};
use crate::status::swarm_status::{SWARM_LOST, SWARM_OK};
use crate::status::{call, swarm_error, swarm_status};
use crate::store::swarm_store;

/// Writes the integer of this name to `*value`, which is zero if the call fails. It has 64 bits, and is `initial` until it is
/// changed: it need not be created, and all users have to pass the same. It is what Rust's `Atomic<u64>` is, and `db.atomic` of
/// Python. A number with a sign is kept in it as C converts one.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP (it is
/// no integer of 64 bits), SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `value` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_atomic_load(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    initial: u64,
    value: *mut u64,
    error: *mut swarm_error,
) -> swarm_status {
    let load = |atomic: &Atomic| Ok((SWARM_OK, atomic.load()?));
    // SAFETY: the caller's promise.
    unsafe { run((store, name, name_length), initial, value, error, load) }
}

/// Makes `value` the integer of this name, and writes the one before to `*before`, which is zero if the call fails. For the rest as
/// swarm_atomic_load. It takes effect once or never.
///
/// Returns what swarm_atomic_load returns; SWARM_ERROR_MAKE_ROOM.
///
/// # Safety
/// As of swarm_atomic_load.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_atomic_swap(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    initial: u64,
    value: u64,
    before: *mut u64,
    error: *mut swarm_error,
) -> swarm_status {
    let swap = |atomic: &Atomic| Ok((SWARM_OK, atomic.swap(value)?));
    // SAFETY: the caller's promise.
    unsafe { run((store, name, name_length), initial, before, error, swap) }
}

/// Makes `desired` the integer of this name if it is `expected`; otherwise it returns SWARM_LOST, and changes nothing. Writes the
/// integer that was there to `*found`, which is zero if the call fails. For the rest as swarm_atomic_swap.
///
/// Returns SWARM_LOST, and what swarm_atomic_swap returns.
///
/// # Safety
/// As of swarm_atomic_load.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_atomic_compare_exchange(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    initial: u64,
    expected: u64,
    desired: u64,
    found: *mut u64,
    error: *mut swarm_error,
) -> swarm_status {
    let exchange = |atomic: &Atomic| {
        Ok(match atomic.compare_exchange(expected, desired)? {
            Ok(found) => (SWARM_OK, found),
            Err(found) => (SWARM_LOST, found),
        })
    };
    // SAFETY: the caller's promise.
    unsafe { run((store, name, name_length), initial, found, error, exchange) }
}

/// Adds `by` to the integer of this name, modulo 2^64 as C counts, and writes the one before to `*before`, which is zero if the call
/// fails. For the rest as swarm_atomic_swap.
///
/// Returns what swarm_atomic_swap returns.
///
/// # Safety
/// As of swarm_atomic_load.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_atomic_fetch_add(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    initial: u64,
    by: u64,
    before: *mut u64,
    error: *mut swarm_error,
) -> swarm_status {
    let add = |atomic: &Atomic| {
        let (before, _) = atomic.fetch_update(|value| Some(value.wrapping_add(by)))?;
        Ok((SWARM_OK, before))
    };
    // SAFETY: the caller's promise.
    unsafe { run((store, name, name_length), initial, before, error, add) }
}

type Atomic = BlockingObject<StoreAtomic<u64, Plain>>;

/// Runs an operation, and writes the integer that it returns to `*place`.
///
/// # Safety
/// As of [`swarm_atomic_load`].
unsafe fn run(
    (store, name, name_length): (*const swarm_store, *const c_void, usize),
    initial: u64,
    place: *mut u64,
    error: *mut swarm_error,
    operation: impl FnOnce(&Atomic) -> Result<(swarm_status, u64), ObjectError>,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(place, 0, "where the integer goes") }?;
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let (status, integer) = operation(&store.0.blocking().atomic(name, initial))?;
        // SAFETY: it was written before.
        unsafe { place.write(integer) };
        Ok(status)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}
