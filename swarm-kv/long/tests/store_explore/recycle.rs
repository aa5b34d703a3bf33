//! Memory that comes back, in every schedule of a small race: a buffer, a register, a bucket's record
//! are used again while others go by what they remember. A client that accesses memory after its time, as the
//! [epoch table](swarm_kv_long::domain) sees it, fails the race.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::fabric::EpochDomain;
use swarm_core::history::{Call, Recorder};
use swarm_core::sim::explore::{LoneClock, Race, digest};
use swarm_core::sim::{Setup, Sim};

use crate::domain::{Notes, SimParticipant, Works};
use crate::store_sim_common::{Line, Story, options};
use crate::watched::{Back, Outcome, Watched};
use crate::{
    CAPACITY, Cast, Cells, Depth, NODES, NOW, check_outcome, depth, explore_each,
    explore_many_steps, geometry,
};

/// Nanoseconds that pass when a clock is looked at: so many that nobody waits for long.
const LOOK: u64 = 10_000;

type ClientStory = Rc<Story>;

/// What a client does.
#[derive(Clone, Copy, Debug)]
enum Action {
    /// An operation on a key.
    Call(u64, Call),
    /// Others look whether the epoch can move on.
    Tick,
    /// A collection.
    Collect,
}

use Action::{Collect, Tick};

const fn insert(key: u64, value: u64) -> Action {
    Action::Call(key, Call::Insert(value))
}

const fn update(value: u64) -> Action {
    Action::Call(0, Call::Update(value))
}

const GET: Action = Action::Call(0, Call::Get);
const DELETE: Action = Action::Call(0, Call::Delete);

/// A race against client 0, whose memory comes back.
#[derive(Clone, Copy)]
struct Plan {
    /// What client 0 does before the others learn where key 0 is.
    before: &'static [Action],
    /// What it does when they know.
    behind: &'static [Action],
    /// What each client does in the race.
    racers: &'static [&'static [Action]],
}

/// The clients of a race and what they share.
struct Stage {
    recorder: Recorder,
    notes: Rc<Notes>,
    outcome: Rc<Outcome>,
    hung_up: Rc<Cell<bool>>,
}

impl Stage {
    fn story(&self, sim: &Sim, id: usize, back: &Rc<Back>) -> ClientStory {
        let line = Line { inner: sim.fabric(id), hung_up: Rc::clone(&self.hung_up), members: None };
        let identity = (id, id, id as u64 + 1);
        let connection = (line, Rc::new(LoneClock::new(NOW).with_look(LOOK)) as _);
        let story = Story::new(
            connection,
            geometry(),
            identity,
            options((1 << 56, 1 << 60)),
            &self.recorder,
        );
        let participant = SimParticipant::new(&self.notes, sim.fabric(id), id);
        let watched = Watched::new(participant, &self.outcome, back);
        Rc::new(Story { client: story.client.with_epochs(Box::new(watched)), ..story })
    }

    fn begin(&self, sim: &mut Sim, story: &ClientStory, deeds: &'static [Action]) {
        let (story, works) = (Rc::clone(story), Works::new(&self.notes, story.id));
        // One of those that do nothing else looks after the epoch.
        let participant = SimParticipant::new(&self.notes, sim.fabric(story.id), story.id);
        sim.spawn(story.id, async move {
            let _works = works;
            for &action in deeds {
                match action {
                    Action::Call(key, call) => match story.call(key, call, None).await {
                        Ok(()) => {}
                        Err(gave_up) => {
                            assert!(gave_up.shortage().is_some(), "{action:?}: {gave_up:?}")
                        }
                    },
                    Tick => drop(participant.try_advance()),
                    // Where a node does not answer, nothing is found.
                    Collect => drop(story.client.collect().await),
                }
            }
        });
    }

    fn all(&self, sim: &mut Sim, story: &ClientStory, deeds: &'static [Action]) {
        self.begin(sim, story, deeds);
        assert!(sim.finish(story.id, &NODES), "client {} does not end", story.id);
        sim.drain();
    }
}

impl Plan {
    /// The race at its beginning.
    fn begin(self, back: &Rc<Back>) -> Race {
        let count = self.racers.len();
        let mut sim = Sim::new(&Setup { words: CAPACITY / 8, ..Setup::new(1, 3, count + 4) });
        let (recorder, hung_up) = (Recorder::new(), Rc::<Cell<bool>>::default());
        let (notes, outcome) = Default::default();
        let stage = Stage { recorder: recorder.clone(), notes, outcome, hung_up: hung_up.clone() };
        let racers: Vec<_> = (0..count).map(|id| stage.story(&sim, id, back)).collect();
        stage.all(&mut sim, &racers[0], self.before);
        for (id, racer) in racers.iter().enumerate().skip(1) {
            const WARM: [Action; 3] = [insert(201, 801), insert(204, 805), GET];
            stage.all(&mut sim, racer, if id == 1 { &WARM } else { &WARM[2..] });
        }
        stage.all(&mut sim, &racers[0], self.behind);
        for (racer, deeds) in racers.iter().zip(self.racers) {
            stage.begin(&mut sim, racer, deeds);
        }
        let cast = Cast { hung_up, racers };
        let known = recorder.clone();
        let check = move |sim: &mut Sim| {
            check_outcome(sim, &cast, (&recorder, Cells::Later), &[0, 1, 2, 3, 4, 5, 6, 7])
        };
        let Stage { notes, outcome, .. } = stage;
        let digest = move || digest(&known.operations()).rotate_left(1) ^ outcome.print(&notes);
        Race { sim, racers: count, digest: Box::new(digest), check: Box::new(check) }
    }

    /// Explores the race up to each of these depths. Yields what came back in all.
    fn play(self, name: &str, depths: &[Depth]) -> Rc<Back> {
        let back = Rc::<Back>::default();
        explore_each(name, depths, || self.begin(&back));
        back
    }

    /// The same for a race of many steps.
    fn play_many_steps(self, name: &str) -> Rc<Back> {
        let back = Rc::<Back>::default();
        explore_many_steps(name, || self.begin(&back));
        back
    }
}

/// A client's key has a value, and three buffers are left of those that were set aside.
const WRITTEN: &[Action] =
    &[insert(0, 901), update(905), insert(3, 909), insert(6, 913), insert(9, 917)];
/// It writes again and again: what its first three writes took the place of comes back with the
/// fourth, one to be used at once and two for later, among them what somebody may have met under way
/// in the first. Behind a get, all that a write posted is over.
const WRITES: &[Action] =
    &[update(1), update(5), update(25), GET, Tick, Tick, update(9), GET, update(17)];
/// A reader is done soon: there are few enough places for two things.
const OF_A_READER: &[Depth] = &[depth(0, 1, 1), depth(2, 0, 0)];

const BUFFER: Plan = Plan { before: WRITTEN, behind: &[], racers: &[] };

#[test]
fn a_buffer_is_used_again_beside_readers() {
    const RACERS: &[&[Action]] = &[WRITES, &[GET, GET]];
    let plan = Plan { racers: RACERS, ..BUFFER };
    let back = plan.play("a buffer used again, and a reader", OF_A_READER);
    assert!(back.out_of_place.get() > 0, "nothing came back");
}

#[test]
fn a_buffer_is_used_again_beside_an_update() {
    const RACERS: &[&[Action]] = &[WRITES, &[update(13)], &[GET]];
    let plan = Plan { racers: RACERS, ..BUFFER };
    let back = plan.play_many_steps("a buffer used again, and an update");
    assert!(back.out_of_place.get() > 0, "nothing came back");
}

/// Racers of which the first uses a register and a record again, and the second does something to the
/// same key.
type Pair = [&'static [Action]; 2];

const fn beside_each_other(first: &'static [Action]) -> [Pair; 4] {
    const OTHERS: [&[Action]; 4] = [&[GET, GET], &[update(13)], &[DELETE], &[insert(0, 17)]];
    let [reader, updater, deleter, inserter] = OTHERS;
    [[first, reader], [first, updater], [first, deleter], [first, inserter]]
}

impl Plan {
    /// All schedules of each pair, in which a register and a record come back.
    fn uses_again(self, what: &str, pairs: &'static [Pair]) {
        for racers in pairs {
            let name = format!("{what}, and {:?}", racers[1]);
            let back = Plan { racers, ..self }.play_many_steps(&name);
            assert!(back.homed.get() > 0 && back.out_of_place.get() > 0, "nothing came back");
        }
    }
}

/// The key is there. Then it is deleted, and its bucket names it no more, but others remember it.
const DELETED: Plan = Plan { before: &[insert(0, 901)], behind: &[DELETE, Collect], racers: &[] };
/// What it left behind is found and used again.
const INSERTS: &[Action] = &[Collect, Collect, insert(0, 1)];

#[test]
fn a_register_and_a_record_are_used_again() {
    DELETED.uses_again("a register used again", &const { beside_each_other(INSERTS) });
}

/// Likewise, but what it left behind was found before the others begin: they must have forgotten where
/// the key was.
#[test]
fn what_was_found_is_used_by_nobody_else() {
    const FOUND: Plan = Plan { behind: &[DELETE, Collect, Collect, Collect], ..DELETED };
    const INSERT: &[Action] = &[insert(0, 1)];
    FOUND.uses_again("a register that was found", &const { beside_each_other(INSERT) });
}

/// The key is a cell, which is deleted: what follows may use it and its records again.
#[test]
fn a_cell_and_its_records_are_used_again() {
    const SWAP: Action = Action::Call(0, Call::Swap(Some(905)));
    const AGAIN: Action = Action::Call(0, Call::Swap(Some(5)));
    const CELL: Plan = Plan { before: &[insert(0, 901), SWAP, SWAP], ..DELETED };
    const SWAPS: &[Action] = &[Collect, Collect, insert(0, 1), AGAIN];
    CELL.uses_again("a cell used again", &const { beside_each_other(SWAPS) });
}
