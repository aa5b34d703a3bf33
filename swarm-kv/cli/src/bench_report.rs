//! What a bench brought, for people and for programs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};
use swarm_worker::job::{KindReport, Report};
use swarm_worker::workload::Kind;

use super::args::BenchArgs;
use super::busy::Busy;
use super::outcome::Failure;
use super::units::{count, show_ns, show_rate};

/// What all clients did together.
pub(crate) struct Measured<'a> {
    args: &'a BenchArgs,
    nodes: usize,
    seconds: f64,
    busy: Option<Busy>,
    kinds: BTreeMap<Kind, KindReport>,
}

impl<'a> Measured<'a> {
    /// Adds the clients up. The time is from the first one's start to the last one's end.
    pub(crate) fn new(
        args: &'a BenchArgs,
        nodes: usize,
        reports: &[Report],
        busy: Option<Busy>,
    ) -> Self {
        let started = reports.iter().map(|report| report.started_ns).min().unwrap_or(0);
        let ended = reports.iter().map(|report| report.ended_ns).max().unwrap_or(0);
        let seconds = ended.saturating_sub(started).max(1) as f64 / 1e9;
        Self { args, nodes, seconds, busy, kinds: merge(reports) }
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
            "{:<18}{:>10}{:>12}{:>12}{:>12}{:>12}{:>11}",
            "", "count", "p50", "p99", "p99.9", "max", "1 rtt"
        )?;
        for (kind, report) in &self.kinds {
            let latencies = report.histogram();
            writeln!(
                out,
                "{:<18}{:>10}{:>12}{:>12}{:>12}{:>12}{:>9.2} %",
                kind.name().replace('_', "-"),
                report.count,
                show_ns(latencies.value_at_quantile(0.5)),
                show_ns(latencies.value_at_quantile(0.99)),
                show_ns(latencies.value_at_quantile(0.999)),
                show_ns(latencies.max()),
                100.0 * report.one_roundtrip(),
            )?;
        }
        self.busy.and_then(Busy::said).map_or(Ok(()), |busy| writeln!(out, "\n{busy}"))
    }
}

/// Adds up what clients did, by kind.
pub(crate) fn merge(reports: &[Report]) -> BTreeMap<Kind, KindReport> {
    let mut kinds: BTreeMap<Kind, KindReport> = BTreeMap::new();
    for (&kind, report) in reports.iter().flat_map(|report| &report.kinds) {
        kinds.entry(kind).or_default().add(report);
    }
    kinds
}

fn kind_json(report: &KindReport) -> Value {
    let latencies = report.histogram();
    let at = |quantile| Histogram::value_at_quantile(&latencies, quantile);
    json!({
        "count": report.count,
        "p1_ns": at(0.01),
        "p50_ns": at(0.5),
        "p99_ns": at(0.99),
        "p999_ns": at(0.999),
        "max_ns": latencies.max(),
        "roundtrips": report.roundtrips,
        "verbs": report.verbs,
        "bytes": report.bytes,
    })
}

/// Prints what was measured.
pub(crate) fn print(measured: &Measured<'_>, json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json { writeln!(out, "{}", measured.json()) } else { measured.table(&mut out) }
        .map_err(|error| Failure::output(&error))
}
