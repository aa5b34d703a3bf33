//! `swarm torture`: clients on a few hot keys under failures; checks that their history is
//! linearizable. Once nothing fails any more, it checks that all clients are served and that no
//! acknowledged write is lost.

pub(crate) mod args;
pub(crate) mod file;
pub(crate) mod nemesis;
pub(crate) mod replacer;
pub(crate) mod report;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use swarm_core::history::Call;
use swarm_kv::Estimate;
use swarm_worker::history::History;
use swarm_worker::hot_keys::{RTT_NS, key_name};
use swarm_worker::job::{Job, Message, Order, Served, TortureJob, monotonic_ns};
use swarm_worker::store::{with_client, with_emulated, with_keys};
use swarm_worker::torture_log::take;

use crate::common::busy::Watch;
use crate::common::cleanup;
use crate::common::exit::{Answer, Failure, eprint_line};
use crate::common::hot_keys::{FinalReads, clear, left_in};
use crate::common::temporary::{Site, TemporaryPool};
use crate::common::verdict::check_history;
use crate::torture::args::TortureArgs;
use crate::torture::file::HistoryFile;
use crate::torture::nemesis::Nemesis;
use crate::torture::replacer::Replacer;
use crate::torture::report::{TortureResult, slowest, slowest_at, widest_gap, writes};
use crate::workers::set::{Isolation, WorkerSet, gone};

/// Bytes of each node of a temporary pool for each second: about twice what clients on two cores
/// write.
const BYTES_A_SECOND: u64 = 64 << 20;
/// The bounds of a temporary pool's size.
const SMALLEST: u64 = 256 << 20;
const LARGEST: u64 = 2 << 30;
/// Bytes that the logs may take for each second.
const LOG_BYTES_A_SECOND: u64 = 32 << 20;
/// The same over a network, where operations are slower.
const FAR_LOG_BYTES_A_SECOND: u64 = 4 << 20;
/// How long after the run a client may take to finish its operation, and then to end.
const PATIENCE_NS: u64 = 30_000_000_000;
/// The most roundtrips of an operation once nothing fails any more, on a pool without other users:
/// a fixed part and one for each key, because a search for memory visits all keys.
const MOST_ROUNDTRIPS: u32 = 1000;
const ROUNDTRIPS_A_KEY: u32 = 10;

/// Runs `swarm torture`.
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
    // Keys that no other run uses, so that they are absent at first.
    let run = format!("{}-{}", std::process::id(), monotonic_ns());
    let watch = Watch::begin();
    let mut torture = Torture::new(args, &site, run)?;
    // Checked before the run, so that no run is in vain, and after the checks that may refuse it.
    let file = args.history.as_deref().map(HistoryFile::create).transpose()?;
    cleanup::ends_by_itself(
        args.pool.is_some().then(|| format!("swarm: interrupted ({})", torture.keys_left())),
    );
    let mut history = History::default();
    let outcome = torture.parent();
    let outcome = outcome.and(torture.take_logs(&mut history));
    let lifted_ns = torture.lifted_ns;
    let while_things_fail: Vec<_> =
        history.operations.iter().filter(|op| op.called < lifted_ns).copied().collect();
    let outcome = outcome.and_then(|()| torture.look(&mut history));
    for key in 0..args.keys {
        history.keys.number(key_name(&torture.run, key));
    }
    history.operations.sort_by_key(|op| op.called);
    if let Err(failure) = outcome {
        return Err(torture.salvage(&history, file, failure));
    }
    cleanup::ends_at_once();
    let Nemesis { freezes, downs, ref gone, .. } = torture.chaos;
    let gone = gone.clone();
    drop(torture.chaos);
    let replaced = torture.replacer.as_ref().map(|replacer| (replacer.replaced, replacer.killed));
    if let Some(file) = file {
        file.write(&history)?;
    }
    let brought = TortureResult {
        seconds: torture.ended_ns.saturating_sub(torture.started_ns) as f64 / 1e9,
        clients: torture.clients,
        slowest_ns: slowest(&while_things_fail),
        slowest_at_kills_ns: slowest_at(&while_things_fail, &torture.kills),
        kills: torture.kills.len() as u64,
        stops: torture.stops,
        freezes,
        downs,
        replaced,
        gone,
        moved: torture.moved,
        full: torture.full,
        writes: writes(&while_things_fail),
        served: torture.served,
        widest_gap_ns: widest_gap(&while_things_fail),
        busy: watch.end(),
        verdict: check_history(&history)?,
    };
    brought.answer(&history, json)
}

fn log_path(logs: &Path, client: u32) -> PathBuf {
    logs.join(format!("log-{client}"))
}

/// A run of torture.
struct Torture<'a> {
    args: &'a TortureArgs,
    site: &'a Site,
    run: String,
    chaos: Nemesis<'a>,
    replacer: Option<Replacer>,
    started_ns: u64,
    until_ns: u64,
    /// Whether the first clients have been started.
    begun: bool,
    ended_ns: u64,
    /// Number of clients started so far.
    clients: u32,
    /// Clients at work; clients without an operation in progress; clients that have reported.
    working: Vec<usize>,
    resting: Vec<usize>,
    reported: Vec<usize>,
    /// Stopped clients, and until when.
    stopped: Vec<(usize, u64)>,
    stops: u64,
    /// When the failures ended, and how clients were served after that.
    lifted_ns: u64,
    served: Served,
    /// The times of kills.
    kills: Vec<u64>,
    /// Relocated keys that the clients reported.
    moved: u64,
    full: bool,
}

impl<'a> Torture<'a> {
    fn new(args: &'a TortureArgs, site: &'a Site, run: String) -> Result<Self, Failure> {
        let started_ns = monotonic_ns();
        let nodes = site.pool().geometry().nodes;
        if args.replace_nodes && nodes < 3 {
            return Err(Failure::Usage(
                "--replace-nodes loses one memory node at a time, and the others must be a majority: take three \
                 nodes or more"
                    .to_owned(),
            ));
        }
        let replacer =
            args.replace_nodes.then(|| Replacer::new(site.path().to_path_buf(), nodes, args.seed));
        Ok(Self {
            args,
            site,
            run,
            chaos: Nemesis::new(site.pool(), args)?,
            replacer,
            started_ns,
            until_ns: started_ns,
            begun: false,
            ended_ns: started_ns,
            clients: 0,
            working: (0..args.clients as usize).collect(),
            resting: Vec::new(),
            reported: Vec::new(),
            stopped: Vec::new(),
            stops: 0,
            lifted_ns: u64::MAX,
            served: Served::default(),
            kills: Vec::new(),
            moved: 0,
            full: false,
        })
    }

    /// Makes the job of the next client.
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
            near: self.args.near,
            degraded: self.args.replace_nodes,
            goes_on_full: self.args.stop_clients,
            // A user's pool may have many keys and other clients.
            most_roundtrips: self
                .args
                .pool
                .is_none()
                .then_some(MOST_ROUNDTRIPS + ROUNDTRIPS_A_KEY * self.args.keys),
            until_ns: self.begun.then_some(self.until_ns),
        })
    }

    /// Runs the clients until the time is over. All have ended when this returns.
    fn parent(&mut self) -> Result<(), Failure> {
        let jobs = (0..self.args.clients).map(|_| self.job()).collect();
        let mut workers = WorkerSet::start(jobs, Isolation::Process)?;
        let outcome = self.supervise(&mut workers);
        if outcome.is_err() {
            self.let_go_on(&workers, u64::MAX);
            for dead in workers.disband() {
                // On failure, the client that needs the client slot reports it.
                let _ = self.site.pool().evict_dead(dead);
            }
        }
        outcome
    }

    fn supervise(&mut self, workers: &mut WorkerSet) -> Result<(), Failure> {
        let template = "{wide_bar} {elapsed}/{msg} s";
        let style = ProgressStyle::with_template(template).expect("the template is well-formed");
        let bar = ProgressBar::new(self.args.seconds * 1000)
            .with_style(style)
            .with_message(self.args.seconds.to_string());
        workers.gather(|message| matches!(message, Message::Ready))?;
        self.started_ns = workers.go()?;
        self.until_ns = self.started_ns + self.args.seconds * 1_000_000_000;
        self.begun = true;
        self.chaos.begin(self.started_ns);
        self.replacer.iter_mut().for_each(|replacer| replacer.begin(self.started_ns));
        while !self.working.is_empty() {
            let now = monotonic_ns();
            bar.set_position(now.saturating_sub(self.started_ns) / 1_000_000);
            self.look_at_the_time(now, self.until_ns)?;
            if (self.started_ns..self.until_ns).contains(&now) && !self.full {
                self.make_fail(workers, now)?;
            }
            let is_over = now >= self.until_ns || self.full;
            self.let_go_on(workers, if is_over { u64::MAX } else { now });
            self.receive(workers)?;
        }
        self.let_go_on(workers, u64::MAX);
        self.chaos.give_back();
        self.lifted_ns = monotonic_ns();
        self.replace_what_is_lost()?;
        workers.order(Order::Lifted)?;
        while !self.resting.is_empty() {
            self.look_at_the_time(monotonic_ns(), self.lifted_ns)?;
            self.receive(workers)?;
        }
        // With stopped clients, a refused write does not prove that the pool is full.
        if self.served.refused > 0 && self.args.stop_clients {
            self.full = self.is_full()?;
        }
        // The last writes must also be found without the nodes that failed for good.
        self.chaos.take_again();
        self.take_others();
        bar.finish_and_clear();
        Ok(())
    }

    /// Waits until every node is there again.
    fn replace_what_is_lost(&mut self) -> Result<(), Failure> {
        let began = monotonic_ns();
        while let Some(replacer) = &mut self.replacer
            && !replacer.finish()?
        {
            self.look_at_the_time(monotonic_ns(), began)?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Takes a minority away that lacks the node which was replaced last: it must have all that the
    /// others know.
    fn take_others(&mut self) {
        if let Some(last) =
            self.replacer.as_ref().and_then(Replacer::last).filter(|_| !self.args.near)
        {
            self.chaos.take_others(last);
        }
    }

    /// Returns whether keys take at least half of the pool: then a write may be refused even
    /// without failures.
    fn is_full(&self) -> Result<bool, Failure> {
        let pool = self.site.pool();
        let (Estimate { usage, .. }, _) = pool.accounts_while(&mut |_, _| true)?;
        Ok(2 * (usage.live_bytes + usage.index_bytes) >= pool.geometry().capacity)
    }

    /// Returns a failure after a signal, or if a client takes too long after the run.
    fn look_at_the_time(&self, now: u64, over_ns: u64) -> Result<(), Failure> {
        if cleanup::seen() {
            eprint_line("swarm: ending; a second signal ends it at once");
            return Err(cleanup::failure());
        }
        let late = self.working.first().or(self.resting.first());
        match late.filter(|_| now > over_ns + PATIENCE_NS) {
            Some(client) => Err(Failure::Failed(format!("client {client} does not end"))),
            None => Ok(()),
        }
    }

    /// Injects the failures of nodes and clients that are due.
    fn make_fail(&mut self, workers: &mut WorkerSet, now: u64) -> Result<(), Failure> {
        self.chaos.tick(now);
        self.replacer.iter_mut().try_for_each(|replacer| replacer.tick(now))?;
        if let Some(victim) = self.chaos.victim(now, self.working.len()) {
            self.kills.push(monotonic_ns());
            let client = self.working.swap_remove(victim);
            // A stopped client is killed while stopped.
            self.stopped.retain(|&(stopped, _)| stopped != client);
            workers.process(client).into_iter().for_each(cleanup::forget);
            let dead = workers.kill(client)?;
            self.site.pool().evict_dead(dead)?;
            let next = self.job();
            self.working.push(workers.add(&next)?);
        }
        let is_stopped = |client: &usize| self.stopped.iter().any(|(stopped, _)| stopped == client);
        let going: Vec<usize> =
            self.working.iter().filter(|client| !is_stopped(client)).copied().collect();
        // The others continue.
        if self.stopped.len() < (self.args.clients as usize / 2).max(1)
            && let Some((index, until)) = self.chaos.stop(now, going.len())
            && workers.process(going[index]).is_some_and(cleanup::stop)
        {
            self.stopped.push((going[index], until));
            self.stops += 1;
        }
        Ok(())
    }

    /// Continues clients whose stop is over.
    fn let_go_on(&mut self, workers: &WorkerSet, now: u64) {
        self.stopped.retain(|&(client, until)| {
            if until <= now {
                workers.process(client).into_iter().for_each(cleanup::go_on);
            }
            until > now
        });
    }

    /// Waits briefly for a client's message, and handles it.
    fn receive(&mut self, workers: &WorkerSet) -> Result<(), Failure> {
        match workers.next(Duration::from_millis(1)) {
            Some((client, Message::Resting { since_ns, full }))
                if self.working.contains(&client) =>
            {
                self.working.retain(|&other| other != client);
                self.resting.push(client);
                self.ended_ns = self.ended_ns.max(since_ns);
                // Memory that a stopped client blocks is reclaimed once it continues, before the
                // last phase.
                self.full |= full && !self.args.stop_clients;
            }
            Some((_, Message::Served(served))) => {
                self.served.operations += served.operations;
                self.served.refused += served.refused;
                self.served.roundtrips = self.served.roundtrips.max(served.roundtrips);
                self.served.unserved = self.served.unserved.take().or(served.unserved);
            }
            Some((client, Message::Report(_))) => self.reported.push(client),
            Some((client, Message::Gone))
                if self.working.contains(&client) || self.resting.contains(&client) =>
            {
                if !self.reported.contains(&client) {
                    return Err(gone(client));
                }
                self.resting.retain(|&other| other != client);
            }
            Some((_, Message::Moved(keys))) => self.moved += keys,
            Some((_, Message::Failed(why))) => return Err(Failure::Failed(why)),
            _ => {}
        }
        Ok(())
    }

    /// Adds all readable logs of clients to the history. Returns the first failure.
    fn take_logs(&self, history: &mut History) -> Result<(), Failure> {
        let mut outcome = Ok(());
        for client in 0..self.clients {
            outcome = outcome.and(take(history, &log_path(self.site.logs(), client), client));
        }
        if self.args.pool.is_some() {
            // Clients of other hosts may end what expires, and their clocks may be ahead.
            for op in &mut history.operations {
                if let Call::PutWithTtl { ttl, .. } = &mut op.call {
                    *ttl = 0;
                }
            }
        }
        outcome
    }

    /// Gets all keys, and deletes them from a user's pool.
    fn look(&self, history: &mut History) -> Result<(), Failure> {
        let look = FinalReads {
            keys: self.args.keys,
            run: &self.run,
            client: self.clients,
            delete: self.args.pool.is_some(),
            history,
        };
        let (pool, keys) = (self.site.pool(), self.args.keys as usize);
        let left = if self.args.near {
            with_keys(pool, keys, |store| look.run(store))?
        } else {
            with_emulated(pool, keys, RTT_NS, |store| look.run(store))?
        };
        if left > 0 {
            eprint_line(format_args!("swarm: the pool is full: {}", self.keys_left()));
        }
        if cleanup::seen() { Err(cleanup::failure()) } else { Ok(()) }
    }

    /// Saves the history of a failed run, and deletes the keys from a user's pool. Returns the
    /// failure, with what is left to do.
    fn salvage(
        &mut self,
        history: &History,
        file: Option<HistoryFile>,
        failure: Failure,
    ) -> Failure {
        // First the file: the steps below use the pool, which may be what failed.
        if let Some(file) = file.filter(|_| !history.operations.is_empty()) {
            let path = file.path().display().to_string();
            match file.write(history).map_err(Failure::message) {
                Ok(()) => eprint_line(format_args!("swarm: the history so far is in {path}")),
                Err(why) => {
                    why.into_iter().for_each(|why| eprint_line(format_args!("swarm: {why}")))
                }
            }
        }
        let more = if self.args.pool.is_some() { self.clear() } else { None };
        // Clients in the same terminal get the same signal, and their end may be noticed first.
        let failure = if cleanup::seen() { cleanup::failure() } else { failure };
        more.into_iter().fold(failure, |failure, more| failure.and(&more))
    }

    /// Deletes the keys. Returns a message if some stay.
    fn clear(&mut self) -> Option<String> {
        self.chaos.give_back();
        let names = (0..self.args.keys).map(|key| key_name(&self.run, key));
        match with_client(self.site.pool(), |store| clear(store, names)) {
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
