//! The keys of torture and the hot ones of soak after the run: reads their values, and deletes them from a user's pool.

use std::path::Path;

use swarm_core::history::{Answer as Shown, Call, Operation};

use swarm_kv::block_on;
use swarm_worker::history::History;
use swarm_worker::hot_keys::{key_name, read, try_delete};
use swarm_worker::job::monotonic_ns;
use swarm_worker::store::Store;
use swarm_worker::torture_log::{self, name};

use crate::common::exit::Failure;

/// Gets every key once all clients have ended. Returns how many could not be deleted.
pub(crate) struct FinalReads<'a> {
    pub(crate) keys: u32,
    pub(crate) run: &'a str,
    pub(crate) client: u32,
    /// Whether to delete the keys.
    pub(crate) delete: bool,
    pub(crate) history: &'a mut History,
}

impl FinalReads<'_> {
    pub(crate) fn run(self, store: &Store<'_>) -> Result<u32, Failure> {
        let mut room = Vec::new();
        let mut left = 0;
        for key in 0..self.keys {
            let name_of_key = key_name(self.run, key);
            let called = monotonic_ns();
            let answer =
                block_on(store.get(name_of_key.as_bytes(), |value| read(key, value, &mut room)))?;
            let at = monotonic_ns();
            let answer = match answer {
                torture_log::Outcome::Value(tag) => Some(name(self.history, tag)),
                torture_log::Outcome::Sum(sum) => Some(sum),
                torture_log::Outcome::Damaged => Some(self.history.value("damaged".into())),
                _ => None,
            };
            self.history.operations.push(Operation {
                key: u64::from(key),
                client: self.client as usize,
                call: Call::Get,
                called,
                answered: Some((at, Shown::Value(answer))),
            });
            if self.delete && !try_delete(store, &name_of_key)? {
                left += 1;
            }
        }
        Ok(left)
    }
}

/// Deletes these keys. Returns how many stay.
pub(crate) fn clear(
    store: &Store<'_>,
    names: impl Iterator<Item = String>,
) -> Result<u32, Failure> {
    let mut left = 0;
    for name in names {
        if !try_delete(store, &name)? {
            left += 1;
        }
    }
    Ok(left)
}

/// Returns the message about keys that stay in a user's pool.
pub(crate) fn left_in(pool: &Path, run: &str) -> String {
    let (pool, prefix) = (pool.display(), key_name(run, ""));
    format!(
        "keys that begin with {prefix} may still be in {pool}; remove them with \
         `swarm export '{pool}' | grep -ao '^{prefix}[0-9]*' | xargs -rn 1 swarm delete '{pool}'`"
    )
}
