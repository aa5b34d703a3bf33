//! The clients' results, by kind of operation.

use std::collections::BTreeMap;

use swarm_worker::job::KindReport;
use swarm_worker::workload::Kind;

/// Sums up clients' results by kind.
pub(crate) fn merge<'r>(
    reports: impl Iterator<Item = &'r BTreeMap<Kind, KindReport>>,
) -> BTreeMap<Kind, KindReport> {
    let mut kinds: BTreeMap<Kind, KindReport> = BTreeMap::new();
    for (&kind, report) in reports.flatten() {
        kinds.entry(kind).or_default().add(report);
    }
    kinds
}
