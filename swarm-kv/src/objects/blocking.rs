//! Objects for programs without `async`.
//!
//! Who waits sleeps between two looks.

use std::thread::sleep;
use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::objects::error::ObjectError;
use crate::objects::guard::Guard;
use crate::objects::lock::Lock;
use crate::objects::seat::Seat;
use crate::objects::turnstile::QueueView;
use crate::ops::blocking::Blocking;
use crate::runtime::block_on::block_on;

impl<'c, F: Fabric, C: Clock, P: Protocol> Blocking<'c, F, C, P> {
    /// See [`Client::lock`](crate::Client::lock).
    #[must_use]
    pub fn lock(&self, name: &[u8]) -> BlockingLock<'c, F, C, P> {
        BlockingLock(self.client().lock(name))
    }
}

/// A [`Lock`] whose operations return when they are done.
pub struct BlockingLock<'c, F: Fabric, C: Clock, P: Protocol>(Lock<'c, F, C, P>);

impl<F: Fabric, C: Clock, P: Protocol> BlockingLock<'_, F, C, P> {
    /// See [`Lock::acquire`]. The thread sleeps between two looks.
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self) -> Result<BlockingGuard<'_, F, C, P>, ObjectError> {
        let guard = block_on(self.0.acquire_paced(None, async |pause| sleep(pause)))?;
        Ok(BlockingGuard::new(guard.expect("it waits for as long as it takes")))
    }

    /// See [`Lock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<BlockingGuard<'_, F, C, P>>, ObjectError> {
        Ok(block_on(self.0.try_acquire())?.map(BlockingGuard::new))
    }

    /// See [`Lock::acquire_within`]. The thread sleeps between two looks.
    ///
    /// # Errors
    /// As there.
    pub fn acquire_within(
        &self,
        limit: Duration,
    ) -> Result<Option<BlockingGuard<'_, F, C, P>>, ObjectError> {
        let guard = self.0.acquire_paced(Some(limit), async |pause| sleep(pause));
        Ok(block_on(guard)?.map(BlockingGuard::new))
    }

    /// See [`Lock::evict`].
    ///
    /// # Errors
    /// As there.
    pub fn evict(&self, token: u64) -> Result<bool, ObjectError> {
        block_on(self.0.evict(token))
    }

    /// See [`Lock::view`].
    ///
    /// # Errors
    /// As there.
    pub fn view(&self) -> Result<QueueView, ObjectError> {
        block_on(self.0.view())
    }
}

/// A [`Guard`] whose drop releases it and waits for that, behind a network too.
#[must_use = "dropping it releases what is held"]
pub struct BlockingGuard<'l, F: Fabric, C: Clock, P: Protocol>(Option<Guard<'l, F, C, P>>);

impl<'l, F: Fabric, C: Clock, P: Protocol> BlockingGuard<'l, F, C, P> {
    fn new(guard: Guard<'l, F, C, P>) -> Self {
        Self(Some(guard))
    }

    fn guard(&self) -> &Guard<'l, F, C, P> {
        self.0.as_ref().expect("it was not released")
    }

    /// See [`Guard::token`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.guard().token()
    }

    /// See [`Guard::seat`].
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.guard().seat()
    }

    /// See [`Guard::is_held`].
    ///
    /// # Errors
    /// As there.
    pub fn is_held(&self) -> Result<bool, ObjectError> {
        block_on(self.guard().is_held())
    }

    /// See [`Guard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(mut self) -> Result<(), ObjectError> {
        self.0.take().map_or(Ok(()), |guard| block_on(guard.release()))
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Drop for BlockingGuard<'_, F, C, P> {
    fn drop(&mut self) {
        // What was taken away is gone, and what fails is tried again: there is nobody to tell.
        if let Some(guard) = self.0.take() {
            let _ = block_on(guard.release());
        }
    }
}
