//! The demo, from beginning to end.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::json;

#[test]
fn the_demo_ends_well_and_in_time() {
    let start = Instant::now();
    let said = json(&["demo", "--json"]);
    assert!(start.elapsed() < Duration::from_secs(20));
    assert_eq!(said["ok"], true);
    assert_eq!(said["lost"], 0);
    assert!(said["acknowledged_writes"].as_u64() > Some(10_000), "{said}");
    assert!(said["operations"].as_u64() > Some(10_000), "{said}");
    assert!(said["widest_gap_ns"].as_u64() < Some(1_000_000_000), "{said}");
    for kind in ["get", "update"] {
        assert!(said[kind]["p50_ns"].as_u64() <= said[kind]["p99_ns"].as_u64());
        assert!(said[kind]["one_roundtrip"].as_f64() > Some(0.5), "{said}");
    }
    let steps = said["operations_per_100ms"].as_array().expect("it is a list");
    let stalled = steps.iter().filter(|step| step.as_u64() == Some(0)).count();
    assert!(stalled <= steps.len() / 10, "{steps:?}");
}

/// A temporary pool and its clients would otherwise stay for ever.
#[test]
fn nothing_stays_of_a_demo_that_is_stopped() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_swarm"))
        .arg("demo")
        .stderr(Stdio::null())
        .spawn()
        .expect("the command line can be run");
    let prefix = format!("swarm-temporary-{}-", child.id());
    let start = Instant::now();
    while pools(&prefix) == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "no temporary pool was made");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(1));
    let id = child.id().to_string();
    let asked = Command::new("kill").args(["-TERM", &id]).status().expect("kill can be run");
    assert!(asked.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(130));
    assert_eq!(pools(&prefix), 0);
}

/// How many temporary pools there are with this beginning of their name.
fn pools(prefix: &str) -> usize {
    [PathBuf::from("/dev/shm"), std::env::temp_dir()]
        .iter()
        .flat_map(|place| std::fs::read_dir(place).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
        .count()
}
