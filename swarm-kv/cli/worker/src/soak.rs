//! A client of soak: one operation after the other, until it is time to leave or it is killed.
//!
//! A part of its operations is on a few hot keys, which are others in each window of time, and on
//! record; the others are on many keys that stay, whose values are of mixed sizes and are known to be
//! whole when they are read.

use std::path::{Path, PathBuf};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use swarm_kv::Error;

use crate::demo::TELL_EVERY_NS;
use crate::history::Op;
use crate::job::{Message, Report, SoakJob, SoakTally, monotonic_ns};
use crate::store::{Store, open_pool, with_emulated};
use crate::torture::{Hand, MAX_ERRORS, NICE, RTT_NS, key_name, pick};
use crate::torture_log::{Log, MIXED, Tag, Told};
use crate::{Failure, Lead};

/// One of so many operations is on a hot key.
const HOT_SHARE: u32 = 3;

/// How long a window is.
pub const WINDOW_NS: u64 = 2_000_000_000;
/// Keys of a window.
pub const HOT_KEYS: u32 = 16;

/// The window that a moment is in.
pub fn window_at(started_ns: u64, now: u64) -> u64 {
    now.saturating_sub(started_ns) / WINDOW_NS
}

/// Where a client's log of a window lies.
pub(crate) fn log_path(logs: &Path, window: u64, client: u32) -> PathBuf {
    logs.join(format!("log-{window}-{client}"))
}

/// What tells a window's keys from others.
pub fn run_of(run: &str, window: u64) -> String {
    format!("{run}-{window}")
}

/// Does the job.
pub(crate) fn run(job: &SoakJob, lead: &dyn Lead) -> Result<Report, Failure> {
    // As in torture.
    let _ = rustix::process::nice(NICE);
    let pool = open_pool(&job.pool)?;
    let keys = (job.keys + 2 * HOT_KEYS) as usize;
    let soak = Soak { job, lead };
    with_emulated(&pool, keys, RTT_NS, |store| soak.run(store))
}

/// The name of a key that stays.
pub fn lasting_name(run: &str, key: u32) -> String {
    key_name(run, MIXED + key)
}

struct Soak<'a> {
    job: &'a SoakJob,
    lead: &'a dyn Lead,
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
        let mut hand = Hand::new(store);
        let started_ns = monotonic_ns();
        let (mut now, mut told_at, mut errors) = (started_ns, started_ns, 0);
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
            if window != tally.window || now - told_at > TELL_EVERY_NS {
                tally.window = window;
                told_at = now;
                self.lead.tell(Message::Tally(std::mem::take(&mut tally)))?;
                tally.window = window;
            }
            let tag = Tag { client: job.client, number };
            let (op, result);
            if rng.random_ratio(1, HOT_SHARE) {
                let key = rng.random_range(0..HOT_KEYS);
                op = pick(&mut rng);
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
        self.lead.tell(Message::Tally(tally))?;
        Ok(Report { started_ns, ended_ns: now, ..Report::default() })
    }
}

/// Mostly there, so that it is values that are replaced.
fn pick_lasting(rng: &mut SmallRng) -> Op {
    match rng.random_range(0..100) {
        0..40 => Op::Get,
        40..75 => Op::Put,
        75..90 => Op::Update,
        90..95 => Op::Insert,
        _ => Op::Delete,
    }
}

fn count(tally: &mut SoakTally, op: Op, result: &Result<Told, Error>, length: usize) {
    tally.operations += 1;
    match (op, result) {
        (Op::Get, Ok(Told::Damaged)) => tally.damaged += 1,
        (Op::Put | Op::Insert | Op::Update, Ok(Told::Done)) => tally.bytes += length as u64,
        (_, Err(Error::Full { .. } | Error::Unsettled { .. })) => tally.full += 1,
        _ => {}
    }
}
