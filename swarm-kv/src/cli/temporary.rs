//! Pools that go when the command ends, whatever ends it short of SIGKILL.

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use tempfile::TempDir;

use super::outcome::Failure;
use super::store::{CreateOptions, Pool};
use super::units::show_size;

/// What a signal's handler removes.
static DIRECTORIES: LazyLock<Mutex<Vec<PathBuf>>> = LazyLock::new(|| {
    // A second handler cannot come to be, and without one only the clean-up after ^C is missing.
    let _ = ctrlc::set_handler(|| {
        for directory in directories().drain(..) {
            let _ = std::fs::remove_dir_all(directory);
        }
        std::process::exit(130);
    });
    Mutex::default()
});

fn directories() -> std::sync::MutexGuard<'static, Vec<PathBuf>> {
    DIRECTORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A directory with a pool in it that goes when this is dropped, or at ^C.
pub(crate) struct TemporaryPool {
    pool: Pool,
    directory: TempDir,
}

impl TemporaryPool {
    /// A pool in shared memory or, if that is full, among the temporary files.
    pub(crate) fn create(nodes: usize, capacity: u64, max_clients: usize) -> Result<Self, Failure> {
        let size = capacity * nodes as u64;
        let place = place_for(size)?;
        let directory = tempfile::Builder::new()
            .prefix(&format!("swarm-{}-", std::process::id()))
            .tempdir_in(&place)
            .map_err(|e| Failure::because(format!("cannot write to {}", place.display()), e))?;
        directories().push(directory.path().to_owned());
        let options = CreateOptions { nodes, capacity, max_clients, node_paths: None };
        let pool = Pool::create(&directory.path().join("pool"), &options)?;
        Ok(Self { pool, directory })
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
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

impl Drop for TemporaryPool {
    fn drop(&mut self) {
        directories().retain(|path| path != self.directory.path());
    }
}

fn place_for(size: u64) -> Result<PathBuf, Failure> {
    let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
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
