//! Which client slots an opening of a pool holds.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use swarm_core::layout::MAX_CLIENTS;

use crate::fork::Origin;

/// The slots that clients of one open pool hold, so that a process that opens many does not ask the
/// kernel for each of them again.
///
/// A slot is added after its lock and removed before that ends: one in this set is one that the
/// kernel would refuse. A child's copy says nothing, as its parent may have freed them since.
#[derive(Debug)]
pub(crate) struct Held {
    origin: Origin,
    slots: [AtomicU64; MAX_CLIENTS.div_ceil(64)],
}

impl Held {
    pub(crate) fn new() -> Self {
        Self {
            origin: Origin::current(),
            slots: [const { AtomicU64::new(0) }; MAX_CLIENTS.div_ceil(64)],
        }
    }

    // Relaxed throughout: the lock decides. A scan while a slot is removed may skip it, as if it
    // had come earlier.
    pub(crate) fn has(&self, slot: usize) -> bool {
        let is_in = self.slots[slot / 64].load(Relaxed) & (1 << (slot % 64)) != 0;
        is_in && !self.origin.is_elsewhere()
    }

    pub(crate) fn add(&self, slot: usize) {
        self.slots[slot / 64].fetch_or(1 << (slot % 64), Relaxed);
    }

    pub(crate) fn remove(&self, slot: usize) {
        self.slots[slot / 64].fetch_and(!(1 << (slot % 64)), Relaxed);
    }
}
