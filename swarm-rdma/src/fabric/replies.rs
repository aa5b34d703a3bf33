//! Tickets: where the replies of chains wait until the caller takes them.
//!
//! **Invariant:** a ticket belongs to one [`Completion`](crate::Completion), until that takes the
//! reply or, after a detach, the chain completes; then it is reused.

use crate::verbs::Slot;

/// Where a reply lies in its slot, in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) start: u16,
    pub(crate) words: u32,
}

/// The state of a ticket.
pub(crate) enum Ticket {
    /// Free; names the next free ticket.
    Free(u32),
    /// An in-flight chain.
    Pending,
    /// An in-flight chain whose completion was dropped.
    Detached,
    /// A reply, in its slot.
    Ready(Slot, Extent),
    /// A reply that was moved out of its slot.
    Moved(Box<[u64]>),
    /// The node did not answer.
    Failed,
}

/// Ends the list of free tickets.
const NONE: u32 = u32::MAX;

/// All tickets of a fabric.
pub(crate) struct Tickets {
    tickets: Vec<Ticket>,
    free: u32,
}

impl Tickets {
    /// Allocates `count` tickets. More are added when needed.
    pub(crate) fn new(count: u32) -> Self {
        let mut tickets = Self { tickets: Vec::with_capacity(count as usize), free: NONE };
        for number in 0..count {
            tickets.tickets.push(Ticket::Free(tickets.free));
            tickets.free = number;
        }
        tickets
    }

    /// Issues a ticket for an in-flight chain.
    #[inline]
    pub(crate) fn issue(&mut self) -> u32 {
        let number = self.free;
        if number == NONE {
            return self.add();
        }
        if let Ticket::Free(next) =
            std::mem::replace(&mut self.tickets[number as usize], Ticket::Pending)
        {
            self.free = next;
        }
        number
    }

    #[cold]
    fn add(&mut self) -> u32 {
        let number = self.tickets.len() as u32;
        self.tickets.push(Ticket::Pending);
        number
    }

    /// Returns the state of ticket `number`.
    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> &mut Ticket {
        &mut self.tickets[number as usize]
    }

    /// Frees the ticket and returns its last state.
    #[inline]
    pub(crate) fn close(&mut self, number: u32) -> Ticket {
        let next = std::mem::replace(&mut self.free, number);
        std::mem::replace(&mut self.tickets[number as usize], Ticket::Free(next))
    }

    /// Finds a reply that lies in a slot of `class`.
    pub(crate) fn ready_in(&mut self, class: usize) -> Option<&mut Ticket> {
        self.tickets
            .iter_mut()
            .find(|ticket| matches!(ticket, Ticket::Ready(slot, _) if slot.class() == class))
    }
}
