//! Open-file-description locks on byte ranges of a file.
//!
//! Such a lock belongs to one opening of the file, not to a process: two openings in one process
//! exclude each other, and the kernel lets go of the lock when the last descriptor of the opening
//! is closed, however the process ended. A descriptor that a `fork` copied counts as well, until
//! the child ends or calls `exec`.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Takes an exclusive lock on `bytes`, for as long as this opening of `file` lives. `false` if
/// another opening holds one.
pub(crate) fn try_lock(file: &File, bytes: Range<u64>) -> io::Result<bool> {
    match call(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes) {
        Ok(_) => Ok(true),
        Err(error) if is_held(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether another opening holds a lock on some of `bytes`.
pub(crate) fn is_locked(file: &File, bytes: Range<u64>) -> io::Result<bool> {
    let found = call(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?;
    Ok(found != libc::F_UNLCK)
}

fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Calls `fcntl` and returns the lock type that it leaves behind.
fn call(file: &File, command: i32, kind: i32, bytes: Range<u64>) -> io::Result<i32> {
    let offset = |value: u64| libc::off_t::try_from(value).expect("ranges lie within small files");
    // SAFETY: `flock` is plain data, for which all zeros is a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = offset(bytes.start);
    lock.l_len = offset(bytes.end - bytes.start);
    // SAFETY: the descriptor is open, as `file` is borrowed, and `lock` outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(i32::from(lock.l_type)) }
}
