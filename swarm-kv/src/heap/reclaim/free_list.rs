//! Retired and free objects of one kind.
//!
//! No operation can reach a retired object once the epoch has advanced [`GRACE`] times (E2).
//! Buffers are then reused as they are: their next write has a larger number. All other objects are
//! zeroed first (E8).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use swarm_core::epoch::GRACE;
use swarm_core::layout::ChunkClass;
use swarm_core::words::Pointer;

use crate::heap::ObjectKind;
use crate::heap::reclaim::object_table::{Found, ObjectTables};

/// Capacity for retired buffers that is allocated at the start.
const ROOM: usize = 16 << 10;

/// A GC cycle is not worth while for fewer objects.
const MUCH: usize = 64;

/// Retired and free objects of one kind.
pub(in crate::heap) struct FreeList {
    pub(in crate::heap) kind: ObjectKind,
    /// Retired buffers, each with its epoch; the earliest first.
    pub(in crate::heap) retired: VecDeque<(u64, Pointer)>,
    /// Buffers that no operation can reach, with their locks as they are.
    pub(in crate::heap) ready: Vec<Pointer>,
    /// The last of those, if it is known where it lies.
    next: Option<Found>,
    /// Retired objects that are to be zeroed; the earliest first.
    pub(in crate::heap) swept: VecDeque<(u64, Pointer)>,
    /// Objects that are zeroed, or were never used. The first one in memory is reused first: so
    /// objects in use come to lie close together, and the chunks after them become
    /// [empty](crate::heap::transfer::release).
    fresh: BinaryHeap<Reverse<Pointer>>,
    /// How many free objects the last GC cycle left, plus those of chunks that were opened since.
    had: usize,
}

impl FreeList {
    pub(in crate::heap) fn new(kind: ObjectKind) -> Self {
        let (swept, fresh, next) = Default::default();
        // Buffers are retired on the data path, which allocates nothing.
        let room = if let ChunkClass::Homed { .. } = kind.class { 0 } else { ROOM };
        let (retired, ready) = (VecDeque::with_capacity(room), Vec::with_capacity(room));
        Self { kind, retired, ready, next, swept, fresh, had: 0 }
    }

    fn len(&self) -> usize {
        self.retired.len() + self.ready.len() + self.swept.len() + self.fresh.len()
    }

    /// Records another chunk, with `more` objects.
    pub(in crate::heap) fn comes_to(&mut self, more: usize) {
        self.had += more;
    }

    /// Records the end of a GC cycle; the active chunk has `unused` objects besides.
    pub(in crate::heap) fn is_collected(&mut self, unused: usize) {
        self.had = self.len() + unused;
    }

    /// Whether most of what there was is used up. Runs do not count: they free whole chunks.
    pub(in crate::heap) fn is_used_up(&self, unused: impl Fn(ObjectKind) -> usize) -> bool {
        let is_little = |left| left <= self.had / 4 && left + MUCH <= self.had;
        self.kind.class != ChunkClass::Large
            && is_little(self.len())
            && is_little(self.len() + unused(self.kind))
    }

    /// Takes a reclaimed buffer of which it is [known](ObjectTables::buffer) where it lies. Passes
    /// the next one to `expect`.
    #[inline(always)]
    pub(in crate::heap) fn take_found(
        &mut self,
        tables: &ObjectTables,
        expect: impl FnOnce(&Found),
    ) -> Option<Found> {
        let &buffer = self.ready.last()?;
        let taken = match self.next {
            Some(next) if next.buffer == buffer => next,
            _ => tables.buffer(buffer)?,
        };
        self.ready.pop();
        self.next = self.ready.last().and_then(|&next| tables.buffer(next));
        if let Some(next) = &self.next {
            expect(next);
        }
        Some(taken)
    }

    /// Adds an object that is to be zeroed, retired in this epoch, or no earlier than the last one.
    pub(in crate::heap) fn sweep(&mut self, epoch: u64, object: Pointer) {
        let last = self.swept.back().map_or(0, |&(retired, _)| retired);
        self.swept.push_back((epoch.max(last), object));
    }

    /// Returns how many objects are to be zeroed.
    pub(in crate::heap) fn to_reset(&self) -> usize {
        self.swept.len()
    }

    /// Returns how many objects are free.
    pub(in crate::heap) fn free_count(&self) -> usize {
        self.ready.len() + self.fresh.len()
    }

    /// Returns how many free objects are zeroed or were never used.
    pub(in crate::heap) fn fresh(&self) -> usize {
        self.fresh.len()
    }

    /// Takes one of those.
    pub(in crate::heap) fn take_fresh(&mut self) -> Option<Pointer> {
        self.fresh.pop().map(|Reverse(object)| object)
    }

    /// Adds objects that are zeroed or were never used.
    pub(in crate::heap) fn renewed(&mut self, objects: impl Iterator<Item = Pointer>) {
        self.fresh.extend(objects.map(Reverse));
    }

    /// Frees the retired buffers that no operation can reach in `epoch`, if there are at least
    /// `least`, and calls `each` with each. Returns how many.
    pub(in crate::heap) fn reclaim(
        &mut self,
        epoch: u64,
        least: usize,
        each: impl Fn(Pointer),
    ) -> usize {
        let over = are_over(&self.retired, epoch);
        if over < least {
            return 0;
        }
        for (_, buffer) in self.retired.drain(..over) {
            each(buffer);
            self.ready.push(buffer);
        }
        over
    }

    /// Takes the objects that are to be zeroed and that no operation can reach in `epoch`, at most
    /// `most`.
    pub(in crate::heap) fn due(&mut self, epoch: u64, most: usize) -> Vec<Pointer> {
        let mut due = Vec::with_capacity(most.min(self.swept.len()));
        while due.len() < most
            && let Some(&(retired, object)) = self.swept.front()
            && is_over(retired, epoch)
        {
            self.swept.pop_front();
            due.push(object);
        }
        due
    }

    /// Whether objects are freed once the epoch advances beyond `epoch`. `is_reset`: objects that
    /// are to be zeroed can be.
    pub(in crate::heap) fn waits(&self, epoch: u64, is_reset: bool) -> bool {
        let last = [self.retired.back(), self.swept.back().filter(|_| is_reset)];
        last.into_iter().flatten().any(|&(retired, _)| !is_over(retired, epoch))
    }

    /// Returns retired objects that operations may still reach in `epoch`.
    pub(in crate::heap) fn held(&self, epoch: u64) -> impl Iterator<Item = Pointer> {
        let held = move |all: &VecDeque<(u64, Pointer)>| are_over(all, epoch);
        let retired = self.retired.range(held(&self.retired)..);
        retired.chain(self.swept.range(held(&self.swept)..)).map(|&(_, object)| object)
    }

    /// Drops all other objects.
    pub(in crate::heap) fn keep(&mut self, is_own: impl Fn(Pointer) -> bool) {
        let before = self.len();
        self.retired.retain(|&(_, object)| is_own(object));
        self.swept.retain(|&(_, object)| is_own(object));
        self.had = self.had.saturating_sub(before - self.len());
        self.retain_free(is_own);
    }

    /// Drops all other free objects.
    pub(in crate::heap) fn retain_free(&mut self, is_kept: impl Fn(Pointer) -> bool) {
        let before = self.len();
        self.ready.retain(|&object| is_kept(object));
        // Its chunk may have another object table by the time that this pointer is free again.
        self.next = None;
        self.fresh.retain(|&Reverse(object)| is_kept(object));
        self.had = self.had.saturating_sub(before - self.len());
    }
}

/// Returns how many of these, the earliest, no operation can reach in `epoch`.
fn are_over(retired: &VecDeque<(u64, Pointer)>, epoch: u64) -> usize {
    retired.partition_point(|&(retired, _)| is_over(retired, epoch))
}

/// Whether, in `epoch`, no operation can reach an object that was `retired` then (E2).
fn is_over(retired: u64, epoch: u64) -> bool {
    retired + GRACE <= epoch
}
