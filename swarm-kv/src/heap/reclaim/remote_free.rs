//! Remote frees: superseded records and writes that are retired without a GC cycle.
//!
//! A client that replaces a bucket's record sends its maker a hint. The maker READs the cell: once
//! every node shows the same word, of another record, no operation that begins from then on can
//! reach the replaced one, and the maker retires it (E4a). A hint proves nothing: it may come late,
//! twice, or not at all. What is not found this way is left to a [GC cycle](crate::gc::mark_sweep).
//!
//! A client whose write supersedes another client's write sends that client a hint as well. It
//! READs the register: once a majority has a later verified stamp, no operation can reach its
//! buffer (E4c).
//!
//! A record that a split creates is named by the split as well, as long as nodes may lack both.
//! Most splits make room for a key, whose insert replaces one of the two new records at once. That
//! record waits from then on, and is retired only once every node shows the split.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use swarm_core::clock::Clock;
use swarm_core::fabric::{EpochDomain, Fabric, MAX_VERBS, RemoteFree, Verb};
use swarm_core::layout::{Location, cell};
use swarm_core::quorum::Group;
use swarm_core::register::read_all::read_all;
use swarm_core::words::{CellWord, Pointer, Stamp};

use crate::error::Error;
use crate::heap::Heap;
use crate::heap::chunk_map::SHARED;
use crate::index::bucket::Child;
use crate::runtime::side_by_side::try_join_all;

/// Records taken at most before pending retirements are looked at: as many may be freed then.
pub(crate) const AT_ONCE: usize = 64;
/// Cells that wait to be looked at, at most; further hints are dropped.
const MOST: usize = 512;
/// Looks at a cell, which other clients may be changing at the same time.
const LOOKS: u8 = 3;

/// Superseded objects that are not yet proven unreachable.
#[derive(Default)]
pub(in crate::heap) struct PendingRetirements {
    /// Records taken, and writes that superseded others', since the last look at pending
    /// retirements.
    taken: Cell<i64>,
    asked: RefCell<Vec<PendingRecord>>,
    followed: RefCell<Vec<PendingWrite>>,
    /// For each record of this client that was created together with a register: that register and
    /// its first buffer.
    created_with: RefCell<HashMap<Pointer, (Pointer, Pointer)>>,
}

impl PendingRetirements {
    /// Whether replaced records are pending: some may be freed soon.
    pub(in crate::heap) fn are_any(&self) -> bool {
        self.asked.borrow().iter().any(|asked| asked.children.is_none())
    }

    /// Drops what was created together with other records.
    pub(in crate::heap) fn keep(&self, is_own: impl Fn(Pointer) -> bool) {
        self.created_with.borrow_mut().retain(|&record, _| is_own(record));
    }
}

/// A record that waits for its cell's words to show that it is unreachable.
#[derive(Clone, Copy)]
struct PendingRecord {
    cell: Location,
    record: Pointer,
    /// If the record is a split, its children. Otherwise the record was replaced.
    children: Option<[Child; 2]>,
    looks: u8,
}

/// A write of this client that another client's write is reported to supersede.
#[derive(Clone, Copy)]
struct PendingWrite {
    /// The key's hash.
    hash: u64,
    stamp: Stamp,
}

impl Heap {
    /// Counts a bucket's record that is taken, or a write that superseded another client's.
    pub(crate) fn takes_a_record(&self) {
        self.awaited.taken.set(self.awaited.taken.get() + 1);
    }

    /// Whether enough buckets' records were taken that it is time to look at pending retirements.
    #[inline]
    pub(crate) fn misses_records(&self, at_once: usize) -> bool {
        self.awaited.taken.get() >= at_once.min(AT_ONCE) as i64
    }

    /// Records that those were looked at. After a look that freed nothing, the next one is further
    /// off.
    pub(crate) fn has_looked_for_records(&self, in_vain: bool) {
        self.awaited.taken.set(if in_vain { -16 * AT_ONCE as i64 } else { 0 });
    }

    /// Records that a record of this client is in a cell, in place of another one. Sends the maker
    /// of that one a hint.
    pub(crate) fn has_replaced(
        &self,
        domain: &impl EpochDomain,
        cell: Pointer,
        (record, by): (Pointer, Pointer),
    ) {
        self.reclaimer.committed(cell, by);
        self.send_hint(domain, record, RemoteFree::Record { cell, record });
    }

    /// Records that a record of this client is in a keyed cell, and that every node's word went to it
    /// from the one of the record before, which is retired (E4a): no look has to prove that.
    #[inline]
    pub(crate) fn has_replaced_everywhere(
        &self,
        domain: &impl EpochDomain,
        cell: Pointer,
        (before, by): (Pointer, Pointer),
    ) {
        self.reclaimer.committed(cell, by);
        // After the words: operations that began before may have reached it.
        if self.reclaimer.replaced(before, cell, domain.epoch_bound()) {
            self.takes_a_record();
        }
    }

    /// Sends a hint if a write of this client, now complete, superseded another client's: `stamp`
    /// is what it superseded, `before` its own earlier one.
    #[inline]
    pub(crate) fn has_followed(
        &self,
        domain: &impl EpochDomain,
        hash: u64,
        (stamp, before): (Stamp, Stamp),
    ) {
        if !stamp.same_write(before) && stamp > before {
            self.takes_a_record();
            let buffer = self.geometry.format.pointer(stamp);
            self.send_hint(domain, buffer, RemoteFree::Write { hash, stamp });
        }
    }

    /// Sends the owner of an object a hint.
    fn send_hint(&self, domain: &impl EpochDomain, object: Pointer, replaced: RemoteFree) {
        match self.owner(object) {
            // Of a shared chunk, only the client that has an object knows so: another client's is
            // left to its GC cycle.
            Some(slot) if slot == self.slot || slot == SHARED => self.take_hint(replaced),
            Some(slot) => domain.send_remote_free(slot, replaced),
            None => {}
        }
    }

    /// Records that a record of this client was created together with a register and this first
    /// buffer, or with none.
    ///
    /// Where nodes lack the record, or take the next one for their own, a client may write the
    /// buffer there again as it was at first. So it is reclaimed like others only after the record
    /// (E4b).
    pub(crate) fn record_created_with(&self, record: Pointer, first: Option<(Pointer, Pointer)>) {
        match first {
            Some((register, buffer)) => {
                self.reclaimer.first(register, buffer);
                self.awaited.created_with.borrow_mut().insert(record, (register, buffer));
            }
            None => self.forget_created(record),
        }
    }

    /// Drops what was created together with this record, which is reused, or about to be: a GC
    /// cycle took it.
    pub(crate) fn forget_created(&self, record: Pointer) {
        self.awaited.created_with.borrow_mut().remove(&record);
    }

    /// Records that a record of this client is a split.
    pub(crate) fn has_split(&self, cell: Pointer, record: Pointer, children: [Child; 2]) {
        for child in &children {
            self.forget_created(child.record);
            self.reclaimer.created(child.cell, child.record);
        }
        self.ask(cell, record, Some(children));
    }

    fn take_hint(&self, replaced: RemoteFree) {
        match replaced {
            RemoteFree::Record { cell, record } if self.reclaimer.is_in(record, cell) => {
                self.ask(cell, record, None);
            }
            RemoteFree::Write { hash, stamp } if self.reclaimer.held_at(stamp).is_some() => {
                let mut followed = self.awaited.followed.borrow_mut();
                if followed.len() < MOST {
                    followed.push(PendingWrite { hash, stamp });
                }
            }
            _ => {}
        }
    }

    fn ask(&self, cell: Pointer, record: Pointer, children: Option<[Child; 2]>) {
        if let Some(cell) = self.geometry.bucket_place(cell) {
            self.check_later(PendingRecord { cell, record, children, looks: LOOKS });
        }
    }

    fn check_later(&self, asked: PendingRecord) {
        let mut waiting = self.awaited.asked.borrow_mut();
        if waiting.len() < MOST {
            waiting.push(asked);
        }
    }

    /// Returns the client slot that owns an object, or [`SHARED`], by the map as last read.
    fn owner(&self, object: Pointer) -> Option<usize> {
        crate::heap::chunk_map::owner(*self.map.borrow().get(self.geometry.chunk_of(object))?)
    }

    /// Returns the client slot that owns an object, by the map as last read; the inner `None`
    /// stands for a shared chunk, the outer one for a free chunk.
    pub(crate) fn holder(&self, object: Pointer) -> Option<Option<usize>> {
        self.owner(object).map(|owner| (owner != SHARED).then_some(owner))
    }

    /// Retires the replaced records, known or hinted, that are unreachable (E4a). One roundtrip. No
    /// other operation of this client may run a GC cycle meanwhile.
    ///
    /// # Errors
    /// If not all nodes answer; the records are then left to a GC cycle.
    pub(crate) async fn check_records<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
        remembered: impl Fn(u64) -> Option<Location>,
    ) -> Result<(), Error> {
        domain.drain_remote_frees(&mut |replaced| self.take_hint(replaced));
        let mut asked = self.awaited.asked.take();
        // Before the READs: a record that was reclaimed since it was queued may be on its way into
        // the same cell again, which the words would not show.
        asked.retain(|a| a.children.is_some() || self.reclaimer.is_in(a.record, a.cell.pointer));
        let looks = asked.chunks(MAX_VERBS).map(|some| self.shown(group, some));
        let shown = try_join_all(looks).await?;
        // After the READs: operations that began before may have reached what they do not show.
        let epoch = domain.epoch_bound();
        for (asked, shown) in asked.iter().zip(shown.iter().flatten()) {
            self.answer(asked, *shown, epoch);
        }
        self.check_writes(group, domain, remembered).await
    }

    /// The same for superseded writes, as far as the client remembers their registers (E4c); a
    /// register that is no longer remembered may be something else by now. One roundtrip.
    async fn check_writes<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        domain: &impl EpochDomain,
        remembered: impl Fn(u64) -> Option<Location>,
    ) -> Result<(), Error> {
        // A few at a time, the latest first: an operation waits.
        let followed = {
            let mut followed = self.awaited.followed.borrow_mut();
            let rest = followed.len().saturating_sub(AT_ONCE);
            followed.split_off(rest)
        };
        let places = followed.iter().filter_map(|it| Some((remembered(it.hash)?, it.stamp)));
        let places: Vec<(Location, Stamp)> = places
            .filter(|(place, stamp)| self.reclaimer.held_at(*stamp) == Some(place.pointer))
            .collect();
        let looks = places.iter().map(|(place, _)| read_all(group, place));
        let shown = try_join_all(looks).await?;
        // After the READs, as for records.
        let epoch = domain.epoch_bound();
        for ((place, stamp), shown) in places.iter().zip(&shown) {
            if let Some(settled) = shown.completed() {
                self.reclaimer.followed(place.pointer, (*stamp, settled), epoch);
            }
        }
        Ok(())
    }

    /// Returns for each cell the record that every node shows, under the same word.
    async fn shown<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        asked: &[PendingRecord],
    ) -> Result<Vec<Option<Pointer>>, Error> {
        let mut words: Vec<Option<CellWord>> = vec![None; asked.len()];
        let mut same = vec![true; asked.len()];
        let read = |node| {
            let look = |asked: &PendingRecord| {
                let at = asked.cell.at(node, group.nodes()).plus(cell::WORD);
                Verb::Read { at, words: 1 }
            };
            let chain: heapless::Vec<Verb<'_>, MAX_VERBS> = asked.iter().map(look).collect();
            group.fabric().post(node, &chain)
        };
        let collect = |_, reply: F::Reply<'_>| {
            for ((word, same), &read) in words.iter_mut().zip(&mut same).zip(reply.iter()) {
                *same &= *word.get_or_insert(CellWord(read)) == CellWord(read);
            }
        };
        group.everywhere(read, collect).await?;
        let format = self.geometry.format;
        let shown = words.into_iter().zip(same);
        Ok(shown
            .map(|(word, same)| word.filter(|_| same).map(|word| format.record(word)))
            .collect())
    }

    fn answer(&self, asked: &PendingRecord, shown: Option<Pointer>, epoch: u64) {
        let settled = match (shown, asked.children) {
            // No node lacks the children, so no client copies them any more.
            (Some(shown), Some(children)) if shown == asked.record => {
                for child in children {
                    self.reclaimer.reached_all(child.cell, child.record);
                }
                true
            }
            (Some(shown), None) if shown != asked.record => {
                let replaced = self.reclaimer.replaced(asked.record, asked.cell.pointer, epoch);
                let created_with = self.awaited.created_with.borrow_mut().remove(&asked.record);
                if let Some((register, buffer)) = created_with.filter(|_| replaced) {
                    self.reclaimer.first_is_everywhere(register, buffer);
                }
                replaced
            }
            _ => false,
        };
        if !settled && asked.looks > 0 {
            self.check_later(PendingRecord { looks: asked.looks - 1, ..*asked });
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::node::NodeId;
    use swarm_core::words::{Ballot, CellFlags};

    use crate::heap::Purpose;
    use crate::heap::tests::{Says, alone};

    use super::*;
    use crate::runtime::block_on::block_on;

    /// A record was queued, and reclaimed in another way before the look.
    #[test]
    fn what_was_asked_of_a_former_life_is_not_answered() {
        let (group, heap) = alone();
        let kind = heap.plain(32);
        let record = block_on(heap.allocate(&group, kind, Purpose::Replace)).expect("memory");
        let cell = heap.geometry.bucket_cell(0).pointer;
        let replaced = RemoteFree::Record { cell, record };
        heap.reclaimer.committed(cell, record);
        heap.take_hint(replaced);
        heap.reclaimer.replaced(record, cell, 1);
        assert!(heap.reclaimer.due(3, 9, |_| true).is_some(), "it came back");
        // After the READs, it is committed in the cell once more.
        let meanwhile = Says(|| {
            heap.reclaimer.handed_out(record);
            heap.reclaimer.committed(cell, record);
            5
        });
        let look = || block_on(heap.check_records(&group, &meanwhile, |_| None));
        look().expect("one node");
        assert_eq!(heap.reclaimer.due(99, 9, |_| true), None, "the cell's record is in use");
        // Queued in this life, it is found: the cell shows no such record.
        heap.take_hint(replaced);
        look().expect("one node");
        assert_eq!(heap.reclaimer.due(99, 9, |_| true), Some((kind, vec![record])));
    }

    /// A GC cycle took a record that was created together with a register and its first buffer. The
    /// next use of the record's memory must not affect those, should they be created again together
    /// with another record.
    #[test]
    fn what_a_collection_took_bears_nothing() {
        let (group, heap) = alone();
        let kind = heap.plain(32);
        let take = || block_on(heap.allocate(&group, kind, Purpose::Replace)).expect("memory");
        let (record, other, buffer) = (take(), take(), take());
        let register = heap.geometry.bucket_cell(0).pointer;
        for created_with in [record, other] {
            heap.record_created_with(created_with, Some((register, buffer)));
        }
        heap.forget_created(record);
        let knows_created = |record| heap.awaited.created_with.borrow().contains_key(&record);
        assert_eq!([record, other].map(knows_created), [false, true]);
        heap.has_split(
            register,
            take(),
            [other, take()].map(|record| Child { cell: register, record, words: 32 }),
        );
        assert!(!knows_created(other), "it is a bucket's first record");
    }

    /// A split makes room for a key, whose insert replaces the first record of one of the two
    /// buckets at once. That record is reclaimed too, but only after every node shows the split.
    #[test]
    fn a_childs_first_record_comes_back_behind_its_split() {
        let (group, heap) = alone();
        let kind = heap.plain(32);
        let take = || block_on(heap.allocate(&group, kind, Purpose::Replace)).expect("memory");
        let cells = [0, 1, 2].map(|at| heap.geometry.bucket_cell(at));
        let [parent, left, right] = cells.map(|cell| cell.pointer);
        let (split, first, other) = (take(), take(), take());
        let children =
            [(left, first), (right, other)].map(|(cell, record)| Child { cell, record, words: 32 });
        heap.has_split(parent, split, children);
        heap.take_hint(RemoteFree::Record { cell: left, record: first });
        let look = || {
            let looked = heap.check_records(&group, &Says(|| 5), |_| None);
            block_on(looked).expect("one node");
        };
        look();
        assert_eq!(heap.reclaimer.due(99, 9, |_| true), None, "the node lacks the split");
        let word =
            group.format().cell(Ballot(1), split, CellFlags::CONFIRMED | CellFlags::ACCEPTED);
        let at = cells[0].at(NodeId(0), 1).plus(cell::WORD);
        let write = Verb::Write { at, head: &[word.0], tail: &[] };
        block_on(group.fabric().post(NodeId(0), &[write])).expect("the node");
        look();
        assert_eq!(heap.reclaimer.due(99, 9, |_| true), Some((kind, vec![first])));
    }
}
