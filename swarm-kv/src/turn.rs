//! Writes of one key by one client, behind each other.
//!
//! A reader takes a writer's second stamp as proof that its first write is complete, so that a
//! client has one write at a time under way to a register. The one under way may be nobody's any more who polls it: a
//! future that lost a `select!` and was kept. Whoever waits for it waits for so long and no longer.

use std::cell::{Cell, RefCell};

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::Client;
use crate::error::Error;
use crate::gate::wait_while_it_goes_on;

/// The writes of a client that are under way.
pub(crate) struct Writing {
    /// Of each, the hash of its key, and which turn it has.
    turns: RefCell<Vec<(u64, u64)>>,
    /// Turns that were given out.
    given: Cell<u64>,
}

impl Default for Writing {
    /// Room for more than are under way at a time, as a rule.
    fn default() -> Self {
        Self { turns: RefCell::new(Vec::with_capacity(64)), given: Cell::new(0) }
    }
}

impl Writing {
    /// The turn of the write of this key that is under way.
    fn turn_of(&self, hash: u64) -> Option<u64> {
        let turns = self.turns.borrow();
        turns.iter().find(|(other, _)| *other == hash).map(|&(_, turn)| turn)
    }
}

/// A write of a key that is under way.
pub(crate) struct Turn<'a> {
    writing: &'a Writing,
    hash: u64,
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        let mut turns = self.writing.turns.borrow_mut();
        if let Some(at) = turns.iter().position(|(hash, _)| *hash == self.hash) {
            turns.swap_remove(at);
        }
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Waits until no other write of this client to the key is under way: a reader takes a
    /// writer's second stamp as proof that its first write is complete.
    ///
    /// # Errors
    /// [`Error::Unfinished`] if one and the same write stays under way for longer than it may take to wait for
    /// nodes and for memory.
    pub(crate) async fn turn(&self, hash: u64) -> Result<Turn<'_>, Error> {
        let longest = (self.group.clock(), self.longest_wait());
        // Each turn has its time: of many writes the last one waits long.
        wait_while_it_goes_on(longest, || self.turn_now(hash), || self.writing.turn_of(hash)).await
    }

    /// Nanoseconds for which an operation waits for another one of this client that does not go on: as long as that
    /// may have to wait for nodes and for memory.
    pub(crate) fn longest_wait(&self) -> u64 {
        self.group.patience().deadline.saturating_add(self.memory_wait)
    }

    /// Whether no such write is under way. One that is over before anything else happens takes no turn.
    #[inline(always)]
    pub(crate) fn is_turn(&self, hash: u64) -> bool {
        let turns = self.writing.turns.borrow();
        turns.is_empty() || turns.iter().all(|(other, _)| *other != hash)
    }

    /// The same as [`turn`](Self::turn), if no such write is under way.
    #[inline]
    pub(crate) fn turn_now(&self, hash: u64) -> Option<Turn<'_>> {
        let mut turns = self.writing.turns.borrow_mut();
        if turns.iter().any(|(other, _)| *other == hash) {
            return None;
        }
        let turn = self.writing.given.get();
        self.writing.given.set(turn + 1);
        turns.push((hash, turn));
        Some(Turn { writing: &self.writing, hash })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::rc::Rc;
    use std::task::{Context, Poll, Waker};

    use swarm_core::fabric::loopback::Loopback;
    use swarm_core::layout::Geometry;
    use swarm_core::quorum::{Patience, Session};
    use swarm_core::words::Incarnation;

    use super::*;
    use crate::client::Options;

    #[derive(Clone, Default)]
    struct Hand(Rc<Cell<u64>>);

    impl Clock for Hand {
        fn now(&self) -> u64 {
            self.0.get()
        }
    }

    /// Of a write that stays under way, and not of a queue that moves on.
    #[test]
    fn a_write_waits_for_so_long_for_each_one_before_it() {
        let geometry = Geometry::new(3, 4 << 20, 2, 1).expect("geometry");
        let (nodes, clock) = (Loopback::new(3, 4 << 17), Hand::default());
        let session = Session { client: 0, incarnation: Incarnation(1) };
        let options = Options::default()
            .memory_wait(20)
            .patience(Patience { deadline: 80, ..Patience::default() });
        let client: Client<_, _> = Client::new(nodes, clock.clone(), geometry, session, options);
        let first = client.turn_now(5).expect("nobody writes");
        let mut waits = pin!(client.turn(5));
        let mut poll_at = |now: u64| {
            clock.0.set(now);
            match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => None,
                Poll::Ready(turn) => Some(turn.err()),
            }
        };
        assert_eq!((poll_at(0), poll_at(99)), (None, None));
        drop(first);
        let second = client.turn_now(5).expect("it is quicker");
        assert_eq!((poll_at(150), poll_at(249)), (None, None), "another has its turn");
        assert_eq!(poll_at(250), Some(Some(Error::Unfinished)));
        assert!(client.turn_now(6).is_some(), "another key's");
        drop(second);
        assert!(client.turn_now(5).is_some());
    }
}
