//! `swarm create`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use swarm_worker::pool::{Numa, Pool, PoolOptions, Rights};

use crate::common::args::parse_nodes;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::units::{count, parse_size, show_size};

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// The directory to make; it must not be a pool yet
    pub(crate) pool: PathBuf,
    /// Memory nodes: 1, 3, 5 or 7; the pool survives the loss of a minority
    #[arg(long, default_value_t = 3, value_parser = parse_nodes)]
    pub(crate) nodes: usize,
    /// Size of each memory node's file, reserved at once
    #[arg(long, default_value = "256MiB", value_parser = parse_size)]
    pub(crate) capacity: u64,
    /// The most clients at a time
    #[arg(long, default_value_t = 64)]
    pub(crate) max_clients: usize,
    #[cfg_attr(
        feature = "rdma",
        doc = "Stamp slots of a key that writers use, 1 to 6: with one, a write to a key that one client",
        doc = "writes costs least on memory nodes behind RDMA cards; a key that several write at a time",
        doc = "costs them retries"
    )]
    #[cfg_attr(
        not(feature = "rdma"),
        doc = "Stamp slots of a key that writers use, 1 to 6: with few, a key that several write at a time",
        doc = "costs them retries"
    )]
    #[arg(long, default_value_t = 6)]
    pub(crate) slots: usize,
    /// Bits of a pointer: with 38, timestamps end and keys move after a second
    #[arg(long, hide = true)]
    pub(crate) pointer_bits: Option<u32>,
    /// Where a memory node's memory lies, once for each node: a file to make, or a DAX device; the
    /// pool's directory then holds links [default: files in the pool's directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) node_path: Vec<PathBuf>,
    /// On which NUMA nodes of this host the memory lies: `interleave` for all in turn, `bind:NODE` or
    /// `prefer:NODE` [default: where this command runs]
    #[arg(long, value_name = "POLICY", value_parser = parse_numa, default_value = "default", hide_default_value = true)]
    pub(crate) numa: Numa,
    /// Mode of the files, for a pool that several users share: 660 for a group, 666 for all. Who may use a pool may write
    /// anything into it [default: 600; with --group 660]
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<u32>,
    /// Group of the files, by name or number
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,
    /// Also on a file system that other hosts may have as well (NFS, 9p, FUSE), where all clients are on this one
    #[arg(long)]
    pub(crate) force: bool,
}

fn parse_numa(text: &str) -> Result<Numa, String> {
    let on = |policy: fn(u32) -> Numa, node: &str| node.parse().ok().map(policy);
    let numa = match text.split_once(':') {
        Some(("bind", node)) => on(Numa::Bind, node),
        Some(("prefer", node)) => on(Numa::Preferred, node),
        None if text == "interleave" => Some(Numa::Interleave),
        None if text == "default" => Some(Numa::Default),
        _ => None,
    };
    numa.ok_or_else(|| "give interleave, bind:NODE, prefer:NODE or default".to_owned())
}

fn parse_mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8).map_err(|_| "give an octal mode, such as 660".to_owned())
}

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
