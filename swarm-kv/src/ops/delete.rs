//! Delete.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::ops::locate::{LocatedBy, Place, lists};

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Deletes the key, which the caller has locked.
    ///
    /// S3: stamps only a register that the index named within this operation. That register ends
    /// deleted. So the key was absent when the index named it, or when the register was deleted
    /// since: that is when the delete takes effect. To stamp first, and READ the bucket in the same
    /// roundtrip, would save one and is wrong: a register that is then found replaced may have been
    /// deleted by this very stamp, and to go on to its successor would delete twice.
    pub(crate) async fn delete_now(&self, hash: u64, key: &[u8]) -> Result<(), Error> {
        for _ in 0..TRIES {
            let (mut register, located_by) = match self.locate(hash, key).await? {
                Some(Place::Register(register, located_by)) => (register, located_by),
                Some(Place::Cell(cell)) => {
                    if Box::pin(self.write_cell(hash, key, cell, None)).await? {
                        return Ok(());
                    }
                    continue;
                }
                None => return Ok(()),
            };
            let fresh = located_by != LocatedBy::Remembered;
            if !fresh {
                let located = self.index.fresh(&self.group, hash).await?;
                if !lists(&located.bucket, &register) {
                    self.locations.remove(hash, key);
                    continue;
                }
            }
            let deleted = P::delete(&self.group, &mut register).await;
            self.locations.remove(hash, key);
            match deleted {
                Ok(()) => {
                    self.wake(hash);
                    return Ok(());
                }
                Err(swarm_core::error::Error::Gone) => {}
                // V4: the delete took effect if its successor's origin is a delete's stamp.
                // Otherwise this stamp is lost.
                Err(swarm_core::error::Error::Moved) => {
                    let origin = self.successors_origin(hash, key, &register, (0, true)).await?;
                    if self.geometry.format.is_deleted(origin) {
                        self.wake(hash);
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended)
    }
}
