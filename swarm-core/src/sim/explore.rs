//! Every schedule of a small race, within bounds.
//!
//! A [`Race`] is run again and again from its start, each time under another schedule: a
//! depth-first search over the moves that are possible at each point. By default the current racer
//! goes on; each other pick is a *surprise* (a preemption), whose number [`Bounds`] may limit.
//! Crashes are no surprises: they have bounds of their own, and happen anywhere.
//!
//! A schedule that reaches a known state, with no more surprises left than before, is cut off
//! there. That makes the search feasible: two independent steps lead to the same state in either
//! order. **Invariant:** a client's next action depends only on the replies that it received. So
//! the whole state is in the nodes' memories, in the pending chains, and in what each client has
//! received and when it was polled. Clients must therefore use a [`LoneClock`]. States are compared
//! by a hash of 64 bits.

use core::cell::Cell;
use core::fmt::{self, Display, Formatter};
use std::boxed::Box;
use std::collections::HashMap;
use std::rc::Rc;
use std::string::String;
use std::time::Instant;
use std::vec::Vec;
use std::{env, format, print, println};

use super::chain::mix;
use super::scheduler::Sim;
use super::seeds::{again, at_least_one, is_deep, number};
use super::world::NodeState;
use crate::clock::Clock;
use crate::history::{Answer, Operation};
use crate::node::{MAX_NODES, NodeId};

/// Number of moves after which a schedule counts as one that never ends.
const LONGEST: usize = 20_000;
/// Number of polls after which a client that waits for time to pass counts as stuck.
const PATIENCE: usize = 20_000;
/// Nanoseconds that pass with each look at a [`LoneClock`], by default.
const LOOK: u64 = 100;

/// A clock that advances only when its client looks at it.
#[derive(Debug)]
pub struct LoneClock {
    now: Cell<u64>,
    look: u64,
}

impl LoneClock {
    /// Makes a clock that shows `now` first.
    pub fn new(now: u64) -> Self {
        Self { now: Cell::new(now), look: LOOK }
    }

    /// Sets how many nanoseconds pass with each look.
    #[must_use]
    pub fn with_look(self, look: u64) -> Self {
        Self { look, ..self }
    }

    /// Lets this many nanoseconds pass.
    pub fn pass(&self, nanoseconds: u64) {
        self.now.set(self.now.get() + nanoseconds);
    }
}

impl Clock for LoneClock {
    fn now(&self) -> u64 {
        let now = self.now.get();
        self.pass(self.look);
        now
    }
}

impl<C: Clock + ?Sized> Clock for Rc<C> {
    fn now(&self) -> u64 {
        (**self).now()
    }
}

/// The unit of a step, between which others run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepSize {
    /// Each word, those of a verb in order.
    Word,
    /// Each verb.
    Verb,
    /// Each chain.
    Chain,
}

/// Which schedules are run.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// What a step of a chain is.
    pub grain: StepSize,
    /// Maximum number of surprises; `None`: no limit.
    pub surprises: Option<usize>,
    /// Maximum number of nodes that crash.
    pub node_crashes: usize,
    /// Maximum number of racers that die.
    pub client_crashes: usize,
    /// Maximum number of schedules that are run.
    pub schedules: u64,
}

impl Display for Bounds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Bounds { grain, surprises, node_crashes, client_crashes, .. } = self;
        let step = format!("{grain:?}").to_lowercase();
        write!(f, "{step} by {step}, ")?;
        if let Some(most) = surprises {
            write!(f, "up to {most} surprises, ")?;
        }
        write!(f, "{node_crashes} node crashes, {client_crashes} client crashes")
    }
}

/// A race at its start.
pub struct Race {
    /// The nodes and clients, whose tasks are spawned but not polled yet.
    pub sim: Sim,
    /// The clients 0 to `racers` - 1 race. `check` may use others.
    pub racers: usize,
    /// Returns a hash of all that `check` depends on besides the simulator: see [`digest`].
    pub digest: Box<dyn Fn() -> u64>,
    /// Checks the outcome once no chain is pending. Describes what is wrong.
    pub check: Check,
}

/// The function that checks a race.
pub type Check = Box<dyn FnOnce(&mut Sim) -> Result<(), String>>;

/// The extent of an exploration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Explored {
    /// Schedules that were run to their end.
    pub ended: u64,
    /// Schedules that were cut off in a known state.
    pub cut: u64,
    /// Number of different states.
    pub states: u64,
    /// Moves of the longest schedule.
    pub longest: usize,
    /// Whether these were all schedules within bounds.
    pub all: bool,
}

/// A schedule that failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What was wrong, and the steps that led to it.
    pub story: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.story)
    }
}

/// Returns a hash of a history, for [`Race::digest`].
pub fn digest(history: &[Operation]) -> u64 {
    history.iter().fold(0, |hash, operation| {
        let (at, answer) = match operation.answered {
            None => (0, 0),
            Some((at, Answer::Done)) => (at, 1),
            Some((at, Answer::Refused)) => (at, 2),
            Some((at, Answer::Value(value))) => (at, value.map_or(3, |value| value + 4)),
            Some((at, Answer::Life(life))) => {
                (at, life.map_or(3, |has_one| 4 + u64::from(has_one)))
            }
        };
        [operation.called, at, answer].into_iter().fold(hash, mix)
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// A racer's next step at a node.
    Step(usize, NodeId),
    /// A completion arrives.
    Receive(usize, NodeId),
    /// A racer that received a completion is polled.
    Poll(usize),
    /// Time passes for a racer that waits for nothing else.
    Wake(usize),
    /// A node crashes, and reports that it is down.
    Crash(NodeId),
    /// A racer dies, and its chains with it.
    Die(usize),
}

impl Move {
    fn code(self) -> u64 {
        let (kind, client, node) = match self {
            Self::Step(client, node) => (0, client, node.index()),
            Self::Receive(client, node) => (1, client, node.index()),
            Self::Poll(client) => (2, client, 0),
            Self::Wake(client) => (3, client, 0),
            Self::Crash(node) => (4, 0, node.index()),
            Self::Die(client) => (5, client, 0),
        };
        (kind * 256 + client as u64) * MAX_NODES as u64 + node as u64
    }
}

/// The moves that are possible next.
struct Moves {
    /// The expected move, then the surprises, then crashes.
    all: Vec<Move>,
    /// Number of moves that are not crashes.
    lively: usize,
}

/// One schedule while it is run.
struct Play {
    race: Race,
    bounds: Bounds,
    /// Whether a racer has received a completion since it was polled.
    news: Vec<bool>,
    /// A hash of what each racer knew when it was polled.
    polled: Vec<u64>,
    dead: usize,
    /// The current racer, and its node.
    on: (usize, NodeId),
    stuck: Option<usize>,
}

impl Play {
    fn new(race: Race, bounds: Bounds) -> Self {
        let (news, polled) = (std::vec![true; race.racers], std::vec![0; race.racers]);
        Self { race, bounds, news, polled, dead: 0, on: (0, NodeId(0)), stuck: None }
    }

    fn nodes(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.race.sim.nodes()).map(|node| NodeId(node as u8))
    }

    /// Returns the moves that are possible next; the first is expected.
    fn moves(&self) -> Moves {
        let (sim, racers) = (&self.race.sim, self.race.racers);
        let (on, at) = self.on;
        let mut moves = Vec::new();
        let mut wakes = Vec::new();
        let world = sim.world();
        for racer in (0..racers).map(|step| (on + step) % racers) {
            let queue = |node: &NodeId| world.queue(racer, *node);
            let first = if racer == on { at } else { NodeId(0) };
            let turn = |node: &NodeId| (node.index() + sim.nodes() - first.index()) % sim.nodes();
            let mut nodes: Vec<NodeId> = self.nodes().collect();
            nodes.sort_by_key(turn);
            let steps = nodes.iter().filter(|node| world.can_step(queue(node)));
            moves.extend(steps.map(|&node| Move::Step(racer, node)));
            if world.is_dead(racer) {
                continue;
            }
            let replies = nodes.iter().filter(|node| world.can_deliver(queue(node)));
            moves.extend(replies.map(|&node| Move::Receive(racer, node)));
            if sim.tasks(racer) > 0 {
                if self.news[racer] {
                    moves.push(Move::Poll(racer));
                } else if !world.awaits(racer) {
                    wakes.push(Move::Wake(racer));
                }
            }
        }
        // Those that only let time pass take turns: one that waits for another does not look for ever.
        if wakes.first() == Some(&Move::Wake(on)) {
            wakes.rotate_left(1);
        }
        moves.extend(wakes);
        let lively = moves.len();
        if lively == 0 {
            return Moves { all: moves, lively };
        }
        let up = |node: &NodeId| world.node_state(*node) == NodeState::Up;
        if self.nodes().filter(up).count() + self.bounds.node_crashes > sim.nodes() {
            moves.extend(self.nodes().filter(up).map(Move::Crash));
        }
        if self.dead < self.bounds.client_crashes {
            let alive = |racer: &usize| !world.is_dead(*racer) && sim.tasks(*racer) > 0;
            moves.extend((0..racers).filter(alive).map(Move::Die));
        }
        Moves { all: moves, lively }
    }

    fn make(&mut self, next: Move) {
        let sim = &mut self.race.sim;
        match next {
            Move::Step(racer, node) => {
                self.on = (racer, node);
                match self.bounds.grain {
                    StepSize::Chain => sim.take_chains(racer, node, 1),
                    StepSize::Verb => sim.take_verbs(racer, node, 1),
                    StepSize::Word => {
                        let mut world = sim.world();
                        let queue = world.queue(racer, node);
                        world.step_word(queue);
                    }
                }
            }
            Move::Receive(racer, node) => {
                self.on = (racer, node);
                self.news[racer] = true;
                let mut world = sim.world();
                let queue = world.queue(racer, node);
                world.deliver_oldest(queue);
            }
            Move::Poll(racer) => {
                self.on.0 = racer;
                self.poll(racer);
            }
            Move::Wake(racer) => {
                self.on.0 = racer;
                self.stuck = Some(racer);
                for _ in 0..PATIENCE {
                    self.poll(racer);
                    let sim = &self.race.sim;
                    if sim.tasks(racer) == 0 || sim.world().awaits(racer) {
                        self.stuck = None;
                        break;
                    }
                }
            }
            Move::Crash(node) => sim.crash_node(node, false),
            Move::Die(racer) => {
                self.dead += 1;
                sim.drop_tasks(racer);
                (0..sim.nodes()).for_each(|node| sim.lose_chains(racer, NodeId(node as u8)));
                sim.world().mark_dead(racer);
            }
        }
    }

    fn poll(&mut self, racer: usize) {
        self.news[racer] = false;
        self.polled[racer] = mix(self.polled[racer], self.race.sim.world().replies_hash(racer));
        self.race.sim.poll_once(racer);
    }

    /// Returns a hash of the state, with all that the moves and their order depend on.
    fn print(&self) -> u64 {
        let world = self.race.sim.world();
        let mut hash = mix(world.print(), (self.race.digest)());
        for (racer, (&polled, &news)) in self.polled.iter().zip(&self.news).enumerate() {
            hash = mix(mix(hash, polled), u64::from(news) * 2 + u64::from(world.is_dead(racer)));
        }
        for node in self.nodes() {
            hash = mix(hash, u64::from(world.node_state(node) == NodeState::Up));
        }
        // The expected move matters only if another one is a surprise.
        if self.bounds.surprises.is_some() {
            hash = mix(hash, Move::Step(self.on.0, self.on.1).code());
        }
        hash
    }

    /// Determines the move to make.
    fn pick(&self, made: &mut Made) -> Option<Move> {
        let Moves { all, lively } = self.moves();
        (made.of, made.lively) = (all.len(), lively);
        made.made = all.get(made.choice).copied();
        made.made
    }

    /// Checks the outcome.
    fn check_outcome(self) -> Result<(), String> {
        let Self { race: Race { mut sim, racers, check, .. }, .. } = self;
        let waiting = (0..racers).find(|&racer| sim.tasks(racer) > 0);
        if let Some(racer) = waiting {
            return Err(format!("client {racer} waits for what does not come"));
        }
        check(&mut sim)
    }
}

/// A move that was made, its number among the possible ones, and the surprises before it.
#[derive(Clone, Copy)]
struct Made {
    /// `None` if `choice` still has to determine it.
    made: Option<Move>,
    choice: usize,
    of: usize,
    /// Number of moves that are not crashes.
    lively: usize,
    spent: usize,
}

impl Made {
    /// Returns 1 if it is a surprise, otherwise 0.
    fn surprise(&self) -> usize {
        usize::from((1..self.lively).contains(&self.choice))
    }
}

struct Search<B> {
    begin: B,
    bounds: Bounds,
    /// The number of surprises left when a state was reached.
    met: HashMap<u64, usize>,
    explored: Explored,
}

impl<B: Fn() -> Race> Search<B> {
    fn most(&self) -> usize {
        self.bounds.surprises.unwrap_or(usize::MAX)
    }

    /// Runs the schedule that begins with `script`, and extends `script` to all of it.
    fn play(&mut self, script: &mut Vec<Made>) -> Result<(), Failure> {
        let most = self.most();
        let mut play = Play::new((self.begin)(), self.bounds);
        let mut guard = Guard { begin: &self.begin, bounds: self.bounds, made: Vec::new() };
        for at in 0..LONGEST {
            let spent = script.last().map_or(0, |last| last.spent + last.surprise());
            if at >= script.len() {
                let (print, left) = (play.print(), most - spent);
                if self.met.get(&print).is_some_and(|&before| before >= left) {
                    self.explored.cut += 1;
                    return Ok(());
                }
                self.met.insert(print, left);
                script.push(Made { made: None, choice: 0, of: 0, lively: 0, spent });
            }
            let Some(next) = script[at].made.or_else(|| play.pick(&mut script[at])) else {
                script.pop();
                self.explored.ended += 1;
                self.explored.longest = self.explored.longest.max(at);
                return play.check_outcome().map_err(|wrong| guard.describe(&wrong));
            };
            guard.made.push((next, script[at].choice > 0));
            play.make(next);
            if let Some(racer) = play.stuck {
                return Err(guard.describe(&format!("client {racer} waits in vain")));
            }
        }
        Err(guard.describe("does not end"))
    }

    /// Turns `script` into the start of the next schedule: another move at the last step where one
    /// is within bounds. Returns false if there is none.
    fn next(&self, script: &mut Vec<Made>) -> bool {
        while let Some(last) = script.pop() {
            let Made { choice, of, lively, spent, .. } = last;
            // Without surprises left, crashes remain.
            let next = if spent < self.most() { choice + 1 } else { lively.max(choice + 1) };
            if next < of {
                script.push(Made { made: None, choice: next, ..last });
                return true;
            }
        }
        false
    }
}

/// Prints the steps of a schedule that fails, also if it panics.
struct Guard<'a, B: Fn() -> Race> {
    begin: &'a B,
    bounds: Bounds,
    /// The moves, and whether they were surprises.
    made: Vec<(Move, bool)>,
}

impl<B: Fn() -> Race> Guard<'_, B> {
    /// Runs the schedule once more and describes what happens.
    fn describe(&self, wrong: &str) -> Failure {
        let mut play = Play::new((self.begin)(), self.bounds);
        play.race.sim.start_trace();
        let mut most = self.made.len();
        if std::thread::panicking() {
            // The last move is the one that panics.
            most -= 1;
        }
        self.made[..most].iter().for_each(|&(next, _)| play.make(next));
        let trace = play.race.sim.take_trace();
        let surprises = self.made.iter().filter(|(_, surprise)| *surprise).count();
        let moves = self.made.len();
        let story = format!("{wrong}, after {moves} moves with {surprises} surprises:\n{trace:#}");
        Failure { story }
    }
}

impl<B: Fn() -> Race> Drop for Guard<'_, B> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}", self.describe("a panic"));
        }
    }
}

/// Runs all schedules of a race within `bounds`. `begin` makes the same race each time.
///
/// # Errors
/// The first schedule that fails.
pub fn explore(bounds: Bounds, begin: impl Fn() -> Race) -> Result<Explored, Failure> {
    let mut search = Search { begin, bounds, met: HashMap::new(), explored: Explored::default() };
    let mut script = Vec::new();
    for _ in 0..bounds.schedules {
        search.play(&mut script)?;
        if !search.next(&mut script) {
            search.explored.all = true;
            break;
        }
    }
    search.explored.states = search.met.len() as u64;
    Ok(search.explored)
}

/// Returns those of `bounds` within which the race of this name is explored in this run. Bounds
/// with both crashes and surprises have the most schedules by far, and not all races
/// [are explored that deep](is_race_deep).
pub fn chosen<'b>(race: &str, bounds: &'b [Bounds]) -> impl Iterator<Item = &'b Bounds> {
    let crashes = |bounds: &Bounds| bounds.node_crashes + bounds.client_crashes > 0;
    let is_cheap = move |bounds: &Bounds| bounds.surprises == Some(0) || !crashes(bounds);
    bounds.iter().filter(move |bounds| is_cheap(bounds) || is_race_deep(race, bounds))
}

/// Returns whether it is the turn of a race [to be explored deep](is_deep) within these bounds. Other
/// bounds of the same race have other turns, so that all turns cost about as much.
pub fn is_race_deep(race: &str, bounds: &Bounds) -> bool {
    is_deep(&format!("{race} ({bounds})"))
}

/// [`explore`] for a test: prints what was explored.
///
/// `SWARM_SURPRISES` (a number, or `all`) overrides the bound of that name, `SWARM_EXPLORED` the
/// maximum number of schedules.
///
/// # Panics
/// With the first schedule that fails; or if these were not all schedules within bounds, and
/// neither variable is set.
pub fn explore_or_panic(name: &str, bounds: Bounds, begin: impl Fn() -> Race) -> Explored {
    let (surprises, most) = ("SWARM_SURPRISES", "SWARM_EXPLORED");
    let usual = env::var_os(surprises).is_none() && env::var_os(most).is_none();
    let surprises = match env::var_os(surprises) {
        Some(text) if text == "all" => None,
        Some(_) => number(surprises).map(|most| most as usize),
        None => bounds.surprises,
    };
    let schedules = at_least_one(most, bounds.schedules);
    let bounds = Bounds { surprises, schedules, ..bounds };
    let start = Instant::now();
    match explore(bounds, begin) {
        Ok(explored) => {
            let Explored { ended, cut, states, longest, all } = explored;
            let all = if all { "all" } else { "not all," };
            print!("{name}: {all} {} schedules ({bounds}), ", ended + cut);
            print!("{ended} to their end; {states} states, {longest} moves at most, ");
            println!("{:.1} s", start.elapsed().as_secs_f64());
            assert!(explored.all || !usual, "{name}: there are more schedules within bounds");
            explored
        }
        Err(failure) => {
            panic!("{name}, to be played again by `{}`: {failure}", again("SWARM_DEEP=all"))
        }
    }
}
