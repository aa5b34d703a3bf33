//! The client slots, their owners, and the epochs they pin. Nothing is written and no slot is
//! taken.

use std::fs::File;

use crate::files::control::{self, Control};
use crate::files::range_lock;
use crate::pool::Pool;
use crate::processes::freezer;
use crate::processes::process::{self, ProcessId};
use crate::processes::state::ClientState;
use crate::words::sync::Ordering;

/// A client slot that has an owner, or whose last owner died without leaving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClientInfo {
    /// Which slot.
    pub slot: usize,
    /// The owner's process id as seen from here or, if it cannot be seen, as it calls itself.
    pub process: u32,
    /// Whether the id is one of another pid namespace, or of an unknown one.
    pub elsewhere: bool,
    /// The owner's state.
    pub condition: ClientState,
    /// The epoch since which it is pinned.
    pub since: Option<u64>,
}

impl Pool {
    /// Returns the client slots that have an owner, and those whose last owner died.
    pub fn clients(&self) -> Vec<ClientInfo> {
        (0..self.geometry().max_clients).filter_map(|slot| self.tenant(slot)).collect()
    }

    /// Returns the client slots with a live owner.
    pub fn live_clients(&self) -> Vec<usize> {
        live_clients(self.control().file(), self.geometry().max_clients)
    }

    /// Returns the process id that the last owner of a client slot had in its own pid namespace.
    /// For display only: the number may mean another process here, or none.
    pub fn client_process(&self, slot: usize) -> Option<u32> {
        if slot >= self.geometry().max_clients {
            return None;
        }
        let word = self.control().slot(slot).load(Ordering::Relaxed);
        ProcessId::decode(word).map(|name| name.process)
    }

    /// Returns the epoch: memory that was retired in it may be reused two epochs later. It counts
    /// from 1.
    pub fn epoch(&self) -> u64 {
        self.control().mapping().words()[control::EPOCH].load(Ordering::Acquire) + 1
    }

    pub(crate) fn tenant(&self, slot: usize) -> Option<ClientInfo> {
        let control = self.control();
        let bytes = Control::slot_bytes(slot..slot + 1);
        // A lock that cannot be queried counts as held.
        let held = range_lock::is_locked(control.file(), bytes.clone()).unwrap_or(true);
        let name = ProcessId::decode(control.slot(slot).load(Ordering::Relaxed))?;
        let since = control.mapping().words()[control::epoch_word(slot)].load(Ordering::Acquire);
        let tenant = |process, elsewhere, condition| {
            let since = Some(since).filter(|&since| since != 0 && condition != ClientState::Dead);
            Some(ClientInfo { slot, process, elsewhere, condition, since })
        };
        if !held {
            return tenant(name.process, !name.is_local(), ClientState::Dead);
        }
        // A process that may not be examined is believed.
        let is_there = || process::holds(name.process, control.file(), &bytes).unwrap_or(true);
        let process = if name.is_local() && is_there() {
            Some(name.process)
        } else {
            process::holders(control.file(), &bytes).ok().and_then(|found| found.first().copied())
        };
        match process {
            // A process that is stopped as well goes on only once it is thawed.
            Some(process) if freezer::frozen(process).is_some() => {
                tenant(process, false, ClientState::Frozen)
            }
            Some(process) if matches!(process::state(process), Some('T' | 't')) => {
                tenant(process, false, ClientState::Stopped)
            }
            Some(process) => tenant(process, false, ClientState::Alive),
            None => tenant(name.process, true, ClientState::Alive),
        }
    }
}

/// Returns the slots that have a live owner. A slot whose lock cannot be queried counts as held.
pub(crate) fn live_clients(file: &File, slots: usize) -> Vec<usize> {
    let held = |slots| range_lock::is_locked(file, Control::slot_bytes(slots)).unwrap_or(true);
    if !held(0..slots) {
        return Vec::new();
    }
    (0..slots).filter(|&slot| held(slot..slot + 1)).collect()
}
