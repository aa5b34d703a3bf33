//! Collecting garbage: what nothing names any more, of this client's own chunks.
//!
//! Most buffers come back as soon as their client has written again (see
//! [`recycle`](crate::heap::recycle)). For all else a client goes over the index, when memory runs
//! out: whatever a bucket, its record or a register may still name is *marked*, and what is left
//! unmarked in the client's chunks is retired. It all rests on three things:
//!
//! - *Nobody makes a new name for it.* Only the operation for which memory was handed out puts its
//!   pointer into the world. A collection looks at what was handed out before it began, and goes over
//!   the index once every operation that was under way then is over.
//! - *No old name comes back.* Buckets count only once their cells are [quiet](swarm_core::cell::quiet): then no
//!   record but the one that every node shows can be proposed again. Of a register, what lies below
//!   the [settled](Survey::settled) stamp is never fetched. Both take an answer of every node.
//! - *Nobody goes by what was remembered.* Registers and records lie in clients' caches. Before they
//!   are retired, another generation begins, in which those are forgotten; a buffer is only ever found
//!   through a register.
//!
//! After that the epochs see to operations under way, as for every retired object.

use std::collections::HashMap;
use std::mem::take;

use futures_util::future::try_join_all;
use swarm_core::clock::Clock;
use swarm_core::epoch::GRACE;
use swarm_core::fabric::{Board, Fabric, MAX_VERBS, Verb};
use swarm_core::layout::{BufferHeader, Class, Place, Site, buffer, cell, register};
use swarm_core::node::NodeSet;
use swarm_core::register::Protocol;
use swarm_core::register::survey::{Survey, survey};
use swarm_core::words::{Pointer, Stamp, StampFlags, Timestamp, WriteNumber};

use crate::bucket::{Bucket, Content, Entry, MAX_ENTRIES};
use crate::client::Client;
use crate::error::Error;
use crate::heap::{Need, Unnamed};
use crate::index::Located;
use crate::tour::{Stop, Tour};

/// Buckets that one step goes over, and objects of which it READs what they hold, for an operation that
/// waits for memory.
pub(crate) const LONG_STEP: usize = 64;
/// Objects that one step retires: of a large pool there may be very many.
const RETIRED: usize = 4096;
/// Registers for which there is room from the beginning, if so many may be met: to make more of it while there are many
/// takes a step milliseconds.
const REGISTERS: u64 = 1 << 22;

/// A collection under way.
pub(crate) struct Collection {
    /// The epoch in which it began.
    began: u64,
    /// This client's chunks.
    chunks: Vec<usize>,
    stage: Stage,
    found: Found,
    /// Nothing names it, and nobody fetches it any more.
    garbage: Vec<Unnamed>,
}

/// What a collection found out about registers.
#[derive(Default)]
struct Found {
    /// Those that the index names: where they have settled, or an empty stamp.
    settled: HashMap<Pointer, Stamp>,
    /// Whether any were taken out of the index.
    unmapped: bool,
    /// Whether there was no memory for the record of a bucket, or it was on its way back.
    lacked_records: bool,
    /// Those that end a line.
    line_ends: LineEnds,
}

/// Deleted registers that took another one's place, and the epochs in which a collection first met
/// them deleted.
pub(crate) type LineEnds = HashMap<(Pointer, WriteNumber), u64>;

enum Stage {
    /// For operations that were under way when it began.
    Waiting,
    /// Over the index.
    Marking(Tour),
    /// Over the client's chunks; the next one, and what is left to READ of the one before.
    Sweeping { next: usize, unread: Vec<Unnamed> },
    /// Over the garbage, of which so many were retired.
    Retiring { retired: usize },
}

/// How far a collection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It goes on.
    Going,
    /// It waits for others' operations.
    Waiting,
    /// It is over.
    Done(Collected),
}

/// What a collection came to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Collected {
    /// So many objects were retired.
    pub(crate) garbage: usize,
    /// Whether the next one may find more: keys' entries were taken out of the index, or wait for
    /// that.
    pub(crate) more: bool,
    /// Whether a bucket still names what it need not, as there was no memory for its next record, or only such as
    /// was on its way back.
    pub(crate) lacked_records: bool,
}

impl<F: Fabric, C: Clock, P: Protocol> Client<F, C, P> {
    /// One step of the collection under way, or of a new one: over `length` buckets or objects, with a few
    /// roundtrips for each, or over some thousand objects that it retires, with none. One that is dropped leaves no
    /// collection behind: the next begins anew. Whoever calls this searches alone, since collections share the
    /// ledgers' marks.
    ///
    /// # Errors
    /// Not all nodes answer, or a bucket is changed all the time: the collection is given up, and
    /// nothing is lost by it.
    pub(crate) async fn collect_step(&self, length: usize) -> Result<Progress, Error> {
        let Some(presence) = &self.presence else {
            return Ok(Progress::Done(Collected::default()));
        };
        let mut collection = match self.collection.take() {
            Some(collection) => collection,
            None => match self.begin_collection().await? {
                Some(collection) => collection,
                None => return Ok(Progress::Going),
            },
        };
        presence.settle(self.group.fabric());
        let epoch = presence.board().advance();
        let progress = match &mut collection.stage {
            Stage::Waiting if epoch < collection.began + GRACE => Progress::Waiting,
            Stage::Waiting => {
                let _here = self.here();
                let record = self.heap.quiet_record(&self.group).await?;
                self.heap.recycler.mark(record);
                collection.stage = Stage::Marking(Tour::default());
                Progress::Going
            }
            Stage::Marking(tour) => {
                if self.mark_some(tour, &mut collection.found, length).await? {
                    self.heap.recycler.all_marked();
                    let met = self.registers_met.get().unwrap_or(0);
                    self.registers_met.set(Some(met.max(collection.found.settled.len())));
                    self.line_ends.replace(take(&mut collection.found.line_ends));
                    collection.stage = Stage::Sweeping { next: 0, unread: Vec::new() };
                }
                Progress::Going
            }
            Stage::Sweeping { unread, .. } if !unread.is_empty() => {
                let objects = unread.split_off(unread.len().saturating_sub(length));
                self.look_at(objects, &collection.found, &mut collection.garbage).await?;
                Progress::Going
            }
            Stage::Sweeping { next, unread } => match collection.chunks.get(*next) {
                Some(&chunk) => {
                    *next += 1;
                    *unread = self.sweep(chunk, &mut collection.garbage).await?;
                    Progress::Going
                }
                None => {
                    // Records would do without, as what is remembered of a bucket is good for an epoch, and so would
                    // buffers, which are found through registers. One rule for all is easier to keep.
                    if collection.garbage.iter().any(|object| !object.held) {
                        presence.board().renew();
                    }
                    collection.stage = Stage::Retiring { retired: 0 };
                    Progress::Going
                }
            },
            Stage::Retiring { retired } if collection.garbage.is_empty() => {
                let more = collection.found.unmapped || !self.line_ends.borrow().is_empty();
                let lacked_records = collection.found.lacked_records;
                let garbage = *retired;
                return Ok(Progress::Done(Collected { garbage, more, lacked_records }));
            }
            Stage::Retiring { retired } => {
                let left = collection.garbage.len().saturating_sub(RETIRED);
                *retired += self.retire(&collection.garbage.split_off(left), presence.board());
                Progress::Going
            }
        };
        self.collection.set(Some(collection));
        Ok(progress)
    }

    /// Whether a collection is under way.
    pub(crate) fn is_collecting(&self) -> bool {
        let collection = self.collection.take();
        let is = collection.is_some();
        self.collection.set(collection);
        is
    }

    /// Nothing as long as not all that this client has is known.
    async fn begin_collection(&self) -> Result<Option<Box<Collection>>, Error> {
        let _here = self.here();
        let Some(chunks) = self.heap.take_stock(&self.group).await? else { return Ok(None) };
        self.heap.begins_to_collect(self.group.clock().now());
        let began = self.presence.as_ref().map_or(0, |presence| presence.board().latest());
        let registers = self.heap.most_registers().min(REGISTERS) as usize;
        // Where there are few keys, most have come and gone.
        let expected = self.registers_met.get().map_or(registers, |met| 2 * met + LONG_STEP);
        let settled = HashMap::with_capacity(registers.min(expected));
        let (found, garbage) = (Found { settled, ..Found::default() }, Vec::new());
        Ok(Some(Box::new(Collection { began, chunks, stage: Stage::Waiting, found, garbage })))
    }

    /// Marks what so many buckets name. True at the end of the index.
    async fn mark_some(
        &self,
        tour: &mut Tour,
        found: &mut Found,
        buckets: usize,
    ) -> Result<bool, Error> {
        for _ in 0..buckets {
            let _here = self.here();
            match self.next_quiet(tour).await? {
                Stop::At(located) => self.mark(&located, found).await?,
                Stop::Nothing => {}
                Stop::End => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Asks for a bucket's cell, which comes next or soon.
    pub(crate) fn expect_bucket(&self, cell: &Place) {
        let payload = self.geometry.bucket_payload;
        self.expect_everywhere(cell, cell::IN_PLACE + cell::IN_PLACE_WORDS + payload);
    }

    /// Asks every node for words that are READ soon. Where memory is near, a collection does little else than
    /// to wait for words that are in nobody's cache.
    fn expect_everywhere(&self, place: &Place, words: usize) {
        let nodes = self.group.nodes();
        for node in NodeSet::all(nodes) {
            self.group.fabric().expect(node, place.at(node, nodes), words);
        }
    }

    /// Marks what a quiet bucket names. Takes deleted keys out of it, and a first buffer that was
    /// written over since.
    async fn mark(&self, located: &Located, found: &mut Found) -> Result<(), Error> {
        let recycler = &self.heap.recycler;
        recycler.mark(located.view.record());
        match &located.bucket.content {
            Content::Split(children) => {
                // Their first records are named here for nodes that the split has not reached.
                let cells = children.iter().filter_map(|it| self.geometry.bucket_place(it.cell));
                cells.for_each(|cell| self.expect_bucket(&cell));
                children.iter().for_each(|child| recycler.mark(child.cell));
            }
            Content::Entries { entries, born } => {
                let mut live = heapless::Vec::<Entry, MAX_ENTRIES>::new();
                // The buffer that was born with it, once it is of no more use.
                let mut spent = None;
                if let Some(born) = born {
                    recycler.mark(born.buffer);
                    spent = Some(born.buffer);
                }
                let registers =
                    || entries.iter().filter_map(|it| Some((it, it.register(&self.geometry)?)));
                for (_, register) in registers() {
                    self.expect_everywhere(&register.place, register::STATE_WORDS);
                }
                entries.iter().for_each(|entry| recycler.mark(entry.pointer));
                let surveys = registers().map(async |(entry, register)| {
                    survey(&self.group, &register.place).await.map(|survey| (entry, survey))
                });
                for (entry, survey) in try_join_all(surveys).await? {
                    let mut buffers: Vec<Pointer> =
                        survey.current().map(|stamp| self.geometry.format.pointer(stamp)).collect();
                    buffers.sort_unstable();
                    buffers.dedup();
                    for buffer in buffers {
                        match born {
                            Some(born) if born.buffer == buffer => spent = None,
                            _ => recycler.mark(buffer),
                        }
                    }
                    found.settled.insert(entry.pointer, survey.settled().unwrap_or(Stamp::EMPTY));
                    if !self.is_dead(&survey) || !self.is_left(entry, found) {
                        live.push(*entry).map_err(|_| swarm_core::error::Error::Damaged)?;
                    }
                }
                // A worn cell's last changes are for whoever sends its keys on.
                if (live.len() < entries.len() || spent.is_some()) && !self.is_worn(located) {
                    // A key that is gone gives more back than its record takes.
                    let need = if live.len() < entries.len() { Need::Move } else { Need::Instead };
                    found.unmapped = true;
                    found.lacked_records |= !self.unmap(located, live, need).await?;
                }
            }
        }
        Ok(())
    }

    /// Whether a register was deleted for good.
    pub(crate) fn is_dead(&self, survey: &Survey) -> bool {
        survey.settled().is_some_and(|stamp| self.geometry.format.is_deleted(stamp))
    }

    /// Whether nobody has to find his way through a deleted key's entry any more: it is not linked,
    /// or was met deleted in an epoch whose operations are over.
    ///
    /// Who has to was at work before the first register of its line moved, and so before the last
    /// one, which this entry names, was born and deleted. That it was deleted before this collection
    /// began is not known, so that to have waited for the operations of then is not enough.
    fn is_left(&self, entry: &Entry, found: &mut Found) -> bool {
        let Some(presence) = &self.presence else { return false };
        if !entry.linked {
            return true;
        }
        let name = (entry.pointer, entry.identity.number);
        let board = presence.board();
        let met = self.line_ends.borrow().get(&name).copied().unwrap_or(board.latest());
        found.line_ends.insert(name, met);
        board.epoch() >= met + GRACE
    }

    /// Leaves only these entries in a bucket. What it named besides comes to light in the next
    /// collection. False if there is no memory for its record yet: this collection brings some, and the next one comes
    /// by again.
    ///
    /// Where all that is free is kept back, a few records do for all buckets, one after the other, and come back
    /// [between the steps](Self::records_back): chunks that were taken for all at once would stay with them.
    async fn unmap(
        &self,
        located: &Located,
        live: heapless::Vec<Entry, MAX_ENTRIES>,
        need: Need,
    ) -> Result<bool, Error> {
        if self.heap.awaits_records() {
            return Ok(false);
        }
        let content = Content::Entries { entries: live, born: None };
        let bucket = Bucket { content, ..located.bucket };
        match self.change(located, bucket, &[], need).await {
            Ok(_) => Ok(true),
            Err(Error::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes down what is not marked in a chunk. Yields what this client knows nothing of.
    async fn sweep(&self, chunk: usize, garbage: &mut Vec<Unnamed>) -> Result<Vec<Unnamed>, Error> {
        let _here = self.here();
        self.heap.know_own(&self.group).await?;
        let is_known = |object: &Unnamed| object.held || object.is_homed();
        let (known, unknown): (Vec<_>, Vec<_>) =
            self.heap.recycler.unnamed(chunk).into_iter().partition(is_known);
        garbage.extend(known);
        Ok(unknown)
    }

    /// Takes down those of these objects whose writes nobody fetches any more, of which it was not known what
    /// became of them; of those that are this client's still and that nothing happened to.
    async fn look_at(
        &self,
        mut objects: Vec<Unnamed>,
        found: &Found,
        garbage: &mut Vec<Unnamed>,
    ) -> Result<(), Error> {
        let _here = self.here();
        self.heap.know_own(&self.group).await?;
        objects.retain(|object| self.heap.recycler.is_unnamed(object.pointer));
        for objects in objects.chunks(MAX_VERBS) {
            let writes = self.writes_in(objects).await?;
            let with_writes = objects.iter().zip(&writes);
            let over = with_writes.filter(|(object, it)| self.are_over(object.pointer, it, found));
            garbage.extend(over.map(|(object, _)| *object));
        }
        Ok(())
    }

    /// The writes that these objects were the buffers of, as far as any node tells. None for what
    /// was a record.
    async fn writes_in(&self, objects: &[Unnamed]) -> Result<Vec<Writes>, Error> {
        let nodes = self.group.nodes();
        let words = buffer::HEADER_WORDS - buffer::REWRITE;
        let deleted = self.geometry.format.deleted();
        let site = |object: &Unnamed| self.heap.site(object.kind, object.pointer);
        let sites: Vec<Site> = objects.iter().filter_map(site).collect();
        let mut writes = vec![Writes::new(); objects.len()];
        let read = |node| {
            let held = sites.iter().filter(|site| site.holders.contains(node));
            let look = |site: &Site| Verb::Read {
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
                        // What is beyond all timestamps is a word of a former life.
                        let rewritten = header.rewrite < deleted;
                        let rewrite = if rewritten { header.rewrite } else { header.guess };
                        // None is 0. One that is there was meant for a slot: a reader may have met it in one that
                        // shows something larger by now, and be bringing it to others.
                        let latest = header.guess.max(rewrite);
                        writes.push((header.register, latest)).expect("room for every node's");
                    }
                }
            })
            .await?;
        Ok(writes)
    }

    /// Whether nobody fetches `object` any more for any of these writes, although their outcome is
    /// not known: their registers show later stamps that are settled, or are not mapped any more. (Not stamps of their own
    /// buffer: what has settled is current, and was marked.)
    fn are_over(&self, object: Pointer, writes: &Writes, found: &Found) -> bool {
        let format = self.geometry.format;
        writes.iter().all(|&(register, timestamp)| {
            let Some(&settled) = found.settled.get(&register) else { return true };
            timestamp <= format.deleted()
                && settled > format.stamp(timestamp, object, StampFlags::VERIFIED)
        })
    }

    /// Retires garbage, once another generation has begun where somebody may remember some. Yields how much of it
    /// nothing happened to.
    fn retire(&self, garbage: &[Unnamed], board: &impl Board) -> usize {
        let epoch = board.latest();
        let retired = garbage.iter().filter(|object| self.heap.recycler.retire(object, epoch));
        retired.inspect(|object| self.heap.bears_no_more(object.pointer)).count()
    }
}

/// Writes that an object was the buffer of: their registers, and their latest timestamps.
type Writes = heapless::Vec<(Pointer, Timestamp), { swarm_core::node::MAX_NODES }>;

impl Unnamed {
    fn is_homed(&self) -> bool {
        matches!(self.class(), Class::Homed { .. })
    }
}
