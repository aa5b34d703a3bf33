//! info --verify.

use std::fs;

use serde_json::{Value, json};

use crate::common::{TestPool, swarm};

/// What it prints of a pool, and its exit status.
fn verify(pool: &TestPool, more: &[&str]) -> (Value, Option<i32>) {
    let args = [&["info", pool.path(), "--verify", "--json"], more].concat();
    let output = swarm(&args).output().expect("the command line can be run");
    let printed = String::from_utf8_lossy(&output.stderr);
    let verdict = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{printed}"));
    (verdict, output.status.code())
}

#[test]
fn a_pool_is_verified_and_what_is_wrong_is_reported() {
    let pool = TestPool::create();
    let text: String = (0..500).map(|n| format!("key {n}\tvalue {n}\n")).collect();
    swarm(&["import", pool.path(), "-"]).write_stdin(text).assert().code(0);
    assert_eq!(pool.status("put", &["damaged", "a value of some length"]), 0);
    let (sound, status) = verify(&pool, &[]);
    assert_eq!((&sound["sound"], &sound["keys"], status), (&json!(true), &json!(501), Some(0)));
    let printout = String::from_utf8_lossy(&pool.output("info", &["--verify"])).into_owned();
    assert!(printout.lines().last().is_some_and(|line| line.ends_with("sound")), "{printout}");
    // A bit of the value is changed wherever a node has it.
    let file = format!("{}/node-1", pool.path());
    let mut bytes = fs::read(&file).expect("it is there");
    let value = b"a value of some length";
    let places: Vec<_> = (0..bytes.len() - value.len())
        .step_by(8)
        .filter(|&at| bytes[at..].starts_with(value))
        .collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| bytes[at] ^= 1);
    fs::write(&file, &bytes).expect("it is writable");
    let (damaged, status) = verify(&pool, &[]);
    assert_eq!((&damaged["sound"], status), (&json!(false), Some(1)), "{damaged}");
    let faults = damaged["faults"].as_array().expect("a list");
    assert!(!faults.is_empty());
    for fault in faults {
        assert_eq!((&fault["fault"], &fault["key"]), (&json!("bad checksum"), &json!("damaged")));
    }
    let printout = String::from_utf8_lossy(&pool.output("info", &["--verify"])).into_owned();
    assert!(printout.contains("bad checksum") && printout.contains("key damaged"), "{printout}");
    fs::remove_file(&file).expect("it is there");
    let (degraded, status) = verify(&pool, &["--degraded"]);
    assert_eq!((&degraded["nodes_down"], status), (&json!([1]), Some(1)), "{degraded}");
}
