//! Chooses the buffer for a write.
//!
//! The first choice is a buffer that [leaves out](swarm_core::layout) the node to which operations
//! on the register turn last. While nodes are silent, a buffer without a copy at a silent node will
//! do, or one that all nodes hold. Where memory is short, a buffer without a copy at any other node
//! will do. A free buffer costs no roundtrip.

use std::iter::once;

use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, Fabric};
use swarm_core::layout::ReplicaSet;
use swarm_core::node::MAX_NODES;
use swarm_core::register::{Protocol, Register, Write};
use swarm_core::words::Pointer;

use crate::client::handle::Client;
use crate::error::Error;
use crate::heap::{ObjectKind, ObjectState, Purpose, Taken};

/// Words of a buffer that are prefetched; the processor fetches what follows by itself.
const EXPECTED: usize = 16;

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Returns the kind of buffer for a write of `value` to a register.
    #[inline]
    pub(crate) fn buffer(&self, register: &Register, value: &[u8]) -> ObjectKind {
        self.heap.buffer(value.len(), self.group.left_out(register.home()))
    }

    /// Takes a fresh number and a free buffer, for a caller whose write is over, or that marks the
    /// buffer as [handed out](crate::heap::Reclaimer::handed_out), before anything else happens.
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
                None => Taken::new(self.buffer_now(kind, need)?),
            };
        match self.group.number() {
            Some(number) => Some((Write { number, buffer: taken.buffer, value }, taken)),
            None => {
                self.heap.take_back(taken.buffer);
                None
            }
        }
    }

    /// Prefetches the next reclaimed buffer. It is in no processor's cache any more, and lies
    /// nowhere near this one, unlike the next buffer that was never used.
    #[inline(always)]
    fn expect(&self, next: &ReplicaSet, entry: Option<&ObjectState>) {
        if let Some(entry) = entry {
            self.group.fabric().prefetch_local(entry);
        }
        self.group.expect_buffer(next, EXPECTED);
    }

    /// Takes a fresh number and a buffer of this kind for a write of `value`; if `others`, or of
    /// another kind that will do.
    pub(crate) async fn new_write<'v>(
        &self,
        kind: ObjectKind,
        value: &'v [u8],
        need: Purpose,
        others: bool,
    ) -> Result<Write<'v>, Error> {
        let others = if others { self.others(kind, value.len()) } else { Others::new() };
        let kinds = || once(kind).chain(others.iter().copied());
        // While no node is silent, a free buffer for other homes is no substitute: the register's
        // home may be the node without a copy.
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

    /// Returns other kinds of buffer that will do for a value of this length; while nodes are
    /// silent, those without a copy at one of them.
    fn others(&self, kind: ObjectKind, length: usize) -> Others {
        let suspects = self.group.suspects();
        if suspects.is_empty() {
            return self.heap.homes_for(kind).skip(1).collect();
        }
        suspects.map(|silent| self.heap.buffer(length, Some(silent))).collect()
    }

    /// Takes a free buffer.
    #[inline]
    fn buffer_now(&self, kind: ObjectKind, need: Purpose) -> Option<Pointer> {
        let buffer = self.heap.take_buffer(kind, need);
        buffer.or_else(|| self.buffer_back(kind, need, self.reclaimed_at_once))
    }

    /// Takes a reclaimed buffer, if at least `least` can be freed now.
    #[cold]
    fn buffer_back(&self, kind: ObjectKind, need: Purpose, least: usize) -> Option<Pointer> {
        let participant = self.participant.as_ref()?;
        participant.unpin_completed(self.group.fabric());
        let domain = participant.domain();
        let watched = domain.keeps_watch();
        self.heap.reclaim(kind, domain.try_advance(), least, |buffer| {
            if watched && let Some(site) = self.heap.site(kind, buffer) {
                domain.reclaimed(&site);
            }
        });
        self.heap.take_buffer(kind, need)
    }

    /// Takes memory that was never used, or else reclaims as little as there is: of the first of
    /// these kinds that has some.
    #[cold]
    async fn more_memory(
        &self,
        kinds: impl Iterator<Item = ObjectKind>,
        need: Purpose,
    ) -> Result<Pointer, Error> {
        let mut refused = None;
        for kind in kinds {
            match self.allocate_there(kind, need).await {
                Err(Error::Full(full)) => refused = refused.or(Some(full)),
                outcome => return outcome,
            }
            if let Some(buffer) = self.buffer_back(kind, need, 1) {
                return Ok(buffer);
            }
        }
        Err(refused.map_or(Error::Contended, Error::Full))
    }
}

type Others = heapless::Vec<ObjectKind, MAX_NODES>;
