//! A client of torture: it runs one operation at a time on hot keys, until the time is over, the
//! pool is full, or it is killed. Once nothing fails any more, it continues for a short time, in
//! which its operations must succeed.

use std::io;
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use swarm_core::error::Error as CoreError;
use swarm_kv::Error;

use crate::history::Op;
use crate::hot_keys::{MAX_ERRORS, NICE, RTT_NS, RecordedClient, fit, key_name, pick};
use crate::job::{Message, Order, Report, Served, TortureJob, monotonic_ns};
use crate::parent::REPORT_EVERY_NS;
use crate::pool::Pool;
use crate::store::{Store, with_emulated, with_keys};
use crate::torture_log::{Log, Tag};
use crate::{Failure, ParentChannel};

/// The most keys that all clients use in the last phase, and their operations.
const LAST_KEYS: u32 = 10;
const LAST_CALLS: [Op; 12] = [
    Op::Get,
    Op::Put,
    Op::Update,
    Op::Get,
    Op::CompareAndSwap,
    Op::Increment,
    Op::Delete,
    Op::Insert,
    Op::PutWithTtl,
    Op::Ttl,
    Op::Persist,
    Op::Get,
];
/// A compare-and-swap or an increment in the last phase is tried so often: others of its kind may keep it from its end.
const LAST_TRIES: u32 = 20;

/// Runs the job.
pub(crate) fn run(job: &TortureJob, parent: &dyn ParentChannel) -> Result<Report, Failure> {
    // Many clients use all processors, and their parent must run as well.
    let _ = rustix::process::nice(NICE);
    let pool = Pool::open(&job.pool, job.degraded)?;
    let (keys, torture) = (job.keys as usize, Torture { job, parent });
    if job.near {
        return with_keys(&pool, keys, |store| torture.run(store));
    }
    with_emulated(&pool, keys, RTT_NS, |store| torture.run(store))
}

struct Torture<'a> {
    job: &'a TortureJob,
    parent: &'a dyn ParentChannel,
}

impl Torture<'_> {
    fn run(&self, store: &Store<'_>) -> Result<Report, Failure> {
        let job = self.job;
        let failed = |error| Failure::because("cannot write the log", error);
        let mut log = Log::create(&job.log).map_err(failed)?;
        let names: Vec<_> = (0..job.keys).map(|key| key_name(&job.run, key)).collect();
        let mut rng = SmallRng::seed_from_u64(job.seed ^ u64::from(job.client) << 32);
        let mut hand = RecordedClient::new(store);
        let until_ns = match job.until_ns {
            Some(until_ns) => until_ns,
            None => {
                self.parent.send(Message::Ready)?;
                let Order::Go { at_ns } = self.parent.wait()? else { return Ok(Report::default()) };
                // No spinning: clients that have not received the command yet need the processors.
                thread::sleep(Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())));
                at_ns + job.seconds * 1_000_000_000
            }
        };
        let started_ns = monotonic_ns();
        let (mut now, mut reported_at, mut errors) = (started_ns, started_ns, 0);
        let mut moves = Moves::default();
        // Whether its last write was refused.
        let mut full = false;
        let mut numbers = 1..u32::MAX;
        while let Some(number) = numbers.next().filter(|_| now < until_ns) {
            let key = rng.random_range(0..job.keys);
            let (op, name) = (pick(&mut rng, key), names[key as usize].as_bytes());
            let tag = Tag { client: job.client, number };
            let result;
            (result, now) = hand.act_on_record(&mut log, op, name, key, tag).map_err(failed)?;
            match result {
                Ok(_) => {
                    errors = 0;
                    full &= op == Op::Get;
                }
                Err(Error::Full { .. }) => {
                    full = true;
                    if !job.goes_on_full {
                        break;
                    }
                }
                // No client damages memory, and all that is written under counters are numbers, so this is a bug.
                Err(
                    error @ (Error::Replication(CoreError::Damaged)
                    | Error::Number(_)
                    | Error::Overflow),
                ) => return Err(error.into()),
                Err(_) if errors < MAX_ERRORS => errors += 1,
                Err(error) => return Err(error.into()),
            }
            if now - reported_at > REPORT_EVERY_NS {
                reported_at = now;
                moves.report(store, self.parent)?;
            }
        }
        moves.report(store, self.parent)?;
        store.rest();
        self.parent.send(Message::Resting { since_ns: now, full })?;
        let Order::Lifted = self.parent.wait()? else { return Ok(Report::default()) };
        let served = self.be_served((store, &mut hand), &mut log, &names, numbers);
        self.parent.send(Message::Served(served.map_err(failed)?))?;
        Ok(Report { started_ns, ended_ns: now, ..Report::default() })
    }

    /// Runs all kinds of operations while nothing fails and the other clients do the same.
    fn be_served(
        &self,
        (store, hand): (&Store<'_>, &mut RecordedClient<'_>),
        log: &mut Log,
        names: &[String],
        mut numbers: impl Iterator<Item = u32>,
    ) -> io::Result<Served> {
        let client = self.job.client;
        let mut served = Served::default();
        for (key, name) in (0..LAST_KEYS).zip(names) {
            for op in LAST_CALLS.map(|op| fit(op, key)) {
                let mut result = Err(Error::Contended);
                for _ in 0..LAST_TRIES {
                    let tag = Tag { client, number: numbers.next().unwrap_or(u32::MAX) };
                    (result, _) = hand.act_on_record(log, op, name.as_bytes(), key, tag)?;
                    let is_change = matches!(
                        op,
                        Op::CompareAndSwap | Op::Increment | Op::PutWithTtl | Op::Persist
                    );
                    if !is_change || result != Err(Error::Contended) {
                        break;
                    }
                }
                let roundtrips = store.last().roundtrips;
                served.operations += 1;
                served.roundtrips = served.roundtrips.max(roundtrips);
                let most = self.job.most_roundtrips.unwrap_or(u32::MAX);
                let why = match result {
                    Ok(_) if roundtrips <= most => continue,
                    Ok(_) => format!("it took {roundtrips} roundtrips, more than {most}"),
                    Err(Error::Full { .. } | Error::Unsettled { .. }) if op != Op::Get => {
                        served.refused += 1;
                        continue;
                    }
                    Err(error) => error.to_string(),
                };
                let op = op.name();
                served.unserved.get_or_insert(format!("client {client}, {op} of {name}: {why}"));
            }
        }
        Ok(served)
    }
}

/// Counts the keys that a client has relocated. The count since its last report is lost when it is
/// killed.
#[derive(Default)]
struct Moves {
    outcome: u64,
}

impl Moves {
    /// Reports how many there were since the last report.
    fn report(&mut self, store: &Store<'_>, parent: &dyn ParentChannel) -> Result<(), Failure> {
        let moved = store.counters().moved;
        parent.send(Message::Moved(moved - std::mem::replace(&mut self.outcome, moved)))
    }
}
