//! `swarm evict`.

use serde_json::json;
use swarm_worker::pool::{NearPool, Pool};

use super::args::EvictArgs;
use super::outcome::{Answer, Failure, say};

/// Ends a client, whether or not it knows.
pub(crate) fn run(args: &EvictArgs, json: bool) -> Result<Answer, Failure> {
    match Pool::open(&args.pool, true)? {
        Pool::Near(pool) => near(&pool, args.client, json),
        #[cfg(feature = "rdma")]
        Pool::Far(pool) => far::evict(&pool, args.client, json),
    }
}

/// Ends a client of a pool of this host: its process is killed. Its slot is free then, as the
/// kernel says.
fn near(pool: &NearPool, slot: usize, json: bool) -> Result<Answer, Failure> {
    let processes = pool.evict(slot)?;
    if json {
        say(json!({ "client": slot, "processes": processes }))?;
        return Ok(Answer::Yes);
    }
    let ended: Vec<_> = processes.iter().map(u32::to_string).collect();
    say(match ended.len() {
        0 => format!("client {slot} has ended by itself; its slot is free"),
        _ => format!(
            "evicted client {slot}: process {} is killed, its slot is free",
            ended.join(", ")
        ),
    })?;
    Ok(Answer::Yes)
}

#[cfg(feature = "rdma")]
mod far {
    use serde_json::json;
    use swarm_kv::rdma::control::NodeEntry;

    use super::super::outcome::{Answer, Failure, say, tell};
    use swarm_worker::far::FarPool;

    /// Ends a client and says where it is fenced.
    pub(super) fn evict(pool: &FarPool, slot: usize, json: bool) -> Result<Answer, Failure> {
        let evicted = pool.evict(slot)?;
        let names = |nodes: &[NodeEntry]| -> Vec<String> {
            nodes.iter().map(|node| node.name.clone()).collect()
        };
        let (fenced, missing) = (names(&evicted.fenced), names(&evicted.missing));
        if json {
            say(json!({
                "client": slot,
                "incarnation": evicted.incarnation,
                "holder": evicted.label,
                "fenced": fenced,
                "missing": missing,
            }))?;
        } else {
            let who = evicted.label.as_deref().unwrap_or("its former holder");
            say(format_args!("evicted client {slot} ({who}): fenced at {}", fenced.join(", ")))?;
        }
        if !missing.is_empty() {
            tell(format_args!(
                "not fenced at {}, which did not answer: the client can reach these still, but no \
                 majority, so nothing that it does is ever acknowledged",
                missing.join(", ")
            ));
        }
        Ok(Answer::Yes)
    }
}
