//! The operations of a client, as its users call them.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::{Client, Value};
use crate::error::Error;
use crate::ops::update::UpdateRest;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the value of `key`, if it is there.
    ///
    /// One roundtrip if the key's location is cached and its value fits in place; one more for a
    /// longer value; two more to look the key up.
    ///
    /// # Errors
    /// A key out of bounds; too few memory nodes that answer.
    #[inline]
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value<'_, F>>, Error> {
        // In a block, so that the future has no room for what is left of the get.
        let rest = {
            let mut rest = None;
            if let Some(value) = self.try_get(key, &mut rest) {
                return Ok(Some(value));
            }
            Box::pin(self.get_on(key, rest.expect("what is left of it")?))
        };
        rest.await
    }

    /// Sets the value of `key`, whether or not the key is there.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut rest = UpdateRest::default();
        let outcome = match self.try_update(|counters| &mut counters.put, key, value, &mut rest) {
            Some(outcome) => outcome.map(drop),
            None => Box::pin(self.put_on(key, value, rest)).await,
        };
        if self.is_assist_due() {
            self.gc_assist().await;
        }
        outcome
    }

    /// Adds `key` with `value`. Returns false, with no effect, if the key is there already: of two
    /// concurrent inserts one wins, and the other one learns that it lost.
    ///
    /// One roundtrip if the key's bucket was read in this epoch; one more to read it.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let insert = self.with_memory(async || {
            let hash = self.check(key, value)?;
            let _lock = self.lock_key(hash).await?;
            self.insert_now(hash, key, value).await
        });
        let (result, tally) = self.group.fabric().track(self.in_own_process(insert)).await;
        self.count(|counters| &mut counters.insert, tally);
        self.gc_assist().await;
        result
    }

    /// Replaces the value of `key`. Returns false, with no effect, if the key is not there.
    ///
    /// One roundtrip if the key's location is cached; two more to look it up.
    ///
    /// # Errors
    /// A key or value out of bounds; a full pool; too few memory nodes that answer.
    #[inline]
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let mut rest = UpdateRest::default();
        let outcome = match self.try_update(|counters| &mut counters.update, key, value, &mut rest)
        {
            Some(outcome) => outcome,
            None => Box::pin(self.update_on(key, value, rest)).await,
        };
        if self.is_assist_due() {
            self.gc_assist().await;
        }
        outcome
    }

    /// Deletes `key`, whether or not it is there.
    ///
    /// Two roundtrips if the key's location is cached; one more to look it up. Takes no memory,
    /// except for a key that is being moved.
    ///
    /// # Errors
    /// A key out of bounds; too few memory nodes that answer.
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        let delete = self.with_memory(async || {
            let hash = self.check(key, &[])?;
            let _lock = self.lock_key(hash).await?;
            self.delete_now(hash, key).await?;
            self.failed_reclaim.set(None);
            Ok(())
        });
        let (result, tally) = self.group.fabric().track(self.in_own_process(delete)).await;
        self.count(|counters| &mut counters.delete, tally);
        self.gc_assist().await;
        result
    }
}
