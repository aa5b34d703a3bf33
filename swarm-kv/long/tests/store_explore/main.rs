//! Every schedule of a small race in the store, up to a number of surprises: insert against insert,
//! delete against update, delete against insert, split against insert, moves of a key against each
//! other, an update and a delete, changes that depend on the value against all of these, each with a
//! reader beside them, while a node crashes and a client dies; for races of many steps, one of the two,
//! or both where the node is gone from the beginning. Clients that hold a lock, or meet at a barrier.
//!
//! `SWARM_DEEP` chooses within which bounds races are explored as deep as that; where it does not, only one thing goes
//! wrong, a surprise, a node or a client, by turns: see [`is_race_deep`] and [`turn`]. `SWARM_SURPRISES` and
//! `SWARM_EXPLORED` take the place of the bounds: see [`explore_or_panic`].

mod changes;
mod midst;
mod objects;
mod recycle;
mod watched;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use midst::Midst;
use swarm_core::clock::Clock;
use swarm_core::history::{BUDGET, Call, Recorder, check};
use swarm_core::layout::{Geometry, MIN_CAPACITY};
use swarm_core::node::NodeId;
use swarm_core::sim::deaths::die_everywhere;
use swarm_core::sim::explore::{
    Bounds, LoneClock, Race, StepSize, digest, explore_or_panic, is_race_deep,
};
use swarm_core::sim::seeds::{is_deep, turn};
use swarm_core::sim::{Setup, Sim};
use swarm_kv_long::domain;
use swarm_kv_long::store_sim_common::{self, Line, Lives, Story, of_six_keys, options};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// Bytes of each node's memory. The simulator stores what is touched.
const CAPACITY: u64 = MIN_CAPACITY;
/// Keys that only fill the bucket have numbers from here on.
const FILLERS: u64 = 100;
/// Keys with which racers get memory of their own have numbers from here on.
const WARM: u64 = 200;
const WARMS: u64 = 5;
/// A value of twelve words, where cells here have room for five at most.
const OUTGROWS: u64 = 3;
/// Values of keys before they are cells have numbers from here on.
const BEFORE: u64 = 700;
/// As long as what the racers write.
const WARM_VALUE: u64 = 801;
/// Values that expire have numbers from here on.
const EXPIRING: u64 = 600;
/// What clocks show by which they have expired.
const EXPIRED: u64 = 20_000;
/// What clocks show in the beginning.
const NOW: u64 = 10_000;
/// By such a clock, the timestamps of a register that is as old as the race are at their end: they
/// reach 2^51 nanoseconds. A client that writes it moves its key.
const LATER: u64 = 1 << 53;
/// The same for a register that was created [`LATER`].
const MUCH_LATER: u64 = 1 << 55;

/// What a race is between, and before it.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// Each racer's operations and their keys.
    racers: &'static [&'static [(u64, Call)]],
    /// Keys that are there, whose places the racers know.
    there: u64,
    /// Of those, so many are deleted again, without the racers' knowing.
    deleted: u64,
    /// Keys that fill the bucket.
    fillers: u64,
    /// Whether racers know the bucket.
    known: bool,
    /// What the clocks of some racers show, from the first one on; those of the others, [`NOW`].
    clocks: &'static [u64],
    /// What has happened already when the race begins.
    midst: Midst,
    cells: Cells,
}

/// Whether keys are cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cells {
    /// The pool has none.
    Never,
    /// A key is one from its first change on.
    Later,
    /// All keys that are there are.
    Already,
    /// So they are, and their values expire soon after [`NOW`].
    Expiring,
}

impl Cells {
    fn lives(self) -> Option<Lives> {
        let lives =
            Lives { ttl: Duration::from_nanos(1000), of: |id| (EXPIRING..BEFORE).contains(&id) };
        (self == Self::Expiring).then_some(lives)
    }
}

/// The clients of a race. Those that are left in the end do not take their leave: they may be dead.
struct Cast {
    hung_up: Rc<Cell<bool>>,
    racers: Vec<Rc<Story>>,
}

impl Drop for Cast {
    fn drop(&mut self) {
        self.hung_up.set(true);
        self.racers.clear();
    }
}

/// One bucket, of six keys at most.
fn geometry() -> Geometry {
    let geometry = Geometry::new(3, CAPACITY, 16, 7).expect("a small geometry");
    Geometry { bucket_bits: 0, ..of_six_keys(geometry) }
}

fn story(
    sim: &Sim,
    id: usize,
    clock: impl Clock + 'static,
    late: u64,
    (hung_up, recorder, cells): (&Rc<Cell<bool>>, &Recorder, Cells),
) -> Story {
    let line = Line { inner: sim.fabric(id), hung_up: Rc::clone(hung_up), members: None };
    let story = Story::new(
        (line, Rc::new(clock)),
        geometry().with_keyed_cells(cells != Cells::Never),
        (id, id, id as u64 + 1),
        options((late, 1 << 60)),
        recorder,
    );
    story.with_lives(cells.lives())
}

/// These operations, one after the other, while nothing else happens.
fn do_all(
    sim: &mut Sim,
    id: usize,
    story: Rc<Story>,
    calls: Vec<(u64, Call)>,
    nodes: &[NodeId],
) -> Result<(), String> {
    sim.spawn(id, async move {
        for (key, call) in calls {
            story.call(key, call, None).await.expect("a majority is up");
        }
    });
    if sim.finish(id, nodes) { Ok(()) } else { Err(format!("client {id} does not end")) }
}

impl Plan {
    /// The race at its beginning.
    fn begin(self, seed: u64) -> Race {
        let count = self.racers.len();
        let mut sim = Sim::new(&Setup { words: CAPACITY / 8, ..Setup::new(seed, 3, count + 4) });
        let (recorder, hung_up) = (Recorder::new(), Rc::<Cell<bool>>::default());
        let book = (&hung_up, &recorder, self.cells);
        // No node is late: one that does not answer says so.
        let clock = |id| LoneClock::new(self.clocks.get(id).copied().unwrap_or(NOW));
        let lone = |sim: &Sim, id| Rc::new(story(sim, id, clock(id), 1 << 56, book));
        let racers: Vec<_> = (0..count).map(|id| lone(&sim, id)).collect();
        let creator = lone(&sim, count);
        // Each racer has memory for an insert and a write.
        let writes = |id: &usize| self.racers[*id].iter().any(|(_, call)| *call != Call::Get);
        for (id, racer) in racers.iter().enumerate().filter(|(id, _)| writes(id)) {
            let keys = WARM..WARM + WARMS;
            let warm = keys.flat_map(|key| [(key, Call::Insert(WARM_VALUE)), (key, Call::Delete)]);
            do_all(&mut sim, id, Rc::clone(racer), warm.collect(), &NODES).expect("it ends");
        }
        let mut calls: Vec<_> = (0..self.there).map(|key| (key, Call::Put(900 + key))).collect();
        if matches!(self.cells, Cells::Already | Cells::Expiring) {
            // The change of a key makes it a cell.
            calls = (0..self.there)
                .flat_map(|key| {
                    let change =
                        Call::CompareAndSwap { expected: Some(BEFORE + key), new: Some(900 + key) };
                    [(key, Call::Put(BEFORE + key)), (key, change)]
                })
                .collect();
        }
        calls.extend((0..self.fillers).map(|n| (FILLERS + n, Call::Insert(950 + n))));
        calls.extend((0..self.deleted).map(|key| (key, Call::Get)));
        do_all(&mut sim, count, Rc::clone(&creator), calls, &NODES).expect("it ends");
        for (id, racer) in racers.iter().enumerate().filter(|_| self.known) {
            let mut gets: Vec<_> = (0..self.there).map(|key| (key, Call::Get)).collect();
            gets.push((FILLERS, Call::Get));
            do_all(&mut sim, id, Rc::clone(racer), gets, &NODES).expect("it ends");
        }
        let deletes = (0..self.deleted).map(|key| (key, Call::Delete));
        let expire = (0..self.there).map(|key| (key, Call::Put(EXPIRING + key)));
        let expire = expire.filter(|_| self.cells == Cells::Expiring);
        let last = deletes.chain(expire).collect();
        do_all(&mut sim, count, creator, last, &NODES).expect("it ends");
        for (id, (racer, calls)) in racers.iter().zip(self.racers).enumerate() {
            let racer = Rc::clone(racer);
            sim.spawn(id, async move {
                for &(key, call) in *calls {
                    racer.call(key, call, None).await.expect("a majority is up");
                }
            });
        }
        self.midst.play(&mut sim);
        let (known, cast) = (recorder.clone(), Cast { hung_up, racers });
        let check = move |sim: &mut Sim| self.check(sim, &cast, &recorder);
        let digest = move || digest(&known.operations());
        Race { sim, racers: count, digest: Box::new(digest), check: Box::new(check) }
    }

    /// Each majority that lives is asked for every key in the end.
    fn check(self, sim: &mut Sim, cast: &Cast, recorder: &Recorder) -> Result<(), String> {
        let keys: Vec<u64> = (0..4).chain(FILLERS..FILLERS + self.fillers).collect();
        check_outcome(sim, cast, (recorder, self.cells), &keys)?;
        let moved = cast.racers.iter().any(|racer| racer.client.counters().moved > 0);
        let all_are_well = !(0..self.racers.len()).any(|id| sim.is_dead(id));
        // Otherwise nothing was put to the test.
        if self.clocks.is_empty() || self.cells == Cells::Expiring || moved || !all_are_well {
            Ok(())
        } else {
            Err("no key moved".to_owned())
        }
    }

    /// Explores the race up to each of these depths.
    fn play(self, name: &str, depths: &[Depth]) {
        explore_each(name, depths, || self.begin(1));
    }

    /// The same where it is its turn to be explored deep.
    fn play_deep(self, name: &str, depths: &[Depth]) {
        explore_deep(name, depths, || self.begin(1));
    }

    /// The same for a race of many steps; and a client dies anywhere, where a node is gone from the
    /// beginning.
    fn play_many_steps(self, name: &str) {
        explore_many_steps(name, || self.begin(1));
        for node in NODES {
            let begin = || {
                let mut race = self.begin(1);
                race.sim.crash_node(node, false);
                race
            };
            explore_deep(&format!("{name}, without {node}"), &[depth(0, 0, 1)], begin);
        }
    }

    /// Explores the race verb by verb, where it is its turn to be explored deep.
    fn play_verbs(self, name: &str) {
        for depth in OF_MANY_STEPS {
            let bounds = depth.bounds(StepSize::Verb);
            if is_race_deep(name, &bounds) {
                explore_or_panic(name, bounds, || self.begin(1));
            }
        }
    }
}

/// Each majority that lives is asked for these keys, and the history is judged.
fn check_outcome(
    sim: &mut Sim,
    cast: &Cast,
    (recorder, cells): (&Recorder, Cells),
    keys: &[u64],
) -> Result<(), String> {
    for away in NODES {
        let up = |&n: &NodeId| n != away && !sim.is_away(n);
        let nodes: Vec<_> = NODES.into_iter().filter(up).collect();
        if nodes.len() >= 2 {
            let id = cast.racers.len() + 1 + away.index();
            let story = story(sim, id, sim.clock(id), 100, (&cast.hung_up, recorder, cells));
            let gets = keys.iter().map(|&key| (key, Call::Get)).collect();
            do_all(sim, id, Rc::new(story), gets, &nodes)?;
        }
    }
    let history = recorder.operations();
    check(&history, |_| None, BUDGET).map_err(|wrong| {
        let line = |op: &swarm_core::history::Operation| format!("key {}: {op}\n", op.key);
        format!("{wrong}\n{}", history.iter().map(line).collect::<String>())
    })
}

/// Explores a race chain by chain, up to each of these depths. Of those with more than one thing that goes wrong, each is
/// explored where it is its turn to be explored deep; unless all are, also one thing goes wrong: the one whose
/// [turn] it is.
fn explore_each(name: &str, depths: &[Depth], begin: impl Fn() -> Race) {
    let (deep, others): (Vec<Depth>, Vec<Depth>) =
        depths.iter().partition(|depth| depth.things() > 1);
    let all = explore_deep(name, &deep, &begin) == deep.len();
    for depth in turn(name, if all { &others[..] } else { OF_MANY_STEPS }) {
        explore_or_panic(name, depth.bounds(StepSize::Chain), &begin);
    }
}

/// Explores a race chain by chain, up to each of these depths whose turn it is to be explored deep. Returns how many these
/// are.
fn explore_deep(name: &str, depths: &[Depth], begin: impl Fn() -> Race) -> usize {
    let bounds = depths.iter().map(|depth| depth.bounds(StepSize::Chain));
    let chosen: Vec<Bounds> = bounds.filter(|bounds| is_race_deep(name, bounds)).collect();
    for &bounds in &chosen {
        explore_or_panic(name, bounds, &begin);
    }
    chosen.len()
}

/// The same for a race that takes so many steps that there are too many places for two things. Where
/// somebody says how many schedules are not too many, so many of those are played as well.
fn explore_many_steps(name: &str, begin: impl Fn() -> Race) {
    explore_each(name, OF_MANY_STEPS, &begin);
    if std::env::var_os("SWARM_EXPLORED").is_some() {
        explore_each(name, BOTH, &begin);
    }
}

/// How many surprises and crashes there are at most.
#[derive(Clone, Copy)]
struct Depth {
    surprises: usize,
    node_crashes: usize,
    client_crashes: usize,
}

impl Depth {
    /// How many things go wrong at most.
    fn things(self) -> usize {
        self.surprises + self.node_crashes + self.client_crashes
    }

    fn bounds(self, grain: StepSize) -> Bounds {
        let Depth { surprises, node_crashes, client_crashes } = self;
        let surprises = Some(surprises);
        Bounds { grain, surprises, node_crashes, client_crashes, schedules: 1_000_000 }
    }
}

const fn depth(surprises: usize, node_crashes: usize, client_crashes: usize) -> Depth {
    Depth { surprises, node_crashes, client_crashes }
}

/// A node crashes and a client dies, anywhere; and two surprises.
const DEPTHS: &[Depth] = &[depth(0, 1, 1), depth(2, 0, 0)];
/// A node crashes and a client dies, anywhere.
const BOTH: &[Depth] = &[depth(0, 1, 1)];
/// A split or a move takes so many steps that there are too many places for two things.
const OF_MANY_STEPS: &[Depth] = &[depth(0, 1, 0), depth(0, 0, 1), depth(1, 0, 0)];

const NOTHING: Plan = Plan {
    racers: &[],
    there: 0,
    deleted: 0,
    fillers: 0,
    known: false,
    clocks: &[],
    midst: Midst::Nothing,
    cells: Cells::Later,
};
const READS: &[(u64, Call)] = &[(0, Call::Get), (0, Call::Get)];

#[test]
fn insert_against_insert() {
    let racers: &[&[_]] = &[&[(0, Call::Insert(1))], &[(0, Call::Insert(5))], READS];
    for known in [false, true] {
        Plan { racers, known, ..NOTHING }.play("insert against insert", DEPTHS);
    }
}

/// Both take the place of a deleted key.
#[test]
fn insert_against_insert_over_a_deleted_key() {
    let racers: &[&[_]] = &[&[(0, Call::Insert(1))], &[(0, Call::Put(5))], &[(0, Call::Get)]];
    let plan = Plan { racers, there: 1, deleted: 1, known: true, ..NOTHING };
    plan.play("insert against insert over a deleted key", DEPTHS);
}

#[test]
fn delete_against_update() {
    let racers: &[&[_]] = &[&[(0, Call::Delete)], &[(0, Call::Update(5))], READS];
    for known in [false, true] {
        Plan { racers, there: 1, known, ..NOTHING }.play("delete against update", DEPTHS);
    }
    Plan { racers, there: 1, known: true, ..NOTHING }.play_verbs("delete against update");
}

#[test]
fn delete_against_insert() {
    let racers: &[&[_]] = &[&[(0, Call::Delete)], &[(0, Call::Insert(5))], READS];
    for there in [0, 1] {
        Plan { racers, there, known: true, ..NOTHING }.play("delete against insert", DEPTHS);
    }
}

/// A delete through a place where the key was once.
#[test]
fn delete_against_insert_over_a_deleted_key() {
    let racers: &[&[_]] = &[&[(0, Call::Delete)], &[(0, Call::Insert(5))], &[(0, Call::Get)]];
    let plan = Plan { racers, there: 1, deleted: 1, known: true, ..NOTHING };
    plan.play("delete against insert over a deleted key", DEPTHS);
}

#[test]
fn split_against_insert() {
    let racers: &[&[_]] = &[&[(1, Call::Insert(1))], &[(2, Call::Insert(5))], &[(0, Call::Get)]];
    for known in [false, true] {
        let plan = Plan { racers, there: 1, fillers: 5, known, ..NOTHING };
        plan.play_many_steps("split against insert");
    }
    let plan = Plan { racers, there: 1, fillers: 5, known: true, ..NOTHING };
    plan.play_verbs("split against insert");
}

/// A client that writes by a clock of [`LATER`] moves the key. So does one whose value does not fit in place.
const MOVE: &[(u64, Call)] = &[(0, Call::Update(21))];
const MOVED: Plan = Plan { there: 1, known: true, clocks: &[LATER], ..NOTHING };

/// Two move a key from the same register, or the second one moves it on from where the first put it.
#[test]
fn move_against_move() {
    let racers: &[&[_]] = &[MOVE, &[(0, Call::Update(5))], &[(0, Call::Get)]];
    for clocks in [&[LATER, LATER], &[LATER, MUCH_LATER]] {
        Plan { racers, clocks, ..MOVED }.play_many_steps("move against move");
    }
}

#[test]
fn move_against_update() {
    let racers: &[&[_]] = &[MOVE, &[(0, Call::Update(5))], &[(0, Call::Get)]];
    Plan { racers, ..MOVED }.play_many_steps("move against update");
}

#[test]
fn move_against_delete() {
    let racers: &[&[_]] = &[MOVE, &[(0, Call::Delete)], &[(0, Call::Get)]];
    let plan = Plan { racers, ..MOVED };
    plan.play_many_steps("move against delete");
    // Of these races it has the fewest places.
    plan.play("move against delete", BOTH);
}

#[test]
fn move_against_reader() {
    let racers: &[&[_]] = &[MOVE, READS, READS];
    Plan { racers, ..MOVED }.play_many_steps("move against reader");
}

/// Beside others that put and get, a client dies at each await of each operation, a split among them.
#[test]
fn a_client_may_die_anywhere() {
    const OTHERS: [&[(u64, Call)]; 2] =
        [&[(0, Call::Put(5)), (1, Call::Insert(9)), (0, Call::Delete)], READS];
    let insert: &[&[_]] = &[&[(0, Call::Insert(1))], OTHERS[0], OTHERS[1]];
    let put: &[&[_]] = &[&[(0, Call::Put(1))], OTHERS[0], OTHERS[1]];
    let update: &[&[_]] = &[&[(0, Call::Update(1))], OTHERS[0], OTHERS[1]];
    let delete: &[&[_]] = &[&[(0, Call::Delete)], OTHERS[0], OTHERS[1]];
    let get: &[&[_]] = &[&[(0, Call::Get)], OTHERS[0], OTHERS[1]];
    let split: &[&[_]] = &[&[(2, Call::Insert(1))], OTHERS[0], OTHERS[1]];
    let change: &[&[_]] = &[&[(0, Call::Swap(Some(1)))], OTHERS[0], OTHERS[1]];
    let outgrows: &[&[_]] = &[&[(0, Call::Update(OUTGROWS))], OTHERS[0], OTHERS[1]];
    let there = Plan { there: 1, known: true, ..NOTHING };
    let cell = Plan { cells: Cells::Already, ..there };
    let plans = [
        ("an insert", Plan { racers: insert, known: true, ..NOTHING }),
        ("an insert over a deleted key", Plan { racers: insert, deleted: 1, ..there }),
        ("a put", Plan { racers: put, ..there }),
        ("an update", Plan { racers: update, ..there }),
        ("a delete", Plan { racers: delete, ..there }),
        ("a get", Plan { racers: get, ..there }),
        ("a split", Plan { racers: split, fillers: 5, ..there }),
        ("a change that moves its key", Plan { racers: change, cells: Cells::Never, ..there }),
        ("a change that makes a cell", Plan { racers: change, ..there }),
        ("a change of a cell", Plan { racers: change, ..cell }),
        ("an update for which its cell has no room", Plan { racers: outgrows, ..cell }),
        ("a delete of a cell", Plan { racers: delete, ..cell }),
    ];
    for (name, plan) in plans {
        let seeds = if is_deep(name) { 25 } else { 3 };
        die_everywhere(name, 0, seeds, |seed| plan.begin(seed));
    }
}
