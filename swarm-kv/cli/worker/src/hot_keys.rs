//! Operations on hot keys, each on record: what clients of torture do, and at times those of soak.

use std::collections::HashMap;
use std::fmt::Display;
use std::io;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use swarm_kv::{CompareAndSwap, Error, TimeToLive, block_on};

use crate::history::Op;
use crate::job::monotonic_ns;
use crate::store::Store;
use crate::torture_log::{Known, Log, Outcome, Tag, is_counter, may_expire};

/// The emulated roundtrip.
pub const RTT_NS: u64 = 2_000;
/// The niceness of clients, relative to their parent.
pub(crate) const NICE: i32 = 5;
/// The number of consecutive errors after which a client gives up.
pub(crate) const MAX_ERRORS: u32 = 50;

/// Returns a key's name.
pub fn key_name(run: &str, key: impl Display) -> String {
    format!("torture-{run}-{key}")
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
pub(crate) fn fit(op: Op, key: u32) -> Op {
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
