//! What a call comes to.

use std::ffi::{CStr, c_char};
use std::panic::{self, AssertUnwindSafe};
use std::ptr;

use swarm_kv::objects::ObjectError;
use swarm_kv::{Error, ErrorKind, shm};

use crate::SWARM_MESSAGE;

/// What a call comes to. Errors are below zero, and say what a program can do; swarm_error.message says what happened.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum swarm_status {
    /// Done.
    SWARM_OK = 0,
    /// The key is not there; or a cursor is at its end. No error.
    SWARM_ABSENT = 1,
    /// The key is there already, and nothing was changed. No error.
    SWARM_EXISTS = 2,
    /// A submitted operation has not ended yet. No error.
    SWARM_PENDING = 3,
    /// The value was another than expected, or a swarm_change returned false, and nothing was changed. No error.
    SWARM_LOST = 4,
    /// What was waited for did not come in time. No error.
    SWARM_TIMED_OUT = 5,
    /// What is to be done once is done already. No error.
    SWARM_DONE = 6,
    /// The same call may do later: others went first, memory nodes did not answer, or a stopped process holds memory back. Wait longer
    /// from one try to the next.
    SWARM_ERROR_RETRY = -1,
    /// The pool is full. Delete keys, or move to a larger pool.
    SWARM_ERROR_MAKE_ROOM = -2,
    /// The handle has come to its end: swarm_reopen opens another one, of the pool that is there now.
    SWARM_ERROR_REOPEN = -3,
    /// The call ends so each time: the pool is worn out or damaged, or the value is no number.
    SWARM_ERROR_GIVE_UP = -4,
    /// The handle or the operation belongs to the process that forked this one. Nothing was done. Call swarm_reopen in this process.
    SWARM_ERROR_FORKED = -5,
    /// The pool was not opened or not made.
    SWARM_ERROR_OPEN = -6,
    /// An argument is NULL that must not be, or has a length that cannot be. Nothing was done.
    SWARM_ERROR_ARGUMENT = -7,
    /// The value is longer than the caller's buffer, which was left as it was.
    SWARM_ERROR_BUFFER = -8,
    /// The process has no memory for the result.
    SWARM_ERROR_MEMORY = -9,
    /// A defect of this library, which was stopped at its border. Close the handle, and report it.
    SWARM_ERROR_PANIC = -10,
    /// What was held, or the place in a barrier, was taken away before: by an eviction, or as the key was written or deleted. Others may
    /// have held it since.
    SWARM_ERROR_TAKEN_AWAY = -11,
    /// The key holds no object of this kind, or one that was made with another number of permits or parties. Nothing was changed. Use another
    /// name, or delete the key.
    SWARM_ERROR_OTHER_KIND = -12,
}

use swarm_status::*;

/// Says what went wrong. It is the caller's, on the stack as a rule; nothing in it needs to be freed. A call writes it if it ends
/// in an error (a status below zero), and leaves it alone otherwise. Each call takes NULL instead, from a caller that wants the status alone.
#[repr(C)]
pub struct swarm_error {
    /// The status that the call returned.
    pub status: swarm_status,
    /// Whether a write that ended so may have taken effect. If not, it has had none and never will.
    pub may_have_taken_effect: bool,
    /// What happened, to what, and what to do: UTF-8, with a zero byte at its end, cut if it is too long.
    pub message: [c_char; SWARM_MESSAGE],
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) status: swarm_status,
    pub(crate) may_have_taken_effect: bool,
    pub(crate) message: String,
}

impl Failure {
    fn without_effect(status: swarm_status, message: impl Into<String>) -> Self {
        Self { status, may_have_taken_effect: false, message: message.into() }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self::without_effect(SWARM_ERROR_ARGUMENT, message)
    }

    pub(crate) fn buffer(length: usize, capacity: usize) -> Self {
        Self::without_effect(
            SWARM_ERROR_BUFFER,
            format!("the value has {length} bytes, and the buffer {capacity}; pass a longer one"),
        )
    }

    pub(crate) fn memory(length: usize) -> Self {
        Self::without_effect(
            SWARM_ERROR_MEMORY,
            format!("the process has no memory for a value of {length} bytes"),
        )
    }

    /// What a panic becomes. How far a write had come is not known.
    pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Self {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message =
            message.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text");
        let message =
            format!("a defect of the library: {message}; close the handle, and report this text");
        Self { status: SWARM_ERROR_PANIC, may_have_taken_effect: true, message }
    }

    /// # Safety
    /// `error` is NULL or can be written.
    unsafe fn write(&self, error: *mut swarm_error) {
        if error.is_null() {
            return;
        }
        let mut message = [0; SWARM_MESSAGE];
        let mut end = self.message.len().min(SWARM_MESSAGE - 1);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        for (to, from) in message.iter_mut().zip(&self.message.as_bytes()[..end]) {
            *to = from.cast_signed() as c_char;
        }
        let Self { status, may_have_taken_effect, .. } = *self;
        // SAFETY: the caller's promise. What was there is not read: it may never have been written.
        unsafe { ptr::write(error, swarm_error { status, may_have_taken_effect, message }) };
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match (&error, error.kind()) {
            (Error::Forked, _) => SWARM_ERROR_FORKED,
            (Error::Key(_) | Error::Value(_), _) => SWARM_ERROR_ARGUMENT,
            (_, ErrorKind::Retry) => SWARM_ERROR_RETRY,
            (_, ErrorKind::MakeRoom) => SWARM_ERROR_MAKE_ROOM,
            (_, ErrorKind::Reopen) => SWARM_ERROR_REOPEN,
            // As of what is not known yet, nothing is promised.
            _ => SWARM_ERROR_GIVE_UP,
        };
        let may_have_taken_effect = error.may_have_taken_effect();
        Self { status, may_have_taken_effect, message: error.to_string() }
    }
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        let status = match error {
            ObjectError::Store(error) => return error.into(),
            ObjectError::OtherKind { .. } | ObjectError::OtherNumber { .. } => {
                SWARM_ERROR_OTHER_KIND
            }
            ObjectError::TakenAway { .. } | ObjectError::Evicted => SWARM_ERROR_TAKEN_AWAY,
            ObjectError::Crowded => SWARM_ERROR_RETRY,
            _ => SWARM_ERROR_GIVE_UP,
        };
        Self::without_effect(status, error.to_string())
    }
}

impl From<shm::Error> for Failure {
    fn from(error: shm::Error) -> Self {
        Self::without_effect(SWARM_ERROR_OPEN, error.to_string())
    }
}

/// Runs what a call does, and reports to its caller what it came to. No panic leaves it.
///
/// # Safety
/// `error` is NULL or can be written.
pub(crate) unsafe fn call(
    error: *mut swarm_error,
    work: impl FnOnce() -> Result<swarm_status, Failure>,
) -> swarm_status {
    // What a panic leaves half done is behind a handle, which its user has to close.
    let failure = match panic::catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(status)) => return status,
        Ok(Err(failure)) => failure,
        Err(payload) => Failure::panicked(&*payload),
    };
    // SAFETY: the caller's promise.
    unsafe { failure.write(error) };
    failure.status
}

/// The name of a status, for messages: "SWARM_ERROR_RETRY". NULL if `status` is none.
///
/// It is never freed. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn swarm_status_name(status: i32) -> *const c_char {
    let name: &CStr = match status {
        0 => c"SWARM_OK",
        1 => c"SWARM_ABSENT",
        2 => c"SWARM_EXISTS",
        3 => c"SWARM_PENDING",
        4 => c"SWARM_LOST",
        5 => c"SWARM_TIMED_OUT",
        6 => c"SWARM_DONE",
        -1 => c"SWARM_ERROR_RETRY",
        -2 => c"SWARM_ERROR_MAKE_ROOM",
        -3 => c"SWARM_ERROR_REOPEN",
        -4 => c"SWARM_ERROR_GIVE_UP",
        -5 => c"SWARM_ERROR_FORKED",
        -6 => c"SWARM_ERROR_OPEN",
        -7 => c"SWARM_ERROR_ARGUMENT",
        -8 => c"SWARM_ERROR_BUFFER",
        -9 => c"SWARM_ERROR_MEMORY",
        -10 => c"SWARM_ERROR_PANIC",
        -11 => c"SWARM_ERROR_TAKEN_AWAY",
        -12 => c"SWARM_ERROR_OTHER_KIND",
        _ => return ptr::null(),
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(work: impl FnOnce() -> Result<swarm_status, Failure>) -> (swarm_status, Failure) {
        let mut error = std::mem::MaybeUninit::uninit();
        // SAFETY: it can be written.
        let status = unsafe { call(error.as_mut_ptr(), work) };
        // SAFETY: the status is below zero in all that is tried here, so that it was written.
        let error: swarm_error = unsafe { error.assume_init() };
        // SAFETY: a message ends with a zero byte.
        let message = unsafe { CStr::from_ptr(error.message.as_ptr()) };
        let message = message.to_str().expect("UTF-8").to_owned();
        let swarm_error { status: written, may_have_taken_effect, .. } = error;
        (status, Failure { status: written, may_have_taken_effect, message })
    }

    #[test]
    fn a_panic_ends_in_a_status() {
        let (status, failure) = error_of(|| panic!("number {}", 7));
        assert_eq!((status, failure.status), (SWARM_ERROR_PANIC, SWARM_ERROR_PANIC));
        assert!(failure.message.contains("number 7") && failure.may_have_taken_effect);
        // SAFETY: NULL.
        assert_eq!(unsafe { call(ptr::null_mut(), || panic!("again")) }, SWARM_ERROR_PANIC);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let (_, failure) = error_of(|| Err(Failure::argument("ä".repeat(SWARM_MESSAGE))));
        assert_eq!(failure.message, "ä".repeat((SWARM_MESSAGE - 1) / 2));
    }

    #[test]
    fn a_status_says_what_an_errors_kind_says() {
        let of = |error: Error| Failure::from(error).status;
        assert_eq!(of(Error::Forked), SWARM_ERROR_FORKED);
        assert_eq!(of(Error::Key(0)), SWARM_ERROR_ARGUMENT);
        assert_eq!(of(Error::Contended), SWARM_ERROR_RETRY);
        assert_eq!(of(Error::Destroyed), SWARM_ERROR_REOPEN);
        assert_eq!(of(Error::CutShort), SWARM_ERROR_GIVE_UP);
        assert!(Failure::from(Error::Contended).may_have_taken_effect);
    }

    #[test]
    fn each_status_has_its_name() {
        for status in [
            SWARM_OK,
            SWARM_ABSENT,
            SWARM_EXISTS,
            SWARM_PENDING,
            SWARM_LOST,
            SWARM_TIMED_OUT,
            SWARM_DONE,
            SWARM_ERROR_RETRY,
            SWARM_ERROR_MAKE_ROOM,
            SWARM_ERROR_REOPEN,
            SWARM_ERROR_GIVE_UP,
            SWARM_ERROR_FORKED,
            SWARM_ERROR_OPEN,
            SWARM_ERROR_ARGUMENT,
            SWARM_ERROR_BUFFER,
            SWARM_ERROR_MEMORY,
            SWARM_ERROR_PANIC,
            SWARM_ERROR_TAKEN_AWAY,
            SWARM_ERROR_OTHER_KIND,
        ] {
            // SAFETY: a name ends with a zero byte.
            let name = unsafe { CStr::from_ptr(swarm_status_name(status as i32)) };
            assert_eq!(name.to_str(), Ok(format!("{status:?}").as_str()));
        }
        assert!(swarm_status_name(7).is_null() && swarm_status_name(i32::MIN).is_null());
    }
}
