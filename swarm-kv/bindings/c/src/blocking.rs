//! Operations that return when they are done.

use std::ffi::c_void;
use std::ptr;
use std::time::Duration;

use swarm_kv::{CompareAndSwap, TimeToLive};

use crate::arguments::{hand_out, key, preset, shared, value, value_or_none};
use crate::status::swarm_status::{SWARM_ABSENT, SWARM_EXISTS, SWARM_LOST, SWARM_OK};
use crate::status::{Failure, call, swarm_error, swarm_status};
use crate::store::swarm_store;

/// Copies the value of `key` into `buffer`, which has room for `capacity` bytes, and writes the value's length to `*length`.
///
/// Where the value is longer than the buffer, that is left as it was, `*length` says how long it has to be, and the call returns
/// SWARM_ERROR_BUFFER; another process may make the value longer meanwhile. `buffer` may be NULL if `capacity` is zero. Where there
/// is no value, or none is returned, `*length` becomes zero. SWARM_MAX_VALUE bytes are enough for any value.
///
/// Ownership: all is the caller's; nothing is kept. `buffer` must not overlap `key`. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_ERROR_BUFFER; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` and `buffer` are NULL or have so many bytes. `length` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_get(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
    error: *mut swarm_error,
) -> swarm_status {
    let copy = |value: &[u8]| {
        // SAFETY: it was written before.
        unsafe { length.write(value.len()) };
        if value.len() > capacity {
            return Err(Failure::buffer(value.len(), capacity));
        }
        if !value.is_empty() {
            // SAFETY: the buffer has `capacity` bytes, by the caller's promise; the value lies in the pool or in memory of the library.
            unsafe { ptr::copy_nonoverlapping(value.as_ptr(), buffer.cast(), value.len()) };
        }
        Ok(SWARM_OK)
    };
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(length, 0, "where the length goes") }?;
        if buffer.is_null() && capacity > 0 {
            return Err(Failure::argument(format!("the buffer of {capacity} bytes is NULL")));
        }
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        store.0.blocking().read(key, copy)?.unwrap_or(Ok(SWARM_ABSENT))
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Writes a copy of the value of `key` to `*value`, and its length to `*length`. A value without bytes is not NULL either. Where
/// the call does not return SWARM_OK they become NULL and zero.
///
/// Ownership: the copy is the caller's, which gives it to swarm_free. `key` is not kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_ERROR_MEMORY; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` is NULL or has so many bytes. `value`, `length` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_get_alloc(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *mut *mut c_void,
    length: *mut usize,
    error: *mut swarm_error,
) -> swarm_status {
    let copy = |found: &[u8]| {
        // SAFETY: they were written before.
        unsafe { hand_out(found, value, length) }
    };
    let work = || {
        // SAFETY: the caller's promise.
        unsafe {
            preset(value, ptr::null_mut(), "where the value goes")?;
            preset(length, 0, "where the length goes")?;
        }
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        store.0.blocking().read(key, copy)?.unwrap_or(Ok(SWARM_ABSENT))
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Makes `value` the value of `key`, whether the key is there or not. A value of length zero may be NULL.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP,
/// SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` and `value` are NULL or have so many bytes. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_put(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        // SAFETY: the caller's promise.
        store.0.blocking().put(key, unsafe { self::value(value, value_length) }?)?;
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Adds `key` with `value`. If the key is there already it returns SWARM_EXISTS, and changes nothing.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_EXISTS; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_insert(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        // SAFETY: the caller's promise.
        let is_new =
            store.0.blocking().insert(key, unsafe { self::value(value, value_length) }?)?;
        Ok(if is_new { SWARM_OK } else { SWARM_EXISTS })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Replaces the value of `key`. If the key is not there it returns SWARM_ABSENT, and changes nothing.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_update(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        // SAFETY: the caller's promise.
        let is_there =
            store.0.blocking().update(key, unsafe { self::value(value, value_length) }?)?;
        Ok(if is_there { SWARM_OK } else { SWARM_ABSENT })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Takes `key` away. It returns SWARM_OK whether the key was there or not.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP,
/// SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_delete(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        store.0.blocking().delete(key)?;
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Makes `new_value` the value of `key` if its value is `expected`; otherwise it returns SWARM_LOST, and changes nothing. NULL stands
/// for no value, on either side: a value of length zero that is there has a pointer. So it inserts where `expected` is NULL, and
/// deletes where `new_value` is.
///
/// It takes effect once or never, and takes more time than swarm_put, and memory. Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_LOST; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key`, `expected` and `new_value` are NULL or have so many bytes. `error` is NULL or
/// can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_compare_and_swap(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    expected: *const c_void,
    expected_length: usize,
    new_value: *const c_void,
    new_length: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        // SAFETY: the caller's promise.
        let expected = unsafe { value_or_none(expected, expected_length) }?;
        // SAFETY: the caller's promise.
        let new = unsafe { value_or_none(new_value, new_length) }?;
        let swapped = store.0.blocking().compare_and_swap(key, expected, new)?;
        Ok(if swapped == CompareAndSwap::Swapped { SWARM_OK } else { SWARM_LOST })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Makes `value` the value of `key`, and lets the key expire after `ttl_ms` milliseconds: from then on it is as if it had been deleted. A
/// later put or update ends that; a compare-and-swap and an increment keep it. Values have up to 4088 bytes: a longer one ends in
/// SWARM_ERROR_GIVE_UP. Clocks decide when the key expires, and nothing else.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP,
/// SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` and `value` are NULL or have so many bytes. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_put_with_ttl(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    ttl_ms: u64,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        // SAFETY: the caller's promise.
        let value = unsafe { self::value(value, value_length) }?;
        store.0.blocking().put_with_ttl(key, value, Duration::from_millis(ttl_ms))?;
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Writes to `*left_ms` for how many milliseconds `key` is there yet, UINT64_MAX if it does not expire; zero if the call fails or the
/// key is not there, which is SWARM_ABSENT.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` is NULL or has so many bytes. `left_ms` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_ttl(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    left_ms: *mut u64,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(left_ms, 0, "where the time goes") }?;
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        let left = match store.0.blocking().ttl(key)? {
            TimeToLive::Absent => return Ok(SWARM_ABSENT),
            TimeToLive::Endless => u64::MAX,
            TimeToLive::Left(left) => u64::try_from(left.as_millis()).unwrap_or(u64::MAX - 1),
        };
        // SAFETY: it was written before.
        unsafe { left_ms.write(left) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Lets `key` stay, if it is to expire. If it is not there or does not expire it returns SWARM_ABSENT, and changes nothing.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` is NULL or has so many bytes. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_persist(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        Ok(if store.0.blocking().persist(key)? { SWARM_OK } else { SWARM_ABSENT })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Adds `by` to the number under `key`, in decimal digits, and writes the sum to `*sum`, which is zero if the call fails. No value
/// counts as 0. A value that is no number, and a sum beyond 64 bits, end in SWARM_ERROR_GIVE_UP, and nothing changes.
///
/// It takes effect once or never, and takes more time than swarm_put, and memory. Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP,
/// SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` is NULL or has so many bytes. `sum` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_increment(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    by: i64,
    sum: *mut i64,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(sum, 0, "where the sum goes") }?;
        // SAFETY: the caller's promise.
        let (store, key) = unsafe { (shared(store, "the handle")?, self::key(key, key_length)?) };
        let added = store.0.blocking().increment(key, by)?;
        // SAFETY: it was written before.
        unsafe { sum.write(added) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}
