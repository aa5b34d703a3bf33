//! The store beside what else the programs of one host share keys in: `peers [--rounds N] [--keys N] [--seconds S]`.
//!
//! ```sh
//! cargo run --release -p swarm-benches --no-default-features --features lmdb --example peers
//! ```
//!
//! Ours with one node and with three; LMDB (with the feature `lmdb`); a table behind 4,096 robust mutexes; a table of
//! seqlocks; redis and memcached over unix sockets, if they are installed. One and two processes get (workload C),
//! or get and update by halves (A): zipfian 0.99, keys of 24 bytes, values of 64. The systems take turns, so that a
//! machine that is busy now and then is so for all of them; what is printed is the median of the rounds, with the
//! least and the most. None of the peers is replicated.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use machine::{Machine, Span};
use servers::Server;
use systems::System;
use work::{Role, WORKLOADS, Workload};
use worker::Worker;

#[cfg(feature = "lmdb")]
mod lmdb;
mod machine;
mod mutexes;
mod ours;
mod seqlock;
mod servers;
mod shared;
mod systems;
mod wire;
mod work;
mod worker;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// So many processes at a time.
const PROCESSES: [usize; 2] = [1, 2];

struct Options {
    rounds: usize,
    keys: u64,
    /// Of each measurement.
    seconds: f64,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let mut options = Self { rounds: 9, keys: 100_000, seconds: 0.5 };
        for pair in args.chunks(2) {
            let [name, value] = pair else { return Err(format!("{}: no value", pair[0]).into()) };
            match name.as_str() {
                "--rounds" => options.rounds = value.parse()?,
                "--keys" => options.keys = value.parse()?,
                "--seconds" => options.seconds = value.parse()?,
                _ => {
                    return Err(
                        format!("{name}: --rounds N, --keys N and --seconds S are there").into()
                    );
                }
            }
        }
        let fit = options.rounds > 0 && options.keys > 1 && options.seconds > 0.0;
        if fit { Ok(options) } else { Err("a round, two keys and some time are the least".into()) }
    }
}

/// A system that is loaded, with the processes that use it, of which there may be fewer at work.
struct Runner {
    system: System,
    /// Dropped before what they are connected to.
    workers: Vec<Worker>,
    server: Option<Server>,
    /// Operations a second of all rounds: by workload and number of processes.
    rates: Vec<((Workload, usize), Vec<f64>)>,
}

impl Runner {
    /// `None` where the system cannot be had, which is printed.
    fn start(system: System, place: &Path, keys: u64) -> Result<Option<Self>> {
        let server = match system.create(place, keys)? {
            Ok(server) => server,
            Err(why) => {
                eprintln!("skipped {}: {why}", system.label());
                return Ok(None);
            }
        };
        system.run(place, keys, Role::Load)?;
        let most = PROCESSES.into_iter().max().unwrap_or(1);
        let workers = (0..most)
            .map(|seed| Worker::start(system, place, keys, seed as u64))
            .collect::<Result<_>>()?;
        Ok(Some(Self { system, workers, server, rates: Vec::new() }))
    }

    fn measure(&mut self, workload: Workload, processes: usize, seconds: f64) -> Result<()> {
        let workers = &mut self.workers[..processes];
        for worker in &mut *workers {
            worker.go(workload, seconds)?;
        }
        let mut rate = 0.0;
        for worker in workers {
            rate += worker.rate().map_err(|error| format!("{}: {error}", self.system.label()))?;
        }
        let of = (workload, processes);
        match self.rates.iter_mut().find(|(other, _)| *other == of) {
            Some((_, rates)) => rates.push(rate),
            None => self.rates.push((of, vec![rate])),
        }
        Ok(())
    }

    fn row(&self) -> String {
        let mut row = format!("| {} |", self.system.label());
        for processes in PROCESSES {
            for workload in WORKLOADS {
                let rates = self.rates.iter().find(|(of, _)| *of == (workload, processes));
                let mut rates = rates.map(|(_, rates)| rates.clone()).unwrap_or_default();
                rates.sort_by(f64::total_cmp);
                let [least, median, most] =
                    [0, rates.len() / 2, rates.len() - 1].map(|at| rates[at] / 1e6);
                row += &format!(" {median:.2} ({least:.2} to {most:.2}) |");
            }
        }
        row
    }
}

fn table(runners: &[Runner]) {
    let columns = PROCESSES.into_iter().flat_map(|processes| {
        let suffix = if processes == 1 { "" } else { "es" };
        WORKLOADS.map(|workload| format!("{}, {processes} process{suffix}", workload.name()))
    });
    let columns: Vec<_> = columns.collect();
    println!("| million operations a second | {} |", columns.join(" | "));
    println!("|{}", " --- |".repeat(columns.len() + 1));
    for runner in runners {
        println!("{}", runner.row());
    }
}

fn compare(options: &Options) -> Result<()> {
    let Options { rounds, keys, seconds } = *options;
    let machine = Machine::look();
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let mut runners = Vec::new();
    for system in System::ALL {
        eprintln!("loading {}", system.label());
        runners.extend(Runner::start(system, &dir.path().join(system.name()), keys)?);
    }
    let servers = runners.iter().filter_map(|runner| runner.server.as_ref().map(Server::process));
    let workers = runners.iter().flat_map(|runner| runner.workers.iter().map(Worker::process));
    let ours: Vec<u32> = servers.chain(workers).chain([std::process::id()]).collect();
    let (span, began) = (Span::begin(&ours), Instant::now());
    for round in 0..rounds {
        for processes in PROCESSES {
            for workload in WORKLOADS {
                // Another one comes first each time: what was before it is in the caches.
                for turn in 0..runners.len() {
                    let at = (round + turn) % runners.len();
                    runners[at].measure(workload, processes, seconds)?;
                }
            }
        }
        let each = began.elapsed().as_secs_f64() / (round + 1) as f64;
        let left = each * (rounds - round - 1) as f64;
        eprintln!("round {} of {rounds}, {left:.0} s left", round + 1);
    }
    let others = span.taken_by_others(&ours);
    table(&runners);
    println!(
        "\n{keys} keys of 24 bytes, values of 64, zipfian 0.99; C: gets, A: half gets, half updates; each"
    );
    println!(
        "process has one operation under way. Medians of {rounds} rounds of {seconds} s, the least and the most."
    );
    println!("None but ours with three nodes keeps more than one copy: peers are not replicated.");
    println!("{machine}; {}", machine::busy(others));
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [role, system, place, keys, seed] if role == worker::ROLE => {
            let system = System::named(system).ok_or("no such system")?;
            system.run(Path::new(place), keys.parse()?, Role::Serve { seed: seed.parse()? })
        }
        args => compare(&Options::parse(args)?),
    }
}
