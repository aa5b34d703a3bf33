//! A store on simulated nodes, and clients of it whose operations are recorded.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use swarm_core::clock::Clock;
use swarm_core::error::Error as CoreError;
use swarm_core::fabric::{EpochDomain, Fabric, NodeDown, Verb};
use swarm_core::history::{Answer, Call, Recorder};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_core::quorum::{Session, Timeouts};
use swarm_core::sim::{Setup, SimCompletion, SimFabric, dropped_after};
use swarm_core::words::{Incarnation, WordFormat};
use swarm_kv::{Client, CompareAndSwap, Error, Options, Shortage, TimeToLive};

/// Returns the same geometry with buckets of six keys at most: a schedule has few.
pub fn of_six_keys(geometry: Geometry) -> Geometry {
    Geometry { bucket_payload: 27, ..geometry }
}

/// Bytes of a chunk in pools with little memory.
const SMALL_CHUNK: u64 = 4 << 10;

/// Returns the same geometry for `max_clients` slots, with so few small chunks that they hardly
/// suffice.
pub fn of_few_chunks(geometry: Geometry, max_clients: usize, chunks: usize) -> Geometry {
    // What precedes the chunks depends a little on how many there are.
    let with = |chunks: usize| {
        let capacity = chunks as u64 * SMALL_CHUNK;
        Geometry { chunk_bytes: SMALL_CHUNK, capacity, max_clients, ..geometry }
    };
    with(with(chunks).first_chunk() + chunks)
}

/// A simulated fabric that can be disconnected: then chains lead nowhere.
#[derive(Clone, Debug)]
pub struct Line {
    /// The underlying fabric.
    pub inner: SimFabric,
    /// Whether it was disconnected.
    pub hung_up: Rc<Cell<bool>>,
    /// Which of the simulator's nodes is each node, where nodes are replaced.
    pub members: Option<Rc<dyn Members>>,
}

/// Which of the simulator's nodes is each node, as one client sees it.
pub trait Members: Debug {
    /// Returns how many nodes the pool has.
    fn nodes(&self) -> usize;

    /// Goes by the configuration as of now.
    fn reconfigure(&self);

    /// Returns the simulator's node that is this one, if the client may post to it.
    fn physical(&self, node: NodeId) -> Option<NodeId>;

    /// Returns whether all that is posted is known to be lost.
    fn is_lost(&self) -> bool;
}

/// A chain, unless its fabric was disconnected, or its node is none of the configuration.
pub enum Posted<'f> {
    /// It was disconnected: the chain never completes.
    Nowhere,
    /// The node is none of the configuration's, or this client may not post to it.
    Down,
    /// The chain, and the view that says whether its node is lost.
    There(SimCompletion<'f>, Option<&'f dyn Members>),
}

impl Future for Posted<'_> {
    type Output = Result<Vec<u64>, NodeDown>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Nowhere => Poll::Pending,
            Self::Down => Poll::Ready(Err(NodeDown)),
            Self::There(_, Some(members)) if members.is_lost() => Poll::Ready(Err(NodeDown)),
            Self::There(posted, _) => Pin::new(posted).poll(cx),
        }
    }
}

impl Fabric for Line {
    type EpochDomain = Box<dyn EpochDomain>;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Posted<'f>;

    fn is_near(&self) -> bool {
        // One that was disconnected takes no chain any more.
        !self.hung_up.get() && self.inner.is_near()
    }

    fn reconfigure(&self) {
        if let Some(members) = &self.members {
            members.reconfigure();
        }
    }

    fn nodes(&self) -> usize {
        self.members.as_ref().map_or(self.inner.nodes(), |it| it.nodes())
    }

    fn posted(&self) -> u64 {
        self.inner.posted()
    }

    fn oldest_under_way(&self) -> u64 {
        self.inner.oldest_under_way()
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        if self.hung_up.get() {
            return Posted::Nowhere;
        }
        let members = self.members.as_deref();
        match members.map_or(Some(node), |members| members.physical(node)) {
            Some(physical) => Posted::There(self.inner.post(physical, chain), members),
            None => Posted::Down,
        }
    }
}

/// Returns the bytes of value number `id`: of different lengths, in place and not.
pub fn value(id: u64) -> Vec<u8> {
    let words = [1, 2, 5, 12][(id % 4) as usize];
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| id.to_le_bytes()).collect();
    bytes.truncate(bytes.len() - (id % 3) as usize * usize::from(words > 1));
    bytes
}

/// Returns the number of a value.
fn id_of(bytes: &[u8]) -> u64 {
    let first = bytes.first_chunk().expect("every value has a number");
    let id = u64::from_le_bytes(*first);
    assert_eq!(bytes, value(id), "a value came back torn");
    id
}

/// Returns the bytes of key number `key`.
pub fn key(key: u64) -> Vec<u8> {
    // Of different lengths, so that registers are of different classes.
    format!("key {key}{}", ".".repeat((key % 3) as usize * 7)).into_bytes()
}

/// Keys that hold decimal numbers, which clients add to, have these numbers.
pub const COUNTERS: std::ops::Range<u64> = 40..42;

/// What clocks do is noted as this client's, whose operations have no answers.
pub const CLOCKS: usize = 99;

/// Returns value number `id` of key number `number`.
fn value_of(number: u64, id: u64) -> Vec<u8> {
    if COUNTERS.contains(&number) { id.to_string().into_bytes() } else { value(id) }
}

/// Returns the number of a value of that key.
fn id_of_value(number: u64, bytes: &[u8]) -> u64 {
    if COUNTERS.contains(&number) {
        let text = std::str::from_utf8(bytes).expect("text");
        return text.parse().expect("a number");
    }
    id_of(bytes)
}

/// Draws a read-modify-write of a key, or of a counter, beside which there are other writes: value number `id` is new, and `seen` returns
/// what is thought to be there.
pub fn modification(
    rng: &mut Rng,
    (key, id): (u64, u64),
    seen: impl Fn(u64) -> Option<u64>,
) -> (u64, Call) {
    let key = if rng.bool() { rng.u64(COUNTERS) } else { key };
    let is_counter = COUNTERS.contains(&key);
    if is_counter && rng.u8(..4) == 0 {
        let beside = [Call::Put(id), Call::Insert(id), Call::Update(id), Call::Delete];
        return (key, beside[rng.usize(..4)]);
    }
    let new = (rng.u8(..4) > 0).then_some(id);
    let call = match rng.u8(..4) {
        0 | 1 if is_counter => Call::Increment(rng.u64(1..1000)),
        0 => Call::Swap(new),
        1 if rng.u8(..4) == 0 => Call::Get,
        _ => Call::CompareAndSwap { expected: seen(key), new },
    };
    (key, call)
}

/// Draws an operation that is about the life of a key's value, or a write beside those: value number `id`
/// is new.
pub fn about_life(rng: &mut Rng, id: u64) -> Call {
    /// Nanoseconds: from none to more than a schedule takes.
    const TTLS: [u64; 6] = [0, 300, 3_000, 30_000, 300_000, 1 << 50];
    let ttl = TTLS[rng.usize(..TTLS.len())];
    let calls = [
        Call::PutWithTtl { value: id, ttl },
        Call::PutWithTtl { value: id, ttl },
        Call::PutWithTtl { value: id, ttl },
        Call::Get,
        Call::Ttl,
        Call::Persist,
        Call::Insert(id),
        Call::Put(id),
    ];
    calls[rng.usize(..calls.len())]
}

/// A client's clock, which notes what it shows: values expire by it.
struct NotedClock {
    clock: Rc<dyn Clock>,
    recorder: Recorder,
    /// The number of an operation that puts a value with a life, whose time begins at the next look,
    /// and how long it lasts.
    begins: Rc<Cell<Option<(usize, u64)>>>,
}

impl Clock for NotedClock {
    fn now(&self) -> u64 {
        let now = self.clock.now();
        if let Some((put, ttl)) = self.begins.take() {
            self.recorder.lives_until(put, now.saturating_add(ttl));
        }
        self.recorder.shown(now);
        now
    }
}

/// Returns how words are split: mostly so that a key's timestamps end soon, and it moves.
pub fn format(usual: WordFormat, setup: &mut Setup) -> WordFormat {
    let mut rng = Rng::with_seed(setup.seed ^ 0x3078e);
    if rng.u8(..4) == 0 {
        return usual;
    }
    // A register lives for some thousand steps, or many operations could not end in one. Cells need
    // ballots.
    setup.step_time = [20, 40, 60][rng.usize(..3)];
    WordFormat { pointer_bits: 62 - 17, tick_shift: 0 }
}

/// Which values expire: those of puts whose numbers are `of` these, after `ttl` by the clocks.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    /// The time to live.
    pub ttl: Duration,
    /// Whether a put of value number so expires.
    pub of: fn(u64) -> bool,
}

impl Lives {
    /// Draws the lives of values in one of four schedules of pools with keyed cells: over at once, soon, or hardly ever.
    pub fn random(seed: u64, geometry: &Geometry) -> Option<Self> {
        let mut rng = Rng::with_seed(seed ^ 0x77e1);
        let ttl = Duration::from_nanos([0, 300, 3000, 30_000, 1 << 40][rng.usize(..5)]);
        (rng.u8(..4) == 0 && geometry.keyed_cells).then_some(Self { ttl, of: |id| id % 3 == 0 })
    }
}

/// A client of the store, and the recorder of its operations.
pub struct Story {
    /// The client. All clocks have one type, as a store is compiled for each.
    pub client: Client<Line, Rc<dyn Clock>>,
    /// The recorder.
    pub recorder: Recorder,
    /// Its number, for reports.
    pub id: usize,
    /// What it saw last under each key.
    pub seen: RefCell<BTreeMap<u64, Option<u64>>>,
    /// Which of its values expire, if any do.
    pub lives: Option<Lives>,
    /// The value whose life it is about to begin: its number in the record, and how long it lasts.
    pub begins: Rc<Cell<Option<(usize, u64)>>>,
}

/// Why an operation has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GaveUp {
    /// Its future was dropped.
    Dropped,
    /// It ended in an error.
    Failed(Error),
}

impl From<Error> for GaveUp {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl GaveUp {
    /// Returns what there was no memory for, if that is the reason.
    pub fn shortage(self) -> Option<Shortage> {
        match self {
            Self::Failed(Error::Full(shortage) | Error::Unsettled(shortage)) => Some(shortage),
            _ => None,
        }
    }

    /// Returns whether too few nodes answered in time, or others were always faster.
    pub fn is_late(self) -> bool {
        let Self::Failed(error) = self else { return false };
        matches!(
            error,
            Error::Contended
                | Error::Unfinished
                | Error::UnsettledUnfinished
                | Error::Replication(CoreError::NoMajority { .. } | CoreError::Contended)
        )
    }
}

/// Returns whether an error promises that a write has not taken effect.
fn has_no_effect(error: Error) -> bool {
    !matches!(
        error,
        Error::Replication(_)
            | Error::Contended
            | Error::Unsettled(_)
            | Error::UnsettledNumbersExhausted
            | Error::UnsettledUnfinished
    )
}

/// After how many polls an operation is dropped; `None`: never.
pub type Polls = Option<u32>;

/// Returns the options of a client that finds nodes late after `late` nanoseconds, and gives up
/// after `deadline`.
pub fn options((late, deadline): (u64, u64)) -> Options {
    Options::default()
        .cached_keys(16)
        .cached_buckets(8)
        .timeouts(Timeouts { late_floor: late, late_roundtrips: 4, deadline })
        .memory_wait(3_200_000)
        .reclaimed_at_once(1)
}

impl Story {
    /// Makes client number `id`, in this slot and incarnation.
    pub fn new(
        (line, clock): (Line, Rc<dyn Clock>),
        geometry: Geometry,
        (id, slot, incarnation): (usize, usize, u64),
        options: Options,
        recorder: &Recorder,
    ) -> Self {
        let session = Session { client: slot, incarnation: Incarnation(incarnation) };
        let (recorder, begins) = (recorder.clone(), Rc::<Cell<_>>::default());
        let noted = NotedClock { clock, recorder: recorder.clone(), begins: Rc::clone(&begins) };
        let client = Client::new(line, Rc::new(noted) as _, geometry, session, options);
        Self { client, recorder, id, seen: RefCell::default(), lives: None, begins }
    }

    /// Some of its values, and of those that it makes of others', expire.
    #[must_use]
    pub fn with_lives(self, lives: Option<Lives>) -> Self {
        Self { lives, ..self }
    }

    /// Returns after which time the value of a put expires, if it does.
    fn ttl(&self, number: u64, id: u64) -> Option<Duration> {
        let lives = self.lives.filter(|lives| (lives.of)(id) && !COUNTERS.contains(&number))?;
        Some(lives.ttl)
    }

    /// Notes that a value may come to its end by itself, once or never, from now on: the key is absent then, if
    /// this is its value still (X1, X2). A value that is made of another one has its life.
    fn may_expire(&self, number: u64, call: Call) {
        let expires = match call {
            Call::Put(id) => self.ttl(number, id).map(|_| id),
            Call::CompareAndSwap { new, .. } | Call::Swap(new) if self.lives.is_some() => new,
            _ => None,
        };
        if expires.is_some() && !COUNTERS.contains(&number) {
            let expiry = Call::CompareAndSwap { expected: expires, new: None };
            self.recorder.called(CLOCKS, number, expiry);
        }
    }

    /// Runs one operation on key number `number`, and records it.
    pub async fn call(&self, number: u64, call: Call, polls: Polls) -> Result<(), GaveUp> {
        let noted = self.recorder.called(self.id, number, call);
        self.may_expire(number, call);
        if let Call::PutWithTtl { ttl, .. } = call {
            // It looks at the clock first of all.
            self.begins.set(Some((noted, ttl)));
        }
        let asked = dropped_after(polls, self.ask(number, call)).await;
        let answer = asked.ok_or(GaveUp::Dropped)?.inspect_err(|error| {
            if has_no_effect(*error) {
                self.recorder.struck(noted);
            }
        })?;
        self.recorder.answered(noted, answer);
        if let Answer::Value(value) = answer {
            self.seen.borrow_mut().insert(number, value);
        }
        Ok(())
    }

    /// Returns what it saw last under that key.
    pub fn last_seen(&self, number: u64) -> Option<u64> {
        self.seen.borrow().get(&number).copied().flatten()
    }

    /// The operation itself. It is boxed, so that its code is generated here, and not where it is awaited.
    fn ask(
        &self,
        number: u64,
        call: Call,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Error>> + '_>> {
        Box::pin(self.asked(number, call))
    }

    async fn asked(&self, number: u64, call: Call) -> Result<Answer, Error> {
        let outcome = |done| if done { Answer::Done } else { Answer::Refused };
        let (client, key) = (&self.client, &*key(number));
        let value = |id| value_of(number, id);
        let id = |value: Option<&[u8]>| value.map(|value| id_of_value(number, value));
        Ok(match call {
            Call::Get => Answer::Value(id(client.get(key).await?.as_deref())),
            Call::Put(id) => {
                match self.ttl(number, id) {
                    Some(ttl) => client.put_with_ttl(key, &value(id), ttl).await?,
                    None => client.put(key, &value(id)).await?,
                }
                Answer::Done
            }
            Call::Insert(id) => outcome(client.insert(key, &value(id)).await?),
            Call::Update(id) => outcome(client.update(key, &value(id)).await?),
            Call::Delete => {
                client.delete(key).await?;
                Answer::Done
            }
            Call::CompareAndSwap { expected, new } => {
                let [expected, new] = [expected, new].map(|id| id.map(value));
                match client.compare_and_swap(key, expected.as_deref(), new.as_deref()).await? {
                    CompareAndSwap::Swapped => Answer::Done,
                    CompareAndSwap::Lost(found) => Answer::Value(id(found.as_deref())),
                }
            }
            Call::Swap(Some(new)) => {
                Answer::Value(id(client.swap(key, &value(new)).await?.as_deref()))
            }
            Call::Swap(None) => Answer::Value(id(client.get_and_delete(key).await?.as_deref())),
            Call::Increment(by) => {
                Answer::Value(Some(client.increment(key, by as i64).await? as u64))
            }
            Call::PutWithTtl { value: id, ttl } => {
                client.put_with_ttl(key, &value(id), Duration::from_nanos(ttl)).await?;
                Answer::Done
            }
            Call::Persist => outcome(client.persist(key).await?),
            Call::Ttl => Answer::Life(match client.ttl(key).await? {
                TimeToLive::Absent => None,
                TimeToLive::Endless => Some(false),
                TimeToLive::Left(_) => Some(true),
            }),
            Call::Expire(_) => unreachable!("nobody asks for it"),
        })
    }
}
