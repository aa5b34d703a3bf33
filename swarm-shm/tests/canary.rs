//! A deliberate data race: `ci/threads.sh` checks that the thread sanitizer reports it.

use std::cell::UnsafeCell;

struct Shared(UnsafeCell<u64>);

// SAFETY: it is unsound on purpose, and only the sanitizer runs it.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new(0));

fn add() {
    for _ in 0..1000 {
        // SAFETY: the pointer is valid; that two threads write through it at a time is the point.
        unsafe { SHARED.0.get().write_volatile(SHARED.0.get().read_volatile() + 1) };
    }
}

#[test]
#[ignore = "a data race, for the thread sanitizer to notice"]
fn two_threads_race() {
    std::thread::scope(|scope| {
        scope.spawn(add);
        scope.spawn(add);
    });
}
