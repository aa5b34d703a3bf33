//! `swarm gc`.

use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use swarm_kv::{Gc, GcStage, block_on};
use swarm_worker::pool::Pool;
use swarm_worker::store::with_client;

use crate::common::exit::{Answer, Failure, eprint_line, print_line};
use crate::common::units::{count, show_size};

pub(crate) const HELP: &str = "Deleted keys and what clients left behind come back when memory runs out: then a client that writes looks for it, \
which takes a roundtrip for each key of the pool. This looks beforehand, takes over what clients that are gone held, moves \
together what is left in chunks that are mostly empty, and gives those back, for values of any size. What clients that are there \
hold stays theirs.

It takes a client slot and needs all memory nodes. It may be interrupted at any time: nothing is lost.

Exit status: 0 done, 2 wrong usage, 3 failure, or others' operations held it up.

Example:
  swarm gc /dev/shm/pool";

#[derive(Args, Debug)]
pub(crate) struct GcArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
}

/// Gives what nobody uses of a pool back to it, in whole chunks.
pub(crate) fn run(args: &GcArgs, json: bool) -> Result<Answer, Failure> {
    // Without all nodes nothing comes back.
    let pool = Pool::open(&args.pool, false)?;
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {elapsed}");
    let bar = ProgressBar::new(0).with_style(style.expect("the template is well-formed"));
    let gc = with_client(&pool, |store| {
        block_on(store.gc(&mut |stage| show(&bar, stage))).map_err(Failure::from)
    });
    bar.finish_and_clear();
    let gc = gc?;
    print_line(if json { object(gc).to_string() } else { text(gc) })?;
    if gc.held_up {
        eprint_line(
            "others have had operations under way for too long, so that not all was looked for: swarm info says who; \
             then do it again",
        );
        return Ok(Answer::Unclear);
    }
    Ok(Answer::Yes)
}

fn show(bar: &ProgressBar, stage: GcStage) {
    let message = match stage {
        GcStage::Marking(done, all) => {
            bar.set_length(all);
            bar.set_position(done);
            "looking for what is in use"
        }
        GcStage::Waiting => "waiting for others' operations",
        GcStage::Moving => "moving what is left in sparse chunks",
        _ => "taking in the rest",
    };
    bar.set_message(message);
}

fn object(gc: Gc) -> serde_json::Value {
    json!({
        "garbage_objects": gc.objects,
        "moved_keys": gc.moved,
        "freed_chunks": gc.chunks,
        "freed_bytes": gc.chunks * gc.chunk_bytes,
        "free_chunks": gc.free.0,
        "all_chunks": gc.free.1,
        "chunk_bytes": gc.chunk_bytes,
        "held_up": gc.held_up,
        "more": gc.more,
    })
}

fn text(gc: Gc) -> String {
    let freed = show_size(gc.chunks * gc.chunk_bytes);
    let more = if gc.more && !gc.held_up { "; another run may find more" } else { "" };
    format!(
        "gave back {} ({freed} of each node): {} of {} are free; {} nothing used any more, {} moved{more}",
        count(gc.chunks, "chunk"),
        gc.free.0,
        gc.free.1,
        count(gc.objects, "object"),
        count(gc.moved, "key"),
    )
}
