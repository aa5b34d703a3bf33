//! What a holder has.

use std::fmt;

use crate::objects::waiting::Place;
use crate::objects::{ObjectError, Seat};
use crate::store::objects::place::StorePlace;
use crate::store::whole::{Lent, Movable, on_client};

/// A part of an object that a handle's user holds until it [releases](Self::release) it, is evicted, or its process ends.
///
/// It keeps the handle's clients, and uses none of them. It may go to another thread.
///
/// # Drop
/// Dropping it releases it: when the drop returns, if one of the handle's clients is free; else another thread waits for one.
/// Dropped in a forked child it does nothing: the parent holds it.
#[must_use = "dropping it releases what is held"]
pub struct StoreGuard<F: Movable> {
    pub(super) place: StorePlace<F>,
    pub(super) token: u64,
    pub(super) unsettled: bool,
}

impl<F: Movable> fmt::Debug for StoreGuard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreGuard").field("token", &self.token).finish_non_exhaustive()
    }
}

impl<F: Movable> StoreGuard<F> {
    /// See [`Guard::token`](crate::objects::Guard::token).
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// See [`Guard::seat`](crate::objects::Guard::seat).
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.place.seat
    }

    /// See [`Guard::is_unsettled`](crate::objects::Guard::is_unsettled).
    #[must_use]
    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// See [`Guard::is_held`](crate::objects::Guard::is_held).
    ///
    /// # Errors
    /// As there.
    pub async fn is_held(&self) -> Result<bool, ObjectError> {
        on_client(&self.place.store.0.clients, self, async |client: &Lent<F>, guard| {
            let queue = guard.place.object.queue(client);
            Place::of_handle(&queue, guard.place.seat).holds(guard.token).await
        })
        .await
    }

    /// See [`Guard::settle`](crate::objects::Guard::settle).
    ///
    /// # Cancel safety
    /// As there.
    ///
    /// # Errors
    /// As there.
    pub async fn settle<K: AsRef<[u8]> + Sync>(&mut self, keys: &[K]) -> Result<(), ObjectError> {
        let guard = &*self;
        on_client(
            &guard.place.store.0.clients,
            (guard, keys),
            async |client: &Lent<F>, (guard, keys)| {
                for key in keys {
                    client.settle(key.as_ref()).await?;
                }
                let queue = guard.place.object.queue(client);
                Place::of_handle(&queue, guard.place.seat).settles(guard.token).await
            },
        )
        .await?;
        self.unsettled = false;
        Ok(())
    }

    /// Releases it, and lets in the next one.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it is released as if the guard had been dropped.
    ///
    /// # Errors
    /// As [`Guard::release`](crate::objects::Guard::release). [`Error::Forked`](crate::Error::Forked) in a child: the parent holds it.
    pub async fn release(self) -> Result<(), ObjectError> {
        self.ends(false).await
    }

    /// Ends it, and with `closes` all other places, and nobody gets one any more.
    pub(super) async fn ends(mut self, closes: bool) -> Result<(), ObjectError> {
        self.place.store.gives_up_places().await?;
        let guard = &self;
        let left = on_client(
            &self.place.store.0.clients,
            (guard, closes),
            async |client: &Lent<F>, (guard, closes)| {
                let queue = guard.place.object.queue(client);
                let mut place = Place::of_handle(&queue, guard.place.seat);
                if closes {
                    place.closes(guard.token).await
                } else {
                    place.leaves(guard.token).await
                }
            },
        )
        .await;
        // What failed otherwise is tried again.
        if !matches!(left, Err(ObjectError::Store(_))) {
            self.place.is_left();
        }
        left
    }
}
