//! Nodes that are lost one after the other, each replaced by `swarm replace` while clients work.
//!
//! The command is a process of its own. Some are killed with SIGKILL on the way, and another one takes
//! the replacement up. The pool is a temporary one: a user's would be left without a node if torture
//! itself is killed.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::common::exit::Failure;

/// Nanoseconds between a replacement's end and the next loss, between a loss and what replaces the
/// node, and after which one that is to be killed is.
const LOSE_AFTER: std::ops::Range<u64> = 50_000_000..1_500_000_000;
const REPLACE_AFTER: std::ops::Range<u64> = 1_000_000..500_000_000;
const SHORTEST_LIFE: u64 = 1_000_000;
const LONGER: f64 = 1000.0;

/// Loses nodes, and has them replaced.
pub(crate) struct Replacer {
    pool: PathBuf,
    nodes: u64,
    rng: SmallRng,
    state: State,
    /// How many nodes were lost so far.
    lost: u64,
    /// How many were replaced, and how many processes were killed at it.
    pub(crate) replaced: u64,
    pub(crate) killed: u64,
}

/// What is next, and when.
enum State {
    Idle,
    Loses(u64),
    Begins(u64),
    Replaces { process: Child, kill_at: Option<u64> },
}

impl Replacer {
    /// Makes one that does nothing yet.
    pub(crate) fn new(pool: PathBuf, nodes: usize, seed: u64) -> Self {
        let (rng, nodes) = (SmallRng::seed_from_u64(!seed), nodes as u64);
        Self { pool, nodes, rng, state: State::Idle, lost: 0, replaced: 0, killed: 0 }
    }

    /// Starts with the first loss.
    pub(crate) fn begin(&mut self, now: u64) {
        self.state = State::Loses(now + self.rng.random_range(LOSE_AFTER) / 4);
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, now: u64) -> Result<(), Failure> {
        match &mut self.state {
            State::Loses(at) if *at <= now => {
                lose(&self.pool, (self.lost % self.nodes) as u8)?;
                self.lost += 1;
                self.state = State::Begins(now + self.rng.random_range(REPLACE_AFTER));
            }
            State::Begins(at) if *at <= now => {
                let longer = LONGER.powf(self.rng.random_range(0.0..1.0));
                let life = (SHORTEST_LIFE as f64 * longer) as u64;
                let is_killed = self.rng.random_bool(0.5);
                self.replace(is_killed.then_some(now + life))?;
            }
            State::Replaces { process, kill_at } => {
                if let Some(status) = process.try_wait().map_err(not_waited)? {
                    ended(process, status)?;
                    self.replaced += 1;
                    self.state = State::Loses(now + self.rng.random_range(LOSE_AFTER));
                } else if kill_at.is_some_and(|at| at <= now) {
                    end(process);
                    self.killed += 1;
                    self.state = State::Begins(now + self.rng.random_range(REPLACE_AFTER));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Replaces what is lost, without kills, and loses nothing any more. Returns whether all nodes
    /// are there.
    pub(crate) fn finish(&mut self) -> Result<bool, Failure> {
        match &mut self.state {
            State::Idle => {}
            State::Loses(_) => self.state = State::Idle,
            State::Begins(_) => self.replace(None)?,
            State::Replaces { process, kill_at } => {
                *kill_at = None;
                if let Some(status) = process.try_wait().map_err(not_waited)? {
                    ended(process, status)?;
                    self.replaced += 1;
                    self.state = State::Idle;
                }
            }
        }
        Ok(matches!(self.state, State::Idle))
    }

    /// Returns the node that was lost last.
    pub(crate) fn last(&self) -> Option<u8> {
        Some((self.lost.checked_sub(1)? % self.nodes) as u8)
    }

    fn replace(&mut self, kill_at: Option<u64>) -> Result<(), Failure> {
        let node = self.last().expect("one is lost");
        let process = Command::new("/proc/self/exe")
            .arg("replace")
            .arg(&self.pool)
            .arg(node.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::because("cannot start swarm replace", error))?;
        self.state = State::Replaces { process, kill_at };
        Ok(())
    }
}

impl Drop for Replacer {
    fn drop(&mut self) {
        if let State::Replaces { process, .. } = &mut self.state {
            end(process);
        }
    }
}

/// Takes a node's file away. Clients that have it mapped go on with it until it is replaced.
fn lose(pool: &Path, node: u8) -> Result<(), Failure> {
    let file = pool.join(format!("node-{node}"));
    fs::remove_file(&file)
        .map_err(|error| Failure::because(format!("cannot remove {}", file.display()), error))
}

/// Kills a process and waits for its end. One that ended by itself is over as well.
fn end(process: &mut Child) {
    let _ = process.kill();
    let _ = process.wait();
}

fn not_waited(error: std::io::Error) -> Failure {
    Failure::because("cannot wait for swarm replace", error)
}

/// Returns a failure with its error output if it failed.
fn ended(process: &mut Child, status: ExitStatus) -> Result<(), Failure> {
    if status.success() {
        return Ok(());
    }
    let mut errors = String::new();
    // Output that cannot be read is left out.
    let _ = process.stderr.take().map(|mut from| from.read_to_string(&mut errors));
    Err(Failure::Failed(format!("swarm replace failed, {status}: {}", errors.trim())))
}
