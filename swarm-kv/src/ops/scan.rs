//! Scans the whole store: for export and for `info`.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::{Check, Found, Protocol, Register, read_key};
use swarm_core::words::Pointer;

use crate::client::handle::{Client, Value};
use crate::error::Error;
use crate::heap::ClientUsage;
use crate::index::bucket::{Content, Entry, KeyObject};
use crate::index::keyed_cell::{KeyedCell, Kind};
use crate::index::lookup::Located;

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
    /// Bytes of each node's memory that their index takes, except the first buckets' cells, which
    /// every pool has.
    pub index_bytes: u64,
}

/// What a pool holds, estimated from a part of its index.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct Estimate {
    /// What it holds, if the rest of the index is like that part. What chunks take is exact.
    pub usage: Usage,
    /// The share of the index that was counted. If it is 1, the usage is exact, except for changes
    /// meanwhile.
    pub share: f64,
    /// The standard error of the number of keys.
    pub keys_error: u64,
}

impl From<Usage> for Estimate {
    /// Makes an estimate of which all was counted.
    fn from(usage: Usage) -> Self {
        Self { usage, share: 1.0, keys_error: 0 }
    }
}

/// Keys below each of some first buckets; a key's hash picks its first bucket.
#[derive(Clone, Copy, Default)]
struct Sample {
    buckets: u64,
    keys: u64,
    squares: u64,
}

impl Sample {
    fn add(&mut self, keys: u64) {
        self.buckets += 1;
        self.keys += keys;
        self.squares = self.squares.saturating_add(keys.saturating_mul(keys));
    }

    /// Returns the standard error of the number of keys in all `of` buckets, as drawn without
    /// replacement.
    fn error(&self, of: u64) -> u64 {
        let (drawn, of) = (self.buckets as f64, of as f64);
        let mean = self.keys as f64 / drawn;
        let variance = (self.squares as f64 / drawn - mean * mean).max(0.0);
        (of * (variance / drawn * (1.0 - drawn / of)).sqrt()) as u64
    }
}

/// Returns the numbers below `of`, consecutive ones far apart.
fn scattered(of: u64) -> impl Iterator<Item = u64> {
    // About the golden ratio of it, so that the next number lies in the largest gap; prime to it,
    // so that each number occurs once.
    let mut step = (of as f64 * 0.618) as u64 | 1;
    while step > 1 && gcd(step, of) > 1 {
        step -= 2;
    }
    (0..of).map(move |at| (u128::from(at) * u128::from(step) % u128::from(of)) as u64)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A key's object, as a walk reaches it.
pub(crate) enum WalkedObject<'m> {
    Register(&'m Register),
    /// A cell, with its key and its committed record.
    Cell {
        cell: &'m KeyedCell,
        key: &'m [u8],
        record: Pointer,
        /// When its value expires, if it does.
        deadline: Option<u64>,
    },
}

/// A key, its value, and how long it is there yet, if it expires.
type Pair = (Vec<u8>, Vec<u8>, Option<Duration>);

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Calls `each` with every key and its value until it breaks off.
    ///
    /// Visits each key that exists during the whole scan once; a key that is inserted or deleted
    /// meanwhile may be visited or not. Three roundtrips a key, one a bucket.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.for_each_with_ttl(|key, value, _| each(key, value)).await
    }

    /// As [`for_each`](Self::for_each), and passes on for each key how long it will still be there, by this client's clock, if it
    /// expires.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn for_each_with_ttl(
        &self,
        mut each: impl FnMut(&[u8], &[u8], Option<Duration>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let walk = self.walk(async |met, value| match met {
            WalkedObject::Register(register) => {
                let key = read_key(&self.group, register).await?;
                Ok(each(&key, value, None))
            }
            WalkedObject::Cell { key, deadline, .. } => {
                Ok(each(key, value, deadline.map(|deadline| self.left_until(deadline))))
            }
        });
        self.look();
        self.in_own_process(walk).await
    }

    /// The keys and values of one of the first buckets, and of those that it was split into.
    pub(crate) async fn pairs_below(&self, first: usize) -> Result<Vec<Pair>, Error> {
        let mut pairs = Vec::new();
        let mut add = async |met: WalkedObject<'_>, value: &[u8]| {
            let (key, deadline) = match met {
                WalkedObject::Register(register) => {
                    (read_key(&self.group, register).await?.to_vec(), None)
                }
                WalkedObject::Cell { key, deadline, .. } => (key.to_vec(), deadline),
            };
            let left = deadline.map(|deadline| self.left_until(deadline));
            pairs.push((key, value.to_vec(), left));
            Ok(ControlFlow::Continue(()))
        };
        let walk = self.walk_below(first, async |located| {
            self.entries_of(located, async |_, met, value| add(met, value?).await).await
        });
        let walked = self.in_own_process(walk).await;
        walked.map(|_| pairs)
    }

    /// Returns what the pool holds. Counts keys one by one: one roundtrip each.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn usage(&self) -> Result<Usage, Error> {
        let count = self.count_while(|_, _| {}, |_, _| true);
        self.look();
        Ok(self.in_own_process(count).await?.usage)
    }

    /// The same, and how much of it each client owns, in use or not.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn accounts(&self) -> Result<(Usage, Vec<ClientUsage>), Error> {
        let (estimate, client_usage) = self.accounts_while(|_, _| true).await?;
        Ok((estimate.usage, client_usage))
    }

    /// The same, estimated from a part of the index. Counts while `goes_on` returns true; its
    /// arguments are how many first buckets were counted, and how many there are. They are taken
    /// from all over the index, so that the part is like the rest.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn accounts_while(
        &self,
        goes_on: impl FnMut(u64, u64) -> bool,
    ) -> Result<(Estimate, Vec<ClientUsage>), Error> {
        let mut live = HashMap::<Option<usize>, u64>::new();
        let each = |object, bytes| {
            if let Some(holder) = self.heap.holder(object) {
                *live.entry(holder).or_default() += bytes;
            }
        };
        self.look();
        let estimate = self.in_own_process(self.count_while(each, goes_on)).await?;
        let mut client_usage = self.client_usage().await?;
        for holding in &mut client_usage {
            let live = live.get(&holding.client).copied().unwrap_or(0);
            let live = (live as f64 / estimate.share) as u64;
            holding.live_bytes = Some(live.min(holding.allocated_bytes));
        }
        Ok((estimate, client_usage))
    }

    /// The value of a key that the index lists, if it is there.
    async fn value_at(
        &self,
        entry: &Entry,
        register: &mut Register,
    ) -> Result<Option<Value<'_, F>>, Error> {
        match P::read(&self.group, register, Check::Identity).await {
            Err(swarm_core::error::Error::Moved) => self.get_moved(entry.hash, register).await,
            found => Ok(match found? {
                Found::Value(value) => Some(value),
                _ => None,
            }),
        }
    }

    /// Calls `each` with the objects that keys and the index take, and their bytes, while `goes_on`
    /// returns true.
    pub(crate) async fn count_while(
        &self,
        mut each: impl FnMut(Pointer, u64),
        mut goes_on: impl FnMut(u64, u64) -> bool,
    ) -> Result<Estimate, Error> {
        let used_bytes = self.heap.used(&self.group).await?;
        let (mut live_bytes, mut index_bytes) = (0, 0);
        let (all, mut sample) = (self.geometry.first_buckets() as u64, Sample::default());
        for first in scattered(all) {
            let mut keys = 0;
            self.count_below(
                first as usize,
                &mut each,
                (&mut keys, &mut live_bytes, &mut index_bytes),
            )
            .await?;
            sample.add(keys);
            if !goes_on(sample.buckets, all) {
                break;
            }
        }
        let share = sample.buckets as f64 / all as f64;
        let [keys, live_bytes, index_bytes] = [sample.keys, live_bytes, index_bytes]
            .map(|counted: u64| (counted as f64 / share) as u64);
        let usage = Usage { used_bytes, keys, live_bytes, index_bytes };
        Ok(Estimate { usage, share, keys_error: sample.error(all) })
    }

    /// Counts what one of the first buckets takes, with all buckets into which it was split.
    async fn count_below(
        &self,
        first: usize,
        each: &mut impl FnMut(Pointer, u64),
        (keys, live_bytes, index_bytes): (&mut u64, &mut u64, &mut u64),
    ) -> Result<(), Error> {
        self.walk_below(first, async |located| {
            for (object, bytes) in self.bucket_objects(located) {
                *index_bytes += bytes;
                each(object, bytes);
            }
            self.entries_of(located, async |entry, met, value| {
                *keys += 1;
                let out_of_place = match met {
                    WalkedObject::Register(register) => {
                        // A key whose relocation is blocked counts with its capacity.
                        let length = value.map_or(register.capacity(), <[u8]>::len);
                        let buffer = self.geometry.format.pointer(register.last_stamp());
                        (buffer, self.heap.buffer_bytes(length))
                    }
                    WalkedObject::Cell { cell, record, .. } => {
                        (record, self.heap.bytes(self.heap.plain(cell.record_words())))
                    }
                };
                let taken = [(entry.pointer, self.heap.object_bytes(entry.class)), out_of_place];
                for (object, bytes) in taken {
                    *live_bytes += bytes;
                    each(object, bytes);
                }
                Ok(ControlFlow::Continue(()))
            })
            .await
        })
        .await
        .map(drop)
    }

    /// Returns the objects that a bucket takes of the heap, and their bytes. First buckets have
    /// their cells elsewhere, and those that are still empty have no record.
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

    /// Returns what each client slot owns of the pool's memory. One roundtrip for each chunk that
    /// has an owner.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn client_usage(&self) -> Result<Vec<ClientUsage>, Error> {
        self.in_own_process(self.heap.client_usage(&self.group)).await
    }

    /// Calls `each` with the object of every key and its value until it breaks off.
    async fn walk(
        &self,
        mut each: impl AsyncFnMut(WalkedObject<'_>, &[u8]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        self.walk_buckets(async |located| {
            self.entries_of(located, async |_, met, value| each(met, value?).await).await
        })
        .await
    }

    /// Calls `each` with every bucket, split or not, until it breaks off.
    pub(crate) async fn walk_buckets(
        &self,
        mut each: impl AsyncFnMut(&Located) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        for first in 0..self.geometry.first_buckets() {
            if self.walk_below(first, &mut each).await?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The same with one of the first buckets and all buckets into which it was split.
    async fn walk_below(
        &self,
        first: usize,
        mut each: impl AsyncFnMut(&Located) -> Result<ControlFlow<()>, Error>,
    ) -> Result<ControlFlow<()>, Error> {
        let mut walk = self.index.walk(first);
        loop {
            // The bucket and all that it names stay allocated while this client is pinned.
            let _pin = self.pin();
            let Some(located) = self.index.step(&self.group, &mut walk).await? else { break };
            if each(&located).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Calls `each` with the entry, object and value of each key of a bucket. If a key is being
    /// moved, its value is known only if there is memory to move it.
    async fn entries_of(
        &self,
        located: &Located,
        mut each: impl AsyncFnMut(
            &Entry,
            WalkedObject<'_>,
            Result<&[u8], Error>,
        ) -> Result<ControlFlow<()>, Error>,
    ) -> Result<ControlFlow<()>, Error> {
        let Content::Entries { entries, .. } = &located.bucket.content else {
            return Ok(ControlFlow::Continue(()));
        };
        for entry in entries {
            let Some(object) = entry.object(&self.geometry) else { continue };
            let mut register = match object {
                KeyObject::Register(register) => register,
                KeyObject::Cell(cell) => {
                    // X5: a walk leaves out what has expired, and changes nothing.
                    let (key, shown) = self.read_cell_as_it_is(&cell).await?;
                    if shown.kind != Kind::Absent && !self.is_past(shown.deadline) {
                        let (record, deadline) = (shown.view.record(), shown.deadline);
                        let met = WalkedObject::Cell { cell: &cell, key: &key, record, deadline };
                        if each(entry, met, Ok(&shown.value)).await?.is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                    continue;
                }
            };
            let value = self.value_at(entry, &mut register).await;
            let value = match &value {
                Ok(None) => continue,
                Ok(Some(value)) => Ok(&**value),
                Err(Error::Full(shortage)) => Err(Error::Full(*shortage)),
                Err(_) => return value.map(|_| ControlFlow::Break(())),
            };
            if each(entry, WalkedObject::Register(&register), value).await?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::client::handle::tests::alone;

    #[test]
    fn scattered_numbers_come_once_each() {
        for of in [1, 2, 3, 8, 97, 1000, 4096] {
            let all: HashSet<u64> = scattered(of).collect();
            assert_eq!(all.len() as u64, of);
        }
    }

    /// A part of the index yields about the right number of keys, and all of it the exact number.
    #[test]
    fn a_part_of_the_index_shows_how_much_there_is() {
        let client = alone();
        for key in 0..2000_u32 {
            client.blocking().put(&key.to_le_bytes(), b"value").expect("memory");
        }
        let (all, _) = crate::block_on(client.accounts()).expect("memory");
        assert_eq!(all.keys, 2000);
        for part in [16, 32, 64, 128] {
            let estimate = client.accounts_while(|done, _| done < part);
            let (estimate, client_usage) = crate::block_on(estimate).expect("memory");
            let off = estimate.usage.keys.abs_diff(2000);
            assert!(off <= 5 * estimate.keys_error, "{part}: {estimate:?}");
            assert_eq!(estimate.usage.used_bytes, all.used_bytes);
            assert_eq!(estimate.keys_error == 0, part == 128, "{estimate:?}");
            let live: u64 = client_usage.iter().filter_map(|holding| holding.live_bytes).sum();
            assert!(live > 0, "{client_usage:?}");
        }
    }
}
