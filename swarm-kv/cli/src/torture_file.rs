//! The file that a history is written to.
//!
//! The invariant: what was there before stays until something whole takes its place.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use swarm_worker::history::History;

use super::interrupted;
use super::outcome::Failure;

/// What a file that is new may be used for, less what the umask takes.
const ALL_MAY: u32 = 0o666;

/// A file that can be written to.
pub(crate) struct HistoryFile {
    path: PathBuf,
    place: Place,
}

enum Place {
    /// Another file beside it, and the path that this one takes over once it is whole.
    Beside(NamedTempFile, PathBuf),
    /// A pipe or a device: it takes what it is given, and nothing is to take its place.
    Straight(File),
}

impl HistoryFile {
    /// Finds out whether `path` can be written to, and changes nothing there.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let place = Place::find(path).map_err(|error| cannot_write(path, error))?;
        Ok(Self { path: path.to_owned(), place })
    }

    /// What the command line calls it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the history.
    pub(crate) fn write(self, history: &History) -> Result<(), Failure> {
        self.place.write(history).map_err(|error| cannot_write(&self.path, error))
    }
}

impl Place {
    fn find(path: &Path) -> io::Result<Self> {
        match OpenOptions::new().write(true).open(path) {
            Ok(file) => {
                let meta = file.metadata()?;
                if !meta.is_file() {
                    return Ok(Self::Straight(file));
                }
                // What a link leads to is replaced, and not the link.
                let (file, target) = beside(&fs::canonicalize(path)?)?;
                file.as_file().set_permissions(meta.permissions())?;
                Ok(Self::Beside(file, target))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (file, target) = beside(path)?;
                Ok(Self::Beside(file, target))
            }
            Err(error) => Err(error),
        }
    }

    fn write(self, history: &History) -> io::Result<()> {
        match self {
            Self::Straight(file) => history.write(BufWriter::new(file)),
            Self::Beside(file, target) => {
                let temporary = file.path().to_owned();
                history.write(BufWriter::new(file.as_file() as &File))?;
                file.persist(target).map_err(|error| error.error)?;
                interrupted::removed(&temporary);
                Ok(())
            }
        }
    }
}

/// A new file in the directory of `path`, and `path` without what its end may have too much.
fn beside(path: &Path) -> io::Result<(NamedTempFile, PathBuf)> {
    let name = path.file_name().ok_or_else(|| io::Error::from(ErrorKind::IsADirectory))?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    let file = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".partial")
        .permissions(Permissions::from_mode(ALL_MAY))
        .tempfile_in(directory)?;
    interrupted::made(file.path());
    Ok((file, directory.join(name)))
}

fn cannot_write(path: &Path, why: io::Error) -> Failure {
    Failure::because(format!("cannot write {}", path.display()), why)
}
