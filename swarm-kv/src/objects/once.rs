//! Something that is done once, by whichever client, whatever clients die in the middle of it.
//!
//! Its state is a [turnstile](crate::objects::turnstile) of one unit, and of none when it is done.

use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::waiting::Prepared;
use crate::objects::error::ObjectError;
use crate::objects::guard::Guard;
use crate::objects::kind::ObjectKind;
use crate::objects::waiting::Queued;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns what is to be done once under this name. There is one for each key: it need not be created.
    #[must_use]
    pub fn once(&self, name: &[u8]) -> Once<'_, F, C, P> {
        Once(Queued { client: self, name: name.into(), kind: ObjectKind::Once, units: 1 })
    }
}

/// Something that is done once. One client at a time does it; if it ends, is evicted or gives up before it is
/// done, the next one begins.
pub struct Once<'c, F: Fabric, C: Clock, P: Protocol>(Queued<'c, F, C, P>);

impl<F: Fabric, C: Clock, P: Protocol> Once<'_, F, C, P> {
    /// Waits until it is done, or this client is the one to do it. `None`: it is done.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`](crate::objects::Lock::acquire).
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::objects::Lock::acquire).
    pub async fn begin(&self) -> Result<Option<Doing<'_, F, C, P>>, ObjectError> {
        self.begin_by(self.client().yields()).await
    }

    /// The same, where `sleep` lets the time between two looks pass: at most 5 ms.
    ///
    /// # Cancel safety
    /// As [`Lock::acquire`](crate::objects::Lock::acquire).
    ///
    /// # Errors
    /// As [`Lock::acquire`](crate::objects::Lock::acquire).
    pub async fn begin_paced(
        &self,
        sleep: impl AsyncFn(Duration),
    ) -> Result<Option<Doing<'_, F, C, P>>, ObjectError> {
        self.begin_by(async |_, pause| sleep(pause).await).await
    }

    pub(crate) fn client(&self) -> &Client<F, C, P> {
        self.0.client
    }

    pub(crate) async fn begin_by(
        &self,
        sleep: impl AsyncFn(Prepared, Duration),
    ) -> Result<Option<Doing<'_, F, C, P>>, ObjectError> {
        Ok(self.0.enter(1, None, sleep).await?.map(Doing))
    }
}

/// What the client has that is to do it. Dropped before it is [done](Self::done), the next one begins, as
/// [`Guard`] says of its drop.
#[must_use = "dropping it lets another one begin"]
pub struct Doing<'l, F: Fabric, C: Clock, P: Protocol>(Guard<'l, F, C, P>);

impl<F: Fabric, C: Clock, P: Protocol> Doing<'_, F, C, P> {
    /// See [`Guard::token`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.token()
    }

    /// Says that it is done, for good.
    ///
    /// One roundtrip, or a few if others wait.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may be done or not; if not, the next one begins.
    ///
    /// # Errors
    /// As [`Guard::release`]. After [`ObjectError::TakenAway`] another one may have begun it.
    pub async fn done(self) -> Result<(), ObjectError> {
        self.0.close().await
    }

    /// Lets the next one begin.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it gives up as if it had been dropped.
    ///
    /// # Errors
    /// As [`Guard::release`].
    pub async fn give_up(self) -> Result<(), ObjectError> {
        self.0.release().await
    }
}
