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

use super::args::TortureArgs;
use super::interrupted;
use super::nodes::{Switch, switches};
use super::outcome::Failure;
use super::store::{Pool, SwitchState};

/// Times between kills of clients, and for which nodes freeze and do not: nanoseconds.
const KILL_EVERY: std::ops::Range<u64> = 20_000_000..200_000_000;
/// The same where it takes a client longer to begin: it has queue pairs to connect.
const KILL_FAR_EVERY: std::ops::Range<u64> = 200_000_000..2_000_000_000;
const FREEZE_FOR: std::ops::Range<u64> = 1_000_000..150_000_000;
const THAW_FOR: std::ops::Range<u64> = 5_000_000..150_000_000;

/// Takes nodes away and gives them back, and says when clients are to be killed.
pub(crate) struct Chaos<'p> {
    switches: Vec<Switch>,
    args: &'p TortureArgs,
    rng: SmallRng,
    nodes: u8,
    kill_every: std::ops::Range<u64>,
    kill_at: Option<u64>,
    /// When the minority goes for good.
    part_at: Option<u64>,
    /// When something freezes or thaws next.
    turn_at: Option<u64>,
    frozen: Vec<u8>,
    pub(crate) gone: Vec<u8>,
    pub(crate) freezes: u64,
    /// Holds the lock of whoever may take nodes away.
    _lock: Option<File>,
}

impl<'p> Chaos<'p> {
    /// Nothing fails yet, and nothing does any more of what others made fail.
    pub(crate) fn new(pool: &Pool, args: &'p TortureArgs) -> Result<Self, Failure> {
        let nodes = pool.geometry().nodes as u8;
        let fails = args.kill_node || args.freeze_node;
        if fails && nodes < 3 {
            return Err(Failure::Usage(
                "--kill-node and --freeze-node take a minority of the memory nodes away, and a pool of \
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
            kill_every: if pool.is_far() { KILL_FAR_EVERY } else { KILL_EVERY },
            kill_at: None,
            part_at: None,
            turn_at: None,
            frozen: Vec::new(),
            gone: Vec::new(),
            freezes: 0,
            _lock: lock,
        })
    }

    /// From now on things fail.
    pub(crate) fn begin(&mut self, now: u64) {
        let some = self.nodes > 2;
        self.kill_at = self.args.kill_clients.then_some(now);
        let half = now + self.args.seconds * 500_000_000;
        self.part_at = (self.args.kill_node && some).then_some(half);
        self.turn_at = (self.args.freeze_node && some).then_some(now);
    }

    /// Whether a client is to be killed now; if so, which of so many.
    pub(crate) fn victim(&mut self, now: u64, clients: usize) -> Option<usize> {
        if clients == 0 || self.kill_at? > now {
            return None;
        }
        self.kill_at = Some(now + self.rng.random_range(self.kill_every.clone()));
        Some(self.rng.random_range(0..clients))
    }

    /// Lets nodes fail as the time has come.
    pub(crate) fn tick(&mut self, now: u64) {
        let minority = (self.nodes as usize - 1) / 2;
        if self.part_at.is_some_and(|at| at <= now) {
            self.part_at = None;
            self.thaw();
            // One fewer where nodes are also to freeze, as long as there is more than one.
            let count = if self.turn_at.is_some() { minority.max(2) - 1 } else { minority };
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
