//! Every schedule of a small race, within bounds.
//!
//! A [`Race`] is played again and again from its beginning, each time by another schedule: a depth
//! first search over the moves that there are at each point. By default who is on goes on; each
//! time something else is picked instead is a *surprise*, of which [`Bounds`] allow so many, or any
//! number. Crashes are no surprises: they have bounds of their own, and happen anywhere.
//!
//! A schedule that comes to a state that was met before, with no fewer surprises left then, is cut
//! off there. That is what makes the search feasible: two steps that do not depend on each other
//! lead to the same state in either order. It rests on this: *what a client does next depends on
//! nothing but what it was told*, so that all state is in the nodes' memories, in the chains on
//! their way, and in what each client has heard and when it was polled. Clients must therefore go
//! by a [`LoneClock`], and states are compared by a hash of 64 bits.

use core::cell::Cell;
use core::fmt;
use std::boxed::Box;
use std::collections::HashMap;
use std::rc::Rc;
use std::string::String;
use std::vec::Vec;
use std::{env, format, print, println};

use super::chain::mix;
use super::scheduler::Sim;
use super::seeds::{again, at_least_one, is_deep, number};
use super::world::NodeState;
use crate::clock::Clock;
use crate::history::{Answer, Operation};
use crate::node::{MAX_NODES, NodeId};

/// Moves after which a schedule counts as one that never ends.
const LONGEST: usize = 20_000;
/// Polls of a client that waits for time to pass, after which it counts as one that waits in vain.
const PATIENCE: usize = 20_000;
/// Nanoseconds that pass when a [`LoneClock`] is looked at, if nobody says otherwise.
const LOOK: u64 = 100;

/// A clock that goes on only when its client looks at it.
#[derive(Debug)]
pub struct LoneClock {
    now: Cell<u64>,
    look: u64,
}

impl LoneClock {
    /// A clock that shows `now` first.
    pub fn new(now: u64) -> Self {
        Self { now: Cell::new(now), look: LOOK }
    }

    /// So many nanoseconds pass when it is looked at.
    #[must_use]
    pub fn with_look(self, look: u64) -> Self {
        Self { look, ..self }
    }

    /// So many nanoseconds pass.
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

/// What can be told apart, and so what comes in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grain {
    /// Each word, those of a verb in order.
    Word,
    /// Each verb.
    Verb,
    /// Each chain.
    Chain,
}

/// Which schedules are played.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// What a step of a chain is.
    pub grain: Grain,
    /// How often something else than the default happens at most; `None`: as often as can be.
    pub surprises: Option<usize>,
    /// How many nodes crash at most.
    pub node_crashes: usize,
    /// How many racers die at most.
    pub client_crashes: usize,
    /// How many schedules are played at most.
    pub schedules: u64,
}

/// A race at its beginning.
pub struct Race {
    /// The nodes and clients, whose tasks are spawned and not polled yet.
    pub sim: Sim,
    /// Clients from 0 on that race. Others may be made use of by `check`.
    pub racers: usize,
    /// A hash of all that `check` goes by, beside the simulator: see [`digest`].
    pub digest: Box<dyn Fn() -> u64>,
    /// Judges what came of it once nothing is on its way any more. Says what is wrong.
    pub check: Check,
}

/// What judges a race.
pub type Check = Box<dyn FnOnce(&mut Sim) -> Result<(), String>>;

/// What was explored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Explored {
    /// Schedules that were played to their end.
    pub ended: u64,
    /// Schedules that were cut off in a state that was met before.
    pub cut: u64,
    /// Different states.
    pub states: u64,
    /// Moves of the longest schedule.
    pub longest: usize,
    /// Whether these were all schedules within bounds.
    pub all: bool,
}

/// A schedule that went wrong.
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

/// A hash of a history, for [`Race::digest`].
pub fn digest(history: &[Operation]) -> u64 {
    history.iter().fold(0, |hash, operation| {
        let (at, answer) = match operation.answered {
            None => (0, 0),
            Some((at, Answer::Done)) => (at, 1),
            Some((at, Answer::Refused)) => (at, 2),
            Some((at, Answer::Value(value))) => (at, value.map_or(3, |value| value + 4)),
        };
        [operation.called, at, answer].into_iter().fold(hash, mix)
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// A racer's next step at a node.
    Step(usize, NodeId),
    /// A completion arrives.
    Hear(usize, NodeId),
    /// A racer that heard something goes on.
    Poll(usize),
    /// Time passes for a racer that waits for nothing else.
    Wake(usize),
    /// A node is gone, and says so.
    Crash(NodeId),
    /// A racer dies, and its chains with it.
    Die(usize),
}

impl Move {
    fn code(self) -> u64 {
        let (kind, client, node) = match self {
            Self::Step(client, node) => (0, client, node.index()),
            Self::Hear(client, node) => (1, client, node.index()),
            Self::Poll(client) => (2, client, 0),
            Self::Wake(client) => (3, client, 0),
            Self::Crash(node) => (4, 0, node.index()),
            Self::Die(client) => (5, client, 0),
        };
        (kind * 256 + client as u64) * MAX_NODES as u64 + node as u64
    }
}

/// What can happen next.
struct Moves {
    /// What is expected, what is a surprise, then crashes.
    all: Vec<Move>,
    /// How many of them are not crashes.
    lively: usize,
}

/// One schedule while it is played.
struct Play {
    race: Race,
    bounds: Bounds,
    /// Whether a racer has heard something since it was polled.
    news: Vec<bool>,
    /// A hash of what each racer knew when it was polled.
    polled: Vec<u64>,
    dead: usize,
    /// The racer that is on, and where.
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

    /// What can happen next; the first is what is expected.
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
            let hears = nodes.iter().filter(|node| world.can_deliver(queue(node)));
            moves.extend(hears.map(|&node| Move::Hear(racer, node)));
            if sim.tasks(racer) > 0 {
                if self.news[racer] {
                    moves.push(Move::Poll(racer));
                } else if !world.awaits(racer) {
                    wakes.push(Move::Wake(racer));
                }
            }
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
                    Grain::Chain => sim.take_chains(racer, node, 1),
                    Grain::Verb => sim.take_verbs(racer, node, 1),
                    Grain::Word => {
                        let mut world = sim.world();
                        let queue = world.queue(racer, node);
                        world.step_word(queue);
                    }
                }
            }
            Move::Hear(racer, node) => {
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
                sim.world().bury(racer);
            }
        }
    }

    fn poll(&mut self, racer: usize) {
        self.news[racer] = false;
        self.polled[racer] = mix(self.polled[racer], self.race.sim.world().heard(racer));
        self.race.sim.poll_once(racer);
    }

    /// A hash of the state, with all that the moves and their order depend on.
    fn print(&self) -> u64 {
        let world = self.race.sim.world();
        let mut hash = mix(world.print(), (self.race.digest)());
        for (racer, (&polled, &news)) in self.polled.iter().zip(&self.news).enumerate() {
            hash = mix(mix(hash, polled), u64::from(news) * 2 + u64::from(world.is_dead(racer)));
        }
        for node in self.nodes() {
            hash = mix(hash, u64::from(world.node_state(node) == NodeState::Up));
        }
        // What is expected only matters if something else is a surprise.
        if self.bounds.surprises.is_some() {
            hash = mix(hash, Move::Step(self.on.0, self.on.1).code());
        }
        hash
    }

    /// Finds the move that is to be made.
    fn pick(&self, made: &mut Made) -> Option<Move> {
        let Moves { all, lively } = self.moves();
        (made.of, made.lively) = (all.len(), lively);
        made.made = all.get(made.choice).copied();
        made.made
    }

    /// What is wrong with how it ended.
    fn judge(self) -> Result<(), String> {
        let Self { race: Race { mut sim, racers, check, .. }, .. } = self;
        let waiting = (0..racers).find(|&racer| sim.tasks(racer) > 0);
        if let Some(racer) = waiting {
            return Err(format!("client {racer} waits for what does not come"));
        }
        check(&mut sim)
    }
}

/// A move that was made, which of how many it was, and the surprises before it.
#[derive(Clone, Copy)]
struct Made {
    /// `None` if it is to be the one that `choice` says.
    made: Option<Move>,
    choice: usize,
    of: usize,
    /// How many are not crashes.
    lively: usize,
    spent: usize,
}

impl Made {
    /// How many surprises it is.
    fn surprise(&self) -> usize {
        usize::from((1..self.lively).contains(&self.choice))
    }
}

struct Search<B> {
    begin: B,
    bounds: Bounds,
    /// The surprises that were left when a state was met.
    met: HashMap<u64, usize>,
    explored: Explored,
}

impl<B: Fn() -> Race> Search<B> {
    fn most(&self) -> usize {
        self.bounds.surprises.unwrap_or(usize::MAX)
    }

    /// Plays the schedule that begins with `script`, which becomes all of it.
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
                return play.judge().map_err(|wrong| guard.tell(&wrong));
            };
            guard.made.push((next, script[at].choice > 0));
            play.make(next);
            if let Some(racer) = play.stuck {
                return Err(guard.tell(&format!("client {racer} waits in vain")));
            }
        }
        Err(guard.tell("does not end"))
    }

    /// The script of the next schedule: another move at the last step where one is within bounds.
    /// False if there is none.
    fn next(&self, script: &mut Vec<Made>) -> bool {
        while let Some(last) = script.pop() {
            let Made { choice, of, lively, spent, .. } = last;
            // Out of surprises, there are crashes left.
            let next = if spent < self.most() { choice + 1 } else { lively.max(choice + 1) };
            if next < of {
                script.push(Made { made: None, choice: next, ..last });
                return true;
            }
        }
        false
    }
}

/// Tells the story of a schedule that fails, also when it panics.
struct Guard<'a, B: Fn() -> Race> {
    begin: &'a B,
    bounds: Bounds,
    /// The moves, and whether they were surprises.
    made: Vec<(Move, bool)>,
}

impl<B: Fn() -> Race> Guard<'_, B> {
    /// Plays the schedule once more and says what happens.
    fn tell(&self, wrong: &str) -> Failure {
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
            println!("{}", self.tell("a panic"));
        }
    }
}

/// Plays all schedules of a race within `bounds`. `begin` makes the same race each time.
///
/// # Errors
/// The first schedule that goes wrong.
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

/// Those of `bounds` within which the race of this name is explored this time: where nodes and clients crash and somebody
/// is surprised as well there are most schedules by far, and not all races [are explored so deep](is_deep).
pub fn chosen<'b>(race: &str, bounds: &'b [Bounds]) -> impl Iterator<Item = &'b Bounds> {
    let deep = is_deep(race);
    let crashes = |bounds: &Bounds| bounds.node_crashes + bounds.client_crashes > 0;
    bounds.iter().filter(move |bounds| deep || bounds.surprises == Some(0) || !crashes(bounds))
}

/// [`explore`] for a test: prints what was explored.
///
/// `SWARM_SURPRISES` (a number, or `all`) takes the place of the bound of that name,
/// `SWARM_EXPLORED` that of how many schedules are played at most.
///
/// # Panics
/// With the story of the first schedule that goes wrong; if these were not all schedules within
/// bounds, and neither variable asks for others.
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
    match explore(bounds, begin) {
        Ok(explored) => {
            let Explored { ended, cut, states, longest, all } = explored;
            let all = if all { "all" } else { "not all," };
            let of = match bounds.surprises {
                Some(most) => {
                    format!("{:?} by {:?}, up to {most} surprises", bounds.grain, bounds.grain)
                }
                None => format!("{:?} by {:?}", bounds.grain, bounds.grain),
            };
            let (nodes, clients) = (bounds.node_crashes, bounds.client_crashes);
            print!("{name}: {all} {} schedules ({}, ", ended + cut, of.to_lowercase());
            print!("{nodes} node crashes, {clients} client crashes), ");
            println!("{ended} to their end; {states} states, {longest} moves at most");
            assert!(explored.all || !usual, "{name}: there are more schedules within bounds");
            explored
        }
        Err(failure) => {
            panic!("{name}, to be played again by `{}`: {failure}", again("SWARM_DEEP=all"))
        }
    }
}
