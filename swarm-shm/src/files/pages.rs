//! Pages: how large those are that hold a pool's memory, and when a process has them.
//!
//! A tmpfs that is mounted as usual reserves memory in pages of 4 KiB. Then each access to a
//! different page is also a TLB miss. There the kernel merges 512 pages on request
//! (`MADV_COLLAPSE`, Linux 6.1), permanently and for all processes that map the file: touching one
//! byte brings all 2 MiB. That is quickest while there is nothing to copy, so the pool's creator
//! asks for it.
//!
//! **Invariant:** no page is merged with others before it was touched. A page that is reserved and
//! was not touched holds old contents, and the kernel clears it at the first touch. If a mount with
//! `huge=always` has reserved a huge page, `MADV_COLLAPSE` maps it as it is (Linux 6.1, and by
//! observation 6.18). The next process to touch it, or the same one through another mapping, clears
//! it with all that was stored there meanwhile. Mounts that have huge pages anyway need no
//! collapse, and are never asked for one.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FsWord, fstatfs, major, minor};

use crate::error::Error;
use crate::files::backing::HUGETLBFS_MAGIC;
use crate::files::mapping::{Advice, Mapping};

/// A huge page's bytes.
pub(crate) const HUGE_PAGE: usize = 2 << 20;
/// A small page's bytes.
const SMALL_PAGE: usize = 4096;
/// Bytes requested at a time: some 10 to 100 ms of work, between which a signal ends the process.
const STEP: usize = 64 << 20;

pub(crate) const TMPFS_MAGIC: FsWord = 0x0102_1994;

/// How large the pages of a pool's memory are to be.
///
/// Measured on 2 virtual cores of a shared machine, Linux 6.18, in processor time for each GiB of a
/// node's file on `/dev/shm`:
///
/// | choice | to create | to open |
/// | ------ | --------- | ------- |
/// | `Touched` | 0.4 s to reserve memory | nothing; then a first touch of each page takes about a microsecond |
/// | `Huge` | 0.13 s; 1.5 s of memory that the virtual machine used for the first time | 2 ms where the pages are huge already; else 1.4 to 2.4 s, once in the pool's life |
///
/// Neither takes more memory than the pool's capacity, which its creation reserves. With huge pages
/// a cached get of one of 300,000 keys takes 21 % less time, an update 30 %; of 100,000 keys 17 %
/// and 18 %.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pages {
    /// Unchanged: the pages that the pool was created with, one by one at the first touch.
    #[default]
    Touched,
    /// Huge pages if possible; otherwise small ones, without an error. Opening a pool so also
    /// enters all of it into the process's page tables, and allocates holes that a copy of a pool's
    /// files left. On a disk's file system there are no huge pages, and this does nothing.
    Huge,
}

/// Where a mapped file's pages come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A tmpfs, by its device number.
    Tmpfs(u64),
    /// hugetlbfs or a DAX device, whose pages are already as large as possible.
    Large,
    /// A disk's file system, or an unknown one.
    Other,
}

impl Source {
    /// Returns where the pages of `file` come from.
    pub(crate) fn of(file: &File) -> Self {
        let (Ok(metadata), Ok(system)) = (file.metadata(), fstatfs(file)) else {
            return Self::Other;
        };
        let is_on = |magic: FsWord| system.f_type == magic;
        if !metadata.is_file() || is_on(HUGETLBFS_MAGIC) {
            Self::Large
        } else if is_on(TMPFS_MAGIC) {
            Self::Tmpfs(metadata.dev())
        } else {
            Self::Other
        }
    }

    /// Returns whether small pages may be merged here.
    fn may_collapse(self) -> bool {
        let Self::Tmpfs(device) = self else { return false };
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        !is_forced(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled"))
            && has_small_pages(&read("/proc/self/mountinfo"), device)
    }
}

/// Returns whether the kernel's setting forces huge pages on every tmpfs, whatever its mount says.
fn is_forced(shmem_enabled: &str) -> bool {
    shmem_enabled.contains("[force]")
}

/// Returns whether, by mountinfo, the tmpfs on this device reserves small pages. A mount that is
/// not listed (of another namespace) or has an unknown option may have huge ones.
fn has_small_pages(mountinfo: &str, device: u64) -> bool {
    let device = format!("{}:{}", major(device), minor(device));
    let options = mountinfo.lines().find_map(|line| {
        // Number, parent, device, root, mount point, options, any number of tags, `-`, type,
        // source, the superblock's options.
        let (mount, system) = line.split_once(" - ")?;
        (mount.split(' ').nth(2)? == device).then(|| system.split(' ').nth(2))?
    });
    options.is_some_and(|options| {
        let mut huge = options.split(',').filter_map(|option| option.strip_prefix("huge="));
        huge.all(|huge| matches!(huge, "never" | "advise"))
    })
}

/// Returns the parts of `bytes` bytes that are requested in turn.
fn steps(bytes: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..bytes).step_by(STEP).map(move |start| (start, bytes.min(start + STEP)))
}

/// Gives a new file, which has its length and no page yet, huge pages as far as the kernel has
/// them. `mapping` maps it. The rest must still be reserved. Asks before each step whether to go
/// on.
pub(crate) fn begin(
    mapping: &Mapping,
    goes_on: &dyn Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    if !mapping.source().may_collapse() {
        return Ok(());
    }
    // The rest after the last whole huge page gets small ones.
    for (start, end) in steps(mapping.bytes() / HUGE_PAGE * HUGE_PAGE) {
        goes_on()?;
        for at in (start..end).step_by(HUGE_PAGE) {
            // An empty range is not merged, so one page is touched first. Its place decides on the
            // NUMA node: another place each time, since interleaving goes by the page's number.
            let page = at + at / HUGE_PAGE % (HUGE_PAGE / SMALL_PAGE) * SMALL_PAGE;
            if mapping.advise(page..page + SMALL_PAGE, Advice::PopulateWrite).is_err() {
                return Ok(());
            }
        }
        if ends(mapping.advise(start..end, Advice::Collapse)) {
            break;
        }
    }
    Ok(())
}

/// Enters every page of `mapping` into this process's page tables, as huge pages if possible. If
/// that fails, the remaining pages are entered when they are touched.
pub(crate) fn populate(mapping: &Mapping) {
    if mapping.source() != Source::Other {
        let collapses = mapping.source().may_collapse();
        enter(mapping.bytes(), collapses, |bytes, advice| mapping.advise(bytes, advice));
    }
}

/// Touches all of `bytes` bytes, and merges what was touched if `collapses`.
fn enter(
    bytes: usize,
    mut collapses: bool,
    mut advise: impl FnMut(Range<usize>, Advice) -> io::Result<()>,
) {
    for (start, end) in steps(bytes) {
        // First, or untouched pages would be merged: see the module. It fails if a mount has no
        // room for a hole.
        if advise(start..end, Advice::PopulateWrite).is_err() {
            return;
        }
        collapses =
            collapses && !ends(advise(start..end / HUGE_PAGE * HUGE_PAGE, Advice::Collapse));
    }
}

/// Returns whether asking for more is useless: the kernel has no huge pages left, or does not
/// support them. A single page that was in use says nothing about the next.
fn ends(answer: io::Result<()>) -> bool {
    answer.is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn a_mount_shows_whether_it_has_huge_pages_by_itself() {
        let lines = "25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24683656k\n\
             31 30 0:32 / /mnt/with\\040space rw,nosuid shared:7 master:2 - tmpfs x rw,size=200k,huge=always,inode64\n\
             32 30 0:33 / /a rw - tmpfs x rw,huge=within_size\n\
             33 30 0:34 / /b rw - tmpfs x rw,huge=advise\n\
             34 30 0:35 / /c rw - tmpfs x rw,huge=never\n\
             35 30 0:36 / /huge=always rw - tmpfs huge=always rw\n\
             36 30 0:37 / /d rw - tmpfs x rw,huge=sometimes\n\
             37 30 0:38 / /e rw\n\
             \n38 30\n";
        let small = |minor| has_small_pages(lines, makedev(0, minor));
        assert_eq!([23, 32, 33, 34, 35].map(small), [true, false, false, true, true]);
        assert!(small(36), "names of mounts show nothing");
        assert!(!small(37), "what is not known may be huge");
        assert!(!small(38) && !small(2) && !small(3), "nor what is not listed");
        assert!(!has_small_pages("", makedev(0, 23)), "nor where nothing is");
    }

    #[test]
    fn the_kernel_may_force_huge_pages_on_every_mount() {
        assert!(is_forced("always within_size advise never deny [force]\n"));
        assert!(!is_forced("always within_size advise [never] deny force\n"));
        assert!(!is_forced(""));
    }

    /// Returns the requests for `bytes` bytes, if the first answers are these and the rest succeed.
    fn asked(
        bytes: usize,
        collapses: bool,
        answers: &[Result<(), i32>],
    ) -> Vec<(Range<usize>, Advice)> {
        let (mut asked, mut answers) = (Vec::new(), answers.iter());
        enter(bytes, collapses, |bytes, advice| {
            asked.push((bytes, advice));
            answers.next().copied().unwrap_or(Ok(())).map_err(io::Error::from_raw_os_error)
        });
        asked
    }

    #[test]
    fn only_what_was_touched_is_put_together() {
        let bytes = 2 * STEP + HUGE_PAGE + SMALL_PAGE;
        let answers = [Ok(()), Ok(()), Err(libc::EFAULT)];
        for (answers, last) in [(&[][..], 2 * STEP + HUGE_PAGE), (&answers[..], STEP)] {
            let mut touched = 0;
            let mut together = 0;
            for (range, advice) in asked(bytes, true, answers) {
                match advice {
                    Advice::PopulateWrite => touched = range.end,
                    Advice::Collapse => {
                        assert!(range.end <= touched && range.start == together, "{range:?}");
                        together = range.end;
                    }
                }
            }
            assert_eq!(together, last);
        }
    }

    #[test]
    fn no_more_is_asked_for_where_there_is_none() {
        let count = |answers: &[Result<(), i32>]| {
            let asked = asked(3 * STEP, true, answers);
            let is_collapse = |(_, advice): &&(_, Advice)| matches!(advice, Advice::Collapse);
            (asked.len(), asked.iter().filter(is_collapse).count())
        };
        assert_eq!(count(&[]), (6, 3));
        assert_eq!(count(&[Ok(()), Err(libc::EAGAIN)]), (6, 3), "one was in somebody's hands");
        for error in [libc::ENOMEM, libc::EINVAL, libc::EBUSY] {
            assert_eq!(count(&[Ok(()), Err(error)]), (4, 1), "small ones are entered all the same");
        }
        assert_eq!(count(&[Err(libc::EFAULT)]), (1, 0), "the mount is full");
        assert!(
            asked(STEP, false, &[])
                .iter()
                .all(|(_, advice)| matches!(advice, Advice::PopulateWrite))
        );
    }

    #[test]
    fn steps_are_all_there_is() {
        assert_eq!(steps(0).count(), 0);
        assert_eq!(steps(5).collect::<Vec<_>>(), [(0, 5)]);
        assert_eq!(steps(STEP + 5).collect::<Vec<_>>(), [(0, STEP), (STEP, STEP + 5)]);
    }
}
