//! The store as the commands use it: one trait, whatever keeps the replicas and whether there is
//! an emulated network in between.
//!
//! The library's store is generic, and what a command does with it is built anew for each kind of client. Only what
//! `bench` measures is worth that; all else calls a [`Boxed`] store, whatever is in the box.

use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use swarm_core::clock::Clock;
use swarm_core::counting::Tally;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;
use swarm_core::safe_guess::SafeGuess;
use swarm_kv::Options;
use swarm_kv::shm;
pub(crate) use swarm_kv::{Client, Counters, Error, KindCounters, Usage, block_on};
pub(crate) use swarm_shm::SwitchState;

use super::args::PoolArgs;
use super::outcome::Failure;
pub(crate) use super::pool::{NearPool, Pool, Wishes};
use super::system::{Chosen, choose};
use super::workload::System;

/// A client of a pool.
pub(crate) trait Store {
    /// Gives `look` the key's value.
    async fn get<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R, Error>;
    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error>;
    /// Whether the key was new.
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error>;
    /// Whether the key was there.
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error>;
    async fn delete(&self, key: &[u8]) -> Result<(), Error>;
    /// Gives `each` all keys and values until it breaks off.
    async fn for_each(
        &self,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error>;
    async fn usage(&self) -> Result<Usage, Error>;
    /// There will be no operation for a while.
    fn rest(&self);
    /// What all operations so far cost.
    fn counters(&self) -> Counters;
    /// What the operation that ended last cost.
    fn last(&self) -> Tally;
}

impl<F: Fabric, C: Clock, P: Protocol> Store for Client<F, C, P> {
    #[inline]
    async fn get<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R, Error> {
        let value = self.get(key).await?;
        Ok(look(value.as_deref()))
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.put(key, value).await
    }

    #[inline]
    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.insert(key, value).await
    }

    #[inline]
    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.update(key, value).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.delete(key).await
    }

    async fn for_each(
        &self,
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.for_each(each).await
    }

    async fn usage(&self) -> Result<Usage, Error> {
        self.usage().await
    }

    fn rest(&self) {
        self.rest();
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    #[inline]
    fn last(&self) -> Tally {
        self.last()
    }
}

/// An operation of a [`Boxed`] store.
type Operation<'s, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + 's>>;

/// What keys and values are given to, until it breaks off.
type Each<'s> = &'s mut (dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 's);

/// The operations of a [`Store`], of any kind.
trait Operations {
    fn get<'s>(
        &'s self,
        key: &'s [u8],
        look: &'s mut dyn FnMut(Option<&[u8]>),
    ) -> Operation<'s, ()>;
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

impl<S: Store> Operations for S {
    fn get<'s>(
        &'s self,
        key: &'s [u8],
        look: &'s mut dyn FnMut(Option<&[u8]>),
    ) -> Operation<'s, ()> {
        Box::pin(Store::get(self, key, look))
    }

    fn put<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, ()> {
        Box::pin(Store::put(self, key, value))
    }

    fn insert<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool> {
        Box::pin(Store::insert(self, key, value))
    }

    fn update<'s>(&'s self, key: &'s [u8], value: &'s [u8]) -> Operation<'s, bool> {
        Box::pin(Store::update(self, key, value))
    }

    fn delete<'s>(&'s self, key: &'s [u8]) -> Operation<'s, ()> {
        Box::pin(Store::delete(self, key))
    }

    fn for_each<'s>(&'s self, each: Each<'s>) -> Operation<'s, ()> {
        Box::pin(Store::for_each(self, each))
    }

    fn usage(&self) -> Operation<'_, Usage> {
        Box::pin(Store::usage(self))
    }

    fn rest(&self) {
        Store::rest(self);
    }

    fn counters(&self) -> Counters {
        Store::counters(self)
    }

    fn last(&self) -> Tally {
        Store::last(self)
    }
}

/// A store of some kind: each operation costs an allocation more.
pub(crate) struct Boxed<'s>(&'s dyn Operations);

impl<'s> Boxed<'s> {
    pub(crate) fn new<S: Store>(store: &'s S) -> Self {
        Self(store)
    }
}

impl Store for Boxed<'_> {
    async fn get<R>(&self, key: &[u8], look: impl FnOnce(Option<&[u8]>) -> R) -> Result<R, Error> {
        let (mut look, mut seen) = (Some(look), None);
        self.0.get(key, &mut |value| seen = look.take().map(|look| look(value))).await?;
        Ok(seen.expect("who gets a value looks at it"))
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.0.put(key, value).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.0.insert(key, value).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.0.update(key, value).await
    }

    async fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.0.delete(key).await
    }

    async fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.0.for_each(&mut each).await
    }

    async fn usage(&self) -> Result<Usage, Error> {
        self.0.usage().await
    }

    fn rest(&self) {
        self.0.rest();
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn last(&self) -> Tally {
        self.0.last()
    }
}

/// Something to do with a client of any type.
pub(crate) trait Task {
    type Output;
    fn run<S: Store>(self, store: &S) -> Result<Self::Output, Failure>;
}

/// Locations that the everyday commands remember.
const FEW: usize = 1 << 12;

/// A task whose store is [boxed](Boxed).
pub(crate) struct InBox<T>(pub(crate) T);

impl<T: Task> Task for InBox<T> {
    type Output = T::Output;

    fn run<S: Store>(self, store: &S) -> Result<T::Output, Failure> {
        self.0.run(&Boxed::new(store))
    }
}

/// Opens a client and does `task` with it.
pub(crate) fn with_client<T: Task>(pool: &Pool, task: T) -> Result<T::Output, Failure> {
    with_keys(pool, FEW, task)
}

/// The same with a client that remembers so many locations.
pub(crate) fn with_keys<T: Task>(pool: &Pool, keys: usize, task: T) -> Result<T::Output, Failure> {
    with_plain::<SafeGuess, _>(pool, keys, InBox(task))
}

/// The same with a client that keeps replicas by `P`, not boxed.
fn with_plain<P: Protocol, T: Task>(
    pool: &Pool,
    keys: usize,
    task: T,
) -> Result<T::Output, Failure> {
    let done = match pool {
        Pool::Near(near) => task.run(&*shm::open_plain::<P>(near, remembering(keys))?),
        #[cfg(feature = "rdma")]
        Pool::Far(far) => far.with::<P, T>(remembering(keys), task),
    };
    done.map_err(|failure| failure.in_pool(pool.path()))
}

/// The same with a client whose completions come late and to whom switched-off nodes do not
/// answer; where nodes are near, as far ones are late and fail by themselves.
pub(crate) fn with_emulated<T: Task>(
    pool: &Pool,
    keys: usize,
    rtt_ns: u64,
    task: T,
) -> Result<T::Output, Failure> {
    with_emulated_direct(pool, keys, rtt_ns, System::Swarm, InBox(task))
}

/// The same, of any system and not boxed.
fn with_emulated_direct<T: Task>(
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
        Pool::Far(_) => with_plain::<Chosen, T>(pool, keys, task),
    }
}

/// The same with a client that keeps replicas in the way that is measured, not boxed. Where the roundtrip is zero,
/// SWARM's is at first hand; the baselines know no shorter way to near memory, so that for them an emulated network
/// that takes no time is the same.
pub(crate) fn with_system<T: Task>(
    pool: &Pool,
    system: System,
    keys: usize,
    rtt_ns: u64,
    task: T,
) -> Result<T::Output, Failure> {
    match system {
        System::Swarm if rtt_ns == 0 => with_plain::<SafeGuess, T>(pool, keys, task),
        system => with_emulated_direct(pool, keys, rtt_ns, system, task),
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

/// Opens the pool that a command line names.
pub(crate) fn open_given(args: &PoolArgs) -> Result<Pool, Failure> {
    Pool::open(&args.pool, args.degraded)
}

/// Opens a pool that is whole.
pub(crate) fn open_pool(path: &Path) -> Result<Pool, Failure> {
    Pool::open(path, false)
}

/// Polls all futures in turn until all are done, or one has failed.
pub(crate) fn block_on_all<E>(
    mut futures: Vec<impl Future<Output = Result<(), E>>>,
) -> Result<(), E> {
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
