//! What backs a node's file, and how the kinds of backing differ.
//!
//! | kind                       | length           | multiple of    | made by create | space              |
//! | -------------------------- | ---------------- | -------------- | -------------- | ------------------ |
//! | regular file (`/dev/shm`)  | the capacity     | 8 bytes        | yes            | reserved by create |
//! | regular file (hugetlbfs)   | the capacity     | a huge page    | yes            | reserved by create |
//! | character device (`/dev/dax*`) | the device's, at least the capacity | 2 MiB | no | there already |

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, FsWord, fallocate, fstatfs, major, minor};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::error::Error;

/// The magic number that `fstatfs` returns for hugetlbfs.
pub(crate) const HUGETLBFS_MAGIC: FsWord = 0x9584_58f6;
const DEVICE_ALIGNMENT: u64 = 2 << 20;
/// Bytes that are reserved at a time: some 100 ms of work, and whole huge pages of any size.
const STEP: u64 = 1 << 30;

/// What backs a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backing {
    /// A file in the page cache or in a memory file system.
    Regular,
    /// A file on hugetlbfs, with pages of this many bytes.
    Huge(u64),
    /// A DAX device. Its size is fixed.
    Device,
}

impl Backing {
    /// Returns the backing of `file`, opened at `path`.
    pub(crate) fn of(file: &File, path: &Path) -> Result<Self, Error> {
        let metadata = file.metadata().map_err(|error| Error::io(path, "look at", error))?;
        if metadata.file_type().is_char_device() {
            return Ok(Self::Device);
        }
        if !metadata.is_file() {
            let reason = "a memory node is a regular file or a DAX device";
            return Err(Error::unsuited(path, reason));
        }
        let system = fstatfs(file).map_err(|error| Error::io(path, "look at", error))?;
        if system.f_type == HUGETLBFS_MAGIC {
            return Ok(Self::Huge(system.f_bsize as u64));
        }
        Ok(Self::Regular)
    }

    /// Returns the length of `file` in bytes.
    pub(crate) fn length(self, file: &File, path: &Path) -> Result<u64, Error> {
        let metadata = file.metadata().map_err(|error| Error::io(path, "look at", error))?;
        if self != Self::Device {
            return Ok(metadata.len());
        }
        let device = metadata.rdev();
        let entry = format!("/sys/dev/char/{}:{}/size", major(device), minor(device));
        fs::read_to_string(entry)
            .ok()
            .and_then(|size| size.trim().parse().ok())
            .ok_or_else(|| Error::unsuited(path, "it is a device, but not a DAX device"))
    }

    /// Returns whether a file of this kind and this `length` is right for a node of `capacity`
    /// bytes.
    pub(crate) fn fits(self, length: u64, capacity: u64) -> bool {
        if self == Self::Device { length >= capacity } else { length == capacity }
    }

    /// Refuses a capacity that mappings of this kind cannot have.
    pub(crate) fn check_capacity(self, path: &Path, capacity: u64) -> Result<(), Error> {
        let unit = match self {
            Self::Regular => 8,
            Self::Huge(page) => page,
            Self::Device => DEVICE_ALIGNMENT,
        };
        if capacity.is_multiple_of(unit) {
            return Ok(());
        }
        // A device is reported by its own path, a file by its directory: the file is removed again.
        let place = if self == Self::Device { path } else { path.parent().unwrap_or(path) };
        Err(Error::CapacityUnit { place: place.to_path_buf(), capacity, unit })
    }

    /// Refuses a new `file` that its file system has no room for. Call it before any of the file is
    /// reserved: if asked for more than it has, a file system may first give all of it, and
    /// meanwhile leave none to others.
    pub(crate) fn check_room(self, file: &File, path: &Path, bytes: u64) -> Result<(), Error> {
        if self == Self::Device {
            return Ok(());
        }
        // The kernel kills a process that makes a file larger than that (SIGXFSZ).
        if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < bytes) {
            return Err(Error::FileSize { file: path.to_path_buf(), needed: bytes, limit });
        }
        if lacks(file, bytes) {
            return Err(self.reserve_error(path, bytes, Errno::NOSPC.into()));
        }
        Ok(())
    }

    /// Gives a new `file` its length and reserves every page that it lacks, so that none is missing
    /// later. Asks before each step whether to go on.
    pub(crate) fn reserve(
        self,
        file: &File,
        path: &Path,
        bytes: u64,
        goes_on: &dyn Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self == Self::Device {
            return Ok(());
        }
        let mut at = 0;
        while at < bytes {
            goes_on()?;
            let part = STEP.min(bytes - at);
            match fallocate(file, FallocateFlags::empty(), at, part) {
                Ok(()) => at += part,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP) => return self.fill(file, path, bytes, goes_on),
                Err(error) => return Err(self.reserve_error(path, bytes, error.into())),
            }
        }
        Ok(())
    }

    /// Reserves space on file systems without `fallocate`: by writing.
    fn fill(
        self,
        file: &File,
        path: &Path,
        bytes: u64,
        goes_on: &dyn Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        use std::os::unix::fs::FileExt;
        let zeros = vec![0; 1 << 20];
        let mut at = 0;
        while at < bytes {
            goes_on()?;
            let part = zeros.len().min((bytes - at) as usize);
            file.write_all_at(&zeros[..part], at)
                .map_err(|error| self.reserve_error(path, bytes, error))?;
            at += part as u64;
        }
        Ok(())
    }

    fn reserve_error(self, path: &Path, needed: u64, error: std::io::Error) -> Error {
        let file = path.to_path_buf();
        match (error.raw_os_error().map(Errno::from_raw_os_error), self) {
            (Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM), Self::Huge(page)) => {
                Error::HugePages { file, pages: needed.div_ceil(page.max(1)), page }
            }
            (Some(Errno::NOSPC | Errno::DQUOT | Errno::NOMEM), _) => Error::Full { file, needed },
            (Some(Errno::FBIG), _) => {
                Error::unsuited(path, "its file system has no files that large")
            }
            _ => Error::io(path, "reserve space", error),
        }
    }
}

/// Returns whether the file system reports less room than that. Some report nothing.
fn lacks(file: &File, bytes: u64) -> bool {
    fstatfs(file).is_ok_and(|system| {
        let block = u64::try_from(system.f_bsize).unwrap_or(1);
        system.f_blocks > 0 && system.f_bavail.saturating_mul(block) < bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_full_is_named() {
        let of = |backing: Backing, errno: Errno| {
            backing.reserve_error(Path::new("/pool/node-0"), 5 << 20, errno.into()).to_string()
        };
        let huge = of(Backing::Huge(2 << 20), Errno::NOSPC);
        assert!(huge.contains("3 of 2097152 bytes") && !huge.contains("file system"), "{huge}");
        assert!(of(Backing::Regular, Errno::NOSPC).contains("file system is full"));
        assert!(of(Backing::Huge(2 << 20), Errno::FBIG).contains("no files that large"));
    }
}
