//! `swarm doctor`: checks whether this host is fit for shared-memory pools, or for RDMA.
//!
//! ```text
//! args             what the command takes
//! finding          what a probe found: ok, warn or bad; what it saw; what to do
//! memory           room, limits and file systems for pools of this host; one of them
//! devices          devices, ports, links, GIDs: /sys/class/infiniband
//! host             limits, kernel modules, huge pages, clock: /sys, /proc
//! reach            etcd and memory nodes
//! ```
//!
//! Every probe reads the system's state and changes nothing. Without the feature `rdma`, memory
//! nodes are only probed for whether they listen; all else works.

pub(crate) mod args;
mod devices;
mod finding;
mod host;
mod memory;
mod reach;

use std::path::Path;

use serde_json::json;

use crate::common::exit::{Answer, Failure, print_line};
use crate::doctor::args::DoctorArgs;
use finding::{Finding, Verdict};

/// Runs the probes and prints the findings.
pub(crate) fn run(args: &DoctorArgs, json: bool) -> Result<Answer, Failure> {
    let root = Path::new("/");
    let is_far = |pool: &Path| pool.as_os_str().as_encoded_bytes().starts_with(b"rdma:");
    let pool = args.pool.as_deref();
    let named = args.etcd.is_some() || !args.node.is_empty() || args.static_file.is_some();
    let mut findings = Vec::new();
    if args.rdma || named || pool.is_some_and(is_far) {
        findings.push(host::feature());
        findings.extend(devices::probe(root));
        #[cfg(feature = "rdma")]
        findings.extend(devices::choice(root));
        findings.extend(host::probe(root, args.capacity));
        findings.extend(reach::probe(args));
    } else {
        findings.extend(memory::probe(root, args.capacity));
        findings.push(host::clock(root));
        findings.extend(pool.into_iter().flat_map(memory::pool));
    }
    report(&findings, json)?;
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if bad { Answer::No } else { Answer::Yes })
}

fn report(findings: &[Finding], json: bool) -> Result<(), Failure> {
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (bad, warnings) = (count(Verdict::Bad), count(Verdict::Warn));
    if json {
        let list: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "probe": finding.probe,
                    "verdict": finding.verdict.name(),
                    "saw": finding.saw,
                    "advice": finding.advice,
                })
            })
            .collect();
        return print_line(json!({ "findings": list, "bad": bad, "warnings": warnings }));
    }
    let wide = findings.iter().map(|finding| finding.probe.len()).max().unwrap_or(0);
    for Finding { probe, verdict, saw, advice } in findings {
        print_line(format_args!("{:<5} {probe:<wide$}  {saw}", verdict.name()))?;
        if let Some(advice) = advice {
            print_line(format_args!("      {:<wide$}  -> {advice}", ""))?;
        }
    }
    print_line(match (bad, warnings) {
        (0, 0) => "all is well".to_owned(),
        (0, _) => format!("nothing is bad, {warnings} could be better"),
        _ => format!("{bad} bad, {warnings} could be better"),
    })
}
