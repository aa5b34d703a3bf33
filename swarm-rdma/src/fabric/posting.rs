//! Posts a chain with one call to the device.
//!
//! The work requests of a chain are linked and posted with one doorbell; only the last is
//! signalled. Small WRITEs are inline. The payload of larger ones is copied into the slot, after
//! the space for the reply. A deferred chain is posted before this one, in the same call.

use swarm_core::fabric::Verb;
use swarm_core::node::NodeId;

use super::{InFlight, RdmaFabric};
use crate::connector::handoff::Joined;
use crate::fabric::peer::Peer;
use crate::fabric::replies::Ticket;
use crate::fabric::work_requests::plan;
use crate::verbs::{Slot, Slots};

/// The outcome of posting a chain.
pub(super) enum Posted {
    /// The chain is in flight.
    Ticket(u32),
    /// The chain had no work requests.
    Empty,
}

impl RdmaFabric {
    /// Posts `chain`. Returns `None` if the node is down or the chain reaches outside of its
    /// memory. A deferred chain is posted before `chain`, and both count under its number.
    #[inline]
    pub(super) fn try_post(&self, node: NodeId, chain: &[Verb<'_>], number: u64) -> Option<Posted> {
        let link = self.links.get(node.index())?;
        let joined = self.joined(node.index(), link)?;
        let deferred = link.deferred().borrow();
        if deferred.is_empty() {
            drop(deferred);
            return self.post_on(node, link, &joined, (chain, number), 0);
        }
        let (together, words) = deferred.with(chain);
        let number = link.deferred_number();
        let posted = self.post_on(node, link, &joined, (&together, number), words);
        drop(together);
        drop(deferred);
        link.deferred().borrow_mut().clear();
        posted
    }

    /// Posts `chain`; the first `skipped` words of its reply are discarded.
    #[inline]
    fn post_on(
        &self,
        node: NodeId,
        link: &Peer,
        joined: &Joined,
        (chain, number): (&[Verb<'_>], u64),
        skipped: usize,
    ) -> Option<Posted> {
        if link.asked().any() && chain.iter().any(|verb| !matches!(verb, Verb::Read { .. })) {
            // Completed READs and atomics need no fence.
            self.progress();
        }
        let planned = plan(chain, joined.reach(), joined.connection.limits(), link.asked())?;
        if planned.work.is_empty() {
            return Some(Posted::Empty);
        }
        let class = Slots::class_for(planned.bytes)?;
        let count = planned.work.len() as u32;
        if link.room() < count {
            self.wait_for(|| (link.room() >= count).then_some(()))?;
        }
        let mut slot = match self.slots.take(class) {
            Some(slot) => slot,
            None => self.make_room(class)?,
        };
        if !link.is_up() {
            // The connection failed while this waited for room.
            self.slots.give(slot);
            return None;
        }
        self.copy_in(&mut slot, chain, planned.words, joined.connection.limits().inline as usize);
        let ticket = self.tickets.borrow_mut().issue();
        self.flights.borrow_mut()[slot.index() as usize] = InFlight {
            ticket,
            start: skipped as u16,
            words: (planned.words - skipped) as u32,
            node: node.0,
            work: count as u8,
            asked: planned.asked,
            failed: false,
        };
        let fenced = planned.work.iter().filter(|(_, fenced)| *fenced).count() as u64;
        let key = joined.card.rkey;
        if let Err(error) = joined.connection.post(&self.slots, slot, key, &planned.work) {
            self.tickets.borrow_mut().close(ticket);
            self.lose(node.index(), &format!("posting failed: {error}"));
            return None;
        }
        link.posted(count, planned.asked, number);
        self.count(|counters| {
            counters.chains += 1;
            counters.doorbells += 1;
            counters.signalled += 1;
            counters.work_requests += u64::from(count);
            counters.fenced += fenced;
        });
        Some(Posted::Ticket(ticket))
    }

    /// Posts all deferred chains.
    pub fn flush(&self) {
        for (number, link) in self.links.iter().enumerate() {
            if !link.deferred().borrow().is_empty()
                && let Some(Posted::Ticket(ticket)) = self.try_post(NodeId(number as u8), &[], 0)
            {
                self.detach(ticket);
            }
        }
    }

    /// Copies the payload that is not posted inline into the slot, after the space for the reply.
    #[inline]
    fn copy_in(&self, slot: &mut Slot, chain: &[Verb<'_>], words: usize, inline: usize) {
        let mut at = words * 8;
        for verb in chain {
            if let Verb::Write { head, tail, .. } = *verb {
                let bytes = head.len() * 8 + tail.len().next_multiple_of(8);
                if bytes > inline {
                    self.slots.put(slot, at, head, tail);
                    at += bytes;
                }
            }
        }
    }

    /// Returns a slot of a class that has none left. It moves a reply that was not taken yet out of
    /// its slot, or waits for the next chain to complete.
    #[cold]
    fn make_room(&self, class: usize) -> Option<Slot> {
        self.wait_for(|| {
            if let Some(slot) = self.slots.take(class) {
                return Some(slot);
            }
            let mut tickets = self.tickets.borrow_mut();
            let ticket = tickets.ready_in(class)?;
            match std::mem::replace(ticket, Ticket::Failed) {
                Ticket::Ready(slot, extent) => {
                    *ticket = Ticket::Moved(self.words(&slot, extent).into());
                    Some(slot)
                }
                other => {
                    *ticket = other;
                    None
                }
            }
        })
    }
}
