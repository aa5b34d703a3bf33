//! Who may use a new pool besides its owner: mode and group.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;

use rustix::fs::{Gid, Mode, fchmod, fchown};

use crate::error::Error;

/// The rights that a creation grants to all users that the files' mode lets read and write.
///
/// A user that may use a pool may write anything into it, or remove it: grant this to trusted users
/// only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rights {
    /// The files' mode, such as `0o660`. Their owner may always read and write. The directory gets
    /// the same, and users that may read may enter it.
    pub mode: u32,
    /// The group of the files and the directory, by its name or number. `None` leaves that to the
    /// kernel.
    pub group: Option<String>,
}

/// The owner alone.
const PRIVATE: u32 = 0o600;

/// Rights, with the group's number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
    mode: u32,
    group: Option<u32>,
}

impl Granted {
    /// Looks the group up.
    pub(crate) fn new(rights: Option<&Rights>) -> Result<Self, Error> {
        let Some(Rights { mode, group }) = rights else {
            return Ok(Self { mode: PRIVATE, group: None });
        };
        if mode & !0o666 != 0 || mode & PRIVATE != PRIVATE {
            return Err(Error::Mode { mode: *mode });
        }
        let group = group.as_deref().map(number).transpose()?;
        Ok(Self { mode: *mode, group })
    }

    /// Grants the rights on `file`, which this process has created.
    pub(crate) fn grant(self, file: &File, path: &Path) -> Result<(), Error> {
        self.apply(file, self.mode, path)
    }

    /// Grants the rights on a directory, which this process has created.
    pub(crate) fn grant_directory(self, dir: &Path) -> Result<(), Error> {
        if self.mode == PRIVATE && self.group.is_none() {
            return Ok(());
        }
        let file = File::open(dir).map_err(|error| Error::io(dir, "open", error))?;
        // Users that may read may enter.
        self.apply(&file, self.mode | (self.mode & 0o444) >> 2, dir)
    }

    fn apply(self, file: &File, mode: u32, path: &Path) -> Result<(), Error> {
        // The group first: changing it may remove rights.
        if let Some(group) = self.group {
            let refused = |source: rustix::io::Errno| Error::Group {
                file: path.to_path_buf(),
                group,
                source: source.into(),
            };
            fchown(file.as_fd(), None, Some(Gid::from_raw(group))).map_err(refused)?;
        }
        // Not by the mode at creation, from which the umask removes some.
        if mode != PRIVATE {
            fchmod(file.as_fd(), Mode::from_raw_mode(mode))
                .map_err(|error| Error::io(path, "change the mode of", error))?;
        }
        Ok(())
    }
}

/// Returns the number of a group, given its name or number.
fn number(group: &str) -> Result<u32, Error> {
    let unknown = || Error::NoGroup { group: group.to_owned() };
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let name = CString::new(group).map_err(|_| unknown())?;
    look_up(&name)
        .map_err(|error| Error::io(Path::new(group), "look up the group", error))?
        .ok_or_else(unknown)
}

fn look_up(name: &CStr) -> io::Result<Option<u32>> {
    let mut room = vec![0; 1 << 10];
    loop {
        // SAFETY: `group` is plain data with pointers, for which all zeros is a valid value.
        let mut entry: libc::group = unsafe { std::mem::zeroed() };
        let mut found = ptr::null_mut();
        // SAFETY: the name ends in a zero, `room` is as long as stated, and all outlive the call.
        // The pointers in `entry` are not followed.
        let refused = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                &raw mut entry,
                room.as_mut_ptr(),
                room.len(),
                &raw mut found,
            )
        };
        match refused {
            0 if found.is_null() => return Ok(None),
            0 => return Ok(Some(entry.gr_gid)),
            libc::ERANGE if room.len() < 1 << 24 => room.resize(2 * room.len(), 0),
            libc::EINTR => {}
            // What some systems return for a name without a group.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(mode: u32, group: Option<&str>) -> Result<Granted, Error> {
        Granted::new(Some(&Rights { mode, group: group.map(str::to_owned) }))
    }

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(granted(0o660, Some("root")).expect("a group").group, Some(0));
        assert_eq!(granted(0o660, Some("71")).expect("a number").group, Some(71));
        for group in ["no-such-group", "", "a\0b"] {
            assert!(matches!(granted(0o660, Some(group)), Err(Error::NoGroup { .. })), "{group:?}");
        }
    }

    #[test]
    fn a_mode_lets_the_owner_in_and_runs_nothing() {
        for mode in [0o060, 0o770, 0o4660, 0o400, 0] {
            assert!(matches!(granted(mode, None), Err(Error::Mode { .. })), "{mode:o}");
        }
        assert!(granted(0o666, None).is_ok() && granted(0o600, None).is_ok());
    }
}
