//! Pools that go when the command ends, whatever ends it.
//!
//! After SIGKILL it is the next command with a temporary pool that removes what was left: a
//! directory is locked as long as its owner lives, and the kernel ends the lock with the owner.

use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use swarm_kv::shm::CreateOptions;
use swarm_worker::pool::{NearPool, Pool};
use swarm_worker::store::open_pool;
use tempfile::TempDir;

use crate::common::cleanup;
use crate::common::exit::Failure;
use crate::common::units::show_size;

/// How the directories' names begin.
const PREFIX: &str = "swarm-temporary-";
/// A directory that is older than this has been locked by its owner.
const SETTLED: Duration = Duration::from_secs(5);

/// A directory that goes when this is dropped, or at ^C.
pub(crate) struct TemporaryDirectory {
    directory: TempDir,
    /// Holds the directory's lock.
    _lock: File,
}

impl TemporaryDirectory {
    /// A directory in shared memory or, if `size` finds no room there, among the temporary files.
    pub(crate) fn create(size: u64) -> Result<Self, Failure> {
        places().iter().for_each(|place| sweep(place));
        let place = place_for(size)?;
        let directory = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{}-", std::process::id()))
            .tempdir_in(&place)
            .map_err(|e| Failure::because(format!("cannot write to {}", place.display()), e))?;
        cleanup::made(directory.path());
        let lock = lock(directory.path())
            .map_err(|e| Failure::because(format!("cannot lock {}", place.display()), e))?;
        Ok(Self { directory, _lock: lock })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        cleanup::removed(self.directory.path());
    }
}

/// A pool in a temporary directory.
pub(crate) struct TemporaryPool {
    near: NearPool,
    pool: Pool,
    directory: TemporaryDirectory,
}

impl TemporaryPool {
    /// A pool in shared memory or, if that is full, among the temporary files.
    pub(crate) fn create(nodes: usize, capacity: u64, max_clients: usize) -> Result<Self, Failure> {
        let directory = TemporaryDirectory::create(capacity * nodes as u64)?;
        let options = CreateOptions { nodes, capacity, max_clients, ..CreateOptions::default() };
        let near = NearPool::create(directory.path().join("pool"), &options)?;
        Ok(Self { pool: Pool::Near(near.clone()), near, directory })
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The same, as what it is.
    pub(crate) fn near(&self) -> &NearPool {
        &self.near
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    /// Where other files may lie that go at the same time.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// A pool to work on for a while, and a directory for what is written down meanwhile, which goes
/// when this is dropped.
pub(crate) enum Site {
    /// Somebody's pool.
    Given { pool: Pool, path: PathBuf, logs: TemporaryDirectory },
    /// One that goes as well.
    Temporary(TemporaryPool),
}

impl Site {
    /// A site on the pool at `path`; `log_bytes` says how much will be written down.
    pub(crate) fn given(path: &Path, log_bytes: impl Fn(&Pool) -> u64) -> Result<Self, Failure> {
        let pool = open_pool(path)?;
        let logs = TemporaryDirectory::create(log_bytes(&pool))?;
        Ok(Self::Given { pool, path: path.to_owned(), logs })
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        match self {
            Self::Given { pool, .. } => pool,
            Self::Temporary(temporary) => temporary.pool(),
        }
    }

    /// Where the pool lies, as a command line names it.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Given { path, .. } => path.clone(),
            Self::Temporary(temporary) => temporary.path(),
        }
    }

    /// Where to write down what clients do.
    pub(crate) fn logs(&self) -> &Path {
        match self {
            Self::Given { logs, .. } => logs.path(),
            Self::Temporary(temporary) => temporary.directory(),
        }
    }
}

fn places() -> [PathBuf; 2] {
    [PathBuf::from("/dev/shm"), std::env::temp_dir()]
}

/// Takes the lock that says that a directory's owner lives.
fn lock(directory: &Path) -> std::io::Result<File> {
    let file = File::open(directory)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes directories whose owners were killed.
fn sweep(place: &Path) {
    let Ok(entries) = fs::read_dir(place) else { return };
    for entry in entries.flatten().filter(is_settled) {
        // One that is not ours to lock or to remove stays.
        if lock(&entry.path()).is_ok() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether this is one of these directories, older than the moment between making and locking it.
fn is_settled(entry: &DirEntry) -> bool {
    let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
    entry.file_name().to_string_lossy().starts_with(PREFIX)
        && entry.file_type().is_ok_and(|kind| kind.is_dir())
        && age().is_some_and(|age| age > SETTLED)
}

fn place_for(size: u64) -> Result<PathBuf, Failure> {
    let places = places();
    places.iter().find(|place| has_room(place, size)).cloned().ok_or_else(|| {
        Failure::Failed(format!(
            "a temporary pool of {} finds room neither in {} nor in {}; \
             take fewer keys or operations, or set TMPDIR",
            show_size(size),
            places[0].display(),
            places[1].display(),
        ))
    })
}

/// Whether a twentieth more than `size` is free.
fn has_room(place: &Path, size: u64) -> bool {
    rustix::fs::statvfs(place)
        .is_ok_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) > size + size / 20)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn made(place: &Path, name: &str, age: Duration) -> PathBuf {
        let directory = place.join(name);
        fs::create_dir(&directory).expect("its parent is writable");
        fs::write(directory.join("node-0"), "memory").expect("it is writable");
        let file = File::open(&directory).expect("it is there");
        file.set_modified(SystemTime::now() - age).expect("it is ours");
        directory
    }

    #[test]
    fn only_what_killed_commands_left_is_swept() {
        let place = tempfile::tempdir().expect("a temporary directory can be made");
        let old = Duration::from_secs(60);
        let left = made(place.path(), "swarm-temporary-1-a", old);
        let held = made(place.path(), "swarm-temporary-2-b", old);
        let new = made(place.path(), "swarm-temporary-3-c", Duration::ZERO);
        let other = made(place.path(), "swarm-data", old);
        let lock = lock(&held).expect("nobody else knows it");
        sweep(place.path());
        assert!(!left.exists() && held.exists() && new.exists() && other.exists());
        drop(lock);
        sweep(place.path());
        assert!(!held.exists());
    }
}
