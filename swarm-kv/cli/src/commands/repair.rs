//! `swarm repair`.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use swarm_worker::pool::{Pool, Repaired};

use crate::common::exit::{Answer, Failure, eprint_line, print_line};

pub(crate) const HELP: &str = "It goes by the files of a majority of the memory nodes; keys and values stay as they are. No process may have the pool open: those that \
    have are named, also if their control file was removed. Files of nodes that are missing, damaged, another pool's or older copies \
    are left out and named: restore them, or use --degraded. It may be interrupted, and done again.\n\n\
    Exit status 3: nothing was changed, and why.";

#[derive(Args, Debug)]
pub(crate) struct RepairArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// Also where the control file looks whole; what it says of older copies is ignored
    #[arg(long)]
    pub(crate) force: bool,
}

/// Makes a pool's control file anew.
pub(crate) fn run(args: &RepairArgs, json: bool) -> Result<Answer, Failure> {
    let Repaired { pool, made_anew, fault, .. } = Pool::repair(&args.pool, args.force)?;
    let fault = fault.map(|fault| fault.to_string());
    let (absent, nodes) = (pool.absent_nodes(), pool.geometry().nodes);
    if json {
        let left_out: Vec<_> = absent
            .iter()
            .map(|absent| json!({ "node": absent.node.0, "why": absent.why.to_string() }))
            .collect();
        print_line(
            json!({ "made_anew": made_anew, "fault": fault, "nodes": nodes, "left_out": left_out }),
        )?;
        return Ok(Answer::Yes);
    }
    if let Some(fault) = fault {
        eprint_line(fault);
    }
    for absent in absent {
        eprint_line(format_args!("left out {}: {}", absent.node, absent.why));
    }
    let pool = args.pool.display();
    print_line(match (made_anew, absent.len()) {
        (true, 0) => {
            format!("repaired {pool}: its control file was made anew from all {nodes} nodes")
        }
        (true, out) => format!(
            "repaired {pool}: its control file was made anew from {} of {nodes} nodes; open it with --degraded until the \
             others' files are restored",
            nodes - out
        ),
        (false, _) => format!("{pool} has a control file that is whole; nothing was changed"),
    })?;
    Ok(Answer::Yes)
}
