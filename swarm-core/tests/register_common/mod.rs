//! One register on simulated nodes, and clients that read, write and delete it.

use std::cell::Cell;
use std::future::Future;

use swarm_core::clock::Clock;
use swarm_core::counting::{Counting, Tally};
use swarm_core::error::Error;
use swarm_core::fabric::{Address, Fabric, NodeId, Verb};
use swarm_core::group::{Group, Patience, Session};
use swarm_core::history::{Answer, Call, Recorder};
use swarm_core::layout::{BufferHeader, Identity, Place, Shape, buffer, checksum, register};
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::safe_guess::{FIRST, first_stamp};
use swarm_core::sim::{SimClock, dropped_after};
use swarm_core::words::{Incarnation, Pointer, Timestamp, WordFormat, WriteNumber};

/// How words are split.
pub(crate) const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
/// What lies in place: values of up to two words.
pub(crate) const SHAPE: Shape = Shape { key_length: 8, capacity: 2 };
/// The register's key.
pub(crate) const KEY: &[u8; 8] = b"a simkey";
/// The number of the value that the register is born with.
pub(crate) const FIRST_VALUE: u64 = 1_000_000;

const BUFFERS: u64 = 64;
const BUFFER_GRANULES: u64 = 2;
const FIRST_BUFFER: Pointer = Pointer(60);
const IDENTITY: Identity = Identity { birth: 500, number: WriteNumber(7) };

/// The register's place, with its home at this node.
pub(crate) fn place(home: u8) -> Place {
    Place { pointer: Pointer(8), home: NodeId(home), at_home: 64, elsewhere: 128, stride: 16 }
}

/// The bytes of value number `id`: of different lengths, in place and not.
pub(crate) fn value(id: u64) -> Vec<u8> {
    let words = [1, 2, 5, 3][(id % 4) as usize];
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| id.to_le_bytes()).collect();
    bytes.truncate(bytes.len() - (id % 3) as usize * usize::from(words > 1));
    bytes
}

/// The number of a value.
pub(crate) fn id_of(bytes: &[u8]) -> u64 {
    let first = bytes.first_chunk().expect("every value has a number");
    let id = u64::from_le_bytes(*first);
    assert_eq!(bytes, value(id), "a value came back torn");
    id
}

/// What the chains of the register's birth do at one node: header, buffer, first slot.
pub(crate) fn give_birth<T>(
    place: &Place,
    node: NodeId,
    nodes: usize,
    post: impl Fn(&[Verb<'_>]) -> T,
) -> T {
    let at = place.at(node, nodes);
    let stamp = first_stamp(FORMAT, FIRST_BUFFER);
    let bytes = value(FIRST_VALUE);
    let header = BufferHeader {
        rewrite: Timestamp(0),
        number: IDENTITY.number,
        register: place.pointer,
        length: bytes.len(),
        guess: FIRST,
        checksum: checksum(FORMAT, IDENTITY, FIRST, FIRST_BUFFER, IDENTITY.number, &bytes),
    };
    let image = swarm_core::layout::header(IDENTITY, KEY);
    let buffer = Address(FIRST_BUFFER.0 * 8).plus(buffer::REWRITE);
    post(&[
        Verb::Write { at: at.plus(register::HEADER), head: &image, tail: KEY },
        Verb::Write { at: buffer, head: &header.encode(), tail: &bytes },
        Verb::Cas { at: at.plus(register::SLOTS_AT), expect: 0, new: stamp.0 },
    ])
}

/// A client of the register.
pub(crate) struct Client<F, C = SimClock> {
    /// Its view of the nodes.
    pub(crate) group: Group<Counting<F>, C>,
    /// What it knows of the register.
    pub(crate) register: Register,
    /// Where it takes its operations down.
    pub(crate) recorder: Recorder,
    /// Its number.
    pub(crate) id: usize,
    /// How many of its buffers are used.
    pub(crate) buffers: Cell<u64>,
}

impl<F: Fabric, C: Clock> Client<F, C> {
    /// Client number `id` of the story, in client slot `slot` of the pool, which finds nodes late
    /// after `late` nanoseconds, and gives up after `deadline`.
    pub(crate) fn new(
        (fabric, clock): (F, C),
        (id, slot): (usize, usize),
        place: Place,
        (late, deadline): (u64, u64),
        recorder: &Recorder,
    ) -> Self {
        let session = Session { client: slot, incarnation: Incarnation(id as u64 + 1) };
        let group = Group::new(Counting::new(fabric), clock, FORMAT, session);
        group.set_patience(Patience { late_floor: late, late_roundtrips: 4, deadline });
        let register = Register::new(place, IDENTITY, SHAPE);
        Self { group, register, recorder: recorder.clone(), id, buffers: Cell::new(0) }
    }

    pub(crate) fn fresh(&self) -> Pointer {
        let index = self.buffers.replace(self.buffers.get() + 1);
        assert!(index < BUFFERS / BUFFER_GRANULES, "a client writes fewer times");
        let base = 64 + self.id as u64 * BUFFERS;
        Pointer(base + index * BUFFER_GRANULES)
    }

    /// Reads. `None` in the answer's place if it ended in an error or was given up after `polls`.
    pub(crate) async fn read<P: Protocol>(&mut self, polls: Polls) -> Result<Tally, GaveUp> {
        let call = self.recorder.called(self.id, 0, Call::Get);
        let group = &self.group;
        let read = group.fabric().track(P::read(group, &mut self.register, Check::Key(KEY)));
        let (found, tally) = polls.limit(read).await?;
        let answer = match found? {
            Found::Value(value) => Some(id_of(&value)),
            Found::Deleted => None,
            Found::OtherKey => panic!("there is one key"),
        };
        self.recorder.answered(call, Answer::Value(answer));
        Ok(tally)
    }

    /// Writes value number `id` to fresh memory.
    pub(crate) async fn write<P: Protocol>(
        &mut self,
        id: u64,
        polls: Polls,
    ) -> Result<Tally, GaveUp> {
        let buffer = self.fresh();
        self.write_to::<P>(buffer, id, polls).await
    }

    /// Writes value number `id`, with its buffer at `buffer`.
    pub(crate) async fn write_to<P: Protocol>(
        &mut self,
        buffer: Pointer,
        id: u64,
        polls: Polls,
    ) -> Result<Tally, GaveUp> {
        let call = self.recorder.called(self.id, 0, Call::Update(id));
        let bytes = value(id);
        let number = self.group.number().expect("numbers last");
        let write = Write { number, buffer, value: &bytes };
        let group = &self.group;
        let written = group.fabric().track(P::write(group, &mut self.register, write));
        let (written, tally) = polls.limit(written).await?;
        let answer = match written? {
            Written::Done => Answer::Done,
            Written::Deleted => Answer::Refused,
            Written::Moved(_) => panic!("nobody moves it"),
        };
        self.recorder.answered(call, answer);
        Ok(tally)
    }

    /// Deletes.
    pub(crate) async fn delete<P: Protocol>(&mut self, polls: Polls) -> Result<Tally, GaveUp> {
        let call = self.recorder.called(self.id, 0, Call::Delete);
        let group = &self.group;
        let deleted = group.fabric().track(P::delete(group, &mut self.register));
        let (deleted, tally) = polls.limit(deleted).await?;
        deleted?;
        self.recorder.answered(call, Answer::Done);
        Ok(tally)
    }
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

/// How often an operation is polled before it is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Polls(pub(crate) Option<u32>);

impl Polls {
    /// It is never dropped.
    pub(crate) const ALL: Self = Self(None);

    async fn limit<T>(self, operation: impl Future<Output = T>) -> Result<T, GaveUp> {
        dropped_after(self.0, operation).await.ok_or(GaveUp::Dropped)
    }
}
