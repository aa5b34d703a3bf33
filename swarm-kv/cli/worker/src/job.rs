//! The messages between a worker and its parent, one JSON object a line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use swarm_kv::KindCounters;

use crate::workload::{Kind, Plan, System};

/// A client's job: the first line that it receives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Job {
    /// `swarm bench`.
    Bench(BenchJob),
    /// `swarm demo`.
    Demo(DemoJob),
    /// `swarm torture`.
    Torture(TortureJob),
    /// `swarm soak`.
    Soak(SoakJob),
}

/// Measures a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchJob {
    /// The pool, as named on a command line.
    pub pool: PathBuf,
    /// The system that keeps the replicas.
    pub system: System,
    /// The operations.
    pub plan: Plan,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Operations in flight.
    pub window: usize,
    /// The emulated roundtrip.
    pub rtt_ns: u64,
    /// Whether to report progress.
    pub progress: bool,
}

/// Works until the time is over, and keeps a log of acknowledged writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DemoJob {
    /// The pool, as named on a command line.
    pub pool: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// The number of this client.
    pub client: u32,
    /// The number of keys.
    pub keys: u32,
    /// The emulated roundtrip.
    pub rtt_ns: u64,
    /// How long it runs.
    pub seconds: u64,
}

/// Works on hot keys until the time is over, and keeps a log of all calls and answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TortureJob {
    /// The pool, as named on a command line.
    pub pool: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Distinguishes the keys of this run from others.
    pub run: String,
    /// The number of this client.
    pub client: u32,
    /// The number of keys.
    pub keys: u32,
    /// The random seed.
    pub seed: u64,
    /// How long it runs.
    pub seconds: u64,
    /// Whether it uses the pool's memory without an emulated network.
    pub near: bool,
    /// Whether to go on without nodes that are lost.
    pub degraded: bool,
    /// Whether to continue when the pool is full: stopped clients block reclamation for a while.
    pub goes_on_full: bool,
    /// The most roundtrips of an operation once nothing fails any more, if there is a bound.
    pub most_roundtrips: Option<u32>,
    /// When to end, on the clock of [`monotonic_ns`]. `None` waits for [`Order::Go`].
    pub until_ns: Option<u64>,
}

/// How a client of torture was served once nothing failed any more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Served {
    /// Completed operations.
    pub operations: u64,
    /// Writes among them that were refused because the pool is full.
    pub refused: u64,
    /// The most roundtrips that one of them took.
    pub roundtrips: u32,
    /// The error of the first one that was not served.
    pub unserved: Option<String>,
}

/// Works on a few hot keys with a log, and on many others, until it is time to leave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SoakJob {
    /// The pool, as named on a command line.
    pub pool: PathBuf,
    /// The directory of the logs.
    pub logs: PathBuf,
    /// Distinguishes the keys of this run from others.
    pub run: String,
    /// The number of this client.
    pub client: u32,
    /// The number of keys.
    pub keys: u32,
    /// The random seed.
    pub seed: u64,
    /// When the first window began, on the clock of [`monotonic_ns`].
    pub started_ns: u64,
    /// When to leave, on the same clock.
    pub leave_ns: u64,
}

/// The work of a client of soak since its last report.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SoakTally {
    /// The window that it is in: it has finished all earlier ones.
    pub window: u64,
    /// Completed operations.
    pub operations: u64,
    /// Bytes of values that were written.
    pub bytes: u64,
    /// Writes that were refused because the pool was full.
    pub full: u64,
    /// Values that differ from what was written.
    pub damaged: u64,
}

/// A command to all clients: the further lines.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
    /// All keys are loaded: continue.
    Warm,
    /// Begin at this time of [`monotonic_ns`].
    Go {
        /// The time.
        at_ns: u64,
    },
    /// Nothing fails any more: continue for a short time.
    Lifted,
}

/// A client's message.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// Its share of the keys is loaded.
    Loaded,
    /// It waits for [`Order::Go`].
    Ready,
    /// The operations done at a time of [`monotonic_ns`].
    Progress {
        /// The time.
        at_ns: u64,
        /// All operations so far.
        done: u64,
    },
    /// Keys that a client of torture relocated since its last report.
    Moved(u64),
    /// It has no operation in progress since this time of [`monotonic_ns`], and waits for
    /// [`Order::Lifted`].
    Resting {
        /// The time.
        since_ns: u64,
        /// Whether the pool was full.
        full: bool,
    },
    /// How it was served after [`Order::Lifted`].
    Served(Served),
    /// The work of a client of soak.
    OpCost(SoakTally),
    /// The job is done.
    Report(Box<Report>),
    /// The job failed.
    Failed(String),
    /// The last message: the client has ended.
    Gone,
}

/// A client's results.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// When it began, on the clock of [`monotonic_ns`].
    pub started_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The results of each kind of operation.
    pub kinds: BTreeMap<Kind, KindReport>,
    /// The same for operations of the second half of the time, which are not in `kinds`; demo only.
    pub later: BTreeMap<Kind, KindReport>,
    /// The longer gaps between completed operations.
    pub gaps: Vec<(u64, u64)>,
}

/// The results of one kind of operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KindReport {
    /// The number of operations.
    pub count: u64,
    /// The number of operations for each number of roundtrips.
    pub roundtrips: BTreeMap<u32, u64>,
    /// Verbs that they posted.
    pub verbs: u64,
    /// Bytes that the verbs carried.
    pub bytes: u64,
    /// How often each latency occurred.
    pub latencies: Vec<(u64, u64)>,
}

impl KindReport {
    /// Adds another client's results.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.verbs += other.verbs;
        self.bytes += other.bytes;
        for (&roundtrips, &count) in &other.roundtrips {
            *self.roundtrips.entry(roundtrips).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    /// Returns the share of operations that took one roundtrip.
    pub fn one_roundtrip(&self) -> f64 {
        self.roundtrips.get(&1).copied().unwrap_or(0) as f64 / self.count.max(1) as f64
    }

    /// Returns a quantile of the measured latencies. `None` if there are none.
    pub fn latency(&self, quantile: f64) -> Option<u64> {
        let latencies = self.histogram();
        (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile))
    }

    /// Returns the latencies as a histogram.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut histogram = new_histogram();
        for &(latency, count) in &self.latencies {
            histogram.saturating_record_n(latency, count);
        }
        histogram
    }
}

/// Makes a histogram for latencies: nanoseconds to a minute, three digits.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).expect("the bounds are valid")
}

/// Returns how often each value occurred.
pub fn recorded(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram
        .iter_recorded()
        .map(|entry| (entry.value_iterated_to(), entry.count_at_value()))
        .collect()
}

/// Returns nanoseconds on the clock that all processes of a host share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Makes the report of a kind from its counts and times.
pub(crate) fn describe(count: &KindCounters, histogram: &Histogram<u64>) -> KindReport {
    let mut roundtrips = BTreeMap::new();
    for (n, &times) in count.roundtrips.iter().enumerate().filter(|(_, times)| **times > 0) {
        roundtrips.insert(n as u32, times);
    }
    KindReport {
        count: count.operations,
        roundtrips,
        verbs: count.verbs,
        bytes: count.bytes,
        latencies: recorded(histogram),
    }
}
