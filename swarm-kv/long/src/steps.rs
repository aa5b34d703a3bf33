//! What clients do with an object, in the order in which it happens.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a client does with an object.
pub trait Deed: Clone + PartialEq + Hash {
    /// The client has ended, and the others may know.
    const ENDS: Self;
}

/// A history: each client's deeds among those of the others.
pub struct Steps<D>(RefCell<Vec<(usize, D)>>);

impl<D> Default for Steps<D> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<D: Deed> Steps<D> {
    /// Notes what a client does, and before that which clients have ended: what it does may be due to that.
    pub fn note(&self, client: usize, deed: D, is_gone: impl Fn(usize) -> bool) {
        let steps = &mut *self.0.borrow_mut();
        let clients: BTreeSet<_> = steps.iter().map(|(client, _)| *client).collect();
        for other in clients.into_iter().filter(|&other| is_gone(other)) {
            if !steps.contains(&(other, D::ENDS)) {
                steps.push((other, D::ENDS));
            }
        }
        steps.push((client, deed));
    }

    /// Returns what a client did last.
    pub fn last_of(&self, client: usize) -> Option<D> {
        let steps = self.0.borrow();
        let its = steps.iter().rev().find(|(of, _)| *of == client);
        its.map(|(_, deed)| deed.clone())
    }

    /// Returns all of it.
    pub fn all(&self) -> Vec<(usize, D)> {
        self.0.borrow().clone()
    }

    /// Returns a hash of all of it.
    pub fn digest(&self) -> u64 {
        let mut hash = DefaultHasher::new();
        self.0.borrow().hash(&mut hash);
        hash.finish()
    }
}
