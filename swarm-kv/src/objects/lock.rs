//! A lock that a crash cannot wedge: one holder at a time, and a queue in order of arrival.
//!
//! Its state is a [turnstile](crate::objects::turnstile) of one unit.

use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::waiting::Prepared;
use crate::objects::error::ObjectError;
use crate::objects::guard::Guard;
use crate::objects::kind::ObjectKind;
use crate::objects::turnstile::QueueView;
use crate::objects::waiting::Queued;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the lock of this name. There is one for each key: it need not be created, and costs nothing
    /// before it is used.
    #[must_use]
    pub fn lock(&self, name: &[u8]) -> Lock<'_, F, C, P> {
        Lock::part((self, name), (ObjectKind::Lock, 1), 1)
    }
}

/// A lock that one client at a time holds, of whatever process.
///
/// The first that comes gets it first, up to [`MAX_WAITERS`](crate::objects::MAX_WAITERS) that wait; more of
/// them try again until there is room. A holder that ends, however that comes about, is followed by the next
/// one (O1); one that is stopped keeps the lock until it goes on, or is [evicted](Self::evict).
///
/// A client that acquires a lock that it holds itself waits like any other: for another task of its own, or for ever.
///
/// ```
/// # use swarm_kv::shm::{self, CreateOptions, Pool};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("pool");
/// # Pool::create(&path, &CreateOptions { nodes: 3, capacity: 16 << 20, ..CreateOptions::default() })?;
/// let client = shm::open_path(&path)?;
/// let store = client.blocking();
/// let lock = store.lock(b"report");
/// let guard = lock.acquire()?;
/// println!("token {}", guard.token());
/// guard.release()?;
/// # Ok(())
/// # }
/// ```
///
/// The parts of an [`RwLock`](crate::objects::RwLock) and of a [`Semaphore`](crate::objects::Semaphore) are
/// used in the same way.
///
/// Roundtrips: one to acquire it and one to release it, if this client used it last.
pub struct Lock<'c, F: Fabric, C: Clock, P: Protocol> {
    queued: Queued<'c, F, C, P>,
    /// The part of the object's units that its holder has.
    weight: u16,
}

impl<'c, F: Fabric, C: Clock, P: Protocol> Lock<'c, F, C, P> {
    /// Returns a part of an object.
    pub(crate) fn part(
        (client, name): (&'c Client<F, C, P>, &[u8]),
        (kind, units): (ObjectKind, u32),
        weight: u16,
    ) -> Self {
        Self { queued: Queued { client, name: name.into(), kind, units }, weight }
    }
    /// Waits until this client holds the lock.
    ///
    /// Between two looks it lets time pass by its client's clock, and is polled meanwhile: a thread that does
    /// nothing else is busy. Where the runtime has timers, [`acquire_paced`](Self::acquire_paced) leaves that
    /// to them.
    ///
    /// # Cancel safety
    /// Dropped before it ends, it gives up its place, as [`Guard`] says of its drop.
    ///
    /// # Errors
    /// A name that is no key; [`ObjectError::OtherKind`]; a pool without keyed cells, or a full one; too few memory
    /// nodes that answer.
    pub async fn acquire(&self) -> Result<Guard<'_, F, C, P>, ObjectError> {
        let guard = self.acquire_by(None, self.client().yields()).await?;
        Ok(guard.expect("it waits for as long as it takes"))
    }

    /// Acquires the lock if it is free, or its holder has ended, and nobody waits.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<Guard<'_, F, C, P>>, ObjectError> {
        self.acquire_by(Some(Duration::ZERO), async |_, _| {}).await
    }

    /// Waits for the lock for so long at most, by the client's clock. `None` if it does not get it.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(
        &self,
        limit: Duration,
    ) -> Result<Option<Guard<'_, F, C, P>>, ObjectError> {
        self.acquire_by(Some(limit), self.client().yields()).await
    }

    /// The same, where `sleep` lets the time between two looks pass: at most 5 ms. It may take longer, and then
    /// so does the handing over.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_paced(
        &self,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Duration),
    ) -> Result<Option<Guard<'_, F, C, P>>, ObjectError> {
        self.acquire_by(limit, async |_, pause| sleep(pause).await).await
    }

    pub(crate) fn client(&self) -> &Client<F, C, P> {
        self.queued.client
    }

    pub(crate) async fn acquire_by(
        &self,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Prepared, Duration),
    ) -> Result<Option<Guard<'_, F, C, P>>, ObjectError> {
        self.queued.enter(self.weight, limit, sleep).await
    }

    /// Takes the lock away from the holder with this token, which need not have ended, and lets in the next one.
    /// Returns false, with no effect, if that holds it no more.
    ///
    /// The holder learns of it when it releases the lock, or [asks](Guard::is_held). Until then it acts as if
    /// it held it: what it does has to be fenced by its token.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn evict(&self, token: u64) -> Result<bool, ObjectError> {
        self.queued.evict(token).await
    }

    /// Returns who holds the lock and who waits. Clients that have ended may be among them until another one comes by.
    ///
    /// # Errors
    /// [`ObjectError::OtherKind`]; too few memory nodes that answer.
    pub async fn view(&self) -> Result<QueueView, ObjectError> {
        self.queued.view().await
    }
}
