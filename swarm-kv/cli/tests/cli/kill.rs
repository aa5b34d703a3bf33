//! Calls that are killed with SIGKILL leave the pool usable, and take nothing back.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{TestPool, json};

/// How many calls: `SWARM_KILL_CALLS`, or a few.
fn calls() -> u64 {
    std::env::var("SWARM_KILL_CALLS").map_or(150, |text| text.parse().expect("it is a number"))
}

#[test]
fn killed_calls_leave_the_pool_usable() {
    let pool = TestPool::create();
    // For each of a few keys: the number that the last acknowledged put stored.
    let mut acknowledged = [0; 5];
    let mut killed = 0;
    // Any sequence that strews the moments will do.
    let mut random: u64 = 7;
    for call in 1..=calls() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let key = (random >> 40) as usize % acknowledged.len();
        let mut child = Command::new(env!("CARGO_BIN_EXE_swarm"))
            .args(["put", pool.path(), &format!("key {key}"), &call.to_string()])
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the command line can be run");
        if (random >> 33).is_multiple_of(2) {
            std::thread::sleep(Duration::from_micros((random >> 45) % 2500));
            child.kill().expect("it can be killed");
        }
        let status = child.wait().expect("it ends");
        match status.code() {
            Some(0) => acknowledged[key] = call,
            None => killed += 1,
            Some(code) => panic!("call {call} ended with {code} after {killed} were killed"),
        }
    }
    println!("{killed} of {} calls were killed", calls());
    for (key, &last) in acknowledged.iter().enumerate() {
        let found = pool.output("get", &[&format!("key {key}")]);
        let found: u64 = String::from_utf8_lossy(&found).parse().unwrap_or(0);
        assert!(found >= last, "key {key} holds {found}, but {last} was acknowledged");
        assert!(found <= calls());
    }
    assert_eq!(json(&["info", pool.path(), "--exact", "--json"])["clients"], 0);
}
