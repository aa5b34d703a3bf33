//! Every schedule of a small race, up to a number of surprises.
//!
//! Three nodes, two rivals who change the same list, or one of them and a reader. By default the
//! one who is on goes on: the verbs of a client's chains to one node, then the client's next move.
//! Each time somebody else is picked instead, each crash of a node and each death of a client is a
//! surprise. All schedules of up to `SWARM_SURPRISES` surprises are played, one after the other, by
//! running the real code from the start again.

mod cell_common;

use std::cell::RefCell;
use std::env;
use std::rc::Rc;

use cell_common::{
    FORMAT, append, cell, is_born, list, number, plant, plant_object, record, solid, word,
};
use swarm_core::cell::{Proposed, View};
use swarm_core::fabric::{MAX_NODES, NodeId};
use swarm_core::group::{Group, Patience, Session};
use swarm_core::sim::{Setup, Sim, SimClock, SimFabric};
use swarm_core::words::{Incarnation, Pointer};

const NODES: [NodeId; 3] = [NodeId(0), NodeId(1), NodeId(2)];
/// Clients that race; others look at the result.
const RIVALS: usize = 2;
/// Polls in a row that change nothing, after which nothing will.
const IDLE: usize = 20_000;

/// What a race is between.
#[derive(Clone, Copy, Debug)]
struct Race {
    /// Whether node 2 missed the last change, so that only classic rounds can succeed.
    lagging: bool,
    /// Whether the second client reads.
    reader: bool,
}

/// What a client was told.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    Committed,
    Lost,
    List(Vec<u64>),
    /// Nothing it can rely on.
    Error,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// A client's next verb at a node.
    Verb(usize, NodeId),
    /// A client that heard something goes on.
    Poll(usize),
    /// A node is gone.
    Crash(NodeId),
    /// A client dies, and its chains with it.
    Die(usize),
}

struct Play {
    sim: Sim,
    race: Race,
    told: Rc<RefCell<[Option<Told>; RIVALS]>>,
    news: [bool; RIVALS],
    dead: [bool; RIVALS],
    gone: Option<NodeId>,
    last: Move,
    trace: Vec<Move>,
}

impl Play {
    fn new(race: Race) -> Self {
        let sim = Sim::new(&Setup { words: 1 << 13, ..Setup::new(1, 3, RIVALS + 3) });
        let at = cell(0).place;
        for node in NODES {
            let set = |at, value| sim.set_word(node, at, value);
            if !race.lagging || node != NODES[2] {
                plant_object(0, node, 3, set);
                plant(0, Pointer::NULL, 2, &[0], set);
                sim.set_word(node, at.at(node, 3), word(2, record(0), solid()).0);
            }
        }
        let told = Rc::default();
        let (news, dead) = ([true; RIVALS], [false; RIVALS]);
        let mut play = Self {
            sim,
            race,
            told,
            news,
            dead,
            gone: None,
            last: Move::Poll(0),
            trace: Vec::new(),
        };
        (0..RIVALS).for_each(|client| play.enter(client));
        play
    }

    fn group(&self, client: usize) -> Group<SimFabric, SimClock> {
        let session = Session { client, incarnation: Incarnation(client as u64 + 1) };
        let (fabric, clock) = (self.sim.fabric(client), self.sim.clock(client));
        Group::new(fabric, clock, FORMAT, session)
    }

    fn enter(&mut self, client: usize) {
        let group = self.group(client);
        // Nobody is late: who does not answer says so.
        group.set_patience(Patience { late_floor: 1 << 40, ..Patience::default() });
        let told = Rc::clone(&self.told);
        let Race { lagging, reader } = self.race;
        let mut words = [Some(word(2, record(0), solid())); MAX_NODES];
        if lagging {
            words[2] = Some(word(0, Pointer::NULL, solid()));
        }
        let token = client as u64 + 1;
        self.sim.spawn(client, async move {
            let at = cell(0);
            let answer = if reader && client == 1 {
                list(&group, &at).await.map_or(Told::Error, |(tokens, _)| Told::List(tokens))
            } else {
                let view = View::of(FORMAT, 3, &words).expect("a majority agrees");
                let change = number(client, 1);
                match append(&group, &at, &view, token, change, &[0, token]).await {
                    Ok(Proposed::Committed(_)) => Told::Committed,
                    Ok(Proposed::Lost) => Told::Lost,
                    Err(_) => Told::Error,
                }
            };
            told.borrow_mut()[client] = Some(answer);
        });
    }

    /// What can happen next and how many surprises each is; the first is none.
    fn moves(&self) -> Vec<(Move, usize)> {
        let mut moves = Vec::new();
        for client in (0..RIVALS).filter(|&client| !self.dead[client]) {
            for node in NODES.into_iter().filter(|&node| Some(node) != self.gone) {
                if self.sim.on_their_way(client, node) > 0 {
                    moves.push(Move::Verb(client, node));
                }
            }
            if self.news[client] && self.sim.tasks(client) > 0 {
                moves.push(Move::Poll(client));
            }
        }
        // Who is on goes on; then those behind it, in turn.
        let on = moves.iter().position(|&next| next == self.last);
        let turn = on.or_else(|| {
            let Move::Verb(client, _) = self.last else { return None };
            moves
                .iter()
                .position(|&next| matches!(next, Move::Verb(c, _) | Move::Poll(c) if c == client))
        });
        let count = moves.len();
        moves.rotate_left(turn.unwrap_or(0).min(count));
        let mut moves: Vec<_> = moves.into_iter().enumerate().map(|(i, m)| (m, i.min(1))).collect();
        if !moves.is_empty() && self.gone.is_none() {
            moves.extend(NODES.map(|node| (Move::Crash(node), 1)));
        }
        if !moves.is_empty() && self.dead == [false; RIVALS] {
            moves.extend((0..RIVALS).map(|client| (Move::Die(client), 1)));
        }
        moves
    }

    fn make(&mut self, next: Move) {
        self.trace.push(next);
        match next {
            Move::Verb(client, node) => {
                let before = self.sim.on_their_way(client, node);
                self.sim.take_verbs(client, node, 1);
                if self.sim.on_their_way(client, node) < before {
                    self.sim.deliver(client, node);
                    self.news[client] = true;
                }
            }
            Move::Poll(client) => {
                self.news[client] = false;
                self.sim.poll_once(client);
            }
            Move::Crash(node) => {
                self.gone = Some(node);
                self.sim.crash_node(node, false);
                for client in 0..RIVALS {
                    self.sim.deliver(client, node);
                    self.news[client] = true;
                }
                return;
            }
            Move::Die(client) => {
                self.dead[client] = true;
                NODES.into_iter().for_each(|node| self.sim.lose_chains(client, node));
                return;
            }
        }
        self.last = next;
    }

    /// Lets time pass until somebody goes on. `false` if nobody will.
    fn wait(&mut self) -> bool {
        for _ in 0..IDLE {
            for client in (0..RIVALS).filter(|&client| !self.dead[client]) {
                if self.sim.tasks(client) > 0 {
                    self.sim.poll_once(client);
                }
                for node in NODES {
                    self.sim.deliver(client, node);
                    self.news[client] = true;
                }
            }
            if self.moves().iter().any(|(next, _)| matches!(next, Move::Verb(..))) {
                return true;
            }
            if (0..RIVALS).all(|client| self.dead[client] || self.sim.tasks(client) == 0) {
                return false;
            }
        }
        panic!("nobody goes on: {:?}", self.trace);
    }

    /// The list that each majority of nodes that live shows to who comes later.
    fn look(&mut self) -> Vec<Vec<u64>> {
        let mut lists = Vec::new();
        for (index, away) in NODES.into_iter().enumerate() {
            let nodes: Vec<_> =
                NODES.into_iter().filter(|&n| n != away && Some(n) != self.gone).collect();
            if nodes.len() < 2 {
                continue;
            }
            let (client, seen) = (RIVALS + index, Rc::new(RefCell::new(None)));
            let (group, sink) = (self.group(client), Rc::clone(&seen));
            group.set_patience(Patience { late_floor: 100, ..Patience::default() });
            self.sim.spawn(client, async move {
                let (tokens, _) = list(&group, &cell(0)).await.expect("a majority is up");
                *sink.borrow_mut() = Some(tokens);
            });
            assert!(self.sim.finish(client, &nodes), "a later read does not end");
            lists.push(seen.take().expect("it is done"));
        }
        lists
    }

    /// Whether what everybody was told goes together with what is there in the end.
    fn check(&mut self) {
        let told = self.told.borrow().clone();
        let all = self.look();
        let list = &all[0];
        let context =
            format!("{:?} told {told:?}, later reads {all:?}: {:?}", self.race, self.trace);
        assert!(all.iter().all(|other| other == list), "{context}");
        assert!(list.len() <= 2 && list[0] == 0, "{context}");
        for (client, told) in told.iter().enumerate() {
            let token = client as u64 + 1;
            match told {
                Some(Told::Committed) => assert_eq!(list[1..], [token], "{context}"),
                Some(Told::Lost) => assert!(!list.contains(&token), "{context}"),
                Some(Told::List(tokens)) => assert!(list.starts_with(tokens), "{context}"),
                Some(Told::Error) | None => {}
            }
        }
        if let Some(Told::Lost) = told[0] {
            assert!(list.len() == 2, "lost to nobody: {context}");
        }
        for &token in &list[1..] {
            let born = |&n: &NodeId| is_born(token, n, 3, |at| self.sim.word(n, at));
            assert!(NODES.iter().filter(|n| born(n)).count() >= 2, "{context}");
        }
    }
}

/// Plays the schedule that `script` begins. Makes of it the script of the next one; `false` if
/// there is none.
fn next(race: Race, script: &mut Vec<usize>, surprises: usize) -> bool {
    let mut play = Play::new(race);
    // The move taken at each step, and those there were.
    let mut taken: Vec<(usize, Vec<usize>)> = Vec::new();
    loop {
        let moves = play.moves();
        if moves.is_empty() {
            if play.wait() {
                continue;
            }
            break;
        }
        let choice = script.get(taken.len()).copied().unwrap_or(0);
        taken.push((choice, moves.iter().map(|&(_, cost)| cost).collect()));
        play.make(moves[choice].0);
        assert!(taken.len() < 2000, "does not end: {:?}", play.trace);
    }
    play.check();
    // Backtracks to the last step at which another move is within bounds.
    while let Some((choice, costs)) = taken.pop() {
        let spent: usize = taken.iter().map(|(choice, costs)| costs[*choice]).sum();
        if choice + 1 < costs.len() && spent + costs[choice + 1] <= surprises {
            *script = taken.iter().map(|&(choice, _)| choice).collect();
            script.push(choice + 1);
            return true;
        }
    }
    false
}

#[test]
fn every_schedule_of_a_small_race_ends_well() {
    let surprises = env::var("SWARM_SURPRISES").ok();
    let surprises = surprises.map_or(2, |text| text.parse().expect("a number"));
    for (lagging, reader) in [(false, false), (true, false), (false, true), (true, true)] {
        let (race, mut script, mut schedules) = (Race { lagging, reader }, Vec::new(), 1u64);
        while next(race, &mut script, surprises) {
            schedules += 1;
        }
        println!("{race:?}: {schedules} schedules");
    }
}
