//! What callers pass in, and where results go.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};

use swarm_kv::Error;

use crate::status::swarm_status::SWARM_OK;
use crate::status::{Failure, swarm_status};
use crate::{SWARM_MAX_KEY, SWARM_MAX_VALUE};

/// What `pointer` points to.
///
/// # Safety
/// It is NULL, or points to a `T` that lasts and that nobody changes but by what it is made of, as long as the result is used.
pub(crate) unsafe fn shared<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(what))
}

/// The same of what is changed.
///
/// # Safety
/// It is NULL, or points to a `T` that lasts and that nobody else uses as long as the result is used.
pub(crate) unsafe fn exclusive<'a, T>(pointer: *mut T, what: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or_else(|| is_null(what))
}

/// Writes `content` to where a result goes, before there is one: a pointer that is not NULL can be written.
///
/// # Safety
/// `pointer` is NULL or can be written.
pub(crate) unsafe fn preset<T>(pointer: *mut T, content: T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(is_null(what));
    }
    // SAFETY: the caller's promise. What was there is not read: it may never have been written.
    unsafe { pointer.write(content) };
    Ok(())
}

/// Writes a copy of a value, which is the caller's, and its length to where they go.
///
/// # Safety
/// `value` and `length` can be written.
pub(crate) unsafe fn hand_out(
    found: &[u8],
    value: *mut *mut c_void,
    length: *mut usize,
) -> Result<swarm_status, Failure> {
    // SAFETY: `malloc` may be called with any size.
    let copied = unsafe { libc::malloc(found.len().max(1)) };
    if copied.is_null() {
        return Err(Failure::memory(found.len()));
    }
    // SAFETY: it has room for so many bytes, and is new; for the rest the caller's promise.
    unsafe {
        ptr::copy_nonoverlapping(found.as_ptr(), copied.cast(), found.len());
        value.write(copied);
        length.write(found.len());
    }
    Ok(SWARM_OK)
}

fn is_null(what: &str) -> Failure {
    Failure::argument(format!("{what} is NULL"))
}

/// A key.
///
/// # Safety
/// `data` is NULL, or points to `length` bytes, if that is a key's length, which last and are not changed as long as the result is used.
pub(crate) unsafe fn key<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if !(1..=SWARM_MAX_KEY).contains(&length) {
        return Err(Error::Key(length).into());
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(data, length, "the key") }
}

/// What keys begin with.
///
/// # Safety
/// As of [`key`].
pub(crate) unsafe fn prefix<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length > SWARM_MAX_KEY {
        let message = format!("a key has at most {SWARM_MAX_KEY} bytes; none begins with {length}");
        return Err(Failure::argument(message));
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(data, length, "the prefix") }
}

/// A value.
///
/// # Safety
/// As of [`key`].
pub(crate) unsafe fn value<'a>(data: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    if length > SWARM_MAX_VALUE {
        return Err(Error::Value(length).into());
    }
    // SAFETY: the caller's promise.
    unsafe { bytes(data, length, "the value") }
}

/// A value, or that there is none, for which NULL stands.
///
/// # Safety
/// As of [`key`].
pub(crate) unsafe fn value_or_none<'a>(
    data: *const c_void,
    length: usize,
) -> Result<Option<&'a [u8]>, Failure> {
    match (data.is_null(), length) {
        (true, 0) => Ok(None),
        // SAFETY: the caller's promise.
        _ => unsafe { value(data, length) }.map(Some),
    }
}

/// # Safety
/// `data` is NULL, or points to `length` bytes which last and are not changed as long as the result is used.
unsafe fn bytes<'a>(data: *const c_void, length: usize, what: &str) -> Result<&'a [u8], Failure> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(is_null(what)),
        // SAFETY: the caller's promise; the length is one of keys and values.
        (false, _) => Ok(unsafe { slice::from_raw_parts(data.cast(), length) }),
    }
}

/// A path.
///
/// # Safety
/// `path` is NULL, or points to bytes of which one is zero, and which last and are not changed as long as the result is used.
pub(crate) unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    if path.is_null() {
        return Err(is_null("the path"));
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}
