//! Members that wait for each other.

use std::ffi::c_void;
use std::ptr;

use swarm_kv::store::{Pause, StoreMember};

use crate::arguments::{exclusive, key, preset, shared};
use crate::status::swarm_status::{SWARM_ABSENT, SWARM_OK, SWARM_TIMED_OUT};
use crate::status::{call, swarm_error, swarm_status};
use crate::store::swarm_store;
use crate::view::{swarm_meeting, swarm_seat};
use crate::wait::{limit, wait};

/// A member of a barrier, until it leaves, is evicted, or its process ends. One thread at a time may use one, any thread. It
/// lasts beyond swarm_close of the handle that it came from.
pub struct swarm_member(StoreMember);

/// Joins the barrier of this name: from now on the others wait for this member. Writes it to `*member`, or NULL if that fails.
/// The barrier need not be created; it opens once `parties` have joined and every member has arrived. All users have to pass
/// the same number: otherwise it returns SWARM_ERROR_OTHER_KIND. More may join, SWARM_MAX_MEMBERS in all: a further one gets
/// SWARM_ERROR_RETRY.
///
/// Ownership: the member is the caller's, until swarm_member_leave, which may be after swarm_close. `name` is not kept. Threads:
/// any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_RETRY, SWARM_ERROR_MAKE_ROOM, SWARM_ERROR_REOPEN,
/// SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `member` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_barrier_join(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    parties: u32,
    member: *mut *mut swarm_member,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(member, ptr::null_mut(), "where the member goes") }?;
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let joined = wait(store.0.barrier(name, parties).join())?;
        // SAFETY: it was written before.
        unsafe { member.write(Box::into_raw(Box::new(swarm_member(joined)))) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Arrives, and waits until all members have, for `timeout_ms` milliseconds at most, or without end if that is SWARM_FOREVER.
/// Writes to `*meeting` how often the barrier has opened and who its members are by then: one that met and has left is not among
/// them; nobody is if it does not return SWARM_OK. It may be NULL. After SWARM_TIMED_OUT it has arrived, and the next call goes
/// on.
///
/// Ownership: all is the caller's. Threads: one at a time for a member. As of swarm_lock_acquire the thread sleeps.
///
/// Returns SWARM_OK; SWARM_TIMED_OUT; SWARM_ERROR_TAKEN_AWAY, if it was evicted; what else swarm_barrier_join returns.
///
/// # Safety
/// `member` is NULL or one that has not left and that no other thread uses. `meeting` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_member_wait(
    member: *mut swarm_member,
    timeout_ms: u64,
    meeting: *mut swarm_meeting,
    error: *mut swarm_error,
) -> swarm_status {
    let report = |met: swarm_meeting| {
        if !meeting.is_null() {
            // SAFETY: the caller's promise.
            unsafe { meeting.write(met) };
        }
    };
    let work = || {
        report(swarm_meeting::default());
        // SAFETY: the caller's promise.
        let member = unsafe { exclusive(member, "the member") }?;
        let met = wait(member.0.wait_paced(limit(timeout_ms), Pause::blocks))?;
        let Some(view) = met else { return Ok(SWARM_TIMED_OUT) };
        report((&view).into());
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Its place, by which others evict it. Zeros for NULL. Threads: one at a time for a member.
///
/// # Safety
/// `member` is NULL or one that has not left and that no other thread uses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_member_seat(member: *const swarm_member) -> swarm_seat {
    // SAFETY: the caller's promise.
    let member = unsafe { member.as_ref() };
    member.map_or_else(swarm_seat::default, |member| (&member.0.seat()).into())
}

/// Leaves, so that nobody waits for it any more, and frees the member, whatever it returns. NULL is passed over.
///
/// Where it fails for another reason than SWARM_ERROR_TAKEN_AWAY it is tried again by the handle's next call for any object.
///
/// Ownership: the member is freed. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_TAKEN_AWAY; what else swarm_barrier_join returns.
///
/// # Safety
/// `member` is NULL or one that has not left and that no other thread uses. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_member_leave(
    member: *mut swarm_member,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        if !member.is_null() {
            // SAFETY: it came out of a box when it joined, and the caller gives it back.
            wait(unsafe { Box::from_raw(member) }.0.leave())?;
        }
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Takes a member out of the barrier of this name, which need not have ended. It gets an error when it waits. Returns SWARM_ABSENT,
/// and changes nothing, if it is none any more.
///
/// Ownership: nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT; what else swarm_barrier_join returns.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_barrier_evict(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    parties: u32,
    seat: swarm_seat,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let was_in = wait(store.0.barrier(name, parties).evict(seat.into()))?;
        Ok(if was_in { SWARM_OK } else { SWARM_ABSENT })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Writes to `*meeting` who is to meet at the barrier of this name; nobody, if it does not return SWARM_OK. It changes nothing.
///
/// Ownership: all is the caller's; nothing is kept. Threads: any.
///
/// Returns SWARM_OK, also if nobody has used it yet; what else swarm_barrier_join returns.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `meeting` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_barrier_view(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    parties: u32,
    meeting: *mut swarm_meeting,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(meeting, swarm_meeting::default(), "where the meeting goes") }?;
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let view = wait(store.0.barrier(name, parties).view())?;
        // SAFETY: it was written before.
        unsafe { meeting.write((&view).into()) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}
