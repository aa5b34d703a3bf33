//! Clients that coordinate by an object, in every schedule of a small race: one of them dies at any point, or a node
//! crashes, or both.
//!
//! A client that waits looks again when nothing else can happen, or as a surprise. That another one has ended is known
//! to it from its next look on.

mod barriers;
mod locks;
mod settled;

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::mem;
use std::rc::Rc;
use std::task::Poll;

use swarm_core::clock::Clock;
use swarm_core::history::Recorder;
use swarm_core::node::NodeId;
use swarm_core::sim::explore::{Check, LoneClock, Race, digest};
use swarm_core::sim::{Setup, Sim, SimFabric};
use swarm_kv_long::steps::{Deed, Steps};

use crate::domain::{Notes, SimParticipant, Works};
use crate::store_sim_common::{Line, Members, Story, options};
use crate::watched::{Outcome, Watched};
use crate::{
    CAPACITY, Cast, Depth, NODES, NOW, OF_MANY_STEPS, depth, explore_deep, explore_each, geometry,
};

/// Rounds within which what leads up to a race is over.
const ENOUGH: usize = 10_000;

/// A node and a client die, or two clients.
const TWO_CRASHES: &[Depth] = &[depth(0, 1, 1), depth(0, 0, 2)];

/// Explores a race up to one thing that goes wrong, and up to `more` where it is its turn to be explored deep.
fn explore_objects(name: &str, more: &[Depth], begin: impl Fn() -> Race) {
    explore_each(name, OF_MANY_STEPS, &begin);
    explore_deep(name, more, &begin);
}

/// Clients that do not reach a node.
type CutOff = Option<(&'static [usize], NodeId)>;

/// What the clients of a race share.
struct Stage<D> {
    sim: Sim,
    recorder: Recorder,
    notes: Rc<Notes>,
    outcome: Rc<Outcome>,
    hung_up: Rc<Cell<bool>>,
    /// What they do with the object.
    history: Rc<Steps<D>>,
    has_begun: Rc<Cell<bool>>,
    stories: Vec<Rc<Story>>,
    /// Clients, and a node that they do not reach.
    cut_off: CutOff,
}

/// All nodes, except one.
#[derive(Debug)]
struct AllBut(NodeId);

impl Members for AllBut {
    fn nodes(&self) -> usize {
        NODES.len()
    }

    fn reconfigure(&self) {}

    fn physical(&self, node: NodeId) -> Option<NodeId> {
        (node != self.0).then_some(node)
    }

    fn is_lost(&self) -> bool {
        false
    }
}

/// A client of a race.
struct Actor<D> {
    story: Rc<Story>,
    world: SimFabric,
    history: Rc<Steps<D>>,
    has_begun: Rc<Cell<bool>>,
}

impl<D: Deed> Actor<D> {
    /// Notes what it does.
    fn note(&self, deed: D) {
        self.history.note(self.story.id, deed, |client| self.world.is_gone(client));
    }

    /// Waits for the race to begin.
    async fn begins(&self) {
        poll_fn(|_| if self.has_begun.get() { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Lets time pass between two looks.
    async fn sleeps(&self) {
        let mut has_slept = false;
        poll_fn(
            |_| {
                if mem::replace(&mut has_slept, true) { Poll::Ready(()) } else { Poll::Pending }
            },
        )
        .await;
    }
}

impl<D: Deed + 'static> Stage<D> {
    /// With so many racers, of which some may be cut off from a node.
    fn new(racers: usize, cut_off: CutOff) -> Self {
        let sim = Sim::new(&Setup { words: CAPACITY / 8, ..Setup::new(1, 3, racers + 4) });
        let (recorder, history) = (Recorder::new(), Rc::<Steps<D>>::default());
        let (notes, outcome, hung_up, has_begun) = Default::default();
        // No node is late: one that does not answer says so.
        let mut stage = Self {
            sim,
            recorder,
            notes,
            outcome,
            hung_up,
            history,
            has_begun,
            stories: Vec::new(),
            cut_off,
        };
        stage.stories =
            (0..racers).map(|id| stage.story(id, LoneClock::new(NOW), 1 << 56)).collect();
        stage
    }

    /// Makes a client that finds nodes late after so many nanoseconds.
    fn story(&self, id: usize, clock: impl Clock + 'static, late: u64) -> Rc<Story> {
        let away = self.cut_off.filter(|(clients, _)| clients.contains(&id));
        let members = away.map(|(_, node)| Rc::new(AllBut(node)) as Rc<dyn Members>);
        let line = Line { inner: self.sim.fabric(id), hung_up: Rc::clone(&self.hung_up), members };
        let connection = (line, Rc::new(clock) as _);
        let options = options((late, 1 << 60));
        let story =
            Story::new(connection, geometry(), (id, id, id as u64 + 1), options, &self.recorder);
        let participant = SimParticipant::new(&self.notes, self.sim.fabric(id), id);
        let watched = Watched::new(participant, &self.outcome, &Rc::default());
        Rc::new(Story { client: story.client.with_epochs(Box::new(watched)), ..story })
    }

    /// A client begins to do this.
    fn spawn<T: Future<Output = ()> + 'static>(
        &mut self,
        story: &Rc<Story>,
        task: impl FnOnce(Actor<D>) -> T,
    ) {
        let works = Works::new(&self.notes, story.id);
        let task = task(Actor {
            story: Rc::clone(story),
            world: self.sim.fabric(story.id),
            history: Rc::clone(&self.history),
            has_begun: Rc::clone(&self.has_begun),
        });
        self.sim.spawn(story.id, async move {
            let _works = works;
            task.await;
        });
    }

    /// A racer does this, alone, until that is so.
    fn until(&mut self, racer: usize, is_so: impl Fn(&Self) -> bool) {
        self.sim.poll_once(racer);
        for _ in 0..ENOUGH {
            if is_so(self) {
                return;
            }
            self.sim.roundtrip(racer, &NODES);
        }
        panic!("client {racer} does not come so far");
    }

    /// A racer does all that it is to do, alone.
    fn all(&mut self, racer: usize) {
        assert!(self.sim.finish(racer, &NODES), "client {racer} does not end");
        self.sim.drain();
    }

    /// The race, from here on.
    fn race(mut self, check: impl FnOnce(&mut Self) -> Result<(), String> + 'static) -> Race {
        self.has_begun.set(true);
        let sim = mem::replace(&mut self.sim, Sim::new(&Setup::new(1, 1, 1)));
        let racers = self.stories.len();
        let (recorder, history) = (self.recorder.clone(), Rc::clone(&self.history));
        let (outcome, notes) = (Rc::clone(&self.outcome), Rc::clone(&self.notes));
        let digest = move || {
            let print = digest(&recorder.operations()).rotate_left(1) ^ outcome.print(&notes);
            print.rotate_left(1) ^ history.digest()
        };
        let cast = Cast { hung_up: Rc::clone(&self.hung_up), racers: self.stories.clone() };
        let check: Check = Box::new(move |sim: &mut Sim| {
            let _cast = cast;
            mem::swap(&mut self.sim, sim);
            check(&mut self)
        });
        Race { sim, racers, digest: Box::new(digest), check }
    }

    /// A client that was not there before does this at the end, where the nodes other than `away` answer; nothing, if they
    /// are no majority. Returns whether it comes to its end.
    fn at_the_end<T: Future<Output = ()> + 'static>(
        &mut self,
        away: usize,
        task: impl FnOnce(Actor<D>) -> T,
    ) -> Result<(), String> {
        let is_there = |node: &_| *node != NODES[away] && !self.sim.is_away(*node);
        let nodes: Vec<_> = NODES.into_iter().filter(is_there).collect();
        if nodes.len() < 2 {
            return Ok(());
        }
        let id = self.stories.len() + 1 + away;
        let story = self.story(id, self.sim.clock(id), 100);
        self.spawn(&story, task);
        let ends = self.sim.finish(story.id, &nodes);
        if ends { Ok(()) } else { Err(format!("a client without {} does not end", NODES[away])) }
    }
}
