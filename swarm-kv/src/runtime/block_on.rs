//! Executors for one future.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a future of this crate to its end. Polls without sleeping: memory nodes answer within
/// microseconds.
#[inline]
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        std::hint::spin_loop();
    }
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end, with the thread asleep until it is woken: one that may wait for what others have. What waits for
/// memory nodes wakes itself.
pub(crate) fn park_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        // A wake since then is kept: this returns at once.
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    /// A thread that polled meanwhile would poll thousands of times.
    #[test]
    fn a_thread_sleeps_until_it_is_woken() {
        let (woken, mut polls) = (Arc::new(AtomicBool::new(false)), 0_u32);
        park_on(poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                let (waker, woken) = (cx.waker().clone(), Arc::clone(&woken));
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(50));
                    woken.store(true, Ordering::SeqCst);
                    waker.wake();
                });
            }
            if woken.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        }));
        // Something else may have unparked it.
        assert!(polls < 10, "{polls}");
    }
}
