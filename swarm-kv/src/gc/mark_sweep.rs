//! The GC cycle: retires objects of this client's own chunks that are unreachable.
//!
//! Most buffers are reclaimed as soon as their client has written again (see
//! [`reclaimer`](crate::heap::reclaim::reclaimer)). For all else a client walks the index, when
//! memory runs out. It *marks* all that a bucket, its record or a register may still name, and
//! retires what is left unmarked in its chunks. Three invariants make that safe:
//!
//! - **E5**: no client makes a new pointer to an object. Only the operation for which memory was
//!   handed out publishes its pointer. A cycle looks at what was handed out before it began, and
//!   walks the index once all operations that were under way then have ended.
//! - **E6**: no old pointer returns. A bucket counts only once its cell has
//!   [converged](swarm_core::cell::converged): then only the record that every node shows can be
//!   proposed again. Of a register, what lies below the [completed](AllReplicas::completed) stamp is
//!   never fetched. Both take an answer of every node.
//! - **E7**: no operation goes by what was cached before. Clients cache the locations of registers
//!   and records. Before those are retired, a new generation begins, in which all clients drop
//!   them; a buffer is only ever reached through a register.
//!
//! After that, epochs protect operations under way, as for every retired object.

use std::collections::HashMap;
use std::mem::take;

use swarm_core::cell::{self, View};
use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{EpochDomain, Fabric, MAX_VERBS, Verb};
use swarm_core::layout::{self, BufferHeader, ChunkClass, Location, ReplicaSet, buffer, register};
use swarm_core::node::NodeSet;
use swarm_core::register::Protocol;
use swarm_core::register::read_all::{AllReplicas, read_all};
use swarm_core::words::{Pointer, Stamp, StampFlags, Timestamp};

use crate::client::gc_state::{ChunkWalk, Found, GcCycle, IndexWalk, Stage};
use crate::client::handle::Client;
use crate::error::Error;
use crate::gc::index_walk::WalkStep;
use crate::heap::{Purpose, Unreachable};
use crate::index::bucket::{Bucket, Content, Created, Entry, KeyObject, MAX_ENTRIES};
use crate::index::keyed_cell::{KeyedCell, Kind, Parts};
use crate::index::lookup::Located;
use crate::runtime::side_by_side::try_join_all;

/// Buckets that one step walks, and objects that it READs, for an operation that waits for memory.
pub(crate) const LONG_STEP: usize = 64;
/// Objects that one step sweeps or retires: a large pool may have very many. A cycle lists no more
/// of them at a time.
const SWEPT: usize = 4096;
/// Chunks in which one step looks for garbage to retire.
const RETIRED_FROM: usize = 16;
/// Registers for which there is room from the beginning, if there may be that many: growing a large
/// table takes a step milliseconds.
const REGISTERS: u64 = 1 << 22;
/// Cells that a cycle ends, as their values have expired, by memory that is reserved for moves.
const MOST_BY_RESERVE: usize = 16;

/// How far a cycle has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It has more to do.
    Going,
    /// It waits for other clients' operations.
    Waiting,
    /// It has ended.
    Done(GcResult),
}

/// The result of a cycle.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct GcResult {
    /// How many objects were retired.
    pub(crate) garbage: usize,
    /// Whether the next cycle may find more: keys' entries were taken out of the index, or wait for
    /// that.
    pub(crate) more: bool,
    /// Whether a bucket still names what it need not, as there was no memory for its next record,
    /// or only memory that was being reclaimed.
    pub(crate) lacked_records: bool,
}

impl<F: Fabric, C: Clock, P> Client<F, C, P> {
    /// Whether a GC cycle of this client has walked the index.
    pub(crate) fn has_collected(&self) -> bool {
        self.registers_met.get().is_some()
    }
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// Runs one step of the cycle under way, or of a new one: over `length` buckets or objects,
    /// with a few roundtrips for each, or over some thousand objects that it retires, with none. A
    /// step that is dropped ends the cycle: the next one starts over. The caller is the only search
    /// of this client, as cycles share the object tables' marks.
    ///
    /// # Errors
    /// If not all nodes answer, or a bucket changes all the time: the cycle is given up, and
    /// nothing is lost by it.
    pub(crate) async fn gc_step(&self, length: usize) -> Result<Progress, Error> {
        let Some(participant) = &self.participant else {
            return Ok(Progress::Done(GcResult::default()));
        };
        let mut collection = match self.collection.take() {
            Some(collection) => collection,
            None => match self.begin_collection().await? {
                Some(collection) => collection,
                None => return Ok(Progress::Going),
            },
        };
        participant.unpin_completed(self.group.fabric());
        let epoch = participant.domain().try_advance();
        let progress = match &mut collection.stage {
            Stage::Waiting if epoch < collection.began + GRACE => Progress::Waiting,
            Stage::Waiting => {
                let _pin = self.pin();
                let record = self.heap.quiet_record(&self.group).await?;
                self.heap.reclaimer.mark(record);
                collection.stage = Stage::Marking(IndexWalk::default());
                Progress::Going
            }
            Stage::Marking(tour) => {
                if self.mark_some(tour, &mut collection.found, length).await? {
                    self.heap.reclaimer.all_marked();
                    let met = self.registers_met.get().unwrap_or(0);
                    self.registers_met.set(Some(met.max(collection.found.settled.len())));
                    self.tombstones.replace(take(&mut collection.found.tombstones));
                    let at = ChunkWalk::default();
                    collection.stage = Stage::Sweeping { at, unread: Vec::new() };
                }
                Progress::Going
            }
            Stage::Sweeping { unread, .. } if !unread.is_empty() => {
                let objects = unread.split_off(unread.len().saturating_sub(length));
                collection.may_be_cached |= self.look_at(objects, &collection.found).await?;
                Progress::Going
            }
            Stage::Sweeping { at, unread } => match collection.chunks.get(at.chunk) {
                Some(&chunk) => {
                    let objects = self.sweep(chunk, at).await?;
                    collection.may_be_cached |= objects.iter().any(Unreachable::is_homed);
                    let is_known = |object: &Unreachable| object.held || object.is_homed();
                    *unread = objects.into_iter().filter(|object| !is_known(object)).collect();
                    Progress::Going
                }
                None => {
                    // E7. Records could do without, as a cached bucket is valid for one epoch only,
                    // and so could buffers, which are reached through registers. One rule for all
                    // is easier to keep.
                    if collection.may_be_cached {
                        participant.domain().new_generation();
                    }
                    // The lists of what is retired may take its place.
                    collection.found.settled = HashMap::new();
                    collection.stage = Stage::Retiring { at: ChunkWalk::default(), retired: 0 };
                    Progress::Going
                }
            },
            Stage::Retiring { at, retired } if at.chunk >= collection.chunks.len() => {
                let more = collection.found.unmapped || !self.tombstones.borrow().is_empty();
                let lacked_records = collection.found.lacked_records;
                let garbage = *retired;
                return Ok(Progress::Done(GcResult { garbage, more, lacked_records }));
            }
            Stage::Retiring { at, retired } => {
                *retired += self.retire(&collection.chunks, at, participant.domain());
                Progress::Going
            }
        };
        self.collection.set(Some(collection));
        Ok(progress)
    }

    /// Returns how far the current cycle has marked: how many of how many first buckets, or 0 of 0
    /// once that is done. `None` before.
    pub(crate) fn marked(&self) -> Option<(u64, u64)> {
        let collection = self.collection.take();
        let marked = collection.as_ref().and_then(|collection| match &collection.stage {
            Stage::Waiting => None,
            Stage::Marking(walk) => Some((walk.next as u64, self.geometry.first_buckets() as u64)),
            Stage::Sweeping { .. } | Stage::Retiring { .. } => Some((0, 0)),
        });
        self.collection.set(collection);
        marked
    }

    /// Whether a cycle is under way.
    pub(crate) fn is_collecting(&self) -> bool {
        let collection = self.collection.take();
        let is = collection.is_some();
        self.collection.set(collection);
        is
    }

    /// Starts a cycle. `None` as long as object tables are still to be opened.
    async fn begin_collection(&self) -> Result<Option<Box<GcCycle>>, Error> {
        let _pin = self.pin();
        let Some(chunks) = self.heap.take_stock(&self.group).await? else { return Ok(None) };
        self.heap.begins_to_collect(self.group.clock().now());
        let began =
            self.participant.as_ref().map_or(0, |participant| participant.domain().epoch_bound());
        let registers = self.heap.most_registers().min(REGISTERS) as usize;
        // If there are few keys, most objects belong to deleted ones.
        let expected = self.registers_met.get().map_or(registers, |met| 2 * met + LONG_STEP);
        let settled = HashMap::with_capacity(registers.min(expected));
        let (stage, found) = (Stage::Waiting, Found { settled, ..Found::default() });
        Ok(Some(Box::new(GcCycle { began, chunks, stage, found, may_be_cached: false })))
    }

    /// Marks what the next `buckets` buckets name. Returns true at the end of the index.
    async fn mark_some(
        &self,
        tour: &mut IndexWalk,
        found: &mut Found,
        buckets: usize,
    ) -> Result<bool, Error> {
        for _ in 0..buckets {
            let _pin = self.pin();
            match self.next_quiet(tour).await? {
                WalkStep::At(located) => self.mark(&located, found).await?,
                WalkStep::Nothing => {}
                WalkStep::End => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Prefetches a bucket's cell, which is walked next or soon.
    pub(crate) fn expect_bucket(&self, cell: &Location) {
        let payload = self.geometry.bucket_payload;
        self.expect_everywhere(
            cell,
            layout::cell::IN_PLACE + layout::cell::IN_PLACE_WORDS + payload,
        );
    }

    /// Prefetches at every node words that are READ soon. On a synchronous fabric, a cycle spends
    /// most of its time waiting for words that are in no processor's cache.
    fn expect_everywhere(&self, place: &Location, words: usize) {
        let nodes = self.group.nodes();
        for node in NodeSet::all(nodes) {
            self.group.fabric().expect(node, place.at(node, nodes), words);
        }
    }

    /// Marks what a converged bucket names (E6). Removes deleted keys from it, and a first buffer
    /// that was superseded since.
    async fn mark(&self, located: &Located, found: &mut Found) -> Result<(), Error> {
        let reclaimer = &self.heap.reclaimer;
        reclaimer.mark(located.view.record());
        match &located.bucket.content {
            Content::Split(children) => {
                // Their first records are named here for nodes that the split has not reached.
                let cells = children.iter().filter_map(|it| self.geometry.bucket_place(it.cell));
                cells.for_each(|cell| self.expect_bucket(&cell));
                children.iter().for_each(|child| reclaimer.mark(child.cell));
            }
            Content::Entries { entries, created } => {
                let mut live = heapless::Vec::<Entry, MAX_ENTRIES>::new();
                // The buffer that was created with it, once it is no longer needed.
                let mut spent = None;
                if let Some(created) = created {
                    reclaimer.mark(created.buffer);
                    spent = Some(created.buffer);
                }
                let registers = || {
                    entries.iter().filter_map(|it| match it.object(&self.geometry)? {
                        KeyObject::Register(register) => Some((it, register)),
                        KeyObject::Cell(_) => None,
                    })
                };
                for (_, register) in registers() {
                    self.expect_everywhere(&register.place, register::STATE_WORDS);
                }
                entries.iter().for_each(|entry| reclaimer.mark(entry.pointer));
                let surveys = registers().map(async |(entry, register)| {
                    read_all(&self.group, &register.place).await.map(|read_all| (entry, read_all))
                });
                for (entry, read_all) in try_join_all(surveys).await? {
                    let mut buffers: Vec<Pointer> = read_all
                        .current()
                        .map(|stamp| self.geometry.format.pointer(stamp))
                        .collect();
                    buffers.sort_unstable();
                    buffers.dedup();
                    for buffer in buffers {
                        match created {
                            Some(created) if created.buffer == buffer => spent = None,
                            _ => reclaimer.mark(buffer),
                        }
                    }
                    found
                        .settled
                        .insert(entry.pointer, read_all.completed().unwrap_or(Stamp::EMPTY));
                    if !self.is_dead(&read_all) || !self.is_left(entry, found) {
                        live.push(*entry).map_err(|_| swarm_core::error::Error::Damaged)?;
                    }
                }
                for entry in entries.iter().filter(|entry| entry.is_cell) {
                    let is_dead = self.mark_cell(entry, *created, &mut spent, found).await?;
                    if !is_dead || !self.is_left(entry, found) {
                        live.push(*entry).map_err(|_| swarm_core::error::Error::Damaged)?;
                    }
                }
                // S6: the last changes of a nearly exhausted cell are kept for a split or for
                // moving its keys.
                if (live.len() < entries.len() || spent.is_some()) && !self.is_worn(located) {
                    // Removing a key frees more than the new record takes.
                    let need = if live.len() < entries.len() {
                        Purpose::Relocate
                    } else {
                        Purpose::Replace
                    };
                    found.unmapped = true;
                    found.lacked_records |= !self.unmap(located, live, need).await?;
                }
            }
        }
        Ok(())
    }

    /// Marks the record of a key's cell, once that has converged (E6). Returns whether the key is
    /// deleted. `spent` is the first buffer or record that the bucket's record names, unless it is
    /// still in use.
    async fn mark_cell(
        &self,
        entry: &Entry,
        created: Option<Created>,
        spent: &mut Option<Pointer>,
        found: &mut Found,
    ) -> Result<bool, Error> {
        let Some(KeyObject::Cell(cell)) = entry.object(&self.geometry) else {
            return Err(Error::DAMAGED);
        };
        let converged = cell::converged(&self.group, &cell.at, &()).await?;
        let committed = converged.ok_or(Error::Contended)?;
        let record = committed.view.record();
        self.heap.reclaimer.mark(record);
        if created.is_some_and(|created| created.buffer == record) {
            *spent = None;
        }
        let parts = Parts::of(&committed).ok_or(Error::DAMAGED)?;
        if parts.kind == Kind::Value && self.is_past(parts.deadline) {
            return self.end_expired(&cell, parts.key(&committed), &committed.view, found).await;
        }
        Ok(parts.kind == Kind::Absent)
    }

    /// Ends a cell whose value has expired, so that its memory comes back though nobody asks for the
    /// key. Returns whether it did: what there is no memory for is left to the next cycle.
    ///
    /// What this takes comes back threefold by the next cycle. A few records of what is reserved for
    /// moves begin it where nothing else is free.
    async fn end_expired(
        &self,
        cell: &KeyedCell,
        key: &[u8],
        view: &View,
        found: &mut Found,
    ) -> Result<bool, Error> {
        let mut ended = self.expire(cell, key, view, Purpose::Replace).await;
        if matches!(ended, Err(Error::Full(_))) && found.ended_by_reserve < MOST_BY_RESERVE {
            found.ended_by_reserve += 1;
            ended = self.expire(cell, key, view, Purpose::Relocate).await;
        }
        // The next cycle finds what it replaced.
        found.unmapped |= ended.is_ok();
        match ended {
            Err(Error::Full(_)) => Ok(false),
            ended => ended,
        }
    }

    /// Whether a register was deleted for good.
    pub(crate) fn is_dead(&self, read_all: &AllReplicas) -> bool {
        read_all.completed().is_some_and(|stamp| self.geometry.format.is_deleted(stamp))
    }

    /// Whether no writer needs a deleted key's entry any more (V5): it is not linked, or was found
    /// deleted in an epoch whose operations have ended.
    ///
    /// A writer that needs it began before the first register of its line moved. So it began before
    /// the last one, which this entry names, was created and deleted. Whether the key was deleted
    /// before this cycle began is not known, so it is not enough to have waited for the operations
    /// of that time.
    fn is_left(&self, entry: &Entry, found: &mut Found) -> bool {
        let Some(participant) = &self.participant else { return false };
        if !entry.linked {
            return true;
        }
        let name = (entry.pointer, entry.identity.number);
        let domain = participant.domain();
        let met = self.tombstones.borrow().get(&name).copied().unwrap_or(domain.epoch_bound());
        found.tombstones.insert(name, met);
        domain.epoch() >= met + GRACE
    }

    /// Leaves only these entries in a bucket. The next cycle finds what it named besides. Returns
    /// false if there is no memory for its record yet: this cycle frees some, and the next one
    /// visits the bucket again.
    ///
    /// Where all free chunks are reserved, a few records do for all buckets, one after the other,
    /// and are freed [between the steps](Self::records_back): chunks claimed for all at once would
    /// stay with records.
    async fn unmap(
        &self,
        located: &Located,
        live: heapless::Vec<Entry, MAX_ENTRIES>,
        need: Purpose,
    ) -> Result<bool, Error> {
        if self.heap.awaits_records() {
            return Ok(false);
        }
        let content = Content::Entries { entries: live, created: None };
        let bucket = Bucket { content, ..located.bucket };
        match self.change(located, bucket, &[], need).await {
            Ok(_) => Ok(true),
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns some objects of a chunk that are unmarked, from `at` on.
    async fn sweep(&self, chunk: usize, at: &mut ChunkWalk) -> Result<Vec<Unreachable>, Error> {
        let _pin = self.pin();
        self.heap.know_own(&self.group).await?;
        let (objects, next) = self.heap.reclaimer.unreachable(chunk, at.object, SWEPT);
        at.go_on(next);
        Ok(objects)
    }

    /// Marks those of these objects whose writes an operation may still fetch: the outcome of those
    /// writes was not known. Skips objects that are no longer this client's, or that were touched
    /// since (E5): those are no garbage either. Returns whether any is left unmarked.
    async fn look_at(&self, mut objects: Vec<Unreachable>, found: &Found) -> Result<bool, Error> {
        let _pin = self.pin();
        self.heap.know_own(&self.group).await?;
        objects.retain(|object| self.heap.reclaimer.is_unreachable(object.pointer));
        let mut is_garbage = false;
        for objects in objects.chunks(MAX_VERBS) {
            let writes = self.writes_in(objects).await?;
            for (object, writes) in objects.iter().zip(&writes) {
                if self.are_over(object.pointer, writes, found) {
                    is_garbage = true;
                } else {
                    self.heap.reclaimer.spare(object.pointer);
                }
            }
        }
        Ok(is_garbage)
    }

    /// Returns the writes whose buffers these objects were, as far as any node shows; none for a
    /// former record.
    async fn writes_in(&self, objects: &[Unreachable]) -> Result<Vec<Writes>, Error> {
        let nodes = self.group.nodes();
        let words = buffer::HEADER_WORDS - buffer::REWRITE;
        let deleted = self.geometry.format.deleted();
        let site = |object: &Unreachable| self.heap.site(object.kind, object.pointer);
        let sites: Vec<ReplicaSet> = objects.iter().filter_map(site).collect();
        let mut writes = vec![Writes::new(); objects.len()];
        let read = |node| {
            let held = sites.iter().filter(|site| site.holders.contains(node));
            let look = |site: &ReplicaSet| Verb::Read {
                at: site.place.at(node, nodes).plus(buffer::REWRITE),
                words,
            };
            let reads: Vec<Verb<'_>> = held.map(look).collect();
            self.group.fabric().post(node, &reads)
        };
        let all = sites.iter().fold(NodeSet::EMPTY, |all, site| all.union(site.holders));
        self.group
            .at_all_of(all, read, |node, reply| {
                let held = writes.iter_mut().zip(&sites);
                let held = held.filter(|(_, site)| site.holders.contains(node));
                for ((writes, _), header) in held.zip(reply.chunks(words)) {
                    let Some(header) = BufferHeader::decode(header) else { continue };
                    if !header.register.is_null() {
                        // A value above all timestamps is a word of the buffer's former use.
                        let rewritten = header.rewrite < deleted;
                        let rewrite = if rewritten { header.rewrite } else { header.guess };
                        // 0 is none. A rewrite stamp was meant for a slot: a reader may have
                        // observed it in a slot that shows something larger by now, and may be
                        // writing it back to other nodes.
                        let latest = header.guess.max(rewrite);
                        writes.push((header.register, latest)).expect("room for every node's");
                    }
                }
            })
            .await?;
        Ok(writes)
    }

    /// Whether no operation fetches `object` for any of these writes any more, although their
    /// outcome is not known (E6): their registers show later stamps that are completed, or are not
    /// listed any more. (Never stamps of their own buffer: what is completed is current, and was
    /// marked.)
    fn are_over(&self, object: Pointer, writes: &Writes, found: &Found) -> bool {
        let format = self.geometry.format;
        writes.iter().all(|&(register, timestamp)| {
            let Some(&settled) = found.settled.get(&register) else { return true };
            timestamp <= format.deleted()
                && settled > format.stamp(timestamp, object, StampFlags::VERIFIED)
        })
    }

    /// Retires some of the garbage, from `at` on, once a new generation has begun where clients may
    /// have cached some (E7). An object that was touched since the cycle began is none (E5), and
    /// neither is one of a chunk that has changed its owner. Returns how many objects it retired.
    fn retire(&self, chunks: &[usize], at: &mut ChunkWalk, domain: &impl EpochDomain) -> usize {
        let (epoch, reclaimer) = (domain.epoch_bound(), &self.heap.reclaimer);
        let mut retired = 0;
        for &chunk in chunks.iter().skip(at.chunk).take(RETIRED_FROM) {
            let (garbage, next) = reclaimer.unreachable(chunk, at.object, SWEPT);
            let garbage = garbage.iter().filter(|object| reclaimer.retire(object, epoch));
            retired += garbage.inspect(|object| self.heap.forget_created(object.pointer)).count();
            at.go_on(next);
            if next.is_some() || retired >= SWEPT {
                break;
            }
        }
        retired
    }
}

/// Writes whose buffer an object was: their registers, and their latest timestamps.
type Writes = heapless::Vec<(Pointer, Timestamp), { swarm_core::node::MAX_NODES }>;

impl Unreachable {
    fn is_homed(&self) -> bool {
        matches!(self.class(), ChunkClass::Homed { .. })
    }
}
