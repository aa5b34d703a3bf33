//! Files of histories: what is taken is written again as it was, and judged.
#![no_main]

use libfuzzer_sys::fuzz_target;
use swarm_core::history::{Rejected, check};

#[path = "../../swarm-kv/cli/worker/src/failure.rs"]
#[allow(dead_code, reason = "a part of another crate")]
mod failure;
#[path = "../../swarm-kv/cli/worker/src/history.rs"]
#[allow(dead_code, reason = "a part of another crate")]
mod history;

use failure::Failure;
use history::History;

/// Steps that a judgement may take here.
const BUDGET: u64 = 100_000;

fuzz_target!(|file: &[u8]| {
    let Ok(history) = History::read(file, "a file") else { return };
    let mut written = Vec::new();
    history.write(&mut written).expect("memory takes what is written");
    let again = History::read(&written[..], "what was written");
    assert_eq!(again.ok().map(|again| again.operations), Some(history.operations.clone()));
    if let Err(Rejected::Violation(window)) = check(&history.operations, |_| None, BUDGET) {
        assert!(!window.to_string().is_empty(), "a violation can be shown");
    }
});
