//! What a client is told and what it tells, one JSON object a line.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::workload::{Kind, Plan, System};

/// A client's job: the first line that it gets.
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

/// To measure a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchJob {
    /// The pool, as a command line names it.
    pub pool: PathBuf,
    /// How replicas are kept.
    pub system: System,
    /// Which operations.
    pub plan: Plan,
    /// Bytes of a key.
    pub key_size: usize,
    /// Bytes of a value.
    pub value_size: usize,
    /// Operations in flight.
    pub window: usize,
    /// The roundtrip that is emulated.
    pub rtt_ns: u64,
    /// Whether to tell how far it is.
    pub progress: bool,
}

/// To work until the time is over, and keep a log of what was acknowledged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DemoJob {
    /// The pool, as a command line names it.
    pub pool: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Which of the clients this is.
    pub client: u32,
    /// How many keys there are.
    pub keys: u32,
    /// The roundtrip that is emulated.
    pub rtt_ns: u64,
    /// How long it works.
    pub seconds: u64,
}

/// To work on hot keys until the time is over, and keep a log of all calls and answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TortureJob {
    /// The pool, as a command line names it.
    pub pool: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Tells the keys of this run from others.
    pub run: String,
    /// Which of the clients this is.
    pub client: u32,
    /// How many keys there are.
    pub keys: u32,
    /// What it draws by.
    pub seed: u64,
    /// How long it works.
    pub seconds: u64,
    /// Whether it uses the pool's memory without an emulated network.
    pub near: bool,
    /// Whether to go on when the pool is full: clients that are stopped hold memory back for a while.
    pub goes_on_full: bool,
    /// Roundtrips that an operation may take when nothing fails any more, if there is a bound.
    pub most_roundtrips: Option<u32>,
    /// On the clock of [`monotonic_ns`]; none if it is to wait for [`Order::Go`].
    pub until_ns: Option<u64>,
}

/// How a client of torture was served when nothing failed any more.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Served {
    /// Operations that ended.
    pub operations: u64,
    /// Of these, writes that were refused as the pool is full.
    pub refused: u64,
    /// The most that one of them took.
    pub roundtrips: u32,
    /// What the first one that was not served was told.
    pub unserved: Option<String>,
}

/// To work on a few hot keys on record, and on many others, until it is time to leave.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SoakJob {
    /// The pool, as a command line names it.
    pub pool: PathBuf,
    /// The directory of the logs.
    pub logs: PathBuf,
    /// Tells the keys of this run from others.
    pub run: String,
    /// Which of the clients this is.
    pub client: u32,
    /// How many keys there are.
    pub keys: u32,
    /// What it draws by.
    pub seed: u64,
    /// When the first window began, on the clock of [`monotonic_ns`].
    pub started_ns: u64,
    /// When it is to leave, on the same clock.
    pub leave_ns: u64,
}

/// What a client of soak did since it told the last time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SoakTally {
    /// The window that it is in: it is done with all those before.
    pub window: u64,
    /// Operations that ended.
    pub operations: u64,
    /// Bytes of values that were written.
    pub bytes: u64,
    /// Writes that were refused because the pool was full.
    pub full: u64,
    /// Values that were not as they were written.
    pub damaged: u64,
}

/// What all clients are told: the further lines.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
    /// All keys are loaded: go on.
    Warm,
    /// Begin at this time of [`monotonic_ns`].
    Go {
        /// On that clock.
        at_ns: u64,
    },
    /// Nothing fails any more: go on for a bit.
    Lifted,
}

/// What a client tells.
#[derive(Debug, Serialize, Deserialize)]
pub enum Message {
    /// Its share of the keys is loaded.
    Loaded,
    /// It waits for [`Order::Go`].
    Ready,
    /// So many operations were done at a time of [`monotonic_ns`].
    Progress {
        /// On that clock.
        at_ns: u64,
        /// Of all so far.
        done: u64,
    },
    /// A client of torture moved so many keys since it told the last time.
    Moved(u64),
    /// It has nothing under way, since this time of [`monotonic_ns`], and waits for [`Order::Lifted`]; whether
    /// because the pool is full.
    Resting {
        /// On that clock.
        since_ns: u64,
        /// Whether the pool was full.
        full: bool,
    },
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
pub struct Report {
    /// When it began, on the clock of [`monotonic_ns`].
    pub started_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// What came of each kind of operation.
    pub kinds: BTreeMap<Kind, KindReport>,
    /// The same of those that began in the second half of the time, and are not in `kinds`: of demo alone.
    pub later: BTreeMap<Kind, KindReport>,
    /// Times without a completed operation, the longer ones.
    pub gaps: Vec<(u64, u64)>,
}

/// What came of one kind of operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KindReport {
    /// How many there were.
    pub count: u64,
    /// How many took how many roundtrips.
    pub roundtrips: BTreeMap<u32, u64>,
    /// Verbs that they posted.
    pub verbs: u64,
    /// Bytes that these carried.
    pub bytes: u64,
    /// How often each latency was met.
    pub latencies: Vec<(u64, u64)>,
}

impl KindReport {
    /// Takes in another client's.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.verbs += other.verbs;
        self.bytes += other.bytes;
        for (&roundtrips, &count) in &other.roundtrips {
            *self.roundtrips.entry(roundtrips).or_default() += count;
        }
        self.latencies.extend(&other.latencies);
    }

    /// The share of operations that took one roundtrip.
    pub fn one_roundtrip(&self) -> f64 {
        self.roundtrips.get(&1).copied().unwrap_or(0) as f64 / self.count.max(1) as f64
    }

    /// The latency that this part of those that were timed did not exceed. `None` if none was.
    pub fn latency(&self, quantile: f64) -> Option<u64> {
        let latencies = self.histogram();
        (!latencies.is_empty()).then(|| latencies.value_at_quantile(quantile))
    }

    /// The latencies.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut histogram = new_histogram();
        for &(latency, count) in &self.latencies {
            histogram.saturating_record_n(latency, count);
        }
        histogram
    }
}

/// A histogram for latencies: nanoseconds to a minute, three digits.
pub fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000_000, 3).expect("the bounds are valid")
}

/// How often each value was met.
pub fn recorded(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram
        .iter_recorded()
        .map(|entry| (entry.value_iterated_to(), entry.count_at_value()))
        .collect()
}

/// Nanoseconds on the clock that all processes of a host share.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
