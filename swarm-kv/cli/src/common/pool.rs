//! `swarm create` and `destroy`.

use std::io::ErrorKind;

use serde_json::json;
use swarm_kv::shm::{AbsentNode, DirectoryLeft};
use swarm_worker::pool::{Pool, PoolOptions, Rights};

use crate::common::args::{CreateArgs, DestroyArgs, PoolArgs, ReadArgs};
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::units::{count, show_size};

/// Opens the pool that a command line names, and reports nodes that the command goes on without.
pub(crate) fn open_given(args: &PoolArgs) -> Result<Pool, Failure> {
    report_absent_nodes(Pool::open(&args.pool, args.degraded)?)
}

/// The same for a command that changes nothing, which goes on without the right to, or is not to
/// make use of it.
pub(crate) fn open_to_read(args: &ReadArgs) -> Result<Pool, Failure> {
    let &ReadArgs { pool: ref args, read_only } = args;
    let pool = Pool::open_to_read(&args.pool, args.degraded, read_only)?;
    if pool.reader().is_some() && !read_only {
        eprint_line(format_args!(
            "reading alone: {} may not be written by this user, or lies on a read-only mount",
            args.pool.display()
        ));
    }
    report_absent_nodes(pool)
}

fn report_absent_nodes(pool: Pool) -> Result<Pool, Failure> {
    for absent in absent_nodes(&pool) {
        eprint_line(format_args!("going on without {}: {}", absent.node, absent.why));
    }
    Ok(pool)
}

/// The nodes that an opening of a near pool goes on without.
pub(crate) fn absent_nodes(pool: &Pool) -> &[AbsentNode] {
    match pool {
        Pool::Near(near) => near.absent_nodes(),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => &[],
    }
}

/// Makes a pool.
pub(crate) fn create(args: &CreateArgs, json: bool) -> Result<Answer, Failure> {
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

/// Removes a pool.
pub(crate) fn destroy(args: &DestroyArgs, json: bool) -> Result<Answer, Failure> {
    let left = Pool::destroy(&args.pool, args.force)?;
    let pool = args.pool.display();
    if json {
        let left = left.map(|left| {
            let directory = left.directory.to_string_lossy().into_owned();
            json!({ "directory": directory, "why": left.why.to_string() })
        });
        print_line(json!({ "done": true, "left": left }))?;
    } else if let Some(DirectoryLeft { directory, why, .. }) = left {
        let why = match why.kind() {
            ErrorKind::DirectoryNotEmpty => "something that is not the pool's is in it".to_owned(),
            _ => why.to_string(),
        };
        print_line(format_args!(
            "removed the pool in {pool}; {} stays: {why}",
            directory.display()
        ))?;
    } else {
        print_line(format_args!("removed {pool}"))?;
    }
    Ok(Answer::Yes)
}
