//! What `swarm soak` takes.

use std::path::PathBuf;

use clap::Args;

use crate::common::args::parse_nodes;
use crate::common::units::parse_size;

pub(crate) const HELP: &str = "Client processes do all operations, on values of 64 B to 64 KiB, most of \
them small, until the time is over and the pool's capacity has been written many times over. At \
random, clients are killed and leave, and others come. Checked are:

  volume        as much was written as was asked for
  never full    no write was refused
  histories     of sixteen hot keys, others every two seconds: linearizable
  values        of all other keys: whole, whenever they are read
  memory        in chunks, after the first fifth of the run: grows by at most 5 %, by the lower
                end of a 99.9 % confidence interval, as clients that die make it go up and
                down; of a run that wrote the capacity over 23 times
  allocated     objects in chunks: likewise
  get, update   medians of the last minute, or tenth: at most 10 % slower than at first; open where they
                are not and the machine was busy with other programs

Exit status: 0 all is well, 1 a check failed, 2 wrong usage, 3 failure, or a check is open and none \
failed, 130 interrupted (Ctrl-C).

Examples:
  swarm soak
  swarm soak /dev/shm/pool --minutes 60 --clients 8 --json";

#[derive(Args, Debug)]
pub(crate) struct SoakArgs {
    /// The pool's directory; without it a temporary pool is made
    pub(crate) pool: Option<PathBuf>,
    /// How long at least [default: 1]
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=14_400))]
    pub(crate) minutes: Option<u64>,
    /// The same in seconds; with --minutes, so much more
    #[arg(long, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) seconds: Option<u64>,
    /// How often the capacity of a memory node is written at least
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=100_000))]
    pub(crate) turnover: u64,
    /// Client processes at a time
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=400))]
    pub(crate) clients: u32,
    /// Keys that stay
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) keys: u32,
    /// Memory nodes of the temporary pool [default: 3]
    #[arg(long, value_parser = parse_nodes, conflicts_with = "pool")]
    pub(crate) nodes: Option<usize>,
    /// Size of each memory node of the temporary pool [default: 64MiB, more for many keys or clients]
    #[arg(long, value_parser = parse_size, conflicts_with = "pool")]
    pub(crate) capacity: Option<u64>,
    /// Seed of what the clients do and of when they are killed
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl SoakArgs {
    /// How long, in seconds.
    pub(crate) fn seconds(&self) -> u64 {
        match (self.minutes, self.seconds) {
            (None, None) => 60,
            (minutes, seconds) => (60 * minutes.unwrap_or(0) + seconds.unwrap_or(0)).max(1),
        }
    }

    /// Bytes of each node of a temporary pool: about eight times what the keys take, and for each
    /// client the chunks that it begins.
    pub(crate) fn capacity(&self) -> u64 {
        let keys = u64::from(self.keys) * (16 << 10);
        let clients = u64::from(self.clients) * (8 << 20);
        self.capacity.unwrap_or((keys + clients).max(64 << 20).next_multiple_of(1 << 20))
    }
}
