//! Making a control file anew: what a pool that lost it goes on with, who is in the way, and what
//! an interrupted repair leaves.

#![cfg(not(loom))]

mod common;

use std::fs::{self, OpenOptions as File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use common::{Running, directory, names, pool, post, report, role, small};
use rustix::process::{Pid, Signal, kill_process};
use swarm_core::fabric::{EpochDomain, Lost, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_shm::{CreateOptions, Error, OpenOptions, Pool, Repaired};

const COMPLETE: [&str; 4] = ["control", "node-0", "node-1", "node-2"];
/// Where a node's header has the end of the incarnations, and its event count; the others' counts
/// follow.
const INCARNATIONS: u64 = 19 * 8;
const COUNT: u64 = 24 * 8;
/// At most so many incarnations are skipped.
const BLOCK: u64 = 256;

fn strict() -> OpenOptions {
    OpenOptions::default()
}

fn degraded() -> OpenOptions {
    OpenOptions { degraded: true, ..strict() }
}

/// A client attaches and leaves. Returns its incarnation.
fn used(dir: &Path, options: OpenOptions) -> u64 {
    let pool = Pool::open(dir, options).expect("a pool");
    pool.attach().expect("a slot").session().incarnation.0
}

/// Makes a pool that a few clients have used, and that nobody has open. Returns the last
/// incarnation given out.
fn worn() -> (tempfile::TempDir, PathBuf, u64) {
    let (dir, pool) = pool();
    let path = pool.path().to_path_buf();
    drop(pool);
    let last = [(); 3].map(|()| used(&path, strict()))[2];
    (dir, path, last)
}

fn overwrite(file: &Path, at: u64, bytes: &[u8]) {
    let opened = File::new().write(true).open(file).expect("a file");
    opened.write_all_at(bytes, at).expect("room in the file");
}

fn read<const N: usize>(file: &Path, at: u64) -> [u8; N] {
    let mut bytes = [0; N];
    let opened = File::new().read(true).open(file).expect("a file");
    opened.read_exact_at(&mut bytes, at).expect("it is longer");
    bytes
}

fn flip(file: &Path, at: u64) {
    let [byte] = read(file, at);
    overwrite(file, at, &[!byte]);
}

fn set_length(file: &Path, bytes: u64) {
    File::new().write(true).open(file).expect("a file").set_len(bytes).expect("another length");
}

fn image(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let content = |name: &String| fs::read(dir.join(name)).unwrap_or_default();
    names(dir).into_iter().map(|name| (name.clone(), content(&name))).collect()
}

/// Repairs the pool, which must make its control file anew.
fn repaired(dir: &Path) -> Repaired {
    let repaired = Pool::repair(dir, false).expect("a majority of the nodes is there");
    assert!(repaired.made_anew);
    assert!(names(dir).iter().all(|name| name != "control.repair"));
    repaired
}

/// The repair is refused, and changes nothing.
fn refused(dir: &Path, force: bool) -> Error {
    let before = image(dir);
    let error = Pool::repair(dir, force).expect_err("it cannot be repaired");
    assert!(image(dir) == before, "the pool was changed: {error}");
    error
}

/// The pool opens whole, and gives out incarnations above `last`.
fn is_whole(dir: &Path, last: u64) {
    let pool = Pool::open(dir, strict()).expect("a whole pool");
    let next = pool.attach().expect("a slot").session().incarnation.0;
    assert!(next > last && next <= last + BLOCK + 1, "{next} after {last}");
    drop(pool);
    assert_eq!(names(dir), COMPLETE);
}

/// A way to damage a control file, given its length.
type Damage = Box<dyn Fn(&Path)>;

fn damages(length: u64) -> Vec<(String, Damage)> {
    let mut all: Vec<(String, Damage)> = vec![
        ("removed".into(), Box::new(|file| fs::remove_file(file).expect("a file"))),
        ("text".into(), Box::new(|file| fs::write(file, "text").expect("written"))),
        (
            "zeros".into(),
            Box::new(move |file| fs::write(file, vec![0; length as usize]).expect("written")),
        ),
    ];
    for bytes in [0, 5, 160, 77_824, length - 1, length + 4096] {
        all.push((format!("{bytes} bytes"), Box::new(move |file| set_length(file, bytes))));
    }
    for at in (0..128).step_by(5) {
        all.push((format!("byte {at}"), Box::new(move |file| flip(file, at))));
    }
    all
}

#[test]
fn a_control_file_that_is_lost_or_damaged_is_made_anew() {
    let (_dir, path, mut last) = worn();
    let control = path.join("control");
    let id = Pool::open(&path, strict()).expect("a pool").pool_id();
    let length = fs::metadata(&control).expect("a file").len();
    let content = Pool::open(&path, strict()).expect("a pool");
    let at = Address(512);
    for node in (0..3).map(NodeId) {
        post(&content.fabric(), node, &[Verb::Write { at, head: &[77, 78], tail: &[] }])
            .expect("it is up");
    }
    drop(content);
    for name in COMPLETE {
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(path.join(name), mode).expect("permissions");
    }
    for (damage, inflict) in damages(length) {
        inflict(&control);
        let outcome = Pool::open(&path, degraded()).expect_err("no control file").to_string();
        // A version that is not known may be a newer program's.
        assert!(
            outcome.contains("swarm repair") || outcome.contains("layout version"),
            "{damage}: {outcome}"
        );
        let Repaired { pool, fault, .. } = repaired(&path);
        assert_eq!(fault.expect("a fault").to_string(), outcome, "{damage}");
        assert_eq!((pool.pool_id(), pool.absent_nodes().len()), (id, 0), "{damage}");
        for node in (0..3).map(NodeId) {
            let found = post(&pool.fabric(), node, &[Verb::Read { at, words: 2 }]);
            assert_eq!(found.expect("it is up"), [77, 78], "{damage}");
        }
        drop(pool);
        is_whole(&path, last);
        last = used(&path, strict());
        let made = fs::metadata(&control).expect("a file");
        assert_eq!((made.len(), made.mode() & 0o777), (length, 0o640), "{damage}");
    }
}

/// One of before the last clients gives out incarnations again; its event counts show it.
#[test]
fn an_older_control_file_is_replaced() {
    let (dir, path, _) = worn();
    fs::copy(path.join("control"), dir.path().join("older")).expect("copied");
    let last = [(); 3].map(|()| used(&path, strict()))[2];
    fs::copy(dir.path().join("older"), path.join("control")).expect("put back");
    let fault = repaired(&path).fault.expect("it is older");
    assert!(matches!(fault, Error::OlderControl { .. }), "{fault}");
    assert!(fault.to_string().contains("swarm repair"), "{fault}");
    is_whole(&path, last);
}

#[test]
fn a_control_file_that_is_whole_is_replaced_by_force_alone() {
    let (_dir, path, last) = worn();
    let before = image(&path);
    let inode = || fs::metadata(path.join("control")).expect("a file").ino();
    let first = inode();
    let left = Pool::repair(&path, false).expect("nothing to do");
    assert!(!left.made_anew && left.fault.is_none());
    assert_eq!(inode(), first);
    drop(left);
    assert!(image(&path) == before, "the pool was changed");
    let made = Pool::repair(&path, true).expect("a majority of the nodes is there");
    assert!(made.made_anew && made.fault.is_none());
    assert_ne!(inode(), first);
    drop(made);
    is_whole(&path, last);
}

/// Incarnations are recorded in blocks. None is given out twice, wherever in one the file is lost.
#[test]
fn no_incarnation_is_given_out_twice() {
    let (_dir, pool) = pool();
    let path = pool.path().to_path_buf();
    drop(pool);
    let mut last = 0;
    for clients in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1] {
        for _ in 0..clients {
            let next = used(&path, strict());
            assert!(next > last, "{next} after {last}");
            last = next;
        }
        fs::remove_file(path.join("control")).expect("a file");
        drop(repaired(&path));
        is_whole(&path, last);
        last = used(&path, strict());
    }
}

/// A node whose header is damaged is left out by name, and current again once that is undone.
#[test]
fn each_nodes_header_is_damaged_in_turn() {
    for node in 0..3 {
        let (_dir, path, mut last) = worn();
        let file = path.join(format!("node-{node}"));
        for at in [0, 16, 40, 48, 56, 64, 96, 120] {
            fs::remove_file(path.join("control")).expect("a file");
            flip(&file, at);
            let Repaired { pool, .. } = repaired(&path);
            let [absent] = pool.absent_nodes() else { panic!("{:?}", pool.absent_nodes()) };
            assert_eq!(absent.node, NodeId(node));
            let outcome = absent.why.to_string();
            assert!(outcome.starts_with(file.to_str().expect("text")), "{outcome}");
            drop(pool);
            last = last.max(used(&path, degraded()));
            flip(&file, at);
            is_whole(&path, last);
            last = used(&path, strict());
        }
        // With a second one there is no majority.
        fs::remove_file(path.join("control")).expect("a file");
        flip(&file, 16);
        flip(&path.join(format!("node-{}", (node + 1) % 3)), 64);
        let error = refused(&path, false);
        let outcome = error.to_string();
        assert!(matches!(&error, Error::MajorityGone { whys, .. } if whys.len() == 2), "{error}");
        assert!(outcome.contains(&format!("node-{node}: ")), "{outcome}");
    }
}

/// The end of the incarnations is known by a majority.
#[test]
fn a_damaged_end_of_incarnations_is_ignored() {
    let (_dir, path, last) = worn();
    for byte in 0..8 {
        fs::remove_file(path.join("control")).expect("a file");
        flip(&path.join("node-1"), INCARNATIONS + byte);
        let pool = repaired(&path).pool;
        assert_eq!(pool.absent_nodes().len(), 0);
        drop(pool);
        assert_eq!(
            read::<8>(&path.join("node-1"), INCARNATIONS),
            read(&path.join("node-0"), INCARNATIONS)
        );
    }
    assert!(used(&path, strict()) <= last + 9 * BLOCK);
    fs::remove_file(path.join("control")).expect("a file");
    for node in ["node-0", "node-2"] {
        overwrite(&path.join(node), INCARNATIONS, &[0; 8]);
    }
    let error = refused(&path, false);
    assert!(matches!(&error, Error::MajorityGone { whys, .. } if whys.len() == 2), "{error}");
}

#[test]
fn an_older_copy_of_a_node_is_left_out_by_name() {
    let (dir, path, _) = worn();
    let (node, kept) = (path.join("node-1"), dir.path().join("current"));
    let older = dir.path().join("older");
    fs::copy(&node, &older).expect("copied");
    let last = used(&path, strict());
    fs::rename(&node, &kept).expect("kept");
    fs::copy(&older, &node).expect("put back");
    fs::remove_file(path.join("control")).expect("a file");
    let pool = repaired(&path).pool;
    let [absent] = pool.absent_nodes() else { panic!("{:?}", pool.absent_nodes()) };
    assert!(matches!(absent.why, Error::Older { node: NodeId(1), .. }), "{}", absent.why);
    drop(pool);
    let last = last.max(used(&path, degraded()));
    // The current file was merely away.
    fs::rename(&kept, &node).expect("brought back");
    is_whole(&path, last);

    // Nor do two older copies make a majority.
    fs::copy(path.join("node-0"), dir.path().join("zero")).expect("copied");
    fs::copy(path.join("node-1"), dir.path().join("one")).expect("copied");
    used(&path, strict());
    fs::copy(dir.path().join("zero"), path.join("node-0")).expect("put back");
    fs::copy(dir.path().join("one"), path.join("node-1")).expect("put back");
    fs::remove_file(path.join("control")).expect("a file");
    let error = refused(&path, false);
    assert!(matches!(&error, Error::MajorityGone { whys, .. } if whys.len() == 2), "{error}");
    assert!(error.to_string().contains("is an older copy of the file of node 0"), "{error}");
}

/// A whole control file that says that most files are older copies is right, unless it is to be
/// ignored.
#[test]
fn a_whole_control_file_decides_about_older_copies() {
    let (dir, path, _) = worn();
    for name in &COMPLETE[1..] {
        fs::copy(path.join(name), dir.path().join(name)).expect("copied");
    }
    used(&path, strict());
    for name in &COMPLETE[1..] {
        fs::copy(dir.path().join(name), path.join(name)).expect("put back");
    }
    let error = refused(&path, false);
    assert!(matches!(&error, Error::MajorityGone { whys, .. } if whys.len() == 3), "{error}");
    let made = Pool::repair(&path, true).expect("the pool of that time");
    assert!(made.pool.absent_nodes().is_empty());
}

#[test]
fn files_of_another_pool_are_left_out_and_its_control_file_is_left_alone() {
    let (_dir, path, last) = worn();
    let (_other, other, _) = worn();
    fs::rename(path.join("node-2"), path.with_extension("away")).expect("away");
    fs::copy(other.join("node-2"), path.join("node-2")).expect("copied");
    fs::remove_file(path.join("control")).expect("a file");
    let pool = repaired(&path).pool;
    let [absent] = pool.absent_nodes() else { panic!("{:?}", pool.absent_nodes()) };
    assert!(matches!(absent.why, Error::OtherPool { .. }), "{}", absent.why);
    drop(pool);
    fs::rename(path.with_extension("away"), path.join("node-2")).expect("back");
    is_whole(&path, last);
    let last = used(&path, strict());
    fs::copy(other.join("control"), path.join("control")).expect("copied");
    for force in [false, true] {
        let error = refused(&path, force);
        assert!(matches!(error, Error::OtherControl { .. }), "{error}");
    }
    fs::remove_file(path.join("control")).expect("moved away");
    drop(repaired(&path));
    is_whole(&path, last);
}

#[test]
fn what_is_no_pool_is_not_repaired() {
    let dir = directory();
    for place in [dir.path().to_path_buf(), dir.path().join("nothing")] {
        let error = Pool::repair(&place, true).expect_err("no pool");
        assert!(matches!(error, Error::NoPool { .. }), "{error}");
    }
    let (_dir, path, _) = worn();
    overwrite(&path.join("control"), 640, b"SWARMend");
    let error = refused(&path, true);
    assert!(matches!(error, Error::HalfDestroyed { .. }), "{error}");
}

/// A pool of one node, and pools of which a minority is missing.
#[test]
fn a_majority_of_the_nodes_is_enough() {
    for (nodes, missing) in [(1, 0), (5, 2), (7, 3)] {
        let dir = directory();
        let path = dir.path().join("pool");
        drop(Pool::create(&path, &CreateOptions { nodes, ..small() }).expect("a pool"));
        let last = used(&path, strict());
        fs::remove_file(path.join("control")).expect("a file");
        for node in 0..missing {
            fs::remove_file(path.join(format!("node-{node}"))).expect("a node");
        }
        let pool = repaired(&path).pool;
        assert_eq!(pool.absent_nodes().len(), missing);
        drop(pool);
        assert!(used(&path, degraded()) > last);
        fs::remove_file(path.join("control")).expect("a file");
        fs::remove_file(path.join(format!("node-{missing}"))).expect("a node");
        if nodes == 1 {
            let error = Pool::repair(&path, false).expect_err("nothing is there");
            assert!(matches!(error, Error::NoPool { .. }), "{error}");
        } else {
            let error = refused(&path, false);
            let outcome =
                matches!(&error, Error::MajorityGone { whys, .. } if whys.len() == missing + 1);
            assert!(outcome, "{error}");
        }
    }
}

fn is_open_in(error: &Error, process: u32) {
    let outcome = matches!(error, Error::Open { processes, .. } if processes.contains(&process));
    assert!(outcome && error.to_string().contains(&process.to_string()), "{error}");
}

/// A client that is stopped would go on writing to the files later, by a control file of its own.
#[test]
fn clients_of_a_lost_control_file_are_named_and_waited_for() {
    let lost: [fn(&Path); 4] = [
        |control| fs::remove_file(control).expect("a file"),
        |control| fs::rename(control, control.with_extension("moved")).expect("a file"),
        |control| set_length(control, 0),
        |control| flip(control, 64),
    ];
    for lose in lost {
        let (_dir, path, last) = worn();
        let mut client = Running::start("attach", &path);
        client.receive();
        let process = client.process.id();
        lose(&path.join("control"));
        let refused = |force| Pool::repair(&path, force).expect_err("a client is there");
        is_open_in(&refused(false), process);
        stop(&client);
        is_open_in(&refused(false), process);
        is_open_in(&refused(true), process);
        client.process.kill().expect("killed");
        client.process.wait().expect("it ends");
        drop(repaired(&path));
        drop(fs::remove_file(path.join("control.moved")));
        is_whole(&path, last);
    }
}

fn stop(client: &Running) {
    kill_process(Pid::from_child(&client.process), Signal::STOP).expect("it is this test's child");
}

/// Even if the nodes' files are in another directory by now, under other names.
#[test]
fn clients_are_known_by_the_files_that_they_have_mapped() {
    let (dir, path, last) = worn();
    let mut client = Running::start("attach", &path);
    client.receive();
    stop(&client);
    let other = dir.path().join("other");
    fs::create_dir(&other).expect("a directory");
    // The client has two of three mapped, and the third is a copy.
    for name in ["node-0", "node-1"] {
        fs::rename(path.join(name), other.join(name)).expect("moved");
    }
    fs::copy(path.join("node-2"), other.join("node-2")).expect("copied");
    is_open_in(&refused(&other, false), client.process.id());
    client.process.kill().expect("killed");
    client.process.wait().expect("it ends");
    drop(repaired(&other));
    is_whole(&other, last);
}

/// A forked child, or a pool that is merely open, may attach a client later.
#[test]
fn processes_that_have_the_pool_open_are_waited_for() {
    let (_dir, path, last) = worn();
    let pool = Pool::open(&path, strict()).expect("a pool");
    fs::remove_file(path.join("control")).expect("a file");
    is_open_in(&refused(&path, false), std::process::id());
    let error = pool.attach().expect_err("the control file is gone");
    assert!(matches!(error, Error::Gone { .. }), "{error}");
    drop(pool);
    drop(repaired(&path));
    is_whole(&path, last);
}

/// A reader holds up nobody, and learns of the repair, whatever became of its control file.
#[test]
fn a_reader_learns_of_a_repair() {
    let (_dir, path, last) = worn();
    let reader = Pool::open(&path, OpenOptions { read_only: true, ..strict() }).expect("a pool");
    // A removed file would show by itself.
    fs::rename(path.join("control"), path.with_extension("moved")).expect("moved");
    assert_eq!(reader.lost(), None);
    drop(repaired(&path));
    assert_eq!(reader.lost(), Some(Lost::Removed));
    is_whole(&path, last);
}

/// The words that a repair changes in the nodes' headers, in its order, as it leaves them.
fn steps(before: &Path) -> Vec<(String, u64, [u8; 8])> {
    let after = directory();
    let after = after.path().join("pool");
    fs::create_dir(&after).expect("a directory");
    for name in &COMPLETE[1..] {
        fs::copy(before.join(name), after.join(name)).expect("copied");
    }
    drop(repaired(&after));
    let word = |name: &str, at| (name.to_owned(), at, read(&after.join(name), at));
    let nodes = || COMPLETE[1..].iter();
    let counts = nodes().map(|name| word(name, COUNT));
    let others = nodes().flat_map(|name| (0..3).map(move |at| word(name, COUNT + 8 + at * 8)));
    counts.chain(others).collect()
}

/// A repair is killed after each of its steps. These are the files that it leaves.
#[test]
fn a_repair_that_was_killed_after_any_step_is_taken_up_again() {
    let (dir, path, last) = worn();
    let older = dir.path().join("node-1");
    fs::copy(path.join("node-1"), &older).expect("copied");
    let last = last.max(used(&path, strict()));
    let control = fs::read(path.join("control")).expect("a file");
    fs::remove_file(path.join("control")).expect("a file");
    let begun = image(&path);
    let steps = steps(&path);
    // Before the headers are changed there are two steps: the new file is there, or half of it.
    for step in 0..steps.len() + 3 {
        for (name, content) in &begun {
            fs::write(path.join(name), content).expect("as it was");
        }
        drop(fs::remove_file(path.join("control")));
        let half = if step == 1 { control.len() / 2 } else { control.len() };
        if step > 0 {
            fs::write(path.join("control.repair"), &control[..half]).expect("written");
        }
        for (name, at, word) in &steps[..step.saturating_sub(2)] {
            overwrite(&path.join(name), *at, word);
        }
        let pool = repaired(&path).pool;
        assert!(pool.absent_nodes().is_empty(), "{step}: {:?}", pool.absent_nodes());
        drop(pool);
        is_whole(&path, last);
        // Older copies are known as such as before.
        fs::remove_file(path.join("control")).expect("a file");
        fs::copy(&older, path.join("node-1")).expect("put back");
        let pool = repaired(&path).pool;
        let [absent] = pool.absent_nodes() else { panic!("{step}: {:?}", pool.absent_nodes()) };
        assert!(matches!(absent.why, Error::Older { node: NodeId(1), .. }), "{}", absent.why);
    }
}

/// The same with real processes, at any point.
#[test]
fn repairs_that_are_killed_leave_a_pool_that_opens_or_is_repaired() {
    let (_dir, path, mut last) = worn();
    for round in 0..30 {
        let mut child = Running::start("repair", &path);
        assert_eq!(child.receive(), "ready");
        sleep(Duration::from_micros(round * 1511 % 20_000));
        child.process.kill().expect("SIGKILL");
        child.process.wait().expect("the child");
        if let Err(error) = Pool::open(&path, strict()) {
            assert!(matches!(error, Error::NoControl { .. }), "{error}");
            assert!(repaired(&path).pool.absent_nodes().is_empty());
        }
        let next = used(&path, strict());
        assert!(next > last, "{next} after {last}");
        last = next;
    }
    drop(fs::remove_file(path.join("control.repair")));
    Pool::destroy(&path, false).expect("destroyed");
    assert!(!path.exists());
}

#[test]
fn of_racing_repairs_one_is_done() {
    for _ in 0..10 {
        let (_dir, path, last) = worn();
        fs::remove_file(path.join("control")).expect("a file");
        let results: Vec<_> = std::thread::scope(|scope| {
            let repair = || Pool::repair(&path, false).map(|repaired| repaired.made_anew);
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(repair)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let mut made = 0;
        for result in results {
            match result {
                Ok(made_anew) => made += usize::from(made_anew),
                Err(Error::Open { .. } | Error::BeingRepaired { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(made, 1);
        is_whole(&path, last);
    }
}

#[test]
fn what_an_interrupted_repair_left_goes_with_the_pool() {
    let (_dir, path, _) = worn();
    fs::write(path.join("control.repair"), "half").expect("written");
    fs::remove_file(path.join("control")).expect("a file");
    assert!(Pool::destroy(&path, true).expect("by force").is_none());
    assert!(!path.exists());
}

/// The owner of the files, not the user that repairs them.
#[test]
fn the_owner_of_the_nodes_files_owns_the_new_control_file() {
    let (_dir, path, last) = worn();
    for name in &COMPLETE[1..] {
        if std::os::unix::fs::chown(path.join(name), Some(65534), Some(65534)).is_err() {
            return common::not_permitted(
                "the_owner_of_the_nodes_files_owns_the_new_control_file",
                "this user may not give files away",
            );
        }
    }
    fs::remove_file(path.join("control")).expect("a file");
    drop(repaired(&path));
    let made = fs::metadata(path.join("control")).expect("a file");
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (65534, 65534, 0o600));
    is_whole(&path, last);
}

/// Not a test itself: a client that stays, or a process that loses and repairs its control file
/// again and again.
#[test]
fn child() {
    let Some((role, path)) = role() else { return };
    if role == "attach" {
        let pool = Pool::open(&path, strict()).expect("a pool");
        let client = pool.attach().expect("a slot");
        let domain = client.domain();
        report("attached");
        loop {
            domain.look();
            sleep(Duration::from_millis(10));
        }
    }
    report("ready");
    loop {
        fs::remove_file(path.join("control")).expect("a file");
        drop(Pool::repair(&path, false).expect("a majority of the nodes is there"));
    }
}
