//! A run that fails is reduced until it can be read.

use std::cell::Cell;
use std::rc::Rc;

use fastrand::Rng;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_core::sim::shrink::story;
use swarm_core::sim::{FaultRates, Outcome, Policy, ReplayRules, Setup, Sim, SimFabric};

const CLIENTS: usize = 4;
const ROUNDS: usize = 6;
const SUM: Address = Address(8);

/// A protocol with a fault: an addition loses those of others between its READ and its WRITE.
async fn add(fabric: &SimFabric) -> bool {
    let read = Verb::Read { at: SUM, words: 1 };
    let Ok(reply) = fabric.post(NodeId(1), &[read]).await else { return false };
    let write = Verb::Write { at: SUM, head: &[reply[0] + 1], tail: &[] };
    fabric.post(NodeId(1), &[write]).await.is_ok()
}

/// Other work that clients do meanwhile.
async fn look_around(fabric: &SimFabric) {
    for node in [0, 2].map(NodeId) {
        let words = Verb::Read { at: Address(0), words: 16 };
        let _ = fabric.post(node, &[words]).await;
    }
}

fn play(seed: u64, conduct: &ReplayRules) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let chaos =
        FaultRates { client_crash: 0.002, disconnect: 0.002, clients_lost: 1, ..FaultRates::NONE };
    let policy = Policy::Weighted { redraw: 0.01 };
    let mut sim = Sim::new(&Setup { chaos, policy, ..Setup::new(seed, 3, CLIENTS) });
    sim.follow(conduct);
    let (sure, perhaps) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    for client in 0..CLIENTS {
        let (fabric, conduct, adds) = (sim.fabric(client), conduct.clone(), rng.u32(..));
        let (sure, perhaps) = (Rc::clone(&sure), Rc::clone(&perhaps));
        sim.spawn(client, async move {
            for round in (0..ROUNDS).filter(|round| !conduct.leaves_out(client * ROUNDS + round)) {
                if adds >> round & 3 > 0 {
                    look_around(&fabric).await;
                    continue;
                }
                perhaps.set(perhaps.get() + 1);
                if add(&fabric).await {
                    sure.set(sure.get() + 1);
                }
            }
        });
    }
    if sim.run(100_000) != Outcome::Done {
        return Err("it does not end".into());
    }
    sim.drain();
    let sum = sim.word(NodeId(1), SUM);
    assert!(sum <= perhaps.get(), "nobody adds twice");
    if sum >= sure.get() { Ok(()) } else { Err(format!("the sum is {sum} and not {}", sure.get())) }
}

#[test]
fn a_lost_update_among_much_else_is_reported_in_a_few_lines() {
    let failing = |seed: &u64| play(*seed, &ReplayRules::free()).is_err();
    for seed in (0..1000).filter(failing).take(20) {
        let story = story(CLIENTS * ROUNDS, |conduct| play(seed, conduct));
        println!("seed {seed}: {story}");
        let lines: Vec<&str> = story.lines().collect();
        assert_eq!(lines[0], "the sum is 1 and not 2", "two adds are enough");
        let accesses = |word| lines.iter().filter(|line| line.contains(word)).count();
        assert_eq!((accesses("READ"), accesses("WRITE")), (2, 2), "and nothing else happens");
        assert!(lines.len() <= 12);
    }
}

/// A panic is reported like any other failure.
#[test]
fn a_panic_is_shrunk_too() {
    let seed =
        (0..1000).find(|&seed| play(seed, &ReplayRules::free()).is_err()).expect("it is wrong");
    let story = story(CLIENTS * ROUNDS, |conduct| {
        play(seed, conduct).unwrap_or_else(|wrong| panic!("a client says: {wrong}"));
        Ok(())
    });
    assert!(story.starts_with("panic: a client says: the sum is 1 and not 2"), "{story}");
    assert!(story.lines().count() <= 12, "{story}");
}

/// A script that is followed from start to end is the run from which it was taken.
#[test]
fn a_run_that_does_well_has_no_story() {
    let seed =
        (0..1000).find(|&seed| play(seed, &ReplayRules::free()).is_ok()).expect("one is right");
    let story = story(CLIENTS * ROUNDS, |conduct| play(seed, conduct));
    assert_eq!(story, "the run does not fail when it is played again");
}
