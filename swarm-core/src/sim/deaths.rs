//! A client that dies at every await of an operation in turn.

use std::string::String;
use std::{format, println};

use super::explore::Race;
use super::scheduler::Sim;
use super::seeds::again;

/// Maximum number of steps of one run.
const STEPS: u64 = 100_000;

/// Runs a race under a random schedule for each seed, and again with `victim` dead after its first
/// poll, its second, and so on. The chains that it had posted take effect, or stop somewhere.
/// `begin` makes the race for a seed. Prints the number of runs.
///
/// # Panics
/// If a run fails.
pub fn die_everywhere(name: &str, victim: usize, seeds: u64, begin: impl Fn(u64) -> Race) {
    let mut deaths = 0;
    for seed in 0..seeds {
        for polls in 0..STEPS {
            match play(begin(seed), victim, polls) {
                Ok(true) => deaths += 1,
                Ok(false) => break,
                Err(wrong) => panic!(
                    "{name}, seed {seed}, dead after {polls} polls, to be played again by `{}`: {wrong}",
                    again("SWARM_DEEP=all")
                ),
            }
        }
    }
    println!("{name}: {deaths} deaths under {seeds} schedules");
}

/// Returns whether the victim died before it was done.
fn play(mut race: Race, victim: usize, polls: u64) -> Result<bool, String> {
    let sim = &mut race.sim;
    let last = sim.polls(victim) + polls;
    run_until(sim, |sim| sim.tasks(victim) == 0 || sim.polls(victim) >= last)?;
    let died = sim.tasks(victim) > 0;
    if died {
        sim.crash_client(victim);
    }
    run_until(sim, |sim| (0..sim.clients()).all(|client| sim.tasks(client) == 0))?;
    // Pending chains take effect before or after others look.
    if polls.is_multiple_of(2) {
        sim.drain();
    }
    (race.check)(sim).map(|()| died)
}

/// Runs until `done`. With a clock that advances only with each look, a client may wait long when
/// nothing else can happen.
fn run_until(sim: &mut Sim, done: impl Fn(&Sim) -> bool) -> Result<(), String> {
    for _ in 0..STEPS {
        if done(sim) {
            return Ok(());
        }
        sim.run(1);
    }
    Err(format!("does not end: {} steps", sim.steps()))
}
