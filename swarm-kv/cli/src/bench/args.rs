//! What `swarm bench` takes.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use swarm_worker::distribution::Distribution;
use swarm_worker::workload::{Mix, System};

use crate::common::args::parse_nodes;
use crate::common::units::parse_duration;

pub(crate) const HELP: &str = "Workloads (YCSB):
  a  50 % get, 50 % update               d  95 % get, 5 % insert, latest keys most
  b  95 % get,  5 % update               f  50 % get, 50 % read-modify-write
  c  100 % get

Loading and a warm-up that touches every key come first and are not counted.

Examples:
  swarm bench --workload b --clients 4 --rtt 2us
  swarm bench --system dm-abd --workload a --rtt 2us --json";

/// A value's name on the command line, the value, and what it is.
type Choice<T> = (&'static str, T, &'static str);

const SYSTEMS: [Choice<System>; 3] = [
    ("swarm", System::Swarm, "Safe-Guess: linearizable, one roundtrip in the common case"),
    ("dm-abd", System::DmAbd, "ABD over plain memory: linearizable, writes take two roundtrips"),
    ("raw", System::Raw, "One copy per key, no replication: the floor"),
];

const MIXES: [Choice<Mix>; 5] = [
    ("a", Mix::A, "50 % get, 50 % update"),
    ("b", Mix::B, "95 % get, 5 % update"),
    ("c", Mix::C, "100 % get"),
    ("d", Mix::D, "95 % get, 5 % insert"),
    ("f", Mix::F, "50 % get, 50 % read-modify-write"),
];

const DISTRIBUTIONS: [Choice<Distribution>; 3] = [
    ("zipfian", Distribution::Zipfian, "A few, strewn over all"),
    ("uniform", Distribution::Uniform, "All alike"),
    (
        "latest",
        Distribution::Latest,
        "The newest: those that were loaded last and those that the client inserted",
    ),
];

/// Takes the name of one of these.
fn one_of<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [Choice<T>; N],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.map(|(name, _, what)| PossibleValue::new(name).help(what))).map(
        move |given| {
            let chosen = all.iter().find(|(name, ..)| name.eq_ignore_ascii_case(&given));
            chosen.expect("it is one of the names").1
        },
    )
}

#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// The pool's directory; without it a temporary pool is made
    pub(crate) pool: Option<PathBuf>,
    /// How replicas are kept: swarm, or one of the paper's baselines
    #[arg(long, value_parser = one_of(SYSTEMS), default_value = "swarm")]
    pub(crate) system: System,
    /// The mix of operations
    #[arg(long, value_parser = one_of(MIXES), default_value = "b", ignore_case = true)]
    pub(crate) workload: Mix,
    /// Which keys are asked for most [default: zipfian; latest for workload d]
    #[arg(long, value_parser = one_of(DISTRIBUTIONS))]
    pub(crate) distribution: Option<Distribution>,
    /// Keys that are loaded
    #[arg(long, default_value_t = 100_000)]
    pub(crate) keys: usize,
    /// Bytes of a key
    #[arg(long, default_value_t = 24)]
    pub(crate) key_size: usize,
    /// Bytes of a value
    #[arg(long, default_value_t = 64)]
    pub(crate) value_size: usize,
    /// Clients
    #[arg(long, default_value_t = 1)]
    pub(crate) clients: usize,
    /// Operations that each client has in flight
    #[arg(long, default_value_t = 1)]
    pub(crate) window: usize,
    /// Operations to measure, all clients together
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) ops: usize,
    /// Memory nodes of the temporary pool [default: 3]
    #[arg(long, value_parser = parse_nodes, conflicts_with = "pool")]
    pub(crate) nodes: Option<usize>,
    /// Delay every completion by this much, as a network would: 0ns, 2us, 1ms
    #[arg(long, default_value = "0ns", value_parser = parse_duration)]
    pub(crate) rtt: Duration,
    /// Seed of the operations
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Clients are threads instead of processes
    #[arg(long)]
    pub(crate) threads: bool,
}
