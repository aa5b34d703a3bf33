//! `swarm evict`.

use super::args::EvictArgs;
use super::outcome::{Answer, Failure};
use super::pool::{NearPool, Pool};

/// Ends a client of a far pool, whether or not it knows.
pub(crate) fn run(args: &EvictArgs, json: bool) -> Result<Answer, Failure> {
    // Who asks for it says so as JSON; near pools have nothing to say.
    let _ = json;
    match Pool::open(&args.pool, true)? {
        Pool::Near(pool) => Err(near(&pool, args.client)),
        #[cfg(feature = "rdma")]
        Pool::Far(pool) => far::evict(&pool, args.client, json),
    }
}

fn near(pool: &NearPool, slot: usize) -> Failure {
    let path = pool.path().display();
    Failure::Usage(match pool.client_process(slot) {
        Some(process) => format!(
            "{path} is a pool of this host: its client {slot} is process {process}, and ends when \
             that does"
        ),
        None => format!("{path} has no client {slot}"),
    })
}

#[cfg(feature = "rdma")]
mod far {
    use serde_json::json;
    use swarm_kv::rdma::control::NodeEntry;

    use super::super::far::FarPool;
    use super::super::outcome::{Answer, Failure, say, tell};

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
