//! An allocator that asks for huge pages for large blocks.
//!
//! A client's location cache is met at random places: with small pages each of its misses is also a
//! miss of the processor's page tables. Programs choose it as their global allocator or not.

use std::alloc::{GlobalAlloc, Layout, System};

use rustix::mm::{Advice, madvise};

/// Blocks from here on are aligned to huge pages.
const LARGE: usize = 4 << 20;
/// A huge page.
const PAGE: usize = 2 << 20;

/// The system's allocator, with huge pages for blocks of 4 MiB and more where the kernel has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct HugePages;

fn aligned(layout: Layout) -> Layout {
    if layout.size() < LARGE {
        return layout;
    }
    // A size that cannot be aligned so is one that the system's allocator refuses in any case.
    layout.align_to(PAGE).unwrap_or(layout)
}

// SAFETY: all work is the system allocator's. A block is given back with the layout that it was
// taken with, as `aligned` depends on the layout alone.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let layout = aligned(layout);
        // SAFETY: the caller's promises for `layout` hold for the larger alignment.
        let block = unsafe { System.alloc(layout) };
        if layout.size() >= LARGE && !block.is_null() {
            let whole = layout.size() / PAGE * PAGE;
            // SAFETY: the range lies within the block, and the advice changes none of its contents.
            // Where the kernel has no huge pages, it fails and all is as before.
            let _ = unsafe { madvise(block.cast(), whole, Advice::LinuxHugepage) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: `alloc` took the block with this same layout.
        unsafe { System.dealloc(block, aligned(layout)) }
    }
}
