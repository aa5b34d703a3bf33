//! One register on simulated nodes, and clients that read, write and delete it.

use std::cell::Cell;
use std::future::Future;

use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::counting::{Counting, Tally};
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::history::{Answer, Call, Recorder};
use swarm_core::layout::{
    BufferHeader, Buffers, Geometry, Identity, MIN_CAPACITY, Place, Shape, buffer, checksum,
    register,
};
use swarm_core::node::NodeId;
use swarm_core::quorum::{Group, Patience, Session};
use swarm_core::register::freeze::freeze;
use swarm_core::register::safe_guess::first_stamp;
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
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

/// Granules of a buffer, and of a client's buffers: more where all nodes hold them at the same place.
const BUFFER_GRANULES: u64 = 2;
const ALL_BUFFERS: u64 = 64;
const LEAN_BUFFERS: u64 = 16;
/// Granules from a chunk's beginning to the first buffer, to the clients', and to those that all nodes hold
/// where others are lean.
const FIRST_AT: u64 = 60;
const CLIENTS_AT: u64 = 64;
const WIDE_AT: u64 = 160;
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

/// Which nodes hold a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// All of them.
    Everywhere,
    /// All but one, as the store has it.
    Lean,
}

impl Held {
    fn buffers(self, nodes: usize) -> Buffers {
        match self {
            Self::Everywhere => Buffers::everywhere(nodes),
            Self::Lean => Geometry::new(nodes, MIN_CAPACITY, 2, 1).expect("a geometry").buffers(),
        }
    }
}

/// What the chains of the register's birth do at one node: header, buffer, first slot; at a home that does
/// without the buffer, its copy in place.
pub(crate) fn give_birth<T>(
    (place, held): (&Place, Held),
    node: NodeId,
    nodes: usize,
    post: impl Fn(&[Verb<'_>]) -> T,
) -> T {
    let at = place.at(node, nodes);
    let buffers = held.buffers(nodes);
    let first = buffers.without(place.home, 0, FIRST_AT).unwrap_or(Pointer(FIRST_AT));
    let stamp = first_stamp(FORMAT, first);
    let bytes = value(FIRST_VALUE);
    let header = BufferHeader {
        rewrite: Timestamp(0),
        number: IDENTITY.number,
        register: place.pointer,
        length: bytes.len(),
        guess: Timestamp::FIRST,
        checksum: checksum(FORMAT, IDENTITY, Timestamp::FIRST, first, IDENTITY.number, &bytes),
    };
    let header_words = swarm_core::layout::header(IDENTITY.number, KEY);
    let identity = IDENTITY.encode();
    let both = [identity.as_slice(), header_words.as_slice()].concat();
    let site = buffers.first_site(first, place);
    let buffer = site.place.at(node, nodes);
    let stamped = [stamp.0];
    let in_place = Verb::Write { at: buffer.plus(buffer::LOCK), head: &stamped, tail: &[] };
    let in_place = (held == Held::Lean && node == place.home).then_some(in_place);
    let header = header.encode();
    let header_at = SHAPE.header_place(place).at(node, nodes);
    let identity_at = at.plus(register::IDENTITY);
    let mut chain = if node == place.home {
        vec![
            Verb::Write { at: header_at, head: &header_words, tail: KEY },
            Verb::Write { at: identity_at, head: &identity, tail: &[] },
        ]
    } else {
        vec![Verb::Write { at: identity_at, head: &both, tail: KEY }]
    };
    chain.extend([Verb::Write { at: buffer.plus(buffer::REWRITE), head: &header, tail: &bytes }]);
    chain.extend(in_place);
    chain.push(Verb::Cas { at: at.plus(register::SLOTS_AT), expect: 0, new: stamp.0 });
    post(&chain)
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
    held: Held,
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
        let (buffers, held) = (Cell::new(0), Held::Everywhere);
        Self { group, register, recorder: recorder.clone(), id, buffers, held }
    }

    /// The same in a pool that uses so many stamp slots, and whose buffers are held so.
    pub(crate) fn of(self, slots: usize, held: Held) -> Self {
        let buffers = held.buffers(self.group.nodes());
        Self { group: self.group.with_slots(slots).with_buffers(buffers), held, ..self }
    }

    /// Whether there are nodes that do without a buffer: what is incomplete at a silent node that is to hold
    /// it has the key move.
    pub(crate) fn is_lean(&self) -> bool {
        self.held == Held::Lean
    }

    /// Memory for another write.
    pub(crate) fn fresh(&self) -> Pointer {
        self.buffer(self.buffers.replace(self.buffers.get() + 1))
    }

    /// Its buffer of this number, as long as no node is silent.
    pub(crate) fn buffer(&self, index: u64) -> Pointer {
        let granules = if self.held == Held::Lean { LEAN_BUFFERS } else { ALL_BUFFERS };
        assert!(index < granules / BUFFER_GRANULES, "a client writes fewer times");
        let within = self.id as u64 * granules + index * BUFFER_GRANULES;
        let buffers = self.group.buffers();
        let lean = match self.group.left_out(self.register.home()) {
            None => buffers.with_all(0, WIDE_AT + within),
            // Where memory is short, it is what another node does without.
            Some(_) if (self.id as u64 + index) % 4 == 3 => {
                let another = (self.id as u64 + index / 4) % self.group.nodes() as u64;
                buffers.without(NodeId(another as u8), 0, CLIENTS_AT + within)
            }
            Some(absent) => buffers.without(absent, 0, CLIENTS_AT + within),
        };
        lean.unwrap_or(Pointer(CLIENTS_AT + within))
    }

    /// Reads, and freezes the register if its key has to move: then its last value is what the next one
    /// begins with. Yields whether that was so.
    pub(crate) async fn read_or_freeze<P: Protocol>(&mut self) -> bool {
        match self.read::<P>(Polls::ALL).await {
            Err(GaveUp::Failed(Error::Moved)) if self.is_lean() => {}
            read => {
                read.unwrap_or_else(|error| panic!("the last read: {error:?}"));
                return false;
            }
        }
        let call = self.recorder.called(self.id, 0, Call::Get);
        let last = freeze(&self.group, &self.register).await.expect("a majority is up");
        self.recorder.answered(call, Answer::Value(last.value.map(|value| id_of(&value))));
        true
    }

    /// Reads. `None` in the answer's place if it ended in an error or was given up after `polls`.
    pub(crate) async fn read<P: Protocol>(&mut self, polls: Polls) -> Result<Tally, GaveUp> {
        let call = self.recorder.called(self.id, 0, Call::Get);
        let group = &self.group;
        let register = &mut self.register;
        let read = group.fabric().track(async {
            let mut seen = None;
            if let Some(value) = P::try_read(group, register, &mut seen) {
                return Ok(Found::Value(value));
            }
            // What was seen goes by the identity.
            let check = if seen.is_some() { Check::Identity } else { Check::Key(KEY) };
            P::read_on(group, register, check, seen).await
        });
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
            // The next write must not prove this one complete.
            Written::Moved(_) => {
                drop(self.group.begin_write());
                return Err(Error::Moved.into());
            }
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
