//! What a test plays: so much as is usual, unless the environment says otherwise.
//!
//! Invariant: what makes no sense is refused. A check that plays nothing would pass.

use core::ops::Range;
use std::env;

use xxhash_rust::xxh3::xxh3_64;

/// The seeds of the schedules to play: the first `usual`; or `SWARM_SCHEDULES` of them, from
/// `SWARM_FIRST` on; or `SWARM_SEED` alone.
///
/// # Panics
/// If one of these is not a number, or if there would be none to play.
pub fn seeds(usual: u64) -> Range<u64> {
    let (first, count) = match number("SWARM_SEED") {
        Some(seed) => (seed, 1),
        None => (number("SWARM_FIRST").unwrap_or(0), at_least_one("SWARM_SCHEDULES", usual)),
    };
    let end = first.checked_add(count);
    first..end.unwrap_or_else(|| panic!("there are no {count} seeds from {first} on"))
}

/// The number that the environment names so, or the usual one.
///
/// # Panics
/// If it is not a number, or 0.
pub fn at_least_one(name: &str, usual: u64) -> u64 {
    let count = number(name).unwrap_or(usual);
    assert!(count > 0, "{name} is at least 1: nothing would be tried");
    count
}

/// The number that the environment names so.
///
/// # Panics
/// If it is there and not a number.
pub fn number(name: &str) -> Option<u64> {
    let text = env::var_os(name)?;
    let number = text.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} is a number, not {text:?}")))
}

/// Races of which one is explored [deep](is_deep) where a number chooses.
const ONE_IN: u64 = 8;

/// Whether the race of this name is explored as deep as its bounds allow, which takes minutes for all of them:
/// `SWARM_DEEP` is `all`, or a number that chooses one race in eight, each number others.
///
/// # Panics
/// If it is something else.
pub fn is_deep(race: &str) -> bool {
    let all = env::var_os("SWARM_DEEP").is_some_and(|text| text == "all");
    all || number("SWARM_DEEP").is_some_and(|chosen| is_chosen(race, chosen))
}

fn is_chosen(race: &str, number: u64) -> bool {
    xxh3_64(race.as_bytes()).wrapping_add(number).is_multiple_of(ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_race_is_chosen_by_one_number_in_eight() {
        for race in ["move against move", "two proposers", ""] {
            let chosen = |from: u64| (from..from + ONE_IN).filter(|&n| is_chosen(race, n)).count();
            assert_eq!((chosen(0), chosen(1_000_003)), (1, 1), "{race}");
        }
    }
}
