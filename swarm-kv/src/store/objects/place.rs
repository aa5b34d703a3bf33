//! A place that a handle has in an object, and places that were left half-way.
//!
//! **Invariant (O5):** a place that was not left stays listed until it is known that the object does not have it, and never will. Each
//! operation of the handle that takes a place, waits, or releases one first gives up what is listed, by whichever client it has. What
//! the operation that was to take the place had posted is in the nodes' memory by then, as nodes are near: another client's read
//! comes after it as its own would.

use std::thread;

use swarm_core::register::safe_guess::SafeGuess;
use swarm_shm::PoolClock;

use crate::client::handle::check_key;
use crate::client::location_cache::hash_key;
use crate::error::Error;
use crate::objects::waiting::Queued;
use crate::objects::{ObjectError, ObjectKind, Seat};
use crate::runtime::block_on::block_on;
use crate::store::Store;
use crate::store::lock::Lock;
use crate::store::whole::{Lent, Movable, on_client};

/// An object: its name, what it is to be, and the number that it is used with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Named {
    pub(super) name: Box<[u8]>,
    pub(super) kind: ObjectKind,
    pub(super) number: u32,
}

impl Named {
    pub(super) fn new(name: &[u8], kind: ObjectKind, number: u32) -> Self {
        Self { name: name.into(), kind, number }
    }

    /// The object as this client sees it, if it is one that is queued for.
    pub(super) fn queue<'c, F: Movable>(
        &self,
        client: &'c Lent<F>,
    ) -> Queued<'c, F, PoolClock, SafeGuess> {
        Queued { client, name: self.name.clone(), kind: self.kind, units: self.number }
    }
}

/// Places that may be there, and are to be given up.
#[derive(Default)]
pub(in crate::store) struct LeftPlaces(Lock<Vec<(Named, Seat)>>);

impl LeftPlaces {
    fn first(&self) -> Option<(Named, Seat)> {
        self.0.lock().first().cloned()
    }

    /// Gives up all of them. Several threads may give up the same one.
    async fn give_up<F: Movable>(&self, client: &Lent<F>) -> Result<(), ObjectError> {
        while let Some(left) = self.first() {
            let (Named { name, kind, number }, seat) = &left;
            client.gives_up_place(name, (*kind, *number), *seat).await?;
            self.0.lock().retain(|it| *it != left);
        }
        Ok(())
    }
}

impl<F: Movable> Store<F> {
    /// O5: gives up the places that were left half-way.
    pub(super) async fn gives_up_places(&self) -> Result<(), ObjectError> {
        // In a child the thread that has the list may not be there.
        if self.0.clients.is_elsewhere() {
            return Err(Error::Forked.into());
        }
        if self.0.left_places.first().is_none() {
            return Ok(());
        }
        on_client(&self.0.clients, &self.0.left_places, async |client: &Lent<F>, left| {
            left.give_up(client).await
        })
        .await
    }

    /// Returns the hash of a key, in the process that opened the handle.
    pub(super) fn hash(&self, key: &[u8]) -> Result<u64, Error> {
        // S7: a child announces to nobody that it waits.
        if self.0.clients.is_elsewhere() {
            return Err(Error::Forked);
        }
        check_key(key)?;
        Ok(hash_key(key, self.0.pool.geometry().hash_seed))
    }

    /// Returns a seat that nobody has, and the hash of an object's name, before anything else is done with it.
    pub(super) async fn begins(&self, name: &[u8]) -> Result<(Seat, u64), ObjectError> {
        self.gives_up_places().await?;
        let hash = self.hash(name)?;
        let seat = async |client: &Lent<F>, ()| Ok::<_, Error>(client.next_seat());
        Ok((on_client(&self.0.clients, (), seat).await?, hash))
    }

    /// Gives up a place at once, if a client is free; else another thread waits for one.
    fn leaves_place(&self, object: Named, seat: Seat) {
        // S7: a child's copy has no place.
        if self.0.clients.is_elsewhere() {
            return;
        }
        self.0.left_places.0.lock().push((object, seat));
        // What fails stays on the list.
        if let Some(client) = self.0.clients.lend_now() {
            let _ = block_on(self.0.left_places.give_up(&client));
            return;
        }
        let store = self.clone();
        let gives_up = move || {
            if let Ok(client) = store.0.clients.lend_blocking() {
                let _ = block_on(store.0.left_places.give_up(&client));
            }
        };
        drop(thread::Builder::new().name("swarm-leave".to_owned()).spawn(gives_up));
    }
}

/// A place in an object. Dropped before it was left, it is given up (O5).
pub(super) struct StorePlace<F: Movable> {
    pub(super) store: Store<F>,
    pub(super) object: Named,
    pub(super) seat: Seat,
    /// Whether it may be there.
    is_taken: bool,
}

impl<F: Movable> StorePlace<F> {
    /// One that is about to be taken.
    pub(super) fn new(store: &Store<F>, object: &Named, seat: Seat) -> Self {
        Self { store: store.clone(), object: object.clone(), seat, is_taken: true }
    }

    /// Notes that it is not there, and never will be.
    pub(super) fn is_left(&mut self) {
        self.is_taken = false;
    }
}

impl<F: Movable> Drop for StorePlace<F> {
    fn drop(&mut self) {
        if self.is_taken {
            self.store.leaves_place(self.object.clone(), self.seat);
        }
    }
}
