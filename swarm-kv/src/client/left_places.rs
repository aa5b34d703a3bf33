//! Places in [objects](crate::objects) that this client gave up half-way: a future was dropped, or an operation failed.
//!
//! **Invariant (O5):** one stays listed until it is known that the object does not have it, and never will.

use std::cell::RefCell;

/// A place that may be there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LeftPlace {
    /// The object's key.
    pub(crate) name: Box<[u8]>,
    /// How its value begins.
    pub(crate) kind: [u8; 8],
    /// The number that it is used with.
    pub(crate) number: u32,
    pub(crate) ticket: u32,
}

/// All of them.
#[derive(Default)]
pub(crate) struct LeftPlaces(RefCell<Vec<LeftPlace>>);

impl LeftPlaces {
    pub(crate) fn add(&self, place: LeftPlace) {
        self.0.borrow_mut().push(place);
    }

    pub(crate) fn are_none(&self) -> bool {
        self.0.borrow().is_empty()
    }

    pub(crate) fn first(&self) -> Option<LeftPlace> {
        self.0.borrow().first().cloned()
    }

    /// Several tasks may give up the same one.
    pub(crate) fn remove(&self, place: &LeftPlace) {
        self.0.borrow_mut().retain(|it| it != place);
    }
}
