//! What a test runs: the usual amount, unless the environment says otherwise.
//!
//! **Invariant:** nonsensical settings are refused, as a check that runs nothing would pass.

use core::ops::Range;
use std::string::String;
use std::{env, eprintln, format, thread};

use xxhash_rust::xxh3::xxh3_64;

/// Returns the seeds of the schedules to run: the first `usual`; or `SWARM_SCHEDULES` of them, from
/// `SWARM_FIRST` on; or `SWARM_SEED` alone.
///
/// # Panics
/// If one of these is not a number, or if there would be none to run.
pub fn seeds(usual: u64) -> Range<u64> {
    let (first, count) = match number("SWARM_SEED") {
        Some(seed) => (seed, 1),
        None => (number("SWARM_FIRST").unwrap_or(0), at_least_one("SWARM_SCHEDULES", usual)),
    };
    let end = first.checked_add(count);
    first..end.unwrap_or_else(|| panic!("there are no {count} seeds from {first} on"))
}

/// Returns the number in the environment variable `name`, or the usual one.
///
/// # Panics
/// If it is not a number, or 0.
pub fn at_least_one(name: &str, usual: u64) -> u64 {
    let count = number(name).unwrap_or(usual);
    assert!(count > 0, "{name} is at least 1: nothing would be tried");
    count
}

/// Returns the number in the environment variable `name`.
///
/// # Panics
/// If it is set and not a number.
pub fn number(name: &str) -> Option<u64> {
    let text = env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} is a number, not {text:?}")))
}

/// Returns the command that repeats what a test has just run, with `prefix` in the environment:
/// `SWARM_SEED=7`.
pub fn again(prefix: &str) -> String {
    let program = env::current_exe().unwrap_or_default();
    let program = program.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let thread = thread::current();
    command(prefix, env::var("CARGO_PKG_NAME").ok().as_deref(), program, thread.name())
}

/// The same for a program of cargo's, whose name ends in a hash, and a test that has its thread's
/// name.
fn command(prefix: &str, package: Option<&str>, program: &str, test: Option<&str>) -> String {
    let program = program.rsplit_once('-').map_or(program, |(name, _)| name);
    let target = match package {
        Some(package) if program == package.replace('-', "_") => "--lib".into(),
        _ => format!("--test {program}"),
    };
    let package = package.map(|package| format!(" -p {package}")).unwrap_or_default();
    let test =
        test.filter(|&name| name != "main").map(|name| format!(" {name}")).unwrap_or_default();
    format!("{prefix} cargo test{package} {target}{test}")
}

/// Returns the first `usual` seeds, or `SWARM_SEED` alone: for schedules of which there are never more.
///
/// # Panics
/// If it is not a number.
pub fn these_or_one(usual: u64) -> Range<u64> {
    number("SWARM_SEED").map_or(0..usual, |seed| seed..seed + 1)
}

/// What a test is just playing. If the test panics, be it in a protocol that knows nothing of seeds, the
/// command that plays it again is printed.
#[must_use = "it is played for as long as this is there"]
pub struct Playing(String);

impl Playing {
    /// The schedule of this seed.
    pub fn seed(seed: u64) -> Self {
        Self(format!("SWARM_SEED={seed}"))
    }

    /// The schedule of this seed, at each point of an operation.
    pub fn seed_at_each_point(seed: u64) -> Self {
        Self(format!("SWARM_DEEP=all SWARM_SEED={seed}"))
    }

    /// A story, at each point of an operation.
    pub fn each_point() -> Self {
        Self("SWARM_DEEP=all".into())
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("played again by `{}`", again(&self.0));
        }
    }
}

/// One in this many races is explored [deep](is_deep) if a number chooses.
const ONE_IN: u64 = 24;

/// Returns whether the race of this name is explored as deep as its bounds allow, which takes
/// minutes for all races. `SWARM_DEEP` is `all`, or a number that chooses one name in twenty-four, each
/// number others.
///
/// # Panics
/// If it is something else.
pub fn is_deep(race: &str) -> bool {
    all_are_deep() || number("SWARM_DEEP").is_some_and(|chosen| is_chosen(race, chosen))
}

fn all_are_deep() -> bool {
    env::var_os("SWARM_DEEP").is_some_and(|text| text == "all")
}

fn is_chosen(race: &str, number: u64) -> bool {
    turn_at(race, ONE_IN, number) == 0
}

/// Returns the one of these alternatives whose turn it is, of what is tried under this name, or all if
/// `SWARM_DEEP` is `all`. Numbers that follow each other choose one after the other; without a number it is
/// always the same.
///
/// # Panics
/// If it is something else.
pub fn turn<'a, T>(name: &str, alternatives: &'a [T]) -> &'a [T] {
    if all_are_deep() || alternatives.is_empty() {
        return alternatives;
    }
    let number = number("SWARM_DEEP").unwrap_or(0);
    let turn = turn_at(name, alternatives.len() as u64, number) as usize;
    &alternatives[turn..=turn]
}

/// Returns a number below `count`, by which so many numbers that follow each other choose each once.
fn turn_at(name: &str, count: u64, number: u64) -> u64 {
    (xxh3_64(name.as_bytes()) % count + number % count) % count
}

/// One in this many points of an operation is [played](is_played).
const ONE_POINT_IN: u64 = 3;

/// Returns whether a story of many, one for each point of an operation, is played at this point: at one
/// in three, or at every point if `SWARM_DEEP` is `all`. A number chooses other points.
///
/// # Panics
/// If it is something else.
pub fn is_played(point: usize) -> bool {
    let chosen = || number("SWARM_DEEP").unwrap_or(0) % ONE_POINT_IN;
    all_are_deep() || (point as u64 + chosen()).is_multiple_of(ONE_POINT_IN)
}

/// Plays a story at one point of an operation after the other, as far as they [are](is_played), and at
/// the first. Ends with the point at which `over` finds that the operation was over before, and returns
/// it. Which points are played depends on the first: so stories of two points, of which the second begins at
/// the first, are not always as far apart.
pub fn until_over(points: Range<usize>, mut over: impl FnMut(usize) -> bool) -> Option<usize> {
    let _playing = Playing::each_point();
    let first = points.start;
    let others = first / ONE_POINT_IN as usize;
    let is_played = |point| point == first || is_played(point - first + others);
    points.filter(|&point| is_played(point)).find(|&point| over(point))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_package_program_and_test() {
        let printed =
            command("SWARM_SEED=7", Some("swarm-core"), "cell_sim-0123456789abcdef", Some("story"));
        assert_eq!(printed, "SWARM_SEED=7 cargo test -p swarm-core --test cell_sim story");
        // If tests run one after the other, the thread does not have the test's name.
        assert_eq!(
            command("A=1", None, "cell_sim", Some("main")),
            "A=1 cargo test --test cell_sim"
        );
        let unit = command("A=1", Some("swarm-core"), "swarm_core-0123", Some("cell::alone"));
        assert_eq!(unit, "A=1 cargo test -p swarm-core --lib cell::alone");
    }

    #[test]
    fn a_story_is_played_at_the_first_point_and_ends_when_an_operation_was_over() {
        let mut played = std::vec![];
        let over = until_over(2..100, |point| {
            played.push(point);
            point >= 20
        });
        assert_eq!((played[0], over), (2, played.last().copied()));
        assert!((20..20 + ONE_POINT_IN as usize).contains(&over.expect("it ends")));
        assert_eq!(until_over(0..9, |_| false), None);
    }

    #[test]
    fn each_race_is_chosen_by_one_number_in_so_many() {
        for race in ["move against move", "two proposers", ""] {
            let chosen = |from: u64| (from..from + ONE_IN).filter(|&n| is_chosen(race, n)).count();
            assert_eq!((chosen(0), chosen(1_000_003)), (1, 1), "{race}");
        }
    }

    #[test]
    fn as_many_numbers_as_there_are_alternatives_choose_each_of_them_once() {
        for alternatives in 1..5 {
            let turn = |number| turn_at("move against move", alternatives, number);
            let mut turns: std::vec::Vec<u64> = (7..7 + alternatives).map(turn).collect();
            turns.sort_unstable();
            assert_eq!(turns, std::vec::Vec::from_iter(0..alternatives));
        }
    }
}
