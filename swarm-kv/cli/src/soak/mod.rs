//! `swarm soak`: clients that join, die and leave for a long time; checks for leaks and slowdown.
//!
//! The pool's memory is overwritten many times, with values of all sizes. The history of each
//! window of time is checked as soon as the window is over. Memory use and operation times, which
//! must not grow, are sampled over the whole run.

pub(crate) mod args;
pub(crate) mod memory;
pub(crate) mod report;
pub(crate) mod windows;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use swarm_worker::hot_keys::key_name;
use swarm_worker::job::{Job, Message, SoakJob, SoakTally, monotonic_ns};
use swarm_worker::soak::{HOT_KEYS, lasting_name, run_of, window_at};
use swarm_worker::store::with_client;

use crate::common::busy::Watch;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line};
use crate::common::hot_keys::clear;
use crate::common::temporary::{Site, TemporaryPool};
use crate::common::units::show_size;
use crate::soak::args::SoakArgs;
use crate::soak::memory::{Memory, Sample};
use crate::soak::report::SoakResult;
use crate::soak::windows::Windows;
use crate::workers::set::{Isolation, WorkerSet, gone};

/// Bytes that the logs of unfinished windows may take.
const LOG_BYTES: u64 = 256 << 20;
/// How long clients stay, and times between kills, and between a client's end and the next one's
/// start: nanoseconds.
const STAY: Range<u64> = 500_000_000..8_000_000_000;
const KILL_EVERY: Range<u64> = 100_000_000..1_500_000_000;
const JOIN_AFTER: Range<u64> = 0..200_000_000;
const SAMPLE_EVERY_NS: u64 = 200_000_000;
/// The factor by which the run may exceed its planned time.
const LONGEST: u64 = 20;
/// The number of refused writes that prove that the pool is full.
const ENOUGH_FULL: u64 = 1000;
/// How long after its time a client may take to end.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Runs `swarm soak`.
pub(crate) fn run(args: &SoakArgs, json: bool) -> Result<Answer, Failure> {
    let site = match &args.pool {
        Some(path) => Site::given(path, |_| LOG_BYTES)?,
        None => {
            let slots = 2 * args.clients as usize + 8;
            let nodes = args.nodes.unwrap_or(3);
            Site::Temporary(TemporaryPool::create(nodes, args.capacity(), slots)?)
        }
    };
    let (slots, clients) = (site.pool().geometry().max_clients, args.clients as usize);
    if slots <= clients {
        return Err(Failure::Usage(format!(
            "{} is for {slots} clients at most, and a soak with {clients} takes one more, which judges: ask for fewer with \
             --clients",
            site.path().display()
        )));
    }
    // Keys that no other run uses, so that they are absent at first.
    let run = format!("{}-{}", std::process::id(), monotonic_ns());
    let mut soak = Soak::new(args, &site, run)?;
    if args.pool.is_some() {
        let pool = soak.site.path();
        let left =
            format!("swarm: interrupted; keys of this run may still be in {}", pool.display());
        cleanup::ends_by_itself(Some(left));
    }
    let outcome = soak.parent();
    // Clients in the same terminal get the same signal, and their end may be noticed first.
    let outcome = outcome.map_err(|why| if cleanup::seen() { cleanup::failure() } else { why });
    if args.pool.is_some() {
        // Whatever else has failed, clean up: the pool is a user's.
        let windows = soak.disband()?;
        let names = names(&soak.run, args.keys, windows);
        // Deletes may fail in a full pool.
        let cleared = with_client(site.pool(), |store| clear(store, names)).map(|_| ());
        outcome.and(cleared)?;
    } else {
        outcome?;
    }
    soak.result().print(json)
}

/// Returns the names of all keys of a run: the permanent ones, and those of windows that were not
/// checked and so not cleared.
fn names(run: &str, keys: u32, windows: Range<u64>) -> impl Iterator<Item = String> {
    let hot = windows.flat_map(move |window| {
        let run = run_of(run, window);
        (0..HOT_KEYS).map(move |key| key_name(&run, key))
    });
    (0..keys).map(move |key| lasting_name(run, key)).chain(hot)
}

/// A client at work.
struct AtWork {
    /// The window that it is in.
    window: u64,
    leave_ns: u64,
    /// Whether it has reported that it leaves.
    leaves: bool,
}

/// A run of soak.
struct Soak<'a> {
    args: &'a SoakArgs,
    site: &'a Site,
    run: String,
    rng: SmallRng,
    workers: WorkerSet,
    at_work: HashMap<usize, AtWork>,
    started_ns: u64,
    ended_ns: u64,
    kill_at: u64,
    /// The next kill waits until the clients have written this many bytes.
    kill_behind: u64,
    join_at: u64,
    sample_at: u64,
    clients: u32,
    kills: u64,
    left: u64,
    tally: SoakTally,
    samples: Vec<Sample>,
    watch: Watch,
    windows: Windows,
}

impl<'a> Soak<'a> {
    fn new(args: &'a SoakArgs, site: &'a Site, run: String) -> Result<Self, Failure> {
        let now = monotonic_ns();
        Ok(Self {
            args,
            site,
            run,
            rng: SmallRng::seed_from_u64(args.seed),
            workers: WorkerSet::start(Vec::new(), Isolation::Process)?,
            at_work: HashMap::new(),
            started_ns: now,
            ended_ns: now,
            kill_at: now + KILL_EVERY.end,
            kill_behind: 0,
            join_at: now,
            sample_at: now,
            clients: 0,
            kills: 0,
            left: 0,
            tally: SoakTally::default(),
            samples: Vec::new(),
            watch: Watch::begin(),
            windows: Windows::default(),
        })
    }

    /// Runs joining and leaving clients until the run is over; then kills all.
    fn parent(&mut self) -> Result<(), Failure> {
        let style = ProgressStyle::with_template("{wide_bar} {elapsed}/{msg}");
        let bar = ProgressBar::new(1000).with_style(style.expect("the template is well-formed"));
        loop {
            let now = monotonic_ns();
            if self.is_over(now) {
                break;
            }
            if cleanup::seen() {
                eprint_line("swarm: ending; a second signal ends it at once");
                return Err(cleanup::failure());
            }
            bar.set_position((self.progress(now) * 1000.0) as u64);
            bar.set_message(format!("{} s, {}", self.args.seconds(), show_size(self.tally.bytes)));
            self.join_and_kill(now)?;
            if let Some((client, _)) =
                self.at_work.iter().find(|(_, at_work)| now > at_work.leave_ns + PATIENCE_NS)
            {
                return Err(Failure::Failed(format!("client {client} does not end")));
            }
            if now >= self.sample_at {
                self.sample(now)?;
            }
            self.receive(Duration::from_millis(5))?;
            self.check_window(window_at(self.started_ns, now))?;
        }
        self.ended_ns = monotonic_ns();
        self.disband()?;
        self.check_window(window_at(self.started_ns, monotonic_ns()) + 1)?;
        bar.finish_and_clear();
        Ok(())
    }

    fn volume(&self) -> u64 {
        self.args.turnover * self.site.pool().geometry().capacity
    }

    /// Returns the progress, from 0 to 1.
    fn progress(&self, now: u64) -> f64 {
        let seconds = (now - self.started_ns) as f64 / 1e9;
        let volume = self.tally.bytes as f64 / self.volume().max(1) as f64;
        (seconds / self.args.seconds() as f64).min(volume)
    }

    /// Returns whether the run is complete or has failed.
    fn is_over(&self, now: u64) -> bool {
        let seconds = (now - self.started_ns) / 1_000_000_000;
        let hopeless = seconds >= LONGEST * self.args.seconds().max(30)
            || self.tally.full >= ENOUGH_FULL
            || self.tally.damaged > 0
            || self.windows.wrong.is_some();
        hopeless || self.progress(now) >= 1.0
    }

    fn join_and_kill(&mut self, now: u64) -> Result<(), Failure> {
        if self.at_work.len() < self.args.clients as usize && now >= self.join_at {
            // All at once at first, later one at a time.
            let all_at_first = self.clients + 1 < self.args.clients;
            let pause = if all_at_first { 0 } else { self.rng.random_range(JOIN_AFTER) };
            self.join_at = now + pause;
            self.join(now)?;
        }
        let is_time = now >= self.kill_at && self.tally.bytes >= self.kill_behind;
        if is_time && !self.at_work.is_empty() {
            self.kill_at = now + self.rng.random_range(KILL_EVERY);
            // A dead client's memory is reclaimed when memory is short. On a machine where the
            // others have no time to write, many kills would pass for a leak.
            self.kill_behind = self.tally.bytes + self.site.pool().geometry().capacity / 2;
            let victim = self.rng.random_range(0..self.at_work.len());
            if let Some(&client) = self.at_work.keys().nth(victim) {
                let dead = self.workers.kill(client)?;
                self.site.pool().evict_dead(dead)?;
                self.at_work.remove(&client);
                self.kills += 1;
            }
        }
        Ok(())
    }

    fn join(&mut self, now: u64) -> Result<(), Failure> {
        let leave_ns = now + self.rng.random_range(STAY);
        let job = Job::Soak(SoakJob {
            pool: self.site.path(),
            logs: self.site.logs().to_owned(),
            run: self.run.clone(),
            client: self.clients,
            keys: self.args.keys,
            seed: self.args.seed,
            started_ns: self.started_ns,
            leave_ns,
        });
        self.clients += 1;
        let client = self.workers.add(&job)?;
        // The client begins no earlier than now.
        let window = window_at(self.started_ns, now);
        self.at_work.insert(client, AtWork { window, leave_ns, leaves: false });
        Ok(())
    }

    /// Handles a message, if one arrives in time.
    fn receive(&mut self, patience: Duration) -> Result<(), Failure> {
        let Some((client, message)) = self.workers.next(patience) else { return Ok(()) };
        match message {
            Message::OpCost(tally) => {
                let sum = &mut self.tally;
                sum.operations += tally.operations;
                sum.bytes += tally.bytes;
                sum.full += tally.full;
                sum.damaged += tally.damaged;
                if let Some(at_work) = self.at_work.get_mut(&client) {
                    at_work.window = tally.window;
                }
            }
            Message::Report(_) => {
                if let Some(at_work) = self.at_work.get_mut(&client) {
                    at_work.leaves = true;
                }
            }
            Message::Gone => {
                // A killed client is not in the map any more.
                if let Some(at_work) = self.at_work.remove(&client) {
                    self.workers.reap(client);
                    if !at_work.leaves {
                        return Err(gone(client));
                    }
                    self.left += 1;
                }
            }
            Message::Failed(why) => return Err(Failure::Failed(why)),
            // Messages of other kinds of clients.
            _ => {}
        }
        Ok(())
    }

    fn sample(&mut self, now: u64) -> Result<(), Failure> {
        self.sample_at = now + SAMPLE_EVERY_NS;
        let at = (now - self.started_ns) as f64 / 1e9;
        let (used, allocated) = self.site.pool().in_use()?;
        self.samples.push(Sample { at, used, allocated });
        Ok(())
    }

    /// Checks the windows before this one that no client is in any more.
    fn check_window(&mut self, window: u64) -> Result<(), Failure> {
        let earliest = self.at_work.values().map(|at_work| at_work.window).min();
        let over = earliest.unwrap_or(window).min(window);
        while self.windows.judged < over {
            self.windows.check(self.site.pool(), self.site.logs(), &self.run, self.clients)?;
        }
        Ok(())
    }

    /// Kills all clients at work. Returns the windows whose keys may exist.
    fn disband(&mut self) -> Result<Range<u64>, Failure> {
        for (client, _) in std::mem::take(&mut self.at_work) {
            let dead = self.workers.kill(client)?;
            self.site.pool().evict_dead(dead)?;
            self.kills += 1;
        }
        Ok(self.windows.judged..window_at(self.started_ns, monotonic_ns()) + 1)
    }

    fn result(self) -> SoakResult<'a> {
        let capacity = self.site.pool().geometry().capacity;
        let times = self.tally.bytes as f64 / capacity as f64;
        SoakResult {
            pool: self.args.pool.as_deref().unwrap_or(Path::new("a temporary pool")),
            seconds: (self.ended_ns - self.started_ns) as f64 / 1e9,
            capacity,
            times,
            turnover: self.args.turnover,
            tally: self.tally,
            clients: self.clients,
            kills: self.kills,
            left: self.left,
            samples: self.samples.len(),
            memory: Memory::of(&self.samples, times),
            busy: self.watch.end(),
            windows: self.windows,
        }
    }
}
