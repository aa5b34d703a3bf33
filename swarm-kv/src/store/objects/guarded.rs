//! A state of a type that serde knows, which changes as a whole: what to use in place of a lock.

use std::future::Future;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use swarm_core::register::safe_guess::SafeGuess;
use swarm_shm::PoolClock;

use crate::error::Error;
use crate::objects::{BlockingGuarded, ObjectError};
use crate::pools::shm::Plain;
use crate::store::Store;
use crate::store::blocking::BlockingStore;
use crate::store::clients::Lease;
use crate::store::objects::blocking::BlockingObject;
use crate::store::whole::{Lent, Movable, on_client};

impl<F: Movable> Store<F> {
    /// Returns the guarded state of this name, as [`Client::guarded`](crate::Client::guarded) does.
    #[must_use]
    pub fn guarded<T: Serialize + DeserializeOwned>(&self, name: &[u8]) -> StoreGuarded<T, F> {
        StoreGuarded { store: self.clone(), name: name.into(), state: PhantomData }
    }
}

impl<F: Movable> BlockingStore<'_, F> {
    /// See [`Store::guarded`].
    pub fn guarded<T: Serialize + DeserializeOwned>(
        &self,
        name: &[u8],
    ) -> BlockingObject<StoreGuarded<T, F>> {
        BlockingObject(self.0.guarded(name))
    }
}

/// A [`Guarded`](crate::objects::Guarded) of a handle.
///
/// ```
/// # use swarm_kv::Store;
/// # use swarm_kv::shm::{CreateOptions, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// # Pool::create(&path, &CreateOptions { nodes: 3, capacity: 16 << 20, ..CreateOptions::default() })?;
/// let store = Store::open(&path)?;
/// let players = store.blocking().guarded::<Vec<String>>(b"players");
/// players.update(|players| [players.unwrap_or_default(), vec!["Ada".to_owned()]].concat())?;
/// assert_eq!(players.get()?, Some(vec!["Ada".to_owned()]));
/// # Ok(())
/// # }
/// ```
pub struct StoreGuarded<T, F: Movable = Plain> {
    store: Store<F>,
    name: Box<[u8]>,
    state: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned + Send, F: Movable> StoreGuarded<T, F> {
    /// See [`Guarded::get`](crate::objects::Guarded::get).
    ///
    /// # Errors
    /// As there.
    pub fn get<'s>(&'s self) -> impl Future<Output = Result<Option<T>, ObjectError>> + Send + 's
    where
        T: 's,
    {
        on_client(&self.store.0.clients, &*self.name, async |client: &Lent<F>, name| {
            client.guarded(name).get().await
        })
    }

    /// See [`Guarded::update`](crate::objects::Guarded::update). `change` must not use this handle.
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub fn update<'s>(
        &'s self,
        change: impl FnMut(Option<T>) -> T + Send + 's,
    ) -> impl Future<Output = Result<T, ObjectError>> + Send + 's
    where
        T: 's,
    {
        let lent = (&*self.name, change);
        on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (name, change)| {
            client.guarded(name).update(change).await
        })
    }

    /// See [`Guarded::fetch_update`](crate::objects::Guarded::fetch_update). `change` must not use this handle.
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub fn fetch_update<'s>(
        &'s self,
        change: impl FnMut(Option<T>) -> Option<T> + Send + 's,
    ) -> impl Future<Output = Result<(Option<T>, Option<T>), ObjectError>> + Send + 's
    where
        T: 's,
    {
        let lent = (&*self.name, change);
        on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (name, change)| {
            client.guarded(name).fetch_update(change).await
        })
    }
}

/// The client of a thread is its own: neither the state nor what changes it need be `Send`.
impl<T: Serialize + DeserializeOwned, F: Movable> BlockingObject<StoreGuarded<T, F>> {
    fn lend(&self) -> Result<Lease<'_, Lent<F>>, Error> {
        self.0.store.blocking().lend()
    }

    fn on<'c>(&self, client: &'c Lent<F>) -> BlockingGuarded<'c, T, F, PoolClock, SafeGuess> {
        client.blocking().guarded(&self.0.name)
    }

    /// See [`StoreGuarded::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self) -> Result<Option<T>, ObjectError> {
        self.on(&*self.lend()?).get()
    }

    /// See [`StoreGuarded::update`].
    ///
    /// # Errors
    /// As there.
    pub fn update(&self, change: impl FnMut(Option<T>) -> T) -> Result<T, ObjectError> {
        self.on(&*self.lend()?).update(change)
    }

    /// See [`StoreGuarded::fetch_update`].
    ///
    /// # Errors
    /// As there.
    pub fn fetch_update(
        &self,
        change: impl FnMut(Option<T>) -> Option<T>,
    ) -> Result<(Option<T>, Option<T>), ObjectError> {
        self.on(&*self.lend()?).fetch_update(change)
    }
}
