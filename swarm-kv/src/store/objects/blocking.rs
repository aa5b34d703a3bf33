//! What a handle has for programs without `async`: its objects, and keys that are watched.

use std::ops::Deref;
use std::time::Duration;

use crate::error::Error;
use crate::objects::{BarrierView, ObjectError, QueueView, Seat};
use crate::runtime::block_on::park_on;
use crate::store::blocking::BlockingStore;
use crate::store::objects::barrier::{StoreBarrier, StoreMember};
use crate::store::objects::guard::StoreGuard;
use crate::store::objects::latch::StoreLatch;
use crate::store::objects::lock::{StoreLock, StoreRwLock, StoreSemaphore};
use crate::store::objects::once::{Begun, StoreDoing, StoreOnce};
use crate::store::objects::pause::Pause;
use crate::store::objects::watch::StoreWatch;
use crate::store::whole::Movable;

/// An object of a handle, what is held of one, or a key that is watched, whose operations return when they are done.
///
/// The thread sleeps while it waits, with none of the handle's clients in use between two looks. It borrows nothing, and may go to
/// another thread. What takes no waiting, as [`StoreGuard::token`], is `T`'s; and what is held is released when it is dropped, as `T`
/// says. A limit is of the wait for others: one of the handle's clients is waited for in any case, for each look.
///
/// ```
/// # use std::time::Duration;
/// # use swarm_kv::Store;
/// # use swarm_kv::shm::{CreateOptions, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// # Pool::create(&path, &CreateOptions { nodes: 3, capacity: 16 << 20, ..CreateOptions::default() })?;
/// let store = Store::open(&path)?;
/// let lock = store.blocking().lock(b"report");
/// let guard = lock.acquire()?;
/// println!("token {}", guard.token());
/// assert!(lock.acquire_within(Duration::from_millis(1))?.is_none());
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "what is held is released when it is dropped"]
pub struct BlockingObject<T>(pub(super) T);

impl<T> Deref for BlockingObject<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<F: Movable> BlockingStore<'_, F> {
    /// See [`Store::lock`](crate::Store::lock).
    pub fn lock(&self, name: &[u8]) -> BlockingObject<StoreLock<F>> {
        BlockingObject(self.0.lock(name))
    }

    /// See [`Store::rw_lock`](crate::Store::rw_lock).
    pub fn rw_lock(&self, name: &[u8]) -> BlockingObject<StoreRwLock<F>> {
        BlockingObject(self.0.rw_lock(name))
    }

    /// See [`Store::semaphore`](crate::Store::semaphore).
    ///
    /// # Panics
    /// As there.
    pub fn semaphore(&self, name: &[u8], permits: u32) -> BlockingObject<StoreSemaphore<F>> {
        BlockingObject(self.0.semaphore(name, permits))
    }

    /// See [`Store::once`](crate::Store::once).
    pub fn once(&self, name: &[u8]) -> BlockingObject<StoreOnce<F>> {
        BlockingObject(self.0.once(name))
    }

    /// See [`Store::latch`](crate::Store::latch).
    pub fn latch(&self, name: &[u8], count: u64) -> BlockingObject<StoreLatch<F>> {
        BlockingObject(self.0.latch(name, count))
    }

    /// See [`Store::barrier`](crate::Store::barrier).
    pub fn barrier(&self, name: &[u8], parties: u32) -> BlockingObject<StoreBarrier<F>> {
        BlockingObject(self.0.barrier(name, parties))
    }

    /// See [`Store::watch`](crate::Store::watch).
    pub fn watch(&self, key: &[u8]) -> BlockingObject<StoreWatch<F>> {
        BlockingObject(self.0.watch(key))
    }
}

/// What is acquired: a lock, or a part of a readers-writer lock or of a semaphore.
impl<F: Movable> BlockingObject<StoreLock<F>> {
    /// See [`StoreLock::acquire`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Never: it waits for as long as it takes.
    pub fn acquire(&self) -> Result<BlockingObject<StoreGuard<F>>, ObjectError> {
        Ok(self.acquire_by(None)?.expect("it waits for as long as it takes"))
    }

    /// See [`StoreLock::try_acquire`].
    ///
    /// # Errors
    /// As there.
    pub fn try_acquire(&self) -> Result<Option<BlockingObject<StoreGuard<F>>>, ObjectError> {
        self.acquire_by(Some(Duration::ZERO))
    }

    /// See [`StoreLock::acquire_within`].
    ///
    /// # Errors
    /// As there.
    pub fn acquire_within(
        &self,
        limit: Duration,
    ) -> Result<Option<BlockingObject<StoreGuard<F>>>, ObjectError> {
        self.acquire_by(Some(limit))
    }

    /// Waits for it for so long at most, if there is a limit.
    pub(in crate::store) fn acquire_by(
        &self,
        limit: Option<Duration>,
    ) -> Result<Option<BlockingObject<StoreGuard<F>>>, ObjectError> {
        Ok(park_on(self.0.acquire_paced(limit, Pause::blocks))?.map(BlockingObject))
    }

    /// See [`StoreLock::evict`].
    ///
    /// # Errors
    /// As there.
    pub fn evict(&self, token: u64) -> Result<bool, ObjectError> {
        park_on(self.0.evict(token))
    }

    /// See [`StoreLock::view`].
    ///
    /// # Errors
    /// As there.
    pub fn view(&self) -> Result<QueueView, ObjectError> {
        park_on(self.0.view())
    }
}

/// What a holder has.
impl<F: Movable> BlockingObject<StoreGuard<F>> {
    /// See [`StoreGuard::is_held`].
    ///
    /// # Errors
    /// As there.
    pub fn is_held(&self) -> Result<bool, ObjectError> {
        park_on(self.0.is_held())
    }

    /// See [`StoreGuard::settle`].
    ///
    /// # Errors
    /// As there.
    pub fn settle(&mut self, keys: &[impl AsRef<[u8]> + Sync]) -> Result<(), ObjectError> {
        park_on(self.0.settle(keys))
    }

    /// See [`StoreGuard::release`].
    ///
    /// # Errors
    /// As there.
    pub fn release(self) -> Result<(), ObjectError> {
        park_on(self.0.release())
    }
}

impl<F: Movable> BlockingObject<StoreRwLock<F>> {
    /// What a reader holds.
    pub fn read(&self) -> BlockingObject<StoreLock<F>> {
        BlockingObject(self.0.read().clone())
    }

    /// What a writer holds.
    pub fn write(&self) -> BlockingObject<StoreLock<F>> {
        BlockingObject(self.0.write().clone())
    }
}

impl<F: Movable> BlockingObject<StoreSemaphore<F>> {
    /// See [`StoreSemaphore::one`].
    pub fn one(&self) -> BlockingObject<StoreLock<F>> {
        BlockingObject(self.0.one().clone())
    }

    /// See [`StoreSemaphore::many`].
    ///
    /// # Panics
    /// As there.
    pub fn many(&self, permits: u32) -> BlockingObject<StoreLock<F>> {
        BlockingObject(self.0.many(permits))
    }
}

impl<F: Movable> BlockingObject<StoreOnce<F>> {
    /// See [`StoreOnce::begin`]. `None`: it is done.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Never: it waits for as long as it takes.
    pub fn begin(&self) -> Result<Option<BlockingObject<StoreDoing<F>>>, ObjectError> {
        match self.begin_by(None)? {
            Begun::Done => Ok(None),
            Begun::Ours(doing) => Ok(Some(doing)),
            Begun::NotYet => unreachable!("it waits for as long as it takes"),
        }
    }

    /// The same, for so long at most.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_within(
        &self,
        limit: Duration,
    ) -> Result<Begun<BlockingObject<StoreDoing<F>>>, ObjectError> {
        self.begin_by(Some(limit))
    }

    fn begin_by(
        &self,
        limit: Option<Duration>,
    ) -> Result<Begun<BlockingObject<StoreDoing<F>>>, ObjectError> {
        Ok(match park_on(self.0.begin_paced(limit, Pause::blocks))? {
            Begun::Done => Begun::Done,
            Begun::Ours(doing) => Begun::Ours(BlockingObject(doing)),
            Begun::NotYet => Begun::NotYet,
        })
    }

    /// See [`StoreOnce::queue`].
    pub fn queue(&self) -> BlockingObject<StoreLock<F>> {
        BlockingObject(self.0.queue().clone())
    }
}

/// What has the one that is to do something once.
impl<F: Movable> BlockingObject<StoreDoing<F>> {
    /// See [`StoreDoing::done`].
    ///
    /// # Errors
    /// As there.
    pub fn done(self) -> Result<(), ObjectError> {
        park_on(self.0.done())
    }

    /// See [`StoreDoing::give_up`].
    ///
    /// # Errors
    /// As there.
    pub fn give_up(self) -> Result<(), ObjectError> {
        park_on(self.0.give_up())
    }
}

impl<F: Movable> BlockingObject<StoreLatch<F>> {
    /// See [`StoreLatch::count_down`].
    ///
    /// # Errors
    /// As there.
    pub fn count_down(&self, by: u64) -> Result<u64, ObjectError> {
        park_on(self.0.count_down(by))
    }

    /// See [`StoreLatch::left_to_count`].
    ///
    /// # Errors
    /// As there.
    pub fn left_to_count(&self) -> Result<u64, ObjectError> {
        park_on(self.0.left_to_count())
    }

    /// Waits until it is open.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down).
    pub fn wait(&self) -> Result<(), ObjectError> {
        park_on(self.0.wait_paced(None, Pause::blocks)).map(drop)
    }

    /// The same, for so long at most. Returns whether it is open.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_within(&self, limit: Duration) -> Result<bool, ObjectError> {
        park_on(self.0.wait_paced(Some(limit), Pause::blocks))
    }
}

impl<F: Movable> BlockingObject<StoreBarrier<F>> {
    /// See [`StoreBarrier::join`].
    ///
    /// # Errors
    /// As there.
    pub fn join(&self) -> Result<BlockingObject<StoreMember<F>>, ObjectError> {
        park_on(self.0.join()).map(BlockingObject)
    }

    /// See [`StoreBarrier::evict`].
    ///
    /// # Errors
    /// As there.
    pub fn evict(&self, seat: Seat) -> Result<bool, ObjectError> {
        park_on(self.0.evict(seat))
    }

    /// See [`StoreBarrier::view`].
    ///
    /// # Errors
    /// As there.
    pub fn view(&self) -> Result<BarrierView, ObjectError> {
        park_on(self.0.view())
    }
}

/// A member of a barrier.
impl<F: Movable> BlockingObject<StoreMember<F>> {
    /// Arrives, and waits until all members have: see [`StoreMember::wait_paced`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Never: it waits for as long as it takes.
    pub fn wait(&mut self) -> Result<BarrierView, ObjectError> {
        let met = park_on(self.0.wait_paced(None, Pause::blocks))?;
        Ok(met.expect("it waits for as long as it takes"))
    }

    /// The same, for so long at most. `None` if that was too short.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_within(&mut self, limit: Duration) -> Result<Option<BarrierView>, ObjectError> {
        park_on(self.0.wait_paced(Some(limit), Pause::blocks))
    }

    /// See [`StoreMember::leave`].
    ///
    /// # Errors
    /// As there.
    pub fn leave(self) -> Result<(), ObjectError> {
        park_on(self.0.leave())
    }
}

/// A key that is watched.
impl<F: Movable> BlockingObject<StoreWatch<F>> {
    /// See [`StoreWatch::changed`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Never: it has no limit.
    pub fn changed(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let changed = park_on(self.0.changed_paced(None, Pause::blocks))?;
        Ok(changed.expect("it has no limit"))
    }

    /// The same, for so long at most: `None` if the value did not change.
    ///
    /// # Errors
    /// As there.
    pub fn changed_within(&mut self, limit: Duration) -> Result<Option<Option<Vec<u8>>>, Error> {
        park_on(self.0.changed_paced(Some(limit), Pause::blocks))
    }
}
