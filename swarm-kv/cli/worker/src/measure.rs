//! A client of bench: loads its share, warms up, and measures its operations.
//!
//! The measured loop takes the next operation from an array and runs it, and nothing else. The cost
//! of an operation in roundtrips, verbs and bytes comes from the client's own exact counters. Its
//! time is sampled where timing every operation would cost more than a few percent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::OpCost;
use swarm_core::register::Protocol;
use swarm_kv::{Client, Counters, Error, KindCounters, block_on};

use crate::job::{
    BenchJob, KindReport, Message, Order, Report, describe, monotonic_ns, new_histogram,
};
use crate::store::{Store, block_on_all, open_pool, run_system, with_system};
use crate::task::Task;
use crate::workload::{Keys, Kind, Op};
use crate::{Failure, ParentChannel};

/// With at least this roundtrip, every operation is timed.
const TIME_ALL_FROM_NS: u64 = 2_000;
/// With a shorter one, one in this many is timed. A power of two.
const TIME_ONE_IN: usize = 32;
/// The number of operations whose keys are touched together, before the first of them.
const BATCH: usize = 64;
/// The interval between progress reports.
const REPORT_EVERY: Duration = Duration::from_millis(200);

/// Runs the job.
pub(crate) fn run(job: &BenchJob, parent: &dyn ParentChannel) -> Result<Report, Failure> {
    let (ops, keys_then) = job.plan.operations();
    let keys = &Keys::new(keys_then, job.key_size);
    let pool = open_pool(Path::new(&job.pool))?;
    // The first access to a page costs the kernel's time, not the store's.
    pool.populate();
    let load = Load { job, keys, parent };
    let measure = Measure { job, keys, ops: &ops, parent, far: pool.is_far() };
    if job.rtt_ns == 0 {
        return run_system(&pool, job.system, keys_then, 0, Both { load, measure });
    }
    // Loading is not measured and needs no emulated delay.
    with_system(&pool, job.system, keys_then, |store| load.run(store))?;
    run_system(&pool, job.system, keys_then, job.rtt_ns, measure)
}

/// A client that both loads and is measured.
struct Both<'a> {
    load: Load<'a>,
    measure: Measure<'a>,
}

impl Task for Both<'_> {
    type Output = Report;

    fn run<F: Fabric, C: Clock, P: Protocol>(
        self,
        client: &Client<F, C, P>,
    ) -> Result<Report, Failure> {
        self.load.run(&Store::new(client))?;
        self.measure.run(client)
    }
}

/// Inserts this client's share of the keys, without any delay.
struct Load<'a> {
    job: &'a BenchJob,
    keys: &'a Keys,
    parent: &'a dyn ParentChannel,
}

impl Load<'_> {
    fn run(&self, store: &Store<'_>) -> Result<(), Failure> {
        let plan = &self.job.plan;
        let value = vec![b'.'; self.job.value_size];
        let mine = (plan.client..plan.keys).step_by(plan.clients);
        block_on(async {
            for key in mine {
                store.insert(self.keys.get(key), &value).await?;
            }
            Ok::<(), Error>(())
        })?;
        self.parent.send(Message::Loaded)?;
        self.parent.wait()?;
        Ok(())
    }
}

struct Measure<'a> {
    job: &'a BenchJob,
    keys: &'a Keys,
    ops: &'a [Op],
    parent: &'a dyn ParentChannel,
    /// Whether the pool is behind a network, which takes its own time.
    far: bool,
}

impl Task for Measure<'_> {
    type Output = Report;

    fn run<F: Fabric, C: Clock, P: Protocol>(
        self,
        client: &Client<F, C, P>,
    ) -> Result<Report, Failure> {
        self.warm_up(&Store::new(client))?;
        self.parent.send(Message::Ready)?;
        if let Order::Go { at_ns } = self.parent.wait()? {
            while monotonic_ns() < at_ns {
                std::hint::spin_loop();
            }
        }
        let before = client.counters();
        let lane = Lanes::new(self);
        let started_ns = monotonic_ns();
        block_on_all((0..lane.of.job.window).map(|_| lane.work(client)).collect())?;
        let ended_ns = monotonic_ns();
        let kinds = lane.meter.into_inner().kinds(client.counters() - before);
        Ok(Report { started_ns, ended_ns, kinds, ..Report::default() })
    }
}

impl Measure<'_> {
    /// Gets every key once, so that the client caches all locations.
    fn warm_up(&self, store: &Store<'_>) -> Result<(), Failure> {
        let next = Cell::new(0);
        // Long roundtrips overlap, so that a warm-up takes seconds, not minutes.
        let lanes = 1 + (self.job.rtt_ns / 10_000).min(255) as usize;
        let lane = async || {
            while next.get() < self.job.plan.keys {
                let key = next.replace(next.get() + 1);
                store.get(self.keys.get(key), |value| black_box(value.is_some())).await?;
            }
            Ok::<(), Error>(())
        };
        block_on_all((0..lanes).map(|_| lane()).collect())?;
        Ok(())
    }
}

/// The concurrent measured loops of one client, which share its operations.
struct Lanes<'a> {
    of: Measure<'a>,
    next: Cell<usize>,
    /// An operation is timed if its number has none of these bits.
    untimed: usize,
    meter: RefCell<Meter>,
    reported: Cell<Instant>,
}

impl<'a> Lanes<'a> {
    fn new(of: Measure<'a>) -> Self {
        let slow = of.far || of.job.rtt_ns >= TIME_ALL_FROM_NS;
        let untimed = if slow { 0 } else { TIME_ONE_IN - 1 };
        let meter = RefCell::new(Meter::new());
        Self { of, next: Cell::new(0), untimed, meter, reported: Cell::new(Instant::now()) }
    }

    async fn work<F: Fabric, C: Clock, P: Protocol>(
        &self,
        client: &Client<F, C, P>,
    ) -> Result<(), Failure> {
        let mut value = vec![b'.'; self.of.job.value_size];
        loop {
            let number = self.next.get();
            let Some(&op) = self.of.ops.get(number) else { return Ok(()) };
            self.next.set(number + 1);
            if number.is_multiple_of(BATCH) {
                self.look_at_keys(number);
            }
            let start = (number & self.untimed == 0).then(Instant::now);
            self.execute(client, op, number, &mut value).await?;
            if let Some(start) = start {
                let end = Instant::now();
                self.meter.borrow_mut().time(op.kind(), end - start);
                self.report_progress(number, end)?;
            }
        }
    }

    /// Loads the keys of a batch into the processor's cache: a program has its keys there, this
    /// loop has them in memory.
    fn look_at_keys(&self, from: usize) {
        let ops = &self.of.ops[from..self.of.ops.len().min(from + BATCH)];
        let ends = ops.iter().map(|op| {
            let key = self.of.keys.get(op.key());
            usize::from(key[0]) + usize::from(key[key.len() - 1])
        });
        black_box(ends.sum::<usize>());
    }

    #[inline]
    async fn execute<F: Fabric, C: Clock, P: Protocol>(
        &self,
        client: &Client<F, C, P>,
        op: Op,
        number: usize,
        value: &mut [u8],
    ) -> Result<(), Error> {
        let key = self.of.keys.get(op.key());
        match op.kind() {
            Kind::Get => {
                let value = client.get(key).await?;
                black_box(value.as_deref().map(<[u8]>::first).is_some());
            }
            Kind::Update => {
                stamp(value, number);
                client.update(key, value).await?;
            }
            Kind::Insert => {
                stamp(value, number);
                client.insert(key, value).await?;
            }
            Kind::ReadModifyWrite => {
                {
                    let read = client.get(key).await?;
                    let read = read.as_deref().unwrap_or_default();
                    value.fill(0);
                    let length = read.len().min(value.len());
                    value[..length].copy_from_slice(&read[..length]);
                }
                let got = client.last();
                stamp(value, number);
                client.update(key, value).await?;
                self.meter.borrow_mut().both(got, client.last());
            }
        }
        Ok(())
    }

    fn report_progress(&self, number: usize, now: Instant) -> Result<(), Failure> {
        if !self.of.job.progress || now - self.reported.get() < REPORT_EVERY {
            return Ok(());
        }
        self.reported.set(now);
        self.of.parent.send(Message::Progress { at_ns: monotonic_ns(), done: number as u64 })
    }
}

/// Changes the value.
#[inline]
fn stamp(value: &mut [u8], number: usize) {
    if let Some(head) = value.first_chunk_mut() {
        *head = number.to_le_bytes();
    }
}

struct Meter {
    histograms: [Histogram<u64>; Kind::ALL.len()],
    /// The cost of read-modify-writes as a whole, and the part of their gets and updates.
    both: KindCounters,
    gets: KindCounters,
    updates: KindCounters,
}

impl Meter {
    fn new() -> Self {
        Self {
            histograms: std::array::from_fn(|_| new_histogram()),
            both: KindCounters::default(),
            gets: KindCounters::default(),
            updates: KindCounters::default(),
        }
    }

    fn time(&mut self, kind: Kind, latency: Duration) {
        self.histograms[kind as usize].saturating_record(latency.as_nanos() as u64);
    }

    fn both(&mut self, get: OpCost, update: OpCost) {
        count(&mut self.gets, get);
        count(&mut self.updates, update);
        count(&mut self.both, get + update);
    }

    /// Returns the cost of each kind that ran, from the client's `counters`.
    fn kinds(self, counters: Counters) -> BTreeMap<Kind, KindReport> {
        let counts =
            [counters.get - self.gets, counters.update - self.updates, counters.insert, self.both];
        let kinds = Kind::ALL.into_iter().zip(counts).zip(&self.histograms);
        let mut reports = BTreeMap::new();
        for ((kind, count), histogram) in kinds.filter(|((_, count), _)| count.operations > 0) {
            reports.insert(kind, describe(&count, histogram));
        }
        reports
    }
}

fn count(count: &mut KindCounters, tally: OpCost) {
    count.operations += 1;
    let last = count.roundtrips.len() - 1;
    count.roundtrips[last.min(tally.roundtrips as usize)] += 1;
    count.verbs += tally.verbs;
    count.bytes += tally.bytes;
}
