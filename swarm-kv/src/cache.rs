//! What a client remembers: where keys' registers are, and what buckets held.
//!
//! Both caches are bounded and resist scans; losing an entry costs roundtrips only.

use std::cell::RefCell;
use std::hash::{BuildHasher, Hash, Hasher};

use quick_cache::Equivalent;
use quick_cache::unsync::Cache;
use smallvec::SmallVec;
use swarm_core::register::Register;

/// Keys up to this long lie in the cache's own entries.
const INLINE_KEY: usize = 24;

/// A key with its hash.
struct OwnedKey {
    hash: u64,
    key: SmallVec<[u8; INLINE_KEY]>,
}

impl PartialEq for OwnedKey {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.key == other.key
    }
}

impl Eq for OwnedKey {}

impl Hash for OwnedKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
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
        self.hash == other.hash && self.key == other.key.as_slice()
    }
}

/// Takes a hash as it is: keys were hashed already.
#[derive(Clone, Copy, Default)]
pub(crate) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.rotate_left(5) ^ word;
    }
}

impl BuildHasher for AsItIs {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

type Entries = Cache<OwnedKey, Register, quick_cache::UnitWeighter, AsItIs>;

/// Where keys' registers are.
pub(crate) struct LocationCache(RefCell<Entries>);

impl LocationCache {
    /// Room for `entries` keys.
    pub(crate) fn new(entries: usize) -> Self {
        Self(RefCell::new(Cache::with(
            entries,
            entries as u64,
            quick_cache::UnitWeighter,
            AsItIs::default(),
            quick_cache::unsync::DefaultLifecycle::default(),
        )))
    }

    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<Register> {
        self.look(hash, key, |register| *register)
    }

    /// Looks at a key's register where it lies.
    #[inline(always)]
    pub(crate) fn look<T>(
        &self,
        hash: u64,
        key: &[u8],
        look: impl FnOnce(&Register) -> T,
    ) -> Option<T> {
        self.0.borrow().get(&BorrowedKey { hash, key }).map(look)
    }

    /// Works on a key's register where it lies.
    #[inline(always)]
    pub(crate) fn work<T>(
        &self,
        hash: u64,
        key: &[u8],
        work: impl FnOnce(&mut Register) -> T,
    ) -> Option<T> {
        let mut entries = self.0.borrow_mut();
        let mut register = entries.get_mut(&BorrowedKey { hash, key })?;
        Some(work(&mut register))
    }

    pub(crate) fn insert(&self, hash: u64, key: &[u8], register: Register) {
        let key = OwnedKey { hash, key: SmallVec::from_slice(key) };
        self.0.borrow_mut().insert(key, register);
    }

    /// Takes in what was learnt of a register that is, or was, in the cache.
    #[inline]
    pub(crate) fn update(&self, hash: u64, key: &[u8], register: &Register) {
        let mut entries = self.0.borrow_mut();
        if let Some(mut known) = entries.get_mut(&BorrowedKey { hash, key }) {
            *known = *register;
            return;
        }
        drop(entries);
        self.insert(hash, key, *register);
    }

    pub(crate) fn remove(&self, hash: u64, key: &[u8]) {
        self.0.borrow_mut().remove(&BorrowedKey { hash, key });
    }
}
