//! Which clients have been stopped or frozen in the middle of an operation, and for how long.
//!
//! **Invariant (E2b):** a client that is ended for it was in the middle of one operation, and
//! executed nothing, for as long as was asked for. Its process was [halted](crate::processes::halt)
//! at each look, and its threads never ran between two.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};

use crate::error::Error;
use crate::files::control::{self, Control};
use crate::processes::freezer;
use crate::processes::halt::{Halted, halted};
use crate::processes::process::{self, ProcessId};
use crate::processes::state::ClientState;
use crate::words::sync::Ordering;

/// How often a client that waits for memory looks, and for how long the epoch has to stand before
/// it does.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// How long the kernel may take to count that a thread gave its processor up, which it shows as
/// stopped.
const SETTLED: Duration = Duration::from_millis(1);

/// A client that was stopped or frozen in the middle of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StoppedClient {
    /// Its client slot.
    pub slot: usize,
    /// Its process, or several that share the slot.
    pub processes: Vec<u32>,
    /// Stopped, or frozen.
    pub condition: ClientState,
    /// The epoch in which its operation began.
    pub since: u64,
    /// When it was first seen so. It has executed nothing since.
    pub first: Instant,
    /// How long that is.
    pub halted: Duration,
}

/// Which stopped clients a client may end that lacks memory, and what is called then.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct EvictStopped {
    /// For how long a client must have been seen stopped in the middle of an operation.
    pub least: Duration,
    /// Called for each client that was sent SIGKILL.
    pub report: fn(&StoppedClient),
}

impl EvictStopped {
    /// Ends clients that have been stopped for that long in the middle of an operation, and writes
    /// a line for each of them to standard error.
    #[must_use]
    pub fn after(least: Duration) -> Self {
        Self { least, report: print }
    }

    /// Calls `report` instead.
    #[must_use]
    pub fn reporting(self, report: fn(&StoppedClient)) -> Self {
        Self { report, ..self }
    }
}

fn print(client: &StoppedClient) {
    let StoppedClient { slot, ref processes, halted, since, .. } = *client;
    eprintln!(
        "swarm: sent SIGKILL to client {slot}, processes {processes:?}: memory is short, and it was stopped for \
         {} s in the middle of an operation that began in epoch {since}",
        halted.as_secs()
    );
}

/// What the clients of an opening end stopped ones with.
#[derive(Debug)]
pub(crate) struct Evictor {
    options: EvictStopped,
    state: Mutex<Looked>,
}

#[derive(Default, Debug)]
struct Looked {
    watch: HaltWatch,
    last: Option<Instant>,
}

impl Evictor {
    pub(crate) fn new(options: EvictStopped) -> Self {
        Self { options, state: Mutex::default() }
    }

    /// Looks at clients whose operations began before `epoch`, if nobody has for a while, and ends
    /// those that may be. Their locks show when they have ended.
    pub(crate) fn look(&self, control: &Control, epoch: u64) {
        // If another client of this process looks, that will do.
        let Ok(mut state) = self.state.try_lock() else { return };
        if state.last.is_some_and(|last| last.elapsed() < LOOK) {
            return;
        }
        state.watch.look(control, epoch);
        for ended in state.watch.end(control, self.options.least) {
            // A client that may not be ended is named by the error of the write that is refused.
            if ended.sent.is_ok() {
                (self.options.report)(&ended.client);
            }
        }
        state.last = Some(Instant::now());
    }
}

/// What several looks at the clients of one pool have shown, for
/// [`Pool::halted_clients`](crate::Pool::halted_clients).
///
/// The kernel does not report since when a process has been stopped, so it takes several looks.
/// Time in which the process that looks does not run, or this host is suspended, does no harm: what
/// counts is that the client has not run between two looks. Never seen are clients whose process is
/// in another pid namespace, may not be examined, or is the one that looks.
#[derive(Default, Debug)]
pub struct HaltWatch {
    sightings: Vec<Sighting>,
}

impl HaltWatch {
    /// Looks at all clients whose operations began before `epoch`.
    pub(crate) fn look(&mut self, control: &Control, epoch: u64) -> Vec<StoppedClient> {
        let mut known = std::mem::take(&mut self.sightings);
        known.retain(|sighting| sighting.since < epoch && sighting.lasts(control));
        for slot in 0..control.header().geometry.max_clients {
            let again = known.iter().position(|it| it.slot == slot);
            let again = again.map(|at| known.swap_remove(at));
            self.sightings.extend(again.or_else(|| Sighting::new(control, slot, epoch)));
        }
        self.sightings.iter().map(Sighting::client).collect()
    }

    /// Sends SIGKILL to those that have been halted for at least that long, as of now.
    pub(crate) fn end(&mut self, control: &Control, least: Duration) -> Vec<Ended> {
        let is_due = |it: &Sighting| it.first.elapsed() >= least;
        if !self.sightings.iter().any(is_due) {
            return Vec::new();
        }
        thread::sleep(SETTLED);
        let lasting = std::mem::take(&mut self.sightings).into_iter();
        let lasting = lasting.filter(|it| it.lasts(control));
        let (due, rest): (Vec<_>, Vec<_>) = lasting.partition(is_due);
        self.sightings = rest;
        let kill = |it: Sighting| {
            // Before the signal: the kernel reports of a process that has ended neither that it was
            // frozen, nor since when.
            let client = it.client();
            let sent = it.kill(control);
            Ended { slot: it.slot, processes: it.processes, client, sent }
        };
        due.into_iter().map(kill).collect()
    }
}

/// A client whose process was to be sent SIGKILL.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) slot: usize,
    pub(crate) processes: Vec<(u32, OwnedFd)>,
    /// The client as it was before the signal.
    pub(crate) client: StoppedClient,
    /// Whether that was allowed.
    pub(crate) sent: Result<(), Error>,
}

/// A client that has been halted in one operation since it was first seen.
#[derive(Debug)]
struct Sighting {
    slot: usize,
    since: u64,
    /// The processes that hold its slot, by descriptors: these cannot come to mean others.
    processes: Vec<(u32, OwnedFd)>,
    found: Vec<Halted>,
    first: Instant,
}

impl Sighting {
    /// Looks at the client in a slot; `None` if it is not halted in an operation of that kind.
    fn new(control: &Control, slot: usize, epoch: u64) -> Option<Self> {
        let since = pinned(control, slot).filter(|&since| since < epoch)?;
        let name = ProcessId::decode(control.slot(slot).load(Ordering::Relaxed))?;
        if !name.is_local() || name.process == std::process::id() {
            return None;
        }
        // Before all processes of this host are gone through.
        halted(name.process)?;
        let (file, bytes) = (control.file(), Control::slot_bytes(slot..slot + 1));
        let holders = process::holders(file, &bytes).ok()?;
        if !holders.contains(&name.process) || holders.contains(&std::process::id()) {
            return None;
        }
        let opened = holders.into_iter().map(|id| Some((id, process::open(id, file, &bytes)?)));
        let processes: Vec<_> = opened.collect::<Option<_>>()?;
        let first = Instant::now();
        let found = all_halted(&processes)?;
        // Only they change the mark, and they run no more.
        let is_same = pinned(control, slot) == Some(since);
        is_same.then_some(Self { slot, since, processes, found, first })
    }

    /// Whether the client has executed nothing since it was first seen.
    fn lasts(&self, control: &Control) -> bool {
        // E2b: the same operation, and no thread gave up a processor in between. As long as they live,
        // their ids mean them.
        self.processes.iter().all(|(_, handle)| !process::has_ended(handle))
            && pinned(control, self.slot) == Some(self.since)
            && all_halted(&self.processes).as_ref() == Some(&self.found)
    }

    fn client(&self) -> StoppedClient {
        let processes: Vec<u32> = self.processes.iter().map(|&(process, _)| process).collect();
        let is_frozen = processes.iter().any(|&process| freezer::frozen(process).is_some());
        StoppedClient {
            slot: self.slot,
            condition: if is_frozen { ClientState::Frozen } else { ClientState::Stopped },
            processes,
            since: self.since,
            first: self.first,
            halted: self.first.elapsed(),
        }
    }

    fn kill(&self, control: &Control) -> Result<(), Error> {
        for (process, handle) in &self.processes {
            match pidfd_send_signal(handle, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(_) => {
                    let (pool, slot, process) = (control.dir().into(), self.slot, *process);
                    return Err(Error::NotAllowed { pool, slot, process });
                }
            }
        }
        Ok(())
    }
}

/// Returns the epoch since which a slot's client is in an operation.
pub(crate) fn pinned(control: &Control, slot: usize) -> Option<u64> {
    let word = &control.mapping().words()[control::epoch_word(slot)];
    Some(word.load(Ordering::Acquire)).filter(|&since| since != 0)
}

fn all_halted(processes: &[(u32, OwnedFd)]) -> Option<Vec<Halted>> {
    processes.iter().map(|&(process, _)| halted(process)).collect()
}
