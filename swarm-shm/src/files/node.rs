//! A memory node's file.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use swarm_core::node::NodeId;

use crate::error::Error;
use crate::files::backing::Backing;
use crate::files::control::open_file_for;
use crate::files::header::{FileRole, HEADER_WORDS, Header};
use crate::files::mapping::{Access, Mapping};
use crate::files::range_lock;
use crate::sigbus::NO_MARKS;

/// Returns where the file, or a link to it, lies.
pub(crate) fn path(dir: &Path, node: NodeId) -> PathBuf {
    dir.join(format!("node-{}", node.0))
}

/// Returns the pool that a file claims to be a node of, damaged or not.
pub(crate) fn pool(path: &Path) -> Option<u128> {
    let file = open(path, Access::Write).ok()??;
    Header::node_pool(&Backing::of(&file, path).ok()?.header(&file, path)?)
}

/// Opens a node's file. `None` if it is missing.
pub(crate) fn open(path: &Path, access: Access) -> Result<Option<File>, Error> {
    match open_file_for(path, access) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            Err(Error::Foreign { file: path.to_path_buf() })
        }
        Err(error) => Err(Error::io(path, "open", error)),
    }
}

/// The bytes of a node's file that each opening of the pool holds a shared lock on, and a repair an
/// exclusive one.
pub(crate) const PRESENCE: Range<u64> = 0..8;

/// Marks this opening of a node's file as in use, for as long as it lives, also in children that
/// this process forks: they may go on with its mappings (S17). `false` while a repair is at work.
pub(crate) fn enter(file: &File, path: &Path) -> Result<bool, Error> {
    range_lock::share_within(file, PRESENCE, range_lock::PATIENCE)
        .map_err(|error| Error::io(path, "lock", error))
}

/// Maps a node's file, [guarded](Mapping::guarded) if `guarded`, and verifies that its header is
/// `expected`.
pub(crate) fn map(
    file: &File,
    path: &Path,
    expected: &Header,
    access: Access,
    guarded: bool,
) -> Result<Arc<Mapping>, Error> {
    let capacity = expected.geometry.capacity;
    let kind = Backing::of(file, path)?;
    let found = kind.length(file, path)?;
    // For a file that is no node's, that error says more than its length does.
    if found != 0 && kind.header(file, path).is_some_and(|words| !Header::is_node(&words)) {
        return Err(Error::Foreign { file: path.to_path_buf() });
    }
    if !kind.fits(found, capacity) {
        return Err(Error::Length { file: path.to_path_buf(), found, expected: capacity });
    }
    let mapping = match guarded {
        true => Mapping::guarded(file, path, capacity, access, NO_MARKS)?,
        false => Mapping::open(file, path, capacity, access)?,
    };
    let words = mapping.load(0);
    mapping.check(file, path)?;
    verify(&Header::decode(&words, path)?, path, expected)?;
    Ok(mapping)
}

fn verify(header: &Header, path: &Path, expected: &Header) -> Result<(), Error> {
    let file = path.to_path_buf();
    if header.pool_id != expected.pool_id {
        let (found, expected) = (header.pool_id, expected.pool_id);
        return Err(Error::OtherPool { file, found, expected });
    }
    match (header.member, expected.member) {
        (FileRole::Node(found), FileRole::Node(expected)) if found != expected => {
            Err(Error::WrongNode { file, found, expected })
        }
        _ if header != expected => {
            Err(Error::Damaged { file, what: "it contradicts the pool's other files".into() })
        }
        _ => Ok(()),
    }
}

/// Verifies that nothing but the node of this header is at `path`, if anything is. `begun`: the
/// pool's destruction has begun, so that a device may have lost its header already.
pub(crate) fn check(path: &Path, expected: &Header, begun: bool) -> Result<(), Error> {
    let Some(file) = open(path, Access::Write)? else { return Ok(()) };
    let kind = Backing::of(&file, path)?;
    if begun && kind == Backing::Device && kind.header(&file, path) == Some([0; HEADER_WORDS]) {
        return Ok(());
    }
    map(&file, path, expected, Access::Write, false).map(drop)
}

/// Removes a node's file, if it is recognizably the pool's (or `also` accepts its header), and the
/// link to it. A device loses its header instead. Returns whether nothing is left.
pub(crate) fn remove(
    path: &Path,
    pool_id: u128,
    also: impl Fn(&[u64; HEADER_WORDS]) -> bool,
) -> Result<bool, Error> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(true) };
    let unlink = |path: &Path| fs::remove_file(path).map_err(|e| Error::io(path, "remove", e));
    let target = if metadata.is_symlink() {
        match fs::canonicalize(path) {
            Ok(target) => target,
            Err(_) => return unlink(path).map(|()| true),
        }
    } else {
        path.to_path_buf()
    };
    let Ok(Some(file)) = open(&target, Access::Write) else { return Ok(false) };
    let Ok(kind) = Backing::of(&file, &target) else { return Ok(false) };
    let words = kind.header(&file, &target).unwrap_or_default();
    if !Header::is_node_of(&words, pool_id) && !also(&words) {
        return Ok(false);
    }
    if kind != Backing::Device {
        unlink(&target)?;
    } else if Header::is_node(&words) {
        Mapping::new(&file, &target, kind.length(&file, &target)?)?.store(0, &[0; HEADER_WORDS]);
    }
    if metadata.is_symlink() {
        unlink(path)?;
    }
    Ok(true)
}

impl Backing {
    /// Returns the words in the place of a node's header. `None` if the file is too short for one.
    pub(crate) fn header(self, file: &File, path: &Path) -> Option<[u64; HEADER_WORDS]> {
        if self == Self::Device {
            let bytes = self.length(file, path).ok()?;
            return Some(Mapping::new(file, path, bytes).ok()?.load(0));
        }
        let mut bytes = [0; HEADER_WORDS * 8];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        Some(std::array::from_fn(|at| u64::from_le_bytes(words[at])))
    }
}
