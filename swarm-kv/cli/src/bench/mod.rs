//! `swarm bench`: measures YCSB workloads.

pub(crate) mod args;
pub(crate) mod report;

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use swarm_core::layout::{MAX_IN_PLACE, MAX_KEY, MAX_VALUE};
use swarm_kv::block_on;
use swarm_worker::distribution::Distribution;
use swarm_worker::job::{BenchJob, Job, Message, Order, Report};
use swarm_worker::store::{Store, open_pool, with_system};
use swarm_worker::workload::{Keys, Kind, Mix, Op, Plan, System};

use crate::bench::args::BenchArgs;
use crate::bench::report::{Measured, print};
use crate::common::busy::Watch;
use crate::common::exit::{Answer, Failure};
use crate::common::temporary::TemporaryPool;
use crate::workers::set::{Isolation, WorkerSet, gone};

/// The most clients: each may briefly hold two of a pool's client slots.
const MAX_CLIENTS: usize = 500;

/// Runs `swarm bench`.
pub(crate) fn run(args: &BenchArgs, json: bool) -> Result<Answer, Failure> {
    check(args, args.keys).map_err(Failure::Usage)?;
    let temporary;
    let mut first_new = args.keys;
    let (path, nodes) = match &args.pool {
        Some(path) => {
            let pool = open_pool(path)?;
            if pool.is_far() && !args.rtt.is_zero() {
                return Err(Failure::Usage(
                    "--rtt emulates a network, and this pool has one of its own".to_owned(),
                ));
            }
            if inserts(args) > 0 {
                let there =
                    with_system(&pool, args.system, 1, |store| first_free(args.key_size, store))?;
                first_new = first_new.max(there);
                check(args, first_new).map_err(Failure::Usage)?;
            }
            (path.clone(), pool.geometry().nodes)
        }
        None => {
            let nodes = args.nodes.unwrap_or(3);
            temporary = TemporaryPool::create(nodes, capacity(args), 2 * args.clients + 8)?;
            (temporary.path(), nodes)
        }
    };
    let shell = if args.threads { Isolation::Thread } else { Isolation::Process };
    let bar = ProgressBar::new(args.ops as u64).with_style(
        ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {per_sec}")
            .expect("the template is well-formed"),
    );
    let job = |client| Job::Bench(job(args, path.clone(), first_new, client));
    let jobs = (0..args.clients).map(job).collect();
    let watch = Watch::begin();
    let mut workers = WorkerSet::start(jobs, shell)?;
    let reports = match parent(&mut workers, args.clients, &bar) {
        Ok(reports) => reports,
        Err(failure) => {
            kill_all(workers, &path);
            return Err(failure);
        }
    };
    bar.finish_and_clear();
    drop(workers);
    print(&Measured::new(args, nodes, &reports, watch.end()), json)?;
    Ok(Answer::Yes)
}

/// Returns the first number from which no key of this size exists: keys that an earlier run
/// inserted are not new.
fn first_free(key_size: usize, store: &Store<'_>) -> Result<usize, Failure> {
    let mut first = 0;
    block_on(store.for_each(|key, _, _| {
        if key.len() == key_size
            && let Some(number) = Keys::number(key)
        {
            first = first.max(number.saturating_add(1));
        }
        ControlFlow::Continue(())
    }))?;
    Ok(first)
}

/// Checks the arguments; new keys begin at number `first_new`.
fn check(args: &BenchArgs, first_new: usize) -> Result<(), String> {
    let all_keys = first_new.saturating_add(inserts(args));
    let smallest = Keys::smallest_size(all_keys);
    let within = |what: &str, value: usize, from: usize, to: usize| {
        if (from..=to).contains(&value) {
            return Ok(());
        }
        Err(format!("--{what} is {value}; give it {from} to {to}"))
    };
    within("keys", args.keys, 1, Op::MAX_KEYS / 2)?;
    if first_new > Op::MAX_KEYS / 2 {
        return Err(format!(
            "the pool has a key numbered {}, which leaves no room for new ones; give another \
             --key-size, or take another pool",
            first_new - 1
        ));
    }
    within("ops", args.ops, 1, Op::MAX_KEYS / 2)?;
    within("clients", args.clients, 1, MAX_CLIENTS)?;
    within("window", args.window, 1, 512)?;
    // RAW has only the in-place copy.
    let longest = if args.system == System::Raw { MAX_IN_PLACE } else { MAX_VALUE };
    within("value-size", args.value_size, 0, longest)?;
    within("key-size", args.key_size, 1, MAX_KEY)?;
    if args.key_size < smallest {
        return Err(format!(
            "--key-size {} is too small to tell {all_keys} keys apart; give it at least {smallest}",
            args.key_size
        ));
    }
    if args.rtt > Duration::from_secs(1) {
        return Err("--rtt is more than a second; operations would run out of time".to_owned());
    }
    Ok(())
}

fn job(args: &BenchArgs, pool: PathBuf, first_new: usize, client: usize) -> BenchJob {
    let default =
        if args.workload == Mix::D { Distribution::Latest } else { Distribution::Zipfian };
    BenchJob {
        pool,
        system: args.system,
        plan: Plan {
            mix: args.workload,
            distribution: args.distribution.unwrap_or(default),
            keys: args.keys,
            first_new,
            ops: args.ops,
            client,
            clients: args.clients,
            seed: args.seed,
        },
        key_size: args.key_size,
        value_size: args.value_size,
        window: args.window,
        rtt_ns: args.rtt.as_nanos() as u64,
        progress: std::io::stderr().is_terminal(),
    }
}

/// Returns an upper bound of new keys: a fifth more than the expected share.
fn inserts(args: &BenchArgs) -> usize {
    let (gets, other) = args.workload.shares();
    if other != Kind::Insert {
        return 0;
    }
    args.ops * (100 - gets as usize) / 100 * 6 / 5 + 1000 * args.clients.min(MAX_CLIENTS)
}

/// Returns the bytes of each node of a temporary pool: 1.5 times what the run writes.
///
/// Every write takes a buffer at every node, counted without reuse. Every key takes a register,
/// which holds the value once more, and its share of the index.
fn capacity(args: &BenchArgs) -> u64 {
    let rounded = |bytes: u64| {
        // Large objects have coarser size classes, and the largest take whole chunks.
        let granules = bytes.div_ceil(64) * 64;
        match granules {
            0..=512 => granules,
            513..0x8000 => granules + granules / 4,
            _ => granules * 5 / 2,
        }
    };
    let value = args.value_size as u64;
    let buffer = rounded(48 + value);
    let register = rounded(160 + args.key_size as u64 + value.min(4096)) + 512;
    let (gets, other) = args.workload.shares();
    let updates = match other {
        Kind::Update | Kind::ReadModifyWrite => args.ops as u64 * u64::from(100 - gets) / 100,
        Kind::Get | Kind::Insert => 0,
    };
    let keys = (args.keys + inserts(args)) as u64;
    let used = keys * (buffer + register) + updates * buffer;
    // Each client takes a few chunks of its own, and a chunk is about a thousandth of the pool.
    let base = (64 << 20) + used / 2 * 3;
    let chunks = 16 * args.clients as u64;
    (base + base / 512 * chunks).next_multiple_of(1 << 20)
}

/// Kills the clients early, and frees their client slots in `path`.
fn kill_all(workers: WorkerSet, path: &Path) {
    let dead = workers.disband();
    // The earlier failure is the one to report.
    if let Ok(pool) = open_pool(path) {
        for process in dead {
            let _ = pool.evict_dead(process);
        }
    }
}

/// Drives the clients through loading, warm-up and the measured phase.
fn parent(
    workers: &mut WorkerSet,
    clients: usize,
    bar: &ProgressBar,
) -> Result<Vec<Report>, Failure> {
    bar.set_message("loading");
    workers.gather(|message| matches!(message, Message::Loaded))?;
    bar.set_message("warming up");
    workers.order(Order::Warm)?;
    workers.gather(|message| matches!(message, Message::Ready))?;
    bar.set_message("measuring");
    workers.go()?;
    let mut done = vec![0; clients];
    let mut reports: Vec<Option<Report>> = (0..clients).map(|_| None).collect();
    let mut at_work = clients;
    while at_work > 0 {
        match workers.next(Duration::MAX) {
            Some((client, Message::Progress { done: so_far, .. })) => {
                done[client] = so_far;
                bar.set_position(done.iter().sum());
            }
            Some((client, Message::Report(report))) => reports[client] = Some(*report),
            Some((_, Message::Failed(why))) => return Err(Failure::Failed(why)),
            Some((client, Message::Gone)) if reports[client].is_none() => return Err(gone(client)),
            Some((_, Message::Gone)) => at_work -= 1,
            None => break,
            // Messages of other kinds of clients.
            Some(_) => {}
        }
    }
    Ok(reports.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(line: &str) -> BenchArgs {
        let words = ["swarm", "bench"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Command::Bench(args)) => args,
            other => panic!("{line} is not a bench: {other:?}"),
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for bad in [
            "--keys 0",
            "--ops 0",
            "--clients 0",
            "--window 0",
            "--key-size 0",
            "--key-size 256",
            "--key-size 3 --keys 1001",
            "--value-size 1048577",
            "--system raw --value-size 4097",
            "--rtt 2s",
        ] {
            let args = args(bad);
            assert!(check(&args, args.keys).is_err(), "{bad}");
        }
        let most = args("--key-size 3 --keys 1000 --value-size 1048576");
        assert_eq!(check(&most, 1000), Ok(()));
        let more = args("--key-size 4 --keys 1000 --workload d --ops 1000");
        assert_eq!(check(&more, 1000), Ok(()));
        for there in [9000, 1 << 29, usize::MAX] {
            assert!(check(&more, there).is_err(), "{there}");
        }
    }

    #[test]
    fn the_pool_holds_what_the_run_writes() {
        let writes = capacity(&args("--workload a --ops 4000000 --keys 100000"));
        assert!(writes > 2_000_000 * 128 + 100_000 * (128 + 256 + 512), "{writes}");
        assert!(capacity(&args("--workload c --ops 4000000")) < 256 << 20);
        assert!(capacity(&args("--value-size 1048576 --keys 100 --ops 100")) > 200 << 20);
    }
}
