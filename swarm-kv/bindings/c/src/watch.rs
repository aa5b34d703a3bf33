//! Keys that are watched.

use std::ffi::c_void;
use std::ptr;

use swarm_kv::store::{Pause, StoreWatch};

use crate::arguments::{exclusive, key, preset, shared};
use crate::status::swarm_status::{SWARM_ABSENT, SWARM_OK, SWARM_TIMED_OUT};
use crate::status::{call, swarm_error, swarm_status};
use crate::store::swarm_store;
use crate::wait::{limit, wait};

/// A key, as it changes. One thread at a time may use one, any thread.
pub struct swarm_watch {
    watch: StoreWatch,
    /// What was returned last, if it was a value.
    value: Option<Vec<u8>>,
}

/// Watches `key`, whether or not it is there: writes to `*watch` what swarm_watch_next reads its values by, or NULL if that
/// fails.
///
/// Ownership: the watch is the caller's, until swarm_watch_close, which may be after swarm_close. `key` is copied. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` is NULL or has so many bytes. `watch` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_watch_open(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    watch: *mut *mut swarm_watch,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(watch, ptr::null_mut(), "where the watch goes") }?;
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        let opened = Box::new(swarm_watch { watch: store.0.watch(key), value: None });
        // SAFETY: it was written before.
        unsafe { watch.write(Box::into_raw(opened)) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Waits until the key's value is another one than was returned last, for `timeout_ms` milliseconds at most, or without end if
/// that is SWARM_FOREVER; the first time it returns the value that is there. Returns SWARM_OK, and writes where the value is to
/// `*value` and its length to `*length`; or SWARM_ABSENT, if the key is not there. `*value` and `*length` become NULL and zero in
/// all other cases; both may be NULL for a caller that does not want it.
///
/// Of several changes in a row some may be missed, and never the last one: what changes after SWARM_TIMED_OUT, or between two
/// calls, is returned by the next call. A value that is written again is no change. It never returns SWARM_OK for a value that
/// it returned last.
///
/// Ownership: the value is the watch's, and is there until the next call with the watch. Threads: one at a time for a watch. The
/// thread sleeps meanwhile, and uses none of the handle's clients; signals' handlers run, and the call goes on after them.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_TIMED_OUT; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `watch` is NULL or one that was not closed and that no other thread uses. `value`, `length` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_watch_next(
    watch: *mut swarm_watch,
    timeout_ms: u64,
    value: *mut *const c_void,
    length: *mut usize,
    error: *mut swarm_error,
) -> swarm_status {
    let hand_out = |found: *const u8, bytes: usize| {
        // SAFETY: the caller's promise; where they are NULL nobody wants it.
        unsafe {
            if !value.is_null() {
                value.write(found.cast());
            }
            if !length.is_null() {
                length.write(bytes);
            }
        }
    };
    let work = || {
        hand_out(ptr::null(), 0);
        // SAFETY: the caller's promise.
        let watch = unsafe { exclusive(watch, "the watch") }?;
        watch.value = None;
        let changed = wait(watch.watch.changed_paced(limit(timeout_ms), Pause::blocks))?;
        let Some(changed) = changed else { return Ok(SWARM_TIMED_OUT) };
        watch.value = changed;
        let Some(found) = &watch.value else { return Ok(SWARM_ABSENT) };
        hand_out(found.as_ptr(), found.len());
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Frees a watch, and the value that it returned last. NULL is passed over. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_PANIC.
///
/// # Safety
/// `watch` is NULL or one that was not closed and that no other thread uses. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_watch_close(
    watch: *mut swarm_watch,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        if !watch.is_null() {
            // SAFETY: it came out of a box when it was opened, and the caller gives it back.
            drop(unsafe { Box::from_raw(watch) });
        }
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}
