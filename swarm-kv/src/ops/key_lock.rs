//! The per-key write lock of one client.
//!
//! **Invariant:** a client has at most one write at a time under way to a register (G3): a reader
//! takes a writer's second stamp as proof that its first write is complete. The future of the write
//! under way may never be polled again: it lost a `select!` and was kept. So the wait for a key
//! lock is bounded.

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::key_locks::KeyLock;
use crate::error::Error;
use crate::runtime::local_mutex::wait_while_it_goes_on;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Waits until no other write of this client to the key is under way (G3).
    ///
    /// # Errors
    /// [`Error::Unfinished`] if one and the same write stays under way for longer than an operation
    /// may wait for nodes and for memory.
    pub(crate) async fn lock_key(&self, hash: u64) -> Result<KeyLock<'_>, Error> {
        let longest = (self.group.clock(), self.longest_wait());
        // Each turn has its own bound: the last of many writes waits long.
        wait_while_it_goes_on(
            longest,
            || self.try_lock_key(hash),
            || self.key_locks.holder_of(hash),
        )
        .await
    }

    /// Returns for how many nanoseconds an operation waits for another one of this client that
    /// makes no progress: as long as that one may wait for nodes and for memory.
    pub(crate) fn longest_wait(&self) -> u64 {
        self.group.timeouts().deadline.saturating_add(self.memory_wait)
    }

    /// Whether no such write is under way. A write that ends before anything else happens needs no
    /// lock.
    #[inline(always)]
    pub(crate) fn is_key_free(&self, hash: u64) -> bool {
        self.key_locks.is_free(hash)
    }

    /// The same as [`lock_key`](Self::lock_key), if no such write is under way.
    #[inline]
    pub(crate) fn try_lock_key(&self, hash: u64) -> Option<KeyLock<'_>> {
        self.key_locks.try_lock(hash)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::Future;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::{Session, Timeouts};
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::handle::Options;

    #[derive(Clone, Default)]
    struct Hand(Rc<Cell<u64>>);

    impl Clock for Hand {
        fn now(&self) -> u64 {
            self.0.get()
        }
    }

    /// The bound is for one write that stays under way, not for a queue that advances.
    #[test]
    fn a_write_waits_for_so_long_for_each_one_before_it() {
        let geometry = Geometry::new(3, 4 << 20, 2, 1).expect("geometry");
        let (nodes, clock) = (Loopback::new(3, 4 << 17), Hand::default());
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let options = Options::default()
            .memory_wait(20)
            .timeouts(Timeouts { deadline: 80, ..Timeouts::default() });
        let client: Client<_, _> = Client::new(nodes, clock.clone(), geometry, session, options);
        let first = client.try_lock_key(5).expect("nobody writes");
        let mut waits = pin!(client.lock_key(5));
        let mut poll_at = |now: u64| {
            clock.0.set(now);
            match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => None,
                Poll::Ready(turn) => Some(turn.err()),
            }
        };
        assert_eq!((poll_at(0), poll_at(99)), (None, None));
        drop(first);
        let second = client.try_lock_key(5).expect("it is quicker");
        assert_eq!((poll_at(150), poll_at(249)), (None, None), "another has its turn");
        assert_eq!(poll_at(250), Some(Some(Error::Unfinished)));
        assert!(client.try_lock_key(6).is_some(), "another key's");
        drop(second);
        assert!(client.try_lock_key(5).is_some());
    }
}
