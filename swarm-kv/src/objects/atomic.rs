//! A value that is its own bytes and changes as a whole, by `zerocopy`.
//!
//! ```text
//! byte 0   mark, kind, version
//!      8   the value
//! ```

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::client::handle::Client;
use crate::error::Error;
use crate::objects::cell::Named;
use crate::objects::error::ObjectError;
use crate::objects::kind::ObjectKind;
use crate::ops::blocking::Blocking;
use crate::runtime::block_on::block_on;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the atomic value of this name, which is `initial` until it is changed. There is one for each
    /// key: it need not be created. All users have to name the same type and the same initial value.
    #[must_use]
    pub fn atomic<T: FromBytes + IntoBytes + Immutable + Copy>(
        &self,
        name: &[u8],
        initial: T,
    ) -> Atomic<'_, T, F, C, P> {
        Atomic { client: self, name: name.into(), initial }
    }
}

impl<'c, F: Fabric, C: Clock, P: Protocol> Blocking<'c, F, C, P> {
    /// See [`Client::atomic`](crate::Client::atomic).
    #[must_use]
    pub fn atomic<T: FromBytes + IntoBytes + Immutable + Copy>(
        &self,
        name: &[u8],
        initial: T,
    ) -> BlockingAtomic<'c, T, F, C, P> {
        BlockingAtomic(self.client().atomic(name, initial))
    }
}

/// A value of up to 4 KiB that clients load, store and change as a whole.
///
/// Nothing is held, so nothing is left behind by a client that ends: a change took effect once, or never.
pub struct Atomic<'c, T, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    name: Box<[u8]>,
    initial: T,
}

impl<T: FromBytes + IntoBytes + Immutable + Copy, F: Fabric, C: Clock, P: Protocol>
    Atomic<'_, T, F, C, P>
{
    fn named(&self) -> Named<'_> {
        Named { name: &self.name, kind: ObjectKind::Atomic, room: size_of::<T>() }
    }

    fn value(&self, state: Option<&[u8]>) -> Result<T, ObjectError> {
        let Some(state) = state else { return Ok(self.initial) };
        Ok(T::read_from_bytes(state).map_err(|_| Error::Type(state.len()))?)
    }

    /// Returns the value.
    ///
    /// One roundtrip if the key's cell is cached.
    ///
    /// # Errors
    /// [`ObjectError::OtherKind`]; [`Error::Type`] if it has another length than a `T`; too few memory nodes
    /// that answer.
    pub async fn load(&self) -> Result<T, ObjectError> {
        self.value(self.client.read_object(self.named()).await?.as_deref())
    }

    /// Makes this the value, and returns the one before.
    ///
    /// One roundtrip if this client changed it last, up to five after another one.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may take effect or not.
    ///
    /// # Errors
    /// As [`load`](Self::load); a pool without keyed cells, or a full one.
    pub async fn swap(&self, value: T) -> Result<T, ObjectError> {
        Ok(self.fetch_update(|_| Some(value)).await?.0)
    }

    /// Makes `new` the value if it is `expected`, byte for byte. Returns the value that was there: `Err` if it
    /// is another one.
    ///
    /// # Cancel safety
    /// As [`swap`](Self::swap).
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub async fn compare_exchange(&self, expected: T, new: T) -> Result<Result<T, T>, ObjectError> {
        let is_expected = |value: &T| value.as_bytes() == expected.as_bytes();
        let (before, _) = self.fetch_update(|value| is_expected(&value).then_some(new)).await?;
        Ok(if is_expected(&before) { Ok(before) } else { Err(before) })
    }

    /// Makes the value what `change` makes of it; `None`: it stays. Returns the value before and after.
    ///
    /// `change` is called again where another change came first: only its last call counts. It must not use this client.
    ///
    /// # Cancel safety
    /// As [`swap`](Self::swap).
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub async fn fetch_update(
        &self,
        mut change: impl FnMut(T) -> Option<T>,
    ) -> Result<(T, T), ObjectError> {
        let step = |state: Option<&[u8]>| {
            let value = self.value(state).ok()?;
            change(value).map(|value| value.as_bytes().to_vec())
        };
        let (before, after) = self.client.change_object(self.named(), step).await?;
        Ok((self.value(before.as_deref())?, self.value(after.as_deref())?))
    }
}

/// An [`Atomic`] whose operations return when they are done.
pub struct BlockingAtomic<'c, T, F: Fabric, C: Clock, P: Protocol>(Atomic<'c, T, F, C, P>);

impl<T: FromBytes + IntoBytes + Immutable + Copy, F: Fabric, C: Clock, P: Protocol>
    BlockingAtomic<'_, T, F, C, P>
{
    /// See [`Atomic::load`].
    ///
    /// # Errors
    /// As there.
    pub fn load(&self) -> Result<T, ObjectError> {
        block_on(self.0.load())
    }

    /// See [`Atomic::swap`].
    ///
    /// # Errors
    /// As there.
    pub fn swap(&self, value: T) -> Result<T, ObjectError> {
        block_on(self.0.swap(value))
    }

    /// See [`Atomic::compare_exchange`].
    ///
    /// # Errors
    /// As there.
    pub fn compare_exchange(&self, expected: T, new: T) -> Result<Result<T, T>, ObjectError> {
        block_on(self.0.compare_exchange(expected, new))
    }

    /// See [`Atomic::fetch_update`].
    ///
    /// # Errors
    /// As there.
    pub fn fetch_update(&self, change: impl FnMut(T) -> Option<T>) -> Result<(T, T), ObjectError> {
        block_on(self.0.fetch_update(change))
    }
}
