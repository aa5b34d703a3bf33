//! The file that a history is written to.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use swarm_worker::history::History;

use crate::common::exit::Failure;
use crate::common::output::Place;

/// A writable history file.
pub(crate) struct HistoryFile {
    path: PathBuf,
    place: Place,
}

impl HistoryFile {
    /// Checks that `path` can be written, without changing it.
    pub(crate) fn create(path: &Path) -> Result<Self, Failure> {
        let place = Place::find(path).map_err(|error| cannot_write(path, error))?;
        Ok(Self { path: path.to_owned(), place })
    }

    /// Returns its name on the command line.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the history.
    pub(crate) fn write(self, history: &History) -> Result<(), Failure> {
        let Self { path, place } = self;
        let written = history.write(BufWriter::new(place.file())).and_then(|()| place.keep());
        written.map_err(|error| cannot_write(&path, error))
    }
}

fn cannot_write(path: &Path, why: io::Error) -> Failure {
    Failure::because(format!("cannot write {}", path.display()), why)
}
