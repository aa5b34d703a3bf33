//! The store's operations for programs without `async`.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::{Client, Value};
use crate::error::Error;
use crate::heap::Holding;
use crate::scan::{Estimate, Usage};
use crate::update::UpdateRest;

/// Runs a future of this crate to its end, polling without sleeping: memory nodes answer within
/// microseconds.
#[inline]
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::hint::spin_loop();
    }
}

/// The same of a future that is large and seldom needed: it takes no place in the caller's frame.
#[cold]
#[inline(never)]
fn block_on_rest<T, O: Future<Output = T>>(rest: impl FnOnce() -> O) -> T {
    block_on(rest())
}

/// A [`Client`] whose operations return when they are done.
pub struct Blocking<'c, F: Fabric, C: Clock, P>(&'c Client<F, C, P>);

impl<'c, F: Fabric, C: Clock, P: Protocol> Blocking<'c, F, C, P> {
    pub(crate) fn new(client: &'c Client<F, C, P>) -> Self {
        Self(client)
    }

    /// See [`Client::get`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'c, F>>, Error> {
        let mut rest = None;
        match self.0.try_get(key, &mut rest) {
            Some(told) => told,
            None => block_on_rest(|| self.0.get_on(key, rest.expect("what is left of it"))),
        }
    }

    /// See [`Client::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut rest = UpdateRest::default();
        let told = match self.0.try_update(|counters| &mut counters.put, key, value, &mut rest) {
            Some(told) => told.map(drop),
            None => block_on_rest(|| self.0.put_on(key, value, rest)),
        };
        if self.0.is_untidy() {
            block_on_rest(|| self.0.tidy());
        }
        told
    }

    /// See [`Client::insert`].
    ///
    /// # Errors
    /// As there.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        block_on(self.0.insert(key, value))
    }

    /// See [`Client::update`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, Error> {
        let mut rest = UpdateRest::default();
        let told = match self.0.try_update(|counters| &mut counters.update, key, value, &mut rest) {
            Some(told) => told,
            None => block_on_rest(|| self.0.update_on(key, value, rest)),
        };
        if self.0.is_untidy() {
            block_on_rest(|| self.0.tidy());
        }
        told
    }

    /// See [`Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        block_on(self.0.delete(key))
    }

    /// See [`Client::get_many`].
    ///
    /// # Errors
    /// As there.
    pub fn get_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Value<'c, F>>>, Error> {
        block_on(self.0.get_many(keys))
    }

    /// See [`Client::put_many`].
    ///
    /// # Errors
    /// As there.
    pub fn put_many(
        &self,
        keys: &[impl AsRef<[u8]>],
        values: &[impl AsRef<[u8]>],
    ) -> Result<(), Error> {
        block_on(self.0.put_many(keys, values))
    }

    /// See [`Client::delete_many`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_many(&self, keys: &[impl AsRef<[u8]>]) -> Result<(), Error> {
        block_on(self.0.delete_many(keys))
    }

    /// See [`Client::for_each`].
    ///
    /// # Errors
    /// As there.
    pub fn for_each(&self, each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        block_on(self.0.for_each(each))
    }

    /// See [`Client::usage`].
    ///
    /// # Errors
    /// As there.
    pub fn usage(&self) -> Result<Usage, Error> {
        block_on(self.0.usage())
    }

    /// See [`Client::accounts`].
    ///
    /// # Errors
    /// As there.
    pub fn accounts(&self) -> Result<(Usage, Vec<Holding>), Error> {
        block_on(self.0.accounts())
    }

    /// See [`Client::accounts_while`].
    ///
    /// # Errors
    /// As there.
    pub fn accounts_while(
        &self,
        goes_on: impl FnMut(u64, u64) -> bool,
    ) -> Result<(Estimate, Vec<Holding>), Error> {
        block_on(self.0.accounts_while(goes_on))
    }

    /// See [`Client::holdings`].
    ///
    /// # Errors
    /// As there.
    pub fn holdings(&self) -> Result<Vec<Holding>, Error> {
        block_on(self.0.holdings())
    }

    /// See [`Client::collect`].
    ///
    /// # Errors
    /// As there.
    pub fn collect(&self) -> Result<Option<usize>, Error> {
        block_on(self.0.collect())
    }
}
