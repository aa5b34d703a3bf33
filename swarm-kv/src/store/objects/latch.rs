//! A count to wait for.

use std::future::Future;
use std::time::Duration;

use crate::objects::ObjectError;
use crate::pools::shm::Plain;
use crate::store::Store;
use crate::store::objects::pause::Pause;
use crate::store::whole::{Lent, Movable, on_client};

impl<F: Movable> Store<F> {
    /// Returns the latch of this name, as [`Client::latch`](crate::Client::latch) does.
    #[must_use]
    pub fn latch(&self, name: &[u8], count: u64) -> StoreLatch<F> {
        StoreLatch { store: self.clone(), name: name.into(), count }
    }
}

/// A [`Latch`](crate::objects::Latch) of a handle.
pub struct StoreLatch<F: Movable = Plain> {
    store: Store<F>,
    name: Box<[u8]>,
    count: u64,
}

impl<F: Movable> StoreLatch<F> {
    /// See [`Latch::count_down`](crate::objects::Latch::count_down).
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may have counted or not.
    ///
    /// # Errors
    /// As there.
    pub async fn count_down(&self, by: u64) -> Result<u64, ObjectError> {
        on_client(&self.store.0.clients, (self, by), async |client: &Lent<F>, (latch, by)| {
            client.latch(&latch.name, latch.count).count_down(by).await
        })
        .await
    }

    /// See [`Latch::left_to_count`](crate::objects::Latch::left_to_count).
    ///
    /// # Errors
    /// As there.
    pub async fn left_to_count(&self) -> Result<u64, ObjectError> {
        on_client(&self.store.0.clients, self, async |client: &Lent<F>, latch| {
            client.latch(&latch.name, latch.count).left_to_count().await
        })
        .await
    }

    /// Waits until it is open, for so long at most, if there is a limit, and returns whether it is. `sleep` lets the time between two
    /// looks pass, as of [`StoreLock::acquire_paced`](crate::store::StoreLock::acquire_paced).
    ///
    /// # Errors
    /// As [`count_down`](Self::count_down).
    pub async fn wait_paced<S: Future<Output = ()>>(
        &self,
        limit: Option<Duration>,
        sleep: impl Fn(Pause) -> S,
    ) -> Result<bool, ObjectError> {
        self.store.gives_up_places().await?;
        let hash = self.store.hash(&self.name)?;
        let look = || async { Ok((self.left_to_count().await? == 0).then_some(())) };
        Ok(self.store.looks_until(hash, limit, sleep, look).await?.is_some())
    }
}
