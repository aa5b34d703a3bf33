//! `swarm`: the command line of a replicated, linearizable key-value store.
#![forbid(unsafe_code)]

mod cli;

/// The location cache and what bench prepares are met at random places.
#[global_allocator]
static ALLOCATOR: swarm_shm::HugePages = swarm_shm::HugePages;

fn main() -> std::process::ExitCode {
    cli::run()
}
