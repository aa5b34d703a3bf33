//! A table whose slots each have a count that is odd while the value is being written. A death then blocks the key
//! for good: it is here for what one line of locking costs, not to be used.

use std::hint::spin_loop;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::Result;
use crate::shared::{SLOT, Shared, hash, is, load, name, store};
use crate::work::{Key, Peer, Value};

pub(crate) struct Seqlocks {
    shared: Shared,
    slots: usize,
}

fn slots(keys: u64) -> usize {
    (2 * keys as usize).next_power_of_two()
}

pub(crate) fn create(place: &Path, keys: u64) -> Result<()> {
    Shared::create(place, slots(keys) * SLOT).map(drop)
}

impl Seqlocks {
    pub(crate) fn open(place: &Path, keys: u64) -> Result<Self> {
        Ok(Self { shared: Shared::open(place)?, slots: slots(keys) })
    }

    /// The key's slot, or the free one that it would have. Half of them are free.
    #[inline]
    fn find(&self, key: &Key) -> (&[AtomicU64], bool) {
        let mut at = hash(key) as usize;
        loop {
            at %= self.slots;
            let slot = &self.shared.words()[at * SLOT..][..SLOT];
            // Pairs with the release in `insert`: a reader that sees a count sees the key, which does not change.
            if slot[0].load(Ordering::Acquire) == 0 {
                return (slot, false);
            }
            if is(slot, key) {
                return (slot, true);
            }
            at += 1;
        }
    }

    #[inline]
    fn found(&self, key: &Key) -> Result<&[AtomicU64]> {
        let (slot, is_there) = self.find(key);
        if is_there { Ok(slot) } else { Err("a key is gone".into()) }
    }
}

impl Peer for Seqlocks {
    fn insert(&mut self, key: &Key, value: &Value) -> Result<()> {
        let (slot, _) = self.find(key);
        name(slot, key);
        store(slot, value);
        slot[0].store(2, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn update(&mut self, key: &Key, value: &Value) -> Result<()> {
        let slot = self.found(key)?;
        let count = loop {
            let even = slot[0].load(Ordering::Relaxed) & !1;
            let (odd, order) = (even + 1, Ordering::Acquire);
            match slot[0].compare_exchange_weak(even, odd, order, Ordering::Relaxed) {
                Ok(_) => break odd,
                Err(_) => spin_loop(),
            }
        };
        // Pairs with the fence in `get`: a reader of a word of this value finds the count changed.
        fence(Ordering::Release);
        store(slot, value);
        slot[0].store(count + 1, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn get(&mut self, key: &Key, value: &mut Value) -> Result<()> {
        let slot = self.found(key)?;
        loop {
            let count = slot[0].load(Ordering::Acquire);
            if count % 2 == 0 {
                load(slot, value);
                fence(Ordering::Acquire);
                if slot[0].load(Ordering::Relaxed) == count {
                    return Ok(());
                }
            }
            spin_loop();
        }
    }
}
