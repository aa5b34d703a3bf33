//! The nemesis: injects failures during torture.
//!
//! **Invariant:** at most a minority of the memory nodes is down at any time. So only one command
//! at a time takes down nodes of a shared-memory pool: it holds a lock on the pool's directory. The
//! kernel releases the lock when its owner ends. The next owner finds the nodes that were down when
//! its predecessor was killed, and restores them.

use std::fs::File;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use swarm_shm::SwitchState;
use swarm_worker::pool::Pool;

use crate::common::cleanup;
use crate::common::exit::Failure;
use crate::common::node_faults::{Switch, switches};
use crate::torture::args::TortureArgs;

/// Times between kills of clients, lengths of node pauses, and times between these: nanoseconds.
const KILL_EVERY: std::ops::Range<u64> = 20_000_000..200_000_000;
/// The same for RDMA, where a client takes longer to start: it connects queue pairs.
const KILL_FAR_EVERY: std::ops::Range<u64> = 200_000_000..2_000_000_000;
const FREEZE_FOR: std::ops::Range<u64> = 1_000_000..150_000_000;
const THAW_FOR: std::ops::Range<u64> = 5_000_000..150_000_000;
/// Times between stops of clients.
const STOP_EVERY: std::ops::Range<u64> = 50_000_000..500_000_000;
/// The shortest stop, in nanoseconds, and the factor of the longest one. Each order of magnitude is
/// equally likely.
const SHORTEST_STOP: u64 = 100_000_000;
const LONGER: f64 = 50.0;

/// Takes nodes down and restores them, and decides when clients are killed or stopped.
pub(crate) struct Nemesis<'p> {
    switches: Vec<Switch>,
    args: &'p TortureArgs,
    rng: SmallRng,
    nodes: u8,
    /// An RDMA node that goes down cannot be restored.
    is_far: bool,
    kill_every: std::ops::Range<u64>,
    kill_at: Option<u64>,
    stop_at: Option<u64>,
    /// When the minority goes down for good.
    part_at: Option<u64>,
    /// When nodes are paused or continued next.
    turn_at: Option<u64>,
    /// When the next node goes down or comes back in turn, and how often one did.
    roll_at: Option<u64>,
    rolls: u64,
    /// Nodes that are paused, or down until their turn is over.
    frozen: Vec<u8>,
    pub(crate) gone: Vec<u8>,
    pub(crate) freezes: u64,
    /// How often a node went down and came back.
    pub(crate) downs: u64,
    /// The lock of the command that may take nodes down.
    _lock: Option<File>,
}

impl<'p> Nemesis<'p> {
    /// Makes a nemesis that injects nothing yet, and restores nodes that an earlier command left
    /// down.
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
        // Without node failures, the processes of RDMA nodes are not needed.
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

    /// Starts the failures.
    pub(crate) fn begin(&mut self, now: u64) {
        let some = self.nodes > 2;
        self.kill_at = self.args.kill_clients.then_some(now);
        self.stop_at = self.args.stop_clients.then_some(now);
        let half = now + self.args.seconds * 500_000_000;
        self.part_at = (self.args.kill_node && some).then_some(half);
        self.turn_at = (self.args.freeze_node && some).then_some(now);
        self.roll_at = (self.args.roll_nodes && some).then_some(now);
    }

    /// Returns which of `clients` clients to kill now, if any.
    pub(crate) fn victim(&mut self, now: u64, clients: usize) -> Option<usize> {
        if clients == 0 || self.kill_at? > now {
            return None;
        }
        self.kill_at = Some(now + self.rng.random_range(self.kill_every.clone()));
        Some(self.rng.random_range(0..clients))
    }

    /// Returns which of `clients` clients to stop now, if any, and until when.
    pub(crate) fn stop(&mut self, now: u64, clients: usize) -> Option<(usize, u64)> {
        if clients == 0 || self.stop_at? > now {
            return None;
        }
        self.stop_at = Some(now + self.rng.random_range(STOP_EVERY));
        let longer = LONGER.powf(self.rng.random_range(0.0..1.0));
        let until = now + (SHORTEST_STOP as f64 * longer) as u64;
        Some((self.rng.random_range(0..clients), until))
    }

    /// Injects the node failures that are due.
    pub(crate) fn tick(&mut self, now: u64) {
        let minority = (self.nodes as usize - 1) / 2;
        if self.part_at.is_some_and(|at| at <= now) {
            self.part_at = None;
            self.thaw();
            // If nodes are also paused or rolled, one fewer, but at least one.
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

    /// Pauses or takes down the node whose turn it is, if one more may fail. Returns for how long.
    fn roll(&mut self, minority: usize) -> std::ops::Range<u64> {
        let (turn, nodes) = (self.rolls, u64::from(self.nodes));
        self.rolls += 1;
        // Each node is paused, and in its next turn goes down.
        let node = (turn / 2 % nodes) as u8;
        if self.gone.len() < minority && !self.gone.contains(&node) {
            let goes_down = turn % 2 == 1 && !self.is_far;
            self.switch(node, if goes_down { SwitchState::Down } else { SwitchState::Frozen });
            *(if goes_down { &mut self.downs } else { &mut self.freezes }) += 1;
            self.frozen.push(node);
        }
        FREEZE_FOR
    }

    /// Draws a node that is up.
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

    /// Restores all nodes.
    pub(crate) fn give_back(&mut self) {
        self.thaw();
        for &node in &self.gone {
            self.switch(node, SwitchState::Up);
        }
    }

    /// Takes the nodes down again that had failed for good.
    pub(crate) fn take_again(&mut self) {
        for &node in &self.gone {
            self.switch(node, SwitchState::Down);
        }
    }

    /// Takes a minority down that lacks `node`, until all are given back.
    pub(crate) fn take_others(&mut self, node: u8) {
        let minority = (self.nodes - 1) / 2;
        for other in (1..=minority).map(|next| (node + next) % self.nodes) {
            self.switch(other, SwitchState::Down);
            self.frozen.push(other);
        }
    }

    fn switch(&self, node: u8, state: SwitchState) {
        cleanup::turn(&self.switches[usize::from(node)], state);
    }
}

impl Drop for Nemesis<'_> {
    /// The pool may be a user's: restores its nodes.
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Takes the lock of the command that may take down nodes of a pool. Returns `None` if another
/// command holds it.
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
