//! A lock that many hold to read, or one to write.
//!
//! Its state is a [turnstile](crate::objects::turnstile) of so many units as there may be holders; a writer has
//! all of them.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::objects::kind::ObjectKind;
use crate::objects::lock::Lock;
use crate::objects::turnstile::MAX_HOLDERS;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the readers-writer lock of this name. There is one for each key: it need not be created.
    #[must_use]
    pub fn rw_lock(&self, name: &[u8]) -> RwLock<'_, F, C, P> {
        let kind = (ObjectKind::RwLock, MAX_HOLDERS as u32);
        let [read, write] = [1, MAX_HOLDERS as u16].map(|it| Lock::part((self, name), kind, it));
        RwLock { read, write }
    }
}

/// A lock that at most [`MAX_HOLDERS`] clients hold to read, or one to write.
///
/// The first that comes gets it first: one that comes to read waits behind a writer that waits.
pub struct RwLock<'c, F: Fabric, C: Clock, P: Protocol> {
    pub(crate) read: Lock<'c, F, C, P>,
    pub(crate) write: Lock<'c, F, C, P>,
}

impl<'c, F: Fabric, C: Clock, P: Protocol> RwLock<'c, F, C, P> {
    /// What a reader holds.
    #[must_use]
    pub fn read(&self) -> &Lock<'c, F, C, P> {
        &self.read
    }

    /// What a writer holds.
    #[must_use]
    pub fn write(&self) -> &Lock<'c, F, C, P> {
        &self.write
    }
}
