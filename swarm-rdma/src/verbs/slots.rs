//! Slots: registered memory for the payload and the replies of chains.
//!
//! **Invariant:** each slot has one token, a [`Slot`]. The free list, a caller or the device has
//! it, and only the owner of the token may access the memory. A slot belongs to one of three size
//! classes.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use super::area::Area;
use super::domain::{Domain, Region, Use};

/// Bytes of a slot and number of slots, for each class. Together they take less than the 8 MiB that
/// a process may lock by default on many systems.
const CLASSES: [(u32, u32); 3] = [(1 << 10, 1024), (16 << 10, 64), ((1 << 20) + (64 << 10), 4)];

/// The token for a slot.
#[derive(Debug)]
#[must_use = "a slot that is not given back is lost"]
pub(crate) struct Slot {
    index: u32,
    class: u8,
}

impl Slot {
    /// Its number among all slots.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Its class, from 0 for the smallest.
    pub(crate) fn class(&self) -> usize {
        usize::from(self.class)
    }
}

/// A client's slots.
pub(crate) struct Slots {
    region: Arc<Region>,
    free: [RefCell<Vec<Slot>>; CLASSES.len()],
    /// The next work request names an invalid key.
    #[cfg(test)]
    pub(crate) wrong_key: std::cell::Cell<bool>,
}

impl Slots {
    /// Number of all slots.
    pub(crate) const COUNT: u32 = CLASSES[0].1 + CLASSES[1].1 + CLASSES[2].1;

    /// Returns the bytes of all slots.
    pub(crate) fn bytes() -> u64 {
        CLASSES.iter().map(|&(bytes, count)| u64::from(bytes) * u64::from(count)).sum()
    }

    /// Allocates and registers all slots.
    pub(crate) fn register(domain: &Arc<Domain>) -> io::Result<Self> {
        let area = Area::allocate(Self::bytes() as usize)?;
        let region = Region::register(domain, area, Use::Own)?;
        let mut next = 0;
        let free = std::array::from_fn(|class| {
            let (_, count) = CLASSES[class];
            let first = next;
            next += count;
            // Last in, first out, from the first: few slots are used, and stay in the cache.
            let class = class as u8;
            RefCell::new((first..next).rev().map(|index| Slot { index, class }).collect())
        });
        Ok(Self {
            region,
            free,
            #[cfg(test)]
            wrong_key: std::cell::Cell::default(),
        })
    }

    /// Returns the memory that the slots lie in.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the smallest class whose slots have at least `bytes` bytes.
    #[inline]
    pub(crate) fn class_for(bytes: usize) -> Option<usize> {
        CLASSES.iter().position(|&(size, _)| bytes <= size as usize)
    }

    /// Takes a free slot of a class.
    #[inline]
    pub(crate) fn take(&self, class: usize) -> Option<Slot> {
        self.free.get(class)?.borrow_mut().pop()
    }

    /// Returns a slot to the free list.
    #[inline]
    pub(crate) fn give(&self, slot: Slot) {
        self.free[slot.class()].borrow_mut().push(slot);
    }

    /// Returns whether more than three quarters of a class are in use.
    pub(crate) fn is_short(&self, class: usize) -> bool {
        self.free[class].borrow().len() < CLASSES[class].1 as usize / 4
    }

    /// Returns the slot's first `words` words.
    #[inline]
    pub(crate) fn words<'s>(&'s self, slot: &'s Slot, words: usize) -> &'s [u64] {
        assert!(words * 8 <= CLASSES[slot.class()].0 as usize, "a slot's words end with it");
        // SAFETY: the words are the slot's, inside of the region, aligned, and initialized, as
        // fresh mappings are zeroed. The token is borrowed, so nothing writes: neither a device,
        // which would own the token, nor `put`, which borrows it exclusively.
        unsafe { std::slice::from_raw_parts(self.start(slot).cast::<u64>(), words) }
    }

    /// Copies `head`, then `tail`, its last word padded with zero bytes, to byte `at` of the slot.
    #[inline]
    pub(crate) fn put(&self, slot: &mut Slot, at: usize, head: &[u64], tail: &[u8]) {
        let bytes = head.len() * 8 + tail.len().next_multiple_of(8);
        assert!(at.is_multiple_of(8) && at + bytes <= CLASSES[slot.class()].0 as usize);
        let padding = tail.len().next_multiple_of(8) - tail.len();
        // SAFETY: all of it lies within the slot, by the assertion. The token is borrowed
        // exclusively, so nothing else accesses it. The sources are other memory.
        unsafe {
            let to = self.start(slot).add(at);
            to.copy_from_nonoverlapping(head.as_ptr().cast(), head.len() * 8);
            let to = to.add(head.len() * 8);
            to.copy_from_nonoverlapping(tail.as_ptr(), tail.len());
            to.add(tail.len()).write_bytes(0, padding);
        }
    }

    /// Returns the device's address of a byte of the slot, and its local key.
    ///
    /// # Panics
    /// If the slot has fewer than `bytes` bytes from `at` on.
    pub(super) fn reach(&self, slot: &Slot, at: usize, bytes: usize) -> (u64, u32) {
        let size = CLASSES[slot.class()].0 as usize;
        assert!(at <= size && bytes <= size - at, "a slot's bytes end with it");
        let key = self.region.local_key();
        #[cfg(test)]
        let key = if self.wrong_key.take() { !key } else { key };
        (self.start(slot) as u64 + at as u64, key)
    }

    fn start(&self, slot: &Slot) -> *mut u8 {
        let mut offset = 0_usize;
        let mut first = 0;
        for &(size, count) in &CLASSES[..slot.class()] {
            offset += size as usize * count as usize;
            first += count;
        }
        offset += CLASSES[slot.class()].0 as usize * (slot.index - first) as usize;
        // SAFETY: slots lie one after the other in the region, which has room for all.
        unsafe { self.region.area().start().add(offset) }
    }

    /// Remakes the token of slot `index`, which the device returns.
    ///
    /// # Safety
    /// The device owns the token of this slot, and returns it now.
    pub(super) unsafe fn back(&self, index: u32) -> Slot {
        let mut end = 0;
        let class = CLASSES.iter().position(|&(_, count)| {
            end += count;
            index < end
        });
        Slot { index, class: class.unwrap_or_default() as u8 }
    }
}
