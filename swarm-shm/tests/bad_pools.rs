//! Pools that cannot be opened: each case is told apart, names the file, and is left as it was.

#![cfg(not(loom))]

#[expect(dead_code, reason = "this uses a part of what the tests share")]
mod common;

use std::fs::{self, OpenOptions as File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

use common::{child_command, directory, names, not_permitted, pool, post, role, small};
use swarm_core::clock::Clock;
use swarm_core::fabric::Verb;
use swarm_core::layout::LAYOUT_VERSION;
use swarm_core::node::{Address, NodeId};
use swarm_shm::{CreateOptions, Error, Numa, OpenOptions, Pages, Pool};

const STRICT: OpenOptions =
    OpenOptions { degraded: false, pages: Pages::Touched, numa: Numa::Default };
const DEGRADED: OpenOptions = OpenOptions { degraded: true, ..STRICT };

/// A pool that is not open, and its directory.
fn closed() -> (tempfile::TempDir, std::path::PathBuf) {
    let (dir, pool) = pool();
    let path = pool.path().to_path_buf();
    (dir, path)
}

/// Every file's name and content.
fn image(dir: &Path) -> Vec<(String, Vec<u8>)> {
    if !dir.exists() {
        return Vec::new();
    }
    let content = |name: &String| fs::read(dir.join(name)).unwrap_or_default();
    names(dir).into_iter().map(|name| (name.clone(), content(&name))).collect()
}

/// Opens the pool, which must fail, name `file` and leave everything as it was.
fn refused(dir: &Path, options: OpenOptions, file: &str) -> Error {
    let before = image(dir);
    let error = Pool::open(dir, options).expect_err("a pool that cannot be opened");
    assert!(image(dir) == before, "the pool was changed");
    let named = dir.join(file);
    let named = named.to_str().expect("a name").trim_end_matches('/');
    assert!(error.to_string().starts_with(named), "{error}");
    error
}

/// Opens the pool without the node whose file this is, which must leave everything as it was, and yields what is wrong with
/// the file. Without being told to go on it is refused for the same reason.
fn passed_over(dir: &Path, file: &str) -> Error {
    let strict = refused(dir, STRICT, file);
    let before = image(dir);
    let pool = Pool::open(dir, DEGRADED).expect("a majority is there");
    // The clock's line apart, which may be the first of this boot.
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

/// The same of a node's file; the control file is one that no pool can be opened without.
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

/// One of each kind: it says of all what is wrong with them.
#[test]
fn a_majority_that_cannot_be_used() {
    let (_dir, path) = closed();
    fs::remove_file(path.join("node-0")).expect("a node");
    fs::write(path.join("node-2"), "text").expect("another content");
    for options in [STRICT, DEGRADED] {
        let told = refused(&path, options, "").to_string();
        assert!(told.contains("majority gone: the files of 2 of 3"), "{told}");
        assert!(told.contains("node-0: the file of node 0 is missing"), "{told}");
        assert!(
            told.contains("node-2: is no file of a pool") || told.contains("node-2: its length")
        );
        assert!(!told.contains("node-1"), "{told}");
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
                // How many clients it is for, a header would say.
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
        let told = matches!(error, Error::Version { found, known, .. }
            if found == newer && known + 1 == newer);
        assert!(told, "{name}: {error}");
    }
}

/// What is set aside in this layout is used by later programs without another one: they say so by a bit.
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

/// Damage behind the headers is for those to notice whose words it hits; it must not keep anybody
/// from opening the pool, or make them believe nonsense.
#[test]
fn damage_behind_the_control_files_header() {
    let (_dir, path) = closed();
    let expected = Pool::open(&path, STRICT).expect("a pool").clock();
    for fill in [0x00, 0x01, 0xff, 0x5a] {
        let length = fs::metadata(path.join("control")).expect("a file").len() as usize;
        overwrite(&path.join("control"), HEADER, &vec![fill; length - HEADER as usize]);
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

/// Not a test by itself: opens a pool as a user who may not.
#[test]
fn child() {
    let Some((_, pool)) = role() else { return };
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
        // Root may do anything; somebody else has to try.
        let child = child_command("open", &path).uid(65534).gid(65534).output();
        let Ok(output) = child else {
            not_permitted("no_permission", "the test program cannot be run as another user here");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(said.contains(&format!("says: {}: no permission", file.display())), "{said}");
    }
}
