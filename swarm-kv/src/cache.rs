//! What a client remembers of where keys' registers are. Losing an entry costs roundtrips only.
//!
//! A [table] of a line a register, bounded by the number of keys that the client asked for. Where it is full, or where all
//! the places that a key may have are taken, a neighbour of the newcomer goes: the one that was met least. Each entry counts how
//! often it was met, up to three times; a newcomer was not met yet. Of the sixteen places that a key may have, the first from
//! a hand that goes round whose entry was not met is vacated, and where all were, each counts one less first. So keys
//! of a scan push each other out, while those that are met again and again stay.
//!
//! What buckets held is remembered by the [index](crate::index).

use std::cell::{Cell, RefCell};

use swarm_core::fabric::Fabric;
use swarm_core::layout::Place;
use swarm_core::register::Register;
use xxhash_rust::xxh3::xxh3_64_with_seed;

// By its path, as the benchmarks take this file in by its own.
#[path = "cache/table.rs"]
mod table;

pub(crate) use table::Spot;
use table::Table;

/// A key's hash, in a pool with this seed.
#[inline]
pub(crate) fn hash_key(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// Where keys' registers are.
///
/// All that is remembered was found in one [generation](swarm_core::fabric::Board::generation): what
/// an operation found that began in an earlier one is not taken in.
pub(crate) struct LocationCache {
    table: RefCell<Table>,
    generation: Cell<u64>,
    seed: u64,
}

impl LocationCache {
    /// Room for `entries` keys of a pool with this seed. What there is no memory for is not remembered.
    pub(crate) fn new(entries: usize, seed: u64) -> Self {
        Self { table: RefCell::new(Table::new(entries)), generation: Cell::new(0), seed }
    }

    /// The generation that it is, for what is looked up from here on.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Another generation: forgets everything.
    pub(crate) fn renew(&self, generation: u64) {
        self.generation.set(generation);
        self.table.borrow_mut().forget();
    }

    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<Register> {
        let (glanced, _) = self.table.borrow().glance(hash);
        self.look(glanced, hash, key, |register| *register)
    }

    /// Where the register of a key of this hash is.
    pub(crate) fn by_hash(&self, hash: u64) -> Option<Register> {
        self.table.borrow().by_hash(hash)
    }

    /// Where what is known of a key of this hash probably is; `expect` is told where its register probably lies, and
    /// how many words there are at home. A hint, so that it may come in front of an operation.
    #[inline(always)]
    pub(crate) fn glance(&self, hash: u64, expect: impl FnOnce(&Place, usize)) -> Spot {
        let table = self.table.borrow();
        let (glanced, slot) = table.glance(hash);
        if let Some(slot) = slot {
            expect(&slot.place(), slot.words());
        }
        glanced
    }

    /// Has what is looked at first for a key of this hash on its way.
    #[inline(always)]
    pub(crate) fn expect<F: Fabric>(&self, fabric: &F, hash: u64) {
        let table = self.table.borrow();
        let (slot, key) = table.lines(hash);
        fabric.bring(slot);
        fabric.bring(key);
    }

    /// Looks at what is known of a key's register, which was [glanced](Self::glance) at before.
    #[inline(always)]
    pub(crate) fn look<T>(
        &self,
        glanced: Spot,
        hash: u64,
        key: &[u8],
        look: impl FnOnce(&Register) -> T,
    ) -> Option<T> {
        let register = self.table.borrow_mut().meet(glanced, hash, key)?.register();
        Some(look(&register))
    }

    /// Works on what is known of a key's register, and takes in what is seen of it.
    #[inline(always)]
    pub(crate) fn work<T>(
        &self,
        glanced: Spot,
        hash: u64,
        key: &[u8],
        work: impl FnOnce(&mut Register) -> T,
    ) -> Option<T> {
        let mut table = self.table.borrow_mut();
        let slot = table.meet(glanced, hash, key)?;
        let mut register = slot.register();
        let worked = work(&mut register);
        slot.saw(&register);
        Some(worked)
    }

    /// Takes in where a key's register is, as an operation found it that looked in `generation`.
    pub(crate) fn insert(&self, key: &[u8], register: Register, generation: u64) {
        self.update(hash_key(key, self.seed), key, &register, generation);
    }

    /// Takes in what was learnt of a register that is, or was, in the cache.
    #[inline]
    pub(crate) fn update(&self, hash: u64, key: &[u8], register: &Register, generation: u64) {
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
#[path = "cache/tests.rs"]
mod tests;
