//! The history of a soak, window by window.
//!
//! **Invariant:** the logs of one window are a complete history. Each window has keys of its own,
//! which are absent at first, so it is checked by itself and then dropped: a soak of a day takes no
//! more memory than one of a minute. A window is over once every client is in a later one or has
//! ended.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};

use hdrhistogram::Histogram;
use swarm_core::history::{Answer, Call};
use swarm_worker::history::History;
use swarm_worker::hot_keys::{RTT_NS, key_name};
use swarm_worker::job::new_histogram;
use swarm_worker::pool::Pool;
use swarm_worker::soak::{HOT_KEYS, WINDOW_NS, run_of};
use swarm_worker::store::with_emulated;
use swarm_worker::torture_log::take;

use crate::common::exit::Failure;
use crate::common::hot_keys::FinalReads;
use crate::common::verdict::{Verdict, judge_quietly};

/// The number of windows in a minute.
const MINUTE: usize = (60_000_000_000 / WINDOW_NS) as usize;

/// The times of gets and updates in one window.
#[derive(Clone)]
pub(crate) struct Times {
    pub(crate) gets: Histogram<u64>,
    pub(crate) updates: Histogram<u64>,
}

impl Times {
    fn new() -> Self {
        Self { gets: new_histogram(), updates: new_histogram() }
    }

    /// Collects the times of operations that found their key.
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

    /// Returns the sum of all.
    pub(crate) fn sum<'t>(all: impl Iterator<Item = &'t Self>) -> Self {
        all.fold(Self::new(), |mut sum, times| {
            // The histograms have the same bounds.
            let added =
                sum.gets.add(&times.gets).is_ok() && sum.updates.add(&times.updates).is_ok();
            debug_assert!(added, "histograms of one kind");
            sum
        })
    }
}

/// A summary of the windows that are over.
#[derive(Default)]
pub(crate) struct Windows {
    /// The number of checked windows, and so the number of the next one.
    pub(crate) judged: u64,
    /// Operations in them.
    pub(crate) operations: u64,
    /// The first windows, except the very first, in which nothing is cached; and the last ones.
    first: Vec<Times>,
    last: VecDeque<Times>,
    /// The first window that is not linearizable.
    pub(crate) wrong: Option<(u64, History, Verdict)>,
}

impl Windows {
    /// Checks the next window, with the logs of all clients up to `clients`, and drops it.
    pub(crate) fn check(
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
        let look = FinalReads {
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
        // One more than needed, because the very last is skipped.
        while self.last.len() > MINUTE + 1 {
            self.last.pop_front();
        }
        self.judged += 1;
        Ok(())
    }

    /// Returns the times of the first and the last minute or, in a run shorter than ten minutes, of
    /// the first and last tenth. `None` for fewer than three windows.
    pub(crate) fn first_and_last(&self) -> Option<(Times, Times)> {
        if self.judged < 3 {
            return None;
        }
        let count = (self.judged as usize / 10).clamp(1, MINUTE);
        let first = Times::sum(self.first.iter().take(count));
        // The very last window is shorter than the others, and clients leave in it.
        let last = Times::sum(self.last.iter().rev().skip(1).take(count));
        Some((first, last))
    }
}

/// Returns the logs of a window, and their clients.
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
