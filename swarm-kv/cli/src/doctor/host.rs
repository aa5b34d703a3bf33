//! Probes what RDMA needs of the host besides a card: lockable memory, kernel modules, huge pages,
//! and a fast clock.

use std::fs::{self, File};
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, line, names};
use crate::common::units::show_size;

/// The most that a client locks: slots for its chains, and its queue pairs.
const CLIENT_BYTES: u64 = 8 << 20;
/// The bit of the capability to lock memory beyond the limit.
const CAP_IPC_LOCK: u32 = 14;

/// Probes whether this program is built with RDMA.
pub(super) fn feature() -> Finding {
    #[cfg(feature = "rdma")]
    return Finding::ok("this program", "is built with RDMA");
    #[cfg(not(feature = "rdma"))]
    return Finding::bad(
        "this program",
        "is built without RDMA",
        "build it with `cargo build --release --features rdma` (needs the packages \
         libibverbs-dev, librdmacm-dev, libclang-dev and protobuf-compiler)",
    );
}

/// Probes the host for a memory node that registers `capacity` bytes.
pub(super) fn probe(root: &Path, capacity: u64) -> Vec<Finding> {
    let limit = getrlimit(Resource::Memlock).current;
    let mut findings = vec![memlock(limit, may_lock(root), capacity)];
    findings.extend(modules(root));
    findings.push(huge_pages(root, capacity));
    findings.push(clock(root));
    findings
}

/// Returns whether this process may lock memory beyond the limit.
fn may_lock(root: &Path) -> bool {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << CAP_IPC_LOCK) != 0)
}

fn memlock(limit: Option<u64>, may_lock: bool, capacity: u64) -> Finding {
    let probe = "memlock limit";
    let Some(limit) = limit else { return Finding::ok(probe, "unlimited") };
    let saw = show_size(limit);
    let advice = "`ulimit -l unlimited`; for good: `* - memlock unlimited` in \
        /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit";
    if may_lock {
        return Finding::ok(probe, format!("{saw}, which does not bind this user (CAP_IPC_LOCK)"));
    }
    if limit < CLIENT_BYTES {
        let needs = show_size(CLIENT_BYTES);
        return Finding::bad(probe, format!("{saw}: a client locks about {needs}"), advice);
    }
    if limit < capacity.saturating_add(CLIENT_BYTES) {
        let wanted = show_size(capacity);
        let saw = format!("{saw}: a memory node of {wanted} cannot register its memory");
        return Finding::warn(probe, saw, advice);
    }
    Finding::ok(probe, saw)
}

/// Probes the character devices through which programs use the kernel's verbs and connection
/// manager.
fn modules(root: &Path) -> Vec<Finding> {
    let directory = root.join("dev/infiniband");
    let verbs = names(&directory).into_iter().find(|name| name.starts_with("uverbs"));
    [
        ("kernel verbs", verbs.unwrap_or_else(|| "uverbs0".to_owned()), "ib_uverbs"),
        ("connection manager", "rdma_cm".to_owned(), "rdma_ucm"),
    ]
    .into_iter()
    .map(|(probe, name, module)| {
        let path = directory.join(&name);
        let shown = format!("/dev/infiniband/{name}");
        let loaded = root.join("sys/module").join(module).exists();
        match File::options().read(true).write(true).open(&path) {
            Ok(_) => Finding::ok(probe, shown),
            Err(_) if path.exists() => Finding::bad(
                probe,
                format!("{shown} may not be used by this user"),
                "`chmod a+rw` it, or install the package rdma-core, whose udev rules do; in a \
                 container, pass /dev/infiniband on",
            ),
            Err(_) if loaded => Finding::bad(
                probe,
                format!("the module {module} is loaded, but {shown} is not there"),
                "there is no device yet, or this is a container: pass /dev/infiniband on",
            ),
            Err(_) => {
                Finding::bad(probe, format!("{shown} is not there"), format!("`modprobe {module}`"))
            }
        }
    })
    .collect()
}

fn huge_pages(root: &Path, capacity: u64) -> Finding {
    let probe = "huge pages";
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let number = |name: &str| -> u64 {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        let value = value.and_then(|value| value.split_whitespace().next());
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    let (free, size) = (number("HugePages_Free:"), number("Hugepagesize:") << 10);
    let saw = format!("{free} free of {}", show_size(size));
    if size > 0 && free.saturating_mul(size) >= capacity {
        return Finding::ok(probe, saw);
    }
    let pages = capacity.div_ceil(size.max(2 << 20));
    Finding::warn(
        probe,
        format!("{saw}: a memory node of {} takes small pages", show_size(capacity)),
        format!(
            "a card translates addresses quicker with fewer pages: `sysctl vm.nr_hugepages={pages}` \
             where memory nodes run; clients need none"
        ),
    )
}

pub(super) fn clock(root: &Path) -> Finding {
    let probe = "clock source";
    let directory = root.join("sys/devices/system/clocksource/clocksource0");
    match line(&directory.join("current_clocksource")).as_deref() {
        Some(
            quick @ ("tsc" | "arch_sys_counter" | "kvm-clock" | "hyperv_clocksource_tsc_page"),
        ) => Finding::ok(probe, quick),
        Some(slow) => {
            let there = line(&directory.join("available_clocksource")).unwrap_or_default();
            let advice = if there.contains("tsc") {
                format!(
                    "`echo tsc > /{}`",
                    "sys/devices/system/clocksource/clocksource0/current_clocksource"
                )
            } else {
                "the kernel found the processor's counter unfit: look for `tsc` in its log"
                    .to_owned()
            };
            Finding::warn(
                probe,
                format!("{slow}: every look at the clock is a system call"),
                advice,
            )
        }
        None => Finding::ok(probe, "the kernel does not show it"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn limits_are_judged_by_what_is_to_be_locked() {
        let verdict = |limit, may| memlock(limit, may, 256 << 20).verdict;
        assert_eq!(verdict(None, false), Verdict::Ok);
        assert_eq!(verdict(Some(64 << 10), false), Verdict::Bad);
        assert_eq!(verdict(Some(64 << 10), true), Verdict::Ok);
        assert_eq!(verdict(Some(8 << 20), false), Verdict::Warn, "enough for a client");
        assert_eq!(verdict(Some(256 << 20), false), Verdict::Warn);
        assert_eq!(verdict(Some(1 << 30), false), Verdict::Ok);
    }

    #[test]
    fn what_the_host_lacks_is_reported() {
        let root = tempfile::tempdir().expect("there is room");
        let root = root.path();
        for (path, text) in [
            ("proc/self/status", "Name:\tswarm\nCapEff:\t0000000000004000\n"),
            ("proc/meminfo", "HugePages_Free:      200\nHugepagesize:       2048 kB\n"),
            ("dev/infiniband/rdma_cm", ""),
            ("dev/infiniband/uverbs3", ""),
            ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
        ] {
            fs::create_dir_all(root.join(path).parent().expect("it has one")).expect("room");
            fs::write(root.join(path), text).expect("room");
        }
        assert!(may_lock(root));
        assert_eq!(huge_pages(root, 256 << 20).verdict, Verdict::Ok);
        assert_eq!(huge_pages(root, 1 << 30).verdict, Verdict::Warn);
        assert!(modules(root).iter().all(|finding| finding.verdict == Verdict::Ok));
        assert_eq!(clock(root).verdict, Verdict::Warn);
        fs::remove_file(root.join("dev/infiniband/rdma_cm")).expect("it is there");
        assert!(modules(root).iter().any(|finding| finding.verdict == Verdict::Bad));
    }
}
