//! States that change as a whole, by a function of the program's.
//!
//! The function runs between two operations, and none of the handle's clients is in use meanwhile: it may take its time, and use the
//! handle. Nothing of what it is given or returns is kept.

use std::ffi::c_void;
use std::ptr;

use crate::arguments::{hand_out, key, preset, shared, value};
use crate::status::swarm_status::{SWARM_ABSENT, SWARM_LOST, SWARM_OK};
use crate::status::{Failure, call, swarm_error, swarm_status};
use crate::store::swarm_store;

/// Makes a new state of an old one, for swarm_guarded_update, whose `context` it is given. `state` has `length` bytes, and is NULL
/// where none was ever set. It writes where the new state is to `*changed`, and its length to `*changed_length`, and returns true; if
/// it returns false, the state stays as it is.
///
/// It is called again where another change came first, in the same thread: only what its last call makes counts. So it must not do anything
/// that is to happen once. `state` is there until it returns; what it writes, which stays the program's, has to be there until
/// it is called again or swarm_guarded_update returns. It may use the handle. It has to return: neither longjmp nor an exception may leave
/// it, which ends the process at best.
pub type swarm_change = Option<
    unsafe extern "C-unwind" fn(
        context: *mut c_void,
        state: *const c_void,
        length: usize,
        changed: *mut *const c_void,
        changed_length: *mut usize,
    ) -> bool,
>;

/// Writes a copy of the state of this name to `*state`, and its length to `*length`. One without bytes is not NULL either. Where the
/// call does not return SWARM_OK they become NULL and zero; SWARM_ABSENT says that none was ever set. It is what Rust's
/// `Guarded<Vec<u8>>` is, and `db.guarded` of Python.
///
/// Ownership: the copy is the caller's, which gives it to swarm_free. `name` is not kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; SWARM_ERROR_MEMORY; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY,
/// SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP (it is of another type), SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `state`, `length` and `error` are NULL or
/// can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_guarded_get_alloc(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    state: *mut *mut c_void,
    length: *mut usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe {
            preset(state, ptr::null_mut(), "where the state goes")?;
            preset(length, 0, "where the length goes")?;
        }
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let found = store.0.blocking().guarded::<Vec<u8>>(name).get()?;
        let Some(found) = found else { return Ok(SWARM_ABSENT) };
        // SAFETY: they were written before.
        unsafe { hand_out(&found, state, length) }
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Makes the state of this name what `change` makes of it. The state need not be created: where none was set, it is made of NULL. No
/// change of another process is lost, and none needs a lock: nothing is held, so a process that ends leaves nothing behind. It takes
/// effect once or never. `change` may be called several times: see swarm_change. `context` is passed to it, and may be NULL.
///
/// Ownership: nothing is kept. Threads: any; `change` runs in the caller's.
///
/// Returns SWARM_OK; SWARM_LOST, if `change` returned false: then nothing was changed; SWARM_ERROR_ARGUMENT, also if what `change` writes is NULL
/// or too long; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP,
/// SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `change` is NULL or does what swarm_change
/// says. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_guarded_update(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    change: swarm_change,
    context: *mut c_void,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        if change.is_none() {
            return Err(Failure::argument("the function that changes the state is NULL"));
        }
        let guarded = store.0.blocking().guarded::<Vec<u8>>(name);
        let mut state = guarded.get()?;
        loop {
            // SAFETY: the caller's promise.
            let changed = unsafe { changes(change, context, state.as_deref()) }?;
            let Some(changed) = changed else { return Ok(SWARM_LOST) };
            let is_same = |now: Option<Vec<u8>>| (now == state).then(|| changed.clone());
            let (before, _) = guarded.fetch_update(is_same)?;
            if before == state {
                return Ok(SWARM_OK);
            }
            // Another change came first.
            state = before;
        }
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Returns what the program's function makes of a state, if it is to change.
///
/// # Safety
/// As of [`swarm_guarded_update`].
unsafe fn changes(
    change: swarm_change,
    context: *mut c_void,
    state: Option<&[u8]>,
) -> Result<Option<Vec<u8>>, Failure> {
    let Some(change) = change else { return Ok(None) };
    let (mut changed, mut length) = (ptr::null(), 0);
    let (from, bytes) = state.map_or((ptr::null(), 0), |state| (state.as_ptr(), state.len()));
    // SAFETY: it does what `swarm_change` says; what it is given can be read and written until it returns.
    if !unsafe { change(context, from.cast(), bytes, &mut changed, &mut length) } {
        return Ok(None);
    }
    // SAFETY: it has written what is there until it is called again, which is after this copy.
    Ok(Some(unsafe { value(changed, length) }?.to_vec()))
}
