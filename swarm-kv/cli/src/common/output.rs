//! A file that takes an older one's place once it is whole.
//!
//! **Invariant:** what was there before stays until something whole takes its place.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::common::cleanup;

/// What a file that is new may be used for, less what the umask takes.
const ALL_MAY: u32 = 0o666;
/// What a file may be used for that takes an older one's place, until it has that one's mode.
const OWN: u32 = 0o600;

/// What a file is written to until it is whole.
pub(crate) enum Place {
    /// Another file beside it, and the path that this one takes over once it is whole.
    Beside(NamedTempFile, PathBuf),
    /// A pipe or a device: it takes what it is given, and nothing is to take its place.
    Straight(File),
}

impl Place {
    /// Finds out whether `path` can be written to, and changes nothing there.
    pub(crate) fn find(path: &Path) -> io::Result<Self> {
        match OpenOptions::new().write(true).open(path) {
            Ok(file) => {
                let meta = file.metadata()?;
                if !meta.is_file() {
                    return Ok(Self::Straight(file));
                }
                // What a link leads to is replaced, and not the link.
                let (file, target) = beside(&fs::canonicalize(path)?, OWN)?;
                file.as_file().set_permissions(meta.permissions())?;
                Ok(Self::Beside(file, target))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let (file, target) = beside(path, ALL_MAY)?;
                Ok(Self::Beside(file, target))
            }
            Err(error) => Err(error),
        }
    }

    /// What is to be written to.
    pub(crate) fn file(&self) -> &File {
        match self {
            Self::Straight(file) => file,
            Self::Beside(file, _) => file.as_file(),
        }
    }

    /// All is written: it takes its place.
    pub(crate) fn keep(self) -> io::Result<()> {
        if let Self::Beside(file, target) = self {
            let temporary = file.path().to_owned();
            file.persist(target).map_err(|error| error.error)?;
            cleanup::removed(&temporary);
        }
        Ok(())
    }

    /// The same where it is to be there after the host went down, too: whichever of the two files is, it is whole.
    pub(crate) fn keep_for_good(self) -> io::Result<()> {
        let Self::Beside(file, target) = &self else { return Ok(()) };
        file.as_file().sync_all()?;
        let directory = target.parent().map(Path::to_owned);
        self.keep()?;
        directory.map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

/// A new file in the directory of `path`, and `path` without what its end may have too much.
fn beside(path: &Path, mode: u32) -> io::Result<(NamedTempFile, PathBuf)> {
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
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(directory)?;
    cleanup::made(file.path());
    Ok((file, directory.join(name)))
}
