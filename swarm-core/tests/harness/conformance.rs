//! The suite that every fabric must pass, run on those of this crate.

#[path = "../../examples/bare/src/fabric.rs"]
mod bare;

use std::cell::{Cell, RefCell};
use std::future::{Ready, ready};

use swarm_core::clock::Clock;
use swarm_core::conformance::{LONGEST, SHORTEST, race, run, words};
use swarm_core::fabric::counting::Counting;
use swarm_core::fabric::faults::{Faulty, HandSwitches};
use swarm_core::fabric::latency::Delayed;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::fabric::{Fabric, NoEpochs, NodeDown, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_core::sim::{Setup, Sim};

/// Of a fabric without one, a small bound asks for less.
const BOUNDS: [usize; 3] = [SHORTEST, 100, LONGEST];

#[test]
fn the_loopback_conforms() {
    for reply in BOUNDS {
        let nodes = Loopback::new(3, 100 + words(reply));
        run(|_| nodes.clone(), Address(100), reply, || ());
    }
    let nodes = Loopback::new(3, 1000);
    race(|_| nodes.clone(), Address(100));
}

/// The fabric of the example: with the bound that it has there, and the smallest.
#[test]
fn the_bare_fabric_conforms() {
    static OF_THE_EXAMPLE: bare::Memory<3, { 7 + words(32) }, 32> = bare::Memory::new();
    static SMALLEST: bare::Memory<1, { words(SHORTEST) }, SHORTEST> = bare::Memory::new();
    run(|_| &OF_THE_EXAMPLE, Address(7), 32, || ());
    race(|_| &OF_THE_EXAMPLE, Address(7));
    run(|_| &SMALLEST, Address(0), SHORTEST, || ());
}

/// The loopback, but for what `Bent` does to replies that are longer than a bound.
struct Bent(Loopback, fn(&mut Vec<u64>));

impl Fabric for Bent {
    type EpochDomain = NoEpochs;
    type Reply<'f> = Vec<u64>;
    type Completion<'f> = Ready<Result<Vec<u64>, NodeDown>>;

    fn nodes(&self) -> usize {
        self.0.nodes()
    }

    fn post<'f>(&'f self, node: NodeId, chain: &[Verb<'_>]) -> Self::Completion<'f> {
        let reply = self.0.post(node, chain).into_inner();
        ready(reply.map(|mut reply| {
            if reply.len() > 100 {
                (self.1)(&mut reply);
            }
            reply
        }))
    }
}

/// A reply that is cut off at the bound is no reply.
#[test]
#[should_panic = "a reply past the bound is not whole"]
fn a_fabric_that_cuts_replies_off_does_not_conform() {
    let nodes = Loopback::new(3, words(100));
    run(|_| Bent(nodes.clone(), |reply| reply.truncate(100)), Address(0), 100, || ());
}

/// Nor may a fabric be asked for more than it says.
#[test]
#[should_panic = "came back different"]
fn a_fabric_with_a_smaller_bound_than_it_says_does_not_conform() {
    let nodes = Loopback::new(3, words(101));
    let bent = |reply: &mut Vec<u64>| *reply.last_mut().expect("more than 100") = 0;
    run(|_| Bent(nodes.clone(), bent), Address(0), 101, || ());
}

/// A clock that advances with each look.
struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

#[test]
fn the_decorators_conform() {
    for reply in BOUNDS {
        let nodes = Loopback::new(3, words(reply));
        let (clock, switches) = (Ticking(Cell::new(0)), HandSwitches::new());
        let faulty = |nodes: &Loopback| Faulty::new(nodes.clone(), &switches);
        let make = |_| Counting::new(Delayed::new(faulty(&nodes), &clock, 3));
        run(make, Address(0), reply, || ());
    }
}

#[test]
fn the_simulated_fabric_conforms() {
    for (seed, tear, reply) in [(1, 1.0, LONGEST), (2, 0.3, LONGEST), (3, 0.5, SHORTEST)] {
        let sim = Sim::new(&Setup { tear, ..Setup::new(seed, 3, 2) });
        let clients = [sim.fabric(0), sim.fabric(1)];
        let sim = RefCell::new(sim);
        run(
            |client| clients[client].clone(),
            Address(7),
            reply,
            || assert_ne!(sim.borrow_mut().drive(100), 0),
        );
    }
}
