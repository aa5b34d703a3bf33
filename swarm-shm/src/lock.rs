//! Open-file-description locks on byte ranges of a file.
//!
//! Such a lock belongs to one opening of the file, not to a process: two openings in one process
//! exclude each other, and the kernel lets go of the lock when the last descriptor of the opening
//! is closed, however the process ended. A descriptor that a `fork` copied counts as well, until
//! the child ends or calls `exec`: a lock that is to end before the process does is let go of by its
//! holder ([`Held`], [`unlock`]), one that is to end with the process is that of a descriptor whose copies
//! are closed (`fork`), and whoever is refused one tries again for a while.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// For how long a lock is tried: a process that was killed takes a moment to end, and whoever forks to
/// start a program holds its locks twice until the program begins.
pub(crate) const PATIENCE: Duration = Duration::from_millis(50);
/// How long who is refused a lock waits before the next attempt.
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

/// The same, tried for so long before it is given up.
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

/// Takes an exclusive lock on `bytes`, for as long as this opening of `file` lives. `false` if
/// another opening holds one.
pub(crate) fn try_lock(file: &File, bytes: Range<u64>) -> io::Result<bool> {
    match call(file, libc::F_OFD_SETLK, libc::F_WRLCK, bytes) {
        Ok(_) => Ok(true),
        Err(error) if is_held(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lets go of this opening's locks on `bytes`, for all that share it.
pub(crate) fn unlock(file: &File, bytes: Range<u64>) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, libc::F_UNLCK, bytes).map(drop)
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
