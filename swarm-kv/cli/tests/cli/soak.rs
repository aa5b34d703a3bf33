//! Soak: what it finds out, and what it leaves behind.

use serde_json::Value;

use crate::common::{TestPool, swarm, temporary_pools};

/// Soaks; its exit status and its output. Whether times and memory stay as they are cannot be judged
/// by a short run on a busy machine.
fn soak(args: &[&str]) -> (i32, Value) {
    let output = swarm(&[&["soak"], args, &["--json"]].concat()).output();
    let output = output.expect("the command line can be run");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!printed.contains("panicked"), "{printed}");
    let printout =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no JSON: {printed}"));
    (output.status.code().expect("it was not killed"), printout)
}

#[test]
fn clients_come_die_and_leave_and_what_they_see_is_linearizable() {
    let quick = ["--seconds", "5", "--turnover", "0", "--capacity", "256MiB", "--clients", "6"];
    let (status, printout) = soak(&quick);
    let failed = printout["failed"].as_array().expect("a list");
    let open = printout["open"].as_array().expect("a list");
    let wanted = match (failed.is_empty(), open.is_empty()) {
        (false, _) => 1,
        (true, false) => 3,
        (true, true) => 0,
    };
    assert_eq!(status, wanted, "{printout}");
    for check in ["volume", "histories", "values"] {
        assert!(!failed.contains(&check.into()), "{printout}");
    }
    let number = |name: &str| printout[name].as_u64().expect("a number");
    assert!(number("kills") > 0 && number("left") > 0, "{printout}");
    assert_eq!(number("kills") + number("left"), number("clients"));
    assert!(number("windows") >= 3 && number("checked_operations") > 100, "{printout}");
    assert!(number("written_bytes") > 100_000, "{printout}");
    assert!(printout["memory"]["samples"].as_u64() >= Some(4), "{printout}");
}

#[test]
fn a_pool_that_is_soaked_keeps_what_it_had() {
    let pool = TestPool::absent();
    let made = swarm(&["create", pool.path(), "--capacity", "256MiB", "--max-clients", "8"]);
    { made }.assert().success();
    assert_eq!(pool.status("put", &["mine", "value"]), 0);
    let short = ["--seconds", "1", "--turnover", "0", "--keys", "50", "--clients", "2"];
    let output = swarm(&[&["soak", pool.path()], &short[..]].concat()).output().expect("it runs");
    let printout = String::from_utf8_lossy(&output.stdout);
    for line in ["volume", "never full", "histories", "values", "memory", "allocated", "get median"]
    {
        assert!(printout.contains(&format!("\n  {line}")), "{line}: {printout}");
    }
    let left = pool.output("export", &[]);
    assert!(left == b"mine\tvalue\n", "{} bytes are left; {printout}", left.len());
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
    let (status, printout) =
        soak(&[pool.path(), "--seconds", "30", "--clients", "3", "--keys", "300"]);
    for kind in ["get", "update"] {
        assert!(printout[kind]["first_ns"].as_u64() > Some(0), "{printout}");
        assert_eq!(printout[kind]["ok"], true, "{printout}");
    }
    assert_eq!(status, 0, "{printout}");
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
