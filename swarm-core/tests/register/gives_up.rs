//! Operations on a register that cannot end. If others are always first, they report that. They
//! report damaged memory where memory is damaged, and only there.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::latency::Delayed;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::fabric::{Fabric, NoEpochs, NodeDown, Verb};
use swarm_core::layout::{Geometry, Identity, Location, Shape, buffer, header, register};
use swarm_core::node::NodeId;
use swarm_core::quorum::{Group, Session};
use swarm_core::register::freeze::freeze;
use swarm_core::register::safe_guess::{READ_BOUND, SafeGuess, first_stamp};
use swarm_core::register::weak_read::{Confirmed, confirm};
use swarm_core::register::{Check, Found, Protocol, Register, Write};
use swarm_core::words::{
    Incarnation, LockMode, LockWord, Pointer, Stamp, StampFlags, Timestamp, WordFormat, WriteNumber,
};

const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
const ALL: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// Where the buffers are, of two granules each; the register lies before them.
const BUFFERS_AT: u64 = 16;

struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> u64 {
        self.0.set(self.0.get() + 1000);
        self.0.get()
    }
}

/// Nodes that answer a chain if `answers` returns true for it.
struct Nodes<A> {
    inner: Loopback,
    answers: A,
}

struct Done(Option<Vec<u64>>);

impl Future for Done {
    type Output = Result<Vec<u64>, NodeDown>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(self.0.take().ok_or(NodeDown))
    }
}

impl<A: Fn(NodeId, &[Verb<'_>]) -> bool> Fabric for Nodes<A> {
    type EpochDomain = NoEpochs;
    type Reply<'f>
        = Vec<u64>
    where
        A: 'f;
    type Completion<'f>
        = Done
    where
        A: 'f;

    fn nodes(&self) -> usize {
        3
    }

    fn post(&self, node: NodeId, chain: &[Verb<'_>]) -> Done {
        if !(self.answers)(node, chain) {
            return Done(None);
        }
        let mut posted = self.inner.post(node, chain);
        match Pin::new(&mut posted).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(reply)) => Done(Some(reply)),
            _ => Done(None),
        }
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

fn place() -> Location {
    Location::everywhere(Pointer(1), NodeId(0))
}

const SHAPE: Shape = Shape { key_length: 1, capacity: 8 };

/// Returns a register at all nodes, created with a value that is never read.
fn created() -> (Loopback, Register) {
    created_in(Loopback::new(3, 1 << 14), FORMAT)
}

fn created_in(nodes: Loopback, format: WordFormat) -> (Loopback, Register) {
    let identity = Identity { created_at: 0, number: WriteNumber::new(Incarnation(9), 1) };
    let key = [u64::from(b'k')];
    let words = || header(identity.number, b"k").into_iter().chain(key);
    for node in ALL {
        let at = place().at(node, 3);
        let set = |(at, word)| nodes.set_word(node, at, word);
        let first = SHAPE.header_place(&place()).at(node, 3);
        (0..).map(|i| first.plus(i)).zip(words()).for_each(set);
        let first = at.plus(register::IDENTITY);
        (0..).map(|i| first.plus(i)).zip(identity.encode()).for_each(set);
        nodes.set_word(node, at, first_stamp(format, Pointer(8)).0);
    }
    (nodes, Register::new(place(), identity, SHAPE))
}

fn group<F: Fabric>(nodes: F, client: usize) -> Group<F, Ticking> {
    let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
    Group::new(nodes, Ticking(Cell::new(0)), FORMAT, session)
}

fn read<F: Fabric>(group: &Group<F, Ticking>, register: &Register) -> Result<Vec<u8>, Error> {
    match block_on(SafeGuess::read(group, &mut { *register }, Check::Identity))? {
        Found::Value(value) => Ok(value.to_vec()),
        _ => panic!("it is there"),
    }
}

/// Writes, and leaves the value in buffer number `nth` at all nodes, and in place.
fn write(nodes: &Loopback, register: &Register, nth: u64, value: &[u8]) -> Register {
    let writer = group(nodes.clone(), 1);
    let mut register = *register;
    let number = writer.number().expect("a number");
    let write = Write { number, buffer: Pointer(BUFFERS_AT + 2 * nth), value };
    block_on(confirm(&writer, &mut register, b"k")).expect("all are there");
    block_on(SafeGuess::write(&writer, &mut register, write)).expect("all are there");
    // Nodes outside the preferred majority do not have it yet.
    assert_eq!(read(&group(nodes.clone(), 2), &register).as_deref(), Ok(value));
    for node in ALL {
        for word in 1..16 {
            let at = Location::everywhere(write.buffer, NodeId(0)).at(node, 3).plus(word);
            nodes.set_word(node, at, nodes.word(ALL[0], at));
        }
    }
    register
}

/// Lets an operation post its first chains, and drops it.
fn abandon<T>(operation: impl Future<Output = T>) {
    let polled = pin!(operation).poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending(), "its chains take time");
}

/// Returns whether a chain READs a buffer.
fn is_fetch(chain: &[Verb<'_>]) -> bool {
    matches!(chain, [Verb::Read { at, .. }] if at.0 >= 8 * 8 && at.0 % 8 == buffer::REWRITE as u64)
}

/// A writer is a client's life since its last abandoned write. If one client's writes time out,
/// each weak read of a read may find another writer's guess, and none that the read remembers.
#[test]
fn a_read_among_many_abandoned_writes_is_contended() {
    let (nodes, register) = created();
    let clock = Ticking(Cell::new(0));
    let session = Session { client: 1, incarnation: Incarnation(1) };
    let writer =
        Group::new(Delayed::new(nodes.clone(), &clock, 1_000_000), &clock, FORMAT, session);
    let looker = group(nodes.clone(), 1);
    let abandoned = Cell::new(0);
    let write = || {
        let nth = abandoned.replace(abandoned.get() + 1);
        let number = writer.number().expect("a number");
        let buffer = Pointer(BUFFERS_AT + nth);
        let write = Write { number, buffer, value: &nth.to_le_bytes() };
        let mut register = register;
        assert_eq!(block_on(confirm(&looker, &mut register, b"k")), Ok(Confirmed::Key));
        abandon(SafeGuess::write(&writer, &mut register, write));
    };
    write();
    let answers = |node, chain: &[Verb<'_>]| {
        if let (NodeId(0), [Verb::Read { at, .. }]) = (node, chain)
            && at.0 == place().at_home
        {
            write();
        }
        true
    };
    let reader = group(Nodes { inner: nodes.clone(), answers }, 0);
    assert_eq!(read(&reader, &register), Err(Error::Contended));
    assert!(abandoned.get() >= READ_BOUND as u64, "{} writes", abandoned.get());
}

/// Nodes answer whenever their slots are READ, and fall silent whenever their buffers are.
#[test]
fn a_client_that_nodes_fail_time_and_again_gets_an_error() {
    let (nodes, register) = created();
    let fetches = Cell::new(0);
    let answers = |_, chain: &[Verb<'_>]| {
        fetches.set(fetches.get() + u32::from(is_fetch(chain)));
        !is_fetch(chain)
    };
    let client = group(Nodes { inner: nodes.clone(), answers }, 0);
    assert_eq!(read(&client, &register), Err(Error::Contended));
    let frozen = block_on(freeze(&client, &register));
    assert_eq!(frozen.map(|last| last.stamp), Err(Error::Contended));
    assert!(fetches.get() > 0);
}

/// Returns the results of a read and of a relocation.
fn outcome(nodes: &Loopback, register: &Register) -> [Result<(), Error>; 2] {
    let client = group(nodes.clone(), 3);
    let read = read(&client, register).map(drop);
    [read, block_on(freeze(&client, register)).map(drop)]
}

const DAMAGED: [Result<(), Error>; 2] = [Err(Error::Damaged); 2];

/// One node's slot holds what no client wrote there: no node has such a buffer.
#[test]
fn a_damaged_slot_is_damage() {
    for flags in [StampFlags::empty(), StampFlags::VERIFIED] {
        let (nodes, register) = created();
        let register = write(&nodes, &register, 0, b"a value");
        let wrong = FORMAT.stamp(Timestamp(1 << 20), Pointer(700), flags);
        nodes.set_word(NodeId(1), place().at(NodeId(1), 3).plus(5), wrong.0);
        assert_eq!(outcome(&nodes, &register), DAMAGED, "{flags:?}");
    }
}

/// The same if it names an address in no node's memory: a node refuses such a chain as if it were
/// down.
#[test]
fn a_slot_that_names_what_no_node_can_have_is_damage() {
    let geometry = Geometry::new(3, 5 << 20, 4, 1).expect("geometry");
    let format = geometry.format;
    let (nodes, register) = created_in(Loopback::new(3, 5 << 17), format);
    // Pointers have room for eight.
    let beyond = Pointer((7 << 20) / 64 + 1);
    let wrong = format.stamp(Timestamp(1 << 20), beyond, StampFlags::empty());
    nodes.set_word(NodeId(1), place().at(NodeId(1), 3).plus(5), wrong.0);
    let session = Session { client: 0, incarnation: Incarnation(1) };
    let client = Group::new(nodes, Ticking(Cell::new(0)), format, session)
        .with_placement(geometry.placement());
    assert_eq!(read(&client, &register), Err(Error::Damaged));
    assert_eq!(block_on(freeze(&client, &register)).map(drop), Err(Error::Damaged));
}

/// One valid copy replaces the others; without one, nothing shows what the value was.
#[test]
fn damaged_buffers_are_damage_where_none_is_left() {
    for damaged in 1..=3 {
        let (nodes, register) = created();
        let register = write(&nodes, &register, 0, b"a value");
        for node in &ALL[..damaged] {
            let buffer = Location::everywhere(Pointer(BUFFERS_AT), *node).at(*node, 3);
            for at in [buffer, place().at(*node, 3).plus(register::IN_PLACE)] {
                (2..14).for_each(|word| nodes.set_word(*node, at.plus(word), 0xbad_bad));
            }
        }
        let expected = if damaged == 3 { DAMAGED } else { [Ok(()); 2] };
        assert_eq!(outcome(&nodes, &register), expected, "{damaged} copies");
    }
}

/// A guess's lock is held although no client can have taken it: nothing larger came before, or
/// will.
#[test]
fn a_damaged_lock_is_damage() {
    let (nodes, register) = created();
    let clock = Ticking(Cell::new(0));
    let session = Session { client: 1, incarnation: Incarnation(1) };
    let writer =
        Group::new(Delayed::new(nodes.clone(), &clock, 1_000_000), &clock, FORMAT, session);
    let number = writer.number().expect("a number");
    let guess = Write { number, buffer: Pointer(BUFFERS_AT), value: b"a guess" };
    let mut guessed = register;
    assert_eq!(block_on(confirm(&group(nodes.clone(), 1), &mut guessed, b"k")), Ok(Confirmed::Key));
    abandon(SafeGuess::write(&writer, &mut guessed, guess));
    let lock = LockWord::new(WriteNumber::new(Incarnation(77), 7), LockMode::Write);
    let at = Location::everywhere(guess.buffer, NodeId(0)).at(NodeId(0), 3).plus(buffer::LOCK);
    ALL.into_iter().for_each(|node| nodes.set_word(node, at, lock.0));
    let reads = Cell::new(0);
    let answers = |_, chain: &[Verb<'_>]| {
        reads.set(reads.get() + usize::from(matches!(chain, [Verb::Read { .. }])));
        true
    };
    let reader = group(Nodes { inner: nodes, answers }, 0);
    assert_eq!(read(&reader, &register), Err(Error::Damaged));
    assert!(reads.get() < READ_BOUND, "{} READs: one is enough to know", reads.get());
    assert_ne!(guessed.last_stamp(), Stamp::EMPTY);
}
