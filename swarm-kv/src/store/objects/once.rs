//! What is done once.

use std::future::Future;
use std::time::Duration;

use crate::objects::{ObjectError, ObjectKind};
use crate::pools::shm::Plain;
use crate::store::Store;
use crate::store::objects::guard::StoreGuard;
use crate::store::objects::lock::{Entered, StoreLock};
use crate::store::objects::pause::Pause;
use crate::store::objects::place::Named;
use crate::store::whole::Movable;

impl<F: Movable> Store<F> {
    /// Returns what is to be done once under this name, as [`Client::once`](crate::Client::once) does.
    #[must_use]
    pub fn once(&self, name: &[u8]) -> StoreOnce<F> {
        StoreOnce(StoreLock::part(self, Named::new(name, ObjectKind::Once, 1), 1))
    }
}

/// A [`Once`](crate::objects::Once) of a handle.
#[derive(Debug)]
pub struct StoreOnce<F: Movable = Plain>(StoreLock<F>);

/// How it stands with what is to be done once.
#[derive(Debug)]
pub enum Begun<D = StoreDoing> {
    /// It is done.
    Done,
    /// It is the caller's to do.
    Ours(D),
    /// Another one was at it for as long as this one waited.
    NotYet,
}

impl<F: Movable> StoreOnce<F> {
    /// See [`Once::begin`](crate::objects::Once::begin). It never returns [`Begun::NotYet`].
    ///
    /// # Cancel safety
    /// As [`StoreLock::acquire`].
    ///
    /// # Errors
    /// As [`StoreLock::acquire`].
    pub async fn begin(&self) -> Result<Begun<StoreDoing<F>>, ObjectError> {
        self.begin_paced(None, Pause::yields).await
    }

    /// The same, for so long at most, if there is a limit. `sleep` lets the time between two looks pass, as of
    /// [`StoreLock::acquire_paced`].
    ///
    /// # Cancel safety
    /// As [`StoreLock::acquire`].
    ///
    /// # Errors
    /// As [`StoreLock::acquire`].
    pub async fn begin_paced<S: Future<Output = ()>>(
        &self,
        limit: Option<Duration>,
        sleep: impl Fn(Pause) -> S,
    ) -> Result<Begun<StoreDoing<F>>, ObjectError> {
        Ok(match self.0.enters(limit, sleep).await? {
            Entered::Holds(guard) => Begun::Ours(StoreDoing(guard)),
            Entered::Closed => Begun::Done,
            Entered::TooLate => Begun::NotYet,
        })
    }

    /// Its state as of a lock: who does it, who waits, whom to evict. One that is done has no holder, and never again one.
    #[must_use]
    pub fn queue(&self) -> &StoreLock<F> {
        &self.0
    }
}

/// What its user has that is to do it. Dropped before it is [done](Self::done), the next one begins, as [`StoreGuard`] says of its drop.
#[must_use = "dropping it lets another one begin"]
#[derive(Debug)]
pub struct StoreDoing<F: Movable = Plain>(StoreGuard<F>);

impl<F: Movable> StoreDoing<F> {
    /// See [`Guard::token`](crate::objects::Guard::token).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.token()
    }

    /// What it holds: to ask whether it does so still, and to settle keys.
    pub fn guard(&mut self) -> &mut StoreGuard<F> {
        &mut self.0
    }

    /// Says that it is done, for good. See [`Doing::done`](crate::objects::Doing::done).
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub async fn done(self) -> Result<(), ObjectError> {
        self.0.ends(true).await
    }

    /// Lets the next one begin.
    ///
    /// # Cancel safety
    /// As [`StoreGuard::release`].
    ///
    /// # Errors
    /// As [`StoreGuard::release`].
    pub async fn give_up(self) -> Result<(), ObjectError> {
        self.0.release().await
    }
}
