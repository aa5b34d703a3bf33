//! `swarm`: the command line of a replicated, linearizable key-value store. Its clients are in
//! [`swarm_worker`].
//!
//! The layers, top to bottom. A module uses only modules in rows below its own. The module `layers`
//! of swarm-kv's test `correctness` checks this.
//!
//! | layer | concept |
//! | --- | --- |
//! | `cli` | all commands, and the text of their help |
//! | `bench`, `check`, `demo`, `doctor`, `soak`, `torture`, `commands` | a large command each: YCSB; whether a history is linearizable; the store while nodes and clients fail; is this host fit; whether memory leaks or latency grows as clients join and leave for long; histories of clients under kills and pauses; and small commands |
//! | `workers` | clients in processes or threads, and the channel to them |
//! | `common` | what commands share: arguments, pools, exit status, units, lines of keys and values, cleanup on a signal, node faults, verdicts on histories, hot keys |
#![forbid(unsafe_code)]

mod bench;
mod check;
mod cli;
mod commands;
mod common;
mod demo;
mod doctor;
mod soak;
mod torture;
mod workers;

use std::process::ExitCode;

use cli::{Cli, Command};

/// The location cache and bench's arrays are accessed at random addresses.
#[global_allocator]
static ALLOCATOR: swarm_shm::HugePages = swarm_shm::HugePages;

/// Runs the command line.
fn main() -> ExitCode {
    let Cli { command, json, device } = cli::parse();
    #[cfg(feature = "rdma")]
    swarm_worker::far::choose(device.choice(), device.node_timeout);
    workers::set::hand_down(&device);
    let result = match command {
        Command::Demo => demo::run(json),
        Command::Create(args) => commands::create::run(&args, json),
        Command::Info(args) => commands::info::run(&args, json),
        Command::Destroy(args) => commands::destroy::run(&args, json),
        Command::Repair(args) => commands::repair::run(&args, json),
        Command::Replace(args) => commands::replace::run(&args, json),
        Command::Get(args) => commands::keys::get(&args, json),
        Command::Put(args) => commands::keys::put(&args, json),
        Command::Insert(args) => commands::keys::insert(&args, json),
        Command::Update(args) => commands::keys::update(&args, json),
        Command::Delete(args) => commands::keys::delete(&args, json),
        Command::Cas(args) => commands::keys::cas(&args, json),
        Command::Incr(args) => commands::keys::incr(&args, json),
        Command::Watch(args) => commands::watch::run(&args, json),
        Command::Ttl(args) => commands::keys::ttl(&args, json),
        Command::Persist(args) => commands::keys::persist(&args, json),
        Command::Lock(args) => commands::lock::lock(&args, json),
        Command::Locks(args) => commands::lock::locks(&args, json),
        Command::Keys(args) => commands::import_export::keys(&args, json),
        Command::Import(args) => commands::import_export::import(&args, json),
        Command::Export(args) => commands::import_export::export(&args, json),
        Command::Backup(args) => commands::backup::run(&args, json),
        Command::Restore(args) => commands::restore::run(&args, json),
        Command::Bench(args) => bench::run(&args, json),
        Command::Torture(args) => torture::run(&args, json),
        Command::Soak(args) => soak::run(&args, json),
        Command::Check(args) => check::run(&args, json),
        Command::Memnode(args) => commands::memnode::run(&args, json),
        Command::Evict(args) => commands::evict::run(&args, json),
        Command::Gc(args) => commands::gc::run(&args, json),
        Command::Doctor(args) => doctor::run(&args, json),
        Command::Worker { parent } => workers::process::run(parent),
    };
    common::exit::report(result, json)
}
