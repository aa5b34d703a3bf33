//! Which clients in the middle of an operation look stopped, or cannot be seen, and are ended only
//! by their slot's number.
//!
//! **Invariant:** what is reported of a client is what the kernel shows of its process from here. Of
//! a process that cannot be seen, nothing is known but that its lock is held and its mark is set.

use crate::files::control::Control;
use crate::files::range_lock;
use crate::processes::halt::{halted, stopped_in_part};
use crate::processes::process::{self, ProcessId};
use crate::processes::stopped::pinned;
use crate::words::sync::Ordering;

/// A client that was in the middle of an operation at a look, and is not ended for being stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LeftAlone {
    /// Its client slot.
    pub slot: usize,
    /// Its process: as seen from here or, if it is [unseen](WhyLeftAlone::Unseen), as it calls
    /// itself.
    pub process: u32,
    /// The epoch of its mark: in which its operation began. Two looks that find the same epoch may
    /// have found two operations, unless it is over.
    pub since: u64,
    /// Why it is not ended.
    pub why: WhyLeftAlone,
}

/// Why a client is not ended for being stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum WhyLeftAlone {
    /// Its process cannot be seen from here, as it is in another pid namespace. It may be stopped,
    /// or go on.
    Unseen,
    /// It is stopped or frozen, and in another pid namespace: an inner one.
    OtherNamespace,
    /// It is stopped or frozen, and this user may not examine it.
    NotExamined,
    /// These of its threads are stopped, as by a debugger. Others go on.
    InPart(Vec<u32>),
}

impl LeftAlone {
    /// Looks at the client in a slot; `None` if it is in no operation that began before `epoch`,
    /// goes on, or is stopped and may be ended.
    pub(crate) fn find(control: &Control, slot: usize, epoch: u64) -> Option<Self> {
        let since = pinned(control, slot).filter(|&since| since < epoch)?;
        let name = ProcessId::decode(control.slot(slot).load(Ordering::Relaxed))?;
        let (file, bytes) = (control.file(), Control::slot_bytes(slot..slot + 1));
        if !range_lock::is_locked(file, bytes.clone()).unwrap_or(true) {
            return None;
        }
        let holders = process::holders(file, &bytes).ok()?;
        if holders.contains(&std::process::id()) {
            return None;
        }
        let is_named = holders.contains(&name.process);
        let process = if name.is_local() { Some(name.process) } else { holders.first().copied() };
        let why = match process {
            None => WhyLeftAlone::Unseen,
            Some(process) => {
                let in_part = stopped_in_part(process);
                if !in_part.is_empty() {
                    WhyLeftAlone::InPart(in_part)
                } else if halted(process).is_none() || (name.is_local() && is_named) {
                    return None;
                } else if name.is_local() {
                    WhyLeftAlone::NotExamined
                } else {
                    WhyLeftAlone::OtherNamespace
                }
            }
        };
        // What was found is of this operation's client: another one has another process.
        let is_same = pinned(control, slot) == Some(since);
        is_same.then_some(Self { slot, process: process.unwrap_or(name.process), since, why })
    }
}
