//! How a client waits for completions: it polls, then yields the processor between polls, then
//! sleeps.
//!
//! **Invariant:** every chain completes or its node counts as lost. The device's retries ensure
//! this; a probe backs them up. Soft-RoCE can lose the wake-up of a work request that waits for an
//! earlier one (a fence, or too many packets in flight) when that one ends at the same moment. The
//! next posted work request wakes it. So the client posts one probe READ to a node that is quiet
//! for long, and counts the node as lost if nothing completes after that either.

use std::thread;
use std::time::{Duration, Instant};

use swarm_core::fabric::{Fabric, Verb};
use swarm_core::node::{Address, NodeId};

use super::RdmaFabric;
use crate::options::ConnectOptions;

/// Empty polls of the completion queue before each further one yields the processor.
pub(super) const SPINS: u32 = 64;
/// Empty polls before each further one sleeps until a completion.
const PATIENT: u32 = 4000;
/// The longest such sleep: the caller has its own deadlines to check.
const NAP: Duration = Duration::from_millis(1);
/// Time without a completion after which a node is sent one probe READ.
const LONG: Duration = Duration::from_millis(20);
/// Time that a device may need beyond its retries.
const SLACK: Duration = Duration::from_secs(1);

/// Returns the time without a completion after which a node counts as lost: the device should have
/// reported it by then. A device may take four times the configured timeout for each try.
pub(super) fn longest(options: &ConnectOptions) -> Duration {
    let tries = u32::from(options.retries) + 1;
    Duration::from_nanos(4096 << options.ack_timeout) * 4 * tries + SLACK
}

impl RdmaFabric {
    /// Resets the idle count after a completion.
    #[inline]
    pub(crate) fn busy(&self) {
        self.idle.set(0);
    }

    /// Counts an empty poll: spins, then yields the processor, then sleeps.
    #[inline]
    pub(crate) fn idle(&self) {
        let idle = self.idle.get().saturating_add(1);
        self.idle.set(idle);
        if idle < self.spins {
            std::hint::spin_loop();
        } else if idle < PATIENT {
            if idle == self.spins {
                // The client is idle now: post the deferred chains.
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
        // A completion from before `arm` raises no event, so poll once more.
        if self.queue.arm().is_ok() && !self.progress() {
            self.count(|counters| counters.sleeps += 1);
            // An error only ends the nap early.
            let _ = self.queue.sleep(NAP);
        }
    }

    /// Probes nodes that have been quiet for long, and gives up those that stay quiet.
    fn watch(&self) {
        let now = Instant::now();
        for (number, link) in self.links.iter().enumerate() {
            let Some(quiet) = link.quiet(now) else { continue };
            if quiet >= self.longest {
                self.lose(number, "what was posted there does not end");
            } else if quiet >= LONG && link.room() > 0 && link.start_probe() {
                self.count(|counters| counters.probes += 1);
                let first = Verb::Read { at: Address(0), words: 1 };
                drop(self.post(NodeId(number as u8), &[first]));
            }
        }
    }

    /// Polls until `ready` returns a value. Gives up only after the time in which in-flight chains
    /// complete or their connection fails: a chain that found no room for a shorter time would fail
    /// at a node that is up.
    #[cold]
    pub(super) fn wait_for<T>(&self, ready: impl Fn() -> Option<T>) -> Option<T> {
        self.count(|counters| counters.full += 1);
        let deadline = Instant::now() + self.longest;
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
