//! A store on simulated nodes, and clients of it whose operations are taken down.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use fastrand::Rng;
use swarm_core::clock::Clock;
use swarm_core::error::Error as CoreError;
use swarm_core::fabric::{Board, Fabric, NodeDown, Verb};
use swarm_core::history::{Answer, Call, Recorder};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_core::quorum::{Patience, Session};
use swarm_core::sim::{Setup, SimCompletion, SimFabric, dropped_after};
use swarm_core::words::{Incarnation, WordFormat};
use swarm_kv::{Client, Error, Options, Shortage};

/// The same with buckets of six keys at most: a schedule has few.
pub(crate) fn of_six_keys(geometry: Geometry) -> Geometry {
    Geometry { bucket_payload: 27, ..geometry }
}

/// Bytes of a chunk where memory is short.
const SMALL_CHUNK: u64 = 4 << 10;

/// The same for so many slots, with so few small chunks that there is hardly one for everything.
pub(crate) fn of_few_chunks(geometry: Geometry, max_clients: usize, chunks: usize) -> Geometry {
    // What lies in front of the chunks depends on how many there are, a little.
    let with = |chunks: usize| {
        let capacity = chunks as u64 * SMALL_CHUNK;
        Geometry { chunk_bytes: SMALL_CHUNK, capacity, max_clients, ..geometry }
    };
    with(with(chunks).first_chunk() + chunks)
}

/// A simulated fabric that can be hung up: then chains lead nowhere.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// What chains go over.
    pub(crate) inner: SimFabric,
    /// Whether it was hung up.
    pub(crate) hung_up: Rc<Cell<bool>>,
}

/// A chain, unless its line was hung up.
pub(crate) struct Posted<'f>(Option<SimCompletion<'f>>);

impl Future for Posted<'_> {
    type Output = Result<Vec<u64>, NodeDown>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().map_or(Poll::Pending, |posted| Pin::new(posted).poll(cx))
    }
}

impl Fabric for Line {
    type Board = Box<dyn Board>;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Posted<'f>;

    fn is_near(&self) -> bool {
        self.inner.is_near()
    }

    fn nodes(&self) -> usize {
        self.inner.nodes()
    }

    fn posted(&self) -> u64 {
        self.inner.posted()
    }

    fn oldest_under_way(&self) -> u64 {
        self.inner.oldest_under_way()
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        Posted((!self.hung_up.get()).then(|| self.inner.post(node, chain)))
    }
}

/// The bytes of value number `id`: of different lengths, in place and not.
pub(crate) fn value(id: u64) -> Vec<u8> {
    let words = [1, 2, 5, 12][(id % 4) as usize];
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| id.to_le_bytes()).collect();
    bytes.truncate(bytes.len() - (id % 3) as usize * usize::from(words > 1));
    bytes
}

/// The number of a value.
fn id_of(bytes: &[u8]) -> u64 {
    let first = bytes.first_chunk().expect("every value has a number");
    let id = u64::from_le_bytes(*first);
    assert_eq!(bytes, value(id), "a value came back torn");
    id
}

/// The bytes of key number `key`.
pub(crate) fn key(key: u64) -> Vec<u8> {
    // Of different lengths, so that registers are of different classes.
    format!("key {key}{}", ".".repeat((key % 3) as usize * 7)).into_bytes()
}

/// How words are split: mostly so that a key's timestamps end soon, and it moves.
pub(crate) fn format(usual: WordFormat, setup: &mut Setup) -> WordFormat {
    let mut rng = Rng::with_seed(setup.seed ^ 0x3078e);
    if rng.u8(..4) == 0 {
        return usual;
    }
    // A register lives for some thousand steps, or many operations could not end in one. Cells
    // need ballots.
    setup.step_time = [20, 40, 60][rng.usize(..3)];
    WordFormat { pointer_bits: 62 - 17, tick_shift: 0 }
}

/// A client of the store, and the book in which its operations are taken down.
pub(crate) struct Story {
    /// The client. Whatever its clock is, it is of one type: a store is built for each.
    pub(crate) client: Client<Line, Rc<dyn Clock>>,
    /// The book.
    pub(crate) recorder: Recorder,
    /// Its number, for reports.
    pub(crate) id: usize,
}

/// Why an operation has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GaveUp {
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
    /// What there was no memory for, if that is why.
    pub(crate) fn shortage(self) -> Option<Shortage> {
        match self {
            Self::Failed(Error::Full(shortage) | Error::Unsettled(shortage)) => Some(shortage),
            _ => None,
        }
    }

    /// Whether too few nodes answered, or others were always faster, before the time was up.
    pub(crate) fn is_late(self) -> bool {
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

/// Whether an error promises that a write has not taken effect.
fn has_no_effect(error: Error) -> bool {
    !matches!(
        error,
        Error::Replication(_)
            | Error::Contended
            | Error::Unsettled(_)
            | Error::UnsettledSpent
            | Error::UnsettledUnfinished
    )
}

/// How often an operation is polled before it is dropped; `None`: it never is.
pub(crate) type Polls = Option<u32>;

/// Of a client that finds nodes late after `late` nanoseconds, and gives up after `deadline`.
pub(crate) fn options((late, deadline): (u64, u64)) -> Options {
    Options::default()
        .cached_keys(16)
        .cached_buckets(8)
        .patience(Patience { late_floor: late, late_roundtrips: 4, deadline })
        .memory_wait(3_200_000)
        .reclaimed_at_once(1)
}

impl Story {
    /// Client number `id`, in this slot and incarnation.
    pub(crate) fn new(
        (line, clock): (Line, Rc<dyn Clock>),
        geometry: Geometry,
        (id, slot, incarnation): (usize, usize, u64),
        options: Options,
        recorder: &Recorder,
    ) -> Self {
        let session = Session { client: slot, incarnation: Incarnation(incarnation) };
        let client = Client::new(line, clock, geometry, session, options);
        Self { client, recorder: recorder.clone(), id }
    }

    /// One operation on key number `number`, taken down.
    pub(crate) async fn call(&self, number: u64, call: Call, polls: Polls) -> Result<(), GaveUp> {
        let noted = self.recorder.called(self.id, number, call);
        let asked = dropped_after(polls, self.ask(&key(number), call)).await;
        let answer = asked.ok_or(GaveUp::Dropped)?.inspect_err(|error| {
            if has_no_effect(*error) {
                self.recorder.struck(noted);
            }
        })?;
        self.recorder.answered(noted, answer);
        Ok(())
    }

    async fn ask(&self, key: &[u8], call: Call) -> Result<Answer, Error> {
        let told = |done| if done { Answer::Done } else { Answer::Refused };
        Ok(match call {
            Call::Get => Answer::Value(self.client.get(key).await?.map(|value| id_of(&value))),
            Call::Put(id) => {
                self.client.put(key, &value(id)).await?;
                Answer::Done
            }
            Call::Insert(id) => told(self.client.insert(key, &value(id)).await?),
            Call::Update(id) => told(self.client.update(key, &value(id)).await?),
            Call::Delete => {
                self.client.delete(key).await?;
                Answer::Done
            }
        })
    }
}
