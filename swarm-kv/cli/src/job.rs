//! What a client is told and what it tells, one JSON object a line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::outcome::Failure;
use super::workload::{Kind, Plan, System};

/// A client's job: the first line that it gets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    Bench(BenchJob),
    Demo(DemoJob),
    Torture(TortureJob),
    Soak(SoakJob),
}

/// To measure a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BenchJob {
    pub(crate) pool: PathBuf,
    pub(crate) system: System,
    pub(crate) plan: Plan,
    pub(crate) key_size: usize,
    pub(crate) value_size: usize,
    pub(crate) window: usize,
    pub(crate) rtt_ns: u64,
    /// Whether to tell how far it is.
    pub(crate) progress: bool,
}

/// To work until the time is over, and keep a log of what was acknowledged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DemoJob {
    pub(crate) pool: PathBuf,
    pub(crate) log: PathBuf,
    pub(crate) client: u32,
    pub(crate) keys: u32,
    pub(crate) rtt_ns: u64,
    pub(crate) seconds: u64,
}

/// To work on hot keys until the time is over, and keep a log of all calls and answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TortureJob {
    pub(crate) pool: PathBuf,
    pub(crate) log: PathBuf,
    /// Tells the keys of this run from others.
    pub(crate) run: String,
    pub(crate) client: u32,
    pub(crate) keys: u32,
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    /// Whether it uses the pool's memory without an emulated network.
    pub(crate) near: bool,
    /// Whether to go on when the pool is full: clients that are stopped hold memory back for a while.
    pub(crate) goes_on_full: bool,
    /// Roundtrips that an operation may take when nothing fails any more, if there is a bound.
    pub(crate) most_roundtrips: Option<u32>,
    /// On the clock of [`monotonic_ns`]; none if it is to wait for [`Order::Go`].
    pub(crate) until_ns: Option<u64>,
}

/// How a client of torture was served when nothing failed any more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Served {
    pub(crate) operations: u64,
    /// Of these, writes that were refused as the pool is full.
    pub(crate) refused: u64,
    /// The most that one of them took.
    pub(crate) roundtrips: u32,
    /// What the first one that was not served was told.
    pub(crate) unserved: Option<String>,
}

/// To work on a few hot keys on record, and on many others, until it is time to leave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SoakJob {
    pub(crate) pool: PathBuf,
    /// The directory of the logs.
    pub(crate) logs: PathBuf,
    /// Tells the keys of this run from others.
    pub(crate) run: String,
    pub(crate) client: u32,
    pub(crate) keys: u32,
    pub(crate) seed: u64,
    /// When the first window began, on the clock of [`monotonic_ns`].
    pub(crate) started_ns: u64,
    pub(crate) leave_ns: u64,
}

/// What a client of soak did since it told the last time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct SoakTally {
    /// The window that it is in: it is done with all those before.
    pub(crate) window: u64,
    pub(crate) operations: u64,
    /// Bytes of values that were written.
    pub(crate) bytes: u64,
    /// Writes that were refused because the pool was full.
    pub(crate) full: u64,
    /// Values that were not as they were written.
    pub(crate) damaged: u64,
}

/// What all clients are told: the further lines.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// All keys are loaded: go on.
    Warm,
    /// Begin at this time of [`monotonic_ns`].
    Go { at_ns: u64 },
    /// Nothing fails any more: go on for a bit.
    Lifted,
}

/// What a client tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// Its share of the keys is loaded.
    Loaded,
    /// It waits for [`Order::Go`].
    Ready,
    /// So many operations were done at a time of [`monotonic_ns`].
    Progress { at_ns: u64, done: u64 },
    /// A client of torture moved so many keys since it told the last time.
    Moved(u64),
    /// It has nothing under way, since this time of [`monotonic_ns`], and waits for [`Order::Lifted`]; whether
    /// because the pool is full.
    Resting { since_ns: u64, full: bool },
    /// How it was served after that.
    Served(Served),
    /// What a client of soak did.
    Tally(SoakTally),
    /// All is done.
    Report(Box<Report>),
    /// It went wrong.
    Failed(String),
    /// Nothing more will come.
    Gone,
}

/// What a client did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) kinds: BTreeMap<Kind, KindReport>,
    /// Times without a completed operation, the longer ones.
    pub(crate) gaps: Vec<(u64, u64)>,
}

/// What came of one kind of operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct KindReport {
    pub(crate) count: u64,
    pub(crate) roundtrips: BTreeMap<u32, u64>,
    pub(crate) verbs: u64,
    pub(crate) bytes: u64,
    /// How often each latency was met.
    pub(crate) latencies: Vec<(u64, u64)>,
}

impl KindReport {
    /// Takes in another client's.
    pub(crate) fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.verbs += other.verbs;
        self.bytes += other.bytes;
        for (&roundtrips, &count) in &other.roundtrips {
            *self.roundtrips.entry(roundtrips).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    /// The share of operations that took one roundtrip.
    pub(crate) fn one_roundtrip(&self) -> f64 {
        self.roundtrips.get(&1).copied().unwrap_or(0) as f64 / self.count.max(1) as f64
    }

    /// The latencies.
    pub(crate) fn histogram(&self) -> Histogram<u64> {
        let mut histogram = new_histogram();
        for &(latency, count) in &self.latencies {
            histogram.saturating_record_n(latency, count);
        }
        histogram
    }
}

/// A histogram for latencies: nanoseconds to a minute, three digits.
pub(crate) fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).expect("the bounds are valid")
}

/// How often each value was met.
pub(crate) fn recorded(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram
        .iter_recorded()
        .map(|entry| (entry.value_iterated_to(), entry.count_at_value()))
        .collect()
}

/// Nanoseconds on the clock that all processes of a host share.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The line of JSON for `message`, with its newline.
pub(crate) fn to_line(message: &impl Serialize) -> Result<String, Failure> {
    let mut line = serde_json::to_string(message)
        .map_err(|error| Failure::because("cannot tell a client (is the path UTF-8?)", error))?;
    line.push('\n');
    Ok(line)
}
