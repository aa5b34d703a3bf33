//! Who holds an object, and who waits.

use std::ffi::c_void;

use swarm_core::words::Incarnation;
use swarm_kv::objects::{BarrierView, ObjectError, ObjectKind, QueueView, Seat};

use crate::arguments::{key, preset, shared};
use crate::status::swarm_status::{SWARM_ABSENT, SWARM_OK};
use crate::status::{call, swarm_error, swarm_status};
use crate::store::swarm_store;
use crate::{SWARM_MAX_HOLDERS, SWARM_MAX_MEMBERS, SWARM_MAX_WAITERS};

/// A place in an object: the client's slot in the pool, its session, which no other client ever has, and which of its places.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct swarm_seat {
    /// The client's slot.
    pub slot: u64,
    /// The client's session.
    pub session: u64,
    /// Tells the places of one client apart.
    pub ticket: u32,
}

impl From<&Seat> for swarm_seat {
    fn from(seat: &Seat) -> Self {
        Self { slot: seat.slot as u64, session: seat.session.0, ticket: seat.ticket }
    }
}

impl From<swarm_seat> for Seat {
    fn from(seat: swarm_seat) -> Self {
        let slot = usize::try_from(seat.slot).unwrap_or(usize::MAX);
        Self { slot, session: Incarnation(seat.session), ticket: seat.ticket }
    }
}

/// Who holds an object.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct swarm_holder {
    /// Its place.
    pub seat: swarm_seat,
    /// Its token.
    pub token: u64,
    /// How much of it: permits; of a readers-writer lock 1 to read and SWARM_MAX_HOLDERS to write.
    pub weight: u32,
}

/// Who holds an object and who waits, at a moment.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct swarm_queue {
    /// The last token that was given out; zero if none was.
    pub token: u64,
    /// How many hold it.
    pub holder_count: usize,
    /// How many wait.
    pub waiter_count: usize,
    /// Who holds it, the one with the smallest token first.
    pub holders: [swarm_holder; SWARM_MAX_HOLDERS],
    /// Who waits, in order of arrival.
    pub waiters: [swarm_seat; SWARM_MAX_WAITERS],
}

/// Writes to `*queue` who holds a lock, a readers-writer lock, a semaphore or what is done once, and who waits for it. Where it
/// does not return SWARM_OK there is nobody in it. It changes nothing.
///
/// Ownership: all is the caller's; nothing is kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ABSENT, if nobody has used it yet; SWARM_ERROR_OTHER_KIND; SWARM_ERROR_ARGUMENT; SWARM_ERROR_RETRY,
/// SWARM_ERROR_REOPEN, SWARM_ERROR_GIVE_UP, SWARM_ERROR_FORKED; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `name` is NULL or has so many bytes. `queue` and `error` are NULL or can be
/// written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_queue_view(
    store: *const swarm_store,
    name: *const c_void,
    name_length: usize,
    queue: *mut swarm_queue,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(queue, swarm_queue::default(), "where the queue goes") }?;
        // SAFETY: the caller's promise.
        let (store, name) = unsafe { (shared(store, "the handle")?, key(name, name_length)?) };
        let view = |value: &[u8]| {
            QueueView::of(value).ok_or(ObjectError::OtherKind {
                wanted: ObjectKind::Lock,
                found: ObjectKind::of(value),
            })
        };
        let Some(view) = store.0.blocking().read(name, view)? else { return Ok(SWARM_ABSENT) };
        let view = view?;
        let mut seen = swarm_queue {
            token: view.token,
            holder_count: view.holders.len(),
            waiter_count: view.waiters.len(),
            ..swarm_queue::default()
        };
        for (to, from) in seen.holders.iter_mut().zip(&view.holders) {
            let seat = (&from.seat).into();
            *to = swarm_holder { seat, token: from.token, weight: from.weight.into() };
        }
        for (to, from) in seen.waiters.iter_mut().zip(&view.waiters) {
            *to = from.into();
        }
        // SAFETY: it was written before.
        unsafe { queue.write(seen) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Who is to meet at a barrier, at a moment.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct swarm_meeting {
    /// How often the barrier has opened.
    pub generation: u64,
    /// How many members it has.
    pub member_count: usize,
    /// Its members.
    pub members: [swarm_seat; SWARM_MAX_MEMBERS],
}

impl From<&BarrierView> for swarm_meeting {
    fn from(view: &BarrierView) -> Self {
        let mut meeting = Self {
            generation: view.generation,
            member_count: view.members.len(),
            ..Self::default()
        };
        for (to, from) in meeting.members.iter_mut().zip(&view.members) {
            *to = from.into();
        }
        meeting
    }
}
