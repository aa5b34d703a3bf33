//! A number that is counted down to nothing, and clients that wait for that.
//!
//! ```text
//! byte 0   mark, kind, version
//!      8   what is left to count
//! ```
//!
//! **Invariant:** each count that is acknowledged was made once (C6), and a latch that is open stays open.

use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::waiting::Prepared;
use crate::error::Error;
use crate::objects::cell::Named;
use crate::objects::error::ObjectError;
use crate::objects::kind::ObjectKind;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the latch of this name, which opens when it was counted down so often. There is one for each
    /// key: it need not be created, and the client that counts first makes it with its number.
    #[must_use]
    pub fn latch(&self, name: &[u8], count: u64) -> Latch<'_, F, C, P> {
        Latch { client: self, name: name.into(), count }
    }
}

/// A number that is counted down, and opens at 0.
///
/// Counts are of no client: one that ends before it has counted has to be made up for, or is waited for in vain.
pub struct Latch<'c, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    name: Box<[u8]>,
    count: u64,
}

impl<F: Fabric, C: Clock, P: Protocol> Latch<'_, F, C, P> {
    fn named(&self) -> Named<'_> {
        Named { name: &self.name, kind: ObjectKind::Latch, room: size_of::<u64>() }
    }

    fn left(&self, state: Option<&[u8]>) -> Result<u64, ObjectError> {
        let Some(state) = state else { return Ok(self.count) };
        let word = state.first_chunk().ok_or(Error::DAMAGED)?;
        Ok(u64::from_le_bytes(*word))
    }

    /// Counts it down by so much, to 0 at most. Returns what is left.
    ///
    /// A change takes one roundtrip if this client counted last, and up to five after another one.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may have counted or not.
    ///
    /// # Errors
    /// [`ObjectError::OtherKind`]; a pool without keyed cells, or a full one; too few memory nodes that answer.
    /// After some of them it may have counted ([`Error::may_have_taken_effect`]).
    pub async fn count_down(&self, by: u64) -> Result<u64, ObjectError> {
        let step = |state: Option<&[u8]>| {
            let left = self.left(state).ok()?;
            Some(left.saturating_sub(by).to_le_bytes().to_vec())
        };
        let (_, after) = self.client.change_object(self.named(), step).await?;
        self.left(after.as_deref())
    }

    /// Returns what is left to count.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down).
    pub async fn left_to_count(&self) -> Result<u64, ObjectError> {
        self.left(self.client.read_object(self.named()).await?.as_deref())
    }

    /// Waits until it is open, as [`Lock::acquire`](crate::objects::Lock::acquire) waits.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down).
    pub async fn wait(&self) -> Result<(), ObjectError> {
        self.wait_by(None, self.client.yields()).await.map(drop)
    }

    /// Waits until it is open, for so long at most, and returns whether it is. `sleep` lets the time between
    /// two looks pass: at most 5 ms.
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down).
    pub async fn wait_paced(
        &self,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Duration),
    ) -> Result<bool, ObjectError> {
        self.wait_by(limit, async |_, pause| sleep(pause).await).await
    }

    pub(crate) fn client(&self) -> &Client<F, C, P> {
        self.client
    }

    pub(crate) async fn wait_by(
        &self,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Prepared, Duration),
    ) -> Result<bool, ObjectError> {
        let look = async || Ok((self.left_to_count().await? == 0).then_some(()));
        Ok(self.client.looks_until(&self.name, limit, sleep, look).await?.is_some())
    }
}
