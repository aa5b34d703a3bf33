//! Micro-benchmarks: `cargo bench -p swarm-benches`.
//!
//! | benchmark | measures |
//! | --- | --- |
//! | `parts` | checksums; the lookup of a cached location |
//! | `register` | reads and writes of one register, by each protocol |
//! | `store` | gets and updates through the store |
//!
//! `instructions.sh` counts the instructions of a cached get and update under callgrind; the example `costs` their
//! roundtrips, verbs and bytes; `guard.sh` compares both with `baseline.txt`. The example `hit_rates` counts
//! how often the location cache knows a key; `peers` sets the store beside others. The example `kills` measures what a client
//! that is killed costs the others. Whole workloads are the command line's: `swarm bench`.

mod zipf;

pub use zipf::Zipf;

/// A second for each benchmark, after half a second of warm-up.
#[cfg(feature = "criterion")]
pub fn brief() -> criterion::Criterion {
    use std::time::Duration;

    criterion::Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(1))
}
