//! Hands out objects that were never used.
//!
//! Objects of one kind come from an *active chunk*. When all objects below its high-water mark are
//! handed out, the mark is raised. When the chunk is used up, another chunk that the slot owns
//! becomes active; without one, a chunk is [claimed](crate::heap::alloc::claim). Objects of a class
//! for different homes run out at about the same time, so one roundtrip serves all homes.

use swarm_core::clock::Clock;
use swarm_core::fabric::{Fabric, MAX_VERBS};
use swarm_core::layout::ChunkClass;
use swarm_core::node::{Address, MAX_NODES, NodeId, NodeSet};
use swarm_core::quorum::Group;
use swarm_core::words::Pointer;

use crate::error::Error;
use crate::heap::alloc::high_water::{
    HighWater, Raise, adopt_counters, homes, raise_counters, read_adjacent,
};
use crate::heap::{CLAIM_TRIES, Heap, ObjectKind, Purpose};

/// Objects by which a high-water mark is raised at first; doubles each time.
pub(in crate::heap) const FIRST_BATCH: u64 = 8;
/// A chunk for chunk-map records is claimed along with another chunk once no more of them are left.
pub(in crate::heap) const FEW_RECORDS: u64 = 3;

/// A chunk from which objects of one kind are handed out.
pub(in crate::heap) struct ActiveChunk {
    pub(in crate::heap) kind: ObjectKind,
    pub(in crate::heap) chunk: usize,
    /// The next object to hand out.
    next: u64,
    /// How many objects may be handed out.
    counter: HighWater,
    /// Objects in the chunk; of a shared one, the end of this client's range.
    limit: u64,
    batch: u64,
}

impl ActiveChunk {
    /// Opens a range of a shared chunk: the objects from number `next` up to its high-water mark
    /// `counter`.
    pub(in crate::heap) fn of_range(
        kind: ObjectKind,
        chunk: usize,
        next: u64,
        counter: HighWater,
    ) -> Self {
        let limit = counter.objects();
        Self { kind, chunk, next, counter, limit, batch: limit - next }
    }

    /// Returns the high-water mark.
    fn mark(&self) -> u64 {
        self.counter.objects()
    }

    /// Returns by how much to raise the mark next. The last `keep` objects of the chunk are never
    /// handed out.
    fn more(&self, keep: u64) -> u64 {
        self.batch.min(self.limit.saturating_sub(keep).saturating_sub(self.mark()))
    }

    /// Whether half of what the mark was raised by last is handed out.
    fn runs_out(&self) -> bool {
        self.mark() - self.next <= self.batch / 4
    }

    /// Returns how many objects of the chunk were not handed out.
    pub(in crate::heap) fn unused(&self) -> u64 {
        self.limit - self.next
    }
}

impl Heap {
    /// Allocates an object, at its kind's home if there is room. Costs no roundtrip below the
    /// high-water mark.
    #[inline]
    pub(crate) async fn allocate<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        need: Purpose,
    ) -> Result<Pointer, Error> {
        self.allocate_at(group, kind, need, true).await
    }

    /// The same at this home only; for an all-but-one buffer, with this node as the one without a copy.
    #[inline]
    pub(crate) async fn allocate_there<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        need: Purpose,
    ) -> Result<Pointer, Error> {
        self.allocate_at(group, kind, need, false).await
    }

    #[inline]
    async fn allocate_at<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        need: Purpose,
        elsewhere: bool,
    ) -> Result<Pointer, Error> {
        // E4: never a reclaimed object that was not zeroed.
        match self.take_unused(kind, need) {
            Some(pointer) => Ok(pointer),
            None => {
                let slowly = self.allocate_slowly(group, kind, need, elsewhere);
                Box::pin(self.alone(group, slowly)).await
            }
        }
    }

    /// Takes an object that was never used or is zeroed again, if one is free.
    #[inline]
    pub(crate) fn take_unused(&self, kind: ObjectKind, need: Purpose) -> Option<Pointer> {
        if !self.current.get() || self.keeps(kind, need) {
            return None;
        }
        self.take_new(kind)
    }

    #[inline]
    pub(in crate::heap) fn take_new(&self, kind: ObjectKind) -> Option<Pointer> {
        self.reclaimer.take_fresh(kind).or_else(|| self.take(kind))
    }

    /// Returns how many objects of this kind the active chunk has that were not handed out.
    pub(in crate::heap) fn unused(&self, kind: ObjectKind) -> usize {
        let active_chunks = self.active_chunks.borrow();
        let active = active_chunks.iter().find(|active| active.kind == kind);
        active.map_or(0, ActiveChunk::unused) as usize
    }

    /// Takes an object of the active chunk, if one is left below the high-water mark.
    #[inline]
    fn take(&self, kind: ObjectKind) -> Option<Pointer> {
        let mut active_chunks = self.active_chunks.borrow_mut();
        let active = active_chunks.iter_mut().find(|active| active.kind == kind)?;
        if active.next == active.mark() {
            return None;
        }
        let index = active.next;
        active.next += 1;
        let object = self.geometry.object(active.chunk, kind.class, kind.home, index);
        self.reclaimer.handed_out(object);
        Some(object)
    }

    #[cold]
    async fn allocate_slowly<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        need: Purpose,
        elsewhere: bool,
    ) -> Result<Pointer, Error> {
        // Claiming a chunk takes a record. Other objects of the same size must leave some.
        let keep = if kind == self.records() { FEW_RECORDS } else { 0 };
        // Each pass gets further: an object, a chunk that is owned already, another chunk.
        for _ in 0..CLAIM_TRIES {
            for kind in self.homes_for(kind).take(if elsewhere { MAX_NODES } else { 1 }) {
                if let Some(pointer) = self.take_own(group, kind, need, keep).await? {
                    return Ok(pointer);
                }
            }
            if need == Purpose::Evacuate {
                return Err(self.full(kind, need));
            }
            if self.shares(kind) && self.take_shared(group, kind, elsewhere).await? {
                continue;
            }
            match self.claim(group, kind, need).await {
                // A shared chunk may have room, however much this client has had of it.
                Err(Error::Full(_)) if self.take_shared(group, kind, elsewhere).await? => {}
                claimed => claimed?,
            }
        }
        Err(Error::Contended)
    }

    /// Returns the homes to try, the wanted one first. A chunk has as many objects for each home,
    /// but keys are not spread so evenly. For all-but-one buffers, a register's home is the last choice
    /// for the node without a copy.
    pub(crate) fn homes_for(&self, kind: ObjectKind) -> impl Iterator<Item = ObjectKind> + use<> {
        let (first, all) = (kind.home.0, homes(&self.geometry, kind.class).len() as u8);
        let back = matches!(kind.class, ChunkClass::AllButOne(_));
        (0..all).map(move |step| {
            let step = if back { all - step } else { step };
            ObjectKind { home: NodeId((first + step) % all), ..kind }
        })
    }

    /// Takes an object from the chunks that this slot owns, by the map as last read. Leaves the
    /// last `keep` objects of a chunk.
    pub(in crate::heap) async fn take_own<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        need: Purpose,
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
            if self.raise_high_water(group, kind, keep).await? {
                continue;
            }
            if !self.open_chunk(group, kind).await? {
                return Ok(None);
            }
        }
    }

    /// Raises the active chunk's high-water mark. Returns false if the chunk is used up.
    async fn raise_high_water<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
        keep: u64,
    ) -> Result<bool, Error> {
        let due = |active: &&ActiveChunk| {
            active.kind == kind || active.kind.at(kind.home) == kind && active.runs_out()
        };
        let (kinds, raises): (Vec<ObjectKind>, Vec<Raise>) = (self.active_chunks.borrow().iter())
            .filter(due)
            .filter(|active| active.more(keep) > 0)
            .map(|active| {
                let at = self.geometry.counter(active.chunk, active.kind.home);
                let to = active.mark() + active.more(keep);
                (active.kind, Raise { at, from: active.counter, to, slot: self.slot })
            })
            .unzip();
        if !kinds.contains(&kind) {
            return Ok(false);
        }
        raise_counters(group, &raises).await?;
        for active in self.active_chunks.borrow_mut().iter_mut() {
            if let Some(at) = kinds.iter().position(|kind| *kind == active.kind) {
                active.counter = raises[at].raised();
                active.batch = (active.batch * 2).min(active.limit);
            }
        }
        Ok(true)
    }

    /// Makes another chunk of this kind that the slot owns active, for each home without one.
    /// Returns false if none has room.
    async fn open_chunk<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        kind: ObjectKind,
    ) -> Result<bool, Error> {
        let mut closed: Vec<ObjectKind> =
            self.homes_for(kind).filter(|&other| other == kind || !self.has_more(other)).collect();
        let homes = homes(&self.geometry, kind.class).len();
        while closed.contains(&kind) {
            let mut unread = self.unread(kind);
            unread.truncate(MAX_VERBS);
            if unread.is_empty() {
                return Ok(false);
            }
            let counter = |&chunk: &usize| self.geometry.counter(chunk, NodeId(0));
            let counters: Vec<Address> = unread.iter().map(counter).collect();
            let read = read_adjacent(group, &counters, homes).await?;
            let mut opened = Vec::new();
            for (&chunk, marks) in unread.iter().zip(read.chunks(homes)) {
                for (home, &mark) in (0..).map(NodeId).zip(marks) {
                    let kind = kind.at(home);
                    if closed.contains(&kind) && self.has_room(chunk, kind, mark)? {
                        closed.retain(|&other| other != kind);
                        opened.push((chunk, kind, mark));
                    }
                }
            }
            self.make_active(group, &opened).await?;
        }
        Ok(true)
    }

    /// Returns whether this chunk, whose high-water mark is `counter`, has room and was not looked
    /// at before.
    fn has_room(&self, chunk: usize, kind: ObjectKind, counter: HighWater) -> Result<bool, Error> {
        let (limit, used) = (self.geometry.objects(kind.class), counter.objects());
        if used > limit {
            return Err(Error::DAMAGED);
        }
        let mut known = self.known.borrow_mut();
        if used == limit {
            known.insert(chunk, kind.home);
        }
        Ok(!known.contains(chunk, kind.home))
    }

    /// Makes these chunks, with their high-water marks, active.
    async fn make_active<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        chunks: &[(usize, ObjectKind, HighWater)],
    ) -> Result<(), Error> {
        let counter = |chunk, kind: ObjectKind| self.geometry.counter(chunk, kind.home);
        let marks: Vec<(Address, HighWater)> =
            chunks.iter().map(|&(chunk, kind, mark)| (counter(chunk, kind), mark)).collect();
        // E8a: no former owner lowers them from here on.
        let marks = adopt_counters(group, &marks, self.slot).await?;
        for (&(chunk, kind, _), counter) in chunks.iter().zip(marks) {
            let (limit, next, batch) =
                (self.geometry.objects(kind.class), counter.objects(), FIRST_BATCH);
            self.known.borrow_mut().insert(chunk, kind.home);
            self.replace_active(ActiveChunk { kind, chunk, next, counter, limit, batch });
            self.reclaimer.open(chunk, kind, next);
        }
        Ok(())
    }

    /// Makes this chunk active. The unused objects of its predecessor stay free.
    pub(in crate::heap) fn replace_active(&self, mut active: ActiveChunk) {
        let mut active_chunks = self.active_chunks.borrow_mut();
        if let Some(at) = active_chunks.iter().position(|last| last.kind == active.kind) {
            let last = active_chunks.swap_remove(at);
            self.reclaimer.renewed(active.kind, &self.left_over(&last));
            active.batch = active.batch.max(last.batch);
        }
        active_chunks.push(active);
    }

    /// Whether the active chunk has objects of this kind that were not handed out.
    fn has_more(&self, kind: ObjectKind) -> bool {
        self.active_chunks.borrow().iter().any(|active| active.kind == kind && active.unused() > 0)
    }

    /// Returns the objects of an active chunk below its high-water mark that were not handed out.
    fn left_over(&self, active: &ActiveChunk) -> Vec<Pointer> {
        let object =
            |at| self.geometry.object(active.chunk, active.kind.class, active.kind.home, at);
        (active.next..active.mark()).map(object).collect()
    }

    /// Returns the chunks of this kind that the slot owns and whose high-water marks were not read
    /// yet.
    pub(in crate::heap) fn unread(&self, kind: ObjectKind) -> Vec<usize> {
        self.unread_in(&self.map.borrow(), kind)
    }

    /// The same, by this map.
    pub(in crate::heap) fn unread_in(&self, map: &[u32], kind: ObjectKind) -> Vec<usize> {
        let known = self.known.borrow();
        self.own(map)
            .filter(|extent| extent.is_for(kind))
            .map(|extent| extent.first)
            .filter(|&chunk| !known.contains(chunk, kind.home))
            .collect()
    }

    /// Lowers high-water marks to what was handed out, in the background (E8a). Does nothing unless
    /// the map was read in this generation: another client may own the chunks by now (E9).
    pub(crate) fn detach<F: Fabric, C: Clock>(&self, group: &Group<F, C>) {
        if !self.current.get() {
            return;
        }
        for active in
            self.active_chunks.borrow_mut().drain(..).filter(|active| active.next < active.mark())
        {
            let at = self.geometry.counter(active.chunk, active.kind.home);
            for node in NodeSet::all(group.nodes()) {
                drop(group.fabric().post(node, &[active.counter.take_back(at, active.next)]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::alloc::high_water::read_counters;
    use crate::heap::tests::alone;
    use crate::runtime::block_on::block_on;

    /// A client enters another generation and leaves before it has read the map. Another client may
    /// own its chunk by now, and may have reused objects of it. Lowering the mark would hand those
    /// out twice.
    #[test]
    fn a_client_that_does_not_know_what_is_its_own_takes_nothing_back() {
        let (group, heap) = alone();
        let kind = heap.plain(16);
        heap.has_had(kind);
        let object = block_on(heap.allocate(&group, kind, Purpose::Insert)).expect("memory");
        let counter = heap.geometry.counter(heap.geometry.chunk_of(object), kind.home);
        let mark = || block_on(read_counters(&group, &[counter])).expect("a node")[0].objects();
        heap.renew(1);
        heap.detach(&group);
        assert_eq!(mark(), FIRST_BATCH);
        block_on(heap.know_own(&group)).expect("a node");
        heap.detach(&group);
        assert_eq!(mark(), 1);
    }

    /// A client leaves, and what lowers its mark is late. By then the next client has taken up what
    /// lies below the mark: in a collection, or for the objects above it. It counts that as used,
    /// and may have reused it.
    #[test]
    fn what_was_taken_up_below_a_mark_is_not_given_out_once_more() {
        for collects in [true, false] {
            let (group, former) = alone();
            let kind = former.plain(16);
            former.has_had(kind);
            let object = block_on(former.allocate(&group, kind, Purpose::Insert)).expect("memory");
            let chunk = former.geometry.chunk_of(object);
            let at = former.geometry.counter(chunk, kind.home);
            let mark = || block_on(read_counters(&group, &[at])).expect("a node")[0];
            let late = mark().take_back(at, 1);
            let next = Heap::new(former.geometry, 0);
            if collects {
                block_on(next.take_stock(&group)).expect("a node");
            } else {
                block_on(next.know_own(&group)).expect("a node");
                assert_eq!(block_on(next.open_chunk(&group, kind)), Ok(true));
            }
            assert!(next.reclaimer.is_open(chunk, kind.home));
            block_on(group.fabric().post(NodeId(0), &[late])).expect("a node");
            assert_eq!(mark().objects(), FIRST_BATCH, "by a collection: {collects}");
        }
    }
}
