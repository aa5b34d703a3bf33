//! A handle's operations for programs without `async`.

use std::ops::ControlFlow;
use std::time::Duration;

use swarm_core::fabric::Fabric;

use super::Store;
use super::clients::Lease;
use super::whole::{Lent, Movable};
use crate::error::Error;
use crate::objects::ObjectError;
use crate::ops::expiry::TimeToLive;
use crate::ops::modify::CompareAndSwap;
use crate::ops::scan::Estimate;
use crate::ops::version::Version;
use crate::pools::shm::Plain;

/// A [`Store`](super::Store) whose operations return when they are done.
pub struct BlockingStore<'s, F: Fabric = Plain>(pub(super) &'s Store<F>);

impl<'s, F: Movable> BlockingStore<'s, F> {
    pub(super) fn new(store: &'s Store<F>) -> Self {
        Self(store)
    }

    #[inline]
    pub(super) fn lend(&self) -> Result<Lease<'s, Lent<F>>, Error> {
        let clients = &self.0.0.clients;
        match clients.lend_now() {
            Some(lease) => Ok(lease),
            None => clients.lend_blocking(),
        }
    }

    /// See [`Store::get`](super::Store::get).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.read(key, <[u8]>::to_vec)
    }

    /// See [`Store::read`](super::Store::read).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn read<T>(&self, key: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Error> {
        let lease = self.lend()?;
        let value = lease.blocking().get(key)?;
        Ok(value.map(|value| read(&value)))
    }

    /// See [`Store::put`](super::Store::put).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.lend()?.blocking().put(key, value)
    }

    /// See [`Store::insert`](super::Store::insert).
    ///
    /// # Errors
    /// As there.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.lend()?.blocking().insert(key, value)
    }

    /// See [`Store::update`](super::Store::update).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        self.lend()?.blocking().update(key, value)
    }

    /// See [`Store::delete`](super::Store::delete).
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        self.lend()?.blocking().delete(key)
    }

    /// See [`Store::compare_and_swap`](super::Store::compare_and_swap).
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareAndSwap, Error> {
        self.lend()?.blocking().compare_and_swap(key, expected, new)
    }

    /// See [`Store::update_with`](super::Store::update_with).
    ///
    /// # Errors
    /// As there.
    pub fn update_with(
        &self,
        key: &[u8],
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        self.lend()?.blocking().update_with(key, change)
    }

    /// See [`Store::put_with_ttl`](super::Store::put_with_ttl).
    ///
    /// # Errors
    /// As there.
    pub fn put_with_ttl(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<(), Error> {
        self.lend()?.blocking().put_with_ttl(key, value, ttl)
    }

    /// See [`Store::ttl`](super::Store::ttl).
    ///
    /// # Errors
    /// As there.
    pub fn ttl(&self, key: &[u8]) -> Result<TimeToLive, Error> {
        self.lend()?.blocking().ttl(key)
    }

    /// See [`Store::persist`](super::Store::persist).
    ///
    /// # Errors
    /// As there.
    pub fn persist(&self, key: &[u8]) -> Result<bool, Error> {
        self.lend()?.blocking().persist(key)
    }

    /// See [`Store::get_versioned`](super::Store::get_versioned).
    ///
    /// # Errors
    /// As there.
    pub fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Version)>, Error> {
        self.lend()?.blocking().get_versioned(key)
    }

    /// See [`Store::put_if_version`](super::Store::put_if_version).
    ///
    /// # Errors
    /// As there.
    pub fn put_if_version(
        &self,
        key: &[u8],
        value: &[u8],
        version: Version,
    ) -> Result<bool, Error> {
        self.lend()?.blocking().put_if_version(key, value, version)
    }

    /// See [`Store::increment`](super::Store::increment).
    ///
    /// # Errors
    /// As there.
    pub fn increment(&self, key: &[u8], by: i64) -> Result<i64, Error> {
        self.lend()?.blocking().increment(key, by)
    }

    /// See [`Store::swap`](super::Store::swap).
    ///
    /// # Errors
    /// As there.
    pub fn swap(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.lend()?.blocking().swap(key, value)
    }

    /// See [`Store::put_if_absent`](super::Store::put_if_absent).
    ///
    /// # Errors
    /// As there.
    pub fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.lend()?.blocking().put_if_absent(key, value)
    }

    /// See [`Store::get_and_delete`](super::Store::get_and_delete).
    ///
    /// # Errors
    /// As there.
    pub fn get_and_delete(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.lend()?.blocking().get_and_delete(key)
    }

    /// See [`Store::get_many`](super::Store::get_many).
    ///
    /// # Errors
    /// As there.
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let mut values = Vec::with_capacity(keys.len());
        self.read_many(keys, |value| values.push(value.map(<[u8]>::to_vec)))?;
        Ok(values)
    }

    /// Calls `each` with the values of `keys`, in their order, each read in place.
    ///
    /// # Errors
    /// As [`get_many`](Self::get_many), before any was called.
    pub fn read_many(
        &self,
        keys: &[impl AsRef<[u8]>],
        mut each: impl FnMut(Option<&[u8]>),
    ) -> Result<(), Error> {
        let lease = self.lend()?;
        let values = lease.blocking().get_many(keys)?;
        values.iter().for_each(|value| each(value.as_deref()));
        Ok(())
    }

    /// See [`Store::put_many`](super::Store::put_many).
    ///
    /// # Errors
    /// As there.
    pub fn put_many(
        &self,
        keys: &[impl AsRef<[u8]>],
        values: &[impl AsRef<[u8]>],
    ) -> Result<(), Error> {
        self.lend()?.blocking().put_many(keys, values)
    }

    /// See [`Store::delete_many`](super::Store::delete_many).
    ///
    /// # Errors
    /// As there.
    pub fn delete_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<(), Error> {
        self.lend()?.blocking().delete_many(keys)
    }

    /// See [`Store::keys`](super::Store::keys).
    ///
    /// # Errors
    /// As there.
    pub fn keys(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut keys = Vec::new();
        let each = |key: &[u8]| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        };
        self.lend()?.blocking().for_each_key(prefix, each)?;
        Ok(keys)
    }

    /// See [`Store::scan`](super::Store::scan).
    ///
    /// # Errors
    /// As there.
    pub fn scan(
        &self,
        prefix: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.lend()?.blocking().scan(prefix, each)
    }

    /// See [`Store::len`](super::Store::len).
    ///
    /// # Errors
    /// As there.
    pub fn len(&self) -> Result<Estimate, Error> {
        self.lend()?.blocking().len()
    }

    /// Runs `act` with the token of a [lock](Store::lock) while that is held, if it is had within `limit`.
    /// `None`, and `act` is not run, if it is not. The thread sleeps while it waits.
    ///
    /// None of the handle's clients is in use meanwhile, but for each look. If `act` panics, the lock is released.
    ///
    /// # Errors
    /// As [`StoreLock::acquire`](super::StoreLock::acquire). [`ObjectError::TakenAway`]: `act` was run, and the
    /// lock was taken away in the meantime.
    pub fn with_lock<R>(
        &self,
        name: &[u8],
        limit: Option<Duration>,
        act: impl FnOnce(u64) -> R,
    ) -> Result<Option<R>, ObjectError> {
        let Some(guard) = self.lock(name).acquire_by(limit)? else { return Ok(None) };
        let result = act(guard.token());
        guard.release()?;
        Ok(Some(result))
    }
}
