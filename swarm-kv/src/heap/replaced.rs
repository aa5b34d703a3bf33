//! Buckets' records, and writes that others followed, that come back at once.
//!
//! Whoever replaces a record tells the client that made it, which looks at the cell: once every node
//! shows the same word, of another record, nobody who begins from then on comes across the one that was
//! replaced, and it is retired. What is told is a hint and no more. It may come late, twice or not at
//! all; what is not found so is left to a [collection](crate::collect).
//!
//! Who writes a register behind another client's write tells that one likewise. It looks at the
//! register: once a majority is past its write, by a verified stamp, nobody comes across its buffer.
//!
//! A record that is born with a split is named by the split as well, for as long as there may be nodes
//! that lack both. Most splits make room for a key, whose insert replaces one of the two at once: that
//! one is asked about from then on, and retired only when every node shows the split.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use futures_util::future::try_join_all;
use swarm_core::clock::Clock;
use swarm_core::fabric::{Board, Fabric, MAX_VERBS, Replaced, Verb};
use swarm_core::layout::{Place, cell};
use swarm_core::quorum::Group;
use swarm_core::register::survey::survey;
use swarm_core::words::{CellWord, Pointer, Stamp};

use super::Heap;
use super::map::SHARED;
use crate::bucket::Child;
use crate::error::Error;

/// Records at most that are taken before those are looked for that come back. As many may come back then.
pub(crate) const AT_ONCE: usize = 64;
/// Cells at most that wait to be looked at: what others tell in the meantime is not listened to.
const MOST: usize = 512;
/// Looks at a cell, which others may be changing at the same time.
const LOOKS: u8 = 3;

/// What is known of records that come back at once.
#[derive(Default)]
pub(super) struct Awaited {
    /// Records that were taken since those were looked for that come back.
    taken: Cell<i64>,
    asked: RefCell<Vec<Asked>>,
    followed: RefCell<Vec<Followed>>,
    /// Registers that were born with this client's records, and their first buffers.
    borne: RefCell<HashMap<Pointer, (Pointer, Pointer)>>,
}

impl Awaited {
    /// Whether records that were replaced are asked about: they may be about to come back.
    pub(super) fn are_any(&self) -> bool {
        self.asked.borrow().iter().any(|asked| asked.children.is_none())
    }

    /// Forgets what other records bore.
    pub(super) fn keep(&self, is_own: impl Fn(Pointer) -> bool) {
        self.borne.borrow_mut().retain(|&record, _| is_own(record));
    }
}

/// A question that a cell's words answer.
#[derive(Clone, Copy)]
struct Asked {
    cell: Place,
    record: Pointer,
    /// The children of the split that the record is. Otherwise the record was replaced.
    children: Option<[Child; 2]>,
    looks: u8,
}

/// A write of this client's that another one is said to have followed.
#[derive(Clone, Copy)]
struct Followed {
    /// The key's hash.
    hash: u64,
    stamp: Stamp,
}

impl Heap {
    /// Memory is taken for a bucket's record.
    pub(crate) fn takes_a_record(&self) {
        self.awaited.taken.set(self.awaited.taken.get() + 1);
    }

    /// Whether so many buckets' records were taken that it is time to look for those that come back.
    #[inline]
    pub(crate) fn misses_records(&self, at_once: usize) -> bool {
        self.awaited.taken.get() >= at_once.min(AT_ONCE) as i64
    }

    /// Those were looked for. Where that came to nothing, the next time is further off.
    pub(crate) fn has_looked_for_records(&self, in_vain: bool) {
        self.awaited.taken.set(if in_vain { -16 * AT_ONCE as i64 } else { 0 });
    }

    /// A record of this client's is in a cell, and took the place of another.
    pub(crate) fn has_replaced(
        &self,
        board: &impl Board,
        cell: Pointer,
        (record, by): (Pointer, Pointer),
    ) {
        self.recycler.committed(cell, by);
        self.tell(board, record, Replaced::Record { cell, record });
    }

    /// A write of this client's to a register is complete, behind its own at `before`, and follows another
    /// client's.
    #[inline]
    pub(crate) fn has_followed(
        &self,
        board: &impl Board,
        hash: u64,
        (stamp, before): (Stamp, Stamp),
    ) {
        if !stamp.same_write(before) && stamp > before {
            self.takes_a_record();
            let buffer = self.geometry.format.pointer(stamp);
            self.tell(board, buffer, Replaced::Write { hash, stamp });
        }
    }

    /// Tells the owner of an object.
    fn tell(&self, board: &impl Board, object: Pointer, replaced: Replaced) {
        match self.owner(object) {
            // Whose it is of a shared chunk nobody knows but that one: another's is left to its collection.
            Some(slot) if slot == self.slot || slot == SHARED => self.hears(replaced),
            Some(slot) => board.tell(slot, replaced),
            None => {}
        }
    }

    /// A record of this client's bore a register with this first buffer, or none.
    ///
    /// Where nodes lack the record, or take the next one for its own, somebody may write the buffer there as it
    /// was at first. So it comes back like others only when the record does.
    pub(crate) fn has_borne(&self, record: Pointer, first: Option<(Pointer, Pointer)>) {
        match first {
            Some((register, buffer)) => {
                self.recycler.first(register, buffer);
                self.awaited.borne.borrow_mut().insert(record, (register, buffer));
            }
            None => self.bears_no_more(record),
        }
    }

    /// This record of this client's is used for something else, or is about to be, as a collection took it.
    pub(crate) fn bears_no_more(&self, record: Pointer) {
        self.awaited.borne.borrow_mut().remove(&record);
    }

    /// A record of this client's is a split.
    pub(crate) fn has_split(&self, cell: Pointer, record: Pointer, children: [Child; 2]) {
        for child in &children {
            self.bears_no_more(child.record);
            self.recycler.born(child.cell, child.record);
        }
        self.ask(cell, record, Some(children));
    }

    fn hears(&self, replaced: Replaced) {
        match replaced {
            Replaced::Record { cell, record } if self.recycler.is_in(record, cell) => {
                self.ask(cell, record, None);
            }
            Replaced::Write { hash, stamp } if self.recycler.held_at(stamp).is_some() => {
                let mut followed = self.awaited.followed.borrow_mut();
                if followed.len() < MOST {
                    followed.push(Followed { hash, stamp });
                }
            }
            _ => {}
        }
    }

    fn ask(&self, cell: Pointer, record: Pointer, children: Option<[Child; 2]>) {
        if let Some(cell) = self.geometry.bucket_place(cell) {
            self.look_later(Asked { cell, record, children, looks: LOOKS });
        }
    }

    fn look_later(&self, asked: Asked) {
        let mut waiting = self.awaited.asked.borrow_mut();
        if waiting.len() < MOST {
            waiting.push(asked);
        }
    }

    /// The slot that an object belongs to, or what stands for all clients, by the map as last seen.
    fn owner(&self, object: Pointer) -> Option<usize> {
        super::map::owner(*self.map.borrow().get(self.geometry.chunk_of(object))?)
    }

    /// The slot that an object belongs to, by the map as last seen, or none where it is in a chunk that clients share. No
    /// answer if it is nobody's.
    pub(crate) fn holder(&self, object: Pointer) -> Option<Option<usize>> {
        self.owner(object).map(|owner| (owner != SHARED).then_some(owner))
    }

    /// Retires what nobody comes across any more of the records that this client knows, or is told, to
    /// be replaced. One roundtrip. Nobody else may collect this client's garbage meanwhile.
    ///
    /// # Errors
    /// Not all nodes answer; then it is left to a collection.
    pub(crate) async fn look_for_records<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
        remembered: impl Fn(u64) -> Option<Place>,
    ) -> Result<(), Error> {
        board.told(&mut |replaced| self.hears(replaced));
        let mut asked = self.awaited.asked.take();
        // In front of the READs: a record that came back since it was asked about may be on its way into
        // the same cell once more, which what they show would not tell.
        asked.retain(|a| a.children.is_some() || self.recycler.is_in(a.record, a.cell.pointer));
        let looks = asked.chunks(MAX_VERBS).map(|some| self.shown(group, some));
        let shown = try_join_all(looks).await?;
        // Behind the looks: who began before may have come across what they do not show.
        let epoch = board.latest();
        for (asked, shown) in asked.iter().zip(shown.iter().flatten()) {
            self.answer(asked, *shown, epoch);
        }
        self.look_for_writes(group, board, remembered).await
    }

    /// The same for writes that others followed, as far as their registers are remembered: where one was
    /// once, something else may be by now. One roundtrip.
    async fn look_for_writes<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        board: &impl Board,
        remembered: impl Fn(u64) -> Option<Place>,
    ) -> Result<(), Error> {
        // A few at a time, the latest first: somebody waits.
        let followed = {
            let mut followed = self.awaited.followed.borrow_mut();
            let rest = followed.len().saturating_sub(AT_ONCE);
            followed.split_off(rest)
        };
        let places = followed.iter().filter_map(|it| Some((remembered(it.hash)?, it.stamp)));
        let places: Vec<(Place, Stamp)> = places
            .filter(|(place, stamp)| self.recycler.held_at(*stamp) == Some(place.pointer))
            .collect();
        let looks = places.iter().map(|(place, _)| survey(group, place));
        let shown = try_join_all(looks).await?;
        // Behind the looks, as of records.
        let epoch = board.latest();
        for ((place, stamp), shown) in places.iter().zip(&shown) {
            if let Some(settled) = shown.settled() {
                self.recycler.followed(place.pointer, (*stamp, settled), epoch);
            }
        }
        Ok(())
    }

    /// The record that every node shows, under the same word, for each cell.
    async fn shown<F: Fabric, C: Clock>(
        &self,
        group: &Group<F, C>,
        asked: &[Asked],
    ) -> Result<Vec<Option<Pointer>>, Error> {
        let mut words: Vec<Option<CellWord>> = vec![None; asked.len()];
        let mut same = vec![true; asked.len()];
        let read = |node| {
            let look = |asked: &Asked| {
                let at = asked.cell.at(node, group.nodes()).plus(cell::WORD);
                Verb::Read { at, words: 1 }
            };
            let chain: heapless::Vec<Verb<'_>, MAX_VERBS> = asked.iter().map(look).collect();
            group.fabric().post(node, &chain)
        };
        let hear = |_, reply: F::Reply<'_>| {
            for ((word, same), &read) in words.iter_mut().zip(&mut same).zip(reply.iter()) {
                *same &= *word.get_or_insert(CellWord(read)) == CellWord(read);
            }
        };
        group.everywhere(read, hear).await?;
        let format = self.geometry.format;
        let shown = words.into_iter().zip(same);
        Ok(shown
            .map(|(word, same)| word.filter(|_| same).map(|word| format.record(word)))
            .collect())
    }

    fn answer(&self, asked: &Asked, shown: Option<Pointer>, epoch: u64) {
        let settled = match (shown, asked.children) {
            // Born with it, and nobody has to copy them any more.
            (Some(shown), Some(children)) if shown == asked.record => {
                for child in children {
                    self.recycler.reached_all(child.cell, child.record);
                }
                true
            }
            (Some(shown), None) if shown != asked.record => {
                let replaced = self.recycler.replaced(asked.record, asked.cell.pointer, epoch);
                let borne = self.awaited.borne.borrow_mut().remove(&asked.record);
                if let Some((register, buffer)) = borne.filter(|_| replaced) {
                    self.recycler.first_is_everywhere(register, buffer);
                }
                replaced
            }
            _ => false,
        };
        if !settled && asked.looks > 0 {
            self.look_later(Asked { looks: asked.looks - 1, ..*asked });
        }
    }
}

#[cfg(test)]
mod tests {
    use swarm_core::node::NodeId;
    use swarm_core::words::{Ballot, CellFlags};

    use super::super::Need;
    use super::super::tests::{Says, alone};

    use super::*;
    use crate::blocking::block_on;

    /// A record was asked about, and came back by another way before anybody looked.
    #[test]
    fn what_was_asked_of_a_former_life_is_not_answered() {
        let (group, heap) = alone();
        let kind = heap.plain(32);
        let record = block_on(heap.allocate(&group, kind, Need::Instead)).expect("memory");
        let cell = heap.geometry.bucket_cell(0).pointer;
        let replaced = Replaced::Record { cell, record };
        heap.recycler.committed(cell, record);
        heap.hears(replaced);
        heap.recycler.replaced(record, cell, 1);
        assert!(heap.recycler.due(3, 9, |_| true).is_some(), "it came back");
        // Behind the looks, it is committed in the cell once more.
        let meanwhile = Says(|| {
            heap.recycler.handed_out(record);
            heap.recycler.committed(cell, record);
            5
        });
        let look = || block_on(heap.look_for_records(&group, &meanwhile, |_| None));
        look().expect("one node");
        assert_eq!(heap.recycler.due(99, 9, |_| true), None, "the cell's record is in use");
        // Asked about in this life it is found: the cell shows no such record.
        heap.hears(replaced);
        look().expect("one node");
        assert_eq!(heap.recycler.due(99, 9, |_| true), Some((kind, vec![record])));
    }

    /// A collection took a record that had borne a register with its first buffer. What the record's memory is
    /// used for next says nothing of those, should they be born again with another.
    #[test]
    fn what_a_collection_took_bears_nothing() {
        let (group, heap) = alone();
        let kind = heap.plain(32);
        let take = || block_on(heap.allocate(&group, kind, Need::Instead)).expect("memory");
        let (record, other, buffer) = (take(), take(), take());
        let register = heap.geometry.bucket_cell(0).pointer;
        for born_with in [record, other] {
            heap.has_borne(born_with, Some((register, buffer)));
        }
        heap.bears_no_more(record);
        let bears = |record| heap.awaited.borne.borrow().contains_key(&record);
        assert_eq!([record, other].map(bears), [false, true]);
        heap.has_split(
            register,
            take(),
            [other, take()].map(|record| Child { cell: register, record, words: 32 }),
        );
        assert!(!bears(other), "it is a bucket's first record");
    }

    /// A split makes room for a key, whose insert replaces the first record of one of the two buckets
    /// at once. That one comes back too, but not before every node shows the split.
    #[test]
    fn a_childs_first_record_comes_back_behind_its_split() {
        let (group, heap) = alone();
        let kind = heap.plain(32);
        let take = || block_on(heap.allocate(&group, kind, Need::Instead)).expect("memory");
        let cells = [0, 1, 2].map(|at| heap.geometry.bucket_cell(at));
        let [parent, left, right] = cells.map(|cell| cell.pointer);
        let (split, first, other) = (take(), take(), take());
        let children =
            [(left, first), (right, other)].map(|(cell, record)| Child { cell, record, words: 32 });
        heap.has_split(parent, split, children);
        heap.hears(Replaced::Record { cell: left, record: first });
        let look = || {
            let looked = heap.look_for_records(&group, &Says(|| 5), |_| None);
            block_on(looked).expect("one node");
        };
        look();
        assert_eq!(heap.recycler.due(99, 9, |_| true), None, "the node lacks the split");
        let word = group.format().cell(Ballot(1), split, CellFlags::SOLID | CellFlags::ACCEPTED);
        let at = cells[0].at(NodeId(0), 1).plus(cell::WORD);
        let write = Verb::Write { at, head: &[word.0], tail: &[] };
        block_on(group.fabric().post(NodeId(0), &[write])).expect("the node");
        look();
        assert_eq!(heap.recycler.due(99, 9, |_| true), Some((kind, vec![first])));
    }
}
