//! Soak: what it finds out, and what it leaves behind.

use serde_json::Value;

use crate::common::{TestPool, swarm, temporary_pools};

/// Soaks; its exit status and what it said. Whether times and memory stay as they are is not for a
/// short run on a busy machine to say.
fn soak(args: &[&str]) -> (i32, Value) {
    let output = swarm(&[&["soak"], args, &["--json"]].concat()).output();
    let output = output.expect("the command line can be run");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!told.contains("panicked"), "{told}");
    let said = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON: {told}"));
    (output.status.code().expect("it was not killed"), said)
}

#[test]
fn clients_come_die_and_leave_and_what_they_are_told_is_linearizable() {
    let quick = ["--seconds", "5", "--turnover", "0", "--capacity", "256MiB", "--clients", "6"];
    let (status, said) = soak(&quick);
    let failed = said["failed"].as_array().expect("a list");
    let open = said["open"].as_array().expect("a list");
    let wanted = match (failed.is_empty(), open.is_empty()) {
        (false, _) => 1,
        (true, false) => 3,
        (true, true) => 0,
    };
    assert_eq!(status, wanted, "{said}");
    for check in ["volume", "histories", "values"] {
        assert!(!failed.contains(&check.into()), "{said}");
    }
    let number = |name: &str| said[name].as_u64().expect("a number");
    assert!(number("kills") > 0 && number("left") > 0, "{said}");
    assert_eq!(number("kills") + number("left"), number("clients"));
    assert!(number("windows") >= 3 && number("checked_operations") > 100, "{said}");
    assert!(number("written_bytes") > 100_000, "{said}");
    assert!(said["memory"]["samples"].as_u64() >= Some(4), "{said}");
}

#[test]
fn a_pool_that_is_soaked_keeps_what_it_had() {
    let pool = TestPool::absent();
    let made = swarm(&["create", pool.path(), "--capacity", "256MiB", "--max-clients", "8"]);
    { made }.assert().success();
    assert_eq!(pool.status("put", &["mine", "value"]), 0);
    let short = ["--seconds", "1", "--turnover", "0", "--keys", "50", "--clients", "2"];
    let output = swarm(&[&["soak", pool.path()], &short[..]].concat()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    for line in ["volume", "never full", "histories", "values", "memory", "allocated", "get median"]
    {
        assert!(said.contains(&format!("\n  {line}")), "{line}: {said}");
    }
    let left = pool.output("export", &[]);
    assert!(left == b"mine\tvalue\n", "{} bytes are left; {said}", left.len());
    assert_eq!(temporary_pools(std::process::id()), Vec::<std::path::PathBuf>::new());
}

/// All that it looks for, in a pool that is written fifty times over. `ci/soak.sh` looks for what a busy
/// machine cannot change.
#[test]
#[ignore = "takes minutes, and a machine that does nothing else"]
fn nothing_wears_out() {
    let pool = TestPool::absent();
    let made = swarm(&["create", pool.path(), "--capacity", "32MiB", "--max-clients", "16"]);
    { made }.assert().success();
    let (status, said) = soak(&[pool.path(), "--seconds", "30", "--clients", "3", "--keys", "300"]);
    for kind in ["get", "update"] {
        assert!(said[kind]["first_ns"].as_u64() > Some(0), "{said}");
        assert_eq!(said[kind]["ok"], true, "{said}");
    }
    assert_eq!(status, 0, "{said}");
}

#[test]
fn what_cannot_be_is_wrong_usage() {
    for bad in [
        &["--clients", "0"][..],
        &["--keys", "0"],
        &["--minutes", "-1"],
        &["--capacity", "nothing"],
        &["somewhere", "--capacity", "64MiB"],
    ] {
        swarm(&[&["soak"], bad].concat()).assert().code(2);
    }
    swarm(&["soak", "/nowhere/pool", "--seconds", "1"]).assert().code(3);
    // Eight clients at most: none would be left to judge.
    let pool = TestPool::create();
    assert_eq!(pool.status("soak", &["--seconds", "1", "--clients", "8"]), 2);
}
