//! Entering an object's queue, waiting, and leaving.
//!
//! **Invariants:** a change of an object is made of the state that it is built on (Q1), so a client that enters, leaves
//! or takes a dead client's place does so in the very state in which it found that. A place that its client
//! gave up half-way, as its future was dropped or an operation failed, is remembered until it is known to be
//! gone (O5): a client that lives on keeps nobody waiting for nothing.
//!
//! Roundtrips: to enter and to leave take a change each, one roundtrip for the client that changed the object
//! last, and up to five after another client. While it waits a client reads the cell every so often
//! ([`pace`](crate::objects::pace)): one roundtrip, and on shared memory a system call for each holder.

use std::cell::Cell;
use std::time::Duration;

use swarm_core::clock::Clock;
use swarm_core::fabric::Fabric;
use swarm_core::register::Protocol;

use crate::client::handle::Client;
use crate::client::left_places::LeftPlace;
use crate::client::waiting::Prepared;
use crate::error::Error;
use crate::objects::error::ObjectError;
use crate::objects::guard::Guard;
use crate::objects::kind::ObjectKind;
use crate::objects::seat::Seat;
use crate::objects::turnstile::{QueueView, ROOM, Standing, Turnstile};
use crate::ops::modify::Next;
use crate::runtime::block_on::block_on;

/// An object that clients hold and queue up for, as one client sees it.
pub(crate) struct Queued<'c, F: Fabric, C: Clock, P: Protocol> {
    pub(crate) client: &'c Client<F, C, P>,
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: ObjectKind,
    /// Its units, if it is new.
    pub(crate) units: u32,
}

impl<'c, F: Fabric, C: Clock, P: Protocol> Queued<'c, F, C, P> {
    /// Changes the state by `step`, and returns what `read` makes of what is there then.
    async fn change<T>(
        &self,
        step: impl Fn(&mut Turnstile),
        read: impl FnOnce(&Turnstile) -> T,
    ) -> Result<T, ObjectError> {
        // What there is after the last call, which counts: nothing is decoded again to return it.
        let mut made = None;
        let mut choice = |value: Option<&[u8]>| {
            // What is no such object stays as it is, and is reported below.
            let Ok(state) = made.insert(self.state(value)) else { return Ok(Next::Keep) };
            step(state);
            // What is as it was is kept.
            if value.is_none() && state.is_unused() {
                return Ok(Next::Keep);
            }
            Ok(Next::Put(state.encode_in(self.kind, self.client.spare_value.take())))
        };
        // For the assertion alone.
        let after = |_: Option<&[u8]>, after: Option<&[u8]>| {
            cfg!(debug_assertions).then(|| after.map(<[u8]>::to_vec))
        };
        let after = self.client.modify(&self.name, Some(ROOM), &mut choice, after).await?;
        let made = made.as_ref().expect("what took effect was chosen");
        debug_assert!(after.is_none_or(|after| self.state(after.as_deref()) == *made));
        match made {
            Ok(state) => Ok(read(state)),
            Err(error) => Err(*error),
        }
    }

    /// Returns the state that a value is.
    #[inline]
    fn state(&self, value: Option<&[u8]>) -> Result<Turnstile, ObjectError> {
        let Some(value) = value else { return Ok(Turnstile::new(self.units)) };
        let Some(state) = Turnstile::decode(self.kind, value) else {
            return Err(self.why_not(value));
        };
        let (wanted, found) = (self.units, state.units());
        match self.kind {
            _ if wanted == found => Ok(state),
            // One that is done has none.
            ObjectKind::Once if found == 0 => Ok(state),
            ObjectKind::Semaphore if found > 0 => Err(ObjectError::OtherNumber { wanted, found }),
            _ => Err(Error::DAMAGED.into()),
        }
    }

    /// Returns why a value is no state of this object.
    #[cold]
    fn why_not(&self, value: &[u8]) -> ObjectError {
        let (wanted, found) = (self.kind, ObjectKind::of(value));
        match found == Some(wanted) {
            true => Error::DAMAGED.into(),
            false => ObjectError::OtherKind { wanted, found },
        }
    }

    /// Reads who holds it and who waits, and changes nothing.
    pub(crate) async fn view(&self) -> Result<QueueView, ObjectError> {
        let value = self.client.get(&self.name).await?;
        let state = self.state(value.as_deref())?;
        let value = state.encode(self.kind);
        QueueView::of(&value).ok_or(Error::DAMAGED.into())
    }

    /// Takes a place, and waits for its turn, for so long at most. `None` if that was too short, or if nobody
    /// gets a place any more. `sleep` lets the time between two looks pass.
    pub(crate) async fn enter(
        &self,
        weight: u16,
        limit: Option<Duration>,
        sleep: impl AsyncFn(Prepared, Duration),
    ) -> Result<Option<Guard<'_, F, C, P>>, ObjectError> {
        if !self.client.left_places.are_none() {
            self.client.gives_up_places().await?;
        }
        let mut place = Place::new(self, self.client.next_seat());
        let queues = limit != Some(Duration::ZERO);
        let look = async || match place.enter(weight, queues).await? {
            (Standing::Waits | Standing::Outside, _) => Ok(None),
            decided => Ok(Some(decided)),
        };
        match self.client.looks_until(&self.name, limit, sleep, look).await? {
            Some((Standing::Holds(token), unsettled)) => {
                Ok(Some(Guard::new(place, token, unsettled)))
            }
            // Closed.
            Some(_) => {
                place.is_taken = false;
                Ok(None)
            }
            None => place.gives_up(queues).await,
        }
    }

    /// Gives up a place that may be there. Where a read finds that it is not, it never will be: the one that was to take
    /// it goes on with nothing, and what it left behind is over with that read (C1, C7).
    pub(crate) async fn gives_up(&self, seat: Seat) -> Result<(), ObjectError> {
        let client = self.client;
        let step = |state: &mut Turnstile| state.leave(&seat, &|it| client.is_seat_gone(it));
        self.change(step, |_| ()).await
    }

    /// Takes the place of the holder with this token away. Returns whether it had one.
    pub(crate) async fn evict(&self, token: u64) -> Result<bool, ObjectError> {
        let client = self.client;
        client.gives_up_places().await?;
        let was_there = Cell::new(false);
        let step = |state: &mut Turnstile| {
            was_there.set(state.has(token));
            state.evict(token, &|seat| client.is_seat_gone(seat));
        };
        self.change(step, |_| ()).await?;
        Ok(was_there.get())
    }
}

/// A place in an object. Dropped before it was left, it is remembered (O5): the next operation of its client on
/// any object gives it up. On synchronous memory that is done at once.
pub(crate) struct Place<'l, F: Fabric, C: Clock, P: Protocol> {
    pub(crate) object: &'l Queued<'l, F, C, P>,
    pub(crate) seat: Seat,
    /// Whether it may be there.
    is_taken: bool,
}

impl<'l, F: Fabric, C: Clock, P: Protocol> Place<'l, F, C, P> {
    /// One that is about to be taken.
    fn new(object: &'l Queued<'l, F, C, P>, seat: Seat) -> Self {
        Self { object, seat, is_taken: true }
    }

    /// One that somebody else gives up: a handle, which lends out a client to change it.
    pub(crate) fn of_handle(object: &'l Queued<'l, F, C, P>, seat: Seat) -> Self {
        Self { object, seat, is_taken: false }
    }

    /// Takes it, or looks what has become of it; takes dead clients out on the way.
    ///
    /// Returns its standing, and whether the object is unsettled.
    pub(crate) async fn enter(
        &self,
        weight: u16,
        queues: bool,
    ) -> Result<(Standing, bool), ObjectError> {
        let (client, seat) = (self.object.client, self.seat);
        let step = |state: &mut Turnstile| {
            state.enter((seat, weight), queues, &|other| client.is_seat_gone(other));
        };
        let read = |state: &Turnstile| (state.standing(&seat), state.is_unsettled());
        self.object.change(step, read).await
    }

    /// Leaves it if it only waits: it may have come in by now.
    pub(crate) async fn gives_up(
        mut self,
        has_queued: bool,
    ) -> Result<Option<Guard<'l, F, C, P>>, ObjectError> {
        if has_queued {
            let (client, seat) = (self.object.client, self.seat);
            let step = |state: &mut Turnstile| {
                if state.standing(&seat) == Standing::Waits {
                    state.leave(&seat, &|other| client.is_seat_gone(other));
                }
            };
            let read = |state: &Turnstile| (state.standing(&seat), state.is_unsettled());
            if let (Standing::Holds(token), unsettled) = self.object.change(step, read).await? {
                return Ok(Some(Guard::new(self, token, unsettled)));
            }
        }
        self.is_taken = false;
        Ok(None)
    }

    /// Leaves it as a holder. An error if it was taken away: then nothing is changed (O4).
    pub(crate) async fn leaves(&mut self, token: u64) -> Result<(), ObjectError> {
        let (client, seat) = (self.object.client, self.seat);
        self.ends(token, |state| state.leave(&seat, &|other| client.is_seat_gone(other))).await
    }

    /// The same, and takes all places away.
    pub(crate) async fn closes(&mut self, token: u64) -> Result<(), ObjectError> {
        self.ends(token, Turnstile::close).await
    }

    async fn ends(&mut self, token: u64, end: impl Fn(&mut Turnstile)) -> Result<(), ObjectError> {
        let (seat, was_there) = (self.seat, Cell::new(false));
        let step = |state: &mut Turnstile| {
            // O4: only a client that holds it changes it as a holder.
            was_there.set(state.standing(&seat) == Standing::Holds(token));
            if was_there.get() {
                end(state);
            }
        };
        let left = self.object.change(step, |_| ()).await;
        if matches!(
            left,
            Ok(()) | Err(ObjectError::OtherKind { .. } | ObjectError::OtherNumber { .. })
        ) {
            self.is_taken = false;
        }
        left?;
        if was_there.get() { Ok(()) } else { Err(ObjectError::TakenAway { token }) }
    }

    /// Notes as a holder that the object is settled. An error if it holds it no more.
    pub(crate) async fn settles(&self, token: u64) -> Result<(), ObjectError> {
        let (seat, was_there) = (self.seat, Cell::new(false));
        let step = |state: &mut Turnstile| {
            was_there.set(state.standing(&seat) == Standing::Holds(token));
            if was_there.get() {
                state.settles();
            }
        };
        self.object.change(step, |_| ()).await?;
        if was_there.get() { Ok(()) } else { Err(ObjectError::TakenAway { token }) }
    }

    /// Returns whether it is still a holder's.
    pub(crate) async fn holds(&self, token: u64) -> Result<bool, ObjectError> {
        let seat = self.seat;
        self.object.change(|_| {}, |state| state.standing(&seat) == Standing::Holds(token)).await
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Drop for Place<'_, F, C, P> {
    fn drop(&mut self) {
        let client = self.object.client;
        // S7: a child's copy has no place.
        if !self.is_taken || client.is_cut_off() {
            return;
        }
        let Queued { ref name, kind, units, .. } = *self.object;
        client.leaves_place(name, (kind, units), self.seat);
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// O5: notes a place in an object of this kind and number that is to be given up, and does so at once where
    /// nodes are near.
    pub(crate) fn leaves_place(&self, name: &[u8], (kind, number): (ObjectKind, u32), seat: Seat) {
        let (name, kind, ticket) = (name.into(), kind.header(), seat.ticket);
        self.left_places.add(LeftPlace { name, kind, number, ticket });
        if self.group.fabric().is_near() {
            // What fails stays on the list.
            let _ = block_on(self.gives_up_places());
        }
    }

    /// O5: gives up the places that were left half-way.
    pub(crate) async fn gives_up_places(&self) -> Result<(), ObjectError> {
        while let Some(left) = self.left_places.first() {
            let LeftPlace { name, kind, number, ticket } = left.clone();
            let kind = ObjectKind::of(&kind).expect("it was one");
            self.gives_up_place(&name, (kind, number), self.seat(ticket)).await?;
            self.left_places.remove(&left);
        }
        Ok(())
    }

    /// O5: gives up a place that may be there. An object that is another one by now does not have it.
    pub(crate) async fn gives_up_place(
        &self,
        name: &[u8],
        (kind, number): (ObjectKind, u32),
        seat: Seat,
    ) -> Result<(), ObjectError> {
        let given_up = match kind {
            ObjectKind::Barrier => self.barrier(name, number).gives_up(seat).await,
            _ => {
                Queued { client: self, name: name.into(), kind, units: number }.gives_up(seat).await
            }
        };
        match given_up {
            Err(ObjectError::OtherKind { .. } | ObjectError::OtherNumber { .. }) => Ok(()),
            given_up => given_up,
        }
    }
}
