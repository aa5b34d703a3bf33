//! A value that is its own bytes and changes as a whole, by `zerocopy`.

use std::future::Future;

use swarm_core::register::safe_guess::SafeGuess;
use swarm_shm::PoolClock;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::Error;
use crate::objects::{BlockingAtomic, ObjectError};
use crate::pools::shm::Plain;
use crate::store::Store;
use crate::store::blocking::BlockingStore;
use crate::store::clients::Lease;
use crate::store::objects::blocking::BlockingObject;
use crate::store::whole::{Lent, Movable, on_client};

impl<F: Movable> Store<F> {
    /// Returns the atomic value of this name, as [`Client::atomic`](crate::Client::atomic) does.
    #[must_use]
    pub fn atomic<T: FromBytes + IntoBytes + Immutable + Copy>(
        &self,
        name: &[u8],
        initial: T,
    ) -> StoreAtomic<T, F> {
        StoreAtomic { store: self.clone(), name: name.into(), initial }
    }
}

impl<F: Movable> BlockingStore<'_, F> {
    /// See [`Store::atomic`].
    pub fn atomic<T: FromBytes + IntoBytes + Immutable + Copy>(
        &self,
        name: &[u8],
        initial: T,
    ) -> BlockingObject<StoreAtomic<T, F>> {
        BlockingObject(self.0.atomic(name, initial))
    }
}

/// An [`Atomic`](crate::objects::Atomic) of a handle.
///
/// ```
/// # use swarm_kv::Store;
/// # use swarm_kv::shm::{CreateOptions, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// # Pool::create(&path, &CreateOptions { nodes: 3, capacity: 16 << 20, ..CreateOptions::default() })?;
/// let store = Store::open(&path)?;
/// let visits = store.blocking().atomic(b"visits", 0_u64);
/// let (before, after) = visits.fetch_update(|visits| visits.checked_add(1))?;
/// assert_eq!((before, after), (0, 1));
/// # Ok(())
/// # }
/// ```
pub struct StoreAtomic<T, F: Movable = Plain> {
    store: Store<F>,
    name: Box<[u8]>,
    initial: T,
}

impl<T: FromBytes + IntoBytes + Immutable + Copy + Send, F: Movable> StoreAtomic<T, F> {
    /// See [`Atomic::load`](crate::objects::Atomic::load).
    ///
    /// # Errors
    /// As there.
    pub fn load(&self) -> impl Future<Output = Result<T, ObjectError>> + Send + '_ {
        let lent = (&*self.name, self.initial);
        on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (name, initial)| {
            client.atomic(name, initial).load().await
        })
    }

    /// See [`Atomic::swap`](crate::objects::Atomic::swap).
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub fn swap(&self, value: T) -> impl Future<Output = Result<T, ObjectError>> + Send + '_ {
        let lent = (&*self.name, self.initial, value);
        on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (name, initial, value)| {
            client.atomic(name, initial).swap(value).await
        })
    }

    /// See [`Atomic::compare_exchange`](crate::objects::Atomic::compare_exchange).
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub fn compare_exchange(
        &self,
        expected: T,
        new: T,
    ) -> impl Future<Output = Result<Result<T, T>, ObjectError>> + Send + '_ {
        let lent = (&*self.name, self.initial, expected, new);
        on_client(
            &self.store.0.clients,
            lent,
            async |client: &Lent<F>, (name, initial, expected, new)| {
                client.atomic(name, initial).compare_exchange(expected, new).await
            },
        )
    }

    /// See [`Atomic::fetch_update`](crate::objects::Atomic::fetch_update). `change` must not use this handle.
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub fn fetch_update<'s>(
        &'s self,
        change: impl FnMut(T) -> Option<T> + Send + 's,
    ) -> impl Future<Output = Result<(T, T), ObjectError>> + Send + 's {
        let lent = (&*self.name, self.initial, change);
        on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (name, initial, change)| {
            client.atomic(name, initial).fetch_update(change).await
        })
    }
}

/// The client of a thread is its own: neither the value nor what changes it need be `Send`.
impl<T: FromBytes + IntoBytes + Immutable + Copy, F: Movable> BlockingObject<StoreAtomic<T, F>> {
    fn lend(&self) -> Result<Lease<'_, Lent<F>>, Error> {
        self.0.store.blocking().lend()
    }

    fn on<'c>(&self, client: &'c Lent<F>) -> BlockingAtomic<'c, T, F, PoolClock, SafeGuess> {
        client.blocking().atomic(&self.0.name, self.0.initial)
    }

    /// See [`StoreAtomic::load`].
    ///
    /// # Errors
    /// As there.
    pub fn load(&self) -> Result<T, ObjectError> {
        self.on(&*self.lend()?).load()
    }

    /// See [`StoreAtomic::swap`].
    ///
    /// # Errors
    /// As there.
    pub fn swap(&self, value: T) -> Result<T, ObjectError> {
        self.on(&*self.lend()?).swap(value)
    }

    /// See [`StoreAtomic::compare_exchange`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_exchange(&self, expected: T, new: T) -> Result<Result<T, T>, ObjectError> {
        self.on(&*self.lend()?).compare_exchange(expected, new)
    }

    /// See [`StoreAtomic::fetch_update`].
    ///
    /// # Errors
    /// As there.
    pub fn fetch_update(&self, change: impl FnMut(T) -> Option<T>) -> Result<(T, T), ObjectError> {
        self.on(&*self.lend()?).fetch_update(change)
    }
}
