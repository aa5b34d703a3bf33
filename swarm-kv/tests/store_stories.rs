//! Directed schedules of the store, each a story.

#[expect(dead_code, reason = "what random schedules alone make use of")]
mod store_sim_common;

use std::cell::Cell;
use std::rc::Rc;

use store_sim_common::{Line, Story};
use swarm_core::clock::Clock;
use swarm_core::fabric::NodeId;
use swarm_core::geometry::Geometry;
use swarm_core::history::{BUDGET, Call, Recorder, check};
use swarm_core::sim::explore::LoneClock;
use swarm_core::sim::{Setup, Sim, SimFabric};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// Bytes of each node's memory. The simulator stores what is touched.
const CAPACITY: u64 = 8 << 20;
/// The client whose chains go astray, one that goes on, one that looks, and who was there before.
const ASTRAY: usize = 0;
const NEXT: usize = 1;
const LAST: usize = 2;
const CREATOR: usize = 3;
/// Keys that only fill the bucket have numbers from here on.
const FILLERS: u64 = 100;
/// A key with which a client gets memory of its own.
const WARM: u64 = 200;
/// More roundtrips than any operation here takes.
const ENOUGH: usize = 200;

/// Three nodes, and what was told so far.
struct Play {
    sim: Sim,
    recorder: Recorder,
    hung_up: Rc<Cell<bool>>,
    stories: Vec<Rc<dyn std::any::Any>>,
}

impl Drop for Play {
    /// Nobody takes their leave: some are dead.
    fn drop(&mut self) {
        self.hung_up.set(true);
        self.stories.clear();
    }
}

impl Play {
    fn new() -> Self {
        let sim = Sim::new(&Setup { words: CAPACITY / 8, ..Setup::new(1, 3, 4) });
        let (recorder, hung_up) = (Recorder::new(), Rc::default());
        Self { sim, recorder, hung_up, stories: Vec::new() }
    }

    /// A client that finds nodes late after `late` nanoseconds.
    fn client<C: Clock + 'static>(
        &mut self,
        id: usize,
        clock: C,
        late: u64,
    ) -> Rc<Story<SimFabric, C>> {
        let line = Line { inner: self.sim.fabric(id), hung_up: Rc::clone(&self.hung_up) };
        let geometry = Geometry::new(3, CAPACITY, 16, 7).expect("a small geometry");
        let geometry = Geometry { bucket_bits: 0, ..geometry };
        let patience = (late, 1 << 50);
        let story =
            Story::new((line, clock), geometry, (id, id, id as u64 + 1), patience, &self.recorder);
        let story = Rc::new(story);
        self.stories.push(Rc::clone(&story) as Rc<dyn std::any::Any>);
        story
    }

    /// A client begins these operations. Those of the one whose chains go astray may fail.
    fn begin<C: Clock + 'static>(
        &mut self,
        story: &Rc<Story<SimFabric, C>>,
        calls: Vec<(u64, Call)>,
    ) {
        let story = Rc::clone(story);
        self.sim.spawn(story.id, async move {
            for (key, call) in calls {
                let told = story.call(key, call, None).await;
                assert!(told.is_ok() || story.id == ASTRAY, "{call:?} of key {key}: {told:?}");
            }
        });
    }

    /// These operations, while nothing happens but at these nodes.
    fn all<C: Clock + 'static>(
        &mut self,
        story: &Rc<Story<SimFabric, C>>,
        calls: Vec<(u64, Call)>,
        nodes: &[NodeId],
    ) {
        self.begin(story, calls);
        assert!(self.sim.finish(story.id, nodes), "client {} does not end", story.id);
    }
}

/// A client inserts a key into a bucket with so many others. After `fails` roundtrips its chain to
/// another node than `only` is lost, so that what was to be a fast round becomes a classic one; after
/// `rounds` roundtrips, its chains reach `only` alone. Another client, who hears that node and a
/// second one, inserts a key too; the first one goes on, or has died; then the one node dies.
/// Whatever was acknowledged is at the two that are left, and what is listed there can be read.
/// False if the insert was over before its chains went astray.
fn lands_at_one_node_only(
    others: u64,
    (fails, rounds): (usize, usize),
    only: NodeId,
    dies: bool,
) -> bool {
    let away: Vec<_> = NODES.into_iter().filter(|&node| node != only).collect();
    let mut play = Play::new();
    let creator = play.client(CREATOR, LoneClock::new(10_000), 1 << 40);
    let fill = (0..others).map(|n| (FILLERS + n, Call::Insert(900 + n)));
    play.all(&creator, fill.collect(), &NODES);
    let astray = play.client(ASTRAY, LoneClock::new(10_000), 1 << 40);
    // It has memory, and knows the bucket.
    let warm = vec![(WARM, Call::Insert(801)), (WARM, Call::Delete), (WARM, Call::Insert(805))];
    play.all(&astray, warm, &NODES);
    play.begin(&astray, vec![(0, Call::Insert(1))]);
    play.sim.poll_once(ASTRAY);
    for round in 0..rounds {
        if round == fails {
            play.sim.disconnect(ASTRAY, away[1], false);
        }
        play.sim.roundtrip(ASTRAY, &NODES);
    }
    if play.sim.tasks(ASTRAY) == 0 {
        return false;
    }
    for &node in &away {
        play.sim.disconnect(ASTRAY, node, false);
    }
    play.sim.take_all(ASTRAY, only);
    if dies {
        play.sim.crash_client(ASTRAY);
    }
    let next = play.client(NEXT, play.sim.clock(NEXT), 100);
    play.all(&next, vec![(1, Call::Insert(5))], &[only, away[0]]);
    if !dies {
        assert!(play.sim.finish(ASTRAY, &NODES), "it does not end");
    }
    play.sim.crash_node(only, false);
    let last = play.client(LAST, play.sim.clock(LAST), 100);
    let keys = [0, 1, WARM].into_iter().chain((0..others).map(|n| FILLERS + n));
    play.all(&last, keys.map(|key| (key, Call::Get)).collect(), &away);
    if let Err(wrong) = check(&play.recorder.operations(), |_| None, BUDGET) {
        panic!(
            "{others} others, a loss after {fails} rounds, after {rounds} only {only}, it {}: {wrong}",
            if dies { "dies" } else { "goes on" }
        );
    }
    true
}

/// What an insert and a split bring into the world comes along when their record is adopted.
#[test]
fn what_is_born_at_one_node_outlives_it() {
    // With the last number, the bucket splits.
    for others in [1, 5] {
        for only in NODES {
            for dies in [false, true] {
                let lands = |fails, n| lands_at_one_node_only(others, (fails, n), only, dies);
                for fails in 0..ENOUGH {
                    let over = (fails..ENOUGH).find(|&rounds| !lands(fails, rounds));
                    if over.expect("it ends") == fails {
                        assert!(fails > 0, "it takes some roundtrips");
                        break;
                    }
                }
            }
        }
    }
}

/// A reader takes a writer's second stamp as proof that its first write is complete. A client that
/// is told to write a key twice at a time must not begin the second write before the first is over:
/// the first may still find that its guess was stale, and take effect again.
#[test]
fn a_client_writes_a_key_once_at_a_time() {
    const READER: usize = NEXT;
    const RIVAL: usize = LAST;
    let mut play = Play::new();
    let writer = play.client(0, LoneClock::new(10_000), 1 << 40);
    let reader = play.client(READER, LoneClock::new(10_000), 1 << 40);
    // Its clock is ahead of the writer's, and so are its guesses.
    let rival = play.client(RIVAL, LoneClock::new(1_000_000), 1 << 40);
    play.all(&writer, vec![(0, Call::Insert(801)), (0, Call::Update(805))], &NODES);
    play.all(&reader, vec![(0, Call::Get)], &NODES);
    play.all(&rival, vec![(WARM, Call::Insert(809)), (0, Call::Get)], &NODES);
    for id in [0, READER, RIVAL] {
        NODES.into_iter().for_each(|node| play.sim.take_all(id, node));
    }
    play.begin(&writer, vec![(0, Call::Update(1))]);
    play.begin(&writer, vec![(0, Call::Update(5))]);
    play.sim.poll_once(0);
    let posted = NODES.into_iter().filter(|&node| play.sim.on_their_way(0, node) > 0);
    let [one, other] = posted.collect::<Vec<_>>()[..] else { panic!("a majority") };
    // The first write is at one node. The reader meets it there, and comes back for a second look;
    // meanwhile the writer may go on as far as that node tells it.
    play.sim.take_chains(0, one, 1);
    play.begin(&reader, vec![(0, Call::Get)]);
    play.sim.poll_once(READER);
    for _ in 0..ENOUGH {
        play.sim.roundtrip(READER, &[one, other]);
        play.sim.roundtrip(0, &[one]);
    }
    assert_eq!(play.sim.tasks(READER), 0, "the reader has its answer");
    play.all(&rival, vec![(0, Call::Update(9))], &[one, other]);
    play.all(&reader, vec![(0, Call::Get)], &[one, other]);
    // Now the first write hears that its guess is not the largest; the reader looks again and again.
    for _ in 0..ENOUGH {
        play.sim.roundtrip(0, &NODES);
        play.all(&reader, vec![(0, Call::Get)], &NODES);
    }
    assert_eq!(play.sim.tasks(0), 0, "the writes end");
    if let Err(wrong) = check(&play.recorder.operations(), |_| None, BUDGET) {
        panic!("{wrong}");
    }
}
