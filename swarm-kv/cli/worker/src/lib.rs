//! The clients of `swarm`'s commands: the store as they use it, and the loops of long-running ones.
//!
//! The store is generic, and its code is generated where its types are chosen. In the command line,
//! this crate alone does that. So this crate is built to run fast, and the crate with the
//! arguments, reports and parents is built to compile fast. Therefore no public item here is
//! generic over a client's types: commands have a [`Store`](store::Store).
//!
//! The layers, top to bottom. A module uses only modules in rows below its own. The module `layers`
//! of swarm-kv's test `correctness` checks this.
//!
//! | layer | concept |
//! | --- | --- |
//! | `measure`, `demo`, `torture`, `soak` | the loop of bench; clients of the demo; clients on hot keys; clients that join and leave |
//! | `hot_keys` | operations on hot keys, on record |
//! | `demo_log`, `torture_log` | acknowledged writes; each client's calls |
//! | `store` | the library, as the commands use it |
//! | `pool` | pools of this host and on RDMA memory nodes |
//! | `far` | pools on RDMA memory nodes |
//! | `task`, `system`, `parent`, `history` | what is done with a client; the systems that bench measures; the channel to the leader; histories as files |
//! | `job`, `pool_options`, `backup` | jobs and reports; what a new pool is to be like; the format of backups |
//! | `workload` | YCSB: operations and their mix |
//! | `distribution`, `failure` | distributions of keys; why a command failed |
#![forbid(unsafe_code)]

pub mod backup;
pub mod demo;
pub mod demo_log;
pub mod distribution;
mod failure;
#[cfg(feature = "rdma")]
pub mod far;
pub mod history;
pub mod hot_keys;
pub mod job;
mod measure;
mod parent;
pub mod pool;
mod pool_options;
pub mod soak;
pub mod store;
mod system;
mod task;
pub mod torture;
pub mod torture_log;
pub mod workload;

pub use failure::{AtLine, Failure};
pub use parent::ParentChannel;

use job::{Job, Message};

/// Runs the job and reports its result.
///
/// # Errors
/// The parent has ended.
pub fn work(job: &Job, parent: &dyn ParentChannel) -> Result<(), Failure> {
    let result = match job {
        Job::Bench(job) => measure::run(job, parent),
        Job::Demo(job) => demo::run(job, parent),
        Job::Torture(job) => torture::run(job, parent),
        Job::Soak(job) => soak::run(job, parent),
    };
    parent.send(match result {
        Ok(report) => Message::Report(Box::new(report)),
        Err(failure) => match failure.message() {
            Some(message) => Message::Failed(message),
            None => return Ok(()),
        },
    })
}
