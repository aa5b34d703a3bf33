//! A handle: opened, reopened, closed.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr;
use std::time::Duration;

use swarm_kv::shm::{CreateOptions, EvictStopped, OpenOptions, Pool};
use swarm_kv::{Store, StoreOptions};

use crate::arguments::{path, preset, shared};
use crate::status::swarm_status::SWARM_OK;
use crate::status::{Failure, call, swarm_error, swarm_status};

/// A handle to a pool. Any number of threads may use one at the same time. It belongs to the process that opened it: in a forked child
/// each call with it returns SWARM_ERROR_FORKED at once, and swarm_reopen opens one of the child's own.
pub struct swarm_store(pub(crate) Store);

/// The version of this library: "0.1.0". It is never freed.
#[unsafe(no_mangle)]
pub extern "C" fn swarm_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Makes a pool: the directory `path`, with one file for each of `nodes` memory nodes, 1, 3, 5 or 7, of `capacity` bytes each, which
/// are reserved, for up to `max_clients` clients at a time. Of what is zero the default is taken: 3 nodes, 256 MiB, 64 clients.
///
/// Ownership: `path` is not kept. Threads: any.
///
/// Returns SWARM_OK; SWARM_ERROR_OPEN, if there is a pool already or none can be made there; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// `path` is NULL or ends with a zero byte; `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_create(
    path: *const c_char,
    nodes: usize,
    capacity: u64,
    max_clients: usize,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        let default = CreateOptions::default();
        let options = CreateOptions {
            nodes: if nodes == 0 { default.nodes } else { nodes },
            capacity: if capacity == 0 { default.capacity } else { capacity },
            max_clients: if max_clients == 0 { default.max_clients } else { max_clients },
            ..default
        };
        // SAFETY: the caller's promise.
        Pool::create(unsafe { self::path(path) }?, &options)?;
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Opens the pool at `path`, and writes a handle to `*store`, or NULL if that fails.
///
/// `clients` is how many operations the handle may have under way at a time: it takes so many of the pool's client slots at most, one at
/// first. Zero is the default, 16. Operations beyond wait for one another.
///
/// Ownership: the handle is the caller's, until swarm_close. `path` is not kept. Threads: any. The first pool that a process opens
/// installs a handler for SIGBUS, which passes on what is not the pool's.
///
/// Returns SWARM_OK; SWARM_ERROR_OPEN, if there is no pool, no right to it or no client slot left; SWARM_ERROR_ARGUMENT; SWARM_ERROR_PANIC.
///
/// # Safety
/// `path` is NULL or ends with a zero byte; `store` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_open(
    path: *const c_char,
    clients: usize,
    store: *mut *mut swarm_store,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(store, ptr::null_mut(), "where the handle goes") }?;
        // SAFETY: the caller's promise.
        let opened = opened(unsafe { self::path(path) }?, clients, OpenOptions::default())?;
        // SAFETY: it was written before.
        unsafe { store.write(Box::into_raw(opened)) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// As swarm_open, for a handle that may end clients of other processes: if memory is short, it sends SIGKILL to each process whose client
/// was stopped or frozen for `stopped_milliseconds` in the middle of an operation, and writes a line to standard error. Without that such
/// a client is named in the error of the write that is refused. A process under a debugger is stopped, too. Handles that swarm_reopen
/// opens in place of this one go by it as well.
///
/// Ownership: the handle is the caller's, until swarm_close. `path` is not kept. Threads: any.
///
/// Returns what swarm_open returns.
///
/// # Safety
/// `path` is NULL or ends with a zero byte; `store` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_open_evicting(
    path: *const c_char,
    clients: usize,
    stopped_milliseconds: u64,
    store: *mut *mut swarm_store,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(store, ptr::null_mut(), "where the handle goes") }?;
        let evict_stopped = Some(EvictStopped::after(Duration::from_millis(stopped_milliseconds)));
        let options = OpenOptions { evict_stopped, ..OpenOptions::default() };
        // SAFETY: the caller's promise.
        let opened = opened(unsafe { self::path(path) }?, clients, options)?;
        // SAFETY: it was written before.
        unsafe { store.write(Box::into_raw(opened)) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

fn opened(path: &Path, clients: usize, options: OpenOptions) -> Result<Box<swarm_store>, Failure> {
    let default = StoreOptions::default();
    let store_options = if clients == 0 { default } else { default.clients(clients) };
    let pool = Pool::open(path, options)?;
    Ok(Box::new(swarm_store(Store::of(&pool, store_options)?)))
}

/// Opens the pool that is now at the path where `store` was opened, with as many clients, and writes a handle to `*reopened`, or NULL if that
/// fails: after SWARM_ERROR_REOPEN, or in a forked child.
///
/// Ownership: both handles are the caller's then, each until its own swarm_close. Threads: any.
///
/// Returns what swarm_open returns.
///
/// # Safety
/// `store` is NULL or a handle that was not closed; `reopened` and `error` are NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_reopen(
    store: *const swarm_store,
    reopened: *mut *mut swarm_store,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        // SAFETY: the caller's promise.
        unsafe { preset(reopened, ptr::null_mut(), "where the handle goes") }?;
        // SAFETY: the caller's promise.
        let store = unsafe { shared(store, "the handle") }?;
        let opened = Box::new(swarm_store(store.0.reopen()?));
        // SAFETY: it was written before.
        unsafe { reopened.write(Box::into_raw(opened)) };
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Closes a handle, which must not be used any more, nor be in use by another thread. NULL is passed over.
///
/// Operations and cursors that came from it are not closed with it: they last until they are freed, and the pool stays open so long. In a
/// forked child it gives the child's copy back, and the parent's handle goes on.
///
/// Returns SWARM_OK; SWARM_ERROR_PANIC.
///
/// # Safety
/// `store` is NULL or a handle that was not closed; `error` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_close(
    store: *mut swarm_store,
    error: *mut swarm_error,
) -> swarm_status {
    let work = || {
        if !store.is_null() {
            // SAFETY: it came out of a box when it was opened, and the caller gives it back.
            drop(unsafe { Box::from_raw(store) });
        }
        Ok(SWARM_OK)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, work) }
}

/// Frees a value that swarm_get_alloc or swarm_guarded_get_alloc returned. NULL is passed over. Threads: any.
///
/// # Safety
/// `value` is NULL or such a value that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn swarm_free(value: *mut c_void) {
    // SAFETY: the caller's promise: it came from `malloc`.
    unsafe { libc::free(value) };
}
