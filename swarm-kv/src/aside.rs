//! Collecting garbage aside, before memory runs out.
//!
//! Once memory is scarce and a client has come to more of it, each of its operations that writes takes
//! a short step of a [collection](crate::collect) when it is over, and then resets a little of what was
//! found, until that is done. Otherwise one operation would have to do all of it at once.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::register::Protocol;

use crate::client::Client;
use crate::collect::Progress;

/// Buckets that a step goes over, or objects of which it READs what they hold: as many as one chain.
const SHORT_STEP: usize = MAX_VERBS;
/// Batches of objects that a step resets.
const BATCHES: usize = 4;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// An operation is over, and garbage is worth a look.
    #[cold]
    pub(crate) async fn collect_aside(&self) {
        // Somebody else's search for memory is not to be waited for.
        let Some(_alone) = self.searching.try_enter() else { return };
        if self.heap.is_swept() {
            // Without an answer of every node there is nothing to be had.
            let back = self.memory_back(BATCHES).await;
            if back.is_err() || !self.heap.recycler.is_to_reset() {
                self.heap.is_collected();
            }
            return;
        }
        match self.collect_step(SHORT_STEP).await {
            Ok(Progress::Done { .. }) => self.heap.sweep_is_over(),
            Ok(Progress::Going | Progress::Waiting) => {}
            Err(_) => self.heap.is_collected(),
        }
    }
}
