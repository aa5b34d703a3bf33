//! A client of torture: it runs one operation at a time on hot keys, until the time is over, the
//! pool is full, or it is killed. Once nothing fails any more, it continues for a short time, in
//! which its operations must succeed.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::thread;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use swarm_core::error::Error as CoreError;
use swarm_kv::{CompareAndSwap, Error, TimeToLive, block_on};

use crate::demo::REPORT_EVERY_NS;
use crate::history::Op;
use crate::job::{Message, Order, Report, Served, TortureJob, monotonic_ns};
use crate::pool::Pool;
use crate::store::{Store, with_emulated, with_keys};
use crate::torture_log::{Known, Log, Outcome, Tag, is_counter, may_expire};
use crate::{Failure, ParentChannel};

/// The emulated roundtrip.
pub const RTT_NS: u64 = 2_000;
/// The niceness of clients, relative to their parent.
pub(crate) const NICE: i32 = 5;
/// The number of consecutive errors after which a client gives up.
pub(crate) const MAX_ERRORS: u32 = 50;
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

/// Returns a key's name.
pub fn key_name(run: &str, key: impl Display) -> String {
    format!("torture-{run}-{key}")
}

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

/// Draws an operation on a key, so that keys exist about half of the time.
pub(crate) fn pick(rng: &mut SmallRng, key: u32) -> Op {
    let op = match rng.random_range(0..100) {
        0..5 => Op::Ttl,
        5..30 => Op::Get,
        30..38 => Op::PutWithTtl,
        38..42 => Op::Put,
        42..54 => Op::Insert,
        54..57 => Op::Persist,
        57..68 => Op::Update,
        68..84 => Op::Delete,
        84..92 => Op::CompareAndSwap,
        _ => Op::Increment,
    };
    fit(op, key)
}

/// Returns the operation, or a compare-and-swap instead of an increment of a key that holds no number, or one that is not
/// about lives where no value expires.
fn fit(op: Op, key: u32) -> Op {
    match op {
        Op::Increment if !is_counter(key) => Op::CompareAndSwap,
        op if may_expire(key) => op,
        op => without_lives(op),
    }
}

/// Returns the operation, or what is most like it if it is about lives.
pub(crate) fn without_lives(op: Op) -> Op {
    match op {
        Op::PutWithTtl => Op::Put,
        Op::Persist => Op::Update,
        Op::Ttl => Op::Get,
        op => op,
    }
}

/// A client whose operations are logged.
pub(crate) struct RecordedClient<'s> {
    store: &'s Store<'s>,
    value: Vec<u8>,
    room: Vec<u8>,
    /// What it knows of a key by its last operation there: what it expects there in a compare-and-swap.
    known: HashMap<u32, Known>,
    /// Whether the pool is one in which nothing expires.
    has_no_cells: bool,
}

impl<'s> RecordedClient<'s> {
    pub(crate) fn new(store: &'s Store<'s>) -> Self {
        let (value, room, known) = Default::default();
        Self { store, value, room, known, has_no_cells: false }
    }

    /// Returns the bytes of the value of the last write or attempted write.
    pub(crate) fn length(&self) -> usize {
        self.value.len()
    }

    /// Runs one operation; `tag` names the value that it writes.
    pub(crate) fn act(
        &mut self,
        op: Op,
        name: &[u8],
        key: u32,
        tag: Tag,
    ) -> Result<Outcome, Error> {
        tag.fill(key, &mut self.value);
        self.carry_out(op, name, key, tag)
    }

    /// Does the same with a log. Also returns when it ended.
    pub(crate) fn act_on_record(
        &mut self,
        log: &mut Log,
        op: Op,
        name: &[u8],
        key: u32,
        tag: Tag,
    ) -> io::Result<(Result<Outcome, Error>, u64)> {
        tag.fill(key, &mut self.value);
        let op = if self.has_no_cells { without_lives(op) } else { op };
        let expected = self.known.get(&key).copied().filter(|_| op == Op::CompareAndSwap);
        log.call((op, expected), key, tag, monotonic_ns())?;
        let called_ns = monotonic_ns();
        let result = self.carry_out(op, name, key, tag);
        let now = monotonic_ns();
        self.has_no_cells |= result == Err(Error::NoCells);
        self.learn(op, key, tag, &result);
        let outcome = match &result {
            Ok(outcome) => *outcome,
            Err(Error::Full { .. }) => Outcome::Full,
            Err(_) => Outcome::Unknown,
        };
        log.answer(outcome, called_ns, now)?;
        Ok((result, now))
    }

    /// Notes what is there now, as far as this client knows.
    fn learn(&mut self, op: Op, key: u32, tag: Tag, result: &Result<Outcome, Error>) {
        if matches!(op, Op::Persist | Op::Ttl) {
            return;
        }
        let known = match result {
            Ok(Outcome::Value(tag)) => Some(Known::Tag(*tag)),
            Ok(Outcome::Sum(sum)) => Some(Known::Sum(*sum)),
            Ok(Outcome::Done) if op != Op::Delete && is_counter(key) => {
                Some(Known::Sum(tag.written_number()))
            }
            Ok(Outcome::Done) if op != Op::Delete => Some(Known::Tag(tag)),
            Ok(_) => None,
            Err(_) => return,
        };
        match known {
            Some(known) => _ = self.known.insert(key, known),
            None => _ = self.known.remove(&key),
        }
    }

    fn carry_out(&mut self, op: Op, name: &[u8], key: u32, tag: Tag) -> Result<Outcome, Error> {
        let done = |done| if done { Outcome::Done } else { Outcome::Refused };
        let (store, value) = (self.store, &self.value);
        Ok(match op {
            Op::Get => block_on(store.get(name, |value| read(key, value, &mut self.room)))?,
            Op::Put => block_on(store.put(name, value)).map(|()| Outcome::Done)?,
            Op::Insert => done(block_on(store.insert(name, value))?),
            Op::Update => done(block_on(store.update(name, value))?),
            Op::Delete => block_on(store.delete(name)).map(|()| Outcome::Done)?,
            Op::CompareAndSwap => {
                let expected = self.known.get(&key);
                expected.inspect(|known| known.fill(key, &mut self.room));
                let expected = expected.map(|_| self.room.as_slice());
                match block_on(store.compare_and_swap(name, expected, Some(value)))? {
                    CompareAndSwap::Swapped => Outcome::Done,
                    CompareAndSwap::Lost(found) => read(key, found.as_deref(), &mut self.room),
                }
            }
            Op::Increment => {
                let by = tag.added_number() as i64;
                Outcome::Sum(block_on(store.increment(name, by))? as u64)
            }
            Op::PutWithTtl => {
                let ttl = Duration::from_nanos(tag.ttl_ns());
                block_on(store.put_with_ttl(name, value, ttl)).map(|()| Outcome::Done)?
            }
            Op::Persist => done(block_on(store.persist(name))?),
            Op::Ttl => Outcome::Life(match block_on(store.ttl(name))? {
                TimeToLive::Absent => None,
                TimeToLive::Endless => Some(false),
                TimeToLive::Left(_) => Some(true),
            }),
            Op::Swap | Op::Expire => unreachable!("clients do what Op::TORTURE lists"),
        })
    }
}

/// Returns the outcome that a value that was read shows.
pub fn read(key: u32, value: Option<&[u8]>, room: &mut Vec<u8>) -> Outcome {
    let Some(value) = value else { return Outcome::Absent };
    let outcome = if is_counter(key) {
        std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).map(Outcome::Sum)
    } else {
        Tag::parse(key, value, room).map(Outcome::Value)
    };
    outcome.unwrap_or(Outcome::Damaged)
}

/// Deletes a key. Returns false if it stays: a delete needs a buffer, too, and a full pool has
/// none.
pub fn try_delete(store: &Store<'_>, key: &str) -> Result<bool, Error> {
    match block_on(store.delete(key.as_bytes())) {
        Ok(()) => Ok(true),
        Err(Error::Full { .. } | Error::Unsettled { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
