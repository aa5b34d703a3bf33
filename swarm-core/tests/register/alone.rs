//! One client, or two in turn, on the simplest fabric: values, roundtrips, in-place copies.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use swarm_core::baselines::{DmAbd, Raw};
use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::counting::Counting;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::layout::{Identity, Location, Shape, register};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::{Group, Session};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{Check, Found, Protocol, Register, Write, Written};
use swarm_core::words::{GRANULE_WORDS, Incarnation, Pointer, Stamp, WordFormat, WriteNumber};

const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
const KEY: &[u8] = b"a key of 24 bytes length";
const SHAPE: Shape = Shape { key_length: KEY.len(), capacity: 8 };

/// Advances by a microsecond with each look.
struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> u64 {
        self.0.set(self.0.get() + 1000);
        self.0.get()
    }
}

type TestGroup = Group<Counting<Loopback>, Ticking>;

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..1000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
    panic!("does not end");
}

fn client(nodes: &Loopback, id: usize, clock: u64) -> TestGroup {
    let session = Session { client: id, incarnation: Incarnation(id as u64 + 1) };
    Group::new(Counting::new(nodes.clone()), Ticking(Cell::new(clock)), FORMAT, session)
}

/// Returns a register whose home is node 1, with its header in place and without a value.
fn register(nodes: &Loopback) -> Register {
    let place = Location {
        pointer: Pointer(4),
        home: NodeId(1),
        at_home: 4 * 8,
        elsewhere: 12 * 8,
        stride: 4 * 8,
    };
    let identity = Identity { created_at: 500, number: WriteNumber(7) };
    for node in (0..3).map(NodeId) {
        let at = place.at(node, 3).plus(register::IDENTITY);
        for (i, word) in identity.encode().into_iter().enumerate() {
            nodes.set_word(node, at.plus(i), word);
        }
        let header = SHAPE.header_place(&place).at(node, 3);
        let key = KEY.chunks(8).map(|c| u64::from_le_bytes(c.try_into().expect("eight bytes")));
        let words = swarm_core::layout::header(identity.number, KEY);
        for (i, word) in words.into_iter().chain(key).enumerate() {
            nodes.set_word(node, header.plus(i), word);
        }
    }
    Register::new(place, identity, SHAPE)
}

fn write<P: Protocol>(
    group: &TestGroup,
    register: &mut Register,
    buffer: u64,
    value: &[u8],
) -> (Written, u32) {
    let number = group.number().expect("numbers last");
    let write = Write { number, buffer: Pointer(buffer), value };
    let write = group.fabric().track(P::write(group, register, write));
    let (written, tally) = block_on(write);
    (written.expect("written"), tally.roundtrips)
}

fn read<P: Protocol>(group: &TestGroup, register: &mut Register) -> (Option<Vec<u8>>, u32) {
    let read = group.fabric().track(P::read(group, register, Check::Key(KEY)));
    let (found, tally) = block_on(read);
    let value = match found.expect("read") {
        Found::Value(value) => Some(value.to_vec()),
        Found::Deleted => None,
        Found::OtherKey => panic!("the key is right"),
    };
    (value, tally.roundtrips)
}

#[test]
fn safe_guess_takes_one_roundtrip_each() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let group = client(&nodes, 0, 1000);
    for round in 0..5u8 {
        let value = [round; 60];
        assert_eq!(
            write::<SafeGuess>(&group, &mut register, 100 + u64::from(round), &value),
            (Written::Done, 1)
        );
        assert_eq!(read::<SafeGuess>(&group, &mut register), (Some(value.to_vec()), 1));
    }
}

/// A relocating client has frozen one replica, and perhaps another one that these clients do not ask: what it found
/// there may be superseded elsewhere by now.
#[test]
fn a_client_whose_memory_is_near_uses_no_register_that_is_frozen_at_one_node() {
    for (node, slot) in [(NodeId(1), 0), (NodeId(2), 0), (NodeId(1), 2), (NodeId(2), 2)] {
        let nodes = Loopback::new(3, 1 << 16).near();
        let mut register = register(&nodes);
        let [writer, reader] = [0, 1].map(|id| client(&nodes, id, 1000));
        assert_eq!(write::<SafeGuess>(&writer, &mut register, 100, b"old").0, Written::Done);
        let at = register.place.at(node, 3).plus(register::SLOTS_AT + slot);
        nodes.set_word(node, at, Stamp(nodes.word(node, at)).frozen().0);
        let (mut others, mut seen) = (register, None);
        let now = SafeGuess::try_read(&reader, &others, &mut seen);
        assert!(now.is_none(), "{node}, slot {slot}");
        let read = block_on(SafeGuess::read_on(&reader, &mut others, Check::Identity, seen));
        assert_eq!(read.map(drop), Err(Error::Moved), "{node}, slot {slot}");
        let written = write::<SafeGuess>(&writer, &mut register, 101, b"new").0;
        assert!(matches!(written, Written::Moved(_)), "{node}, slot {slot}: {written:?}");
    }
}

/// With one stamp slot for all writers, a CAS that succeeds is the READ as well.
#[test]
fn a_write_to_the_only_slot_reads_nothing_unless_another_was_there() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let mut others = register;
    let [a, b] = [0, 1].map(|id| client(&nodes, id, 1000).with_slots(1));
    let cost = |group: &TestGroup, register: &mut Register, buffer, value: &[u8]| {
        let number = group.number().expect("numbers last");
        let write = Write { number, buffer: Pointer(buffer), value };
        let write = group.fabric().track(SafeGuess::write(group, register, write));
        let (written, tally) = block_on(write);
        assert_eq!(written, Ok(Written::Done));
        (tally.roundtrips, tally.verbs)
    };
    // Deferred, each ends with a CAS at both nodes and the value in place at home: 3 verbs.
    assert_eq!(cost(&a, &mut register, 100, b"one"), (1, 2 * 3 + 3), "the slot was empty");
    assert_eq!(cost(&a, &mut register, 101, b"two"), (1, 2 * 2 + 3));
    assert_eq!(read::<SafeGuess>(&b, &mut others), (Some(b"two".to_vec()), 1));
    // Others are ahead of what this client remembers.
    b.advance(1_000_000);
    assert_eq!(cost(&b, &mut others, 102, b"three"), (1, 2 * 2 + 3));
    a.advance(2_000_000);
    assert_eq!(cost(&a, &mut register, 103, b"four"), (2, 2 * 2 + 2 * 2 + 3));
    assert_eq!(a.events().retries, 2);
    assert_eq!(read::<SafeGuess>(&b, &mut others), (Some(b"four".to_vec()), 1));
}

#[test]
fn a_value_that_does_not_fit_in_place_takes_one_more() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let group = client(&nodes, 0, 1000);
    let value = [9; 1000];
    assert_eq!(write::<SafeGuess>(&group, &mut register, 100, &value), (Written::Done, 1));
    assert_eq!(read::<SafeGuess>(&group, &mut register), (Some(value.to_vec()), 2));
    assert_eq!(write::<SafeGuess>(&group, &mut register, 200, b""), (Written::Done, 1));
    assert_eq!(read::<SafeGuess>(&group, &mut register), (Some(vec![]), 1));
}

#[test]
fn a_stale_guess_is_written_again_and_moves_the_clock() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut ahead = register(&nodes);
    let mut behind = ahead;
    let (a, b) = (client(&nodes, 0, 1_000_000), client(&nodes, 1, 1000));
    assert_eq!(write::<SafeGuess>(&a, &mut ahead, 100, b"one"), (Written::Done, 1));
    assert_eq!(write::<SafeGuess>(&b, &mut behind, 101, b"two"), (Written::Done, 4));
    assert_eq!(read::<SafeGuess>(&a, &mut ahead), (Some(b"two".to_vec()), 1));
    assert_eq!(write::<SafeGuess>(&b, &mut behind, 102, b"three"), (Written::Done, 1));
    assert_eq!(read::<SafeGuess>(&a, &mut ahead), (Some(b"three".to_vec()), 1));
}

#[test]
fn a_delete_is_final() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let mut other = register;
    let (a, b) = (client(&nodes, 0, 1000), client(&nodes, 1, 1000));
    write::<SafeGuess>(&a, &mut register, 100, b"one");
    block_on(SafeGuess::delete(&a, &mut register)).expect("deleted");
    assert_eq!(write::<SafeGuess>(&b, &mut other, 102, b"two").0, Written::Deleted);
    assert_eq!(write::<SafeGuess>(&a, &mut register, 103, b"two").0, Written::Deleted);
    assert_eq!(read::<SafeGuess>(&b, &mut other), (None, 1));
}

#[test]
fn another_key_with_the_same_hash_is_told_apart() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let group = client(&nodes, 0, 1000);
    write::<SafeGuess>(&group, &mut register, 100, b"one");
    let check = Check::Key(b"a key of 24 bytes as wel");
    let found = block_on(SafeGuess::read(&group, &mut register, check)).expect("read");
    assert!(matches!(found, Found::OtherKey));
}

#[test]
fn a_replica_that_the_register_did_not_reach_is_completed() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let group = client(&nodes, 0, 1000);
    write::<SafeGuess>(&group, &mut register, 100, b"one");
    let created_at = register.place.at(NodeId(2), 3).plus(register::IDENTITY);
    let header = SHAPE.header_place(&register.place).at(NodeId(2), 3);
    let shape = nodes.word(NodeId(2), header);
    nodes.set_word(NodeId(2), created_at, 0);
    nodes.set_word(NodeId(2), header, 0);
    // Home 1 prefers nodes 1 and 2; node 2 has no vote, and gets its header again.
    let (value, roundtrips) = read::<SafeGuess>(&group, &mut register);
    assert_eq!(value, Some(b"one".to_vec()));
    assert!(roundtrips > 1);
    assert_eq!(nodes.word(NodeId(2), created_at), 500);
    assert_eq!(nodes.word(NodeId(2), header), shape);
    assert_eq!(read::<SafeGuess>(&group, &mut register), (Some(b"one".to_vec()), 1));
}

/// Whichever node has a torn header, a client that backfills another replica uses a complete one.
#[test]
fn a_torn_header_is_not_copied_on() {
    for torn in [NodeId(0), NodeId(1)] {
        let nodes = Loopback::new(3, 1 << 16);
        let mut register = register(&nodes);
        let group = client(&nodes, 0, 1000);
        write::<SafeGuess>(&group, &mut register, 100, b"one");
        let place = register.place;
        let header = |node| SHAPE.header_place(&place).at(node, 3);
        let words = |node: NodeId| {
            let word = |i| nodes.word(node, header(node).plus(i));
            (0..SHAPE.header_words()).map(word).collect::<Vec<_>>()
        };
        let whole = words(NodeId(2));
        nodes.set_word(NodeId(2), place.at(NodeId(2), 3).plus(register::IDENTITY), 0);
        (0..whole.len()).for_each(|i| nodes.set_word(NodeId(2), header(NodeId(2)).plus(i), 0));
        nodes.set_word(torn, header(torn).plus(1), 77);
        let (value, _) = read::<SafeGuess>(&group, &mut register);
        assert_eq!(value, Some(b"one".to_vec()), "{torn}");
        assert_eq!(words(NodeId(2)), whole, "{torn}");
    }
}

#[test]
fn a_torn_in_place_copy_is_not_returned_and_repaired() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let group = client(&nodes, 0, 1000);
    write::<SafeGuess>(&group, &mut register, 100, b"a value of some length");
    let value = Address(register.place.at_home).plus(register::VALUE);
    let whole = nodes.word(NodeId(1), value);
    nodes.set_word(NodeId(1), value, !whole);
    let expected = Some(b"a value of some length".to_vec());
    assert_eq!(read::<SafeGuess>(&group, &mut register), (expected.clone(), 2));
    assert_eq!(nodes.word(NodeId(1), value), whole);
    assert_eq!(read::<SafeGuess>(&group, &mut register), (expected, 1));
}

/// The last object of a pool: after a short value there is less memory than a value may take.
#[test]
fn a_value_at_the_end_of_memory_is_read() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let group = client(&nodes, 0, 1000);
    let last = (1 << 16) / GRANULE_WORDS as u64 - 1;
    let in_place = register.place.at(NodeId(1), 3).plus(register::IN_PLACE);
    write::<SafeGuess>(&group, &mut register, last, b"at last");
    nodes.set_word(NodeId(1), in_place, 0);
    assert_eq!(read::<SafeGuess>(&group, &mut register).0, Some(b"at last".to_vec()));
    assert_eq!(read::<DmAbd>(&group, &mut register).0, Some(b"at last".to_vec()));
}

#[test]
fn the_baselines_take_what_the_paper_says() {
    let nodes = Loopback::new(3, 1 << 16);
    let mut register = register(&nodes);
    let group = client(&nodes, 0, 1000);
    assert_eq!(write::<DmAbd>(&group, &mut register, 100, b"abd"), (Written::Done, 2));
    assert_eq!(read::<DmAbd>(&group, &mut register), (Some(b"abd".to_vec()), 2));
    assert_eq!(write::<Raw>(&group, &mut register, 101, b"raw"), (Written::Done, 1));
    assert_eq!(read::<Raw>(&group, &mut register), (Some(b"raw".to_vec()), 1));
}

/// Numbers grow, and none is given out twice, even when they are used up and the next incarnation
/// takes over.
#[test]
fn numbers_go_on_under_another_incarnation() {
    let group = client(&Loopback::new(3, 64), 0, 0);
    let first = group.number().expect("numbers last");
    // Each abandoned write uses up the numbers of one writer.
    while !group.lacks_numbers() {
        drop(group.begin_write());
    }
    let last = group.number().expect("half of them are left");
    group.keep_next_incarnation(Incarnation(9));
    assert!(!group.lacks_numbers(), "there are others");
    let under_way = group.begin_write();
    let mut before = last;
    while before.incarnation() != Incarnation(9) {
        drop(group.begin_write());
        let number = group.number().expect("others follow");
        assert!(before < number && before.writer() < number.writer(), "{before:?}, {number:?}");
        before = number;
    }
    // A write that began under the former incarnation is abandoned under this one.
    drop(under_way);
    let number = group.number().expect("numbers last");
    assert!(before.writer() < number.writer(), "{before:?}, {number:?}");
    assert_eq!(
        (first.incarnation(), group.session().incarnation),
        (Incarnation(1), Incarnation(1))
    );
    while group.number().is_some() {
        drop(group.begin_write());
    }
    assert!(group.lacks_numbers());
}
