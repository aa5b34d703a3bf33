//! What the control groups of this process leave: memory of a tmpfs counts against their limits,
//! and so does that of hugetlbfs. If a group is too small, the kernel kills a process without a
//! message, or refuses memory as if the file system were full. So a creation checks beforehand.
//!
//! A process is in one group of each hierarchy, and all its ancestors count as well. In a container
//! they may have other paths than `/proc/self/cgroup` says, or none: a group that cannot be found
//! is ignored.

use std::fs;
use std::path::{Path, PathBuf};

/// Where control groups are mounted.
pub(crate) const MOUNT: &str = "/sys/fs/cgroup";
/// Limits from here on mean none: version 1 writes such a number for that.
const NONE: u64 = 1 << 60;

/// What one control group leaves of a kind of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemoryLimit {
    /// The file with the limit.
    pub file: PathBuf,
    /// The limit, bytes.
    pub limit: u64,
    /// How much of it is left, bytes.
    pub free: u64,
}

/// Returns what the control groups of this process leave for pools on a tmpfs, if they limit that.
/// A creation checks it by itself.
pub fn memory_limit() -> Option<MemoryLimit> {
    memory_of(Path::new(MOUNT), &read("/proc/self/cgroup"), free_swap(&read("/proc/meminfo")))
}

/// Returns what they leave for huge pages of `page` bytes, if they are limited.
pub(crate) fn huge_pages(page: u64) -> Option<MemoryLimit> {
    huge_pages_of(Path::new(MOUNT), &read("/proc/self/cgroup"), page)
}

fn memory_of(mount: &Path, own: &str, swap: u64) -> Option<MemoryLimit> {
    let of = |group: &PathBuf| {
        let number = |name: &str| number(&group.join(name));
        let stat = read(group.join("memory.stat"));
        // Pages of files that the kernel reclaims when memory is short.
        let cached = |active, inactive| field(&stat, active) + field(&stat, inactive);
        if let Some(limit) = number("memory.max") {
            let swap = match number("memory.swap.max") {
                Some(most) => swap.min(most.saturating_sub(number("memory.swap.current")?)),
                None => swap,
            };
            let cached = cached("active_file", "inactive_file");
            let free = limit.saturating_sub(number("memory.current")?);
            return Some(MemoryLimit {
                file: group.join("memory.max"),
                limit,
                free: free + cached + swap,
            });
        }
        let limit = number("memory.limit_in_bytes").filter(|&limit| limit < NONE)?;
        let used = number("memory.usage_in_bytes")?;
        let both = number("memory.memsw.limit_in_bytes").filter(|&limit| limit < NONE);
        let swap = both.map_or(swap, |both| swap.min(both.saturating_sub(limit)));
        let cached = cached("total_active_file", "total_inactive_file");
        let free = limit.saturating_sub(used) + cached + swap;
        Some(MemoryLimit { file: group.join("memory.limit_in_bytes"), limit, free })
    };
    groups(mount, own, "memory").iter().filter_map(of).min_by_key(|limit| limit.free)
}

fn huge_pages_of(mount: &Path, own: &str, page: u64) -> Option<MemoryLimit> {
    let size = match page {
        page if page >= 1 << 30 => format!("{}GB", page >> 30),
        page if page >= 1 << 20 => format!("{}MB", page >> 20),
        page => format!("{}KB", page >> 10),
    };
    let names = [("max", "current"), ("limit_in_bytes", "usage_in_bytes")];
    let of = |group: &PathBuf| {
        names.iter().find_map(|(most, used)| {
            let file = group.join(format!("hugetlb.{size}.{most}"));
            let limit = number(&file).filter(|&limit| limit < NONE)?;
            let used = number(&group.join(format!("hugetlb.{size}.{used}")))?;
            Some(MemoryLimit { file, limit, free: limit.saturating_sub(used) })
        })
    };
    groups(mount, own, "hugetlb").iter().filter_map(of).min_by_key(|limit| limit.free)
}

/// Returns the groups of a process that may limit what `controller` controls, by its
/// `/proc/PID/cgroup`: of each hierarchy its own, then its ancestors.
pub(crate) fn groups(mount: &Path, own: &str, controller: &str) -> Vec<PathBuf> {
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        // Version 2 has one hierarchy for all controllers, and no name for it.
        let base = match controllers {
            "" => mount.to_path_buf(),
            names if names.split(',').any(|name| name == controller) => mount.join(controller),
            _ => continue,
        };
        let path = path.trim_start_matches('/');
        groups.extend(Path::new(path).ancestors().map(|above| base.join(above)));
    }
    groups
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Returns the number in a file; `None` for `max`.
fn number(file: &Path) -> Option<u64> {
    read(file).trim().parse().ok()
}

/// Returns the number after a name, in lines of both.
pub(crate) fn field(lines: &str, name: &str) -> u64 {
    let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    lines.lines().find_map(of).unwrap_or(0)
}

/// Returns the bytes of free swap, by `/proc/meminfo`.
fn free_swap(meminfo: &str) -> u64 {
    let kib = |line: &str| {
        line.strip_prefix("SwapFree:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    meminfo.lines().find_map(kib).unwrap_or(0) << 10
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Makes a control group with these files.
    pub(crate) fn write(mount: &Path, group: &str, files: &[(&str, &str)]) {
        let group = mount.join(group);
        fs::create_dir_all(&group).expect("a directory");
        for (name, content) in files {
            fs::write(group.join(name), content).expect("a file");
        }
    }

    #[test]
    fn the_tightest_group_above_a_process_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mount, own) = (dir.path(), "0::/slice/service\n");
        assert_eq!(memory_of(mount, own, 0), None, "nothing is known");
        write(mount, "slice/service", &[("memory.max", "max\n"), ("memory.current", "5\n")]);
        assert_eq!(memory_of(mount, own, 0), None, "nothing is limited");
        let stat = "anon 7\nfile 900\ninactive_file 30\nactive_file 4\n";
        let files = [("memory.max", "1000\n"), ("memory.current", "400\n"), ("memory.stat", stat)];
        write(mount, "slice", &files);
        let limit =
            |free| Some(MemoryLimit { file: mount.join("slice/memory.max"), limit: 1000, free });
        assert_eq!(memory_of(mount, own, 0), limit(634), "what is cached comes back");
        assert_eq!(memory_of(mount, own, 100), limit(734));
        let swap = [("memory.swap.max", "60"), ("memory.swap.current", "20")];
        write(mount, "slice", &swap);
        assert_eq!(memory_of(mount, own, 100), limit(674));
        write(mount, "slice/service", &[("memory.max", "50\n"), ("memory.current", "70\n")]);
        assert_eq!(memory_of(mount, own, 0).map(|limit| limit.free), Some(0));
        assert_eq!(memory_of(mount, "0::/other", 0), None);
    }

    /// A container finds its own group where other processes find the root.
    #[test]
    fn the_first_version_has_a_hierarchy_for_each_controller() {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path();
        let own = "5:cpu,memory:/docker/abc\n3:hugetlb:/docker/abc\n0::/\n";
        let none = "9223372036854771712\n";
        write(mount, "memory", &[("memory.limit_in_bytes", none), ("memory.usage_in_bytes", "1")]);
        assert_eq!(memory_of(mount, own, 0), None);
        let stat = "total_inactive_file 20\n";
        let files = [("memory.limit_in_bytes", "500"), ("memory.usage_in_bytes", "100")];
        write(mount, "memory", &[&files[..], &[("memory.stat", stat)]].concat());
        let file = mount.join("memory/memory.limit_in_bytes");
        assert_eq!(memory_of(mount, own, 7), Some(MemoryLimit { file, limit: 500, free: 427 }));
        let files =
            [("hugetlb.2MB.limit_in_bytes", "4194304"), ("hugetlb.2MB.usage_in_bytes", "0")];
        write(mount, "hugetlb/docker/abc", &files);
        let file = mount.join("hugetlb/docker/abc/hugetlb.2MB.limit_in_bytes");
        let limit = MemoryLimit { file, limit: 4 << 20, free: 4 << 20 };
        assert_eq!(huge_pages_of(mount, own, 2 << 20), Some(limit));
        assert_eq!(huge_pages_of(mount, own, 1 << 30), None);
    }

    #[test]
    fn huge_pages_of_the_second_version() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = [("hugetlb.1GB.max", "2147483648"), ("hugetlb.1GB.current", "1073741824")];
        write(dir.path(), "a", &files);
        let limit = huge_pages_of(dir.path(), "0::/a/b\n", 1 << 30).expect("a limit");
        assert_eq!((limit.limit, limit.free), (2 << 30, 1 << 30));
    }

    #[test]
    fn free_swap_is_read() {
        assert_eq!(free_swap("SwapTotal:  9 kB\nSwapFree:        12 kB\n"), 12 << 10);
        assert_eq!(free_swap(""), 0);
    }
}
