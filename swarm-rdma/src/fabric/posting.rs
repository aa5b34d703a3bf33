//! From a chain to one call to the device.
//!
//! The work requests of a chain go out linked, by one doorbell, and only the last is signalled. Small
//! WRITEs go inline; what larger ones carry is copied to behind the place of the reply. A chain that
//! waited for this one goes out in front of it, in the same call.

use swarm_core::fabric::Verb;
use swarm_core::node::NodeId;

use super::{Flight, RdmaFabric};
use crate::chain::plan;
use crate::doors::Joined;
use crate::link::Link;
use crate::tickets::Ticket;
use crate::verbs::{Slot, Slots};

/// What became of a chain that was posted.
pub(super) enum Posted {
    /// It is under way.
    Ticket(u32),
    /// There was nothing to do.
    Empty,
}

impl RdmaFabric {
    /// Posts, if the node is up and the chain leads nowhere else. `None` if not. A chain that has
    /// waited for this one goes out in front of it, and both under its number.
    #[inline]
    pub(super) fn try_post(&self, node: NodeId, chain: &[Verb<'_>], number: u64) -> Option<Posted> {
        let link = self.links.get(node.index())?;
        let joined = self.joined(node.index(), link)?;
        let rider = link.rider().borrow();
        if rider.is_empty() {
            drop(rider);
            return self.post_on(node, link, &joined, (chain, number), 0);
        }
        let (together, words) = rider.with(chain);
        let number = link.rider_number();
        let posted = self.post_on(node, link, &joined, (&together, number), words);
        drop(together);
        drop(rider);
        link.rider().borrow_mut().clear();
        posted
    }

    /// Posts `chain`, the first `skipped` words of whose reply nobody wants.
    #[inline]
    fn post_on(
        &self,
        node: NodeId,
        link: &Link,
        joined: &Joined,
        (chain, number): (&[Verb<'_>], u64),
        skipped: usize,
    ) -> Option<Posted> {
        if link.asked().any() && chain.iter().any(|verb| !matches!(verb, Verb::Read { .. })) {
            // What has ended already need not be waited for.
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
            // It was lost while this waited for room.
            self.slots.give(slot);
            return None;
        }
        self.copy_in(&mut slot, chain, planned.words, joined.connection.limits().inline as usize);
        let ticket = self.tickets.borrow_mut().issue();
        self.flights.borrow_mut()[slot.index() as usize] = Flight {
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

    /// Posts what waits for a next chain to go out with.
    pub fn flush(&self) {
        for (number, link) in self.links.iter().enumerate() {
            if !link.rider().borrow().is_empty()
                && let Some(Posted::Ticket(ticket)) = self.try_post(NodeId(number as u8), &[], 0)
            {
                self.detach(ticket);
            }
        }
    }

    /// Copies what is not posted inline to behind the chain's reply.
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

    /// A slot of a class that has none left: of a reply that nobody has taken yet, which is moved
    /// elsewhere, or of the next chain that ends.
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
