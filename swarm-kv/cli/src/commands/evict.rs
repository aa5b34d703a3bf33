//! `swarm evict`.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use swarm_kv::shm::{ClientState, HaltWatch, LeftAlone, StoppedClient, WhyLeftAlone};
use swarm_worker::pool::{NearPool, Pool};

use crate::common::args::HIDDEN;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::units::{count, parse_duration};

const HELP: &str = "On a pool of this host the client's process is killed with SIGKILL, be it \
stopped, and with it all clients that it has; what they held is for their slots' next holders. A \
process in a container is ended from within that container or, by root, from the host.

With --stopped-for it watches for that long, and ends each client whose process was stopped or frozen \
in the middle of an operation all the while, and executed nothing. Such a client keeps memory from \
being reclaimed. One that is merely slow is none. One in another pid namespace, one that this user may \
not examine, and one of which other threads go on, are named and left alone, with the reason: these are \
ended by their number alone. (A process that a debugger has stopped is stopped.)";

const HELP_RDMA: &str = "

On a pool on memory nodes these fence the client: whatever it posts from then on takes no effect, and \
its slot is free. A client whose process is known to be dead, or that is silent, is evicted alike.";

const EXAMPLES: &str = "

Examples:
  swarm info /dev/shm/pool; swarm evict /dev/shm/pool 3
  swarm evict /dev/shm/pool --stopped-for 30s";

const EXAMPLE_RDMA: &str = "
  swarm evict rdma:nodes.toml 3";

/// What follows the options in its help.
pub(crate) fn help() -> String {
    match HIDDEN {
        true => [HELP, EXAMPLES].concat(),
        false => [HELP, HELP_RDMA, EXAMPLES, EXAMPLE_RDMA].concat(),
    }
}

#[derive(Args, Debug)]
pub(crate) struct EvictArgs {
    /// The pool
    pub(crate) pool: PathBuf,
    /// The client's slot, as `swarm info POOL` lists it
    #[arg(required_unless_present = "stopped_for")]
    pub(crate) client: Option<usize>,
    /// Instead: watch for so long, and end each client that was stopped in the middle of an operation
    /// all the while
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "client")]
    pub(crate) stopped_for: Option<Duration>,
}

/// How often clients are looked at that may be stopped.
const LOOK: Duration = Duration::from_millis(100);

/// Ends a client, whether or not it knows.
pub(crate) fn run(args: &EvictArgs, json: bool) -> Result<Answer, Failure> {
    let pool = Pool::open(&args.pool, true)?;
    match (pool, args.client, args.stopped_for) {
        (Pool::Near(pool), _, Some(least)) => stopped(&pool, least, json),
        (Pool::Near(pool), Some(client), _) => near(&pool, client, json),
        #[cfg(feature = "rdma")]
        (Pool::Far(pool), Some(client), None) => far::evict(&pool, client, json),
        #[cfg(feature = "rdma")]
        (Pool::Far(_), ..) => Err(Failure::Usage(
            "--stopped-for is for pools of this host: behind RDMA cards name the client".to_owned(),
        )),
        (_, None, None) => Err(Failure::Usage("name a client, or --stopped-for".to_owned())),
    }
}

/// Ends each client that is stopped in the middle of an operation now, and stays so for that long.
/// The kernel does not show since when a process has been stopped.
fn stopped(pool: &NearPool, least: Duration, json: bool) -> Result<Answer, Failure> {
    let began = Instant::now();
    let mut watch = HaltWatch::default();
    let mut left = pool.halted_clients(&mut watch, u64::MAX);
    let mut alone = pool.clients_left_alone(u64::MAX);
    let number = count((left.len() + alone.len()) as u64, "client");
    if !json && left.len() + alone.len() > 0 {
        eprint_line(format_args!("watching {number} in the middle of an operation"));
    }
    let (mut evicted, mut went_on) = (Vec::new(), Vec::new());
    let mut answer = Answer::Yes;
    loop {
        for (client, ended) in pool.evict_halted(&mut watch, least) {
            if let Err(why) = &ended {
                eprint_line(format_args!("swarm: {why}"));
                answer = Answer::Unclear;
            } else if !json {
                print_line(line(&client))?;
            }
            left.retain(|it| it.slot != client.slot);
            evicted.push(json!({
                "client": client.slot,
                "processes": client.processes,
                "state": condition(&client),
                "pinned_epoch": client.since,
                "halted_ns": client.halted.as_nanos() as u64,
                "error": ended.err().map(|why| why.to_string()),
            }));
        }
        // A client that went on, or was stopped later, is for another call.
        let seen = pool.halted_clients(&mut watch, u64::MAX);
        let lasts = |it: &mut StoppedClient| {
            seen.iter().any(|again| (again.slot, again.first) == (it.slot, it.first))
        };
        went_on.extend(left.extract_if(.., |it| !lasts(it)));
        // Of these, the last look shows why; those that are in no operation any more are over.
        let again = pool.clients_left_alone(u64::MAX).into_iter();
        let is_same =
            |it: &LeftAlone| alone.iter().any(|of| (of.slot, of.since) == (it.slot, it.since));
        alone = again.filter(is_same).collect();
        let pause = least.saturating_sub(began.elapsed());
        if left.is_empty() && (alone.is_empty() || pause.is_zero()) {
            break;
        }
        thread::sleep(if left.is_empty() { LOOK.min(pause) } else { LOOK.min(least) });
    }
    let seen = began.elapsed();
    if json {
        let left_alone = alone.iter().map(|it| left_alone(it, seen));
        let left_alone: Vec<_> = left_alone.chain(went_on.iter().map(ran_or_ended)).collect();
        print_line(json!({ "evicted": evicted, "left_alone": left_alone }))?;
        return Ok(answer);
    }
    alone.iter().for_each(|it| eprint_line(why(it, pool, seen)));
    for StoppedClient { slot, processes, since, .. } in &went_on {
        let processes = list(processes);
        eprint_line(format_args!(
            "client {slot}, process {processes}, is left alone: it was stopped in an operation that began in epoch \
             {since}, and has run or ended since"
        ));
    }
    if evicted.is_empty() {
        let none = "no client was stopped in the middle of an operation for so long";
        print_line(if alone.is_empty() { none } else { "no client was ended" })?;
    }
    Ok(answer)
}

/// Why a client is left alone that was in the middle of an operation at each look.
fn why(client: &LeftAlone, pool: &NearPool, seen: Duration) -> String {
    let LeftAlone { slot, process, since, ref why, .. } = *client;
    let (seconds, evict) =
        (seen.as_secs(), format!("swarm evict {} {slot}", pool.path().display()));
    let holds = format!(
        "holds an operation open that began in epoch {since}, at each look for {seconds} s"
    );
    match why {
        WhyLeftAlone::Unseen => format!(
            "client {slot} {holds}, and is left alone: its process, {process} in another pid namespace, cannot be seen \
             from here, nor whether it is stopped; run this in the outermost pid namespace, or in its own"
        ),
        WhyLeftAlone::OtherNamespace => format!(
            "client {slot}, process {process}, {holds}, is stopped, and is left alone, as it is in another pid \
             namespace; {evict}, run in the outermost one, ends it"
        ),
        WhyLeftAlone::InPart(threads) => format!(
            "client {slot}, process {process}, {holds}, and is left alone: its threads {threads} are stopped, as by a \
             debugger, and others go on; {evict} ends it",
            threads = list(threads),
        ),
        _ => format!(
            "client {slot}, process {process}, {holds}, is stopped, and is left alone, as this user may not examine \
             it; run this as its user, or as root"
        ),
    }
}

fn left_alone(client: &LeftAlone, seen: Duration) -> Value {
    let (why, threads) = match &client.why {
        WhyLeftAlone::Unseen => ("unseen", None),
        WhyLeftAlone::OtherNamespace => ("other_namespace", None),
        WhyLeftAlone::InPart(threads) => ("stopped_in_part", Some(threads)),
        _ => ("not_examined", None),
    };
    json!({
        "client": client.slot,
        "processes": [client.process],
        "pinned_epoch": client.since,
        "seen_ns": seen.as_nanos() as u64,
        "why": why,
        "stopped_threads": threads,
    })
}

/// The same of a client that was stopped, and not for so long.
fn ran_or_ended(client: &StoppedClient) -> Value {
    json!({
        "client": client.slot,
        "processes": client.processes,
        "pinned_epoch": client.since,
        "seen_ns": client.halted.as_nanos() as u64,
        "why": "ran_or_ended",
        "stopped_threads": null,
    })
}

fn list(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

fn condition(client: &StoppedClient) -> &'static str {
    if client.condition == ClientState::Frozen { "frozen" } else { "stopped" }
}

/// The line about a client that was ended.
fn line(client: &StoppedClient) -> String {
    format!(
        "evicted client {}: process {}, {} for {} s at least in an operation that began in epoch {}, is \
         killed, its slot is free",
        client.slot,
        list(&client.processes),
        condition(client),
        client.halted.as_secs(),
        client.since,
    )
}

/// Ends a client of a pool of this host: its process is killed. Its slot is free then, as the
/// kernel says.
fn near(pool: &NearPool, slot: usize, json: bool) -> Result<Answer, Failure> {
    let processes = pool.evict(slot)?;
    if json {
        print_line(json!({ "client": slot, "processes": processes }))?;
        return Ok(Answer::Yes);
    }
    print_line(match processes.len() {
        0 => format!("client {slot} has ended by itself; its slot is free"),
        _ => format!(
            "evicted client {slot}: process {} is killed, its slot is free",
            list(&processes)
        ),
    })?;
    Ok(Answer::Yes)
}

#[cfg(feature = "rdma")]
mod far {
    use serde_json::json;
    use swarm_kv::rdma::control::NodeEntry;

    use crate::common::exit::{Answer, Failure, eprint_line, print_line};
    use swarm_worker::far::FarPool;

    /// Ends a client and says where it is fenced.
    pub(crate) fn evict(pool: &FarPool, slot: usize, json: bool) -> Result<Answer, Failure> {
        let evicted = pool.evict(slot)?;
        let names = |nodes: &[NodeEntry]| -> Vec<String> {
            nodes.iter().map(|node| node.name.clone()).collect()
        };
        let (fenced, missing) = (names(&evicted.fenced), names(&evicted.missing));
        if json {
            print_line(json!({
                "client": slot,
                "incarnation": evicted.incarnation,
                "holder": evicted.label,
                "fenced": fenced,
                "missing": missing,
            }))?;
        } else {
            let who = evicted.label.as_deref().unwrap_or("its former holder");
            print_line(format_args!(
                "evicted client {slot} ({who}): fenced at {}",
                fenced.join(", ")
            ))?;
        }
        if !missing.is_empty() {
            eprint_line(format_args!(
                "not fenced at {}, which did not answer: the client can reach these still, but no \
                 majority, so nothing that it does is ever acknowledged",
                missing.join(", ")
            ));
        }
        Ok(Answer::Yes)
    }
}
