//! The store as the commands use it: one type, whatever keeps the replicas and whether there is an emulated network
//! in between.
//!
//! The library's store is generic, and all of it is built anew for each kind of client. So there is one kind for memory
//! that is near, with an emulated network or none, and for SWARM and what it is measured against, and one for memory
//! behind RDMA cards. What `bench` measures, a `Task`, is built for both; all else uses a [`Store`], which calls a
//! client of whatever kind.

use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::fabric::counting::Tally;
use swarm_core::register::Protocol;
use swarm_kv::shm;
use swarm_kv::{Client, Counters, Error, Options, Usage, block_on};

use crate::Failure;
use crate::pool::Pool;
use crate::system::{Chosen, choose};
use crate::workload::System;

/// An operation of a client of any kind.
type Operation<'s, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 's>>;

/// What a value is given to; `None` where there is no such key.
type Look<'s> = &'s mut (dyn FnMut(Option<&[u8]>) + 's);

/// What keys and values are given to, until it breaks off.
type Each<'s> = &'s mut (dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 's);

/// The operations of a client of any kind.
trait Operations {
    fn get<'s>(&'s self, key: &'s [u8], look: Look<'s>) -> Operation<'s, ()>;
    fn put<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, ()>;
    fn insert<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool>;
    fn update<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool>;
    fn delete<'s>(&'s self, key: &'s [u8]) -> Operation<'s, ()>;
    fn for_each<'s>(&'s self, each: Each<'s>) -> Operation<'s, ()>;
    fn usage(&self) -> Operation<'_, Usage>;
    fn rest(&self);
    fn counters(&self) -> Counters;
    fn last(&self) -> Tally;
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

    fn for_each<'s>(&'s self, each: Each<'s>) -> Operation<'s, ()> {
        Box::pin(self.for_each(each))
    }

    fn usage(&self) -> Operation<'_, Usage> {
        Box::pin(self.usage())
    }

    fn rest(&self) {
        self.rest();
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn last(&self) -> Tally {
        self.last()
    }
}

/// A client of a pool, of any kind: each operation costs an allocation more than the client's own, and nothing else.
/// All else is as [`Client`] says.
#[derive(Clone, Copy)]
pub struct Store<'s>(&'s dyn Operations);

impl<'s> Store<'s> {
    /// `client`, whatever its types.
    pub(crate) fn new<F: Fabric, C: Clock, P: Protocol>(client: &'s Client<F, C, P>) -> Self {
        Self(client)
    }

    /// Gives `look` the key's value.
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
        Ok(seen.expect("who gets a value looks at it"))
    }

    /// Stores a value.
    ///
    /// # Errors
    /// See [`Client::put`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(key, value).await
    }

    /// Stores a value under a new key. Says whether the key was new.
    ///
    /// # Errors
    /// See [`Client::insert`].
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.0.insert(key, value).await
    }

    /// Changes a value. Says whether the key was there.
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

    /// Gives `each` all keys and values until it breaks off.
    ///
    /// # Errors
    /// See [`Client::for_each`].
    pub async fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.0.for_each(&mut each).await
    }

    /// How much of the pool is in use.
    ///
    /// # Errors
    /// See [`Client::usage`].
    pub async fn usage(&self) -> Result<Usage, Error> {
        self.0.usage().await
    }

    /// There will be no operation for a while.
    pub fn rest(&self) {
        self.0.rest();
    }

    /// What all operations so far cost.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// What the operation that ended last cost.
    pub fn last(&self) -> Tally {
        self.0.last()
    }
}

/// Something to do with a client, built anew for each kind.
pub(crate) trait Task {
    type Output;
    fn run<F: Fabric, C: Clock, P: Protocol>(
        self,
        client: &Client<F, C, P>,
    ) -> Result<Self::Output, Failure>;
}

/// Something to do with a [`Store`].
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

/// The same without a type of its own: what opens clients is built once, here.
type Act<'a> = &'a mut dyn FnMut(&Store<'_>) -> Result<(), Failure>;

/// Has `task` done by `with`, and yields what came of it.
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

/// Locations that the everyday commands remember.
const FEW: usize = 1 << 12;

/// Opens a client and does `task` with it.
///
/// # Errors
/// There is no client slot, or the task fails.
pub fn with_client<T>(
    pool: &Pool,
    task: impl FnOnce(&Store<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    with_keys(pool, FEW, task)
}

/// The same with a client that remembers so many locations.
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

/// The same with a client whose completions come `rtt_ns` late and to whom switched-off nodes do not
/// answer; where nodes are near, as far ones are late and fail by themselves.
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

/// The same with a client that keeps replicas in the way that is measured, and that no network keeps waiting.
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

/// Does `task` with a client that keeps replicas in the way that is measured. Where the roundtrip is zero, SWARM's is
/// at first hand; the baselines know no shorter way to near memory, so that for them an emulated network that takes no
/// time is the same.
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

/// Clients on trial are more than there are processors: one that gets none for a while holds memory back, and
/// the others wait so long for it.
const WAIT_NS: u64 = 5_000_000_000;

fn remembering(keys: usize) -> Options {
    Options::default().cached_keys(keys).cached_buckets(keys)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Store { error, line: None }
    }
}

/// Opens a pool that is whole.
pub fn open_pool(path: &Path) -> Result<Pool, Failure> {
    Pool::open(path, false)
}

/// Polls all futures in turn until all are done, or one has failed.
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
