//! Creating and destroying pools.

#![cfg(not(loom))]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Running, directory, names, not_permitted, pool, post, report, role, skipped, small};
use swarm_core::fabric::Verb;
use swarm_core::layout::{BadGeometry, Geometry};
use swarm_core::node::{Address, NodeId};
use swarm_shm::{CreateOptions, Error, Numa, OpenOptions, Pages, Pool, Rights};

const STRICT: OpenOptions = OpenOptions {
    degraded: false,
    pages: Pages::Touched,
    numa: Numa::Default,
    leave_sigbus: false,
    read_only: false,
    evict_stopped: None,
};
const COMPLETE: [&str; 4] = ["control", "node-0", "node-1", "node-2"];

#[test]
fn a_new_pool_is_empty_and_as_it_was_asked_for() {
    let (_dir, pool) = pool();
    let geometry = pool.geometry();
    let expected = Geometry::new(3, 4 << 20, 8, geometry.hash_seed).expect("a geometry");
    assert_eq!(geometry, expected);
    assert_eq!(names(pool.path()), COMPLETE);
    assert!(pool.absent_nodes().is_empty());
    assert_eq!(pool.live_clients(), [0; 0]);
    let words = (geometry.capacity / 8 - 512) as usize;
    for node in (0..3).map(NodeId) {
        let all = Verb::Read { at: Address(512), words };
        let found = post(&pool.fabric(), node, &[all]).expect("the node is up");
        assert!(found.iter().all(|&word| word == 0));
    }
    let (_dir, other) = common::pool();
    assert_ne!(pool.pool_id(), other.pool_id());
    assert_ne!(geometry.hash_seed, other.geometry().hash_seed);
}

/// Reserved space is really there: a hole would end the process with SIGBUS on a full file system.
#[test]
fn every_page_is_reserved() {
    let (_dir, pool) = pool();
    for name in COMPLETE {
        let metadata = fs::metadata(pool.path().join(name)).expect("a file");
        assert!(metadata.blocks() * 512 >= metadata.len(), "{name}");
    }
}

#[test]
fn numbers_out_of_bounds_leave_nothing_behind() {
    let dir = directory();
    let path = dir.path().join("pool");
    for options in [
        CreateOptions { nodes: 0, ..small() },
        CreateOptions { nodes: 2, ..small() },
        CreateOptions { nodes: 9, ..small() },
        CreateOptions { nodes: usize::MAX, ..small() },
        CreateOptions { capacity: 0, ..small() },
        CreateOptions { capacity: u64::MAX, ..small() },
        CreateOptions { max_clients: 0, ..small() },
        CreateOptions { max_clients: 1 << 20, ..small() },
        CreateOptions { capacity: 4 << 20, max_clients: 1024, ..small() },
    ] {
        let error = Pool::create(&path, &options).expect_err("out of bounds");
        assert!(matches!(error, Error::Geometry(_)), "{error}");
        assert!(!path.exists());
    }
    let odd = CreateOptions { capacity: (4 << 20) + 4, ..small() };
    let error = Pool::create(&path, &odd).expect_err("no whole words");
    assert!(matches!(error, Error::CapacityUnit { unit: 8, .. }), "{error}");
    assert!(error.to_string().contains("4194312 is"), "{error}");
    let paths = CreateOptions { node_paths: Some(vec![PathBuf::from("x")]), ..small() };
    let error = Pool::create(&path, &paths).expect_err("too few paths");
    assert!(matches!(error, Error::NodePaths { paths: 1, nodes: 3 }), "{error}");
    assert!(!path.exists());
    assert!(matches!(
        Geometry::new(2, 0, 0, 0),
        Err(BadGeometry::Capacity(0) | BadGeometry::Nodes(2))
    ));
}

#[test]
fn an_existing_pool_is_not_touched() {
    let (_dir, pool) = pool();
    let id = pool.pool_id();
    let error = Pool::create(pool.path(), &small()).expect_err("a pool is there");
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert_eq!(names(pool.path()), COMPLETE);
    assert_eq!(Pool::open(pool.path(), STRICT).expect("the pool").pool_id(), id);
}

#[test]
fn somebody_elses_file_is_not_overwritten() {
    let dir = directory();
    fs::write(dir.path().join("node-1"), "precious").expect("a file");
    fs::write(dir.path().join("notes"), "precious").expect("a file");
    let error = Pool::create(dir.path(), &small()).expect_err("a file is in the way");
    assert!(matches!(&error, Error::Occupied { file } if file.ends_with("node-1")), "{error}");
    assert_eq!(names(dir.path()), ["node-1", "notes"]);
    assert_eq!(fs::read(dir.path().join("node-1")).expect("a file"), b"precious");

    fs::remove_file(dir.path().join("node-1")).expect("a file");
    drop(Pool::create(dir.path(), &small()).expect("nothing is in the way"));
    Pool::destroy(dir.path(), false).expect("destroyed");
    assert_eq!(names(dir.path()), ["notes"]);
}

/// A tmpfs of its own, if this process may mount one.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(kind: &str, options: &str) -> Option<Self> {
        let dir = directory();
        let status = Command::new("mount")
            .args(["-t", kind, "-o", options, "swarm-shm-test"])
            .arg(dir.path())
            .output();
        status.is_ok_and(|output| output.status.success()).then(|| Self(dir))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let status = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot unmount {:?}", self.0.path());
    }
}

/// In a directory that others may write, too, a link had any file emptied.
#[test]
fn a_link_in_the_place_of_an_unfinished_pool_is_not_followed() {
    let dir = directory();
    let (path, other) = (dir.path().join("pool"), dir.path().join("other"));
    fs::create_dir(&path).expect("a directory");
    fs::write(&other, "somebody's").expect("written");
    symlink(&other, path.join("control.new")).expect("a link");
    let error = Pool::create(&path, &small()).expect_err("a link is there");
    assert!(matches!(&error, Error::Occupied { file } if *file == path.join("control.new")));
    Pool::destroy(&path, true).expect_err("nor is there a pool");
    assert_eq!(fs::read(&other).expect("it is there"), b"somebody's");
    assert_eq!(names(&path), ["control.new"]);
}

#[test]
fn a_full_file_system_is_an_error_at_once_and_leaves_nothing_behind() {
    let Some(mount) = Mount::new("tmpfs", "size=10m") else {
        not_permitted("a_full_file_system", "cannot mount a tmpfs here, which takes root's rights");
        return;
    };
    let path = mount.0.path().join("pool");
    let error = Pool::create(&path, &small()).expect_err("three nodes of 4 MiB do not fit");
    assert!(
        matches!(&error, Error::Full { file, needed: 4194304 } if file.ends_with("node-2")),
        "{error}"
    );
    assert!(!path.exists());
    drop(Pool::create(&path, &CreateOptions { nodes: 1, ..small() }).expect("one fits"));
}

/// Nobody may write there, whatever the files' rights are.
#[test]
fn a_pool_on_a_read_only_mount_is_opened_to_read_alone() {
    let Some(mount) = Mount::new("tmpfs", "size=20m") else {
        not_permitted(
            "on_a_read_only_mount",
            "cannot mount a tmpfs here, which takes root's rights",
        );
        return;
    };
    let path = mount.0.path().join("pool");
    let pool = Pool::create(&path, &small()).expect("a pool");
    let (at, node) = (Address(1 << 18), NodeId(1));
    assert_eq!(post(&pool.fabric(), node, &[Verb::Cas { at, expect: 0, new: 7 }]), Ok(vec![0]));
    drop(pool);
    let remounted = Command::new("mount").args(["-o", "remount,ro"]).arg(mount.0.path()).status();
    assert!(remounted.is_ok_and(|status| status.success()));
    let error = Pool::open(&path, STRICT).expect_err("nobody may write there");
    assert!(error.to_string().contains("Read-only file system"), "{error}");
    let options = OpenOptions { read_only: true, ..STRICT };
    let pool = Pool::open(&path, options).expect("it may be read");
    assert_eq!(post(&pool.read_fabric(), node, &[Verb::Read { at, words: 1 }]), Ok(vec![7]));
    assert_eq!(pool.live_clients(), [] as [usize; 0]);
}

#[test]
fn huge_pages() {
    let Some(mount) = Mount::new("hugetlbfs", "pagesize=2M,min_size=8M") else {
        skipped("huge_pages", "cannot mount hugetlbfs with 8 MiB of huge pages here");
        return;
    };
    let dir = directory();
    let path = dir.path().join("pool");
    let node_paths = Some(vec![mount.0.path().join("memory")]);
    let options = CreateOptions { nodes: 1, node_paths, ..small() };
    let odd = CreateOptions { capacity: 5 << 20, ..options.clone() };
    let error = Pool::create(&path, &odd).expect_err("not a multiple of the page");
    assert!(matches!(error, Error::CapacityUnit { .. }), "{error}");
    assert_eq!(names(mount.0.path()), [""; 0]);

    let pool = Pool::create(&path, &options).expect("a pool");
    let chain = [Verb::Cas { at: Address(1 << 18), expect: 0, new: 7 }];
    assert_eq!(post(&pool.fabric(), NodeId(0), &chain), Ok(vec![0]));
    drop(pool);
    Pool::destroy(&path, false).expect("destroyed");
    assert_eq!(names(mount.0.path()), [""; 0]);
}

/// The error was "Invalid argument".
#[test]
fn a_directory_on_hugetlbfs_is_refused() {
    let Some(mount) = Mount::new("hugetlbfs", "pagesize=2M") else {
        skipped("a_directory_on_hugetlbfs", "cannot mount hugetlbfs here");
        return;
    };
    for path in [mount.0.path().to_path_buf(), mount.0.path().join("pool")] {
        let outcome = Pool::create(&path, &small()).expect_err("no small files").to_string();
        assert!(outcome.contains("hugetlbfs") && outcome.contains("--node-path"), "{outcome}");
    }
    assert_eq!(names(mount.0.path()), [""; 0]);
}

/// How often a creation may continue before it is stopped.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// For example by a signal: its files remained, which no other command recognized.
#[test]
fn a_creation_that_is_stopped_leaves_nothing_behind() {
    let dir = directory();
    let path = dir.path().join("pool");
    let stop =
        || LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_err();
    let options = CreateOptions { stop: Some(stop), ..small() };
    let mut times = 0;
    loop {
        LEFT.store(times, Ordering::Relaxed);
        match Pool::create(&path, &options) {
            Ok(pool) => break assert_eq!(names(pool.path()), COMPLETE),
            Err(Error::Stopped { .. }) => assert_eq!(names(dir.path()), [""; 0], "{times}"),
            Err(error) => panic!("{error}"),
        }
        times += 1;
    }
    assert!(times >= 3, "it asks at each node");
}

/// Files removed under a client made its core dumps as large as the pool.
#[test]
fn a_pools_memory_is_in_no_core_dump() {
    let (_dir, pool) = pool();
    let maps = fs::read_to_string("/proc/self/smaps").expect("the process's mappings");
    let (mut of_pool, mut flags) = (false, Vec::new());
    for line in maps.lines() {
        if let Some(outcome) = line.strip_prefix("VmFlags:") {
            flags.extend(of_pool.then(|| outcome.split_whitespace().any(|flag| flag == "dd")));
        } else if line.contains('/') {
            of_pool = line.contains(pool.path().to_str().expect("a name"));
        } else if !line.split(' ').next().is_some_and(|word| word.ends_with(':')) {
            of_pool = false;
        }
    }
    assert!(flags.len() >= COMPLETE.len() && flags.iter().all(|&spared| spared), "{flags:?}");
}

/// For a group, by its number.
fn shared(group: &str) -> CreateOptions {
    let rights = Rights { mode: 0o660, group: Some(group.to_owned()) };
    CreateOptions { rights: Some(rights), ..small() }
}

/// Users who shared a pool had to change the mode of each file by hand.
#[test]
fn a_pool_may_be_for_a_group() {
    let dir = directory();
    let path = dir.path().join("pool");
    let own = fs::metadata(dir.path()).expect("a directory");
    // Root may give files to any group, and other users to their own.
    let group = if own.uid() == 0 { 1 } else { own.gid() };
    let pool = Pool::create(&path, &shared(&group.to_string())).expect("a pool");
    for name in [&COMPLETE[..], &["."]].concat() {
        let metadata = fs::metadata(path.join(name)).expect("a file");
        let mode = if name == "." { 0o770 } else { 0o660 };
        assert_eq!((metadata.mode() & 0o7777, metadata.gid()), (mode, group), "{name}");
    }
    drop(pool);
    Pool::destroy(&path, false).expect("destroyed");
    let private = Pool::create(&path, &small()).expect("a pool");
    for name in COMPLETE {
        assert_eq!(fs::metadata(path.join(name)).expect("a file").mode() & 0o7777, 0o600);
    }
    drop(private);
    // A device's rights are its administrator's.
    let dir = directory();
    let node_paths = Some(vec!["/dev/null".into()]);
    let options = CreateOptions { nodes: 1, node_paths, ..shared(&group.to_string()) };
    let error = Pool::create(dir.path().join("pool"), &options).expect_err("a device");
    assert!(matches!(error, Error::DeviceRights { .. }), "{error}");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_pool_that_cannot_be_for_a_group_is_refused_as_a_whole() {
    let dir = directory();
    let path = dir.path().join("pool");
    let error = Pool::create(&path, &shared("no-such-group")).expect_err("no such group");
    assert!(matches!(error, Error::NoGroup { .. }), "{error}");
    let odd = Rights { mode: 0o770, group: None };
    let error = Pool::create(&path, &CreateOptions { rights: Some(odd), ..small() });
    assert!(matches!(error, Err(Error::Mode { mode: 0o770 })), "{error:?}");
    assert_eq!(names(dir.path()), [""; 0]);

    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("permissions");
    let child = common::child_command("grant", &path).uid(65534).gid(65534).output();
    let Ok(output) = child else {
        not_permitted("refused_as_a_whole", "the test program cannot be run as another user here");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("cannot be given to group 0"), "{text}");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn a_file_system_that_does_not_really_reserve_is_reported() {
    let (dir, _pool) = pool();
    let layers = ["lower", "upper", "work", "merged"].map(|name| dir.path().join(name));
    for layer in &layers {
        fs::create_dir(layer).expect("a directory");
    }
    let [lower, upper, work, merged] = layers.map(|layer| layer.display().to_string());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let mounted =
        Command::new("mount").args(["-t", "overlay", "-o", &options, "overlay", &merged]).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        skipped("a_file_system_that_does_not_really_reserve", "cannot mount an overlay here");
        return;
    }
    let made = Pool::create(Path::new(&merged).join("pool"), &small());
    let outcome = made.as_ref().map(Pool::copy_on_write);
    let outcome = outcome.map_err(ToString::to_string);
    drop(made);
    let unmounted = Command::new("umount").args(["-l", &merged]).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!(outcome, Ok(Some("overlay")));
    assert_eq!(pool().1.copy_on_write(), None);
}

#[test]
fn nodes_may_lie_elsewhere() {
    let (dir, elsewhere) = (directory(), directory());
    let path = dir.path().join("pool");
    let paths: Vec<_> =
        (0..3).map(|node| elsewhere.path().join(format!("memory-{node}"))).collect();
    let options = CreateOptions { node_paths: Some(paths.clone()), ..small() };
    let pool = Pool::create(&path, &options).expect("a pool");
    assert_eq!(names(&path), COMPLETE);
    assert_eq!(fs::metadata(&paths[2]).expect("a file").len(), 4 << 20);
    let error = Pool::create(dir.path().join("other"), &options).expect_err("the files are taken");
    assert!(matches!(&error, Error::Occupied { file } if *file == paths[0]), "{error}");
    assert!(!dir.path().join("other").exists());
    assert_eq!(names(elsewhere.path()).len(), 3);

    drop(pool);
    Pool::destroy(&path, false).expect("destroyed");
    assert_eq!(names(elsewhere.path()), [""; 0]);
    assert!(!path.exists());
}

#[test]
fn a_device_that_holds_no_memory_is_refused() {
    let dir = directory();
    let path = dir.path().join("pool");
    let options = CreateOptions { nodes: 1, node_paths: Some(vec!["/dev/null".into()]), ..small() };
    let error = Pool::create(&path, &options).expect_err("no memory there");
    assert!(matches!(error, Error::Unsuited { .. }), "{error}");
    assert!(!path.exists());
    assert!(Path::new("/dev/null").exists());
}

#[test]
fn destroying_spares_what_is_not_the_pools() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    let (_other_dir, other) = common::pool();
    fs::copy(other.path().join("node-1"), path.join("node-1")).expect("copied");
    fs::write(path.join("notes"), "precious").expect("a file");
    drop(pool);
    let error = Pool::destroy(&path, true).expect_err("a node of another pool");
    assert!(matches!(&error, Error::LeftOver { file } if file.ends_with("node-1")), "{error}");
    assert_eq!(names(&path), ["node-1", "notes"]);
    // The remaining files identify themselves as a pool's: only force removes them.
    let error = Pool::destroy(&path, false).expect_err("there is no control file");
    assert!(matches!(error, Error::NoControl { .. }), "{error}");
    assert_eq!(names(&path), ["node-1", "notes"]);
    Pool::destroy(&path, true).expect("by force");
    assert_eq!(names(&path), ["notes"]);
    let error = Pool::destroy(&path, true).expect_err("no pool any more");
    assert!(matches!(error, Error::NoPool { .. }), "{error}");

    let empty = directory();
    let error = Pool::destroy(empty.path(), true).expect_err("no pool");
    assert!(matches!(error, Error::NoPool { .. }), "{error}");
    fs::write(empty.path().join("control"), "no control file at all").expect("a file");
    let error = Pool::destroy(empty.path(), true).expect_err("no pool");
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(names(empty.path()), ["control"]);
}

#[test]
fn a_damaged_pool_can_be_destroyed_by_force() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    drop(pool);
    let mut control = fs::read(path.join("control")).expect("a file");
    control[60] ^= 1;
    fs::write(path.join("control"), control).expect("written");
    fs::write(path.join("node-0"), "").expect("written");
    fs::remove_file(path.join("node-1")).expect("a node");
    symlink("/nowhere", path.join("node-1")).expect("a dangling link");
    let error = Pool::destroy(&path, false).expect_err("damaged");
    let Error::NotDestroyed { why } = error else { panic!("{error}") };
    assert!(matches!(*why, Error::Damaged { .. }), "{why}");
    assert_eq!(names(&path), COMPLETE);
    Pool::destroy(&path, true).expect("destroyed");
    assert!(!path.exists());
}

/// It removed the nodes before the damaged one, and then reported that one.
#[test]
fn a_damaged_pool_is_left_as_it_was_without_force() {
    type Harm = fn(&Path, &Path);
    let harms: [Harm; 5] = [
        |node, _| fs::write(node, "not a node").expect("written"),
        |node, _| fs::write(node, "").expect("written"),
        |node, other| assert!(fs::copy(other, node).is_ok()),
        |node, _| assert!(fs::copy(node.with_file_name("node-0"), node).is_ok()),
        |node, _| {
            let mut bytes = fs::read(node).expect("a node");
            bytes[60] ^= 1;
            fs::write(node, bytes).expect("written");
        },
    ];
    for harm in harms {
        let ((_dir, pool), (_other_dir, other)) = (pool(), common::pool());
        let path = pool.path().to_path_buf();
        drop(pool);
        let whole = fs::read(path.join("node-2")).expect("a node");
        harm(&path.join("node-2"), &other.path().join("node-2"));
        let error = Pool::destroy(&path, false).expect_err("a damaged node");
        assert!(matches!(error, Error::NotDestroyed { .. }), "{error}");
        let outcome = error.to_string();
        assert!(
            outcome.contains("node-2: ") && outcome.contains("Nothing was removed"),
            "{outcome}"
        );
        assert_eq!(names(&path), COMPLETE);
        fs::write(path.join("node-2"), whole).expect("written");
        drop(Pool::open(&path, STRICT).expect("the pool is as it was"));
        Pool::destroy(&path, false).expect("destroyed");
        assert!(!path.exists());
    }
}

/// Between `fork` and `exec` a child holds copies of all descriptors, and with them their locks.
/// Copies of a failed attempt's or a departed client's made an unused pool appear in use.
#[test]
fn a_process_that_starts_programs_meanwhile_does_not_keep_a_pool_in_use() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    let node = path.join("node-2");
    let whole = fs::read(&node).expect("a node");
    fs::write(&node, "not a node").expect("written");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(Command::new("true").status().expect("it is there").success());
            }
        });
        for _ in 0..300 {
            drop(pool.attach().expect("a slot"));
            let error = Pool::destroy(&path, false).err();
            if !matches!(error, Some(Error::NotDestroyed { .. })) {
                done.store(true, Ordering::Relaxed);
                panic!("{error:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    fs::write(&node, whole).expect("written");
    drop(pool);
    Pool::destroy(&path, false).expect("destroyed");
}

/// Processes that waited for the first got the error that a file is not there.
#[test]
fn of_racing_destroyers_one_wins() {
    for _ in 0..20 {
        let (_dir, pool) = pool();
        let path = pool.path().to_path_buf();
        drop(pool);
        let done: Vec<_> = std::thread::scope(|scope| {
            let begun: Vec<_> =
                (0..3).map(|_| scope.spawn(|| Pool::destroy(&path, false))).collect();
            begun.into_iter().map(|it| it.join().expect("no panic")).collect()
        });
        let won = done.iter().filter(|it| it.is_ok()).count();
        // If the first takes long, the others do not wait until it ends.
        let is_refused =
            |it: &&Result<_, Error>| matches!(it, Err(Error::NoPool { .. } | Error::InUse { .. }));
        assert_eq!((won, done.iter().filter(is_refused).count()), (1, 2), "{done:?}");
    }
}

/// A pool whose destroyer was killed half-way looked like a pool that had lost its nodes.
#[test]
fn a_half_destroyed_pool_says_so_and_can_be_destroyed_again() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    let control = fs::OpenOptions::new().write(true).open(path.join("control")).expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&control, b"SWARMend", 640).expect("written");
    fs::remove_file(path.join("node-0")).expect("a node");
    // A client that had it open before could go on writing to files that the next destruction
    // removes.
    let error = pool.attach().expect_err("half destroyed");
    assert!(matches!(error, Error::HalfDestroyed { .. }), "{error}");
    assert_eq!(pool.live_clients(), [] as [usize; 0]);
    drop(pool);
    for options in [STRICT, OpenOptions { degraded: true, ..STRICT }] {
        let error = Pool::open(&path, options).expect_err("half destroyed");
        assert!(matches!(error, Error::HalfDestroyed { .. }), "{error}");
        assert!(error.to_string().contains("destroy it again"), "{error}");
    }
    Pool::destroy(&path, false).expect("destroyed");
    assert!(!path.exists());
}

/// Opening it, creating another, and destroying it gave contradictory errors.
#[test]
fn a_pool_without_its_control_file_is_destroyed_by_force_alone() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    drop(pool);
    fs::remove_file(path.join("control")).expect("a file");
    let nodes = ["node-0", "node-1", "node-2"];
    let names_force = |error: Error| {
        assert!(
            matches!(&error, Error::NoControl { file } if file.ends_with("control")),
            "{error}"
        );
        assert!(error.to_string().contains("swarm destroy --force"), "{error}");
        assert_eq!(names(&path), nodes);
    };
    names_force(Pool::open(&path, STRICT).expect_err("it shows nothing of the pool"));
    names_force(Pool::create(&path, &small()).expect_err("there are nodes"));
    names_force(Pool::destroy(&path, false).expect_err("it shows whose the nodes are"));
    // A damaged node is removed with the others, and one of another pool is not.
    let (_other_dir, other) = common::pool();
    fs::write(path.join("node-2"), "not a node").expect("written");
    fs::copy(other.path().join("node-0"), path.join("node-3")).expect("copied");
    fs::copy(path.join("node-0"), path.join("node-4")).expect("copied");
    let error = Pool::destroy(&path, true).expect_err("a node of another pool");
    assert!(matches!(&error, Error::LeftOver { file } if file.ends_with("node-3")), "{error}");
    assert_eq!(names(&path), ["node-3"]);
}

/// Whatever was left of the control file, force reported that it is no pool's, and all files stayed.
#[test]
fn a_pool_whose_control_file_was_emptied_is_destroyed_by_force_alone() {
    for (left, and_zeros) in [(0, 0), (0, 100), (0, 1 << 20), (20, 0), (31, 0), (32, 0), (700, 0)] {
        let (_dir, pool) = pool();
        let path = pool.path().to_path_buf();
        drop(pool);
        let control = fs::OpenOptions::new().write(true).open(path.join("control"));
        let control = control.expect("a file");
        control.set_len(left).expect("cut short");
        control.set_len(left + and_zeros).expect("grown again");
        let error = Pool::destroy(&path, false).expect_err("it shows whose the nodes are");
        assert!(matches!(error, Error::NotDestroyed { .. }), "{left} {and_zeros}: {error}");
        assert_eq!(names(&path), COMPLETE);
        let outcome = Pool::destroy(&path, true);
        assert!(matches!(outcome, Ok(None)), "{left} {and_zeros}: {outcome:?}");
        assert!(!path.exists());
    }
    // Beside no node it may be anybody's, and so may one that says something else.
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    drop(pool);
    fs::write(path.join("control"), "another program's").expect("written");
    let error = Pool::destroy(&path, true).expect_err("it is another program's");
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(names(&path), COMPLETE);
    let dir = directory();
    fs::write(dir.path().join("control"), "").expect("written");
    let error = Pool::destroy(dir.path(), true).expect_err("no pool");
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    assert_eq!(names(dir.path()), ["control"]);
}

/// Files of a creator that died were no pool to `destroy`, and stayed.
#[test]
fn an_unfinished_pool_can_be_destroyed() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    drop(pool);
    fs::rename(path.join("control"), path.join("control.new")).expect("renamed");
    fs::write(path.join("node-2"), vec![0; 4096]).expect("written");
    let error = Pool::open(&path, STRICT).expect_err("it is not complete");
    assert!(matches!(error, Error::Unfinished { .. }), "{error}");
    Pool::destroy(&path, false).expect("destroyed");
    assert!(!path.exists());
}

/// The directory stayed, and the second time there was no pool.
#[test]
fn a_pool_is_destroyed_through_a_link() {
    let dir = directory();
    let (path, link) = (dir.path().join("pool"), dir.path().join("link"));
    for name in [link.clone(), link.join("")] {
        drop(Pool::create(&path, &small()).expect("a pool"));
        symlink("pool", &link).expect("a link");
        assert!(Pool::destroy(&name, false).expect("destroyed").is_none());
        assert_eq!(names(dir.path()), [""; 0]);
    }
    // Files that are not the pool's stay, and so does the link to them.
    drop(Pool::create(&path, &small()).expect("a pool"));
    symlink("pool", &link).expect("a link");
    fs::write(path.join("notes"), "precious").expect("a file");
    let left = Pool::destroy(&link, false).expect("destroyed").expect("the directory is left");
    assert_eq!(left.directory, fs::canonicalize(&path).expect("it is there"));
    assert_eq!(left.why.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    assert_eq!(names(&link), ["notes"]);
}

/// It reported that the pool was removed, and the directory stayed.
#[test]
fn a_directory_that_stays_is_reported() {
    let Some(mount) = Mount::new("tmpfs", "size=20m") else {
        not_permitted(
            "a_directory_that_stays",
            "cannot mount a tmpfs here, which takes root's rights",
        );
        return;
    };
    drop(Pool::create(mount.0.path(), &small()).expect("a pool"));
    let left = Pool::destroy(mount.0.path(), false).expect("destroyed").expect("it is mounted");
    assert_eq!(left.directory, mount.0.path());
    assert_eq!(left.why.kind(), std::io::ErrorKind::ResourceBusy);
    assert_eq!(names(mount.0.path()), [""; 0]);
}

#[test]
fn what_was_removed_is_reported_where_something_cannot_be() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    drop(pool);
    // A mount point cannot be removed.
    let busy = path.join("node-1");
    let mounted = Command::new("mount").arg("--bind").args([&busy, &busy]).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        not_permitted("what_was_removed", "cannot mount a file here, which takes root's rights");
        return;
    }
    let error = Pool::destroy(&path, false).expect_err("a node cannot be removed");
    let opened = Pool::open(&path, STRICT);
    let unmounted = Command::new("umount").arg("-l").arg(&busy).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    let outcome = error.to_string();
    let Error::PartlyDestroyed { removed, .. } = error else { panic!("{outcome}") };
    assert_eq!(removed, [path.join("node-0")]);
    assert!(outcome.starts_with(busy.to_str().expect("a name")), "{outcome}");
    let error = opened.expect_err("half destroyed");
    assert!(matches!(error, Error::HalfDestroyed { .. }), "{error}");
    Pool::destroy(&path, false).expect("nothing is in the way");
    assert!(!path.exists());
}

#[test]
fn a_pool_in_use_is_destroyed_by_force_alone() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    let client = pool.attach().expect("a slot");
    let error = Pool::destroy(&path, false).expect_err("a client is there");
    assert!(matches!(&error, Error::InUse { clients, .. } if *clients == [0]), "{error}");
    assert_eq!(names(&path), COMPLETE);

    Pool::destroy(&path, true).expect("destroyed");
    assert!(!path.exists());
    let cas = [Verb::Cas { at: Address(512), expect: 0, new: 1 }];
    assert_eq!(post(&pool.fabric(), NodeId(0), &cas), Ok(vec![0]), "still mapped");
    let error = pool.attach().expect_err("the pool is gone");
    assert!(matches!(error, Error::Gone { .. }), "{error}");
    drop(Pool::create(&path, &small()).expect("a new pool in its place"));
    let error = pool.attach().expect_err("the pool is gone");
    assert!(matches!(error, Error::Gone { .. }), "{error}");
    drop(client);
}

/// Not a test itself: creates pools until it is killed.
#[test]
fn child() {
    let Some((role, path)) = role() else { return };
    if role == "grant" {
        let error = Pool::create(&path, &shared("0")).expect_err("not a member of that group");
        return report(error);
    }
    report("ready");
    loop {
        let _ = Pool::create(&path, &small());
        let _ = Pool::destroy(&path, false);
    }
}

/// Whatever a killed creator left, it is no pool or a complete one, and the next pool can be
/// created in its place.
#[test]
fn a_killed_creator_leaves_no_half_pool() {
    let dir = directory();
    let path = dir.path().join("pool");
    for round in 0..30 {
        let mut child = Running::start("create", &path);
        assert_eq!(child.receive(), "ready");
        std::thread::sleep(std::time::Duration::from_micros(round * 1511 % 20_000));
        child.process.kill().expect("SIGKILL");
        child.process.wait().expect("the child");
        match Pool::open(&path, STRICT) {
            Ok(_) => drop(Pool::destroy(&path, false).expect("a whole pool")),
            // Killed in the middle of `create`, or of `destroy`, which continues where it stopped.
            Err(Error::NoPool { .. }) => {}
            Err(Error::HalfDestroyed { .. } | Error::Unfinished { .. }) if round % 2 == 0 => {
                Pool::destroy(&path, false).expect("the rest of a pool");
                assert!(!path.exists());
            }
            Err(Error::HalfDestroyed { .. }) => {
                Pool::destroy(&path, false).expect("the rest of a pool");
            }
            // The next creator removes its files.
            Err(Error::Unfinished { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        drop(Pool::create(&path, &small()).expect("a pool"));
        assert_eq!(names(&path), COMPLETE);
        Pool::destroy(&path, false).expect("destroyed");
        assert!(!path.exists());
    }
}

#[test]
fn of_racing_creators_one_wins() {
    let dir = directory();
    for round in 0..10 {
        let path = dir.path().join(format!("pool-{round}"));
        let create = || Pool::create(&path, &small()).map(|pool| pool.pool_id());
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|t| t.join().expect("no panic")).collect::<Vec<_>>()
        });
        let id = Pool::open(&path, STRICT).expect("one created it").pool_id();
        assert_eq!(results.iter().flatten().copied().collect::<Vec<_>>(), [id]);
        for error in results.into_iter().filter_map(Result::err) {
            let expected = matches!(error, Error::Exists { .. } | Error::BeingCreated { .. });
            assert!(expected, "{error}");
        }
        assert_eq!(names(&path), COMPLETE);
    }
}
