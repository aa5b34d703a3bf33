//! Pages: a pool has huge pages if possible, and its contents never change, wherever they lie.

#![cfg(all(not(loom), target_os = "linux", target_env = "gnu"))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Running, child_command, not_permitted, post, report, role, skipped, small};
use memmap2::{MmapOptions, MmapRaw};
use swarm_core::fabric::Verb;
use swarm_core::node::{Address, NodeId};
use swarm_shm::{CreateOptions, OpenOptions, Pages, Pool, ShmFabric};

const NODE: NodeId = NodeId(0);
const HUGE_PAGE: u64 = 2 << 20;
/// A node of four huge pages.
const CAPACITY: u64 = 4 * HUGE_PAGE;
/// Not among the words of a node's header.
const FIRST: u64 = 4096;
const HUGE: OpenOptions = OpenOptions {
    degraded: false,
    pages: Pages::Huge,
    numa: swarm_shm::Numa::Default,
    leave_sigbus: false,
    read_only: false,
    evict_stopped: None,
};

fn options(pages: Pages) -> CreateOptions {
    CreateOptions { nodes: 1, capacity: CAPACITY, pages, ..small() }
}

/// Returns a directory on the tmpfs that every Linux has.
fn on_tmpfs() -> Option<tempfile::TempDir> {
    tempfile::tempdir_in("/dev/shm").ok()
}

/// Stores another word in each huge page.
fn store(fabric: &ShmFabric) {
    for at in (FIRST..CAPACITY).step_by(HUGE_PAGE as usize) {
        let write = Verb::Write { at: Address(at / 8), head: &[at], tail: &[] };
        post(fabric, NODE, &[write]).expect("the node is up");
    }
}

/// Returns whether all of them are there.
fn is_stored(fabric: &ShmFabric) -> bool {
    (FIRST..CAPACITY).step_by(HUGE_PAGE as usize).all(|at| {
        let read = Verb::Read { at: Address(at / 8), words: 1 };
        post(fabric, NODE, &[read]) == Ok(vec![at])
    })
}

/// Returns how much of the file at `path` this process has mapped as huge pages, of all its
/// mappings of it.
fn mapped_huge(path: &Path) -> u64 {
    let mut ours = false;
    let mut bytes = 0;
    for line in fs::read_to_string("/proc/self/smaps").expect("smaps").lines() {
        if let Some(kilobytes) = line.strip_prefix("ShmemPmdMapped:") {
            let kilobytes: u64 = kilobytes.trim().trim_end_matches(" kB").parse().expect("a size");
            bytes += if ours { kilobytes << 10 } else { 0 };
        } else if line.split(' ').next().is_some_and(|word| word.contains('-')) {
            ours = line.ends_with(path.to_str().expect("text"));
        }
    }
    bytes
}

/// Makes a file of `bytes` bytes at `path`, which are reserved.
fn reserved(path: &Path, bytes: u64) -> File {
    let file = File::options().read(true).write(true).create_new(true).open(path).expect("a file");
    // SAFETY: it changes a file that no other code knows.
    let answer = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) };
    assert_eq!(answer, 0, "no room");
    file
}

/// Merges the first pages of a mapping. Returns whether the kernel did.
fn collapse(mapping: &MmapRaw) -> bool {
    // SAFETY: the mapping is of a file that no other code knows, and has no references into it.
    unsafe {
        libc::madvise(mapping.as_mut_ptr().cast(), HUGE_PAGE as usize, libc::MADV_COLLAPSE) == 0
    }
}

/// Returns whether the kernel merges pages of a new file in `dir`.
fn has_huge_pages(dir: &Path) -> bool {
    let file = reserved(&dir.join("probe"), HUGE_PAGE);
    fs::remove_file(dir.join("probe")).expect("it is there");
    let Some(mapping) = mapped(&file, HUGE_PAGE as usize) else { return false };
    for at in (0..HUGE_PAGE as usize).step_by(4096) {
        // SAFETY: it lies within the mapping, which no other code has.
        unsafe { mapping.as_mut_ptr().add(at).write_volatile(1) };
    }
    collapse(&mapping)
}

/// Maps the first `bytes` bytes of `file` at a multiple of a huge page. `None` if other threads get
/// in the way each time.
fn mapped(file: &File, bytes: usize) -> Option<MmapRaw> {
    let beyond = |raw: &MmapRaw| raw.as_ptr() as usize % HUGE_PAGE as usize;
    let map = |bytes| MmapOptions::new().len(bytes).map_raw(file).expect("mapped");
    (0..100).find_map(|_| {
        let more = beyond(&map(bytes));
        Some(map(bytes + more)).filter(|raw| beyond(raw) == 0)
    })
}

#[test]
fn a_pool_is_created_with_huge_pages_for_all_that_open_it() {
    let name = "a_pool_is_created_with_huge_pages_for_all_that_open_it";
    let Some(dir) = on_tmpfs() else { return skipped(name, "no /dev/shm") };
    if !has_huge_pages(dir.path()) {
        return skipped(name, "this kernel puts no pages together here");
    }
    for (pages, expected) in [(Pages::Touched, 0), (Pages::Huge, CAPACITY)] {
        let path = dir.path().join(format!("{pages:?}"));
        drop(Pool::create(&path, &options(pages)).expect("a pool"));
        let pool = Pool::open(&path, OpenOptions::default()).expect("it is there");
        let node = path.join("node-0");
        store(&pool.fabric());
        assert_eq!(mapped_huge(&node), expected, "{pages:?}");
        let metadata = fs::metadata(&node).expect("a file");
        assert_eq!(metadata.len(), CAPACITY);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&metadata);
        assert_eq!(blocks * 512, CAPACITY, "all of it is reserved, and no more");
    }
    // The rest after the last whole huge page is reserved as well, and all of it is zero.
    let odd = CreateOptions { capacity: CAPACITY + 8192, ..options(Pages::Huge) };
    let path = dir.path().join("odd");
    drop(Pool::create(&path, &odd).expect("a pool"));
    let node = fs::read(path.join("node-0")).expect("a file");
    assert!(node.len() as u64 == odd.capacity && node[4096..].iter().all(|&byte| byte == 0));
}

#[test]
fn small_pages_become_huge_while_others_use_them_and_keep_what_they_hold() {
    let name = "small_pages_become_huge_while_others_use_them_and_keep_what_they_hold";
    let Some(dir) = on_tmpfs() else { return skipped(name, "no /dev/shm") };
    if !has_huge_pages(dir.path()) {
        return skipped(name, "this kernel puts no pages together here");
    }
    let path = dir.path().join("pool");
    let before = Pool::create(&path, &options(Pages::Touched)).expect("a pool");
    store(&before.fabric());
    let pool = Pool::open(&path, HUGE).expect("it is there");
    assert!(mapped_huge(&path.join("node-0")) >= CAPACITY);
    assert!(is_stored(&pool.fabric()) && is_stored(&before.fabric()));
    pool.populate();
    store(&pool.fabric());
    assert!(is_stored(&before.fabric()));
}

/// Not a test itself: what the tests below do on mounts of their own.
#[test]
fn child() {
    let Some((role, dir)) = role() else { return };
    match role.as_str() {
        "huge mount" => on_a_mount_with_huge_pages(&dir),
        "full mount" => on_a_full_mount(&dir),
        role => panic!("{role}"),
    }
    report("done");
}

/// Runs this program's `child` in `role` on a private tmpfs, if that is permitted.
fn on_a_mount(test: &str, role: &str, options: &str) {
    let dir = common::directory();
    let mount = "mount -t tmpfs -o \"$0\" x \"$1\" && shift && exec \"$@\"";
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, options]).arg(dir.path());
        command
    };
    let allowed = unshare("mount -t tmpfs -o \"$0\" x \"$1\"").output();
    if !allowed.as_ref().is_ok_and(|output| output.status.success()) {
        return not_permitted(test, &format!("no mount of its own: {allowed:?}"));
    }
    let child = child_command(role, dir.path());
    let mut command = unshare(mount);
    command.arg(child.get_program()).args(child.get_args());
    command.envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = Running::of(&mut command);
    assert_eq!(child.receive(), "done");
    assert!(child.process.wait().expect("it ends").success());
}

/// A mount with `huge=always` reserves huge pages that no process has touched. Merging those let
/// the next process that mapped them wipe what was stored: loading keys ended in damage.
#[test]
fn a_mount_with_huge_pages_of_its_own_keeps_what_is_stored() {
    let name = "a_mount_with_huge_pages_of_its_own_keeps_what_is_stored";
    on_a_mount(name, "huge mount", "size=64m,huge=always");
}

fn on_a_mount_with_huge_pages(dir: &Path) {
    for pages in [Pages::Touched, Pages::Huge] {
        let path = dir.join(format!("{pages:?}"));
        let pool = Pool::create(&path, &options(pages)).expect("a pool");
        pool.populate();
        store(&pool.fabric());
        // It touches page after page.
        let other = Pool::open(&path, OpenOptions::default()).expect("it is there");
        assert!(is_stored(&other.fabric()), "another mapping shows what was stored");
        assert!(is_stored(&pool.fabric()), "and takes nothing away");
        drop((pool, other));
        Pool::destroy(&path, false).expect("destroyed");
    }
}

/// A node's file with a hole, as some copies have, on a mount without room for it.
#[test]
fn a_full_mount_neither_fails_an_opening_nor_ends_the_process() {
    let name = "a_full_mount_neither_fails_an_opening_nor_ends_the_process";
    on_a_mount(name, "full mount", "size=14m");
}

fn on_a_full_mount(dir: &Path) {
    let path = dir.join("pool");
    let pool = Pool::create(&path, &options(Pages::Touched)).expect("a pool");
    store(&pool.fabric());
    drop(pool);
    let node = path.join("node-0");
    let file = File::options().write(true).open(&node).expect("the node's file");
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (start, length) = (3 * HUGE_PAGE as libc::off_t, HUGE_PAGE as libc::off_t);
    // SAFETY: it changes a file that no process has mapped.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), hole, start, length) }, 0);
    let room = || free(dir);
    let filler = reserved(&dir.join("filler"), room());
    assert_eq!(room(), 0, "the mount is full");
    let pool = Pool::open(&path, HUGE).expect("it opens all the same");
    let read =
        |at: u64| post(&pool.fabric(), NODE, &[Verb::Read { at: Address(at / 8), words: 1 }]);
    for at in (FIRST..3 * HUGE_PAGE).step_by(HUGE_PAGE as usize) {
        assert_eq!(read(at), Ok(vec![at]));
    }
    // A new pool finds no room, and leaves nothing behind.
    let none = dir.join("none");
    Pool::create(&none, &options(Pages::Huge)).expect_err("no room");
    assert!(!none.exists());
    drop(filler);
    fs::remove_file(dir.join("filler")).expect("it is there");
    assert!(room() >= HUGE_PAGE, "the hole was not filled beyond what there was");
}

/// Returns the bytes that the file system of `dir` has left.
fn free(dir: &Path) -> u64 {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(dir).output().expect("df");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().last().and_then(|line| line.trim().parse().ok()).expect("a number")
}

/// The kernel's fault alone, without a pool: it fails once the kernel no longer has it. Not for a
/// machine that others use:
///
/// ```text
/// cargo test -p swarm-shm --test pages --no-run
/// GUEST_MEMORY=1536M ci/rdma/guest.sh sh -c 'mkdir -p /tmp/m && mount -t tmpfs -o size=200m,huge=always x /tmp/m &&
///     SWARM_HUGE_MOUNT=/tmp/m target/debug/deps/pages-* --ignored --exact the_kernel_wipes_huge_pages_that_were_put_together_untouched'
/// ```
#[test]
#[ignore = "shows a fault of the kernel, in an emulated machine"]
fn the_kernel_wipes_huge_pages_that_were_put_together_untouched() {
    let dir =
        PathBuf::from(std::env::var_os("SWARM_HUGE_MOUNT").expect("a mount with huge=always"));
    let file = reserved(&dir.join("file"), HUGE_PAGE);
    let one = mapped(&file, HUGE_PAGE as usize).expect("it is this program's only thread");
    assert!(collapse(&one), "the kernel has no huge pages to spare");
    // SAFETY: the word lies within both mappings, which only this thread knows.
    let [stored, seen, left] = unsafe {
        let word = one.as_mut_ptr().cast::<u64>();
        word.write_volatile(7);
        let stored = word.read_volatile();
        let other = MmapRaw::map_raw(&file).expect("mapped");
        let seen = other.as_mut_ptr().cast::<u64>().read_volatile();
        [stored, seen, word.read_volatile()]
    };
    assert_eq!([stored, seen, left], [7, 0, 0], "what is stored, seen by the next, and left");
}
