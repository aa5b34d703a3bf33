//! Every schedule of a small race for a cell, up to a number of surprises. Two or three clients
//! change the same list, or one of them and a reader race, while a node crashes and a client dies.
//!
//! `SWARM_SURPRISES` and `SWARM_EXPLORED` override the bounds: see [`explore_or_panic`].

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use crate::common::{
    FORMAT, append, cell, confirmed, is_created, list, number, plant, plant_object, record, word,
};
use swarm_core::cell::{Proposed, View};
use swarm_core::clock::Clock;
use swarm_core::node::{MAX_NODES, NodeId};
use swarm_core::quorum::{Group, Session, Timeouts};
use swarm_core::sim::deaths::die_everywhere;
use swarm_core::sim::explore::{Bounds, LoneClock, Race, StepSize, chosen, explore_or_panic};
use swarm_core::sim::{Setup, Sim, SimFabric};
use swarm_core::words::{Incarnation, Pointer};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];

/// The clients of a race.
#[derive(Clone, Copy, Debug)]
struct Rivals {
    proposers: usize,
    readers: usize,
    /// Whether node 2 missed the last change, so that only classic rounds can succeed.
    lagging: bool,
}

/// The result of a client's operation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Outcome {
    Committed,
    Lost,
    List(Vec<u64>),
}

/// Calls and results of clients, in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Event {
    Began(usize),
    Ended(usize, Outcome),
}

type SlowPathCounts = Rc<RefCell<Vec<Event>>>;

impl Rivals {
    fn begin(self, seed: u64) -> Race {
        let racers = self.proposers + self.readers;
        let mut sim = Sim::new(&Setup { words: 1 << 13, ..Setup::new(seed, 3, racers + 3) });
        let at = cell(0).place;
        for node in NODES {
            let set = |at, value| sim.set_word(node, at, value);
            if !self.lagging || node != NODES[2] {
                plant_object(0, node, 3, set);
                plant(0, Pointer::NULL, 2, &[0], set);
                sim.set_word(node, at.at(node, 3), word(2, record(0), confirmed()).0);
            }
        }
        let events = SlowPathCounts::default();
        (0..racers).for_each(|client| self.enter(&mut sim, client, &events));
        let recorded = Rc::clone(&events);
        let digest = move || {
            let mut hasher = DefaultHasher::new();
            recorded.borrow().hash(&mut hasher);
            hasher.finish()
        };
        let check = move |sim: &mut Sim| check(sim, racers, &events.borrow());
        Race { sim, racers, digest: Box::new(digest), check: Box::new(check) }
    }

    fn enter(self, sim: &mut Sim, client: usize, events: &SlowPathCounts) {
        // No node is late: a node that does not answer reports that it is down.
        let timeouts = Timeouts { late_floor: 1 << 40, late_roundtrips: 1, deadline: 1 << 50 };
        let group = group(sim, client, LoneClock::new(0), timeouts);
        let events = Rc::clone(events);
        let mut words = [Some(word(2, record(0), confirmed())); MAX_NODES];
        if self.lagging {
            words[2] = Some(word(0, Pointer::NULL, confirmed()));
        }
        let token = client as u64 + 1;
        sim.spawn(client, async move {
            events.borrow_mut().push(Event::Began(client));
            let outcome = if client >= self.proposers {
                Outcome::List(list(&group, &cell(0)).await.expect("a majority answers").0)
            } else {
                let view = View::of(FORMAT, 3, &words).expect("a majority agrees");
                let change = number(client, 1);
                let proposed = append(&group, &cell(0), &view, token, change, &[0, token]).await;
                match proposed.expect("a majority answers") {
                    Proposed::Committed(_) => Outcome::Committed,
                    Proposed::Lost { .. } => Outcome::Lost,
                }
            };
            events.borrow_mut().push(Event::Ended(client, outcome));
        });
    }
}

fn group<C: Clock>(sim: &Sim, client: usize, clock: C, late: Timeouts) -> Group<SimFabric, C> {
    let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
    let group = Group::new(sim.fabric(client), clock, FORMAT, session);
    group.set_timeouts(late);
    group
}

/// Returns the list that a later client reads at each majority of live nodes.
fn look(sim: &mut Sim, racers: usize) -> Result<Vec<Vec<u64>>, String> {
    let mut lists = Vec::new();
    for away in NODES {
        let up = |&n: &NodeId| n != away && !sim.is_away(n);
        let nodes: Vec<_> = NODES.into_iter().filter(up).collect();
        if nodes.len() < 2 {
            continue;
        }
        let (client, seen) = (racers + away.index(), Rc::new(RefCell::new(None)));
        let timeouts = Timeouts { late_floor: 100, ..Timeouts::default() };
        let (group, sink) = (group(sim, client, sim.clock(client), timeouts), Rc::clone(&seen));
        sim.spawn(client, async move {
            *sink.borrow_mut() = Some(list(&group, &cell(0)).await);
        });
        if !sim.finish(client, &nodes) {
            return Err("a later read does not end".into());
        }
        let (tokens, _) = seen.take().expect("it is done").map_err(|error| error.to_string())?;
        lists.push(tokens);
    }
    Ok(lists)
}

/// Checks that the results of all clients agree with the final state.
fn check(sim: &mut Sim, racers: usize, events: &[Event]) -> Result<(), String> {
    let all = look(sim, racers)?;
    let list = &all[0];
    let verdict = check_events(sim, &all, events);
    verdict.map_err(|wrong| format!("{wrong}: {events:?}, later reads {all:?}, first {list:?}"))
}

fn check_events(sim: &Sim, all: &[Vec<u64>], events: &[Event]) -> Result<(), &'static str> {
    let list = &all[0];
    if all.iter().any(|other| other != list) {
        return Err("later reads differ");
    }
    // All proposers build on the same record, so at most one of them is committed.
    if list.len() > 2 || list.first() != Some(&0) {
        return Err("two changes are in");
    }
    let began = |client| events.iter().position(|e| *e == Event::Began(client));
    for (at, event) in events.iter().enumerate() {
        let Event::Ended(client, outcome) = event else { continue };
        let token = *client as u64 + 1;
        match outcome {
            Outcome::Committed if list[1..] != [token] => return Err("a change is forgotten"),
            Outcome::Lost if list.contains(&token) => return Err("a lost change is in"),
            Outcome::Lost if list.len() < 2 => return Err("a change lost to nobody"),
            Outcome::List(tokens) if !list.starts_with(tokens) => {
                return Err("what was read is gone");
            }
            _ => {}
        }
        for later in &events[at..] {
            if let Event::Ended(reader, Outcome::List(tokens)) = later
                && began(*reader) > Some(at)
                && *outcome == Outcome::Committed
                && !tokens.contains(&token)
            {
                return Err("a read missed a change that was in before");
            }
        }
    }
    for &token in &list[1..] {
        let created = |&&n: &&NodeId| is_created(token, n, 3, |at| sim.word(n, at));
        if NODES.iter().filter(created).count() < 2 {
            return Err("what was born with a record is at one node only");
        }
    }
    Ok(())
}

const fn bounds(grain: StepSize, surprises: usize, crashes: usize) -> Bounds {
    let (node_crashes, client_crashes) = (crashes, crashes);
    Bounds { grain, surprises: Some(surprises), node_crashes, client_crashes, schedules: MOST }
}

/// Maximum number of schedules of one race.
const MOST: u64 = 1_000_000;

/// What is explored of each race: a node crash and a client's death anywhere, with one surprise
/// chain by chain, or without one verb by verb. Also two surprises, verb by verb.
const DEPTHS: [Bounds; 3] =
    [bounds(StepSize::Chain, 1, 1), bounds(StepSize::Verb, 0, 1), bounds(StepSize::Verb, 2, 0)];

fn play(name: &str, rivals: Rivals) {
    for bounds in chosen(name, &DEPTHS) {
        explore_or_panic(name, *bounds, || rivals.begin(1));
    }
}

#[test]
fn two_proposers() {
    let rivals = Rivals { proposers: 2, readers: 0, lagging: false };
    play("two proposers", rivals);
}

#[test]
fn two_proposers_where_a_node_lags() {
    let rivals = Rivals { proposers: 2, readers: 0, lagging: true };
    play("two proposers, a node lags", rivals);
}

#[test]
fn three_proposers() {
    let rivals = Rivals { proposers: 3, readers: 0, lagging: false };
    play("three proposers", rivals);
}

#[test]
fn three_proposers_where_a_node_lags() {
    let rivals = Rivals { proposers: 3, readers: 0, lagging: true };
    play("three proposers, a node lags", rivals);
}

#[test]
fn a_proposer_and_a_reader() {
    for lagging in [false, true] {
        let rivals = Rivals { proposers: 1, readers: 1, lagging };
        play("a proposer and a reader", rivals);
    }
}

/// Together with another proposer and a reader, a client dies at each await of a proposal, fast or
/// classic, or of a read.
#[test]
fn a_client_may_die_anywhere() {
    for lagging in [false, true] {
        let rivals = Rivals { proposers: 2, readers: 2, lagging };
        for (name, victim) in [("a proposer", 0), ("a reader", 2)] {
            die_everywhere(name, victim, 50, |seed| rivals.begin(seed));
        }
    }
}
