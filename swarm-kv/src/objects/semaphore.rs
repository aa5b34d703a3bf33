//! A number of permits, of which each holder has some.
//!
//! Its state is a [turnstile](crate::objects::turnstile) with a unit for each permit.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::objects::kind::ObjectKind;
use crate::objects::lock::Lock;
use crate::objects::turnstile::MAX_HOLDERS;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the semaphore of this name, of so many permits. There is one for each key: it need not be
    /// created. All users have to pass the same number.
    ///
    /// # Panics
    /// No permits, or more than [`MAX_HOLDERS`].
    #[must_use]
    pub fn semaphore(&self, name: &[u8], permits: u32) -> Semaphore<'_, F, C, P> {
        assert!((1..=MAX_HOLDERS as u32).contains(&permits), "1 to {MAX_HOLDERS} permits");
        Semaphore { client: self, name: name.into(), permits, one: self.permits(name, permits, 1) }
    }

    fn permits(&self, name: &[u8], permits: u32, weight: u16) -> Lock<'_, F, C, P> {
        Lock::part((self, name), (ObjectKind::Semaphore, permits), weight)
    }
}

/// Permits that clients hold. Those of a client that ends are free again.
///
/// The first that comes gets them first: one that wants one permit waits behind another that waits for many.
pub struct Semaphore<'c, F: Fabric, C: Clock, P: Protocol> {
    client: &'c Client<F, C, P>,
    name: Box<[u8]>,
    permits: u32,
    one: Lock<'c, F, C, P>,
}

impl<'c, F: Fabric, C: Clock, P: Protocol> Semaphore<'c, F, C, P> {
    /// One permit, to acquire. Its operations end in
    /// [`ObjectError::OtherNumber`](crate::objects::ObjectError::OtherNumber) if the semaphore was made with
    /// another number of permits.
    #[must_use]
    pub fn one(&self) -> &Lock<'c, F, C, P> {
        &self.one
    }

    /// So many permits, to acquire all at a time.
    ///
    /// # Panics
    /// None, or more than there are.
    #[must_use]
    pub fn many(&self, permits: u32) -> Lock<'c, F, C, P> {
        assert!((1..=self.permits).contains(&permits), "1 to {} permits", self.permits);
        self.client.permits(&self.name, self.permits, permits as u16)
    }
}
