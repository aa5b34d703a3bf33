//! A client of soak: it runs one operation at a time, until it is time to leave or it is killed.
//!
//! Some of its operations are on a few hot keys, which differ in each window of time, and are
//! logged. The others are on many permanent keys, whose values have mixed sizes and are checked
//! when they are read.

use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use swarm_kv::Error;

use crate::history::Op;
use crate::hot_keys::{MAX_ERRORS, NICE, RTT_NS, RecordedClient, key_name, pick, without_lives};
use crate::job::{Message, Report, SoakJob, SoakTally, monotonic_ns};
use crate::parent::REPORT_EVERY_NS;
use crate::store::{Store, open_pool, with_emulated};
use crate::torture_log::{Log, MIXED, Outcome, Tag};
use crate::{Failure, ParentChannel};

/// One in this many operations is on a hot key.
const HOT_SHARE: u32 = 3;

/// The length of a window.
pub const WINDOW_NS: u64 = 2_000_000_000;
/// The number of hot keys of a window.
pub const HOT_KEYS: u32 = 16;

/// Returns the window at the time `now`.
pub fn window_at(started_ns: u64, now: u64) -> u64 {
    now.saturating_sub(started_ns) / WINDOW_NS
}

/// Returns the path of a client's log of a window.
pub(crate) fn log_path(logs: &Path, window: u64, client: u32) -> PathBuf {
    logs.join(format!("log-{window}-{client}"))
}

/// Returns the part of a window's key names that distinguishes them from others.
pub fn run_of(run: &str, window: u64) -> String {
    format!("{run}-{window}")
}

/// Runs the job.
pub(crate) fn run(job: &SoakJob, parent: &dyn ParentChannel) -> Result<Report, Failure> {
    // As in torture.
    let _ = rustix::process::nice(NICE);
    let pool = open_pool(&job.pool)?;
    let keys = (job.keys + 2 * HOT_KEYS) as usize;
    let soak = Soak { job, parent };
    with_emulated(&pool, keys, RTT_NS, |store| soak.run(store))
}

/// Returns the name of a permanent key.
pub fn lasting_name(run: &str, key: u32) -> String {
    key_name(run, MIXED + key)
}

struct Soak<'a> {
    job: &'a SoakJob,
    parent: &'a dyn ParentChannel,
}

/// The window that a client is in.
struct Current {
    number: u64,
    names: Vec<String>,
    log: Log,
}

impl Current {
    fn open(job: &SoakJob, number: u64) -> Result<Self, Failure> {
        let log = Log::create(&log_path(&job.logs, number, job.client))
            .map_err(|error| Failure::because("cannot write the log", error))?;
        let run = run_of(&job.run, number);
        Ok(Self { number, names: (0..HOT_KEYS).map(|key| key_name(&run, key)).collect(), log })
    }
}

impl Soak<'_> {
    fn run(&self, store: &Store<'_>) -> Result<Report, Failure> {
        let job = self.job;
        let names: Vec<_> = (0..job.keys).map(|key| lasting_name(&job.run, key)).collect();
        let mut rng = SmallRng::seed_from_u64(job.seed ^ u64::from(job.client) << 32);
        let mut hand = RecordedClient::new(store);
        let started_ns = monotonic_ns();
        let (mut now, mut reported_at, mut errors) = (started_ns, started_ns, 0);
        let mut current = Current::open(job, window_at(job.started_ns, now))?;
        let mut tally = SoakTally { window: current.number, ..SoakTally::default() };
        for number in 1..u32::MAX {
            if now >= job.leave_ns {
                break;
            }
            let window = window_at(job.started_ns, now);
            if window != current.number {
                current = Current::open(job, window)?;
            }
            if window != tally.window || now - reported_at > REPORT_EVERY_NS {
                tally.window = window;
                reported_at = now;
                self.parent.send(Message::OpCost(std::mem::take(&mut tally)))?;
                tally.window = window;
            }
            let tag = Tag { client: job.client, number };
            let (op, result);
            if rng.random_ratio(1, HOT_SHARE) {
                let key = rng.random_range(0..HOT_KEYS);
                op = without_lives(pick(&mut rng, key));
                let name = current.names[key as usize].as_bytes();
                (result, now) = hand
                    .act_on_record(&mut current.log, op, name, key, tag)
                    .map_err(|error| Failure::because("cannot write the log", error))?;
            } else {
                let key = rng.random_range(0..job.keys);
                op = pick_lasting(&mut rng);
                result = hand.act(op, names[key as usize].as_bytes(), MIXED + key, tag);
                now = monotonic_ns();
            }
            count(&mut tally, op, &result, hand.length());
            match result {
                Ok(_) => errors = 0,
                Err(Error::Full { .. } | Error::Unsettled { .. }) => {}
                Err(_) if errors < MAX_ERRORS => errors += 1,
                Err(error) => return Err(error.into()),
            }
        }
        self.parent.send(Message::OpCost(tally))?;
        Ok(Report { started_ns, ended_ns: now, ..Report::default() })
    }
}

/// Draws an operation on a permanent key. Most keys exist, so that writes mostly replace values.
fn pick_lasting(rng: &mut SmallRng) -> Op {
    match rng.random_range(0..100) {
        0..40 => Op::Get,
        40..75 => Op::Put,
        75..90 => Op::Update,
        90..95 => Op::Insert,
        _ => Op::Delete,
    }
}

fn count(tally: &mut SoakTally, op: Op, result: &Result<Outcome, Error>, length: usize) {
    tally.operations += 1;
    match (op, result) {
        (Op::Get, Ok(Outcome::Damaged)) => tally.damaged += 1,
        (Op::Put | Op::Insert | Op::Update, Ok(Outcome::Done)) => tally.bytes += length as u64,
        (_, Err(Error::Full { .. } | Error::Unsettled { .. })) => tally.full += 1,
        _ => {}
    }
}
