//! get, put, insert, update, delete, cas, incr and watch, as a shell sees them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{TestPool, json, swarm};

#[test]
fn answers_are_exit_statuses() {
    let pool = TestPool::create();
    assert_eq!(pool.status("get", &["k"]), 1);
    assert_eq!(pool.status("update", &["k", "0"]), 1);
    assert_eq!(pool.status("insert", &["k", "1"]), 0);
    assert_eq!(pool.status("insert", &["k", "2"]), 1);
    assert_eq!(pool.output("get", &["k"]), b"1");
    assert_eq!(pool.status("update", &["k", "3"]), 0);
    assert_eq!(pool.output("get", &["k"]), b"3");
    assert_eq!(pool.status("put", &["k", "4"]), 0);
    assert_eq!(pool.status("put", &["l", "5"]), 0);
    assert_eq!(pool.output("get", &["k"]), b"4");
    assert_eq!(pool.status("delete", &["k"]), 0);
    assert_eq!(pool.status("delete", &["k"]), 0);
    assert_eq!(pool.status("get", &["k"]), 1);
    assert_eq!(pool.status("insert", &["k", "6"]), 0);
    assert_eq!(pool.output("get", &["k"]), b"6");
    assert_eq!(pool.output("get", &["l"]), b"5");
}

#[test]
fn values_are_bytes_of_any_kind_and_length() {
    let pool = TestPool::create();
    let all: Vec<u8> = (0..=255).collect();
    for value in [Vec::new(), b"\n".to_vec(), all, vec![7; 1 << 20]] {
        swarm(&["put", pool.path(), "k", "-"]).write_stdin(value.clone()).assert().code(0);
        assert!(pool.output("get", &["k"]) == value, "a value of {} bytes differs", value.len());
    }
    assert_eq!(pool.status("put", &["k", "--looks-like-an-option"]), 0);
    assert_eq!(pool.output("get", &["k"]), b"--looks-like-an-option");
}

#[test]
fn what_cannot_be_stored_is_wrong_usage_and_changes_nothing() {
    let pool = TestPool::create();
    let (longest, longer) = ("k".repeat(255), "k".repeat(256));
    assert_eq!(pool.status("put", &[&longest, "v"]), 0);
    assert_eq!(pool.output("get", &[&longest]), b"v");
    for command in ["put", "insert", "update"] {
        assert_eq!(pool.status(command, &["", "v"]), 2);
        assert_eq!(pool.status(command, &[&longer, "v"]), 2);
        assert_eq!(pool.status(command, &["k"]), 2);
        swarm(&[command, pool.path(), &longest, "-"])
            .write_stdin(vec![0; (1 << 20) + 1])
            .assert()
            .code(2);
    }
    for command in ["get", "delete"] {
        assert_eq!(pool.status(command, &[""]), 2);
        assert_eq!(pool.status(command, &[&longer]), 2);
    }
    assert_eq!(pool.output("get", &[&longest]), b"v");
}

/// When a key expires is shown, and `persist` lets it stay.
#[test]
fn keys_expire() {
    let pool = TestPool::create();
    assert_eq!(pool.status("ttl", &["k"]), 1);
    assert_eq!(pool.status("put", &["k", "v", "--ttl", "1h"]), 0);
    let left: f64 = String::from_utf8(pool.output("ttl", &["k"]))
        .expect("text")
        .trim()
        .parse()
        .expect("seconds");
    assert!(left <= 3600.0 && left > 3000.0, "{left}");
    let left = json(&["ttl", pool.path(), "k", "--json"]);
    assert!(left["ttl_seconds"].as_f64().is_some_and(|left| left <= 3600.0), "{left}");
    assert_eq!([pool.status("persist", &["k"]), pool.status("persist", &["k"])], [0, 1]);
    assert!(json(&["ttl", pool.path(), "k", "--json"])["ttl_seconds"].is_null());
    assert_eq!(pool.status("put", &["k", "v", "--ttl", "0s"]), 0);
    assert_eq!([pool.status("get", &["k"]), pool.status("update", &["k", "w"])], [1, 1]);
    assert_eq!(pool.status("put", &["k", "v", "--ttl", "soon"]), 2);
    assert_eq!(pool.status("put", &["k", &"v".repeat(5000), "--ttl", "1s"]), 3);
}

/// The exit status shows what is lost, and so does what is there.
#[test]
fn changes_that_depend_on_the_value() {
    let pool = TestPool::create();
    assert_eq!(pool.status("cas", &["k", "none", "1"]), 1);
    assert_eq!(pool.status("put", &["k", "1"]), 0);
    assert_eq!(pool.status("cas", &["k", "1", "2"]), 0);
    let lost = swarm(&["cas", pool.path(), "k", "1", "3"]).assert().code(1);
    assert_eq!(lost.get_output().stdout, b"2");
    let lost = swarm(&["cas", pool.path(), "k", "1", "3", "--json"]).assert().code(1);
    let printout: serde_json::Value =
        serde_json::from_slice(&lost.get_output().stdout).expect("it is JSON");
    assert_eq!((&printout["done"], &printout["value"]), (&false.into(), &"2".into()));
    assert_eq!(pool.output("incr", &["k"]), b"3\n");
    assert_eq!(pool.output("incr", &["k", "-10"]), b"-7\n");
    assert_eq!(pool.output("get", &["k"]), b"-7");
    assert_eq!(json(&["incr", pool.path(), "new", "5", "--json"])["value"], "5");
    assert_eq!(pool.status("incr", &["k", "much"]), 2);
    assert_eq!(pool.status("put", &["k", "word"]), 0);
    assert_eq!(pool.status("incr", &["k"]), 3);
    assert_eq!(pool.output("get", &["k"]), b"word");
}

#[test]
fn json_shows_the_same() {
    let pool = TestPool::create();
    assert_eq!(json(&["put", pool.path(), "k", "v", "--json"])["done"], true);
    assert_eq!(json(&["get", pool.path(), "k", "--json"])["value"], "v");
    swarm(&["put", pool.path(), "b", "-"]).write_stdin(vec![0xff, 0x0a]).assert().code(0);
    assert_eq!(json(&["get", pool.path(), "b", "--json"])["value_hex"], "ff0a");
    let absent = swarm(&["get", pool.path(), "absent", "--json"]).assert().code(1);
    let printout: serde_json::Value =
        serde_json::from_slice(&absent.get_output().stdout).expect("it is JSON");
    assert_eq!(printout["done"], false);
}

/// It read standard input, whatever was in front of it.
#[test]
fn a_hyphen_is_a_value_behind_two() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["k", "--", "-"]), 0);
    assert_eq!(pool.output("get", &["k"]), b"-");
    swarm(&["put", pool.path(), "k", "-"]).write_stdin("read").assert().code(0);
    assert_eq!(pool.output("get", &["k"]), b"read");
}

/// `del` was answered by "demo".
#[test]
fn other_names_of_commands_are_known() {
    let pool = TestPool::create();
    assert_eq!(pool.status("set", &["k", "v"]), 0);
    assert_eq!(pool.status("add", &["k", "v"]), 1);
    assert_eq!(pool.output("dump", &[]), b"k\tv\n");
    for name in ["del", "rm", "remove"] {
        assert_eq!(pool.status("set", &["k", "v"]), 0);
        assert_eq!(pool.status(name, &["k"]), 0);
        assert_eq!(pool.status("get", &["k"]), 1);
    }
    assert_eq!(pool.status("stat", &[]), 0);
}

#[test]
fn the_environment_may_name_the_pool() {
    let (pool, other) = (TestPool::create(), TestPool::create());
    let status = |args: &[&str]| {
        let output = swarm(args).env("SWARM_POOL", pool.path()).output().expect("it runs");
        output.status.code().expect("it was not killed")
    };
    assert_eq!(status(&["put", "k", "v"]), 0);
    assert_eq!(status(&["--json", "set", "l", "--", "-w"]), 0);
    assert_eq!(status(&["get", "k"]), 0);
    assert_eq!(status(&["get", "absent"]), 1);
    assert_eq!(status(&["info"]), 0);
    assert_eq!(pool.output("get", &["l"]), b"-w");
    // One that is given goes first, and lacks what it lacks.
    assert_eq!(status(&["put", other.path(), "k", "w"]), 0);
    assert_eq!(status(&["put", other.path(), "k"]), 2);
    assert_eq!(status(&["get", other.path()]), 2);
    assert_eq!(pool.output("export", &[]).split(|byte| *byte == b'\n').count(), 3);
    // What is removed is named.
    assert_eq!(status(&["destroy"]), 2);
    assert_eq!(status(&["get"]), 2);
    assert_eq!(pool.output("get", &["k"]), b"v");
}

/// Each value is printed as it comes, by a process that sleeps in between, whatever other ones do.
#[test]
fn a_key_is_watched() {
    let pool = TestPool::create();
    let mut child = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .args(["watch", pool.path(), "key", "--changes", "3"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command line can be run");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut messages = BufReader::new(child.stderr.take().expect("its messages")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    let absent = messages.next().expect("a line").expect("text");
    assert_eq!(absent, "swarm: there is no such key");
    assert_eq!(pool.status("put", &["key", "one\ttab"]), 0);
    assert_eq!(next(), "one\\ttab");
    assert_eq!(pool.status("update", &["key", "2"]), 0);
    assert_eq!(next(), "2");
    assert_eq!(pool.status("incr", &["key"]), 0);
    assert_eq!(next(), "3");
    assert!(child.wait().expect("it ends").success());
    let args = ["watch", pool.path(), "key", "--changes", "1", "--timeout", "10ms", "--json"];
    let output = swarm(&args).output().expect("the command line can be run");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"{\"there\":true,\"value\":\"3\"}\n");
}
