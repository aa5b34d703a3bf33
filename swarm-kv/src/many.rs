//! Operations on many keys.
//!
//! Where memory is far, all are under way at the same time. Where it is near, each is over in its first poll, and
//! what takes long is to wait for memory that is in no cache: so they go one after the other, and what the next ones will
//! look at is asked for some keys ahead: first what is remembered of a key, then the lines of its replicas that this
//! names. A hint reads nothing, so that what it goes by may be out of date.

use std::collections::HashSet;

use futures_util::future::try_join_all;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::cache::hash_key;
use crate::client::{Client, Value};
use crate::error::Error;

/// Keys ahead of which replicas' lines are asked for; what is remembered is twice as many ahead.
const AHEAD: usize = 8;

/// What is asked for ahead of an operation on many keys.
struct Ahead<'k, K> {
    keys: &'k [K],
    /// Whether it is to be changed.
    change: bool,
    /// Hashes of the keys that come next.
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

    /// Key number `at` comes next.
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
    /// The values of `keys`, in their order. Where memory is far they are fetched at the same time, in as many roundtrips
    /// as the get that takes most of them; where it is near one after the other, with memory asked for ahead.
    ///
    /// # Errors
    /// The first error that one of the gets meets.
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

    /// [Puts](Self::put) each value under the key at the same place, as many as there are of both: at the same time where
    /// memory is far, in as many roundtrips as the put that takes most of them. Each of them is atomic, all of them
    /// together are not. Of a key that is there several times, the last value stays; where memory is far, such a key
    /// begins another round.
    ///
    /// # Errors
    /// The first error that one of the puts meets. Of the others, each may or may not have taken effect.
    ///
    /// # Cancel safety
    /// As of [`put`](Self::put), for each of them.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        keys: &[K],
        values: &[V],
    ) -> Result<(), Error> {
        let mut puts = keys.iter().zip(values);
        if !self.group.fabric().is_near() {
            // A key that comes again waits until it was put: of two puts at the same time either may come last.
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

    /// [Deletes](Self::delete) all of `keys`: at the same time where memory is far, in as many roundtrips as the delete that
    /// takes most of them.
    ///
    /// # Errors
    /// The first error that one of the deletes meets. Of the others, each may or may not have taken effect.
    ///
    /// # Cancel safety
    /// As of [`delete`](Self::delete), for each of them.
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
