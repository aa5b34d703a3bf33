//! Deleting a key.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::{Client, TRIES};
use crate::error::Error;
use crate::locate::{Told, lists};

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Deletes the key, whose turn this write has.
    ///
    /// Only a register that the index named within this operation is stamped. It is dead in the
    /// end, so that the key was absent when the index named it, or when it died since: that is the
    /// delete's moment. To stamp first and look at the index beside it would save a roundtrip and
    /// is wrong: found replaced, the register may have died of this very stamp, and to go on to its
    /// successor deletes twice.
    pub(crate) async fn delete_now(&self, hash: u64, key: &[u8]) -> Result<(), Error> {
        for _ in 0..TRIES {
            let Some((mut register, told)) = self.locate(hash, key).await? else { return Ok(()) };
            let fresh = told != Told::Remembered;
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
                Ok(()) => return Ok(()),
                Err(swarm_core::error::Error::Gone) => {}
                // It is dead if a delete is the last that its successor tells of, and this one's
                // stamp is lost if not.
                Err(swarm_core::error::Error::Moved) => {
                    let origin = self.successors_origin(hash, key, &register, (0, true)).await?;
                    if self.geometry.format.is_deleted(origin) {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::Contended)
    }
}
