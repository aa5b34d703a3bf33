//! What a client remembers: where keys' registers are, and what buckets held.
//!
//! Both caches are bounded and resist scans; losing an entry costs roundtrips only.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hash, Hasher};

use quick_cache::Equivalent;
use quick_cache::unsync::Cache;
use smallvec::SmallVec;
use swarm_core::register::Register;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Keys up to this long lie in the cache's own entries.
const INLINE_KEY: usize = 24;
/// Keys for which there is room from the beginning: to make more of it takes one operation milliseconds. Of this
/// memory hardly more is touched than keys use: two bytes for each that there is room for.
const ROOM: usize = 1 << 20;

/// A key that is remembered. Its hash is not: it takes room in every entry, and is asked for only
/// where entries move.
#[derive(PartialEq, Eq)]
struct OwnedKey(SmallVec<[u8; INLINE_KEY]>);

impl Hash for OwnedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

/// A key with its hash, borrowed. Found by its whole key: two keys with one hash are told apart.
struct BorrowedKey<'k> {
    hash: u64,
    key: &'k [u8],
}

impl Hash for BorrowedKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<OwnedKey> for BorrowedKey<'_> {
    fn equivalent(&self, other: &OwnedKey) -> bool {
        self.key == other.0.as_slice()
    }
}

/// Any key of this hash.
struct AnyOf {
    hash: u64,
    seed: u64,
}

impl Hash for AnyOf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Equivalent<OwnedKey> for AnyOf {
    fn equivalent(&self, other: &OwnedKey) -> bool {
        hash_key(&other.0, self.seed) == self.hash
    }
}

/// A key's hash, in a pool with this seed.
#[inline]
pub(crate) fn hash_key(key: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(key, seed)
}

/// Hashes keys, and takes a hash as it is.
#[derive(Clone, Copy)]
struct KeyHasher {
    seed: u64,
    hash: u64,
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.hash
    }

    fn write(&mut self, key: &[u8]) {
        self.hash = hash_key(key, self.seed);
    }

    fn write_u64(&mut self, hash: u64) {
        self.hash = hash;
    }
}

impl BuildHasher for KeyHasher {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

type Entries = Cache<OwnedKey, Register, quick_cache::UnitWeighter, KeyHasher>;

/// Where keys' registers are.
///
/// All that is remembered was found in one [generation](swarm_core::epoch::Board::generation): what
/// an operation found that began in an earlier one is not taken in.
pub(crate) struct LocationCache {
    entries: RefCell<Entries>,
    generation: Cell<u64>,
    seed: u64,
}

impl LocationCache {
    /// Room for `entries` keys of a pool with this seed.
    pub(crate) fn new(entries: usize, seed: u64) -> Self {
        let room = entries.min(ROOM);
        let mut entries = Cache::with(
            entries,
            entries as u64,
            quick_cache::UnitWeighter,
            KeyHasher { seed, hash: 0 },
            quick_cache::unsync::DefaultLifecycle::default(),
        );
        entries.reserve(room);
        Self { entries: RefCell::new(entries), generation: Cell::new(0), seed }
    }

    /// The generation that it is, for what is looked up from here on.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// Another generation: forgets everything.
    pub(crate) fn renew(&self, generation: u64) {
        self.generation.set(generation);
        self.entries.borrow_mut().clear();
    }

    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<Register> {
        self.look(hash, key, |register| *register)
    }

    /// Where the register of a key of this hash is.
    pub(crate) fn by_hash(&self, hash: u64) -> Option<Register> {
        self.entries.borrow().get(&AnyOf { hash, seed: self.seed }).copied()
    }

    /// Looks at a key's register where it lies.
    #[inline(always)]
    pub(crate) fn look<T>(
        &self,
        hash: u64,
        key: &[u8],
        look: impl FnOnce(&Register) -> T,
    ) -> Option<T> {
        self.entries.borrow().get(&BorrowedKey { hash, key }).map(look)
    }

    /// Works on a key's register where it lies.
    #[inline(always)]
    pub(crate) fn work<T>(
        &self,
        hash: u64,
        key: &[u8],
        work: impl FnOnce(&mut Register) -> T,
    ) -> Option<T> {
        let mut entries = self.entries.borrow_mut();
        let mut register = entries.get_mut(&BorrowedKey { hash, key })?;
        Some(work(&mut register))
    }

    /// Takes in where a key's register is, as an operation found it that looked in `generation`.
    pub(crate) fn insert(&self, key: &[u8], register: Register, generation: u64) {
        if generation != self.generation.get() {
            return;
        }
        self.entries.borrow_mut().insert(OwnedKey(SmallVec::from_slice(key)), register);
    }

    /// Takes in what was learnt of a register that is, or was, in the cache.
    #[inline]
    pub(crate) fn update(&self, hash: u64, key: &[u8], register: &Register, generation: u64) {
        if generation != self.generation.get() {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        if let Some(mut known) = entries.get_mut(&BorrowedKey { hash, key }) {
            *known = *register;
            return;
        }
        drop(entries);
        self.insert(key, *register, generation);
    }

    pub(crate) fn remove(&self, hash: u64, key: &[u8]) {
        self.entries.borrow_mut().remove(&BorrowedKey { hash, key });
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::fabric::NodeId;
    use swarm_core::layout::{Identity, Place, Shape};
    use swarm_core::words::{Pointer, WriteNumber};

    use super::*;

    /// A write was under way when its client was told to forget places: where it wrote may be something else soon.
    #[test]
    fn what_a_write_of_an_earlier_generation_learnt_is_not_taken_in() {
        let (cache, key) = (LocationCache::new(4, 0), b"key");
        let hash = hash_key(key, 0);
        let register = |pointer| {
            let identity = Identity { birth: 1, number: WriteNumber(1) };
            let shape = Shape { key_length: key.len(), capacity: 1 };
            Register::new(Place::everywhere(Pointer(pointer), NodeId(0)), identity, shape)
        };
        let remembered = || cache.get(hash, key).map(|register| register.place.pointer);
        cache.renew(1);
        cache.update(hash, key, &register(7), 0);
        assert_eq!(remembered(), None);
        cache.update(hash, key, &register(8), 1);
        cache.update(hash, key, &register(7), 0);
        assert_eq!(remembered(), Some(Pointer(8)));
    }
}
