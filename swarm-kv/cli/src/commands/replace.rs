//! `swarm replace`.

use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use swarm_kv::{Filled, ReplaceStep};
use swarm_worker::pool::{Pool, ReplaceOptions};

use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::pace::Pace;
use crate::common::units::count;

pub(crate) const HELP: &str = "The new node gets all that the others have, from a majority of all nodes without it, and the pool is whole again: it opens without \
    --degraded, and survives the loss of any other. Clients work meanwhile. A client that is stopped in the middle of an operation is waited for. A file of the \
    node that is there is replaced, whatever it says; one that is no file of this pool is not, and what a link leads to is left alone. If it \
    is interrupted once the node is gone for the clients, the pool goes on without the node, as swarm info says, until the next call, which begins anew.\n\n\
    A file that was replaced never takes part again, if it is put back.\n\n\
    Examples:\n  swarm replace /dev/shm/pool 1\n  swarm replace /dev/shm/pool 1 /mnt/other/node-1";

#[derive(Args, Debug)]
pub(crate) struct ReplaceArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// The node's number, from 0 on
    pub(crate) node: u8,
    /// The file to create for its memory; without it node-N in the pool's directory
    pub(crate) path: Option<PathBuf>,
    /// The most keys a second, to spare the host's other programs
    #[arg(long, value_name = "KEYS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,
}

/// Puts a new file into the place of a node, filled from the others, while clients work.
pub(crate) fn run(args: &ReplaceArgs, json: bool) -> Result<Answer, Failure> {
    let style = ProgressStyle::with_template("{wide_bar} {percent} %, {msg} {eta}");
    let bar = ProgressBar::new(0).with_style(style.expect("the template is well-formed"));
    let (mut pace, mut filled) = (Pace::new(args.rate), Filled::default());
    let mut is_gone = false;
    let options = ReplaceOptions { path: args.path.clone(), stop: Some(cleanup::seen) };
    cleanup::ends_by_itself(None);
    let replaced = Pool::replace(&args.pool, args.node, &options, &mut |step| {
        is_gone = true;
        match step {
            ReplaceStep::Fills(now) => {
                bar.set_length(now.first_buckets);
                bar.set_position(now.done);
                bar.set_message(count(now.keys, "key"));
                // The filling may begin again.
                let before = if now.done > filled.done { filled.keys } else { 0 };
                pace.keep(now.keys - before, || {});
                filled = now;
            }
            ReplaceStep::Waits(Some(late)) => {
                bar.set_message(format!("client {} is in an operation:", late.slot));
            }
            _ => bar.set_message("waiting for operations that began before:"),
        }
        !cleanup::seen()
    });
    bar.finish_and_clear();
    match replaced {
        Ok(true) => {}
        ended => {
            let (node, pool) = (args.node, args.pool.display());
            if is_gone {
                eprint_line(format_args!(
                    "swarm: node {node} of {pool} was not replaced to its end: the pool goes on \
                     without it until it is; swarm replace begins anew"
                ));
            } else if cleanup::seen() {
                eprint_line("swarm: the node was not replaced, and the pool is as it was");
            }
            if cleanup::seen() {
                return Err(cleanup::failure());
            }
            ended?;
            return Err(Failure::Failed("the replacement was given up".to_owned()));
        }
    }
    if json {
        print_line(json!({ "node": args.node, "keys": filled.keys, "buckets": filled.buckets }))?;
    } else {
        let (node, pool) = (args.node, args.pool.display());
        print_line(format_args!(
            "replaced node {node} of {pool}: {} in {} are at all nodes",
            count(filled.keys, "key"),
            count(filled.buckets, "bucket"),
        ))?;
    }
    Ok(Answer::Yes)
}
