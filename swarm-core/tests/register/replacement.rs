//! A node that is lost is replaced while clients go on: the register is filled there, the new node
//! votes, and then another node is lost. Random schedules, as in the file above.

use std::cell::Cell;
use std::rc::Rc;

use fastrand::Rng;
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::history::Recorder;
use swarm_core::layout::SLOTS;
use swarm_core::node::NodeId;
use swarm_core::quorum::Group;
use swarm_core::register::audit::audit;
use swarm_core::register::fill::fill;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_core::sim::{Policy, ReplayRules, Setup, Sim, SimClock, SimFabric};

use super::common::{Client, FORMAT, GaveUp, Held, Polls, create_replica, place};
use super::replaced::{
    Configuration, DEADLINE, FILLERS, Progress, Replaced, Replacement, Shown, Stage, explore,
};
use super::{Plan, ROUNDS, STEPS};

/// Returns a client's view of the group, and its clock.
fn connect(at: &Replacement, id: usize, near: bool) -> (Replaced, SimClock) {
    let inner = if near { at.sim.near(id) } else { at.sim.fabric(id) };
    let configuration = at.configuration.clone();
    (Replaced { inner, configuration, fills: false }, at.sim.clock(id))
}

/// Gives the clients their operations.
fn spawn(at: &mut Replacement, plan: &Plan, recorder: &Recorder, conduct: &ReplayRules) {
    // The last one only created the register.
    for id in 0..at.clients() - 1 {
        let skew = at.rng.i64(-plan.skew..=plan.skew);
        at.sim.set_clock(id, skew, at.rng.i64(-plan.drift..=plan.drift));
        let near = at.rng.f64() < plan.near;
        let client = client(plan, id, connect(at, id, near), recorder);
        let shared = (at.sim.fabric(id), at.progress[id].clone(), at.configuration.clone());
        let with = (Rng::with_seed(at.rng.u64(..)), *plan, conduct.clone());
        at.sim.spawn(id, operate(client, shared, with));
    }
}

fn client(
    plan: &Plan,
    id: usize,
    connection: (Replaced, SimClock),
    recorder: &Recorder,
) -> Client<Replaced> {
    let slot = if plan.shared { id * plan.slots } else { id };
    let timeouts = (plan.late, DEADLINE);
    Client::new(connection, (id, slot), super::place(plan.home), timeouts, recorder)
        .of(plan.slots, plan.held)
}

/// Fills the register at the new node.
async fn fill_it(mut client: Client<Replaced>, joining: &Replaced, clock: SimClock) {
    let lost = joining.configuration.lost;
    match fill(&client.group, &mut client.register, (joining, lost)).await {
        Ok(()) => has_it(&client, joining, clock).await,
        Err(error) => panic!("filling: {error}"),
    }
}

/// Checks what the new node has of the register.
async fn has_it(client: &Client<Replaced>, joining: &Replaced, clock: SimClock) {
    let group = Group::new(joining.clone(), clock, FORMAT, client.group.session());
    let group = group.with_placement(*client.group.placement());
    let audit = audit(&group, &client.register).await;
    let bad = audit.missing.union(audit.bad_headers).union(audit.bad_values);
    assert!(!bad.contains(joining.configuration.lost), "what was filled: {audit:?}");
}

/// Runs one client's operations.
async fn operate(
    mut client: Client<Replaced>,
    (turns, progress, configuration): (SimFabric, Progress, Rc<Configuration>),
    (mut rng, plan, conduct): (Rng, Plan, ReplayRules),
) {
    let (id, fresh) = (client.id as u64, client.register);
    let mut stage = Stage::Old;
    for round in 0..rng.u64(3..=ROUNDS as u64 - 1) {
        let polls = Polls((rng.f64() < plan.drops).then(|| rng.u32(1..12)));
        let (deletes, reads) = (rng.f64() < plan.deletes / 4.0, rng.bool());
        if conduct.leaves_out(client.id * ROUNDS + round as usize) {
            continue;
        }
        for _ in 0..rng.u32(1..200) {
            turns.turn().await;
        }
        progress.begin();
        // A configuration begins a generation: what was seen of the register is forgotten.
        if stage != configuration.stage.get() {
            stage = configuration.stage.get();
            client.register = fresh;
        }
        let result = if deletes {
            client.delete::<SafeGuess>(polls).await
        } else if reads {
            client.read::<SafeGuess>(polls).await
        } else {
            client.write::<SafeGuess>(id * 100 + round + 1, polls).await
        };
        progress.end();
        match result {
            Ok(_) | Err(GaveUp::Dropped) => {}
            Err(GaveUp::Failed(Error::Moved)) if plan.held == Held::AllButOne => {}
            // It began before the new node voted, and got the answer that the lost one is down;
            // then another node was lost.
            Err(GaveUp::Failed(Error::NoMajority { .. })) if stage != configuration.stage.get() => {
            }
            Err(GaveUp::Failed(error)) => panic!("client {id}: {error}"),
        }
    }
}

/// Returns the plan of a schedule, with a node and the fillers more.
fn plan(seed: u64) -> Plan {
    let mut plan = Plan::random(seed);
    let mut rng = Rng::with_seed(seed ^ 0x4ea1);
    let nodes = if rng.u8(..4) == 0 { 5 } else { 3 };
    plan.home %= nodes;
    plan.setup.nodes = usize::from(nodes) + 1;
    plan.setup.clients += FILLERS;
    // A filler that looks again and again would keep one of lower priority from ever going on.
    if let Policy::Priorities { .. } = plan.setup.policy {
        plan.setup.policy = Policy::Weighted { redraw: 0.02 };
    }
    // Nodes are lost where the test says.
    let chaos = &mut plan.setup.chaos;
    (chaos.node_crash, chaos.node_freeze, chaos.disconnect) = (0.0, 0.0, 0.0);
    plan
}

fn play(plan: &Plan, conduct: &ReplayRules) -> Result<Shown, String> {
    let nodes = plan.setup.nodes - 1;
    let mut rng = Rng::with_seed(plan.setup.seed ^ 0x9e1f);
    let mut sim = Sim::new(&plan.setup);
    sim.follow(conduct);
    let mut created = *plan;
    (created.setup.nodes, created.setup.clients) = (nodes, plan.setup.clients - FILLERS);
    super::create_register(&mut sim, &created, &mut rng);
    let lost = NodeId(rng.u8(..nodes as u8));
    let mut at = Replacement::new(sim, rng, lost, STEPS);
    let recorder = Recorder::new();
    spawn(&mut at, plan, &recorder, conduct);
    let fills = |at: &mut Replacement, id| {
        let near = at.rng.f64() < plan.near;
        let (connection, clock) = (connect(at, id, near), at.sim.clock(id));
        let joining = Replaced { fills: true, ..connection.0.clone() };
        let client = client(plan, id, connection, &recorder);
        async move { fill_it(client, &joining, clock).await }
    };
    let mut result = at.play(fills);
    if result.is_ok() {
        result = at.at_last(|at, id| {
            let mut client = client(plan, id, connect(at, id, false), &recorder);
            async move {
                client.read_or_freeze::<SafeGuess>().await;
            }
        });
    }
    let history = recorder.operations();
    super::check_history(result, &history).map(|()| at.shown(history.len()))
}

#[test]
fn a_register_outlives_its_nodes_one_after_the_other() {
    let operations = |seed| plan(seed).setup.clients * ROUNDS;
    explore(operations, |seed, conduct| play(&plan(seed), conduct));
}

/// A value is complete at the node that is lost and at one other; there a later write that leaves
/// the new node out is incomplete. A majority of the new node and the third one must not show
/// neither.
#[test]
fn what_an_incomplete_write_is_above_is_not_lost() {
    const HOME: u8 = 1;
    let (lost, third, new) = (NodeId(0), NodeId(2), NodeId(3));
    let (home, nodes) = (NodeId(HOME), 3);
    let (creator, writer, filler, reader) = (0, 1, 2, 3);
    let mut sim = Sim::new(&Setup::new(1, nodes + 1, 4));
    let configuration = Rc::new(Configuration { lost, new, stage: Cell::new(Stage::Old) });
    let recorder = Recorder::new();
    let connect = |sim: &Sim, id, fills| Replaced {
        inner: sim.fabric(id),
        configuration: configuration.clone(),
        fills,
    };
    let client = |sim: &Sim, id| {
        let connection = (connect(sim, id, false), sim.clock(id));
        Client::new(connection, (id, id), place(HOME), (1 << 40, 1 << 41), &recorder)
            .of(SLOTS, Held::AllButOne)
    };
    // The register is created at a bare majority.
    for node in [lost, home] {
        let fabric = sim.fabric(creator);
        drop(create_replica((&place(HOME), Held::AllButOne), node, nodes, |chain| {
            fabric.post(node, chain)
        }));
        sim.take_all(creator, node);
    }
    // A writer dies with its write at one of the two nodes that hold the buffer.
    let mut dying = client(&sim, writer);
    sim.spawn(writer, async move {
        let _ = dying.write::<SafeGuess>(7, Polls::ALL).await;
    });
    sim.poll_once(writer);
    assert!(sim.on_their_way(writer, home) > 0 && sim.on_their_way(writer, lost) == 0);
    sim.take_all(writer, home);
    sim.lose_chains(writer, third);
    sim.crash_client(writer);
    // The first node is lost, and replaced; then the one with both values is lost.
    configuration.stage.set(Stage::Gone);
    let mut fills = client(&sim, filler);
    let joining = connect(&sim, filler, true);
    sim.spawn(filler, async move {
        let filled = fill(&fills.group, &mut fills.register, (&joining, lost)).await;
        filled.expect("the others are up");
    });
    assert!(sim.finish(filler, &[home, third, new]), "the fill ends");
    configuration.stage.set(Stage::New);
    sim.crash_node(home, false);
    let mut reads = client(&sim, reader);
    sim.spawn(reader, async move {
        reads.read_or_freeze::<SafeGuess>().await;
    });
    assert!(sim.finish(reader, &[home, third, new]), "the read ends");
    if let Err(wrong) = super::check_history(Ok(()), &recorder.operations()) {
        panic!("{wrong}");
    }
}
