//! Who is there: the client slots, their holders, and what they hold up. Nothing is written and no
//! slot is taken.

use crate::control::{self, Control};
use crate::holder::{self, Name};
use crate::lock;
use crate::pool::Pool;
use crate::sync::Ordering;

/// A client slot that somebody holds, or held and did not leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Tenant {
    /// Which slot.
    pub slot: usize,
    /// The holder's process id as seen from here or, where it cannot be seen, as it calls itself.
    pub process: u32,
    /// Whether the id is one of another pid namespace, or of one that is not known.
    pub elsewhere: bool,
    /// How it is.
    pub condition: Condition,
    /// Since which epoch it has an operation under way.
    pub since: Option<u64>,
}

/// How a slot's holder is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Condition {
    /// It lives, as the lock says.
    Alive,
    /// It lives, but was stopped, as by SIGSTOP: what it has under way waits until it goes on.
    Stopped,
    /// It died without leaving. Its slot is free.
    Dead,
}

impl Pool {
    /// The client slots that have a holder, and those whose last holder died.
    pub fn census(&self) -> Vec<Tenant> {
        (0..self.geometry().max_clients).filter_map(|slot| self.tenant(slot)).collect()
    }

    /// The epoch that it is: memory that was retired in it may be used again two epochs later. It
    /// counts from 1.
    pub fn epoch(&self) -> u64 {
        self.control().mapping().words()[control::EPOCH].load(Ordering::Acquire) + 1
    }

    pub(crate) fn tenant(&self, slot: usize) -> Option<Tenant> {
        let control = self.control();
        let bytes = Control::slot_bytes(slot..slot + 1);
        // One that cannot be looked at counts as held.
        let held = lock::is_locked(control.file(), bytes.clone()).unwrap_or(true);
        let name = Name::decode(control.slot(slot).load(Ordering::Relaxed))?;
        let since = control.mapping().words()[control::board(slot)].load(Ordering::Acquire);
        let tenant = |process, elsewhere, condition| {
            let since = Some(since).filter(|&since| since != 0 && condition != Condition::Dead);
            Some(Tenant { slot, process, elsewhere, condition, since })
        };
        if !held {
            return tenant(name.process, !name.is_local(), Condition::Dead);
        }
        // What may not be looked at is believed.
        let is_there = || holder::holds(name.process, control.file(), &bytes).unwrap_or(true);
        let process = if name.is_local() && is_there() {
            Some(name.process)
        } else {
            holder::holders(control.file(), &bytes).ok().and_then(|found| found.first().copied())
        };
        match process {
            Some(process) if matches!(holder::state(process), Some('T' | 't')) => {
                tenant(process, false, Condition::Stopped)
            }
            Some(process) => tenant(process, false, Condition::Alive),
            None => tenant(name.process, true, Condition::Alive),
        }
    }
}
