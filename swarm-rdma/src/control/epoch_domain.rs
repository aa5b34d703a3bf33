//! The epoch domain of a pool on memory nodes. A client's pin is a word of its own process. One
//! thread for each daemon reports the client's epoch to that daemon.
//!
//! **Invariant:** a client that reported an epoch as reached runs no operation that began before it
//! learned of that epoch (E2a). An operation pins the epoch that this client has learned of, and a
//! full fence follows the pin. A reporting thread reads the epoch, then a fence, then the pin. So
//! either the thread sees the pin, or the operation begins after the thread's fence and reaches
//! nothing that was retired before. How daemons and clients use the reports:
//! [`epochs`](crate::control::daemon::epochs).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use swarm_core::fabric::{EpochDomain, Laggard, LaggardState};
use swarm_core::words::Incarnation;

use super::error::Error;
use crate::control::daemon::ended::Ended;
use crate::control::daemon::epochs::{ClientEpoch, EpochReply, EpochReport, Verdict, decide};
use crate::control::daemon::membership::Holder;
use crate::control::daemon::protocol::{JsonConnection, Reply, Request};
use crate::control::daemon::quorum::Daemons;
use crate::control::descriptor::PoolDescriptor;
use crate::control::incarnations::{IncarnationSource, Numbers};

/// The shortest pause between a daemon's reply and the next report, while memory is wanted or the
/// epoch advances. The pause is at least [`TIMES`] the roundtrip, so that reports take little time
/// from other work.
const SOON: Duration = Duration::from_millis(5);
const TIMES: u32 = 20;
/// The longest pause, also while nothing happens.
const LATER: Duration = Duration::from_millis(100);
/// The number of replies after the epoch advanced, or memory was wanted, that are followed by a
/// short pause.
const ROUNDS: u32 = 30;
/// A client that is waited for so long is handed to the reaper: it blocks the epoch, or has a place in an object.
const LONG: Duration = Duration::from_secs(2);
/// A client that nobody has asked about for so long is not waited for any more.
const ASKED: Duration = LONG.saturating_mul(3);

/// Evicts the client with this slot and incarnation, if its lease has ended. Asks etcd.
pub(super) type Reaper = Box<dyn Fn(usize, u64) + Send + Sync>;

/// One client's view of the pool's epochs.
pub struct RdmaEpochs {
    shared: Arc<Shared>,
}

/// A client's threads that report to the daemons. They end when this is dropped.
pub(super) struct EpochThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    record: PoolDescriptor,
    client: Holder,
    /// The epoch that this client has learned of.
    epoch: AtomicU64,
    /// How often its cached locations were invalidated.
    generation: AtomicU64,
    /// The epoch that its oldest operation in progress has pinned, or 0.
    since: AtomicU64,
    /// The latest epoch for which it has asked all clients to invalidate cached locations.
    renewed: AtomicU64,
    /// For how many more replies this client wants the epoch to advance.
    wanted: AtomicU32,
    /// For how many more replies another client is assumed to want it, because the epoch advanced.
    moving: AtomicU32,
    stopping: AtomicBool,
    /// Whether the reaper is at work.
    reaping: AtomicBool,
    replies: Mutex<Replies>,
    /// Incarnations under which it may continue.
    numbers: Numbers,
}

/// The state from the daemons' replies.
struct Replies {
    /// The last reply of each daemon.
    answers: Vec<Option<EpochReply>>,
    /// The latest epoch that is allowed.
    epoch: u64,
    renewed: u64,
    reached: u64,
    /// The client that blocks the epoch.
    held: Option<BlockingClient>,
    ended: Ended,
    /// Clients that this one waits for, by slot and incarnation.
    awaited: BTreeMap<(usize, u64), AwaitedClient>,
}

/// A client of which this one asks whether it has ended.
struct AwaitedClient {
    /// When it last asked.
    asked: Instant,
    /// When the client was last handed to the reaper, or first asked about.
    looked_after: Instant,
}

/// A client that blocks the epoch.
#[derive(Clone, Copy)]
struct BlockingClient {
    client: ClientEpoch,
    since: Instant,
    /// When it was last handed to the reaper, or began to block the epoch.
    looked_after: Instant,
}

impl Shared {
    /// Makes the state of a client that has not learned of any epoch.
    fn new(record: &PoolDescriptor, client: &Holder) -> Self {
        let answers = vec![None; record.nodes.len()];
        let ended = Ended::new(record.nodes.len(), record.majority());
        let (held, awaited) = Default::default();
        let replies = Replies { answers, epoch: 1, renewed: 0, reached: 0, held, ended, awaited };
        let (epoch, generation, since, renewed, stopping, reaping, wanted) = Default::default();
        Self {
            record: record.clone(),
            client: client.clone(),
            epoch,
            generation,
            since,
            renewed,
            wanted,
            moving: AtomicU32::new(ROUNDS),
            stopping,
            reaping,
            replies: Mutex::new(replies),
            numbers: Numbers::default(),
        }
    }

    /// Begins the first epoch. E2a: a majority lists the client, which begins with the latest epoch
    /// that those daemons had learned of.
    fn begin(&self) {
        self.epoch.store(self.replies().epoch, Ordering::Release);
    }

    fn replies(&self) -> MutexGuard<'_, Replies> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next report.
    fn report(&self) -> EpochReport {
        let mut replies = self.replies();
        let epoch = self.epoch.load(Ordering::Acquire);
        // E2a: pairs with the fence in `pin`.
        fence(Ordering::SeqCst);
        let since = self.since.load(Ordering::Acquire);
        if epoch > 0 && (since == 0 || since >= epoch) {
            replies.reached = replies.reached.max(epoch);
        }
        // E2a: read after the epoch, so that a report of a reached epoch carries all earlier
        // requests.
        replies.renewed = replies.renewed.max(self.renewed.load(Ordering::Acquire));
        EpochReport { epoch: replies.epoch, renewed: replies.renewed, reached: replies.reached }
    }

    /// Records a reply of daemon number `node`, and advances the epoch if allowed and wanted.
    fn record_reply(&self, node: usize, reply: EpochReply) -> Verdict {
        let mut replies = self.replies();
        replies.epoch = replies.epoch.max(reply.epoch);
        replies.renewed = replies.renewed.max(reply.renewed);
        replies.ended.record(node, &reply);
        // Also where there is no reaper: objects name clients without end.
        replies.awaited.retain(|_, awaited| awaited.asked.elapsed() < ASKED);
        replies.answers[node] = Some(reply);
        let verdict = decide(replies.epoch, &replies.answers, self.record.majority());
        // Without demand for memory, the epoch stays.
        if verdict == Verdict::MoveOn && self.wanted.load(Ordering::Relaxed) > 0 {
            replies.epoch += 1;
        }
        replies.held = match (&verdict, replies.held) {
            (Verdict::Held(now), Some(held)) if *now == held.client => Some(held),
            (Verdict::Held(client), _) => {
                let now = Instant::now();
                Some(BlockingClient { client: *client, since: now, looked_after: now })
            }
            _ => None,
        };
        self.advance(&replies);
        verdict
    }

    /// Moves to the latest allowed epoch, unless the first one has not begun.
    fn advance(&self, replies: &Replies) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if epoch == 0 || replies.epoch <= epoch {
            return;
        }
        if replies.renewed > epoch {
            // E2a: before the epoch, so that an operation that pins that epoch sees the generation.
            self.generation.fetch_add(1, Ordering::Release);
        }
        self.epoch.store(replies.epoch, Ordering::Release);
        self.moving.store(ROUNDS, Ordering::Relaxed);
    }

    /// Returns the client that waits longest for the reaper, if that is [`LONG`]: one that this client waits for, or,
    /// while it wants memory, the one that blocks the epoch. So each has its turn, however slow etcd is.
    fn long_awaited(&self) -> Option<(usize, u64)> {
        let wants_memory = self.wanted.load(Ordering::Relaxed) > 0;
        let now = Instant::now();
        let mut replies = self.replies();
        let Replies { held, awaited, .. } = &mut *replies;
        let held = held.iter_mut().filter(|_| wants_memory);
        let held = held.map(|it| ((it.client.slot, it.client.incarnation), &mut it.looked_after));
        let awaited = awaited.iter_mut().map(|(&client, it)| (client, &mut it.looked_after));
        let (client, looked_after) = held.chain(awaited).min_by_key(|(_, since)| **since)?;
        if now.duration_since(*looked_after) < LONG {
            return None;
        }
        *looked_after = now;
        Some(client)
    }

    /// Reports to daemon number `node` until `stopping` is set.
    fn report_to(
        self: &Arc<Self>,
        node: usize,
        replied: &mpsc::Sender<usize>,
        reaper: Option<&Arc<Reaper>>,
    ) {
        let address = self.record.nodes[node].address;
        let mut connection = None;
        while !self.stopping.load(Ordering::Relaxed) {
            let request = Request::Report {
                pool: self.record.id,
                client: self.client.clone(),
                report: self.report(),
            };
            let asked = Instant::now();
            let answer = JsonConnection::ask(&mut connection, address, &request);
            let took = asked.elapsed();
            let answers = match answer {
                Ok(Reply::EpochReply(answer)) => {
                    let verdict = self.record_reply(node, answer);
                    // Only the first replies have a receiver.
                    let _ = replied.send(node);
                    self.fence(&verdict);
                    if let Some(reaper) = reaper {
                        self.reap(reaper);
                    }
                    true
                }
                // The daemon may be stopped: report again. If this client was evicted, its
                // operations fail.
                _ => {
                    self.replies().answers[node] = None;
                    false
                }
            };
            // Each failed report costs a new connection, so a pause after it is never short.
            let hurried = answers & [&self.wanted, &self.moving].map(count_down).contains(&true);
            let soon = (took * TIMES).clamp(SOON, LATER);
            thread::park_timeout(if hurried { soon } else { LATER });
        }
    }

    fn fence(&self, verdict: &Verdict) {
        if let Verdict::Fence(slot, incarnation) = *verdict {
            let request = Request::Fence { pool: self.record.id, slot, incarnation };
            Daemons::of(&self.record).send(&request);
        }
    }

    /// Hands a client that is waited for to the reaper: in a thread of its own, as reports go on while etcd is
    /// asked, and one at a time.
    fn reap(self: &Arc<Self>, reaper: &Arc<Reaper>) {
        if self.reaping.swap(true, Ordering::Relaxed) {
            return;
        }
        let others =
            self.long_awaited().filter(|it| *it != (self.client.slot, self.client.incarnation));
        let begun = others.map(|(slot, incarnation)| {
            let (shared, reaper) = (Arc::clone(self), Arc::clone(reaper));
            thread::Builder::new().name("swarm-reaper".to_owned()).spawn(move || {
                reaper(slot, incarnation);
                shared.reaping.store(false, Ordering::Relaxed);
            })
        });
        // A thread that cannot start is tried again when the client is due again.
        if !matches!(begun, Some(Ok(_))) {
            self.reaping.store(false, Ordering::Relaxed);
        }
    }
}

/// Decrements a count. Returns whether it was above 0. Concurrent updates may be lost, which only
/// changes how many pauses are short.
fn count_down(left: &AtomicU32) -> bool {
    let now = left.load(Ordering::Relaxed);
    left.store(now.saturating_sub(1), Ordering::Relaxed);
    now > 0
}

impl EpochThreads {
    /// Starts the reports of a client that holds its client slot, and waits until it has an epoch.
    ///
    /// # Errors
    /// Fewer than a majority answer.
    pub(super) fn start(
        record: &PoolDescriptor,
        client: &Holder,
        reaper: Option<Reaper>,
        source: IncarnationSource,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(record, client));
        let (replied, received) = mpsc::channel();
        let reaper = reaper.map(Arc::new);
        let mut started = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        for node in 0..record.nodes.len() {
            let (shared, replied) = (Arc::clone(&shared), replied.clone());
            let reaper = reaper.clone();
            let reporter = thread::Builder::new()
                .name("swarm-board".to_owned())
                .spawn(move || shared.report_to(node, &replied, reaper.as_ref()));
            started.threads.extend(reporter);
        }
        let theirs = Arc::clone(&shared);
        let draws = thread::Builder::new()
            .name("swarm-numbers".to_owned())
            .spawn(move || theirs.numbers.keep(&source, &theirs.stopping));
        started.threads.extend(draws);
        drop(replied);
        started.wait_for_majority(&received)?;
        Ok(started)
    }

    /// Waits until a majority lists the client (E2a).
    fn wait_for_majority(&self, received: &mpsc::Receiver<usize>) -> Result<(), Error> {
        let (nodes, needed) = (self.shared.record.nodes.len(), self.shared.record.majority());
        let deadline = Instant::now() + crate::control::daemon::protocol::PATIENCE;
        let mut answered = swarm_core::node::NodeSet::EMPTY;
        while answered.len() < needed {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(node) = received.recv_timeout(left) else {
                let why = "its daemons did not take in that there is a client".to_owned();
                return Err(Error::Majority { answered: answered.len(), nodes, needed, why });
            };
            answered.insert(swarm_core::node::NodeId(node as u8));
        }
        self.shared.begin();
        Ok(())
    }

    /// Returns the client's epoch domain.
    pub(super) fn domain(&self) -> RdmaEpochs {
        RdmaEpochs { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for EpochThreads {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            // The thread panics only through a bug in this crate; then nothing is left to clean up.
            let _ = thread.join();
        }
    }
}

impl EpochDomain for RdmaEpochs {
    #[inline]
    fn pin(&self) -> u64 {
        let epoch = self.epoch();
        self.shared.since.store(epoch, Ordering::Release);
        // E2a: pairs with the fence in `Shared::report`.
        fence(Ordering::SeqCst);
        epoch
    }

    fn repin(&self, epoch: u64) {
        self.shared.since.store(epoch, Ordering::Release);
    }

    #[inline]
    fn unpin(&self) {
        self.shared.since.store(0, Ordering::Release);
    }

    #[inline]
    fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    #[inline]
    fn epoch_bound(&self) -> u64 {
        self.epoch() + 1
    }

    #[inline]
    fn generation(&self) -> u64 {
        // Read after the epoch, before which it was stored.
        self.shared.generation.load(Ordering::Acquire)
    }

    fn new_generation(&self) {
        // A client that learns of the epoch after the latest invalidates its cached locations. E2a:
        // the daemons learn of this request no later than that this client has reached the latest
        // epoch. A thread that has seen the next epoch sees the request as well, unless it reads at
        // that very moment: then this loop repeats.
        loop {
            let latest = self.epoch_bound();
            self.shared.renewed.fetch_max(latest + 1, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            if self.epoch_bound() == latest {
                return;
            }
        }
    }

    fn is_attached(&self, slot: usize) -> bool {
        let replies = self.shared.replies();
        let reply = || replies.answers.iter().flatten();
        // With replies of fewer than a majority, the answer is unknown.
        reply().count() < self.shared.record.majority()
            || reply().any(|reply| reply.clients.iter().any(|it| it.slot == slot))
    }

    /// By the daemons' last replies. A client that is asked about and whose lease has ended is evicted.
    fn is_gone(&self, slot: usize, session: Incarnation) -> bool {
        let mut replies = self.shared.replies();
        let client = (slot, session.0);
        if replies.ended.has(slot, session.0) {
            replies.awaited.remove(&client);
            return true;
        }
        // What no client can be is waited for by nobody.
        if slot >= self.shared.record.max_clients {
            return false;
        }
        let now = Instant::now();
        let first = AwaitedClient { asked: now, looked_after: now };
        replies.awaited.entry(client).or_insert(first).asked = now;
        false
    }

    fn incarnation(&self) -> Option<Incarnation> {
        self.shared.numbers.take()
    }

    /// Shortens the pauses between reports for a while: the daemons' replies advance the epoch.
    fn try_advance(&self) -> u64 {
        self.shared.wanted.store(ROUNDS, Ordering::Relaxed);
        self.epoch()
    }

    /// Returns the client that blocks the epoch by the daemons' last replies.
    fn laggard(&self, least: u64) -> Option<Laggard> {
        let BlockingClient { client, since, .. } = self.shared.replies().held?;
        let nanoseconds = since.elapsed().as_nanos() as u64;
        let own = &self.shared.client;
        (nanoseconds >= least).then_some(Laggard {
            slot: client.slot,
            is_own: (client.slot, client.incarnation) == (own.slot, own.incarnation),
            process: None,
            state: LaggardState::Unknown,
            since: client.reached,
            nanoseconds: Some(nanoseconds),
        })
    }
}

impl std::fmt::Debug for RdmaEpochs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RdmaEpochs").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
