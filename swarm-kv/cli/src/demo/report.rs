//! The result of the demo, as text and as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use swarm_worker::demo::GAP_FLOOR_NS;
use swarm_worker::job::{KindReport, Report};
use swarm_worker::workload::Kind;

use crate::common::busy::Busy;
use crate::common::exit::Failure;
use crate::common::kinds::merge;
use crate::common::units::{count, show_measured, show_ns, show_rate};
use crate::demo::verdict::Verdict;

/// The result of the demo.
pub(crate) struct Summary {
    /// Results of the clients that were not killed, before the failures.
    pub(crate) before: BTreeMap<Kind, KindReport>,
    /// Their results after the failures.
    pub(crate) after: BTreeMap<Kind, KindReport>,
    /// The emulated roundtrip.
    pub(crate) rtt_ns: u64,
    /// Operations of all clients, including the killed one.
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    pub(crate) keys: u32,
    /// Operations in each step of time.
    pub(crate) steps: Vec<u64>,
    /// The step of the failures.
    pub(crate) failed_at: usize,
    pub(crate) widest_gap_ns: u64,
    pub(crate) frozen_node: u8,
    pub(crate) killed_client: usize,
    pub(crate) busy: Option<Busy>,
    pub(crate) verdict: Verdict,
}

/// Returns the longest time in which no client completed an operation, at least [`GAP_FLOOR_NS`].
pub(crate) fn widest_gap(reports: &[Report]) -> u64 {
    let Some((first, others)) = reports.split_first() else { return 0 };
    let mut common = first.gaps.clone();
    for report in others {
        common = intersect(&common, &report.gaps);
    }
    common.iter().map(|(from, to)| to - from).max().unwrap_or(0).max(GAP_FLOOR_NS)
}

/// Intersects two sorted lists of disjoint intervals.
fn intersect(a: &[(u64, u64)], b: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut i, mut j, mut both) = (0, 0, Vec::new());
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let (from, to) = (x.0.max(y.0), x.1.min(y.1));
        if from < to {
            both.push((from, to));
        }
        if x.1 < y.1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

/// Prints the result.
pub(crate) fn print(summary: &Summary, json: bool) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    if json { writeln!(out, "{}", summary.json()) } else { summary.table(&mut out) }
        .map_err(|error| Failure::output(&error))
}

impl Summary {
    fn throughput(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("ok".into(), json!(self.verdict.lost.is_empty()));
        object.insert("acknowledged_writes".into(), json!(self.verdict.acknowledged));
        object.insert("lost".into(), json!(self.verdict.lost.len()));
        object.insert("operations".into(), json!(self.operations));
        object.insert("seconds".into(), json!(self.seconds));
        object.insert("throughput".into(), json!(self.throughput()));
        object.insert("widest_gap_ns".into(), json!(self.widest_gap_ns));
        for (kind, report) in merge([&self.before, &self.after].into_iter()) {
            object.insert(kind.name().into(), kind_json(&report));
        }
        for (when, kinds) in [("before", &self.before), ("after", &self.after)] {
            let kinds: Map<_, _> = kinds
                .iter()
                .map(|(kind, report)| (kind.name().to_owned(), kind_json(report)))
                .collect();
            object.insert(when.into(), kinds.into());
        }
        object.insert("rtt_ns".into(), json!(self.rtt_ns));
        object.insert("keys".into(), json!(self.keys));
        object.insert("frozen_node".into(), json!(self.frozen_node));
        object.insert("killed_client".into(), json!(self.killed_client));
        object.insert("operations_per_100ms".into(), json!(self.steps));
        object.insert("machine".into(), self.busy.map_or(Value::Null, Busy::json));
        Value::Object(object)
    }

    fn table(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "\n  operations in each tenth of a second")?;
        for line in chart(&self.steps, 5) {
            writeln!(out, "  {line}")?;
        }
        writeln!(
            out,
            "  {:>at$} node {} stops answering, client {} is killed\n",
            "▲",
            self.frozen_node,
            self.killed_client,
            at = self.failed_at + 1
        )?;
        writeln!(out, "  operations   {}", self.operations)?;
        writeln!(out, "  throughput   {}", show_rate(self.throughput()))?;
        let under = if self.widest_gap_ns <= GAP_FLOOR_NS { "under " } else { "" };
        writeln!(
            out,
            "  widest gap   {under}{} without a completed operation\n",
            show_ns(self.widest_gap_ns)
        )?;
        writeln!(
            out,
            "  {:<16}{:>11}{:>11}{:>11}{:>17}",
            "", "count", "p50", "p99", "one roundtrip"
        )?;
        for (when, kinds) in [("before", &self.before), ("after", &self.after)] {
            for (kind, report) in kinds {
                writeln!(
                    out,
                    "  {:<16}{:>11}{:>11}{:>11}{:>15.2} %",
                    format!("{}, {when}", kind.name()),
                    report.count,
                    show_measured(report.latency(0.5)),
                    show_measured(report.latency(0.99)),
                    100.0 * report.one_roundtrip(),
                )?;
            }
        }
        writeln!(
            out,
            "  (before things failed and after, of the clients that were not killed;\n  \
             each roundtrip takes {})",
            show_ns(self.rtt_ns)
        )?;
        if let Some(busy) = self.busy.and_then(Busy::printed) {
            writeln!(out, "  {busy}")?;
        }
        writeln!(out)?;
        self.verdict(out)
    }

    fn verdict(&self, out: &mut impl Write) -> io::Result<()> {
        let Verdict { acknowledged, lost } = &self.verdict;
        if lost.is_empty() {
            return writeln!(
                out,
                "  ✔ every acknowledged write found: {} to {}",
                count(*acknowledged, "write"),
                count(self.keys.into(), "key")
            );
        }
        writeln!(
            out,
            "  ✘ acknowledged writes lost on {} of {}:",
            lost.len(),
            count(self.keys.into(), "key")
        )?;
        for why in lost.iter().take(10) {
            writeln!(out, "    {why}")?;
        }
        Ok(())
    }
}

/// Returns one kind of operation as JSON.
fn kind_json(report: &KindReport) -> Value {
    json!({
        "count": report.count,
        "p50_ns": report.latency(0.5),
        "p99_ns": report.latency(0.99),
        "one_roundtrip": report.one_roundtrip(),
        "roundtrips": report.roundtrips,
    })
}

/// Draws bars of up to `height` lines, top line first.
fn chart(values: &[u64], height: usize) -> Vec<String> {
    const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = values.iter().copied().max().unwrap_or(0).max(1);
    let eighths: Vec<usize> = values
        .iter()
        .map(|&value| (value as f64 / top as f64 * (8 * height) as f64).round() as usize)
        .collect();
    (0..height)
        .rev()
        .map(|line| eighths.iter().map(|&e| EIGHTHS[e.saturating_sub(8 * line).min(8)]).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_where_all_clients_have_one() {
        let report = |gaps: &[(u64, u64)]| Report { gaps: gaps.to_vec(), ..Report::default() };
        let a = report(&[(0, 100_000), (500_000, 900_000), (1_000_000, 2_000_000)]);
        let b = report(&[(90_000, 550_000), (600_000, 700_000), (950_000, 1_100_000)]);
        assert_eq!(
            intersect(&a.gaps, &b.gaps),
            [(90_000, 100_000), (500_000, 550_000), (600_000, 700_000), (1_000_000, 1_100_000)]
        );
        assert_eq!(widest_gap(&[a, b]), 100_000);
        assert_eq!(widest_gap(&[report(&[(0, 90_000)]), report(&[])]), GAP_FLOOR_NS);
    }

    #[test]
    fn the_chart_is_as_high_as_the_highest_value() {
        assert_eq!(chart(&[0, 4, 8, 16], 2), ["   █", " ▄██"]);
        assert_eq!(chart(&[0, 0], 1), ["  "]);
    }
}
