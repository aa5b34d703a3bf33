//! The file system of a pool's files, as far as it matters: whether a mapped file is one memory for
//! all processes that map it, and whether its reserved space is really there.

use std::path::Path;

use rustix::fs::{StatFs, statfs};
use swarm_core::node::NodeSet;

use crate::error::Error;
use crate::files::node;
use crate::pool::Pool;

/// What is known of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSystem {
    /// Other hosts or a server may access the same files: each host that maps them has its own
    /// copy.
    Shared(&'static str),
    /// A page that is written is put elsewhere. So reserved space may be missing then, and the page
    /// is lost to the process.
    CopyOnWrite(&'static str),
    /// No objection is known.
    Local,
}

/// `linux/magic.h`; for file systems outside the kernel, their own sources.
const KNOWN: [(u32, FileSystem); 14] = [
    (0x6969, FileSystem::Shared("NFS")),
    (0x0102_1997, FileSystem::Shared("9p")),
    // virtiofs has the same number.
    (0x6573_5546, FileSystem::Shared("FUSE or virtiofs")),
    (0x517b, FileSystem::Shared("SMB")),
    (0xff53_4d42, FileSystem::Shared("CIFS")),
    (0xfe53_4d42, FileSystem::Shared("SMB")),
    (0x00c3_6400, FileSystem::Shared("Ceph")),
    (0x5346_414f, FileSystem::Shared("AFS")),
    (0x0116_1970, FileSystem::Shared("GFS2")),
    (0x7461_636f, FileSystem::Shared("OCFS2")),
    (0x9123_683e, FileSystem::CopyOnWrite("btrfs")),
    (0x2fc1_2fc1, FileSystem::CopyOnWrite("ZFS")),
    (0x794c_7630, FileSystem::CopyOnWrite("overlay")),
    (0xca45_1a4e, FileSystem::CopyOnWrite("bcachefs")),
];

/// Returns the file system of `path` or, if that does not exist, of its nearest ancestor that does.
pub(crate) fn nearest(path: &Path) -> Option<StatFs> {
    path.ancestors().find_map(|path| statfs(or_here(path)).ok())
}

/// Returns the directory of a path without a name.
pub(crate) fn or_here(path: &Path) -> &Path {
    if path.as_os_str().is_empty() { Path::new(".") } else { path }
}

impl Pool {
    /// Returns the name of a copy-on-write file system that nodes' files lie on, if there is one.
    /// There, reserved space may be missing when memory is touched: the node is
    /// [lost](Self::lost_nodes) then. For display.
    pub fn copy_on_write(&self) -> Option<&'static str> {
        let all = NodeSet::all(self.geometry().nodes);
        all.into_iter().find_map(|id| match FileSystem::at(&node::path(self.path(), id)) {
            FileSystem::CopyOnWrite(name) => Some(name),
            FileSystem::Shared(_) | FileSystem::Local => None,
        })
    }
}

impl FileSystem {
    /// Returns the kind of file system of `path` or, if that does not exist, of its nearest
    /// ancestor that does.
    pub fn at(path: &Path) -> Self {
        // The kernel's type varies in width, and the number has 32 bits.
        nearest(path).map_or(Self::Local, |system| Self::of(system.f_type as u32))
    }

    /// Returns the file system with this number.
    fn of(magic: u32) -> Self {
        KNOWN.iter().find(|(known, _)| *known == magic).map_or(Self::Local, |(_, known)| *known)
    }

    /// Refuses a file system that is not one host's memory.
    pub(crate) fn check(self, path: &Path) -> Result<(), Error> {
        match self {
            Self::Shared(name) => Err(Error::SharedFileSystem { file: path.to_path_buf(), name }),
            Self::CopyOnWrite(_) | Self::Local => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_hosts_may_map_is_refused() {
        for magic in [0x6969, 0x0102_1997, 0x6573_5546, 0xff53_4d42] {
            let error = FileSystem::of(magic).check(Path::new("/net/pool")).expect_err("not here");
            assert!(error.to_string().starts_with("/net/pool: lies on "), "{error}");
        }
        for magic in [0x9123_683e, 0x2fc1_2fc1, 0x794c_7630] {
            let system = FileSystem::of(magic);
            assert!(
                matches!(system, FileSystem::CopyOnWrite(_))
                    && system.check(Path::new("x")).is_ok()
            );
        }
        // tmpfs, ext4, XFS, hugetlbfs.
        for magic in [0x0102_1994, 0xef53, 0x5846_5342, 0x9584_58f6] {
            assert_eq!(FileSystem::of(magic), FileSystem::Local);
        }
    }

    #[test]
    fn what_is_not_there_lies_on_what_is() {
        assert_eq!(FileSystem::at(Path::new("/proc/absent/pool")), FileSystem::Local);
        assert_eq!(FileSystem::at(Path::new("absent")), FileSystem::at(Path::new(".")));
    }
}
