//! Ending a client that does not end by itself: one that was stopped, or hangs.
//!
//! The invariant: only a process that the kernel names as a holder of the slot's lock is ended, and
//! the slot counts as free only once the kernel has released the lock. A process is looked at
//! behind a descriptor of it that was opened before, so that its id cannot come to mean another.

use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::control::Control;
use crate::error::Error;
use crate::holder::{self, Name};
use crate::lock;
use crate::pool::Pool;
use crate::sync::Ordering;

/// How long a process may take to end once it was told to: it has the nodes' memory to unmap.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the lock is looked at meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

impl Pool {
    /// Ends the client in a slot with SIGKILL and waits until its slot is free. Yields the process
    /// ids, more than one where a bare `clone` shares it (see [`Attachment`](crate::Attachment)).
    ///
    /// # Errors
    /// Nobody holds the slot, or this process does; the holder cannot be seen from here, may not be
    /// ended by this user, or does not end.
    pub fn evict(&self, slot: usize) -> Result<Vec<u32>, Error> {
        let pool = || self.path().to_path_buf();
        let (control, limit) = (self.control(), self.geometry().max_clients);
        if slot >= limit {
            return Err(Error::NoClient { pool: pool(), slot, limit });
        }
        let bytes = Control::slot_bytes(slot..slot + 1);
        let locked = || {
            let locked = lock::is_locked(control.file(), bytes.clone());
            locked.map_err(|error| Error::io(self.path(), "look at the locks of", error))
        };
        if !locked()? {
            return Err(Error::NoClient { pool: pool(), slot, limit });
        }
        let name = Name::decode(control.slot(slot).load(Ordering::Relaxed));
        let found = holder::holders(control.file(), &bytes)
            .map_err(|error| Error::io("/proc".as_ref(), "read", error))?;
        if found.contains(&std::process::id()) {
            return Err(Error::OwnClient { pool: pool(), slot });
        }
        let mut ended = Vec::new();
        // All that share the lock, before any of them ends and somebody else has it.
        let open: Vec<_> =
            found.iter().filter_map(|&id| Some((id, open(id, control.file(), &bytes)?))).collect();
        for (process, handle) in &open {
            match pidfd_send_signal(handle, Signal::KILL) {
                Ok(()) => ended.push(*process),
                Err(Errno::SRCH) => {}
                Err(_) => {
                    return Err(Error::NotAllowed { pool: pool(), slot, process: *process });
                }
            }
        }
        if ended.is_empty() && locked()? {
            return Err(self.unseen(slot, name));
        }
        let since = Instant::now();
        // Once they have ended, a lock that is still there is that of the slot's next holder.
        while locked()? && !open.iter().all(|(_, handle)| has_ended(handle)) {
            if since.elapsed() > PATIENCE {
                return Err(Error::DoesNotEnd { pool: pool(), slot, processes: ended });
            }
            thread::sleep(PAUSE);
        }
        Ok(ended)
    }

    /// Why the holder of a lock is not found.
    fn unseen(&self, slot: usize, name: Option<Name>) -> Error {
        let pool = self.path().to_path_buf();
        match name {
            Some(Name { process, namespace }) if namespace == Name::own().namespace => {
                Error::NotAllowed { pool, slot, process }
            }
            Some(Name { process, namespace }) => {
                Error::Elsewhere { pool, slot, process, namespace }
            }
            // It has just come, or is just going.
            None => Error::Nameless { pool, slot },
        }
    }
}

/// A descriptor of a process that holds the lock.
fn open(process: u32, file: &File, bytes: &Range<u64>) -> Option<OwnedFd> {
    let id = Pid::from_raw(i32::try_from(process).ok()?)?;
    let handle = pidfd_open(id, PidfdFlags::empty()).ok()?;
    (is_of(&handle, process) && is_holder(process, file, bytes)).then_some(handle)
}

/// Whether the process behind a descriptor is the one that `/proc` lists under this id. It is not
/// where `/proc` is that of another pid namespace.
fn is_of(handle: &OwnedFd, process: u32) -> bool {
    let said = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()));
    let id =
        |said: String| said.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    said.ok().and_then(id) == Some(process)
}

/// Whether a process has ended, and with it all that it had open.
fn has_ended(handle: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}

fn is_holder(process: u32, file: &File, bytes: &Range<u64>) -> bool {
    holder::holds(process, file, bytes).unwrap_or(false)
}
