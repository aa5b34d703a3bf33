//! Random schedules of clients that hold a lock one after the other, while nodes crash and are paused,
//! connections break, clients die, and some give up while they wait.
//!
//! What is checked: nobody enters while a client is inside that has not ended; each that enters has a larger
//! token than all before it; who leaves was inside until then; and all that live come to their ends.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use fastrand::Rng;
use swarm_core::history::Recorder;
use swarm_core::layout::Geometry;
use swarm_core::sim::seeds::seeds;
use swarm_core::sim::{FaultRates, Outcome, Setup, Sim, SimFabric, dropped_after};
use swarm_kv::objects::ObjectError;
use swarm_kv_long::domain::{Notes, SimParticipant, Works};
use swarm_kv_long::store_sim_common::{Line, Story, of_six_keys, options};

const CAPACITY: u64 = 8 << 20;
const LOCK: &[u8] = b"lock";
const CLIENTS: usize = 4;
/// How often each client enters.
const TURNS: u32 = 6;
/// Steps in which a fault of each kind happens about once.
const FAULTS: f64 = 800.0;

/// Who is inside, and all that were.
#[derive(Default)]
struct Inside {
    now: Cell<Option<usize>>,
    last: Cell<u64>,
    entered: Cell<u64>,
    /// How often a client entered after one that had died inside.
    taken_over: Cell<u64>,
    wrong: RefCell<Option<String>>,
}

impl Inside {
    fn enters(&self, id: usize, token: u64, world: &SimFabric) {
        if let Some(other) = self.now.replace(Some(id)) {
            self.taken_over.set(self.taken_over.get() + 1);
            if !world.is_gone(other) {
                self.is_wrong(format!("client {id} enters while client {other} is inside"));
            }
        }
        let last = self.last.replace(token);
        if token <= last {
            self.is_wrong(format!("client {id} enters with token {token} after {last}"));
        }
        self.entered.set(self.entered.get() + 1);
    }

    fn leaves(&self, id: usize) {
        if self.now.replace(None) != Some(id) {
            self.is_wrong(format!("client {id} leaves and was not inside"));
        }
    }

    fn is_wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }
}

/// One client's turns, and, as it lives on, a use of another lock: that gives up what it left half-way.
async fn turns(story: Rc<Story>, world: SimFabric, inside: Rc<Inside>, rng: Rng) {
    enters_and_leaves(&story, world, inside, rng).await;
    for _ in 0..100 {
        let other = story.client.lock(b"another lock");
        if other.try_acquire().await.is_ok() {
            return;
        }
    }
}

/// It ends where its operations fail: too few nodes answered, or others were always first.
async fn enters_and_leaves(story: &Story, world: SimFabric, inside: Rc<Inside>, mut rng: Rng) {
    for _ in 0..TURNS {
        let lock = story.client.lock(LOCK);
        let patience = (rng.u8(..4) == 0).then(|| rng.u32(1..200));
        let entering = lock.acquire();
        let guard = match dropped_after(patience, entering).await {
            None => continue,
            Some(Ok(guard)) => ManuallyDrop::new(guard),
            Some(Err(_)) => return,
        };
        inside.enters(story.id, guard.token(), &world);
        for _ in 0..rng.u8(..5) {
            // It takes its time.
            let _ = story.client.get(b"another key").await;
        }
        // From here on it may be over at any time.
        inside.leaves(story.id);
        match ManuallyDrop::into_inner(guard).release().await {
            Ok(()) | Err(ObjectError::Store(_)) => {}
            Err(other) => inside.is_wrong(format!("client {}: {other}", story.id)),
        }
    }
}

/// Runs a schedule. Returns how often clients entered, and took over from the dead.
fn run(seed: u64) -> (u64, u64) {
    let mut rng = Rng::with_seed(seed);
    let setup = Setup { words: CAPACITY / 8, ..Setup::new(seed, 3, CLIENTS) };
    let mut sim = Sim::new(&setup);
    sim.set_chaos(FaultRates::random(&mut rng, 3, CLIENTS, FAULTS));
    let geometry = Geometry::new(3, CAPACITY, 16, 7).expect("a small geometry");
    let geometry = of_six_keys(geometry).with_slots(4).expect("slots");
    let (recorder, hung_up) = (Recorder::new(), Rc::<Cell<bool>>::default());
    let (notes, inside) = (Rc::<Notes>::default(), Rc::<Inside>::default());
    let story = |id: usize| {
        let line = Line { inner: sim.fabric(id), hung_up: Rc::clone(&hung_up), members: None };
        let connection = (line, Rc::new(sim.clock(id)) as _);
        let identity = (id, id, id as u64 + 1);
        let late = (30_000, 50_000_000);
        let story = Story::new(connection, geometry, identity, options(late), &recorder);
        let participant = SimParticipant::new(&notes, sim.fabric(id), id);
        Rc::new(Story { client: story.client.with_epochs(Box::new(participant)), ..story })
    };
    let stories: Vec<_> = (0..CLIENTS).map(story).collect();
    for story in &stories {
        let (world, works) = (sim.fabric(story.id), Works::new(&notes, story.id));
        let turns = turns(Rc::clone(story), world, Rc::clone(&inside), rng.fork());
        sim.spawn(story.id, async move {
            let _works = works;
            turns.await;
        });
    }
    let mut outcome = sim.run(200_000);
    if outcome != Outcome::Done {
        sim.lift_faults();
        outcome = sim.run(3_000_000);
    }
    hung_up.set(true);
    let wrong = inside.wrong.take();
    let again = format!("SWARM_SEED={seed} cargo test -p swarm-kv-long --test locks_sim");
    assert_eq!(wrong, None, "{again}");
    assert_eq!(outcome, Outcome::Done, "{} entered: {again}", inside.entered.get());
    (inside.entered.get(), inside.taken_over.get())
}

#[test]
fn one_client_at_a_time_is_inside_under_any_schedule() {
    let (mut entered, mut taken_over) = (0, 0);
    for seed in seeds(1000) {
        let (inside, over) = run(seed);
        (entered, taken_over) = (entered + inside, taken_over + over);
    }
    println!(
        "{entered} times a client was inside, {taken_over} times after one that had died there"
    );
}
