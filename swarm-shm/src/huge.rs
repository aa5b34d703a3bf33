//! An allocator that asks for huge pages for large blocks.
//!
//! A client accesses its location cache at random: with small pages each cache miss is also a TLB
//! miss. Programs choose it as their global allocator or not.

use std::alloc::{GlobalAlloc, Layout, System};

use rustix::mm::{Advice, madvise};

/// Blocks of at least this size are advised.
const LARGE: usize = 4 << 20;
/// Advice must begin at a multiple of this.
const PAGE: usize = 4096;

/// The system's allocator, with huge pages for blocks of 4 MiB and more if the kernel has them.
///
/// Zeroed blocks stay untouched: their pages take no memory until they are used. (Aligning a block
/// to huge pages would make the system's allocator write its zeros; the kernel aligns its mappings
/// itself.)
#[derive(Clone, Copy, Debug, Default)]
pub struct HugePages;

/// Asks for huge pages for a large block.
fn advised(block: *mut u8, size: usize) -> *mut u8 {
    if size >= LARGE && !block.is_null() {
        let start = block.map_addr(|address| address & !(PAGE - 1));
        let length = block.addr() + size - start.addr();
        // SAFETY: the range is the block and what precedes it in its first page. The advice changes
        // no contents. If the kernel has no huge pages, it fails and changes nothing.
        let _ = unsafe { madvise(start.cast(), length, Advice::LinuxHugepage) };
    }
    block
}

// SAFETY: the system allocator does all the work, with the layouts that callers give.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises for `layout` are what this requires.
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
