//! Operations on many keys.
//!
//! On an asynchronous fabric (RDMA) all of them run concurrently. On a synchronous one (shared
//! memory) each ends in its first poll, and most of its time is spent waiting for memory that is in
//! no cache. So they run one after the other, and memory is prefetched some keys ahead: first the
//! cached location of a key, then the lines of its replicas that this names. A prefetch reads
//! nothing, so it may go by a location that is out of date.

use std::collections::HashSet;

use futures_util::future::try_join_all;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::{Client, Value};
use crate::client::location_cache::hash_key;
use crate::error::Error;

/// How many keys ahead replicas are prefetched; cached locations are prefetched twice as far ahead.
const AHEAD: usize = 8;

/// Prefetches ahead of an operation on many keys.
struct Ahead<'k, K> {
    keys: &'k [K],
    /// Whether the operation writes.
    change: bool,
    /// Hashes of the next keys.
    hashes: [u64; 2 * AHEAD],
}

impl<'k, K: AsRef<[u8]>> Ahead<'k, K> {
    fn new<F: Fabric, C: Clock, P: Protocol>(
        client: &Client<F, C, P>,
        keys: &'k [K],
        change: bool,
    ) -> Self {
        let mut ahead = Self { keys, change, hashes: [0; 2 * AHEAD] };
        for at in 0..2 * AHEAD - 1 {
            ahead.remembered(client, at);
        }
        for at in 0..AHEAD - 1 {
            ahead.replicas(client, at);
        }
        ahead
    }

    /// Prefetches for the keys that follow key number `at`, which is next.
    #[inline]
    fn comes_to<F: Fabric, C: Clock, P: Protocol>(&mut self, client: &Client<F, C, P>, at: usize) {
        self.remembered(client, at + 2 * AHEAD - 1);
        self.replicas(client, at + AHEAD - 1);
    }

    #[inline]
    fn remembered<F: Fabric, C: Clock, P: Protocol>(
        &mut self,
        client: &Client<F, C, P>,
        at: usize,
    ) {
        let Some(key) = self.keys.get(at) else { return };
        let hash = hash_key(key.as_ref(), client.geometry.hash_seed);
        self.hashes[at % (2 * AHEAD)] = hash;
        client.locations.expect(client.group.fabric(), hash);
    }

    #[inline]
    fn replicas<F: Fabric, C: Clock, P: Protocol>(&self, client: &Client<F, C, P>, at: usize) {
        if at < self.keys.len() {
            client.locations.glance(self.hashes[at % (2 * AHEAD)], |place, words| {
                if self.change {
                    client.group.expect_change(place, words);
                } else {
                    client.group.expect(place, words);
                }
            });
        }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Gets the values of `keys`, in their order. An asynchronous fabric fetches them concurrently,
    /// in as many roundtrips as the slowest get takes; a synchronous one one after the other, with
    /// prefetching.
    ///
    /// # Errors
    /// The first error of any of the gets.
    pub async fn get_many(
        &self,
        keys: &[impl AsRef<[u8]>],
    ) -> Result<Vec<Option<Value<'_, F>>>, Error> {
        if !self.group.fabric().is_near() {
            return try_join_all(keys.iter().map(|key| self.get(key.as_ref()))).await;
        }
        let mut values = Vec::with_capacity(keys.len());
        let mut ahead = Ahead::new(self, keys, false);
        for (at, key) in keys.iter().enumerate() {
            ahead.comes_to(self, at);
            values.push(self.get(key.as_ref()).await?);
        }
        Ok(values)
    }

    /// [Puts](Self::put) each value under the key at the same position, up to the length of the
    /// shorter slice. On an asynchronous fabric they run concurrently, in as many roundtrips as the
    /// slowest put takes. Each of them is atomic, all of them together are not. Of a key that
    /// occurs several times, the last value stays; on an asynchronous fabric, each such repetition
    /// starts another round.
    ///
    /// # Errors
    /// The first error of any of the puts. Each of the others may or may not have taken effect.
    ///
    /// # Cancel safety
    /// As for [`put`](Self::put), for each of them.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        keys: &[K],
        values: &[V],
    ) -> Result<(), Error> {
        let mut puts = keys.iter().zip(values);
        if !self.group.fabric().is_near() {
            // A repeated key waits for the round before: of two concurrent puts, either could be
            // last.
            while puts.len() > 0 {
                let mut seen: HashSet<&[u8]> = HashSet::new();
                let keys = puts.clone().map(|(key, _): (&K, &V)| key.as_ref());
                let apart = keys.take_while(|key| seen.insert(key)).count();
                let at_once = puts.by_ref().take(apart);
                try_join_all(at_once.map(|(key, value)| self.put(key.as_ref(), value.as_ref())))
                    .await?;
            }
            return Ok(());
        }
        let mut ahead = Ahead::new(self, keys, true);
        for (at, (key, value)) in puts.enumerate() {
            ahead.comes_to(self, at);
            self.put(key.as_ref(), value.as_ref()).await?;
        }
        Ok(())
    }

    /// [Deletes](Self::delete) all of `keys`: concurrently on an asynchronous fabric, in as many
    /// roundtrips as the slowest delete takes.
    ///
    /// # Errors
    /// The first error of any of the deletes. Each of the others may or may not have taken effect.
    ///
    /// # Cancel safety
    /// As for [`delete`](Self::delete), for each of them.
    pub async fn delete_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<(), Error> {
        if !self.group.fabric().is_near() {
            let deletes = keys.iter().map(|key| self.delete(key.as_ref()));
            return try_join_all(deletes).await.map(drop);
        }
        let mut ahead = Ahead::new(self, keys, true);
        for (at, key) in keys.iter().enumerate() {
            ahead.comes_to(self, at);
            self.delete(key.as_ref()).await?;
        }
        Ok(())
    }
}
