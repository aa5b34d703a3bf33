//! A client of the demo. It runs YCSB B, one operation at a time, until the time is over or it is
//! killed.

use hdrhistogram::Histogram;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use swarm_kv::{Counters, Error, block_on};

use crate::demo_log::{Acknowledged, Log, Tag};
use crate::distribution::{Distribution, Picker};
use crate::job::{DemoJob, Message, Order, Report, describe, monotonic_ns, new_histogram};
use crate::parent::REPORT_EVERY_NS;
use crate::store::{Store, open_pool, with_emulated};
use crate::workload::{Kind, Mix};
use crate::{Failure, ParentChannel};

/// The shortest gap between completed operations that is reported.
pub const GAP_FLOOR_NS: u64 = 20_000;
/// The most gaps that are reported.
const MAX_GAPS: usize = 1 << 17;

/// Runs the job.
pub(crate) fn run(job: &DemoJob, parent: &dyn ParentChannel) -> Result<Report, Failure> {
    let pool = open_pool(&job.pool)?;
    let demo = Demo { job, parent };
    with_emulated(&pool, job.keys as usize, job.rtt_ns, |store| demo.run(store))
}

/// Returns a key's name.
pub fn key_name(key: u32) -> [u8; 24] {
    let mut name = *b"user00000000000000000000";
    let digits = format!("{key:020}");
    name[4..].copy_from_slice(digits.as_bytes());
    name
}

struct Demo<'a> {
    job: &'a DemoJob,
    parent: &'a dyn ParentChannel,
}

impl Demo<'_> {
    fn run(&self, store: &Store<'_>) -> Result<Report, Failure> {
        let failed = |error| Failure::because("cannot write the log", error);
        let mut log = Log::create(&self.job.log).map_err(failed)?;
        let keys: Vec<_> = (0..self.job.keys).map(key_name).collect();
        for key in &keys {
            block_on(store.get(key, |_| ()))?;
        }
        self.parent.send(Message::Ready)?;
        let mut started_ns = monotonic_ns();
        if let Order::Go { at_ns } = self.parent.wait()? {
            started_ns = at_ns;
        }
        while monotonic_ns() < started_ns {
            std::hint::spin_loop();
        }
        self.work(store, &keys, &mut log, started_ns)
    }

    fn work(
        &self,
        store: &Store<'_>,
        keys: &[[u8; 24]],
        log: &mut Log,
        started_ns: u64,
    ) -> Result<Report, Failure> {
        let mut rng = SmallRng::seed_from_u64(u64::from(self.job.client));
        let mut picker = Picker::new(Distribution::Zipfian, keys.len());
        let (gets, _) = Mix::B.shares();
        // For each half of the time, as the failures lie between them: gets, and updates.
        let mut histograms = [(); 2].map(|()| [new_histogram(), new_histogram()]);
        let mut report = Report { started_ns, ..Report::default() };
        let before = store.counters();
        let until = started_ns + self.job.seconds * 1_000_000_000;
        let (half, mut between) = (started_ns + self.job.seconds * 500_000_000, None);
        let (mut done, mut reported, mut last) = (0, started_ns, started_ns);
        while last < until {
            let key = picker.loaded(&mut rng) as u32;
            let name = &keys[key as usize];
            let update = rng.random_range(0..100) >= gets;
            let start = monotonic_ns();
            if start >= half && between.is_none() {
                between = Some(store.counters());
            }
            if update {
                let tag = Tag { client: self.job.client, number: log.next(), key };
                if !block_on(store.update(name, &tag.value()))? {
                    return Err(Failure::Failed(format!("key {key} has vanished")));
                }
            } else {
                block_on(look(store, name, key))??;
            }
            let end = monotonic_ns();
            if update {
                log.note(Acknowledged { key, start_ns: start, end_ns: end })
                    .map_err(|error| Failure::because("cannot write the log", error))?;
            }
            done += 1;
            histograms[usize::from(start >= half)][usize::from(update)]
                .saturating_record(end - start);
            if end - last > GAP_FLOOR_NS && report.gaps.len() < MAX_GAPS {
                report.gaps.push((last, end));
            }
            if end - reported > REPORT_EVERY_NS {
                reported = end;
                self.parent.send(Message::Progress { at_ns: end, done })?;
            }
            last = end;
        }
        let after = store.counters();
        let between = between.unwrap_or(after);
        let kinds = |counters: Counters, [gets, updates]: &[Histogram<u64>; 2]| {
            let get = describe(&counters.get, gets);
            [(Kind::Get, get), (Kind::Update, describe(&counters.update, updates))].into()
        };
        report.ended_ns = last;
        report.kinds = kinds(between - before, &histograms[0]);
        report.later = kinds(after - between, &histograms[1]);
        Ok(report)
    }
}

/// Checks that a key exists and has a value that was written to it.
async fn look(store: &Store<'_>, name: &[u8], key: u32) -> Result<Result<(), Failure>, Error> {
    store
        .get(name, |value| match value.map(Tag::parse) {
            None => Err(Failure::Failed(format!("key {key} has vanished"))),
            Some(Some(tag)) if tag.key == key => Ok(()),
            Some(_) => Err(Failure::Failed(format!("key {key} holds what was never written"))),
        })
        .await
}
