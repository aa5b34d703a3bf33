//! What is put right when a signal ends the command: temporary directories go, and memory nodes
//! that were taken away come back.
//!
//! The invariant: whatever is to be put right is on record here from before it is done until after
//! it is undone, and nothing is done any more once a signal has been seen.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::nodes::Switch;
use super::store::SwitchState;

/// How often a directory is removed in which clients, who end a little later, still make files.
const ATTEMPTS: usize = 200;

#[derive(Default)]
struct Record {
    directories: Vec<PathBuf>,
    switches: Vec<Switch>,
}

static RECORD: LazyLock<Mutex<Record>> = LazyLock::new(|| {
    // A second handler cannot come to be, and without one only what it puts right is missing.
    let _ = ctrlc::set_handler(|| {
        // Held until the process has ended, so that no switch is turned any more.
        let mut record = record();
        for switch in record.switches.drain(..) {
            switch.set(SwitchState::Up);
        }
        record.directories.drain(..).for_each(|directory| remove(&directory));
        std::process::exit(130);
    });
    Mutex::default()
});

fn record() -> MutexGuard<'static, Record> {
    RECORD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory that is to go.
pub(crate) fn made(directory: &Path) {
    record().directories.push(directory.to_owned());
}

/// A directory that has gone, or goes by other means.
pub(crate) fn removed(directory: &Path) {
    record().directories.retain(|other| other != directory);
}

/// Turns a switch that is to be up in the end.
pub(crate) fn turn(switch: &Switch, state: SwitchState) {
    let mut record = record();
    if state != SwitchState::Up {
        record.switches.push(switch.clone());
    }
    switch.set(state);
}

/// Removes a directory, even while others make files in it.
fn remove(directory: &Path) {
    for _ in 0..ATTEMPTS {
        match fs::remove_dir_all(directory) {
            Ok(()) => return,
            Err(error) if error.kind() == ErrorKind::NotFound && !directory.exists() => return,
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
