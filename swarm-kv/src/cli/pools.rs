//! `swarm create`, `info` and `destroy`.

use serde_json::json;
use swarm_core::geometry::LAYOUT_VERSION;

use super::args::{CreateArgs, DestroyArgs, PoolArgs};
use super::outcome::{Answer, Failure, say};
use super::store::{Pool, Usage, Wishes, open_given};
use super::units::{count, show_size};

/// Makes a pool.
pub(crate) fn create(args: &CreateArgs, json: bool) -> Result<Answer, Failure> {
    let &CreateArgs { nodes, capacity, max_clients, ref node_path, .. } = args;
    if !node_path.is_empty() && node_path.len() != nodes {
        return Err(Failure::Usage(format!(
            "--node-path is given {}, and the pool has {}",
            count(node_path.len() as u64, "time"),
            count(nodes as u64, "memory node"),
        )));
    }
    swarm_core::geometry::Geometry::new(nodes, capacity, max_clients, 0)
        .map_err(|bad| Failure::Usage(bad.to_string()))?;
    Pool::create(&args.pool, Wishes { nodes, capacity, max_clients, node_paths: node_path })?;
    if json {
        say(json!({
            "pool": args.pool.to_string_lossy(),
            "nodes": nodes,
            "capacity_bytes": capacity,
            "max_clients": max_clients,
        }))?;
    } else {
        say(format_args!(
            "made {}: {} of {}, for up to {}",
            args.pool.display(),
            count(nodes as u64, "memory node"),
            show_size(capacity),
            count(max_clients as u64, "client"),
        ))?;
    }
    Ok(Answer::Yes)
}

/// Says what a pool is.
pub(crate) fn info(pool: &PoolArgs, json: bool) -> Result<Answer, Failure> {
    let pool = open_given(pool)?;
    let geometry = pool.geometry();
    let clients = pool.clients()?;
    let Usage { used_bytes, keys, .. } = pool.usage()?;
    if json {
        say(json!({
            "nodes": geometry.nodes,
            "capacity_bytes": geometry.capacity,
            "used_bytes": used_bytes,
            "keys": keys,
            "clients": clients,
            "layout_version": LAYOUT_VERSION,
        }))?;
    } else {
        say(format_args!("memory nodes    {}", geometry.nodes))?;
        say(format_args!("capacity        {} each", show_size(geometry.capacity)))?;
        say(format_args!("used            {}", show_size(used_bytes)))?;
        say(format_args!("keys            {keys}"))?;
        say(format_args!("clients         {clients}"))?;
        say(format_args!("layout version  {LAYOUT_VERSION}"))?;
        #[cfg(feature = "rdma")]
        if let Pool::Far(pool) = &pool {
            say_who(pool)?;
        }
    }
    Ok(Answer::Yes)
}

/// Says which nodes and clients a far pool has: they have names there.
#[cfg(feature = "rdma")]
fn say_who(pool: &super::far::FarPool) -> Result<(), Failure> {
    for (number, node) in pool.nodes().into_iter().enumerate() {
        say(format_args!("node {number:<11}{node}"))?;
    }
    for client in pool.clients()? {
        let (slot, life) = (client.slot, client.incarnation);
        say(format_args!("client {slot:<9}{} (incarnation {life})", client.label))?;
    }
    Ok(())
}

/// Removes a pool.
pub(crate) fn destroy(args: &DestroyArgs, json: bool) -> Result<Answer, Failure> {
    Pool::destroy(&args.pool, args.force)?;
    if json {
        say(json!({ "done": true }))?;
    } else {
        say(format_args!("removed {}", args.pool.display()))?;
    }
    Ok(Answer::Yes)
}
