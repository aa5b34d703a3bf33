//! The result of a soak, as text and as JSON.

use std::path::Path;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use swarm_worker::job::SoakTally;

use crate::common::busy::Busy;
use crate::common::exit::{Answer, Failure, print_line};
use crate::common::units::{count, show_ns, show_rate, show_size};
use crate::soak::memory::{MOST_GROWTH, Memory, Trend};
use crate::soak::windows::Windows;
use swarm_worker::soak::WINDOW_NS;

/// The share by which medians at the end may be slower than at first.
const SLOWER: f64 = 0.10;

/// The result of a run.
pub(crate) struct SoakResult<'a> {
    pub(crate) pool: &'a Path,
    pub(crate) seconds: f64,
    pub(crate) capacity: u64,
    /// How often the capacity was written.
    pub(crate) times: f64,
    /// How often it was planned to be.
    pub(crate) turnover: u64,
    pub(crate) tally: SoakTally,
    pub(crate) clients: u32,
    pub(crate) kills: u64,
    pub(crate) left: u64,
    pub(crate) windows: Windows,
    pub(crate) samples: usize,
    pub(crate) memory: Option<Memory>,
    pub(crate) busy: Option<Busy>,
}

/// The time of an operation at first and at last.
#[derive(Clone, Copy)]
struct Pace {
    first_ns: u64,
    last_ns: u64,
}

impl Pace {
    fn of((first, last): (&Histogram<u64>, &Histogram<u64>)) -> Option<Self> {
        let median = |times: &Histogram<u64>| times.value_at_quantile(0.5);
        let enough = !first.is_empty() && !last.is_empty();
        enough.then(|| Self { first_ns: median(first), last_ns: median(last) })
    }

    fn change(self) -> f64 {
        self.last_ns as f64 / self.first_ns.max(1) as f64 - 1.0
    }

    fn holds(self) -> bool {
        self.change() <= SLOWER
    }
}

/// The outcome of a check.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Good,
    Failed,
    /// It failed, but the machine was busy, which slows operations without the store's fault.
    Open,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Failed => "FAILED",
            Self::Open => "open",
        }
    }
}

impl From<bool> for Outcome {
    fn from(good: bool) -> Self {
        if good { Self::Good } else { Self::Failed }
    }
}

/// A check: its name, its outcome and its text.
struct Check {
    name: &'static str,
    result: Outcome,
    text: String,
}

impl SoakResult<'_> {
    fn paces(&self) -> [(&'static str, Option<Pace>); 2] {
        let times = self.windows.first_and_last();
        let times = times.as_ref();
        let pace = |pick: fn(&crate::soak::windows::Times) -> &Histogram<u64>| {
            times.and_then(|(first, last)| Pace::of((pick(first), pick(last))))
        };
        [("get", pace(|times| &times.gets)), ("update", pace(|times| &times.updates))]
    }

    fn checks(&self) -> Vec<Check> {
        let Self { tally, windows, .. } = self;
        let mut checks = vec![
            Check {
                name: "volume",
                result: (self.times >= self.turnover as f64).into(),
                text: format!(
                    "{} written, {:.1} times the capacity (at least {} times)",
                    show_size(tally.bytes),
                    self.times,
                    self.turnover
                ),
            },
            Check {
                name: "never full",
                result: (tally.full == 0).into(),
                text: format!("{} refused because the pool was full", count(tally.full, "write")),
            },
            Check {
                name: "histories",
                result: windows.wrong.is_none().into(),
                text: match &windows.wrong {
                    None => format!(
                        "linearizable: {} in {} of {}",
                        count(windows.operations, "operation"),
                        count(windows.judged, "window"),
                        show_ns(WINDOW_NS),
                    ),
                    Some((window, ..)) => format!("NOT linearizable: window {window}"),
                },
            },
            Check {
                name: "values",
                result: (tally.damaged == 0).into(),
                text: match tally.damaged {
                    0 => "all that were read are whole".to_owned(),
                    damaged => format!("{} damaged", count(damaged, "value")),
                },
            },
        ];
        checks.extend(self.memory_checks());
        checks.extend(self.paces().map(|(name, pace)| Check {
            name: if name == "get" { "get median" } else { "update median" },
            result: self.of_times(pace.is_some_and(Pace::holds)),
            text: pace.map_or("too few to tell".to_owned(), |pace| {
                format!(
                    "{} at first, {} at last: {:+.1} % (at most {:.0} %)",
                    show_ns(pace.first_ns),
                    show_ns(pace.last_ns),
                    100.0 * pace.change(),
                    100.0 * SLOWER
                )
            }),
        }));
        checks
    }

    /// Returns the outcome of a check of times.
    fn of_times(&self, good: bool) -> Outcome {
        if !good && self.busy.is_some_and(Busy::is_busy) { Outcome::Open } else { good.into() }
    }

    /// Checks memory. Allocated objects have a check of their own: in a small pool, all chunks soon
    /// have an owner.
    fn memory_checks(&self) -> [Check; 2] {
        let check = |name, what, pick: fn(Memory) -> Trend| Check {
            name,
            result: self.memory.is_some_and(|memory| pick(memory).is_flat()).into(),
            text: self.memory.map_or("too few samples to tell".to_owned(), |memory| {
                format!(
                    "{} (flat is up to {:+.0} %, after the first {:.0} s)",
                    show_trend(pick(memory), what),
                    100.0 * MOST_GROWTH,
                    memory.warm_up_s
                )
            }),
        };
        [
            check("memory", "in chunks", |memory| memory.used),
            check("allocated", "in objects", |memory| memory.allocated),
        ]
    }

    /// Prints the result, and returns whether all checks passed.
    pub(crate) fn print(&self, json: bool) -> Result<Answer, Failure> {
        let checks = self.checks();
        let came_to = |outcome| checks.iter().any(|check| check.result == outcome);
        let answer = match (came_to(Outcome::Failed), came_to(Outcome::Open)) {
            (true, _) => Answer::No,
            (false, true) => Answer::Unclear,
            (false, false) => Answer::Yes,
        };
        let printed = if json { print_line(self.json(&checks)) } else { self.table(&checks) };
        match printed {
            Ok(()) | Err(Failure::OutputClosed) => Ok(answer),
            Err(failure) => Err(failure),
        }
    }

    fn table(&self, checks: &[Check]) -> Result<(), Failure> {
        let operations = self.tally.operations;
        let rate = show_rate(operations as f64 / self.seconds.max(1e-9));
        print_line(format_args!(
            "{}: {:.1} s, {}, {rate}; {} came, {} were killed, {} left",
            self.pool.display(),
            self.seconds,
            count(operations, "operation"),
            count(u64::from(self.clients), "client"),
            self.kills,
            self.left
        ))?;
        if let Some((_, history, verdict)) = &self.windows.wrong {
            verdict.print_line(history)?;
        }
        for Check { name, result, text } in checks {
            print_line(format_args!("  {name:<15}{:<8}{text}", result.name()))?;
        }
        self.busy
            .and_then(Busy::printed)
            .map_or(Ok(()), |busy| print_line(format_args!("  {busy}")))
    }

    fn json(&self, checks: &[Check]) -> Value {
        let Self { tally, windows, .. } = self;
        let with = |result| {
            let checks = checks.iter().filter(move |check| check.result == result);
            checks.map(|check| check.name).collect::<Vec<_>>()
        };
        let failed = with(Outcome::Failed);
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
        let open = with(Outcome::Open);
        let ok = if failed.is_empty() && !open.is_empty() { None } else { Some(failed.is_empty()) };
        put("ok", json!(ok));
        put("failed", json!(failed));
        put("open", json!(open));
        put("machine", self.busy.map_or(Value::Null, Busy::json));
        put("seconds", json!(self.seconds));
        put("operations", json!(tally.operations));
        put("capacity_bytes", json!(self.capacity));
        put("written_bytes", json!(tally.bytes));
        put("times_capacity", json!(self.times));
        put("clients", json!(self.clients));
        put("kills", json!(self.kills));
        put("left", json!(self.left));
        put("full", json!(tally.full));
        put("damaged", json!(tally.damaged));
        put("linearizable", json!(windows.wrong.is_none()));
        put("windows", json!(windows.judged));
        put("checked_operations", json!(windows.operations));
        let wrong = windows.wrong.as_ref();
        put("wrong", json!(wrong.map(|(_, history, verdict)| verdict.json(history))));
        put("memory", self.memory.map_or(Value::Null, |memory| memory_json(memory, self.samples)));
        for (name, pace) in self.paces() {
            put(name, pace.map_or(Value::Null, pace_json));
        }
        Value::Object(object)
    }
}

fn show_trend(Trend { last, slope, growth, at_least }: Trend, what: &str) -> String {
    let at_least = match at_least {
        Some(at_least) => format!("at least {:+.1} % but for chance", 100.0 * at_least),
        None => "too short a run to tell".to_owned(),
    };
    let (last, growth) = (show_size(last), 100.0 * growth);
    format!("{last} {what}, {slope:+.0} B/s, {growth:+.1} %, {at_least}")
}

fn memory_json(memory: Memory, samples: usize) -> Value {
    let trend = |Trend { last, slope, growth, at_least }: Trend| json!({ "bytes": last, "bytes_per_second": slope, "growth": growth, "growth_lower_end": at_least });
    json!({
        "flat": memory.is_flat(),
        "most_growth": MOST_GROWTH,
        "samples": samples,
        "warm_up_seconds": memory.warm_up_s,
        "used": trend(memory.used),
        "allocated": trend(memory.allocated),
    })
}

fn pace_json(pace: Pace) -> Value {
    json!({
        "first_ns": pace.first_ns,
        "last_ns": pace.last_ns,
        "change": pace.change(),
        "most_change": SLOWER,
        "ok": pace.holds(),
    })
}
