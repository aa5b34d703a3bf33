//! import and export.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{TestPool, swarm, wait_until};

fn lines(bytes: &[u8]) -> BTreeSet<Vec<u8>> {
    bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
}

#[test]
fn what_is_exported_can_be_imported() {
    let (old, new) = (TestPool::create(), TestPool::create());
    let mut text =
        b"plain\tvalue\nempty\t\ntab\\tkey\tnew\\nline\nback\\\\slash\t\\r\\r\n".to_vec();
    text.extend(b"bytes \xff\xfe\t\x00\x01\x80\n");
    for number in 0..500 {
        text.extend(format!("key {number}\tvalue {number}\n").bytes());
    }
    let file = old.file("lines");
    fs::write(&file, &text).expect("it is writable");
    let file = file.to_string_lossy();
    assert_eq!(old.status("import", &[&file]), 0);
    assert_eq!(old.output("get", &["tab\tkey"]), b"new\nline");
    assert_eq!(old.output("get", &["back\\slash"]), b"\r\r");
    assert_eq!(old.output("get", &["empty"]), b"");
    let exported = old.output("export", &[]);
    assert_eq!(lines(&exported), lines(&text));
    swarm(&["import", new.path(), "-"]).write_stdin(exported).assert().code(0);
    assert_eq!(lines(&new.output("export", &[])), lines(&text));
}

#[test]
fn one_line_is_not_several() {
    let pool = TestPool::create();
    for (text, printout) in [("a\tb\n", "1 line\n"), ("a\tb\nc\td\n", "2 lines\n")] {
        let done = swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(0);
        assert_eq!(String::from_utf8_lossy(&done.get_output().stderr), printout);
    }
}

#[test]
fn of_lines_with_one_key_the_last_wins() {
    let pool = TestPool::create();
    let text: String = (0..300).map(|n| format!("{}\t{n}\n", n % 3)).collect();
    // No newline at the end is as good.
    swarm(&["import", pool.path(), "-"]).write_stdin(text.trim_end()).assert().code(0);
    for (key, value) in [("0", "297"), ("1", "298"), ("2", "299")] {
        assert_eq!(pool.output("get", &[key]), value.as_bytes());
    }
}

#[test]
fn a_bad_line_is_named_and_those_before_it_are_kept() {
    let long_key = format!("{}\tv", "k".repeat(256));
    let long_value = format!("k\t{}", "v".repeat((1 << 20) + 1));
    let endless = "x".repeat(3 << 20);
    for bad in [
        "no tab",
        "",
        "\tno key",
        "a\tb\tc",
        "a\tb\\x",
        "a\\",
        "a\tb\r",
        &long_key,
        &long_value,
        &endless,
    ] {
        let pool = TestPool::create();
        let shown = &bad[..bad.len().min(20)];
        let text = format!("first\t1\nsecond\t2\n{bad}\nfourth\t4\n");
        let failed = swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(3);
        let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
        assert!(printed.contains("line 3: "), "{shown:?}: {printed}");
        assert_eq!(pool.output("get", &["first"]), b"1", "{shown:?}");
        assert_eq!(pool.output("get", &["second"]), b"2", "{shown:?}");
        assert_eq!(pool.status("get", &["fourth"]), 1, "{shown:?}");
    }
}

#[test]
fn nothing_is_a_good_import_and_a_missing_file_is_not() {
    let pool = TestPool::create();
    swarm(&["import", pool.path(), "-"]).write_stdin("").assert().code(0);
    assert_eq!(pool.output("export", &[]), b"");
    assert_eq!(pool.status("import", &["/nonexistent/lines"]), 3);
}

#[test]
fn an_export_that_nobody_reads_ends_quietly() {
    let pool = TestPool::create();
    let text: String = (0..5000).map(|n| format!("{n}\t{}\n", "v".repeat(100))).collect();
    swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(0);
    let mut export = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .args(["export", pool.path()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command line can be run");
    drop(export.stdout.take());
    let ended = export.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(0));
    assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn an_export_as_json_hides_no_byte() {
    let pool = TestPool::create();
    swarm(&["put", pool.path(), "k", "-"]).write_stdin(vec![0xff, 0x0a]).assert().code(0);
    let line: serde_json::Value =
        serde_json::from_slice(&pool.output("export", &["--json"])).expect("it is JSON");
    assert_eq!(line, serde_json::json!({ "key": "k", "value_hex": "ff0a" }));
}

/// JSON was no form that `import` took, and a mark in front of the text a part of the first key.
#[test]
fn what_is_exported_as_json_can_be_imported() {
    let (old, new) = (TestPool::create(), TestPool::create());
    let text =
        b"\xef\xbb\xbffirst\t1\ntab\\tkey\tnew\\nline\nbytes \xff\t\x00\x80\n{\t}\n".to_vec();
    swarm(&["import", old.path(), "-"]).write_stdin(text).assert().code(0);
    assert_eq!(old.output("get", &["first"]), b"1");
    let exported = old.output("export", &["--json"]);
    swarm(&["import", new.path(), "-"]).write_stdin(exported).assert().code(0);
    assert_eq!(lines(&new.output("export", &[])), lines(&old.output("export", &[])));
    // A key that begins with such a mark comes back, also where it is the first.
    let (one, other) = (TestPool::create(), TestPool::create());
    assert_eq!(one.status("put", &["\u{feff}key", "value"]), 0);
    let exported = one.output("export", &[]);
    swarm(&["import", other.path(), "-"]).write_stdin(exported).assert().code(0);
    assert_eq!(other.output("get", &["\u{feff}key"]), b"value");
}

/// Starts an import from what is written to it.
fn importing(pool: &TestPool) -> (Child, ChildStdin) {
    let mut import = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .args(["import", pool.path(), "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command line can be run");
    let input = import.stdin.take().expect("it was asked for");
    (import, input)
}

/// ^C reported nothing of what it had done.
#[test]
fn an_interrupted_import_reports_how_much_is_stored() {
    let pool = TestPool::create();
    let (import, mut input) = importing(&pool);
    let text: String = (0..100).map(|n| format!("{n}\tvalue\n")).collect();
    input.write_all(text.as_bytes()).expect("it is read");
    wait_until("all is stored", || {
        pool.output("export", &[]).split(|b| *b == b'\n').count() == 101
    });
    // What it has stored it reports a moment later, before it reads on.
    std::thread::sleep(Duration::from_millis(200));
    kill_process(Pid::from_child(&import), Signal::INT).expect("it runs");
    let ended = import.wait_with_output().expect("it ends");
    assert_eq!(ended.status.code(), Some(130));
    let printed = String::from_utf8_lossy(&ended.stderr);
    let stored: u64 =
        printed.split_whitespace().find_map(|word| word.parse().ok()).expect("a number");
    assert!((1..=100).contains(&stored) && printed.contains("stored"), "{printed}");
    drop(input);
}

/// It reported that all lines before the one that failed are stored, though others of them were under
/// way, or went with the pool.
#[test]
fn a_failed_import_reports_what_is_stored_for_certain() {
    let pool = TestPool::create();
    let (import, mut input) = importing(&pool);
    input.write_all(b"first\tvalue\n").expect("it is read");
    wait_until("it is stored", || pool.status("get", &["first"]) == 0);
    assert_eq!(pool.status("destroy", &["--force"]), 0);
    input.write_all(b"second\tvalue\n").expect("it is read");
    drop(input);
    let ended = import.wait_with_output().expect("it ends");
    let printed = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{printed}");
    assert!(printed.contains("line 2: ") && printed.contains("was destroyed"), "{printed}");
    assert!(!printed.contains("stored"), "nothing is: {printed}");
    // More than fits: of the lines of one batch, those in other lanes are under way.
    let pool = TestPool::create();
    let text: String = (0..1000).map(|n| format!("{n}\t{}\n", "v".repeat(100_000))).collect();
    let failed = swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(3);
    let printed = String::from_utf8_lossy(&failed.get_output().stderr).into_owned();
    let (_, known) =
        printed.split_once("known to be stored: the first ").expect("it is in the message");
    let known: usize = known.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    for key in 0..known {
        assert_eq!(pool.status("get", &[&key.to_string()]), 0, "{key}: {printed}");
    }
}

/// In any order; what would break a line is escaped, as in an export.
#[test]
fn keys_are_listed_by_what_they_begin_with() {
    let pool = TestPool::create();
    for key in ["user:1", "user:2", "item:1", "tab\t\\"] {
        assert_eq!(pool.status("put", &[key, "value"]), 0);
    }
    assert_eq!(pool.status("put", &["user:3", "value"]), 0);
    assert_eq!(pool.status("delete", &["user:3"]), 0);
    let keys = |args: &[&str]| {
        let printed = String::from_utf8(pool.output("keys", args)).expect("text");
        let mut lines: Vec<_> = printed.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(keys(&[]), ["item:1", "tab\\t\\\\", "user:1", "user:2"]);
    assert_eq!(keys(&["user:"]), ["user:1", "user:2"]);
    assert_eq!(keys(&["none"]), [""; 0]);
    assert_eq!(keys(&["item", "--json"]), ["{\"key\":\"item:1\"}"]);
    let named = swarm(&["keys"]).env("SWARM_POOL", pool.path()).output().expect("it can be run");
    assert_eq!(named.stdout.split(|&byte| byte == b'\n').count(), 4 + 1);
}
