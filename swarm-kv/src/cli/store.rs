//! The store as the commands use it: one trait, whatever keeps the replicas and whether there is
//! an emulated network in between.

use std::future::Future;
use std::ops::ControlFlow;
use std::path::Path;
use std::task::{Context, Poll, Waker};

use swarm_core::abd::DmAbd;
use swarm_core::clock::Clock;
use swarm_core::counting::Tally;
use swarm_core::fabric::Fabric;
use swarm_core::raw::Raw;
use swarm_core::register::Protocol;
pub(crate) use swarm_core::safe_guess::SafeGuess;
use swarm_kv::Options;
use swarm_kv::shm;
pub(crate) use swarm_kv::{Client, Counters, Error, KindCounters, Usage, block_on};
pub(crate) use swarm_shm::SwitchState;

use super::args::PoolArgs;
use super::outcome::Failure;
pub(crate) use super::pool::{NearPool, Pool, Wishes};
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

/// Something to do with a client of any type.
pub(crate) trait Task {
    type Output;
    fn run<S: Store>(self, store: &S) -> Result<Self::Output, Failure>;
}

/// Locations that the everyday commands remember.
const FEW: usize = 1 << 12;

/// Opens a client and does `task` with it.
pub(crate) fn with_client<T: Task>(pool: &Pool, task: T) -> Result<T::Output, Failure> {
    with_plain::<SafeGuess, T>(pool, FEW, task)
}

/// The same with a client that keeps replicas by `P`.
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
pub(crate) fn with_emulated<P: Protocol, T: Task>(
    pool: &Pool,
    keys: usize,
    rtt_ns: u64,
    task: T,
) -> Result<T::Output, Failure> {
    match pool {
        Pool::Near(near) => task
            .run(&*shm::open_emulated::<P>(near, remembering(keys).memory_wait(WAIT_NS), rtt_ns)?)
            .map_err(|failure| failure.in_pool(pool.path())),
        #[cfg(feature = "rdma")]
        Pool::Far(_) => with_plain::<P, T>(pool, keys, task),
    }
}

/// The same with a client that keeps replicas in the way that is measured, at first hand if the
/// roundtrip is zero.
pub(crate) fn with_system<T: Task>(
    pool: &Pool,
    system: System,
    keys: usize,
    rtt_ns: u64,
    task: T,
) -> Result<T::Output, Failure> {
    fn with<P: Protocol, T: Task>(
        pool: &Pool,
        keys: usize,
        rtt_ns: u64,
        task: T,
    ) -> Result<T::Output, Failure> {
        if rtt_ns > 0 {
            return with_emulated::<P, T>(pool, keys, rtt_ns, task);
        }
        with_plain::<P, T>(pool, keys, task)
    }
    match system {
        System::Swarm => with::<SafeGuess, T>(pool, keys, rtt_ns, task),
        System::DmAbd => with::<DmAbd, T>(pool, keys, rtt_ns, task),
        System::Raw => with::<Raw, T>(pool, keys, rtt_ns, task),
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
