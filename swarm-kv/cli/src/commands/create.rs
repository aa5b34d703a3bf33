//! `swarm create`.

use serde_json::json;
use swarm_worker::pool::{Pool, PoolOptions, Rights};

use crate::common::args::CreateArgs;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::units::{count, show_size};

/// Makes a pool.
pub(crate) fn run(args: &CreateArgs, json: bool) -> Result<Answer, Failure> {
    let &CreateArgs {
        nodes, capacity, max_clients, slots, pointer_bits, ref node_path, numa, ..
    } = args;
    if !node_path.is_empty() && node_path.len() != nodes {
        return Err(Failure::Usage(format!(
            "--node-path is given {}, and the pool has {}",
            count(node_path.len() as u64, "time"),
            count(nodes as u64, "memory node"),
        )));
    }
    let geometry = swarm_core::layout::Geometry::new(nodes, capacity, max_clients, 0)
        .and_then(|geometry| geometry.with_slots(slots))
        .and_then(|geometry| pointer_bits.map_or(Ok(geometry), |b| geometry.with_pointer_bits(b)))
        .map_err(|bad| Failure::Usage(bad.to_string()))?;
    let node_paths = node_path;
    let stop = Some(cleanup::seen as fn() -> bool);
    let rights = (args.mode.is_some() || args.group.is_some())
        .then(|| Rights { mode: args.mode.unwrap_or(0o660), group: args.group.clone() });
    let wishes = PoolOptions {
        nodes,
        capacity,
        max_clients,
        slots,
        pointer_bits,
        node_paths,
        numa,
        rights: rights.as_ref(),
        any_file_system: args.force,
        stop,
    };
    cleanup::ends_by_itself(None);
    let created = Pool::create(&args.pool, wishes);
    if cleanup::seen() {
        // The signal may have come when all was done.
        if created.is_ok() {
            Pool::destroy(&args.pool, true)?;
        }
        return Err(cleanup::failure());
    }
    let created = created?;
    cleanup::ends_at_once();
    if let Pool::Near(near) = &created
        && let Some(name) = near.copy_on_write()
    {
        eprint_line(format_args!(
            "warning: {} lies on {name}, where room that is reserved may be missing all the same: for a client that \
             finds none a node is down",
            args.pool.display()
        ));
    }
    let writing = swarm_kv::writing_clients(&geometry);
    if json {
        print_line(json!({
            "pool": args.pool.to_string_lossy(),
            "nodes": nodes,
            "capacity_bytes": capacity,
            "max_clients": max_clients,
            "writing_clients": writing,
            "chunk_bytes": geometry.chunk_bytes,
            "slots": slots,
        }))?;
    } else {
        print_line(format_args!(
            "made {}: {} of {}, for up to {}; memory for {} to write",
            args.pool.display(),
            count(nodes as u64, "memory node"),
            show_size(capacity),
            count(max_clients as u64, "client"),
            if writing == max_clients { "all of them".into() } else { writing.to_string() },
        ))?;
        if matches!(created, Pool::Near(_)) {
            print_line(
                "a crash of the host leaves nothing of it to rely on: swarm backup makes copies",
            )?;
        }
    }
    Ok(Answer::Yes)
}
