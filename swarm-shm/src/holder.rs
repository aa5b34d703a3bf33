//! Who holds a client slot: the processes behind its lock, as far as they can be seen from here.
//!
//! The invariant: a process is taken for a slot's holder only because the kernel says so. It lists a
//! process's open files and the locks that belong to them in `/proc`, in whatever pid namespace the
//! process calls itself what, as long as it is seen from here at all. The number in the slot's word
//! only says where to look first, and what to tell people where nothing can be seen.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process as it calls itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    /// Its id in its pid namespace; never 0.
    pub(crate) process: u32,
    /// Which namespace that is: the kernel's number for it, or 0 where it did not say.
    pub(crate) namespace: u32,
}

impl Name {
    /// This process.
    pub(crate) fn own() -> Self {
        Self { process: std::process::id(), namespace: namespace() }
    }

    /// As a slot's word has it: `[ namespace 32 | process id 32 ]`.
    pub(crate) fn encode(self) -> u64 {
        u64::from(self.namespace) << 32 | u64::from(self.process)
    }

    /// What a slot's word says; nothing if its holder has left.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let name = Self { process: word as u32, namespace: (word >> 32) as u32 };
        (name.process != 0).then_some(name)
    }

    /// Whether the id means the same process here.
    pub(crate) fn is_local(self) -> bool {
        self.namespace == namespace() && self.namespace != 0
    }
}

/// The number of this process's pid namespace, 0 if that cannot be told.
fn namespace() -> u32 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino() as u32)
}

/// Whether a process holds the lock on exactly these bytes of `file`.
pub(crate) fn holds(process: u32, file: &File, bytes: &Range<u64>) -> io::Result<bool> {
    let file = file.metadata()?;
    let process = Path::new("/proc").join(process.to_string());
    for entry in fs::read_dir(process.join("fd"))? {
        let entry = entry?;
        // Files that are closed meanwhile, and things that are no files.
        let Ok(open) = fs::metadata(entry.path()) else { continue };
        if (open.dev(), open.ino()) != (file.dev(), file.ino()) {
            continue;
        }
        let said = fs::read_to_string(process.join("fdinfo").join(entry.file_name()));
        if said.is_ok_and(|said| said.lines().any(|line| is_lock(line, bytes))) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a line of `fdinfo` is that of the lock on these bytes:
/// `lock: 1: OFDLCK ADVISORY WRITE -1 00:1b:11754 2048 2055`.
fn is_lock(line: &str, bytes: &Range<u64>) -> bool {
    let mut words = line.split_whitespace();
    let kind = words.next() == Some("lock:") && words.nth(1) == Some("OFDLCK");
    let last = words.next_back().and_then(|word| word.parse().ok());
    let first = words.next_back().and_then(|word| word.parse().ok());
    kind && (first, last) == (Some(bytes.start), Some(bytes.end - 1))
}

/// The processes that hold the lock, of those that may be looked at: one, or several where a bare `clone`
/// shares it. Those that may not be looked at are left out.
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

/// What a process does, in the kernel's words: a letter.
pub(crate) fn state(process: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The program's name may hold anything, but is the last thing in parentheses.
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let own = Name::own();
        assert_eq!(Name::decode(own.encode()), Some(own));
        assert_eq!(own.process, std::process::id());
        assert!(own.is_local());
        assert!(!Name { namespace: own.namespace ^ 1, ..own }.is_local());
        assert_eq!(Name::decode(0), None);
    }

    #[test]
    fn this_process_runs() {
        assert!(matches!(state(std::process::id()), Some('R' | 'S')));
        assert_eq!(state(u32::MAX), None);
    }
}
