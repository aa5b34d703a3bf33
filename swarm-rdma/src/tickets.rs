//! Tickets: where the replies of chains wait for those who posted them.
//!
//! The invariant: a ticket has one holder, its [`Completion`](crate::Completion), until the reply is
//! taken or the holder lets go; then it is given out again.

use crate::verbs::Slot;

/// Where a reply is in its slot, in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) start: u16,
    pub(crate) words: u32,
}

/// What a ticket stands for.
pub(crate) enum Ticket {
    /// Nothing: it is free. The next free one.
    Free(u32),
    /// A chain that is under way.
    Pending,
    /// A chain that is under way and that nobody waits for.
    Detached,
    /// A reply, in its slot.
    Ready(Slot, Extent),
    /// A reply that had to leave its slot.
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
    /// `count` tickets; there will be more when they are needed.
    pub(crate) fn new(count: u32) -> Self {
        let mut tickets = Self { tickets: Vec::with_capacity(count as usize), free: NONE };
        for number in 0..count {
            tickets.tickets.push(Ticket::Free(tickets.free));
            tickets.free = number;
        }
        tickets
    }

    /// A ticket for a chain that is under way.
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

    /// What ticket `number` stands for.
    #[inline]
    pub(crate) fn get(&mut self, number: u32) -> &mut Ticket {
        &mut self.tickets[number as usize]
    }

    /// What the ticket stood for; it is free from now on.
    #[inline]
    pub(crate) fn close(&mut self, number: u32) -> Ticket {
        let next = std::mem::replace(&mut self.free, number);
        std::mem::replace(&mut self.tickets[number as usize], Ticket::Free(next))
    }

    /// A reply that lies in a slot of `class`, if there is one.
    pub(crate) fn ready_in(&mut self, class: usize) -> Option<&mut Ticket> {
        self.tickets
            .iter_mut()
            .find(|ticket| matches!(ticket, Ticket::Ready(slot, _) if slot.class() == class))
    }
}
