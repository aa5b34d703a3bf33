//! Ending a client that does not end by itself: one that was stopped, or hangs.
//!
//! **Invariant:** only a process that the kernel names as an owner of the slot's lock is ended, and
//! the slot counts as free only once the kernel has released the lock. A process is examined after
//! a descriptor of it was opened, so that its id cannot come to mean another process.
//!
//! E2b: an evicted client does no harm, wherever it was stopped, be it between a check and the store
//! that rests on it. After SIGKILL a thread leaves the kernel no more, and the lock is released
//! when the last thread with the process's files has exited. So a process that finds the lock free, and
//! counts the client's mark no more, finds a client whose last store is made. There is nobody to
//! return an error to: a parent that waits for the process sees that a signal ended it.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::error::Error;
use crate::files::control::Control;
use crate::files::range_lock;
use crate::pool::Pool;
use crate::processes::left_alone::LeftAlone;
use crate::processes::process::{self, ProcessId};
use crate::processes::stopped::{Ended, HaltWatch, LOOK, StoppedClient};
use crate::words::sync::Ordering;

/// How long a process may take to end after SIGKILL: it has the nodes' memory to unmap.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the lock is checked meanwhile.
const PAUSE: Duration = Duration::from_millis(1);

impl Pool {
    /// Ends the client in a slot with SIGKILL and waits until its slot is free. Returns the process
    /// ids: more than one if a bare `clone` shares the slot (see
    /// [`ClientSlot`](crate::ClientSlot)).
    ///
    /// # Errors
    /// The slot has no owner, or this process owns it. The owner cannot be seen from here, may not
    /// be ended by this user, or does not end.
    pub fn evict(&self, slot: usize) -> Result<Vec<u32>, Error> {
        let pool = || self.path().to_path_buf();
        let (control, limit) = (self.control(), self.geometry().max_clients);
        if slot >= limit {
            return Err(Error::NoClient { pool: pool(), slot, limit });
        }
        let bytes = Control::slot_bytes(slot..slot + 1);
        let locked = || {
            let locked = range_lock::is_locked(control.file(), bytes.clone());
            locked.map_err(|error| Error::io(self.path(), "look at the locks of", error))
        };
        if !locked()? {
            return Err(Error::NoClient { pool: pool(), slot, limit });
        }
        let name = ProcessId::decode(control.slot(slot).load(Ordering::Relaxed));
        let found = process::holders(control.file(), &bytes)
            .map_err(|error| Error::io("/proc".as_ref(), "read", error))?;
        if found.contains(&std::process::id()) {
            return Err(Error::OwnClient { pool: pool(), slot });
        }
        let mut ended = Vec::new();
        // All processes that share the lock, before any of them ends and another client takes it.
        let open: Vec<_> = found
            .iter()
            .filter_map(|&id| Some((id, process::open(id, control.file(), &bytes)?)))
            .collect();
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
        until_ended(control, slot, &open)?;
        Ok(ended)
    }

    /// Looks at all clients whose operations began before `epoch`. Returns those that are stopped or
    /// frozen in the middle of one, with how long `watch` has seen them so.
    pub fn halted_clients(&self, watch: &mut HaltWatch, epoch: u64) -> Vec<StoppedClient> {
        watch.look(self.control(), epoch)
    }

    /// Ends those that have been so for at least that long, as of now, and waits until their slots
    /// are free. A process that is let go on in this very moment is ended all the same. Returns
    /// them as they were before the signal, each with whether it has ended.
    pub fn evict_halted(
        &self,
        watch: &mut HaltWatch,
        least: Duration,
    ) -> Vec<(StoppedClient, Result<(), Error>)> {
        let sent = watch.end(self.control(), least).into_iter();
        let waited = |it: Ended| {
            let until_ended = |()| until_ended(self.control(), it.slot, &it.processes);
            (it.client, it.sent.and_then(until_ended))
        };
        sent.map(waited).collect()
    }

    /// Looks at all clients whose operations began before `epoch`. Returns those that are stopped,
    /// in part or as a whole, or cannot be seen, and that [`evict_halted`](Self::evict_halted) does
    /// not end. [`evict`](Self::evict) ends those that can be seen.
    pub fn clients_left_alone(&self, epoch: u64) -> Vec<LeftAlone> {
        let slots = 0..self.geometry().max_clients;
        slots.filter_map(|slot| LeftAlone::find(self.control(), slot, epoch)).collect()
    }

    /// Ends clients that keep the epoch from advancing, if the pool was [opened for
    /// that](crate::OpenOptions::evict_stopped). Looks at most every [`LOOK`].
    pub(crate) fn end_halted(&self) {
        let Some(evictor) = self.evictor() else { return };
        if self.epoch_age().is_some_and(|age| u128::from(age) >= LOOK.as_nanos()) {
            evictor.look(self.control(), self.epoch());
        }
    }

    /// Returns why the owner of a lock was not found.
    fn unseen(&self, slot: usize, name: Option<ProcessId>) -> Error {
        let pool = self.path().to_path_buf();
        match name {
            Some(ProcessId { process, namespace }) if namespace == ProcessId::own().namespace => {
                Error::NotAllowed { pool, slot, process }
            }
            Some(ProcessId { process, namespace }) => {
                Error::Elsewhere { pool, slot, process, namespace }
            }
            // It is attaching or leaving.
            None => Error::Nameless { pool, slot },
        }
    }
}

/// Waits until processes that were sent SIGKILL have ended, and with them their lock.
fn until_ended(control: &Control, slot: usize, open: &[(u32, OwnedFd)]) -> Result<(), Error> {
    let bytes = Control::slot_bytes(slot..slot + 1);
    let locked = || {
        let locked = range_lock::is_locked(control.file(), bytes.clone());
        locked.map_err(|error| Error::io(control.dir(), "look at the locks of", error))
    };
    let since = Instant::now();
    // Once they have ended, a lock that is still there is that of the slot's next owner.
    while locked()? && !open.iter().all(|(_, handle)| process::has_ended(handle)) {
        if since.elapsed() > PATIENCE {
            let processes = open.iter().map(|&(process, _)| process).collect();
            return Err(Error::DoesNotEnd { pool: control.dir().into(), slot, processes });
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}
