//! The history of a soak, window by window.
//!
//! The invariant: *what is on record of one window is a whole history*. Each window has keys of its
//! own, absent at first, so that it is judged by itself, and forgotten: a soak of a day takes no more
//! memory than one of a minute. A window is over once every client is in a later one or has ended.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;
use swarm_core::history::{Answer, Call};
use swarm_worker::history::History;
use swarm_worker::job::new_histogram;
use swarm_worker::pool::Pool;
use swarm_worker::soak::{HOT_KEYS, WINDOW_NS, run_of};
use swarm_worker::store::with_emulated;
use swarm_worker::torture::{RTT_NS, key_name};
use swarm_worker::torture_log::take;

use super::check::{Verdict, judge_quietly};
use super::outcome::Failure;
use super::torture_keys::LastLook;

/// Windows of a minute.
const MINUTE: usize = (60_000_000_000 / WINDOW_NS) as usize;

/// How long gets and updates took in one window.
#[derive(Clone)]
pub(crate) struct Times {
    pub(crate) gets: Histogram<u64>,
    pub(crate) updates: Histogram<u64>,
}

impl Times {
    fn new() -> Self {
        Self { gets: new_histogram(), updates: new_histogram() }
    }

    /// The times of operations that found their key.
    fn of(history: &History) -> Self {
        let mut times = Self::new();
        for op in &history.operations {
            let Some((at, answer)) = op.answered else { continue };
            let histogram = match (op.call, answer) {
                (Call::Get, Answer::Value(Some(_))) => &mut times.gets,
                (Call::Update(_), Answer::Done) => &mut times.updates,
                _ => continue,
            };
            histogram.saturating_record(at - op.called);
        }
        times
    }

    /// All of them together.
    pub(crate) fn sum<'t>(all: impl Iterator<Item = &'t Self>) -> Self {
        all.fold(Self::new(), |mut sum, times| {
            // They have the same bounds.
            let added =
                sum.gets.add(&times.gets).is_ok() && sum.updates.add(&times.updates).is_ok();
            debug_assert!(added, "histograms of one kind");
            sum
        })
    }
}

/// The windows that are over, as far as they are worth knowing.
#[derive(Default)]
pub(crate) struct Windows {
    /// How many were judged: the number of the next one.
    pub(crate) judged: u64,
    /// Operations in them.
    pub(crate) operations: u64,
    /// The first ones, but for the very first, in which nothing is cached; and the last.
    first: Vec<Times>,
    last: VecDeque<Times>,
    /// The first one that was wrong.
    pub(crate) wrong: Option<(u64, History, Verdict)>,
}

impl Windows {
    /// Judges the next window, with the logs of all clients up to `clients`, and forgets it.
    pub(crate) fn judge(
        &mut self,
        pool: &Pool,
        logs: &Path,
        run: &str,
        clients: u32,
    ) -> Result<(), Failure> {
        let window = self.judged;
        let mut history = History::default();
        let run = run_of(run, window);
        for key in 0..HOT_KEYS {
            history.keys.number(key_name(&run, key));
        }
        for (path, client) in logs_of(logs, window)? {
            take(&mut history, &path, client)?;
            fs::remove_file(&path).map_err(|error| {
                Failure::because(format!("cannot remove {}", path.display()), error)
            })?;
        }
        let times = Times::of(&history);
        let look = LastLook {
            keys: HOT_KEYS,
            run: &run,
            client: clients,
            delete: true,
            history: &mut history,
        };
        with_emulated(pool, HOT_KEYS as usize, RTT_NS, |store| look.run(store))?;
        history.operations.sort_by_key(|op| op.called);
        self.operations += history.operations.len() as u64;
        let verdict = judge_quietly(&history, |_| {})?;
        if !verdict.is_good() && self.wrong.is_none() {
            self.wrong = Some((window, history, verdict));
        }
        if window > 0 && self.first.len() < MINUTE {
            self.first.push(times.clone());
        }
        self.last.push_back(times);
        // One more than are looked at, as the very last is not.
        while self.last.len() > MINUTE + 1 {
            self.last.pop_front();
        }
        self.judged += 1;
        Ok(())
    }

    /// The times of the first minute and of the last or, where it was over sooner than in ten minutes,
    /// of the first and last tenth; nothing of less than three windows.
    pub(crate) fn first_and_last(&self) -> Option<(Times, Times)> {
        if self.judged < 3 {
            return None;
        }
        let count = (self.judged as usize / 10).clamp(1, MINUTE);
        let first = Times::sum(self.first.iter().take(count));
        // The very last one is shorter than the others, and clients leave in it.
        let last = Times::sum(self.last.iter().rev().skip(1).take(count));
        Some((first, last))
    }
}

/// The logs of a window, and whose they are.
fn logs_of(logs: &Path, window: u64) -> Result<Vec<(PathBuf, u32)>, Failure> {
    let failed = |error| Failure::because(format!("cannot read {}", logs.display()), error);
    let prefix = format!("log-{window}-");
    let mut found = Vec::new();
    for entry in fs::read_dir(logs).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let client = name.to_string_lossy().strip_prefix(&prefix).and_then(|n| n.parse().ok());
        found.extend(client.map(|client| (entry.path(), client)));
    }
    Ok(found)
}
