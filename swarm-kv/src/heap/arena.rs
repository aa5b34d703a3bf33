//! Handing out objects that were never used.
//!
//! Those of one kind come from an *arena*: a chunk of which so many objects are set aside. Where they
//! run out, more of the chunk are set aside; then it goes on in another chunk that the slot owns; then
//! one is [claimed](super::claim). Objects of a class for other homes run out at about the same time, so
//! what is done for one home is done for those along with it, in the same roundtrip.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::Class;
use swarm_core::node::{Address, MAX_NODES, NodeId, NodeSet};
use swarm_core::quorum::Group;
use swarm_core::words::Pointer;

use super::counter::{Counter, Raise, homes, raise_counters, read_counters};
use super::{CLAIM_TRIES, DAMAGED, Heap, Kind, Need};
use crate::error::Error;

/// Objects set aside at first; each time twice as many.
pub(super) const FIRST_BATCH: u64 = 8;
/// A chunk for heap-map records is claimed along when so few of them are left.
pub(super) const FEW_RECORDS: u64 = 3;

/// A chunk that objects of one kind are handed out from.
pub(super) struct Arena {
    pub(super) kind: Kind,
    pub(super) chunk: usize,
    /// The next object to hand out.
    next: u64,
    /// The counter: how many objects are set aside.
    counter: Counter,
    /// Objects in the chunk; of a shared one, the end of this client's range.
    limit: u64,
    batch: u64,
}

impl Arena {
    /// Of a shared chunk what its `counter` was moved past, from number `next` on.
    pub(super) fn of_range(kind: Kind, chunk: usize, next: u64, counter: Counter) -> Self {
        let limit = counter.objects();
        Self { kind, chunk, next, counter, limit, batch: limit - next }
    }

    /// Objects up to here are set aside.
    fn aside(&self) -> u64 {
        self.counter.objects()
    }

    /// So many more are set aside next, if the last `keep` of the chunk never are.
    fn more(&self, keep: u64) -> u64 {
        self.batch.min(self.limit.saturating_sub(keep).saturating_sub(self.aside()))
    }

    /// Whether half of what was set aside last is handed out.
    fn runs_out(&self) -> bool {
        self.aside() - self.next <= self.batch / 4
    }

    /// Objects of the chunk that were not handed out.
    pub(super) fn unused(&self) -> u64 {
        self.limit - self.next
    }
}

impl Heap {
    /// Memory for an object, at its kind's home if there is such. No roundtrip while objects are set
    /// aside.
    #[inline]
    pub(crate) async fn allocate<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        need: Need,
    ) -> Result<Pointer, Error> {
        self.allocate_at(group, kind, need, true).await
    }

    /// The same, at this home only; of a lean buffer, what this node and no other does without.
    #[inline]
    pub(crate) async fn allocate_there<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        need: Need,
    ) -> Result<Pointer, Error> {
        self.allocate_at(group, kind, need, false).await
    }

    #[inline]
    async fn allocate_at<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        need: Need,
        elsewhere: bool,
    ) -> Result<Pointer, Error> {
        match self.take_unused(kind, need) {
            Some(pointer) => Ok(pointer),
            None => {
                let slowly = self.allocate_slowly(group, kind, need, elsewhere);
                Box::pin(self.alone(group, slowly)).await
            }
        }
    }

    /// Memory for an object that is as good as never used, if such is at hand.
    #[inline]
    pub(super) fn take_unused(&self, kind: Kind, need: Need) -> Option<Pointer> {
        if !self.current.get() || self.keeps(kind, need) {
            return None;
        }
        self.take_new(kind)
    }

    #[inline]
    pub(super) fn take_new(&self, kind: Kind) -> Option<Pointer> {
        self.recycler.take_fresh(kind).or_else(|| self.take(kind))
    }

    /// How many objects of this kind the chunk at hand has that were not handed out.
    pub(super) fn unused(&self, kind: Kind) -> usize {
        let arenas = self.arenas.borrow();
        let arena = arenas.iter().find(|arena| arena.kind == kind);
        arena.map_or(0, Arena::unused) as usize
    }

    /// Memory for an object, if such objects are set aside.
    #[inline]
    fn take(&self, kind: Kind) -> Option<Pointer> {
        let mut arenas = self.arenas.borrow_mut();
        let arena = arenas.iter_mut().find(|arena| arena.kind == kind)?;
        if arena.next == arena.aside() {
            return None;
        }
        let index = arena.next;
        arena.next += 1;
        let object = self.geometry.object(arena.chunk, kind.class, kind.home, index);
        self.recycler.handed_out(object);
        Some(object)
    }

    #[cold]
    async fn allocate_slowly<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        need: Need,
        elsewhere: bool,
    ) -> Result<Pointer, Error> {
        // A chunk more takes a record. Others that are as large must leave some.
        let keep = if kind == self.records() { FEW_RECORDS } else { 0 };
        // Each round gets further: an object, a chunk that is owned already, a chunk more.
        for _ in 0..CLAIM_TRIES {
            for kind in self.homes_for(kind).take(if elsewhere { MAX_NODES } else { 1 }) {
                if let Some(pointer) = self.take_own(group, kind, need, keep).await? {
                    return Ok(pointer);
                }
            }
            if need == Need::Room {
                return Err(self.full(kind, need));
            }
            if self.shares(kind) && self.take_shared(group, kind, elsewhere).await? {
                continue;
            }
            match self.claim(group, kind, need).await {
                // However much this client has had of it.
                Err(Error::Full(_)) if self.take_shared(group, kind, elsewhere).await? => {}
                claimed => claimed?,
            }
        }
        Err(Error::Contended)
    }

    /// Where objects of this kind may have their home: first where it is wanted. A chunk has as many for
    /// each home, and keys do not come so evenly. The node that a buffer does without is a register's home
    /// last.
    pub(crate) fn homes_for(&self, kind: Kind) -> impl Iterator<Item = Kind> + use<> {
        let (first, all) = (kind.home.0, homes(&self.geometry, kind.class).len() as u8);
        let back = matches!(kind.class, Class::Lean(_));
        (0..all).map(move |step| {
            let step = if back { all - step } else { step };
            Kind { home: NodeId((first + step) % all), ..kind }
        })
    }

    /// An object from the chunks that this slot owns already, as far as the map at hand tells. The
    /// last `keep` objects of a chunk are not set aside.
    pub(super) async fn take_own<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        need: Need,
        keep: u64,
    ) -> Result<Option<Pointer>, Error> {
        loop {
            self.read_current(group).await?;
            if let Some(pointer) = self.take_unused(kind, need) {
                return Ok(Some(pointer));
            }
            if self.keeps(kind, need) && self.unread(kind).is_empty() {
                return Ok(None);
            }
            if self.set_aside(group, kind, keep).await? {
                continue;
            }
            if !self.open_chunk(group, kind).await? {
                return Ok(None);
            }
        }
    }

    /// Sets more objects aside in the chunk at hand. False if it has no more.
    async fn set_aside<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
        keep: u64,
    ) -> Result<bool, Error> {
        let due = |arena: &&Arena| {
            arena.kind == kind || arena.kind.at(kind.home) == kind && arena.runs_out()
        };
        let (kinds, raises): (Vec<Kind>, Vec<Raise>) = (self.arenas.borrow().iter())
            .filter(due)
            .filter(|arena| arena.more(keep) > 0)
            .map(|arena| {
                let at = self.geometry.counter(arena.chunk, arena.kind.home);
                let to = arena.aside() + arena.more(keep);
                (arena.kind, Raise { at, from: arena.counter, to, slot: self.slot })
            })
            .unzip();
        if !kinds.contains(&kind) {
            return Ok(false);
        }
        raise_counters(group, &raises).await?;
        for arena in self.arenas.borrow_mut().iter_mut() {
            if let Some(at) = kinds.iter().position(|kind| *kind == arena.kind) {
                arena.counter = raises[at].raised();
                arena.batch = (arena.batch * 2).min(arena.limit);
            }
        }
        Ok(true)
    }

    /// Goes on in another chunk of this kind that the slot owns, for all homes that want one. False if
    /// there is none with room.
    async fn open_chunk<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: Kind,
    ) -> Result<bool, Error> {
        let mut closed: Vec<Kind> =
            self.homes_for(kind).filter(|&other| other == kind || !self.has_more(other)).collect();
        while closed.contains(&kind) {
            let mut unread = self.unread(kind);
            unread.truncate(MAX_VERBS / closed.len());
            if unread.is_empty() {
                return Ok(false);
            }
            let wanted: Vec<(usize, Kind)> =
                unread.iter().flat_map(|&chunk| closed.iter().map(move |&k| (chunk, k))).collect();
            let counters: Vec<Address> =
                wanted.iter().map(|&(chunk, k)| self.geometry.counter(chunk, k.home)).collect();
            let read = read_counters(group, &counters).await?;
            for (&(chunk, kind), &counter) in wanted.iter().zip(&read) {
                let is_closed = closed.contains(&kind);
                if is_closed && self.open_arena(chunk, kind, counter)? {
                    closed.retain(|&other| other != kind);
                }
            }
        }
        Ok(true)
    }

    /// Goes on in this chunk, whose counter shows this. False if it has no room, or was looked at before.
    fn open_arena(&self, chunk: usize, kind: Kind, counter: Counter) -> Result<bool, Error> {
        let (limit, next) = (self.geometry.objects(kind.class), counter.objects());
        let is_new = self.known.borrow_mut().insert((chunk, kind.home));
        if next > limit {
            return Err(DAMAGED);
        }
        if !is_new || next == limit {
            return Ok(false);
        }
        self.replace_arena(Arena { kind, chunk, next, counter, limit, batch: FIRST_BATCH });
        self.recycler.open(chunk, kind, next);
        Ok(true)
    }

    /// Goes on with this one. What is left of the one before stays at hand.
    pub(super) fn replace_arena(&self, mut arena: Arena) {
        let mut arenas = self.arenas.borrow_mut();
        if let Some(at) = arenas.iter().position(|last| last.kind == arena.kind) {
            let last = arenas.swap_remove(at);
            self.recycler.renewed(arena.kind, &self.left_over(&last));
            arena.batch = arena.batch.max(last.batch);
        }
        arenas.push(arena);
    }

    /// Whether the chunk at hand has objects of this kind that were not handed out.
    fn has_more(&self, kind: Kind) -> bool {
        self.arenas.borrow().iter().any(|arena| arena.kind == kind && arena.unused() > 0)
    }

    /// Objects of an arena that are set aside and were not handed out.
    fn left_over(&self, arena: &Arena) -> Vec<Pointer> {
        let object = |at| self.geometry.object(arena.chunk, arena.kind.class, arena.kind.home, at);
        (arena.next..arena.aside()).map(object).collect()
    }

    /// Chunks of this kind that the slot owns and whose counters were not read yet.
    pub(super) fn unread(&self, kind: Kind) -> Vec<usize> {
        self.unread_in(&self.map.borrow(), kind)
    }

    /// The same, by this map.
    pub(super) fn unread_in(&self, map: &[u32], kind: Kind) -> Vec<usize> {
        let known = self.known.borrow();
        self.own(map)
            .filter(|unit| unit.is_for(kind))
            .map(|unit| unit.first)
            .filter(|&chunk| !known.contains(&(chunk, kind.home)))
            .collect()
    }

    /// Takes back what was set aside and not handed out, in the background. What is this client's
    /// must be known.
    pub(crate) fn detach<F: Fabric, C: Clock>(&self, group: &Group<F, C>) {
        if !self.current.get() {
            return;
        }
        for arena in self.arenas.borrow_mut().drain(..).filter(|arena| arena.next < arena.aside()) {
            let at = self.geometry.counter(arena.chunk, arena.kind.home);
            for node in NodeSet::all(group.nodes()) {
                drop(group.fabric().post(node, &[arena.counter.take_back(at, arena.next)]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::alone;
    use super::*;
    use crate::blocking::block_on;

    /// A client is told to forget, and leaves before it has read the map. Its chunk may be somebody else's by now, who
    /// has found objects of it to be garbage and uses them again: to take them back would give them out twice.
    #[test]
    fn who_does_not_know_what_is_its_own_takes_nothing_back() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        heap.has_had(kind);
        let object = block_on(heap.allocate(&group, kind, Need::More)).expect("memory");
        let counter = heap.geometry.counter(heap.geometry.chunk_of(object), kind.home);
        let aside = || block_on(read_counters(&group, &[counter])).expect("a node")[0].objects();
        heap.renew(1);
        heap.detach(&group);
        assert_eq!(aside(), FIRST_BATCH);
        block_on(heap.know_own(&group)).expect("a node");
        heap.detach(&group);
        assert_eq!(aside(), 1);
    }
}
