//! Three simulated nodes and clients of the store on them, for scenarios.

use std::cell::Cell;
use std::rc::Rc;

use swarm_core::clock::Clock;
use swarm_core::history::{Answer, BUDGET, Call, Recorder, check};
use swarm_core::layout::Geometry;
use swarm_core::node::NodeId;
use swarm_core::sim::explore::LoneClock;
use swarm_core::sim::{Setup, Sim};

use crate::domain::{Notes, SimParticipant, Works};
use crate::store_sim_common::{Line, Story, of_six_keys, options};

pub(crate) const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// Bytes of each node's memory. The simulator stores only what is accessed.
pub(crate) const CAPACITY: u64 = 8 << 20;
/// The client whose chains go astray, one that continues, one that reads at the end, and one that
/// was there before.
pub(crate) const ASTRAY: usize = 0;
pub(crate) const NEXT: usize = 1;
pub(crate) const LAST: usize = 2;
pub(crate) const CREATOR: usize = 3;
const CLIENTS: usize = 5;
/// A key with which a client gets memory of its own.
pub(crate) const WARM: u64 = 200;
/// More roundtrips than any operation here takes.
pub(crate) const ENOUGH: usize = 200;

/// Returns the other nodes.
pub(crate) fn all_but(away: NodeId) -> Vec<NodeId> {
    NODES.into_iter().filter(|&node| node != away).collect()
}

/// One bucket, of six keys at most.
fn geometry(capacity: u64) -> Geometry {
    let geometry = Geometry::new(3, capacity, 16, 7).expect("a small geometry");
    Geometry { bucket_bits: 0, ..of_six_keys(geometry) }
}

/// Three nodes, and the recorded operations.
pub(crate) struct Play {
    pub(crate) sim: Sim,
    pub(crate) recorder: Recorder,
    hung_up: Rc<Cell<bool>>,
    stories: Vec<Rc<dyn std::any::Any>>,
    pub(crate) geometry: Geometry,
    /// The epoch table of all clients, if memory is reclaimed.
    pub(crate) notes: Option<Rc<Notes>>,
}

impl Drop for Play {
    /// No client leaves properly: some are dead.
    fn drop(&mut self) {
        self.hung_up.set(true);
        self.stories.clear();
    }
}

impl Play {
    pub(crate) fn new() -> Self {
        let sim = Sim::new(&Setup { words: CAPACITY / 8, ..Setup::new(1, 3, CLIENTS) });
        let (recorder, hung_up) = (Recorder::new(), Rc::default());
        let geometry = geometry(CAPACITY);
        Self { sim, recorder, hung_up, stories: Vec::new(), geometry, notes: None }
    }

    /// The same with reclamation, in nodes of `capacity` bytes whose registers use `slots` slots.
    pub(crate) fn with_epochs(capacity: u64, slots: usize) -> Self {
        let geometry = geometry(capacity).with_slots(slots).expect("slots");
        let mut play = Self::new();
        play.geometry = geometry;
        play.notes = Some(Rc::default());
        play
    }

    /// Makes a client that never finds a node late: a node that does not answer is reported as
    /// down.
    pub(crate) fn patient(&mut self, id: usize) -> Rc<Story> {
        self.client(id, LoneClock::new(10_000), 1 << 40)
    }

    /// Makes a client that soon turns to other nodes.
    pub(crate) fn hasty(&mut self, id: usize) -> Rc<Story> {
        let clock = self.sim.clock(id);
        self.client(id, clock, 100)
    }

    /// Returns the answer to operation number `index`, counted from 0.
    pub(crate) fn answer(&self, index: usize) -> Option<Answer> {
        self.recorder.operations()[index].answered.map(|(_, answer)| answer)
    }

    /// Returns the last operation's answer.
    pub(crate) fn last(&self) -> Option<Answer> {
        self.answer(self.recorder.operations().len() - 1)
    }

    pub(crate) fn is_linearizable(&self) {
        let history = self.recorder.operations();
        if let Err(wrong) = check(&history, |_| None, BUDGET) {
            let line = |op: &swarm_core::history::Operation| format!("key {}: {op}\n", op.key);
            panic!("{wrong}\n{}", history.iter().map(line).collect::<String>());
        }
    }

    /// Makes a client that finds nodes late after `late` nanoseconds.
    pub(crate) fn client(
        &mut self,
        id: usize,
        clock: impl Clock + 'static,
        late: u64,
    ) -> Rc<Story> {
        let line =
            Line { inner: self.sim.fabric(id), hung_up: Rc::clone(&self.hung_up), members: None };
        let (timeouts, identity) = ((late, 1 << 50), (id, id, id as u64 + 1));
        let mut story = Story::new(
            (line, Rc::new(clock)),
            self.geometry,
            identity,
            options(timeouts),
            &self.recorder,
        );
        if let Some(notes) = &self.notes {
            let participant = SimParticipant::new(notes, self.sim.fabric(id), id);
            story = Story { client: story.client.with_epochs(Box::new(participant)), ..story };
        }
        let story = Rc::new(story);
        self.stories.push(Rc::clone(&story) as Rc<dyn std::any::Any>);
        story
    }

    /// A client begins these operations. Those of the client whose chains go astray may fail.
    pub(crate) fn begin(&mut self, story: &Rc<Story>, calls: Vec<(u64, Call)>) {
        let story = Rc::clone(story);
        let works = self.notes.as_ref().map(|notes| Works::new(notes, story.id));
        self.sim.spawn(story.id, async move {
            let _works = works;
            for (key, call) in calls {
                let outcome = story.call(key, call, None).await;
                assert!(
                    outcome.is_ok() || story.id == ASTRAY,
                    "{call:?} of key {key}: {outcome:?}"
                );
            }
        });
    }

    /// Runs these operations; only these nodes answer.
    pub(crate) fn all(&mut self, story: &Rc<Story>, calls: Vec<(u64, Call)>, nodes: &[NodeId]) {
        self.begin(story, calls);
        assert!(self.sim.finish(story.id, nodes), "client {} does not end", story.id);
    }
}
