//! Probes what shared-memory pools need of the host: space, limits, files that persist, and a pool
//! that can be opened.

use std::fs;
use std::path::Path;

use rustix::fs::{StatVfs, statvfs};
use rustix::process::{Resource, getrlimit, getuid};
use swarm_kv::shm::{Error, FileSystem, MemoryLimit, OpenOptions, Pool, memory_limit};

use super::finding::{Finding, names};
use crate::common::units::{count, show_size};

/// Nodes of the pool that must fit.
const NODES: u64 = 3;
/// Open files of a process with a few clients.
const FILES: u64 = 64;
/// User ids from here on are people's, whose files are removed with their last session.
const FIRST_PERSON: u32 = 1000;

/// Probes the host for a pool of three nodes of `capacity` bytes.
pub(super) fn probe(root: &Path, capacity: u64) -> Vec<Finding> {
    let needed = capacity.saturating_mul(NODES);
    let limits = [Resource::Nofile, Resource::Fsize].map(|limit| getrlimit(limit).current);
    let mut findings = vec![
        room(statvfs(root.join("dev/shm")).ok(), needed),
        group(memory_limit(), needed),
        files(limits[0]),
        file_size(limits[1], capacity),
        sessions(root, getuid().as_raw()),
        pages(root),
    ];
    findings.extend(stale(&root.join("dev/shm")));
    findings
}

/// Probes a pool.
pub(super) fn pool(path: &Path) -> Vec<Finding> {
    let mut findings = vec![file_system(path)];
    match Pool::open(path, OpenOptions { degraded: true, ..OpenOptions::default() }) {
        Err(error) => {
            findings.push(Finding::bad("pool", error.to_string(), "see docs/OPERATIONS.md"))
        }
        Ok(pool) => {
            let absent = pool.absent_nodes().iter().map(|absent| {
                Finding::warn(
                    "pool",
                    absent.why.to_string(),
                    "until then, --degraded goes on without it",
                )
            });
            findings.extend(absent);
            let (clients, geometry) = (pool.live_clients().len(), pool.geometry());
            let saw = format!(
                "{} of {}, {} of {} slots held",
                count(geometry.nodes as u64, "node"),
                show_size(geometry.capacity),
                clients,
                geometry.max_clients
            );
            findings.push(if clients < geometry.max_clients {
                Finding::ok("pool", saw)
            } else {
                Finding::warn(
                    "pool",
                    saw,
                    "no further client finds a slot: `swarm info` lists the holders",
                )
            });
        }
    }
    findings
}

fn room(shared: Option<StatVfs>, needed: u64) -> Finding {
    let probe = "/dev/shm";
    let Some(system) = shared else {
        return Finding::warn(probe, "is not there", "mount a tmpfs, or make pools elsewhere");
    };
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    let saw = format!(
        "{} free of {}",
        show_size(free),
        show_size(system.f_blocks.saturating_mul(system.f_frsize))
    );
    if free >= needed {
        return Finding::ok(probe, saw);
    }
    Finding::warn(
        probe,
        format!("{saw}: {} do not fit", show_size(needed)),
        "`mount -o remount,size=SIZE /dev/shm`; `--shm-size` of a container; or a smaller --capacity",
    )
}

fn group(limit: Option<MemoryLimit>, needed: u64) -> Finding {
    let probe = "memory limit";
    let Some(MemoryLimit { file, limit, free, .. }) = limit else {
        return Finding::ok(probe, "no control group limits it");
    };
    let saw = format!("{} left of {} ({})", show_size(free), show_size(limit), file.display());
    if free >= needed {
        return Finding::ok(probe, saw);
    }
    let saw = format!("{saw}: {} do not fit", show_size(needed));
    Finding::warn(probe, saw, "raise it, or create the pool outside of this control group")
}

fn files(limit: Option<u64>) -> Finding {
    let probe = "open files";
    match limit {
        Some(limit) if limit < FILES => Finding::warn(
            probe,
            format!("{limit} at most"),
            "`ulimit -n 1024`; LimitNOFILE in a systemd unit",
        ),
        Some(limit) => Finding::ok(probe, format!("{limit} at most")),
        None => Finding::ok(probe, "unlimited"),
    }
}

fn file_size(limit: Option<u64>, capacity: u64) -> Finding {
    let probe = "file size";
    match limit {
        Some(limit) if limit < capacity => {
            let saw = format!(
                "{} at most: a node of {} does not fit",
                show_size(limit),
                show_size(capacity)
            );
            Finding::bad(probe, saw, "`ulimit -f unlimited`; LimitFSIZE in a systemd unit")
        }
        Some(limit) => Finding::ok(probe, format!("{} at most", show_size(limit))),
        None => Finding::ok(probe, "unlimited"),
    }
}

/// Probes whether a user's files in `/dev/shm` are removed with their last session.
fn sessions(root: &Path, user: u32) -> Finding {
    let probe = "RemoveIPC";
    if !root.join("run/systemd/system").exists() {
        return Finding::ok(probe, "no systemd removes files at a logout");
    }
    let configured = fs::read_to_string(root.join("etc/systemd/logind.conf")).unwrap_or_default();
    let printed = configured.lines().rev().find_map(|line| line.trim().strip_prefix("RemoveIPC="));
    let is_no =
        printed.is_some_and(|printed| ["no", "false", "0", "off"].contains(&printed.trim()));
    match user {
        _ if is_no => Finding::ok(probe, "no"),
        user if user < FIRST_PERSON => {
            Finding::ok(probe, "yes, but not for system users such as this one")
        }
        _ => Finding::warn(
            probe,
            "yes: pools of this user in /dev/shm go with their last session",
            "RemoveIPC=no in /etc/systemd/logind.conf, or a system user as the owner",
        ),
    }
}

fn pages(root: &Path) -> Finding {
    let probe = "pages";
    let path = root.join("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let printed = fs::read_to_string(path).unwrap_or_default();
    if printed.contains("[deny]") || printed.is_empty() {
        let advice = "`echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled` allows them on request";
        return Finding::warn(
            probe,
            "shared memory has small pages: gets take a fifth longer",
            advice,
        );
    }
    Finding::ok(probe, "shared memory can have huge ones")
}

fn file_system(path: &Path) -> Finding {
    let probe = "file system";
    match FileSystem::at(path) {
        FileSystem::Local => Finding::ok(probe, "memory or a local disk"),
        FileSystem::CopyOnWrite(name) => Finding::warn(
            probe,
            format!("{name}: room that is reserved may be missing all the same"),
            "for a client that finds none a node is down: better /dev/shm, ext4 or XFS",
        ),
        FileSystem::Shared(name) => Finding::warn(
            probe,
            format!("{name}: what is mapped is a copy"),
            "clients on other hosts must not use the pool: better /dev/shm or a local disk",
        ),
    }
}

/// Finds unusable remains of pools in a directory.
fn stale(directory: &Path) -> Vec<Finding> {
    let look = |name: String| {
        let path = directory.join(name);
        match Pool::open(&path, OpenOptions { degraded: true, ..OpenOptions::default() }) {
            Err(
                error @ (Error::Unfinished { .. }
                | Error::HalfDestroyed { .. }
                | Error::NoControl { .. }
                | Error::MajorityGone { .. }),
            ) => {
                let advice =
                    format!("if nobody needs it: `swarm destroy --force {}`", path.display());
                Some(Finding::warn("stale pool", error.to_string(), advice))
            }
            _ => None,
        }
    };
    names(directory).into_iter().filter_map(look).collect()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn limits_that_leave_no_room_are_reported() {
        assert_eq!(file_size(Some(1 << 20), 1 << 30).verdict, Verdict::Bad);
        assert_eq!(file_size(Some(1 << 30), 1 << 30).verdict, Verdict::Ok);
        assert_eq!(file_size(None, 1 << 30).verdict, Verdict::Ok);
        assert_eq!(
            [files(Some(10)), files(None)].map(|it| it.verdict),
            [Verdict::Warn, Verdict::Ok]
        );
        assert_eq!(group(None, u64::MAX).verdict, Verdict::Ok);
        assert_eq!(room(None, 0).verdict, Verdict::Warn);
    }

    #[test]
    fn what_goes_with_a_session_is_reported() {
        let root = tempfile::tempdir().expect("there is room");
        let of = |user| sessions(root.path(), user).verdict;
        assert_eq!(of(1000), Verdict::Ok, "there is no systemd");
        fs::create_dir_all(root.path().join("run/systemd/system")).expect("room");
        fs::create_dir_all(root.path().join("etc/systemd")).expect("room");
        assert_eq!([of(1000), of(999)], [Verdict::Warn, Verdict::Ok]);
        for (text, verdict) in
            [("#RemoveIPC=no\n", Verdict::Warn), ("[Login]\nRemoveIPC=no\n", Verdict::Ok)]
        {
            fs::write(root.path().join("etc/systemd/logind.conf"), text).expect("room");
            assert_eq!(of(1000), verdict, "{text}");
        }
    }

    #[test]
    fn pools_that_nobody_can_use_are_reported() {
        let root = tempfile::tempdir().expect("there is room");
        let options = swarm_kv::shm::CreateOptions { capacity: 4 << 20, ..Default::default() };
        let path = root.path().join("pool");
        drop(Pool::create(&path, &options).expect("a pool"));
        fs::create_dir(root.path().join("other")).expect("room");
        assert!(stale(root.path()).is_empty());
        assert!(
            pool(&path).iter().all(|finding| finding.verdict == Verdict::Ok),
            "{:?}",
            pool(&path)
        );
        fs::remove_file(path.join("node-0")).expect("it is there");
        assert!(stale(root.path()).is_empty(), "a majority is there");
        assert!(pool(&path).iter().any(|finding| finding.verdict == Verdict::Warn));
        fs::remove_file(path.join("control")).expect("it is there");
        assert_eq!(stale(root.path()).len(), 1);
        assert!(pool(&path).iter().any(|finding| finding.verdict == Verdict::Bad));
    }
}
