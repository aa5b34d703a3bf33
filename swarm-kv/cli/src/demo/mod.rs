//! `swarm demo`: the store under failures.
//!
//! Half-way, one memory node stops answering and one client is killed. At the end a new client, to
//! which that node does not answer either, checks for every acknowledged write.

pub(crate) mod live;
pub(crate) mod report;
pub(crate) mod verdict;

use std::path::PathBuf;
use std::time::Duration;

use swarm_core::node::NodeId;
use swarm_kv::block_on;
use swarm_shm::SwitchState;
use swarm_worker::demo::key_name;
use swarm_worker::demo_log::{LOADER, Log, Tag};
use swarm_worker::job::{DemoJob, Job, Message, Report, monotonic_ns};
use swarm_worker::store::{Store, with_client, with_emulated};

use crate::common::busy::Watch;
use crate::common::exit::{Answer, Failure, eprint_line};
use crate::common::kinds::merge;
use crate::common::temporary::TemporaryPool;
use crate::common::units::show_ns;
use crate::demo::live::Live;
use crate::demo::report::{Summary, print, widest_gap};
use crate::demo::verdict::check_values;
use crate::workers::set::{Isolation, WorkerSet, gone};

const NODES: usize = 3;
const CLIENTS: usize = 4;
const KEYS: u32 = 10_000;
const SECONDS: u64 = 6;
const RTT_NS: u64 = 2_000;
/// Enough for about four times as many writes as the emulated roundtrip allows.
const CAPACITY: u64 = 384 << 20;
const FROZEN_NODE: u8 = 1;
const KILLED_CLIENT: usize = CLIENTS - 1;

/// Runs the demo.
pub(crate) fn run(json: bool) -> Result<Answer, Failure> {
    let temporary = TemporaryPool::create(NODES, CAPACITY, 64)?;
    with_client(temporary.pool(), load)?;
    if !json {
        eprint_line(format_args!(
            "{NODES} memory nodes, {CLIENTS} clients, {KEYS} keys, 95 % gets and 5 % updates, \
             {SECONDS} s;\neach roundtrip takes {}, as over a fast network",
            show_ns(RTT_NS)
        ));
    }
    let log = |client: usize| temporary.directory().join(format!("log-{client}"));
    let jobs = (0..CLIENTS).map(|client| job(temporary.path(), log(client), client)).collect();
    let mut workers = WorkerSet::start(jobs, Isolation::Process)?;
    workers.gather(|message| matches!(message, Message::Ready))?;
    let watch = Watch::begin();
    let started_ns = workers.go()?;
    let mut live = Live::new(CLIENTS, SECONDS, started_ns);
    let fail = || temporary.near().switch(NodeId(FROZEN_NODE)).set(SwitchState::Frozen);
    let reports = follow(&mut workers, &mut live, started_ns, fail)?;
    live.end();
    drop(workers);
    let busy = watch.end();

    let found = with_emulated(temporary.pool(), KEYS as usize, 0, find)?;
    let logs = (0..CLIENTS).map(|client| Log::read(&log(client))).collect::<Result<Vec<_>, _>>()?;
    let before = merge(reports.iter().map(|report| &report.kinds));
    let after = merge(reports.iter().map(|report| &report.later));
    let survivors: u64 = before.values().chain(after.values()).map(|kind| kind.count).sum();
    let ended_ns = reports.iter().map(|report| report.ended_ns).max().unwrap_or(started_ns);
    let summary = Summary {
        before,
        after,
        rtt_ns: RTT_NS,
        operations: survivors + live.done(KILLED_CLIENT),
        seconds: (ended_ns - started_ns).max(1) as f64 / 1e9,
        keys: KEYS,
        failed_at: live.steps.len() / 2,
        steps: live.steps,
        widest_gap_ns: widest_gap(&reports),
        frozen_node: FROZEN_NODE,
        killed_client: KILLED_CLIENT,
        busy,
        verdict: check_values(&found, &logs, Some(KILLED_CLIENT)),
    };
    print(&summary, json)?;
    Ok(if summary.verdict.lost.is_empty() { Answer::Yes } else { Answer::No })
}

fn job(pool: PathBuf, log: PathBuf, client: usize) -> Job {
    Job::Demo(DemoJob {
        pool,
        log,
        client: client as u32,
        keys: KEYS,
        rtt_ns: RTT_NS,
        seconds: SECONDS,
    })
}

/// Shows the clients' progress, injects the failures half-way, and collects the reports.
fn follow(
    workers: &mut WorkerSet,
    live: &mut Live,
    started_ns: u64,
    fail: impl Fn(),
) -> Result<Vec<Report>, Failure> {
    let fail_at = started_ns + SECONDS * 500_000_000;
    let mut reports: Vec<Option<Report>> = (0..CLIENTS).map(|_| None).collect();
    let (mut at_work, mut failed) = (CLIENTS, false);
    while at_work > 0 {
        let now = monotonic_ns();
        live.tick(now);
        if !failed && now >= fail_at {
            failed = true;
            fail();
            workers.kill(KILLED_CLIENT)?;
            live.killed(KILLED_CLIENT);
            live.event(&format!(
                "  node {FROZEN_NODE} stops answering, client {KILLED_CLIENT} is killed"
            ));
        }
        match workers.next(Duration::from_millis(10)) {
            Some((client, Message::Progress { at_ns, done })) => live.progress(client, at_ns, done),
            Some((client, Message::Report(report))) => reports[client] = Some(*report),
            Some((_, Message::Failed(why))) => return Err(Failure::Failed(why)),
            Some((client, Message::Gone)) => {
                let expected = reports[client].is_some() || (failed && client == KILLED_CLIENT);
                if !expected {
                    return Err(gone(client));
                }
                at_work -= 1;
            }
            // Messages of other kinds of clients.
            Some(_) | None => {}
        }
    }
    Ok(reports.into_iter().flatten().collect())
}

fn load(store: &Store<'_>) -> Result<(), Failure> {
    for key in 0..KEYS {
        let value = Tag { client: LOADER, number: 0, key }.value();
        block_on(store.insert(&key_name(key), &value))?;
    }
    Ok(())
}

/// Gets all keys, in order.
fn find(store: &Store<'_>) -> Result<Vec<Option<Vec<u8>>>, Failure> {
    let get = |key| block_on(store.get(&key_name(key), |value| value.map(<[u8]>::to_vec)));
    Ok((0..KEYS).map(get).collect::<Result<_, _>>()?)
}
