//! The keys of torture after the run: what they hold, and that none stays in somebody's pool.

use std::path::Path;

use swarm_core::history::{Answer as Told, Call, Operation};

use swarm_kv::block_on;
use swarm_worker::history::History;
use swarm_worker::job::monotonic_ns;
use swarm_worker::store::Store;
use swarm_worker::torture::try_delete;
use swarm_worker::torture::{key_name, read};
use swarm_worker::torture_log::{self, name};

use super::outcome::Failure;

/// Gets every key once all clients have ended. Yields how many stay that were to go.
pub(crate) struct LastLook<'a> {
    pub(crate) keys: u32,
    pub(crate) run: &'a str,
    pub(crate) client: u32,
    /// Whether to leave none.
    pub(crate) delete: bool,
    pub(crate) history: &'a mut History,
}

impl LastLook<'_> {
    pub(crate) fn run(self, store: &Store<'_>) -> Result<u32, Failure> {
        let mut room = Vec::new();
        let mut left = 0;
        for key in 0..self.keys {
            let name_of_key = key_name(self.run, key);
            let called = monotonic_ns();
            let told =
                block_on(store.get(name_of_key.as_bytes(), |value| read(key, value, &mut room)))?;
            let at = monotonic_ns();
            let told = match told {
                torture_log::Told::Value(tag) => Some(name(self.history, tag)),
                torture_log::Told::Damaged => Some(self.history.values.number("damaged".into())),
                _ => None,
            };
            self.history.operations.push(Operation {
                key: u64::from(key),
                client: self.client as usize,
                call: Call::Get,
                called,
                answered: Some((at, Told::Value(told))),
            });
            if self.delete && !try_delete(store, &name_of_key)? {
                left += 1;
            }
        }
        Ok(left)
    }
}

/// Deletes these keys. Yields how many stay.
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

/// What is said of keys that stay in somebody's pool.
pub(crate) fn left_in(pool: &Path, run: &str) -> String {
    let (pool, prefix) = (pool.display(), key_name(run, ""));
    format!(
        "keys that begin with {prefix} may still be in {pool}; remove them with \
         `swarm export '{pool}' | grep -ao '^{prefix}[0-9]*' | xargs -rn 1 swarm delete '{pool}'`"
    )
}
