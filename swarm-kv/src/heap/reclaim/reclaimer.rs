//! Reclaims objects: retires them and hands them out again.
//!
//! A client that has written a register again, and knows that the later write is complete,
//! *retires* the buffer of its earlier write. No operation that begins afterwards can reach that
//! buffer, because every majority shows the later stamp (E1). Once the epoch has advanced a [few
//! times](crate::heap::reclaim::free_list), no operation can reach it at all, and it is reused.
//!
//! **Invariant:** an object is retired at most once for each time that it is handed out (E3). The
//! [object table](crate::heap::reclaim::object_table) ensures that: until a buffer is retired, its
//! state names the register and the timestamp of its write. A late stamp, from a former use of the
//! buffer, does not match.
//!
//! The same holds for a first buffer once the bucket's record that was created together with it is
//! reclaimed. Until then, a client that adopts that record may copy the buffer (E4b).
//!
//! A [GC cycle](crate::gc::mark_sweep) finds all else: such first buffers; buffers of writes whose
//! outcome is unknown, or that other clients' writes superseded; records; registers. Objects whose
//! control words matter are zeroed at every node before reuse.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use swarm_core::layout::{Geometry, ReplicaSet};
use swarm_core::node::{MAX_NODES, NodeId};
use swarm_core::register::Register;
use swarm_core::words::{Pointer, Stamp, Timestamp};

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

    fn object_index(&self) -> Option<ObjectIndex> {
        self.found.map(|found| found.object_index)
    }
}

/// The objects of a client, and which of them are retired or free.
pub(crate) struct Reclaimer {
    geometry: Geometry,
    tables: RefCell<ObjectTables>,
    free_lists: RefCell<Vec<FreeList>>,
    /// For each home, the free list that was used last.
    last: [Cell<usize>; HOMES],
    reclaimed: Cell<u64>,
    /// Chunks of which nothing is handed out, as they are being
    /// [emptied](crate::heap::transfer::sparse) (E10a). Objects freed there are on no free list.
    closed: RefCell<BTreeSet<usize>>,
    /// Chunks that were closed when the last GC cycle began.
    judged: RefCell<BTreeSet<usize>>,
}

impl Reclaimer {
    pub(in crate::heap) fn new(geometry: Geometry) -> Self {
        let (free_lists, last, reclaimed, closed, judged) = Default::default();
        let tables = RefCell::new(ObjectTables::new(geometry));
        Self { geometry, tables, free_lists, last, reclaimed, closed, judged }
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
    fn set(&self, object: Pointer, to: ObjectState) {
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
        let free_list = self.shelf_of(&mut free_lists, kind)?;
        let found = free_list.take_found(&tables, |next| {
            expect(&tables.site(next), tables.get(next.object_index));
        })?;
        Some(Taken { buffer: found.buffer, found: Some(found) })
    }

    /// Returns where a buffer that was taken lies.
    #[inline(always)]
    pub(crate) fn site(&self, taken: &Taken) -> ReplicaSet {
        match &taken.found {
            Some(found) => self.tables.borrow().site(found),
            None => self.geometry.placement().site(taken.buffer),
        }
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
            .for_each(|free_list| free_list.keep_at_hand(is_kept));
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
    pub(in crate::heap) fn take_judged(&self) -> BTreeSet<usize> {
        self.judged.take()
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
        self.judged.borrow_mut().retain(|&chunk| is_own(chunk));
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
    pub(in crate::heap) fn at_hand(&self, kind: ObjectKind) -> usize {
        self.free_list(kind, |free_list| free_list.at_hand()).unwrap_or(0)
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

    /// Records that a record of this client is committed in the bucket at `cell`, unless a cycle
    /// found it to be garbage before its proposer learned that.
    pub(in crate::heap) fn committed(&self, cell: Pointer, record: Pointer) {
        self.put(record, ObjectState::is_in(cell));
    }

    /// The same for the first record of the bucket at `cell`, which was created by a split.
    pub(in crate::heap) fn created(&self, cell: Pointer, record: Pointer) {
        self.put(record, ObjectState::is_created_in(cell));
    }

    /// Records what an object is in use for, if that is not known yet.
    fn put(&self, object: Pointer, to: ObjectState) {
        if let Some(entry) = self.tables.borrow_mut().find(object)
            && entry.is_out()
        {
            *entry = to;
        }
    }

    /// Records that no node lacks that record any more. Does nothing if it was reclaimed meanwhile:
    /// then it is something else by now.
    pub(in crate::heap) fn reached_all(&self, cell: Pointer, record: Pointer) {
        if let Some(entry) = self.tables.borrow_mut().find(record)
            && entry.was_created_in(cell)
        {
            *entry = ObjectState::is_in(cell);
        }
    }

    /// Whether a record is this client's, was committed in the bucket at `cell`, and was not
    /// retired since.
    pub(in crate::heap) fn is_in(&self, record: Pointer, cell: Pointer) -> bool {
        let mut tables = self.tables.borrow_mut();
        let entry = tables.find(record).map(|entry| *entry);
        entry.is_some_and(|entry| entry.cell() == Some(cell) || entry.was_created_in(cell))
    }

    /// Retires a record that was replaced in the bucket at `cell`, if it is still known to be in
    /// there, and if no node lacks the split that created it (E3, E4a). Returns whether it did.
    pub(in crate::heap) fn replaced(&self, record: Pointer, cell: Pointer, epoch: u64) -> bool {
        let mut tables = self.tables.borrow_mut();
        let Some((entry, kind)) = tables.look_up(record) else { return false };
        if entry.cell() != Some(cell) {
            return false;
        }
        *entry = ObjectState::IDLE;
        self.free_list(kind, |free_list| free_list.sweep(epoch, record));
        true
    }

    /// Returns where the state is of the buffer that `stamp` names, if it is this client's. Passes
    /// the state to `expect`.
    #[inline(always)]
    pub(crate) fn object_index(
        &self,
        stamp: Stamp,
        expect: impl FnOnce(&ObjectState),
    ) -> Option<ObjectIndex> {
        let tables = self.tables.borrow();
        let object_index = tables.buffer(self.geometry.format.pointer(stamp))?.object_index;
        tables.get(object_index).map(expect);
        Some(object_index)
    }

    /// Records that a write of `buffer` to `register` is complete, with the stamp `after`. Retires
    /// the buffers of the earlier stamps in `before` that this client owns. Callers may pass where
    /// the states are, of the buffer and of the one that the first stamp in `before` names.
    #[inline(always)]
    pub(in crate::heap) fn wrote(
        &self,
        register: &Register,
        (buffer, after, object_index): (Pointer, Stamp, Option<ObjectIndex>),
        (before, spot_before): ([Stamp; 2], Option<ObjectIndex>),
        epoch: impl Fn() -> u64,
    ) {
        let format = self.geometry.format;
        // Another client's stamp in the client's own stamp slot does not show how late this write
        // is. Taking it for this write's would retire nothing too early, as the write is complete.
        // But the object table would name a timestamp that the buffer never held, and leave the
        // buffer to a GC cycle.
        if format.pointer(after) != buffer {
            return;
        }
        let mut tables = self.tables.borrow_mut();
        let own = register.place.pointer.0;
        let entry = |stamp| (format.timestamp(stamp).0 << format.pointer_bits) | own;
        if let Some((object, _)) = tables.at_or_of(object_index, buffer) {
            *object = ObjectState::holds(entry(after));
        }
        let [latest, largest] = before;
        self.supersede(&mut tables, (latest, spot_before), after, entry(latest), &epoch);
        if largest.0 != latest.0 {
            self.supersede(&mut tables, (largest, None), after, entry(largest), &epoch);
        }
    }

    /// The same for a buffer that was just [taken](Self::take_now); marks it as handed out at the
    /// latest.
    #[inline(always)]
    pub(crate) fn wrote_now(
        &self,
        register: &Register,
        taken: &Taken,
        before: ([Stamp; 2], Option<ObjectIndex>),
        epoch: impl Fn() -> u64,
    ) {
        let after = register.own_stamp();
        if self.geometry.format.pointer(after) != taken.buffer {
            return self.handed_out(taken.buffer);
        }
        self.wrote(register, (taken.buffer, after, taken.object_index()), before, epoch);
    }

    /// Returns the register to which the buffer that `stamp` names holds a write of that timestamp,
    /// if it is this client's.
    pub(in crate::heap) fn held_at(&self, stamp: Stamp) -> Option<Pointer> {
        let format = self.geometry.format;
        let write = self.tables.borrow_mut().find(format.pointer(stamp))?.held()?;
        let register = Pointer(write & ((1 << format.pointer_bits) - 1));
        (write >> format.pointer_bits == format.timestamp(stamp).0).then_some(register)
    }

    /// Takes in that a majority of the register's replicas have reached the verified stamp
    /// `settled`. Retires the buffer of the write of `stamp` if that is superseded, and if the
    /// buffer still [holds](Self::held_at) it (E4c).
    pub(in crate::heap) fn followed(
        &self,
        register: Pointer,
        (stamp, settled): (Stamp, Stamp),
        epoch: u64,
    ) {
        let buffer = self.geometry.format.pointer(stamp);
        let past = settled > stamp.verified() && self.geometry.format.pointer(settled) != buffer;
        if !past || self.held_at(stamp) != Some(register) {
            return;
        }
        if let Some((object, kind)) = self.tables.borrow_mut().look_up(buffer) {
            *object = ObjectState::IDLE;
            self.free_list(kind, |free_list| free_list.retired.push_back((epoch, buffer)));
        }
    }

    /// Records that `buffer` has the first value of a register that was created together with a
    /// record of this client.
    pub(in crate::heap) fn first(&self, register: Pointer, buffer: Pointer) {
        self.put(buffer, ObjectState::is_created_in(register));
    }

    /// Records that no client copies that buffer to any node any more: it holds a write like any
    /// other (E4b).
    pub(in crate::heap) fn first_is_everywhere(&self, register: Pointer, buffer: Pointer) {
        if let Some(entry) = self.tables.borrow_mut().find(buffer)
            && entry.was_created_in(register)
        {
            let written = (Timestamp::FIRST.0 << self.geometry.format.pointer_bits) | register.0;
            *entry = ObjectState::holds(written);
        }
    }

    /// Retires the buffer that `stamp` names, if it is this client's and still holds that write.
    #[inline(always)]
    fn supersede(
        &self,
        tables: &mut ObjectTables,
        (stamp, object_index): (Stamp, Option<ObjectIndex>),
        after: Stamp,
        entry: u64,
        epoch: impl Fn() -> u64,
    ) {
        let format = self.geometry.format;
        let old = format.pointer(stamp);
        if old.is_null() || old == format.pointer(after) || stamp >= after {
            return;
        }
        let Some((object, kind)) = tables.at_or_of(object_index, old) else { return };
        let Some(held) = object.held() else { return };
        // E3: the same register, and no earlier than what the buffer holds. A later timestamp is
        // the second stamp of the same write.
        let same = (held ^ entry) & ((1 << format.pointer_bits) - 1) == 0;
        if same && held <= entry {
            *object = ObjectState::IDLE;
            self.free_list(kind, |free_list| free_list.retired.push_back((epoch(), old)));
        }
    }

    #[inline(always)]
    fn free_list<T>(&self, kind: ObjectKind, work: impl FnOnce(&mut FreeList) -> T) -> Option<T> {
        self.shelf_of(&mut self.free_lists.borrow_mut(), kind).map(work)
    }

    #[inline(always)]
    fn shelf_of<'s>(
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
                free_list.keep_at_hand(|buffer| !self.is_closed(buffer))
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
        self.judged.replace(self.closed());
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

#[cfg(test)]
mod tests {
    use swarm_core::layout::{ChunkClass, Identity, Location, Shape};
    use swarm_core::words::StampFlags;

    use super::*;

    struct Bench {
        reclaimer: Reclaimer,
        kind: ObjectKind,
        chunk: usize,
    }

    impl Bench {
        fn new() -> Self {
            let geometry = Geometry::new(3, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.plain_class(16))
        }

        /// For buffers that one node has no copy of; their states are found by position.
        fn all_but_one() -> Self {
            let geometry = Geometry::new(3, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.buffer_class(64, true))
        }

        /// For buffers of the only node; their states are found by position, too.
        fn alone() -> Self {
            let geometry = Geometry::new(1, 8 << 20, 4, 1).expect("geometry");
            Self::of(geometry, geometry.buffer_class(64, true))
        }

        fn of(geometry: Geometry, class: ChunkClass) -> Self {
            let kind = ObjectKind { class, home: NodeId(0), chunks: 1 };
            let (reclaimer, chunk) = (Reclaimer::new(geometry), geometry.first_chunk());
            reclaimer.open(chunk, kind, 0);
            Self { reclaimer, kind, chunk }
        }

        fn buffer(&self, index: u64) -> Pointer {
            self.reclaimer.geometry.object(self.chunk, self.kind.class, NodeId(0), index)
        }

        fn stamp(&self, timestamp: u64, index: u64) -> Stamp {
            let format = self.reclaimer.geometry.format;
            format.stamp(Timestamp(timestamp), self.buffer(index), StampFlags::empty())
        }

        fn wrote(&self, register: &Register, before: Stamp, after: Stamp) {
            let buffer = self.reclaimer.geometry.format.pointer(after);
            let object_indices =
                [after, before].map(|stamp| self.reclaimer.object_index(stamp, |_| {}));
            let alone = self.reclaimer.geometry.nodes == 1;
            assert_eq!(
                object_indices[0].is_some(),
                alone || matches!(self.kind.class, ChunkClass::AllButOne(_))
            );
            let (after, before) =
                ((buffer, after, object_indices[0]), ([before, before], object_indices[1]));
            self.reclaimer.wrote(register, after, before, || 5);
        }

        /// Records that an object was replaced in a cell. Returns how many wait to be zeroed.
        fn replaced(&self, cell: u64, index: u64) -> usize {
            self.reclaimer.replaced(self.buffer(index), Pointer(cell), 5);
            self.reclaimer.free_lists.borrow()[0].swept.len()
        }

        /// Returns how many buffers are retired.
        fn retired(&self) -> usize {
            self.reclaimer.free_lists.borrow()[0].retired.len()
        }
    }

    fn register(pointer: u64) -> Register {
        let shape = Shape { key_length: 3, capacity: 1 };
        let place = Location::everywhere(Pointer(pointer), NodeId(0));
        Register::new(place, Identity::default(), shape)
    }

    #[test]
    fn what_a_later_write_superseded_is_reclaimed_after_two_epochs() {
        for bench in [Bench::new(), Bench::all_but_one(), Bench::alone()] {
            let (first, second) = (bench.stamp(10, 0), bench.stamp(20, 1));
            bench.wrote(&register(7), Stamp::EMPTY, first);
            assert_eq!(bench.retired(), 0);
            bench.wrote(&register(7), first, second);
            assert_eq!(bench.reclaimer.reclaim(bench.kind, 6, 1, |_| {}), 0);
            assert_eq!(bench.reclaimer.reclaim(bench.kind, 7, 1, |_| {}), 1);
            assert_eq!(bench.reclaimer.take(bench.kind), Some(bench.buffer(0)));
            assert_eq!(bench.reclaimer.take(bench.kind), None);
        }
    }

    #[test]
    fn a_second_stamp_of_the_same_write_is_known_as_such() {
        let bench = Bench::new();
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(10, 0));
        bench.wrote(&register(7), bench.stamp(15, 0).verified(), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
    }

    /// Stamps stay behind at nodes that lag, and in other clients' stamp slots. Taking one for that
    /// of the buffer's present write would free a value that every client reads.
    #[test]
    fn a_stamp_of_a_former_life_retires_nothing() {
        let bench = Bench::new();
        let (old, new) = (bench.stamp(10, 0), bench.stamp(30, 0));
        bench.wrote(&register(7), Stamp::EMPTY, old);
        bench.wrote(&register(7), old, bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
        // Met again before the buffer is reused.
        bench.wrote(&register(7), old, bench.stamp(25, 2));
        assert_eq!(bench.retired(), 1);
        // Reused for the same register, and for another one under the very same timestamp.
        bench.wrote(&register(7), Stamp::EMPTY, new);
        bench.wrote(&register(7), old, bench.stamp(40, 3));
        assert_eq!(bench.retired(), 1);
        bench.wrote(&register(8), Stamp::EMPTY, old);
        bench.wrote(&register(7), old, bench.stamp(50, 4));
        assert_eq!(bench.retired(), 1);
    }

    /// A record that was replaced is to be zeroed, once. A late hint may be about another cell.
    #[test]
    fn a_record_comes_back_once_for_each_time_that_it_is_committed() {
        let bench = Bench::new();
        let record = bench.buffer(0);
        for life in 0..2 {
            bench.reclaimer.handed_out(record);
            assert_eq!(bench.replaced(7, 0), life, "what is used for something else");
            bench.reclaimer.committed(Pointer(7), record);
            assert_eq!(bench.replaced(6, 0), life, "in another cell");
            assert_eq!(bench.replaced(7, 0), life + 1);
            assert_eq!(bench.replaced(7, 0), life + 1, "heard of twice");
            // Its proposer continues only now.
            bench.reclaimer.committed(Pointer(7), record);
            assert_eq!(bench.replaced(7, 0), life + 1, "retired before that");
        }
        assert_eq!(bench.reclaimer.due(6, 9, |_| true), None);
        assert_eq!(bench.reclaimer.due(7, 9, |_| true), Some((bench.kind, vec![record, record])));
    }

    /// A split is known to be at all nodes after a GC cycle found a child's first record.
    #[test]
    fn what_came_back_is_no_childs_first_record_any_more() {
        let bench = Bench::new();
        let (cell, record) = (Pointer(7), bench.buffer(0));
        bench.reclaimer.handed_out(record);
        bench.reclaimer.created(cell, record);
        assert_eq!(bench.replaced(7, 0), 0, "some node may lack it");
        bench.reclaimer.begin();
        let garbage = bench.reclaimer.all_unreachable(bench.chunk);
        let garbage = garbage.iter().find(|object| object.pointer == record).expect("unmarked");
        assert!(bench.reclaimer.retire(garbage, 5));
        bench.reclaimer.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 1, "it was retired before");
        bench.reclaimer.handed_out(record);
        bench.reclaimer.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 1, "it is something else");
        bench.reclaimer.created(cell, record);
        bench.reclaimer.reached_all(cell, record);
        assert_eq!(bench.replaced(7, 0), 2);
    }

    #[test]
    fn a_later_stamp_is_not_superseded() {
        let bench = Bench::new();
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(30, 0));
        bench.wrote(&register(7), bench.stamp(30, 0), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 0);
    }

    /// A GC cycle found a buffer unreachable. Before the cycle ended, the client wrote its register
    /// again, and the buffer was retired that way. Retiring it twice would reuse it twice.
    #[test]
    fn what_came_back_while_a_collection_was_under_way_is_no_garbage() {
        let bench = Bench::new();
        bench.reclaimer.handed_out(bench.buffer(0));
        bench.wrote(&register(7), Stamp::EMPTY, bench.stamp(10, 0));
        bench.reclaimer.begin();
        let [unreachable] = bench.reclaimer.all_unreachable(bench.chunk)[..] else {
            panic!("one buffer")
        };
        bench.wrote(&register(7), bench.stamp(10, 0), bench.stamp(20, 1));
        assert_eq!(bench.retired(), 1);
        assert!(!bench.reclaimer.retire(&unreachable, 6));
        assert_eq!(bench.retired(), 1);
    }

    #[test]
    fn pointers_that_are_not_this_clients_buffers_are_let_alone() {
        let bench = Bench::new();
        let geometry = bench.reclaimer.geometry;
        let last = (1 << geometry.format.pointer_bits) - 1;
        for pointer in [1, last / 2, last] {
            let stamp = geometry.format.stamp(Timestamp(3), Pointer(pointer), StampFlags::empty());
            bench.wrote(&register(7), stamp, bench.stamp(20, 1));
        }
        assert_eq!(bench.retired(), 0);
    }

    /// Another client says that its write superseded this client's. It may mean a former use of the
    /// buffer, or be wrong.
    #[test]
    fn a_write_that_another_followed_comes_back_once_a_majority_is_past_it() {
        let bench = Bench::new();
        let (own, later) = (bench.stamp(10, 0), bench.stamp(20, 1).verified());
        bench.wrote(&register(7), Stamp::EMPTY, own);
        let followed = |register, stamp, settled| {
            bench.reclaimer.followed(Pointer(register), (stamp, settled), 5);
            bench.retired()
        };
        assert_eq!(followed(8, own, later), 0, "another register");
        assert_eq!(followed(7, bench.stamp(9, 0), later), 0, "an earlier write");
        assert_eq!(followed(7, own, own.verified()), 0, "it is the last");
        assert_eq!(followed(7, own, bench.stamp(15, 0).verified()), 0, "so is its second stamp");
        assert_eq!(followed(7, own, bench.stamp(9, 1).verified()), 0, "what came before");
        assert_eq!(followed(7, own, later), 1);
        assert_eq!(followed(7, own, later), 1, "it is told twice");
    }

    /// A delete came first. A client that met the write before the delete may be about to copy it
    /// to another node.
    #[test]
    fn a_write_that_was_refused_is_reclaimed_when_no_client_can_reach_it() {
        let bench = Bench::new();
        bench.reclaimer.handed_out(bench.buffer(0));
        bench.reclaimer.refused(bench.buffer(0), 5);
        bench.reclaimer.refused(bench.buffer(0), 5);
        assert_eq!(bench.retired(), 1, "once for each time that it is handed out");
        let taken = |epoch| {
            bench.reclaimer.reclaim(bench.kind, epoch, 1, |_| {});
            bench.reclaimer.take(bench.kind)
        };
        assert_eq!(taken(6), None);
        assert_eq!(taken(7), Some(bench.buffer(0)));
    }

    /// As long as a client may write a first buffer again as it was at first, it is not reused.
    #[test]
    fn a_first_buffer_is_reclaimed_after_the_record_that_it_was_created_with() {
        let bench = Bench::new();
        let first = |index| bench.stamp(Timestamp::FIRST.0, index).verified();
        for index in [0, 1] {
            bench.reclaimer.handed_out(bench.buffer(index));
            bench.reclaimer.first(Pointer(7), bench.buffer(index));
        }
        bench.wrote(&register(7), first(0), bench.stamp(10, 2));
        assert_eq!(bench.retired(), 0, "nodes may lack the record");
        bench.reclaimer.first_is_everywhere(Pointer(8), bench.buffer(1));
        bench.wrote(&register(7), first(1), bench.stamp(20, 3));
        assert_eq!(bench.retired(), 0, "that was another register's");
        bench.reclaimer.first_is_everywhere(Pointer(7), bench.buffer(1));
        bench.wrote(&register(7), first(1), bench.stamp(30, 4));
        assert_eq!(bench.retired(), 1);
    }
}
