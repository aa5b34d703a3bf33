//! The location cache: where keys' registers are. Losing an entry costs roundtrips only.
//!
//! A [table] with one line per register, bounded by the number of keys that the client's options
//! give. Where it is full, or where all sixteen places of a key are taken, an entry is evicted for
//! the new one. Each entry counts its hits, up to three; a new one has none. The search begins at a
//! hand that goes round: the first entry without hits is evicted, and if all have hits, each loses
//! one first. So keys of a scan evict each other, while those with repeated hits stay.
//!
//! Cached buckets are in the [index](crate::index::lookup).

use std::cell::{Cell, RefCell};

use swarm_core::fabric::Fabric;
use swarm_core::layout::Location;
use swarm_core::register::Register;
use xxhash_rust::xxh3::xxh3_64_with_seed;

// By its path, as the benchmarks include this file by its own path.
mod table;

use table::{ObjectIndex, Table};

/// Returns a key's hash, in a pool with this seed.
#[inline]
pub(crate) fn hash_key(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// A key's register, and where in the cache it is.
pub(crate) struct Cached {
    pub(crate) register: Register,
    at: ObjectIndex,
}

/// The locations of keys' registers.
///
/// **Invariant:** all entries were found in one
/// [generation](swarm_core::fabric::EpochDomain::generation) (E7): what an operation found that
/// began in an earlier one is not cached.
pub(crate) struct LocationCache {
    table: RefCell<Table>,
    generation: Cell<u64>,
    seed: u64,
}

impl LocationCache {
    /// Makes a cache for `entries` keys of a pool with this seed, or for as many as there is memory
    /// for.
    pub(crate) fn new(entries: usize, seed: u64) -> Self {
        Self { table: RefCell::new(Table::new(entries)), generation: Cell::new(0), seed }
    }

    /// Returns the current generation, for lookups that start now.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Enters another generation: drops all entries (E7).
    pub(crate) fn renew(&self, generation: u64) {
        self.generation.set(generation);
        self.table.borrow_mut().forget();
    }

    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<Register> {
        self.lookup(hash, key).map(|cached| cached.register)
    }

    /// Returns the register of a key with this hash.
    pub(crate) fn by_hash(&self, hash: u64) -> Option<Register> {
        self.table.borrow().by_hash(hash)
    }

    /// Passes to `expect` where the register of a key with this hash probably lies, and its words
    /// at home.
    #[inline(always)]
    pub(crate) fn glance(&self, hash: u64, expect: impl FnOnce(&Location, usize)) {
        if let Some(slot) = self.table.borrow().glance(hash) {
            expect(&slot.place(), slot.words());
        }
    }

    /// Prefetches what a lookup of a key with this hash reads first.
    #[inline(always)]
    pub(crate) fn expect<F: Fabric>(&self, fabric: &F, hash: u64) {
        let table = self.table.borrow();
        let (slot, key) = table.lines(hash);
        fabric.prefetch_local(slot);
        fabric.prefetch_local(key);
    }

    /// Returns a key's register, if it is cached.
    #[inline(always)]
    pub(crate) fn lookup(&self, hash: u64, key: &[u8]) -> Option<Cached> {
        let mut table = self.table.borrow_mut();
        let (at, slot) = table.lookup(hash, key)?;
        Some(Cached { register: slot.register(), at })
    }

    /// Caches what was observed of a register since it was [looked up](Self::lookup). The cache must not
    /// have been changed since.
    #[inline(always)]
    pub(crate) fn saw(&self, cached: &Cached) {
        self.table.borrow_mut().slot_mut(cached.at).saw(&cached.register);
    }

    /// Caches a key's register, found by an operation that looked in `generation`.
    pub(crate) fn insert(&self, key: &[u8], register: Register, generation: u64) {
        self.update(hash_key(key, self.seed), key, &register, generation);
    }

    /// Caches what was observed of a register that is, or was, in the cache.
    #[inline]
    pub(crate) fn update(&self, hash: u64, key: &[u8], register: &Register, generation: u64) {
        // E7: found in an earlier generation.
        if generation != self.generation.get() {
            return;
        }
        self.table.borrow_mut().insert(hash, key, register);
    }

    pub(crate) fn remove(&self, hash: u64, key: &[u8]) {
        self.table.borrow_mut().remove(hash, key);
    }
}

#[cfg(test)]
mod tests;
