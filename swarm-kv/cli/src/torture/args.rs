//! What `swarm torture` takes.

use std::path::PathBuf;

use clap::Args;

use crate::common::args::parse_nodes;

pub(crate) const HELP: &str = "Each client is a process that gets, puts, inserts, updates and \
deletes, compares and swaps (cas) and adds to numbers (incr) as fast as it can: of a hundred operations 30 are gets, \
12 puts, 12 inserts, 14 updates, 16 deletes, 8 cas and 8 incr, which are cas where the key holds no number; every \
third key does. Of another third some puts are put_with_ttl, some gets ttl, and some updates persist. Every value is written once, every sum is there once. Every call is on record before it is made, \
every answer as soon as it is there, so that what a killed client did is known as far as it can be. \
When the time is over nothing fails any more: stopped clients go on, nodes come back, and each client \
that is left must be served whatever it asks for, within a bound of roundtrips on a temporary pool. Then \
every key is read once more, without the nodes that were taken away for good. \
A run that fails or is interrupted saves its history, too, and takes its keys out of the pool.

Exit status: 0 linearizable, and all were served in the end; 1 not; 2 wrong usage; 3 failure, or no \
verdict, as the pool was full before there was much to judge; 130 interrupted (Ctrl-C).

Examples:
  swarm torture --clients 8 --kill-clients --freeze-node
  swarm torture --near --kill-clients --stop-clients
  swarm torture --nodes 5 --roll-nodes --stop-clients
  swarm torture --replace-nodes --kill-clients
  swarm torture --seconds 60 --kill-node --history FILE; swarm check FILE";

#[derive(Args, Debug)]
pub(crate) struct TortureArgs {
    /// The pool's directory; without it a temporary pool is made
    pub(crate) pool: Option<PathBuf>,
    /// Client processes at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=400))]
    pub(crate) clients: u32,
    /// Keys, all of them hot
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) keys: u32,
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Memory nodes of the temporary pool [default: 3]
    #[arg(long, value_parser = parse_nodes, conflicts_with = "pool")]
    pub(crate) nodes: Option<usize>,
    /// Kill clients with SIGKILL at random moments; others take their places
    #[arg(long)]
    pub(crate) kill_clients: bool,
    /// Half-way, take a minority of the memory nodes away for good; takes three nodes or more
    #[arg(long)]
    pub(crate) kill_node: bool,
    /// Stop and thaw a minority of the memory nodes at random moments; takes three nodes or more
    #[arg(long)]
    pub(crate) freeze_node: bool,
    /// Take every memory node away in turn, one at a time: it freezes, thaws, goes down and comes back;
    /// takes three nodes or more
    #[arg(long, conflicts_with = "freeze_node")]
    pub(crate) roll_nodes: bool,
    /// Lose the file of every memory node in turn, and replace it while clients work; half of the processes that
    /// do are killed on the way; takes three nodes or more
    #[arg(long, conflicts_with_all = ["pool", "kill_node", "freeze_node", "roll_nodes"])]
    pub(crate) replace_nodes: bool,
    /// Stop clients with SIGSTOP at random moments, each for 0.1 to 5 s
    #[arg(long)]
    pub(crate) stop_clients: bool,
    /// Clients use the pool's memory as programs do, without an emulated network, by which alone nodes
    /// could be taken away
    #[arg(long, conflicts_with_all = ["kill_node", "freeze_node", "roll_nodes"])]
    pub(crate) near: bool,
    /// Write the history to this file, for `swarm check`
    #[arg(long)]
    pub(crate) history: Option<PathBuf>,
    /// Seed of what the clients do and of when things fail
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}
