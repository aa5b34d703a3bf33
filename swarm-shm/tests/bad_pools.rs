//! Pools that cannot be opened: each case has its own error, names the file, and changes nothing.

#![cfg(not(loom))]

mod common;

use std::fs::{self, OpenOptions as File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use common::{
    Running, child_command, directory, names, not_permitted, pool, post, report, role, small,
};
use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, Lost, Verb};
use swarm_core::layout::LAYOUT_VERSION;
use swarm_core::node::{Address, MAX_NODES, NodeId};
use swarm_shm::{CreateOptions, Error, Numa, OpenOptions, Pages, Pool};

const STRICT: OpenOptions = OpenOptions {
    degraded: false,
    pages: Pages::Touched,
    numa: Numa::Default,
    leave_sigbus: false,
    read_only: false,
    evict_stopped: None,
};
const DEGRADED: OpenOptions = OpenOptions { degraded: true, ..STRICT };

/// Makes a pool that is not open, in its directory.
fn closed() -> (tempfile::TempDir, std::path::PathBuf) {
    let (dir, pool) = pool();
    let path = pool.path().to_path_buf();
    (dir, path)
}

/// Returns every file's name and content.
fn image(dir: &Path) -> Vec<(String, Vec<u8>)> {
    if !dir.exists() {
        return Vec::new();
    }
    let content = |name: &String| fs::read(dir.join(name)).unwrap_or_default();
    names(dir).into_iter().map(|name| (name.clone(), content(&name))).collect()
}

/// Opens the pool, which must fail, name `file` and change nothing.
fn refused(dir: &Path, options: OpenOptions, file: &str) -> Error {
    let before = image(dir);
    let error = Pool::open(dir, options).expect_err("a pool that cannot be opened");
    assert!(image(dir) == before, "the pool was changed");
    let named = dir.join(file);
    let named = named.to_str().expect("a name").trim_end_matches('/');
    assert!(error.to_string().starts_with(named), "{error}");
    error
}

/// Opens the pool without the node of this file, which must change nothing, and returns what is
/// wrong with the file. An opening that is not degraded fails for the same reason.
fn passed_over(dir: &Path, file: &str) -> Error {
    let strict = refused(dir, STRICT, file);
    let before = image(dir);
    let pool = Pool::open(dir, DEGRADED).expect("a majority is there");
    // Except the clock's line, which may be the first of this boot.
    assert!(image(dir).iter().zip(&before).all(|(now, was)| now == was || now.0 == "control"));
    let [absent] = pool.absent_nodes() else { panic!("{:?}", pool.absent_nodes()) };
    assert_eq!(format!("node-{}", absent.node.0), file);
    assert_eq!(absent.why.to_string(), strict.to_string());
    let read = [Verb::Read { at: Address(512), words: 1 }];
    for node in (0..3).map(NodeId) {
        let answers = post(&pool.fabric(), node, &read).is_ok();
        assert_eq!(answers, node != absent.node);
    }
    assert_eq!(pool.attach().expect("a slot").session().client, 0);
    strict
}

/// The same for a node's file; no pool can be opened without its control file.
fn degraded(dir: &Path, file: &str) -> Error {
    if file == "control" { refused(dir, DEGRADED, file) } else { passed_over(dir, file) }
}

fn overwrite(file: &Path, at: u64, bytes: &[u8]) {
    let opened = File::new().write(true).open(file).expect("a file");
    opened.write_all_at(bytes, at).expect("room in the file");
}

fn flip(file: &Path, at: usize) {
    overwrite(file, at as u64, &[!fs::read(file).expect("a file")[at]]);
}

#[test]
fn nothing_there() {
    let dir = directory();
    let error = refused(&dir.path().join("pool"), STRICT, "");
    assert!(matches!(error, Error::NoPool { .. }), "{error}");
    let error = refused(dir.path(), STRICT, "");
    assert!(matches!(error, Error::NoPool { .. }), "{error}");
    fs::write(dir.path().join("file"), "text").expect("a file");
    let error = refused_file(&dir.path().join("file"));
    assert!(matches!(error, Error::NoPool { .. }), "{error}");
}

#[test]
fn a_missing_control_file() {
    let (_dir, path) = closed();
    fs::remove_file(path.join("control")).expect("a file");
    for options in [STRICT, DEGRADED] {
        let error = refused(&path, options, "control");
        assert!(matches!(error, Error::NoControl { .. }), "{error}");
    }
}

fn refused_file(path: &Path) -> Error {
    Pool::open(path, STRICT).expect_err("a file is no pool")
}

#[test]
fn a_missing_node() {
    let (_dir, path) = closed();
    fs::remove_file(path.join("node-2")).expect("a node");
    let error = passed_over(&path, "node-2");
    assert!(matches!(error, Error::Missing { node: NodeId(2), .. }), "{error}");
}

#[test]
fn a_missing_majority() {
    let (_dir, path) = closed();
    fs::remove_file(path.join("node-0")).expect("a node");
    fs::remove_file(path.join("node-2")).expect("a node");
    for options in [STRICT, DEGRADED] {
        let error = refused(&path, options, "");
        assert!(matches!(&error, Error::MajorityGone { nodes: 3, whys, .. } if whys.len() == 2));
        assert!(error.to_string().contains("majority gone"), "{error}");
    }
    let single = directory();
    let path = single.path().join("pool");
    drop(Pool::create(&path, &CreateOptions { nodes: 1, ..small() }).expect("a pool"));
    fs::remove_file(path.join("node-0")).expect("the node");
    let error = refused(&path, DEGRADED, "");
    assert!(matches!(&error, Error::MajorityGone { nodes: 1, whys, .. } if whys.len() == 1));
}

/// One of each kind: the error lists all of them.
#[test]
fn a_majority_that_cannot_be_used() {
    let (_dir, path) = closed();
    fs::remove_file(path.join("node-0")).expect("a node");
    fs::write(path.join("node-2"), "text").expect("another content");
    for options in [STRICT, DEGRADED] {
        let outcome = refused(&path, options, "").to_string();
        assert!(outcome.contains("majority gone: the files of 2 of 3"), "{outcome}");
        assert!(outcome.contains("node-0: the file of node 0 is missing"), "{outcome}");
        assert!(
            outcome.contains("node-2: is no file of a pool")
                || outcome.contains("node-2: its length")
        );
        assert!(!outcome.contains("node-1"), "{outcome}");
    }
}

/// Bytes of a header.
const HEADER: u64 = 160;

#[test]
fn a_file_of_the_wrong_length() {
    let control = (77_824_u64 + 8 * 8256).next_multiple_of(4096) + 8 * 4096;
    for (name, right) in [("node-1", 4 << 20), ("control", control)] {
        for length in [0, 5, HEADER, right - 1, right + 4096] {
            let (_dir, path) = closed();
            let file = File::new().write(true).open(path.join(name)).expect("a file");
            file.set_len(length).expect("another length");
            for error in [refused(&path, STRICT, name), degraded(&path, name)] {
                // Only a header would show for how many clients the file is.
                let least = if name == "control" && length < HEADER { 77_824 } else { right };
                let fits = matches!(error, Error::Length { found, expected, .. }
                    if found == length && expected == least);
                assert!(fits, "{name} {length}: {error}");
            }
        }
    }
}

#[test]
fn a_file_of_something_else() {
    for name in ["node-0", "control"] {
        let (_dir, path) = closed();
        let length = fs::metadata(path.join(name)).expect("a file").len() as usize;
        for content in [vec![0; length], b"text ".repeat(100)] {
            fs::write(path.join(name), content).expect("another content");
            let error = degraded(&path, name);
            assert!(matches!(error, Error::Foreign { .. }), "{name}: {error}");
        }
        fs::remove_file(path.join(name)).expect("the file");
        fs::create_dir(path.join(name)).expect("a directory in its place");
        let error = degraded(&path, name);
        assert!(matches!(error, Error::Foreign { .. }), "{name}: {error}");
    }
}

#[test]
fn a_device_that_holds_no_memory() {
    let (_dir, path) = closed();
    fs::remove_file(path.join("node-0")).expect("a node");
    symlink("/dev/null", path.join("node-0")).expect("a link");
    let error = passed_over(&path, "node-0");
    assert!(matches!(error, Error::Unsuited { .. }), "{error}");
    assert!(error.to_string().contains("not a DAX device"), "{error}");
}

#[test]
fn a_control_file_and_a_node_in_each_others_place() {
    let (_dir, path) = closed();
    fs::rename(path.join("control"), path.join("kept")).expect("renamed");
    fs::copy(path.join("node-0"), path.join("control")).expect("copied");
    let error = refused(&path, STRICT, "control");
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    fs::rename(path.join("kept"), path.join("control")).expect("renamed");
    fs::copy(path.join("control"), path.join("node-0")).expect("copied");
    let error = passed_over(&path, "node-0");
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
}

#[test]
fn a_newer_layout() {
    for name in ["node-1", "control"] {
        let (_dir, path) = closed();
        let newer = u64::from(LAYOUT_VERSION) + 1;
        overwrite(&path.join(name), 8, &newer.to_le_bytes());
        refused(&path, DEGRADED, name);
        let error = refused(&path, STRICT, name);
        let outcome = matches!(error, Error::Version { found, known, .. }
            if found == newer && known + 1 == newer);
        assert!(outcome, "{name}: {error}");
    }
}

/// A later program may use the unused words of this layout under the same version: a feature bit
/// says so.
#[test]
fn a_feature_that_is_not_known() {
    for name in ["node-1", "control"] {
        let (_dir, path) = closed();
        overwrite(&path.join(name), 16 * 8, &4_u64.to_le_bytes());
        refused(&path, DEGRADED, name);
        let error = refused(&path, STRICT, name);
        assert!(matches!(error, Error::Features { unknown: 4, .. }), "{name}: {error}");
    }
}

#[test]
fn a_damaged_header() {
    for name in ["node-1", "control"] {
        for at in [16, 31, 48, 56, 64, 72, 80, 96, 104, 112, 120] {
            let (_dir, path) = closed();
            flip(&path.join(name), at);
            let error = degraded(&path, name);
            assert!(matches!(error, Error::Damaged { .. }), "{name} {at}: {error}");
        }
    }
}

#[test]
fn a_node_of_another_pool() {
    let ((_one, one), (_two, two)) = (closed(), closed());
    fs::copy(two.join("node-1"), one.join("node-1")).expect("copied");
    let error = passed_over(&one, "node-1");
    assert!(matches!(error, Error::OtherPool { .. }), "{error}");
}

#[test]
fn nodes_in_the_wrong_order() {
    let (_dir, path) = closed();
    fs::copy(path.join("node-2"), path.join("node-1")).expect("copied");
    let error = passed_over(&path, "node-1");
    let fits = matches!(error, Error::WrongNode { found: NodeId(2), expected: NodeId(1), .. });
    assert!(fits, "{error}");
}

/// Damage after the headers is noticed by those who use the damaged words; it must not prevent
/// opening the pool, nor let an operation trust nonsense.
#[test]
fn damage_behind_the_control_files_header() {
    let (_dir, path) = closed();
    let expected = Pool::open(&path, STRICT).expect("a pool").clock();
    for fill in [0x00, 0x01, 0xff, 0x5a] {
        let length = fs::metadata(path.join("control")).expect("a file").len() as usize;
        let counts = File::new().read(true).open(path.join("control")).expect("a file");
        let mut kept = [0; 24];
        counts.read_exact_at(&mut kept, EVENTS).expect("it is longer");
        overwrite(&path.join("control"), HEADER, &vec![fill; length - HEADER as usize]);
        // Event counts are checked, as only they show how old the files are.
        if kept != [fill; 24] {
            let damaged = Pool::open(&path, STRICT).expect_err("other counts than the nodes have");
            let outcome =
                matches!(damaged, Error::MajorityGone { .. } | Error::OlderControl { .. });
            assert!(outcome, "{fill:x}: {damaged}");
        }
        overwrite(&path.join("control"), EVENTS, &kept);
        // So are lives, as only they show which file is a node's.
        if fill != 0 {
            let damaged = Pool::open(&path, STRICT).expect_err("other lives than the nodes have");
            // Another life, or a state in which none votes.
            let is_other =
                |why: &Error| matches!(why, Error::FormerLife { .. } | Error::NotVoting { .. });
            let outcome =
                matches!(&damaged, Error::MajorityGone { whys, .. } if whys.iter().all(is_other));
            assert!(outcome, "{fill:x}: {damaged}");
        }
        overwrite(&path.join("control"), LIVES, &[0; MAX_NODES * 8]);
        let pool = Pool::open(&path, STRICT).expect("its header is whole");
        assert!(pool.clock().now().abs_diff(expected.now()) < 1_000_000_000, "{fill:x}");
        for node in (0..3).map(NodeId) {
            pool.switch(node).get();
        }
        assert_eq!(pool.live_clients(), [0; 0]);
        match pool.attach() {
            Ok(client) => assert!(fill < 2, "{:?}", client.session()),
            Err(error) => assert!(matches!(error, Error::Incarnations { .. }), "{error}"),
        }
    }
}

/// Where the nodes' lives are in the control file.
const LIVES: u64 = 96 * 8;
/// Where the event counts are in the control file, one word for each node.
const EVENTS: u64 = 104 * 8;
/// Where a node's is in its own file.
const COUNT: u64 = 24 * 8;

fn word(file: &Path, at: u64) -> u64 {
    let mut word = [0; 8];
    File::new()
        .read(true)
        .open(file)
        .expect("a file")
        .read_exact_at(&mut word, at)
        .expect("it is longer");
    u64::from_le_bytes(word)
}

/// A client attaches, and leaves.
fn used(dir: &Path, options: OpenOptions) {
    drop(Pool::open(dir, options).expect("a pool").attach().expect("a slot"));
}

/// Copies a file of the pool.
fn copied(dir: &Path, file: &str) -> PathBuf {
    let copy = dir.parent().expect("a directory").join(file);
    fs::copy(dir.join(file), &copy).expect("copied");
    copy
}

/// Replaces the file by a copy, and keeps the file beside the pool.
fn put_back(dir: &Path, copy: &Path) {
    let place = dir.join(copy.file_name().expect("a name"));
    fs::rename(&place, copy.with_extension("current")).expect("kept");
    fs::copy(copy, place).expect("put back");
}

fn is_older(error: &Error, node: u8) {
    let outcome = matches!(error, Error::Older { node: NodeId(found), .. } if *found == node);
    assert!(outcome && error.to_string().contains("is an older copy"), "{error}");
}

/// It was taken for the current file, though it lacks what was acknowledged since.
#[test]
fn an_older_copy_of_a_node_is_refused_by_name() {
    // A copy from before the first client, and one from between two clients.
    for before in 0..2 {
        let (_dir, path) = closed();
        (0..before).for_each(|_| used(&path, STRICT));
        let copy = copied(&path, "node-1");
        used(&path, STRICT);
        put_back(&path, &copy);
        // Other clients go on without it, which does not make it current.
        for _ in 0..2 {
            is_older(&passed_over(&path, "node-1"), 1);
        }
        // As if the current file had only been away.
        fs::rename(copy.with_extension("current"), path.join("node-1")).expect("brought back");
        used(&path, STRICT);
    }
}

/// Opening a pool only to inspect it is no use of it: it changes nothing, and a copy stays current.
#[test]
fn a_mere_reader_makes_no_copy_an_older_one() {
    let (_dir, path) = closed();
    used(&path, STRICT);
    let copy = copied(&path, "node-1");
    let before = image(&path);
    drop(Pool::open(&path, STRICT).expect("a pool").clients());
    assert!(image(&path) == before, "the pool was changed");
    put_back(&path, &copy);
    used(&path, STRICT);
}

#[test]
fn a_copy_of_a_pool_in_use_is_an_older_one_once_its_client_has_left() {
    let (_dir, path) = closed();
    let client = Pool::open(&path, STRICT).expect("a pool").attach().expect("a slot");
    let copy = copied(&path, "node-1");
    drop(client);
    put_back(&path, &copy);
    is_older(&passed_over(&path, "node-1"), 1);
}

/// Also if the client is killed later, or continues: it raises the counts twice a second.
#[test]
fn a_copy_of_a_pool_in_use_is_an_older_one_within_a_second() {
    let (_dir, path) = closed();
    let client = Pool::open(&path, STRICT).expect("a pool").attach().expect("a slot");
    let domain = client.domain();
    let copy = copied(&path, "node-1");
    sleep(Duration::from_millis(600));
    domain.look();
    put_back(&path, &copy);
    is_older(&refused(&path, STRICT, "node-1"), 1);
    // The client still has the current file.
    sleep(Duration::from_millis(600));
    domain.look();
    assert_eq!(domain.lost(), None);
}

/// Copying a file over a node in use puts an older file in place of the one that clients have
/// mapped.
#[test]
fn a_client_under_which_an_older_copy_is_put_ends() {
    let (_dir, path) = closed();
    let pool = Pool::open(&path, STRICT).expect("a pool");
    let copy = fs::read(path.join("node-1")).expect("a node");
    let client = pool.attach().expect("a slot");
    let domain = client.domain();
    overwrite(&path.join("node-1"), 0, &copy);
    sleep(Duration::from_millis(600));
    let before = domain.generation();
    domain.look();
    assert_eq!(domain.lost(), Some(Lost::Removed));
    assert_ne!(domain.generation(), before, "others look as well");
    is_older(&pool.attach().expect_err("the node is another"), 1);
    is_older(&refused(&path, STRICT, "node-1"), 1);
}

#[test]
fn a_node_that_was_away_comes_back() {
    let (_dir, path) = closed();
    used(&path, STRICT);
    let (node, away) = (path.join("node-2"), path.with_extension("away"));
    fs::rename(&node, &away).expect("away");
    (0..3).for_each(|_| used(&path, DEGRADED));
    fs::rename(&away, &node).expect("back");
    used(&path, STRICT);
    // Older copies of it are refused as before.
    let copy = copied(&path, "node-2");
    used(&path, STRICT);
    put_back(&path, &copy);
    is_older(&passed_over(&path, "node-2"), 2);
}

/// A client is killed after each step of attaching. These are the words that it leaves.
#[test]
fn a_client_that_is_killed_while_it_comes_leaves_a_pool_that_opens() {
    for (announced, in_header, settled) in
        [(false, false, false), (true, false, false), (true, true, false), (true, true, true)]
    {
        let (_dir, path) = closed();
        used(&path, STRICT);
        let older = copied(&path, "node-1");
        used(&path, STRICT);
        for node in 0..3 {
            let file = path.join(format!("node-{node}"));
            let count = word(&file, COUNT);
            let in_control = EVENTS + node * 8;
            assert_eq!(word(&path.join("control"), in_control), count << 1, "settled");
            let next = count + u64::from(announced);
            let pending = u64::from(announced && !settled);
            overwrite(&path.join("control"), in_control, &(next << 1 | pending).to_le_bytes());
            overwrite(&file, COUNT, &(count + u64::from(in_header)).to_le_bytes());
        }
        let copy = copied(&path, "node-0");
        used(&path, STRICT);
        for older in [older, copy] {
            let name = older.file_name().expect("a name").to_str().expect("text").to_owned();
            put_back(&path, &older);
            let error = passed_over(&path, &name);
            assert!(matches!(error, Error::Older { .. }), "{error}");
            fs::rename(older.with_extension("current"), path.join(&name)).expect("brought back");
        }
        used(&path, STRICT);
    }
}

/// The same with real clients, at any point.
#[test]
fn clients_that_are_killed_while_they_come_and_go_leave_a_pool_that_opens() {
    let (_dir, path) = closed();
    for round in 0..8 {
        let mut clients = [(); 2].map(|()| Running::start("come and go", &path));
        for client in &mut clients {
            client.receive();
        }
        sleep(Duration::from_micros(700 * round));
        for client in &mut clients {
            client.process.kill().expect("killed");
            client.process.wait().expect("it ends");
        }
        used(&path, STRICT);
    }
}

#[test]
fn an_older_control_file_is_reported() {
    let (_dir, path) = closed();
    used(&path, STRICT);
    let all: Vec<_> = names(&path).iter().map(|name| copied(&path, name)).collect();
    used(&path, STRICT);
    let control = &all[0];
    assert!(control.ends_with("control"));
    put_back(&path, control);
    for options in [STRICT, DEGRADED] {
        let error = refused(&path, options, "control");
        assert!(
            matches!(&error, Error::OlderControl { nodes: 3, whys, .. } if whys.len() == 3),
            "{error}"
        );
    }
    // With one node of its age as well, it is with the minority: no client opens the pool.
    put_back(&path, &all[1]);
    let error = refused(&path, DEGRADED, "control");
    assert!(
        matches!(&error, Error::OlderControl { nodes: 3, whys, .. } if whys.len() == 2),
        "{error}"
    );
    // With a majority of its age, the newer node is left out; with all, it is the pool of that
    // time.
    put_back(&path, &all[2]);
    let error = passed_over(&path, "node-2");
    assert!(matches!(error, Error::Newer { node: NodeId(2), .. }), "{error}");
    let (_dir, path) = closed();
    used(&path, STRICT);
    let all: Vec<_> = names(&path).iter().map(|name| copied(&path, name)).collect();
    used(&path, STRICT);
    all.iter().for_each(|copy| put_back(&path, copy));
    used(&path, STRICT);
}

/// Not a test itself: opens a pool without permission, or is a client again and again.
#[test]
fn child() {
    let Some((role, pool)) = role() else { return };
    if role == "come and go" {
        let pool = Pool::open(&pool, STRICT).expect("a pool");
        drop(pool.attach());
        report("at work");
        loop {
            drop(pool.attach());
        }
    }
    for options in [STRICT, DEGRADED] {
        let error = Pool::open(&pool, options).expect_err("no permission");
        println!("says: {error}");
        assert!(matches!(error, Error::Permission { .. }), "{error}");
    }
}

#[test]
fn no_permission() {
    let (_dir, path) = closed();
    for name in ["control", "node-1"] {
        let file = path.join(name);
        for name in names(&path) {
            let mode = fs::Permissions::from_mode(0o666);
            fs::set_permissions(path.join(name), mode).expect("permissions");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).expect("permissions");
        if File::new().write(true).open(&file).is_err() {
            let error = refused(&path, DEGRADED, name);
            assert!(matches!(error, Error::Permission { .. }), "{error}");
            continue;
        }
        // Root may do anything; another user has to try.
        let child = child_command("open", &path).uid(65534).gid(65534).output();
        let Ok(output) = child else {
            not_permitted("no_permission", "the test program cannot be run as another user here");
            return;
        };
        let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output_text}");
        assert!(
            output_text.contains(&format!("says: {}: no permission", file.display())),
            "{output_text}"
        );
    }
}
