//! All of the index, bucket by bucket, each once its cell is quiet.
//!
//! First buckets that are vacant at every node cost next to nothing: a chain's worth of them is looked at in one roundtrip.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::register::Protocol;

use crate::client::Client;
use crate::error::Error;
use crate::index::{Located, Walk};

/// How far it has come.
#[derive(Default)]
pub(crate) struct Tour {
    /// The next of the first buckets.
    next: usize,
    /// Below the one before, if it was split.
    walk: Option<Box<Walk>>,
    /// Whether the one before was vacant: so may be those behind it.
    sparse: bool,
}

/// What a step of it came to.
#[expect(clippy::large_enum_variant, reason = "buckets are what most stops are at")]
pub(crate) enum Stop {
    At(Located),
    /// There was nothing, or only such buckets as are vacant.
    Nothing,
    /// There are no more.
    End,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Goes on to the next bucket. Two roundtrips. Whoever calls this is [here](Self::here) as long as it goes by what it
    /// was told.
    ///
    /// # Errors
    /// Not all nodes answer, or the bucket is changed all the time.
    pub(crate) async fn next_quiet(&self, tour: &mut Tour) -> Result<Stop, Error> {
        let Tour { next, walk, sparse } = tour;
        let under = match walk {
            Some(walk) => walk,
            None if *next == self.geometry.first_buckets() => return Ok(Stop::End),
            None if *sparse => {
                let vacant = self.index.vacant(&self.group, *next).await?;
                *next += vacant;
                *sparse = vacant == MAX_VERBS;
                return Ok(Stop::Nothing);
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
            return Ok(Stop::Nothing);
        };
        *sparse = located.view.record().is_null();
        Ok(Stop::At(located))
    }
}
