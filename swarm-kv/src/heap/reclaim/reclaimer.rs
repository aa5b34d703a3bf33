//! Reclaims objects: retires them and hands them out again.
//!
//! What a client's own writes [supersede](crate::heap::reclaim::supersede) is retired at once. Once the
//! epoch has advanced a [few times](crate::heap::reclaim::free_list), no operation can reach it at
//! all, and it is reused.
//!
//! A [GC cycle](crate::gc::mark_sweep) finds all else: first buffers of registers; buffers of writes whose
//! outcome is unknown, or that other clients' writes superseded; records; registers. Objects whose
//! control words matter are zeroed at every node before reuse.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use swarm_core::layout::{Geometry, Placement, ReplicaSet};
use swarm_core::node::{MAX_NODES, NodeId};
use swarm_core::words::Pointer;

use crate::heap::ObjectKind;
use crate::heap::reclaim::free_list::FreeList;
use crate::heap::reclaim::object_table::{
    Found, ObjectIndex, ObjectState, ObjectTables, Unreachable,
};

/// Places for homes: a power of two, so that finding one takes no division.
const HOMES: usize = MAX_NODES.next_power_of_two();

/// A buffer that was taken for a write, and where it and its state are if that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) buffer: Pointer,
    found: Option<Found>,
}

impl Taken {
    /// Returns a buffer of which only the pointer is known.
    pub(crate) fn new(buffer: Pointer) -> Self {
        Self { buffer, found: None }
    }

    /// Returns where it lies.
    #[inline(always)]
    pub(crate) fn site(&self, placement: &Placement) -> ReplicaSet {
        match &self.found {
            Some(found) => found.site(placement),
            None => placement.site(self.buffer),
        }
    }

    pub(super) fn object_index(&self) -> Option<ObjectIndex> {
        self.found.map(|found| found.object_index)
    }
}

/// The objects of a client, and which of them are retired or free.
pub(crate) struct Reclaimer {
    pub(super) geometry: Geometry,
    pub(super) tables: RefCell<ObjectTables>,
    pub(super) free_lists: RefCell<Vec<FreeList>>,
    /// For each home, the free list that was used last.
    last: [Cell<usize>; HOMES],
    reclaimed: Cell<u64>,
    /// Chunks of which nothing is handed out, as they are being
    /// [emptied](crate::heap::transfer::sparse) (E10a). Objects freed there are on no free list.
    closed: RefCell<BTreeSet<usize>>,
    /// Chunks that were closed when the last GC cycle began.
    closed_before: RefCell<BTreeSet<usize>>,
}

impl Reclaimer {
    pub(in crate::heap) fn new(geometry: Geometry) -> Self {
        let (free_lists, last, reclaimed, closed, closed_before) = Default::default();
        let tables = RefCell::new(ObjectTables::new(geometry));
        Self { geometry, tables, free_lists, last, reclaimed, closed, closed_before }
    }

    /// Opens the objects of this kind in `chunk`, which are this client's from now on; `used` of
    /// them were handed out before.
    pub(in crate::heap) fn open(&self, chunk: usize, kind: ObjectKind, used: u64) {
        self.tables.borrow_mut().open(chunk, kind, used);
        self.expect(kind, self.geometry.objects(kind.class).saturating_sub(used) as usize);
    }

    /// Opens a range of the objects of this kind in `chunk`, which is this client's from now on and
    /// was never handed out.
    pub(in crate::heap) fn open_range(&self, chunk: usize, kind: ObjectKind, range: Range<u64>) {
        let more = (range.end - range.start) as usize;
        self.tables.borrow_mut().open_range(chunk, kind, range);
        self.expect(kind, more);
    }

    /// Returns the chunks in which other clients have objects too.
    pub(in crate::heap) fn shared(&self) -> Vec<usize> {
        self.tables.borrow().shared().collect()
    }

    /// Records a chunk, or a range of one, with `more` objects of this kind.
    fn expect(&self, kind: ObjectKind, more: usize) {
        if self.free_list(kind, |free_list| free_list.comes_to(more)).is_none() {
            let mut free_list = FreeList::new(kind);
            free_list.comes_to(more);
            self.free_lists.borrow_mut().push(free_list);
        }
    }

    /// Whether the objects of this home in `chunk` are known.
    pub(in crate::heap) fn is_open(&self, chunk: usize, home: NodeId) -> bool {
        self.tables.borrow().is_open(chunk, home)
    }

    /// Records that an object was handed out that is zeroed or was never used.
    #[inline]
    pub(crate) fn handed_out(&self, object: Pointer) {
        self.set(object, ObjectState::OUT);
    }

    #[inline(always)]
    pub(super) fn set(&self, object: Pointer, to: ObjectState) {
        if let Some(entry) = self.tables.borrow_mut().find(object) {
            *entry = to;
        }
    }

    /// Takes a reclaimed buffer.
    #[inline]
    pub(in crate::heap) fn take(&self, kind: ObjectKind) -> Option<Pointer> {
        let buffer = self.free_list(kind, |free_list| free_list.ready.pop())??;
        self.set(buffer, ObjectState::OUT);
        Some(buffer)
    }

    /// Takes a reclaimed buffer, for a caller whose write is over, or that marks it as [handed
    /// out](Self::handed_out), before anything else happens: until then its state says that it is
    /// free. Passes to `expect` where the next one and its state lie.
    #[inline(always)]
    pub(in crate::heap) fn take_now(
        &self,
        kind: ObjectKind,
        expect: impl FnOnce(&ReplicaSet, Option<&ObjectState>),
    ) -> Option<Taken> {
        let tables = self.tables.borrow();
        let mut free_lists = self.free_lists.borrow_mut();
        let free_list = self.free_list_in(&mut free_lists, kind)?;
        let found = free_list.take_found(&tables, |next| {
            expect(&next.site(tables.placement()), tables.get(next.object_index));
        })?;
        Some(Taken { buffer: found.buffer, found: Some(found) })
    }

    /// Takes a reclaimed object that is zeroed or was never used.
    #[inline]
    pub(in crate::heap) fn take_fresh(&self, kind: ObjectKind) -> Option<Pointer> {
        let object = self.free_list(kind, FreeList::take_fresh)??;
        self.set(object, ObjectState::OUT);
        Some(object)
    }

    /// Frees a buffer that no chain has named.
    pub(in crate::heap) fn take_back(&self, buffer: Pointer) {
        if let Some((entry, kind)) = self.tables.borrow_mut().look_up(buffer) {
            *entry = ObjectState::IDLE;
            if !self.is_closed(buffer) {
                self.free_list(kind, |free_list| free_list.ready.push(buffer));
            }
        }
    }

    /// Retires `buffer`, whose write was refused by a delete that every majority shows from now on:
    /// no later operation can reach it (E1).
    pub(in crate::heap) fn refused(&self, buffer: Pointer, epoch: u64) {
        if let Some((entry, kind)) = self.tables.borrow_mut().look_up(buffer)
            && entry.is_out()
        {
            *entry = ObjectState::IDLE;
            self.free_list(kind, |free_list| free_list.retired.push_back((epoch, buffer)));
        }
    }

    /// Frees an object that was handed out but not used.
    pub(in crate::heap) fn take_back_unused(&self, object: Pointer) {
        if let Some((entry, kind)) = self.tables.borrow_mut().look_up(object) {
            *entry = ObjectState::IDLE;
            if !self.is_closed(object) {
                self.free_list(kind, |free_list| free_list.renewed([object].into_iter()));
            }
        }
    }

    /// Closes this chunk: nothing more of it is handed out, whatever is freed there (E10a).
    pub(in crate::heap) fn close(&self, chunk: usize) {
        self.closed.borrow_mut().insert(chunk);
        let is_kept = |object| self.geometry.chunk_of(object) != chunk;
        self.free_lists
            .borrow_mut()
            .iter_mut()
            .for_each(|free_list| free_list.retain_free(is_kept));
    }

    /// Whether an object lies in a closed chunk.
    #[inline]
    pub(crate) fn is_closed(&self, object: Pointer) -> bool {
        let closed = self.closed.borrow();
        !closed.is_empty() && closed.contains(&self.geometry.chunk_of(object))
    }

    /// Returns the closed chunks.
    pub(in crate::heap) fn closed(&self) -> BTreeSet<usize> {
        self.closed.borrow().clone()
    }

    /// Takes the chunks that were closed when the last GC cycle began.
    pub(in crate::heap) fn take_closed_before(&self) -> BTreeSet<usize> {
        self.closed_before.take()
    }

    /// Returns how many objects of this chunk are in use, if all are known.
    pub(in crate::heap) fn in_use(&self, chunk: usize) -> Option<u64> {
        self.tables.borrow().in_use(chunk)
    }

    /// Whether an object is this client's.
    fn is_own(&self, object: Pointer) -> bool {
        self.tables.borrow_mut().find(object).is_some_and(|entry| entry.is_own())
    }

    /// Drops the objects of all chunks that are no longer this client's.
    pub(in crate::heap) fn keep(&self, is_own: impl Fn(usize) -> bool) {
        self.tables.borrow_mut().keep(&is_own);
        self.closed.borrow_mut().retain(|&chunk| is_own(chunk));
        self.closed_before.borrow_mut().retain(|&chunk| is_own(chunk));
        let is_own = |object| is_own(self.geometry.chunk_of(object));
        self.free_lists.borrow_mut().iter_mut().for_each(|free_list| free_list.keep(is_own));
    }

    /// Returns the chunks with retired objects that operations may still reach in `epoch`.
    pub(in crate::heap) fn held(&self, epoch: u64) -> HashSet<usize> {
        let free_lists = self.free_lists.borrow();
        let held = free_lists.iter().flat_map(|free_list| free_list.held(epoch));
        held.map(|object| self.geometry.chunk_of(object)).collect()
    }

    /// Whether every object of this chunk is free, or retired so long ago that no operation can
    /// reach it: the chunk is not among those [held](Self::held) (E10). Retired buffers count as
    /// well, as those of a size that this client no longer writes stay retired.
    pub(in crate::heap) fn is_empty(&self, chunk: usize, held: &HashSet<usize>) -> bool {
        self.tables.borrow().is_idle(chunk) && !held.contains(&chunk)
    }

    /// Returns how many objects of this kind are to be zeroed.
    pub(in crate::heap) fn to_reset(&self, kind: ObjectKind) -> usize {
        self.free_list(kind, |free_list| free_list.to_reset()).unwrap_or(0)
    }

    /// Returns how many objects of this kind are free.
    pub(in crate::heap) fn free_count(&self, kind: ObjectKind) -> usize {
        self.free_list(kind, |free_list| free_list.free_count()).unwrap_or(0)
    }

    /// Returns how many free objects of this kind are zeroed or were never used.
    pub(in crate::heap) fn fresh(&self, kind: ObjectKind) -> usize {
        self.free_list(kind, |free_list| free_list.fresh()).unwrap_or(0)
    }

    /// Records the end of a GC cycle; of each kind, the active chunk has `unused` objects besides.
    pub(in crate::heap) fn is_collected(&self, unused: impl Fn(ObjectKind) -> usize) {
        self.free_lists.borrow_mut().iter_mut().for_each(|it| it.is_collected(unused(it.kind)));
    }

    /// Whether most of any kind is used up, of what a cycle left and of what came in chunks since.
    pub(in crate::heap) fn is_used_up(&self, unused: impl Fn(ObjectKind) -> usize) -> bool {
        self.free_lists.borrow().iter().any(|free_list| free_list.is_used_up(&unused))
    }

    /// Marks an object that was handed out as free: it is as if never used.
    pub(in crate::heap) fn untouched(&self, object: Pointer) {
        self.set(object, ObjectState::IDLE);
    }

    #[inline(always)]
    pub(super) fn free_list<T>(
        &self,
        kind: ObjectKind,
        work: impl FnOnce(&mut FreeList) -> T,
    ) -> Option<T> {
        self.free_list_in(&mut self.free_lists.borrow_mut(), kind).map(work)
    }

    #[inline(always)]
    fn free_list_in<'s>(
        &self,
        free_lists: &'s mut [FreeList],
        kind: ObjectKind,
    ) -> Option<&'s mut FreeList> {
        let last = &self.last[kind.home.index() % HOMES];
        if free_lists.get(last.get()).is_none_or(|free_list| free_list.kind != kind) {
            last.set(Self::search(free_lists, kind)?);
        }
        free_lists.get_mut(last.get())
    }

    #[cold]
    fn search(free_lists: &[FreeList], kind: ObjectKind) -> Option<usize> {
        free_lists.iter().position(|free_list| free_list.kind == kind)
    }

    /// Frees buffers that no operation can reach in `epoch`, if there are at least `least`, and
    /// calls `each` with each. Returns how many.
    pub(in crate::heap) fn reclaim(
        &self,
        kind: ObjectKind,
        epoch: u64,
        least: usize,
        each: impl Fn(Pointer),
    ) -> usize {
        let over =
            self.free_list(kind, |free_list| free_list.reclaim(epoch, least, each)).unwrap_or(0);
        if over > 0 && !self.closed.borrow().is_empty() {
            self.free_list(kind, |free_list| {
                free_list.retain_free(|buffer| !self.is_closed(buffer))
            });
        }
        self.reclaimed.set(self.reclaimed.get() + over as u64);
        over
    }

    /// Returns how many objects were reclaimed so far.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.get()
    }

    /// Returns how many objects are in use, not known for what.
    #[cfg(test)]
    pub(crate) fn count_out(&self) -> usize {
        self.tables.borrow().count_out()
    }

    /// Whether objects wait for the epoch to advance beyond `epoch`; of those to be zeroed, only
    /// those that can be.
    pub(in crate::heap) fn waits(&self, epoch: u64, is_reset: impl Fn(ObjectKind) -> bool) -> bool {
        self.free_lists
            .borrow()
            .iter()
            .any(|free_list| free_list.waits(epoch, is_reset(free_list.kind)))
    }

    /// Whether garbage was found that is to be zeroed.
    pub(crate) fn is_to_reset(&self) -> bool {
        self.free_lists.borrow().iter().any(|free_list| !free_list.swept.is_empty())
    }

    /// Starts a GC cycle.
    pub(crate) fn begin(&self) {
        self.tables.borrow_mut().begin();
        self.closed_before.replace(self.closed());
    }

    /// Marks an object as reachable.
    pub(crate) fn mark(&self, object: Pointer) {
        self.tables.borrow_mut().mark(object);
    }

    /// Ends the mark phase.
    pub(crate) fn all_marked(&self) {
        self.tables.borrow_mut().all_marked();
    }

    /// Returns how many objects of other clients in `chunk` are reachable, as far as a cycle has
    /// seen.
    pub(in crate::heap) fn reachable(&self, chunk: usize) -> Option<u64> {
        self.tables.borrow().reachable(chunk)
    }

    /// For a shared chunk of which this client has a part, returns how many objects are other
    /// clients', and how many of its own are in use.
    pub(in crate::heap) fn parts(&self, chunk: usize) -> Option<(u64, u64)> {
        self.tables.borrow().parts(chunk)
    }

    /// Returns objects of `chunk` that a cycle found unreachable, at most `most`, from object number
    /// `from` on; and from which number on there are more.
    pub(crate) fn unreachable(
        &self,
        chunk: usize,
        from: usize,
        most: usize,
    ) -> (Vec<Unreachable>, Option<usize>) {
        self.tables.borrow().unreachable(chunk, from, most)
    }

    /// Returns all of them.
    #[cfg(test)]
    pub(in crate::heap) fn all_unreachable(&self, chunk: usize) -> Vec<Unreachable> {
        self.unreachable(chunk, 0, usize::MAX).0
    }

    /// Marks an object that the cycle found unreachable, but that an operation may still fetch: it
    /// is no garbage of this cycle (E6).
    pub(crate) fn spare(&self, object: Pointer) {
        self.tables.borrow_mut().spare(object);
    }

    /// Retires an object that a cycle found unreachable. Returns false if it was put to another use
    /// since (E3). It is zeroed before reuse (E8), unless it holds a complete write of this client:
    /// its next write has a larger number.
    pub(crate) fn retire(&self, garbage: &Unreachable, epoch: u64) -> bool {
        let mut tables = self.tables.borrow_mut();
        if !tables.is_unreachable(garbage.pointer) {
            return false;
        }
        if let Some(entry) = tables.find(garbage.pointer) {
            *entry = ObjectState::IDLE;
        }
        self.free_list(garbage.kind, |free_list| match garbage.held {
            true => free_list.retired.push_back((epoch, garbage.pointer)),
            false => free_list.sweep(epoch, garbage.pointer),
        });
        true
    }

    /// Whether an object is as the cycle under way found it, and unmarked.
    pub(crate) fn is_unreachable(&self, object: Pointer) -> bool {
        self.tables.borrow_mut().is_unreachable(object)
    }

    /// Takes objects of one kind, at most `most`, that are to be zeroed, can be, and are
    /// unreachable.
    pub(in crate::heap) fn due(
        &self,
        epoch: u64,
        most: usize,
        is_reset: impl Fn(ObjectKind) -> bool,
    ) -> Option<(ObjectKind, Vec<Pointer>)> {
        let mut free_lists = self.free_lists.borrow_mut();
        free_lists.iter_mut().filter(|free_list| is_reset(free_list.kind)).find_map(|free_list| {
            let due = free_list.due(epoch, most);
            (!due.is_empty()).then_some((free_list.kind, due))
        })
    }

    /// Retires objects again that could not be zeroed.
    pub(in crate::heap) fn put_off(&self, kind: ObjectKind, objects: &[Pointer], epoch: u64) {
        let own = objects.iter().filter(|&&object| self.is_own(object));
        self.free_list(kind, |free_list| own.for_each(|&object| free_list.sweep(epoch, object)));
    }

    /// Frees objects that were zeroed. Those whose chunks got another owner meanwhile are dropped
    /// (E9).
    pub(in crate::heap) fn renewed(&self, kind: ObjectKind, objects: &[Pointer]) {
        self.reclaimed.set(self.reclaimed.get() + objects.len() as u64);
        let is_at_hand = |&&object: &&Pointer| self.is_own(object) && !self.is_closed(object);
        let own = objects.iter().filter(is_at_hand);
        self.free_list(kind, |free_list| free_list.renewed(own.copied()));
    }
}
