//! A handle for all threads and tasks of a process.
//!
//! A [`Client`](crate::Client) is one thread's, and its futures borrow it: a runtime that moves tasks between threads refuses them. A
//! [`Store`] is a few clients that are lent to one operation at a time. An operation that ends in its first poll, which is almost every one where
//! memory is near, has given its client back by then, and any number of tasks do with as many clients as there are threads. One that
//! does not has its client to itself until it ends or is dropped.
//!
//! | file | concept |
//! | --- | --- |
//! | `slot` | a place for a client |
//! | `clients` | which operation has which client, and which wait for one |
//! | `whole` | an operation that moves between threads together with its client |
//! | `blocking` | the same operations for programs without `async` |
//! | `objects` | locks and other objects, and keys that are watched: what is held without a client |
//! | `plain`, `encoded` | values of types; with the features `zerocopy` and `serde` |

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use swarm_core::fabric::Fabric;

use crate::client::handle::Options;
use crate::error::Error;
use crate::ops::expiry::TimeToLive;
use crate::ops::modify::CompareAndSwap;
use crate::ops::scan::Estimate;
use crate::ops::version::Version;
use crate::pools::shm::{self, Emulated, OpenOptions, Plain, Pool};

mod blocking;
mod clients;
#[cfg(feature = "serde")]
mod encoded;
mod lock;
mod objects;
#[cfg(feature = "zerocopy")]
mod plain;
mod slot;
mod whole;

#[cfg(test)]
mod tests;

pub use blocking::BlockingStore;
use clients::Clients;
use objects::LeftPlaces;
#[cfg(feature = "zerocopy")]
pub use objects::StoreAtomic;
#[cfg(feature = "serde")]
pub use objects::StoreGuarded;
pub use objects::{
    Begun, BlockingObject, Pause, StoreBarrier, StoreDoing, StoreGuard, StoreLatch, StoreLock,
    StoreMember, StoreOnce, StoreRwLock, StoreSemaphore, StoreWatch,
};
use whole::{Lent, Movable, on_client};

/// How a handle is to behave.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StoreOptions {
    /// Clients that it opens at most: so many of the pool's slots it takes, and so many operations are under way at a time. It opens one at
    /// first, and another one when an operation finds all in use, which takes its thread a few milliseconds; operations beyond the last one wait. Where
    /// all slots of the pool are taken it does with those that it has, and tries again after a second.
    pub clients: usize,
    /// How its clients behave. Each has a memory of its own of where keys are.
    pub client: Options,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { clients: 16, client: Options::default() }
    }
}

impl StoreOptions {
    /// Opens so many clients at most, one at least.
    #[must_use]
    pub fn clients(mut self, clients: usize) -> Self {
        self.clients = clients.max(1);
        self
    }

    /// Its clients behave so.
    #[must_use]
    pub fn client(mut self, options: Options) -> Self {
        self.client = options;
        self
    }
}

/// A handle to a pool on shared memory, for any number of threads and tasks. Cloning it costs a count; the clients are
/// shared.
///
/// ```
/// use swarm_kv::Store;
/// use swarm_kv::shm::{CreateOptions, Pool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// # Pool::create(&path, &CreateOptions { nodes: 3, capacity: 16 << 20, ..CreateOptions::default() })?;
/// let store = Store::open(&path)?;
/// std::thread::scope(|threads| {
///     for number in 0..8_u8 {
///         let store = &store;
///         threads.spawn(move || store.blocking().put(&[number], b"value"));
///     }
/// });
/// // The same for tasks, which any runtime may spawn:
/// let task = { let store = store.clone(); async move { store.get(b"\x07").await } };
/// # fn spawn<T: Send>(task: impl Future<Output = T> + Send + 'static) -> T { swarm_kv::block_on(task) }
/// assert_eq!(spawn(task)?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
///
/// All operations are linearizable, whichever clients they use. Their errors are those of the operation of that name of
/// [`Client`](crate::Client); [`Error::kind`] says what to do. Waiting for a client is no error.
///
/// # Cancel safety
/// Dropping an operation's future before it ends equals a crash of its client at that point, as of
/// [`Client`](crate::Client): a write may or may not take effect, and nothing else is harmed. The client is lent to the next
/// operation. One that was not polled yet, or waits for a client, has had no effect.
///
/// # Futures that are kept
/// An operation that was polled, did not end, and is not polled any more keeps its client, or the one that it was waiting for. If all of a handle's
/// clients are kept so, all other operations wait until one of those is polled or dropped. Poll what was begun. A future that is forgotten
/// (`mem::forget`) keeps its client for good, and holds memory back for all clients of the pool, as of [`Client`](crate::Client).
///
/// For the same reason what is called in the middle of an operation, with a value or a key, should not call the handle: it needs
/// a second client. And a thread that polls tasks should not wait in a [blocking](Self::blocking) operation while its tasks have all clients.
///
/// # Panics
/// What a caller's function panics with goes on to the caller; the client is given back.
///
/// # Forks
/// A handle is the process's that opened it. In a child, each operation ends in [`Error::Forked`]; [`reopen`](Self::reopen) opens
/// one of the child's own.
pub struct Store<F: Fabric = Plain>(Arc<Shared<F>>);

/// What clones of a handle share.
struct Shared<F: Fabric> {
    clients: Clients<Lent<F>>,
    /// Places in objects that are to be given up.
    left_places: LeftPlaces,
    pool: Pool,
    options: StoreOptions,
}

impl<F: Fabric> Clone for Store<F> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<F: Fabric> fmt::Debug for Store<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("pool", &self.0.pool.path()).finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the pool at `path`, and a client of it.
    ///
    /// # Errors
    /// As [`shm::open_path`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, shm::Error> {
        Self::of(&Pool::open(path, OpenOptions::default())?, StoreOptions::default())
    }

    /// Opens a client of `pool`, and more of them as they are needed.
    ///
    /// # Errors
    /// As [`shm::open`].
    #[cfg_attr(not(debug_assertions), inline)]
    pub fn of(pool: &Pool, options: StoreOptions) -> Result<Self, shm::Error> {
        Self::with(pool, options, move |pool| shm::open(pool, options.client))
    }

    /// Another handle to the pool that is there now, in this process: after a fork, or after [`Error::Destroyed`]. The pool is opened
    /// as that of this handle was ([`Pool::reopen`]).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[cfg_attr(not(debug_assertions), inline)]
    pub fn reopen(&self) -> Result<Self, shm::Error> {
        Self::of(&self.0.pool.reopen()?, self.0.options)
    }
}

impl Store<Emulated> {
    /// The same for measurements and tests: completions come `roundtrip` nanoseconds late, and the pool's switches take nodes
    /// away.
    ///
    /// # Errors
    /// As [`shm::open_emulated`].
    #[cfg_attr(not(debug_assertions), inline)]
    pub fn emulated(
        pool: &Pool,
        options: StoreOptions,
        roundtrip: u64,
    ) -> Result<Self, shm::Error> {
        Self::with(pool, options, move |pool| shm::open_emulated(pool, options.client, roundtrip))
    }
}

impl<F: Movable> Store<F> {
    fn with(
        pool: &Pool,
        options: StoreOptions,
        open: impl Fn(&Pool) -> Result<Lent<F>, shm::Error> + Send + Sync + 'static,
    ) -> Result<Self, shm::Error> {
        let pool = pool.clone();
        let opened = pool.clone();
        let clients = Clients::new(options.clients, Box::new(move || open(&opened)))?;
        let left_places = LeftPlaces::default();
        Ok(Self(Arc::new(Shared { clients, left_places, pool, options })))
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// How many clients it has opened.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.0.clients.opened()
    }

    /// The same operations for programs without `async`: each returns when it is done, and its thread sleeps while it
    /// waits for a client.
    #[must_use]
    pub fn blocking(&self) -> BlockingStore<'_, F> {
        BlockingStore::new(self)
    }

    /// The value of `key`, if it is there.
    ///
    /// # Errors
    /// As [`Client::get`](crate::Client::get).
    #[inline]
    pub fn get<'s>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send + 's {
        self.read(key, <[u8]>::to_vec)
    }

    /// What `read` makes of the value of `key`, if it is there: the value is read in place.
    ///
    /// # Errors
    /// As [`Client::get`](crate::Client::get).
    #[inline]
    pub fn read<'s, T: Send + 's>(
        &'s self,
        key: &'s [u8],
        read: impl FnOnce(&[u8]) -> T + Send + 's,
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send + 's {
        on_client(&self.0.clients, (key, read), async |client: &Lent<F>, (key, read)| {
            Ok(client.get(key).await?.map(|value| read(&value)))
        })
    }

    /// Makes `value` the value of `key`, whether it is there or not.
    ///
    /// # Errors
    /// As [`Client::put`](crate::Client::put).
    #[inline]
    pub fn put<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
    ) -> impl Future<Output = Result<(), Error>> + Send + 's {
        on_client(&self.0.clients, (key, value), async |client: &Lent<F>, (key, value)| {
            client.put(key, value).await
        })
    }

    /// Adds `key` with `value`. False, and no effect, if it is there already.
    ///
    /// # Errors
    /// As [`Client::insert`](crate::Client::insert).
    pub fn insert<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
    ) -> impl Future<Output = Result<bool, Error>> + Send + 's {
        on_client(&self.0.clients, (key, value), async |client: &Lent<F>, (key, value)| {
            client.insert(key, value).await
        })
    }

    /// Replaces the value of `key`. False, and no effect, if it is not there.
    ///
    /// # Errors
    /// As [`Client::update`](crate::Client::update).
    #[inline]
    pub fn update<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
    ) -> impl Future<Output = Result<bool, Error>> + Send + 's {
        on_client(&self.0.clients, (key, value), async |client: &Lent<F>, (key, value)| {
            client.update(key, value).await
        })
    }

    /// Takes `key` away, whether it is there or not.
    ///
    /// # Errors
    /// As [`Client::delete`](crate::Client::delete).
    pub fn delete<'s>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<(), Error>> + Send + 's {
        on_client(&self.0.clients, key, async |client: &Lent<F>, key| client.delete(key).await)
    }

    /// Makes `new` the value of `key` if its value is `expected`; `None` stands for no value.
    ///
    /// # Errors
    /// As [`Client::compare_and_swap`](crate::Client::compare_and_swap).
    pub fn compare_and_swap<'s>(
        &'s self,
        key: &'s [u8],
        expected: Option<&'s [u8]>,
        new: Option<&'s [u8]>,
    ) -> impl Future<Output = Result<CompareAndSwap, Error>> + Send + 's {
        on_client(
            &self.0.clients,
            (key, expected, new),
            async |client: &Lent<F>, (key, expected, new)| {
                client.compare_and_swap(key, expected, new).await
            },
        )
    }

    /// Makes the value of `key` what `change` makes of it, and returns that; `None` stands for no value.
    ///
    /// `change` is called again where another write came first, and only what its last call returned counts. It runs while the key is
    /// held up for others, so it should be short; and it must not use this handle.
    ///
    /// # Errors
    /// As [`Client::update_with`](crate::Client::update_with).
    pub fn update_with<'s>(
        &'s self,
        key: &'s [u8],
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>> + Send + 's,
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send + 's {
        on_client(&self.0.clients, (key, change), async |client: &Lent<F>, (key, change)| {
            client.update_with(key, change).await
        })
    }

    /// Adds `by` to the decimal number under `key`, and returns the sum. No value counts as 0.
    ///
    /// # Errors
    /// As [`Client::increment`](crate::Client::increment).
    pub fn increment<'s>(
        &'s self,
        key: &'s [u8],
        by: i64,
    ) -> impl Future<Output = Result<i64, Error>> + Send + 's {
        on_client(&self.0.clients, (key, by), async |client: &Lent<F>, (key, by)| {
            client.increment(key, by).await
        })
    }

    /// Makes `value` the value of `key`, and lets it expire after `ttl`.
    ///
    /// # Errors
    /// As [`Client::put_with_ttl`](crate::Client::put_with_ttl).
    pub fn put_with_ttl<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
        ttl: Duration,
    ) -> impl Future<Output = Result<(), Error>> + Send + 's {
        on_client(
            &self.0.clients,
            (key, value, ttl),
            async |client: &Lent<F>, (key, value, ttl)| client.put_with_ttl(key, value, ttl).await,
        )
    }

    /// Returns how long `key` is there yet.
    ///
    /// # Errors
    /// As [`Client::ttl`](crate::Client::ttl).
    pub fn ttl<'s>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<TimeToLive, Error>> + Send + 's {
        on_client(&self.0.clients, key, async |client: &Lent<F>, key| client.ttl(key).await)
    }

    /// Lets `key` stay, if it is to expire. Returns whether it was.
    ///
    /// # Errors
    /// As [`Client::persist`](crate::Client::persist).
    pub fn persist<'s>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<bool, Error>> + Send + 's {
        on_client(&self.0.clients, key, async |client: &Lent<F>, key| client.persist(key).await)
    }

    /// Returns the value of `key` and its version.
    ///
    /// # Errors
    /// As [`Client::get_versioned`](crate::Client::get_versioned).
    pub fn get_versioned<'s>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<Option<(Vec<u8>, Version)>, Error>> + Send + 's {
        on_client(&self.0.clients, key, async |client: &Lent<F>, key| {
            client.get_versioned(key).await
        })
    }

    /// Makes `value` the value of `key` if its version is still `version`. Returns whether it did.
    ///
    /// # Errors
    /// As [`Client::put_if_version`](crate::Client::put_if_version).
    pub fn put_if_version<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
        version: Version,
    ) -> impl Future<Output = Result<bool, Error>> + Send + 's {
        let call = (key, value, version);
        on_client(&self.0.clients, call, async |client: &Lent<F>, (key, value, version)| {
            client.put_if_version(key, value, version).await
        })
    }

    /// Makes `value` the value of `key`, and returns the one before.
    ///
    /// # Errors
    /// As [`Client::swap`](crate::Client::swap).
    pub fn swap<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send + 's {
        on_client(&self.0.clients, (key, value), async |client: &Lent<F>, (key, value)| {
            client.swap(key, value).await
        })
    }

    /// Adds `key` with `value` if it is not there, and returns what was there instead.
    ///
    /// # Errors
    /// As [`Client::put_if_absent`](crate::Client::put_if_absent).
    pub fn put_if_absent<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send + 's {
        on_client(&self.0.clients, (key, value), async |client: &Lent<F>, (key, value)| {
            client.put_if_absent(key, value).await
        })
    }

    /// Deletes `key`, and returns the value that it had.
    ///
    /// # Errors
    /// As [`Client::get_and_delete`](crate::Client::get_and_delete).
    pub fn get_and_delete<'s>(
        &'s self,
        key: &'s [u8],
    ) -> impl Future<Output = Result<Option<Vec<u8>>, Error>> + Send + 's {
        on_client(&self.0.clients, key, async |client: &Lent<F>, key| {
            client.get_and_delete(key).await
        })
    }

    /// The values of `keys`, in their order.
    ///
    /// # Errors
    /// As [`Client::get_many`](crate::Client::get_many).
    pub fn get_many<'s, K: AsRef<[u8]> + Sync>(
        &'s self,
        keys: &'s [K],
    ) -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, Error>> + Send + 's {
        on_client(&self.0.clients, keys, async |client: &Lent<F>, keys| {
            let values = client.get_many(keys).await?;
            Ok(values.into_iter().map(|value| value.map(|value| value.to_vec())).collect())
        })
    }

    /// [Puts](Self::put) each value under the key at the same place. Each of them is atomic, all of them together are not.
    ///
    /// # Errors
    /// As [`Client::put_many`](crate::Client::put_many).
    pub fn put_many<'s, K: AsRef<[u8]> + Sync, V: AsRef<[u8]> + Sync>(
        &'s self,
        keys: &'s [K],
        values: &'s [V],
    ) -> impl Future<Output = Result<(), Error>> + Send + 's {
        on_client(&self.0.clients, (keys, values), async |client: &Lent<F>, (keys, values)| {
            client.put_many(keys, values).await
        })
    }

    /// [Deletes](Self::delete) all of `keys`.
    ///
    /// # Errors
    /// As [`Client::delete_many`](crate::Client::delete_many).
    pub fn delete_many<'s, K: AsRef<[u8]> + Sync>(
        &'s self,
        keys: &'s [K],
    ) -> impl Future<Output = Result<(), Error>> + Send + 's {
        on_client(&self.0.clients, keys, async |client: &Lent<F>, keys| {
            client.delete_many(keys).await
        })
    }

    /// The keys that begin with `prefix`, in no order.
    ///
    /// # Errors
    /// As [`Client::for_each_key`](crate::Client::for_each_key).
    pub fn keys<'s>(
        &'s self,
        prefix: &'s [u8],
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, Error>> + Send + 's {
        on_client(&self.0.clients, prefix, async |client: &Lent<F>, prefix| {
            let mut keys = Vec::new();
            let each = |key: &[u8]| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            };
            client.for_each_key(prefix, each).await?;
            Ok(keys)
        })
    }

    /// Calls `each` with every key that begins with `prefix` and its value, in no order, until it breaks off.
    ///
    /// # Errors
    /// As [`Client::scan`](crate::Client::scan).
    pub fn scan<'s>(
        &'s self,
        prefix: &'s [u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()> + Send + 's,
    ) -> impl Future<Output = Result<(), Error>> + Send + 's {
        on_client(&self.0.clients, (prefix, each), async |client: &Lent<F>, (prefix, each)| {
            client.scan(prefix, each).await
        })
    }

    /// About how many keys there are.
    ///
    /// # Errors
    /// As [`Client::len`](crate::Client::len).
    pub fn len(&self) -> impl Future<Output = Result<Estimate, Error>> + Send + '_ {
        on_client(&self.0.clients, (), async |client: &Lent<F>, ()| client.len().await)
    }
}
