//! The board of a pool on memory nodes: who has operations under way is said in this process alone, and
//! a thread for each daemon tells that daemon how far the client is.
//!
//! The invariant: *what is said to have been reached stays so*. Whoever begins an operation marks it with
//! the epoch that this client has heard of, behind a full fence; a thread reads the epoch first, and the
//! mark behind a fence. So either it sees the mark, or the operation begins behind the look, and comes
//! across nothing that was retired before. What daemons and clients make of that: [`epochs`](super::epochs).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use swarm_core::fabric::{Board, Laggard};
use swarm_core::words::Incarnation;

use super::admin::{Line, Reply, Request};
use super::daemons::Daemons;
use super::epochs::{Heard, Said, Standing, Verdict, judge};
use super::error::Error;
use super::ledger::Holder;
use super::numbers::{Drawer, Numbers};
use super::record::PoolRecord;

/// How long to wait at least, between one answer of a daemon and the next question, while memory is wanted
/// or the epoch moves on: for so many times what the answer took, so that little else is held up by it.
const SOON: Duration = Duration::from_millis(5);
const TIMES: u32 = 20;
/// How long at most, and when nothing happens.
const LATER: Duration = Duration::from_millis(100);
/// For so many answers after the epoch moved on, or memory was wanted, the next question comes soon.
const ROUNDS: u32 = 30;
/// Who holds the epoch up for so long is looked after.
const LONG: Duration = Duration::from_secs(2);

/// Looks whether a client that holds up the epoch is there: one that is not is evicted.
pub(super) type Undertaker = Box<dyn Fn(&Standing) + Send + Sync>;

/// What one client knows of the others' operations, and says of its own.
pub struct FarBoard {
    shared: Arc<Shared>,
}

/// A client's threads that talk to the daemons. They end when this is dropped.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    lines: Vec<JoinHandle<()>>,
}

struct Shared {
    record: PoolRecord,
    client: Holder,
    /// The epoch that this client has heard of.
    epoch: AtomicU64,
    /// How often it was told to forget places.
    generation: AtomicU64,
    /// In which epoch its oldest operation under way began, or 0.
    since: AtomicU64,
    /// Up to which epoch it has asked the others to forget.
    renewed: AtomicU64,
    /// For how many answers more this client wants the epoch to move on.
    wanted: AtomicU32,
    /// For how many answers more somebody does, as far as is known: the epoch moved on.
    moving: AtomicU32,
    stopping: AtomicBool,
    told: Mutex<Told>,
    /// Incarnations that it may go on under.
    numbers: Numbers,
}

/// What the daemons said.
struct Told {
    /// Each one's last answer.
    answers: Vec<Option<Heard>>,
    /// The latest epoch that is allowed.
    epoch: u64,
    renewed: u64,
    reached: u64,
    /// Who holds the epoch up.
    held: Option<Held>,
}

/// A client that holds the epoch up.
#[derive(Clone, Copy)]
struct Held {
    client: Standing,
    since: Instant,
    /// When it was looked after last, or held the epoch up first.
    looked_after: Instant,
}

impl Shared {
    /// A client that has not heard of any epoch.
    fn new(record: &PoolRecord, client: &Holder) -> Self {
        let answers = vec![None; record.nodes.len()];
        let told = Told { answers, epoch: 1, renewed: 0, reached: 0, held: None };
        let (epoch, generation, since, renewed, stopping, wanted) = Default::default();
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
            told: Mutex::new(told),
            numbers: Numbers::default(),
        }
    }

    /// A majority knows of the client, which begins with the latest epoch that those had heard of.
    fn begin(&self) {
        self.epoch.store(self.told().epoch, Ordering::Release);
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is to say now.
    fn says(&self) -> Said {
        let mut told = self.told();
        let epoch = self.epoch.load(Ordering::Acquire);
        fence(Ordering::SeqCst);
        let since = self.since.load(Ordering::Acquire);
        if epoch > 0 && (since == 0 || since >= epoch) {
            told.reached = told.reached.max(epoch);
        }
        // Behind the epoch: what was retired in an earlier one is asked for with this.
        told.renewed = told.renewed.max(self.renewed.load(Ordering::Acquire));
        Said { epoch: told.epoch, renewed: told.renewed, reached: told.reached }
    }

    /// Takes in what daemon number `node` answered.
    fn hears(&self, node: usize, heard: Heard) -> Verdict {
        let mut told = self.told();
        told.epoch = told.epoch.max(heard.epoch);
        told.renewed = told.renewed.max(heard.renewed);
        told.answers[node] = Some(heard);
        let verdict = judge(told.epoch, &told.answers, self.record.majority());
        // While nobody wants memory back nothing need be said.
        if verdict == Verdict::MoveOn && self.wanted.load(Ordering::Relaxed) > 0 {
            told.epoch += 1;
        }
        told.held = match (&verdict, told.held) {
            (Verdict::Held(now), Some(held)) if *now == held.client => Some(held),
            (Verdict::Held(client), _) => {
                let now = Instant::now();
                Some(Held { client: *client, since: now, looked_after: now })
            }
            _ => None,
        };
        self.go_on(&told);
        verdict
    }

    /// Goes on to the latest epoch that is allowed, once there was a first one.
    fn go_on(&self, told: &Told) {
        let epoch = self.epoch.load(Ordering::Relaxed);
        if epoch == 0 || told.epoch <= epoch {
            return;
        }
        if told.renewed > epoch {
            // In front of the epoch: who enters in that one meets it.
            self.generation.fetch_add(1, Ordering::Release);
        }
        self.epoch.store(told.epoch, Ordering::Release);
        self.moving.store(ROUNDS, Ordering::Relaxed);
    }

    /// Who holds the epoch up for long.
    fn long_held(&self) -> Option<Standing> {
        let mut told = self.told();
        let held = told.held.as_mut()?;
        let is_long = held.looked_after.elapsed() >= LONG;
        if is_long {
            held.looked_after = Instant::now();
        }
        is_long.then_some(held.client)
    }

    /// Talks to daemon number `node` until it is told to stop.
    fn talk(&self, node: usize, heard: &mpsc::Sender<usize>, undertaker: &Undertaker) {
        let address = self.record.nodes[node].address;
        let mut line = None;
        while !self.stopping.load(Ordering::Relaxed) {
            let request = Request::Tell {
                pool: self.record.id,
                client: self.client.clone(),
                said: self.says(),
            };
            let asked = Instant::now();
            let answer = Line::ask(&mut line, address, &request);
            let took = asked.elapsed();
            let answers = match answer {
                Ok(Reply::Heard(answer)) => {
                    let verdict = self.hears(node, answer);
                    // Nobody waits for more than the first ones.
                    let _ = heard.send(node);
                    self.act(&verdict, undertaker);
                    true
                }
                // It is asked again: it may have been stopped, or this client was evicted, which its
                // operations find out.
                _ => {
                    self.told().answers[node] = None;
                    false
                }
            };
            // Who does not answer is asked by a new connection each time.
            let hurried = answers & [&self.wanted, &self.moving].map(count_down).contains(&true);
            let soon = (took * TIMES).clamp(SOON, LATER);
            thread::park_timeout(if hurried { soon } else { LATER });
        }
    }

    fn act(&self, verdict: &Verdict, undertaker: &Undertaker) {
        if let Verdict::Fence(slot, incarnation) = *verdict {
            let request = Request::Fence { pool: self.record.id, slot, incarnation };
            Daemons::of(&self.record).tell(&request);
        }
        if self.wanted.load(Ordering::Relaxed) > 0
            && let Some(held) = self.long_held()
            && (held.slot, held.incarnation) != (self.client.slot, self.client.incarnation)
        {
            undertaker(&held);
        }
    }
}

/// Whether there was anything to count down from. What is lost when two do so at once matters to no one.
fn count_down(left: &AtomicU32) -> bool {
    let now = left.load(Ordering::Relaxed);
    left.store(now.saturating_sub(1), Ordering::Relaxed);
    now > 0
}

impl Keeper {
    /// Tells the daemons of a client that has its slot, and hears of the epoch.
    ///
    /// # Errors
    /// Fewer than a majority answer.
    pub(super) fn start(
        record: &PoolRecord,
        client: &Holder,
        undertaker: Undertaker,
        drawer: Drawer,
    ) -> Result<Self, Error> {
        let shared = Arc::new(Shared::new(record, client));
        let (heard, hears) = mpsc::channel();
        let undertaker = Arc::new(undertaker);
        let mut keeper = Self { shared: Arc::clone(&shared), lines: Vec::new() };
        for node in 0..record.nodes.len() {
            let (shared, heard) = (Arc::clone(&shared), heard.clone());
            let undertaker = Arc::clone(&undertaker);
            let line = thread::Builder::new()
                .name("swarm-board".to_owned())
                .spawn(move || shared.talk(node, &heard, &undertaker));
            keeper.lines.extend(line);
        }
        let theirs = Arc::clone(&shared);
        let draws = thread::Builder::new()
            .name("swarm-numbers".to_owned())
            .spawn(move || theirs.numbers.keep(&drawer, &theirs.stopping));
        keeper.lines.extend(draws);
        drop(heard);
        keeper.wait_for_majority(&hears)?;
        Ok(keeper)
    }

    /// Waits until a majority knows of the client.
    fn wait_for_majority(&self, hears: &mpsc::Receiver<usize>) -> Result<(), Error> {
        let (nodes, needed) = (self.shared.record.nodes.len(), self.shared.record.majority());
        let deadline = Instant::now() + super::admin::PATIENCE;
        let mut answered = swarm_core::node::NodeSet::EMPTY;
        while answered.len() < needed {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(node) = hears.recv_timeout(left) else {
                let why = "its daemons did not take in that there is a client".to_owned();
                return Err(Error::Majority { answered: answered.len(), nodes, needed, why });
            };
            answered.insert(swarm_core::node::NodeId(node as u8));
        }
        self.shared.begin();
        Ok(())
    }

    /// The client's board.
    pub(super) fn board(&self) -> FarBoard {
        FarBoard { shared: Arc::clone(&self.shared) }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for line in self.lines.drain(..) {
            line.thread().unpark();
            // It panics only if this crate is wrong; there is nothing left to clean up then.
            let _ = line.join();
        }
    }
}

impl Board for FarBoard {
    #[inline]
    fn enter(&self) -> u64 {
        let epoch = self.epoch();
        self.shared.since.store(epoch, Ordering::Release);
        fence(Ordering::SeqCst);
        epoch
    }

    fn remain(&self, epoch: u64) {
        self.shared.since.store(epoch, Ordering::Release);
    }

    #[inline]
    fn leave(&self) {
        self.shared.since.store(0, Ordering::Release);
    }

    #[inline]
    fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    #[inline]
    fn latest(&self) -> u64 {
        self.epoch() + 1
    }

    #[inline]
    fn generation(&self) -> u64 {
        // Behind the epoch, in front of which it was stored.
        self.shared.generation.load(Ordering::Acquire)
    }

    fn renew(&self) {
        // Whoever hears of the epoch behind the latest forgets. The daemons are told of this no later
        // than that this client has reached the latest: a thread that has met the next epoch meets
        // this as well, unless it was looking at that very moment.
        loop {
            let latest = self.latest();
            self.shared.renewed.fetch_max(latest + 1, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            if self.latest() == latest {
                return;
            }
        }
    }

    fn is_attached(&self, slot: usize) -> bool {
        let told = self.shared.told();
        let heard = || told.answers.iter().flatten();
        // Who has been told by too few knows nothing.
        heard().count() < self.shared.record.majority()
            || heard().any(|heard| heard.clients.iter().any(|it| it.slot == slot))
    }

    fn incarnation(&self) -> Option<Incarnation> {
        self.shared.numbers.take()
    }

    /// It is the daemons' answers that move the epoch on; they are asked sooner for a while.
    fn advance(&self) -> u64 {
        self.shared.wanted.store(ROUNDS, Ordering::Relaxed);
        self.epoch()
    }

    /// By the daemons' last answers.
    fn laggard(&self) -> Option<Laggard> {
        let Held { client, since, .. } = self.shared.told().held?;
        let own = &self.shared.client;
        Some(Laggard {
            slot: client.slot,
            is_own: (client.slot, client.incarnation) == (own.slot, own.incarnation),
            process: None,
            is_stopped: false,
            since: client.reached,
            nanoseconds: Some(since.elapsed().as_nanos() as u64),
        })
    }
}

impl std::fmt::Debug for FarBoard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FarBoard").field("epoch", &self.epoch()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
