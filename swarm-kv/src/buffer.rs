//! A buffer for a write.
//!
//! First what [leaves out](swarm_core::layout) the node that operations on the register turn to last. Where
//! nodes are silent, what those do without will do, or what all nodes hold; where memory is short, what
//! another node does without. What is at hand costs no roundtrip.

use std::iter::once;

use swarm_core::clock::Clock;
use swarm_core::fabric::{Board, Fabric};
use swarm_core::layout::Site;
use swarm_core::node::MAX_NODES;
use swarm_core::register::{Protocol, Register, Write};
use swarm_core::words::Pointer;

use crate::client::Client;
use crate::error::Error;
use crate::heap::{Entry, Kind, Need, Taken};

/// Words of a buffer that are asked for ahead: what follows the processor fetches along.
const EXPECTED: usize = 16;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// The kind of buffer for a write of `value` to a register.
    #[inline]
    pub(crate) fn buffer(&self, register: &Register, value: &[u8]) -> Kind {
        self.heap.buffer(value.len(), self.group.left_out(register.home()))
    }

    /// A fresh number and a fresh buffer, if memory is at hand, for a write that is over, or notes the buffer as
    /// [handed out](crate::heap::Recycler::handed_out), before anything else happens.
    #[inline(always)]
    pub(crate) fn new_write_now<'v>(
        &self,
        register: &Register,
        value: &'v [u8],
    ) -> Option<(Write<'v>, Taken)> {
        let kind = self.buffer(register, value);
        let before = self.geometry.format.pointer(register.last_stamp());
        let need = self.heap.need_instead_of(before, kind);
        let taken =
            match self.heap.take_buffer_now(kind, need, |next, entry| self.expect(next, entry)) {
                Some(taken) => taken,
                None => self.heap.taken(self.buffer_now(kind, need)?),
            };
        match self.group.number() {
            Some(number) => Some((Write { number, buffer: taken.buffer, value }, taken)),
            None => {
                self.heap.take_back(taken.buffer);
                None
            }
        }
    }

    /// Asks for the memory of the buffer that comes next of those that came back. It is in nobody's cache any more,
    /// and lies nowhere near this one, unlike the next of those that were never used.
    #[inline(always)]
    fn expect(&self, next: &Site, entry: Option<&Entry>) {
        if let Some(entry) = entry {
            self.group.fabric().bring(entry);
        }
        for node in next.holders {
            let at = next.place.at(node, self.group.nodes());
            self.group.fabric().expect_change(node, at, EXPECTED);
        }
    }

    /// A fresh number and a fresh buffer of this kind for a write of `value`; `others`: or of another kind
    /// that will do.
    pub(crate) async fn new_write<'v>(
        &self,
        kind: Kind,
        value: &'v [u8],
        need: Need,
        others: bool,
    ) -> Result<Write<'v>, Error> {
        let others = if others { self.others(kind, value.len()) } else { Others::new() };
        let kinds = || once(kind).chain(others.iter().copied());
        // What is at hand for another register is no substitute while no node is silent: its home may
        // be the node that does without.
        let as_good = if self.group.suspects().is_empty() { 1 } else { kinds().count() };
        let at_hand = kinds().take(as_good).find_map(|kind| self.buffer_now(kind, need));
        let buffer = match at_hand {
            Some(buffer) => buffer,
            None => self.more_memory(kinds(), need).await?,
        };
        match self.number() {
            Ok(number) => Ok(Write { number, buffer, value }),
            Err(spent) => {
                self.heap.take_back(buffer);
                Err(spent)
            }
        }
    }

    /// Other kinds of buffer that will do for a value of this length, though none that a silent node has to
    /// hold: those that it does without.
    fn others(&self, kind: Kind, length: usize) -> Others {
        let suspects = self.group.suspects();
        if suspects.is_empty() {
            return self.heap.homes_for(kind).skip(1).collect();
        }
        suspects.map(|silent| self.heap.buffer(length, Some(silent))).collect()
    }

    /// A buffer that is at hand.
    #[inline]
    fn buffer_now(&self, kind: Kind, need: Need) -> Option<Pointer> {
        let buffer = self.heap.take_buffer(kind, need);
        buffer.or_else(|| self.buffer_back(kind, need, self.reclaimed_at_once))
    }

    /// A buffer, if at least so many have come back since.
    #[cold]
    fn buffer_back(&self, kind: Kind, need: Need, least: usize) -> Option<Pointer> {
        let presence = self.presence.as_ref()?;
        presence.settle(self.group.fabric());
        let board = presence.board();
        let watched = board.keeps_watch();
        self.heap.reclaim(kind, board.advance(), least, |buffer| {
            if watched && let Some(site) = self.heap.site(kind, buffer) {
                board.reclaimed(&site);
            }
        });
        self.heap.take_buffer(kind, need)
    }

    /// Memory that was never used, or as little as came back if there is no such: of the first of these kinds
    /// that there is some of.
    #[cold]
    async fn more_memory(
        &self,
        kinds: impl Iterator<Item = Kind>,
        need: Need,
    ) -> Result<Pointer, Error> {
        let mut refused = None;
        for kind in kinds {
            match self.allocate_there(kind, need).await {
                Err(Error::Full(full)) => refused = refused.or(Some(full)),
                told => return told,
            }
            if let Some(buffer) = self.buffer_back(kind, need, 1) {
                return Ok(buffer);
            }
        }
        Err(refused.map_or(Error::Contended, Error::Full))
    }
}

type Others = heapless::Vec<Kind, MAX_NODES>;
