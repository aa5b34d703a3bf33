//! What the clients of `swarm`'s commands do: the store as they use it, and the loops of those that work for long.
//!
//! The store is generic, and its code is generated where its types are chosen. That is here and nowhere else in the
//! command line, so that this crate is built to run fast, and the one with the arguments, reports and leaders is
//! built fast. So nothing that is public here is generic over a client's types: commands have a [`Store`](store::Store).
//!
//! | file | concept |
//! | --- | --- |
//! | `failure` | why a command could not be carried out |
//! | `pool`, `far` | pools of this host, and on memory nodes behind RDMA cards |
//! | `store`, `system` | the library, as the commands use it; the systems that are measured |
//! | `job` | what a client is told to do, and what it tells |
//! | `distribution`, `workload`, `measure` | YCSB |
//! | `demo`, `demo_log` | clients of the demo, and what was acknowledged to them |
//! | `torture`, `torture_log`, `history` | clients on hot keys, what they did, histories as files |
//! | `soak` | clients that come and go |
#![forbid(unsafe_code)]

pub mod demo;
pub mod demo_log;
pub mod distribution;
mod failure;
#[cfg(feature = "rdma")]
pub mod far;
pub mod history;
pub mod job;
mod measure;
pub mod pool;
pub mod soak;
pub mod store;
mod system;
pub mod torture;
pub mod torture_log;
pub mod workload;

pub use failure::Failure;

use job::{Job, Message, Order};

/// The way to whoever leads.
pub trait Lead {
    /// Tells.
    ///
    /// # Errors
    /// Nobody leads any more.
    fn tell(&self, message: Message) -> Result<(), Failure>;
    /// Waits to be told.
    ///
    /// # Errors
    /// Nobody leads any more.
    fn wait(&self) -> Result<Order, Failure>;
}

/// Does the job and tells how it went.
///
/// # Errors
/// Nobody leads any more.
pub fn work(job: &Job, lead: &dyn Lead) -> Result<(), Failure> {
    let result = match job {
        Job::Bench(job) => measure::run(job, lead),
        Job::Demo(job) => demo::run(job, lead),
        Job::Torture(job) => torture::run(job, lead),
        Job::Soak(job) => soak::run(job, lead),
    };
    lead.tell(match result {
        Ok(report) => Message::Report(Box::new(report)),
        Err(failure) => match failure.message() {
            Some(message) => Message::Failed(message),
            None => return Ok(()),
        },
    })
}
