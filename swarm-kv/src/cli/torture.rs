//! `swarm torture`: clients on a few hot keys while things fail, and whether what they were told is
//! linearizable.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::TortureArgs;
use super::busy::Watch;
use super::check::judge;
use super::check_format::History;
use super::crew::{Crew, Shell, gone};
use super::interrupted;
use super::job::{Job, Message, TortureJob, monotonic_ns};
use super::outcome::{Answer, Failure, tell};
use super::store::{with_client, with_emulated};
use super::temporary::{Site, TemporaryPool};
use super::torture_chaos::Chaos;
use super::torture_file::HistoryFile;
use super::torture_keys::{Clear, LastLook, left_in};
use super::torture_log::{ends_full, take};
use super::torture_report::{Brought, slowest, slowest_at, widest_gap};
use super::torture_worker::{RTT_NS, key_name};

/// Bytes of each node of a temporary pool for each second: about twice what two cores write.
const BYTES_A_SECOND: u64 = 64 << 20;
/// A temporary pool is no smaller and no larger than this.
const SMALLEST: u64 = 256 << 20;
const LARGEST: u64 = 2 << 30;
/// Bytes that the logs may take for each second.
const LOG_BYTES_A_SECOND: u64 = 32 << 20;
/// The same over a network, which takes its time.
const FAR_LOG_BYTES_A_SECOND: u64 = 4 << 20;
/// How long after the time is over a client may still take to end.
const PATIENCE_NS: u64 = 30_000_000_000;

/// Tortures.
pub(crate) fn run(args: &TortureArgs, json: bool) -> Result<Answer, Failure> {
    let site = match &args.pool {
        Some(path) => Site::given(path, |pool| {
            let far = pool.is_far();
            args.seconds * if far { FAR_LOG_BYTES_A_SECOND } else { LOG_BYTES_A_SECOND }
        })?,
        None => {
            let capacity = (args.seconds * BYTES_A_SECOND).clamp(SMALLEST, LARGEST);
            let slots = 2 * args.clients as usize + 8;
            let nodes = args.nodes.unwrap_or(3);
            Site::Temporary(TemporaryPool::create(nodes, capacity, slots)?)
        }
    };
    // Keys that nobody else uses, so that they are absent at first.
    let run = format!("{}-{}", std::process::id(), monotonic_ns());
    let watch = Watch::begin();
    let mut torture = Torture::new(args, &site, run)?;
    // Looked at before the run, so that none is in vain, and behind what may be refused.
    let file = args.history.as_deref().map(HistoryFile::create).transpose()?;
    interrupted::ends_by_itself(
        args.pool.is_some().then(|| format!("swarm: interrupted ({})", torture.keys_left())),
    );
    let mut history = History::default();
    let outcome = torture.lead();
    let outcome = outcome.and(torture.take_logs(&mut history));
    let widest_gap_ns = widest_gap(&history);
    let outcome = outcome.and_then(|()| torture.look(&mut history));
    for key in 0..args.keys {
        history.keys.number(key_name(&torture.run, key));
    }
    history.operations.sort_by_key(|op| op.called);
    if let Err(failure) = outcome {
        return Err(torture.salvage(&history, file, failure));
    }
    interrupted::ends_at_once();
    let (freezes, gone) = (torture.chaos.freezes, torture.chaos.gone.clone());
    drop(torture.chaos);
    if let Some(file) = file {
        file.write(&history)?;
    }
    let brought = Brought {
        seconds: torture.ended_ns.saturating_sub(torture.started_ns) as f64 / 1e9,
        clients: torture.clients,
        slowest_ns: slowest(&history.operations),
        slowest_at_kills_ns: slowest_at(&history.operations, &torture.kills),
        kills: torture.kills.len() as u64,
        freezes,
        gone,
        moved: torture.moved,
        full: torture.full,
        widest_gap_ns,
        busy: watch.end(),
        verdict: judge(&history)?,
    };
    brought.verdict.answer_once(brought.print(&history, json))
}

fn log_path(logs: &Path, client: u32) -> PathBuf {
    logs.join(format!("log-{client}"))
}

/// A run.
struct Torture<'a> {
    args: &'a TortureArgs,
    site: &'a Site,
    run: String,
    chaos: Chaos<'a>,
    started_ns: u64,
    until_ns: u64,
    /// Whether the first clients were told to go.
    begun: bool,
    ended_ns: u64,
    /// Clients that were started so far.
    clients: u32,
    /// When clients were killed.
    kills: Vec<u64>,
    /// Keys that the clients say they have moved.
    moved: u64,
    full: bool,
}

impl<'a> Torture<'a> {
    fn new(args: &'a TortureArgs, site: &'a Site, run: String) -> Result<Self, Failure> {
        let started_ns = monotonic_ns();
        Ok(Self {
            args,
            site,
            run,
            chaos: Chaos::new(site.pool(), args)?,
            started_ns,
            until_ns: started_ns,
            begun: false,
            ended_ns: started_ns,
            clients: 0,
            kills: Vec::new(),
            moved: 0,
            full: false,
        })
    }

    /// The job of the next client.
    fn job(&mut self) -> Job {
        let client = self.clients;
        self.clients += 1;
        Job::Torture(TortureJob {
            pool: self.site.path(),
            log: log_path(self.site.logs(), client),
            run: self.run.clone(),
            client,
            keys: self.args.keys,
            seed: self.args.seed,
            seconds: self.args.seconds,
            until_ns: self.begun.then_some(self.until_ns),
        })
    }

    /// Lets the clients work until the time is over. All have ended when this returns.
    fn lead(&mut self) -> Result<(), Failure> {
        let jobs = (0..self.args.clients).map(|_| self.job()).collect();
        let mut crew = Crew::start(jobs, Shell::Process)?;
        let outcome = self.supervise(&mut crew);
        if outcome.is_err() {
            for dead in crew.disband() {
                // Whoever needs its slot is told if there is none.
                let _ = self.site.pool().bury(dead);
            }
        }
        outcome
    }

    fn supervise(&mut self, crew: &mut Crew) -> Result<(), Failure> {
        let template = "{wide_bar} {elapsed}/{msg} s";
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        let bar = ProgressBar::new(self.args.seconds * 1000)
            .with_style(style)
            .with_message(self.args.seconds.to_string());
        crew.gather(|message| matches!(message, Message::Ready))?;
        self.started_ns = crew.go()?;
        self.until_ns = self.started_ns + self.args.seconds * 1_000_000_000;
        self.begun = true;
        self.chaos.begin(self.started_ns);
        // Those at work, and whether they have reported.
        let mut at_work: Vec<usize> = (0..self.args.clients as usize).collect();
        let mut reported = HashMap::new();
        while !at_work.is_empty() {
            let now = monotonic_ns();
            bar.set_position(now.saturating_sub(self.started_ns) / 1_000_000);
            if interrupted::seen() {
                tell("swarm: ending; a second signal ends it at once");
                return Err(interrupted::failure());
            }
            if now > self.until_ns + PATIENCE_NS {
                let client = at_work[0];
                return Err(Failure::Failed(format!("client {client} does not end")));
            }
            if (self.started_ns..self.until_ns).contains(&now) && !self.full {
                self.chaos.tick(now);
                if let Some(victim) = self.chaos.victim(now, at_work.len()) {
                    self.kills.push(monotonic_ns());
                    let dead = crew.kill(at_work.swap_remove(victim))?;
                    self.site.pool().bury(dead)?;
                    at_work.push(crew.add(&self.job())?);
                }
            }
            match crew.next(Duration::from_millis(1)) {
                Some((client, Message::Report(report))) => {
                    reported.insert(client, report.ended_ns);
                    self.ended_ns = self.ended_ns.max(report.ended_ns);
                }
                Some((client, Message::Gone)) if at_work.contains(&client) => {
                    let ended = reported.get(&client).ok_or_else(|| gone(client))?;
                    at_work.retain(|&other| other != client);
                    if *ended < self.until_ns && !self.full {
                        self.full = ends_full(&log_path(self.site.logs(), client as u32));
                        if !self.full {
                            at_work.push(crew.add(&self.job())?);
                        }
                    }
                }
                Some((_, Message::Moved(keys))) => self.moved += keys,
                Some((_, Message::Failed(why))) => return Err(Failure::Failed(why)),
                _ => {}
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// What all clients did, as far as it can be read.
    fn take_logs(&self, history: &mut History) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for client in 0..self.clients {
            outcome = outcome.and(take(history, &log_path(self.site.logs(), client), client));
        }
        outcome
    }

    /// Gets all keys, and leaves none in somebody's pool.
    fn look(&self, history: &mut History) -> Result<(), Failure> {
        let look = LastLook {
            keys: self.args.keys,
            run: &self.run,
            client: self.clients,
            delete: self.args.pool.is_some(),
            history,
        };
        let left = with_emulated(self.site.pool(), self.args.keys as usize, RTT_NS, look)?;
        if left > 0 {
            tell(format_args!("swarm: the pool is full: {}", self.keys_left()));
        }
        if interrupted::seen() { Err(interrupted::failure()) } else { Ok(()) }
    }

    /// Saves the history of a run that failed, which is worth most then, and takes the keys out of
    /// somebody's pool. Yields the failure, and what is left to do.
    fn salvage(
        &mut self,
        history: &History,
        file: Option<HistoryFile>,
        failure: Failure,
    ) -> Failure {
        // First: what follows asks the pool, which may be what failed.
        if let Some(file) = file.filter(|_| !history.operations.is_empty()) {
            let path = file.path().display().to_string();
            match file.write(history).map_err(Failure::message) {
                Ok(()) => tell(format_args!("swarm: the history so far is in {path}")),
                Err(why) => why.into_iter().for_each(|why| tell(format_args!("swarm: {why}"))),
            }
        }
        let more = if self.args.pool.is_some() { self.clear() } else { None };
        // Clients in the same terminal end by the same signal, and may be missed before it is seen.
        let failure = if interrupted::seen() { interrupted::failure() } else { failure };
        more.into_iter().fold(failure, |failure, more| failure.and(&more))
    }

    /// Deletes the keys. Says so if some stay.
    fn clear(&mut self) -> Option<String> {
        self.chaos.give_back();
        match with_client(self.site.pool(), Clear { keys: self.args.keys, run: &self.run }) {
            Ok(0) => None,
            Ok(_) => Some(format!("the pool is full: {}", self.keys_left())),
            Err(failure) => {
                let why = failure.message().unwrap_or_default();
                Some(format!("its keys could not be deleted: {why}; {}", self.keys_left()))
            }
        }
    }

    fn keys_left(&self) -> String {
        left_in(&self.site.path(), &self.run)
    }
}
