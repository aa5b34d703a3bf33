//! Who holds an object, or waits for it.

use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, Fabric};
use swarm_core::quorum::Session;
use swarm_core::register::Protocol;
use swarm_core::words::Incarnation;

use crate::client::handle::Client;

/// A place that a client has in an object, as a holder or as one that waits.
///
/// Slot and session name the client, for good: a session, the incarnation that a client attached with, never
/// comes back. The ticket tells its places apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seat {
    /// The client's slot.
    pub slot: usize,
    /// The incarnation with which it attached to the slot.
    pub session: Incarnation,
    /// Tells the places of one client apart.
    pub ticket: u32,
}

impl Seat {
    fn is_of(&self, session: Session) -> bool {
        (self.slot, self.session) == (session.client, session.incarnation)
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns a place that this client has nowhere yet.
    pub(crate) fn next_seat(&self) -> Seat {
        self.tickets.set(self.tickets.get().wrapping_add(1));
        self.seat(self.tickets.get())
    }

    /// Returns the place of this client with this ticket.
    pub(crate) fn seat(&self, ticket: u32) -> Seat {
        let Session { client: slot, incarnation: session } = self.attached;
        Seat { slot, session, ticket }
    }

    /// Whether the client that has this place has ended (O1). It may make a system call.
    pub(crate) fn is_seat_gone(&self, seat: &Seat) -> bool {
        !seat.is_of(self.attached)
            && self
                .participant
                .as_ref()
                .is_some_and(|participant| participant.domain().is_gone(seat.slot, seat.session))
    }
}
