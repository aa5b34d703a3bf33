//! A state of a type that serde knows, which changes as a whole: what to use in place of a lock.
//!
//! ```text
//! byte 0   mark, kind, version
//!      8   the state, in the format of postcard
//! ```

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;
use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::error::Error;
use crate::objects::cell::Named;
use crate::objects::error::ObjectError;
use crate::objects::kind::ObjectKind;
use crate::ops::blocking::Blocking;
use crate::runtime::block_on::block_on;

/// Bytes that a new one has room for.
const ROOM: usize = 56;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the guarded state of this name. There is one for each key: it need not be created. All users
    /// have to name the same type.
    #[must_use]
    pub fn guarded<T: Serialize + DeserializeOwned>(&self, name: &[u8]) -> Guarded<'_, T, F, C, P> {
        Guarded { client: self, name: name.into(), state: PhantomData }
    }
}

impl<'c, F: Fabric, C: Clock, P: Protocol> Blocking<'c, F, C, P> {
    /// See [`Client::guarded`](crate::Client::guarded).
    #[must_use]
    pub fn guarded<T: Serialize + DeserializeOwned>(
        &self,
        name: &[u8],
    ) -> BlockingGuarded<'c, T, F, C, P> {
        BlockingGuarded(self.client().guarded(name))
    }
}

/// A state that clients change one after the other, each by a function of the old one.
///
/// Nothing is held, so nothing is left behind by a client that ends: a change took effect once, or never.
pub struct Guarded<'c, T, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    name: Box<[u8]>,
    state: PhantomData<fn() -> T>,
}

impl<T: Serialize + DeserializeOwned, F: Fabric, C: Clock, P: Protocol> Guarded<'_, T, F, C, P> {
    fn named(&self) -> Named<'_> {
        Named { name: &self.name, kind: ObjectKind::Guarded, room: ROOM }
    }

    fn decoded(state: Option<&[u8]>) -> Result<Option<T>, ObjectError> {
        let Some(state) = state else { return Ok(None) };
        let decoded = postcard::from_bytes(state);
        Ok(Some(decoded.map_err(|_| Error::Type(state.len()))?))
    }

    /// Returns the state, if it was ever set.
    ///
    /// One roundtrip if the key's cell is cached.
    ///
    /// # Errors
    /// [`ObjectError::OtherKind`]; [`Error::Type`] if it is no `T`; too few memory nodes that answer.
    pub async fn get(&self) -> Result<Option<T>, ObjectError> {
        Self::decoded(self.client.read_object(self.named()).await?.as_deref())
    }

    /// Makes the state what `change` makes of it, and returns that. Where none was set, it is made of `None`.
    ///
    /// `change` is called again where another change came first: only its last call counts. It must not use this client.
    ///
    /// One roundtrip if this client changed it last, up to five after another one.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may take effect or not.
    ///
    /// # Errors
    /// As [`get`](Self::get); [`Error::Type`] if the new state cannot be encoded; a pool without keyed cells,
    /// or a full one.
    pub async fn update(&self, mut change: impl FnMut(Option<T>) -> T) -> Result<T, ObjectError> {
        let (_, after) = self.fetch_update(|state| Some(change(state))).await?;
        after.ok_or(Error::DAMAGED.into())
    }

    /// The same, where the state stays as it is if `change` returns `None`. Returns the state before and after.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub async fn fetch_update(
        &self,
        mut change: impl FnMut(Option<T>) -> Option<T>,
    ) -> Result<(Option<T>, Option<T>), ObjectError> {
        let mut cannot = false;
        let step = |state: Option<&[u8]>| {
            // Of the last call alone: what an earlier one returned counts for nothing.
            cannot = false;
            let encoded = postcard::to_stdvec(&change(Self::decoded(state).ok()?)?);
            cannot = encoded.is_err();
            encoded.ok()
        };
        let (before, after) = self.client.change_object(self.named(), step).await?;
        if cannot {
            return Err(Error::Type(0).into());
        }
        Ok((Self::decoded(before.as_deref())?, Self::decoded(after.as_deref())?))
    }
}

/// A [`Guarded`] whose operations return when they are done.
pub struct BlockingGuarded<'c, T, F: Fabric, C: Clock, P: Protocol>(Guarded<'c, T, F, C, P>);

impl<T: Serialize + DeserializeOwned, F: Fabric, C: Clock, P: Protocol>
    BlockingGuarded<'_, T, F, C, P>
{
    /// See [`Guarded::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self) -> Result<Option<T>, ObjectError> {
        block_on(self.0.get())
    }

    /// See [`Guarded::update`].
    ///
    /// # Errors
    /// As there.
    pub fn update(&self, change: impl FnMut(Option<T>) -> T) -> Result<T, ObjectError> {
        block_on(self.0.update(change))
    }

    /// See [`Guarded::fetch_update`].
    ///
    /// # Errors
    /// As there.
    pub fn fetch_update(
        &self,
        change: impl FnMut(Option<T>) -> Option<T>,
    ) -> Result<(Option<T>, Option<T>), ObjectError> {
        block_on(self.0.fetch_update(change))
    }
}
