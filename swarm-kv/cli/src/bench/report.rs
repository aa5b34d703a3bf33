//! The result of a bench, as text and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use swarm_worker::job::{KindReport, Report};
use swarm_worker::workload::Kind;

use crate::bench::args::BenchArgs;
use crate::common::busy::Busy;
use crate::common::exit::Failure;
use crate::common::kinds::merge;
use crate::common::units::{count, show_measured, show_ns, show_rate};

/// The sum of all clients' results.
pub(crate) struct Measured<'a> {
    args: &'a BenchArgs,
    nodes: usize,
    seconds: f64,
    busy: Option<Busy>,
    kinds: BTreeMap<Kind, KindReport>,
}

impl<'a> Measured<'a> {
    /// Sums up the clients' results. The time is from the first one's start to the last one's end.
    pub(crate) fn new(
        args: &'a BenchArgs,
        nodes: usize,
        reports: &[Report],
        busy: Option<Busy>,
    ) -> Self {
        let started = reports.iter().map(|report| report.started_ns).min().unwrap_or(0);
        let ended = reports.iter().map(|report| report.ended_ns).max().unwrap_or(0);
        let seconds = ended.saturating_sub(started).max(1) as f64 / 1e9;
        let kinds = merge(reports.iter().map(|report| &report.kinds));
        Self { args, nodes, seconds, busy, kinds }
    }

    fn ops(&self) -> u64 {
        self.kinds.values().map(|kind| kind.count).sum()
    }

    fn throughput(&self) -> f64 {
        self.ops() as f64 / self.seconds
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("system".into(), json!(self.args.system));
        object.insert("workload".into(), json!(self.args.workload));
        object.insert("clients".into(), json!(self.args.clients));
        object.insert("nodes".into(), json!(self.nodes));
        object.insert("ops".into(), json!(self.ops()));
        object.insert("seconds".into(), json!(self.seconds));
        object.insert("throughput".into(), json!(self.throughput()));
        for (kind, report) in &self.kinds {
            object.insert(kind.name().into(), kind_json(report));
        }
        object.insert("machine".into(), self.busy.map_or(Value::Null, Busy::json));
        Value::Object(object)
    }

    fn table(&self, out: &mut impl Write) -> io::Result<()> {
        let args = self.args;
        let network = match &args.pool {
            Some(pool) if pool.as_os_str().as_encoded_bytes().starts_with(b"rdma:") => {
                "over RDMA".to_owned()
            }
            _ if args.rtt.is_zero() => "no emulated network".to_owned(),
            _ => format!("rtt {}", show_ns(args.rtt.as_nanos() as u64)),
        };
        writeln!(
            out,
            "{:?}, workload {:?}: {}, {}, {}, {network}",
            args.system,
            args.workload,
            count(args.clients as u64, "client"),
            count(self.nodes as u64, "memory node"),
            count(args.keys as u64, "key"),
        )?;
        writeln!(
            out,
            "{} in {:.2} s: {}\n",
            count(self.ops(), "operation"),
            self.seconds,
            show_rate(self.throughput())
        )?;
        writeln!(
            out,
            "{:<17}{:>10}{:>11}{:>11}{:>11}{:>11}{:>9}",
            "", "count", "p50", "p99", "p99.9", "max", "1 rtt"
        )?;
        for (kind, report) in &self.kinds {
            let [p50, p99, p999, max] =
                [0.5, 0.99, 0.999, 1.0].map(|quantile| report.latency(quantile));
            writeln!(
                out,
                "{:<17}{:>10}{:>11}{:>11}{:>11}{:>11}{:>7.2} %",
                kind.name().replace('_', "-"),
                report.count,
                show_measured(p50),
                show_measured(p99),
                show_measured(p999),
                show_measured(max),
                100.0 * report.one_roundtrip(),
            )?;
        }
        if self.kinds.values().any(|report| report.latency(1.0).is_none()) {
            writeln!(out, "-: none of so few was timed; give more --ops")?;
        }
        self.busy.and_then(Busy::printed).map_or(Ok(()), |busy| writeln!(out, "\n{busy}"))
    }
}

fn kind_json(report: &KindReport) -> Value {
    let at = |quantile| report.latency(quantile);
    json!({
        "count": report.count,
        "p1_ns": at(0.01),
        "p50_ns": at(0.5),
        "p99_ns": at(0.99),
        "p999_ns": at(0.999),
        "max_ns": at(1.0),
        "roundtrips": report.roundtrips,
        "verbs": report.verbs,
        "bytes": report.bytes,
    })
}

/// Prints the result.
pub(crate) fn print(measured: &Measured<'_>, json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json { writeln!(out, "{}", measured.json()) } else { measured.table(&mut out) }
        .map_err(|error| Failure::output(&error))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn what_was_not_measured_is_no_zero_and_lines_fit_a_terminal() {
        let Command::Bench(args) = Cli::parse_from(["swarm", "bench"]).command else {
            panic!("another command")
        };
        let count = 1_000_000_000;
        let slow = 999_990;
        let timed = KindReport { count, latencies: vec![(slow, count)], ..KindReport::default() };
        let kinds = [
            (Kind::Get, KindReport { roundtrips: [(1, count)].into(), ..timed.clone() }),
            (Kind::Update, timed),
            (Kind::ReadModifyWrite, KindReport { count: 3, ..KindReport::default() }),
        ];
        let report = Report { kinds: kinds.into(), ended_ns: 1, ..Report::default() };
        let measured = Measured::new(&args, 3, &[report], None);
        let mut table = Vec::new();
        measured.table(&mut table).expect("memory");
        let table = String::from_utf8(table).expect("text");
        assert!(!table.contains("0 ns") && table.contains("-: none"), "{table}");
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(measured.json()["read_modify_write"]["p50_ns"].is_null());
    }
}
