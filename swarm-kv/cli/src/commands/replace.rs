//! `swarm replace`.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use swarm_kv::{Filled, ReplaceStep};
use swarm_worker::pool::{Pool, ReplaceOptions};

use crate::common::args::ReplaceArgs;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::pace::Pace;
use crate::common::units::count;

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
                pace.keep(now.keys - filled.keys, || {});
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
