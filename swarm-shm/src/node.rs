//! A memory node's file.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use swarm_core::node::NodeId;

use crate::control::open_file;
use crate::error::Error;
use crate::header::{HEADER_WORDS, Header, Member};
use crate::kind::Kind;
use crate::mapping::Mapping;

/// Where the file, or a link to it, lies.
pub(crate) fn path(dir: &Path, node: NodeId) -> PathBuf {
    dir.join(format!("node-{}", node.0))
}

/// The pool that a file says it is a node of, damaged or not.
pub(crate) fn pool(path: &Path) -> Option<u128> {
    let file = open(path).ok()??;
    Header::node_pool(&Kind::of(&file, path).ok()?.header(&file, path)?)
}

/// Opens a node's file. `None` if it is missing.
pub(crate) fn open(path: &Path) -> Result<Option<File>, Error> {
    match open_file(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {
            Err(Error::Foreign { file: path.to_path_buf() })
        }
        Err(error) => Err(Error::io(path, "open", error)),
    }
}

/// Maps a node's file and verifies that its header is `expected`.
pub(crate) fn map(file: &File, path: &Path, expected: &Header) -> Result<Arc<Mapping>, Error> {
    let capacity = expected.geometry.capacity;
    let kind = Kind::of(file, path)?;
    let found = kind.length(file, path)?;
    // A file that is no node's at all is better called that than too short.
    if found != 0 && kind.header(file, path).is_some_and(|words| !Header::is_node(&words)) {
        return Err(Error::Foreign { file: path.to_path_buf() });
    }
    if !kind.fits(found, capacity) {
        return Err(Error::Length { file: path.to_path_buf(), found, expected: capacity });
    }
    let mapping = Mapping::new(file, path, capacity)?;
    verify(&Header::decode(&mapping.load(0), path)?, path, expected)?;
    Ok(mapping)
}

fn verify(header: &Header, path: &Path, expected: &Header) -> Result<(), Error> {
    let file = path.to_path_buf();
    if header.pool_id != expected.pool_id {
        let (found, expected) = (header.pool_id, expected.pool_id);
        return Err(Error::OtherPool { file, found, expected });
    }
    match (header.member, expected.member) {
        (Member::Node(found), Member::Node(expected)) if found != expected => {
            Err(Error::WrongNode { file, found, expected })
        }
        _ if header != expected => {
            Err(Error::Damaged { file, what: "it contradicts the control file".into() })
        }
        _ => Ok(()),
    }
}

/// Verifies that nothing but the node of this header is at `path`, if anything is. `begun`: the
/// pool's destruction was, so that a device may have lost its header already.
pub(crate) fn check(path: &Path, expected: &Header, begun: bool) -> Result<(), Error> {
    let Some(file) = open(path)? else { return Ok(()) };
    let kind = Kind::of(&file, path)?;
    if begun && kind == Kind::Device && kind.header(&file, path) == Some([0; HEADER_WORDS]) {
        return Ok(());
    }
    map(&file, path, expected).map(drop)
}

/// Removes a node's file, if it is recognizably the pool's (or `also` says so of its header), and
/// the link to it. A device loses its header instead. Returns whether nothing is left.
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
    let Ok(Some(file)) = open(&target) else { return Ok(false) };
    let Ok(kind) = Kind::of(&file, &target) else { return Ok(false) };
    let words = kind.header(&file, &target).unwrap_or_default();
    if !Header::is_node_of(&words, pool_id) && !also(&words) {
        return Ok(false);
    }
    if kind != Kind::Device {
        unlink(&target)?;
    } else if Header::is_node(&words) {
        Mapping::new(&file, &target, kind.length(&file, &target)?)?.store(0, &[0; HEADER_WORDS]);
    }
    if metadata.is_symlink() {
        unlink(path)?;
    }
    Ok(true)
}

impl Kind {
    /// The words where a node's header should be. `None` if the file is too short for one.
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
