//! Operations that are submitted, and polled.
//!
//! Submitting polls an operation once: where memory is near, almost each has ended then. One that has not keeps a client of its handle
//! until it ends or is freed.

use std::ffi::c_void;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::task::{Context, Poll, Waker};

use swarm_kv::{CompareAndSwap, Error, Store};

use crate::arguments::{key, preset, shared, value, value_or_none};
use crate::status::swarm_status::{
    SWARM_ABSENT, SWARM_EXISTS, SWARM_LOST, SWARM_OK, SWARM_PENDING,
};
use crate::status::{Failure, call, swarm_error, swarm_status};
use crate::store::swarm_store;

/// What an operation came to: a status, and the value that a get found.
type Outcome = (swarm_status, Option<Vec<u8>>);
type Rest = Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>;

/// An operation that was submitted. One thread at a time may poll it or wait for it, any thread.
pub struct swarm_operation(Mutex<State>);

enum State {
    Running(Rest),
    Ended(Result<Outcome, Failure>),
}

impl State {
    /// Goes on with it, by `run`. It is never polled again after its end or a panic.
    fn advance(&mut self, run: impl FnOnce(&mut Rest) -> Poll<Result<Outcome, Error>>) {
        let Self::Running(rest) = self else { return };
        let ended = match panic::catch_unwind(AssertUnwindSafe(|| run(rest))) {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(ended)) => ended.map_err(Failure::from),
            Err(payload) => Err(Failure::panicked(&*payload)),
        };
        *self = Self::Ended(ended);
    }

    fn poll(&mut self) {
        // Nobody is woken: its user polls it again.
        self.advance(|rest| rest.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    }

    /// Ends it; the thread sleeps while it waits for a client.
    fn wait(&mut self) {
        self.advance(|rest| Poll::Ready(pollster::block_on(rest)));
    }
}

impl swarm_operation {
    /// Begins it.
    pub(crate) fn new(
        operation: impl Future<Output = Result<Outcome, Error>> + Send + 'static,
    ) -> Box<Self> {
        let mut state = State::Running(Box::pin(operation));
        state.poll();
        Box::new(Self(Mutex::new(state)))
    }

    /// Its state, which one thread at a time may have. Nobody waits here: in a forked child a thread that is not there may have it.
    fn lock(&self) -> Result<MutexGuard<'_, State>, Failure> {
        match self.0.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::argument(
                "another thread polls this operation or waits for it; only one at a time may",
            )),
        }
    }
}

/// Submits what `operation` makes of the handle.
///
/// # Safety
/// `store` is NULL or a handle that was not closed; `submitted` and `error` are NULL or can be written.
unsafe fn submit<T: Future<Output = Result<Outcome, Error>> + Send + 'static>(
    store: *const swarm_store,
    submitted: *mut *mut swarm_operation,
    error: *mut swarm_error,
    operation: impl FnOnce(Store) -> Result<T, Failure>,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(submitted, ptr::null_mut(), "where the operation goes") }?;
        // SAFETY: the caller's promise.
        let store = unsafe { shared(store, "the handle") }?.0.clone();
        let begun = swarm_operation::new(operation(store)?);
        // SAFETY: it was written before.
        unsafe { submitted.write(Box::into_raw(begun)) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Begins to get the value of `key`, and writes the operation to `*operation`, or NULL if that fails.
///
/// What the operation comes to is what swarm_poll or swarm_wait says, errors of the store as well. One that has not ended keeps one
/// of its handle's clients: if all are kept so, other calls with the handle wait until one of these operations is polled to its end
/// or freed, perhaps for ever if it is this thread that should do so. Poll all that you submit; and submit fewer than the handle has clients
/// before a call that blocks.
///
/// Ownership: the operation is the caller's, until swarm_operation_free, which may be after swarm_close. `key` is copied. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed. `key` is NULL or has so many bytes. `operation` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_submit_get(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    operation: *mut *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let get = |store: Store| {
        // SAFETY: the caller's promise.
        let key = unsafe { self::key(key, key_length) }?.to_vec();
        Ok(async move {
            let value = store.get(&key).await?;
            Ok((if value.is_some() { SWARM_OK } else { SWARM_ABSENT }, value))
        })
    };
    // SAFETY: the caller's promise.
    unsafe { submit(store, operation, error, get) }
}

/// Begins to make `value` the value of `key`. The rules of swarm_submit_get apply; `key` and `value` are copied.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_submit_get, and of `value` as of `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_submit_put(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    operation: *mut *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let put = |store: Store| {
        // SAFETY: the caller's promise.
        let (key, value) = unsafe { copies(key, key_length, value, value_length) }?;
        Ok(async move { store.put(&key, &value).await.map(|()| (SWARM_OK, None)) })
    };
    // SAFETY: the caller's promise.
    unsafe { submit(store, operation, error, put) }
}

/// Begins to add `key` with `value`; swarm_poll returns SWARM_EXISTS if it was there already. The rules of swarm_submit_get apply;
/// `key` and `value` are copied.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_submit_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_submit_insert(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    operation: *mut *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let insert = |store: Store| {
        // SAFETY: the caller's promise.
        let (key, value) = unsafe { copies(key, key_length, value, value_length) }?;
        Ok(async move {
            let is_new = store.insert(&key, &value).await?;
            Ok((if is_new { SWARM_OK } else { SWARM_EXISTS }, None))
        })
    };
    // SAFETY: the caller's promise.
    unsafe { submit(store, operation, error, insert) }
}

/// Begins to replace the value of `key`; swarm_poll returns SWARM_ABSENT if it was not there. The rules of swarm_submit_get apply;
/// `key` and `value` are copied.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_submit_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_submit_update(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    operation: *mut *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let update = |store: Store| {
        // SAFETY: the caller's promise.
        let (key, value) = unsafe { copies(key, key_length, value, value_length) }?;
        Ok(async move {
            let is_there = store.update(&key, &value).await?;
            Ok((if is_there { SWARM_OK } else { SWARM_ABSENT }, None))
        })
    };
    // SAFETY: the caller's promise.
    unsafe { submit(store, operation, error, update) }
}

/// Begins to take `key` away. The rules of swarm_submit_get apply.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_submit_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_submit_delete(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    operation: *mut *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let delete = |store: Store| {
        // SAFETY: the caller's promise.
        let key = unsafe { self::key(key, key_length) }?.to_vec();
        Ok(async move { store.delete(&key).await.map(|()| (SWARM_OK, None)) })
    };
    // SAFETY: the caller's promise.
    unsafe { submit(store, operation, error, delete) }
}

/// Begins to make `new_value` the value of `key` if its value is `expected`; swarm_poll returns SWARM_LOST if it was not. NULL stands for
/// no value, as for swarm_compare_and_swap. The rules of swarm_submit_get apply; what is passed is copied.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_submit_get, and of `expected` and `new_value` as of `key`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_submit_compare_and_swap(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    expected: *const c_void,
    expected_length: usize,
    new_value: *const c_void,
    new_length: usize,
    operation: *mut *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let swap = |store: Store| {
        // SAFETY: the caller's promise.
        let key = unsafe { self::key(key, key_length) }?.to_vec();
        // SAFETY: the caller's promise.
        let expected = unsafe { value_or_none(expected, expected_length) }?.map(<[u8]>::to_vec);
        // SAFETY: the caller's promise.
        let new = unsafe { value_or_none(new_value, new_length) }?.map(<[u8]>::to_vec);
        Ok(async move {
            let outcome = store.compare_and_swap(&key, expected.as_deref(), new.as_deref()).await?;
            let is_swapped = outcome == CompareAndSwap::Swapped;
            Ok((if is_swapped { SWARM_OK } else { SWARM_LOST }, None))
        })
    };
    // SAFETY: the caller's promise.
    unsafe { submit(store, operation, error, swap) }
}

/// Begins to add `by` to the number under `key`. The value that swarm_poll writes is the sum, in decimal digits, without a zero byte at its end.
/// The rules of swarm_submit_get apply.
///
/// Returns SWARM_OK; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// As of swarm_submit_get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_submit_increment(
    store: *const swarm_store,
    key: *const c_void,
    key_length: usize,
    by: i64,
    operation: *mut *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let add = |store: Store| {
        // SAFETY: the caller's promise.
        let key = unsafe { self::key(key, key_length) }?.to_vec();
        Ok(async move {
            let sum = store.increment(&key, by).await?;
            Ok((SWARM_OK, Some(sum.to_string().into_bytes())))
        })
    };
    // SAFETY: the caller's promise.
    unsafe { submit(store, operation, error, add) }
}

/// # Safety
/// As of the functions that it calls.
unsafe fn copies(
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    // SAFETY: the caller's promise.
    let (key, value) = unsafe { (self::key(key, key_length)?, self::value(value, value_length)?) };
    Ok((key.to_vec(), value.to_vec()))
}

/// Goes on with an operation, and returns at once: SWARM_PENDING if it has not ended; else what it came to, each time that it is
/// called. Where a get has found a value, or numbers were added, that is written to `*value` and its length to `*length`, which become NULL and zero in all
/// other cases; both may be NULL for a caller that does not want it.
///
/// Ownership: the value is the operation's, and is there until swarm_operation_free. Threads: any, one at a time for an operation.
///
/// Returns SWARM_PENDING; what the call of the operation's name returns (swarm_get, swarm_put, swarm_insert, swarm_update,
/// swarm_delete, swarm_compare_and_swap, swarm_increment; a get never SWARM_ERROR_BUFFER); SWARM_ERROR_ARGUMENT, also if another thread has the operation at the moment; SWARM_ERROR_FORKED in a child, if
/// it had not ended.
///
/// # Safety
/// `operation` is NULL or one that was not freed. `value`, `length` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_poll(
    operation: *const swarm_operation,
    value: *mut *const c_void,
    length: *mut usize,
    error: *mut swarm_error,
) -> swarm_status {
    // SAFETY: the caller's promise.
    unsafe { go_on(operation, value, length, error, State::poll) }
}

/// Waits until an operation has ended. The rules of swarm_poll apply, but it never returns SWARM_PENDING.
///
/// # Safety
/// As of swarm_poll.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_wait(
    operation: *const swarm_operation,
    value: *mut *const c_void,
    length: *mut usize,
    error: *mut swarm_error,
) -> swarm_status {
    // SAFETY: the caller's promise.
    unsafe { go_on(operation, value, length, error, State::wait) }
}

/// # Safety
/// As of swarm_poll.
unsafe fn go_on(
    operation: *const swarm_operation,
    value: *mut *const c_void,
    length: *mut usize,
    error: *mut swarm_error,
    advance: impl FnOnce(&mut State),
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
        let mut state = unsafe { shared(operation, "the operation") }?.lock()?;
        advance(&mut state);
        match &*state {
            State::Running(_) => Ok(SWARM_PENDING),
            State::Ended(Err(failure)) => Err(failure.clone()),
            State::Ended(Ok((status, found))) => {
                // It stays where it is until the operation is dropped: an operation that has ended does not change.
                if let Some(found) = found {
                    hand_out(found.as_ptr(), found.len());
                }
                Ok(*status)
            }
        }
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Frees an operation, and the value that it has found. NULL is passed over. One that has not ended is broken off: a write may take
/// effect or not, and nothing else is harmed. No other thread may be using it.
///
/// Returns SWARM_OK; SWARM_ERROR_PANIC.
///
/// # Safety
/// `operation` is NULL or one that was not freed; `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_operation_free(
    operation: *mut swarm_operation,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        if !operation.is_null() {
            // SAFETY: it came out of a box in `submit`, and the caller gives it back.
            drop(unsafe { Box::from_raw(operation) });
        }
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

#[cfg(test)]
mod tests {
    use std::future;

    use swarm_kv::StoreOptions;
    use swarm_kv::shm::{CreateOptions, Emulated, Pool};

    use super::*;
    use crate::status::swarm_status::{
        SWARM_ERROR_ARGUMENT, SWARM_ERROR_FORKED, SWARM_ERROR_PANIC,
    };

    type Far = Store<Emulated>;

    /// A handle with one client to nodes that answer after some milliseconds, so that what is submitted is pending.
    fn far(dir: &tempfile::TempDir) -> Far {
        let options = CreateOptions { nodes: 3, capacity: 4 << 20, ..CreateOptions::default() };
        let pool = Pool::create(dir.path().join("pool"), &options).expect("a pool");
        Far::emulated(&pool, StoreOptions::default().clients(1), 3_000_000).expect("a free slot")
    }

    fn put(store: &Far, value: &'static [u8]) -> Box<swarm_operation> {
        let store = store.clone();
        let put = async move { store.put(b"key", value).await.map(|()| (SWARM_OK, None)) };
        swarm_operation::new(put)
    }

    fn poll(operation: &swarm_operation) -> swarm_status {
        // SAFETY: it is there; NULL for the rest.
        unsafe { swarm_poll(operation, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) }
    }

    fn wait(operation: &swarm_operation) -> swarm_status {
        // SAFETY: it is there; NULL for the rest.
        unsafe { swarm_wait(operation, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()) }
    }

    #[test]
    fn what_has_not_ended_is_pending() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = far(&dir);
        let first = put(&store, b"first");
        assert_eq!(poll(&first), SWARM_PENDING);
        assert_eq!(wait(&first), SWARM_OK);
        assert_eq!(poll(&first), SWARM_OK);
        assert_eq!(store.blocking().get(b"key"), Ok(Some(b"first".to_vec())));
    }

    /// The second one waits for the client that the first one keeps, which is freed before its end.
    #[test]
    fn one_that_is_freed_gives_its_client_to_the_next() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = far(&dir);
        let first = put(&store, b"first");
        let second = put(&store, b"second");
        assert_eq!((poll(&first), poll(&second)), (SWARM_PENDING, SWARM_PENDING));
        // SAFETY: it came out of a box, and is not used again.
        let freed = unsafe { swarm_operation_free(Box::into_raw(first), ptr::null_mut()) };
        assert_eq!(freed, SWARM_OK);
        assert_eq!(wait(&second), SWARM_OK);
        assert_eq!(store.blocking().get(b"key"), Ok(Some(b"second".to_vec())));
    }

    /// Neither what has a client nor what waits for one hangs in a child, and the parent's goes on.
    #[test]
    fn a_pending_operation_fails_in_a_forked_child() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = far(&dir);
        let (first, second) = (put(&store, b"first"), put(&store, b"second"));
        assert_eq!(poll(&first), SWARM_PENDING);
        // SAFETY: the child calls what is tried here, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: any process may; whatever hangs ends so.
            unsafe { libc::alarm(60) };
            let outcome = [poll(&first), wait(&first), poll(&second), wait(&second)];
            let free = |operation| {
                // SAFETY: it came out of a box, and is not used again.
                unsafe { swarm_operation_free(Box::into_raw(operation), ptr::null_mut()) }
            };
            let freed = [free(first), free(second)];
            let well = outcome == [SWARM_ERROR_FORKED; 4] && freed == [SWARM_OK; 2];
            // SAFETY: nothing of the parent's runs at its end.
            unsafe { libc::_exit(if well { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: a child of this process, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child got another status, or hung");
        assert_eq!((wait(&first), wait(&second)), (SWARM_OK, SWARM_OK));
        assert_eq!(store.blocking().get(b"key"), Ok(Some(b"second".to_vec())));
    }

    #[test]
    fn one_that_panics_is_not_polled_again() {
        let operation = swarm_operation::new(async { panic!("in the middle") });
        assert_eq!((poll(&operation), wait(&operation)), (SWARM_ERROR_PANIC, SWARM_ERROR_PANIC));
    }

    #[test]
    fn a_second_thread_is_refused() {
        let operation = swarm_operation::new(future::pending());
        let held = operation.lock().expect("nobody has it");
        assert_eq!(
            (poll(&operation), wait(&operation)),
            (SWARM_ERROR_ARGUMENT, SWARM_ERROR_ARGUMENT)
        );
        drop(held);
        assert_eq!(poll(&operation), SWARM_PENDING);
    }
}
