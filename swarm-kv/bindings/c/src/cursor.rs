//! Keys, one by one.

use std::ffi::c_void;
use std::ptr;

use crate::arguments::{prefix, preset, shared};
use crate::status::swarm_status::{SWARM_ABSENT, SWARM_OK};
use crate::status::{Failure, call, swarm_error, swarm_status};
use crate::store::swarm_store;

/// Keys that were found, in no order. One thread at a time may use one.
pub struct swarm_cursor {
    keys: Vec<Vec<u8>>,
    next: usize,
}

/// Finds the keys that begin with the `prefix_length` bytes at `prefix`, all keys if there are none of these, and writes a cursor
/// over them to `*cursor`, or NULL if that fails.
///
/// Each key that is there during the whole call is found once, in no order; one that is inserted or deleted meanwhile is found or
/// not. All of them are copied: what is in the cursor does not change, and takes memory of this process.
///
/// Ownership: the cursor is the caller's, until swarm_cursor_close, which may be after swarm_close. `prefix` is not kept. Threads: any.
///
/// Returns SWARM_OK, for no key as well; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP,
/// SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `prefix` is NULL or has so many bytes. `cursor` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_keys(
    store: *const swarm_store,
    prefix: *const c_void,
    prefix_length: usize,
    cursor: *mut *mut swarm_cursor,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(cursor, ptr::null_mut(), "where the cursor goes") }?;
        // SAFETY: the caller's promise.
        let store = unsafe { shared(store, "the handle") }?;
        // SAFETY: the caller's promise.
        let keys = store.0.blocking().keys(unsafe { self::prefix(prefix, prefix_length) }?)?;
        let found = Box::new(swarm_cursor { keys, next: 0 });
        // SAFETY: it was written before.
        unsafe { cursor.write(Box::into_raw(found)) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Goes to the next key, and writes where it is to `*key` and its length to `*key_length`; NULL and zero if it does not return SWARM_OK. No
/// zero byte follows it.
///
/// Ownership: the key is the cursor's, and is there until swarm_cursor_close. Threads: one at a time for a cursor. A cursor works in a forked child, too.
///
/// Returns SWARM_OK; SWARM_ABSENT, at the end and from then on; SWARM_ERROR_ARGUMENT.
///
/// # Safety
/// `cursor` is NULL or one that was not closed and that no other thread uses. `key`, `key_length` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_cursor_next(
    cursor: *mut swarm_cursor,
    key: *mut *const c_void,
    key_length: *mut usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe {
            preset(key, ptr::null(), "where the key goes")?;
            preset(key_length, 0, "where the length goes")?;
        }
        // SAFETY: the caller's promise.
        let cursor = unsafe { cursor.as_mut() };
        let cursor = cursor.ok_or_else(|| Failure::argument("the cursor is NULL"))?;
        let Some(found) = cursor.keys.get(cursor.next) else { return Ok(SWARM_ABSENT) };
        cursor.next += 1;
        // SAFETY: they were written before.
        unsafe {
            key.write(found.as_ptr().cast());
            key_length.write(found.len());
        }
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Frees a cursor and its keys. NULL is passed over.
///
/// # Safety
/// `cursor` is NULL or one that was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_cursor_close(cursor: *mut swarm_cursor) {
    if !cursor.is_null() {
        // SAFETY: it came out of a box in `swarm_keys`, and the caller gives it back.
        drop(unsafe { Box::from_raw(cursor) });
    }
}
