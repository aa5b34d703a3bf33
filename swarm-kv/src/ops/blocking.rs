//! The store's operations for programs without `async`.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::node::NodeId;
use swarm_core::register::Protocol;

use crate::client::handle::{Client, Value};
use crate::error::Error;
use crate::gc::full::{Gc, GcStage};
use crate::heap::ClientUsage;
use crate::ops::cursor::Cursor;
use crate::ops::expiry::TimeToLive;
use crate::ops::modify::CompareAndSwap;
use crate::ops::replace::{Membership, ReplaceError, ReplaceStep};
use crate::ops::scan::{Estimate, Usage};
use crate::ops::update::UpdateRest;
use crate::ops::version::Version;
use crate::runtime::block_on::block_on;

/// Blocks on a future that is large and seldom needed: it takes no space in the caller's frame.
#[cold]
#[inline(never)]
fn block_on_rest<T, O: Future<Output = T>>(rest: impl FnOnce() -> O) -> T {
    block_on(rest())
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the same operations for programs without `async`: each returns when it is done.
    pub fn blocking(&self) -> Blocking<'_, F, C, P> {
        Blocking::new(self)
    }
}

/// A [`Client`] whose operations return when they are done.
pub struct Blocking<'c, F: Fabric, C: Clock, P>(&'c Client<F, C, P>);

impl<'c, F: Fabric, C: Clock, P: Protocol> Blocking<'c, F, C, P> {
    pub(crate) fn new(client: &'c Client<F, C, P>) -> Self {
        Self(client)
    }

    /// The client.
    pub(crate) fn client(&self) -> &'c Client<F, C, P> {
        self.0
    }

    /// See [`Client::get`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Value<'c, F>>, Error> {
        let mut rest = None;
        if let Some(value) = self.0.try_get(key, &mut rest) {
            return Ok(Some(value));
        }
        let rest = rest.expect("what is left of it")?;
        block_on_rest(|| self.0.get_on(key, rest))
    }

    /// See [`Client::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let mut rest = UpdateRest::default();
        let outcome = match self.0.try_update(|counters| &mut counters.put, key, value, &mut rest) {
            Some(outcome) => outcome.map(drop),
            None => block_on_rest(|| self.0.put_on(key, value, rest)),
        };
        if self.0.is_assist_due() {
            block_on_rest(|| self.0.gc_assist());
        }
        outcome
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
        let outcome =
            match self.0.try_update(|counters| &mut counters.update, key, value, &mut rest) {
                Some(outcome) => outcome,
                None => block_on_rest(|| self.0.update_on(key, value, rest)),
            };
        if self.0.is_assist_due() {
            block_on_rest(|| self.0.gc_assist());
        }
        outcome
    }

    /// See [`Client::delete`].
    ///
    /// # Errors
    /// As there.
    pub fn delete(&self, key: &[u8]) -> Result<(), Error> {
        block_on(self.0.delete(key))
    }

    /// See [`Client::compare_and_swap`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<CompareAndSwap, Error> {
        block_on(self.0.compare_and_swap(key, expected, new))
    }

    /// See [`Client::update_with`].
    ///
    /// # Errors
    /// As there.
    pub fn update_with(
        &self,
        key: &[u8],
        change: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        block_on(self.0.update_with(key, change))
    }

    /// See [`Client::increment`].
    ///
    /// # Errors
    /// As there.
    pub fn increment(&self, key: &[u8], by: i64) -> Result<i64, Error> {
        block_on(self.0.increment(key, by))
    }

    /// See [`Client::swap`].
    ///
    /// # Errors
    /// As there.
    pub fn swap(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        block_on(self.0.swap(key, value))
    }

    /// See [`Client::put_if_absent`].
    ///
    /// # Errors
    /// As there.
    pub fn put_if_absent(&self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        block_on(self.0.put_if_absent(key, value))
    }

    /// See [`Client::get_and_delete`].
    ///
    /// # Errors
    /// As there.
    pub fn get_and_delete(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        block_on(self.0.get_and_delete(key))
    }

    /// See [`Client::put_with_ttl`].
    ///
    /// # Errors
    /// As there.
    pub fn put_with_ttl(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<(), Error> {
        block_on(self.0.put_with_ttl(key, value, ttl))
    }

    /// See [`Client::ttl`].
    ///
    /// # Errors
    /// As there.
    pub fn ttl(&self, key: &[u8]) -> Result<TimeToLive, Error> {
        block_on(self.0.ttl(key))
    }

    /// See [`Client::persist`].
    ///
    /// # Errors
    /// As there.
    pub fn persist(&self, key: &[u8]) -> Result<bool, Error> {
        block_on(self.0.persist(key))
    }

    /// See [`Client::settle`].
    ///
    /// # Errors
    /// As there.
    pub fn settle(&self, key: &[u8]) -> Result<(), Error> {
        block_on(self.0.settle(key))
    }

    /// See [`Client::get_versioned`].
    ///
    /// # Errors
    /// As there.
    pub fn get_versioned(&self, key: &[u8]) -> Result<Option<(Vec<u8>, Version)>, Error> {
        block_on(self.0.get_versioned(key))
    }

    /// See [`Client::put_if_version`].
    ///
    /// # Errors
    /// As there.
    pub fn put_if_version(
        &self,
        key: &[u8],
        value: &[u8],
        version: Version,
    ) -> Result<bool, Error> {
        block_on(self.0.put_if_version(key, value, version))
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

    /// See [`Client::next_keys`].
    ///
    /// # Errors
    /// As there.
    pub fn next_keys(
        &self,
        cursor: &mut Cursor,
        each: impl FnMut(&[u8], &[u8]),
    ) -> Result<bool, Error> {
        block_on(self.0.next_keys(cursor, each))
    }

    /// See [`Client::next_keys_with_ttl`].
    ///
    /// # Errors
    /// As there.
    pub fn next_keys_with_ttl(
        &self,
        cursor: &mut Cursor,
        each: impl FnMut(&[u8], &[u8], Option<Duration>),
    ) -> Result<bool, Error> {
        block_on(self.0.next_keys_with_ttl(cursor, each))
    }

    /// See [`Client::for_each_with_ttl`].
    ///
    /// # Errors
    /// As there.
    pub fn for_each_with_ttl(
        &self,
        each: impl FnMut(&[u8], &[u8], Option<Duration>) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        block_on(self.0.for_each_with_ttl(each))
    }

    /// See [`Client::for_each`].
    ///
    /// # Errors
    /// As there.
    pub fn for_each(&self, each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>) -> Result<(), Error> {
        block_on(self.0.for_each(each))
    }

    /// See [`Client::for_each_key`].
    ///
    /// # Errors
    /// As there.
    pub fn for_each_key(
        &self,
        prefix: &[u8],
        each: impl FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        block_on(self.0.for_each_key(prefix, each))
    }

    /// See [`Client::scan`].
    ///
    /// # Errors
    /// As there.
    pub fn scan(
        &self,
        prefix: &[u8],
        each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        block_on(self.0.scan(prefix, each))
    }

    /// See [`Client::len`].
    ///
    /// # Errors
    /// As there.
    pub fn len(&self) -> Result<Estimate, Error> {
        block_on(self.0.len())
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
    pub fn accounts(&self) -> Result<(Usage, Vec<ClientUsage>), Error> {
        block_on(self.0.accounts())
    }

    /// See [`Client::accounts_while`].
    ///
    /// # Errors
    /// As there.
    pub fn accounts_while(
        &self,
        goes_on: impl FnMut(u64, u64) -> bool,
    ) -> Result<(Estimate, Vec<ClientUsage>), Error> {
        block_on(self.0.accounts_while(goes_on))
    }

    /// See [`Client::client_usage`].
    ///
    /// # Errors
    /// As there.
    pub fn client_usage(&self) -> Result<Vec<ClientUsage>, Error> {
        block_on(self.0.client_usage())
    }

    /// See [`Client::collect`].
    ///
    /// # Errors
    /// As there.
    pub fn collect(&self) -> Result<Option<usize>, Error> {
        block_on(self.0.collect())
    }

    /// See [`Client::gc`].
    ///
    /// # Errors
    /// As there.
    pub fn gc(&self, report: &mut dyn FnMut(GcStage)) -> Result<Gc, Error> {
        block_on(self.0.gc(report))
    }

    /// See [`Client::replace_node`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn replace_node<M: Membership>(
        &self,
        membership: &M,
        node: NodeId,
        goes_on: &mut dyn FnMut(ReplaceStep) -> bool,
    ) -> Result<bool, ReplaceError> {
        block_on(self.0.replace_node(membership, node, goes_on))
    }
}
