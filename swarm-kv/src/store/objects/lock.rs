//! Locks, readers-writer locks and semaphores.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::objects::turnstile::Standing;
use crate::objects::waiting::Place;
use crate::objects::{MAX_HOLDERS, ObjectError, ObjectKind, QueueView};
use crate::pools::shm::Plain;
use crate::store::Store;
use crate::store::objects::guard::StoreGuard;
use crate::store::objects::pause::Pause;
use crate::store::objects::place::{Named, StorePlace};
use crate::store::whole::{Lent, Movable, on_client};

impl<F: Movable> Store<F> {
    /// Returns the lock of this name, as [`Client::lock`](crate::Client::lock) does.
    ///
    /// ```
    /// # use swarm_kv::shm::{CreateOptions, Pool};
    /// # use swarm_kv::{Store, block_on};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("pool");
    /// # Pool::create(&path, &CreateOptions { nodes: 3, capacity: 16 << 20, ..CreateOptions::default() })?;
    /// let store = Store::open(&path)?;
    /// let task = { let store = store.clone(); async move { store.lock(b"report").acquire().await } };
    /// # fn spawn<T: Send>(task: impl Future<Output = T> + Send + 'static) -> T { swarm_kv::block_on(task) }
    /// let guard = spawn(task)?;
    /// println!("token {}", guard.token());
    /// block_on(guard.release())?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn lock(&self, name: &[u8]) -> StoreLock<F> {
        StoreLock::part(self, Named::new(name, ObjectKind::Lock, 1), 1)
    }

    /// Returns the readers-writer lock of this name, as [`Client::rw_lock`](crate::Client::rw_lock) does.
    #[must_use]
    pub fn rw_lock(&self, name: &[u8]) -> StoreRwLock<F> {
        let part = |weight| {
            let object = Named::new(name, ObjectKind::RwLock, MAX_HOLDERS as u32);
            StoreLock::part(self, object, weight)
        };
        StoreRwLock { read: part(1), write: part(MAX_HOLDERS as u16) }
    }

    /// Returns the semaphore of this name, as [`Client::semaphore`](crate::Client::semaphore) does.
    ///
    /// # Panics
    /// No permits, or more than [`MAX_HOLDERS`].
    #[must_use]
    pub fn semaphore(&self, name: &[u8], permits: u32) -> StoreSemaphore<F> {
        assert!((1..=MAX_HOLDERS as u32).contains(&permits), "1 to {MAX_HOLDERS} permits");
        let object = Named::new(name, ObjectKind::Semaphore, permits);
        StoreSemaphore { one: StoreLock::part(self, object, 1) }
    }
}

/// A [`Lock`](crate::objects::Lock) of a handle. A task that waits for it uses none of the handle's clients.
pub struct StoreLock<F: Movable = Plain> {
    store: Store<F>,
    object: Named,
    weight: u16,
}

impl<F: Movable> Clone for StoreLock<F> {
    fn clone(&self) -> Self {
        Self::part(&self.store, self.object.clone(), self.weight)
    }
}

impl<F: Movable> fmt::Debug for StoreLock<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreLock").field("name", &self.object.name).finish_non_exhaustive()
    }
}

/// How it ended that a place was waited for.
pub(super) enum Entered<F: Movable> {
    Holds(StoreGuard<F>),
    /// Nobody gets a place any more.
    Closed,
    TooLate,
}

impl<F: Movable> StoreLock<F> {
    pub(super) fn part(store: &Store<F>, object: Named, weight: u16) -> Self {
        Self { store: store.clone(), object, weight }
    }

    /// See [`Lock::acquire`](crate::objects::Lock::acquire).
    ///
    /// # Cancel safety
    /// Dropped before it ends, it gives up its place, as [`StoreGuard`] says of its drop.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// Never: it waits for as long as it takes.
    pub async fn acquire(&self) -> Result<StoreGuard<F>, ObjectError> {
        let guard = self.acquire_paced(None, Pause::yields).await?;
        Ok(guard.expect("it waits for as long as it takes"))
    }

    /// See [`Lock::try_acquire`](crate::objects::Lock::try_acquire).
    ///
    /// # Errors
    /// As there.
    pub async fn try_acquire(&self) -> Result<Option<StoreGuard<F>>, ObjectError> {
        self.acquire_paced(Some(Duration::ZERO), Pause::yields).await
    }

    /// See [`Lock::acquire_within`](crate::objects::Lock::acquire_within).
    ///
    /// # Errors
    /// As there.
    pub async fn acquire_within(
        &self,
        limit: Duration,
    ) -> Result<Option<StoreGuard<F>>, ObjectError> {
        self.acquire_paced(Some(limit), Pause::yields).await
    }

    /// The same, without a limit if there is none. `sleep` lets the time between two looks pass: [`Pause::blocks`] where the
    /// thread may sleep, or what the runtime has for it, for [so long](Pause::longest).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_paced<S: Future<Output = ()>>(
        &self,
        limit: Option<Duration>,
        sleep: impl Fn(Pause) -> S,
    ) -> Result<Option<StoreGuard<F>>, ObjectError> {
        Ok(match self.enters(limit, sleep).await? {
            Entered::Holds(guard) => Some(guard),
            Entered::Closed | Entered::TooLate => None,
        })
    }

    /// See [`Lock::evict`](crate::objects::Lock::evict).
    ///
    /// # Errors
    /// As there.
    pub async fn evict(&self, token: u64) -> Result<bool, ObjectError> {
        let lent = (&self.object, token);
        on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (object, token)| {
            object.queue(client).evict(token).await
        })
        .await
    }

    /// See [`Lock::view`](crate::objects::Lock::view).
    ///
    /// # Errors
    /// As there.
    pub async fn view(&self) -> Result<QueueView, ObjectError> {
        on_client(&self.store.0.clients, &self.object, async |client: &Lent<F>, object| {
            object.queue(client).view().await
        })
        .await
    }

    /// Takes a place, and waits for its turn.
    pub(super) async fn enters<S: Future<Output = ()>>(
        &self,
        limit: Option<Duration>,
        sleep: impl Fn(Pause) -> S,
    ) -> Result<Entered<F>, ObjectError> {
        let (seat, hash) = self.store.begins(&self.object.name).await?;
        let mut place = StorePlace::new(&self.store, &self.object, seat);
        let queues = limit != Some(Duration::ZERO);
        let look = || self.looks(&place, queues);
        let entered = match self.store.looks_until(hash, limit, sleep, look).await? {
            None if queues => self.stops_waiting(&place).await?,
            entered => entered,
        };
        Ok(match entered {
            Some((Standing::Holds(token), unsettled)) => {
                Entered::Holds(StoreGuard { place, token, unsettled })
            }
            entered => {
                place.is_left();
                if entered.is_some() { Entered::Closed } else { Entered::TooLate }
            }
        })
    }

    /// Takes it, or looks what has become of it: nothing yet while it waits.
    fn looks<'l>(
        &'l self,
        place: &'l StorePlace<F>,
        queues: bool,
    ) -> impl Future<Output = Result<Option<(Standing, bool)>, ObjectError>> + Send + 'l {
        let lent = (place, self.weight, queues);
        on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (place, weight, queues)| {
            let queue = place.object.queue(client);
            let entered = Place::of_handle(&queue, place.seat).enter(weight, queues).await?;
            let is_decided = !matches!(entered.0, Standing::Waits | Standing::Outside);
            Ok(is_decided.then_some(entered))
        })
    }

    /// Leaves it if it only waits: it may have come in by now.
    fn stops_waiting<'l>(
        &'l self,
        place: &'l StorePlace<F>,
    ) -> impl Future<Output = Result<Option<(Standing, bool)>, ObjectError>> + Send + 'l {
        on_client(&self.store.0.clients, place, async |client: &Lent<F>, place| {
            let queue = place.object.queue(client);
            let holds = Place::of_handle(&queue, place.seat).gives_up(true).await?;
            Ok(holds.map(|guard| (Standing::Holds(guard.token()), guard.is_unsettled())))
        })
    }
}

/// An [`RwLock`](crate::objects::RwLock) of a handle.
#[derive(Debug)]
pub struct StoreRwLock<F: Movable = Plain> {
    read: StoreLock<F>,
    write: StoreLock<F>,
}

impl<F: Movable> StoreRwLock<F> {
    /// What a reader holds.
    #[must_use]
    pub fn read(&self) -> &StoreLock<F> {
        &self.read
    }

    /// What a writer holds.
    #[must_use]
    pub fn write(&self) -> &StoreLock<F> {
        &self.write
    }
}

/// A [`Semaphore`](crate::objects::Semaphore) of a handle.
#[derive(Debug)]
pub struct StoreSemaphore<F: Movable = Plain> {
    one: StoreLock<F>,
}

impl<F: Movable> StoreSemaphore<F> {
    /// See [`Semaphore::one`](crate::objects::Semaphore::one).
    #[must_use]
    pub fn one(&self) -> &StoreLock<F> {
        &self.one
    }

    /// See [`Semaphore::many`](crate::objects::Semaphore::many).
    ///
    /// # Panics
    /// None, or more than there are.
    #[must_use]
    pub fn many(&self, permits: u32) -> StoreLock<F> {
        let all = self.one.object.number;
        assert!((1..=all).contains(&permits), "1 to {all} permits");
        StoreLock::part(&self.one.store, self.one.object.clone(), permits as u16)
    }
}
