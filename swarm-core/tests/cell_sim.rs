//! A cell under random schedules: torn accesses, crashes of nodes and clients, broken connections,
//! clocks that disagree, stand still and step back.
//!
//! Clients append tokens to a list and read it. The lists that they get must form one chain. Each
//! change is applied once, acknowledged changes stay, and lost ones never appear. What was created
//! with a token of any list is in the memory of a majority the moment a client gets that list.
//!
//! In schedules of their own, a cell is a number that clients add to, compare and swap
//! ([`counters`]).
//!
//! `SWARM_SCHEDULES` is the number of schedules to run; `SWARM_SEED` runs one alone. A schedule
//! that fails is shrunk and printed.

#[path = "cell/common.rs"]
mod common;
#[path = "cell/counters.rs"]
mod counters;
#[path = "shared/replaced.rs"]
mod replaced;
#[path = "cell/replacement.rs"]
mod replacement;

use std::cell::RefCell;
use std::rc::Rc;

use fastrand::Rng;

use common::{
    FORMAT, LastToken, RECORDS, append, cell, confirmed, is_created, list, number, plant,
    plant_object, record, with_proposal, word,
};
use swarm_core::cell::{CellRef, Proposal, Proposed, View, propose};
use swarm_core::error::Error;
use swarm_core::fabric::Fabric;
use swarm_core::node::NodeId;
use swarm_core::quorum::{Group, Session, Timeouts};
use swarm_core::sim::seeds::{again, seeds};
use swarm_core::sim::shrink::story;
use swarm_core::sim::{
    FaultRates, Outcome, Policy, ReplayRules, Setup, Sim, SimClock, SimFabric, clock_fits,
    dropped_after,
};
use swarm_core::words::{Incarnation, Pointer};

/// Tokens of one change lie between a multiple of this and the next.
const PER_OP: u64 = 1000;
/// A client numbers its operations below this.
const ROUNDS: usize = 6;
/// Maximum drift of clocks in microseconds a second, such that deadlines still arrive within the
/// time that the simulator lets pass.
const DRIFT: i64 = 500_000;
/// Number of steps after which a run counts as one that never ends.
const LIMIT: u64 = 400_000;

type TestGroup = Group<SimFabric, SimClock>;

/// An operation of a client, and its time.
#[derive(Clone, Debug)]
struct Op {
    change: bool,
    begun: u64,
    ended: Option<u64>,
    /// The list that it returned: read, or written.
    list: Vec<u64>,
}

#[derive(Debug, Default)]
struct History {
    ops: Vec<Op>,
    time: u64,
    next: u64,
    lost: Vec<u64>,
    errors: Vec<Error>,
    fast: u64,
    dropped: u64,
    spared: u64,
}

impl History {
    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn begin(&mut self, change: bool) -> usize {
        let begun = self.tick();
        self.ops.push(Op { change, begun, ended: None, list: Vec::new() });
        self.ops.len() - 1
    }

    fn end(&mut self, op: usize, list: Vec<u64>) {
        self.ops[op].ended = Some(self.tick());
        self.ops[op].list = list;
    }

    /// Returns a number for a record, its token and its object.
    fn fresh(&mut self) -> Option<u64> {
        self.next += 1;
        (self.next < RECORDS).then_some(self.next)
    }
}

type Shared = Rc<RefCell<History>>;

/// Appends until it is committed. `None` if that cannot be known, or memory is used up.
async fn change<F: Fabric>(
    group: &Group<F, SimClock>,
    at: &CellRef,
    cached: &mut Option<(Vec<u64>, View)>,
    spare: &mut Option<u64>,
    history: &Shared,
    op: usize,
) -> Result<Option<Vec<u64>>, Error> {
    loop {
        let (mut tokens, view) = match cached.take() {
            Some(cached) => cached,
            None => list(group, at).await?,
        };
        let Some(index) = history.borrow_mut().fresh() else { return Ok(None) };
        let token = op as u64 * PER_OP + index;
        tokens.push(token);
        let change = number(group.session().client, op as u64);
        // Some clients reuse their records: they propose again with one that no node has named.
        let (memory, proposed) = if group.session().client.is_multiple_of(2) {
            let proposed = append(group, at, &view, index, change, &tokens).await?;
            (index, if let Proposed::Committed(view) = proposed { Some(view) } else { None })
        } else {
            let memory = spare.take().unwrap_or(index);
            let proposed = with_proposal(memory, change, &tokens, async |proposal| {
                let proposal = Proposal { sparing: true, ..*proposal };
                propose(group, at, &view, &proposal, &LastToken).await
            });
            match proposed.await? {
                Proposed::Committed(view) => (memory, Some(view)),
                Proposed::Lost { unused } => {
                    *spare = unused.then_some(memory);
                    history.borrow_mut().spared += u64::from(unused);
                    (memory, None)
                }
            }
        };
        if let Some(view) = proposed {
            if view.record() == record(memory) {
                *cached = Some((tokens.clone(), view));
            }
            return Ok(Some(tokens));
        }
        history.borrow_mut().lost.push(token);
    }
}

/// What is around the operations of a client.
trait Operations {
    /// How many there are at most.
    fn most(&self) -> usize {
        3
    }

    /// One begins. Returns whether what was seen before must be forgotten.
    async fn begin(&self, _rng: &mut Rng) -> bool {
        false
    }

    /// It is over, with whatever result.
    fn end(&self) {}
}

impl Operations for () {}

/// Runs a client: some changes and reads, one after the other.
async fn live<F: Fabric>(
    group: Group<F, SimClock>,
    at: CellRef,
    history: Shared,
    (mut rng, conduct): (Rng, ReplayRules),
    operations: impl Operations,
) {
    let (mut cached, mut spare) = (None, None);
    for round in 0..rng.usize(1..=operations.most()) {
        let changes = rng.f64() < 0.7;
        if operations.begin(&mut rng).await || rng.f64() < 0.3 {
            cached = None;
        }
        if conduct.leaves_out(group.session().client * ROUNDS + round) {
            continue;
        }
        let op = history.borrow_mut().begin(changes);
        let slow = group.events().slow;
        let drop_after = (rng.f64() < 0.1).then(|| rng.u32(1..20));
        let operation = async {
            if changes {
                return change(&group, &at, &mut cached, &mut spare, &history, op).await;
            }
            let (tokens, view) = list(&group, &at).await?;
            cached = Some((tokens.clone(), view));
            Ok(Some(tokens))
        };
        let outcome = dropped_after(drop_after, operation).await;
        operations.end();
        let Some(outcome) = outcome else {
            history.borrow_mut().dropped += 1;
            continue;
        };
        let mut history = history.borrow_mut();
        history.fast += u64::from(group.events().slow == slow);
        match outcome {
            Ok(Some(tokens)) => history.end(op, tokens),
            Ok(None) => return,
            Err(error) => history.errors.push(error),
        }
    }
}

/// The nodes and clients of a seed, and what goes wrong.
struct World {
    sim: Sim,
    at: CellRef,
    nodes: usize,
    /// The client that reads the final state.
    last: usize,
    timeouts: Timeouts,
    /// Whether connections break: then too few nodes may answer.
    breaks: bool,
    clock_fits: Option<(u64, u64)>,
    /// Clients whose memory is near.
    near: Vec<bool>,
}

impl World {
    fn new(seed: u64, rng: &mut Rng, conduct: &ReplayRules) -> Self {
        let mut rare = Rng::with_seed(seed ^ 0x7a2e);
        let nodes = [1, 3, 3, 3, 3, 3, 3, 5][rng.usize(..8)];
        let nodes = if rare.u8(..32) == 0 { 7 } else { nodes };
        let fits = clock_fits(&mut rare);
        let last = rng.usize(2..=3);
        let chaos = match rng.u8(..4) {
            0 => FaultRates::NONE,
            _ => FaultRates::random(rng, nodes, last, 120.0),
        };
        let share = [0.0, 0.0, 0.5, 1.0][rare.usize(..4)];
        let near: Vec<bool> = (0..=last).map(|_| rare.f64() < share).collect();
        let chaos = if share > 0.0 { chaos.beside_near() } else { chaos };
        let policy = match rng.u8(..3) {
            0 => Policy::Priorities { changes: rng.usize(..8), horizon: 2000 },
            _ => Policy::Weighted { redraw: 0.005 },
        };
        let tear = if rng.bool() { 0.2 } else { 1.0 };
        let starve = [0.0, 0.0, 0.1, 0.4][rng.usize(..4)];
        let setup =
            Setup { tear, policy, chaos, starve, ..Setup::new(seed, nodes, last + 1).stalling() };
        let timeouts = Timeouts {
            late_floor: 10u64.pow(rng.u32(2..6)),
            late_roundtrips: rng.u64(1..8),
            deadline: 1_000_000_000,
        };
        let (mut sim, at) = (Sim::new(&setup), cell(rng.u8(..nodes as u8)));
        sim.follow(conduct);
        let breaks = chaos.disconnect > 0.0;
        Self { sim, at, nodes, last, timeouts, breaks, clock_fits: fits, near }
    }

    /// Gives a client its clock. Returns what it works with, and its own source of chance.
    fn enter(&mut self, client: usize, rng: &mut Rng) -> (TestGroup, Rng) {
        self.sim.set_clock(client, rng.i64(-3000..=3000), rng.i64(-DRIFT..=DRIFT));
        if let Some((every, back)) = self.clock_fits.filter(|_| client.is_multiple_of(2)) {
            self.sim.set_clock_fits(client, every, back);
        }
        (self.group(client), Rng::with_seed(rng.u64(..)))
    }

    fn group(&self, client: usize) -> TestGroup {
        let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
        let near = self.near[client];
        let fabric = if near { self.sim.near(client) } else { self.sim.fabric(client) };
        let group = Group::new(fabric, self.sim.clock(client), FORMAT, session);
        group.set_timeouts(self.timeouts);
        group
    }

    fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes).map(|node| NodeId(node as u8))
    }

    /// Runs to the end, and calls `each` after each step.
    fn play(&mut self, mut each: impl FnMut(&Self) -> Result<(), String>) -> Result<(), String> {
        loop {
            let outcome = self.sim.run(1);
            each(self)?;
            match outcome {
                Outcome::Done => return Ok(()),
                Outcome::Stuck => return Err("stuck".into()),
                Outcome::Limit if self.sim.steps() < LIMIT => {}
                Outcome::Limit => return Err("does not end".into()),
            }
        }
    }

    /// Has a later client look, before and after all pending chains have taken effect.
    fn look_last<L: Future<Output = ()> + 'static>(
        &mut self,
        look: impl Fn(TestGroup, CellRef) -> L,
    ) -> Result<(), String> {
        let up: Vec<NodeId> = self.nodes().filter(|&node| !self.sim.is_away(node)).collect();
        for late in [false, true] {
            if late {
                self.sim.drain();
            }
            if self.sim.is_dead(self.last) {
                return Ok(());
            }
            let group = self.group(self.last);
            group.set_timeouts(Timeouts { late_floor: 1000, ..self.timeouts });
            self.sim.spawn(self.last, look(group, self.at));
            if !self.sim.finish(self.last, &up) {
                return Err("a last read does not end".into());
            }
        }
        Ok(())
    }

    /// Checks that operations fail only where too few nodes may answer.
    fn check_errors(&self, errors: &[Error]) -> Result<(), String> {
        let excused = |error: &&Error| self.breaks && matches!(error, Error::NoMajority { .. });
        match errors.iter().find(|error| !excused(error)) {
            Some(error) => Err(format!("an operation fails: {error:?}")),
            None => Ok(()),
        }
    }
}

/// The run of a seed.
struct Run {
    world: World,
    history: Shared,
}

impl Run {
    fn new(seed: u64, conduct: &ReplayRules) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x5eed);
        let world = World::new(seed, &mut rng, conduct);
        let history = Shared::default();
        history.borrow_mut().begin(true);
        let mut run = Self { world, history };
        run.plant(&mut rng);
        for client in 0..run.world.last {
            let (group, rng) = run.world.enter(client, &mut rng);
            let (at, history) = (run.world.at, Rc::clone(&run.history));
            run.world.sim.spawn(client, live(group, at, history, (rng, conduct.clone()), ()));
        }
        run
    }

    /// Makes some cells start like those that a split created: with a record at a majority.
    fn plant(&mut self, rng: &mut Rng) {
        let World { sim, at, nodes, .. } = &self.world;
        let created = rng.u8(..3) == 0;
        let (first, count) = (rng.usize(..*nodes), rng.usize(nodes / 2 + 1..=*nodes));
        for node in self.world.nodes() {
            if created && (node.index() + nodes - first) % nodes < count {
                plant_object(0, node, *nodes, |at, value| sim.set_word(node, at, value));
                plant(0, Pointer::NULL, 2, &[0], |at, value| sim.set_word(node, at, value));
                let at = at.place.at(node, *nodes);
                sim.set_word(node, at, word(2, record(0), confirmed()).0);
            }
        }
        self.history.borrow_mut().end(0, if created { vec![0] } else { Vec::new() });
    }

    /// Runs to the end, and checks the memory after each result.
    fn play(&mut self) -> Result<(), String> {
        let history = &self.history;
        let mut seen = 1;
        self.world.play(|world| {
            let time = history.borrow().time;
            if time == seen {
                return Ok(());
            }
            seen = time;
            check_created_parts(world, &history.borrow())
        })?;
        self.world.check_errors(&self.history.borrow().errors)
    }

    /// Reads as a later client.
    fn read_last(&mut self) -> Result<(), String> {
        let (history, failed) = (Rc::clone(&self.history), self.history.borrow().errors.len());
        self.world.look_last(|group, at| {
            let history = Rc::clone(&history);
            async move {
                let op = history.borrow_mut().begin(false);
                match list(&group, &at).await {
                    Ok((tokens, _)) => history.borrow_mut().end(op, tokens),
                    Err(error) => history.borrow_mut().errors.push(error),
                }
            }
        })?;
        if self.history.borrow().errors.len() > failed {
            return Err("a last read fails".into());
        }
        check_created_parts(&self.world, &self.history.borrow())
    }
}

/// Checks that what was created with any returned token is at a majority.
fn check_created_parts(world: &World, history: &History) -> Result<(), String> {
    let Some(outcome) =
        history.ops.iter().filter(|op| op.ended.is_some()).max_by_key(|op| op.ended)
    else {
        return Ok(());
    };
    for &token in &outcome.list {
        let there =
            |&node: &NodeId| is_created(token, node, world.nodes, |at| world.sim.word(node, at));
        let count = world.nodes().filter(there).count();
        if count <= world.nodes / 2 {
            return Err(format!("what {token} brought is at {count} nodes only: {outcome:?}"));
        }
    }
    Ok(())
}

/// Checks that there is one chain, with each change once, in an order that respects real time.
fn check(history: &History) -> Result<(), String> {
    let outcome: Vec<&Op> = history.ops.iter().filter(|op| op.ended.is_some()).collect();
    let mut by_length = outcome.clone();
    by_length.sort_by_key(|op| (op.list.len(), op.change));
    for pair in by_length.windows(2) {
        if !pair[1].list.starts_with(&pair[0].list) {
            return Err(format!("not one chain: {pair:?}"));
        }
    }
    for op in &outcome {
        let mut changes: Vec<u64> = op.list.iter().map(|token| token / PER_OP).collect();
        changes.sort_unstable();
        if changes.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("a change was applied twice: {op:?}"));
        }
        if let Some(token) = op.list.iter().find(|token| history.lost.contains(token)) {
            return Err(format!("{token} was lost and is there: {op:?}"));
        }
    }
    for one in &outcome {
        for two in &outcome {
            if one.ended >= Some(two.begun) {
                continue;
            }
            let grown = two.list.len() - usize::from(two.change);
            if grown < one.list.len() {
                return Err(format!("the first is forgotten by the second: {one:?} {two:?}"));
            }
        }
    }
    for (index, one) in outcome.iter().enumerate() {
        for two in &outcome[index + 1..] {
            if one.change && two.change && !one.list.is_empty() && one.list == two.list {
                return Err(format!("two changes in one: {one:?} {two:?}"));
            }
        }
    }
    Ok(())
}

fn play(seed: u64, conduct: &ReplayRules) -> Result<Run, String> {
    let mut run = Run::new(seed, conduct);
    let played = run.play().and_then(|()| run.read_last());
    let judged = played.and_then(|()| check(&run.history.borrow()));
    judged.map_err(|what| format!("{what}\n{:?}", run.history.borrow()))?;
    Ok(run)
}

#[test]
fn lists_form_one_chain_under_any_schedule() {
    let (mut ops, mut outcome, mut fast, mut errors, mut lost, mut steps) = (0, 0, 0, 0, 0, 0);
    let (mut dropped, mut spared) = (0, 0);
    for seed in seeds(3000) {
        // Panics inside of the protocol name no seed: they are caught to report it.
        let Ok(Ok(run)) = std::panic::catch_unwind(|| play(seed, &ReplayRules::free())) else {
            let story = story(4 * ROUNDS, |conduct| play(seed, conduct).map(drop));
            let again = again(&format!("SWARM_SEED={seed}"));
            panic!("seed {seed} (played alone by `{again}`): {story}");
        };
        let history = run.history.borrow();
        ops += history.ops.len();
        outcome += history.ops.iter().filter(|op| op.ended.is_some()).count();
        fast += history.fast;
        dropped += history.dropped;
        spared += history.spared;
        errors += history.errors.len();
        lost += history.lost.len();
        steps += run.world.sim.steps();
    }
    println!(
        "{ops} operations, {outcome} ended, {dropped} dropped, {fast} without a ballot, {lost} records lost \
         ({spared} had back), {errors} errors, {steps} steps"
    );
    assert!(outcome > ops * 8 / 10, "too few operations came to an end");
}
