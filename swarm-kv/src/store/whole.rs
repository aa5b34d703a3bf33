//! An operation that moves between threads together with the client that it was begun on.
//!
//! A [`Client`] is one thread's at a time: it is `Send`, and what it is made of is in cells, so that it is not `Sync` and a future that
//! borrows it is not `Send`. But a future that *owns* its client, or holds the only lease on it, may move: nothing is left behind that sees the
//! cells. The compiler does not know this; it is declared here.
#![expect(unsafe_code, reason = "what borrows a client moves together with it: argued below")]

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use swarm_core::fabric::Fabric;
use swarm_core::register::safe_guess::SafeGuess;

use super::clients::Clients;
use crate::error::Error;
use crate::pools::shm::{self, Emulated, Plain, ShmEpochs};

/// What is lent out.
pub(super) type Lent<F> = shm::Client<SafeGuess, F>;

/// A fabric whose clients move between threads in the middle of operations.
///
/// # Safety
/// Replies and completions refer to no memory that is a thread's, count nothing without atomics that is outside of the fabric itself,
/// and hold no lock.
pub unsafe trait Movable: Fabric<EpochDomain = ShmEpochs> + Send + 'static {}

// SAFETY: completions are ready from the beginning; a reply has a box of its own, and a reference to the fabric's list of such.
unsafe impl Movable for Plain {}

// SAFETY: a completion is the inner fabric's with a time and references to the clock and to the switches, which are the fabric's own.
unsafe impl Movable for Emulated {}

pin_project! {
    /// An operation with its client.
    struct Whole<T> {
        #[pin]
        operation: T,
    }
}

// SAFETY: `on_client` alone makes one, and none is taken apart. Between two polls it holds:
// - the arguments, and the function that is run on them, which are `Send` (bounds there);
// - a place in the queue of `Clients`, or a lease on a client, both of which are `Send`, as clients are;
// - what the client's operation holds, beside its arguments: references to the client, whose lease is in here and lasts longer than they
//   do; places, numbers and boxes that are its own; replies and completions, of which `Movable` says this. Nothing in this crate or in
//   those below has an `Rc`, a thread's own variable or a lock's guard across an await.
// So whatever has no atomics about it and is referred to from in here is the client, which nobody else refers to as long as it is lent out:
// it all goes to the other thread at once. A thread that polls it next sees what the one before did, as what polls a pinned future,
// by `&mut`, has got it from there.
unsafe impl<T> Send for Whole<T> {}

impl<T: Future> Future for Whole<T> {
    type Output = T::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T::Output> {
        self.project().operation.poll(cx)
    }
}

/// Runs `operation` on a client of `clients` as soon as one is to be had.
///
/// It must await operations of the client that it is given, and nothing else: see above. It ends within its first poll if there is a client and
/// what it awaits ends so; else it goes on with the client that it has. Dropped, it gives the client back, behind what it had begun.
#[inline]
pub(super) fn on_client<'s, F: Movable, A: Send + 's, R: Send + 's, E: From<Error> + Send + 's>(
    clients: &'s Clients<Lent<F>>,
    arguments: A,
    operation: impl AsyncFnOnce(&Lent<F>, A) -> Result<R, E> + Send + 's,
) -> impl Future<Output = Result<R, E>> + Send + 's {
    Whole {
        operation: async move {
            let lease = match clients.lend_now() {
                Some(lease) => lease,
                None => clients.lend().await?,
            };
            operation(&lease, arguments).await
        },
    }
}
