//! Whether a process is frozen with its control group, such as a paused container, and what thaws
//! it.
//!
//! Its state in `/proc` does not show it: the process appears to sleep. A word in a file of a group
//! freezes the group and all groups below it; each such ancestor has to be thawed. A container that
//! examines itself sees no group above its own: then it is known that the process is frozen, but
//! not by which file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cgroup::{MOUNT, field, groups, read};

/// What froze a process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Frozen {
    /// The files that freeze it, the process's own group first, and what to write to each of them
    /// to thaw it. Empty if they cannot be seen from here.
    pub thaw: Vec<(PathBuf, &'static str)>,
    /// For how long the process's group has been frozen in total, if the kernel reports it (Linux
    /// 6.18, version 2): it was frozen at most that long ago.
    pub at_most: Option<Duration>,
}

/// Returns what froze a process of this host, if it is frozen. Reads some files.
pub fn frozen(process: u32) -> Option<Frozen> {
    let own = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    frozen_of(Path::new(MOUNT), &own)
}

/// The same, by its `/proc/PID/cgroup`.
fn frozen_of(mount: &Path, own: &str) -> Option<Frozen> {
    // If both versions are in use, version 2 is mounted below.
    let mounts = [mount.to_path_buf(), mount.join("unified")];
    let lines = own.lines().flat_map(|line| mounts.iter().map(move |mount| (mount, line)));
    // The group of each hierarchy, and those above it.
    let lines: Vec<Vec<PathBuf>> =
        lines.map(|(mount, line)| groups(mount, line, "freezer")).collect();
    let thaw: Vec<_> = lines.iter().flatten().filter_map(|group| frozen_by(group)).collect();
    let own = || lines.iter().filter_map(|groups| groups.first());
    if thaw.is_empty() && !own().any(|group| is_frozen(group)) {
        return None;
    }
    let spent = own().map(|group| field(&read(group.join("cgroup.stat.local")), "frozen_usec"));
    let at_most = spent.max().filter(|&spent| spent > 0).map(Duration::from_micros);
    Some(Frozen { thaw, at_most })
}

/// Returns the file that freezes this group itself, and what thaws it.
fn frozen_by(group: &Path) -> Option<(PathBuf, &'static str)> {
    let says = |file: &str| read(group.join(file)).trim() == "1";
    if says("cgroup.freeze") {
        return Some((group.join("cgroup.freeze"), "0"));
    }
    says("freezer.self_freezing").then(|| (group.join("freezer.state"), "THAWED"))
}

/// Returns whether this group is frozen, or is being frozen, by itself or by one above.
fn is_frozen(group: &Path) -> bool {
    field(&read(group.join("cgroup.events")), "frozen") == 1
        || ["FROZEN", "FREEZING"].contains(&read(group.join("freezer.state")).trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::tests::write;

    const OWN: &str = "0::/slice/pod/container\n";

    #[test]
    fn a_group_of_the_second_version_and_those_above_it_freeze() {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path();
        assert_eq!(frozen_of(mount, OWN), None, "nothing is known");
        let runs = [("cgroup.freeze", "0\n"), ("cgroup.events", "populated 1\nfrozen 0\n")];
        for group in ["slice", "slice/pod", "slice/pod/container"] {
            write(mount, group, &runs);
        }
        assert_eq!(frozen_of(mount, OWN), None);
        let thaw = |groups: &[&str]| {
            let files = groups.iter().map(|group| (mount.join(group).join("cgroup.freeze"), "0"));
            Some(Frozen { thaw: files.collect(), at_most: None })
        };
        let freeze = |group| write(mount, group, &[("cgroup.freeze", "1\n")]);
        // Groups of other processes show nothing.
        write(mount, "slice/other", &[("cgroup.freeze", "1\n"), ("cgroup.events", "frozen 1\n")]);
        assert_eq!(frozen_of(mount, OWN), None);
        freeze("slice");
        assert_eq!(frozen_of(mount, OWN), thaw(&["slice"]), "one that is above");
        freeze("slice/pod/container");
        assert_eq!(
            frozen_of(mount, OWN),
            thaw(&["slice/pod/container", "slice"]),
            "each has to be thawed"
        );
        write(mount, "slice/pod/container", &[("cgroup.stat.local", "frozen_usec 2500000\n")]);
        let at_most = frozen_of(mount, OWN).and_then(|frozen| frozen.at_most);
        assert_eq!(at_most, Some(Duration::from_millis(2500)));
    }

    /// A container that examines itself: the frozen group is above those that it sees.
    #[test]
    fn a_process_that_does_not_see_the_file_knows_that_it_is_frozen() {
        let dir = tempfile::tempdir().expect("a directory");
        write(dir.path(), "a", &[("cgroup.freeze", "0\n"), ("cgroup.events", "frozen 1\n")]);
        assert_eq!(frozen_of(dir.path(), "0::/a\n"), Some(Frozen::default()));
        assert_eq!(frozen_of(dir.path(), "0::/../../elsewhere\n"), None);
    }

    #[test]
    fn a_group_of_the_first_version_and_those_above_it_freeze() {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path();
        let own = "6:freezer:/docker/abc\n4:memory:/docker/abc\n0::/\n";
        assert_eq!(frozen_of(mount, own), None);
        let state =
            |state, of_its_own| [("freezer.state", state), ("freezer.self_freezing", of_its_own)];
        write(mount, "freezer/docker", &state("THAWED\n", "0\n"));
        write(mount, "freezer/docker/abc", &state("THAWED\n", "0\n"));
        assert_eq!(frozen_of(mount, own), None);
        let thaw = |group: &str| {
            let file = mount.join(group).join("freezer.state");
            Some(Frozen { thaw: vec![(file, "THAWED")], at_most: None })
        };
        write(mount, "freezer/docker/abc", &state("FREEZING\n", "1\n"));
        assert_eq!(frozen_of(mount, own), thaw("freezer/docker/abc"));
        write(mount, "freezer/docker/abc", &state("FROZEN\n", "0\n"));
        write(mount, "freezer/docker", &state("FROZEN\n", "1\n"));
        assert_eq!(frozen_of(mount, own), thaw("freezer/docker"));
        // Both versions at a time: the freezer of either.
        write(mount, "freezer/docker", &state("THAWED\n", "0\n"));
        write(mount, "freezer/docker/abc", &state("THAWED\n", "0\n"));
        write(mount, "unified/pod", &[("cgroup.freeze", "1\n"), ("cgroup.events", "frozen 1\n")]);
        let file = mount.join("unified/pod/cgroup.freeze");
        let both = own.replace("0::/", "0::/pod");
        assert_eq!(frozen_of(mount, &both).map(|it| it.thaw), Some(vec![(file, "0")]));
    }

    #[test]
    fn this_process_runs() {
        assert_eq!(frozen(std::process::id()), None);
        assert_eq!(frozen(u32::MAX), None);
    }
}
