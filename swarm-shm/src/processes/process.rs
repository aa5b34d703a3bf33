//! The processes that own a client slot: those behind its lock, as far as they can be seen from
//! here.
//!
//! **Invariant:** only the kernel's word makes a process a slot's owner. The kernel lists a
//! process's open files and their locks in `/proc`, whatever pid namespace the process is in and
//! whatever its id is there, as long as it can be seen from here at all. The number in the slot's
//! word only says where to look first, and what to display if no process can be seen.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A process, by the id that it has in its own pid namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProcessId {
    /// Its id in its pid namespace; never 0.
    pub(crate) process: u32,
    /// The kernel's number for that namespace, or 0 if unknown.
    pub(crate) namespace: u32,
}

impl ProcessId {
    /// Returns this process.
    pub(crate) fn own() -> Self {
        Self { process: std::process::id(), namespace: namespace() }
    }

    /// Encodes it as in a slot's word: `[ namespace 32 | process id 32 ]`.
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.namespace) << 32 | u64::from(self.process)
    }

    /// Decodes a slot's word; `None` if its owner has left.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let name = Self { process: word as u32, namespace: (word >> 32) as u32 };
        (name.process != 0).then_some(name)
    }

    /// Returns whether the id means the same process here.
    pub(crate) fn is_local(self) -> bool {
        self.namespace == namespace() && self.namespace != 0
    }
}

/// Returns the number of this process's pid namespace, 0 if unknown.
fn namespace() -> u32 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino() as u32)
}

/// Returns whether a process holds the lock on exactly these bytes of `file`.
pub(crate) fn holds(process: u32, file: &File, bytes: &Range<u64>) -> io::Result<bool> {
    let file = file.metadata()?;
    let process = Path::new("/proc").join(process.to_string());
    for entry in fs::read_dir(process.join("fd"))? {
        let entry = entry?;
        // Files that are closed meanwhile, and descriptors that are no files.
        let Ok(open) = fs::metadata(entry.path()) else { continue };
        if (open.dev(), open.ino()) != (file.dev(), file.ino()) {
            continue;
        }
        let info = fs::read_to_string(process.join("fdinfo").join(entry.file_name()));
        if info.is_ok_and(|info| info.lines().any(|line| is_lock(line, bytes))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a line of `fdinfo` is that of the lock on these bytes: `lock: 1: OFDLCK ADVISORY
/// WRITE -1 00:1b:11754 2048 2055`.
fn is_lock(line: &str, bytes: &Range<u64>) -> bool {
    let mut words = line.split_whitespace();
    let kind = words.next() == Some("lock:") && words.nth(1) == Some("OFDLCK");
    let last = words.next_back().and_then(|word| word.parse().ok());
    let first = words.next_back().and_then(|word| word.parse().ok());
    kind && (first, last) == (Some(bytes.start), Some(bytes.end - 1))
}

/// Returns the processes that hold the lock: one, or several if a bare `clone` shares it. Processes
/// that may not be examined are left out.
pub(crate) fn holders(file: &File, bytes: &Range<u64>) -> io::Result<Vec<u32>> {
    let mut holders = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Ok(process) = entry?.file_name().to_string_lossy().parse() else { continue };
        if holds(process, file, bytes).unwrap_or(false) {
            holders.push(process);
        }
    }
    Ok(holders)
}

/// Opens a descriptor of a process that holds the lock.
pub(crate) fn open(process: u32, file: &File, bytes: &Range<u64>) -> Option<OwnedFd> {
    let id = Pid::from_raw(i32::try_from(process).ok()?)?;
    let handle = pidfd_open(id, PidfdFlags::empty()).ok()?;
    (is_of(&handle, process) && holds(process, file, bytes).unwrap_or(false)).then_some(handle)
}

/// Returns whether the process of a descriptor is the one that `/proc` lists under this id. It is
/// not if `/proc` is that of another pid namespace.
fn is_of(handle: &OwnedFd, process: u32) -> bool {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", handle.as_raw_fd()));
    let id =
        |info: String| info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    info.ok().and_then(id) == Some(process)
}

/// Returns whether a process has ended, and with it all its open files.
pub(crate) fn has_ended(handle: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}

/// Returns a process's state by the kernel: a letter.
pub(crate) fn state(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name may contain anything, but nothing after it is in parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

/// A thread, as the kernel shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Thread {
    pub(crate) id: u32,
    /// Its state: a letter.
    pub(crate) state: char,
    /// How often it gave its processor up, of itself or not.
    pub(crate) switches: u64,
}

/// Returns the threads of a process. `None` if the kernel does not report them, or if one of them
/// ends meanwhile.
pub(crate) fn threads(process: u32) -> Option<Vec<Thread>> {
    let tasks = Path::new("/proc").join(process.to_string()).join("task");
    let thread = |entry: io::Result<fs::DirEntry>| {
        let entry = entry.ok()?;
        let id = entry.file_name().to_str()?.parse().ok()?;
        thread(id, &fs::read_to_string(entry.path().join("status")).ok()?)
    };
    fs::read_dir(tasks).ok()?.map(thread).collect()
}

/// Returns a thread, by its `/proc/PID/task/TID/status`.
fn thread(id: u32, status: &str) -> Option<Thread> {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let count = |name| field(name)?.parse::<u64>().ok();
    let state = field("State:")?.chars().next()?;
    let switches = [count("voluntary_ctxt_switches:")?, count("nonvoluntary_ctxt_switches:")?];
    Some(Thread { id, state, switches: switches[0].wrapping_add(switches[1]) })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_thread_is_read_as_the_kernel_shows_it() {
        let status = "Name:\tState: R\nUmask:\t0022\nState:\tt (tracing stop)\nPid:\t7\n\
                      voluntary_ctxt_switches:\t30\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(thread(7, status), Some(Thread { id: 7, state: 't', switches: 34 }));
        // A kernel that does not count them shows no run.
        let (without, _) = status.split_once("nonvoluntary").expect("it has some");
        assert_eq!(thread(7, without), None);
        assert_eq!(thread(7, ""), None);
    }

    /// Of this process, other tests' threads end while they are looked at.
    #[test]
    fn the_threads_of_a_process_are_listed() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("a system has it");
        let listed = threads(child.id());
        child.kill().expect("it is this process's child");
        child.wait().expect("it is this process's child");
        let listed = listed.expect("it is this user's, and its thread does not end");
        assert_eq!(listed.iter().map(|thread| thread.id).collect::<Vec<_>>(), [child.id()]);
        assert_eq!(threads(u32::MAX), None);
    }

    #[test]
    fn a_lock_is_known_by_its_bytes() {
        let line = "lock:\t1: OFDLCK ADVISORY  WRITE -1 00:1b:11754 2048 2055";
        assert!(is_lock(line, &(2048..2056)));
        assert!(!is_lock(line, &(2056..2064)) && !is_lock(line, &(2048..2064)));
        for other in [
            "lock:\t1: POSIX  ADVISORY  WRITE 17 00:1b:11754 2048 2055",
            "lock:\t1: OFDLCK ADVISORY  WRITE -1 00:1b:11754 0 EOF",
            "lock:",
            "pos:\t0",
            "",
        ] {
            assert!(!is_lock(other, &(2048..2056)), "{other}");
        }
    }

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let own = ProcessId::own();
        assert_eq!(ProcessId::decode(own.encode()), Some(own));
        assert_eq!(own.process, std::process::id());
        assert!(own.is_local());
        assert!(!ProcessId { namespace: own.namespace ^ 1, ..own }.is_local());
        assert_eq!(ProcessId::decode(0), None);
    }

    #[test]
    fn this_process_runs() {
        assert!(matches!(state(std::process::id()), Some('R' | 'S' | 'D')));
        assert_eq!(state(u32::MAX), None);
    }
}
