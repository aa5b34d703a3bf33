//! Scenarios of an evacuation that other operations interrupt, or that is cut off, at each of its
//! roundtrips.
//!
//! A client's keys, and its bucket's record, are in closed chunks of its own, and it has other
//! chunks with room. At each point of the evacuation, another client does something to what moves.
//! Then the first client continues, or drops the evacuation and starts another, or has died, with
//! its last chains executed at all nodes, at one, or at none. In the end its garbage is collected
//! and reused, by itself or by its slot's next owner: an access to that memory after its time would
//! fail the scenario, and every majority shows what was acknowledged.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use swarm_core::clock::Clock;
use swarm_core::fabric::EpochDomain;
use swarm_core::history::{BUDGET, Call, Recorder, check};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_core::sim::explore::LoneClock;
use swarm_core::sim::seeds::until_over;
use swarm_core::sim::{Setup, Sim};

use crate::heap::Purpose;

#[expect(dead_code, unreachable_pub, reason = "swarm-kv-long makes more use of it")]
#[path = "../../../long/src/domain.rs"]
mod domain;
#[expect(dead_code, unreachable_pub, reason = "swarm-kv-long makes more use of it")]
#[path = "../../../long/src/store_sim_common.rs"]
mod store_sim_common;

use domain::{Notes, SimParticipant, Works};
use store_sim_common::{Line, Story, of_few_chunks, of_six_keys, options};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// The client that evacuates; the one that does something else meanwhile; the next owner of the
/// first one's slot; and those that read in the end.
const EVACUATOR: usize = 0;
const OTHER: usize = 1;
const SUCCESSOR: usize = 2;
const READERS: usize = 3;
const CLIENTS: usize = READERS + NODES.len();
const CHUNKS: usize = 60;
/// Keys that will move, of one class, with values that are in place and not; keys with which the
/// evacuator gets chunks with room for those; and one of the other client's.
const MOVED: [(u64, u64); 2] = [(0, 800), (3, 803)];
const ROOM: [(u64, u64); 2] = [(201, 808), (204, 811)];
const OTHERS: (u64, u64) = (207, 816);
/// More roundtrips than any evacuation here takes.
const ENOUGH: usize = 300;
/// The first reading of clocks, and one at which registers as old as the former run out of
/// timestamps.
const NOW: u64 = 10_000;
const LATER: u64 = 1 << 53;
/// Nanoseconds that pass at each reading of a clock: enough that no client waits for long.
const LOOK: u64 = 10_000;

type ClientStory = Rc<Story>;

/// An action of a client.
#[derive(Clone, Copy, Debug)]
enum Action {
    Call(u64, Call),
    Collect,
    /// Of what lies in closed chunks.
    Evacuate,
    /// Releases empty chunks.
    Leave,
}

use Action::{Collect, Evacuate, Leave};

/// What moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Keys, and with them the bucket's record.
    All,
    /// The record alone.
    Record,
}

/// What the other client does, with a clock that reads `now`.
#[derive(Clone, Copy, Debug)]
struct Meanwhile {
    now: u64,
    /// What lies in chunks that the first client has closed.
    moves: What,
    /// Whether its own chunks are closed as well, with a part of what moves.
    closed: bool,
    deeds: &'static [Action],
}

const fn deeds(deeds: &'static [Action]) -> Meanwhile {
    Meanwhile { now: NOW, moves: What::All, closed: false, deeds }
}

const NOTHING: Meanwhile = deeds(&[]);
const GETS: Meanwhile = deeds(&[Action::Call(0, Call::Get), Action::Call(3, Call::Get)]);
const WRITES: Meanwhile =
    deeds(&[Action::Call(0, Call::Update(4)), Action::Call(3, Call::Update(7))]);
/// Values in place become values that are not, and the reverse.
const GROWS: Meanwhile =
    deeds(&[Action::Call(0, Call::Update(7)), Action::Call(3, Call::Update(4))]);
const DELETES: Meanwhile = deeds(&[Action::Call(0, Call::Delete), Action::Call(3, Call::Delete)]);
const INSERTS: Meanwhile = deeds(&[
    Action::Call(0, Call::Delete),
    Action::Call(0, Call::Insert(4)),
    Action::Call(210, Call::Insert(8)),
]);
/// One more key than the bucket has room for.
const SPLITS: Meanwhile =
    deeds(&[Action::Call(210, Call::Insert(8)), Action::Call(213, Call::Insert(12))]);
const COLLECTS: Meanwhile = deeds(&[Action::Call(0, Call::Delete), Collect]);
/// Registers are at the end of their timestamps.
const MOVES: Meanwhile = Meanwhile { now: LATER, ..WRITES };
const EVACUATES: Meanwhile = Meanwhile { closed: true, ..deeds(&[Evacuate]) };
const ALL: [Meanwhile; 10] =
    [NOTHING, GETS, WRITES, GROWS, DELETES, INSERTS, SPLITS, COLLECTS, MOVES, EVACUATES];

/// The same if only the record moves.
const fn of_the_record(meanwhile: Meanwhile) -> Meanwhile {
    Meanwhile { moves: What::Record, ..meanwhile }
}

/// What happens to the evacuation when the other client acts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    GoesOn,
    /// Its future is dropped.
    IsDropped,
    /// Its client dies, with its posted chains executed at all nodes, at one, or at none.
    Dies(Landed),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Landed {
    Everywhere,
    At(NodeId),
    Nowhere,
}

struct Stage {
    sim: Sim,
    recorder: Recorder,
    notes: Rc<Notes>,
    hung_up: Rc<Cell<bool>>,
    geometry: Geometry,
    incarnations: u64,
    kept: Vec<Rc<dyn Any>>,
}

impl Drop for Stage {
    /// No client leaves properly: some are dead.
    fn drop(&mut self) {
        self.hung_up.set(true);
        self.kept.clear();
    }
}

impl Stage {
    fn new() -> Self {
        let geometry = Geometry::new(3, 8 << 20, 16, 7).expect("a small geometry");
        let geometry = Geometry { bucket_bits: 0, ..of_six_keys(geometry) };
        let geometry = of_few_chunks(geometry, CLIENTS, CHUNKS);
        let setup = Setup { words: geometry.capacity / 8, ..Setup::new(1, 3, CLIENTS) };
        let (notes, hung_up, kept) = Default::default();
        let (sim, recorder) = (Sim::new(&setup), Recorder::new());
        Self { sim, recorder, notes, hung_up, geometry, incarnations: 0, kept }
    }

    /// Makes a client that has had enough of each kind that it shares no chunk, and finds no node
    /// late.
    fn client(&mut self, id: usize, slot: usize, now: u64) -> ClientStory {
        self.with_clock((id, slot), LoneClock::new(now).with_look(LOOK), 1 << 56)
    }

    /// The same with this clock, finding nodes late after `late` nanoseconds.
    fn with_clock(
        &mut self,
        (id, slot): (usize, usize),
        clock: impl Clock + 'static,
        late: u64,
    ) -> ClientStory {
        let line =
            Line { inner: self.sim.fabric(id), hung_up: Rc::clone(&self.hung_up), members: None };
        self.incarnations += 1;
        let identity = (id, slot, self.incarnations);
        let options = options((late, 1 << 60));
        let story =
            Story::new((line, Rc::new(clock)), self.geometry, identity, options, &self.recorder);
        let participant = SimParticipant::in_slot(slot, &self.notes, self.sim.fabric(id), id);
        let story =
            Rc::new(Story { client: story.client.with_epochs(Box::new(participant)), ..story });
        story.client.heap.has_had_all();
        self.kept.push(Rc::clone(&story) as Rc<dyn Any>);
        story
    }

    fn begin(&mut self, story: &ClientStory, deeds: &[Action]) {
        let (story, deeds) = (Rc::clone(story), deeds.to_vec());
        let (id, works) = (story.id, Works::new(&self.notes, story.id));
        self.sim.spawn(id, async move {
            let _works = works;
            for action in deeds {
                act(&story, action).await;
            }
        });
        self.sim.poll_once(id);
    }

    fn all(&mut self, story: &ClientStory, deeds: &[Action]) {
        self.begin(story, deeds);
        assert!(self.sim.finish(story.id, &NODES), "client {} does not end", story.id);
    }

    /// The same with inserts of keys.
    fn inserts(&mut self, story: &ClientStory, keys: &[(u64, u64)]) {
        let insert = |&(key, value): &(u64, u64)| Action::Call(key, Call::Insert(value));
        self.all(story, &keys.iter().map(insert).collect::<Vec<_>>());
    }

    /// Gives a client a free record in another chunk than its bucket's record is in. Returns how
    /// many chunks it closed.
    fn closes_record(&mut self, story: &ClientStory) -> usize {
        let records = story.client.heap.entries_records();
        let closed = story.client.heap.close_all(Some(records));
        let (outcome, works) = (Rc::clone(story), Works::new(&self.notes, story.id));
        self.sim.spawn(story.id, async move {
            let _works = works;
            let _pin = outcome.client.pin();
            outcome.client.has_record(Purpose::Replace).await.expect("memory");
        });
        assert!(self.sim.finish(story.id, &NODES), "it does not end");
        closed
    }

    /// Makes both clients, and keys of which much is in closed chunks of the first client's.
    /// Returns how many those are.
    fn prepare(&mut self, meanwhile: Meanwhile) -> (ClientStory, ClientStory, usize) {
        let evacuator = self.client(EVACUATOR, EVACUATOR, NOW);
        let other = self.client(OTHER, OTHER, meanwhile.now);
        self.inserts(&evacuator, &MOVED);
        let closed = match meanwhile.moves {
            What::All => evacuator.client.heap.close_all(None),
            What::Record => 0,
        };
        // Its first write moves the key, if its clock is ahead.
        self.inserts(&other, &[OTHERS]);
        if meanwhile.closed {
            self.all(&other, &[Action::Call(3, Call::Update(815))]);
            other.client.heap.close_all(None);
            self.all(&other, &[Action::Call(OTHERS.0, Call::Delete)]);
            self.inserts(&other, &[OTHERS, (210, 819)]);
        }
        self.inserts(&evacuator, &ROOM);
        self.all(&other, &MOVED.map(|(key, _)| Action::Call(key, Call::Get)));
        // Some of them may have been closed before.
        let record = self.closes_record(&evacuator);
        self.sim.drain();
        (evacuator, other, closed.max(record))
    }

    /// Collects and reuses the garbage, after every operation is over.
    fn use_again(&mut self, story: &ClientStory) {
        self.sim.drain();
        self.all(story, &[Collect, Collect, Leave, Collect]);
        self.sim.drain();
        let updates =
            |key| (0..6).map(move |n| Action::Call(key, Call::Put(1000 + 4 * n + key % 4)));
        let deeds: Vec<Action> = [0, 3, 201, 204, 213].into_iter().flat_map(updates).collect();
        self.all(story, &deeds);
        self.sim.drain();
    }

    /// Checks that every majority shows what was acknowledged.
    fn check_history(&mut self) {
        for away in NODES {
            let nodes: Vec<NodeId> = NODES.into_iter().filter(|&node| node != away).collect();
            let id = READERS + away.index();
            let reader = self.with_clock((id, id), self.sim.clock(id), 100);
            let keys = [0, 3, 201, 204, 207, 210, 213];
            self.begin(&reader, &keys.map(|key| Action::Call(key, Call::Get)));
            assert!(self.sim.finish(id, &nodes), "a reader does not end");
        }
        let history = self.recorder.operations();
        if let Err(wrong) = check(&history, |_| None, BUDGET) {
            let line = |op: &swarm_core::history::Operation| format!("key {}: {op}\n", op.key);
            panic!("{wrong}\n{}", history.iter().map(line).collect::<String>());
        }
    }
}

async fn act(story: &Story, action: Action) {
    let client = &story.client;
    match action {
        Action::Call(key, call) => story.call(key, call, None).await.expect("all nodes answer"),
        Action::Collect => drop(client.collect().await.expect("all nodes answer")),
        Action::Evacuate => client.empty_closed().await.expect("all nodes answer"),
        Action::Leave => {
            let domain = client.participant.as_ref().expect("it is on a board").domain();
            let _pin = client.pin();
            let wanted = (client.heap.plain(300), Purpose::Insert);
            let left = client.heap.release_empty(&client.group, domain, wanted).await;
            left.expect("all nodes answer");
            let _: u64 = domain.epoch();
        }
    }
}

/// Runs the evacuation for `rounds` roundtrips, then the other client's actions, then its fate.
/// Returns false if it was over before.
fn meets(rounds: usize, meanwhile: Meanwhile, fate: Fate) -> bool {
    let mut stage = Stage::new();
    let (evacuator, other, closed) = stage.prepare(meanwhile);
    stage.begin(&evacuator, &[Evacuate]);
    (0..rounds).for_each(|_| stage.sim.roundtrip(EVACUATOR, &NODES));
    if stage.sim.tasks(EVACUATOR) == 0 {
        return false;
    }
    match fate {
        Fate::GoesOn => {}
        Fate::IsDropped => stage.sim.drop_tasks(EVACUATOR),
        Fate::Dies(landed) => {
            for node in NODES {
                match landed {
                    Landed::Everywhere => stage.sim.take_all(EVACUATOR, node),
                    Landed::At(only) if only == node => stage.sim.take_all(EVACUATOR, node),
                    _ => stage.sim.lose_chains(EVACUATOR, node),
                }
            }
            stage.sim.crash_client(EVACUATOR);
        }
    }
    stage.all(&other, meanwhile.deeds);
    let user = match fate {
        Fate::GoesOn => {
            assert!(stage.sim.finish(EVACUATOR, &NODES), "the evacuation ends");
            evacuator
        }
        Fate::IsDropped => {
            stage.all(&evacuator, &[Evacuate]);
            evacuator
        }
        Fate::Dies(_) => {
            stage.sim.drain();
            stage.sim.fabric(SUCCESSOR).inherit(EVACUATOR);
            stage.client(SUCCESSOR, EVACUATOR, NOW)
        }
    };
    let left = stage.notes.passed_on();
    stage.use_again(&user);
    if !matches!(fate, Fate::Dies(_)) {
        let left = stage.notes.passed_on() - left;
        assert!(left >= closed as u64, "{left} of {closed} chunks are left");
    }
    if fate == Fate::GoesOn && meanwhile.deeds.is_empty() {
        let keys = if meanwhile.moves == What::All { MOVED.len() as u64 } else { 0 };
        assert_eq!(user.client.counters().evacuated, keys);
    }
    stage.check_history();
    true
}

fn meets_at_each_roundtrip(meanwhile: Meanwhile, fate: Fate) {
    let over = until_over(0..ENOUGH, |rounds| !meets(rounds, meanwhile, fate));
    assert!(over.expect("it ends") > 0, "it takes some roundtrips");
}

/// Another client writes, deletes, inserts, splits, moves, collects or evacuates what moves.
#[test]
fn an_evacuation_goes_on_beside_everything_else() {
    for meanwhile in ALL {
        meets_at_each_roundtrip(meanwhile, Fate::GoesOn);
        meets_at_each_roundtrip(of_the_record(meanwhile), Fate::GoesOn);
    }
}

#[test]
fn an_evacuation_that_is_dropped_anywhere_is_done_again() {
    for meanwhile in ALL {
        meets_at_each_roundtrip(meanwhile, Fate::IsDropped);
    }
}

#[test]
fn a_client_may_die_anywhere_in_an_evacuation() {
    for meanwhile in ALL {
        meets_at_each_roundtrip(meanwhile, Fate::Dies(Landed::Everywhere));
    }
    for meanwhile in [NOTHING, WRITES, EVACUATES, of_the_record(INSERTS)] {
        let nodes = NODES.map(Landed::At);
        for landed in nodes.into_iter().chain([Landed::Nowhere]) {
            meets_at_each_roundtrip(meanwhile, Fate::Dies(landed));
        }
    }
}
