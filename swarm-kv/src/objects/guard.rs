//! What a holder has.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::objects::error::ObjectError;
use crate::objects::seat::Seat;
use crate::objects::waiting::Place;

/// A part of an object that its client holds until it [releases](Self::release) it, is evicted, or ends.
///
/// # Drop
/// Dropping it releases it. On shared memory that is done when the drop returns, in one roundtrip, if the nodes
/// answer. Behind a network nothing can be waited for there: the release is only noted, and made good by the
/// next operation of this client on any object, or by the client's end. So [release](Self::release) what you
/// hold there. Dropped in a forked child it does nothing: the parent holds it.
#[must_use = "dropping it releases what is held"]
pub struct Guard<'l, F: Fabric, C: Clock, P: Protocol> {
    place: Place<'l, F, C, P>,
    token: u64,
    unsettled: bool,
}

impl<'l, F: Fabric, C: Clock, P: Protocol> Guard<'l, F, C, P> {
    pub(crate) fn new(place: Place<'l, F, C, P>, token: u64, unsettled: bool) -> Self {
        Self { place, token, unsettled }
    }

    /// The token: larger than those of all holders before (O2). Let what the object guards refuse a client that comes
    /// with a smaller one than it has seen.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whose place it is.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.place.seat
    }

    /// Whether it still holds the object. What was true may be so no more when this returns: only the token tells
    /// others apart.
    ///
    /// One roundtrip.
    ///
    /// # Errors
    /// The key holds something else; too few memory nodes that answer.
    pub async fn is_held(&self) -> Result<bool, ObjectError> {
        self.place.holds(self.token).await
    }

    /// Whether a holder before this one was taken out, as it ended or was evicted, and nobody has
    /// [settled](Self::settle) what it did. What the object guards may then be half done.
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Settles these keys, which the object guards: what holders that have ended wrote under them took effect
    /// before this, or never will. Without it such a write may surface at any later time, over newer ones. Then
    /// notes that the object is settled.
    ///
    /// To call it where [`is_unsettled`](Self::is_unsettled) says so is enough; a holder that was evicted and
    /// lives on may write all the same. Seven roundtrips for each key in a register, three for one in a cell, six for one
    /// that is not there.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it is unsettled still, and the next holder finds it so.
    ///
    /// # Errors
    /// [`ObjectError::TakenAway`]: it is held no more. A key out of bounds; a full pool; too few memory nodes
    /// that answer.
    pub async fn settle(&mut self, keys: &[impl AsRef<[u8]>]) -> Result<(), ObjectError> {
        for key in keys {
            self.place.object.client.settle(key.as_ref()).await?;
        }
        self.place.settles(self.token).await?;
        self.unsettled = false;
        Ok(())
    }

    /// Releases it, and lets in the next one.
    ///
    /// One roundtrip if this client changed the object last, up to five if others have entered the queue since.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it is released as if the guard had been dropped.
    ///
    /// # Errors
    /// [`ObjectError::TakenAway`]: it was held no more, and nothing was changed. The key holds something else.
    /// A full pool, or too few memory nodes that answer: it is tried again as if the guard had been dropped.
    pub async fn release(mut self) -> Result<(), ObjectError> {
        self.place.leaves(self.token).await
    }

    /// Releases it, and nobody holds it any more.
    pub(crate) async fn close(mut self) -> Result<(), ObjectError> {
        self.place.closes(self.token).await
    }
}
