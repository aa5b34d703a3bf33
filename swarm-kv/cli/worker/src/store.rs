//! The store as the commands use it: one type for all systems, with or without an emulated network.
//!
//! The library's store is generic, and all of it is compiled for each kind of client. So there are
//! two kinds. One is for shared memory, with or without an emulated network, and for SWARM and the
//! systems that it is measured against. The other is for RDMA. A `Task`, which `bench` measures, is
//! compiled for both; all else uses a [`Store`], which calls a client of either kind.

use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::OpCost;
use swarm_core::register::Protocol;
use swarm_kv::objects::ObjectError;
use swarm_kv::shm;
use swarm_kv::{
    Client, CompareAndSwap, Counters, Cursor, Error, Gc, GcStage, Options, TimeToLive, Usage,
    block_on,
};

use crate::Failure;
use crate::pool::Pool;
use crate::system::{Chosen, choose};
use crate::task::Task;
use crate::workload::System;

/// An operation of a client of any kind.
type Operation<'s, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 's>>;

/// A callback that gets a value; `None` if the key does not exist.
type Look<'s> = &'s mut (dyn FnMut(Option<&[u8]>) + 's);

/// A callback that gets a key's values, until it breaks.
type EachValue<'s> = &'s mut (dyn FnMut(Option<&[u8]>) -> ControlFlow<()> + 's);

/// A callback that gets keys and values, and how long they are there yet if they expire, until it breaks.
type Each<'s> = &'s mut (dyn FnMut(&[u8], &[u8], Option<Duration>) -> ControlFlow<()> + 's);

/// What keys are given to, until it breaks off.
type EachKey<'s> = &'s mut (dyn FnMut(&[u8]) -> ControlFlow<()> + 's);

/// The same, all of them.
type Pairs<'s> = &'s mut (dyn FnMut(&[u8], &[u8], Option<Duration>) + 's);

/// A value, or that there is none.
type Maybe<'s> = Option<&'s [u8]>;

/// Whether a lock was had, and, if so, whether it was held to the end.
type Locked = Result<Option<Result<(), ObjectError>>, ObjectError>;

/// What was done under a lock that was had, and whether it was held to the end.
pub type UnderLock<R> = Option<(R, Result<(), ObjectError>)>;

/// The operations of a client of any kind.
trait Operations {
    fn get<'s>(&'s self, key: &'s [u8], look: Look<'s>) -> Operation<'s, ()>;
    fn put<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, ()>;
    fn insert<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool>;
    fn update<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool>;
    fn delete<'s>(&'s self, key: &'s [u8]) -> Operation<'s, ()>;
    fn compare_and_swap<'s>(
        &'s self,
        key: &'s [u8],
        values: [Maybe<'s>; 2],
    ) -> Operation<'s, CompareAndSwap>;
    fn increment<'s>(&'s self, key: &'s [u8], by: i64) -> Operation<'s, i64>;
    fn put_with_ttl<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
        ttl: Duration,
    ) -> Operation<'s, ()>;
    fn ttl<'s>(&'s self, key: &'s [u8]) -> Operation<'s, TimeToLive>;
    fn persist<'s>(&'s self, key: &'s [u8]) -> Operation<'s, bool>;
    fn watch(&self, key: &[u8], limit: Option<Duration>, each: EachValue<'_>) -> Result<(), Error>;
    fn with_lock(&self, name: &[u8], limit: Option<Duration>, act: &mut dyn FnMut(u64)) -> Locked;
    fn for_each<'s>(&'s self, each: Each<'s>) -> Operation<'s, ()>;
    fn for_each_key<'s>(&'s self, prefix: &'s [u8], each: EachKey<'s>) -> Operation<'s, ()>;
    fn next_keys<'s>(&'s self, cursor: &'s mut Cursor, each: Pairs<'s>) -> Operation<'s, bool>;
    fn put_many<'s>(&'s self, keys: &'s [&'s [u8]], values: &'s [&'s [u8]]) -> Operation<'s, ()>;
    fn usage(&self) -> Operation<'_, Usage>;
    fn gc<'s>(&'s self, progress: &'s mut dyn FnMut(GcStage)) -> Operation<'s, Gc>;
    fn rest(&self);
    fn counters(&self) -> Counters;
    fn last(&self) -> OpCost;
}

impl<F: Fabric, C: Clock, P: Protocol> Operations for Client<F, C, P> {
    fn get<'s>(&'s self, key: &'s [u8], look: Look<'s>) -> Operation<'s, ()> {
        Box::pin(async move {
            look(self.get(key).await?.as_deref());
            Ok(())
        })
    }

    fn put<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, ()> {
        Box::pin(self.put(key, value))
    }

    fn insert<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool> {
        Box::pin(self.insert(key, value))
    }

    fn update<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool> {
        Box::pin(self.update(key, value))
    }

    fn delete<'s>(&'s self, key: &'s [u8]) -> Operation<'s, ()> {
        Box::pin(self.delete(key))
    }

    fn compare_and_swap<'s>(
        &'s self,
        key: &'s [u8],
        [expected, new]: [Maybe<'s>; 2],
    ) -> Operation<'s, CompareAndSwap> {
        Box::pin(self.compare_and_swap(key, expected, new))
    }

    fn increment<'s>(&'s self, key: &'s [u8], by: i64) -> Operation<'s, i64> {
        Box::pin(self.increment(key, by))
    }

    fn put_with_ttl<'s>(
        &'s self,
        key: &'s [u8],
        value: &'s [u8],
        ttl: Duration,
    ) -> Operation<'s, ()> {
        Box::pin(self.put_with_ttl(key, value, ttl))
    }

    fn ttl<'s>(&'s self, key: &'s [u8]) -> Operation<'s, TimeToLive> {
        Box::pin(self.ttl(key))
    }

    fn persist<'s>(&'s self, key: &'s [u8]) -> Operation<'s, bool> {
        Box::pin(self.persist(key))
    }

    fn watch(&self, key: &[u8], limit: Option<Duration>, each: EachValue<'_>) -> Result<(), Error> {
        let (mut watch, began) = (self.blocking().watch(key)?, Instant::now());
        loop {
            let changed = match limit.map(|limit| limit.saturating_sub(began.elapsed())) {
                None => Some(watch.changed()?),
                Some(left) => watch.changed_within(left)?,
            };
            match changed {
                Some(value) if each(value.as_deref()).is_continue() => {}
                _ => return Ok(()),
            }
        }
    }

    fn with_lock(&self, name: &[u8], limit: Option<Duration>, act: &mut dyn FnMut(u64)) -> Locked {
        let lock = self.blocking().lock(name);
        let guard = match limit {
            None => Some(lock.acquire()?),
            Some(limit) => lock.acquire_within(limit)?,
        };
        Ok(guard.map(|guard| {
            self.rest();
            act(guard.token());
            guard.release()
        }))
    }

    fn for_each<'s>(&'s self, each: Each<'s>) -> Operation<'s, ()> {
        Box::pin(self.for_each_with_ttl(each))
    }

    fn for_each_key<'s>(&'s self, prefix: &'s [u8], each: EachKey<'s>) -> Operation<'s, ()> {
        Box::pin(self.for_each_key(prefix, each))
    }

    fn next_keys<'s>(&'s self, cursor: &'s mut Cursor, each: Pairs<'s>) -> Operation<'s, bool> {
        Box::pin(self.next_keys_with_ttl(cursor, each))
    }

    fn put_many<'s>(&'s self, keys: &'s [&'s [u8]], values: &'s [&'s [u8]]) -> Operation<'s, ()> {
        Box::pin(self.put_many(keys, values))
    }

    fn usage(&self) -> Operation<'_, Usage> {
        Box::pin(self.usage())
    }

    fn gc<'s>(&'s self, progress: &'s mut dyn FnMut(GcStage)) -> Operation<'s, Gc> {
        Box::pin(self.gc(progress))
    }

    fn rest(&self) {
        self.rest();
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn last(&self) -> OpCost {
        self.last()
    }
}

/// A client of any kind. Each operation costs one allocation more than the client's own. For all
/// else see [`Client`].
#[derive(Clone, Copy)]
pub struct Store<'s>(&'s dyn Operations);

impl<'s> Store<'s> {
    /// Wraps a client of any kind.
    pub(crate) fn new<F: Fabric, C: Clock, P: Protocol>(client: &'s Client<F, C, P>) -> Self {
        Self(client)
    }

    /// Calls `look` with the key's value.
    ///
    /// # Errors
    /// See [`Client::get`].
    pub async fn get<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(Option<&[u8]>) -> R,
    ) -> Result<R, Error> {
        let (mut look, mut seen) = (Some(look), None);
        self.0.get(key, &mut |value| seen = look.take().map(|look| look(value))).await?;
        Ok(seen.expect("a reader looks at the value"))
    }

    /// Stores a value.
    ///
    /// # Errors
    /// See [`Client::put`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(key, value).await
    }

    /// Stores a value under a new key. Returns whether the key was new.
    ///
    /// # Errors
    /// See [`Client::insert`].
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.0.insert(key, value).await
    }

    /// Replaces a value. Returns whether the key existed.
    ///
    /// # Errors
    /// See [`Client::update`].
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.0.update(key, value).await
    }

    /// Removes a key.
    ///
    /// # Errors
    /// See [`Client::delete`].
    pub async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.0.delete(key).await
    }

    /// Replaces a value that is expected.
    ///
    /// # Errors
    /// See [`Client::compare_and_swap`].
    pub async fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareAndSwap, Error> {
        self.0.compare_and_swap(key, [expected, new]).await
    }

    /// Adds to a number, and returns the sum.
    ///
    /// # Errors
    /// See [`Client::increment`].
    pub async fn increment(&self, key: &[u8], by: i64) -> Result<i64, Error> {
        self.0.increment(key, by).await
    }

    /// Sets a value that expires.
    ///
    /// # Errors
    /// See [`Client::put_with_ttl`].
    pub async fn put_with_ttl(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<(), Error> {
        self.0.put_with_ttl(key, value, ttl).await
    }

    /// Returns how long a key is there yet.
    ///
    /// # Errors
    /// See [`Client::ttl`].
    pub async fn ttl(&self, key: &[u8]) -> Result<TimeToLive, Error> {
        self.0.ttl(key).await
    }

    /// Lets a key stay that is to expire. Returns whether it was.
    ///
    /// # Errors
    /// See [`Client::persist`].
    pub async fn persist(&self, key: &[u8]) -> Result<bool, Error> {
        self.0.persist(key).await
    }

    /// Runs `act` with the token of a lock while that is held, if it is had within `limit`. Returns what it brings, and whether
    /// the lock was held to the end. The thread sleeps while it waits.
    ///
    /// # Errors
    /// See [`Lock::acquire`](swarm_kv::objects::Lock::acquire).
    pub fn with_lock<R>(
        &self,
        name: &[u8],
        limit: Option<Duration>,
        act: impl FnOnce(u64) -> R,
    ) -> Result<UnderLock<R>, Failure> {
        let (mut act, mut brought) = (Some(act), None);
        let mut once = |token| brought = act.take().map(|act| act(token));
        let released = self.0.with_lock(name, limit, &mut once)?;
        Ok(released.and_then(|released| Some((brought?, released))))
    }

    /// Calls `each` with the value of a key, and each time that it changes, until it breaks or the time
    /// is over. Blocks the thread.
    ///
    /// # Errors
    /// See [`Client::watch`].
    pub fn watch(
        &self,
        key: &[u8],
        limit: Option<Duration>,
        mut each: impl FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.0.watch(key, limit, &mut each)
    }

    /// Calls `each` with all keys and values until it breaks, and with how long each is there yet, if it expires.
    ///
    /// # Errors
    /// See [`Client::for_each_with_ttl`].
    pub async fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8], Option<Duration>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.0.for_each(&mut each).await
    }

    /// Gives `each` all keys that begin with `prefix` until it breaks off.
    ///
    /// # Errors
    /// See [`Client::for_each_key`].
    pub async fn for_each_key(
        &self,
        prefix: &[u8],
        mut each: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.0.for_each_key(prefix, &mut each).await
    }

    /// Gives `each` the keys and values of the next few buckets, and how long each is there yet, if it expires. False,
    /// and none, behind the last one.
    ///
    /// # Errors
    /// See [`Client::next_keys_with_ttl`].
    pub async fn next_keys(
        &self,
        cursor: &mut Cursor,
        mut each: impl FnMut(&[u8], &[u8], Option<Duration>),
    ) -> Result<bool, Error> {
        self.0.next_keys(cursor, &mut each).await
    }

    /// Stores each value under the key at the same place.
    ///
    /// # Errors
    /// See [`Client::put_many`].
    pub async fn put_many(&self, keys: &[&[u8]], values: &[&[u8]]) -> Result<(), Error> {
        self.0.put_many(keys, values).await
    }

    /// Returns how much of the pool is in use.
    ///
    /// # Errors
    /// See [`Client::usage`].
    pub async fn usage(&self) -> Result<Usage, Error> {
        self.0.usage().await
    }

    /// Gives back what nobody uses.
    ///
    /// # Errors
    /// See [`Client::gc`].
    pub async fn gc(&self, progress: &mut dyn FnMut(GcStage)) -> Result<Gc, Error> {
        self.0.gc(progress).await
    }

    /// Prepares for a pause without operations.
    pub fn rest(&self) {
        self.0.rest();
    }

    /// Returns the cost of all operations so far.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Returns the cost of the last completed operation.
    pub fn last(&self) -> OpCost {
        self.0.last()
    }
}

/// A task that uses a [`Store`].
struct WithStore<T>(T);

impl<T: FnMut(&Store<'_>) -> Result<(), Failure>> Task for WithStore<T> {
    type Output = ();

    fn run<F: Fabric, C: Clock, P: Protocol>(
        mut self,
        client: &Client<F, C, P>,
    ) -> Result<(), Failure> {
        (self.0)(&Store::new(client))
    }
}

/// The same as a trait object, so that the code that opens clients is compiled once.
type Act<'a> = &'a mut dyn FnMut(&Store<'_>) -> Result<(), Failure>;

/// Runs `task` through `with`, and returns its result.
fn brought<T>(
    task: impl FnOnce(&Store<'_>) -> Result<T, Failure>,
    with: impl FnOnce(Act<'_>) -> Result<(), Failure>,
) -> Result<T, Failure> {
    let (mut task, mut brought) = (Some(task), None);
    with(&mut |store| {
        brought = task.take().map(|task| task(store)).transpose()?;
        Ok(())
    })?;
    Ok(brought.expect("a task that is done brings something"))
}

/// Cached locations of simple commands.
const FEW: usize = 1 << 12;

/// Opens a client and runs `task` with it.
///
/// # Errors
/// There is no client slot, or the task fails.
pub fn with_client<T>(
    pool: &Pool,
    task: impl FnOnce(&Store<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_keys(pool, FEW, task)
}

/// Does the same with a client that caches `keys` locations.
///
/// # Errors
/// As [`with_client`].
pub fn with_keys<T>(
    pool: &Pool,
    keys: usize,
    task: impl FnOnce(&Store<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    brought(task, |act| act_plain(pool, keys, act))
}

fn act_plain(pool: &Pool, keys: usize, act: Act<'_>) -> Result<(), Failure> {
    run_plain(pool, keys, System::Swarm, WithStore(act))
}

/// Does the same with a client whose completions are delayed by `rtt_ns`, and to which switched-off
/// nodes do not answer. This is for shared memory only: RDMA nodes have delays and failures of
/// their own.
///
/// # Errors
/// As [`with_client`].
pub fn with_emulated<T>(
    pool: &Pool,
    keys: usize,
    rtt_ns: u64,
    task: impl FnOnce(&Store<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    brought(task, |act| act_emulated(pool, keys, rtt_ns, System::Swarm, act))
}

fn act_emulated(
    pool: &Pool,
    keys: usize,
    rtt_ns: u64,
    system: System,
    act: Act<'_>,
) -> Result<(), Failure> {
    run_emulated(pool, keys, rtt_ns, system, WithStore(act))
}

/// Does the same with a client of the measured system, without emulated delay.
///
/// # Errors
/// As [`with_client`].
pub fn with_system<T>(
    pool: &Pool,
    system: System,
    keys: usize,
    task: impl FnOnce(&Store<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    brought(task, |act| match system {
        System::Swarm => act_plain(pool, keys, act),
        system => act_emulated(pool, keys, 0, system, act),
    })
}

/// Runs `task` with a client of the measured system. With a zero roundtrip, SWARM's client accesses
/// the memory directly. The baselines have no fast path for synchronous memory, so for them an
/// emulated network without delay is the same.
pub(crate) fn run_system<T: Task>(
    pool: &Pool,
    system: System,
    keys: usize,
    rtt_ns: u64,
    task: T,
) -> Result<T::Output, Failure> {
    match system {
        System::Swarm if rtt_ns == 0 => run_plain(pool, keys, system, task),
        system => run_emulated(pool, keys, rtt_ns, system, task),
    }
}

fn run_plain<T: Task>(
    pool: &Pool,
    keys: usize,
    system: System,
    task: T,
) -> Result<T::Output, Failure> {
    choose(system);
    let options = remembering(keys);
    let done = match pool {
        Pool::Near(near) => task.run(&*shm::open_unhindered::<Chosen>(near, options)?),
        #[cfg(feature = "rdma")]
        Pool::Far(far) => far.with::<Chosen, T>(options, task),
    };
    done.map_err(|failure| failure.in_pool(pool.path()))
}

fn run_emulated<T: Task>(
    pool: &Pool,
    keys: usize,
    rtt_ns: u64,
    system: System,
    task: T,
) -> Result<T::Output, Failure> {
    choose(system);
    match pool {
        Pool::Near(near) => task
            .run(&*shm::open_emulated::<Chosen>(
                near,
                remembering(keys).memory_wait(WAIT_NS),
                rtt_ns,
            )?)
            .map_err(|failure| failure.in_pool(pool.path())),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => run_plain(pool, keys, system, task),
    }
}

/// How long clients wait for memory. There are more clients than processors: one that gets none for
/// a while blocks reclamation.
const WAIT_NS: u64 = 5_000_000_000;

fn remembering(keys: usize) -> Options {
    Options::default().cached_keys(keys).cached_buckets(keys)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store { error, at: None }
    }
}

impl From<ObjectError> for Failure {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Store(error) => error.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Opens a pool, not degraded.
pub fn open_pool(path: &Path) -> Result<Pool, Failure> {
    Pool::open(path, false)
}

/// Polls all futures in turn until all are done or one fails.
pub fn block_on_all<E>(mut futures: Vec<impl Future<Output = Result<(), E>>>) -> Result<(), E> {
    if futures.len() == 1 {
        return futures.pop().map_or(Ok(()), block_on);
    }
    let mut cx = Context::from_waker(Waker::noop());
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    while !futures.is_empty() {
        let mut at = 0;
        while let Some(future) = futures.get_mut(at) {
            match future.as_mut().poll(&mut cx) {
                Poll::Pending => at += 1,
                Poll::Ready(result) => {
                    result?;
                    drop(futures.swap_remove(at));
                }
            }
        }
    }
    Ok(())
}
