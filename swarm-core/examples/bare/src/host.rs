//! What a program needs that swarm-core does not: a place to begin, to print and to stop at, time,
//! memory, and something that polls. On a board this is the file to replace.
//!
//! Here it is the host's C library: `main`, `write`, `abort`.

use core::ffi::{c_int, c_void};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::task::{Context, Poll, Waker};

use swarm_core::clock::Clock;
use swarm_core::words::{GRANULE_WORDS, Pointer};

#[link(name = "c")]
unsafe extern "C" {
    fn write(file: c_int, bytes: *const c_void, count: usize) -> isize;
    safe fn abort() -> !;
}

/// Called by the host's start-up code.
// SAFETY: the program has no other `main`.
#[unsafe(no_mangle)]
extern "C" fn main() -> c_int {
    match super::run() {
        Ok(()) => 0,
        Err(error) => {
            print(format_args!("failed: {error}\n"));
            1
        }
    }
}

#[panic_handler]
fn panic(why: &PanicInfo<'_>) -> ! {
    print(format_args!("{why}\n"));
    abort()
}

/// The `core` that comes with the compiler for hosts names this for unwinding. Here a panic aborts,
/// so nothing calls it.
// SAFETY: `std`, which defines it, is not linked.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Prints to standard output.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    struct Output;

    impl Write for Output {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            // SAFETY: these bytes are there. A shorter write loses text, no more.
            unsafe { write(1, text.as_ptr().cast(), text.len()) };
            Ok(())
        }
    }

    // It never fails.
    let _ = Output.write_fmt(text);
}

/// A clock of the whole program: each look takes a microsecond. Only speed depends on it.
pub(crate) struct Looks;

impl Clock for Looks {
    fn now(&self) -> u64 {
        static NOW: AtomicU64 = AtomicU64::new(0);
        NOW.fetch_add(1_000, Relaxed)
    }
}

/// Returns `words` words of zeroed memory, at the same address of every node, which nobody else is
/// given: what was given out does not come back. If the nodes have no more, no node answers.
pub(crate) fn allocate(words: usize) -> Pointer {
    static NEXT: AtomicU64 = AtomicU64::new(super::FIXED);
    Pointer(NEXT.fetch_add(words.div_ceil(GRANULE_WORDS) as u64, Relaxed))
}

/// Polls a future to its end.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        core::hint::spin_loop();
    }
}
