//! `swarm destroy`.

use std::io::ErrorKind;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use swarm_kv::shm::DirectoryLeft;
use swarm_worker::pool::Pool;

use crate::common::exit::{Answer, Failure, print_line};

#[derive(Args, Debug)]
pub(crate) struct DestroyArgs {
    /// The pool's directory
    pub(crate) pool: PathBuf,
    /// Even while clients use it, and even if files of it are damaged
    #[arg(long)]
    pub(crate) force: bool,
}

/// Removes a pool.
pub(crate) fn run(args: &DestroyArgs, json: bool) -> Result<Answer, Failure> {
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
