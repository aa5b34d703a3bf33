//! backup and restore.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::common::{TestPool, json, swarm, wait_until};

/// A pool of another geometry, with nothing in it.
fn pool_of(nodes: &str, capacity: &str) -> TestPool {
    let pool = TestPool::absent();
    swarm(&["create", pool.path(), "--nodes", nodes, "--capacity", capacity]).assert().success();
    pool
}

/// A pool with keys and values of all kinds.
fn filled() -> TestPool {
    let pool = TestPool::create();
    let mut text: String = (0..2000).map(|n| format!("key {n}\tvalue {n}\n")).collect();
    text += "empty\t\ntab\\tkey\tnew\\nline\n";
    let mut text = text.into_bytes();
    text.extend(b"\xff\xfe\t\x00\x01\x80\n");
    text.extend([&[b'k'; 255][..], b"\t", &[b'v'; 1 << 20], b"\n"].concat());
    swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(0);
    pool
}

fn sorted(pool: &TestPool) -> Vec<Vec<u8>> {
    let printed = pool.output("export", &[]);
    let mut lines: Vec<_> = printed.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.sort();
    lines
}

fn start(args: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarm"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the command line can be run")
}

/// Interrupts a command, and yields what it printed on standard error.
fn interrupt(child: Child) -> String {
    kill_process(Pid::from_child(&child), Signal::INT).expect("it runs");
    let ended = child.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{printed}");
    printed
}

/// What a command that has to fail prints.
fn failure(args: &[&str], status: i32) -> String {
    let failed = swarm(args).assert().code(status);
    String::from_utf8_lossy(&failed.get_output().stderr).into_owned()
}

#[test]
fn a_backup_is_restored_into_any_geometry() {
    let old = filled();
    let file = old.file("backup").to_string_lossy().into_owned();
    let printed = swarm(&["backup", old.path(), &file]).assert().code(0);
    let printed = String::from_utf8_lossy(&printed.get_output().stderr).into_owned();
    assert!(printed.starts_with("2004 keys, "), "{printed}");
    let whole = swarm(&["backup", "--verify", &file, "--json"]).output().expect("it runs");
    let whole: serde_json::Value = serde_json::from_slice(&whole.stdout).expect("it is JSON");
    assert_eq!((&whole["whole"], &whole["keys"]), (&json!(true), &json!(2004)));
    let expected = sorted(&old);
    for (nodes, capacity) in [("1", "32MiB"), ("5", "16MiB")] {
        let new = pool_of(nodes, capacity);
        swarm(&["restore", &file, new.path()]).assert().code(0);
        assert!(sorted(&new) == expected, "{nodes} nodes");
    }
    // Through pipes as well.
    let piped = old.output("backup", &["-"]);
    swarm(&["backup", "--verify", "-"]).write_stdin(piped.clone()).assert().code(0);
    let new = pool_of("3", "24MiB");
    swarm(&["restore", "-", new.path()]).write_stdin(piped).assert().code(0);
    assert!(sorted(&new) == expected);
}

/// When a key expires in a pool, in nanoseconds since 1970, as far as `ttl` shows it.
fn expires(pool: &TestPool, key: &str) -> Option<f64> {
    let left = json(&["ttl", pool.path(), key, "--json"])["ttl_seconds"].as_f64()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    Some(now.as_secs_f64() + left)
}

/// Keys expire when they would have, from a backup and from lines of JSON. What has expired meanwhile is left out, and reported.
#[test]
fn keys_expire_when_they_would_have_where_they_are_restored() {
    let old = TestPool::create();
    let keys = ["an hour", "a day", "stays"];
    for (key, ttl) in [("an hour", "1h"), ("a day", "24h"), ("over", "2s")] {
        assert_eq!(old.status("put", &[key, "value", "--ttl", ttl]), 0);
    }
    assert_eq!(old.status("put", &["stays", "value"]), 0);
    let file = old.file("backup").to_string_lossy().into_owned();
    let lines = old.file("lines").to_string_lossy().into_owned();
    assert_eq!(old.status("backup", &[&file]), 0);
    let text = old.output("export", &["--json"]);
    let reader = old.output("export", &["--json", "--read-only"]);
    let count = |text: &[u8]| {
        let is_line = |line: &&[u8]| line.windows(10).any(|it| it == b"expires_ns");
        text.split(|byte| *byte == b'\n').filter(is_line).count()
    };
    assert_eq!((count(&text), count(&reader)), (3, 3));
    fs::write(&lines, text).expect("it is writable");
    let printed = swarm(&["export", old.path()]).assert().code(0);
    let printed = String::from_utf8_lossy(&printed.get_output().stderr).into_owned();
    assert!(printed.contains("3 keys are to expire"), "{printed}");
    wait_until("a key expires", || old.status("get", &["over"]) == 1);
    let before = keys.map(|key| expires(&old, key));
    let (restored, imported) = (TestPool::create(), TestPool::create());
    let output = json(&["restore", &file, restored.path(), "--json"]);
    assert_eq!(output, json!({ "keys": 3, "expired": 1 }));
    let output = json(&["import", imported.path(), &lines, "--json"]);
    assert_eq!(output, json!({ "lines": 4, "expired": 1 }));
    for pool in [restored, imported] {
        for (key, before) in keys.into_iter().zip(before) {
            assert_eq!(pool.output("get", &[key]), b"value");
            let after = expires(&pool, key);
            assert_eq!(after.is_some(), before.is_some(), "{key}");
            let off = after.unwrap_or(0.0) - before.unwrap_or(0.0);
            // Between a look at what is left and one at the clock this process may stand.
            assert!(off.abs() < 60.0, "{key}: {off} s");
        }
        assert_eq!(pool.status("get", &["over"]), 1);
    }
}

/// Two pools would be mixed up, and no error would report it.
#[test]
fn a_pool_that_has_keys_is_restored_into_if_it_is_asked_for() {
    let (old, new) = (TestPool::create(), TestPool::create());
    for (key, value) in [("both", "old"), ("old", "old")] {
        assert_eq!(old.status("put", &[key, value]), 0);
    }
    for (key, value) in [("both", "new"), ("new", "new")] {
        assert_eq!(new.status("put", &[key, value]), 0);
    }
    let file = old.file("backup").to_string_lossy().into_owned();
    assert_eq!(old.status("backup", &[&file]), 0);
    let printed = failure(&["restore", &file, new.path()], 3);
    assert!(printed.contains("has keys") && printed.contains("--merge"), "{printed}");
    assert_eq!(new.output("get", &["both"]), b"new");
    assert_eq!(new.status("get", &["old"]), 1);
    swarm(&["restore", &file, new.path(), "--merge"]).assert().code(0);
    for (key, value) in [("both", &b"old"[..]), ("old", b"old"), ("new", b"new")] {
        assert_eq!(new.output("get", &[key]), value, "{key}");
    }
}

/// Of a file nothing is stored unless all of it is whole; of a pipe what came before.
#[test]
fn a_backup_that_is_cut_off_or_damaged_is_refused_with_the_place() {
    let old = filled();
    let whole = old.output("backup", &["-"]);
    let file = old.file("backup").to_string_lossy().into_owned();
    let last = whole.len() - 60;
    let mut damaged = whole.clone();
    damaged[last] ^= 4;
    for bytes in [&whole[..last], &damaged] {
        fs::write(&file, bytes).expect("it is writable");
        let printed = swarm(&["backup", "--verify", &file, "--json"]).assert().code(1);
        let printed: serde_json::Value =
            serde_json::from_slice(&printed.get_output().stdout).expect("it is JSON");
        assert_eq!(printed["whole"], json!(false));
        let (block, byte) = (printed["block"].as_u64(), printed["byte"].as_u64());
        let (block, byte) = (block.expect("a number"), byte.expect("a number"));
        assert!(block > 0 && byte <= last as u64, "{printed}");
        let new = pool_of("3", "24MiB");
        let printed = failure(&["restore", &file, new.path()], 3);
        assert!(
            printed.contains(&format!("block {block}, which begins at byte {byte}")),
            "{printed}"
        );
        assert!(printed.contains("nothing was stored"), "{printed}");
        assert_eq!(new.output("export", &[]), b"");
        let piped = swarm(&["restore", "-", new.path()]).write_stdin(bytes).assert().code(3);
        let printed = String::from_utf8_lossy(&piped.get_output().stderr).into_owned();
        let stored = sorted(&new).len() - 1;
        assert!(stored > 0 && printed.contains(&format!("{stored} keys before that")), "{printed}");
    }
    fs::write(&file, b"key\tvalue\n").expect("it is writable");
    assert!(failure(&["backup", "--verify", &file], 1).contains("is no backup"));
    assert!(failure(&["backup", "--verify", "/nonexistent/file"], 3).contains("cannot read"));
    // A later version's header, with nothing behind it.
    let later = [b"\x89SWMBAK\n\x03\0\0\0\0\0\0\0", &xxh3_of_version_3()[..]].concat();
    fs::write(&file, later).expect("it is writable");
    let printed = failure(&["backup", "--verify", &file], 1);
    assert!(printed.contains("version 3") && printed.contains("reads 1 to 2"), "{printed}");
}

/// The checksum of such a header's first 16 bytes.
fn xxh3_of_version_3() -> [u8; 8] {
    let front = b"\x89SWMBAK\n\x03\0\0\0\0\0\0\0";
    xxhash_rust::xxh3::xxh3_64(front).to_le_bytes()
}

/// The backup of last night is what is there until tonight's is whole.
#[test]
fn a_backup_that_fails_leaves_the_older_one() {
    let pool = filled();
    let file = pool.file("backup");
    let path = file.to_string_lossy().into_owned();
    fs::write(&file, b"last night's").expect("it is writable");
    let names = || -> Vec<_> {
        let files = fs::read_dir(pool.file("")).expect("it is there").flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.contains("backup")).collect()
    };
    let child = start(&["backup", pool.path(), &path, "--rate", "1"]);
    wait_until("it is begun", || {
        let info = crate::common::json(&["info", pool.path(), "--json"]);
        names().len() == 2 && info["clients"] == 1
    });
    let printed = interrupt(child);
    assert!(printed.contains("no backup was made") && printed.contains("as it was"), "{printed}");
    assert_eq!(fs::read(&file).expect("it is there"), b"last night's");
    assert_eq!(names(), ["backup"]);
    assert_eq!(failure(&["backup", "/nonexistent/pool", &path], 3).lines().count(), 1);
    assert_eq!(fs::read(&file).expect("it is there"), b"last night's");
    assert_eq!(names(), ["backup"]);
    assert_eq!(pool.status("backup", &[&path]), 0);
    assert_eq!(names(), ["backup"]);
    swarm(&["backup", "--verify", &path]).assert().code(0);
    let nowhere = pool.file("nowhere/backup").to_string_lossy().into_owned();
    assert!(failure(&["backup", pool.path(), &nowhere], 3).contains("cannot write"));
}

#[test]
fn a_restore_that_is_interrupted_reports_how_much_is_stored_and_can_be_run_again() {
    let (old, new) = (filled(), pool_of("3", "24MiB"));
    let whole = old.output("backup", &["-"]);
    let mut child = start(&["restore", "-", new.path(), "--rate", "1000"]);
    let mut input = child.stdin.take().expect("it was asked for");
    // All but the end: it waits for that.
    let feeder = std::thread::spawn({
        let part = whole[..whole.len() - 10].to_vec();
        move || {
            let _ = input.write_all(&part);
            input
        }
    });
    let keys = || crate::common::json(&["info", new.path(), "--exact", "--json"])["keys"].as_u64();
    wait_until("some are stored", || keys() > Some(100));
    let printed = interrupt(child);
    drop(feeder.join().expect("it ends"));
    let stored: u64 =
        printed.split_whitespace().find_map(|word| word.parse().ok()).expect("a number");
    assert!(stored <= keys().expect("a number") && printed.contains("--merge"), "{printed}");
    assert!(stored + 256 >= keys().expect("a number"), "{printed}");
    swarm(&["restore", "-", new.path(), "--merge"]).write_stdin(whole).assert().code(0);
    assert!(sorted(&new) == sorted(&old));
}

/// `swarm export | head` ends quietly. Half a backup is none, and its maker has to know.
#[test]
fn a_backup_that_nobody_takes_is_a_failure() {
    let pool = filled();
    let mut child = start(&["backup", pool.path(), "-"]);
    drop(child.stdout.take());
    let ended = child.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cannot write the backup"));
    assert_eq!(pool.status("backup", &["-", "--json"]), 2);
    assert_eq!(pool.status("backup", &[]), 2);
    assert_eq!(pool.status("backup", &["file", "--rate", "0"]), 2);
}
