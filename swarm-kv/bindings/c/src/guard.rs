//! What a holder has.

use std::ffi::c_void;
use std::slice;

use swarm_kv::shm::Plain;
use swarm_kv::store::{StoreDoing, StoreGuard};

use crate::arguments::{exclusive, key, shared};
use crate::status::swarm_status::{SWARM_LOST, SWARM_OK};
use crate::status::{Failure, call, swarm_error, swarm_status};
use crate::wait::wait;

/// A part of an object that is held, until it is released, its holder is evicted, or its process ends. One thread at a time may
/// use one, any thread. It lasts beyond swarm_close of the handle that it came from. In a forked child it holds nothing: the
/// parent does.
pub struct swarm_guard(Held);

enum Held {
    Part(StoreGuard<Plain>),
    Doing(StoreDoing),
}

impl swarm_guard {
    pub(crate) fn part(guard: StoreGuard<Plain>) -> *mut Self {
        Box::into_raw(Box::new(Self(Held::Part(guard))))
    }

    pub(crate) fn doing(doing: StoreDoing) -> *mut Self {
        Box::into_raw(Box::new(Self(Held::Doing(doing))))
    }

    fn token(&self) -> u64 {
        match &self.0 {
            Held::Part(guard) => guard.token(),
            Held::Doing(doing) => doing.token(),
        }
    }

    fn guard(&mut self) -> &mut StoreGuard<Plain> {
        match &mut self.0 {
            Held::Part(guard) => guard,
            Held::Doing(doing) => doing.guard(),
        }
    }
}

/// The token: larger than those of all holders before. Let what the object guards refuse a client that comes with a smaller one than it
/// has seen: a holder that was evicted may not know yet. Zero for NULL.
///
/// # Safety
/// `guard` is NULL or one that was not released and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_guard_token(guard: *const swarm_guard) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { guard.as_ref() }.map_or(0, swarm_guard::token)
}

/// Whether a holder before this one died or was evicted, and nobody has called swarm_guard_settle since. What the object guards
/// may be half done then. False for NULL.
///
/// # Safety
/// As of swarm_guard_token.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_guard_is_unsettled(guard: *mut swarm_guard) -> bool {
    // SAFETY: the caller's promise.
    unsafe { guard.as_mut() }.is_some_and(|guard| guard.guard().is_unsettled())
}

/// Whether it is held still: SWARM_OK, or SWARM_LOST if it was taken away. It may be so no more when this returns: only the token
/// tells others apart.
///
/// Returns SWARM_OK; SWARM_LOST; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `guard` is NULL or one that was not released and that no other thread uses. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_guard_is_held(
    guard: *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let guard = unsafe { exclusive(guard, "the guard") }?;
        Ok(if wait(guard.guard().is_held())? { SWARM_OK } else { SWARM_LOST })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Settles the `count` keys that the object guards: what holders that have ended wrote under them took effect before this, or
/// never will. Then notes that the object is settled. Without it such a write may surface at any later time, over newer ones.
///
/// Ownership: nothing is kept. Threads: one at a time for a guard.
///
/// Returns SWARM_OK; SWARM_ERROR_TAKEN_AWAY; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY,
/// SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `guard` is NULL or one that was not released and that no other thread uses. `keys` and `key_lengths` are NULL or have `count`
/// elements, and each key is NULL or has so many bytes. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_guard_settle(
    guard: *mut swarm_guard,
    keys: *const *const c_void,
    key_lengths: *const usize,
    count: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let guard = unsafe { exclusive(guard, "the guard") }?;
        let mut all = Vec::new();
        if count > 0 {
            if count > isize::MAX as usize / size_of::<usize>() {
                return Err(Failure::argument(format!("there are no {count} keys in memory")));
            }
            // SAFETY: the caller's promise; the count is one of what memory may hold.
            let lengths = unsafe {
                shared(keys, "the array of keys")?;
                shared(key_lengths, "the array of lengths")?;
                slice::from_raw_parts(key_lengths, count)
            };
            for (at, &length) in lengths.iter().enumerate() {
                // SAFETY: the caller's promise.
                all.push(unsafe { key(*keys.add(at), length) }?);
            }
        }
        wait(guard.guard().settle(&all))?;
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Releases what is held, lets in the next one, and frees the guard, whatever it returns. What was begun and is to be done once is
/// given up: the next one begins. NULL is passed over.
///
/// Where it fails for another reason than SWARM_ERROR_TAKEN_AWAY it is tried again by the handle's next call for any object.
///
/// Ownership: the guard is freed. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_TAKEN_AWAY; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM,
/// SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP; SWARM_ERROR_FORKED in a child: the parent holds it; SWARM_ERROR_PANIC.
///
/// # Safety
/// `guard` is NULL or one that was not released and that no other thread uses. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_guard_release(
    guard: *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        if guard.is_null() {
            return Ok(SWARM_OK);
        }
        // SAFETY: it came out of a box when it was acquired, and the caller gives it back.
        match unsafe { Box::from_raw(guard) }.0 {
            Held::Part(guard) => wait(guard.release())?,
            Held::Doing(doing) => wait(doing.give_up())?,
        }
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Says of what swarm_once_begin began that it is done, for good, and frees the guard, whatever it returns. Another guard is
/// released, and that is SWARM_ERROR_ARGUMENT. NULL is SWARM_ERROR_ARGUMENT.
///
/// Ownership: the guard is freed. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_TAKEN_AWAY, if another one may have begun it meanwhile; SWARM_ERROR_ARGUMENT;
/// SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED;
/// SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_guard_release.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_once_done(
    guard: *mut swarm_guard,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        if guard.is_null() {
            return Err(Failure::argument("the guard is NULL"));
        }
        // SAFETY: it came out of a box when it was acquired, and the caller gives it back.
        match unsafe { Box::from_raw(guard) }.0 {
            Held::Doing(doing) => wait(doing.done())?,
            Held::Part(_) => {
                return Err(Failure::argument(
                    "the guard is not of swarm_once_begin, and was released",
                ));
            }
        }
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}
