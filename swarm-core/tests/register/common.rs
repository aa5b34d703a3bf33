//! One register on simulated nodes, and clients that read, write and delete it.

use std::cell::Cell;
use std::future::Future;

use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::counting::{Counting, OpCost};
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::history::{Answer, Call, Recorder};
use swarm_core::layout::{
    BufferHeader, Geometry, Identity, Location, MIN_CAPACITY, Placement, Shape, buffer, checksum,
    register,
};
use swarm_core::node::NodeId;
use swarm_core::quorum::{Group, Session, Timeouts};
use swarm_core::register::freeze::freeze;
use swarm_core::register::safe_guess::first_stamp;
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::sim::{SimClock, dropped_after};
use swarm_core::words::{Incarnation, Pointer, Timestamp, WordFormat, WriteNumber};

/// How words are split.
pub(crate) const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
/// Fits values of up to two words in place.
pub(crate) const SHAPE: Shape = Shape { key_length: 8, capacity: 2 };
/// The register's key.
pub(crate) const KEY: &[u8; 8] = b"a simkey";
/// The number of the value with which the register is created.
pub(crate) const FIRST_VALUE: u64 = 1_000_000;

/// Granules of a buffer, and of a client's buffers: more if all nodes hold them at the same
/// address.
const BUFFER_GRANULES: u64 = 2;
const ALL_BUFFERS: u64 = 64;
const ALL_BUT_ONE_BUFFERS: u64 = 16;
/// Granules from a chunk's beginning to the first buffer, to the clients' buffers, and to those
/// that all nodes hold if others lack one node.
const FIRST_AT: u64 = 60;
const CLIENTS_AT: u64 = 64;
const WIDE_AT: u64 = 160;
const IDENTITY: Identity = Identity { created_at: 500, number: WriteNumber(7) };

/// Returns the register's location, with its home at this node.
pub(crate) fn place(home: u8) -> Location {
    Location { pointer: Pointer(8), home: NodeId(home), at_home: 64, elsewhere: 128, stride: 16 }
}

/// Returns the bytes of value number `id`. Lengths differ; some fit in place, some do not.
pub(crate) fn value(id: u64) -> Vec<u8> {
    let words = [1, 2, 5, 3][(id % 4) as usize];
    let mut bytes: Vec<u8> = (0..words).flat_map(|_| id.to_le_bytes()).collect();
    bytes.truncate(bytes.len() - (id % 3) as usize * usize::from(words > 1));
    bytes
}

/// Returns the number of a value.
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
    /// All but one, as in the store.
    AllButOne,
}

impl Held {
    fn placement(self, nodes: usize) -> Placement {
        match self {
            Self::Everywhere => Placement::everywhere(nodes),
            Self::AllButOne => {
                Geometry::new(nodes, MIN_CAPACITY, 2, 1).expect("a geometry").placement()
            }
        }
    }
}

/// Calls `post` with the chain that creates the register at one node: header, buffer, first slot;
/// at a home that does not hold the buffer, the in-place copy.
pub(crate) fn create_replica<T>(
    (place, held): (&Location, Held),
    node: NodeId,
    nodes: usize,
    post: impl Fn(&[Verb<'_>]) -> T,
) -> T {
    let at = place.at(node, nodes);
    let buffers = held.placement(nodes);
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
    let in_place = (held == Held::AllButOne && node == place.home).then_some(in_place);
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
    /// Records its operations.
    pub(crate) recorder: Recorder,
    /// Its number.
    pub(crate) id: usize,
    /// How many of its buffers are used.
    pub(crate) buffers: Cell<u64>,
    held: Held,
}

impl<F: Fabric, C: Clock> Client<F, C> {
    /// Makes client number `id`, with client slot `slot` of the pool. It finds nodes late after
    /// `late` nanoseconds, and gives up after `deadline`.
    pub(crate) fn new(
        (fabric, clock): (F, C),
        (id, slot): (usize, usize),
        place: Location,
        (late, deadline): (u64, u64),
        recorder: &Recorder,
    ) -> Self {
        let session = Session { client: slot, incarnation: Incarnation(id as u64 + 1) };
        let group = Group::new(Counting::new(fabric), clock, FORMAT, session);
        group.set_timeouts(Timeouts { late_floor: late, late_roundtrips: 4, deadline });
        let register = Register::new(place, IDENTITY, SHAPE);
        let (buffers, held) = (Cell::new(0), Held::Everywhere);
        Self { group, register, recorder: recorder.clone(), id, buffers, held }
    }

    /// Returns the same client in a pool with this many stamp slots and this placement of buffers.
    pub(crate) fn of(self, slots: usize, held: Held) -> Self {
        let buffers = held.placement(self.group.nodes());
        Self { group: self.group.with_slots(slots).with_placement(buffers), held, ..self }
    }

    /// Returns whether some nodes do not hold a buffer. Then the key is relocated if a write is
    /// incomplete at a silent node that should hold its buffer.
    pub(crate) fn is_at_all_but_one(&self) -> bool {
        self.held == Held::AllButOne
    }

    /// Returns memory for another write.
    pub(crate) fn fresh(&self) -> Pointer {
        self.buffer(self.buffers.replace(self.buffers.get() + 1))
    }

    /// Returns its buffer of this number, as long as no node is silent.
    pub(crate) fn buffer(&self, index: u64) -> Pointer {
        let granules = if self.held == Held::AllButOne { ALL_BUT_ONE_BUFFERS } else { ALL_BUFFERS };
        assert!(index < granules / BUFFER_GRANULES, "a client writes fewer times");
        let within = self.id as u64 * granules + index * BUFFER_GRANULES;
        let buffers = self.group.placement();
        let all_but_one = match self.group.left_out(self.register.home()) {
            None => buffers.with_all(0, WIDE_AT + within),
            // Sometimes another node is left out, as when memory is low.
            Some(_) if (self.id as u64 + index) % 4 == 3 => {
                let another = (self.id as u64 + index / 4) % self.group.nodes() as u64;
                buffers.without(NodeId(another as u8), 0, CLIENTS_AT + within)
            }
            Some(absent) => buffers.without(absent, 0, CLIENTS_AT + within),
        };
        all_but_one.unwrap_or(Pointer(CLIENTS_AT + within))
    }

    /// Reads, and freezes the register if its key must be relocated; its last value is then the
    /// next register's first. Returns whether that was so.
    pub(crate) async fn read_or_freeze<P: Protocol>(&mut self) -> bool {
        match self.read::<P>(Polls::ALL).await {
            Err(GaveUp::Failed(Error::Moved)) if self.is_at_all_but_one() => {}
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

    /// Reads. Records no answer if the read ended in an error or was given up after `polls`.
    pub(crate) async fn read<P: Protocol>(&mut self, polls: Polls) -> Result<OpCost, GaveUp> {
        let call = self.recorder.called(self.id, 0, Call::Get);
        let group = &self.group;
        let register = &mut self.register;
        let read = group.fabric().track(async {
            let mut seen = None;
            if let Some(value) = P::try_read(group, register, &mut seen) {
                return Ok(Found::Value(value));
            }
            // What was seen was checked by identity.
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

    /// Writes value number `id` to newly allocated memory.
    pub(crate) async fn write<P: Protocol>(
        &mut self,
        id: u64,
        polls: Polls,
    ) -> Result<OpCost, GaveUp> {
        let buffer = self.fresh();
        self.write_to::<P>(buffer, id, polls).await
    }

    /// Writes value number `id`, with its buffer at `buffer`.
    pub(crate) async fn write_to<P: Protocol>(
        &mut self,
        buffer: Pointer,
        id: u64,
        polls: Polls,
    ) -> Result<OpCost, GaveUp> {
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
    pub(crate) async fn delete<P: Protocol>(&mut self, polls: Polls) -> Result<OpCost, GaveUp> {
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
