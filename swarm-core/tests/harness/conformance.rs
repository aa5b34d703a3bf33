//! The suite that every fabric runs, on those of this crate.

use std::cell::{Cell, RefCell};

use swarm_core::clock::Clock;
use swarm_core::conformance::{WORDS, race, run};
use swarm_core::fabric::counting::Counting;
use swarm_core::fabric::faults::{Faulty, HandSwitches};
use swarm_core::fabric::latency::Delayed;
use swarm_core::fabric::loopback::Loopback;
use swarm_core::node::Address;
use swarm_core::sim::{Setup, Sim};

#[test]
fn the_loopback_conforms() {
    let nodes = Loopback::new(3, 100 + WORDS);
    run(|_| nodes.clone(), Address(100), || ());
    race(|_| nodes.clone(), Address(100));
}

/// Time that passes when it is looked at.
struct Ticking(Cell<u64>);

impl Clock for Ticking {
    fn now(&self) -> u64 {
        self.0.set(self.0.get() + 1);
        self.0.get()
    }
}

#[test]
fn the_decorators_conform() {
    let nodes = Loopback::new(3, WORDS);
    let (clock, switches) = (Ticking(Cell::new(0)), HandSwitches::new());
    let make = |_| Counting::new(Delayed::new(Faulty::new(nodes.clone(), &switches), &clock, 3));
    run(make, Address(0), || ());
}

#[test]
fn the_simulated_fabric_conforms() {
    for (seed, tear) in [(1, 1.0), (2, 0.3)] {
        let sim = Sim::new(&Setup { tear, ..Setup::new(seed, 3, 2) });
        let clients = [sim.fabric(0), sim.fabric(1)];
        let sim = RefCell::new(sim);
        run(
            |client| clients[client].clone(),
            Address(7),
            || assert_ne!(sim.borrow_mut().drive(100), 0),
        );
    }
}
