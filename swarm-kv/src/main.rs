//! `swarm`: the command line of a replicated, linearizable key-value store.
#![forbid(unsafe_code)]

mod cli;

fn main() -> std::process::ExitCode {
    cli::run()
}
