//! Whether a process does not go on by itself, and whether it has run between two looks.
//!
//! A process that is slow, waits, or lacks a processor looks the same in the pool as one that is
//! stopped: its operation does not end. Only the kernel can distinguish them.
//!
//! **Invariant:** of a process of which two looks return the same threads and counts, no thread has
//! executed anything between them. A thread that runs gives its processor up before it is stopped
//! or frozen again, and the kernel counts that. (It counts a moment after it shows the thread as
//! stopped: a look within that moment is answered by the next one.) Where the kernel does not
//! report it, the process counts as one that runs.

use crate::processes::freezer;
use crate::processes::process::{self, Thread};

/// What a look at a halted process finds: its threads, and how often each of them gave its
/// processor up.
pub(crate) type Halted = Vec<(u32, u64)>;

/// Returns the threads of a process if none of them goes on by itself: each was stopped or frozen,
/// or has exited. `None` if one may go on, or if that cannot be known.
pub(crate) fn halted(process: u32) -> Option<Halted> {
    // Most clients go on: of these, the first thread shows it.
    let first = process::state(process)?;
    if !matches!(first, 'T' | 't' | 'Z' | 'X') && freezer::frozen(process).is_none() {
        return None;
    }
    // A thread may be in another control group than the rest.
    halted_of(process::threads(process)?, |thread| freezer::frozen(thread).is_some())
}

/// Returns the threads of a process that are stopped while others of it go on, as a debugger may
/// leave them. None if that cannot be known.
pub(crate) fn stopped_in_part(process: u32) -> Vec<u32> {
    process::threads(process).map_or_else(Vec::new, in_part)
}

fn in_part(threads: Vec<Thread>) -> Vec<u32> {
    let is_stopped = |it: &&Thread| matches!(it.state, 'T' | 't');
    let lives = threads.iter().filter(|it| !matches!(it.state, 'Z' | 'X')).count();
    let stopped: Vec<_> = threads.iter().filter(is_stopped).map(|it| it.id).collect();
    if stopped.len() == lives { Vec::new() } else { stopped }
}

fn halted_of(threads: Vec<Thread>, is_frozen: impl Fn(u32) -> bool) -> Option<Halted> {
    let has_exited = |it: &Thread| matches!(it.state, 'Z' | 'X');
    // A frozen thread appears to sleep. One that is about to be frozen may run.
    let halts = |it: &Thread| match it.state {
        'T' | 't' => true,
        'R' => false,
        _ => has_exited(it) || is_frozen(it.id),
    };
    if !threads.iter().all(halts) || threads.iter().all(has_exited) {
        return None;
    }
    let mut halted: Halted = threads.into_iter().map(|it| (it.id, it.switches)).collect();
    halted.sort_unstable();
    Some(halted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of threads in these states, those of these numbers are in a frozen control group.
    fn of(frozen: &[u32], states: &str) -> Option<usize> {
        let thread = |(id, state)| Thread { id, state, switches: 7 };
        let threads = (1..).zip(states.chars()).map(thread).collect();
        halted_of(threads, |id| frozen.contains(&id)).map(|it| it.len())
    }

    /// A debugger may stop one thread and let the client's go on.
    #[test]
    fn a_process_halts_when_all_its_threads_do() {
        assert_eq!(of(&[], "T"), Some(1));
        assert_eq!(of(&[], "TtT"), Some(3));
        assert_eq!(of(&[], "ZTX"), Some(3), "the first thread may have exited");
        for others in ["S", "R", "D", "TS", "tR", "TTD", "Z", ""] {
            assert_eq!(of(&[], others), None, "{others}");
        }
        assert_eq!(of(&[1, 2, 3], "SDT"), Some(3));
        assert_eq!(of(&[1], "SS"), None, "the other one is in a group that goes on");
        assert_eq!(of(&[1, 2], "SR"), None, "it is about to be frozen");
    }

    #[test]
    fn a_process_is_stopped_in_part_when_others_of_its_threads_go_on() {
        let of = |states: &str| {
            let thread = |(id, state)| Thread { id, state, switches: 7 };
            in_part((1..).zip(states.chars()).map(thread).collect())
        };
        assert_eq!((of("St"), of("TSRt"), of("TZD")), (vec![2], vec![1, 4], vec![1]));
        for not in ["", "T", "tT", "TZX", "SRD", "Z"] {
            assert_eq!(of(not), [0; 0], "{not}");
        }
    }

    #[test]
    fn this_process_goes_on() {
        assert_eq!(halted(std::process::id()), None);
        assert_eq!(halted(u32::MAX), None);
        assert_eq!(stopped_in_part(u32::MAX), [0; 0]);
    }
}
