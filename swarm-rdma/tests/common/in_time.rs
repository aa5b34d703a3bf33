//! Bounds on times that hold on a busy machine, and still fail if the time itself is wrong.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long the thread beside a task sleeps at a time.
const NAP: Duration = Duration::from_millis(1);

/// Tries out of bounds, on a machine that was punctual, that are more than chance.
const TOO_MANY: usize = 5;

/// What a thread saw that did nothing but sleep beside a task.
pub(crate) struct Beside {
    /// How often it slept.
    pub(crate) sleeps: u64,
    /// By how much the latest of its sleeps was too long: how late the machine was.
    pub(crate) late: Duration,
}

/// Runs `task` while another thread sleeps a millisecond at a time.
pub(crate) fn beside<T>(task: impl FnOnce() -> T) -> (T, Beside) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut seen = Beside { sleeps: 0, late: Duration::ZERO };
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                thread::sleep(NAP);
                seen.sleeps += 1;
                seen.late = seen.late.max(begun.elapsed().saturating_sub(NAP));
            }
            seen
        });
        let done = task();
        stop.store(true, Ordering::Relaxed);
        (done, sleeper.join().expect("it only sleeps"))
    })
}

/// Runs `task` until the time that it returns is within `bounds`, `tries` times at most.
///
/// One such try is enough: on a busy machine many a try takes longer. A try out of bounds counts only
/// if the thread beside it was never late by a tenth of the upper bound: then it was not the machine.
/// If no try was within bounds and too few count, nothing is shown, and this says so.
///
/// # Panics
/// If too many tries that count were out of bounds.
pub(crate) fn in_time(
    what: &str,
    bounds: Range<Duration>,
    tries: usize,
    mut task: impl FnMut() -> Duration,
) {
    let mut wrong = Vec::new();
    let mut latest = Duration::ZERO;
    for number in 1..=tries {
        let (took, Beside { late, .. }) = beside(&mut task);
        if bounds.contains(&took) {
            eprintln!("{what}: {took:?}, in try {number}");
            return;
        }
        latest = latest.max(late);
        if late < bounds.end / 10 {
            wrong.push(took);
        }
        assert!(wrong.len() < TOO_MANY.min(tries), "{what}: {wrong:?}, not within {bounds:?}");
    }
    eprintln!("{what}: NOT SHOWN, the machine was late by up to {latest:?}");
}
