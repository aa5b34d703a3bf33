//! Put: sets a key's value, whether or not the key is there.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::{Client, TRIES};
use crate::error::Error;
use crate::ops::update::UpdateRest;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Continues a put whose update must wait, posted nothing, or found no key. Its future is
    /// large.
    pub(crate) async fn put_on<'c>(
        &'c self,
        key: &[u8],
        value: &[u8],
        rest: UpdateRest<'c, '_, F, C, P>,
    ) -> Result<(), Error> {
        let tally = rest.tally;
        let put = self.in_own_process(async {
            if !rest.is_begun() {
                // What follows may wait for memory, and this operation's pin must not block its
                // reclamation.
                drop(rest);
            } else if self.write_on(key, value, rest).await? {
                return Ok(());
            }
            self.put_anew(key, value).await
        });
        let (outcome, tally) = self.group.fabric().track_on(tally, put).await;
        self.count(|counters| &mut counters.put, tally);
        outcome
    }

    async fn put_anew(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let put = async || {
            let hash = self.check(key, value)?;
            let _lock = self.lock_key(hash).await?;
            for _ in 0..TRIES {
                if self.update_now(hash, key, value).await?
                    || self.insert_now(hash, key, value).await?
                {
                    return Ok(());
                }
            }
            Err(Error::Contended)
        };
        self.with_memory(put).await
    }
}
