//! Turns completions into replies.
//!
//! **Invariant:** a slot is returned to the [`Slots`](crate::verbs::Slots) once, after the
//! completion of its chain: at once if the chain failed or its reply was dropped, else when the
//! reply is dropped or moved out.

use swarm_core::fabric::NodeDown;

use super::RdmaFabric;
use crate::fabric::completion::{Reply, Words};
use crate::fabric::replies::{Extent, Ticket};
use crate::verbs::{Done, Slot, status_text};

impl RdmaFabric {
    /// Detaches a chain: it still runs, and its reply is discarded.
    #[inline]
    pub(crate) fn detach(&self, number: u32) {
        let mut tickets = self.tickets.borrow_mut();
        let ticket = tickets.get(number);
        if matches!(ticket, Ticket::Pending) {
            *ticket = Ticket::Detached;
        } else if let Ticket::Ready(slot, _) = tickets.close(number) {
            self.slots.give(slot);
        }
    }

    /// Takes available completions. Returns whether there were any.
    #[inline]
    pub(crate) fn progress(&self) -> bool {
        match self.queue.poll(&self.slots, |done| self.complete(done)) {
            Ok(count) => count > 0,
            Err(error) => {
                for node in 0..self.links.len() {
                    self.lose(node, &format!("polling failed: {error}"));
                }
                false
            }
        }
    }

    #[inline]
    fn complete(&self, done: Done) {
        #[cfg(test)]
        let done = Done { status: self.injected_status.take().unwrap_or(done.status), ..done };
        let mut flights = self.flights.borrow_mut();
        let Some(flight) = flights.get_mut(done.index as usize) else { return };
        let node = usize::from(flight.node);
        if done.status != 0 {
            flight.failed = true;
            self.lose(node, &status_text(done.status));
        }
        let Some(slot) = done.slot else { return };
        let flight = *flight;
        drop(flights);
        let link = &self.links[node];
        link.completed(u32::from(flight.work), flight.asked);
        let mut tickets = self.tickets.borrow_mut();
        let ticket = tickets.get(flight.ticket);
        if matches!(ticket, Ticket::Detached) {
            tickets.close(flight.ticket);
            self.slots.give(slot);
        } else if flight.failed {
            *ticket = Ticket::Failed;
            self.slots.give(slot);
        } else {
            *ticket = Ticket::Ready(slot, Extent { start: flight.start, words: flight.words });
        }
        drop(tickets);
        if flight.failed {
            self.retire(node);
        }
    }

    /// Returns the words of a reply in its slot.
    #[inline]
    pub(crate) fn words<'s>(&'s self, slot: &'s Slot, extent: Extent) -> &'s [u64] {
        let start = usize::from(extent.start);
        &self.slots.words(slot, start + extent.words as usize)[start..]
    }

    /// Takes the reply of a chain, if the chain is complete, and frees its ticket.
    #[inline]
    pub(crate) fn redeem(&self, number: u32) -> Option<Result<Reply<'_>, NodeDown>> {
        let mut tickets = self.tickets.borrow_mut();
        if matches!(tickets.get(number), Ticket::Pending) {
            return None;
        }
        let ticket = tickets.close(number);
        drop(tickets);
        Some(match ticket {
            // Replies that callers keep must not use up the slots: chains need some.
            Ticket::Ready(slot, extent) if self.slots.is_short(slot.class()) => {
                let moved = self.words(&slot, extent).into();
                self.slots.give(slot);
                Ok(Reply(Words::Moved(moved)))
            }
            Ticket::Ready(slot, extent) => {
                Ok(Reply(Words::Lent { fabric: self, slot: Some(slot), extent }))
            }
            Ticket::Moved(words) => Ok(Reply(Words::Moved(words))),
            _ => Err(NodeDown),
        })
    }

    /// Returns the slot of a dropped reply.
    #[inline]
    pub(crate) fn give(&self, slot: Slot) {
        self.slots.give(slot);
    }
}
