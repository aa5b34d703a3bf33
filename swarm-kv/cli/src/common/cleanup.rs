//! What is put right when a signal ends the command: temporary files and directories go, memory
//! nodes that were taken away come back, and processes that were stopped go on.
//!
//! The invariant: whatever is to be put right is on record here from before it is done until after
//! it is undone, and nothing is taken away any more once a signal has been seen.
//!
//! A command may ask for time to end by itself, to save what it has.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::exit::{Failure, eprint_line};
use crate::common::node_faults::Switch;
use crate::common::signals::on_signal;
use swarm_shm::SwitchState;

/// How often a directory is removed in which clients that end a little later still make files.
const ATTEMPTS: usize = 200;
/// How long a command that ends by itself may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Signals within this time are one: `timeout` sends its own to the process and to its group.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Record {
    /// Files and directories.
    paths: Vec<PathBuf>,
    switches: Vec<Switch>,
    /// Processes of this one that are stopped, and that nobody has waited for.
    stopped: Vec<Pid>,
    ends_by_itself: bool,
    /// What is printed if a command did not end by itself in time.
    last_words: Option<String>,
    /// When the first signal came.
    seen: Option<Instant>,
}

static RECORD: LazyLock<Mutex<Record>> = LazyLock::new(|| {
    // Without a handler only what it puts right is missing.
    let _ = on_signal(signal);
    Mutex::default()
});

fn record() -> MutexGuard<'static, Record> {
    RECORD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a command that a signal ended comes to.
pub(crate) fn failure() -> Failure {
    Failure::Interrupted("interrupted".to_owned())
}

/// What a signal does.
fn signal() {
    let mut record = record();
    for switch in record.switches.drain(..) {
        switch.set(SwitchState::Up);
    }
    record.stopped.drain(..).for_each(let_go_on);
    match record.seen {
        None if record.ends_by_itself => {
            record.seen = Some(Instant::now());
            thread::spawn(|| {
                thread::sleep(PATIENCE);
                end(self::record());
            });
        }
        Some(at) if at.elapsed() < ONE_SIGNAL => {}
        _ => end(record),
    }
}

/// Ends the process. The record is held until that has ended, so that nothing comes to be any more.
fn end(mut record: MutexGuard<'_, Record>) -> ! {
    record.last_words.take().into_iter().for_each(eprint_line);
    record.paths.drain(..).for_each(|path| remove(&path));
    std::process::exit(130)
}

/// From now on a signal lets the command end by itself: it looks for [`seen`]. `last_words` are printed
/// if that takes too long, or a second signal does not wait for it.
pub(crate) fn ends_by_itself(last_words: Option<String>) {
    let mut record = record();
    record.ends_by_itself = true;
    record.last_words = last_words;
}

/// From now on a signal that ends the command prints these words.
pub(crate) fn set_last_words(last_words: String) {
    record().last_words = Some(last_words);
}

/// From now on a signal ends it at once, also one that was not seen until now.
pub(crate) fn ends_at_once() {
    let mut record = record();
    record.ends_by_itself = false;
    record.last_words = None;
    if record.seen.is_some() {
        end(record);
    }
}

/// Whether there was a signal.
pub(crate) fn seen() -> bool {
    record().seen.is_some()
}

/// A file or directory that is to go.
pub(crate) fn made(path: &Path) {
    record().paths.push(path.to_owned());
}

/// One that has gone, or goes by other means.
pub(crate) fn removed(path: &Path) {
    record().paths.retain(|other| other != path);
}

/// Turns a switch that is to be up in the end.
pub(crate) fn turn(switch: &Switch, state: SwitchState) {
    let mut record = record();
    if state != SwitchState::Up {
        if record.seen.is_some() {
            return;
        }
        record.switches.push(switch.clone());
    }
    switch.set(state);
}

/// Stops a process of this one, which is to go on in the end. False if it is let be, as a signal has been
/// seen.
pub(crate) fn stop(process: Pid) -> bool {
    let mut record = record();
    if record.seen.is_some() {
        return false;
    }
    record.stopped.push(process);
    // One that has ended is not stopped.
    let _ = kill_process(process, Signal::STOP);
    true
}

/// Lets a process go on.
pub(crate) fn go_on(process: Pid) {
    forget(process);
    let_go_on(process);
}

/// A process need not go on: it is about to be killed. Before anybody waits for its end, as its number may be
/// another's then.
pub(crate) fn forget(process: Pid) {
    record().stopped.retain(|&other| other != process);
}

fn let_go_on(process: Pid) {
    // One that has ended need not.
    let _ = kill_process(process, Signal::CONT);
}

/// Removes a file, or a directory even while others make files in it.
fn remove(path: &Path) {
    for _ in 0..ATTEMPTS {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::NotFound && !path.exists() => return,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
