//! Words and fences: the processor's, or loom's when its tests explore the memory model.

#[cfg(not(loom))]
pub use core::sync::atomic::AtomicU64 as Word;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::AtomicU64 as Word;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};

/// Orders a CAS before every later access.
///
/// On x86-64 a locked instruction is a full barrier by itself, so only the compiler must be held
/// back; an `mfence` would triple the price of the CAS.
#[inline(always)]
pub(crate) fn fence_behind_cas() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    fence(Ordering::SeqCst);
}

/// Orders the loads of a READ before every later access.
///
/// x86-64 and AArch64 show stores to all processors in one order, so that ordering the loads
/// suffices for two clients to agree on which of two words changed first. Other architectures need
/// a full fence.
#[inline(always)]
pub(crate) fn fence_behind_read() {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64", loom)) {
        fence(Ordering::Acquire);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Asks the processor to load a cache line into its caches. A hint: it reads nothing.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has SSE, and a prefetch faults on no address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}

/// The same for a line that will be stored to: the processor acquires it for writing at once.
#[inline(always)]
pub(crate) fn prefetch_change(word: *const Word) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: the instruction changes nothing and faults on no address; processors that do not know
    // it treat it as a no-op.
    unsafe {
        core::arch::asm!(
            "prefetchw [{}]",
            in(reg) word,
            options(nostack, preserves_flags, readonly),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = word;
}
