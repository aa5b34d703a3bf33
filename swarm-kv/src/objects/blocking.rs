//! Objects for programs without `async`.
//!
//! A client that waits sleeps between two looks, on shared memory until a change of the object wakes it.

use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::objects::barrier::{Barrier, BarrierView, Member};
use crate::objects::error::ObjectError;
use crate::objects::guard::Guard;
use crate::objects::latch::Latch;
use crate::objects::lock::Lock;
use crate::objects::once::{Doing, Once};
use crate::objects::rw_lock::RwLock;
use crate::objects::seat::Seat;
use crate::objects::semaphore::Semaphore;
use crate::objects::turnstile::QueueView;
use crate::ops::blocking::Blocking;
use crate::runtime::block_on::block_on;

impl<'c, F: Fabric, C: Clock, P: Protocol> Blocking<'c, F, C, P> {
    /// See [`Client::lock`](crate::Client::lock).
    #[must_use]
    pub fn lock(&self, name: &[u8]) -> BlockingLock<'c, F, C, P> {
        BlockingLock(self.client().lock(name))
    }

    /// See [`Client::rw_lock`](crate::Client::rw_lock).
    #[must_use]
    pub fn rw_lock(&self, name: &[u8]) -> BlockingRwLock<'c, F, C, P> {
        let RwLock { read, write } = self.client().rw_lock(name);
        BlockingRwLock { read: BlockingLock(read), write: BlockingLock(write) }
    }

    /// See [`Client::semaphore`](crate::Client::semaphore).
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn semaphore(&self, name: &[u8], permits: u32) -> BlockingSemaphore<'c, F, C, P> {
        let semaphore = self.client().semaphore(name, permits);
        BlockingSemaphore { one: BlockingLock(semaphore.many(1)), semaphore }
    }

    /// See [`Client::once`](crate::Client::once).
    #[must_use]
    pub fn once(&self, name: &[u8]) -> BlockingOnce<'c, F, C, P> {
        BlockingOnce(self.client().once(name))
    }

    /// See [`Client::latch`](crate::Client::latch).
    #[must_use]
    pub fn latch(&self, name: &[u8], count: u64) -> BlockingLatch<'c, F, C, P> {
        BlockingLatch(self.client().latch(name, count))
    }

    /// See [`Client::barrier`](crate::Client::barrier).
    #[must_use]
    pub fn barrier(&self, name: &[u8], parties: u32) -> BlockingBarrier<'c, F, C, P> {
        BlockingBarrier(self.client().barrier(name, parties))
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
        let sleep = self.0.client().blocks();
        let guard = block_on(self.0.acquire_by(None, sleep))?;
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
        let sleep = self.0.client().blocks();
        let guard = self.0.acquire_by(Some(limit), sleep);
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

    /// See [`Guard::is_unsettled`].
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.guard().is_unsettled()
    }

    /// See [`Guard::settle`].
    ///
    /// # Errors
    /// As there.
    pub fn settle(&mut self, keys: &[impl AsRef<[u8]>]) -> Result<(), ObjectError> {
        block_on(self.0.as_mut().expect("it was not released").settle(keys))
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
        // What was taken away is gone, and what fails is tried again: there is nobody to report it to.
        if let Some(guard) = self.0.take() {
            let _ = block_on(guard.release());
        }
    }
}

/// An [`RwLock`] whose operations return when they are done.
pub struct BlockingRwLock<'c, F: Fabric, C: Clock, P: Protocol> {
    read: BlockingLock<'c, F, C, P>,
    write: BlockingLock<'c, F, C, P>,
}

impl<'c, F: Fabric, C: Clock, P: Protocol> BlockingRwLock<'c, F, C, P> {
    /// See [`RwLock::read`].
    #[must_use]
    pub fn read(&self) -> &BlockingLock<'c, F, C, P> {
        &self.read
    }

    /// See [`RwLock::write`].
    #[must_use]
    pub fn write(&self) -> &BlockingLock<'c, F, C, P> {
        &self.write
    }
}

/// A [`Semaphore`] whose operations return when they are done.
pub struct BlockingSemaphore<'c, F: Fabric, C: Clock, P: Protocol> {
    one: BlockingLock<'c, F, C, P>,
    semaphore: Semaphore<'c, F, C, P>,
}

impl<'c, F: Fabric, C: Clock, P: Protocol> BlockingSemaphore<'c, F, C, P> {
    /// See [`Semaphore::one`].
    #[must_use]
    pub fn one(&self) -> &BlockingLock<'c, F, C, P> {
        &self.one
    }

    /// See [`Semaphore::many`].
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn many(&self, permits: u32) -> BlockingLock<'c, F, C, P> {
        BlockingLock(self.semaphore.many(permits))
    }
}

/// A [`Once`] whose operations return when they are done.
pub struct BlockingOnce<'c, F: Fabric, C: Clock, P: Protocol>(Once<'c, F, C, P>);

impl<F: Fabric, C: Clock, P: Protocol> BlockingOnce<'_, F, C, P> {
    /// See [`Once::begin`]. The thread sleeps between two looks.
    ///
    /// # Errors
    /// As there.
    pub fn begin(&self) -> Result<Option<BlockingDoing<'_, F, C, P>>, ObjectError> {
        let doing = block_on(self.0.begin_by(self.0.client().blocks()))?;
        Ok(doing.map(|doing| BlockingDoing(Some(doing))))
    }
}

/// A [`Doing`] whose drop waits until the next one may begin, behind a network too.
#[must_use = "dropping it lets another one begin"]
pub struct BlockingDoing<'l, F: Fabric, C: Clock, P: Protocol>(Option<Doing<'l, F, C, P>>);

impl<F: Fabric, C: Clock, P: Protocol> BlockingDoing<'_, F, C, P> {
    /// See [`Doing::token`].
    ///
    /// # Panics
    /// Never: it is there until it is done.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.as_ref().expect("it is not done").token()
    }

    /// See [`Doing::done`].
    ///
    /// # Errors
    /// As there.
    pub fn done(mut self) -> Result<(), ObjectError> {
        self.0.take().map_or(Ok(()), |doing| block_on(doing.done()))
    }

    /// See [`Doing::give_up`].
    ///
    /// # Errors
    /// As there.
    pub fn give_up(mut self) -> Result<(), ObjectError> {
        self.0.take().map_or(Ok(()), |doing| block_on(doing.give_up()))
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Drop for BlockingDoing<'_, F, C, P> {
    fn drop(&mut self) {
        if let Some(doing) = self.0.take() {
            let _ = block_on(doing.give_up());
        }
    }
}

/// A [`Latch`] whose operations return when they are done.
pub struct BlockingLatch<'c, F: Fabric, C: Clock, P: Protocol>(Latch<'c, F, C, P>);

impl<F: Fabric, C: Clock, P: Protocol> BlockingLatch<'_, F, C, P> {
    /// See [`Latch::count_down`].
    ///
    /// # Errors
    /// As there.
    pub fn count_down(&self, by: u64) -> Result<u64, ObjectError> {
        block_on(self.0.count_down(by))
    }

    /// See [`Latch::left_to_count`].
    ///
    /// # Errors
    /// As there.
    pub fn left_to_count(&self) -> Result<u64, ObjectError> {
        block_on(self.0.left_to_count())
    }

    /// See [`Latch::wait`]. The thread sleeps between two looks.
    ///
    /// # Errors
    /// As there.
    pub fn wait(&self) -> Result<(), ObjectError> {
        let sleep = self.0.client().blocks();
        block_on(self.0.wait_by(None, sleep)).map(drop)
    }

    /// The same, for so long at most. Returns whether it is open.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_within(&self, limit: Duration) -> Result<bool, ObjectError> {
        let sleep = self.0.client().blocks();
        block_on(self.0.wait_by(Some(limit), sleep))
    }
}

/// A [`Barrier`] whose operations return when they are done.
pub struct BlockingBarrier<'c, F: Fabric, C: Clock, P: Protocol>(Barrier<'c, F, C, P>);

impl<F: Fabric, C: Clock, P: Protocol> BlockingBarrier<'_, F, C, P> {
    /// See [`Barrier::join`].
    ///
    /// # Errors
    /// As there.
    pub fn join(&self) -> Result<BlockingMember<'_, F, C, P>, ObjectError> {
        Ok(BlockingMember(Some(block_on(self.0.join())?)))
    }

    /// See [`Barrier::evict`].
    ///
    /// # Errors
    /// As there.
    pub fn evict(&self, seat: Seat) -> Result<bool, ObjectError> {
        block_on(self.0.evict(seat))
    }

    /// See [`Barrier::view`].
    ///
    /// # Errors
    /// As there.
    pub fn view(&self) -> Result<BarrierView, ObjectError> {
        block_on(self.0.view())
    }
}

/// A [`Member`] whose drop waits until it has left, behind a network too.
#[must_use = "dropping it leaves the barrier"]
pub struct BlockingMember<'l, F: Fabric, C: Clock, P: Protocol>(Option<Member<'l, F, C, P>>);

impl<'l, F: Fabric, C: Clock, P: Protocol> BlockingMember<'l, F, C, P> {
    fn member(&mut self) -> &mut Member<'l, F, C, P> {
        self.0.as_mut().expect("it has not left")
    }

    /// See [`Member::seat`].
    pub fn seat(&mut self) -> Seat {
        self.member().seat()
    }

    /// See [`Member::wait`]. The thread sleeps between two looks.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Never: it waits for as long as it takes.
    pub fn wait(&mut self) -> Result<BarrierView, ObjectError> {
        let sleep = self.member().client().blocks();
        let met = block_on(self.member().wait_by(None, sleep))?;
        Ok(met.expect("it waits for as long as it takes"))
    }

    /// The same, for so long at most. `None` if that was too short.
    ///
    /// # Errors
    /// As there.
    pub fn wait_within(&mut self, limit: Duration) -> Result<Option<BarrierView>, ObjectError> {
        let sleep = self.member().client().blocks();
        block_on(self.member().wait_by(Some(limit), sleep))
    }

    /// See [`Member::leave`].
    ///
    /// # Errors
    /// As there.
    pub fn leave(mut self) -> Result<(), ObjectError> {
        self.0.take().map_or(Ok(()), |member| block_on(member.leave()))
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Drop for BlockingMember<'_, F, C, P> {
    fn drop(&mut self) {
        if let Some(member) = self.0.take() {
            let _ = block_on(member.leave());
        }
    }
}
