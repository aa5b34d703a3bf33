//! bench: what it prints, and that nothing of it stays.

use crate::common::{TestPool, json, swarm};
use serde_json::Value;

const OPS: u64 = 4000;

fn bench(extra: &str) -> Value {
    let line = format!("bench --json --keys 500 --ops {OPS} {extra}");
    json(&line.split_whitespace().collect::<Vec<_>>())
}

/// Checks one kind's fields and gives back how many operations there were.
fn check_kind(kind: &Value) -> u64 {
    let count = kind["count"].as_u64().expect("count is an integer");
    let times: Vec<u64> = ["p1_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"]
        .iter()
        .map(|field| kind[field].as_u64().expect("times are integers"))
        .collect();
    assert!(times.is_sorted() && times[0] > 0, "{kind}");
    let roundtrips = kind["roundtrips"].as_object().expect("roundtrips is an object");
    let sum: u64 = roundtrips.values().map(|times| times.as_u64().expect("an integer")).sum();
    assert_eq!(sum, count, "every operation took some roundtrips: {kind}");
    assert!(roundtrips.keys().all(|number| number.parse::<u32>().is_ok_and(|n| n > 0)), "{kind}");
    assert!(kind["verbs"].as_u64() >= Some(count));
    assert!(kind["bytes"].as_u64() >= Some(count));
    count
}

#[test]
fn every_workload_reports_the_kinds_that_ran() {
    for (workload, kinds) in [
        ("a", &["get", "update"][..]),
        ("b", &["get", "update"]),
        ("c", &["get"]),
        ("d", &["get", "insert"]),
        ("f", &["get", "read_modify_write"]),
    ] {
        let printout = bench(&format!("--workload {workload} --clients 2"));
        assert_eq!(printout["system"], "swarm");
        assert_eq!(printout["workload"], workload);
        assert_eq!(printout["clients"], 2);
        assert_eq!(printout["nodes"], 3);
        assert_eq!(printout["ops"], OPS);
        assert!(printout["seconds"].is_f64() && printout["throughput"].is_f64());
        let of_kind = |kind: &&str| printout.get(kind).map_or(0, check_kind);
        assert_eq!(kinds.iter().map(of_kind).sum::<u64>(), OPS, "{printout}");
        for absent in ["get", "update", "insert", "read_modify_write"] {
            assert_eq!(
                printout.get(absent).is_some(),
                kinds.contains(&absent),
                "{workload} {absent}"
            );
        }
    }
}

#[test]
fn every_system_runs_with_processes_threads_windows_and_delays() {
    for system in ["swarm", "dm-abd", "raw"] {
        let printout =
            bench(&format!("--system {system} --workload a --threads --window 4 --rtt 2us"));
        assert_eq!(printout["system"], system);
        assert_eq!(check_kind(&printout["get"]) + check_kind(&printout["update"]), OPS);
        assert!(printout["get"]["p1_ns"].as_u64() >= Some(2000), "{printout}");
    }
}

#[test]
fn a_read_modify_write_takes_the_roundtrips_of_both() {
    for window in ["1", "8"] {
        let printout = bench(&format!("--workload f --window {window} --distribution uniform"));
        let both = &printout["read_modify_write"]["roundtrips"];
        assert!(both.get("1").is_none(), "{both}");
        assert!(both["2"].as_u64() > Some(OPS / 4), "{both}");
    }
}

#[test]
fn an_existing_pool_is_used_and_kept() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["own", "value"]), 0);
    for _ in 0..2 {
        let printout = json(&["bench", pool.path(), "--json", "--keys", "100", "--ops", "1000"]);
        assert_eq!(printout["ops"], 1000);
    }
    assert_eq!(pool.output("get", &["own"]), b"value");
}

/// The second run's inserts were all refused, and counted as done.
#[test]
fn inserts_are_of_new_keys_each_time() {
    let pool = TestPool::create();
    let keys = || json(&["info", pool.path(), "--exact", "--json"])["keys"].as_u64();
    let mut expected = 100;
    for clients in ["2", "1", "3"] {
        let args = ["--workload", "d", "--keys", "100", "--ops", "1000", "--clients", clients];
        let printout = json(&[&["bench", pool.path(), "--json"], &args[..]].concat());
        expected += printout["insert"]["count"].as_u64().expect("some are inserts");
        assert_eq!(keys(), Some(expected));
    }
}

#[test]
fn a_pool_that_is_too_small_is_a_failure_and_stays_usable() {
    let pool = TestPool::create();
    assert_eq!(pool.status("put", &["own", "value"]), 0);
    assert_eq!(pool.status("bench", &["--keys", "1000", "--value-size", "65536"]), 3);
    assert_eq!(pool.output("get", &["own"]), b"value");
    assert_eq!(pool.status("info", &[]), 0);
    assert_eq!(pool.status("bench", &["--nodes", "3"]), 2);
}

#[test]
fn nonsense_is_wrong_usage() {
    for bad in [
        "--workload e",
        "--system paxos",
        "--keys 0",
        "--ops 0",
        "--clients 0",
        "--window 0",
        "--nodes 2",
        "--rtt 2",
        "--rtt soon",
        "--key-size 0",
        "--key-size 256",
        "--key-size 2 --keys 101",
        "--value-size 1048577",
        "--distribution normal",
        "--seed -1",
    ] {
        let line = format!("bench {bad}");
        swarm(&line.split_whitespace().collect::<Vec<_>>()).assert().code(2);
    }
    swarm(&["bench", "/nonexistent/pool"]).assert().code(3);
}

#[test]
fn the_table_is_for_people() {
    let args = ["bench", "--keys", "100", "--ops", "1000", "--workload", "c"];
    let printout = swarm(&args).assert().code(0);
    let text = String::from_utf8_lossy(&printout.get_output().stdout).into_owned();
    assert!(text.contains("op/s") && text.contains("get"), "{text}");
}
