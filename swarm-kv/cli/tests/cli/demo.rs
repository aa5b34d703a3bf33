//! The demo, from beginning to end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{json, temporary_pools, wait_until};

#[test]
fn the_demo_ends_well() {
    let printout = json(&["demo", "--json"]);
    assert_eq!(printout["ok"], true);
    assert_eq!(printout["lost"], 0);
    // All keys were loaded, and some written since. How many, and how quickly, is the machine's doing.
    assert!(printout["acknowledged_writes"].as_u64() > Some(10_000), "{printout}");
    assert!(printout["operations"].as_u64() > Some(1000), "{printout}");
    assert!(printout["widest_gap_ns"].as_u64() > Some(0), "{printout}");
    assert!(printout["machine"]["busy"].is_boolean(), "{printout}");
    for kind in ["get", "update"] {
        assert!(printout[kind]["p50_ns"].as_u64() <= printout[kind]["p99_ns"].as_u64());
        assert!(printout[kind]["one_roundtrip"].as_f64() > Some(0.5), "{printout}");
    }
    // Times until things fail and since are told apart, and what a roundtrip takes.
    assert_eq!(printout["rtt_ns"], 2000);
    for kind in ["get", "update"] {
        let count =
            |printed: &serde_json::Value| printed[kind]["count"].as_u64().expect("a number");
        let parts = [&printout["before"], &printout["after"]].map(count);
        assert!(parts.iter().all(|&part| part > 0), "{printout}");
        assert_eq!(parts.iter().sum::<u64>(), count(&printout));
    }
    // They go on behind the failure, which is half-way.
    let steps = printout["operations_per_100ms"].as_array().expect("it is a list");
    let behind = steps[steps.len() / 2 + 1..].iter().filter_map(|step| step.as_u64());
    assert!(behind.sum::<u64>() > 100, "{steps:?}");
}

/// A temporary pool and its clients would otherwise stay for ever.
#[test]
fn nothing_stays_of_a_demo_that_is_stopped() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .arg("demo")
        .stderr(Stdio::null())
        .spawn()
        .expect("the command line can be run");
    wait_until("it has a pool", || !temporary_pools(child.id()).is_empty());
    std::thread::sleep(Duration::from_secs(1));
    let id = child.id().to_string();
    let asked = Command::new("kill").args(["-TERM", &id]).status().expect("kill can be run");
    assert!(asked.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(temporary_pools(child.id()), Vec::<PathBuf>::new());
}

/// SIGKILL leaves no time to clean up: the clients must end by themselves.
#[test]
fn clients_end_with_a_command_that_is_killed() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .args(["bench", "--clients", "3", "--keys", "1000", "--ops", "100000000", "--rtt", "1ms"])
        .args(["--workload", "c"])
        .spawn()
        .expect("the command line can be run");
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let clients = || std::fs::read_to_string(&path).unwrap_or_default();
    wait_until("it has three clients", || clients().split_whitespace().count() == 3);
    let clients: Vec<_> =
        clients().split_whitespace().map(|id| PathBuf::from(format!("/proc/{id}"))).collect();
    child.kill().expect("it can be killed");
    child.wait().expect("it ends");
    wait_until("its clients have ended", || clients.iter().all(|client| !is_alive(client)));
    let left = temporary_pools(child.id());
    assert_eq!(left.len(), 1, "the next command would sweep it");
    std::fs::remove_dir_all(&left[0]).expect("it is ours");
}

/// Whether a process is there, and not merely waiting to be reaped.
fn is_alive(process: &Path) -> bool {
    std::fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
