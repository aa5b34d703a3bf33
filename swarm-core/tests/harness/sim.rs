//! The simulated fabric does all that a fabric may do, no more, and the same for the same seed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Instant;

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, NodeDown, Verb};
use swarm_core::node::{Address, NodeId};
use swarm_core::sim::{FaultRates, Outcome, Policy, Setup, Sim, Trace};

const NODE: NodeId = NodeId(0);

/// Returns what two READs of a pair of words saw while another client wrote the pair.
fn torn_pairs(setup: &Setup) -> (Vec<(u64, u64)>, Trace) {
    let mut sim = Sim::new(setup);
    sim.start_trace();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let (writer, reader) = (sim.fabric(0), sim.fabric(1));
    sim.spawn(0, async move {
        for value in 1..3 {
            let write = Verb::Write { at: Address(0), head: &[value, value], tail: &[] };
            writer.post(NODE, &[write]).await.expect("up");
        }
    });
    let sink = Rc::clone(&seen);
    sim.spawn(1, async move {
        for _ in 0..2 {
            let read = Verb::Read { at: Address(0), words: 2 };
            let reply = reader.post(NODE, &[read]).await.expect("up");
            sink.borrow_mut().push((reply[0], reply[1]));
        }
    });
    assert_eq!(sim.run(10_000), Outcome::Done);
    (seen.take(), sim.take_trace())
}

#[test]
fn multi_word_accesses_tear_in_every_way() {
    let mut seen = BTreeSet::new();
    for seed in 0..2000 {
        seen.extend(torn_pairs(&Setup::new(seed, 1, 2)).0);
    }
    // Any two words that the nodes held at overlapping times, in either order.
    let all = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (2, 1), (2, 2)];
    assert_eq!(seen, all.into());
}

#[test]
fn verbs_that_do_not_tear_are_one_step() {
    for seed in 0..200 {
        let setup = Setup { tear: 0.0, ..Setup::new(seed, 1, 2) };
        assert!(torn_pairs(&setup).0.into_iter().all(|(one, two)| one == two));
    }
}

#[test]
fn a_seed_decides_everything() {
    let priorities = Policy::Priorities { changes: 3, horizon: 60 };
    for policy in [Policy::Weighted { redraw: 0.01 }, priorities] {
        let setup = |seed| Setup { policy, ..Setup::new(seed, 1, 2) };
        assert_eq!(torn_pairs(&setup(7)), torn_pairs(&setup(7)));
        let schedules: Vec<_> = (0..50).map(|seed| torn_pairs(&setup(seed)).1).collect();
        assert!(schedules.iter().any(|trace| *trace != schedules[0]));
    }
}

/// As on a synchronous fabric: one poll does it all, and nothing happens in between.
#[test]
fn prompt_chains_complete_when_they_are_posted() {
    let mut sim = Sim::new(&Setup { prompt: 1.0, ..Setup::new(1, 3, 1) });
    let fabric = sim.fabric(0);
    sim.spawn(0, async move {
        for node in 0..3 {
            let write = Verb::Write { at: Address(0), head: &[1, 2], tail: &[] };
            let read = Verb::Read { at: Address(0), words: 2 };
            let reply = fabric.post(NodeId(node), &[write, read]).await.expect("up");
            assert_eq!(*reply, [1, 2]);
        }
    });
    sim.poll_once(0);
    assert_eq!(sim.tasks(0), 0);
}

/// Chains of one client to one node are in order; chains to different nodes, and completions, are
/// not.
#[test]
fn order_holds_within_a_queue_alone() {
    let mut other_node_first = false;
    let mut later_completion_first = false;
    for seed in 0..300 {
        let mut sim = Sim::new(&Setup::new(seed, 3, 1));
        let fabric = sim.fabric(0);
        let order = Rc::new(RefCell::new(Vec::new()));
        let sink = Rc::clone(&order);
        sim.spawn(0, async move {
            let swap = |expect| Verb::Cas { at: Address(0), expect, new: expect + 1 };
            drop(fabric.post(NODE, &[swap(0)]));
            let mut chains = [fabric.post(NODE, &[swap(1)]), fabric.post(NODE, &[swap(2)])];
            let elsewhere = fabric.post(NodeId(1), &[swap(0)]);
            let mut left = vec![0, 1];
            std::future::poll_fn(|cx| {
                left.retain(|&index| match std::pin::Pin::new(&mut chains[index]).poll(cx) {
                    std::task::Poll::Ready(reply) => {
                        assert_eq!(reply.expect("up"), [index as u64 + 1], "posted order");
                        sink.borrow_mut().push(index);
                        false
                    }
                    std::task::Poll::Pending => true,
                });
                if left.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            elsewhere.await.expect("up");
        });
        while sim.tasks(0) > 0 {
            assert_ne!(sim.run(1), Outcome::Stuck);
            let word = |node| sim.word(NodeId(node), Address(0));
            other_node_first |= word(1) == 1 && word(0) == 0;
        }
        later_completion_first |= *order.borrow() == [1, 0];
    }
    assert!(other_node_first && later_completion_first);
}

#[test]
fn what_is_lost_and_what_lands_late() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..400 {
        let mut sim = Sim::new(&Setup::new(seed, 1, 1));
        let fabric = sim.fabric(0);
        let result = Rc::new(Cell::new(None));
        let sink = Rc::clone(&result);
        sim.spawn(0, async move {
            let write = Verb::Write { at: Address(0), head: &[1, 1], tail: &[] };
            sink.set(Some(fabric.post(NODE, &[write]).await.map(|_| ())));
        });
        sim.poll_once(0);
        sim.disconnect(0, NODE, seed % 2 == 0);
        assert_eq!(sim.run(1000), Outcome::Done);
        sim.drain();
        assert_eq!(result.get(), Some(Err(NodeDown)));
        outcomes.insert((seed % 2, sim.word(NODE, Address(0)), sim.word(NODE, Address(1))));
    }
    assert_eq!(outcomes, [(0, 1, 1), (1, 0, 0)].into());
}

/// A client dies with one WRITE of two words posted to each of three nodes.
#[test]
fn a_dead_clients_chains_stop_anywhere() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..2000 {
        let mut sim = Sim::new(&Setup::new(seed, 3, 1));
        let fabric = sim.fabric(0);
        sim.spawn(0, async move {
            let write = Verb::Write { at: Address(0), head: &[1, 1], tail: &[] };
            let chains: Vec<_> = (0..3).map(|node| fabric.post(NodeId(node), &[write])).collect();
            for chain in chains {
                chain.await.expect("up");
            }
        });
        sim.poll_once(0);
        sim.crash_client(0);
        assert_eq!(sim.run(1000), Outcome::Done);
        sim.drain();
        outcomes.insert(
            [0, 1, 2].map(|node| {
                sim.word(NodeId(node), Address(0)) + sim.word(NodeId(node), Address(1))
            }),
        );
    }
    assert!(outcomes.len() >= 20, "{outcomes:?}");
}

#[test]
fn a_node_that_crashed_is_waited_for_in_vain_or_down() {
    for silent in [true, false] {
        let mut sim = Sim::new(&Setup::new(1, 3, 1));
        let fabric = sim.fabric(0);
        sim.spawn(0, async move {
            let read = Verb::Read { at: Address(0), words: 4 };
            assert_eq!(fabric.post(NODE, &[read]).await, Err(NodeDown));
            assert_eq!(fabric.post(NODE, &[read]).await, Err(NodeDown));
        });
        sim.poll_once(0);
        sim.take_words(0, NODE, &[3, 1]);
        sim.crash_node(NODE, silent);
        let expected = if silent { Outcome::Stuck } else { Outcome::Done };
        assert_eq!(sim.run(10_000), expected);
    }
}

#[test]
fn a_frozen_nodes_chains_take_effect_when_it_goes_on() {
    let mut sim = Sim::new(&Setup::new(1, 3, 1));
    let fabric = sim.fabric(0);
    sim.freeze_node(NODE);
    sim.spawn(0, async move {
        let write = Verb::Write { at: Address(5), head: &[], tail: b"frozen" };
        fabric.post(NODE, &[write]).await.expect("up");
    });
    assert_eq!(sim.run(10_000), Outcome::Stuck);
    assert_eq!(sim.word(NODE, Address(5)), 0);
    sim.thaw_node(NODE);
    assert_eq!(sim.run(10_000), Outcome::Done);
    assert_eq!(sim.word(NODE, Address(5)).to_le_bytes(), *b"frozen\0\0");
}

#[test]
fn clocks_go_on_and_differ() {
    let mut sim = Sim::new(&Setup::new(1, 1, 2));
    sim.set_clock(1, -5_000, 100_000);
    let (one, two) = (sim.clock(0), sim.clock(1));
    assert!(one.now() - two.now() > 4_900);
    let before = (one.now(), two.now());
    assert!(before.0 < one.now(), "a clock that is looked at goes on");
    sim.spawn(0, async move {
        while one.now() < before.0 + 1_000_000 {
            std::future::poll_fn(|_| std::task::Poll::<()>::Pending).await;
        }
    });
    sim.run(1000);
    let gained = (two.now() - before.1) as f64 / (sim.clock(0).now() - before.0) as f64;
    assert!((1.08..1.12).contains(&gained), "{gained}");
}

/// One queue pair is stuck while others move for as long as they can; when weights are redrawn it
/// moves.
#[test]
fn a_starved_queue_pair_waits_for_all_others() {
    let mut starved = BTreeSet::new();
    for seed in 0..100 {
        let policy = Policy::Weighted { redraw: 0.0001 };
        let mut sim = Sim::new(&Setup { starve: 0.2, policy, ..Setup::new(seed, 3, 2) });
        for (client, node) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let fabric = sim.fabric(client);
            sim.spawn(client, async move {
                for _ in 0..50 {
                    let swap = Verb::Cas { at: Address(client as u64), expect: 0, new: 1 };
                    let read = Verb::Read { at: Address(0), words: 4 };
                    fabric.post(NodeId(node), &[swap, read]).await.expect("up");
                }
            });
        }
        while sim.tasks(0) + sim.tasks(1) > 1 {
            assert_ne!(sim.run(1), Outcome::Stuck);
        }
        for (client, node) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            if sim.word(NodeId(node), Address(client)) == 0 {
                starved.insert((client, node));
            }
        }
        assert_eq!(sim.run(1_000_000), Outcome::Done, "in the end it moves");
    }
    assert_eq!(starved.len(), 4, "each was starved in some schedule: {starved:?}");
}

/// The seeds of a chaotic run show each kind of fault.
#[test]
fn chaos_does_everything() {
    let mut text = String::new();
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let chaos = FaultRates::random(&mut rng, 3, 3, 300.0);
        let mut sim = Sim::new(&Setup { chaos, ..Setup::new(seed, 3, 3) });
        sim.start_trace();
        for client in 0..3 {
            let fabric = sim.fabric(client);
            sim.spawn(client, async move {
                for round in 0..20 {
                    let read = [Verb::Read { at: Address(0), words: 4 }; 2];
                    let chain = fabric.post(NodeId(round % 3), &read);
                    if round % 2 == 0 {
                        drop(chain);
                    } else {
                        let _ = chain.await;
                    }
                }
                fabric.note("over");
            });
        }
        sim.run(2000);
        text += &sim.take_trace().to_string();
    }
    for fault in ["crashes", "freezes", "goes on", "breaks", "dies", "is down", "over"] {
        assert!(text.contains(fault), "no schedule has a node or client that {fault}");
    }
}

/// Reports the simulator's speed, without a bound, as the machine may be shared.
#[test]
fn speed() {
    let mut sim = Sim::new(&Setup::new(1, 3, 3));
    for client in 0..3 {
        let fabric = sim.fabric(client);
        sim.spawn(client, async move {
            for round in 0..2000u32 {
                let node = NodeId((round % 3) as u8);
                let write = Verb::Write { at: Address(64), head: &[1; 16], tail: &[] };
                let swap = Verb::Cas { at: Address(0), expect: 0, new: 1 };
                let read = Verb::Read { at: Address(0), words: 16 };
                fabric.post(node, &[write, swap, read]).await.expect("up");
            }
        });
    }
    let begin = Instant::now();
    assert_eq!(sim.run(u64::MAX), Outcome::Done);
    let rate = sim.steps() as f64 / begin.elapsed().as_secs_f64();
    println!("{} steps, {:.1} million steps a second", sim.steps(), rate / 1e6);
}
