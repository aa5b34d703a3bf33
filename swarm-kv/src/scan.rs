//! Going over the whole store: for export and for `info`.

use std::ops::ControlFlow;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::{Check, Found, Protocol, Register, read_key};

use crate::bucket::Content;
use crate::client::Client;
use crate::error::Error;

/// What a pool holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Usage {
    /// Bytes of each node's memory that are not free.
    pub used_bytes: u64,
    /// Keys.
    pub keys: u64,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Calls `each` with every key and its value until it breaks off.
    ///
    /// Each key that is there all the while is met once; one that comes or goes meanwhile may be
    /// met or not. Three roundtrips a key, one a bucket.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn for_each(
        &self,
        mut each: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        self.walk(async |register, value| {
            let key = read_key(&self.group, register).await?;
            Ok(each(&key, value))
        })
        .await
    }

    /// What the pool holds. Counts keys one by one: a roundtrip for each.
    ///
    /// # Errors
    /// Too few memory nodes that answer.
    pub async fn usage(&self) -> Result<Usage, Error> {
        let used_bytes = self.heap.used(&self.group).await?;
        let mut keys = 0;
        self.walk(async |_, _| {
            keys += 1;
            Ok(ControlFlow::Continue(()))
        })
        .await?;
        Ok(Usage { used_bytes, keys })
    }

    /// Calls `each` with the register of every key and its value until it breaks off.
    async fn walk(
        &self,
        mut each: impl AsyncFnMut(&Register, &[u8]) -> Result<ControlFlow<()>, Error>,
    ) -> Result<(), Error> {
        for index in 0..self.geometry.first_buckets() {
            let mut walk = self.index.walk(index);
            while let Some(located) = self.index.step(&self.group, &mut walk).await? {
                let Content::Entries { entries, .. } = &located.bucket.content else { continue };
                for entry in entries {
                    let Some(mut register) = entry.register(&self.geometry) else { continue };
                    let _here = self.here();
                    let found = P::read(&self.group, &mut register, Check::Identity).await?;
                    let Found::Value(value) = found else { continue };
                    if each(&register, &value).await?.is_break() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}
