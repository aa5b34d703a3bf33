//! How a client waits for completions: it looks again and again, then lets others have the processor
//! meanwhile, then sleeps.
//!
//! The invariant: no chain is under way for ever. The device sees to that by its retries, and there is
//! a second line behind it. Soft-RoCE at times forgets a work request that waits for an earlier one (a
//! fence, or too many packets under way) when that one ends at the very moment; whatever is posted next
//! makes it look again. So a node that lets a client wait for long is sent one READ more, and counts
//! as lost if nothing comes of that either.

use std::thread;
use std::time::{Duration, Instant};

use swarm_core::fabric::{Fabric, Verb};
use swarm_core::node::{Address, NodeId};

use super::RdmaFabric;
use crate::options::ConnectOptions;

/// How long posting waits for room. Chains under way end sooner, one way or the other.
const ROOM: Duration = Duration::from_secs(1);
/// Empty looks at the completion queue before each further one yields the processor.
pub(super) const SPINS: u32 = 64;
/// Empty looks before each further one sleeps until a completion.
const PATIENT: u32 = 4000;
/// How long such a sleep is, at most: whoever polls has clocks to look at.
const NAP: Duration = Duration::from_millis(1);
/// After so long without a completion a node is sent one READ more.
const LONG: Duration = Duration::from_millis(20);
/// What a device may need beyond its retries.
const SLACK: Duration = Duration::from_secs(1);

/// After so long without a completion a node counts as lost: its device should have said so. A device
/// may take four times the time that it was told for each try.
pub(super) fn longest(options: &ConnectOptions) -> Duration {
    let tries = u32::from(options.retries) + 1;
    Duration::from_nanos(4096 << options.ack_timeout) * 4 * tries + SLACK
}

impl RdmaFabric {
    /// Something came.
    #[inline]
    pub(crate) fn busy(&self) {
        self.idle.set(0);
    }

    /// Nothing came: lets others have the processor, and sleeps once it has been quiet for long.
    #[inline]
    pub(crate) fn idle(&self) {
        let idle = self.idle.get().saturating_add(1);
        self.idle.set(idle);
        if idle < self.spins {
            std::hint::spin_loop();
        } else if idle < PATIENT {
            if idle == self.spins {
                // There is time now for what was left for later.
                self.flush();
            }
            thread::yield_now();
        } else {
            self.nap();
        }
    }

    #[cold]
    fn nap(&self) {
        self.watch();
        // What came before the event was asked for brings none, so it is looked for once more.
        if self.queue.arm().is_ok() && !self.progress() {
            self.count(|counters| counters.sleeps += 1);
            // Without the event, it is a nap all the same.
            let _ = self.queue.sleep(NAP);
        }
    }

    /// Sees to nodes of which nothing came for long.
    fn watch(&self) {
        let now = Instant::now();
        for (number, link) in self.links.iter().enumerate() {
            let Some(quiet) = link.quiet(now) else { continue };
            if quiet >= self.longest {
                self.lose(number, "what was posted there does not end");
            } else if quiet >= LONG && link.room() > 0 && link.nudge() {
                self.count(|counters| counters.nudges += 1);
                let first = Verb::Read { at: Address(0), words: 1 };
                drop(self.post(NodeId(number as u8), &[first]));
            }
        }
    }

    /// Waits until `ready` yields something; not for ever.
    #[cold]
    pub(super) fn wait_for<T>(&self, ready: impl Fn() -> Option<T>) -> Option<T> {
        self.count(|counters| counters.full += 1);
        let deadline = Instant::now() + ROOM;
        loop {
            self.progress();
            if let Some(found) = ready() {
                return Some(found);
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::yield_now();
        }
    }
}
