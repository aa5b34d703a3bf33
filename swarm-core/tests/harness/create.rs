//! What becomes of a register whose creator stops at any verb of any chain.

use std::cell::Cell;
use std::future::{Future, Ready, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use swarm_core::clock::Clock;
use swarm_core::error::Error;
use swarm_core::fabric::counting::Counting;
use swarm_core::fabric::faults::{Faulty, HandSwitches, SwitchState};
use swarm_core::fabric::loopback::Loopback;
use swarm_core::fabric::{Fabric, NoEpochs, NodeDown, Verb};
use swarm_core::layout::{Geometry, Identity, Location, MIN_CAPACITY, Placement};
use swarm_core::node::{Address, NodeId};
use swarm_core::quorum::{Group, Session};
use swarm_core::register::create::{NewRegister, create};
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::register::{Check, Found, Protocol, Register};
use swarm_core::words::{Incarnation, Pointer, WordFormat, WriteNumber};

const FORMAT: WordFormat = WordFormat { pointer_bits: 22, tick_shift: 6 };
const KEY: &[u8] = b"a key";
const CAPACITY: usize = 2;
/// One that fits in place, and one that does not.
const VALUES: [&[u8]; 2] = [b"short", b"a value too long to lie in place"];
const WORDS: usize = 8192;
const REGISTER: Pointer = Pointer(8);
/// Granules from a chunk's beginning to the first buffer.
const BUFFER: u64 = 60;

/// The most verbs of a chain that creates a register.
const VERBS: usize = 5;

struct Zero;

impl Clock for Zero {
    fn now(&self) -> u64 {
        0
    }
}

/// Nodes that run so many verbs more, and no others.
struct Cut<'a> {
    nodes: &'a Loopback,
    left: [Cell<usize>; 3],
}

impl Fabric for Cut<'_> {
    type EpochDomain = NoEpochs;
    type Reply<'f>
        = Vec<u64>
    where
        Self: 'f;
    type Completion<'f>
        = Ready<Result<Vec<u64>, NodeDown>>
    where
        Self: 'f;

    fn nodes(&self) -> usize {
        self.nodes.nodes()
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        let left = &self.left[node.index()];
        let runs = chain.len().min(left.get());
        left.set(left.get() - runs);
        let reply = now(self.nodes.post(node, &chain[..runs]));
        ready(if runs == chain.len() { reply } else { Err(NodeDown) })
    }
}

/// Returns an operation's result: as its chains are done at once, so is it.
fn now<T>(operation: impl Future<Output = T>) -> T {
    match pin!(operation).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits for a chain"),
    }
}

fn group<F: Fabric>(fabric: F, client: usize, all_but_one: bool) -> Group<F, Zero> {
    let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
    let group = Group::new(fabric, Zero, FORMAT, session);
    let placement = placement(group.nodes(), all_but_one);
    group.with_placement(placement)
}

/// Every node has each buffer, or all but one.
fn placement(nodes: usize, all_but_one: bool) -> Placement {
    if !all_but_one {
        return Placement::everywhere(nodes);
    }
    Geometry::new(nodes, MIN_CAPACITY, 2, 1).expect("a geometry").placement()
}

/// The register with this home. The first buffer of an all-but-one one leaves out the home, if the value is
/// short.
fn new_register(home: u8, all_but_one: bool, value: &[u8]) -> NewRegister<'_> {
    let placement = placement(3, all_but_one);
    let buffer = if value.len() <= CAPACITY * 8 {
        placement.without(NodeId(home), 0, BUFFER)
    } else {
        placement.with_all(0, BUFFER)
    };
    NewRegister {
        place: Location::everywhere(REGISTER, NodeId(home)),
        identity: Identity { created_at: 0, number: WriteNumber(7) },
        capacity: CAPACITY,
        key: KEY,
        buffer: buffer.unwrap_or(Pointer(BUFFER)),
        value,
    }
}

/// Returns the register's value as client 1 reads it, with a node down.
fn read(
    nodes: &Loopback,
    new: &NewRegister<'_>,
    all_but_one: bool,
    down: Option<NodeId>,
) -> Result<Vec<u8>, Error> {
    let switches = HandSwitches::new();
    down.into_iter().for_each(|node| switches.set(node, SwitchState::Down));
    let group = group(Faulty::new(nodes.clone(), &switches), 1, all_but_one);
    let mut register = Register::new(new.place, new.identity, new.shape());
    match now(SafeGuess::read(&group, &mut register, Check::Key(KEY)))? {
        Found::Value(value) => Ok(value.to_vec()),
        Found::Deleted | Found::OtherKey => panic!("it is neither deleted nor another key's"),
    }
}

/// However many verbs of a creator took effect at each node, nobody reads anything but the value,
/// or that the register is not there; and once it was created, any majority has it.
#[test]
fn a_register_is_whole_wherever_its_creator_stops() {
    let (mut created, mut unfinished) = (0, 0);
    for case in 0..3 * 2 * 2 * (VERBS + 1).pow(3) {
        let (home, rest) = ((case % 3) as u8, case / 3);
        let (all_but_one, rest) = (rest % 2 == 0, rest / 2);
        let (value, rest) = (VALUES[rest % 2], rest / 2);
        let left = [0, 1, 2].map(|node| rest / (VERBS + 1).pow(node) % (VERBS + 1));

        let new = new_register(home, all_but_one, value);
        // Each reader finds the nodes as the creator left them.
        for down in [None, Some(0), Some(1), Some(2)] {
            let nodes = Loopback::new(3, WORDS);
            let creator = group(Cut { nodes: &nodes, left: left.map(Cell::new) }, 0, all_but_one);
            let is_created = now(create(&creator, &new)).is_ok();
            let which = format!("home {home}, lean {all_but_one}, verbs {left:?}, down {down:?}");
            match read(&nodes, &new, all_but_one, down.map(NodeId)) {
                Ok(seen) => assert_eq!(seen, value, "{which}"),
                Err(Error::Gone | Error::NoMajority { .. }) if !is_created => unfinished += 1,
                Err(error) => panic!("{which}: {error}"),
            }
            created += usize::from(is_created);
        }
    }
    assert!(created > 100 && unfinished > 100, "{created} created, {unfinished} not found");
}

#[test]
fn creating_takes_one_roundtrip_and_so_does_the_first_read_in_place() {
    for (value, roundtrips) in VALUES.into_iter().zip([1, 2]) {
        let group = group(Counting::new(Loopback::new(3, WORDS)), 0, false);
        let new = new_register(1, false, value);
        let (created, cost) = now(group.fabric().track(create(&group, &new)));
        assert_eq!(cost.roundtrips, 1);
        let mut register = created.expect("the nodes are up");
        let reading = SafeGuess::read(&group, &mut register, Check::Identity);
        let (found, cost) = now(group.fabric().track(reading));
        assert!(matches!(found, Ok(Found::Value(seen)) if *seen == *value));
        assert_eq!(cost.roundtrips, roundtrips);
    }
}

#[test]
fn memory_that_is_not_zeroed_is_damage() {
    let nodes = Loopback::new(3, WORDS);
    nodes.set_word(NodeId(2), Address(REGISTER.0 * 8), 1 << 40);
    let group = group(nodes, 0, false);
    let created = now(create(&group, &new_register(0, false, VALUES[0])));
    assert_eq!(created.map(|_| ()), Err(Error::Damaged));
}
