//! Which keys are cells, and what this client last saw there. Losing an entry costs roundtrips only.
//!
//! **Invariants:** all entries were found in one generation (E7), as those of the location cache.
//! A record is built on only by an operation of the epoch in which it was seen (E4a): later ones
//! may find other content in its memory.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasherDefault, Hasher};

use quick_cache::UnitWeighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use swarm_core::cell::View;

use crate::index::keyed_cell::KeyedCell;

/// Keys that are cached at most. Each takes its value's length, and about 400 bytes.
const MOST: usize = 1024;
/// One in this many cached keys may be a cell.
const SHARE: usize = 16;

/// The value that a cell's committed record gave its key.
#[derive(Clone)]
pub(crate) struct SeenCell {
    /// The epoch in which it was seen, or an earlier one.
    pub(crate) epoch: u64,
    pub(crate) view: View,
    /// When it expires, if it does.
    pub(crate) deadline: Option<u64>,
    pub(crate) value: Vec<u8>,
}

/// A key's cell, and the generation in which it was found.
pub(crate) type FoundCell = (KeyedCell, u64);

struct CachedCell {
    key: Box<[u8]>,
    cell: KeyedCell,
    /// In a box that is handed over and back, so that a change copies none of it.
    seen: Option<Box<SeenCell>>,
}

/// Takes a key's hash as it is: the pool's seed is in it.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a hash is one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Cells = Cache<u64, CachedCell, UnitWeighter, BuildHasherDefault<AsItIs>>;

/// The cells of keys, by their hashes.
pub(crate) struct CellCache {
    cells: RefCell<Cells>,
    generation: Cell<u64>,
}

impl CellCache {
    /// Makes a cache for a client that caches this many keys.
    pub(crate) fn new(keys: usize) -> Self {
        let most = (keys / SHARE).clamp(1, MOST);
        let (hashes, lifecycle) = (BuildHasherDefault::default(), DefaultLifecycle::default());
        let cells = Cache::with(most, most as u64, UnitWeighter, hashes, lifecycle);
        Self { cells: RefCell::new(cells), generation: Cell::new(0) }
    }

    /// Enters another generation: drops all entries (E7).
    pub(crate) fn renew(&self, generation: u64) {
        self.generation.set(generation);
        self.cells.borrow_mut().clear();
    }

    /// Returns the cell of a key.
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<FoundCell> {
        let cells = self.cells.borrow();
        let cached = cells.get(&hash).filter(|cached| *cached.key == *key)?;
        Some((cached.cell, self.generation.get()))
    }

    /// Returns a key's cell, and takes what was seen of it, in whatever epoch.
    #[inline]
    pub(crate) fn take(&self, hash: u64, key: &[u8]) -> Option<(FoundCell, Option<Box<SeenCell>>)> {
        let mut cells = self.cells.borrow_mut();
        let mut cached = cells.get_mut(&hash).filter(|cached| *cached.key == *key)?;
        let seen = cached.seen.take();
        Some(((cached.cell, self.generation.get()), seen))
    }

    /// Puts back what is known of a cell, if it is cached.
    #[inline]
    pub(crate) fn put_back(&self, hash: u64, cell: &KeyedCell, seen: Box<SeenCell>) {
        // E7: whatever is cached was found in this generation.
        if let Some(mut cached) = self.cells.borrow_mut().get_mut(&hash)
            && cached.cell.identity == cell.identity
        {
            cached.seen = Some(seen);
        }
    }

    /// Takes what was seen of this very cell in this epoch.
    pub(crate) fn take_seen(&self, hash: u64, cell: &KeyedCell, epoch: u64) -> Option<SeenCell> {
        let mut cells = self.cells.borrow_mut();
        let mut cached = cells.get_mut(&hash)?;
        let seen = (cached.cell.identity == cell.identity).then(|| cached.seen.take()).flatten();
        seen.filter(|seen| seen.epoch == epoch).map(|seen| *seen)
    }

    /// Caches the cell of a key, and what was seen of it.
    pub(crate) fn insert(
        &self,
        hash: u64,
        key: &[u8],
        (cell, generation): FoundCell,
        seen: Option<SeenCell>,
    ) {
        // E7: found in an earlier generation.
        if generation != self.generation.get() {
            return;
        }
        let seen = seen.map(Box::new);
        self.cells.borrow_mut().insert(hash, CachedCell { key: key.into(), cell, seen });
    }

    pub(crate) fn remove(&self, hash: u64) {
        self.cells.borrow_mut().remove(&hash);
    }
}
