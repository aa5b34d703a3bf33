//! What fails during torture, and when.
//!
//! The invariant: of n memory nodes no more than a minority is away at any time. So one command at a
//! time takes nodes of a pool of this host away: it holds a lock on the pool's directory. The kernel ends the lock
//! with its holder; whoever has it next finds what was away when the holder was killed, and puts it
//! back.

use std::fs::File;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use swarm_shm::SwitchState;
use swarm_worker::pool::Pool;

use super::args::TortureArgs;
use super::interrupted;
use super::nodes::{Switch, switches};
use super::outcome::Failure;

/// Times between kills of clients, and for which nodes freeze and do not: nanoseconds.
const KILL_EVERY: std::ops::Range<u64> = 20_000_000..200_000_000;
/// The same where it takes a client longer to begin: it has queue pairs to connect.
const KILL_FAR_EVERY: std::ops::Range<u64> = 200_000_000..2_000_000_000;
const FREEZE_FOR: std::ops::Range<u64> = 1_000_000..150_000_000;
const THAW_FOR: std::ops::Range<u64> = 5_000_000..150_000_000;
/// Times between stops of clients.
const STOP_EVERY: std::ops::Range<u64> = 50_000_000..500_000_000;
/// The shortest stop, nanoseconds; and by how much the longest one is longer. Short ones are as likely as long ones,
/// by order of magnitude.
const SHORTEST_STOP: u64 = 100_000_000;
const LONGER: f64 = 50.0;

/// Takes nodes away and gives them back, and says when clients are to be killed or stopped.
pub(crate) struct Chaos<'p> {
    switches: Vec<Switch>,
    args: &'p TortureArgs,
    rng: SmallRng,
    nodes: u8,
    /// A far node that goes down does not come back.
    is_far: bool,
    kill_every: std::ops::Range<u64>,
    kill_at: Option<u64>,
    stop_at: Option<u64>,
    /// When the minority goes for good.
    part_at: Option<u64>,
    /// When something freezes or thaws next.
    turn_at: Option<u64>,
    /// When a node goes or comes back whose turn it is, and how often that was.
    roll_at: Option<u64>,
    rolls: u64,
    /// Those that are frozen, or down until their turn is over.
    frozen: Vec<u8>,
    pub(crate) gone: Vec<u8>,
    pub(crate) freezes: u64,
    /// How often a node went down and came back.
    pub(crate) downs: u64,
    /// Holds the lock of whoever may take nodes away.
    _lock: Option<File>,
}

impl<'p> Chaos<'p> {
    /// Nothing fails yet, and nothing does any more of what others made fail.
    pub(crate) fn new(pool: &Pool, args: &'p TortureArgs) -> Result<Self, Failure> {
        let nodes = pool.geometry().nodes as u8;
        let fails = args.kill_node || args.freeze_node || args.roll_nodes;
        if args.near && pool.is_far() {
            return Err(Failure::Usage(
                "--near is for pools of this host: far memory is not this processor's".to_owned(),
            ));
        }
        if fails && nodes < 3 {
            return Err(Failure::Usage(
                "--kill-node, --freeze-node and --roll-nodes take a minority of the memory nodes away, and a pool of \
                 one has none: what is asked of a node while it is stopped is lost, so without others \
                 to answer each operation would only wait for its time-out; take three nodes or more"
                    .to_owned(),
            ));
        }
        // Whoever only lets far clients fail need not know where the nodes run.
        let switches = if fails || !pool.is_far() { switches(pool)? } else { Vec::new() };
        let lock = if pool.is_far() { None } else { lock(pool)? };
        if lock.is_some() {
            switches.iter().for_each(|switch| switch.set(SwitchState::Up));
        } else if fails && !pool.is_far() {
            return Err(Failure::Failed(format!(
                "another torture may take memory nodes of {} away; wait until it has ended",
                pool.path().display()
            )));
        }
        Ok(Self {
            switches,
            args,
            rng: SmallRng::seed_from_u64(args.seed),
            nodes,
            is_far: pool.is_far(),
            kill_every: if pool.is_far() { KILL_FAR_EVERY } else { KILL_EVERY },
            kill_at: None,
            stop_at: None,
            part_at: None,
            turn_at: None,
            roll_at: None,
            rolls: 0,
            frozen: Vec::new(),
            gone: Vec::new(),
            freezes: 0,
            downs: 0,
            _lock: lock,
        })
    }

    /// From now on things fail.
    pub(crate) fn begin(&mut self, now: u64) {
        let some = self.nodes > 2;
        self.kill_at = self.args.kill_clients.then_some(now);
        self.stop_at = self.args.stop_clients.then_some(now);
        let half = now + self.args.seconds * 500_000_000;
        self.part_at = (self.args.kill_node && some).then_some(half);
        self.turn_at = (self.args.freeze_node && some).then_some(now);
        self.roll_at = (self.args.roll_nodes && some).then_some(now);
    }

    /// Whether a client is to be killed now; if so, which of so many.
    pub(crate) fn victim(&mut self, now: u64, clients: usize) -> Option<usize> {
        if clients == 0 || self.kill_at? > now {
            return None;
        }
        self.kill_at = Some(now + self.rng.random_range(self.kill_every.clone()));
        Some(self.rng.random_range(0..clients))
    }

    /// Whether a client is to be stopped now; if so, which of so many, and until when.
    pub(crate) fn stop(&mut self, now: u64, clients: usize) -> Option<(usize, u64)> {
        if clients == 0 || self.stop_at? > now {
            return None;
        }
        self.stop_at = Some(now + self.rng.random_range(STOP_EVERY));
        let longer = LONGER.powf(self.rng.random_range(0.0..1.0));
        let until = now + (SHORTEST_STOP as f64 * longer) as u64;
        Some((self.rng.random_range(0..clients), until))
    }

    /// Lets nodes fail as the time has come.
    pub(crate) fn tick(&mut self, now: u64) {
        let minority = (self.nodes as usize - 1) / 2;
        if self.part_at.is_some_and(|at| at <= now) {
            self.part_at = None;
            self.thaw();
            // One fewer where nodes are also to freeze, as long as there is more than one.
            let others = self.turn_at.or(self.roll_at).is_some();
            let count = if others { minority.max(2) - 1 } else { minority };
            for _ in 0..count {
                let node = self.one_up();
                self.switch(node, SwitchState::Down);
                self.gone.push(node);
            }
        }
        if self.turn_at.is_some_and(|at| at <= now) {
            let wait = if self.frozen.is_empty() {
                for _ in self.gone.len()..minority {
                    let node = self.one_up();
                    self.switch(node, SwitchState::Frozen);
                    self.frozen.push(node);
                    self.freezes += 1;
                }
                FREEZE_FOR
            } else {
                self.thaw();
                THAW_FOR
            };
            self.turn_at = Some(now + self.rng.random_range(wait));
        }
        if self.roll_at.is_some_and(|at| at <= now) {
            let wait = if self.frozen.is_empty() {
                self.roll(minority)
            } else {
                self.thaw();
                THAW_FOR
            };
            self.roll_at = Some(now + self.rng.random_range(wait));
        }
    }

    /// The node whose turn it is goes, if one more may; for so long.
    fn roll(&mut self, minority: usize) -> std::ops::Range<u64> {
        let (turn, nodes) = (self.rolls, u64::from(self.nodes));
        self.rolls += 1;
        // Each freezes, and then goes down.
        let node = (turn / 2 % nodes) as u8;
        if self.gone.len() < minority && !self.gone.contains(&node) {
            let goes_down = turn % 2 == 1 && !self.is_far;
            self.switch(node, if goes_down { SwitchState::Down } else { SwitchState::Frozen });
            *(if goes_down { &mut self.downs } else { &mut self.freezes }) += 1;
            self.frozen.push(node);
        }
        FREEZE_FOR
    }

    /// A node that has not failed.
    fn one_up(&mut self) -> u8 {
        let up = |node: &u8| !self.gone.contains(node) && !self.frozen.contains(node);
        let up: Vec<u8> = (0..self.nodes).filter(up).collect();
        up[self.rng.random_range(0..up.len())]
    }

    fn thaw(&mut self) {
        for node in std::mem::take(&mut self.frozen) {
            self.switch(node, SwitchState::Up);
        }
    }

    /// The pool gets its nodes back.
    pub(crate) fn give_back(&mut self) {
        self.thaw();
        for &node in &self.gone {
            self.switch(node, SwitchState::Up);
        }
    }

    /// Those that had gone for good go again.
    pub(crate) fn take_again(&mut self) {
        for &node in &self.gone {
            self.switch(node, SwitchState::Down);
        }
    }

    fn switch(&self, node: u8, state: SwitchState) {
        interrupted::turn(&self.switches[usize::from(node)], state);
    }
}

impl Drop for Chaos<'_> {
    /// The pool may be somebody's.
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Takes the lock of whoever may take nodes of a pool away; `None` if somebody has it.
fn lock(pool: &Pool) -> Result<Option<File>, Failure> {
    let path = pool.path().display();
    let directory = File::open(pool.path())
        .map_err(|error| Failure::because(format!("cannot read {path}"), error))?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(directory)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(Failure::because(format!("cannot lock {path}"), error)),
    }
}
