//! `swarm replace`.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use swarm_kv::Filled;
use swarm_worker::pool::{Pool, ReplaceOptions};

use crate::common::args::ReplaceArgs;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::pace::Pace;
use crate::common::units::count;

/// Puts a new file into the place of a node, filled from the others.
pub(crate) fn run(args: &ReplaceArgs, json: bool) -> Result<Answer, Failure> {
    let style = ProgressStyle::with_template("{wide_bar} {percent} %, {msg} keys {eta}");
    let bar = ProgressBar::new(0).with_style(style.expect("the template is well-formed"));
    let (mut pace, mut filled) = (Pace::new(args.rate), Filled::default());
    let options = ReplaceOptions { path: args.path.clone(), stop: Some(cleanup::seen) };
    // Until it is filled, all can be undone; behind that it takes a moment.
    cleanup::ends_by_itself(None);
    let replaced = Pool::replace(&args.pool, args.node, &options, &mut |now: Filled| {
        bar.set_length(now.first_buckets);
        bar.set_position(now.done);
        bar.set_message(now.keys.to_string());
        pace.keep(now.keys - filled.keys, || {});
        filled = now;
        !cleanup::seen()
    });
    bar.finish_and_clear();
    match replaced {
        Ok(true) => {}
        Ok(false) => {
            eprint_line("swarm: the node was not replaced, and the pool is as it was");
            return Err(cleanup::failure());
        }
        Err(_) if cleanup::seen() => return Err(cleanup::failure()),
        Err(failure) => return Err(failure),
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
