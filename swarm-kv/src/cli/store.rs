//! The store as the commands use it: one trait, whatever keeps the replicas and whether there is
//! an emulated network in between.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

pub(crate) use super::standin::{
    Client, Count, Counters, CreateOptions, DmAbd, Error, OpenOptions, Options, Pool, Raw,
    SafeGuess, SwitchState, Usage, open_emulated, open_plain,
};

use swarm_core::counting::Tally;

use super::outcome::Failure;
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
    async fn for_each(&self, each: impl FnMut(&[u8], &[u8])) -> Result<(), Error>;
    async fn usage(&self) -> Result<Usage, Error>;
    /// What all operations so far cost.
    fn counters(&self) -> Counters;
    /// What the operation that ended last cost.
    fn last(&self) -> Tally;
}

impl<P> Store for Client<P> {
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

    async fn for_each(&self, each: impl FnMut(&[u8], &[u8])) -> Result<(), Error> {
        self.for_each(each).await
    }

    async fn usage(&self) -> Result<Usage, Error> {
        self.usage().await
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    #[inline]
    fn last(&self) -> Tally {
        self.last()
    }
}

/// Which client to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) system: System,
    /// Locations that it remembers.
    pub(crate) cache: usize,
    /// How much later completions arrive, and the pool's switches apply; `None` for neither.
    pub(crate) rtt_ns: Option<u64>,
}

impl Wanted {
    /// What the everyday commands use.
    pub(crate) const PLAIN: Self = Self { system: System::Swarm, cache: 1 << 12, rtt_ns: None };
}

/// Something to do with a client of any type.
pub(crate) trait Task {
    type Output;
    fn run<S: Store>(self, store: &S) -> Result<Self::Output, Failure>;
}

/// Opens a client and does `task` with it.
pub(crate) fn with_client<T: Task>(
    pool: &Pool,
    wanted: Wanted,
    task: T,
) -> Result<T::Output, Failure> {
    match wanted.system {
        System::Swarm => with_system::<SafeGuess, T>(pool, wanted, task),
        System::DmAbd => with_system::<DmAbd, T>(pool, wanted, task),
        System::Raw => with_system::<Raw, T>(pool, wanted, task),
    }
}

fn with_system<P, T: Task>(pool: &Pool, wanted: Wanted, task: T) -> Result<T::Output, Failure> {
    let options = Options { cache_entries: wanted.cache };
    match wanted.rtt_ns {
        None => task.run(&open_plain::<P>(pool, options)?),
        Some(rtt) => task.run(&open_emulated::<P>(pool, options, rtt)?),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// Opens a pool that is whole.
pub(crate) fn open_pool(path: &Path) -> Result<Pool, Failure> {
    Ok(Pool::open(path, OpenOptions::default())?)
}

/// Polls until the future is done. Completions are looked for, not waited for: a roundtrip is
/// shorter than falling asleep.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::hint::spin_loop();
    }
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
