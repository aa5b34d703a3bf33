//! A count to wait for.

use std::ffi::c_void;

use swarm_kv::store::Pause;

use crate::arguments::{key, preset, shared};
use crate::status::swarm_status::{SWARM_OK, SWARM_TIMED_OUT};
use crate::status::{call, swarm_error, swarm_status};
use crate::store::swarm_store;
use crate::wait::{limit, wait};

/// Counts the latch of this name down by `by`, to zero at most, and writes what is left to `*left`, which is zero if the call
/// fails. With `by` zero it writes what is left. The latch opens at zero. It need not be created: the client that uses it first makes it with
/// its `count`. Counts are of nobody: a process that ends before it has counted is waited for in vain.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `left` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_latch_count_down(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    count: u64,
    by: u64,
    left: *mut u64,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(left, 0, "where the number goes") }?;
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let is_left = wait(store.0.latch(name, count).count_down(by))?;
        // SAFETY: it was written before.
        unsafe { left.write(is_left) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Waits until the latch of this name is open, for `timeout_ms` milliseconds at most, or without end if that is SWARM_FOREVER.
/// With zero it does not wait.
///
/// Ownership: nothing is kept. Threads: any. As of swarm_lock_acquire the thread sleeps.
///
/// Returns SWARM_OK; SWARM_TIMED_OUT; what else swarm_latch_count_down returns.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_latch_wait(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    count: u64,
    timeout_ms: u64,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let latch = store.0.latch(name, count);
        let is_open = wait(latch.wait_paced(limit(timeout_ms), Pause::blocks))?;
        Ok(if is_open { SWARM_OK } else { SWARM_TIMED_OUT })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}
