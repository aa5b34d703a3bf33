//! A node that is lost is replaced while clients go on: the cell is filled there, with what its
//! list's tokens brought, the new node votes, and then other nodes are lost. Random schedules, as
//! in the file above.

use std::cell::Cell;
use std::rc::Rc;

use fastrand::Rng;
use swarm_core::cell::{CellRef, fill};
use swarm_core::error::Error;
use swarm_core::fabric::{Fabric, Verb};
use swarm_core::layout::{Location, RecordHeader, record};
use swarm_core::node::NodeId;
use swarm_core::quorum::{Group, Session, Timeouts};
use swarm_core::sim::{FaultRates, Policy, ReplayRules, Setup, Sim, SimClock, SimFabric};
use swarm_core::words::{Ballot, CellWord, Incarnation, Pointer};

use super::common::{FORMAT, LastToken, ROOM, cell, is_created, list, object};
use super::replaced::{
    Configuration, DEADLINE, FILLERS, Progress, Replaced, Replacement, Shown, Stage, explore,
};
use super::{History, LIMIT, Operations, ROUNDS, Shared, check, live};

/// Words of a token's object, away from home.
const OBJECT: usize = 3;
/// Operations of all clients at most: each may append a token, for which the list has room.
const MOST: usize = ROOM - 1;

/// A client's operations, which a filler waits for.
struct Watched {
    most: usize,
    turns: SimFabric,
    progress: Progress,
    configuration: Rc<Configuration>,
    stage: Cell<Stage>,
}

impl Operations for Watched {
    fn most(&self) -> usize {
        self.most
    }

    async fn begin(&self, rng: &mut Rng) -> bool {
        self.end();
        for _ in 0..rng.u32(1..200) {
            self.turns.turn().await;
        }
        self.progress.begin();
        // A configuration begins a generation: what was seen of the cell is forgotten.
        let stage = self.configuration.stage.get();
        self.stage.replace(stage) != stage
    }

    fn end(&self) {
        self.progress.end();
    }
}

struct Play {
    replacement: Replacement,
    cell: Connect,
}

/// What clients work on, and how.
#[derive(Clone)]
struct Connect {
    at: CellRef,
    history: Shared,
    timeouts: Timeouts,
}

impl Connect {
    fn fabric(replacement: &Replacement, id: usize, fills: bool) -> Replaced {
        let configuration = replacement.configuration.clone();
        Replaced { inner: replacement.sim.fabric(id), configuration, fills }
    }

    fn group(&self, replacement: &Replacement, id: usize) -> Group<Replaced, SimClock> {
        let session = Session { client: id, incarnation: Incarnation(id as u64 + 1) };
        let (fabric, clock) = (Self::fabric(replacement, id, false), replacement.sim.clock(id));
        let group = Group::new(fabric, clock, FORMAT, session);
        group.set_timeouts(self.timeouts);
        group
    }
}

impl Play {
    fn new(seed: u64, conduct: &ReplayRules) -> Self {
        let mut rng = Rng::with_seed(seed ^ 0x4ea1);
        let nodes = if rng.u8(..4) == 0 { 5 } else { 3 };
        let clients = rng.usize(2..=3) + FILLERS;
        let chaos = match rng.bool() {
            true => FaultRates::NONE,
            false => FaultRates::random(&mut rng, nodes, clients, 400.0),
        };
        // Nodes are lost where the test says.
        let chaos = FaultRates { node_crash: 0.0, node_freeze: 0.0, disconnect: 0.0, ..chaos };
        let setup = Setup {
            tear: if rng.bool() { 0.2 } else { 1.0 },
            // A filler that looks again and again would keep one of lower priority from going on.
            policy: Policy::Weighted { redraw: [0.005, 0.02][rng.usize(..2)] },
            starve: [0.0, 0.0, 0.1][rng.usize(..3)],
            chaos,
            ..Setup::new(seed, nodes + 1, clients).stalling()
        };
        let timeouts = Timeouts {
            late_floor: 10u64.pow(rng.u32(2..6)),
            late_roundtrips: rng.u64(1..8),
            deadline: DEADLINE,
        };
        let mut sim = Sim::new(&setup);
        sim.follow(conduct);
        let lost = NodeId(rng.u8(..nodes as u8));
        let history = Shared::default();
        history.borrow_mut().begin(true);
        history.borrow_mut().end(0, Vec::new());
        let at = cell(rng.u8(..nodes as u8));
        let replacement = Replacement::new(sim, rng, lost, LIMIT);
        Self { replacement, cell: Connect { at, history, timeouts } }
    }

    fn all(&mut self, conduct: &ReplayRules) -> Result<(), String> {
        let Self { replacement, cell } = self;
        for id in 0..replacement.clients() {
            let skew = replacement.rng.i64(-3000..=3000);
            let drift = replacement.rng.i64(-super::DRIFT..=super::DRIFT);
            replacement.sim.set_clock(id, skew, drift);
            let watched = Watched {
                most: MOST / replacement.clients(),
                turns: replacement.sim.fabric(id),
                progress: replacement.progress[id].clone(),
                configuration: replacement.configuration.clone(),
                stage: Cell::new(Stage::Old),
            };
            let with = (Rng::with_seed(replacement.rng.u64(..)), conduct.clone());
            let (group, history) = (cell.group(replacement, id), Rc::clone(&cell.history));
            replacement.sim.spawn(id, live(group, cell.at, history, with, watched));
        }
        replacement.play(|replacement, id| {
            let joining = Connect::fabric(replacement, id, true);
            let (group, at) = (cell.group(replacement, id), cell.at);
            async move { fill_it(&group, &at, &joining).await }
        })?;
        replacement.at_last(|replacement, id| {
            let (group, cell) = (cell.group(replacement, id), cell.clone());
            async move {
                let op = cell.history.borrow_mut().begin(false);
                let (tokens, _) = list(&group, &cell.at).await.expect("a majority is up");
                cell.history.borrow_mut().end(op, tokens);
            }
        })?;
        self.are_created()
    }

    /// Whether what the tokens brought that were read last is at a majority.
    fn are_created(&self) -> Result<(), String> {
        let Self { replacement, cell } = self;
        if replacement.configuration.stage.get() != Stage::New {
            return Ok(());
        }
        let (history, nodes) = (cell.history.borrow(), replacement.nodes());
        for &token in &history.ops.last().expect("it was begun").list {
            let there = |&node: &NodeId| {
                let physical = replacement.physical(node);
                is_created(token, node, nodes, |at| replacement.sim.word(physical, at))
            };
            let count = (0..nodes as u8).map(NodeId).filter(there).count();
            if count <= nodes / 2 {
                return Err(format!("what {token} brought is at {count} nodes only"));
            }
        }
        Ok(())
    }
}

/// Fills the cell at the new node, and what its list's tokens brought.
async fn fill_it(group: &Group<Replaced, SimClock>, at: &CellRef, joining: &Replaced) {
    let node = joining.configuration.lost;
    let nodes = group.nodes();
    let filled = fill(group, at, &LastToken, (joining, node)).await;
    let filled = filled.unwrap_or_else(|error| panic!("filling: {error}"));
    has_it(at, filled.view.record(), &filled, joining).await;
    let tokens = filled.to_vec();
    for token in tokens {
        let place = object(token);
        for other in (0..nodes as u8).map(NodeId).filter(|&other| other != node) {
            let read = [Verb::Read { at: place.at(other, nodes), words: OBJECT }];
            let words = group.fabric().post(other, &read).await.expect("it is not lost");
            if words[0] != token {
                continue;
            }
            let there = place.at(node, nodes);
            let copy = Verb::Write { at: there.plus(1), head: &words[1..], tail: &[] };
            let set = Verb::Cas { at: there, expect: 0, new: token };
            joining.post(node, &[copy, set]).await.expect("it is not lost");
            break;
        }
    }
}

/// Checks that the new node names the record, or a later one, and has it, accepted under that ballot.
async fn has_it(at: &CellRef, record: Pointer, payload: &[u64], joining: &Replaced) {
    if record.is_null() {
        return;
    }
    let (node, nodes) = (joining.configuration.lost, joining.nodes());
    let place = Location::everywhere(record, NodeId(0)).at(NodeId(0), 1);
    let words = record::HEADER_WORDS + payload.len();
    let read = [
        Verb::Read { at: at.place.at(node, nodes), words: 1 },
        Verb::Read { at: place.plus(record::ACCEPTED), words },
    ];
    let reply = joining.post(node, &read).await.expect("it is not lost");
    let (word, there) = (CellWord(reply[0]), &reply[1..]);
    // Another filler was first, with an earlier record.
    if FORMAT.record(word) != record && word.0 != 0 {
        return;
    }
    assert_eq!(FORMAT.record(word), record, "the word names the record");
    assert!(Ballot(there[record::ACCEPTED]) >= FORMAT.ballot(word), "it is accepted");
    let header = RecordHeader::decode(&there[record::BODY..]).expect("words enough");
    let stored = &there[record::HEADER_WORDS..];
    assert!(header.agrees(record, stored) && stored == payload, "the record is there");
}

fn play(seed: u64, conduct: &ReplayRules) -> Result<Shown, String> {
    let mut play = Play::new(seed, conduct);
    let result = play.all(conduct);
    let history: &History = &play.cell.history.borrow();
    // What began before the new node votes may end for want of a majority, where another is lost.
    let refused = |error: &&Error| !matches!(error, Error::NoMajority { .. });
    result
        .and_then(|()| match history.errors.iter().find(refused) {
            Some(error) => Err(format!("an operation fails: {error:?}")),
            None => check(history),
        })
        .map_err(|what| format!("{what}\n{history:?}"))?;
    Ok(play.replacement.shown(history.ops.len()))
}

#[test]
fn a_cell_outlives_its_nodes_one_after_the_other() {
    explore(|_| 4 * ROUNDS, play);
}
