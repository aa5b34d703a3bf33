//! Walks the whole index, bucket by bucket, each once its cell has converged.
//!
//! First buckets that are vacant at every node cost next to nothing: one roundtrip checks as many
//! as a chain holds.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::register::Protocol;

use crate::client::gc_state::IndexWalk;
use crate::client::handle::Client;
use crate::error::Error;
use crate::index::lookup::Located;

/// The result of a step.
#[expect(clippy::large_enum_variant, reason = "buckets are what most stops are at")]
pub(crate) enum WalkStep {
    At(Located),
    /// There was nothing, or only vacant buckets.
    Nothing,
    /// There are no more.
    End,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Walks to the next bucket. Two roundtrips. The caller is [pinned](Self::pin) as long as it
    /// uses the result.
    ///
    /// # Errors
    /// If not all nodes answer, or the bucket changes all the time.
    pub(crate) async fn next_quiet(&self, tour: &mut IndexWalk) -> Result<WalkStep, Error> {
        let IndexWalk { next, walk, sparse } = tour;
        let under = match walk {
            Some(walk) => walk,
            None if *next == self.geometry.first_buckets() => return Ok(WalkStep::End),
            None if *sparse => {
                let vacant = self.index.vacant(&self.group, *next).await?;
                *next += vacant;
                *sparse = vacant == MAX_VERBS;
                return Ok(WalkStep::Nothing);
            }
            None => {
                *next += 1;
                if *next < self.geometry.first_buckets() {
                    self.expect_bucket(&self.geometry.bucket_cell(*next));
                }
                walk.insert(Box::new(self.index.walk(*next - 1)))
            }
        };
        let Some(located) = self.index.quiet_step(&self.group, under).await? else {
            *walk = None;
            return Ok(WalkStep::Nothing);
        };
        *sparse = located.view.record().is_null();
        Ok(WalkStep::At(located))
    }
}
