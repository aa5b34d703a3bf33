//! `swarm`: the command line of a replicated, linearizable key-value store. What its clients do is in [`swarm_worker`].
//!
//! ```text
//! args                    what the command line takes
//! outcome, units, limits   exit status; sizes and durations; how long keys and values may be
//! escape, lines           lines of key and value, and the file that an import reads
//! pools, info             create, destroy; what is in a pool and who holds its memory
//! keys, transfer          get, put, …; import, export
//! memnode, evict          a memory node's daemon; ending clients
//! doctor                  whether this host is fit for shared memory, or for RDMA
//! busy                    whether the machine did other things meanwhile
//! temporary, interrupted  pools that go when the command ends, whatever ends it
//! crew, worker            clients in processes or threads, and how they are led
//! bench, bench_report     YCSB
//! demo…                   the store at work while things fail
//! torture…, nodes         histories of clients under kills and freezes
//! soak…                   clients that come and go for long, and whether anything wears out
//! check…                  whether a history is linearizable
//! ```
#![forbid(unsafe_code)]

mod args;
mod args_rdma;
mod bench;
mod bench_report;
mod busy;
mod check;
mod check_report;
mod crew;
mod demo;
mod demo_live;
mod demo_report;
mod demo_verdict;
mod doctor;
mod escape;
mod evict;
mod info;
mod interrupted;
mod keys;
mod limits;
mod lines;
#[cfg(feature = "rdma")]
mod memnode;
mod nodes;
mod outcome;
mod pools;
mod soak;
mod soak_memory;
mod soak_report;
mod soak_windows;
mod temporary;
mod torture;
mod torture_chaos;
mod torture_file;
mod torture_keys;
mod torture_report;
mod transfer;
mod units;
mod worker;

use std::process::ExitCode;

use args::{Cli, Command};

/// The location cache and what bench prepares are met at random places.
#[global_allocator]
static ALLOCATOR: swarm_shm::HugePages = swarm_shm::HugePages;

/// Does what the command line says.
fn main() -> ExitCode {
    let Cli { command, json, device } = args::parse();
    #[cfg(feature = "rdma")]
    swarm_worker::far::choose(device.choice());
    crew::hand_down(&device);
    let result = match command {
        Command::Demo => demo::run(json),
        Command::Create(args) => pools::create(&args, json),
        Command::Info(args) => info::run(&args, json),
        Command::Destroy(args) => pools::destroy(&args, json),
        Command::Get(args) => keys::get(&args, json),
        Command::Put(args) => keys::put(&args, json),
        Command::Insert(args) => keys::insert(&args, json),
        Command::Update(args) => keys::update(&args, json),
        Command::Delete(args) => keys::delete(&args, json),
        Command::Import(args) => transfer::import(&args, json),
        Command::Export(args) => transfer::export(&args, json),
        Command::Bench(args) => bench::run(&args, json),
        Command::Torture(args) => torture::run(&args, json),
        Command::Soak(args) => soak::run(&args, json),
        Command::Check(args) => check::run(&args, json),
        #[cfg(feature = "rdma")]
        Command::Memnode(args) => memnode::run(&args, json),
        #[cfg(not(feature = "rdma"))]
        Command::Memnode(_) => {
            Err(outcome::Failure::Failed(swarm_worker::pool::NO_RDMA.to_owned()))
        }
        Command::Evict(args) => evict::run(&args, json),
        Command::Doctor(args) => doctor::run(&args, json),
        Command::Worker { parent } => worker::run(parent),
    };
    outcome::report(result, json)
}
