//! Members that wait for each other.

use std::future::Future;
use std::time::Duration;

use crate::objects::{BarrierView, ObjectError, ObjectKind, Seat};
use crate::pools::shm::Plain;
use crate::store::Store;
use crate::store::objects::pause::Pause;
use crate::store::objects::place::{Named, StorePlace};
use crate::store::whole::{Lent, Movable, on_client};

impl<F: Movable> Store<F> {
    /// Returns the barrier of this name, as [`Client::barrier`](crate::Client::barrier) does.
    #[must_use]
    pub fn barrier(&self, name: &[u8], parties: u32) -> StoreBarrier<F> {
        StoreBarrier { store: self.clone(), object: Named::new(name, ObjectKind::Barrier, parties) }
    }
}

/// A [`Barrier`](crate::objects::Barrier) of a handle.
pub struct StoreBarrier<F: Movable = Plain> {
    store: Store<F>,
    object: Named,
}

impl<F: Movable> StoreBarrier<F> {
    /// See [`Barrier::join`](crate::objects::Barrier::join).
    ///
    /// # Cancel safety
    /// Dropped before it ends, it leaves again, as [`StoreMember`] says of its drop.
    ///
    /// # Errors
    /// As there.
    pub async fn join(&self) -> Result<StoreMember<F>, ObjectError> {
        let (seat, hash) = self.store.begins(&self.object.name).await?;
        let mut place = StorePlace::new(&self.store, &self.object, seat);
        let lent = (&self.object, seat);
        let joined =
            on_client(&self.store.0.clients, lent, async |client: &Lent<F>, (object, seat)| {
                client.barrier(&object.name, object.number).joins(seat).await
            })
            .await;
        if matches!(joined, Err(ObjectError::Crowded)) {
            place.is_left();
        }
        Ok(StoreMember { place, hash, generation: joined? })
    }

    /// See [`Barrier::evict`](crate::objects::Barrier::evict).
    ///
    /// # Errors
    /// As there.
    pub async fn evict(&self, seat: Seat) -> Result<bool, ObjectError> {
        evicts(&self.store, &self.object, seat).await
    }

    /// See [`Barrier::view`](crate::objects::Barrier::view).
    ///
    /// # Errors
    /// As there.
    pub async fn view(&self) -> Result<BarrierView, ObjectError> {
        on_client(&self.store.0.clients, &self.object, async |client: &Lent<F>, object| {
            client.barrier(&object.name, object.number).view().await
        })
        .await
    }
}

fn evicts<'s, F: Movable>(
    store: &'s Store<F>,
    object: &'s Named,
    seat: Seat,
) -> impl Future<Output = Result<bool, ObjectError>> + Send + 's {
    on_client(&store.0.clients, (object, seat), async |client: &Lent<F>, (object, seat)| {
        client.barrier(&object.name, object.number).evict(seat).await
    })
}

/// A member of a barrier. Dropped, it leaves, as [`StoreGuard`](crate::store::StoreGuard) says of its drop.
#[must_use = "dropping it leaves the barrier"]
pub struct StoreMember<F: Movable = Plain> {
    place: StorePlace<F>,
    hash: u64,
    /// The one that it waits in next.
    generation: u64,
}

impl<F: Movable> StoreMember<F> {
    /// See [`Member::seat`](crate::objects::Member::seat).
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.place.seat
    }

    /// Arrives, and waits until all members have, for so long at most, if there is a limit. `None` if that was too short: it has
    /// arrived, and the next call goes on. `sleep` lets the time between two looks pass, as of
    /// [`StoreLock::acquire_paced`](crate::store::StoreLock::acquire_paced).
    ///
    /// # Cancel safety
    /// Dropped before it ends, it may have arrived or not; the next call goes on.
    ///
    /// # Errors
    /// As [`Member::wait`](crate::objects::Member::wait).
    pub async fn wait_paced<S: Future<Output = ()>>(
        &mut self,
        limit: Option<Duration>,
        sleep: impl Fn(Pause) -> S,
    ) -> Result<Option<BarrierView>, ObjectError> {
        let (place, generation) = (&self.place, self.generation);
        let look = || {
            let lent = (place, generation);
            let clients = &place.store.0.clients;
            on_client(clients, lent, async |client: &Lent<F>, (place, generation)| {
                let Named { name, number, .. } = &place.object;
                client.barrier(name, *number).meets(place.seat, generation).await
            })
        };
        let met = place.store.looks_until(self.hash, limit, sleep, look).await;
        match &met {
            Ok(Some(view)) => self.generation = view.generation,
            Err(ObjectError::Evicted) => self.place.is_left(),
            _ => {}
        }
        met
    }

    /// See [`Member::leave`](crate::objects::Member::leave).
    ///
    /// # Cancel safety
    /// Dropped before it ends, it leaves as if it had been dropped.
    ///
    /// # Errors
    /// As there.
    pub async fn leave(mut self) -> Result<(), ObjectError> {
        let was_in = evicts(&self.place.store, &self.place.object, self.place.seat).await?;
        self.place.is_left();
        if was_in { Ok(()) } else { Err(ObjectError::Evicted) }
    }
}
