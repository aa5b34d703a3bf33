//! Open-file-description locks on byte ranges of a file.
//!
//! Such a lock belongs to one opening of the file, not to a process: two openings in one process
//! exclude each other, and the kernel releases the lock when the last descriptor of the opening is
//! closed, however the process ended. A descriptor that a `fork` copied counts as well, until the
//! child ends or calls `exec`. So a lock that ends before its process is released by its owner
//! ([`Held`], [`unlock`]). One that ends with the process belongs to a descriptor whose copies are
//! closed (`fork`). And a process that is refused a lock retries for a while.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a lock is tried: a killed process takes a moment to end, and a process that forks to
/// start a program holds its locks twice until the program begins.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);
/// How long to wait before the next attempt.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// A lock that ends with this value, whatever a `fork` copied meanwhile.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    file: &'a File,
    bytes: Range<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // If it fails, the lock ends with the opening.
        drop(unlock(self.file, self.bytes.clone()));
    }
}

/// Takes an exclusive lock on `bytes` until it is dropped. `None` if another opening holds one.
fn hold(file: &File, bytes: Range<u64>) -> io::Result<Option<Held<'_>>> {
    Ok(try_lock(file, bytes.clone())?.then(|| Held { file, bytes }))
}

/// The same, retried for `patience` before it is given up.
pub(crate) fn hold_within(
    file: &File,
    bytes: Range<u64>,
    patience: Duration,
) -> io::Result<Option<Held<'_>>> {
    let begun = Instant::now();
    loop {
        let held = hold(file, bytes.clone())?;
        if held.is_some() || begun.elapsed() >= patience {
            return Ok(held);
        }
        sleep(PAUSE);
    }
}

/// Takes a shared lock on `bytes`, for as long as this opening of `file` lives, and retries for
/// `patience`. `false` if another opening holds an exclusive one.
pub(crate) fn share_within(file: &File, bytes: Range<u64>, patience: Duration) -> io::Result<bool> {
    within(patience, || take(file, libc::F_RDLCK, bytes.clone()))
}

/// The same with an exclusive lock.
pub(crate) fn lock_within(file: &File, bytes: Range<u64>, patience: Duration) -> io::Result<bool> {
    within(patience, || try_lock(file, bytes.clone()))
}

/// Tries to take a lock until it is had, for `patience`.
fn within(patience: Duration, take: impl Fn() -> io::Result<bool>) -> io::Result<bool> {
    let begun = Instant::now();
    loop {
        let taken = take()?;
        if taken || begun.elapsed() >= patience {
            return Ok(taken);
        }
        sleep(PAUSE);
    }
}

/// Takes an exclusive lock on `bytes`, for as long as this opening of `file` lives. `false` if
/// another opening holds one.
pub(crate) fn try_lock(file: &File, bytes: Range<u64>) -> io::Result<bool> {
    take(file, libc::F_WRLCK, bytes)
}

/// Takes a lock of this kind. `false` if another opening holds one that excludes it.
fn take(file: &File, kind: i32, bytes: Range<u64>) -> io::Result<bool> {
    match call(file, libc::F_OFD_SETLK, kind, bytes) {
        Ok(_) => Ok(true),
        Err(error) if is_held(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Releases this opening's locks on `bytes`, for all that share it.
pub(crate) fn unlock(file: &File, bytes: Range<u64>) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
}

/// Returns whether another opening holds a lock on some of `bytes`.
pub(crate) fn is_locked(file: &File, bytes: Range<u64>) -> io::Result<bool> {
    let found = call(file, libc::F_OFD_GETLK, libc::F_WRLCK, bytes)?;
    Ok(found != libc::F_UNLCK)
}

fn is_held(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Calls `fcntl` and returns the lock type that it stores.
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
