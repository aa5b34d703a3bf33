//! Going over the whole store: for export and for `info`.

use std::ops::ControlFlow;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::{Check, Found, Protocol, Register, read_key};
use swarm_core::words::Pointer;

use crate::bucket::{Content, Entry};
use crate::client::Client;
use crate::error::Error;
use crate::heap::Holding;
use crate::index::Located;

/// What a pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of each node's memory that are not free.
    pub used_bytes: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of each node's memory that their registers and values take.
    pub live_bytes: u64,
    /// Bytes of each node's memory that the index of them takes, but for the first buckets' cells, which
    /// every pool has.
    pub index_bytes: u64,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Calls `each` with every key and its value until it breaks off.
    ///
    /// Each key that is there all the while is met once; one that comes or goes meanwhile may be
    /// met or not. Three roundtrips a key, one a bucket.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let walk = self.walk(async |register, value| {
            let key = read_key(&self.group, register).await?;
            Ok(each(&key, value))
        });
        self.in_own_process(walk).await
    }

    /// What the pool holds. Counts keys one by one: a roundtrip for each.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn usage(&self) -> Result<Usage, Error> {
        self.in_own_process(self.count_all(|_, _| {})).await
    }

    /// The same, and who holds how much of it, in use or not.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn accounts(&self) -> Result<(Usage, Vec<Holding>), Error> {
        let mut live = vec![0; self.geometry.max_clients];
        let count = self.count_all(|object, bytes| {
            if let Some(live) = self.heap.owner(object).and_then(|slot| live.get_mut(slot)) {
                *live += bytes;
            }
        });
        let usage = self.in_own_process(count).await?;
        let mut holdings = self.holdings().await?;
        for holding in &mut holdings {
            holding.live_bytes = Some(live[holding.client].min(holding.aside_bytes));
        }
        Ok((usage, holdings))
    }

    /// Calls `each` with all objects that keys and the index take, and their bytes.
    async fn count_all(&self, mut each: impl FnMut(Pointer, u64)) -> Result<Usage, Error> {
        let used_bytes = self.heap.used(&self.group).await?;
        let (mut keys, mut live_bytes, mut index_bytes) = (0, 0, 0);
        self.walk_buckets(async |located| {
            for (object, bytes) in self.bucket_objects(located) {
                index_bytes += bytes;
                each(object, bytes);
            }
            self.entries_of(located, async |entry, register, value| {
                keys += 1;
                // One that is on the move and has nowhere to go counts with what there is room for.
                let length = value.map_or(register.capacity(), <[u8]>::len);
                let buffer = self.geometry.format.pointer(register.last_stamp());
                let taken = [
                    (entry.pointer, self.heap.object_bytes(entry.class)),
                    (buffer, self.heap.buffer_bytes(length)),
                ];
                for (object, bytes) in taken {
                    live_bytes += bytes;
                    each(object, bytes);
                }
                Ok(ControlFlow::Continue(()))
            })
            .await
        })
        .await?;
        Ok(Usage { used_bytes, keys, live_bytes, index_bytes })
    }

    /// What a bucket takes of the heap, and the bytes of that: the first ones have their cells, and those
    /// that are empty still have no record, elsewhere.
    fn bucket_objects(
        &self,
        located: &Located,
    ) -> impl Iterator<Item = (Pointer, u64)> + use<F, C, P> {
        let (cell, record) = (located.cell.place, located.view.record());
        let cell_kind = self.heap.homed(self.geometry.bucket_class(), cell.home);
        let first = self.geometry.first_chunk();
        let taken =
            [(cell.pointer, cell_kind), (record, self.record_kind(&located.bucket.content))].map(
                |(object, kind)| (object, self.geometry.chunk_of(object), self.heap.bytes(kind)),
            );
        taken
            .into_iter()
            .filter(move |(_, chunk, _)| *chunk >= first)
            .map(|(object, _, bytes)| (object, bytes))
    }

    /// What each client slot holds of the pool's memory. A roundtrip for each chunk that has an
    /// owner.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn holdings(&self) -> Result<Vec<Holding>, Error> {
        self.in_own_process(self.heap.holdings(&self.group)).await
    }

    /// Calls `each` with the register of every key and its value until it breaks off.
    async fn walk(
        &self,
        mut each: impl AsyncFnMut(&Register, &[u8]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        self.walk_buckets(async |located| {
            self.entries_of(located, async |_, register, value| each(register, value?).await).await
        })
        .await
    }

    /// Calls `each` with every bucket, split or not, until it breaks off.
    async fn walk_buckets(
        &self,
        mut each: impl AsyncFnMut(&Located) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        for index in 0..self.geometry.first_buckets() {
            let mut walk = self.index.walk(index);
            loop {
                // A bucket and what it names are there as long as the visit lasts.
                let _here = self.here();
                let Some(located) = self.index.step(&self.group, &mut walk).await? else { break };
                if each(&located).await?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Calls `each` with what a bucket has of each of its keys, the register and the value. Of a key on the
    /// move the value is known only if there is memory to move it.
    async fn entries_of(
        &self,
        located: &Located,
        mut each: impl AsyncFnMut(
            &Entry,
            &Register,
            Result<&[u8], Error>,
        ) -> Result<ControlFlow<()>, Error>,
    ) -> Result<ControlFlow<()>, Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else {
            return Ok(ControlFlow::Continue(()));
        };
        for entry in entries {
            let Some(mut register) = entry.register(&self.geometry) else { continue };
            let found = P::read(&self.group, &mut register, Check::Identity).await;
            let value = match found {
                Err(swarm_core::error::Error::Moved) => self.get_moved(entry.hash, &register).await,
                found => match found? {
                    Found::Value(value) => Ok(Some(value)),
                    _ => Ok(None),
                },
            };
            let value = match &value {
                Ok(None) => continue,
                Ok(Some(value)) => Ok(&**value),
                Err(Error::Full(shortage)) => Err(Error::Full(*shortage)),
                Err(_) => return value.map(|_| ControlFlow::Break(())),
            };
            if each(entry, &register, value).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
