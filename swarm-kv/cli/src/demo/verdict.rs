//! Checks that every acknowledged write is found.
//!
//! The clients' logs list the acknowledged writes with their times. In the end, a key's value must
//! be that of a write that was made. No acknowledged write to the key may have begun after that one
//! had ended: it would be lost. (Of overlapping writes, either may stay.)

use swarm_worker::demo_log::{Acknowledged, LOADER, Tag};

/// The expected writes, and those that were not found.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// Acknowledged writes, including the loading.
    pub(crate) acknowledged: u64,
    pub(crate) lost: Vec<String>,
}

/// Compares the values of the keys, in order, with the clients' logs. `killed` is the one client
/// that may have had a write in progress.
pub(crate) fn check_values(
    found: &[Option<Vec<u8>>],
    logs: &[Vec<Acknowledged>],
    killed: Option<usize>,
) -> Verdict {
    let mut latest_start = vec![0; found.len()];
    for write in logs.iter().flatten() {
        if let Some(start) = latest_start.get_mut(write.key as usize) {
            *start = write.start_ns.max(*start);
        }
    }
    let lost = found.iter().zip(&latest_start).enumerate().filter_map(|(key, (value, latest))| {
        let why = lost(key as u32, value.as_deref(), *latest, logs, killed)?;
        Some(format!("key {key}: {why}"))
    });
    Verdict {
        lost: lost.collect(),
        acknowledged: logs.iter().map(|log| log.len() as u64).sum::<u64>() + found.len() as u64,
    }
}

fn lost(
    key: u32,
    value: Option<&[u8]>,
    latest_start: u64,
    logs: &[Vec<Acknowledged>],
    killed: Option<usize>,
) -> Option<String> {
    let Some(value) = value else { return Some("it has vanished".to_owned()) };
    let Some(tag) = Tag::parse(value) else {
        return Some("its value was never written".to_owned());
    };
    if tag.key != key {
        return Some(format!("it holds a value of key {}", tag.key));
    }
    let ended = if (tag.client, tag.number) == (LOADER, 0) {
        0
    } else {
        let client = tag.client as usize;
        let Some(log) = logs.get(client) else { return Some("an unknown client's value".into()) };
        let number = tag.number;
        match number.checked_sub(1).and_then(|at| log.get(usize::try_from(at).ok()?)) {
            Some(write) if write.key == key => write.end_ns,
            // The write that was in progress when its client was killed: it never ended.
            None if killed == Some(client) && number == log.len() as u64 + 1 => return None,
            _ => return Some(format!("client {client} never made its write {number} there")),
        }
    };
    (latest_start > ended).then(|| {
        let by = latest_start - ended;
        format!("an acknowledged write, begun {by} ns after the found one had ended, is lost")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(client: u32, number: u64, key: u32) -> Option<Vec<u8>> {
        Some(Tag { client, number, key }.value().to_vec())
    }

    fn write(key: u32, start_ns: u64, end_ns: u64) -> Acknowledged {
        Acknowledged { key, start_ns, end_ns }
    }

    /// Two clients; key 0 has two writes of client 0, and one of client 1 that overlaps the second.
    fn logs() -> Vec<Vec<Acknowledged>> {
        vec![vec![write(0, 10, 20), write(0, 30, 50)], vec![write(0, 40, 60), write(1, 70, 80)]]
    }

    #[test]
    fn the_last_writes_are_found_in_either_order_if_they_overlap() {
        for last in [value(0, 2, 0), value(1, 1, 0)] {
            let verdict = check_values(&[last, value(1, 2, 1), value(LOADER, 0, 2)], &logs(), None);
            assert!(verdict.lost.is_empty(), "{:?}", verdict.lost);
            assert_eq!(verdict.acknowledged, 4 + 3);
        }
    }

    #[test]
    fn every_kind_of_loss_is_seen() {
        let mut torn = value(0, 2, 0);
        torn.as_mut().expect("it is there")[40] ^= 1;
        for (bad, why) in [
            (value(0, 1, 0), "is lost"),
            (value(LOADER, 0, 0), "is lost"),
            (None, "vanished"),
            (torn, "never written"),
            (Some(Vec::new()), "never written"),
            (value(1, 2, 1), "of key 1"),
            (value(1, 2, 0), "never made"),
            (value(0, 3, 0), "never made"),
            (value(0, 0, 0), "never made"),
            (value(7, 1, 0), "unknown"),
        ] {
            let verdict = check_values(&[bad], &logs(), Some(1));
            assert_eq!(verdict.lost.len(), 1, "expected: {why}");
            assert!(verdict.lost[0].contains(why), "{:?} is not: {why}", verdict.lost);
        }
    }

    #[test]
    fn a_killed_clients_last_write_may_be_there_or_not() {
        assert!(check_values(&[value(0, 3, 0)], &logs(), Some(0)).lost.is_empty());
        assert!(check_values(&[value(0, 2, 0)], &logs(), Some(0)).lost.is_empty());
        assert_eq!(check_values(&[value(0, 4, 0)], &logs(), Some(0)).lost.len(), 1);
    }
}
