//! An allocator that asks for huge pages for large blocks.
//!
//! A client's location cache is met at random places: with small pages each of its misses is also a
//! miss of the processor's page tables. Programs choose it as their global allocator or not.

use std::alloc::{GlobalAlloc, Layout, System};

use rustix::mm::{Advice, madvise};

/// Blocks from here on are advised.
const LARGE: usize = 4 << 20;
/// What an advice begins at a multiple of.
const PAGE: usize = 4096;

/// The system's allocator, with huge pages for blocks of 4 MiB and more where the kernel has them.
///
/// Zeroed blocks stay the kernel's: pages that nobody touches are not there. (To align a block to huge pages would have
/// the system's allocator write its zeros; the kernel aligns what it maps by itself.)
#[derive(Clone, Copy, Debug, Default)]
pub struct HugePages;

/// Asks for huge pages where there is a large block.
fn advised(block: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE && !block.is_null() {
        let start = block.map_addr(|address| address & !(PAGE - 1));
        let length = block.addr() + size - start.addr();
        // SAFETY: the range is the block and what lies in front of it in its first page. The advice changes no memory's
        // contents. Where the kernel has no huge pages, it fails and all is as before.
        let _ = unsafe { madvise(start.cast(), length, Advice::LinuxHugepage) };
    }
    block
}

// SAFETY: all work is the system allocator's, with the layouts that callers give.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises for `layout` are what this asks for.
        advised(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        advised(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block is the system allocator's, by this same layout.
        unsafe { System.dealloc(block, layout) }
    }
}
